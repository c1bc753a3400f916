//! Encodes and decodes the header of a segment file.
//!
//! A *segment* is one file of a log: this header, then frames. Byte offset, length in bytes, and
//! field:
//!
//! ```text
//!   0  8  magic "FOLDLOG\n"
//!   8  2  format version
//!  10  2  header length in bytes (84), which is the offset of the first frame
//!  12  4  ordinal of this segment
//!  16 16  session id of the writer
//!  32  8  sequence number of the first record
//!  40  8  watermark: records below it were durable when the segment was started
//!  48  8  salt
//!  56  4  ordinal of the previous segment, u32::MAX for none; recovery and forks may skip ordinals
//!  60  8  offset at which the chain leaves the previous segment, in bytes: later frames belong to no chain
//!  68  4  checksum of the last frame before that end
//!  72  8  salt again
//!  80  4  CRC-32 of bytes 0..80
//! ```
//!
//! All integers are little-endian. The salt is stored twice so that a reader can distinguish a
//! corrupt header from a segment that a crash left without one. If the frames after a broken header
//! pass with either copy of the salt, the header was written and is corrupt.

use uuid::Uuid;

use crate::{Error, FORMAT_VERSION, SequenceNumber};

/// Length in bytes of the header, and the byte offset of a segment's first frame.
pub const HEADER_LEN: usize = 84;

const MAGIC: [u8; 8] = *b"FOLDLOG\n";
const NO_SEGMENT: u32 = u32::MAX;

/// Describes the end of the previous segment, from which the chain continues in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Ordinal of the previous segment.
    pub ordinal: u32,
    /// Offset, in bytes, after the previous segment's last frame that belongs to the chain.
    pub end: u64,
    /// Checksum of the previous segment's last frame that belongs to the chain.
    pub crc: u32,
}

/// Contains the fields of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Ordinal of the segment, which is also in the name of its file.
    pub ordinal: u32,
    /// Id of the session that wrote the segment. The older segments of a fork have the ids of its
    /// ancestors.
    pub session: Uuid,
    /// Sequence number of the segment's first record.
    pub first_sequence: SequenceNumber,
    /// Watermark: every record below this sequence number was durable when the segment was started.
    pub watermark: SequenceNumber,
    /// Random number of the segment, which every checksum in it covers.
    pub salt: u64,
    /// End of the previous segment; `None` for the first segment of a session.
    pub previous: Option<Previous>,
}

impl SegmentHeader {
    /// Encodes the header as its bytes on disk.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let previous = self.previous.unwrap_or(Previous { ordinal: NO_SEGMENT, end: 0, crc: 0 });
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(HEADER_LEN as u16).to_le_bytes());
        out.extend_from_slice(&self.ordinal.to_le_bytes());
        out.extend_from_slice(self.session.as_bytes());
        out.extend_from_slice(&self.first_sequence.to_le_bytes());
        out.extend_from_slice(&self.watermark.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&previous.ordinal.to_le_bytes());
        out.extend_from_slice(&previous.end.to_le_bytes());
        out.extend_from_slice(&previous.crc.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        let mut bytes = [0; HEADER_LEN];
        bytes.iter_mut().zip(out).for_each(|(slot, byte)| *slot = byte);
        bytes
    }

    /// Decodes a header from the start of a segment file and verifies its checksum.
    ///
    /// # Errors
    ///
    /// - [`Error::Truncated`] if there are fewer than [`HEADER_LEN`] bytes.
    /// - [`Error::Magic`] if the file does not start with the magic bytes.
    /// - [`Error::Version`] if a later version wrote the file. This is checked before the checksum,
    ///   since the header of a later version may have another layout.
    /// - [`Error::Checksum`] if the checksum does not match.
    /// - [`Error::Malformed`] if the format version is 0, or the header length is not
    ///   [`HEADER_LEN`].
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, Error> {
        let fixed: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Error::Truncated {
            offset: 0,
            needed: HEADER_LEN as u64,
            available: bytes.len() as u64,
        })?;
        let mut fields = FixedWidthReader { bytes: fixed };
        let magic = fields.take::<8>();
        if magic != MAGIC {
            return Err(Error::Magic { found: magic });
        }
        let version = u16::from_le_bytes(fields.take());
        let found = u32::from_le_bytes(*fixed.last_chunk().unwrap_or(&[0; 4]));
        let expected = crc32fast::hash(fixed.get(..HEADER_LEN - 4).unwrap_or_default());
        // A corrupt byte in the version field is damage, not a newer version.
        let damaged = expected != found;
        if version > FORMAT_VERSION && !(damaged && resembles_current(fixed)) {
            return Err(Error::Version { found: version, supported: FORMAT_VERSION });
        }
        if damaged {
            return Err(Error::Checksum { expected, found });
        }
        if version == 0 {
            return Err(Error::Malformed { offset: 8, reason: "there is no format version 0" });
        }
        if usize::from(u16::from_le_bytes(fields.take())) != HEADER_LEN {
            return Err(Error::Malformed { offset: 10, reason: "a header of version 1 has 84 bytes" });
        }
        let ordinal = u32::from_le_bytes(fields.take());
        let session = Uuid::from_bytes(fields.take());
        let first_sequence = SequenceNumber::from_le_bytes(fields.take());
        let watermark = SequenceNumber::from_le_bytes(fields.take());
        let salt = u64::from_le_bytes(fields.take());
        let previous = Previous {
            ordinal: u32::from_le_bytes(fields.take()),
            end: u64::from_le_bytes(fields.take()),
            crc: u32::from_le_bytes(fields.take()),
        };
        let previous = (previous.ordinal != NO_SEGMENT).then_some(previous);
        Ok(SegmentHeader { ordinal, session, first_sequence, watermark, salt, previous })
    }

    /// Returns whether the first bytes of a file may be this header, truncated by a crash or partly
    /// lost since: each byte is the header's own or 0. Any salt and any checksum are accepted.
    pub fn may_be_unfinished_as(&self, bytes: &[u8]) -> bool {
        let drawn = |at: usize| (48..56).contains(&at) || (72..HEADER_LEN).contains(&at);
        let places = bytes.iter().zip(self.encode()).enumerate();
        let mut others = places.filter(|(at, (byte, own))| !drawn(*at) && **byte != 0 && *byte != own);
        others.next().is_none()
    }

    /// Returns the salts in the bytes of a corrupt header, at most two. A reader tries the frames
    /// after the header with each of them: see the [module's documentation](self).
    pub fn salvage_salts(bytes: &[u8]) -> Vec<u64> {
        let at = |offset: usize| -> Option<u64> {
            bytes.get(offset..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
        };
        let mut salts: Vec<u64> = [at(48), at(72)].into_iter().flatten().collect();
        salts.dedup();
        salts
    }
}

