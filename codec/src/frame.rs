//! Encodes and decodes frames: the 28-byte header before every body, and its checksum.
//!
//! A *frame* is a header and a body. The *chain* of a session is the sequence of its frames, across
//! segments. *Envelope* frames attest, seal and introduce segments; they do not use up a sequence
//! number.
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
//! | `prev` | `crc` of the previous frame in the chain, envelope frames included; the chain continues across segments |
//! | `len` | length of the body in bytes |
//! | `rel` | sequence number minus the segment's first sequence number; in an envelope frame, the sequence number is that of the next record |
//! | `lag` | sequence number minus the watermark: the number of records that the writer did not yet know to be durable; `u32::MAX` means that none was known to be durable |
//! | `k` | kind, never 0 |
//! | `time` | microseconds since 1970-01-01 UTC, 56 bits, two's complement; in an envelope frame, the time of the previous record |
//!
//! All fields are little-endian. The header is only 28 bytes because headers make up most of a log
//! of small records. Relative sequence numbers and lags express 64-bit numbers in 32 bits, since a
//! segment has less than 2^32 bytes.
//!
//! # Invariants
//!
//! 1. The CRC covers the header, so a range of zeros never decodes as a run of empty records.
//! 2. Every segment has a new random salt. The CRC covers it, although no frame repeats it, so a
//!    frame of another segment or session never passes the check.
//! 3. A frame contains its predecessor's CRC, so an intact frame that remains from an older write
//!    never follows a newer one.
//! 4. Watermarks never decrease along the chain.

use crate::{Error, Record, RecordKind, SequenceNumber, crc};

/// Length in bytes of the header before every body.
pub const HEADER_LEN: usize = 28;

/// Length in bytes of the largest body of a frame: 16 MiB. Larger payloads are stored in the object
/// directory.
pub const BODY_LEN_MAX: usize = 16 << 20;

/// Earliest time that a frame can express, in microseconds since 1970-01-01 UTC.
pub const TIME_US_MIN: i64 = -(1 << 55);

/// Latest time that a frame can express, in microseconds since 1970-01-01 UTC.
pub const TIME_US_MAX: i64 = (1 << 55) - 1;

/// Contains the fields of a frame's header, with absolute instead of relative numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Checksum of the frame. [`encode`] and [`fill_in`] ignore it and compute their own.
    pub crc: u32,
    /// Checksum of the previous frame in the chain.
    pub predecessor_crc: u32,
    /// Length of the body in bytes. [`encode`] and [`fill_in`] ignore it and use the actual length
    /// of the body.
    pub body_len: u32,
    /// Sequence number of the record; in an envelope frame, of the next record.
    pub sequence: SequenceNumber,
    /// Watermark: every record below this sequence number was durable when the frame was written.
    pub watermark: SequenceNumber,
    /// Kind of the record or envelope frame.
    pub kind: RecordKind,
    /// Time of the record in microseconds since 1970-01-01 UTC, from [`TIME_US_MIN`] to
    /// [`TIME_US_MAX`].
    pub time_us: i64,
}

impl Header {
    /// Returns the sequence number of the record that follows the frame.
    pub fn next_sequence(&self) -> SequenceNumber {
        if self.kind.is_envelope() { self.sequence } else { self.sequence + 1 }
    }
}

/// Contains the salt and the first sequence number of a segment, which encoding and decoding its
/// frames requires. Create one for a segment, not for each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    salt: u64,
    first_sequence: SequenceNumber,
    /// CRC of the salt, with which the CRC of every frame starts. It is cached because so short an
    /// input takes the slow path of the checksum.
    salt_crc: u32,
}

impl Context {
    /// Creates the context of a segment from the salt and the first sequence number in its header.
    /// Every checksum in the segment covers the salt; `rel` counts from the first sequence number.
    pub fn new(salt: u64, first_sequence: SequenceNumber) -> Context {
        Context { salt, first_sequence, salt_crc: crc32fast::hash(&salt.to_le_bytes()) }
    }

    /// Returns the segment's salt.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Returns the sequence number of the segment's first record.
    pub fn first_sequence(&self) -> SequenceNumber {
        self.first_sequence
    }

    /// Computes the checksum of a frame from its bytes after `crc`.
    fn checksum(&self, covered: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.salt_crc);
        hasher.update(covered);
        hasher.finalize()
    }
}

