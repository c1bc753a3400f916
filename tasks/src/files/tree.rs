//! An open tree: its directories, its manifest, and its files. Each file is verified against the
//! manifest when it is read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use uuid::Uuid;

use super::directory::{TreeDirectory, TreeDirectoryEntry};
use super::layout::{self, MANIFEST, META, NEXT, STAGED};
use super::manifest::{MANIFEST_BYTES_MAX, ManifestFile, TreeManifest, hex_of};
use crate::{DamagedFile, Error, FileDamage, Result, StateCompression};

/// Limits the length of files. Longer files are not read, whatever length a manifest states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Maximum decompressed length of one file, in bytes. Default: 1 GiB.
    pub file_bytes_max: u64,
    /// Maximum decompressed length of all files, in bytes. Default: 4 GiB.
    pub tree_bytes_max: u64,
    /// Maximum number of decompressed bytes for each stored byte, if a file or a tree has more than
    /// 64 MiB. Default: 32.
    pub expansion_max: u64,
}

/// Decompressed bytes that are always allowed for a file or a tree, however few are stored.
const EXPANDED_BYTES_MIN: u64 = 64 << 20;

impl Default for TreeLimits {
    fn default() -> TreeLimits {
        TreeLimits { file_bytes_max: 1 << 30, tree_bytes_max: 4 << 30, expansion_max: 32 }
    }
}

impl TreeLimits {
    /// Returns the limits of a reader that can use this number of bytes of files, however few are
    /// stored.
    pub fn of_bytes(bytes: u64) -> TreeLimits {
        TreeLimits { file_bytes_max: bytes, tree_bytes_max: bytes, expansion_max: u64::MAX }
    }

    /// Returns the maximum decompressed length for `stored` bytes; `bytes_max` is the limit of the
    /// file or tree.
    fn expanded_max(&self, stored: u64, bytes_max: u64) -> u64 {
        bytes_max.min(stored.saturating_mul(self.expansion_max).max(EXPANDED_BYTES_MIN))
    }
}

/// The open directories of a session's tree.
pub(super) struct Directories {
    pub(super) root: TreeDirectory,
    open: RefCell<BTreeMap<String, Rc<TreeDirectory>>>,
    changed: RefCell<BTreeSet<String>>,
}

/// The result of looking for a manifest.
pub(super) enum FoundManifest {
    Missing,
    Sound(TreeManifest),
    Damaged(DamagedFile),
}

impl Directories {
    pub(super) fn new(root: TreeDirectory) -> Directories {
        Directories { root, open: RefCell::default(), changed: RefCell::default() }
    }

    /// Opens a directory of the tree; returns `None` if it is missing.
    pub(super) fn get(&self, path: &str) -> Result<Option<Rc<TreeDirectory>>> {
        self.directory(path, |directory, name, _| directory.child(name))
    }

    /// Opens a directory of the tree, and creates it if it is missing.
    pub(super) fn make(&self, path: &str) -> Result<Rc<TreeDirectory>> {
        let made = self.directory(path, |directory, name, above| {
            let (child, is_new) = directory.make_child(name)?;
            if is_new {
                self.changed.borrow_mut().insert(above.to_owned());
            }
            Ok(Some(child))
        })?;
        made.ok_or_else(|| Error::NoTree {
            path: self.root.path().to_owned(),
            reason: format!("directory {path} was removed"),
        })
    }

    /// Takes the paths of directories in which directories were created; the root's path is empty.
    pub(super) fn take_changed(&self) -> BTreeSet<String> {
        self.changed.take()
    }

    /// `open` receives a directory, the name in it, and the directory's path.
    fn directory(
        &self,
        path: &str,
        open: impl Fn(&TreeDirectory, &str, &str) -> Result<Option<TreeDirectory>>,
    ) -> Result<Option<Rc<TreeDirectory>>> {
        if let Some(directory) = self.open.borrow().get(path) {
            return Ok(Some(Rc::clone(directory)));
        }
        let (mut at, mut above): (Option<TreeDirectory>, String) = (None, String::new());
        for name in path.split('/') {
            match open(at.as_ref().unwrap_or(&self.root), name, &above)? {
                Some(directory) => at = Some(directory),
                None => return Ok(None),
            }
            above = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        }
        let Some(directory) = at.map(Rc::new) else { return Ok(None) };
        self.open.borrow_mut().insert(path.to_owned(), Rc::clone(&directory));
        Ok(Some(directory))
    }

