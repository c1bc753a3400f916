//! The object directory: large payloads, each stored once, named by its BLAKE3 hash.
//!
//! 1. An object is written under a temporary name and renamed. A name in the directory therefore
//!    always means a complete object, unless a power cut destroyed an object that was not yet
//!    synced.
//! 2. An object and its name are made durable before the first record that names it is acknowledged
//!    as durable: every sync begins with [`Objects::take_unsynced`], before the segments.
//! 3. Bytes are checked against length and hash each time they are read.
//! 4. An object over [`OBJECT_BYTES_MAX`] is refused both when it is put and when it is read.
//! 5. A store keeps each object once. A durable object gets a further name in the store's *pool*,
//!    and a session with the same bytes links to that file after comparing them. The pool is not
//!    read otherwise, and losing it loses no data: if a link cannot be created, the object is
//!    written into a separate file. A [collection](crate::Store::collect) removes a name from the
//!    pool when it is the file's last one.
//! 6. An object directory that is a link is not followed: every access to its objects is an error,
//!    including an audit's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use foldlog_codec::body::{OBJECT_BYTES_MAX, ObjectId, Payload, payload_fits};
use parking_lot::Mutex;

use super::chain::Segment;
use super::copy::each_piece;
use super::layout;
use crate::error::{Error, Result};
use crate::storage::{Access, EntryKind, Storage, StorageFile};

/// Number of bytes of an object that are read at a time if it is not needed as a whole.
const PIECE_BYTES: usize = 256 << 10;

const UNLIKE_ITS_NAME: &str = "its bytes do not match its name";

/// Stores the objects of one session.
#[derive(Debug)]
pub(crate) struct Objects {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    session_dir: PathBuf,
    /// Pool of the store, if the session is in one.
    pool: Option<PathBuf>,
    unsynced: Mutex<BTreeMap<ObjectId, Arc<dyn StorageFile>>>,
    /// Objects that this process has written, and that a sync was planned for since.
    written: Mutex<BTreeSet<ObjectId>>,
    /// Objects that were found to match their names.
    checked: Mutex<BTreeSet<ObjectId>>,
    /// Objects whose bytes are in memory.
    held: Mutex<BTreeMap<ObjectId, Weak<[u8]>>>,
    /// Segments that a reader holds open, whose records name the objects that it reads.
    named_in: Mutex<Arc<Vec<Segment>>>,
    /// The first error with which an object could not be read.
    damage: Mutex<Option<Error>>,
}

/// The objects that a sync must make durable before the log.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedObjects {
    pub(crate) files: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    /// The objects in the files, in the same order.
    objects: Vec<ObjectId>,
    pub(crate) dirs: Vec<PathBuf>,
    pool: Option<PathBuf>,
}

impl UnsyncedObjects {
    /// Gives the objects, which are durable now, names in the pool. A failure only costs room.
    pub(crate) fn pool(&self, storage: &dyn Storage) {
        let Some(pool) = &self.pool else { return };
        for (path, _) in &self.files {
            let Some(name) = path.file_name() else { continue };
            let pooled = pool.join(name);
            let linked = storage.hard_link(path, &pooled);
            if linked.is_err_and(|error| error.kind() == ErrorKind::NotFound)
                && storage.create_dir_all(pool).is_ok()
            {
                let _ = storage.hard_link(path, &pooled);
            }
        }
    }
}

impl Objects {
    pub(crate) fn new(storage: Arc<dyn Storage>, session_dir: &Path) -> Objects {
        Objects {
            storage,
            dir: layout::objects_dir(session_dir),
            session_dir: session_dir.to_owned(),
            pool: layout::pool_of(session_dir),
            unsynced: Mutex::default(),
            written: Mutex::default(),
            checked: Mutex::default(),
            held: Mutex::default(),
            named_in: Mutex::default(),
            damage: Mutex::default(),
        }
    }

    fn path(&self, object: &ObjectId) -> PathBuf {
        self.dir.join(object.file_name())
    }

    /// Checks that the object directory is a directory and not a link: files reached through a link
    /// do not belong to the session, whatever their names are.
    fn check_directory(&self) -> Result<()> {
        match self.storage.entry(&self.dir) {
            Ok(Some(entry)) if entry.kind != EntryKind::Directory => {
                let reason =
                    format!("it is {}: it was not followed", entry.kind.in_place_of(EntryKind::Directory));
                Err(Error::Object { path: self.dir.clone(), reason })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(Error::io("look at", &self.dir, error)),
        }
    }

    /// Stores the bytes as an object and returns its id. The object is durable after the next sync.
    /// Fails with [`Error::TooLarge`] for bytes over [`OBJECT_BYTES_MAX`], before any hashing or
    /// writing.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<ObjectId> {
        if !payload_fits(bytes.len()) {
            return Err(Error::TooLarge { what: "object", found: bytes.len() as u64, max: OBJECT_BYTES_MAX });
        }
        let object = ObjectId::from_content(bytes);
        let path = self.path(&object);
        if self.unsynced.lock().contains_key(&object) {
            return Ok(object);
        }
        self.check_directory()?;
        match self.read(&object) {
            // The object is missing or does not match its name: replacing it loses nothing.
            Err(Error::Object { .. }) => {
                if !self.link_pooled(&object, &path, bytes) {
                    self.write_new(&object, &path, bytes, false)?;
                }
            }
            Err(error) => return Err(error),
            Ok(_) if self.written.lock().contains(&object) => {}
            // An existing object may come from a process that was killed before it synced. It may
            // also be in a file shared with the parent of this fork, which only the parent writes.
            // A synced copy replaces it.
            Ok(_) => match self.write_new(&object, &path, bytes, true) {
                Err(Error::Full { .. }) => self.sync_again(&object)?,
                done => done?,
            },
        }
        Ok(object)
    }

