//! `foldlog verify`: every frame, every body, every seal and every object of sessions or stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::audit::{self, LogReader, ReadOptions};
use foldlog::log::storage::FileStorage;
use foldlog::{Corruption, Error, Record, RecoveryReport, SequenceNumber};
use serde::Serialize;
use uuid::Uuid;

use foldlog_codec::escape;

use crate::failure::{Failure, HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::reading::{counted, holds_anything, is_store, lost_segments, open_store, pass_over, segments};

/// What a verification found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// How many sessions were checked.
    pub sessions: u64,
    /// How many folders of a store were passed over since they hold no records.
    #[serde(skip_serializing_if = "is_zero")]
    pub passed_over: u64,
    /// How many sound records they hold.
    pub records: u64,
    /// How many bytes their logs use, up to the damage where there is some.
    pub bytes: u64,
    /// How many bytes stand behind ends that a crash tore off before they were acknowledged as durable.
    pub torn_bytes: u64,
    /// What is damaged.
    pub corrupt: Vec<Damage>,
    /// Where the torn ends are.
    pub torn: Vec<Torn>,
    /// Records of kinds that this version keeps and shows but cannot fold: the first of each session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<Unsupported>,
    /// Files that others than their owner may read, the first of each session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<Open>,
    /// What could not be read at all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
}

/// Damage in a session, with what is known of its place.
#[derive(Clone, Debug, Serialize)]
pub struct Damage {
    /// The session.
    pub session: Option<Uuid>,
    /// The file.
    #[serde(serialize_with = "escape::serialize_path")]
    pub segment: PathBuf,
    /// Where in it.
    pub offset: Option<u64>,
    /// The record that should stand there, or that is wrong.
    pub sequence: Option<SequenceNumber>,
    /// What is wrong.
    pub reason: String,
}

/// An end that a crash tore off.
#[derive(Clone, Debug, Serialize)]
pub struct Torn {
    /// The session.
    pub session: Uuid,
    /// The segment in which the sound part ends.
    #[serde(serialize_with = "escape::serialize_path")]
    pub segment: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// The first record that is not there.
    pub sequence: SequenceNumber,
    /// How many bytes were left out.
    pub bytes: u64,
}

/// The first record of a session that this version cannot fold.
#[derive(Clone, Debug, Serialize)]
pub struct Unsupported {
    /// The session.
    pub session: Uuid,
    /// The record.
    pub sequence: SequenceNumber,
    /// Its kind.
    pub kind: String,
}

/// A file that others than its owner may read.
#[derive(Clone, Debug, Serialize)]
pub struct Open {
    /// The session.
    pub session: Uuid,
    /// The file.
    #[serde(serialize_with = "escape::serialize_path")]
    pub path: PathBuf,
    /// Its permission bits, in octal digits.
    pub mode: String,
}

/// A session that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct Unreadable {
    /// Its folder.
    #[serde(serialize_with = "escape::serialize_path")]
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Checks sessions and stores.
///
/// # Errors
///
/// Where a path is neither a session nor a store, or something is damaged: the result is printed before.
pub fn run(paths: &[PathBuf], output: &mut Output<'_>) -> Result<u8> {
    let mut verified = Verified::default();
    let dirs = session_dirs(paths, &mut verified, output)?;
    let mut progress = output.progress("verifying sessions", dirs.len() as u64);
    for (done, dir) in (1..).zip(&dirs) {
        match session(&dir.path, output.memory_bytes, &mut verified) {
            Err(Failure::Engine(error)) if dir.of_store => {
                let (path, reason) = (dir.path.clone(), error.to_string());
                verified.unreadable.push(Unreadable { path, reason });
            }
            other => other?,
        }
        progress.at(done);
    }
    drop(progress);
    print(&verified, output)?;
    match (verified.corrupt.len(), verified.unreadable.is_empty()) {
        (0, true) => Ok(HOLDS),
        (0, false) => Ok(UNUSABLE),
        (1, _) => Err(Failure::DoesNotHold("1 place is corrupt".to_owned())),
        (places, _) => Err(Failure::DoesNotHold(format!("{places} places are corrupt"))),
    }
}

/// A session's folder, and whether it was found in a store or named by the user.
struct SessionDir {
    path: PathBuf,
    of_store: bool,
}

