//! Damaged envelope frames whose bytes can be recomputed.

use foldlog_codec::frame::{self, BODY_LEN_MAX, Context, HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::segment::SegmentHeader;
use foldlog_codec::{RecordKind, msgpack};

use super::SalvageReader;
use crate::error::Result;
use crate::log::chain::Segment;
use crate::log::scan::out_of_chain;
use crate::log::window::Window;

/// Maximum length in bytes of an envelope frame in which one byte is corrected. The longer the
/// frame, the more likely some byte makes the checksum match although more bytes are wrong.
const PUT_RIGHT_BYTES_MAX: usize = 16 << 10;

impl SalvageReader<'_> {
    /// Returns the envelope frame that was at `offset`, if the frames after it prove its content.
    pub(super) fn lost_envelope(
        &self,
        window: &mut Window<'_>,
        segment: &Segment,
        offset: u64,
        next: Option<&SegmentHeader>,
    ) -> Result<Option<Vec<u8>>> {
        let context = segment.context();
        let body = offset + FRAME_HEADER_LEN as u64;
        let previous = next.and_then(|next| next.previous);
        // The length is stated by the frame's header, by its body and, if it was the last frame, by
        // the next segment.
        let stated = frame::claimed_len(window.bytes(offset, FRAME_HEADER_LEN as u64)?);
        let value =
            msgpack::scan(window.bytes(body, PUT_RIGHT_BYTES_MAX as u64)?, msgpack::ValueLimits::default());
        let ends = [
            Some(body),
            Some(offset + stated as u64),
            value.ok().map(|len| body + len as u64),
            previous
                .map(|previous| previous.end)
                .filter(|end| (body..=body + BODY_LEN_MAX as u64).contains(end)),
        ];
        for end in ends.into_iter().flatten() {
            let named = match previous.filter(|previous| previous.end == end) {
                Some(previous) => previous.crc,
                None => match window.frame(context, end)? {
                    Ok(frame) if frame.header.sequence == self.walk.scan.next_sequence => {
                        frame.header.predecessor_crc
                    }
                    _ => continue,
                },
            };
            let bytes = window.bytes(offset, end - offset)?;
            let known = usize::try_from(end - offset).ok().and_then(|len| bytes.get(..len));
            let known = known.and_then(|bytes| self.known_again(context, bytes, named));
            if known.is_some() {
                return Ok(known);
            }
        }
        Ok(None)
    }

    /// Returns the original envelope frame, with the checksum `named`, of the damaged `bytes`.
    /// Returns `None` if it cannot be determined.
    fn known_again(&self, context: Context, bytes: &[u8], named: u32) -> Option<Vec<u8>> {
        let (stated, body) = bytes.split_first_chunk::<FRAME_HEADER_LEN>()?;
        let (sequence, predecessor_crc) = (self.walk.scan.next_sequence, self.walk.scan.last_crc);
        let kinds: &[RecordKind] = if body.is_empty() {
            &[RecordKind::Synced, RecordKind::Closed]
        } else {
            &[RecordKind::Resumed, RecordKind::Declared]
        };
        let lag = stated.get(16..20).and_then(<[u8]>::first_chunk).map(|lag| u32::from_le_bytes(*lag));
        let lagging = lag.and_then(|lag| sequence.checked_sub(u64::from(lag)));
        let stated_time = frame::peek(context, stated).ok().map(|header| header.time_us);
        for watermark in [Some(sequence), lagging, Some(self.walk.scan.watermark)].into_iter().flatten() {
            for time_us in [Some(self.walk.scan.last_time_us), stated_time].into_iter().flatten() {
                for kind in kinds.iter().copied() {
                    let header =
                        Header { crc: 0, predecessor_crc, body_len: 0, sequence, watermark, kind, time_us };
                    let mut frame = Vec::new();
                    if frame::encode(context, &header, body, &mut frame).is_ok_and(|crc| crc == named) {
                        return Some(frame);
                    }
                }
            }
        }
        // The frame states the same checksum as the next one, so the checksum is right, and other
        // bytes are wrong.
        if bytes.len() > PUT_RIGHT_BYTES_MAX || stated.first_chunk() != Some(&named.to_le_bytes()) {
            return None;
        }
        let frame = frame::with_one_byte_put_right(context, bytes)?;
        let header = frame::decode(context, &frame).ok()?.header;
        let follows = out_of_chain(&header, predecessor_crc, sequence).is_none();
        (follows && header.kind.is_envelope() && header.kind != RecordKind::Seal).then_some(frame)
    }
}
