//! Reading records by position.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::Record;
use foldlog_codec::frame::Frame;
use foldlog_codec::segment::HEADER_LEN;

use super::chain::Segment;
use super::scan::Location;
use super::storage::Storage;
use super::window::Window;
use crate::error::{Corruption, Error, Result};

/// The places of a log's records: a part of them, from which the others are found by walking.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) segments: Vec<Segment>,
    pub(crate) index: BTreeMap<u64, Location>,
    pub(crate) next_sequence: u64,
}

impl Places {
    /// Hands the records from `from` through `through` to `visit`, in order. Each is checked again.
    pub(crate) fn read(
        &self,
        storage: &Arc<dyn Storage>,
        from: u64,
        through: u64,
        visit: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<()> {
        self.walk(storage, from, through, &mut |_, _, frame| {
            let header = frame.header;
            let (sequence, kind, time_us) = (header.sequence, header.kind, header.time_us);
            visit(Record { sequence, kind, time_us, body: frame.body })
        })
    }

    /// Where the frame of record `sequence` ends, and its checksum.
    pub(crate) fn locate(&self, storage: &Arc<dyn Storage>, sequence: u64) -> Result<Located> {
        let mut located = None;
        self.walk(storage, sequence, sequence, &mut |segment, offset, frame| {
            located = Some(Located {
                segment,
                offset,
                time_us: frame.header.time_us,
                crc: frame.header.crc,
                end: offset + frame.len() as u64,
            });
            Ok(())
        })?;
        located.ok_or(Error::NoSuchPosition { position: sequence, last: self.next_sequence.checked_sub(1) })
    }

    fn walk(
        &self,
        storage: &Arc<dyn Storage>,
        from: u64,
        through: u64,
        visit: &mut dyn FnMut(usize, u64, Frame<'_>) -> Result<()>,
    ) -> Result<()> {
        let through = through.min(self.next_sequence.saturating_sub(1));
        if from > through || self.next_sequence == 0 {
            return Ok(());
        }
        let start = self.index.range(..=from).next_back().map(|(_, location)| *location);
        let Location { segment: first, mut offset } =
            start.unwrap_or(Location { segment: 0, offset: HEADER_LEN as u64 });
        for (index, segment) in self.segments.iter().enumerate().skip(first) {
            let io = |error| Error::io("read", &segment.path, error);
            let mut window = Window::new(segment.open(storage.as_ref())?, segment.end).map_err(io)?;
            while offset < window.end() && segment.end.is_none_or(|end| offset < end) {
                let frame = match window.frame(segment.context(), offset).map_err(io)? {
                    Ok(frame) => frame,
                    Err(error) => return Err(changed(segment, offset, from, &error)),
                };
                let header = frame.header;
                if !header.kind.is_envelope() && header.sequence >= from {
                    visit(index, offset, frame)?;
                }
                let last = !header.kind.is_envelope() && header.sequence >= through;
                offset += frame.len() as u64;
                if last {
                    return Ok(());
                }
            }
            offset = HEADER_LEN as u64;
        }
        Ok(())
    }
}

/// Where a frame stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    pub(crate) segment: usize,
    pub(crate) offset: u64,
    pub(crate) time_us: i64,
    pub(crate) crc: u32,
    pub(crate) end: u64,
}

fn changed(segment: &Segment, offset: u64, sequence: u64, error: &foldlog_codec::Error) -> Error {
    Error::Corrupt(Box::new(Corruption {
        session: Some(segment.header.session),
        segment: segment.path.clone(),
        offset,
        sequence,
        expected_crc: None,
        found_crc: None,
        reason: format!("a frame that was sound when the log was opened no longer is: {error}"),
    }))
}
