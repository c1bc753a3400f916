//! Preparing resources before the writer needs them: the next pages, and the next segment.
//!
//! The writer requests them as it passes certain offsets of its segment; an idle session requests
//! nothing. If a request is late or fails, the writer does the work itself. It brings a page in by
//! writing to it, and creates a segment at the rollover, where a lack of space is
//! [`Error::Full`](crate::Error::Full).

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::background::{Background, Rank, RemainingWork};
use crate::storage::{Storage, StorageFile};

/// Minimum and maximum number of bytes ahead of the writer that are prepared.
pub(super) const WINDOW_BYTES: RangeInclusive<u64> = 256 << 10..=24 << 20;

/// Time in microseconds for which resources are prepared for a writer at constant speed. It is
/// longer than a sync takes, since the first write to a page during a sync waits for the end of the
/// sync.
const WINDOW_US: u64 = 30_000;

/// Measures the speed of the writer.
#[derive(Debug, Default)]
pub(super) struct Pace {
    time_us: i64,
    written_bytes: u64,
    window_bytes: u64,
}

impl Pace {
    /// Returns the number of bytes to prepare ahead of the writer. `written_bytes` were written
    /// since opening.
    pub(super) fn window_bytes(&mut self, time_us: i64, written_bytes: u64) -> u64 {
        let took_us = time_us.saturating_sub(self.time_us).max(1).unsigned_abs();
        let wrote = written_bytes.saturating_sub(self.written_bytes);
        // A shorter time is not a reliable measure.
        if took_us >= PACE_US_MIN || self.window_bytes == 0 {
            let window = wrote.saturating_mul(WINDOW_US) / took_us;
            self.window_bytes = window.clamp(*WINDOW_BYTES.start(), *WINDOW_BYTES.end());
            (self.time_us, self.written_bytes) = (time_us, written_bytes);
        }
        self.window_bytes
    }

    /// Returns the number of bytes that a fast writer writes during the preparation; 0 for other
    /// writers.
    pub(super) fn hurry_bytes(&self) -> u64 {
        if self.window_bytes > *WINDOW_BYTES.start() { self.window_bytes } else { 0 }
    }
}

/// Minimum time over which a speed is measured, in microseconds.
const PACE_US_MIN: u64 = 200;

/// A preallocated segment file without a header.
#[derive(Debug)]
pub(super) struct PreallocatedSegment {
    pub(super) ordinal: u32,
    pub(super) path: PathBuf,
    pub(super) capacity: u64,
    pub(super) file: Arc<dyn StorageFile>,
    /// Offset up to which its pages are brought in, or are about to be.
    pub(super) prepared: u64,
}

#[derive(Debug, Default)]
enum Next {
    #[default]
    Nothing,
    /// No thread has begun to create the segment.
    Asked,
    Ready(PreallocatedSegment),
}

#[derive(Debug)]
pub(super) struct SegmentPreallocator {
    storage: Arc<dyn Storage>,
    background: Background,
    next: Arc<Mutex<Next>>,
}

impl SegmentPreallocator {
    pub(super) fn new(storage: &Arc<dyn Storage>, background: &Background) -> SegmentPreallocator {
        SegmentPreallocator {
            storage: Arc::clone(storage),
            background: background.clone(),
            next: Arc::default(),
        }
    }

    /// Requests the pages `from..to` of a segment to be brought in.
    pub(super) fn ask_for_pages(&self, file: &Arc<dyn StorageFile>, from: u64, to: u64) {
        let file = Arc::clone(file);
        self.background.offer(Rank::Space, move || {
            // If this fails, the writer brings the pages in one by one.
            let _ = file.prepare(from, to);
            RemainingWork::Nothing
        });
    }

    /// Requests the next segment to be created, and its first `window` bytes to be brought in.
    pub(super) fn ask_for_segment(&self, ordinal: u32, path: &Path, capacity: u64, window: u64) {
        *self.next.lock() = Next::Asked;
        let (storage, next, path) = (Arc::clone(&self.storage), Arc::clone(&self.next), path.to_owned());
        self.background.offer(Rank::Space, move || {
            let mut slot = next.lock();
            if !matches!(*slot, Next::Asked) {
                return RemainingWork::Nothing;
            }
            let made = storage.create_segment(&path, capacity).ok();
            let file = made.as_ref().map(Arc::clone);
            let worth_it = file.as_ref().is_some_and(|file| file.is_worth_preparing());
            let prepared = if worth_it { window.min(capacity) } else { 0 };
            *slot = match made {
                Some(file) => {
                    Next::Ready(PreallocatedSegment { ordinal, path: path.clone(), capacity, file, prepared })
                }
                None => Next::Nothing,
            };
            drop(slot);
            if let Some(file) = file {
                let _ = file.prepare(0, prepared);
            }
            RemainingWork::Nothing
        });
    }

    /// Returns the requested segment, if it exists. If its creation has not begun, the request is
    /// cancelled.
    pub(super) fn take_segment(&self) -> Option<PreallocatedSegment> {
        match std::mem::take(&mut *self.next.lock()) {
            Next::Ready(made) => Some(made),
            Next::Nothing | Next::Asked => None,
        }
    }

    /// Gives the space of the preallocated segment back to the disk. Waits for a segment that is
    /// being created: until the system finds that one does not fit, it occupies the rest of the
    /// disk.
    pub(super) fn give_back(&self) {
        if let Some(made) = self.take_segment() {
            // A file that cannot be removed is empty and harmless.
            let _ = self.discard(&made);
        }
    }

    /// Removes the file of a preallocated segment that is not needed.
    pub(super) fn discard(&self, made: &PreallocatedSegment) -> std::io::Result<()> {
        self.storage.remove_file(&made.path)
    }
}