    /// Links the session's object to the store's file, if there is one with these bytes. Returns
    /// whether the object exists now.
    fn link_pooled(&self, object: &ObjectId, path: &Path, bytes: &[u8]) -> bool {
        let Some(pooled) = self.pool.as_ref().map(|pool| pool.join(object.file_name())) else { return false };
        let Ok(file) = self.storage.open(&pooled, Access::Read) else { return false };
        let mut found = vec![0; bytes.len()];
        let is_whole = file.len().is_ok_and(|len| len == object.len);
        let read = is_whole && file.read_at(&mut found, 0).is_ok_and(|read| read == bytes.len());
        if !read || found != bytes {
            return false;
        }
        // The existing file does not match its name.
        let _ = self.storage.remove_file(path);
        let linked =
            self.storage.create_dir_all(&self.dir).is_ok() && self.storage.hard_link(&pooled, path).is_ok();
        if linked {
            self.unsynced.lock().insert(*object, file);
        }
        linked
    }

    /// Writes an object into a new file, and gives the file the object's name. `sync_first` makes
    /// its bytes durable before that: a durable record may name the object that the file replaces.
    fn write_new(&self, object: &ObjectId, path: &Path, bytes: &[u8], sync_first: bool) -> Result<()> {
        let failed = |op, error| self.write_error(op, path, object.len, error);
        self.storage.create_dir_all(&self.dir).map_err(|error| failed("create", error))?;
        let building = self.dir.join(format!("{}.new", object.file_name()));
        // A file with this temporary name was left by an interrupted attempt.
        let _ = self.storage.remove_file(&building);
        let file = self.storage.create(&building, object.len).map_err(|error| failed("create", error))?;
        let written = file.write_at(bytes, 0).map_err(|error| failed("write", error));
        let synced = written.and_then(|()| match sync_first {
            true => file.sync_data().map_err(|error| failed("sync", error)),
            false => Ok(()),
        });
        let named = synced
            .and_then(|()| self.storage.rename(&building, path).map_err(|error| failed("rename", error)));
        if let Err(error) = named {
            // On a full disk every byte counts; a file that cannot be removed is harmless.
            let _ = self.storage.remove_file(&building);
            return Err(error);
        }
        self.unsynced.lock().insert(*object, file);
        Ok(())
    }

