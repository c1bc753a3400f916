//! Compresses what is written to files, and knows by the bytes alone how to read it back.
//!
//! # Format
//!
//! Compressed data is one frame of the codec's own format, so that `zcat`, `zstdcat` and `lz4cat` read it too. Data below the
//! threshold stays as it is, and readable. The first byte tells which of the two it is:
//!
//! ```text
//! 1f 8b ..            one gzip member                      (CRC-32 and length at its end)
//! 28 b5 2f fd ..      one Zstandard frame                  (with checksum)
//! 04 22 4d 18 ..      one LZ4 frame                        (with length, and checksums of blocks and content)
//! `{`, `[`, `"`, `-`, 0 to 9, `t`, `f`, `n`   plain, if text follows
//! anything else       no data of ours
//! ```
//!
//! # Invariants
//!
//! 1. Plain data begins as a JSON value does, and is UTF-8 without control characters but tab, line feed and carriage return.
//!    Other data has no plain form: it is refused where it would be stored plain, because no algorithm is chosen or it is
//!    below the threshold. So plain data is never taken for compressed data, and a frame with one wrong byte in its magic
//!    number is never taken for plain data.
//! 2. Of a frame that was cut off, or in which a byte is wrong, [`StateCompression::decompress`] returns an error or the exact
//!    data (some bytes of a gzip header mean nothing), as the checksums tell. Of plain data only a digest kept elsewhere tells.
//! 3. Nothing follows a frame.
//! 4. Reading takes no more memory than the data has, and stops where the data gets longer than allowed.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::{Error, Result};

/// Algorithms that data is compressed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionAlgorithm {
    /// Data stays plain; data that has no plain form is refused.
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
    /// Lists all algorithms.
    pub const ALL: [CompressionAlgorithm; 4] = [
        CompressionAlgorithm::None,
        CompressionAlgorithm::Gzip,
        CompressionAlgorithm::Zstd,
        CompressionAlgorithm::Lz4,
    ];

    /// Returns the algorithm's name in output and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            CompressionAlgorithm::None => "none",
            CompressionAlgorithm::Gzip => "gzip",
            CompressionAlgorithm::Zstd => "zstd",
            CompressionAlgorithm::Lz4 => "lz4",
        }
    }

    /// Returns how stored data was compressed, by its first bytes; `None` if it is no data of ours.
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

/// Returns whether data may be stored as it is.
fn is_plain(data: &[u8]) -> bool {
    let is_text = |byte: &u8| *byte >= 0x20 || matches!(*byte, b'\t' | b'\n' | b'\r');
    matches!(data.first(), Some(b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'))
        && data.iter().all(is_text)
        && std::str::from_utf8(data).is_ok()
}

/// Says how data is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateCompression {
    /// Algorithm.
    pub algorithm: CompressionAlgorithm,
    /// How hard the algorithm tries; higher levels take longer. It is brought into the algorithm's range: gzip has 0 to 9,
    /// Zstandard 1 to 22, LZ4 none.
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
    /// [`Error::NotPlain`] if no algorithm is chosen or the data is below the threshold, and the data has no plain form.
    /// [`Error::Compress`] if the codec reports an error: it has no memory.
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

    /// Makes what stores `bytes` bytes of JSON text, which is plain, in `out` as [`compress`](StateCompression::compress) returns
    /// them.
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
    /// [`Error::Decompress`] if a frame is damaged or something follows it, [`Error::UnknownCodec`] if the bytes are neither
    /// a frame nor plain, [`Error::TooLong`] if the data has more than `bytes_max` bytes.
    pub fn decompress(stored: &[u8], bytes_max: u64) -> Result<Vec<u8>> {
        let algorithm = CompressionAlgorithm::detect(stored).ok_or(Error::UnknownCodec)?;
        let mut rest = stored;
        let mut data = Vec::new();
        // One byte more, to see whether there is one.
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

/// Stores data as it is written.
pub(super) enum CompressionEncoder<W: Write> {
    Plain(W),
    Gzip(flate2::write::GzEncoder<W>),
    Zstd(zstd::stream::Encoder<'static, W>),
    Lz4(Box<lz4_flex::frame::FrameEncoder<W>>),
}

impl<W: Write> CompressionEncoder<W> {
    /// Ends the frame, and returns where it was written to.
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
        match self {
            CompressionEncoder::Plain(out) => out.write(bytes),
            CompressionEncoder::Gzip(encoder) => encoder.write(bytes),
            CompressionEncoder::Zstd(encoder) => encoder.write(bytes),
            CompressionEncoder::Lz4(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            CompressionEncoder::Plain(out) => out.flush(),
            CompressionEncoder::Gzip(encoder) => encoder.flush(),
            CompressionEncoder::Zstd(encoder) => encoder.flush(),
            CompressionEncoder::Lz4(encoder) => encoder.flush(),
        }
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
    // The largest window that an encoder of any level asks for.
    decoder.window_log_max(27)?;
    decoder.take(limit).read_to_end(data)
}

/// Reads an LZ4 frame, whose decoder takes one that was cut off between two blocks for one that ends there.
fn read_lz4(rest: &mut &[u8], limit: u64, data: &mut Vec<u8>) -> io::Result<usize> {
    let len = lz4_content_len(rest).ok_or(io::ErrorKind::UnexpectedEof)?;
    let read = lz4_flex::frame::FrameDecoder::new(rest).take(limit).read_to_end(data)?;
    match read as u64 == len.min(limit) {
        true => Ok(read),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Returns the length of the data that an LZ4 frame's header says, which the header's checksum covers.
fn lz4_content_len(frame: &[u8]) -> Option<u64> {
    const FLAG_CONTENT_SIZE: u8 = 0x08;
    // Magic number, flags, block size, length.
    let [_, _, _, _, flags, _, len @ ..] = frame else { return None };
    let len = len.first_chunk::<8>().filter(|_| flags & FLAG_CONTENT_SIZE != 0)?;
    Some(u64::from_le_bytes(*len))
}
