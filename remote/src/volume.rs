//! Encodes and decodes the bytes of a volume: the chunks of a whole range of numbers in one object.
//!
//! Without volumes, a reader of a long session would request each of its chunks. A *volume*
//! contains the complete bytes of the chunks with the numbers `first` to `first + count - 1`, one
//! after the other, including those that the chain ignores. Byte offset, length in bytes, and
//! field:
//!
//! ```text
//!   0  8  magic "FOLDVOL\n"; of a compacted volume "FOLDVOC\n"
//!   8  2  format version
//!  10  2  length of the head in bytes (40), which is the offset of the lengths
//!  12 16  session id
//!  28  8  number of the first chunk, also in the volume's key
//!  36  4  number of chunks, also in the volume's key
//!  40  …  length of each chunk in bytes (4 each)
//!   …  …  chunks
//! end-32 32  hash of the volume: BLAKE3 of all bytes before it
//! ```
//!
//! A *bare volume* contains the length 0 for each chunk, and no chunk: the chunks of its range are
//! longer in total than a volume may be, and remain separate objects. A collection puts it, a day
//! before a compacted one replaces them ([`compaction`](crate::compaction)). No chunk has the
//! length 0.
//!
//! A *compacted volume* contains compacted chunks ([`chunk`](crate::chunk)), of any number of whole
//! ranges of the smallest span. A [compaction](crate::compaction) names it.
//!
//! All integers are little-endian. A volume is never needed to decide about the contents of a log:
//! its chunks are taken by the rules of [`chain`](crate::chain), like separate ones.
//!
//! # Invariants
//!
//! 1. Decoding panics on no input, and allocates nothing: its result borrows from the bytes.
//! 2. Every wrong byte is detected, since the hash covers them all.
//! 3. The bytes are determined by the chunks alone, so every process builds the same volume.
//! 4. No volume is longer than [`VOLUME_BYTES_MAX`]. If chunks are longer in total, only a bare
//!    volume is created.

use std::ops::Range;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::fields::FieldReader;
use crate::numbered_objects::NumberedObjectFormat;

/// Newest format version of volumes, the only one so far.
pub const FORMAT_VERSION: u16 = 1;

/// Maximum length of a volume in bytes.
pub const VOLUME_BYTES_MAX: usize = 32 << 20;

/// Numbers of chunks in the volumes of a session: the small ones and the large ones. A volume
/// starts at a multiple of its own number.
pub const SPANS: [u64; 2] = [64, 4_096];

/// Minimum age of a volume before one of its chunks is removed. Readers and writers rely on it.
pub const MIN_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Validity of knowledge about a place's volumes, and about the names of its payloads: half of
/// [`MIN_AGE`].
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(MIN_AGE.as_secs() / 2);

/// Describes the form of a volume's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeForm {
    /// Chunks as they were put.
    Whole,
    /// Compacted chunks.
    Compacted,
}

impl VolumeForm {
    fn format(self) -> NumberedObjectFormat {
        NumberedObjectFormat {
            magic: match self {
                VolumeForm::Whole => *b"FOLDVOL\n",
                VolumeForm::Compacted => *b"FOLDVOC\n",
            },
            version: FORMAT_VERSION,
            head_len: HEAD_LEN,
            bytes_max: VOLUME_BYTES_MAX,
            what: "volume",
            begins_otherwise: "it does not start like a volume",
            other_number: OTHER_CHUNKS,
        }
    }
}

/// Error text for a volume of other chunks.
const OTHER_CHUNKS: &str = "it contains other chunks";

const HEAD_LEN: usize = 40;
const HASH_LEN: usize = 32;

/// Identifies the chunks of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Number of the first chunk.
    pub first: u64,
    /// Number of chunks.
    pub count: u64,
}

impl Extent {
    /// Returns the chunks of the volume of `span` chunks that contains the chunk with this number.
    pub fn around(number: u64, span: u64) -> Extent {
        let span = span.max(1);
        Extent { first: number - number % span, count: span }
    }

    /// Returns the number of the last chunk.
    pub fn last(self) -> u64 {
        self.first.saturating_add(self.count.saturating_sub(1))
    }

    /// Returns whether a chunk with this number is among them.
    pub fn holds(self, number: u64) -> bool {
        (self.first..=self.last()).contains(&number)
    }

    /// Returns an error about the volume of these chunks.
    pub(crate) fn error(self, reason: &'static str) -> Error {
        Error::Volume { first: self.first, last: self.last(), reason }
    }
}

