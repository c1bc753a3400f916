//! Converting a finished segment to another form, compressed or plain, in place.
//!
//! # State after a kill or a power cut
//!
//! | step | state |
//! |---|---|
//! | the new file is written under a temporary name, synced, read again and compared with the old one, byte for byte | the segment is unchanged; there is a file `*.seg.new`, which a scan ignores and the next compaction or recovery removes |
//! | it takes the name of the segment, and the directory is synced | the old file or the new one, with the same plain bytes |

use std::path::Path;
use std::sync::Arc;

use super::codecs::BlockEncoder;
use super::{
    BLOCK_BYTES, CompressedPreamble, Compression, ENTRY_LEN, FIXED_LEN, HEAD_LEN, compression_of, damage,
    open,
};
use crate::error::{Error, Result};
use crate::log::chain::Segment;
use crate::log::copy::{each_piece, same};
use crate::log::layout;
use crate::log::segment_replacement::replace;
use crate::log::window::Window;
use crate::storage::{Storage, StorageFile};

/// Default number of plain bytes below which a segment stays plain.
pub(crate) const MIN_PLAIN_BYTES: u64 = BLOCK_BYTES as u64;

/// Number of bytes that are buffered before they are written.
const GATHERED_BYTES: usize = 256 << 10;

pub(crate) struct SegmentCompression<'a> {
    pub(crate) storage: &'a dyn Storage,
    pub(crate) dir: &'a Path,
    /// The segment; its successor names its end.
    pub(crate) segment: &'a Segment,
    pub(crate) compression: Compression,
    /// Number of plain bytes below which a segment stays plain.
    pub(crate) bytes_min: u64,
    /// Whether to compute only the new length of the file.
    pub(crate) dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressionOutcome {
    /// Length in bytes before; of a plain segment, up to its last byte that is not 0.
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) written: bool,
}

