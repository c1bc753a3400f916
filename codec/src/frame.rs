//! Framing: the header in front of every body.
//!
//! ```text
//!  0        4        8        12       16       20  21           28
//!  +--------+--------+--------+--------+--------+---+------------+----------------+
//!  | crc    | prev   | len    | rel    | lag    | k | time       | body ...       |
//!  | u32    | u32    | u32    | u32    | u32    |u8 | i56        | len bytes      |
//!  +--------+--------+--------+--------+--------+---+------------+----------------+
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `crc` | CRC-32 (IEEE) of the segment's salt (8 bytes), then bytes 4..28 of the header, then the body |
//! | `prev` | `crc` of the frame before this one in the chain, envelope frames included; the chain goes on across segments |
//! | `len` | length of the body in bytes |
//! | `rel` | sequence number, less the segment's first sequence number. In an envelope frame: that of the next record |
//! | `lag` | sequence number less the synced watermark: how many records the writer did not yet know to be durable; `u32::MAX` stands for "all of them" |
//! | `k` | kind, never 0 |
//! | `time` | microseconds since 1970-01-01 UTC, 56 bits, two's complement. In an envelope frame: that of the record before |
//!
//! All little-endian. The header is 28 bytes because a log of small records is mostly headers: relative
//! sequence numbers and lags keep 64-bit meaning in 32 bits, since a segment holds less than 2^32 bytes.
//!
//! # Invariants
//!
//! 1. The CRC covers the header, so space filled with zeros is never a run of empty records.
//! 2. The salt is drawn anew for every segment and is covered although it is not repeated, so a frame of
//!    another segment or session never passes.
//! 3. A frame names its predecessor's CRC, so an intact frame left behind by an older write never follows a
//!    newer one.
//! 4. Watermarks never go down along the chain.

use crate::sabotage::{self, Breakage};
use crate::{Error, Kind, SequenceNumber, crc};

/// Length in bytes of the header in front of every body.
pub const HEADER_LEN: usize = 28;

/// The largest body that a frame may hold, in bytes. Larger payloads stand in the object folder.
pub const BODY_LEN_MAX: usize = 16 << 20;

/// The earliest time that a frame can hold, in microseconds since 1970-01-01 UTC.
pub const TIME_US_MIN: i64 = -(1 << 55);

/// The latest time that a frame can hold, in microseconds since 1970-01-01 UTC.
pub const TIME_US_MAX: i64 = (1 << 55) - 1;

/// What a frame's header says, in full numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The frame's own checksum. [`encode`] computes it; the value handed to it is not looked at.
    pub crc: u32,
    /// The checksum of the frame before.
    pub predecessor_crc: u32,
    /// Length of the body in bytes.
    pub body_len: u32,
    /// Sequence number; of the next record where the kind is an envelope's.
    pub sequence: SequenceNumber,
    /// Every record below this sequence number was durable when the frame was written.
    pub watermark: SequenceNumber,
    /// Kind.
    pub kind: Kind,
    /// Microseconds since 1970-01-01 UTC, within [`TIME_US_MIN`] and [`TIME_US_MAX`].
    pub time_us: i64,
}

/// What a segment lends to its frames. Made once for a segment, not for each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    salt: u64,
    first_sequence: SequenceNumber,
    /// The CRC of the salt, from which every frame's goes on: so short an input takes the checksum's slow path.
    salt_crc: u32,
}

impl Context {
    /// The context of a segment with this salt, which is part of every checksum in it, and this first sequence
    /// number, which `rel` counts from.
    pub fn new(salt: u64, first_sequence: SequenceNumber) -> Context {
        Context { salt, first_sequence, salt_crc: crc32fast::hash(&salt.to_le_bytes()) }
    }

    /// The segment's salt.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// The segment's first sequence number.
    pub fn first_sequence(&self) -> SequenceNumber {
        self.first_sequence
    }

    /// The checksum of a frame whose bytes behind `crc` are these.
    fn checksum(&self, covered: &[u8]) -> u32 {
        let covered = match sabotage::is(Breakage::CrcWithoutHeader) {
            true => covered.get(HEADER_LEN - 4..).unwrap_or_default(),
            false => covered,
        };
        let mut hasher = crc32fast::Hasher::new_with_initial(self.salt_crc);
        hasher.update(covered);
        hasher.finalize()
    }
}

