//! The spare: space that is kept for the next recovery while calls are open.
//!
//! The room that a begin reserves for its end is in the segment that is being written, and after a crash nothing is
//! written there any more: the recovery needs a fresh segment, for the tail that no frame has attested and for the ends
//! of the interrupted calls. On a full disk there would be none, and the session could not be recovered until somebody
//! made space. So the first begin allocates a file that is large enough for that segment, and the file grows while the
//! tail does.
//!
//! # Invariants
//!
//! 1. While a call is open, a recovery after a kill of the process finds all the space that it needs in the spare, or
//!    in the temporary file that an earlier recovery had made of it. After a power cut it does so if the begin was
//!    synced: from [`Durability::Boundary`](crate::Durability::Boundary) on. This is the space of one recovery: one
//!    that is killed while it writes the end of a call, after its own segment got its name, leaves the space used, and
//!    the next recovery needs 8 KiB anew.
//! 2. Where the spare cannot grow as far as a record needs, that record is [`Error::Full`] and nothing has happened.
//! 3. The spare holds only zeros. A file of its name that holds anything else is not used; nor is a file that has another name.
//! 4. The spare exists at most from a first begin until the session closes with no call open; a plain dispatch makes no
//!    system call for it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::frame::HEADER_LEN as FRAME_HEADER_LEN;
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, SegmentHeader};

use super::rollover::{HEAD_BYTES, PAGE_BYTES, SegmentSpace, encode_declarations};
use super::sync::UnsyncedRange;
use super::{AppendContext, END_BYTES, LogWriter};
use crate::error::{Error, Result};
use crate::log::layout;
use crate::log::window::Window;
use crate::sabotage::{self, Breakage};
use crate::storage::{Access, DirectoryEntry, EntryKind, Storage};

/// Number of bytes, at least, that the spare leaves for the tail before it has to grow again.
const GROWTH_BYTES_MIN: u64 = 8 << 10;

/// Zeros with which a file is filled, a page at a time.
const ZEROS: [u8; 4096] = [0; 4096];

/// Holds what earlier processes left in which a recovery can build.
#[derive(Default)]
struct LeftoverFiles {
    /// Files that hold nothing, or nothing but what an earlier recovery copied, each with its length in bytes, the
    /// smallest first.
    files: Vec<(PathBuf, u64)>,
    /// Temporary files of which a power cut may have left anything.
    unclear: Vec<PathBuf>,
}

/// Holds the space that is kept, and how much of the log it is large enough for.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// Length of its file in bytes, if there is one. It is not held open.
    file: Option<u64>,
    /// Number of bytes that the tail and the ends may take before the spare is too small.
    room: u64,
    /// Where the tail begins that a recovery would have to write anew after a power cut, as far as is known to be
    /// durable. Counted in bytes written since opening.
    tail_from: u64,
    /// Where the tail begins for a recovery after a kill of the process alone, counted in bytes written since opening.
    attested_from: u64,
    /// Where the last attesting frame ends, counted in bytes written since opening.
    attested_at: u64,
    /// Syncs that were planned and not attested yet, each with the sequence number that it makes durable and the bytes
    /// written when it was planned.
    planned: Vec<(SequenceNumber, u64)>,
}

impl Spare {
    /// Returns whether the spare is large enough for `more` bytes beyond the `written` ones.
    fn is_enough(&self, written: u64, more: u64) -> bool {
        self.file.is_some() && written.saturating_sub(self.tail_from) + more <= self.room
    }

    /// Takes over the spare that an earlier process left, so that closing removes it.
    pub(super) fn adopt(&mut self, path: PathBuf, storage: &dyn Storage) {
        self.file = match storage.entry(&path) {
            Ok(Some(DirectoryEntry { kind: EntryKind::File, len, .. })) => Some(len),
            _ => None,
        };
    }

    /// Returns how many more bytes may be written before the spare is too small.
    pub(super) fn bytes_left(&self, written: u64) -> u64 {
        match self.file {
            Some(_) => self.room.saturating_sub(written.saturating_sub(self.tail_from)),
            None => 0,
        }
    }

