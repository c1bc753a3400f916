//! Decisions that other processes leave for the process that has a session open.
//!
//! A session has one writer. A person's decision about a waiting call, made in another process, is
//! left as a file. The open host takes it, records it in the log, and writes an answer with the
//! outcome.
//!
//! ```text
//! sessions/<session>/decisions/
//!   <time>-<id>.decision       a decision; 20 digits of microseconds since 1970, and a random id
//!   <time>-<id>.decision.new   an unfinished one, perhaps left by a crash
//!   <time>-<id>.answer         the outcome as JSON: {"sequence":12} or {"refused":"why"}
//!
//! decision, all numbers little-endian
//!   0   8  "FOLDDECI"
//!   8   4  version, 1
//!  12   4  CRC-32 of all following bytes
//!  16  16  id of the session
//!  32   8  time of the decision, microseconds since 1970
//!  40  32  BLAKE3 of the call's arguments
//!  72      body of a record `settle`
//! ```
//!
//! # Invariants
//!
//! 1. A decision is written under a name that is never read, synced, and renamed: a decision that
//!    is found is complete.
//! 2. Only the process with the session's lock takes decisions. It records a decision, then
//!    answers, then removes it. If it is killed in between, the next process finds the record in
//!    the log and gives the same answer.
//! 3. A file that is not a decision, or does not apply, is answered and removed, and leaves no
//!    record. A file is read up to [`BYTES_MAX`], a round takes at most [`TAKEN_MAX`] files, and at
//!    most [`ANSWERS_MAX`] unread answers are kept.

use std::path::{Path, PathBuf};

use foldlog_codec::SequenceNumber;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::layout;
use crate::error::Result;
use crate::storage::{Access, DirectoryEntry, EntryKind, Storage};

const MAGIC: [u8; 8] = *b"FOLDDECI";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 16;

pub(crate) const BYTES_MAX: u64 = 1 << 20;

pub(crate) const TAKEN_MAX: usize = 256;

/// Maximum number of unread answers that are kept.
const ANSWERS_MAX: usize = 64;

const ANSWER_BYTES_MAX: u64 = 16 << 10;

const DECISION_SUFFIX: &str = ".decision";
const BUILDING_SUFFIX: &str = ".decision.new";
const ANSWER_SUFFIX: &str = ".answer";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftBody {
    pub(crate) session: Uuid,
    /// Time of the decision, in microseconds since 1970-01-01 UTC.
    pub(crate) decided_us: i64,
    /// BLAKE3 of the arguments of the call that was decided.
    pub(crate) arguments: [u8; 32],
    /// Body of a record `settle`.
    pub(crate) settle: Vec<u8>,
}

/// The outcome of a decision that was left for an open host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DecisionOutcome {
    /// This record contains it.
    Sequence(SequenceNumber),
    /// It was refused, for this reason.
    Refused(String),
}

impl LeftBody {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes.extend_from_slice(self.session.as_bytes());
        bytes.extend_from_slice(&self.decided_us.to_le_bytes());
        bytes.extend_from_slice(&self.arguments);
        bytes.extend_from_slice(&self.settle);
        let crc = crc32fast::hash(bytes.get(HEADER_LEN..).unwrap_or_default());
        let header = MAGIC.into_iter().chain(VERSION.to_le_bytes()).chain(crc.to_le_bytes());
        bytes.iter_mut().zip(header).for_each(|(slot, byte)| *slot = byte);
        bytes
    }

    /// Decodes a file. Returns `None` if the file is incomplete, or this version does not write
    /// such a file.
    pub(crate) fn decode(bytes: &[u8]) -> Option<LeftBody> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let (version, crc) = (number::<4>(&mut rest)?, number::<4>(&mut rest)?);
        if u32::from_le_bytes(version) != VERSION || u32::from_le_bytes(crc) != crc32fast::hash(rest) {
            return None;
        }
        let session = Uuid::from_bytes(number(&mut rest)?);
        let decided_us = i64::from_le_bytes(number(&mut rest)?);
        let arguments = number(&mut rest)?;
        Some(LeftBody { session, decided_us, arguments, settle: rest.to_vec() })
    }
}

fn number<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (number, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*number)
}

/// Writes a decision into the directory of its session, durably. Returns its path.
pub(crate) fn leave(storage: &dyn Storage, dir: &Path, left: &LeftBody, id: Uuid) -> Result<PathBuf> {
    let directory = layout::decisions_dir(dir);
    storage.make_directory(&directory)?;
    let time_us = left.decided_us.max(0);
    let path = directory.join(format!("{time_us:020}-{id}{DECISION_SUFFIX}"));
    write_new(storage, &path, &left.encode())?;
    storage.sync_directory(&directory)?;
    Ok(path)
}

