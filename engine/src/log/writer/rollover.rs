//! Rollover: from one segment to the next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::Declare;
use foldlog_codec::frame::{HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, Previous, SegmentHeader};
use foldlog_codec::{RecordKind, SequenceNumber};
use foldlog_filesystem::is_out_of_space;

use super::preallocate::PreallocatedSegment;
use super::seals::SealBuilder;
use super::sync::UnsyncedRange;
use super::{Active, AppendContext, LogWriter, RESERVED_BYTES};
use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::log::chain::Segment;
use crate::log::layout;
use crate::storage::StorageFile;

/// Bytes that a new segment reserves for its header, its `Resumed` frame and the like, in addition
/// to its declarations.
pub(super) const HEAD_BYTES: u64 =
    SEGMENT_HEADER_LEN as u64 + RESERVED_BYTES + 2 * FRAME_HEADER_LEN as u64 + 128;

/// Segments are whole pages long.
pub(super) const PAGE_BYTES: u64 = 4096;

impl Active {
    pub(super) fn new(file: Arc<dyn StorageFile>, segment: &Segment, offset: u64, capacity: u64) -> Active {
        Active {
            file,
            path: segment.path.clone(),
            context: segment.context(),
            ordinal: segment.header.ordinal,
            offset,
            capacity,
            limit: capacity,
            planned: 0,
            ask_at: offset,
            pages_through: offset,
            asked_for_next: false,
        }
    }

    /// Detects bytes of another writer at the position of the next frame, and at that of the last
    /// one, which starts with the checksum `last_crc`. Returns a description if there are any.
    /// Makes no system call if the file is mapped. Detects nothing if another machine's writes
    /// arrive late.
    #[inline]
    pub(super) fn found_foreign(&self, last_offset: Option<u64>, last_crc: u32) -> Option<String> {
        let is_other =
            |offset, expected: [u8; 4]| self.file.peek(offset).is_some_and(|found| found != expected);
        let place = if is_other(self.offset, [0; 4]) {
            self.offset
        } else {
            last_offset.filter(|offset| is_other(*offset, last_crc.to_le_bytes()))?
        };
        Some(format!(
            "{} contains bytes at offset {place} that this writer did not write",
            self.path.display()
        ))
    }

    /// Returns the range that was written since the last plan of a sync.
    pub(super) fn take_written(&mut self) -> Option<UnsyncedRange> {
        let (from, to) = (self.planned, self.offset);
        self.planned = to;
        (from < to).then(|| UnsyncedRange {
            path: self.path.clone(),
            file: Arc::clone(&self.file),
            range: from..to,
        })
    }
}

pub(super) struct SegmentSpace {
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) capacity: u64,
}

impl LogWriter {
    /// Creates the next segment and, if one is open, has that one sealed.
    pub(super) fn new_segment(
        &mut self,
        previous: Option<Previous>,
        len: u64,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        let ordinal = self.next_ordinal()?;
        let path = layout::segment_file(&self.dir, ordinal);
        let declared = encode_declarations(context);
        let (active, segment) = self.create_segment(path, previous, len, declared.len(), context)?;
        self.ordinal_max = Some(ordinal);
        write_header(&active, &segment)?;
        if !self.unsynced_dirs.contains(&self.dir) {
            self.unsynced_dirs.push(self.dir.clone());
        }
        let finished = self.active.take();
        self.follow_with(active, segment);
        if let Some(mut finished) = finished {
            self.seal(&finished, ordinal);
            let written = finished.take_written();
            self.unsynced_files.extend(written);
            self.take_in_seals()?;
        }
        self.declare_head(&declared, context.synced)
    }

    /// Returns the ordinal of the next segment. Fails after the maximum ordinal, which a file of
    /// the directory may have without being a segment.
    pub(super) fn next_ordinal(&self) -> Result<u32> {
        let Some(ordinal) = self.ordinal_max else { return Ok(0) };
        ordinal.checked_add(1).ok_or(Error::TooLarge {
            what: "segment ordinal",
            found: u64::from(ordinal) + 1,
            max: u64::from(u32::MAX),
        })
    }

