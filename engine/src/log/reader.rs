//! Reading records by position.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::frame::{Frame, Header};
use foldlog_codec::image::RecordLocation;
use foldlog_codec::segment::HEADER_LEN;
use foldlog_codec::{Record, SequenceNumber};

use super::chain::{self, Segment};
use super::dropped_ranges::Compaction;
use super::scan::{self, Location};
use crate::error::{Error, Result};
use crate::storage::Storage;

/// Number of bytes of a segment between two indexed places.
const INDEX_BYTES: u64 = 64 << 10;

/// The places of some records: the first of each segment, and one every 64 KiB. A reader finds the
/// others from these by walking. The index grows by less than a thousandth of the log's length.
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    places: Arc<Vec<(SequenceNumber, Location)>>,
}

impl Index {
    /// Adds the place of a record, unless the last indexed place is near. Records come in order.
    pub(crate) fn note(&mut self, sequence: SequenceNumber, at: Location) {
        let near = |last: &Location| last.segment == at.segment && at.offset < last.offset + INDEX_BYTES;
        if !self.places.last().is_some_and(|(_, last)| near(last)) {
            Arc::make_mut(&mut self.places).push((sequence, at));
        }
    }

    pub(crate) fn cut_at(&mut self, sequence: SequenceNumber) {
        let kept = self.places.partition_point(|(noted, _)| *noted < sequence);
        Arc::make_mut(&mut self.places).truncate(kept);
    }

    /// Returns the last indexed place at or before a record, and the record at this place.
    fn before(&self, sequence: SequenceNumber) -> Option<(SequenceNumber, Location)> {
        let after = self.places.partition_point(|(noted, _)| *noted <= sequence);
        self.places.get(after.checked_sub(1)?).copied()
    }
}

/// Locates a log's records: its segments and the index. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordLocator {
    pub(crate) segments: Arc<Vec<Segment>>,
    pub(crate) index: Index,
    pub(crate) next_sequence: SequenceNumber,
    /// The result of compactions of the log, if there were any.
    pub(crate) compaction: Option<Arc<Compaction>>,
}

/// Takes the place of a frame's segment in the chain, the frame's offset in the segment, and the
/// frame.
type SegmentFrameVisitor<'a> = dyn FnMut(usize, u64, Frame<'_>) -> Result<ControlFlow<()>> + 'a;

impl RecordLocator {
    /// Holds the files of the segments open, as far as there is [room](super::open_files). Reads of
    /// these files then return the present version, even if a compaction replaces them. The other
    /// files are opened by name for each read.
    ///
    /// # Errors
    ///
    /// [`Error::CompactedMeanwhile`] if a compaction has already replaced one.
    pub(crate) fn hold_open(&mut self, storage: &dyn Storage) -> Result<()> {
        let segments = Arc::make_mut(&mut self.segments);
        segments.iter_mut().try_for_each(|segment| segment.hold_open(storage))
    }

    pub(crate) fn indexed_locations(&self) -> Vec<RecordLocation> {
        let indexed = |(sequence, at): &(SequenceNumber, Location)| {
            let ordinal = self.segments.get(at.segment)?.header.ordinal;
            Some(RecordLocation { sequence: *sequence, ordinal, offset: at.offset })
        };
        self.index.places.iter().filter_map(indexed).collect()
    }

    pub(crate) fn compacted_segments(&self) -> Vec<(u32, u64)> {
        let compacted = self.segments.iter().filter(|segment| segment.compacted.is_some());
        compacted.map(Segment::ordinal_and_salt).collect()
    }

