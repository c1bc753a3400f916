//! Compresses objects, and stores incompressible ones without compression.

use std::io::{self, Write};

use adler2::Adler32;
use flate2::{Compress, Compression, FlushCompress, Status};
use parking_lot::Mutex;

/// Lower levels save little time, and take a third more space.
pub(super) const COMPRESSION: Compression = Compression::new(1);

/// Number of bytes at the start of a content that decide whether it is compressed.
pub(super) const SAMPLE_BYTES: usize = 4096;

/// Shorter contents are compressed in any case, since few bytes say little about the rest.
const SAMPLE_BYTES_MIN: usize = 256;

/// Header of a zlib stream that was compressed at the fastest level.
const ZLIB_HEADER: [u8; 2] = [0x78, 0x01];

/// Greatest length of a block that is stored as it is.
const BLOCK_BYTES_MAX: usize = 0xffff;

/// Idle compressors. Creating one costs more than compressing a small object.
#[derive(Default)]
pub(super) struct Compressors(Mutex<Vec<Compress>>);

impl Compressors {
    /// Appends the zlib stream of a content, in two parts, to `into`.
    pub(super) fn compress(&self, parts: [&[u8]; 2], into: &mut Vec<u8>) -> io::Result<()> {
        if !gains(parts[1]) {
            store(parts, into);
            return Ok(());
        }
        let begin = into.len();
        self.deflate(parts, into)?;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if into.len() - begin > len + stored_overhead(len) {
            into.truncate(begin);
            store(parts, into);
        }
        Ok(())
    }

    fn deflate(&self, parts: [&[u8]; 2], into: &mut Vec<u8>) -> io::Result<()> {
        let resting = self.0.lock().pop();
        let mut compress = resting.unwrap_or_else(|| Compress::new(COMPRESSION, true));
        into.reserve(parts[1].len() / 2 + 64);
        for (part, flush) in parts.into_iter().zip([FlushCompress::None, FlushCompress::Finish]) {
            let begin = compress.total_in();
            loop {
                let taken = usize::try_from(compress.total_in() - begin).unwrap_or(usize::MAX);
                let rest = part.get(taken..).unwrap_or_default();
                let is_finish = matches!(flush, FlushCompress::Finish);
                if rest.is_empty() && !is_finish {
                    break;
                }
                if into.len() == into.capacity() {
                    into.reserve(into.len());
                }
                let status = compress.compress_vec(rest, into, flush).map_err(io::Error::other)?;
                if status == Status::StreamEnd {
                    break;
                }
            }
        }
        compress.reset();
        self.0.lock().push(compress);
        Ok(())
    }
}

/// Returns whether compressing a content saves a part of it, according to its first bytes. Bytes of
/// compressed or encrypted data are nearly equally frequent: two of them are the same in one of 256
/// cases. If they are in one of 197 cases or more often, a compressor finds something to save.
pub(super) fn gains(content: &[u8]) -> bool {
    let sample = content.get(..SAMPLE_BYTES).unwrap_or(content);
    if sample.len() < SAMPLE_BYTES_MIN {
        return true;
    }
    let mut counts = [0_u64; 256];
    for byte in sample {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    }
    let pairs: u64 = counts.iter().map(|count| count * count.saturating_sub(1)).sum();
    let len = u64::try_from(sample.len()).unwrap_or(u64::MAX);
    pairs * 256 * 10 > len * (len - 1) * 13
}

fn stored_overhead(len: usize) -> usize {
    ZLIB_HEADER.len() + 5 * len.div_ceil(BLOCK_BYTES_MAX).max(1) + 4
}

/// Appends a zlib stream that contains a content as it is. A compressor at level 0 writes
/// the same bytes, ten times slower for a small content.
fn store(parts: [&[u8]; 2], into: &mut Vec<u8>) {
    let mut sum = Adler32::new();
    let mut left: usize = parts.iter().map(|part| part.len()).sum();
    into.reserve(left + stored_overhead(left));
    into.extend_from_slice(&ZLIB_HEADER);
    let mut room = 0;
    let begin_block = |left: usize, into: &mut Vec<u8>| {
        let len = left.min(BLOCK_BYTES_MAX);
        let said = u16::try_from(len).unwrap_or(u16::MAX);
        into.push(u8::from(len == left));
        into.extend_from_slice(&said.to_le_bytes());
        into.extend_from_slice(&(!said).to_le_bytes());
        len
    };
    if left == 0 {
        begin_block(0, into);
    }
    for mut part in parts {
        sum.write_slice(part);
        while !part.is_empty() {
            if room == 0 {
                room = begin_block(left, into);
            }
            let (bytes, rest) = part.split_at(part.len().min(room));
            into.extend_from_slice(bytes);
            (room, left, part) = (room - bytes.len(), left - bytes.len(), rest);
        }
    }
    into.extend_from_slice(&sum.checksum().to_be_bytes());
}

/// Writes the zlib stream of a content of unknown length.
pub(super) fn encoder<W: Write>(into: W, sample: &[u8]) -> flate2::write::ZlibEncoder<W> {
    flate2::write::ZlibEncoder::new(into, if gains(sample) { COMPRESSION } else { Compression::none() })
}

#[cfg(test)]
#[path = "../../tests/noise/mod.rs"]
mod noise;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::noise::noise;
    use super::*;

    #[test]
    fn every_stream_is_read_back_and_none_is_longer_than_a_stored_one() {
        let compressors = Compressors::default();
        let lengths = [0, 1, 255, 256, 4096, 65_528, 65_535, 65_536, 131_070, 200_000];
        for bytes in lengths.iter().flat_map(|len| [noise(*len, 0), b"line\n".repeat(len / 5), vec![0; *len]])
        {
            for head in [&b""[..], b"blob 12345\0"] {
                let mut stream = b"before".to_vec();
                compressors.compress([head, &bytes], &mut stream).unwrap();
                let stream = stream.strip_prefix(b"before").unwrap();
                let (whole, mut read) = ([head, &bytes].concat(), Vec::new());
                flate2::read::ZlibDecoder::new(stream).read_to_end(&mut read).unwrap();
                assert!(read == whole, "{} bytes", whole.len());
                assert!(stream.len() <= whole.len() + stored_overhead(whole.len()));
            }
        }
    }

    #[test]
    fn only_contents_that_become_smaller_are_compressed() {
        assert!(gains(&b"fn main() { println!(\"one of many lines\"); }\n".repeat(9)));
        assert!(gains(&vec![7; 300]) && gains(b"short"));
        let mut packed = Vec::new();
        Compressors::default().deflate([b"", &noise(100_000, 0)], &mut packed).unwrap();
        assert!(!gains(&noise(4096, 0)) && !gains(&noise(300, 0)) && !gains(&packed));
    }
}
