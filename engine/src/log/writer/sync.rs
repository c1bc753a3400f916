//! The plan of one sync, and the frames that attest it.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use foldlog_codec::frame::HEADER_LEN as FRAME_HEADER_LEN;
use foldlog_codec::{RecordKind, SequenceNumber};

use super::{Active, LogWriter, seal_bytes_max};
use crate::error::{Error, Result};
use crate::log::objects::UnsyncedObjects;
use crate::storage::{Storage, StorageFile};

/// Maximum length of a piece of a segment that is synced at once, in bytes. Pieces end at multiples
/// of it. The system keeps pages that were brought in for a fast writer in units that grow to this
/// size, and writes a whole unit for each part of it.
const PIECE_BYTES: u64 = 2 << 20;

/// The steps of one sync; it runs without any lock of the session.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    pub(super) objects: UnsyncedObjects,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) files: Vec<UnsyncedRange>,
    /// Sequence number below which everything is durable once the plan has run.
    pub(crate) through: SequenceNumber,
}

#[derive(Debug)]
pub(super) struct UnsyncedRange {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) range: Range<u64>,
}

impl LogWriter {
    /// Appends a `Synced` frame, if there is room; the header of a later segment attests the same.
    /// A frame that does not attest everything leaves room for one that does, and each leaves room
    /// for the `Closed` frame. On a full disk there is no later segment, and without that last
    /// frame a closed log would look like one that was not closed.
    pub(crate) fn attest(&mut self, synced: SequenceNumber) -> Result<()> {
        self.attest_as(RecordKind::Synced, synced, if synced < self.places.next_sequence { 3 } else { 2 })
    }

    /// Appends the `Closed` frame once, if there is room, in place of a `Synced` frame that attests
    /// everything. This writer must not append anything after it.
    pub(crate) fn attest_close(&mut self, synced: SequenceNumber) -> Result<()> {
        if synced < self.places.next_sequence {
            return self.attest(synced);
        }
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        self.attest_as(RecordKind::Closed, synced, 1)
    }

    /// Appends an attesting frame, if there is room for `frames` of them.
    fn attest_as(&mut self, kind: RecordKind, synced: SequenceNumber, frames: u64) -> Result<()> {
        let room = self.active.as_ref().is_some_and(|active| {
            active.offset + frames * FRAME_HEADER_LEN as u64 + seal_bytes_max() <= active.capacity
        });
        if room {
            self.write_envelope(kind, &[], synced)?;
            self.spare.note_attested(synced, self.written_bytes);
        }
        self.seals.seal_synced(synced);
        Ok(())
    }

    /// Returns the plan of a sync of everything that is not yet durable. The caller must run the
    /// plan, or the log must not be written to again.
    pub(crate) fn sync_plan(&mut self) -> SyncPlan {
        let mut files = std::mem::take(&mut self.unsynced_files);
        files.extend(self.active.as_mut().and_then(Active::take_written));
        self.unsynced_bytes = 0;
        self.spare.note_planned(self.places.next_sequence, self.written_bytes);
        SyncPlan {
            objects: self.objects.take_unsynced(),
            dirs: std::mem::take(&mut self.unsynced_dirs),
            files,
            through: self.places.next_sequence,
        }
    }

    /// Restores a plan that found no file handle, so that the next one covers the same data: no
    /// sync has failed.
    pub(crate) fn put_back(&mut self, plan: SyncPlan) {
        let SyncPlan { objects, dirs, files, through: _ } = plan;
        let bytes = |written: &UnsyncedRange| written.range.end.saturating_sub(written.range.start);
        self.unsynced_bytes += files.iter().map(bytes).sum::<u64>();
        self.objects.put_back(objects);
        // Entries that were added since are newer.
        let newer = std::mem::replace(&mut self.unsynced_files, files);
        self.unsynced_files.extend(newer);
        let newer = std::mem::replace(&mut self.unsynced_dirs, dirs);
        let new = newer.into_iter().filter(|dir| !self.unsynced_dirs.contains(dir)).collect::<Vec<_>>();
        self.unsynced_dirs.extend(new);
    }
}

impl SyncPlan {
    /// Makes everything durable, in the order of the parent module's docs. Calls `pause` between
    /// the pieces of a long segment.
    ///
    /// If the error is [`Error::NoHandle`], a directory could not be opened, and no sync has
    /// failed.
    pub(crate) fn run(&self, storage: &dyn Storage, pause: &dyn Fn()) -> Result<()> {
        self.sync_objects_and_names(storage)?;
        self.sync_segments(pause)
    }

    fn sync_objects_and_names(&self, storage: &dyn Storage) -> Result<()> {
        for (path, file) in &self.objects.files {
            file.sync_data().map_err(|error| Error::io("sync", path, error))?;
        }
        self.objects.pool(storage);
        for dir in self.objects.dirs.iter().chain(&self.dirs) {
            storage.sync_dir(dir).map_err(|error| Error::unmade("sync", dir, 0, error))?;
        }
        Ok(())
    }

    fn sync_segments(&self, pause: &dyn Fn()) -> Result<()> {
        for written in &self.files {
            written.sync(pause).map_err(|error| Error::io("sync", &written.path, error))?;
        }
        Ok(())
    }
}

impl UnsyncedRange {
    fn sync(&self, pause: &dyn Fn()) -> io::Result<()> {
        let Range { start: mut from, end: to } = self.range;
        while from < to {
            let end = (from / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(to);
            self.file.sync_range(from, end)?;
            from = end;
            pause();
        }
        Ok(())
    }
}