/// Returns whether the bytes would be an intact header of the current version if their version
/// field were correct.
fn resembles_current(fixed: &[u8; HEADER_LEN]) -> bool {
    let mut mended = *fixed;
    let version = FORMAT_VERSION.to_le_bytes();
    mended.iter_mut().skip(8).zip(version).for_each(|(slot, byte)| *slot = byte);
    let found = u32::from_le_bytes(*fixed.last_chunk().unwrap_or(&[0; 4]));
    crc32fast::hash(mended.get(..HEADER_LEN - 4).unwrap_or_default()) == found
}

/// Decodes consecutive fields of fixed width from bytes that are known to be long enough.
struct FixedWidthReader<'a> {
    bytes: &'a [u8],
}

impl FixedWidthReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.bytes.split_first_chunk() {
            Some((field, rest)) => {
                self.bytes = rest;
                *field
            }
            None => [0; N],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            ordinal: 3,
            session: Uuid::from_u128(7),
            first_sequence: 500.into(),
            watermark: 480.into(),
            salt: 0xfeed_f00d_dead_beef,
            previous: Some(Previous { ordinal: 1, end: 16_384, crc: 9 }),
        }
    }

    #[test]
    fn a_header_comes_back_as_it_went_in() {
        let first = SegmentHeader { previous: None, ordinal: 0, ..header() };
        for wanted in [header(), first] {
            assert_eq!(SegmentHeader::decode(&wanted.encode()).unwrap(), wanted);
        }
    }

    #[test]
    fn every_bit_is_covered_and_a_salt_survives() {
        let bytes = header().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&damaged).is_err(), "bit {bit}");
            assert!(SegmentHeader::salvage_salts(&damaged).contains(&header().salt), "bit {bit}");
        }
    }

    #[test]
    fn what_was_cut_short_is_told_from_another_header() {
        let whole = header().encode();
        for len in 0..=whole.len() {
            let mut cut = whole;
            cut[len..].fill(0);
            // A reader does not know the salt.
            let known = SegmentHeader { salt: 0, ..header() };
            assert!(known.may_be_unfinished_as(&cut) && known.may_be_unfinished_as(&whole[..len]), "{len}");
        }
        assert!(!header().may_be_unfinished_as(b"GIF89a"));
        for other in [
            SegmentHeader { ordinal: 4, ..header() },
            SegmentHeader { session: Uuid::from_u128(8), ..header() },
            SegmentHeader { first_sequence: 501.into(), ..header() },
            SegmentHeader { watermark: 481.into(), ..header() },
            SegmentHeader { previous: None, ..header() },
        ] {
            assert!(!other.may_be_unfinished_as(&whole), "{other:?}");
        }
    }

    #[test]
    fn a_later_version_is_named_not_called_damage() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        let crc = crc32fast::hash(&bytes[..80]);
        bytes[80..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(Error::Version { found: 2, supported: 1 }));
    }

    #[test]
    fn a_flipped_bit_in_the_version_is_damage() {
        let mut bytes = header().encode();
        bytes[8] ^= 0x40;
        assert!(matches!(SegmentHeader::decode(&bytes), Err(Error::Checksum { .. })));
    }
}