/// Writes a file that becomes visible only when it is complete.
fn write_new(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> Result<()> {
    let building = path.with_extension("decision.new");
    storage.write_file(&building, path, bytes).inspect_err(|_| drop(storage.remove_file(&building)))
}

/// Returns the decisions that were left for a session, earliest first, and at most [`TAKEN_MAX`] of
/// them. Removes the oldest answers if too many were left unread.
pub(crate) fn list(storage: &dyn Storage, dir: &Path) -> Result<Vec<DirectoryEntry>> {
    let directory = layout::decisions_dir(dir);
    let entries = storage.entries_if_any(&directory)?.unwrap_or_default();
    let (mut found, answers): (Vec<DirectoryEntry>, Vec<DirectoryEntry>) =
        entries.into_iter().filter(is_own).partition(|entry| entry.name.ends_with(DECISION_SUFFIX));
    found.truncate(TAKEN_MAX);
    let answers = answers.iter().filter(|entry| entry.name.ends_with(ANSWER_SUFFIX));
    for answer in answers.rev().skip(ANSWERS_MAX) {
        let _ = storage.remove_file(&directory.join(&answer.name));
    }
    Ok(found)
}

/// Returns whether a file of the directory has a name of this module; other files are never
/// touched.
fn is_own(entry: &DirectoryEntry) -> bool {
    let stem =
        [BUILDING_SUFFIX, DECISION_SUFFIX, ANSWER_SUFFIX].iter().find_map(|it| entry.name.strip_suffix(it));
    let named = stem.and_then(|stem| stem.split_once('-'));
    let is_named = named.is_some_and(|(time, id)| {
        time.len() == 20 && time.bytes().all(|byte| byte.is_ascii_digit()) && Uuid::try_parse(id).is_ok()
    });
    is_named && entry.kind == EntryKind::File
}

/// Returns whether a file of the directory is a leftover once no process has the session open: a
/// process that waited for an answer reads it from the log.
pub(crate) fn is_leftover(entry: &DirectoryEntry) -> bool {
    is_own(entry) && !entry.name.ends_with(DECISION_SUFFIX)
}

/// Reads a decision. Fails with the reason if the file is not a decision.
pub(crate) fn read(storage: &dyn Storage, path: &Path) -> std::result::Result<LeftBody, &'static str> {
    let unread = |_| "it cannot be read";
    let file = storage.open(path, Access::Read).map_err(unread)?;
    let len = file.len().map_err(unread)?;
    if len > BYTES_MAX {
        return Err("it is longer than a decision can be");
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| "it is longer than a decision can be")?];
    let read = file.read_at(&mut bytes, 0).map_err(unread)?;
    bytes.truncate(read);
    LeftBody::decode(&bytes).ok_or("it is not a decision, or only part of one")
}

/// Writes the outcome of a decision, and removes the decision. If the answer cannot be written, the
/// log still contains the outcome.
pub(crate) fn answer(storage: &dyn Storage, decision: &Path, answer: &DecisionOutcome) {
    let path = answer_file(decision);
    if let Ok(bytes) = serde_json::to_vec(answer) {
        let _ = write_new(storage, &path, &bytes);
    }
    let _ = storage.remove_file(decision);
}

/// Returns the outcome of a decision; `None` if there is none yet.
pub(crate) fn read_answer(storage: &dyn Storage, decision: &Path) -> Option<DecisionOutcome> {
    super::notes::read(storage, &answer_file(decision), ANSWER_BYTES_MAX)
}

pub(crate) fn forget_answer(storage: &dyn Storage, decision: &Path) {
    let _ = storage.remove_file(&answer_file(decision));
}

fn answer_file(decision: &Path) -> PathBuf {
    decision.with_extension("answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left() -> LeftBody {
        let (session, settle) = (Uuid::from_u128(9), b"settle".to_vec());
        LeftBody { session, decided_us: 1_767_323_045_000_006, arguments: [0xa5; 32], settle }
    }

    /// Other versions read these files, so the bytes must not change.
    #[test]
    fn a_decision_has_these_bytes() {
        let bytes = left().encode();
        let (magic, rest) = bytes.split_at(8);
        assert_eq!(magic, b"FOLDDECI");
        assert_eq!(rest.first_chunk(), Some(&1_u32.to_le_bytes()));
        assert_eq!(bytes.get(12..16), Some(&crc32fast::hash(bytes.get(16..).unwrap()).to_le_bytes()[..]));
        assert_eq!(bytes.get(16..32), Some(Uuid::from_u128(9).as_bytes().as_slice()));
        assert_eq!(bytes.get(32..40), Some(&1_767_323_045_000_006_i64.to_le_bytes()[..]));
        assert_eq!((bytes.get(40..72), bytes.get(72..)), (Some(&[0xa5; 32][..]), Some(&b"settle"[..])));
    }

    #[test]
    fn a_torn_or_changed_decision_is_none() {
        let bytes = left().encode();
        assert_eq!(LeftBody::decode(&bytes), Some(left()));
        for len in 0..bytes.len() {
            assert_eq!(LeftBody::decode(bytes.get(..len).unwrap()), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            *changed.get_mut(at).unwrap() ^= 0x10;
            assert_eq!(LeftBody::decode(&changed), None, "byte {at}");
        }
    }
}
