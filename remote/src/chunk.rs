//! Encodes and decodes the bytes of a chunk: one object of a session's remote log.
//!
//! A *chunk* contains records of one session, in order. A chunk without records claims the session
//! for a writer. Byte offset, length in bytes, and field:
//!
//! ```text
//!   0  8  magic "FOLDRMT\n"
//!   8  2  format version
//!  10  2  length of the head in bytes (156), which is the offset of the note
//!  12  4  number of records
//!  16 16  session id
//!  32  8  number of the chunk, also in its key
//!  40  8  epoch
//!  48 16  writer id
//!  64 16  nonce: drawn at random for each chunk
//!  80 32  hash of the previous chunk in the chain; zeros if there is none
//! 112  8  sequence number of the first record; without records, of the next one
//! 120 32  content digest of the records (`foldlog_codec::digest`)
//! 152  4  length of the note in bytes
//! 156  …  note: name of the claimant, in UTF-8; empty in all chunks but claims
//!   …  …  in format version 2: captures
//!   …  …  records
//! end-32 32  hash of the chunk: BLAKE3 of all bytes before it
//! ```
//!
//! A record is `kind` (1 byte), `time` (8, microseconds since 1970-01-01 UTC, signed),
//! `length of the body` (4), and the body. Its sequence number is that of the first record plus its
//! place among the records, so a chunk has no gap. All integers are little-endian.
//!
//! The *captures* describe the data that the captures of workspaces in the records add: number of
//! packs (4), each pack's hash (32, BLAKE3) and length (8), length of one more pack (4), and that
//! pack itself. A chunk of format version 1 has no such part: it is a claim, or its records were
//! appended without their captures.
//!
//! A *compacted chunk* is in a compacted volume ([`volume`](crate::volume)), and replaces one whose
//! records have lost bodies. It has the magic "FOLDRMC\n", the same fields except the bodies, and
//! at its end the hash of the replaced chunk, which does not match its own bytes. A record without
//! its body has the kind `dropped`, with kind, length and BLAKE3 of the dropped body, as in a local
//! log.
//!
//! A chunk contains records and never frames. A recovery of the local log rewrites salts and
//! checksums, but both sides must agree on the content. For the same reason the content digest is
//! that of the local log: dropping the body of a record does not change it.
//!
//! # Invariants
//!
//! 1. Decoding panics on no input, and allocates nothing: its result borrows from the bytes.
//! 2. Every wrong byte is detected. The hash is at the end in every format version, which
//!    distinguishes a damaged version number from a newer version.
//! 3. Equal chunks have equal bytes, and one length in the bytes determines the position of each
//!    field.
//! 4. No chunk is longer than [`CHUNK_BYTES_MAX`]: writers and readers check the same constant.

use std::fmt;

use foldlog::replication::INLINED_BYTES_MAX;
use foldlog_codec::body::ObjectId;
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::{BODY_LEN_MAX, TIME_US_MAX, TIME_US_MIN};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use crate::error::{Error, Result, check_len};
use crate::fields::FieldReader;

/// Newest format version that this crate writes into chunks, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 2;

/// Format version of chunks without captures.
const FORMAT_VERSION_PLAIN: u16 = 1;

/// Maximum length of a chunk in bytes: room for a record of the maximum length, and as much again.
pub const CHUNK_BYTES_MAX: usize = 32 << 20;

/// Maximum length of a claim's note in bytes.
pub const NOTE_BYTES_MAX: usize = 1024;

/// Maximum number of packs that a chunk names.
pub const PACKS_MAX: usize = 1 << 16;

const MAGIC: [u8; 8] = *b"FOLDRMT\n";
const MAGIC_COMPACTED: [u8; 8] = *b"FOLDRMC\n";
const HEAD_LEN: usize = 156;
const HASH_LEN: usize = 32;
const RECORD_HEAD_LEN: usize = 13;
const PACK_NAME_LEN: usize = 40;

/// Identifies a chunk by the BLAKE3 of its bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ChunkHash(pub [u8; HASH_LEN]);

