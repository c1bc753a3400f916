//! Compressed segments: the format of such a file, and opening a segment's file in either form.
//!
//! A finished segment, which a later one names, may be stored compressed. Its file keeps its name.
//! Decompressed, it is the plain segment byte for byte: header, frames, seal, and the bytes after
//! them up to the last byte that is not 0. All offsets stay *plain offsets*, those in the plain
//! segment, so those in headers, images and indexes are valid for either form.
//!
//! The plain bytes are divided into *blocks* of 64 KiB, the last of which may be shorter. Each is
//! compressed separately.
//!
//! # Format
//!
//! Byte offset, length in bytes, and field; all integers are little-endian:
//!
//! ```text
//!   0   8  magic "FOLDZIP\n"
//!   8   2  version (1)
//!  10   1  codec: 1 zstd, 2 lz4
//!  11   1  binary logarithm of a block's length (16)
//!  12   4  CRC-32 of the head
//!  16   8  plain length in bytes
//!  24   4  CRC-32 of the block table
//!  28   4  CRC-32 of bytes 0..28
//!  32   h  head: the first h plain bytes, uncompressed; h is 256 or the plain length, if less
//! 32+h 8n  block table: for each of the n blocks, its length (4) and CRC-32 (4) in this file
//!  ...     the blocks, one after the other
//! ```
//!
//! A block with codec zstd is one zstd frame. With lz4 it is one block of the LZ4 block format,
//! without a preceding length. A block whose length in the file is its plain length is stored
//! uncompressed. There is no dictionary.
//!
//! # Invariants
//!
//! 1. The first 32 bytes have this layout in every version, so that a later version can be
//!    distinguished from damage by its valid checksum.
//! 2. n is the plain length divided by 64 KiB, rounded up. No block is longer in the file than its
//!    plain bytes, or empty, and the file ends at the end of the last block.
//! 3. No memory is allocated for mere claims of a file. A block table that does not fit into the
//!    file is not read. A block is decompressed into its 64 KiB or fewer, and must fill them.
//! 4. A decoder only sees bytes with a matching checksum.
//! 5. A compressed segment is never written to ([`is_compressed`]).
//!
//! # Effect of a damaged byte
//!
//! | damaged | lost |
//! |---|---|
//! | a byte of the first 32 | the segment, as if its header were invalid: the file is read unchanged, and is not a segment |
//! | the head | nothing: the first block contains the same bytes |
//! | the block table, or the file's length | all of the segment except its head, which contains its header: other segments are found by it |
//! | a block | its 64 KiB; the other blocks are read |
//!
//! Lost bytes are read as [`LOST`], which never begins a frame. A walk therefore meets damage there
//! as in a plain segment, and its error names the damaged bytes of the file ([`damage_at`]). If no
//! frame needs the damaged bytes of a head or a last block, only a check of seals finds the damage
//! ([`damage`]).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::frame::{HEADER_LEN as FRAME_HEADER_LEN, claimed_len};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::log::chain::corrupt;
use crate::storage::{Access, Storage, StorageFile};

mod codecs;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use reader::CompressedFile;
pub(crate) use writer::{MIN_PLAIN_BYTES, SegmentCompression};

const MAGIC: [u8; 8] = *b"FOLDZIP\n";
const VERSION: u16 = 1;

/// Length in bytes of the fields before the head.
const FIXED_LEN: usize = 32;

/// Length in bytes of the head, unless the segment is shorter.
const HEAD_LEN: usize = 256;

/// Number of plain bytes in a block.
const BLOCK_BYTES: usize = 64 << 10;

/// Binary logarithm of [`BLOCK_BYTES`], as stored in a file.
const BLOCK_LOG: u8 = 16;

/// Length in bytes of a block's entry in the block table.
const ENTRY_LEN: usize = 8;

/// Byte that replaces each lost byte. As the length of a frame it exceeds every limit.
const LOST: u8 = 0xff;

/// Names the compression of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    None,
    /// zstd, which compresses more.
    Zstd,
    /// LZ4, which is faster.
    Lz4,
}

impl Compression {
    /// Returns the codec's number in a file; `None` for a plain segment.
    fn number(self) -> Option<u8> {
        match self {
            Compression::None => None,
            Compression::Zstd => Some(1),
            Compression::Lz4 => Some(2),
        }
    }

