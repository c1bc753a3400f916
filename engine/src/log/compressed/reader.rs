//! Reading a compressed segment by plain offsets.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::codecs::Decoder;
use super::{BLOCK_BYTES, CompressedPreamble, Compression, ENTRY_LEN, FIXED_LEN, LOST, u32_at};
use crate::storage::StorageFile;

/// Number of decompressed blocks that an open file keeps. Sequential reading needs one, and the
/// preceding one for a read that crosses from it.
const HELD_MAX: usize = 2;

const TABLE_PIECE: usize = 4096;

/// Reads a compressed segment as if it were plain. Cannot be written.
pub(super) struct CompressedFile {
    file: Arc<dyn StorageFile>,
    fixed: CompressedPreamble,
    /// The head; `None` if it is damaged.
    head: Option<Vec<u8>>,
    table: Table,
    held: Mutex<BlockCache>,
}

enum Table {
    /// Each block, and the end of the last one.
    Sound(Vec<BlockExtent>, u64),
    /// Range of the file that should contain the table, which is damaged.
    Damaged(Range<u64>),
}

#[derive(Clone, Copy)]
struct BlockExtent {
    at: u64,
    len: u32,
    crc: u32,
}

impl BlockExtent {
    fn end(self) -> u64 {
        self.at.saturating_add(u64::from(self.len))
    }
}

#[derive(Default)]
struct BlockCache {
    /// Numbers and bytes of blocks, the most recent one last.
    blocks: Vec<(u64, Vec<u8>)>,
    stored: Vec<u8>,
    decoder: Decoder,
}

impl CompressedFile {
    pub(super) fn new(file: Arc<dyn StorageFile>, fixed: CompressedPreamble) -> io::Result<CompressedFile> {
        let mut head = vec![0; fixed.head_len()];
        let read = file.read_at(&mut head, FIXED_LEN as u64)?;
        let head = Some(head).filter(|head| read == head.len() && crc32fast::hash(head) == fixed.head_crc);
        let table = Table::read(file.as_ref(), fixed)?;
        Ok(CompressedFile { file, fixed, head, table, held: Mutex::default() })
    }

    pub(super) fn compression(&self) -> Compression {
        self.fixed.compression
    }

    fn plain_len(&self) -> u64 {
        match &self.table {
            Table::Sound(..) => self.fixed.plain_len,
            // Without a valid table the length is a mere claim. The file's length bounds the
            // possible number of blocks.
            Table::Damaged(table) => {
                let entries = table.end.saturating_sub(table.start) / ENTRY_LEN as u64;
                let bytes = entries.saturating_mul(BLOCK_BYTES as u64).min(self.fixed.plain_len);
                bytes.max(self.fixed.head_len() as u64)
            }
        }
    }

    fn block_len(&self, number: u64) -> usize {
        block_len(self.fixed.plain_len, number)
    }

    /// Reads the stored bytes of a block; `None` if they are damaged.
    fn read_stored_block(&self, number: u64, stored: &mut Vec<u8>) -> io::Result<Option<BlockExtent>> {
        let Table::Sound(blocks, _) = &self.table else { return Ok(None) };
        let block = usize::try_from(number).ok().and_then(|number| blocks.get(number));
        let Some(block) = block.copied() else { return Ok(None) };
        // The table is valid, so this is at most a block's length.
        stored.resize(block.len as usize, 0);
        let read = self.file.read_at(stored, block.at)?;
        let checks = crc32fast::hash(stored) == block.crc;
        Ok(Some(block).filter(|_| read == stored.len() && checks))
    }

    /// Fills `plain` with the bytes of a block. Returns whether they are intact.
    fn load(&self, number: u64, held: &mut BlockCache, plain: &mut Vec<u8>) -> io::Result<bool> {
        plain.clear();
        plain.resize(self.block_len(number), 0);
        let BlockCache { stored, decoder, .. } = held;
        let sound = match self.read_stored_block(number, stored)? {
            Some(_) if stored.len() == plain.len() => {
                plain.copy_from_slice(stored);
                true
            }
            Some(_) => decoder.decode(self.fixed.compression, stored, plain),
            None => false,
        };
        if !sound {
            plain.fill(LOST);
        }
        Ok(sound)
    }

    /// Calls `take` with the bytes of a block, which is decompressed unless it is cached.
    fn with_block<T>(&self, number: u64, take: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut held = self.held.lock();
        if let Some((_, plain)) = held.blocks.iter().find(|(block, _)| *block == number) {
            return Ok(take(plain));
        }
        let mut plain = match held.blocks.len() < HELD_MAX {
            true => Vec::new(),
            false => held.blocks.remove(0).1,
        };
        self.load(number, &mut held, &mut plain)?;
        let taken = take(&plain);
        held.blocks.push((number, plain));
        Ok(taken)
    }

    /// Describes the damage of the file that affects the plain bytes `from..to`.
    pub(super) fn damage(&self, from: u64, to: u64) -> Option<String> {
        let blocks = match &self.table {
            Table::Sound(blocks, _) => blocks,
            Table::Damaged(table) => return Some(self.table_damage(table)),
        };
        let first = from / BLOCK_BYTES as u64;
        let last = to.saturating_sub(1).max(from) / BLOCK_BYTES as u64;
        let last = last.min((blocks.len() as u64).saturating_sub(1));
        self.damaged_block(first..=last).map(|number| self.block_damage(number))
    }