impl fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Numbers the claims of a session: each claim has a higher epoch than every chunk before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// Creates an epoch from a plain number. No chunk has the epoch 0.
    pub const fn new(number: u64) -> Epoch {
        Epoch(number)
    }

    /// Returns the epoch as a plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the epoch of the next claim; `None` after the last possible number.
    pub fn next(self) -> Option<Epoch> {
        self.0.checked_add(1).map(Epoch)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a writer: drawn at random for each claim, so that no two claims have the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriterId(pub Uuid);

impl WriterId {
    /// Draws a new id at random.
    pub fn random() -> WriterId {
        WriterId(Uuid::new_v4())
    }
}

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Contains the metadata of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// Session of the records.
    pub session: Uuid,
    /// Number of the chunk, counted from 0; its key ends with it.
    pub number: u64,
    /// Epoch of the chunk's writer.
    pub epoch: Epoch,
    /// Writer that claimed the epoch.
    pub writer: WriterId,
    /// Random bytes that distinguish this chunk from any other one with the same content.
    pub nonce: [u8; 16],
    /// Hash of the previous chunk in the chain; zeros if there is none.
    pub previous: ChunkHash,
    /// Sequence number of the first record; without records, of the next one.
    pub first_sequence: SequenceNumber,
    /// Name of the claimant; empty in all chunks but claims.
    pub note: String,
}

/// Contains a chunk that was decoded and verified. Its records borrow from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Metadata of the chunk.
    pub head: ChunkHead,
    /// Number of records.
    pub count: u32,
    /// Content digest of the records.
    pub content: [u8; 32],
    /// Hash of the chunk, which the next one names as its predecessor.
    pub hash: ChunkHash,
    /// Data that the captures in the records add; `None` if the records were appended without their
    /// captures.
    pub captures: Option<ChunkCaptures<'a>>,
    records: &'a [u8],
}

/// Describes the data that captures add, in a chunk that was decoded and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCaptures<'a> {
    packs: &'a [u8],
    /// Bytes of one more pack; empty if there is none.
    pub inlined: &'a [u8],
}

impl ChunkCaptures<'_> {
    /// Returns the ids of the packs that were put before the chunk, in their order.
    pub fn packs(&self) -> impl Iterator<Item = ObjectId> {
        let mut fields = FieldReader { bytes: self.packs };
        std::iter::from_fn(move || Some(ObjectId { hash: fields.take()?, len: fields.u64()? }))
    }
}

/// Encodes records as one chunk.
///
/// ```
/// use foldlog_codec::{RecordKind, Record};
/// use foldlog_remote::chunk::{Chunk, ChunkHead, ChunkHash, ChunkEncoder, Epoch, WriterId};
///
/// let head = ChunkHead {
///     session: uuid::Uuid::from_u128(7),
///     number: 3,
///     epoch: Epoch::new(1),
///     writer: WriterId::random(),
///     nonce: [5; 16],
///     previous: ChunkHash([9; 32]),
///     first_sequence: 40.into(),
///     note: String::new(),
/// };
/// let mut encoder = ChunkEncoder::new(head.clone())?;
/// encoder.push(Record { sequence: 40.into(), kind: RecordKind::Dispatch, time_us: 1, body: b"one" })?;
/// encoder.push(Record { sequence: 41.into(), kind: RecordKind::Dispatch, time_us: 2, body: b"two" })?;
/// let bytes = encoder.finish().bytes;
///
/// let chunk = Chunk::decode(&bytes, 3)?;
/// assert_eq!(chunk.head, head);
/// let bodies: Vec<&[u8]> = chunk.records().map(|record| record.body).collect();
/// assert_eq!(bodies, [b"one", b"two"]);
/// # Ok::<(), foldlog_remote::Error>(())
/// ```
#[derive(Debug)]
pub struct ChunkEncoder {
    pub(crate) head: ChunkHead,
    count: u32,
    digest: SegmentDigest,
    /// Encoded captures; `None` in a chunk without.
    captures: Option<Vec<u8>>,
    records: Vec<u8>,
}

/// Contains the bytes of a chunk, and the hash at their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes of the chunk.
    pub bytes: Vec<u8>,
    /// Hash of the chunk.
    pub hash: ChunkHash,
}

impl ChunkEncoder {
    /// Starts a chunk without records.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the note is longer than [`NOTE_BYTES_MAX`].
    pub fn new(head: ChunkHead) -> Result<ChunkEncoder> {
        check_len("note", head.note.len(), NOTE_BYTES_MAX)?;
        Ok(ChunkEncoder { head, count: 0, digest: SegmentDigest::new(), captures: None, records: Vec::new() })
    }

    /// Sets the data that the captures in the records add: packs that were put, and the bytes of
    /// one more, which may be empty.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if there are more than [`PACKS_MAX`] packs, or the additional one is
    /// longer than [`INLINED_BYTES_MAX`].
    pub fn set_captures(&mut self, packs: &[ObjectId], inlined: &[u8]) -> Result<()> {
        let packs_len = packs.len() * PACK_NAME_LEN;
        check_len("list of packs", packs_len, PACKS_MAX * PACK_NAME_LEN)?;
        check_len("pack of captures", inlined.len(), INLINED_BYTES_MAX)?;
        let mut names = Vec::with_capacity(packs_len);
        for pack in packs {
            names.extend_from_slice(&pack.hash);
            names.extend_from_slice(&pack.len.to_le_bytes());
        }
        let mut captures = Vec::with_capacity(8 + packs_len + inlined.len());
        write_captures(&mut captures, &names, inlined);
        self.captures = Some(captures);
        Ok(())
    }