/// Contains a frame whose checksum matches, with its body borrowed from the segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Header of the frame.
    pub header: Header,
    /// Body of the frame. For most kinds it is one MessagePack map, see [`body`](crate::body).
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns the content of the frame, without its framing.
    pub fn record(&self) -> Record<'a> {
        let Header { sequence, kind, time_us, .. } = self.header;
        Record { sequence, kind, time_us, body: self.body }
    }

    /// Returns the length of the whole frame in bytes, including its header.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    /// Returns `false`: every frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Appends a whole frame, header and body, to `out` and returns its checksum.
///
/// ```
/// use foldlog_codec::RecordKind;
/// use foldlog_codec::frame::{self, Context, HEADER_LEN, Header};
///
/// let segment = Context::new(0x5eed, 100.into());
/// let header = Header {
///     crc: 0,
///     predecessor_crc: 0,
///     body_len: 0,
///     sequence: 100.into(),
///     watermark: 100.into(),
///     kind: RecordKind::Snapshot,
///     time_us: 0,
/// };
/// let mut bytes = Vec::new();
/// let crc = frame::encode(segment, &header, b"\x80", &mut bytes)?;
/// assert_eq!(bytes.len(), HEADER_LEN + 1);
/// assert_eq!(bytes[..4], crc.to_le_bytes());
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
///
/// # Errors
///
/// Returns [`Error::Limit`] and appends nothing if the body is over [`BODY_LEN_MAX`], if the time
/// is outside [`TIME_US_MIN`] to [`TIME_US_MAX`], or if the sequence number is below the segment's
/// first or 2^32 or more above it.
pub fn encode(context: Context, header: &Header, body: &[u8], out: &mut Vec<u8>) -> Result<u32, Error> {
    let room = room(context, header, body.len())?;
    let start = out.len();
    out.reserve(HEADER_LEN + body.len());
    out.extend_from_slice(&room);
    out.extend_from_slice(body);
    Ok(write_checksum(context, out.get_mut(start..).unwrap_or_default()))
}

/// Writes a header into the first [`HEADER_LEN`] bytes of `frame`, before the body that fills the
/// rest, and returns the frame's checksum. Unlike [`encode`], it does not copy the body.
///
/// # Errors
///
/// `frame` is unchanged after an error.
///
/// - [`Error::Truncated`] if `frame` is shorter than a header.
/// - [`Error::Limit`] if the body is over [`BODY_LEN_MAX`], if the time is outside [`TIME_US_MIN`]
///   to [`TIME_US_MAX`], or if the sequence number is below the segment's first or 2^32 or more
///   above it.
pub fn fill_in(context: Context, header: &Header, frame: &mut [u8]) -> Result<u32, Error> {
    let (len, needed) = (frame.len(), HEADER_LEN as u64);
    let Some((slot, body)) = frame.split_first_chunk_mut() else {
        return Err(Error::Truncated { offset: 0, needed, available: len as u64 });
    };
    *slot = room(context, header, body.len())?;
    Ok(write_checksum(context, frame))
}

/// Encodes a header with a checksum of 0, to be filled in by [`write_checksum`].
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

/// Computes the checksum of a frame, writes it into the header and returns it. One pass over the
/// bytes in place is the fastest way.
#[inline]
fn write_checksum(context: Context, frame: &mut [u8]) -> u32 {
    let crc = context.checksum(frame.get(4..).unwrap_or_default());
    if let Some(slot) = frame.first_chunk_mut() {
        *slot = crc.to_le_bytes();
    }
    crc
}

