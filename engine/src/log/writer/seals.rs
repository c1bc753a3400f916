//! Seals of finished segments, computed off the writer's path.
//!
//! A *seal* contains the digest of its segment's records, which takes longer to compute than the
//! records took to write. It is outside the chain, so it may come late. The segments are sealed one
//! after the other, a piece at a time, once a sync has reached the segment after them.
//!
//! # Invariants
//!
//! 1. A seal is written only after the name of the next segment is durable: a seal without a
//!    successor means that a segment is missing.
//! 2. A seal is written after the last byte of a segment to which no writer appends any more.

use std::collections::VecDeque;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Seal;
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::{self, Header};
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;
use parking_lot::Mutex;

use super::LogWriter;
use super::sync::UnsyncedRange;
use crate::background::{Background, Rank, RemainingWork};
use crate::error::{Error, Result};
use crate::log::chain::Segment;
use crate::storage::{Access, Storage, StorageFile};

const STEP_BYTES: u64 = 256 << 10;

#[derive(Debug)]
pub(super) struct SealBuilder {
    segment: Segment,
    next: u32,
    /// Header of the seal's own frame, with the position after the segment's records.
    header: Header,
    digest: SegmentDigest,
    offset: u64,
}

impl SealBuilder {
    /// Begins the seal of a segment with a known end. `next` is its successor's ordinal, `header`
    /// the header of the seal's frame.
    pub(super) fn new(segment: Segment, next: u32, header: Header) -> SealBuilder {
        let (digest, offset) = (SegmentDigest::new(), SEGMENT_HEADER_LEN as u64);
        SealBuilder { segment, next, header, digest, offset }
    }

    fn end(&self) -> u64 {
        self.segment.end.unwrap_or(self.offset)
    }

    fn step(&mut self, storage: &dyn Storage) -> Result<()> {
        let mut window = self.segment.window(storage)?;
        let context = self.segment.context();
        let until = self.offset.saturating_add(STEP_BYTES).min(self.end());
        while self.offset < until {
            let frame = window.frame(context, self.offset)?.map_err(|error| {
                self.segment.changed_error(storage, self.offset, self.header.sequence, &error)
            })?;
            self.digest.update(&frame.record());
            self.offset += frame.len() as u64;
        }
        Ok(())
    }

    /// Writes the seal, and returns its length in bytes and the file. The file was not held open
    /// before, since many segments may wait.
    fn write(&self, storage: &dyn Storage) -> Result<(u64, Arc<dyn StorageFile>)> {
        let seal = Seal { next: self.next, records: self.digest.records(), hash: self.digest.finish() };
        let mut bytes = Vec::new();
        frame::encode(self.segment.context(), &self.header, &seal.encode(), &mut bytes)
            .map_err(|error| Error::Encode { name: "seal".to_owned(), reason: error.to_string() })?;
        let io = |error| Error::io("write", &self.segment.path, error);
        let file = storage.open(&self.segment.path, Access::Write).map_err(io)?;
        file.write_at(&bytes, self.end()).map_err(io)?;
        Ok((bytes.len() as u64, file))
    }
}

#[derive(Debug, Default)]
pub(super) struct UnsyncedSeals {
    pub(super) files: Vec<UnsyncedRange>,
    pub(super) bytes: u64,
}

#[derive(Debug)]
struct SealQueue {
    storage: Arc<dyn Storage>,
    /// Segments whose successor's name is durable.
    waiting: Mutex<VecDeque<SealBuilder>>,
    /// Segment of the running step. The writer waits for this lock only at closing.
    current: Mutex<Option<SealBuilder>>,
    sealed: Mutex<Result<UnsyncedSeals>>,
}

#[derive(Debug)]
pub(super) struct Seals {
    /// Segments whose successor's name may not be durable yet.
    unnamed: VecDeque<SealBuilder>,
    shared: Arc<SealQueue>,
    background: Background,
}

impl Seals {
    pub(super) fn new(storage: &Arc<dyn Storage>, background: &Background) -> Seals {
        let shared = SealQueue {
            storage: Arc::clone(storage),
            waiting: Mutex::default(),
            current: Mutex::default(),
            sealed: Mutex::new(Ok(UnsyncedSeals::default())),
        };
        Seals { unnamed: VecDeque::new(), shared: Arc::new(shared), background: background.clone() }
    }