    /// Forgets an open directory before it is removed.
    pub(super) fn forget(&self, path: &str) {
        self.open.borrow_mut().remove(path);
    }

    /// Reads the manifest `name`.
    pub(super) fn manifest(&self, name: &str) -> Result<FoundManifest> {
        let damaged = |damage| {
            let path = format!("{META}/{name}");
            Ok(FoundManifest::Damaged(DamagedFile { path, damage }))
        };
        let Some(meta) = self.get(META)? else { return Ok(FoundManifest::Missing) };
        let bytes = match meta.read(name, MANIFEST_BYTES_MAX) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(FoundManifest::Missing),
            Err(Error::TooLong { bytes_max }) => return damaged(FileDamage::TooLong { bytes_max }),
            Err(Error::OtherKind { found, .. }) => return damaged(FileDamage::OtherKind(found)),
            Err(error) => return Err(error),
        };
        match TreeManifest::decode(&bytes) {
            Ok(manifest) => Ok(FoundManifest::Sound(manifest)),
            Err(reason) => damaged(FileDamage::Unreadable(reason)),
        }
    }

    /// Lists all files in the directories of the tree, except its manifests: paths, in order.
    pub(super) fn list(&self) -> Result<Vec<String>> {
        let mut listed = Vec::new();
        self.list_in("", &mut listed)?;
        Ok(listed)
    }

    fn list_in(&self, directory: &str, listed: &mut Vec<String>) -> Result<()> {
        let names = match directory {
            "" => self.root.names()?,
            _ => self.get(directory)?.map_or_else(|| Ok(Vec::new()), |open| open.names())?,
        };
        for (name, is_directory) in names {
            let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
            let is_manifest = || [MANIFEST, NEXT].contains(&name.as_str());
            if is_directory && layout::is_directory(&path) {
                self.list_in(&path, listed)?;
            } else if directory != META || !is_manifest() {
                listed.push(path);
            }
        }
        Ok(())
    }
}

/// Provides read access to a session's tree. The tree cannot be written while it is open.
pub struct SessionTree {
    directories: Directories,
    manifest: TreeManifest,
    /// Files that are to be removed, if the tree has its next manifest, but not all files are
    /// renamed yet.
    leaving: Option<BTreeSet<String>>,
    limits: TreeLimits,
}

impl std::fmt::Debug for SessionTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("dir", &self.dir()).finish_non_exhaustive()
    }
}

impl SessionTree {
    /// Opens a tree. `dir` is a session's directory, or a directory with an `.aca` that contains
    /// one session.
    ///
    /// # Errors
    ///
    /// [`Error::NoTree`] if there is none, or more than one, [`Error::InUse`] if a writer keeps it
    /// locked for a minute, [`Error::Damaged`] if the manifest is damaged, [`Error::OtherKind`] if
    /// there are links or files in place of directories, [`Error::Io`].
    pub fn open(dir: &Path, limits: TreeLimits) -> Result<SessionTree> {
        SessionTree::open_root(locate(dir)?, limits)
    }

    /// Opens a tree to read its intact files. A damaged next manifest is ignored if the current one
    /// is intact.
    pub(super) fn open_sound(dir: &Path, limits: TreeLimits) -> Result<SessionTree> {
        match SessionTree::open(dir, limits) {
            Err(Error::Damaged { dir, files }) => {
                let root = locate(&dir)?;
                root.lock(false)?;
                let directories = Directories::new(root);
                match directories.manifest(MANIFEST)? {
                    FoundManifest::Sound(manifest) => {
                        Ok(SessionTree { directories, manifest, leaving: None, limits })
                    }
                    _ => Err(Error::Damaged { dir, files }),
                }
            }
            opened => opened,
        }
    }

    /// Opens the tree of a session whose `.aca` is in `to`; returns `None` if there is none.
    pub(super) fn of_session(to: &Path, session: Uuid, limits: TreeLimits) -> Result<Option<SessionTree>> {
        match session_directory(to, session)?.map(|root| SessionTree::open_root(root, limits)).transpose() {
            Err(Error::NoTree { .. }) => Ok(None),
            opened => opened,
        }
    }

    /// Returns a view of a tree by its manifest while a writer has it locked.
    pub(super) fn as_written(root: TreeDirectory, manifest: TreeManifest, limits: TreeLimits) -> SessionTree {
        SessionTree { directories: Directories::new(root), manifest, leaving: None, limits }
    }

