//! One git pack with its index: reading and checking its objects.

use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha1_checked::Digest;

use super::index::{INDEX_BYTES_MAX, PackIndex};
use super::{HEAD_BYTES, MAGIC, TAIL_BYTES, VERSION, finish, new_hash};
use crate::host::audit::DamagedObject;
use crate::host::known_objects::Stamp;
use crate::host::object_files::{OpenedObject, open_file, read_file};
use crate::host::objects::{ObjectId, ObjectKind};

/// Length of the longest header of an entry.
const ENTRY_HEAD_BYTES_MAX: u64 = 10;

const CHECK_BYTES: usize = 256 << 10;

pub(in crate::host) struct GitPack {
    path: PathBuf,
    index: PackIndex,
    len: u64,
    /// The files when they were opened.
    pub(super) opened: Stamp,
}

/// An entry of a pack: the bytes of the object's header and its compressed content.
pub(in crate::host) struct PackEntry {
    pub(in crate::host) id: ObjectId,
    pub(in crate::host) offset: u64,
    pub(in crate::host) len: u64,
    crc: u32,
}

impl GitPack {
    /// Opens a pack. Checks the lengths of its files, its first and its last bytes, and returns the
    /// damage if it cannot be used.
    pub(super) fn open(path: &Path) -> Result<GitPack, DamagedObject> {
        let index_path = index_of(path);
        let damaged = |path: &Path, reason: String| DamagedObject { path: path.to_owned(), reason };
        let opened = stamp(path).unwrap_or(Stamp::UNKNOWN);
        let index = read_file(&index_path, INDEX_BYTES_MAX).map_err(|error| error.to_string());
        let index = index.and_then(PackIndex::parse).map_err(|reason| damaged(&index_path, reason))?;
        let found = open_file(path).and_then(|file| {
            let (mut head, mut tail) = ([0; HEAD_BYTES], [0; TAIL_BYTES]);
            let len = file.metadata()?.len();
            file.read_exact_at(&mut head, 0)?;
            file.read_exact_at(&mut tail, len.saturating_sub(TAIL_BYTES as u64))?;
            Ok((len, head, tail))
        });
        let (len, head, tail) = found.map_err(|error| damaged(path, error.to_string()))?;
        let count = u32::try_from(index.count()).unwrap_or(u32::MAX);
        let said = [&MAGIC[..], &VERSION.to_be_bytes(), &count.to_be_bytes()].concat();
        if head[..] != said[..] {
            let reason = format!("its first {HEAD_BYTES} bytes are not those of a pack of {count} objects");
            return Err(damaged(path, reason));
        }
        if tail[..] != *index.pack_checksum() {
            let at = len.saturating_sub(TAIL_BYTES as u64);
            let reason = format!("its checksum, at byte {at}, is not the one in its index");
            return Err(damaged(path, reason));
        }
        Ok(GitPack { path: path.to_owned(), index, len, opened })
    }

    pub(in crate::host) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the paths of the pack's files, the index first: without it, there is no pack.
    pub(in crate::host) fn files(&self) -> [PathBuf; 2] {
        [index_of(&self.path), self.path.clone()]
    }

    /// Returns whether the bytes of the index match the checksum at their end.
    pub(in crate::host) fn has_intact_index(&self) -> bool {
        damage_of_file(&index_of(&self.path)).is_none()
    }

    pub(in crate::host) fn find(&self, id: ObjectId) -> Option<u64> {
        self.index.find(id)
    }

    /// Returns the lengths of both files and the later of the times of their last changes.
    pub(in crate::host) fn stamp(&self) -> Option<Stamp> {
        stamp(&self.path)
    }

    /// Returns the lengths of both files.
    pub(in crate::host) fn bytes(&self) -> u64 {
        stamp(&self.path).map_or(0, |stamp| stamp.len)
    }

    pub(in crate::host) fn count(&self) -> u64 {
        u64::try_from(self.index.count()).unwrap_or(u64::MAX)
    }

    /// Returns whether the pack has no further name, for example in a pool.
    pub(in crate::host) fn is_last_name(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.nlink() == 1)
    }

    /// Opens the object whose entry begins at an offset. Returns the reason if there is none.
    pub(in crate::host) fn open_object(&self, offset: u64) -> io::Result<Result<OpenedObject, String>> {
        let mut file = BufReader::new(open_file(&self.path)?);
        file.seek(SeekFrom::Start(offset))?;
        let head = read_head(&mut (&mut file).take(ENTRY_HEAD_BYTES_MAX));
        Ok(match head {
            Ok((kind, len)) => Ok(OpenedObject::in_pack(file, kind, len)),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(error.to_string()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(format!("the pack has only {} bytes", self.len))
            }
            Err(error) => return Err(error),
        })
    }

    /// Returns the entries in the order of their offsets.
    pub(in crate::host) fn entries(&self) -> Vec<PackEntry> {
        let entry = |(id, offset, crc)| PackEntry { id, offset, len: 0, crc };
        let mut entries: Vec<PackEntry> = self.index.objects().map(entry).collect();
        entries.sort_unstable_by_key(|entry| entry.offset);
        let mut end = self.len.saturating_sub(TAIL_BYTES as u64);
        for entry in entries.iter_mut().rev() {
            entry.len = end.saturating_sub(entry.offset);
            end = entry.offset.min(end);
        }
        entries
    }

    /// Reads the bytes of an entry as they are. Returns `None` if they do not match the index.
    pub(in crate::host) fn read_entry(&self, entry: &PackEntry) -> io::Result<Option<Vec<u8>>> {
        let mut file = open_file(&self.path)?;
        file.seek(SeekFrom::Start(entry.offset))?;
        let mut bytes = Vec::new();
        file.take(entry.len).read_to_end(&mut bytes)?;
        Ok((crc32fast::hash(&bytes) == entry.crc).then_some(bytes))
    }

    /// Reads both files completely. Returns the damage of the index, or the entries whose bytes do not
    /// match it. All other bytes of the pack were compared when it was opened.
    pub(in crate::host) fn check(&self) -> Result<Vec<PackEntry>, DamagedObject> {
        if let Some(damaged) = damage_of_file(&index_of(&self.path)) {
            return Err(damaged);
        }
        let is_damaged = |entry: &PackEntry| !matches!(self.read_entry(entry), Ok(Some(_)));
        Ok(self.entries().into_iter().filter(is_damaged).collect())
    }
}

