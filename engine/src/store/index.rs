//! The index of a store: a file with the results of a listing, so that the next listing reads only
//! logs that have changed since.
//!
//! The file is a cache. Only the time of a listing depends on it. If it is missing, damaged,
//! outdated or of a different version, it is ignored. It may be removed at any time. It is not
//! synced.
//!
//! ```text
//! <store>/sessions.index, all numbers little-endian
//!   0   8  "FOLDLIST"
//!   8   4  version, 3
//!  12   4  CRC-32 of all that follows
//!  16      entries, in ascending order of their sessions
//!
//! entry
//!   0   4  length in bytes of the rest of the entry
//!   4  32  stamp of the session's directory
//!  36   4  ordinal of the last segment
//!  40  32  stamp of the last segment's file
//!  72  32  stamp of the directory `objects`; zeros if there is none
//! 104   8  number of records
//! 112   8  bytes of the log
//! 120  16  times of the session's own first record and of the last record, microseconds since 1970
//! 136  16  number of objects, and their bytes
//! 152   4  length in bytes of the body of the session's record `replicated`; 0 if it has none
//! 156      that body, followed by the body of a record `opened`: id, parent, and the session's current tags
//!
//! stamp: inode, length, time of the last change of the content, and of any change, nanoseconds since 1970; 8 bytes each
//! ```
//!
//! # When an entry is valid
//!
//! 1. Only sessions at rest have entries: closed by their last writer, not damaged, without open,
//!    unsettled or waiting operations, and without a conversation to resume. The overview of such a
//!    session depends on its log alone, not on the time.
//! 2. An entry is valid while its stamps match those of the files. Every writer changes the stamp
//!    of the session's directory when it takes the session's lock and before it releases it
//!    ([`crate::log::lock`]). On most file systems each write also changes the stamp of the
//!    segment.
//! 3. A session whose lock is held, or that still has a writer's note, is read regardless of its
//!    stamps.
//! 4. Stamps are as coarse as the clock of their file system. A session whose stamps are less than
//!    [`SETTLED_NS`] older than its reading gets no entry: the next change could have the same
//!    stamp.
//!
//! Bytes that rot on the disk change no stamp, and earlier segments and objects have no stamps
//! here. So a listing does not notice manual changes in place there. Nor does a reading that starts
//! from an image; `foldlog verify` reads them.

use std::path::Path;

use foldlog_codec::body::{Replicated, SessionOpening};

use crate::inspect::SessionOverview;
use crate::log::{chain, layout};
use crate::storage::{Access, Stamp, Storage};

const MAGIC: [u8; 8] = *b"FOLDLIST";
const VERSION: u32 = 3;
const HEADER_LEN: usize = 16;

/// Maximum bytes of an entry. A session with more tags than fit is read each time.
const ENTRY_BYTES_MAX: usize = 4096;

/// Nanoseconds by which a session's stamps must be older than its reading for an entry: more than
/// the coarsest clock of a file system, which counts in steps of two seconds.
const SETTLED_NS: i64 = 2_500_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    directory: Stamp,
    ordinal: u32,
    segment: Stamp,
    /// `None` if the session has no directory of objects.
    objects: Option<Stamp>,
}

impl Stamps {
    /// Reads the stamps of the session in `dir` with a known last segment. `None` if one cannot be
    /// read.
    fn read(storage: &dyn Storage, dir: &Path, ordinal: u32) -> Option<Stamps> {
        let directory = storage.stamp(dir).ok()??;
        let segment = storage.stamp(&layout::segment_file(dir, ordinal)).ok()??;
        let objects = storage.stamp(&layout::objects_dir(dir)).ok()?;
        Some(Stamps { directory, ordinal, segment, objects })
    }

    /// Reads the stamps of the session in `dir` before the session is read. `None` if they cannot
    /// be read.
    pub(super) fn before(storage: &dyn Storage, dir: &Path) -> Option<Stamps> {
        Stamps::read(storage, dir, chain::last_ordinal(storage, dir)?)
    }