    /// Returns the ordinals and salts of those segments before the ordinal `below` that have no
    /// seal, since a crash preceded it.
    pub(crate) fn unsealed_segments(&self, storage: &dyn Storage, below: u32) -> Result<Vec<(u32, u64)>> {
        let mut unsealed = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.header.ordinal < below) {
            if segment.seal(storage)?.is_none() {
                unsealed.push(segment.ordinal_and_salt());
            }
        }
        Ok(unsealed)
    }

    /// Passes the records from `from` through `through` to `visit`, in order. Each record is
    /// checked again.
    pub(crate) fn read(
        &self,
        storage: &Arc<dyn Storage>,
        from: SequenceNumber,
        through: SequenceNumber,
        visit: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<()> {
        self.read_until(storage, from, through, &mut |record| visit(record).map(ControlFlow::Continue))
    }

    /// Passes the records from `from` through `through` to `visit`, in order, until `visit` breaks.
    pub(crate) fn read_until(
        &self,
        storage: &Arc<dyn Storage>,
        from: SequenceNumber,
        through: SequenceNumber,
        visit: &mut dyn FnMut(Record<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut next = from;
        self.retry_if_replaced(storage, |places| {
            places.walk(storage, next, through, None, &mut |_, _, frame| {
                let seen = visit(frame.record())?;
                next = frame.header.sequence + 1;
                Ok(seen)
            })
        })
    }

    /// Calls `read` with this locator. Whenever a compaction has replaced a segment, calls it again
    /// with a new locator.
    pub(crate) fn retry_if_replaced<T>(
        &self,
        storage: &Arc<dyn Storage>,
        mut read: impl FnMut(&RecordLocator) -> Result<T>,
    ) -> Result<T> {
        let mut again: Option<RecordLocator> = None;
        scan::retry_if_replaced(|| {
            let read = read(again.as_ref().unwrap_or(self));
            if let Err(Error::CompactedMeanwhile { path }) = &read {
                again = Some(self.found_again(storage, path)?);
            }
            read
        })
    }

    /// Fails with [`Error::NoSuchPosition`] if the log has no record at a position, and otherwise as
    /// [`check_known`](RecordLocator::check_known) does.
    pub(crate) fn check_position(&self, position: SequenceNumber) -> Result<()> {
        if position >= self.next_sequence {
            return Err(Error::NoSuchPosition { position, last: self.next_sequence.checked_sub(1) });
        }
        self.check_known(position)
    }

    /// Fails with [`Error::Compacted`] if a compaction has dropped the contents of the slices at a
    /// position.
    pub(crate) fn check_known(&self, position: SequenceNumber) -> Result<()> {
        self.compaction.as_ref().map_or(Ok(()), |compaction| compaction.check(position))
    }

    /// Locates the same records again, after a compaction has replaced the segment at `path`. The
    /// new index contains only the first record of each segment.
    fn found_again(&self, storage: &Arc<dyn Storage>, path: &Path) -> Result<RecordLocator> {
        let dir = path.parent().unwrap_or(path);
        let mut segments = chain::discover(storage.as_ref(), dir)?.segments;
        segments.retain(|segment| segment.header.first_sequence < self.next_sequence);
        let mut index = Index::default();
        for (at, segment) in segments.iter().enumerate() {
            index.note(segment.header.first_sequence, Location { segment: at, offset: HEADER_LEN as u64 });
        }
        let compaction = Compaction::read(storage.as_ref(), &segments)?;
        let compaction = compaction.and_then(|compaction| compaction.part_below(self.next_sequence));
        Ok(RecordLocator {
            segments: Arc::new(segments),
            index,
            compaction,
            next_sequence: self.next_sequence,
        })
    }

    /// Passes the records from `from` through `through` to `visit`, for a fold, or a caller that
    /// reads consecutive ranges. `at` contains the place of the record after the last range, so that
    /// no record is walked twice. Fails with [`Error::CompactedMeanwhile`] if a compaction has
    /// replaced a segment, since a fold must know the result of compactions beforehand.
    pub(crate) fn read_on(
        &self,
        storage: &Arc<dyn Storage>,
        from: SequenceNumber,
        through: SequenceNumber,
        at: &mut Option<(SequenceNumber, Location)>,
        visit: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let start = at.take().filter(|(sequence, _)| *sequence <= from);
        self.walk(storage, from, through, start, &mut |segment, offset, frame| {
            visit(frame.record())?;
            *at =
                Some((frame.header.sequence + 1, Location { segment, offset: offset + frame.len() as u64 }));
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the time of the record `sequence`, in microseconds since 1970-01-01 UTC, or 0 if
    /// there is none.
    pub(crate) fn time_of(&self, storage: &Arc<dyn Storage>, sequence: SequenceNumber) -> Result<i64> {
        let mut time_us = 0;
        self.read(storage, sequence, sequence, &mut |record| {
            time_us = record.time_us;
            Ok(())
        })?;
        Ok(time_us)
    }

    /// Returns the location of the frame of the record `sequence`, with its end and checksum.
    pub(crate) fn locate(
        &self,
        storage: &Arc<dyn Storage>,
        sequence: SequenceNumber,
    ) -> Result<FrameLocation> {
        let mut located = None;
        self.walk(storage, sequence, sequence, None, &mut |segment, offset, frame| {
            located = Some(FrameLocation {
                segment,
                offset,
                time_us: frame.header.time_us,
                crc: frame.header.crc,
                end: offset + frame.len() as u64,
            });
            Ok(ControlFlow::Break(()))
        })?;
        located.ok_or(Error::NoSuchPosition { position: sequence, last: self.next_sequence.checked_sub(1) })
    }

    /// Passes every frame to `visit`, including envelope frames; in the last segment, up to `end`.
    pub(crate) fn frames(
        &self,
        storage: &Arc<dyn Storage>,
        end: u64,
        visit: &mut dyn FnMut(&Segment, u64, Frame<'_>) -> Result<()>,
    ) -> Result<()> {
        self.walk_frames(storage, None, Some(end), &mut |index, offset, frame| {
            let segment = self.segments.get(index);
            segment.map_or(Ok(()), |segment| visit(segment, offset, frame)).map(ControlFlow::Continue)
        })
    }

    /// Passes every envelope frame to `visit` that is after the record before `from` and before the
    /// last record.
    pub(crate) fn envelopes_behind(
        &self,
        storage: &Arc<dyn Storage>,
        from: SequenceNumber,
        visit: &mut dyn FnMut(&Segment, Frame<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(last) = self.next_sequence.checked_sub(1) else { return Ok(()) };
        // The walk starts at the record before, since the envelope frames after that precede the
        // record `from`.
        let start = self.index.before(from.saturating_sub(1));
        self.walk_frames(storage, start, None, &mut |index, _, frame| {
            let Header { kind, sequence, .. } = frame.header;
            match self.segments.get(index) {
                _ if !kind.is_envelope() && sequence >= last => return Ok(ControlFlow::Break(())),
                Some(segment) if kind.is_envelope() && sequence >= from => visit(segment, frame)?,
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Passes the records from `from` through `through` to `visit`. The walk starts at `start`,
    /// which must not be after the first of them; without `start`, it starts at the last indexed
    /// place before them.
    fn walk(
        &self,
        storage: &Arc<dyn Storage>,
        from: SequenceNumber,
        through: SequenceNumber,
        start: Option<(SequenceNumber, Location)>,
        visit: &mut SegmentFrameVisitor<'_>,
    ) -> Result<()> {
        let through = through.min(self.next_sequence.saturating_sub(1));
        if from > through || self.next_sequence == 0 {
            return Ok(());
        }
        let start = start.or_else(|| self.index.before(from));
        self.walk_frames(storage, start, None, &mut |index, offset, frame| {
            let header = frame.header;
            if header.kind.is_envelope() || header.sequence < from {
                return Ok(ControlFlow::Continue(()));
            }
            let seen = visit(index, offset, frame)?;
            Ok(if header.sequence >= through { ControlFlow::Break(()) } else { seen })
        })
    }

    /// Passes every frame from `start` on to `visit`, or from the first segment on, until `visit`
    /// breaks. `start` is the place of a record, or the place directly after the record before it.
    /// With `last_end`, the offset after the last frame, a file that ends early is an error.
    fn walk_frames(
        &self,
        storage: &Arc<dyn Storage>,
        start: Option<(SequenceNumber, Location)>,
        last_end: Option<u64>,
        visit: &mut impl FnMut(usize, u64, Frame<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (mut next, Location { segment: first, mut offset }) =
            start.unwrap_or((SequenceNumber::MIN, Location { segment: 0, offset: HEADER_LEN as u64 }));
        for (index, segment) in self.segments.iter().enumerate().skip(first) {
            let mut window = segment.window(storage.as_ref())?;
            let context = segment.context();
            if offset == HEADER_LEN as u64 {
                next = segment.header.first_sequence;
            }
            let is_last = index + 1 == self.segments.len();
            let end = match last_end {
                Some(last_end) => segment.end.filter(|_| !is_last).unwrap_or(last_end),
                None => window.end(),
            };
            while offset < end {
                let frame = window.frame(context, offset)?.or_else(|error| {
                    segment.check_not_replaced(storage.as_ref())?;
                    Err(segment.changed_error(storage.as_ref(), offset, next, &error))
                })?;
                let len = frame.len() as u64;
                next = frame.header.next_sequence();
                if visit(index, offset, frame)?.is_break() {
                    return Ok(());
                }
                offset += len;
            }
            offset = HEADER_LEN as u64;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameLocation {
    pub(crate) segment: usize,
    pub(crate) offset: u64,
    pub(crate) time_us: i64,
    pub(crate) crc: u32,
    pub(crate) end: u64,
}