fn session_dirs(
    paths: &[PathBuf],
    verified: &mut Verified,
    output: &mut Output<'_>,
) -> Result<Vec<SessionDir>> {
    let mut dirs = Vec::new();
    for path in paths {
        if !is_store(path) {
            dirs.push(SessionDir { path: path.clone(), of_store: false });
            continue;
        }
        let store = open_store(path)?;
        for id in store.session_ids()? {
            let path = store.session_dir(id);
            if holds_anything(&path) || lost_segments(&path).is_some() {
                dirs.push(SessionDir { path, of_store: true });
            } else {
                verified.passed_over += 1;
                pass_over(&path, output);
            }
        }
    }
    Ok(dirs)
}

/// Checks one session and adds what was found, in so many bytes of memory at most.
///
/// # Errors
///
/// Where the folder holds no session, or cannot be read.
pub fn session(dir: &Path, memory_bytes: Option<u64>, verified: &mut Verified) -> Result<()> {
    let (mut records, mut bytes, mut damage) = (0, 0, Vec::new());
    let walked = audit::walk(dir, &mut |frame| {
        if !frame.record.kind.is_envelope() {
            records += 1;
        }
        bytes += frame.bytes;
        if let Err(error) = audit::check_body(&frame.record) {
            damage.push(Damage {
                session: None,
                segment: frame.segment.to_owned(),
                offset: Some(frame.offset),
                sequence: Some(frame.record.sequence),
                reason: error.to_string(),
            });
        }
        Ok(())
    });
    let mut id = walked.as_ref().ok().map(|walked| walked.session).or_else(|| named(dir));
    let report = match walked {
        Err(error) => {
            damage.push(damage_of(dir, error)?);
            None
        }
        Ok(walked) if !damage.is_empty() => {
            bytes = walked.log_bytes;
            Some(walked.report)
        }
        Ok(walked) => {
            bytes = walked.log_bytes;
            match folded(dir, memory_bytes) {
                Ok(report) => Some(report),
                Err(error) => {
                    damage.push(damage_of(dir, error)?);
                    Some(walked.report)
                }
            }
        }
    };
    for damage in &mut damage {
        id = id.or(damage.session);
        damage.session = damage.session.or(id);
    }
    verified.sessions += 1;
    verified.records += report.as_ref().map_or(records, |report| report.records);
    verified.bytes += bytes;
    verified.corrupt.append(&mut damage);
    let Some(report) = report else { return Ok(()) };
    if let Some((sequence, kind)) = report.unsupported {
        verified.unsupported.push(Unsupported {
            session: id.unwrap_or_default(),
            sequence,
            kind: kind.to_string(),
        });
    }
    if let Some(exposed) = report.exposed {
        let (session, mode) = (id.unwrap_or_default(), format!("{:04o}", exposed.mode));
        verified.exposed.push(Open { session, path: exposed.path, mode });
    }
    if let Some(torn) = report.torn {
        let session = id.unwrap_or_default();
        let (segment, offset, sequence, bytes) = (torn.segment, torn.offset, torn.sequence, torn.bytes);
        verified.torn_bytes += bytes;
        verified.torn.push(Torn { session, segment, offset, sequence, bytes });
    }
    Ok(())
}

/// Folds the log, which reads every object that it names, and checks its seals.
fn folded(dir: &Path, memory_bytes: Option<u64>) -> Result<RecoveryReport, Error> {
    let options = ReadOptions { memory_bytes, ..ReadOptions::default() };
    let reader = LogReader::open_with(Arc::new(FileStorage::new()), dir, options)?;
    reader.check_seals()?;
    Ok(reader.report().clone())
}

fn named(dir: &Path) -> Option<Uuid> {
    Uuid::try_parse(dir.canonicalize().ok()?.file_name()?.to_str()?).ok()
}