    /// Notes that a sync was planned.
    pub(super) fn note_planned(&mut self, through: SequenceNumber, written: u64) {
        self.planned.push((through, written));
    }

    /// Notes a frame that attests everything below `synced` and ends where `written` bytes were written.
    pub(super) fn note_attested(&mut self, synced: SequenceNumber, written: u64) {
        let done = self.planned.iter().take_while(|(through, _)| *through <= synced).count();
        let Some((_, reached)) = self.planned.drain(..done).next_back() else { return };
        // The next sync that is planned behind an attesting frame makes that frame durable.
        if self.attested_at <= reached {
            self.tail_from = self.attested_from;
        }
        (self.attested_from, self.attested_at) = (reached, written);
    }

    /// Notes that everything written is durable, and attested by a frame that is durable too.
    pub(super) fn note_recovered(&mut self, written: u64) {
        self.planned.clear();
        (self.tail_from, self.attested_from, self.attested_at) = (written, written, written);
    }
}

impl LogWriter {
    /// Makes sure that a recovery has the space that it needs once `more` bytes are written, the ends of open calls
    /// among them.
    pub(super) fn keep_spare(&mut self, more: u64, context: &AppendContext<'_>) -> Result<()> {
        if self.spare.is_enough(self.written_bytes, more) || sabotage::is(Breakage::NoSpareForRecovery) {
            return Ok(());
        }
        let tail = self.written_bytes.saturating_sub(self.spare.tail_from) + more;
        let fixed = HEAD_BYTES + encode_declarations(context).len() as u64 + FRAME_HEADER_LEN as u64;
        let whole_pages = |bytes: u64| bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let least = whole_pages(fixed + tail);
        let roomy = whole_pages(fixed + tail + tail.min(self.sizes.max_bytes).max(GROWTH_BYTES_MIN));
        let grown = self.grow_spare(roomy).or_else(|error| match error {
            Error::Full { .. } if least < roomy => self.grow_spare(least),
            error => Err(error),
        });
        // The session gives up what it can do without for what it cannot do without.
        let grown = grown.or_else(|error| match error {
            Error::Full { .. } => {
                self.give_up_caches();
                self.grow_spare(least)
            }
            error => Err(error),
        });
        let bytes = grown?;
        self.spare.room = bytes.saturating_sub(fixed);
        Ok(())
    }