    /// Continues in a segment whose header is written.
    pub(super) fn follow_with(&mut self, active: Active, segment: Segment) {
        let segments = Arc::make_mut(&mut self.places.segments);
        if let (Some(last), Some(previous)) = (segments.last_mut(), segment.header.previous) {
            last.end_at(previous);
        }
        segments.push(segment);
        self.used_bytes += SEGMENT_HEADER_LEN as u64;
        self.active = Some(active);
        (self.last_offset, self.last_record) = (None, None);
    }

    pub(super) fn declare_head(&mut self, declared: &[u8], synced: SequenceNumber) -> Result<()> {
        match declared {
            [] => Ok(()),
            declared => self.write_envelope(RecordKind::Declared, declared, synced),
        }
    }

    /// Creates a segment file, or takes the preallocated one. The header is still to be written.
    fn create_segment(
        &self,
        path: PathBuf,
        previous: Option<Previous>,
        len: u64,
        declared_len: usize,
        context: &AppendContext<'_>,
    ) -> Result<(Active, Segment)> {
        let ordinal = self.next_ordinal()?;
        let wanted = HEAD_BYTES + declared_len as u64 + len;
        let (space, pages_through) = match self.made_ahead(ordinal, &path, wanted)? {
            // The background brought the first pages in when it created the file.
            Some(made) => (SegmentSpace { file: made.file, capacity: made.capacity }, made.prepared),
            None => {
                let preferred = self.capacity_next();
                (self.with_room(|| self.allocate_segment(&path, wanted, preferred))?, 0)
            }
        };
        let first_sequence = self.places.next_sequence;
        let (active, segment) = self.begin_segment(ordinal, path, space, previous, first_sequence, context);
        let pages_through = pages_through.max(active.pages_through);
        Ok((Active { pages_through, ..active }, segment))
    }

    /// Creates a segment file of `preferred` bytes. If the disk has no room, tries half the size,
    /// and so on down to `wanted` bytes.
    pub(super) fn allocate_segment(&self, path: &Path, wanted: u64, preferred: u64) -> Result<SegmentSpace> {
        // Creating the file fails for an impossible size.
        let whole_pages = |bytes: u64| bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let wanted = whole_pages(wanted);
        let mut capacity = whole_pages(preferred).max(wanted);
        loop {
            match self.storage.create_segment(path, capacity) {
                Ok(file) => return Ok(SegmentSpace { file, capacity }),
                Err(error) if is_out_of_space(&error) && capacity > wanted => {
                    capacity = whole_pages(capacity / 2).max(wanted);
                }
                Err(error) => return Err(self.no_segment(path, capacity, error)),
            }
        }
    }

    /// Returns a segment in a file, and the state of its writer. The header is still to be written.
    pub(super) fn begin_segment(
        &self,
        ordinal: u32,
        path: PathBuf,
        space: SegmentSpace,
        previous: Option<Previous>,
        first_sequence: SequenceNumber,
        context: &AppendContext<'_>,
    ) -> (Active, Segment) {
        let header = SegmentHeader {
            ordinal,
            session: self.session,
            first_sequence,
            watermark: context.synced,
            salt: Generator::salt(self.seed, ordinal),
            previous,
        };
        let segment = Segment::new(path, header, None);
        let active = Active::new(space.file, &segment, SEGMENT_HEADER_LEN as u64, space.capacity);
        (active, segment)
    }

    /// Returns the size of the next segment in bytes. It is the number of bytes that will have been
    /// written since opening when the present segment is full; for a fast writer, up to three times
    /// that. After a segment that was closed and continued, it is at least twice that segment's
    /// size, so that the number of segments does not grow with each closing and opening.
    fn capacity_next(&self) -> u64 {
        let left = self.active.as_ref().map_or(0, |active| active.capacity.saturating_sub(active.offset));
        let written = self.written_bytes + left;
        written
            .max(self.reopened_bytes.saturating_mul(2))
            .max(self.pace.hurry_bytes().min(written.saturating_mul(3)))
            .min(self.sizes.max_bytes)
            .max(self.sizes.first_bytes)
    }

