//! Git objects, as any git reads them: each in its own file, or many of a capture in
//! [packs](super::git_packs).
//!
//! An object is `<kind> <length>\0<content>`. Its name is the SHA-1 of that, and its file contains
//! that, compressed. The file is written under a temporary name and renamed, so that a name never
//! refers to a partial object. Commits, and the objects that a snapshot names besides its commit,
//! always have their own files.
//!
//! A store contains the workspace's contents, so its files are 0600 and its directories 0700,
//! regardless of the umask.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use sha1_checked::{Digest, Sha1};

use super::collect::was_collected;
use super::compression::{self, Compressors, SAMPLE_BYTES};
use super::directory_check;
use super::git_packs::{GitPack, GitPacks, PACKED_OBJECT_BYTES_MAX};
use super::known_objects::KnownObject;
use super::metadata::unhex;
use super::object_files::{OpenedObject, is_file, open_file};
use super::pool::Pool;
use crate::error::{Error, IoContext, Result};

/// A tree or a commit is read into memory entirely; no valid one comes near this size.
pub(super) const STRUCTURE_BYTES_MAX: u64 = 1 << 30;

/// Larger pieces are not read faster, and must be cleared for every small object.
const PIECE_BYTES: usize = 16 << 10;

pub(super) const TEMPORARY: &str = "tmp_obj_";

const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\
    [gc]\n\tauto = 0\n\tpruneExpire = never\n[receive]\n\tdenyCurrentBranch = refuse\n";

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct ObjectId(pub(super) [u8; 20]);

impl ObjectId {
    pub(super) const UNKNOWN: ObjectId = ObjectId([0; 20]);

    pub(super) fn parse(text: &str) -> Option<ObjectId> {
        let id = ObjectId(unhex(text)?.try_into().ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kind of an object, with its number in the header of an entry of a git pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ObjectKind {
    Commit = 1,
    Tree = 2,
    Blob = 3,
}

impl ObjectKind {
    pub(super) const ALL: [ObjectKind; 3] = [ObjectKind::Blob, ObjectKind::Tree, ObjectKind::Commit];

    pub(super) fn name(self) -> &'static str {
        match self {
            ObjectKind::Blob => "blob",
            ObjectKind::Tree => "tree",
            ObjectKind::Commit => "commit",
        }
    }

    fn head(self, len: u64) -> String {
        format!("{} {len}\0", self.name())
    }
}

/// The hash of an object, computed while its content is read. Content that was crafted to collide
/// with other content is rejected, so that no object can pass for another.
pub(super) struct Hasher(Sha1);

impl Hasher {
    pub(super) fn new(kind: ObjectKind, len: u64) -> Hasher {
        let mut hash = Sha1::new();
        hash.update(kind.head(len).as_bytes());
        Hasher(hash)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> io::Result<ObjectId> {
        let result = self.0.try_finalize();
        if result.has_collision() {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "made to collide with another content's SHA-1",
            ));
        }
        Ok(ObjectId((*result.hash()).into()))
    }

    pub(super) fn hash_bytes(kind: ObjectKind, bytes: &[u8]) -> io::Result<ObjectId> {
        let mut hash = Hasher::new(kind, len(bytes));
        hash.update(bytes);
        hash.finish()
    }

    /// Hashes a blob while it is read. Returns `None` if it does not have the stated length.
    pub(super) fn hash_blob(source: &mut dyn Read, len: u64) -> io::Result<Option<ObjectId>> {
        let mut hash = Hasher::new(ObjectKind::Blob, len);
        let read = pump(source, &mut |bytes| {
            hash.update(bytes);
            Ok(())
        })?;
        (read == len).then(|| hash.finish()).transpose()
    }
}

/// A place from which an object is read.
pub(super) enum ObjectPlace {
    /// The object's own file, which may be missing.
    File(PathBuf),
    /// An entry that begins at an offset in a pack.
    Packed(Arc<GitPack>, u64),
}

impl ObjectPlace {
    pub(super) fn path(&self) -> &Path {
        match self {
            ObjectPlace::File(path) => path,
            ObjectPlace::Packed(pack, _) => pack.path(),
        }
    }