    fn of_number(number: u8) -> Option<Compression> {
        [Compression::Zstd, Compression::Lz4].into_iter().find(|known| known.number() == Some(number))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
        }
    }

    /// Fails with [`Error::CompressionUnavailable`] if this build lacks the compression that a file
    /// at `path` has or is to have.
    pub(crate) fn check_available(self, path: &Path) -> Result<()> {
        match self.is_available() {
            true => Ok(()),
            false => Err(Error::CompressionUnavailable { path: path.to_owned(), codec: self.name() }),
        }
    }

    /// Returns whether this build of foldlog can read and write this compression.
    pub fn is_available(self) -> bool {
        self == Compression::None || cfg!(feature = "compression")
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first bytes of a compressed segment, with a matching checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CompressedPreamble {
    compression: Compression,
    head_crc: u32,
    plain_len: u64,
    table_crc: u32,
}

enum SegmentFormat {
    /// Not a compressed segment, or one whose first bytes are damaged.
    Other,
    Compressed(CompressedPreamble),
    /// A compressed segment of a later version, or with a codec of one: its version and its codec.
    Later(u16, u8),
}

impl CompressedPreamble {
    fn encode(self) -> [u8; FIXED_LEN] {
        let mut out = Vec::with_capacity(FIXED_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[self.compression.number().unwrap_or(0), BLOCK_LOG]);
        out.extend_from_slice(&self.head_crc.to_le_bytes());
        out.extend_from_slice(&self.plain_len.to_le_bytes());
        out.extend_from_slice(&self.table_crc.to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        let mut bytes = [0; FIXED_LEN];
        bytes.iter_mut().zip(out).for_each(|(slot, byte)| *slot = byte);
        bytes
    }

    fn decode(bytes: &[u8]) -> SegmentFormat {
        let fields = bytes.split_at_checked(FIXED_LEN - 4).filter(|(covered, rest)| {
            covered.starts_with(&MAGIC) && u32_at(rest, 0) == Some(crc32fast::hash(covered))
        });
        let Some((fields, _)) = fields else { return SegmentFormat::Other };
        let four = fields.get(8..).and_then(<[u8]>::first_chunk);
        let [low, high, codec, block_log] = four.copied().unwrap_or_default();
        let version = u16::from_le_bytes([low, high]);
        let plain_len = fields.get(16..).and_then(<[u8]>::first_chunk).map(|len| u64::from_le_bytes(*len));
        let crcs = u32_at(fields, 12).zip(u32_at(fields, 24));
        match Compression::of_number(codec).zip(plain_len).zip(crcs) {
            Some(((compression, plain_len), (head_crc, table_crc)))
                if version == VERSION && block_log == BLOCK_LOG =>
            {
                SegmentFormat::Compressed(CompressedPreamble { compression, head_crc, plain_len, table_crc })
            }
            _ => SegmentFormat::Later(version, codec),
        }
    }

    fn head_len(self) -> usize {
        usize::try_from(self.plain_len).map_or(HEAD_LEN, |len| len.min(HEAD_LEN))
    }

    fn blocks(self) -> u64 {
        self.plain_len.div_ceil(BLOCK_BYTES as u64)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

/// Opens the file of a segment for reading. Reads of a compressed one return its plain bytes, by
/// plain offsets.
///
/// # Errors
///
/// [`Error::NotAFile`], [`Error::Io`], whose source tells if there is no such file;
/// [`Error::CompressionUnavailable`], [`Error::FutureCompression`].
pub(crate) fn open(storage: &dyn Storage, path: &Path) -> Result<Arc<dyn StorageFile>> {
    plain(path, as_it_stands(storage, path)?)
}

/// Opens the file of a segment for reading in its stored form.
///
/// # Errors
///
/// [`Error::NotAFile`], [`Error::Io`], whose source tells if there is no such file.
pub(crate) fn as_it_stands(storage: &dyn Storage, path: &Path) -> Result<Arc<dyn StorageFile>> {
    storage.open(path, Access::Read).map_err(|error| Error::open_failed(storage, path, error))
}

/// Returns the plain segment of an open segment file at `path`.
///
/// # Errors
///
/// The errors of [`open`], except that the file exists.
pub(crate) fn plain(path: &Path, file: Arc<dyn StorageFile>) -> Result<Arc<dyn StorageFile>> {
    Ok(match in_form(path, file)? {
        SegmentHandle::Plain(file) => file,
        SegmentHandle::Compressed(file) => Arc::new(file),
    })
}

/// Returns the compression of a segment's file.
pub(crate) fn compression_of(storage: &dyn Storage, path: &Path) -> Result<Compression> {
    Ok(match opened(storage, path)? {
        SegmentHandle::Plain(_) => Compression::None,
        SegmentHandle::Compressed(file) => file.compression(),
    })
}

/// Returns whether the file of a segment is compressed, and must not be written to.
///
/// # Errors
///
/// [`Error::NotAFile`], [`Error::Io`].
pub(crate) fn is_compressed(storage: &dyn Storage, path: &Path) -> Result<bool> {
    match opened(storage, path) {
        Ok(SegmentHandle::Plain(_)) => Ok(false),
        Ok(SegmentHandle::Compressed(_))
        | Err(Error::CompressionUnavailable { .. } | Error::FutureCompression { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

enum SegmentHandle {
    Plain(Arc<dyn StorageFile>),
    Compressed(CompressedFile),
}

fn opened(storage: &dyn Storage, path: &Path) -> Result<SegmentHandle> {
    in_form(path, as_it_stands(storage, path)?)
}

fn in_form(path: &Path, file: Arc<dyn StorageFile>) -> Result<SegmentHandle> {
    let io = |error| Error::io("read", path, error);
    let mut bytes = [0; FIXED_LEN];
    let read = file.read_at(&mut bytes, 0).map_err(io)?;
    match CompressedPreamble::decode(bytes.get(..read).unwrap_or_default()) {
        SegmentFormat::Other => Ok(SegmentHandle::Plain(file)),
        SegmentFormat::Later(version, codec) => {
            Err(Error::FutureCompression { path: path.to_owned(), version, supported: VERSION, codec })
        }
        SegmentFormat::Compressed(fixed) => {
            fixed.compression.check_available(path)?;
            CompressedFile::new(file, fixed).map(SegmentHandle::Compressed).map_err(io)
        }
    }
}

/// Describes the damage of a compressed segment's file that affects the frame at a plain offset;
/// `None` if there is none, or the segment is not compressed.
pub(super) fn damage_at(storage: &dyn Storage, path: &Path, offset: u64) -> Option<String> {
    let Ok(SegmentHandle::Compressed(file)) = opened(storage, path) else {
        return begins_compressed(storage, path, offset);
    };
    let mut header = [0; FRAME_HEADER_LEN];
    let read = file.read_at(&mut header, offset).ok()?;
    let len = claimed_len(header.get(..read)?) as u64;
    file.damage(offset, offset.saturating_add(len))
}

/// Describes the damage of a file that is read in its stored form, although it begins like a
/// compressed segment.
fn begins_compressed(storage: &dyn Storage, path: &Path, offset: u64) -> Option<String> {
    let file = storage.open(path, Access::Read).ok().filter(|_| offset == 0)?;
    let mut magic = [0; MAGIC.len()];
    let read = file.read_at(&mut magic, 0).ok()?;
    (read == MAGIC.len() && magic == MAGIC)
        .then(|| format!("bytes 0..{FIXED_LEN} of the file, the start of a compressed segment, are damaged"))
}

/// Adds to an error's reason the damage of a compressed segment's file that affects the expected
/// frame or header.
pub(super) fn explained(storage: &dyn Storage, path: &Path, offset: u64, reason: String) -> String {
    match damage_at(storage, path, offset) {
        Some(damage) => format!("{reason}; {damage}"),
        None => reason,
    }
}

/// Checks the file of a compressed segment, except for the blocks that end before the plain offset
/// `from`. Returns the first damage; `None` if there is none, or the segment is not compressed.
pub(crate) fn damage(storage: &dyn Storage, path: &Path, from: u64) -> Result<Option<Error>> {
    let SegmentHandle::Compressed(file) = opened(storage, path)? else { return Ok(None) };
    let damage = file.damage_behind(from);
    Ok(damage.map(|(offset, reason)| corrupt(None, path, offset, SequenceNumber::MIN, reason)))
}
