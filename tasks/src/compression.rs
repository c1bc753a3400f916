//! Compresses data for files, and detects the stored form from the bytes alone.
//!
//! # Format
//!
//! Compressed data is one frame in the codec's own format, so `zcat`, `zstdcat` and `lz4cat` can
//! read it too. Data below the threshold is stored plain, and remains readable. The first byte
//! distinguishes the forms:
//!
//! ```text
//! 1f 8b ..            one gzip member      (CRC-32 and length at its end)
//! 28 b5 2f fd ..      one Zstandard frame  (with checksum)
//! 04 22 4d 18 ..      one LZ4 frame        (with length, and checksums of blocks and content)
//! `{`, `[`, `"`, `-`, 0 to 9, `t`, `f`, `n`   plain, if text follows
//! anything else       not in this format
//! ```
//!
//! # Invariants
//!
//! 1. Plain data starts like a JSON value, and is UTF-8 without control characters except tab, line
//!    feed and carriage return. Other data has no plain form. It is refused if it would be stored
//!    plain, because no algorithm is chosen or it is below the threshold. So plain data is never
//!    mistaken for compressed data, and a frame with one wrong byte in its magic number is never
//!    mistaken for plain data.
//! 2. For a truncated frame, or one with a wrong byte, [`StateCompression::decompress`] returns an
//!    error or the exact data, since checksums cover it. (Some bytes of a gzip header have no
//!    meaning.) Damage of plain data is detected only by a digest that is stored elsewhere.
//! 3. Nothing follows a frame.
//! 4. Reading takes no more memory than the data, and stops once the data is longer than allowed.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::{Error, Result};

/// Lists the algorithms that compress data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionAlgorithm {
    /// Data is stored plain; data without a plain form is refused.
    #[default]
    None,
    /// DEFLATE within gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// LZ4.
    Lz4,
}

impl CompressionAlgorithm {
    /// All algorithms.
    pub const ALL: [CompressionAlgorithm; 4] = [
        CompressionAlgorithm::None,
        CompressionAlgorithm::Gzip,
        CompressionAlgorithm::Zstd,
        CompressionAlgorithm::Lz4,
    ];