    /// Returns the error for an object that is damaged.
    pub(super) fn damaged(&self, id: ObjectId, reason: String) -> Error {
        let reason = match self {
            ObjectPlace::File(_) => reason,
            ObjectPlace::Packed(_, offset) => format!("the object {id} at byte {offset}: {reason}"),
        };
        Error::Object { path: self.path().to_owned(), reason }
    }
}

pub(super) fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// A directory of git objects. It is created with the first object.
pub(super) struct Objects {
    store: PathBuf,
    pub(super) packs: GitPacks,
    /// Directory in which the objects have additional names.
    pub(super) pool: Option<Pool>,
    /// Another store, which is only read: it is searched for objects that this one lacks.
    pub(super) borrowed: Option<Box<Objects>>,
    /// Whether an object is damaged if its file contains bytes after the content. git regards it
    /// so.
    is_exact: bool,
    pub(super) known: Mutex<HashMap<ObjectId, KnownObject>>,
    /// Whether one of them may count as durable. Changed under their lock.
    pub(super) has_durable: AtomicBool,
    /// Number of captures that were started, and number of turns in which they check all objects.
    pub(super) turn: AtomicU64,
    pub(super) turns: AtomicU64,
    pub(super) compressors: Compressors,
}

impl Objects {
    pub(super) fn new(store: PathBuf) -> Objects {
        Objects {
            packs: GitPacks::new(&store.join("objects")),
            store,
            pool: None,
            borrowed: None,
            is_exact: false,
            known: Mutex::default(),
            has_durable: AtomicBool::new(false),
            turn: AtomicU64::new(0),
            turns: AtomicU64::new(1),
            compressors: Compressors::default(),
        }
    }

    /// Writes objects to `store`, and reads those of `other` that are not there.
    pub(super) fn with_borrowed(store: PathBuf, other: &Objects) -> Objects {
        Objects { borrowed: Some(Box::new(Objects::new(other.store.clone()))), ..Objects::new(store) }
    }

    /// Also regards an object as damaged if its file contains bytes after the content, which would
    /// not prevent a restore.
    pub(super) fn exactly(self) -> Objects {
        Objects { is_exact: true, ..self }
    }

    pub(super) fn store(&self) -> &Path {
        &self.store
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.store.join("objects")
    }

    pub(super) fn path(&self, id: ObjectId) -> PathBuf {
        path_in(&self.store, id)
    }

    /// Returns the id of the object with a name.
    pub(super) fn named(&self, name: &str) -> Result<ObjectId> {
        ObjectId::parse(name).ok_or_else(|| Error::Object {
            path: self.store.clone(),
            reason: format!("`{}` is not the name of an object", name.escape_debug()),
        })
    }

    /// Returns the error for an object that is damaged.
    pub(super) fn damaged(&self, id: ObjectId, reason: impl Into<String>) -> Error {
        self.place(id).damaged(id, reason.into())
    }

    /// Returns the place from which an object is read; if it is missing, that of its own file.
    pub(super) fn place(&self, id: ObjectId) -> ObjectPlace {
        let own = self.path(id);
        if fs::symlink_metadata(&own).is_ok() {
            return ObjectPlace::File(own);
        }
        if let Some((pack, offset)) = self.packs.find(id) {
            return ObjectPlace::Packed(pack, offset);
        }
        let borrowed = self.borrowed.as_ref().map(|borrowed| borrowed.place(id));
        borrowed.unwrap_or(ObjectPlace::File(own))
    }

    /// Returns whether there is an object that has no file of its own, as far as is known without
    /// listing packs again: a pack that another process wrote meanwhile is found by a later capture.
    pub(super) fn has_elsewhere(&self, id: ObjectId) -> bool {
        self.packs.has_listed(id) || self.borrowed.as_ref().is_some_and(|borrowed| borrowed.contains(id))
    }