    fn open_root(root: TreeDirectory, limits: TreeLimits) -> Result<SessionTree> {
        root.lock(false)?;
        let directories = Directories::new(root);
        let dir = || directories.root.path().to_owned();
        let damaged = |file| Error::Damaged { dir: dir(), files: vec![file] };
        let (manifest, leaving) = match (directories.manifest(NEXT)?, directories.manifest(MANIFEST)?) {
            (FoundManifest::Damaged(file), _) | (FoundManifest::Missing, FoundManifest::Damaged(file)) => {
                return Err(damaged(file));
            }
            (FoundManifest::Sound(next), before) => {
                let leaving = match before {
                    FoundManifest::Sound(before) => before.files.into_keys().collect(),
                    _ => BTreeSet::new(),
                };
                (next, Some(leaving))
            }
            (FoundManifest::Missing, FoundManifest::Sound(manifest)) => (manifest, None),
            (FoundManifest::Missing, FoundManifest::Missing) => {
                let reason = format!("{META}/{MANIFEST} does not exist");
                return Err(Error::NoTree { path: dir(), reason });
            }
        };
        Ok(SessionTree { directories, manifest, leaving, limits })
    }

    /// Returns the session's directory.
    pub fn dir(&self) -> &Path {
        self.directories.root.path()
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &TreeManifest {
        &self.manifest
    }

    /// Returns whether the last writer was killed before it renamed all files. The tree is
    /// complete; the next writer finishes the renames.
    pub fn is_unfinished(&self) -> bool {
        self.leaving.is_some()
    }

    /// Lists files of a killed writer that are no part of the tree: paths within the session's
    /// directory.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        let listed = self.directories.list()?;
        Ok(listed.into_iter().filter(|path| !self.is_part(path) && is_staged(path)).collect())
    }

    fn is_part(&self, path: &str) -> bool {
        let staged = path.strip_suffix(STAGED).filter(|_| self.is_unfinished());
        self.manifest.files.contains_key(path)
            || staged.is_some_and(|path| self.manifest.files.contains_key(path))
    }

    /// Compares all files with the manifest, and lists those that differ, are missing, or are not
    /// in the manifest.
    pub fn damage(&self) -> Result<Vec<DamagedFile>> {
        let mut damaged = Vec::new();
        let (mut stored, mut expanded): (u64, u64) = (0, 0);
        for (path, file) in &self.manifest.files {
            let bytes_max =
                self.limits.expanded_max(stored.saturating_add(file.bytes), self.limits.tree_bytes_max);
            let sum = expanded.saturating_add(file.content().0);
            let damage = match sum <= bytes_max {
                true => self.read_stored(path, file).err(),
                false => Some(FileDamage::TooLong { bytes_max }),
            };
            if damage.is_none() {
                (stored, expanded) = (stored.saturating_add(file.bytes), sum);
            }
            damaged.extend(damage.map(|damage| DamagedFile { path: path.clone(), damage }));
        }
        let leaving = |path: &String| self.leaving.as_ref().is_some_and(|leaving| leaving.contains(path));
        let listed = self.directories.list()?.into_iter();
        let extra = listed.filter(|path| !self.is_part(path) && !is_staged(path) && !leaving(path));
        damaged.extend(extra.map(|path| DamagedFile { path, damage: FileDamage::Extra }));
        Ok(damaged)
    }

    /// Reads a file of the tree, decompressed; returns `None` if the tree has no such file.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if the file does not match the manifest.
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.manifest.files.get(path) else { return Ok(None) };
        let content = self.read_stored(path, file).and_then(|stored| {
            let (bytes, digest) = file.content();
            if file.content.is_none() {
                return Ok(stored);
            }
            let content = StateCompression::decompress(&stored, bytes);
            let content = content.map_err(|error| FileDamage::Unreadable(error.to_string()))?;
            compare(&content, bytes, digest)?;
            Ok(content)
        });
        content.map(Some).map_err(|damage| self.damage_error(path, damage))
    }

    pub(super) fn damage_error(&self, path: &str, damage: FileDamage) -> Error {
        let file = DamagedFile { path: path.to_owned(), damage };
        Error::Damaged { dir: self.dir().to_owned(), files: vec![file] }
    }

    /// Lists the paths of files in a directory of the tree's root.
    pub(super) fn paths_in(&self, directory: &str) -> impl Iterator<Item = &str> {
        self.manifest.files.keys().map(String::as_str).filter(move |path| layout::is_within(path, directory))
    }

    /// Reads a file's stored bytes.
    fn read_stored(&self, path: &str, file: &ManifestFile) -> Result<Vec<u8>, FileDamage> {
        let bytes_max = self.limits.expanded_max(file.bytes, self.limits.file_bytes_max);
        if file.content().0 > bytes_max {
            return Err(FileDamage::TooLong { bytes_max });
        }
        let staged = self.is_unfinished().then(|| stored_as(&self.directories, &staged_path(path), file));
        match staged {
            Some(Ok(bytes)) => Ok(bytes),
            _ => stored_as(&self.directories, path, file),
        }
    }
}

