//! `foldlog export`: a session's slices or records for other tools.

use std::collections::BTreeSet;
use std::path::Path;

use clap::ValueEnum;
use foldlog::{Policy, SequenceNumber, Store};

use super::show::Timeline;
use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::{counted, each_record, open_outline, open_session, position, store_of, written};
use crate::runs::claude_code;

/// Names what an export prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The slices, as one JSON document for other implementations of agent sessions.
    SnapshotJson,
    /// The records, one JSON object a line, as `show --json` prints them.
    Jsonl,
    /// The files of an imported transcript of Claude Code, as they were.
    ClaudeCode,
}

/// Prints the session as of position `at`, or of the last one. Snapshot JSON holds STATE and LOG slices; CACHE slices can be
/// computed again, and are left out. Children are those in the store of the session.
///
/// The files of a transcript are written into the folder `out`, byte for byte. Without a folder the lines of a transcript
/// without sub-agents are printed, escaped.
///
/// # Errors
///
/// - [`Failure::Usage`] if the log has no such position, if the options are not the format's, or if the session holds no
///   transcript that can be written.
/// - [`Failure::File`] if a file of a transcript cannot be written, or is there already.
/// - [`Failure::Engine`] if the session is corrupt or cannot be read.
pub fn run(
    session: &Path,
    at: Option<SequenceNumber>,
    format: Format,
    out: Option<&Path>,
    output: &mut Output<'_>,
) -> Result<u8> {
    if format == Format::ClaudeCode {
        return transcript(session, at, out, output);
    }
    if out.is_some() {
        return Err(Failure::usage("--out is of the format claude-code only", "leave it out"));
    }
    let reader = match format {
        Format::Jsonl => open_outline(session, output)?,
        _ => open_session(session, output)?,
    };
    let at = position(&reader, at)?;
    match format {
        Format::Jsonl => {
            let timeline = Timeline::of(&reader);
            each_record(&reader, SequenceNumber::MIN..=at, |record| output.value(&timeline.value(record)))?;
        }
        _ => {
            let policies = BTreeSet::from([Policy::State, Policy::Log]);
            let children = match store_of(session) {
                Some((store, id)) => Store::open(store)?.children(id)?,
                None => Vec::new(),
            };
            written(reader.write_export(at, &policies, children, &mut *output.stdout))?;
            writeln!(output.stdout)?;
        }
    }
    Ok(HOLDS)
}

fn transcript(
    session: &Path,
    at: Option<SequenceNumber>,
    out: Option<&Path>,
    output: &mut Output<'_>,
) -> Result<u8> {
    if at.is_some() {
        let what = "--at is not of the format claude-code: it writes the files as they were imported";
        return Err(Failure::usage(what, "leave it out"));
    }
    let reader = open_session(session, output)?;
    let Some(out) = out else {
        claude_code::export_main(&reader, &mut *output.stdout)?;
        return Ok(HOLDS);
    };
    let written = claude_code::export(&reader, out)?;
    if output.json() {
        output.value(&written)?;
    } else {
        let (files, lines) = (counted(written.files, "file"), counted(written.lines, "line"));
        output.line(format_args!("{files}, {lines}"))?;
    }
    Ok(HOLDS)
}