/// A frame found sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The header.
    pub header: Header,
    /// The body.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Length of the whole frame in bytes.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    /// Always false: a frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Appends a whole frame to `out` and returns its checksum.
///
/// # Errors
///
/// [`Error::Limit`] where the body is over [`BODY_LEN_MAX`], the time outside its range, the sequence number
/// below the segment's first or more than 2^32 above it; nothing is appended then.
pub fn encode(context: Context, header: &Header, body: &[u8], out: &mut Vec<u8>) -> Result<u32, Error> {
    let room = room(context, header, body.len())?;
    let start = out.len();
    out.reserve(HEADER_LEN + body.len());
    out.extend_from_slice(&room);
    out.extend_from_slice(body);
    Ok(sealed(context, out.get_mut(start..).unwrap_or_default()))
}

/// Makes a frame of a body that stands behind [`HEADER_LEN`] bytes of room, and returns its checksum: the body is
/// spared a copy.
///
/// # Errors
///
/// [`Error::Truncated`] where there is no such room, else as [`encode`]; nothing has changed then.
pub fn fill_in(context: Context, header: &Header, frame: &mut [u8]) -> Result<u32, Error> {
    let (len, needed) = (frame.len(), HEADER_LEN as u64);
    let Some((slot, body)) = frame.split_first_chunk_mut() else {
        return Err(Error::Truncated { offset: 0, needed, available: len as u64 });
    };
    *slot = room(context, header, body.len())?;
    Ok(sealed(context, frame))
}

/// A header whose checksum is still to come.
#[inline]
fn room(context: Context, header: &Header, body_len: usize) -> Result<[u8; HEADER_LEN], Error> {
    let limit = |limit: &'static str, max: u64| Error::Limit { offset: 0, limit, max };
    if body_len > BODY_LEN_MAX {
        return Err(limit("body length", BODY_LEN_MAX as u64));
    }
    if !(TIME_US_MIN..=TIME_US_MAX).contains(&header.time_us) {
        return Err(limit("time", TIME_US_MAX as u64));
    }
    let relative = header
        .sequence
        .checked_since(context.first_sequence)
        .and_then(|relative| u32::try_from(relative).ok())
        .ok_or_else(|| limit("sequence numbers in a segment", u64::from(u32::MAX)))?;
    let lag = if header.watermark == 0 {
        u32::MAX
    } else {
        u32::try_from(header.sequence.since(header.watermark)).unwrap_or(u32::MAX)
    };
    let [p0, p1, p2, p3] = header.predecessor_crc.to_le_bytes();
    let [l0, l1, l2, l3] = (body_len as u32).to_le_bytes();
    let [r0, r1, r2, r3] = relative.to_le_bytes();
    let [g0, g1, g2, g3] = lag.to_le_bytes();
    let [_, t0, t1, t2, t3, t4, t5, t6] = ((header.time_us as u64) << 8).to_le_bytes();
    let k = header.kind.byte();
    Ok([
        0, 0, 0, 0, p0, p1, p2, p3, l0, l1, l2, l3, r0, r1, r2, r3, g0, g1, g2, g3, k, t0, t1, t2, t3, t4,
        t5, t6,
    ])
}

/// Fills in the checksum, in one pass over the bytes where they stand, which is the quickest.
#[inline]
fn sealed(context: Context, frame: &mut [u8]) -> u32 {
    let crc = context.checksum(frame.get(4..).unwrap_or_default());
    if let Some(slot) = frame.first_chunk_mut() {
        *slot = crc.to_le_bytes();
    }
    crc
}

