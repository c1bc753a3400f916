//! A sliding window over a file. It reads frames in order without reading a whole file, and never
//! allocates more memory than the file's actual content.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::frame::{self, Context, Frame};
use foldlog_codec::{Error as CodecError, frame::HEADER_LEN};

use crate::error::{Error, Result};
use crate::storage::StorageFile;

const WINDOW_BYTES: u64 = 64 << 10;

const PIECE_BYTES: usize = 4096;

/// The content at a place of a file.
#[derive(Debug)]
pub(crate) enum Span<'a> {
    /// Zeros up to `end`, which were not read.
    Hole { end: u64 },
    /// Bytes that were read; empty at the end of the file.
    Bytes(&'a [u8]),
}

#[derive(Debug)]
pub(crate) struct Window<'p> {
    /// Named in errors.
    path: &'p Path,
    file: Arc<dyn StorageFile>,
    end: u64,
    base: u64,
    /// Memory for the bytes read; the first `filled` bytes are valid. Its size is retained: each
    /// growth would fill it with zeros first.
    buffer: Vec<u8>,
    filled: usize,
}

impl<'p> Window<'p> {
    /// Creates a window over the bytes below `end`, or below the file's length if that is less.
    pub(crate) fn new(path: &'p Path, file: Arc<dyn StorageFile>, end: Option<u64>) -> Result<Window<'p>> {
        let len = file.len().map_err(|error| Error::io("read", path, error))?;
        let end = end.map_or(len, |end| end.min(len));
        Ok(Window { path, file, end, base: 0, buffer: Vec::new(), filled: 0 })
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Discards the bytes read, so that they are read again.
    pub(crate) fn forget(&mut self) {
        self.filled = 0;
    }

    /// Returns at least `len` bytes from `offset` on; fewer if the file ends before.
    pub(crate) fn bytes(&mut self, offset: u64, len: u64) -> Result<&[u8]> {
        let wanted_end = offset.saturating_add(len).min(self.end);
        let have_end = self.base + self.filled as u64;
        if offset < self.base || wanted_end > have_end {
            // Reading ends at the end of a compressed segment's block, so that no block is
            // decompressed only for its start.
            let load_end = offset.saturating_add(len.max(1)).checked_next_multiple_of(WINDOW_BYTES);
            let load_end = load_end.unwrap_or(u64::MAX).min(self.end);
            let wanted = usize::try_from(load_end.saturating_sub(offset)).unwrap_or(0);
            if self.buffer.len() < wanted {
                self.buffer.resize(wanted, 0);
            }
            (self.base, self.filled) = (offset, 0);
            let read = self.file.read_at(self.buffer.get_mut(..wanted).unwrap_or_default(), offset);
            self.filled = read.map_err(|error| Error::io("read", self.path, error))?;
        }
        let skip = usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX);
        Ok(self.buffer.get(skip..self.filled).unwrap_or_default())
    }

    fn next_data(&self, offset: u64) -> Result<u64> {
        self.file.next_data(offset).map_err(|error| Error::io("read", self.path, error))
    }

    /// Returns the content from `offset` on, with `len` bytes wanted, as far as it is known at
    /// little cost: holes are not read.
    pub(crate) fn span(&mut self, offset: u64, len: u64) -> Result<Span<'_>> {
        let read = self.base..=self.base + self.filled as u64;
        let is_read = read.contains(&offset) && read.contains(&offset.saturating_add(len));
        if !is_read && offset < self.end {
            let data = self.next_data(offset)?.min(self.end);
            if data > offset {
                return Ok(Span::Hole { end: data });
            }
        }
        Ok(Span::Bytes(self.bytes(offset, len)?))
    }

    /// Returns the frame at `offset`. The outer error is the file's; the inner one is the reason
    /// why there is no valid frame.
    pub(crate) fn frame(
        &mut self,
        context: Context,
        offset: u64,
    ) -> Result<std::result::Result<Frame<'_>, CodecError>> {
        let len = frame::claimed_len(self.bytes(offset, HEADER_LEN as u64)?);
        Ok(frame::decode(context, self.bytes(offset, len as u64)?))
    }

    /// Returns the offset after the last byte, at or after `from`, that is not 0; `from` if all
    /// are 0.
    pub(crate) fn used_end(&mut self, from: u64) -> Result<u64> {
        let mut used = from;
        let mut offset = from;
        while offset < self.end {
            // A length is a mere claim: holes are not read, whatever length the file claims.
            offset = self.next_data(offset)?.max(offset);
            if offset >= self.end {
                break;
            }
            let bytes = self.bytes(offset, WINDOW_BYTES)?;
            if bytes.is_empty() {
                break;
            }
            for piece in bytes.chunks(PIECE_BYTES) {
                // The piece is tested as a whole, many times faster than byte by byte, and that is
                // mostly sufficient: the space that is allocated and not yet used may be as long as
                // a segment.
                if piece.iter().fold(0, |all, byte| all | byte) != 0 {
                    let last = piece.iter().rposition(|byte| *byte != 0).unwrap_or(0);
                    used = offset + last as u64 + 1;
                }
                offset += piece.len() as u64;
            }
        }
        Ok(used)
    }
}