/// Returns the path of a file that is not yet a part of the tree.
pub(super) fn staged_path(path: &str) -> String {
    format!("{path}{STAGED}")
}

/// Returns whether a file is not yet a part of a tree, by its path.
pub(super) fn is_staged(path: &str) -> bool {
    path.strip_suffix(STAGED).is_some_and(|path| layout::is_file(path) || layout::is_manifest(path))
}

/// Reads a file, and compares it with its entry in the manifest.
pub(super) fn stored_as(
    directories: &Directories,
    path: &str,
    file: &ManifestFile,
) -> Result<Vec<u8>, FileDamage> {
    let unreadable = |error: Error| match error {
        Error::OtherKind { found, .. } => FileDamage::OtherKind(found),
        error => FileDamage::Unreadable(error.to_string()),
    };
    let (directory, name) = layout::split(path);
    let directory = directories.get(directory).map_err(unreadable)?.ok_or(FileDamage::Missing)?;
    let (open, len) = match directory.entry(name).map_err(unreadable)? {
        TreeDirectoryEntry::File(open, len) => (open, len),
        TreeDirectoryEntry::Missing => return Err(FileDamage::Missing),
        TreeDirectoryEntry::Other(kind) => return Err(FileDamage::OtherKind(kind)),
    };
    if len != file.bytes {
        return Err(FileDamage::Length { expected: file.bytes, found: len });
    }
    let bytes = directory.read_open(name, open, len).map_err(unreadable)?;
    compare(&bytes, file.bytes, &file.blake3)?;
    Ok(bytes)
}

fn compare(bytes: &[u8], len: u64, digest: &str) -> Result<(), FileDamage> {
    if bytes.len() as u64 != len {
        return Err(FileDamage::Length { expected: len, found: bytes.len() as u64 });
    }
    let found = hex_of(bytes);
    match found == digest {
        true => Ok(()),
        false => Err(FileDamage::Differs { expected: digest.to_owned(), found }),
    }
}

/// Opens the directory of a session whose `.aca` is in `to`; returns `None` if there is none.
pub(super) fn session_directory(to: &Path, session: Uuid) -> Result<Option<TreeDirectory>> {
    let mut directory = TreeDirectory::open(to)?;
    for name in layout::TREES.into_iter().chain([session.to_string().as_str()]) {
        let Some(above) = directory else { return Ok(None) };
        directory = above.child(name)?;
    }
    Ok(directory)
}

/// Finds the directory of a session: `dir` itself, or the only one in its `.aca`, or in `dir` if it
/// is an `.aca`.
fn locate(dir: &Path) -> Result<TreeDirectory> {
    let no_tree = |reason: String| Error::NoTree { path: dir.to_owned(), reason };
    let root = TreeDirectory::open(dir)?.ok_or_else(|| no_tree("the directory does not exist".to_owned()))?;
    let has_tree = |directory: &TreeDirectory| directory.child(META).map(|meta| meta.is_some());
    if has_tree(&root)? {
        return Ok(root);
    }
    let [aca, sessions] = layout::TREES;
    let all = match root.child(aca)? {
        Some(aca) => aca.child(sessions)?,
        None => root.child(sessions)?,
    };
    let all = all.ok_or_else(|| no_tree(format!("it contains neither {META} nor {aca}")))?;
    let is_session = |(name, is_directory): &(String, bool)| *is_directory && name.parse::<Uuid>().is_ok();
    let names: Vec<String> = all.names()?.into_iter().filter(is_session).map(|(name, _)| name).collect();
    match names.as_slice() {
        [only] => all.child(only)?.ok_or_else(|| no_tree(format!("session {only} is gone"))),
        [] => Err(no_tree("it contains no session".to_owned())),
        many => Err(no_tree(format!("it contains several sessions, name one: {}", many.join(", ")))),
    }
}