/// Reads the frame at the start of `bytes` and checks it.
///
/// The predecessor is not compared: the caller knows the chain.
///
/// # Errors
///
/// [`Error::Truncated`] where bytes are missing, [`Error::Malformed`] for kind 0, [`Error::Limit`] for a
/// length over [`BODY_LEN_MAX`], [`Error::Checksum`] where the checksum does not match.
pub fn decode(context: Context, bytes: &[u8]) -> Result<Frame<'_>, Error> {
    let header = peek(context, bytes)?;
    let end = HEADER_LEN + header.body_len as usize;
    let covered = bytes.get(4..end).ok_or(Error::Truncated {
        offset: HEADER_LEN,
        needed: u64::from(header.body_len),
        available: bytes.len().saturating_sub(HEADER_LEN) as u64,
    })?;
    let expected = context.checksum(covered);
    if expected != header.crc {
        return Err(Error::Checksum { expected, found: header.crc });
    }
    Ok(Frame { header, body: covered.get(HEADER_LEN - 4..).unwrap_or_default() })
}

/// How many bytes of a frame stand before those that its checksum covers.
pub const UNCOVERED_LEN: u64 = 4;

/// The checksum of a stretch of bytes up to the end of a frame in it, where that frame is sound. `before` is that of the
/// stretch up to behind the frame's own checksum, which is [`UNCOVERED_LEN`] bytes behind the frame's beginning.
///
/// With it a search decides which of many places hold a frame by going through the bytes twice, whatever lengths they claim.
#[must_use]
pub fn checksum_at_end(context: Context, header: &Header, before: u32) -> u32 {
    let covered_len = HEADER_LEN as u64 - UNCOVERED_LEN + u64::from(header.body_len);
    header.crc ^ crc::shifted(context.salt_crc ^ before, covered_len)
}

/// What a frame must have been of which one byte behind its checksum is wrong: no other byte, and that byte with no other
/// value, gives the checksum. `None` where there is no such byte, or several; and where the frame is sound.
///
/// It is for those who know from elsewhere that the checksum is the right one. Where more than one byte is wrong, a
/// frame of `n` bytes still has about `n` chances in 17 million to pass for another.
pub fn with_one_byte_put_right(context: Context, bytes: &[u8]) -> Option<Vec<u8>> {
    let (stated, covered) = bytes.split_first_chunk()?;
    // What the checksum is off by is what the byte is off by, gone through all bytes behind it. So it is taken back
    // through them, one by one; where a single byte is left of it, that one may be the wrong one.
    let mut off = context.checksum(covered) ^ u32::from_le_bytes(*stated);
    let mut found = None;
    for at in (stated.len()..bytes.len()).rev() {
        off = (0..8).fold(off, |off, _| match off & crc::TOP {
            0 => off << 1,
            _ => (off ^ crc::POLYNOMIAL) << 1 | 1,
        });
        let Some(off) = u8::try_from(off).ok().filter(|off| *off != 0) else { continue };
        if found.replace((at, off)).is_some() {
            return None;
        }
    }
    let (at, off) = found?;
    let mut frame = bytes.to_vec();
    *frame.get_mut(at)? ^= off;
    Some(frame)
}

/// How long the frame at the start of `bytes` says that it is, its header included: a mere claim. Where it claims more
/// than a frame can be, or where there are too few bytes to tell, as long as a header: enough for [`decode`] to refuse
/// it, and nothing is read for it in vain.
pub fn claimed_len(bytes: &[u8]) -> usize {
    let claimed = bytes.get(8..12).and_then(<[u8]>::first_chunk).map_or(0, |len| u32::from_le_bytes(*len));
    if claimed as usize > BODY_LEN_MAX { HEADER_LEN } else { HEADER_LEN + claimed as usize }
}

