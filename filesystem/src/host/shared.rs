//! Large files whose blocks a file system can share: a blob states the length and the digest of the
//! content, and the content itself is a clone of the file, next to the objects. It costs no blocks
//! until the file changes.
//!
//! ```text
//! foldlog-shared 1
//! length BYTES
//! blake3 DIGEST               the digest of the digests of all pieces of 1 MiB, 64 digits
//! ```
//!
//! The clone is the file `shared/ID` of the store, where `ID` is the blob's own id, so the blob
//! contains no path.
//!
//! 1. The digest is that of the clone: the file itself may change while it is read.
//! 2. A clone gets its name once it is durable. The blob is written after that.
//! 3. Its time of the last change is the beginning of 1970. With any other time or length, a capture
//!    does not rely on it, and clones the file again.
//! 4. A clone is read only up to the stated length, and used only after its digest was verified.
//! 5. Each store has its own clones. They are not in a pool, and not in packs for other machines.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use rustix::fs::ioctl_ficlone;

use super::attributes;
use super::content::{ContentReader, READ_TRIES};
use super::manifest::{FileForm, FileKind, Leaf, Stat};
use super::object_files::{open_directory, open_file};
use super::objects::{Hasher, ObjectId, ObjectKind, Objects, create, len, with_directory};
use super::parallel::in_parallel;
use super::step::{MOUNT, nix_errno, open_file as open_file_at, stat_of};
use crate::error::{Error, IoContext, Result};

const HEAD: &str = "foldlog-shared 1";

const BYTES_MAX: u64 = 256;

/// A description of a longer file is invalid.
const LENGTH_MAX: u64 = 1 << 40;

const PIECE_BYTES: usize = 1 << 20;

/// The content of a file according to its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) length: u64,
    digest: blake3::Hash,
}

impl Shared {
    /// Reads a file in several threads, and calls `each` with the length of each piece.
    fn of(
        file: &File,
        length: u64,
        path: &Path,
        each: &(dyn Fn(u64) -> io::Result<()> + Sync),
    ) -> Result<Shared> {
        let offsets: Vec<u64> = (0..length).step_by(PIECE_BYTES).collect();
        let pieces = in_parallel(&offsets, &|offset| {
            let rest = usize::try_from(length - offset).unwrap_or(usize::MAX);
            let mut piece = vec![0; rest.min(PIECE_BYTES)];
            let read = file.read_exact_at(&mut piece, *offset).and_then(|()| each(len(&piece)));
            read.during("read", path)?;
            Ok(blake3::hash(&piece))
        })?;
        let mut hasher = blake3::Hasher::new();
        for piece in pieces {
            hasher.update(piece.as_bytes());
        }
        Ok(Shared { length, digest: hasher.finalize() })
    }

    /// Returns whether a file has this content.
    pub(super) fn is_content_of(&self, file: &File) -> bool {
        let is_of_length = file.metadata().is_ok_and(|found| found.len() == self.length);
        let found = || Shared::of(file, self.length, Path::new(""), &|_| Ok(()));
        is_of_length && found().is_ok_and(|found| found == *self)
    }

    fn encode(&self) -> String {
        format!("{HEAD}\nlength {}\nblake3 {}\n", self.length, self.digest.to_hex())
    }

    fn decode(text: &str) -> Option<Shared> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let length = lines.next()?.strip_prefix("length ")?.parse().ok()?;
        let digest = blake3::Hash::from_hex(lines.next()?.strip_prefix("blake3 ")?).ok()?;
        let shared = Shared { length, digest };
        (length <= LENGTH_MAX && shared.encode() == text).then_some(shared)
    }

    pub(super) fn read(objects: &Objects, id: ObjectId) -> Result<Shared> {
        let bytes = objects.read(id, ObjectKind::Blob, BYTES_MAX)?;
        let shared = std::str::from_utf8(&bytes).ok().and_then(Shared::decode);
        shared.ok_or_else(|| objects.damaged(id, "it does not describe a file with shared blocks"))
    }

    /// Opens the clone that belongs to the blob `id`, and verifies its content.
    pub(super) fn open(&self, objects: &Objects, id: ObjectId) -> Result<File> {
        let path = objects.shared_path(id);
        let damaged = |reason: String| Error::Object { path: path.clone(), reason };
        let opened = open_file(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = opened.map_err(|error| damaged(error.to_string()))?;
        if length != self.length {
            return Err(damaged(format!("it has {length} bytes instead of {}", self.length)));
        }
        if !self.is_content_of(&file) {
            return Err(damaged("its content does not match its digest".to_owned()));
        }
        Ok(file)
    }

    /// Writes the content into an empty file, which shares its blocks where possible.
    pub(super) fn copy(&self, objects: &Objects, id: ObjectId, into: &mut File) -> Result<()> {
        let source = self.open(objects, id)?;
        if ioctl_ficlone(&*into, &source).is_ok() {
            return Ok(());
        }
        let copied = io::copy(&mut source.take(self.length), into);
        copied.map(drop).map_err(|error| Error::io("write a copy of", objects.shared_path(id), error))
    }

    /// Returns the content, of at most `self.length` bytes.
    pub(super) fn content(&self, objects: &Objects, id: ObjectId) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.open(objects, id)?.take(self.length).read_to_end(&mut bytes);
        read.map_err(|error| Error::io("read", objects.shared_path(id), error))?;
        Ok(bytes)
    }
}

impl Objects {
    pub(super) fn shared_directory(&self) -> PathBuf {
        self.store().join("shared")
    }

    pub(super) fn shared_path(&self, id: ObjectId) -> PathBuf {
        self.shared_directory().join(id.to_string())
    }