    /// Returns the plain offset of the file's first damage, and its description. Skips the blocks
    /// before that of the plain offset `from`.
    pub(super) fn damage_behind(&self, from: u64) -> Option<(u64, String)> {
        let blocks = match &self.table {
            Table::Sound(blocks, _) => blocks.len() as u64,
            Table::Damaged(table) => return Some((0, self.table_damage(table))),
        };
        if self.head.is_none() {
            let head = FIXED_LEN..FIXED_LEN + self.fixed.head_len();
            let reason = format!(
                "the head of the compressed segment is damaged: bytes {}..{} of the file",
                head.start, head.end
            );
            return Some((0, reason));
        }
        if let Some(number) = self.damaged_block(from / BLOCK_BYTES as u64..blocks) {
            return Some((number * BLOCK_BYTES as u64, self.block_damage(number)));
        }
        let Table::Sound(_, end) = &self.table else { return None };
        let len = self.file.len().unwrap_or(*end);
        (len != *end).then(|| {
            let reason = format!(
                "the file of the compressed segment has {len} bytes, but its last block ends at byte {end}"
            );
            (self.fixed.plain_len, reason)
        })
    }

    fn damaged_block(&self, mut numbers: impl Iterator<Item = u64>) -> Option<u64> {
        let (mut held, mut plain) = (BlockCache::default(), Vec::new());
        numbers.find(|number| !self.load(*number, &mut held, &mut plain).unwrap_or(true))
    }

    fn table_damage(&self, table: &Range<u64>) -> String {
        format!(
            "the block table of the compressed segment is damaged: bytes {}..{} of the file",
            table.start, table.end
        )
    }

    fn block_damage(&self, number: u64) -> String {
        let block = match &self.table {
            Table::Sound(blocks, _) => usize::try_from(number).ok().and_then(|number| blocks.get(number)),
            Table::Damaged(_) => None,
        };
        let (at, end) = block.map_or((0, 0), |block| (block.at, block.end()));
        let from = number * BLOCK_BYTES as u64;
        let to = from + self.block_len(number) as u64;
        format!(
            "block {number} of the compressed segment is damaged: bytes {at}..{end} of the file, which contain bytes {from}..{to} of the segment"
        )
    }
}

fn block_len(plain_len: u64, number: u64) -> usize {
    let rest = plain_len.saturating_sub(number.saturating_mul(BLOCK_BYTES as u64));
    usize::try_from(rest).map_or(BLOCK_BYTES, |rest| rest.min(BLOCK_BYTES))
}

impl Table {
    fn read(file: &dyn StorageFile, fixed: CompressedPreamble) -> io::Result<Table> {
        let from = (FIXED_LEN + fixed.head_len()) as u64;
        let count = fixed.blocks();
        let file_len = file.len()?;
        let end = count.checked_mul(ENTRY_LEN as u64).and_then(|len| len.checked_add(from));
        let damaged = Table::Damaged(from..end.unwrap_or(file_len).min(file_len).max(from));
        // Each block has at least one byte.
        let Some(end) = end.filter(|end| end.saturating_add(count) <= file_len) else { return Ok(damaged) };
        let (mut blocks, mut crc) = (Vec::new(), crc32fast::Hasher::new());
        let (mut at, mut offset) = (end, from);
        let mut piece = [0; TABLE_PIECE];
        // The table is read in pieces, and reading ends at the first invalid entry: a hole in the
        // file has no valid one.
        while offset < end {
            let wanted = usize::try_from(end - offset).map_or(TABLE_PIECE, |left| left.min(TABLE_PIECE));
            let room = piece.get_mut(..wanted).unwrap_or_default();
            if file.read_at(room, offset)? != wanted {
                return Ok(damaged);
            }
            crc.update(room);
            for entry in room.chunks_exact(ENTRY_LEN) {
                let number = blocks.len() as u64;
                let (Some(len), Some(crc)) = (u32_at(entry, 0), u32_at(entry, 4)) else { return Ok(damaged) };
                if len == 0 || len as usize > block_len(fixed.plain_len, number) {
                    return Ok(damaged);
                }
                let block = BlockExtent { at, len, crc };
                at = block.end();
                blocks.push(block);
            }
            offset += wanted as u64;
        }
        Ok(if crc.finalize() == fixed.table_crc { Table::Sound(blocks, at) } else { damaged })
    }
}

impl StorageFile for CompressedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.plain_len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = usize::try_from(self.plain_len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buf.len().min(left);
        let mut rest = buf.get_mut(..wanted).unwrap_or_default();
        let mut at = offset;
        while !rest.is_empty() {
            let of_head = self.head.as_deref().zip(usize::try_from(at).ok());
            let of_head = of_head.and_then(|(head, at)| head.get(at..)).filter(|bytes| !bytes.is_empty());
            let taken = match of_head {
                Some(bytes) => copy(bytes, rest),
                None if matches!(self.table, Table::Damaged(_)) => {
                    rest.fill(LOST);
                    rest.len()
                }
                None => {
                    let within = usize::try_from(at % BLOCK_BYTES as u64).unwrap_or(0);
                    self.with_block(at / BLOCK_BYTES as u64, |plain| {
                        copy(plain.get(within..).unwrap_or_default(), rest)
                    })?
                }
            };
            if taken == 0 {
                break;
            }
            at += taken as u64;
            rest = rest.get_mut(taken..).unwrap_or_default();
        }
        Ok(wanted - rest.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a compressed segment is never written")
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..len), to.get_mut(..len)) {
        to.copy_from_slice(from);
    }
    len
}

impl fmt::Debug for CompressedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedFile")
            .field("file", &self.file)
            .field("fixed", &self.fixed)
            .finish_non_exhaustive()
    }
}
