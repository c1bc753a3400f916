//! Writes git packs.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::index::{OFFSET_MAX, PackIndex};
use super::pack::{hash_file, index_of, stamp, write_head};
use super::{Entry, HEAD_BYTES, MAGIC, VERSION};
use crate::host::compression::Compressors;
use crate::host::known_objects::Stamp;
use crate::host::object_files::open_file;
use crate::host::objects::{ObjectId, ObjectKind, create, create_directory, len};

/// Greatest length of an object that is written into a pack. A reader has the whole of it in memory
/// where it must have another form, as in a replica.
pub(in crate::host) const PACKED_OBJECT_BYTES_MAX: usize = 4 << 20;

/// A pack of this length is finished. A longer one would be synced later, would lose more to damage,
/// and would have to be written again as a whole to remove a part of it.
const PACK_BYTES: u64 = 32 << 20;

const BUFFER_BYTES: usize = 256 << 10;

const _: () = assert!(PACK_BYTES + 2 * (PACKED_OBJECT_BYTES_MAX as u64) < OFFSET_MAX);

/// A pack under a temporary name, which is removed with this value.
pub(in crate::host) struct PackWriter {
    temporary: PathBuf,
    file: BufWriter<File>,
    entries: Vec<Entry>,
    len: u64,
    /// Bytes of the entry that is being added.
    entry: Vec<u8>,
}

/// A pack that has its name, and its objects.
pub(in crate::host) struct NewPack {
    pub(in crate::host) path: PathBuf,
    pub(in crate::host) ids: Vec<ObjectId>,
}

impl NewPack {
    pub(in crate::host) fn stamp(&self) -> Option<Stamp> {
        stamp(&self.path)
    }
}

impl PackWriter {
    pub(in crate::host) fn create(temporary: PathBuf) -> io::Result<PackWriter> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, create(&temporary)?);
        file.write_all(&[0; HEAD_BYTES])?;
        let len = HEAD_BYTES as u64;
        Ok(PackWriter { temporary, file, entries: Vec::new(), len, entry: Vec::new() })
    }

    /// Adds an object of at most [`PACKED_OBJECT_BYTES_MAX`] bytes.
    pub(in crate::host) fn add(
        &mut self,
        (id, kind): (ObjectId, ObjectKind),
        bytes: &[u8],
        compressors: &Compressors,
    ) -> io::Result<()> {
        let mut entry = std::mem::take(&mut self.entry);
        entry.clear();
        write_head(kind, len(bytes), &mut entry);
        compressors.compress([&[], bytes], &mut entry)?;
        self.add_entry(id, &entry)?;
        self.entry = entry;
        Ok(())
    }

    /// Adds an object by the bytes of its entry in another pack.
    pub(in crate::host) fn add_entry(&mut self, id: ObjectId, entry: &[u8]) -> io::Result<()> {
        let offset = u32::try_from(self.len).map_err(io::Error::other)?;
        self.file.write_all(entry)?;
        self.entries.push(Entry { id, crc: crc32fast::hash(entry), offset });
        self.len += len(entry);
        Ok(())
    }

    pub(in crate::host) fn is_full(&self) -> bool {
        self.len >= PACK_BYTES
    }

    /// Completes the pack, syncs it, and gives it its name in the directory of packs. `temporary`
    /// is another name for its index.
    pub(in crate::host) fn finish(mut self, directory: &Path, temporary: PathBuf) -> io::Result<NewPack> {
        let checksum = self.complete()?;
        let index = PackIndex::encode(&mut self.entries, &checksum);
        let path = directory.join(format!("pack-{}.pack", ObjectId(checksum)));
        let named = create(&temporary).and_then(|mut file| {
            file.write_all(&index)?;
            file.sync_all()?;
            create_directory(directory)?;
            fs::rename(&self.temporary, &path)?;
            fs::rename(&temporary, index_of(&path))
        });
        if let Err(error) = named {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(NewPack { path, ids: self.entries.iter().map(|entry| entry.id).collect() })
    }

    /// Writes the number of objects and the checksum, which includes that number, and syncs.
    fn complete(&mut self) -> io::Result<[u8; 20]> {
        self.file.flush()?;
        let count = u32::try_from(self.entries.len()).map_err(io::Error::other)?;
        let head = [&MAGIC[..], &VERSION.to_be_bytes(), &count.to_be_bytes()].concat();
        let file = self.file.get_ref();
        file.write_all_at(&head, 0)?;
        let checksum = hash_file(&open_file(&self.temporary)?, self.len)?;
        file.write_all_at(&checksum, self.len)?;
        file.sync_all()?;
        Ok(checksum)
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // A finished pack no longer has this name.
        let _ = fs::remove_file(&self.temporary);
    }
}
