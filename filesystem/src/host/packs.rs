//! Packs: the objects that snapshots need, as bytes that can be stored elsewhere and turned into a
//! store on another machine.
//!
//! A *pack* contains pieces of the files of objects, as they are in a store, one after the other. An
//! object that the store has in a [git pack](super::git_packs), which is something else, is in the
//! form of its own file:
//!
//! ```text
//!  0  8  magic "FOLDPCK\n"
//!  8  …  pieces, each:
//!        0 20  name of the object
//!       20  8  length of the object's file
//!       28  8  offset of the piece in that file
//!       36  4  length of the piece
//!       40  …  the piece
//! ```
//!
//! All integers are little-endian. A file that does not fit into the rest of a pack continues in
//! the next one. So no pack is longer than [`PACK_BYTES_MAX`], regardless of the size of a file,
//! and neither side has more than one pack in memory. Packs are received in the order in which they
//! were created.
//!
//! # Invariants
//!
//! 1. An object is in a pack only if its content was read and matches its name.
//! 2. A commit comes after everything that it names, as it is written.
//! 3. A received object gets its name only once its file is complete, and its content was read and
//!    matches the name. The name is derived from the twenty bytes alone, so nothing in a pack is a
//!    path.
//! 4. A length in a pack determines how much is read from it, and never how much memory is
//!    allocated.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::FilesystemSnapshot;
use super::collect::{read_collected, was_collected};
use super::needed_objects::NeededObjects;
use super::object_files::verify_file;
use super::objects::{ObjectId, Objects, create, len};
use crate::error::{Error, IoContext, Result};

/// Greatest length of a pack in bytes.
pub const PACK_BYTES_MAX: usize = 8 << 20;

const MAGIC: [u8; 8] = *b"FOLDPCK\n";

const PIECE_HEAD: usize = 40;

/// Greatest number of known objects. Beyond that, they are forgotten and packed again.
const KNOWN_MAX: usize = 1 << 21;

/// Tracks which objects of a store's snapshots a replica already has, and packs those that are
/// missing there.
///
/// ```
/// use foldlog_filesystem::{
///     Error, Filesystem, HostFilesystem, HostFilesystemOptions, PackReceiver, SnapshotPacker,
/// };
///
/// let dir = tempfile::tempdir()?;
/// let (directory, store, elsewhere) = (dir.path().join("work"), dir.path().join("store"), dir.path().join("other"));
/// std::fs::create_dir(&directory)?;
/// let work = HostFilesystem::open(&directory, &store, HostFilesystemOptions::default())?;
/// work.write("page", b"one")?;
/// let snapshot = work.snapshot(None, true)?;
///
/// let mut packer = SnapshotPacker::new(&store);
/// let mut packs = Vec::new();
/// let rest = packer.pack([&snapshot], &mut |pack| Ok::<(), Error>(packs.push(pack.to_vec())))?;
/// packs.push(rest);
/// // What is held is not packed again.
/// assert!(packer.pack([&snapshot], &mut |_| Ok::<(), Error>(()))?.is_empty());
///
/// let mut receiver = PackReceiver::new(&elsewhere);
/// packs.iter().try_for_each(|pack| receiver.take(pack))?;
/// receiver.finish()?;
/// assert!(foldlog_filesystem::audit_snapshots(&elsewhere, [&snapshot], &|_| true).damaged.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SnapshotPacker {
    objects: Objects,
    /// Replicated objects.
    held: NeededObjects,
}

impl std::fmt::Debug for SnapshotPacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotPacker").field("store", &self.objects.store()).finish_non_exhaustive()
    }
}

impl SnapshotPacker {
    /// Creates a packer for the snapshots of the store at `store`, none of which is replicated yet.
    pub fn new(store: &Path) -> SnapshotPacker {
        let objects = Objects::new(store.to_owned()).exactly();
        SnapshotPacker { objects, held: NeededObjects::default() }
    }

