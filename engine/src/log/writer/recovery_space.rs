//! The spare: space that is reserved for the next recovery while calls are open.
//!
//! The room that a start record reserves for its end record is in the active segment, and after a
//! crash that segment is not written to any more. The recovery needs a new segment, for the
//! unattested tail and for the ends of the interrupted calls. On a full disk there would be no room
//! for it, and the session could not be recovered until a person made space. The first start record
//! therefore allocates a file that is large enough for that segment, and the file grows with the
//! tail.
//!
//! # Invariants
//!
//! 1. While a call is open, a recovery after a kill of the process finds all the space that it
//!    needs in the spare, or in the temporary file into which an earlier recovery had turned it.
//!    After a power cut it does so if the start record was synced: from
//!    [`Durability::Boundary`](crate::Durability::Boundary) on. This is the space of one recovery.
//!    If a recovery is killed while it writes the end of a call, after its own segment got its
//!    name, the space is used, and the next recovery needs another 8 KiB.
//! 2. If the spare cannot grow to the size that a record needs, that record fails with
//!    [`Error::Full`] and nothing has changed.
//! 3. The spare contains only zeros. A file with its name and other content is not used; nor is a
//!    file with a second name.
//! 4. The spare exists at most from a first start record until the session closes with no call
//!    open. A plain dispatch makes no system call for it.

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
use crate::storage::{Access, DirectoryEntry, EntryKind, Storage};

/// Minimum number of bytes that the spare leaves for the tail before it must grow again.
const GROWTH_BYTES_MIN: u64 = 8 << 10;

/// Zeros with which a file is filled, a page at a time.
const ZEROS: [u8; 4096] = [0; 4096];

#[derive(Default)]
struct LeftoverFiles {
    /// Files that are empty, or contain only copies by an earlier recovery, each with its length in
    /// bytes, smallest first.
    files: Vec<(PathBuf, u64)>,
    /// Temporary files that may have any content after a power cut.
    unclear: Vec<PathBuf>,
}

/// The reserved space, and the amount of log for which it is sufficient.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// Length of its file in bytes, if there is one. It is not held open.
    file: Option<u64>,
    /// Number of bytes of tail and ends for which the spare is sufficient.
    room: u64,
    /// Start of the tail that a recovery would have to rewrite after a power cut, as far as is
    /// known to be durable. Counted in bytes written since opening.
    tail_from: u64,
    /// Start of the tail for a recovery after a mere kill of the process, counted in bytes written
    /// since opening.
    attested_from: u64,
    /// End of the last attesting frame, counted in bytes written since opening.
    attested_at: u64,
    /// Syncs that were planned and not attested yet: the sequence number below which each makes
    /// everything durable, and the bytes written when it was planned.
    planned: Vec<(SequenceNumber, u64)>,
}

impl Spare {
    /// Returns whether the spare is large enough for `more` bytes beyond the `written` ones.
    fn is_enough(&self, written: u64, more: u64) -> bool {
        self.file.is_some() && written.saturating_sub(self.tail_from) + more <= self.room
    }

    /// Takes over the spare of an earlier process, so that closing removes it.
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

    pub(super) fn note_planned(&mut self, through: SequenceNumber, written: u64) {
        self.planned.push((through, written));
    }

    /// Records a frame that attests everything below `synced`; `written` bytes were written up to
    /// its end.
    pub(super) fn note_attested(&mut self, synced: SequenceNumber, written: u64) {
        let done = self.planned.iter().take_while(|(through, _)| *through <= synced).count();
        let Some((_, reached)) = self.planned.drain(..done).next_back() else { return };
        // The next sync that is planned after an attesting frame makes that frame durable.
        if self.attested_at <= reached {
            self.tail_from = self.attested_from;
        }
        (self.attested_from, self.attested_at) = (reached, written);
    }

    /// Records that everything written is durable, and attested by a durable frame.
    pub(super) fn note_recovered(&mut self, written: u64) {
        self.planned.clear();
        (self.tail_from, self.attested_from, self.attested_at) = (written, written, written);
    }
}