/// Contains a volume that was decoded and verified. Its chunks are not verified yet: each has its
/// own hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume<'a> {
    /// Chunks in the volume.
    pub extent: Extent,
    /// Offset of the first chunk.
    chunks_at: usize,
    lengths: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Volume<'a> {
    /// Decodes and verifies the volume of these chunks of a session, in the given form.
    ///
    /// # Errors
    ///
    /// [`Error::Volume`] if the bytes do not have the hash at their end, are no volume, or are a
    /// different one.
    pub fn decode(form: VolumeForm, bytes: &'a [u8], session: Uuid, extent: Extent) -> Result<Volume<'a>> {
        let (first, count) = (extent.first, extent.count);
        let read = |fields: &mut FieldReader<'a>| Some((fields.u32()?, fields.bytes));
        let (found, rest) =
            form.format().decode(bytes, session, first, read).map_err(|reason| extent.error(reason))?;
        if u64::from(found) != count {
            return Err(extent.error(OTHER_CHUNKS));
        }
        let unfit = || extent.error("the lengths of its chunks do not match its bytes");
        let lengths = lengths_and_chunks(rest, found).ok_or_else(unfit)?;
        Ok(Volume { extent, chunks_at: HEAD_LEN + lengths.len(), lengths, bytes })
    }

    /// Returns whether it is a bare volume.
    pub fn is_bare(&self) -> bool {
        length_fields(self.lengths).all(|len| len == 0)
    }

    /// Returns the byte range of each chunk, in the order of their numbers.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = self.chunks_at;
        length_fields(self.lengths).map(move |len| {
            let begin = at;
            at = at.saturating_add(len);
            begin..at
        })
    }

    /// Returns the bytes of each chunk, in the order of their numbers.
    pub fn chunks(&self) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.places().map(move |place| bytes.get(place).unwrap_or_default())
    }
}

fn length_fields(lengths: &[u8]) -> impl Iterator<Item = usize> {
    lengths.as_chunks::<4>().0.iter().map(|field| u32::from_le_bytes(*field) as usize)
}

/// Returns the lengths at the start of `rest`, if the chunks after them have exactly these lengths.
fn lengths_and_chunks(rest: &[u8], count: u32) -> Option<&[u8]> {
    let (lengths, chunks) = rest.split_at_checked((count as usize).checked_mul(4)?)?;
    let sum = length_fields(lengths).try_fold(0_usize, usize::checked_add)?;
    (sum == chunks.len()).then_some(lengths)
}

/// Returns the length of a volume of `count` chunks with `bytes` bytes in total.
pub fn encoded_len(count: u64, bytes: u64) -> u64 {
    count.saturating_mul(4).saturating_add(bytes).saturating_add((HEAD_LEN + HASH_LEN) as u64)
}

/// Encodes the chunks of a volume.
///
/// ```
/// use foldlog_remote::volume::{Extent, Volume, VolumeEncoder, VolumeForm};
///
/// let session = uuid::Uuid::from_u128(7);
/// let extent = Extent { first: 64, count: 3 };
/// let chunks: [&[u8]; 3] = [b"one", b"", b"three"];
/// let lengths = chunks.iter().map(|chunk| chunk.len());
/// let mut encoder = VolumeEncoder::new(VolumeForm::Whole, session, extent, lengths)?;
/// chunks.iter().for_each(|chunk| encoder.push(chunk));
/// let bytes = encoder.finish()?;
///
/// let volume = Volume::decode(VolumeForm::Whole, &bytes, session, extent)?;
/// assert_eq!(volume.chunks().collect::<Vec<_>>(), chunks);
/// # Ok::<(), foldlog_remote::Error>(())
/// ```
#[derive(Debug)]
pub struct VolumeEncoder {
    extent: Extent,
    /// Number of outstanding bytes.
    left: usize,
    hasher: blake3::Hasher,
    bytes: Vec<u8>,
}

impl VolumeEncoder {
    /// Starts a volume of chunks in the given form with these lengths in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the volume would be longer than [`VOLUME_BYTES_MAX`], and
    /// [`Error::Volume`] if the number of lengths differs from that of chunks.
    pub fn new(
        form: VolumeForm,
        session: Uuid,
        extent: Extent,
        lengths: impl IntoIterator<Item = usize>,
    ) -> Result<VolumeEncoder> {
        let mut bytes = form.format().begin(session, extent.first);
        bytes.extend_from_slice(&(extent.count as u32).to_le_bytes());
        let (mut left, mut count) = (0_usize, 0_u64);
        for len in lengths {
            left = left.saturating_add(len);
            count += 1;
            let whole = encoded_len(count, left as u64);
            if whole > VOLUME_BYTES_MAX as u64 {
                return Err(Error::TooLarge { what: "volume", len: whole, max: VOLUME_BYTES_MAX as u64 });
            }
            bytes.extend_from_slice(&(len as u32).to_le_bytes());
        }
        if count != extent.count {
            return Err(extent.error("the number of its chunks is not the announced one"));
        }
        bytes.reserve(left + HASH_LEN);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        Ok(VolumeEncoder { extent, left, hasher, bytes })
    }

    /// Returns the bytes of a bare volume.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if there are too many chunks.
    pub fn bare(session: Uuid, extent: Extent) -> Result<Vec<u8>> {
        let count = usize::try_from(extent.count).unwrap_or(usize::MAX);
        VolumeEncoder::new(VolumeForm::Whole, session, extent, std::iter::repeat_n(0, count))?.finish()
    }

    /// Adds the next bytes of the chunks.
    pub fn push(&mut self, bytes: &[u8]) {
        self.left = self.left.wrapping_sub(bytes.len());
        self.hasher.update(bytes);
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the bytes of the volume.
    ///
    /// # Errors
    ///
    /// [`Error::Volume`] if the chunks do not have the announced lengths.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        if self.left != 0 {
            return Err(self.extent.error("its chunks do not have the announced lengths"));
        }
        self.bytes.extend_from_slice(self.hasher.finalize().as_bytes());
        Ok(self.bytes)
    }
}