/// Decodes the frame at the start of `bytes` and verifies its checksum. Ignores bytes after the
/// frame.
///
/// The caller compares `predecessor_crc`, since only the caller knows the chain.
///
/// ```
/// use foldlog_codec::RecordKind;
/// use foldlog_codec::frame::{self, Context, Header};
///
/// let segment = Context::new(0x5eed, 100.into());
/// let header = Header {
///     crc: 0,
///     predecessor_crc: 7,
///     body_len: 0,
///     sequence: 105.into(),
///     watermark: 103.into(),
///     kind: RecordKind::Snapshot,
///     time_us: 0,
/// };
/// let mut bytes = Vec::new();
/// frame::encode(segment, &header, b"\x80", &mut bytes)?;
///
/// let frame = frame::decode(segment, &bytes)?;
/// assert_eq!(frame.header.sequence, 105);
/// assert_eq!(frame.header.predecessor_crc, 7);
/// assert_eq!(frame.body, b"\x80");
///
/// // The salt is covered: the frame does not pass in another segment.
/// let other = Context::new(0xbad, 100.into());
/// assert!(matches!(frame::decode(other, &bytes), Err(foldlog_codec::Error::Checksum { .. })));
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
///
/// # Errors
///
/// - [`Error::Truncated`] if `bytes` ends before the frame does.
/// - [`Error::Malformed`] if the kind is 0.
/// - [`Error::Limit`] if the header claims a body over [`BODY_LEN_MAX`].
/// - [`Error::Checksum`] if the checksum does not match.
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

/// Number of bytes at the start of a frame that its checksum does not cover: the checksum itself.
pub const UNCOVERED_LEN: u64 = 4;

/// Predicts the checksum of a byte range up to the end of a frame in it, provided that the frame is
/// intact.
///
/// `before` is the checksum of the range up to [`UNCOVERED_LEN`] bytes into the frame. With this
/// function, a search decides which of many offsets contain a frame in two passes over the bytes,
/// regardless of the lengths that the offsets claim.
#[must_use]
pub fn checksum_at_end(context: Context, header: &Header, before: u32) -> u32 {
    let covered_len = HEADER_LEN as u64 - UNCOVERED_LEN + u64::from(header.body_len);
    header.crc ^ crc::shift_checksum(context.salt_crc ^ before, covered_len)
}

/// Repairs a frame in which exactly one byte after its checksum is wrong, and returns the repaired
/// frame.
///
/// The repair is unique: no change of another byte, and no other value of that byte, gives the
/// stored checksum. Returns `None` if no change of a single byte gives it, if several do, or if the
/// frame is intact.
///
/// Use it only if the stored checksum is known to be correct from another source. If more than one
/// byte of a frame of `n` bytes is wrong, a repair may still be found, and be wrong; its
/// probability is about `n` in 17 million.
pub fn with_one_byte_put_right(context: Context, bytes: &[u8]) -> Option<Vec<u8>> {
    let (stated, covered) = bytes.split_first_chunk()?;
    // The difference of the checksums is the difference of the wrong byte, shifted through all
    // bytes after it. So the difference is shifted back, one byte at a time. Wherever it fits into
    // a single byte, that byte may be the wrong one.
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

/// Returns the length in bytes that the frame at the start of `bytes` claims, including its header,
/// without verifying the checksum.
///
/// Returns [`HEADER_LEN`] if the claim exceeds the largest frame, or if `bytes` is too short to
/// contain it. That many bytes are enough for [`decode`] to reject the frame, so a reader reads no
/// more for it.
pub fn claimed_len(bytes: &[u8]) -> usize {
    let claimed = bytes.get(8..12).and_then(<[u8]>::first_chunk).map_or(0, |len| u32::from_le_bytes(*len));
    if claimed as usize > BODY_LEN_MAX { HEADER_LEN } else { HEADER_LEN + claimed as usize }
}

/// Decodes the header at the start of `bytes` without verifying the checksum. The body may be
/// absent.
///
/// # Errors
///
/// - [`Error::Truncated`] if `bytes` is shorter than a header.
/// - [`Error::Malformed`] if the kind is 0.
/// - [`Error::Limit`] if the header claims a body over [`BODY_LEN_MAX`].
#[inline]
pub fn peek(context: Context, bytes: &[u8]) -> Result<Header, Error> {
    let fixed: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Error::Truncated {
        offset: 0,
        needed: HEADER_LEN as u64,
        available: bytes.len() as u64,
    })?;
    let [c0, c1, c2, c3, p0, p1, p2, p3, l0, l1, l2, l3, r0, r1, r2, r3, g0, g1, g2, g3, k, t @ ..] = fixed;
    let kind = RecordKind::from_byte(*k)
        .ok_or(Error::Malformed { offset: 20, reason: "kind 0 is never written" })?;
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
        // The top 56 bits of the word are the time. An arithmetic shift restores its sign.
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
            kind: RecordKind::Dispatch,
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
        // Otherwise a search for frames in garbage would read 16 MiB at each byte.
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
