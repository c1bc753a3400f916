//! Writers of new, existing, forked and recorded logs. None of them writes before the first append.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::segment::Previous;

use super::preallocate::{Pace, SegmentPreallocator};
use super::recovery_space::Spare;
use super::seals::Seals;
use super::{LogEnvironment, LogIdentity, LogWriter, WriterPhase};
use crate::log::objects::Objects;
use crate::log::partial_creation::PartialCreation;
use crate::log::reader::{FrameLocation, RecordLocator};
use crate::log::scan::LogScan;

impl LogWriter {
    /// Creates the log of a new session. Its directory exists and contains only the
    /// `partial_creation` of an earlier attempt. The first sync also syncs `parents`, the
    /// directories with new names.
    pub(crate) fn create(
        ground: &LogEnvironment,
        dir: &Path,
        identity: LogIdentity,
        partial_creation: PartialCreation,
        parents: Vec<PathBuf>,
    ) -> LogWriter {
        let places = RecordLocator::default();
        let mut log = LogWriter::at(ground, dir, identity, places, WriterPhase::New { previous: None });
        log.unsynced_dirs = parents;
        log.ordinal_max = partial_creation.ordinal_max;
        log
    }

    pub(crate) fn open(ground: &LogEnvironment, dir: &Path, scan: LogScan) -> LogWriter {
        let start = if scan.clean {
            WriterPhase::Continue { end: scan.end, named: scan.durable >= scan.watermark }
        } else {
            WriterPhase::Recover { attested: scan.watermark.min(scan.next_sequence) }
        };
        let places = scan.places();
        let identity = LogIdentity { session: scan.session, seed: scan.opened.seed };
        let mut log = LogWriter::at(ground, dir, identity, places, start);
        log.ordinal_max = Some(scan.ordinal_max);
        log.last_crc = scan.last_crc;
        log.last_time_us = scan.last_time_us;
        log.watermark = scan.watermark;
        log.epoch = Some(scan.epoch);
        log.used_bytes = scan.used_bytes;
        log
    }

    /// Creates the log of a fork. `places` contains the linked segments, `located` is the last
    /// shared record, and `epoch` is the number of times that its parent was opened.
    pub(crate) fn fork(
        ground: &LogEnvironment,
        dir: &Path,
        identity: LogIdentity,
        places: RecordLocator,
        located: FrameLocation,
        epoch: u64,
    ) -> LogWriter {
        let ordinal = places.segments.last().map_or(0, |segment| segment.header.ordinal);
        let previous = Some(Previous { ordinal, end: located.end, crc: located.crc });
        let mut log = LogWriter::at(ground, dir, identity, places, WriterPhase::New { previous });
        log.ordinal_max = Some(ordinal);
        log.last_crc = located.crc;
        log.last_time_us = located.time_us;
        log.epoch = Some(epoch);
        log
    }

    /// Creates a log that skips the records of `places` as if it wrote them, and writes nothing.
    pub(crate) fn from_recorded(
        ground: &LogEnvironment,
        dir: &Path,
        identity: LogIdentity,
        places: RecordLocator,
    ) -> LogWriter {
        LogWriter::at(ground, dir, identity, places, WriterPhase::Recorded)
    }

    /// Skips the next record of a log that writes nothing.
    pub(crate) fn pass_recorded(&mut self) {
        self.places.next_sequence += 1;
    }

    fn at(
        ground: &LogEnvironment,
        dir: &Path,
        identity: LogIdentity,
        places: RecordLocator,
        start: WriterPhase,
    ) -> LogWriter {
        let LogEnvironment { storage, sizes, background } = ground;
        LogWriter {
            storage: Arc::clone(storage),
            dir: dir.to_owned(),
            sizes: *sizes,
            ahead: SegmentPreallocator::new(storage, background),
            unfinished_image: Arc::default(),
            pace: Pace::default(),
            seals: Seals::new(storage, background),
            objects: Arc::new(Objects::new(Arc::clone(storage), dir)),
            session: identity.session,
            seed: identity.seed,
            places,
            start,
            active: None,
            ordinal_max: None,
            last_crc: 0,
            last_offset: None,
            last_record: None,
            last_time_us: 0,
            watermark: SequenceNumber::MIN,
            recovered: SequenceNumber::MIN,
            is_closed: false,
            epoch: None,
            written_bytes: 0,
            reopened_bytes: 0,
            used_bytes: 0,
            unsynced_files: Vec::new(),
            unsynced_dirs: Vec::new(),
            unsynced_bytes: 0,
            reserved_bytes: 0,
            interrupted_calls: 0,
            spare: Spare::default(),
            frame: Vec::new(),
        }
    }
}