    /// Detects how stored data was compressed, from its first bytes. Returns `None` if the format
    /// is unknown.
    pub fn detect(stored: &[u8]) -> Option<CompressionAlgorithm> {
        match stored {
            [0x1f, 0x8b, ..] => Some(CompressionAlgorithm::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(CompressionAlgorithm::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(CompressionAlgorithm::Lz4),
            plain if is_plain(plain) => Some(CompressionAlgorithm::None),
            _ => None,
        }
    }
}

display_json_names!(CompressionAlgorithm);

fn is_plain(data: &[u8]) -> bool {
    let is_text = |byte: &u8| *byte >= 0x20 || matches!(*byte, b'\t' | b'\n' | b'\r');
    matches!(data.first(), Some(b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'))
        && data.iter().all(is_text)
        && std::str::from_utf8(data).is_ok()
}

/// Configures how data is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateCompression {
    /// Algorithm.
    pub algorithm: CompressionAlgorithm,
    /// Compression level; higher levels take longer. It is clamped to the algorithm's range: 0 to 9
    /// for gzip, 1 to 22 for Zstandard, none for LZ4.
    pub level: u32,
    /// Data with fewer bytes is not compressed.
    pub threshold_bytes: u64,
}

impl Default for StateCompression {
    /// Compresses nothing.
    fn default() -> StateCompression {
        StateCompression::new(CompressionAlgorithm::None)
    }
}

impl StateCompression {
    /// Compresses data of 4 KiB and more at the algorithm's usual level.
    pub fn new(algorithm: CompressionAlgorithm) -> StateCompression {
        let level = match algorithm {
            CompressionAlgorithm::Gzip => 6,
            CompressionAlgorithm::Zstd => 3,
            CompressionAlgorithm::None | CompressionAlgorithm::Lz4 => 0,
        };
        StateCompression { algorithm, level, threshold_bytes: 4096 }
    }

    /// Returns data in its stored form.
    ///
    /// # Errors
    ///
    /// [`Error::NotPlain`] if no algorithm is chosen or the data is below the threshold, and the
    /// data has no plain form. [`Error::Compress`] if the codec reports an error, which means that
    /// it has no memory.
    pub fn compress(&self, data: &[u8]) -> Result<Vec<u8>> {
        let algorithm = self.algorithm;
        if algorithm == CompressionAlgorithm::None || (data.len() as u64) < self.threshold_bytes {
            return if is_plain(data) { Ok(data.to_vec()) } else { Err(Error::NotPlain) };
        }
        let compressed = || {
            let mut encoder = self.encoder_of(algorithm, data.len() as u64, Vec::new())?;
            encoder.write_all(data)?;
            encoder.finish()
        };
        compressed().map_err(|source| Error::Compress { algorithm, source })
    }

    /// Returns an encoder that stores JSON text (which is plain) of `bytes` bytes in `out`, in the
    /// form that [`compress`](StateCompression::compress) returns.
    pub(super) fn encoder<W: Write>(&self, bytes: u64, out: W) -> io::Result<CompressionEncoder<W>> {
        match bytes < self.threshold_bytes {
            true => Ok(CompressionEncoder::Plain(out)),
            false => self.encoder_of(self.algorithm, bytes, out),
        }
    }

    fn encoder_of<W: Write>(
        &self,
        algorithm: CompressionAlgorithm,
        bytes: u64,
        out: W,
    ) -> io::Result<CompressionEncoder<W>> {
        Ok(match algorithm {
            CompressionAlgorithm::None => CompressionEncoder::Plain(out),
            CompressionAlgorithm::Gzip => {
                let level = flate2::Compression::new(self.level.min(9));
                CompressionEncoder::Gzip(flate2::write::GzEncoder::new(out, level))
            }
            CompressionAlgorithm::Zstd => {
                let level = i32::try_from(self.level.clamp(1, 22)).unwrap_or(22);
                let mut encoder = zstd::stream::Encoder::new(out, level)?;
                encoder.include_checksum(true)?;
                CompressionEncoder::Zstd(encoder)
            }
            CompressionAlgorithm::Lz4 => CompressionEncoder::Lz4(Box::new(lz4(bytes, out))),
        })
    }

    /// Returns the data that was stored in any of the forms.
    ///
    /// # Errors
    ///
    /// [`Error::Decompress`] if a frame is damaged or bytes follow it, [`Error::UnknownCodec`] if
    /// the bytes are neither a frame nor plain, [`Error::TooLong`] if the data has more than
    /// `bytes_max` bytes.
    pub fn decompress(stored: &[u8], bytes_max: u64) -> Result<Vec<u8>> {
        let algorithm = CompressionAlgorithm::detect(stored).ok_or(Error::UnknownCodec)?;
        let mut rest = stored;
        let mut data = Vec::new();
        // One byte more, to detect data that is too long.
        let limit = bytes_max.saturating_add(1);
        let read = match algorithm {
            CompressionAlgorithm::None if stored.len() as u64 > bytes_max => {
                return Err(Error::TooLong { bytes_max });
            }
            CompressionAlgorithm::None => return Ok(stored.to_vec()),
            CompressionAlgorithm::Gzip => {
                flate2::bufread::GzDecoder::new(&mut rest).take(limit).read_to_end(&mut data)
            }
            CompressionAlgorithm::Zstd => read_zstd(&mut rest, limit, &mut data),
            CompressionAlgorithm::Lz4 => read_lz4(&mut rest, limit, &mut data),
        };
        let damaged = |reason: String| Error::Decompress { algorithm, reason };
        read.map_err(|error| damaged(error.to_string()))?;
        if data.len() as u64 > bytes_max {
            return Err(Error::TooLong { bytes_max });
        }
        match rest.len() {
            0 => Ok(data),
            more => Err(damaged(format!("{more} bytes follow the frame"))),
        }
    }
}

pub(super) enum CompressionEncoder<W: Write> {
    Plain(W),
    Gzip(flate2::write::GzEncoder<W>),
    Zstd(zstd::stream::Encoder<'static, W>),
    Lz4(Box<lz4_flex::frame::FrameEncoder<W>>),
}

impl<W: Write> CompressionEncoder<W> {
    fn inner(&mut self) -> &mut dyn Write {
        match self {
            CompressionEncoder::Plain(out) => out,
            CompressionEncoder::Gzip(encoder) => encoder,
            CompressionEncoder::Zstd(encoder) => encoder,
            CompressionEncoder::Lz4(encoder) => encoder,
        }
    }

    /// Ends the frame, and returns the inner writer.
    pub(super) fn finish(self) -> io::Result<W> {
        match self {
            CompressionEncoder::Plain(out) => Ok(out),
            CompressionEncoder::Gzip(encoder) => encoder.finish(),
            CompressionEncoder::Zstd(encoder) => encoder.finish(),
            CompressionEncoder::Lz4(encoder) => encoder.finish().map_err(io::Error::other),
        }
    }
}

impl<W: Write> Write for CompressionEncoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner().flush()
    }
}

fn lz4<W: Write>(bytes: u64, out: W) -> lz4_flex::frame::FrameEncoder<W> {
    let frame = lz4_flex::frame::FrameInfo::new()
        .block_checksums(true)
        .content_checksum(true)
        .content_size(Some(bytes));
    lz4_flex::frame::FrameEncoder::with_frame_info(frame, out)
}

fn read_zstd(rest: &mut &[u8], limit: u64, data: &mut Vec<u8>) -> io::Result<usize> {
    let mut decoder = zstd::stream::Decoder::with_buffer(rest)?.single_frame();
    // The largest window that an encoder requests at any level.
    decoder.window_log_max(27)?;
    decoder.take(limit).read_to_end(data)
}

/// Reads an LZ4 frame. Its decoder does not detect a frame that was truncated between two blocks,
/// so the content length is checked.
fn read_lz4(rest: &mut &[u8], limit: u64, data: &mut Vec<u8>) -> io::Result<usize> {
    let len = lz4_content_len(rest).ok_or(io::ErrorKind::UnexpectedEof)?;
    let read = lz4_flex::frame::FrameDecoder::new(rest).take(limit).read_to_end(data)?;
    match read as u64 == len.min(limit) {
        true => Ok(read),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Returns the content length in an LZ4 frame's header, which the header's checksum covers.
fn lz4_content_len(frame: &[u8]) -> Option<u64> {
    const FLAG_CONTENT_SIZE: u8 = 0x08;
    // Magic number, flags, block size, length.
    let [_, _, _, _, flags, _, len @ ..] = frame else { return None };
    let len = len.first_chunk::<8>().filter(|_| flags & FLAG_CONTENT_SIZE != 0)?;
    Some(u64::from_le_bytes(*len))
}