    /// Returns the length of the chunk so far, in bytes.
    pub fn len(&self) -> usize {
        let captures = self.captures.as_ref().map_or(0, Vec::len);
        HEAD_LEN + self.head.note.len() + captures + self.records.len() + HASH_LEN
    }

    /// Returns whether the chunk has no record yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether a record with a body of `len` bytes would still fit.
    pub fn has_room(&self, len: usize) -> bool {
        self.len() + RECORD_HEAD_LEN + len <= CHUNK_BYTES_MAX
    }

    /// Adds the next record.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfOrder`] if its sequence number is not the next one.
    /// - [`Error::TooLarge`] if its body is longer than permitted for a record, or the chunk has no
    ///   room for it.
    /// - [`Error::NotContent`] if it is an envelope frame, or its time is invalid in a log.
    pub fn push(&mut self, record: Record<'_>) -> Result<()> {
        check_record(&record, self.next_sequence())?;
        if !self.has_room(record.body.len()) || self.count == u32::MAX {
            let len = record.body.len() as u64;
            return Err(Error::TooLarge { what: "record", len, max: BODY_LEN_MAX as u64 });
        }
        self.count += 1;
        self.digest.update(&record);
        write_record(&mut self.records, record.kind, record.time_us, record.body);
        Ok(())
    }

    /// Returns the bytes of the chunk.
    pub fn finish(&self) -> Encoded {
        self.finish_as(&self.head)
    }

    /// Returns the bytes of the chunk with these records under another head, whose first sequence
    /// number must be the same.
    pub(crate) fn finish_as(&self, head: &ChunkHead) -> Encoded {
        let version = if self.captures.is_some() { FORMAT_VERSION } else { FORMAT_VERSION_PLAIN };
        let mut out = Vec::with_capacity(self.len());
        write_head(&mut out, MAGIC, version, head, self.count, &self.digest.finish());
        out.extend_from_slice(self.captures.as_deref().unwrap_or_default());
        out.extend_from_slice(&self.records);
        let hash = ChunkHash(*blake3::hash(&out).as_bytes());
        out.extend_from_slice(&hash.0);
        Encoded { bytes: out, hash }
    }

    /// Returns the sequence number after the chunk's last record.
    pub fn next_sequence(&self) -> SequenceNumber {
        self.head.first_sequence + u64::from(self.count)
    }
}