    /// Records that everything that these snapshots need is replicated. Objects of a snapshot that
    /// the store lacks are skipped: they are packed again if another snapshot needs them. A
    /// collected snapshot is skipped too: it may not have been packed, even if a later snapshot
    /// with the same content has created its objects again.
    pub fn note_held<'a>(&mut self, snapshots: impl IntoIterator<Item = &'a FilesystemSnapshot>) {
        let collected: HashSet<ObjectId> = read_collected(self.objects.store()).into_iter().collect();
        for snapshot in snapshots {
            let mut ids = snapshot.names().filter_map(|name| ObjectId::parse(name));
            if !ids.any(|id| collected.contains(&id)) && self.has(snapshot) {
                let _ = self.held.add(&self.objects, snapshot);
            }
        }
        self.held.trees.forget();
    }

    /// Packs the objects that these snapshots need and that are not replicated yet. Passes each
    /// full pack to `put`, and returns the last, shorter one; it is empty if nothing remains for
    /// it. Skips a snapshot that the store does not have, or no longer has.
    ///
    /// After an error the packer must not be used any more: it regards objects as replicated that
    /// were not packed.
    ///
    /// # Errors
    ///
    /// - [`Error::Object`] if the store has a snapshot and an object of it is missing or damaged.
    /// - The errors of `put`.
    pub fn pack<'a, E: From<Error>>(
        &mut self,
        snapshots: impl IntoIterator<Item = &'a FilesystemSnapshot>,
        put: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let mut pack = Vec::new();
        for snapshot in snapshots {
            if !self.has(snapshot) {
                continue;
            }
            if let Err(unread) = self.pack_one(snapshot, &mut pack, put)? {
                // A collection removes a snapshot's commit first, because the snapshot is no longer
                // needed. The commit may exist again if a later snapshot has the same content; then
                // the metadata are missing.
                let is_gone =
                    |id: ObjectId| !self.objects.contains(id) && was_collected(self.objects.store(), id);
                let mut ids = snapshot.names().filter_map(|name| ObjectId::parse(name));
                if self.has(snapshot) && !ids.any(is_gone) {
                    return Err(unread.into());
                }
                self.held = NeededObjects::default();
            }
        }
        self.held.trees.forget();
        if self.held.count() > KNOWN_MAX {
            self.held = NeededObjects::default();
        }
        Ok(pack)
    }

    /// Returns whether the store has a snapshot.
    fn has(&self, snapshot: &FilesystemSnapshot) -> bool {
        self.objects.named(&snapshot.commit).is_ok_and(|id| self.objects.contains(id))
    }

    /// Packs the objects that one snapshot needs. The inner error means that an object could not be
    /// read; nothing of it was packed.
    fn pack_one<E: From<Error>>(
        &mut self,
        snapshot: &FilesystemSnapshot,
        pack: &mut Vec<u8>,
        put: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<()>, E> {
        let missing = match self.held.add(&self.objects, snapshot) {
            Ok(missing) => missing,
            Err(unread) => return Ok(Err(unread)),
        };
        for (id, kind) in missing {
            match self.objects.file_form(id, kind) {
                Ok(file) => self.add(id, file, pack, put)?,
                Err(unread) => return Ok(Err(unread)),
            }
        }
        Ok(Ok(()))
    }

    fn add<E: From<Error>>(
        &self,
        id: ObjectId,
        (length, mut file): (u64, Box<dyn Read>),
        pack: &mut Vec<u8>,
        put: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.objects.path(id);
        let unread = |error| Error::io("read", &path, error);
        let mut offset = 0;
        while offset < length {
            if pack.len() + PIECE_HEAD >= PACK_BYTES_MAX {
                put(pack)?;
                pack.clear();
            }
            if pack.is_empty() {
                pack.extend_from_slice(&MAGIC);
            }
            let room = PACK_BYTES_MAX - PIECE_HEAD - pack.len();
            let piece = (length - offset).min(room as u64);
            pack.extend_from_slice(&id.0);
            pack.extend_from_slice(&length.to_le_bytes());
            pack.extend_from_slice(&offset.to_le_bytes());
            pack.extend_from_slice(&u32::try_from(piece).unwrap_or(u32::MAX).to_le_bytes());
            let read = (&mut file).take(piece).read_to_end(pack).map_err(unread)?;
            if read as u64 != piece {
                let reason = "its file was truncated while it was read".to_owned();
                return Err(Error::Object { path, reason }.into());
            }
            offset += piece;
        }
        Ok(())
    }
}

/// Creates the objects of packs in a store, which need not exist yet.
pub struct PackReceiver {
    objects: Objects,
    partial: Option<Partial>,
    /// Whether an object was created that may not be durable.
    has_new: bool,
}

/// An object of whose file a part was received.
struct Partial {
    id: ObjectId,
    length: u64,
    received: u64,
    /// The file, under a temporary name; `None` if the store has the object.
    file: Option<(PathBuf, File)>,
}

impl std::fmt::Debug for PackReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackReceiver").field("store", &self.objects.store()).finish_non_exhaustive()
    }
}

struct Piece<'a> {
    id: ObjectId,
    length: u64,
    offset: u64,
    bytes: &'a [u8],
}

impl PackReceiver {
    /// Creates a receiver that writes objects to the store at `store`. Writes nothing yet.
    pub fn new(store: &Path) -> PackReceiver {
        PackReceiver { objects: Objects::new(store.to_owned()).exactly(), partial: None, has_new: false }
    }