    /// Returns whether the stamps still match the session in `dir`. A missing directory of objects
    /// needs no check: creating it changes the stamp of the session's directory.
    pub(super) fn stand(&self, storage: &dyn Storage, dir: &Path) -> bool {
        let bears = |path: &Path, stamp: Stamp| storage.stamp(path).is_ok_and(|found| found == Some(stamp));
        bears(dir, self.directory)
            && bears(&layout::segment_file(dir, self.ordinal), self.segment)
            && self.objects.is_none_or(|objects| bears(&layout::objects_dir(dir), objects))
    }

    /// Returns whether no later change can have one of the stamps, if the session is read at the
    /// time `now_us`.
    fn are_settled(&self, now_us: i64) -> bool {
        let before = now_us.saturating_mul(1000).saturating_sub(SETTLED_NS);
        let stamps = [Some(self.directory), Some(self.segment), self.objects];
        stamps.into_iter().flatten().all(|stamp| stamp.modified_ns.max(stamp.changed_ns) < before)
    }
}

/// Overview of a session, and the stamps that its files had when it was read.
#[derive(Clone, Debug)]
pub(super) struct IndexEntry {
    pub(super) stamps: Stamps,
    pub(super) overview: SessionOverview,
}

impl IndexEntry {
    /// Returns an entry for a session that was read at the time `now_us`. `None` if it gets none.
    pub(super) fn from_overview(
        stamps: Stamps,
        overview: &SessionOverview,
        now_us: i64,
    ) -> Option<IndexEntry> {
        let SessionOverview { closed, open, unsettled, suspended, resumable, sound_end, .. } = overview;
        let is_at_rest =
            open.is_empty() && unsettled.is_empty() && suspended.is_empty() && resumable.is_empty();
        let is_kept = *closed && is_at_rest && sound_end.is_none() && stamps.are_settled(now_us);
        is_kept.then(|| IndexEntry { stamps, overview: overview.clone() })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let IndexEntry { stamps, overview } = self;
        let begin = out.len();
        out.extend_from_slice(&[0; 4]);
        encode_stamp(stamps.directory, out);
        out.extend_from_slice(&stamps.ordinal.to_le_bytes());
        encode_stamp(stamps.segment, out);
        encode_stamp(stamps.objects.unwrap_or_default(), out);
        let SessionOverview { session, records, log_bytes, created_at_us, last_at_us, .. } = *overview;
        let numbers = [records, log_bytes, created_at_us.cast_unsigned(), last_at_us.cast_unsigned()];
        for number in numbers.into_iter().chain([overview.objects, overview.object_bytes]) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let replicated = overview.replicated.as_ref().map(Replicated::encode).unwrap_or_default();
        // A longer one makes the whole entry too long, so it is left out.
        out.extend_from_slice(&u32::try_from(replicated.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&replicated);
        let (tags, parent) = (overview.tags.clone(), overview.parent);
        out.extend_from_slice(&SessionOpening { session, seed: 0, tags, parent }.encode());
        let len = out.len() - begin - 4;
        match u32::try_from(len) {
            Ok(counted) if len <= ENTRY_BYTES_MAX => {
                let slot = out.iter_mut().skip(begin);
                slot.zip(counted.to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
            }
            _ => out.truncate(begin),
        }
    }

    fn decode(mut bytes: &[u8]) -> Option<IndexEntry> {
        let bytes = &mut bytes;
        let (directory, ordinal, segment) = (stamp(bytes)?, number::<4>(bytes)?, stamp(bytes)?);
        let objects = Some(stamp(bytes)?).filter(|stamp| *stamp != Stamp::default());
        let stamps = Stamps { directory, ordinal: u32::from_le_bytes(ordinal), segment, objects };
        let mut next = || number::<8>(bytes).map(u64::from_le_bytes);
        let (records, log_bytes) = (next()?, next()?);
        let (created_at_us, last_at_us) = (next()?.cast_signed(), next()?.cast_signed());
        let (objects, object_bytes) = (next()?, next()?);
        let len = usize::try_from(u32::from_le_bytes(number::<4>(bytes)?)).ok()?;
        let (replicated, opened) = bytes.split_at_checked(len)?;
        let replicated = match replicated {
            [] => None,
            body => Some(Replicated::decode(body).ok()?),
        };
        let SessionOpening { session, tags, parent, .. } = SessionOpening::decode(opened).ok()?;
        let overview = SessionOverview {
            session,
            records,
            log_bytes,
            created_at_us,
            last_at_us,
            tags,
            parent,
            replicated,
            closed: true,
            objects,
            object_bytes,
            ..SessionOverview::default()
        };
        Some(IndexEntry { stamps, overview })
    }
}

fn encode_stamp(stamp: Stamp, out: &mut Vec<u8>) {
    let Stamp { inode, len, modified_ns, changed_ns } = stamp;
    for number in [inode, len, modified_ns.cast_unsigned(), changed_ns.cast_unsigned()] {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn stamp(bytes: &mut &[u8]) -> Option<Stamp> {
    let mut next = || number::<8>(bytes).map(u64::from_le_bytes);
    let (inode, len) = (next()?, next()?);
    Some(Stamp { inode, len, modified_ns: next()?.cast_signed(), changed_ns: next()?.cast_signed() })
}

fn number<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (number, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*number)
}

/// Returns the entries of the store's index in ascending order of their sessions. Empty if the
/// index cannot be used. Reads at most the maximum size of an index for so many sessions.
pub(super) fn read(storage: &dyn Storage, store: &Path, sessions: usize) -> Vec<IndexEntry> {
    decode(&bytes_of(storage, store, sessions).unwrap_or_default()).unwrap_or_default()
}

fn bytes_of(storage: &dyn Storage, store: &Path, sessions: usize) -> Option<Vec<u8>> {
    let file = storage.open(&layout::index_file(store), Access::Read).ok()?;
    let len = usize::try_from(file.len().ok()?).ok()?;
    // Sessions may have been deleted since.
    let most = sessions.saturating_add(64).saturating_mul(2 * (ENTRY_BYTES_MAX + 4));
    let mut bytes = vec![0; Some(len).filter(|len| *len <= most)?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    (read == len).then_some(bytes)
}

fn decode(bytes: &[u8]) -> Option<Vec<IndexEntry>> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    let (version, crc) = (number::<4>(&mut rest)?, number::<4>(&mut rest)?);
    if u32::from_le_bytes(version) != VERSION || u32::from_le_bytes(crc) != crc32fast::hash(rest) {
        return None;
    }
    let mut entries: Vec<IndexEntry> = Vec::new();
    while !rest.is_empty() {
        let len = usize::try_from(u32::from_le_bytes(number::<4>(&mut rest)?)).ok()?;
        let (entry, behind) = rest.split_at_checked(len)?;
        let entry = IndexEntry::decode(entry)?;
        if entries.last().is_some_and(|last| last.overview.session >= entry.overview.session) {
            return None;
        }
        entries.push(entry);
        rest = behind;
    }
    Some(entries)
}

/// Replaces the index of the store. If that fails, the old index stays, or none; that is not an
/// error.
pub(super) fn write<'a>(storage: &dyn Storage, store: &Path, entries: impl Iterator<Item = &'a IndexEntry>) {
    let mut bytes = vec![0; HEADER_LEN];
    entries.for_each(|entry| entry.encode(&mut bytes));
    let crc = crc32fast::hash(bytes.get(HEADER_LEN..).unwrap_or_default());
    let header = MAGIC.into_iter().chain(VERSION.to_le_bytes()).chain(crc.to_le_bytes());
    bytes.iter_mut().zip(header).for_each(|(slot, byte)| *slot = byte);
    // Two concurrent listings may write into one file. Its checksum detects that.
    let (path, building) = (layout::index_file(store), layout::building_index_file(store));
    let _ = storage.remove_file(&building);
    let written = storage.create(&building, 0).and_then(|file| file.write_at(&bytes, 0));
    if written.and_then(|()| storage.rename(&building, &path)).is_err() {
        let _ = storage.remove_file(&building);
    }
}