/// Reads the header at the start of `bytes` without looking at the checksum.
///
/// # Errors
///
/// As [`decode`], but for the body and the checksum.
#[inline]
pub fn peek(context: Context, bytes: &[u8]) -> Result<Header, Error> {
    let fixed: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Error::Truncated {
        offset: 0,
        needed: HEADER_LEN as u64,
        available: bytes.len() as u64,
    })?;
    let [c0, c1, c2, c3, p0, p1, p2, p3, l0, l1, l2, l3, r0, r1, r2, r3, g0, g1, g2, g3, k, t @ ..] = fixed;
    let kind =
        Kind::from_byte(*k).ok_or(Error::Malformed { offset: 20, reason: "kind 0 is never written" })?;
    let body_len = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
    if body_len as usize > BODY_LEN_MAX {
        return Err(Error::Limit { offset: 8, limit: "body length", max: BODY_LEN_MAX as u64 });
    }
    let [t0, t1, t2, t3, t4, t5, t6] = *t;
    let sequence = context.first_sequence.saturating_add(u64::from(u32::from_le_bytes([*r0, *r1, *r2, *r3])));
    let watermark = match u32::from_le_bytes([*g0, *g1, *g2, *g3]) {
        u32::MAX => SequenceNumber::MIN,
        lag => sequence.saturating_sub(u64::from(lag)),
    };
    Ok(Header {
        crc: u32::from_le_bytes([*c0, *c1, *c2, *c3]),
        predecessor_crc: u32::from_le_bytes([*p0, *p1, *p2, *p3]),
        body_len,
        sequence,
        watermark,
        kind,
        // The word's top 56 bits hold the time; an arithmetic shift brings back its sign.
        time_us: i64::from_le_bytes([0, t0, t1, t2, t3, t4, t5, t6]) >> 8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 0x0123_4567_89ab_cdef;

    fn context() -> Context {
        Context::new(SALT, 100.into())
    }

    fn header(sequence: SequenceNumber, watermark: SequenceNumber, time_us: i64) -> Header {
        Header {
            crc: 0,
            predecessor_crc: 0xdead_beef,
            body_len: 0,
            sequence,
            watermark,
            kind: Kind::DISPATCH,
            time_us,
        }
    }

    #[test]
    fn a_frame_comes_back_as_it_went_in() {
        for (sequence, watermark, time_us) in
            [(100, 0, 0), (101, 100, -1), (4_000_000_000, 5, TIME_US_MIN), (107, 107, TIME_US_MAX)]
        {
            let mut bytes = Vec::new();
            let mut wanted = header(sequence.into(), watermark.into(), time_us);
            wanted.crc = encode(context(), &wanted, b"body", &mut bytes).unwrap();
            wanted.body_len = 4;
            let frame = decode(context(), &bytes).unwrap();
            assert_eq!(frame.header, wanted);
            assert_eq!(frame.body, b"body");
            assert_eq!(frame.len(), bytes.len());
        }
    }

    #[test]
    fn a_frame_made_where_its_body_stands_is_the_same_frame() {
        for body in [&b""[..], b"body", &[7; 300]] {
            let header = header(105.into(), 103.into(), 1_700_000_000_000_000);
            let mut appended = b"before".to_vec();
            let crc = encode(context(), &header, body, &mut appended).unwrap();
            let mut frame = [&[0xff; HEADER_LEN], body].concat();
            assert_eq!(fill_in(context(), &header, &mut frame).unwrap(), crc);
            assert_eq!(frame, appended[b"before".len()..]);
        }
    }

    #[test]
    fn what_cannot_be_filled_in_stays_as_it_was() {
        let mut short = [0xff; HEADER_LEN - 1];
        assert!(matches!(
            fill_in(context(), &header(100.into(), 0.into(), 0), &mut short),
            Err(Error::Truncated { .. })
        ));
        let mut frame = [0xff; HEADER_LEN + 4];
        assert!(fill_in(context(), &header(99.into(), 0.into(), 0), &mut frame).is_err());
        let mut long = vec![0xff; HEADER_LEN + BODY_LEN_MAX + 1];
        assert!(fill_in(context(), &header(100.into(), 0.into(), 0), &mut long).is_err());
        assert!(short.iter().chain(&frame).chain(&long).all(|byte| *byte == 0xff));
    }

    #[test]
    fn every_bit_of_a_frame_and_of_its_salt_is_covered() {
        let mut bytes = Vec::new();
        encode(context(), &header(105.into(), 103.into(), 1_700_000_000_000_000), b"some body", &mut bytes)
            .unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(context(), &damaged).is_err(), "bit {bit}");
        }
        for bit in 0..64 {
            let other = Context::new(SALT ^ (1 << bit), 100.into());
            assert!(decode(other, &bytes).is_err(), "salt bit {bit}");
        }
    }

    #[test]
    fn a_sound_frame_is_known_by_the_checksums_before_it_and_behind_it() {
        let header = header(105.into(), 103.into(), 1_700_000_000_000_000);
        let mut bytes = b"something before".to_vec();
        let start = bytes.len();
        for body in [&b""[..], b"some body", &[7; 5_000]] {
            bytes.truncate(start);
            encode(context(), &header, body, &mut bytes).unwrap();
            let before = crc32fast::hash(&bytes[..start + UNCOVERED_LEN as usize]);
            let peeked = peek(context(), &bytes[start..]).unwrap();
            assert_eq!(checksum_at_end(context(), &peeked, before), crc32fast::hash(&bytes));
            bytes[start + 8] ^= 1;
            assert_ne!(checksum_at_end(context(), &peeked, before), crc32fast::hash(&bytes));
        }
    }

    #[test]
    fn one_wrong_byte_is_known_again_by_the_checksum_and_two_are_not() {
        let mut bytes = Vec::new();
        let body: Vec<u8> = (0..=255).collect();
        encode(context(), &header(105.into(), 103.into(), 1_700_000_000_000_000), &body, &mut bytes).unwrap();
        assert_eq!(with_one_byte_put_right(context(), &bytes), None, "nothing is wrong with it");
        for at in 4..bytes.len() {
            for off in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= off;
                assert_eq!(with_one_byte_put_right(context(), &damaged).as_ref(), Some(&bytes), "byte {at}");
                damaged[bytes.len() - at + 3] ^= 0x55;
                assert_ne!(
                    with_one_byte_put_right(context(), &damaged).as_ref(),
                    Some(&bytes),
                    "and another"
                );
            }
        }
        for len in 0..5 {
            assert_eq!(with_one_byte_put_right(context(), &bytes[..len]), None);
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_salt_and_all_behind_the_checksum() {
        let mut bytes = Vec::new();
        let crc = encode(
            context(),
            &header(105.into(), 103.into(), 1_700_000_000_000_000),
            b"some body",
            &mut bytes,
        )
        .unwrap();
        let covered = [&SALT.to_le_bytes()[..], &bytes[4..]].concat();
        assert_eq!(crc, crc32fast::hash(&covered));
        assert_eq!(bytes[..4], crc.to_le_bytes());
    }

    #[test]
    fn a_frame_claims_its_length_and_what_cannot_be_one_claims_a_header() {
        let mut bytes = Vec::new();
        encode(context(), &header(105.into(), 103.into(), 0), b"some body", &mut bytes).unwrap();
        assert_eq!(claimed_len(&bytes[..HEADER_LEN]), bytes.len());
        // A search for frames in garbage would read 16 MiB at each byte.
        assert_eq!(claimed_len(&[0xff; HEADER_LEN]), HEADER_LEN);
        let most = [&[0; 8][..], &(BODY_LEN_MAX as u32).to_le_bytes()].concat();
        assert_eq!(claimed_len(&most), HEADER_LEN + BODY_LEN_MAX);
        assert_eq!(claimed_len(&bytes[..11]), HEADER_LEN);
    }

    #[test]
    fn zeros_are_no_frame() {
        assert!(decode(context(), &[0; 4096]).is_err());
        assert!(decode(Context::new(0, 0.into()), &[0; 28]).is_err());
    }

    #[test]
    fn what_cannot_be_held_is_refused_and_leaves_nothing() {
        let mut out = Vec::new();
        assert!(encode(context(), &header(99.into(), 0.into(), 0), b"", &mut out).is_err());
        assert!(encode(context(), &header(100.into(), 0.into(), TIME_US_MAX + 1), b"", &mut out).is_err());
        assert!(
            encode(context(), &header(SequenceNumber::new(100 + (1 << 32)), 0.into(), 0), b"", &mut out)
                .is_err()
        );
        assert!(
            encode(context(), &header(100.into(), 0.into(), 0), &vec![0; BODY_LEN_MAX + 1], &mut out)
                .is_err()
        );
        assert!(out.is_empty());
    }
}