impl SegmentCompression<'_> {
    /// Rewrites the segment's file. Does nothing if the file has the requested form, if compression
    /// would save less than a tenth, or if the file has another name: then a fork shares the file,
    /// and no space would be saved. Afterwards the bytes and the name are durable.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the old file is compressed and damaged, [`Error::Full`] if the disk
    /// has no room, [`Error::Io`], [`Error::CompressionUnavailable`]. After an error the old file
    /// is unchanged.
    pub(crate) fn run(&self) -> Result<CompressionOutcome> {
        let ordinal = self.segment.header.ordinal;
        let path = layout::segment_file(self.dir, ordinal);
        self.compression.check_available(&path)?;
        let io = |error| Error::io("read", &path, error);
        let (now, old) = (compression_of(self.storage, &path)?, open(self.storage, &path)?);
        let plain_len = match now {
            Compression::None => {
                let used = Window::new(&path, Arc::clone(&old), None)?.used_end(0)?;
                // The last bytes of a frame may be 0.
                used.max(self.segment.used_bytes(self.storage)?)
            }
            _ => old.len().map_err(io)?,
        };
        let before = match now {
            Compression::None => plain_len,
            _ => self.storage.look_up(&path)?.map_or(0, |entry| entry.len),
        };
        let stays = CompressionOutcome { before, after: before, written: false };
        let wanted = self.compression != now
            && (self.compression == Compression::None
                || (plain_len >= self.bytes_min && self.storage.links(&path).map_err(io)? <= 1));
        if !wanted {
            return Ok(stays);
        }
        if let Some(damage) = damage(self.storage, &path, 0)? {
            return Err(damage);
        }
        let plain = Plain { file: old.as_ref(), path: &path, len: plain_len };
        if self.dry_run {
            let after = self.encode(&plain, &mut |_, _| Ok(()))?;
            return Ok(after.map_or(stays, |after| CompressionOutcome { before, after, written: true }));
        }
        let written = replace(self.storage, self.dir, ordinal, |building| self.write(&plain, building))?;
        Ok(written.map_or(stays, |after| CompressionOutcome { before, after, written: true }))
    }

    /// Writes the file under its temporary name, and compares it with the old one. Returns its
    /// length; `None` if it saves too little.
    fn write(&self, plain: &Plain<'_>, building: &Path) -> Result<Option<u64>> {
        let unmade = |op, error| Error::unmade(op, building, plain.len, error);
        let file = self.storage.create(building, 0).map_err(|error| unmade("create", error))?;
        let mut gathered = WriteBuffer { file: file.as_ref(), bytes: Vec::new(), offset: 0 };
        let made = self.encode(plain, &mut |bytes, at| {
            gathered.take(bytes, at).map_err(|error| unmade("write", error))
        })?;
        let Some(len) = made else { return Ok(None) };
        gathered.write().map_err(|error| unmade("write", error))?;
        file.sync_data().map_err(|error| unmade("sync", error))?;
        let new = open(self.storage, building)?;
        let new = Plain { file: new.as_ref(), path: building, len: plain.len };
        let is_whole = self.storage.look_up(building)?.is_some_and(|entry| entry.len == len);
        match is_whole
            && new.file.len().map_err(|error| Error::io("read", building, error))? == plain.len
            && new.is(plain)?
        {
            true => Ok(Some(len)),
            false => Err(Error::io(
                "compare",
                building,
                std::io::Error::other("it does not contain the bytes of the segment"),
            )),
        }
    }

    /// Passes the bytes of the new file to `put`, each piece with its offset. Returns the file's
    /// length; `None` if it saves too little.
    fn encode(&self, plain: &Plain<'_>, put: &mut ByteSink<'_>) -> Result<Option<u64>> {
        if self.compression == Compression::None {
            plain.each_block(&mut |offset, bytes| put(bytes, offset))?;
            return Ok(Some(plain.len));
        }
        let longest = plain.len - plain.len / 10;
        let fixed = CompressedPreamble {
            compression: self.compression,
            head_crc: 0,
            plain_len: plain.len,
            table_crc: 0,
        };
        let (mut head, mut table) = (Vec::new(), Vec::new());
        let table_len = usize::try_from(fixed.blocks()).unwrap_or(usize::MAX).saturating_mul(ENTRY_LEN);
        let mut at = (FIXED_LEN + fixed.head_len()).saturating_add(table_len) as u64;
        // The bytes before the blocks are known last.
        let zeros = [0; BLOCK_BYTES];
        let mut offset = 0;
        while offset < at {
            let wanted = usize::try_from(at - offset).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
            put(zeros.get(..wanted).unwrap_or_default(), offset)?;
            offset += wanted as u64;
        }
        let (mut encoder, mut stored) = (BlockEncoder::default(), Vec::new());
        plain.each_block(&mut |_, bytes| {
            if head.is_empty() {
                head.extend_from_slice(bytes.get(..HEAD_LEN).unwrap_or(bytes));
            }
            if at > longest {
                return Ok(());
            }
            let shorter = encoder.encode(self.compression, bytes, &mut stored);
            let shorter = shorter.map_err(|error| Error::io("compress", plain.path, error))?;
            let bytes = if shorter { stored.as_slice() } else { bytes };
            table.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            table.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
            put(bytes, at)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
        if at > longest {
            return Ok(None);
        }
        let (head_crc, table_crc) = (crc32fast::hash(&head), crc32fast::hash(&table));
        let mut first = CompressedPreamble { head_crc, table_crc, ..fixed }.encode().to_vec();
        first.append(&mut head);
        first.append(&mut table);
        put(&first, 0)?;
        Ok(Some(at))
    }
}

/// Takes bytes of a file that is written, and their offset.
type ByteSink<'a> = dyn FnMut(&[u8], u64) -> Result<()> + 'a;

struct Plain<'a> {
    file: &'a dyn StorageFile,
    path: &'a Path,
    len: u64,
}

impl Plain<'_> {
    fn each_block(&self, visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let read = each_piece(self.file, self.path, 0..self.len, BLOCK_BYTES, visit)?;
        match read == self.len {
            true => Ok(()),
            false => Err(Error::io("read", self.path, std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn is(&self, other: &Plain<'_>) -> Result<bool> {
        Ok(self.len == other.len && same(self.file, self.path, other.file, other.path, self.len)?)
    }
}

/// Buffers consecutive bytes, and writes many of them at a time.
struct WriteBuffer<'a> {
    file: &'a dyn StorageFile,
    bytes: Vec<u8>,
    offset: u64,
}

impl WriteBuffer<'_> {
    fn take(&mut self, bytes: &[u8], at: u64) -> std::io::Result<()> {
        if at != self.offset + self.bytes.len() as u64 {
            self.write()?;
            self.offset = at;
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= GATHERED_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> std::io::Result<()> {
        if !self.bytes.is_empty() {
            self.file.write_at(&self.bytes, self.offset)?;
            self.offset += self.bytes.len() as u64;
            self.bytes.clear();
        }
        Ok(())
    }
}