    pub(super) fn no_segment(&self, path: &Path, capacity: u64, error: std::io::Error) -> Error {
        match error {
            _ if is_out_of_space(&error) => {
                Error::Full { path: path.to_owned(), bytes: capacity, source: Arc::new(error) }
            }
            _ => self.write_error("create", path, error),
        }
    }

    /// Returns the preallocated segment, if it has the expected ordinal and is large enough.
    fn made_ahead(&self, ordinal: u32, path: &Path, wanted: u64) -> Result<Option<PreallocatedSegment>> {
        let Some(made) = self.ahead.take_segment() else { return Ok(None) };
        if made.ordinal == ordinal && made.path == path && made.capacity >= wanted {
            return Ok(Some(made));
        }
        self.ahead.discard(&made).map_err(|error| Error::io("remove", &made.path, error))?;
        Ok(None)
    }

    /// Requests the resources that the writer will need soon: pages a window ahead, and the next
    /// segment if the rollover is near.
    pub(super) fn look_ahead(&mut self, time_us: i64) {
        let window = self.pace.window_bytes(time_us, self.written_bytes);
        let (ordinal, capacity) = (self.next_ordinal().ok(), self.capacity_next());
        let Some(active) = &mut self.active else { return };
        let mapped = active.file.is_worth_preparing();
        if mapped && active.pages_through < active.capacity.min(active.offset + window) {
            let from = active.pages_through.max(active.offset);
            let to = (from + window).min(active.capacity);
            self.ahead.ask_for_pages(&active.file, from, to);
            active.pages_through = to;
        }
        // A fast writer needs the next segment soon.
        let rollover_near =
            active.capacity.saturating_sub(self.pace.hurry_bytes()).min(active.capacity / 4 * 3);
        let worth_it = capacity >= self.sizes.ahead_bytes_min;
        let ordinal =
            ordinal.filter(|_| worth_it && !active.asked_for_next && active.offset >= rollover_near);
        if let Some(ordinal) = ordinal {
            let capacity = capacity.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
            let path = layout::segment_file(&self.dir, ordinal);
            self.ahead.ask_for_segment(ordinal, &path, capacity, window);
            active.asked_for_next = true;
        }
        let pages_at = match mapped && active.pages_through < active.capacity {
            true => active.pages_through.saturating_sub(window / 2),
            false => u64::MAX,
        };
        let next_at = if active.offset >= rollover_near { u64::MAX } else { rollover_near };
        active.ask_at = pages_at.min(next_at);
    }

    /// Has a finished segment sealed. The seal is outside the chain: the successor names the frame
    /// before the seal.
    fn seal(&mut self, finished: &Active, next: u32) {
        let segment = self.places.segments.iter().rfind(|segment| segment.header.ordinal == finished.ordinal);
        let Some(segment) = segment else { return };
        let header = Header {
            crc: 0,
            predecessor_crc: self.last_crc,
            body_len: 0,
            sequence: self.places.next_sequence,
            watermark: SequenceNumber::MIN,
            kind: RecordKind::Seal,
            time_us: self.last_time_us,
        };
        self.seals.add(SealBuilder::new(segment.clone(), next, header));
    }

    /// Adds the seals that were written since the last call to the used bytes and to the unsynced
    /// files.
    pub(super) fn take_in_seals(&mut self) -> Result<()> {
        let sealed = self.seals.take_sealed()?;
        self.used_bytes += sealed.bytes;
        self.unsynced_files.extend(sealed.files);
        Ok(())
    }
}

/// Encodes the declarations so far, for the head of a segment. Empty if there are none.
pub(super) fn encode_declarations(context: &AppendContext<'_>) -> Vec<u8> {
    let declared = (context.declared)();
    if declared == Declare::default() { Vec::new() } else { declared.encode() }
}

pub(super) fn write_header(active: &Active, segment: &Segment) -> Result<()> {
    let header = segment.header.encode();
    active.file.write_at(&header, 0).map_err(|error| Error::io("write", &active.path, error))
}
