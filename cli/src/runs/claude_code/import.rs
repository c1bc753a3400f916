//! Imports transcripts into a store.

use std::path::{Path, PathBuf};

use foldlog::{
    BackgroundSync, Durability, Session, SessionOptions, SessionTypes, Store, StoreOptions, Value,
};

use super::agents::Talks;
use super::findings::{FindingKind, TranscriptFinding};
use super::line::{LineFields, field};
use super::scan::{Reread, TranscriptScan, TranscriptSource};
use super::write::TranscriptWriter;
use super::{BackupSeen, RawTranscriptLine, TranscriptFile, types};
use crate::failure::Result;
use crate::runs::import::{ImportCounts, close_session};
use crate::runs::malformed_error;

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// Sessions, messages and records.
    pub written: ImportCounts,
    /// Number of lines, of all files.
    pub lines: u64,
    /// Number of rewinds, each of which is a rollback to an earlier message.
    pub rewinds: u64,
    /// Number of sub-agents that became child sessions.
    pub agents: u64,
    /// Findings, by file and line.
    pub findings: Vec<TranscriptFinding>,
}

/// Imports transcripts and their sub-agents into the store at `root`. Each file becomes one
/// session; files that repeat or follow lines of each other share one. Data that is appended to a
/// file meanwhile is ignored.
///
/// # Errors
///
/// - [`Error::File`](foldlog_view::Error::File) if a file cannot be read, or changes while
///   it is read.
/// - [`CommandError::Malformed`](crate::CommandError::Malformed) if a file contains no line of a
///   transcript, contains a line of over 256 MiB, or has a name that is not UTF-8, and if files of
///   one session have the same name.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the store cannot be written.
///
/// The session of a file that fails is deleted. Sessions of other files may remain if the store
/// cannot be written.
pub fn import(root: &Path, files: &[PathBuf]) -> Result<Imported> {
    let mut scan = TranscriptScan::default();
    files.iter().try_for_each(|file| scan.transcript(file))?;
    let session_of = sessions(&scan);
    check_names(&scan, &session_of)?;
    let options = StoreOptions {
        // Nothing has to survive a power cut before a session is closed, which syncs it.
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    let (store, types) = (Store::open_with(root, options)?, types()?);
    let (mut imported, mut found) = (Imported::default(), Vec::new());
    for first in (0..scan.sources.len()).filter(|place| session_of.get(*place) == Some(place)) {
        let belongs = |source: usize| session_of.get(source) == Some(&first);
        found.append(&mut one(&store, &types, &scan, &belongs, &mut imported)?);
    }
    found.append(&mut scan.findings);
    found.sort_by_key(|(source, finding)| (*source, finding.line, finding.kind));
    imported.findings = found.into_iter().map(|(_, finding)| finding).collect();
    Ok(imported)
}

/// Returns, for each file, the first file of its session.
fn sessions(scan: &TranscriptScan) -> Vec<usize> {
    let mut first: Vec<usize> = scan.sources.iter().map(|source| source.main).collect();
    let root = |first: &[usize], mut place: usize| {
        while let Some(next) = first.get(place).copied().filter(|next| *next != place) {
            place = next;
        }
        place
    };
    for (one, other) in scan.replays.iter().copied().chain(scan.references()) {
        let (one, other) = (root(&first, one), root(&first, other));
        let (early, late) = (one.min(other), one.max(other));
        if let Some(first) = first.get_mut(late) {
            *first = early;
        }
    }
    // A file's first one precedes it, so a single pass finds the first of all.
    for place in 0..first.len() {
        first[place] = root(&first, place);
    }
    first
}

/// Checks that no two files of a session have the same name, since both could not be exported.
fn check_names(scan: &TranscriptScan, session_of: &[usize]) -> Result<()> {
    let mut names = std::collections::HashSet::new();
    for (source, session) in scan.sources.iter().zip(session_of) {
        if !names.insert((session, &source.name)) {
            let reason = "another file of the same session has the same name";
            return Err(malformed_error(&source.path, None, reason));
        }
    }
    Ok(())
}

/// Imports the files of one session and returns the findings. If that fails, the session is
/// deleted, with those of its sub-agents.
fn one(
    store: &Store,
    types: &SessionTypes,
    scan: &TranscriptScan,
    belongs: &dyn Fn(usize) -> bool,
    imported: &mut Imported,
) -> Result<Vec<(usize, TranscriptFinding)>> {
    let mut sources = (0..).zip(&scan.sources).filter(|(place, _)| belongs(*place));
    let name = sources.next().map(|(_, source)| source.name.as_str()).unwrap_or_default();
    let stem = name.strip_suffix(".jsonl").unwrap_or(name);
    let talks = Talks::from_scan(scan, belongs);
    let session = store.create_with(types, SessionOptions::default().tag("claude_code_session", stem))?;
    let mut writer = TranscriptWriter {
        scan,
        talks: &talks,
        types_of_agents: SessionTypes::builder().build()?,
        reread: Reread::default(),
        imported,
        found: Vec::new(),
        begun: vec![session.id()],
    };
    let written = write(session, &mut writer, stem, belongs);
    let TranscriptWriter { found, begun, .. } = writer;
    if let Err(error) = written {
        // The first error is returned. Sub-agents are deleted first, since each names its parent.
        for id in begun.into_iter().rev() {
            let _ = store.delete(id);
        }
        return Err(error);
    }
    let found = found.into_iter().filter_map(|(place, kind, id)| {
        let node = scan.nodes.get(place)?;
        let (file, id) = (scan.sources.get(node.source)?.name.clone(), id.map(String::from));
        Some((node.source, TranscriptFinding { kind, file, line: node.line, lines: None, id }))
    });
    Ok(found.collect())
}

fn write(
    session: Session,
    writer: &mut TranscriptWriter<'_>,
    evaluation: &str,
    belongs: &dyn Fn(usize) -> bool,
) -> Result<()> {
    let sources = writer.scan.sources.iter().enumerate().filter(|(place, _)| belongs(*place));
    for (number, (_, source)) in (0..).zip(sources) {
        writer.imported.lines += keep(&session, number, source)?;
    }
    writer.write_talk(&session, 0, evaluation)?;
    let talks = writer.talks;
    for agent in &talks.alone {
        let Some(talk) = talks.all.get(*agent) else { continue };
        let name = talk.agent.clone().unwrap_or_default();
        if let Some(first) = talk.nodes.first() {
            writer.found.push((*first, FindingKind::AgentWithoutCall, Some(name.clone())));
        }
        writer.write_talk(&session, *agent, &name)?;
    }
    writer.imported.written += close_session(session)?;
    Ok(())
}

/// Records the lines of a file, and the entries of file history snapshots. Returns the number of
/// lines.
fn keep(session: &Session, file: u64, source: &TranscriptSource) -> Result<u64> {
    session.dispatch(TranscriptFile { file, name: source.name.clone() })?;
    let mut lines = 0;
    source.each_line(&mut |line| {
        lines = line.number;
        let raw = match std::str::from_utf8(line.bytes) {
            Ok(text) => Value::from(text),
            Err(_) => Value::Bin(line.bytes.to_owned()),
        };
        session.dispatch(RawTranscriptLine { file, line: line.number, raw, ended: line.ended })?;
        let read = LineFields::read(line.bytes);
        let Some(read) =
            read.filter(|it| field::<String>(it.kind).as_deref() == Some("file-history-snapshot"))
        else {
            return Ok(());
        };
        let message: Option<String> = field(read.message_id);
        for (path, backup) in read.backups() {
            let (message, existed) = (message.clone(), backup.is_some());
            session.dispatch(BackupSeen { file, line: line.number, message, path, existed, backup })?;
        }
        Ok(())
    })?;
    Ok(lines)
}
