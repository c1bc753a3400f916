//! The codecs of blocks. Without the feature `compression` there is none, and no file that needs
//! one is opened.

use super::Compression;

/// Level of zstd. At level 9, blocks of recorded conversations are a tenth shorter and take eight
/// times as long.
#[cfg(feature = "compression")]
const ZSTD_LEVEL: i32 = 3;

#[derive(Default)]
pub(super) struct Decoder {
    #[cfg(feature = "compression")]
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

#[derive(Default)]
pub(super) struct BlockEncoder {
    #[cfg(feature = "compression")]
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

#[cfg(feature = "compression")]
impl Decoder {
    /// Decompresses a block into `plain`, and writes nothing after it. Returns whether the block
    /// fills it.
    pub(super) fn decode(&mut self, compression: Compression, stored: &[u8], plain: &mut [u8]) -> bool {
        let wanted = plain.len();
        let filled = match compression {
            Compression::None => None,
            Compression::Lz4 => lz4_flex::block::decompress_into(stored, plain).ok(),
            Compression::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Decompressor::new().ok();
                }
                self.zstd.as_mut().and_then(|zstd| zstd.decompress_to_buffer(stored, plain).ok())
            }
        };
        filled == Some(wanted)
    }
}

#[cfg(feature = "compression")]
impl BlockEncoder {
    /// Compresses a block into `stored`, replacing its content. Returns whether the block got
    /// shorter; if not, the content of `stored` is useless.
    pub(super) fn encode(
        &mut self,
        compression: Compression,
        plain: &[u8],
        stored: &mut Vec<u8>,
    ) -> std::io::Result<bool> {
        stored.clear();
        match compression {
            Compression::None => return Ok(false),
            Compression::Lz4 => {
                stored.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                let len = lz4_flex::block::compress_into(plain, stored).map_err(std::io::Error::other)?;
                stored.truncate(len);
            }
            Compression::Zstd => {
                let zstd = match self.zstd.take() {
                    Some(zstd) => self.zstd.insert(zstd),
                    None => self.zstd.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
                };
                stored.resize(zstd::zstd_safe::compress_bound(plain.len()), 0);
                let len = zstd.compress_to_buffer(plain, stored.as_mut_slice())?;
                stored.truncate(len);
            }
        }
        Ok(stored.len() < plain.len())
    }
}

#[cfg(not(feature = "compression"))]
impl Decoder {
    pub(super) fn decode(&mut self, _: Compression, _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}

#[cfg(not(feature = "compression"))]
impl BlockEncoder {
    pub(super) fn encode(&mut self, _: Compression, _: &[u8], _: &mut Vec<u8>) -> std::io::Result<bool> {
        Ok(false)
    }
}
