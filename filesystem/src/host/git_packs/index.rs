//! The index of a git pack: at which byte of the pack an object begins.
//!
//! ```text
//!     0    4  magic FF "tOc"
//!     4    4  version, 2
//!     8 1024  fan-out: for each first byte of an id, the number of ids that begin with it or with a lesser one
//!  1032  20n  ids, in ascending order
//!     …   4n  CRC-32 of the entry of each, as it is in the pack
//!     …   4n  offset of the entry of each in the pack
//!     …   20  SHA-1 at the end of the pack
//!     …   20  SHA-1 of all bytes before it
//! ```
//!
//! All integers are big-endian. An offset of 2 GiB or more would have its high bit set and be in a
//! further table. No pack here is that long, so such an index is rejected.

use sha1_checked::Digest;

use super::{Entry, finish, new_hash};
use crate::host::objects::ObjectId;

const MAGIC: [u8; 8] = *b"\xfftOc\0\0\0\x02";
const IDS: usize = 8 + 4 * 256;
const ENTRY: usize = 20 + 4 + 4;
const TAIL: usize = 20 + 20;

/// Greatest length of an index that is read.
pub(super) const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Greatest offset that an index without a further table can contain.
pub(super) const OFFSET_MAX: u64 = 0x7fff_ffff;

pub(super) struct PackIndex {
    bytes: Vec<u8>,
    count: usize,
}

impl PackIndex {
    /// Checks the lengths that an index states against its own. Returns the reason if it cannot be
    /// used. Whether ids and offsets are correct shows when an object is read.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<PackIndex, String> {
        if !bytes.starts_with(&MAGIC) {
            return Err("it is not an index of version 2".to_owned());
        }
        let mut index = PackIndex { bytes, count: 0 };
        let mut before = 0;
        for first in 0..=u8::MAX {
            let at = 8 + 4 * usize::from(first);
            let count = index.word(at).ok_or("it ends within its fan-out")?;
            if count < before {
                return Err(format!("its fan-out decreases at byte {at}"));
            }
            before = count;
        }
        index.count = usize::try_from(before).unwrap_or(usize::MAX);
        let expected = index.count.saturating_mul(ENTRY).saturating_add(IDS + TAIL);
        if index.bytes.len() != expected {
            let found = index.bytes.len();
            return Err(format!("it has {found} bytes, and {expected} would contain its {before} objects"));
        }
        Ok(index)
    }

    /// Creates the index of a pack that ends with a checksum. Sorts the entries.
    pub(super) fn encode(entries: &mut [Entry], pack: &[u8; 20]) -> Vec<u8> {
        entries.sort_unstable_by_key(|entry| entry.id);
        let mut bytes = Vec::with_capacity(IDS + entries.len() * ENTRY + TAIL);
        bytes.extend_from_slice(&MAGIC);
        let mut count = 0_u32;
        let mut left = entries.iter().peekable();
        for first in 0..=u8::MAX {
            while left.next_if(|entry| entry.id.0.first() == Some(&first)).is_some() {
                count += 1;
            }
            bytes.extend_from_slice(&count.to_be_bytes());
        }
        entries.iter().for_each(|entry| bytes.extend_from_slice(&entry.id.0));
        entries.iter().for_each(|entry| bytes.extend_from_slice(&entry.crc.to_be_bytes()));
        entries.iter().for_each(|entry| bytes.extend_from_slice(&entry.offset.to_be_bytes()));
        bytes.extend_from_slice(pack);
        bytes.extend_from_slice(&finish(new_hash().chain_update(&bytes)));
        bytes
    }

    fn word(&self, at: usize) -> Option<u32> {
        self.bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
    }

    fn fan_out(&self, first: u8) -> usize {
        let count = self.word(8 + 4 * usize::from(first)).unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX).min(self.count)
    }

    fn id(&self, at: usize) -> ObjectId {
        let id = self.bytes.get(IDS + 20 * at..).and_then(|bytes| bytes.first_chunk());
        id.map_or(ObjectId::UNKNOWN, |id| ObjectId(*id))
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the offset of an object's entry in the pack.
    pub(super) fn find(&self, id: ObjectId) -> Option<u64> {
        let [first, ..] = id.0;
        let mut from = first.checked_sub(1).map_or(0, |before| self.fan_out(before));
        let mut to = self.fan_out(first);
        while from < to {
            let middle = from.midpoint(to);
            match self.id(middle).cmp(&id) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
                std::cmp::Ordering::Equal => return self.offset(middle),
            }
        }
        None
    }

    fn offset(&self, at: usize) -> Option<u64> {
        self.word(IDS + 24 * self.count + 4 * at).map(u64::from)
    }

    /// Returns all objects with their offsets and the CRC-32 of their entries, by ascending ids.
    pub(super) fn objects(&self) -> impl Iterator<Item = (ObjectId, u64, u32)> {
        (0..self.count).map(|at| {
            let crc = self.word(IDS + 20 * self.count + 4 * at);
            (self.id(at), self.offset(at).unwrap_or(u64::MAX), crc.unwrap_or(0))
        })
    }

    /// Returns the checksum of the pack.
    pub(super) fn pack_checksum(&self) -> &[u8] {
        let end = self.bytes.len().saturating_sub(20);
        self.bytes.get(end.saturating_sub(20)..end).unwrap_or_default()
    }
}