impl LogWriter {
    /// Ensures that a recovery has enough space once `more` bytes are written, including the ends
    /// of open calls.
    pub(super) fn keep_spare(&mut self, more: u64, context: &AppendContext<'_>) -> Result<()> {
        if self.spare.is_enough(self.written_bytes, more) {
            return Ok(());
        }
        let tail = self.written_bytes.saturating_sub(self.spare.tail_from) + more;
        let fixed = HEAD_BYTES + encode_declarations(context).len() as u64 + FRAME_HEADER_LEN as u64;
        let whole_pages = |bytes: u64| bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let least = whole_pages(fixed + tail);
        let roomy = whole_pages(fixed + tail + tail.min(self.sizes.max_bytes).max(GROWTH_BYTES_MIN));
        let mut grown = self.grow_spare(roomy);
        if least < roomy && matches!(grown, Err(Error::Full { .. })) {
            grown = self.grow_spare(least);
        }
        if matches!(grown, Err(Error::Full { .. })) {
            // The session gives up its caches for space that it needs.
            self.give_up_caches();
            grown = self.grow_spare(least);
        }
        let bytes = grown?;
        self.spare.room = bytes.saturating_sub(fixed);
        Ok(())
    }

    /// Grows the spare to `bytes`, and returns its size in bytes.
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
        // The spare is empty, but its length must be as durable as the start record.
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

    /// Creates the file in which a recovery builds its segment, with at least `wanted` bytes: in
    /// the space of the spare or of an earlier recovery's temporary file, or else in new space.
    pub(super) fn space_for_recovery(&self, building: &Path, wanted: u64) -> Result<SegmentSpace> {
        let wanted = wanted + self.interrupted_calls.saturating_mul(END_BYTES);
        let LeftoverFiles { files: left, unclear } = self.left_to_build_in()?;
        if let Some((path, bytes)) = left.iter().find(|(_, bytes)| *bytes >= wanted) {
            return self.build_in(path, *bytes, building);
        }
        // With this extra room, a session that lives as long as the last one mostly leaves one
        // segment, not two.
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

    fn left_to_build_in(&self) -> Result<LeftoverFiles> {
        let mut left = LeftoverFiles::default();
        let entries = self.storage.entries(&self.dir)?;
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::File) {
            let path = self.dir.join(&entry.name);
            let half_built = layout::building_ordinal(&entry.name);
            if half_built.is_none() && path != layout::spare_file(&self.dir) {
                continue;
            }
            match self.may_be_built_in(&path, half_built)? {
                true => left.files.push((path, entry.len)),
                false => left.unclear.push(path),
            }
        }
        left.files.sort_by_key(|(_, bytes)| *bytes);
        Ok(left)
    }

    /// Returns whether a file contains only zeros, or data that a recovery of this session wrote
    /// under its temporary name, and has no other name.
    fn may_be_built_in(&self, path: &Path, half_built: Option<u32>) -> Result<bool> {
        let io = |error| Error::io("read", path, error);
        // A fork may have linked the segment under its final name before a power cut restored the
        // temporary name in this session.
        if self.storage.links(path).map_err(io)? != 1 {
            return Ok(false);
        }
        let mut window = Window::new(path, self.storage.open(path, Access::Read).map_err(io)?, None)?;
        let head = window.bytes(0, SEGMENT_HEADER_LEN as u64)?;
        let header = SegmentHeader::decode(head.get(..SEGMENT_HEADER_LEN).unwrap_or(head)).ok();
        let ours =
            header.is_some_and(|header| header.session == self.session && Some(header.ordinal) == half_built);
        Ok(ours || window.used_end(0)? == 0)
    }

    /// Turns a file that is no longer needed into the one in which a recovery builds, with `bytes`
    /// bytes.
    fn build_in(&self, left: &Path, bytes: u64, building: &Path) -> Result<SegmentSpace> {
        let io = |op: &'static str| move |error| Error::io(op, left, error);
        let file = self.storage.open(left, Access::Write).map_err(io("open"))?;
        let used = Window::new(left, Arc::clone(&file), None)?.used_end(0)?;
        // The file is overwritten instead of created again: its freed space might be taken by
        // another program.
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