    /// Returns whether there is an object, whether or not it is intact.
    pub(super) fn contains(&self, id: ObjectId) -> bool {
        match self.place(id) {
            ObjectPlace::File(path) => path.exists(),
            ObjectPlace::Packed(..) => true,
        }
    }

    /// Creates the store if it does not exist. A kill leaves a store that a later call can
    /// complete.
    pub(super) fn prepare(&self) -> Result<()> {
        let head = self.store.join("HEAD");
        if is_file(&head).during("read", &head)? {
            return Ok(());
        }
        for directory in [self.store.clone(), self.directory(), self.store.join("refs")] {
            create_directory(&directory).during("create", directory)?;
        }
        // `HEAD` comes last, since a store with one is regarded as complete.
        for (name, text) in [("config", CONFIG), ("HEAD", "ref: refs/heads/none\n")] {
            self.replace(name, text.as_bytes())?;
        }
        Ok(())
    }

    /// Writes one of the store's own files. An entry of a different kind in its place stays.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.store.join(name);
        is_file(&path).during("write", &path)?;
        let temporary = self.temporary();
        let written = create(&temporary).and_then(|mut file| file.write_all(bytes));
        let renamed = written.and_then(|()| fs::rename(&temporary, &path));
        renamed.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::io("write", path, error)
        })
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.directory().join(Objects::temporary_name())
    }

    /// Creates a name that git also regards as a leftover.
    fn temporary_name() -> String {
        // Several values of this process, and of processes with its id in other containers, may
        // write to one store.
        static COUNT: LazyLock<AtomicU64> =
            LazyLock::new(|| AtomicU64::new(directory_check::entropic().as_u64_pair().0 >> 1));
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{TEMPORARY}{}_{count}", std::process::id())
    }

    /// Reads an object, and checks its content and that its file contains nothing else.
    pub(super) fn verify(&self, id: ObjectId, kind: ObjectKind) -> Result<()> {
        let opened = self.open(id, kind)?;
        self.drain(id, opened, &mut io::sink(), true).map(drop)
    }

    pub(super) fn write(&self, kind: ObjectKind, bytes: &[u8]) -> Result<ObjectId> {
        let named = |error| Error::io("hash", self.directory(), error);
        let id = Hasher::hash_bytes(kind, bytes).map_err(named)?;
        if !self.is_sound(id, kind)? && !self.link_pooled(id, kind) {
            self.write_file(id, kind, bytes)?;
        }
        Ok(id)
    }

    /// Writes the own file of an object.
    pub(super) fn write_file(&self, id: ObjectId, kind: ObjectKind, bytes: &[u8]) -> Result<()> {
        // In the directory of its name: a rename within one directory is faster than one between
        // two.
        let temporary = self.path(id).with_file_name(Objects::temporary_name());
        let kept = self
            .own_form(kind, bytes)
            .and_then(|compressed| with_directory(&temporary, || create(&temporary))?.write_all(&compressed))
            .and_then(|()| self.name(&temporary, id));
        kept.map_err(|error| self.not_kept(&temporary, id, error))?;
        self.learn_sound(id);
        Ok(())
    }

    /// Returns the bytes of the own file of an object.
    fn own_form(&self, kind: ObjectKind, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut compressed = Vec::new();
        self.compressors.compress([kind.head(len(bytes)).as_bytes(), bytes], &mut compressed)?;
        Ok(compressed)
    }

    /// Stores a blob while it is read. Returns `None` if it did not have the stated length.
    pub(super) fn write_from(&self, source: &mut dyn Read, len: u64) -> Result<Option<ObjectId>> {
        let temporary = self.temporary();
        let named = |error| Error::io("write", &temporary, error);
        let mut hash = Hasher::new(ObjectKind::Blob, len);
        let mut sample = Vec::with_capacity(SAMPLE_BYTES);
        source.take(SAMPLE_BYTES as u64).read_to_end(&mut sample).map_err(named)?;
        let source = &mut sample.chain(source);
        let mut encoder = compression::encoder(create(&temporary).map_err(named)?, &sample);
        let mut write = || -> io::Result<Option<ObjectId>> {
            encoder.write_all(ObjectKind::Blob.head(len).as_bytes())?;
            let read = pump(&mut source.take(len.saturating_add(1)), &mut |bytes| {
                hash.update(bytes);
                encoder.write_all(bytes)
            })?;
            encoder.try_finish()?;
            let hash = std::mem::replace(&mut hash, Hasher::new(ObjectKind::Blob, 0));
            (read == len).then(|| hash.finish()).transpose()
        };
        let written = write();
        let is_kept = |id: ObjectId| -> Result<bool> {
            Ok(self.is_sound(id, ObjectKind::Blob)? || self.link_pooled(id, ObjectKind::Blob))
        };
        let kept = match written.as_ref().ok().copied().flatten().map(|id| (id, is_kept(id))) {
            Some((id, Ok(false))) => {
                let named = self.name(&temporary, id);
                named.map_err(|error| self.not_kept(&temporary, id, error)).map(|()| self.learn_sound(id))
            }
            other => {
                let _ = fs::remove_file(&temporary);
                other.map_or(Ok(()), |(_, kept)| kept.map(drop))
            }
        };
        let id = written.map_err(named)?;
        kept?;
        Ok(id)
    }

    fn not_kept(&self, temporary: &Path, id: ObjectId, error: io::Error) -> Error {
        let _ = fs::remove_file(temporary);
        Error::io("write", self.path(id), error)
    }

    pub(super) fn name(&self, temporary: &Path, id: ObjectId) -> io::Result<()> {
        let path = self.path(id);
        with_directory(&path, || fs::rename(temporary, &path))
    }

    fn open(&self, id: ObjectId, kind: ObjectKind) -> Result<OpenedObject> {
        let opened = self.open_any(id)?;
        match opened.kind == kind {
            true => Ok(opened),
            false => Err(self.damaged(id, format!("it is not a {}", kind.name()))),
        }
    }

    /// Opens an object of any kind.
    fn open_any(&self, id: ObjectId) -> Result<OpenedObject> {
        let own = self.path(id);
        let missing = match open_file(&own) {
            Ok(file) => {
                return OpenedObject::read_head(file).map_err(|reason| Error::Object { path: own, reason });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => error,
            Err(error) => return Err(Error::Object { path: own, reason: error.to_string() }),
        };
        // A collection may replace a pack after it was listed.
        for is_again in [false, true] {
            let Some((pack, offset)) = self.packs.find(id) else { break };
            let opened = match pack.open_object(offset) {
                Err(error) if error.kind() == ErrorKind::NotFound && !is_again => {
                    self.packs.forget();
                    continue;
                }
                opened => opened.unwrap_or_else(|error| Err(error.to_string())),
            };
            let damaged = |reason| ObjectPlace::Packed(pack, offset).damaged(id, reason);
            return opened.map_err(damaged);
        }
        match &self.borrowed {
            Some(borrowed) => borrowed.open_any(id),
            None if was_collected(&self.store, id) => {
                Err(Error::Collected { store: self.store.clone(), object: id.to_string() })
            }
            None => Err(Error::Object { path: own, reason: self.missing(&missing) }),
        }
    }

    /// Returns the reason why an object that has no file of its own is missing: it may have been in
    /// a pack that cannot be used.
    fn missing(&self, error: &io::Error) -> String {
        let damaged = self.packs.damaged();
        let lost = damaged.first().map(|pack| {
            let name = pack.path.file_name().unwrap_or_default().to_string_lossy();
            format!("; it may have been in {name}, which cannot be used: {}", pack.reason)
        });
        format!("{error}{}", lost.unwrap_or_default())
    }

    /// Returns whether there is an intact object with this name, of any kind.
    pub(super) fn has_intact(&self, id: ObjectId) -> bool {
        self.open_any(id).is_ok_and(|opened| opened.drain(id, true, &mut |_| {}).is_ok())
    }

    /// Reads and checks an object, and returns the bytes of its own file, or of the file that it
    /// would have.
    pub(super) fn file_form(&self, id: ObjectId, kind: ObjectKind) -> Result<(u64, Box<dyn Read>)> {
        let read = |error| Error::io("read", self.path(id), error);
        if let Ok(file) = open_file(&self.path(id)) {
            self.verify(id, kind)?;
            let len = file.metadata().map_err(read)?.len();
            return Ok((len, Box::new(file)));
        }
        let bytes = self.read(id, kind, PACKED_OBJECT_BYTES_MAX as u64)?;
        let bytes = self.own_form(kind, &bytes).map_err(read)?;
        Ok((len(&bytes), Box::new(io::Cursor::new(bytes))))
    }

    /// Returns the length of an object according to its head.
    pub(super) fn said_len(&self, id: ObjectId, kind: ObjectKind) -> Result<u64> {
        Ok(self.open(id, kind)?.len)
    }

    /// Copies an object's content, and checks at the end whether it matches the object's name.
    pub(super) fn copy(&self, id: ObjectId, kind: ObjectKind, into: &mut dyn Write) -> Result<u64> {
        let opened = self.open(id, kind)?;
        self.drain(id, opened, into, self.is_exact)
    }

    fn drain(&self, id: ObjectId, opened: OpenedObject, into: &mut dyn Write, is_exact: bool) -> Result<u64> {
        let mut write_error = None;
        let read = opened.drain(id, is_exact, &mut |bytes| {
            if write_error.is_none() {
                write_error = into.write_all(bytes).err();
            }
        });
        match write_error {
            Some(error) => Err(Error::io("write a copy of", self.path(id), error)),
            None => read.map_err(|reason| self.damaged(id, reason)),
        }
    }

    /// Checks an object. Returns its content if it is not longer than `bytes_max`.
    pub(super) fn check(&self, id: ObjectId, kind: ObjectKind, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let opened = self.open(id, kind)?;
        if opened.len > bytes_max {
            self.drain(id, opened, &mut io::sink(), self.is_exact)?;
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.drain(id, opened, &mut bytes, self.is_exact)?;
        Ok(Some(bytes))
    }

    pub(super) fn read(&self, id: ObjectId, kind: ObjectKind, bytes_max: u64) -> Result<Vec<u8>> {
        self.read_opened(id, self.open(id, kind)?, bytes_max)
    }

    /// Reads an object of any kind.
    pub(super) fn read_any(&self, id: ObjectId, bytes_max: u64) -> Result<(ObjectKind, Vec<u8>)> {
        let opened = self.open_any(id)?;
        Ok((opened.kind, self.read_opened(id, opened, bytes_max)?))
    }

    fn read_opened(&self, id: ObjectId, opened: OpenedObject, bytes_max: u64) -> Result<Vec<u8>> {
        if opened.len > bytes_max {
            let reason = format!("{} bytes exceed the limit of {bytes_max} bytes", opened.len);
            return Err(self.damaged(id, reason));
        }
        let mut bytes = Vec::new();
        self.drain(id, opened, &mut bytes, self.is_exact)?;
        Ok(bytes)
    }
}

pub(super) fn path_in(store: &Path, id: ObjectId) -> PathBuf {
    let name = id.to_string();
    let (directory, file) = name.split_at_checked(2).unwrap_or_default();
    store.join("objects").join(directory).join(file)
}

/// Makes an entry at a path, whose directory is created if it is missing.
pub(super) fn with_directory<T>(path: &Path, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), create_directory)?;
            make()
        }
        made => made,
    }
}

/// Creates a directory only for its owner, regardless of the umask. An existing one is left
/// unchanged.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mode = 0o700;
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates a file only for its owner, regardless of the umask.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match create_new(path) {
        // A process with the same id was killed while it wrote this file.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create_new(path)
        }
        created => created,
    }
}

pub(super) fn create_new(path: &Path) -> io::Result<File> {
    let mode = 0o600;
    let created = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    created.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(created)
}

/// Reads everything, piece by piece, and returns the number of bytes.
pub(super) fn pump(source: &mut dyn Read, take: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut total = 0;
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(read) => {
                let bytes = buffer.get(..read).unwrap_or_default();
                take(bytes)?;
                total += len(bytes);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