    /// Grows the spare to `bytes`, and returns how many bytes it has.
    fn grow_spare(&mut self, bytes: u64) -> Result<u64> {
        let path = layout::spare_file(&self.dir);
        let full = |error| self.no_segment(&path, bytes, error);
        if let Some(has) = self.spare.file.filter(|has| *has >= bytes) {
            return Ok(has);
        }
        let (file, bytes) = match self.storage.create(&path, bytes) {
            Ok(file) => (file, bytes),
            // It is to grow, or an earlier process left it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let io = |error| Error::unmade("open", &path, 0, error);
                let file = self.storage.open(&path, Access::Write).map_err(io)?;
                let has = file.len().map_err(io)?;
                file.allocate(bytes.max(has)).map_err(full)?;
                (file, bytes.max(has))
            }
            Err(error) => return Err(full(error)),
        };
        if !self.unsynced_dirs.contains(&self.dir) {
            self.unsynced_dirs.push(self.dir.clone());
        }
        // The spare holds nothing, but its length has to be as durable as the begin.
        self.unsynced_files.push(UnsyncedRange { path, file, range: 0..1 });
        self.spare.file = Some(bytes);
        Ok(bytes)
    }

    /// Removes the spare, unless a call is open that may need it.
    pub(super) fn drop_spare(&mut self) -> Result<()> {
        if self.reserved_bytes > 0 || self.spare.file.take().is_none() {
            return Ok(());
        }
        self.spare.room = 0;
        let path = layout::spare_file(&self.dir);
        match self.storage.remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", &path, error)),
            _ => Ok(()),
        }
    }

    /// Makes the file in which a recovery builds its segment, of `wanted` bytes at least: in the space of the spare or
    /// of an earlier recovery's temporary file, or else in new space.
    pub(super) fn space_for_recovery(&self, building: &Path, wanted: u64) -> Result<SegmentSpace> {
        let wanted = wanted + self.interrupted_calls.saturating_mul(END_BYTES);
        let LeftoverFiles { files: left, unclear } = self.left_to_build_in()?;
        if let Some((path, bytes)) = left.iter().find(|(_, bytes)| *bytes >= wanted) {
            return self.build_in(path, *bytes, building);
        }
        // With so much room besides, a session that lives as long as the last one mostly leaves one segment and not
        // two.
        let made = self.allocate_segment(building, wanted, wanted + self.sizes.first_bytes);
        if !matches!(made, Err(Error::Full { .. })) || left.is_empty() && unclear.is_empty() {
            return made;
        }
        // The end of the recovery would remove these files anyway.
        for path in unclear {
            self.storage.remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
        match left.last() {
            Some((path, bytes)) => self.build_in(path, wanted.max(*bytes), building),
            None => self.allocate_segment(building, wanted, wanted),
        }
    }

    /// Finds the files that a recovery can build in.
    fn left_to_build_in(&self) -> Result<LeftoverFiles> {
        let mut left = LeftoverFiles::default();
        if sabotage::is(Breakage::NoSpareForRecovery) {
            return Ok(left);
        }
        let entries = self.storage.list(&self.dir).map_err(|error| Error::io("list", &self.dir, error))?;
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::File) {
            let path = self.dir.join(&entry.name);
            let half_built = layout::building_ordinal(&entry.name);
            if half_built.is_none() && path != layout::spare_file(&self.dir) {
                continue;
            }
            let is_ours = self.may_be_built_in(&path, half_built);
            match is_ours.map_err(|error| Error::io("read", &path, error))? {
                true => left.files.push((path, entry.len)),
                false => left.unclear.push(path),
            }
        }
        left.files.sort_by_key(|(_, bytes)| *bytes);
        Ok(left)
    }

    /// Returns whether a file holds only zeros, or what a recovery of this session wrote under its temporary name, and has no other name.
    fn may_be_built_in(&self, path: &Path, half_built: Option<u32>) -> std::io::Result<bool> {
        // A fork may have linked the segment under its final name, and a power cut given this session the temporary one back.
        if self.storage.links(path)? != 1 {
            return Ok(false);
        }
        let mut window = Window::new(self.storage.open(path, Access::Read)?, None)?;
        let head = window.bytes(0, SEGMENT_HEADER_LEN as u64)?;
        let header = SegmentHeader::decode(head.get(..SEGMENT_HEADER_LEN).unwrap_or(head)).ok();
        let ours =
            header.is_some_and(|header| header.session == self.session && Some(header.ordinal) == half_built);
        Ok(ours || window.used_end(0)? == 0)
    }

    /// Turns a file that is no longer needed into the one in which a recovery builds, of `bytes` bytes.
    fn build_in(&self, left: &Path, bytes: u64, building: &Path) -> Result<SegmentSpace> {
        let io = |op: &'static str| move |error| Error::io(op, left, error);
        let file = self.storage.open(left, Access::Write).map_err(io("open"))?;
        let used = Window::new(Arc::clone(&file), None).and_then(|mut window| window.used_end(0));
        let used = used.map_err(io("read"))?;
        // The file is overwritten and not made anew: its space might be gone before it could be had again.
        let mut at = 0;
        while at < used {
            file.write_at(&ZEROS, at).map_err(io("write"))?;
            at += ZEROS.len() as u64;
        }
        if used > 0 {
            file.sync_data().map_err(io("sync"))?;
        }
        file.allocate(bytes).map_err(|error| self.no_segment(left, bytes, error))?;
        drop(file);
        self.storage.rename(left, building).map_err(io("rename"))?;
        let file = self.storage.open_segment(building).map_err(|error| Error::io("open", building, error))?;
        Ok(SegmentSpace { file, capacity: bytes })
    }
}
