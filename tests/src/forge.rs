//! Writes the only segment of a log, sound frame for sound frame, whatever its records say.

use foldlog_codec::Kind;
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::segment::SegmentHeader;
use uuid::Uuid;

const SALT: u64 = 11;

/// Makes the bytes of a segment, one record after the other.
#[derive(Debug, Default)]
pub struct Forge {
    next: u64,
    predecessor_crc: u32,
}

impl Forge {
    /// Id of the session that every forged segment states.
    pub const SESSION: Uuid = Uuid::from_u128(9);

    /// Returns the bytes that begin the segment.
    pub fn head() -> Vec<u8> {
        let header = SegmentHeader {
            ordinal: 0,
            session: Forge::SESSION,
            first_sequence: 0.into(),
            watermark: 0.into(),
            salt: SALT,
            previous: None,
        };
        header.encode().to_vec()
    }

    /// Returns the sequence number of the record that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the bytes of the next record's frame.
    ///
    /// # Panics
    ///
    /// If no frame holds a body so long.
    pub fn frame(&mut self, kind: Kind, body: &[u8]) -> Vec<u8> {
        let header = Header {
            crc: 0,
            predecessor_crc: self.predecessor_crc,
            body_len: body.len() as u32,
            sequence: self.next.into(),
            watermark: 0.into(),
            kind,
            time_us: 1_767_323_045_000_006,
        };
        let mut bytes = Vec::new();
        let context = Context::new(SALT, 0.into());
        self.predecessor_crc = frame::encode(context, &header, body, &mut bytes).expect("a frame holds it");
        self.next += 1;
        bytes
    }
}