    /// Has a finished segment sealed once its successor's name is durable.
    pub(super) fn add(&mut self, sealing: SealBuilder) {
        self.unnamed.push_back(sealing);
    }

    /// Has the segments sealed whose next record is durable now: the sync that made it durable
    /// began with the names.
    pub(super) fn seal_synced(&mut self, through: SequenceNumber) {
        let named = self.unnamed.partition_point(|sealing| sealing.header.sequence < through);
        if named > 0 {
            self.shared.waiting.lock().extend(self.unnamed.drain(..named));
            let shared = Arc::clone(&self.shared);
            self.background.offer(Rank::Seal, move || shared.step());
        }
    }

    /// Returns whether a segment waits for the name of its successor.
    pub(super) fn wait_for_names(&self) -> bool {
        !self.unnamed.is_empty()
    }

    /// Takes the digests of segments whose records were already read, by ordinal: these are not
    /// read again for their seals.
    pub(super) fn take_digests(&mut self, digests: &[(u32, SegmentDigest)]) {
        for sealing in &mut self.unnamed {
            let of = |(ordinal, _): &&(u32, SegmentDigest)| *ordinal == sealing.segment.header.ordinal;
            if let Some((_, digest)) = digests.iter().find(of) {
                (sealing.digest, sealing.offset) = (digest.clone(), sealing.end());
            }
        }
    }

    /// Seals all remaining segments in this thread. The names of all segments must be durable.
    pub(super) fn finish(&mut self) {
        self.shared.waiting.lock().extend(self.unnamed.drain(..));
        while self.shared.step() == RemainingWork::More {}
    }

    /// Returns the seals written since the last call.
    ///
    /// # Errors
    ///
    /// Returns the first failure at every call after it: the log must then not be written to.
    pub(super) fn take_sealed(&self) -> Result<UnsyncedSeals> {
        match &mut *self.shared.sealed.lock() {
            Ok(sealed) => Ok(std::mem::take(sealed)),
            Err(error) => Err(error.clone()),
        }
    }
}

impl SealQueue {
    fn step(&self) -> RemainingWork {
        let mut current = self.current.lock();
        if current.is_none() {
            *current = self.waiting.lock().pop_front();
        }
        let Some(sealing) = current.as_mut() else { return RemainingWork::Nothing };
        let stepped = sealing.step(self.storage.as_ref());
        let ended = stepped.and_then(|()| match sealing.offset < sealing.end() {
            true => Ok(None),
            false => sealing.write(self.storage.as_ref()).map(Some),
        });
        match ended {
            Ok(None) => return RemainingWork::More,
            Ok(Some((bytes, file))) => {
                let path = sealing.segment.path.clone();
                let file = UnsyncedRange { path, file, range: sealing.end()..sealing.end() + bytes };
                if let Ok(sealed) = &mut *self.sealed.lock() {
                    sealed.files.push(file);
                    sealed.bytes += bytes;
                }
            }
            Err(error) => {
                *self.sealed.lock() = Err(error);
                self.waiting.lock().clear();
            }
        }
        *current = None;
        if self.waiting.lock().is_empty() { RemainingWork::Nothing } else { RemainingWork::More }
    }
}

impl LogWriter {
    /// Seals every finished segment in this thread, with the digests of records that were already
    /// read back, by ordinal. A segment without a digest is read for its seal.
    pub(crate) fn seal_digested(&mut self, digests: &[(u32, SegmentDigest)]) -> Result<()> {
        self.seals.take_digests(digests);
        self.finish_seals()
    }

    /// Seals every finished segment in this thread, so that none of them is written to afterwards.
    pub(crate) fn finish_seals(&mut self) -> Result<()> {
        if self.seals.wait_for_names() {
            for dir in &self.unsynced_dirs {
                self.storage.sync_dir(dir).map_err(|error| Error::unmade("sync", dir, 0, error))?;
            }
            self.unsynced_dirs.clear();
        }
        self.seals.finish();
        self.take_in_seals()
    }
}