impl<'a> Chunk<'a> {
    /// Decodes and verifies the chunk with this number, in this order: hash, magic, format version,
    /// fields, records, content digest.
    ///
    /// # Errors
    ///
    /// - [`Error::Damaged`] if the bytes do not have the hash at their end, or are too few to have
    ///   one.
    /// - [`Error::NewerFormat`] if a later version of foldlog wrote them.
    /// - [`Error::Malformed`] if they have the hash but are not a chunk: their writer did not
    ///   follow the protocol.
    /// - [`Error::TooLarge`] if there are more bytes than a chunk may have.
    pub fn decode(bytes: &'a [u8], number: u64) -> Result<Chunk<'a>> {
        check_len("chunk", bytes.len(), CHUNK_BYTES_MAX)?;
        let hash = verify_hash(bytes, number)?;
        Chunk::fields(bytes, number, hash, &[MAGIC], true)
    }

    /// Decodes a compacted chunk and verifies its records. The caller must have verified its bytes.
    /// Its hash is the one that it states: the hash that the chunk had before bodies were dropped.
    ///
    /// # Errors
    ///
    /// The errors of [`Chunk::decode`] except [`Error::Damaged`].
    pub fn decode_compacted(bytes: &'a [u8], number: u64) -> Result<Chunk<'a>> {
        check_len("chunk", bytes.len(), CHUNK_BYTES_MAX)?;
        let hash = bytes.last_chunk::<HASH_LEN>().copied().unwrap_or_default();
        Chunk::fields(bytes, number, ChunkHash(hash), &[MAGIC_COMPACTED], true)
    }

    /// Encodes the chunk for a compacted volume. For each record, `bodies` returns the body of the
    /// record of the kind `dropped` that replaces it, or `None` to leave the record unchanged. The
    /// content digest must remain the same. If `counts` is false, the chain ignores the chunk, and
    /// its inlined pack is omitted.
    #[cfg(feature = "object-store")]
    pub(crate) fn encode_compacted(
        &self,
        counts: bool,
        bodies: &mut dyn FnMut(&Record<'a>) -> Result<Option<Vec<u8>>>,
    ) -> Result<Vec<u8>> {
        let version = if self.captures.is_some() { FORMAT_VERSION } else { FORMAT_VERSION_PLAIN };
        let mut out = Vec::with_capacity(HEAD_LEN + self.records.len() + HASH_LEN);
        write_head(&mut out, MAGIC_COMPACTED, version, &self.head, self.count, &self.content);
        if let Some(ChunkCaptures { packs, inlined }) = &self.captures {
            write_captures(&mut out, packs, if counts { inlined } else { &[] });
        }
        for record in self.records() {
            match bodies(&record)? {
                Some(body) => write_record(&mut out, RecordKind::Dropped, record.time_us, &body),
                None => write_record(&mut out, record.kind, record.time_us, record.body),
            }
        }
        out.extend_from_slice(&self.hash.0);
        Ok(out)
    }

    /// Decodes a chunk that was verified before, compacted or not.
    #[cfg(feature = "object-store")]
    pub(crate) fn decode_verified(bytes: &'a [u8], number: u64) -> Result<Chunk<'a>> {
        let hash = bytes.last_chunk::<HASH_LEN>().copied().unwrap_or_default();
        Chunk::fields(bytes, number, ChunkHash(hash), &[MAGIC, MAGIC_COMPACTED], false)
    }

    /// Decodes the bytes before the hash.
    fn fields(
        bytes: &'a [u8],
        number: u64,
        hash: ChunkHash,
        magics: &[[u8; 8]],
        verify: bool,
    ) -> Result<Chunk<'a>> {
        let malformed = |reason| Error::Malformed { chunk: number, reason };
        let mut fields =
            FieldReader { bytes: bytes.get(..bytes.len().saturating_sub(HASH_LEN)).unwrap_or_default() };
        if !fields.take::<8>().is_some_and(|magic| magics.contains(&magic)) {
            return Err(malformed("it does not start like a chunk"));
        }
        let version = fields.u16().ok_or_else(|| malformed("it ends within its head"))?;
        if version > FORMAT_VERSION {
            return Err(Error::NewerFormat { chunk: number, found: version, supported: FORMAT_VERSION });
        }
        let (head, count, content) =
            fields.head().filter(|_| version != 0).ok_or_else(|| malformed("its head cannot be decoded"))?;
        let captures = match version {
            FORMAT_VERSION_PLAIN => None,
            _ => Some(fields.captures().ok_or_else(|| malformed("its captures cannot be decoded"))?),
        };
        let records = fields.bytes;
        if !verify {
            return Ok(Chunk { head, count, content, hash, captures, records });
        }
        let digest = walk(records, head.first_sequence, count)
            .ok_or_else(|| malformed("its records cannot be decoded"))?;
        if digest != content {
            return Err(malformed("its records do not match its content digest"));
        }
        Ok(Chunk { head, count, content, hash, captures, records })
    }

    /// Returns the chunk's records, in order.
    pub fn records(&self) -> ChunkRecords<'a> {
        ChunkRecords {
            fields: FieldReader { bytes: self.records },
            next: self.head.first_sequence,
            left: self.count,
        }
    }

    /// Returns the sequence number after the chunk's last record.
    pub fn next_sequence(&self) -> SequenceNumber {
        self.head.first_sequence + u64::from(self.count)
    }
}

/// Checks a record that is to be appended as the record `expected`.
///
/// # Errors
///
/// [`Error::OutOfOrder`], [`Error::NotContent`] and [`Error::TooLarge`].
pub(crate) fn check_record(record: &Record<'_>, expected: SequenceNumber) -> Result<()> {
    let Record { sequence, kind, time_us, body } = *record;
    if sequence != expected {
        return Err(Error::OutOfOrder { expected, found: sequence });
    }
    if kind.is_envelope() || !(TIME_US_MIN..=TIME_US_MAX).contains(&time_us) {
        return Err(Error::NotContent { sequence });
    }
    check_len("record", body.len(), BODY_LEN_MAX)
}

/// Writes the fields before the captures: the head, and the note.
fn write_head(
    out: &mut Vec<u8>,
    magic: [u8; 8],
    version: u16,
    head: &ChunkHead,
    count: u32,
    content: &[u8; 32],
) {
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&(HEAD_LEN as u16).to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(head.session.as_bytes());
    out.extend_from_slice(&head.number.to_le_bytes());
    out.extend_from_slice(&head.epoch.0.to_le_bytes());
    out.extend_from_slice(head.writer.0.as_bytes());
    out.extend_from_slice(&head.nonce);
    out.extend_from_slice(&head.previous.0);
    out.extend_from_slice(&head.first_sequence.to_le_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&(head.note.len() as u32).to_le_bytes());
    out.extend_from_slice(head.note.as_bytes());
}

fn write_captures(out: &mut Vec<u8>, packs: &[u8], inlined: &[u8]) {
    out.extend_from_slice(&((packs.len() / PACK_NAME_LEN) as u32).to_le_bytes());
    out.extend_from_slice(packs);
    out.extend_from_slice(&(inlined.len() as u32).to_le_bytes());
    out.extend_from_slice(inlined);
}

fn write_record(out: &mut Vec<u8>, kind: RecordKind, time_us: i64, body: &[u8]) {
    out.push(kind.byte());
    out.extend_from_slice(&time_us.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
}

/// Returns the hash at the end of `bytes`, if it matches the bytes before it.
fn verify_hash(bytes: &[u8], number: u64) -> Result<ChunkHash> {
    let damaged = |expected, found| Error::Damaged { chunk: number, expected, found };
    let Some((before, found)) = bytes.split_last_chunk::<HASH_LEN>() else {
        return Err(damaged(ChunkHash(*blake3::hash(bytes).as_bytes()), ChunkHash::default()));
    };
    let (expected, found) = (ChunkHash(*blake3::hash(before).as_bytes()), ChunkHash(*found));
    if expected == found { Ok(found) } else { Err(damaged(expected, found)) }
}

/// Walks `count` records, which must fill `bytes` exactly, and returns their content digest.
fn walk(bytes: &[u8], first: SequenceNumber, count: u32) -> Option<[u8; 32]> {
    first.get().checked_add(u64::from(count))?;
    let mut digest = SegmentDigest::new();
    let mut fields = FieldReader { bytes };
    for place in 0..u64::from(count) {
        let record = fields.record(first + place)?;
        digest.update(&record);
    }
    fields.bytes.is_empty().then(|| digest.finish())
}

/// Iterates over the records of a chunk that was verified.
#[derive(Clone, Debug)]
pub struct ChunkRecords<'a> {
    fields: FieldReader<'a>,
    next: SequenceNumber,
    left: u32,
}

impl<'a> Iterator for ChunkRecords<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        self.left = self.left.checked_sub(1)?;
        let record = self.fields.record(self.next)?;
        self.next += 1;
        Some(record)
    }
}