/// What an error says is damaged; other errors are handed back.
fn damage_of(dir: &Path, error: Error) -> Result<Damage, Error> {
    let reason = error.to_string();
    let at = |session, segment, place: Option<(u64, SequenceNumber)>| Damage {
        session,
        segment,
        offset: place.map(|(offset, _)| offset),
        sequence: place.map(|(_, sequence)| sequence),
        reason: reason.clone(),
    };
    Ok(match error {
        Error::Corrupt(corruption) => {
            let Corruption { session, segment, offset, sequence, .. } = *corruption;
            at(session, segment, Some((offset, sequence)))
        }
        Error::OlderThanSuccessor { session, segment, offset, sequence, .. } => {
            at(Some(session), segment, Some((offset, sequence)))
        }
        Error::MissingSegment { session, path, .. } => at(Some(session), path, None),
        Error::WrongSession { expected, path, .. } => at(Some(expected), path, None),
        Error::Object { ref path, .. } => {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let place =
                first_place(dir, |record| record.objects().iter().any(|object| object.file_name() == name));
            match place {
                Some((segment, offset, sequence)) => at(None, segment, Some((offset, sequence))),
                None => at(None, path.clone(), None),
            }
        }
        Error::Inconsistent { sequence, .. } => {
            match first_place(dir, |record| record.sequence == sequence) {
                Some((segment, offset, sequence)) => at(None, segment, Some((offset, sequence))),
                None => Damage { sequence: Some(sequence), ..at(None, dir.to_owned(), None) },
            }
        }
        Error::NotASession { .. } if lost_segments(dir).is_some() => {
            let reason = lost_segments(dir).unwrap_or_default();
            Damage { reason, ..at(None, dir.to_owned(), None) }
        }
        // Something stands behind a header that does not check: this was a session.
        Error::NotASession { .. } if named(dir).is_some() && holds_anything(dir) => {
            let segment = segments(dir).unwrap_or_default().into_iter().next();
            at(None, segment.unwrap_or_else(|| dir.to_owned()), Some((0, SequenceNumber::MIN)))
        }
        other => return Err(other),
    })
}

/// Where the first record stands for which `wanted` holds.
fn first_place(
    dir: &Path,
    mut wanted: impl FnMut(&Record<'_>) -> bool,
) -> Option<(PathBuf, u64, SequenceNumber)> {
    let mut place = None;
    // Damage behind the record does not hide it.
    let _ = audit::walk(dir, &mut |frame| {
        let record = &frame.record;
        if place.is_none() && !record.kind.is_envelope() && wanted(record) {
            place = Some((frame.segment.to_owned(), frame.offset, record.sequence));
        }
        Ok(())
    });
    place
}

fn print(verified: &Verified, output: &mut Output<'_>) -> Result<()> {
    if output.json() {
        return output.value(verified);
    }
    let sessions = counted(verified.sessions, "session");
    let records = counted(verified.records, "record");
    output.line(format_args!("{sessions}, {records}, {} bytes", verified.bytes))?;
    for torn in &verified.torn {
        output.line(format_args!(
            "torn     {} at byte {}, record {}: {} bytes that nobody was told are durable",
            escape::path(&torn.segment),
            torn.offset,
            torn.sequence,
            torn.bytes
        ))?;
    }
    for damage in &verified.corrupt {
        let offset = damage.offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let record = damage.sequence.map(|sequence| format!(", record {sequence}")).unwrap_or_default();
        output.line(format_args!("corrupt  {}{offset}{record}", escape::path(&damage.segment)))?;
        output.line(format_args!("         {}", damage.reason))?;
    }
    for unsupported in &verified.unsupported {
        let Unsupported { session, sequence, kind } = unsupported;
        output.line(format_args!(
            "unknown  {session}, record {sequence}: kind {kind} is kept but not folded"
        ))?;
    }
    for open in &verified.exposed {
        output.line(format_args!(
            "exposed  {} is {}: others may read it",
            escape::path(&open.path),
            open.mode
        ))?;
    }
    for unreadable in &verified.unreadable {
        output.line(format_args!("unread   {}: {}", escape::path(&unreadable.path), unreadable.reason))?;
    }
    if verified.corrupt.is_empty() && verified.unreadable.is_empty() {
        output.line(match (verified.sessions, verified.passed_over) {
            (0, 1..) => "nothing was checked: no folder of a session holds records",
            (_, 0) => "every frame, body, seal and object holds",
            (_, 1..) => "every frame, body, seal and object of these sessions holds",
        })?;
    }
    Ok(())
}