    /// Creates the objects of the next pack. An object that the store already has is left
    /// unchanged.
    ///
    /// # Errors
    ///
    /// Objects that were created before the error remain.
    ///
    /// - [`Error::Object`] if the bytes are not a pack, do not continue the previous pack, or an
    ///   object's content does not match its name.
    /// - [`Error::Io`] and [`Error::Full`] if a file cannot be created.
    pub fn take(&mut self, pack: &[u8]) -> Result<()> {
        let damaged = |reason: &str| Error::Object {
            path: self.objects.store().to_owned(),
            reason: format!("a pack of captures {reason}"),
        };
        let mut rest =
            pack.strip_prefix(&MAGIC).ok_or_else(|| damaged("does not start with the magic bytes"))?;
        let no_piece = damaged("contains an invalid piece of an object");
        let no_part = damaged("does not continue the pack before it");
        self.objects.prepare()?;
        while !rest.is_empty() {
            let piece = next_piece(&mut rest).ok_or_else(|| no_piece.clone())?;
            let partial = match (self.partial.take(), piece.offset) {
                (None, 0) => self.begin(piece.id, piece.length)?,
                (Some(partial), offset)
                    if (partial.id, partial.length, partial.received) == (piece.id, piece.length, offset) =>
                {
                    partial
                }
                (partial, _) => {
                    self.partial = partial;
                    return Err(no_part);
                }
            };
            self.add_bytes(partial, piece.bytes)?;
        }
        Ok(())
    }

    /// Returns whether the store lacks an object that a snapshot names, its commit or its metadata:
    /// no pack so far had it.
    pub fn lacks(&self, snapshot: &FilesystemSnapshot) -> bool {
        snapshot.names().any(|name| ObjectId::parse(name).is_none_or(|id| !self.objects.contains(id)))
    }

    /// Makes the created objects durable.
    ///
    /// # Errors
    ///
    /// - [`Error::Object`] if the last pack ended within an object.
    /// - [`Error::Io`] if the store cannot be synced.
    pub fn finish(mut self) -> Result<()> {
        if let Some(partial) = &self.partial {
            let path = self.objects.path(partial.id);
            return Err(Error::Object { path, reason: "the packs end within this object".to_owned() });
        }
        match std::mem::take(&mut self.has_new) {
            true => self.objects.sync_all(),
            false => Ok(()),
        }
    }

    fn begin(&self, id: ObjectId, length: u64) -> Result<Partial> {
        let file = match self.objects.has_intact(id) {
            true => None,
            false => {
                let temporary = self.objects.temporary();
                let made = create(&temporary);
                let made = made.map_err(|error| Error::unmade("create", &temporary, length, error))?;
                Some((temporary, made))
            }
        };
        Ok(Partial { id, length, received: 0, file })
    }

    /// Adds a piece to the file of an object, and gives the file its name if it is complete.
    fn add_bytes(&mut self, mut partial: Partial, bytes: &[u8]) -> Result<()> {
        partial.received += len(bytes);
        let is_whole = partial.received == partial.length;
        if let Some((temporary, file)) = &mut partial.file {
            let left = partial.length - partial.received;
            let written = file.write_all(bytes);
            let written = written.map_err(|error| Error::unmade("write", &*temporary, left, error));
            let named = written
                .and_then(|()| if is_whole { self.name_received(temporary, partial.id) } else { Ok(()) });
            if named.is_err() {
                let _ = fs::remove_file(&*temporary);
            }
            named?;
            self.has_new = true;
        }
        self.partial = Some(partial).filter(|_| !is_whole);
        Ok(())
    }

    fn name_received(&self, temporary: &Path, id: ObjectId) -> Result<()> {
        let path = self.objects.path(id);
        verify_file(temporary, id).map_err(|reason| Error::Object { path: path.clone(), reason })?;
        self.objects.name(temporary, id).during("write", path)
    }
}

impl Drop for PackReceiver {
    fn drop(&mut self) {
        if let Some((temporary, _)) = self.partial.take().and_then(|partial| partial.file) {
            let _ = fs::remove_file(temporary);
        }
    }
}

fn next_piece<'a>(rest: &mut &'a [u8]) -> Option<Piece<'a>> {
    let (id, after) = rest.split_first_chunk()?;
    let (length, after) = after.split_first_chunk()?;
    let (offset, after) = after.split_first_chunk()?;
    let (piece, after) = after.split_first_chunk()?;
    let (length, offset) = (u64::from_le_bytes(*length), u64::from_le_bytes(*offset));
    let piece = usize::try_from(u32::from_le_bytes(*piece)).ok()?;
    let (bytes, after) = after.split_at_checked(piece)?;
    *rest = after;
    let ends = offset.checked_add(len(bytes))?;
    (!bytes.is_empty() && ends <= length).then_some(Piece { id: ObjectId(*id), length, offset, bytes })
}
