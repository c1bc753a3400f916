//! The state after a crash while a session was being created: a *partial creation*, a directory in
//! which no record was ever written.
//!
//! A session is created by a directory, a segment file, its header, a `Resumed` frame and the first
//! record, in this order. If a crash precedes the record, the session was never reported to a
//! caller and can still be created there. No existing file is overwritten or removed: the new
//! session's first segment comes after them, like the segment of a recovery.
//!
//! | found | classification |
//! |---|---|
//! | nothing | a partial creation |
//! | segment files that each end before the end of their first record, with the bytes with which this session's first segment begins | a partial creation |
//! | an object directory next to these | a partial creation: a power cut may have lost the records that named the objects, and nothing else |
//! | only an object directory | not one: the segments are lost |
//! | a complete frame that is not `Resumed`, valid or not; bytes after an invalid header or an unfinished frame | not one: there was a record, or may have been |
//! | a header of another session, ordinal, place in a log, or format | not one |
//! | anything else, including links | not one |
//!
//! If a power cut tore a file so that bytes follow lost ones, the directory may still be a partial
//! creation. This cannot be determined, so it does not count as one. A damaged first record that
//! was complete, that no frame attested, and whose last bytes are 0 looks like an unfinished one:
//! creating the session then writes the same record again.

use std::io::ErrorKind;
use std::path::Path;

use foldlog_codec::frame::{self, Context, HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::msgpack::{self, ValueLimits};
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, SegmentHeader};
use foldlog_codec::{Error as CodecError, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::window::Window;
use super::{compressed, layout};
use crate::error::{Error, Result};
use crate::storage::{EntryKind, Storage};

/// Describes a directory in which no record was ever written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartialCreation {
    /// Highest ordinal of the directory's segment files; `None` if there are none. A new session's
    /// ordinals are higher.
    pub(crate) ordinal_max: Option<u32>,
}

/// Examines the directory `dir` of `session`, and describes it if it contains only a partial
/// creation. The result is useless while another process writes there.
pub(crate) fn find(storage: &dyn Storage, dir: &Path, session: Uuid) -> Result<Option<PartialCreation>> {
    let entries = storage.entries_if_any(dir)?.unwrap_or_default();
    let mut found = PartialCreation::default();
    let mut objects = false;
    for entry in entries {
        let path = dir.join(&entry.name);
        let ordinal = layout::segment_ordinal(&entry.name).or(layout::building_ordinal(&entry.name));
        match ordinal {
            Some(ordinal) if entry.kind == EntryKind::File => {
                if !holds_no_record(storage, &path, session, ordinal)? {
                    return Ok(None);
                }
                found.ordinal_max = found.ordinal_max.max(Some(ordinal));
            }
            None if entry.kind == EntryKind::Directory && path == layout::objects_dir(dir) => objects = true,
            _ => return Ok(None),
        }
    }
    let segments_lost = objects && found.ordinal_max.is_none();
    // No number of crashes reaches ordinals that high, and a new session needs enough of them.
    let room = found.ordinal_max.is_none_or(|ordinal| ordinal < u32::MAX / 2);
    Ok((room && !segments_lost).then_some(found))
}

/// Removes the files of a failed attempt, but not the partial creation of an earlier attempt.
pub(crate) fn remove_all_but(
    storage: &dyn Storage,
    dir: &Path,
    found: PartialCreation,
) -> std::io::Result<()> {
    let Some(ordinal_max) = found.ordinal_max else { return storage.remove_dir_all(dir) };
    for entry in storage.list(dir)? {
        let own = layout::segment_ordinal(&entry.name).is_some_and(|ordinal| ordinal > ordinal_max);
        if own && entry.kind == EntryKind::File {
            storage.remove_file(&dir.join(&entry.name))?;
        }
    }
    Ok(())
}

/// Returns whether a segment file begins like this session's first segment, and ends before the end
/// of its first record.
fn holds_no_record(storage: &dyn Storage, path: &Path, session: Uuid, ordinal: u32) -> Result<bool> {
    let file = match compressed::open(storage, path) {
        // A file that is removed concurrently does not prove that there is a session.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(true),
        opened => opened?,
    };
    let mut window = Window::new(path, file, None)?;
    let first = |salt| SegmentHeader {
        ordinal,
        session,
        first_sequence: SequenceNumber::MIN,
        watermark: SequenceNumber::MIN,
        salt,
        previous: None,
    };
    let head = window.bytes(0, SEGMENT_HEADER_LEN as u64)?;
    let head = head.get(..SEGMENT_HEADER_LEN).unwrap_or(head);
    let mut offset = SEGMENT_HEADER_LEN as u64;
    let context = match SegmentHeader::decode(head) {
        Ok(header) if header == first(header.salt) => Context::new(header.salt, SequenceNumber::MIN),
        Err(_) if first(0).may_be_unfinished_as(head) => {
            return Ok(window.used_end(offset)? == offset);
        }
        _ => return Ok(false),
    };
    let mut next = RecordKind::Resumed;
    loop {
        match window.frame(context, offset)? {
            Ok(frame) if next == RecordKind::Resumed && is_first(&frame.header, next) => {
                offset += frame.len() as u64;
                next = RecordKind::Opened;
            }
            Ok(_) => return Ok(false),
            Err(_) => break,
        }
    }
    // The rest is empty, or an incomplete frame.
    let used = window.used_end(offset)?;
    let bytes = window.bytes(offset, FRAME_HEADER_LEN as u64)?;
    let header_end = offset + FRAME_HEADER_LEN as u64;
    if used < header_end {
        return Ok(true);
    }
    match frame::peek(context, bytes) {
        Ok(header) if is_first(&header, next) && used < header_end + u64::from(header.body_len) => {}
        _ => return Ok(false),
    }
    // The frame's length is not sufficient: in a complete frame, the length itself may be damaged.
    let len = used - header_end;
    let bytes = window.bytes(header_end, len)?;
    let body = usize::try_from(len).ok().and_then(|len| bytes.get(..len)).unwrap_or_default();
    Ok(matches!(msgpack::scan(body, ValueLimits::default()), Err(CodecError::Truncated { .. })))
}

/// Returns whether a frame claims to be of this kind and at the start of a log.
fn is_first(header: &Header, kind: RecordKind) -> bool {
    header.kind == kind && header.sequence == 0
}
