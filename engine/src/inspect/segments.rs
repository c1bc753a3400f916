//! The segments of a log, and all their frames.

use std::path::PathBuf;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::{FrameInfo, LogReader};
use crate::error::Result;
use crate::log::chain::Segment;
use crate::log::compressed::{self, Compression};

/// Describes a segment of a log. Serializes without the path, and whether the segment is sealed
/// instead of the seal's length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Ordinal of the segment.
    pub ordinal: u32,
    /// Path of the file.
    #[serde(skip)]
    pub path: PathBuf,
    /// Session that wrote the segment. The shared segments of a fork were written by an ancestor.
    pub session: Uuid,
    /// Sequence number of the segment's first record.
    pub first_sequence: SequenceNumber,
    /// Number of records that belong to the log. A recovery or a fork may have left out further
    /// ones of the file.
    pub records: u64,
    /// Bytes that belong to the log: header, frames and seal. For a compressed segment, the bytes
    /// of the plain one.
    pub used_bytes: u64,
    /// Length of the file in bytes, including preallocated space. The file of a compressed segment
    /// is shorter than its contents.
    pub allocated_bytes: u64,
    /// Compression of the file.
    pub compression: Compression,
    /// Length of the seal in bytes, 0 if the segment is not sealed. The seal follows the frames
    /// that belong to the chain.
    #[serde(rename = "sealed", serialize_with = "serialize_sealed")]
    pub seal_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn serialize_sealed<S: Serializer>(seal_bytes: &u64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_bool(*seal_bytes > 0)
}

impl LogReader {
    /// Returns the segments, oldest first.
    pub fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let segments = self.whole_segments();
        let last_end = self.last_end()?;
        let mut infos = Vec::with_capacity(segments.len());
        for (index, segment) in segments.iter().enumerate() {
            let allocated_bytes = self.storage.look_up(&segment.path)?.map_or(0, |entry| entry.len);
            let compression = compressed::compression_of(self.storage.as_ref(), &segment.path)?;
            let first_sequence = segment.header.first_sequence;
            let (end, next, seal_bytes) = match segments.get(index + 1) {
                Some(next) => {
                    let seal_len = segment.seal_len(self.storage.as_ref())?;
                    (segment.end.unwrap_or(0), next.header.first_sequence, seal_len)
                }
                None => (last_end, self.places.next_sequence, 0),
            };
            infos.push(SegmentInfo {
                ordinal: segment.header.ordinal,
                path: segment.path.clone(),
                session: segment.header.session,
                first_sequence,
                records: next.since(first_sequence),
                used_bytes: end + seal_bytes,
                allocated_bytes,
                compression,
                seal_bytes,
            });
        }
        Ok(infos)
    }

    /// Passes every frame of the log to `visit`, in order, including envelope frames. Seals are not
    /// frames of the chain and are left out; see [`SegmentInfo::seal_bytes`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if a segment can no longer be read; the error of `visit`.
    pub fn frames(&self, mut visit: impl FnMut(&FrameInfo<'_>) -> Result<()>) -> Result<()> {
        let mut places = self.places.clone();
        Arc::make_mut(&mut places.segments).truncate(self.whole_segments().len());
        places.frames(&self.storage, self.last_end()?, &mut |segment, offset, frame| {
            visit(&FrameInfo::new(&segment.path, offset, frame))
        })
    }

    /// Returns the segments up to the one in which the log ends. Records that name missing objects
    /// may have been left out together with whole segments after them.
    fn whole_segments(&self) -> &[Segment] {
        let segments = self.places.segments.as_slice();
        let torn = self.report.torn.as_ref();
        let last = torn.and_then(|torn| segments.iter().position(|segment| segment.path == torn.segment));
        last.and_then(|last| segments.get(..=last)).unwrap_or(segments)
    }

    /// Returns the offset in the last segment at which the log ends, in bytes.
    fn last_end(&self) -> Result<u64> {
        if let Some(end) = &self.sound_end {
            return Ok(end.offset);
        }
        let segments = self.whole_segments();
        let torn = self.report.torn.as_ref();
        if let Some(torn) = torn.filter(|torn| segments.last().is_some_and(|s| s.path == torn.segment)) {
            return Ok(torn.offset);
        }
        // The scan counted the bytes of all segments. The other segments' bytes are known from
        // their ends.
        let mut others = 0;
        for segment in segments.iter().rev().skip(1) {
            others += segment.used_bytes(self.storage.as_ref())?;
        }
        Ok(self.log_bytes.saturating_sub(others))
    }
}