impl<'a> FieldReader<'a> {
    /// Takes the fields after the format version: the head, the number of records, and their
    /// content digest.
    fn head(&mut self) -> Option<(ChunkHead, u32, [u8; 32])> {
        if usize::from(self.u16()?) != HEAD_LEN {
            return None;
        }
        let count = self.u32()?;
        let session = Uuid::from_bytes(self.take()?);
        let number = self.u64()?;
        let epoch = Epoch(self.u64()?);
        let writer = WriterId(Uuid::from_bytes(self.take()?));
        let nonce = self.take()?;
        let previous = ChunkHash(self.take()?);
        let first_sequence = self.u64()?.into();
        let content = self.take()?;
        let note = self.u32().filter(|len| *len as usize <= NOTE_BYTES_MAX)?;
        let note = str::from_utf8(self.slice(note)?).ok()?.to_owned();
        let head = ChunkHead { session, number, epoch, writer, nonce, previous, first_sequence, note };
        Some((head, count, content))
    }

    /// Takes the fields between the note and the records.
    fn captures(&mut self) -> Option<ChunkCaptures<'a>> {
        let count = self.u32().filter(|count| *count as usize <= PACKS_MAX)?;
        let packs = self.slice(count.checked_mul(PACK_NAME_LEN as u32)?)?;
        let len = self.u32().filter(|len| *len as usize <= INLINED_BYTES_MAX)?;
        Some(ChunkCaptures { packs, inlined: self.slice(len)? })
    }

    fn record(&mut self, sequence: SequenceNumber) -> Option<Record<'a>> {
        let kind = RecordKind::from_byte(self.take::<1>()?[0]).filter(|kind| !kind.is_envelope())?;
        let time_us = i64::from_le_bytes(self.take()?);
        let len = self.u32().filter(|len| *len as usize <= BODY_LEN_MAX)?;
        (TIME_US_MIN..=TIME_US_MAX).contains(&time_us).then_some(())?;
        Some(Record { sequence, kind, time_us, body: self.slice(len)? })
    }
}