    /// Returns whether a clone has the expected length, and was not written since it was made.
    pub(super) fn has_shared(&self, id: ObjectId, length: u64) -> bool {
        fs::symlink_metadata(self.shared_path(id)).is_ok_and(|found| {
            found.is_file() && found.len() == length && (found.mtime(), found.mtime_nsec()) == (0, 0)
        })
    }

    /// Returns whether the store has a clone with the content of a file.
    pub(super) fn has_clone_of(&self, file: &File) -> Result<bool> {
        let length = file.metadata().map_or(0, |found| found.len());
        if length > LENGTH_MAX || !self.shared_directory().is_dir() {
            return Ok(false);
        }
        let Ok(found) = Shared::of(file, length, Path::new(""), &|_| Ok(())) else { return Ok(false) };
        match Hasher::hash_bytes(ObjectKind::Blob, found.encode().as_bytes()) {
            Ok(id) => Ok(self.is_sound(id, ObjectKind::Blob)? && found.open(self, id).is_ok()),
            Err(_) => Ok(false),
        }
    }

    /// Gives a complete clone its name. It replaces an earlier one, which may be damaged.
    fn name_shared(&self, temporary: &Path, id: ObjectId) -> io::Result<()> {
        let clone = open_file(temporary)?;
        clone.set_modified(SystemTime::UNIX_EPOCH)?;
        clone.sync_all()?;
        let path = self.shared_path(id);
        with_directory(&path, || fs::rename(temporary, &path))?;
        open_directory(&self.shared_directory())?.sync_all()
    }
}

impl ContentReader<'_> {
    /// Clones a file into the store. Returns `None` if it no longer exists, or is a mount.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the kind [`ErrorKind::Unsupported`] if the file cannot be cloned into the
    /// store, changes while it is cloned, or takes too long to be read.
    pub(super) fn share(&self) -> Result<Option<Leaf>> {
        let file = match open_file_at(self.directory, self.name) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(MOUNT) => {
                self.mounted.set(true);
                return Ok(None);
            }
            // It is no longer a file.
            Err(Errno::ELOOP) => return Err(self.io("clone", ErrorKind::Unsupported)),
            Err(errno) => return Err(self.io("read", errno)),
        };
        self.limits.check(&(self.path)())?;
        let attributes = attributes::read(&file).map_err(|errno| self.io("read the attributes of", errno))?;
        let objects = self.objects.objects;
        let temporary = objects.temporary();
        let kept = self.clone_to(&File::from(file), &temporary).and_then(|stat| {
            let shared = self.read_clone(&temporary)?;
            let text = shared.encode();
            let named = |error| Error::io("write", objects.shared_directory(), error);
            let id = Hasher::hash_bytes(ObjectKind::Blob, text.as_bytes()).map_err(named)?;
            objects.name_shared(&temporary, id).map_err(named)?;
            let blob = self.objects.write(ObjectKind::Blob, text.as_bytes())?;
            let racy = (self.is_racy)(&stat);
            Ok(Leaf { stat, attributes, form: FileForm::Shared, blob, racy })
        });
        if kept.is_err() {
            let _ = fs::remove_file(temporary);
        }
        kept.map(Some)
    }

    /// Clones a file, and returns its state. The file system first writes new data of the file, which
    /// the deadline of the capture cannot interrupt.
    fn clone_to(&self, file: &File, temporary: &Path) -> Result<Stat> {
        let state = || stat_of(file).map_err(|errno| self.io("look at", errno));
        let into = create(temporary).during("create", temporary)?;
        for _ in 0..READ_TRIES {
            let stat = state()?;
            match ioctl_ficlone(&into, file).map_err(nix_errno) {
                _ if stat.kind() != FileKind::File => break,
                Ok(()) if state()? == stat => return Ok(stat),
                Ok(()) => into.set_len(0).during("write", temporary)?,
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EIO)) => {
                    return Err(Error::io("write", temporary, errno));
                }
                Err(_) => break,
            }
        }
        Err(self.io("clone", ErrorKind::Unsupported))
    }

    /// Reads a clone, as long as this leaves half of the capture's time for other files: otherwise, a few
    /// large files could make every capture fail.
    fn read_clone(&self, temporary: &Path) -> Result<Shared> {
        let limits = self.limits;
        let path = (self.path)();
        let opened = open_file(temporary).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = opened.during("read", temporary)?;
        let (begin, read, left) = (Instant::now(), AtomicU64::new(0), limits.half_left());
        let read = Shared::of(&file, length, Path::new(OsStr::from_bytes(&path)), &|bytes| {
            let read = read.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            // A file that will take far too long is given up early, since each capture tries it again.
            let is_too_slow = |left: Duration| {
                let elapsed = begin.elapsed();
                let needed = elapsed.as_nanos().saturating_mul(length.into()) / u128::from(read).max(1);
                elapsed >= left || (elapsed > left / 8 && needed > left.as_nanos().saturating_mul(2))
            };
            match left.is_some_and(is_too_slow) || length > LENGTH_MAX {
                true => Err(ErrorKind::Unsupported.into()),
                false => limits.take(bytes),
            }
        });
        self.prefer_limit_error(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written_and_any_other_is_refused() {
        let shared = Shared { length: 7, digest: blake3::hash(b"content") };
        let text = shared.encode();
        assert_eq!((shared.length, Shared::decode(&text)), (7, Some(shared)));
        let damaged = [
            text.replace("shared 1", "shared 2"),
            text.replace("length 7", "length 07"),
            text.replace("length 7", "length 1099511627777"),
            text.replace("length 7", "length 18446744073709551616"),
            text.replace("blake3 ", "blake3 ../"),
            text.to_uppercase(),
            format!("{text}\n"),
            String::new(),
        ];
        for damaged in damaged {
            assert_eq!(Shared::decode(&damaged), None, "{damaged}");
        }
    }
}