/// Returns the damage of a pack or of an index whose bytes do not match the checksum at its end.
pub(in crate::host) fn damage_of_file(path: &Path) -> Option<DamagedObject> {
    let damaged = |reason: String| Some(DamagedObject { path: path.to_owned(), reason });
    let summed = open_file(path).and_then(|file| {
        let len = file.metadata()?.len().saturating_sub(TAIL_BYTES as u64);
        let mut tail = [0; TAIL_BYTES];
        file.read_exact_at(&mut tail, len)?;
        Ok((hash_file(&file, len)? == tail, len))
    });
    match summed {
        Ok((true, _)) => None,
        Ok((false, len)) => damaged(format!("its {len} bytes do not match the checksum at its end")),
        Err(error) => damaged(error.to_string()),
    }
}

/// Returns the SHA-1 of the first bytes of a file.
pub(super) fn hash_file(file: &File, len: u64) -> io::Result<[u8; 20]> {
    let (mut hash, mut at) = (new_hash(), 0);
    let mut piece = vec![0; CHECK_BYTES];
    while at < len {
        let wanted = usize::try_from(len - at).unwrap_or(CHECK_BYTES).min(CHECK_BYTES);
        let bytes = piece.get_mut(..wanted).unwrap_or_default();
        file.read_exact_at(bytes, at)?;
        hash.update(bytes);
        at += wanted as u64;
    }
    Ok(finish(hash))
}

pub(super) fn index_of(pack: &Path) -> PathBuf {
    pack.with_extension("idx")
}

pub(super) fn stamp(pack: &Path) -> Option<Stamp> {
    let mut whole = Stamp { len: 0, modified_ns: i64::MIN };
    for path in [pack, &index_of(pack)] {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        whole.len = whole.len.saturating_add(found.len());
        whole.modified_ns = whole.modified_ns.max(Stamp::of(&found).modified_ns);
    }
    Some(whole)
}

/// Appends the header of an entry: the object's kind, and the length of its content, the lowest
/// bits first.
pub(super) fn write_head(kind: ObjectKind, len: u64, into: &mut Vec<u8>) {
    let mut byte = ((kind as u8) << 4) | low_bits(len, 0x0f);
    let mut left = len >> 4;
    while left > 0 {
        into.push(byte | 0x80);
        byte = low_bits(left, 0x7f);
        left >>= 7;
    }
    into.push(byte);
}

fn low_bits(number: u64, mask: u8) -> u8 {
    let [low, ..] = number.to_le_bytes();
    low & mask
}

/// Reads the header of an entry.
pub(super) fn read_head(source: &mut dyn Read) -> io::Result<(ObjectKind, u64)> {
    let invalid = |reason: String| io::Error::new(ErrorKind::InvalidData, reason);
    let mut byte = [0];
    source.read_exact(&mut byte)?;
    let kind = (byte[0] >> 4) & 7;
    let mut len = u64::from(byte[0] & 0x0f);
    let mut shift = 4;
    while byte[0] & 0x80 != 0 {
        source.read_exact(&mut byte)?;
        let bits = u64::from(byte[0] & 0x7f);
        let shifted = bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits);
        len |= shifted.ok_or_else(|| invalid("its length has more than 64 bits".to_owned()))?;
        shift += 7;
    }
    match ObjectKind::ALL.into_iter().find(|known| *known as u8 == kind) {
        Some(kind) => Ok((kind, len)),
        None if kind >= 6 => {
            Err(invalid("it is a difference from another object, which only git reads".to_owned()))
        }
        None => Err(invalid(format!("its kind is {kind}, which no object of a snapshot has"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_all_lengths_are_read_as_they_were_written() {
        for kind in [ObjectKind::Commit, ObjectKind::Tree, ObjectKind::Blob] {
            for bit in 0..u64::BITS {
                for len in [(1 << bit) - 1, 1 << bit, u64::MAX >> bit] {
                    let mut bytes = Vec::new();
                    write_head(kind, len, &mut bytes);
                    assert_eq!(read_head(&mut &bytes[..]).unwrap(), (kind, len));
                    let cut = bytes.split_last().unwrap().1;
                    assert_eq!(read_head(&mut &*cut).unwrap_err().kind(), ErrorKind::UnexpectedEof);
                }
            }
        }
        let endless = [0xbf; 12];
        assert_eq!(read_head(&mut &endless[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