    /// Creates the error of a failed write. A disk that is full or not writable has its own error:
    /// nothing was recorded, and the session continues once there is space again.
    fn write_error(&self, op: &'static str, path: &Path, bytes: u64, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                let session = layout::session_of(&self.session_dir).unwrap_or_default();
                Error::ReadOnly { session, reason: format!("{}: {error}", path.display()) }
            }
            _ => Error::unmade(op, path, bytes, error),
        }
    }

    /// Returns the first error with which any caller could not read an object.
    pub(crate) fn damage(&self) -> Option<Error> {
        self.damage.lock().clone()
    }

    fn note_damage<T>(&self, read: Result<T>) -> Result<T> {
        read.inspect_err(|error| {
            self.damage.lock().get_or_insert_with(|| error.clone());
        })
    }

    pub(crate) fn get(&self, object: &ObjectId) -> Result<Vec<u8>> {
        self.note_damage(self.read(object))
    }

    fn read(&self, object: &ObjectId) -> Result<Vec<u8>> {
        let (path, file) = self.open(object)?;
        // The file has that actual length, so the length is not a mere claim.
        let mut bytes = vec![0; usize::try_from(object.len).unwrap_or(0)];
        let read = file.read_at(&mut bytes, 0).map_err(|error| Error::io("read", &path, error))?;
        if read != bytes.len() || ObjectId::from_content(&bytes) != *object {
            return Err(Error::Object { path, reason: UNLIKE_ITS_NAME.to_owned() });
        }
        Ok(bytes)
    }

    /// Opens an object's file, and checks that it has the length in the object's id.
    fn open(&self, object: &ObjectId) -> Result<(PathBuf, Arc<dyn StorageFile>)> {
        let path = self.path(object);
        let bad = |reason: String| Error::Object { path: path.clone(), reason };
        self.check_directory()?;
        let file = match self.storage.open(&path, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.check_not_collected()?;
                return Err(bad("it is missing".to_owned()));
            }
            Err(error) => return Err(Error::open_failed(self.storage.as_ref(), &path, error)),
        };
        let len = file.len().map_err(|error| Error::io("read", &path, error))?;
        if len != object.len || len > OBJECT_BYTES_MAX {
            return Err(bad(format!("it has {len} bytes instead of {}", object.len)));
        }
        Ok((path, file))
    }

    /// Sets the segments whose records name the objects, for a reader that holds these open: since
    /// then a compaction may have dropped such a record, and a collection its object.
    pub(crate) fn are_named_in(&self, segments: &Arc<Vec<Segment>>) {
        *self.named_in.lock() = Arc::clone(segments);
    }

    /// Fails with [`Error::CompactedMeanwhile`] if the record that names an object may be dropped
    /// by now, and the object collected.
    fn check_not_collected(&self) -> Result<()> {
        let segments = Arc::clone(&self.named_in.lock());
        segments.iter().try_for_each(|segment| segment.check_not_replaced(self.storage.as_ref()))
    }

    /// Checks that the object that a payload names exists and matches its name. Reads it in pieces,
    /// and only once for any number of references.
    pub(crate) fn check(&self, payload: Payload<'_>) -> Result<()> {
        payload.object().map_or(Ok(()), |object| self.check_object(&object))
    }

    /// Checks that an object exists and matches its name.
    pub(crate) fn check_object(&self, object: &ObjectId) -> Result<()> {
        if self.checked.lock().contains(object) {
            return Ok(());
        }
        self.note_damage(self.check_anew(object))?;
        self.checked.lock().insert(*object);
        Ok(())
    }

    fn check_anew(&self, object: &ObjectId) -> Result<()> {
        let (path, file) = self.open(object)?;
        let mut hasher = blake3::Hasher::new();
        let end = each_piece(file.as_ref(), &path, 0..object.len, PIECE_BYTES, &mut |_, bytes| {
            hasher.update(bytes);
            Ok(())
        })?;
        if end != object.len || hasher.finalize() != object.hash {
            return Err(Error::Object { path, reason: UNLIKE_ITS_NAME.to_owned() });
        }
        Ok(())
    }

    /// Returns the bytes of a payload. The bytes of an object are in memory once, for any number of
    /// callers.
    pub(crate) fn shared(&self, payload: Payload<'_>) -> Result<Arc<[u8]>> {
        let Some(object) = payload.object() else { return Ok(Arc::from(payload.bytes())) };
        if let Some(held) = self.held.lock().get(&object).and_then(Weak::upgrade) {
            return Ok(held);
        }
        let bytes: Arc<[u8]> = self.get(&object)?.into();
        let mut held = self.held.lock();
        // A weak pointer keeps the memory of the bytes allocated. Not each time, since many may be held.
        if held.len().is_power_of_two() {
            held.retain(|_, bytes| bytes.strong_count() > 0);
        }
        held.insert(object, Arc::downgrade(&bytes));
        Ok(bytes)
    }

    /// Returns the bytes of a payload, either from the record itself or from an object.
    pub(crate) fn resolve<'a>(&self, payload: Payload<'a>) -> Result<Cow<'a, [u8]>> {
        match payload.object() {
            None => Ok(Cow::Borrowed(payload.bytes())),
            Some(object) => self.get(&object).map(Cow::Owned),
        }
    }

    /// Writes an existing object again, so that the next sync covers it. An earlier process may
    /// have been killed before it synced, or its sync may have failed; then the system considers
    /// the bytes written although the disk never got them.
    pub(crate) fn sync_again(&self, object: &ObjectId) -> Result<()> {
        let bytes = self.get(object)?;
        let path = self.path(object);
        let failed = |op, error| self.write_error(op, &path, object.len, error);
        let file = self.storage.open(&path, Access::Write).map_err(|error| failed("open", error))?;
        file.write_at(&bytes, 0).map_err(|error| failed("write", error))?;
        self.unsynced.lock().insert(*object, file);
        Ok(())
    }

    /// Returns the objects that the next sync must make durable, and clears the list.
    pub(crate) fn take_unsynced(&self) -> UnsyncedObjects {
        let unsynced = std::mem::take(&mut *self.unsynced.lock());
        if unsynced.is_empty() {
            return UnsyncedObjects::default();
        }
        // If that sync fails, nothing is written any more.
        self.written.lock().extend(unsynced.keys().copied());
        let (objects, files) =
            unsynced.into_iter().map(|(object, file)| (object, (self.path(&object), file))).unzip();
        UnsyncedObjects {
            files,
            objects,
            // The name of the object directory is in the session's directory.
            dirs: vec![self.dir.clone(), self.session_dir.clone()],
            pool: self.pool.clone(),
        }
    }

    /// Restores the list of a sync that could not begin.
    pub(crate) fn put_back(&self, unsynced: UnsyncedObjects) {
        let UnsyncedObjects { files, objects, dirs: _, pool: _ } = unsynced;
        self.unsynced.lock().extend(objects.into_iter().zip(files.into_iter().map(|(_, file)| file)));
    }
}
