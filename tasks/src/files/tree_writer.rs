//! Writes into a tree. Readers see the tree before or the tree after, even if the writer is killed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::directory::{FileTrace, TreeDirectory, TreeDirectoryEntry};
use super::layout::{self, MANIFEST, META, NEXT, STAGED, TREES};
use super::manifest::{ContentDigest, DigestWriter, ManifestFile, TreeManifest};
use super::tree::{Directories, FoundManifest, SessionTree, TreeLimits, is_staged, staged_path, stored_as};
use crate::{DamagedFile, Error, Result, StateCompression};

/// Maximum number of files that are synced one by one; for more, one sync of the file system is
/// faster.
const SYNCED_ALONE_MAX: usize = 32;

/// Bytes of a text that are written at a time.
const WRITTEN_BYTES: usize = 64 << 10;

/// Writes a text; must write the same text on each call.
pub(super) type WriteText<'a> = dyn Fn(&mut dyn Write) -> Result<()> + 'a;

/// Reports the results of a writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportReport {
    /// Directory of the session.
    pub dir: PathBuf,
    /// Number of files of the tree, without its manifest.
    pub files: u64,
    /// Number of those that were written.
    pub written: u64,
    /// Number of bytes that were written, without the manifest.
    pub written_bytes: u64,
    /// Number of files that were removed, since they no longer belong to the tree.
    pub removed: u64,
    /// Whether the writer finished the renames of a killed writer.
    pub finished_another: bool,
    /// Files in the tree's directories that belong to no tree, and were not touched.
    pub foreign: Vec<String>,
}

/// Contents of files, with the trace of each at that time.
pub(super) type KnownFiles = BTreeMap<String, (ManifestFile, FileTrace)>;

/// Describes a tree after it was written.
pub(super) struct WrittenTree {
    pub(super) report: ExportReport,
    /// Cacheable knowledge about the files.
    pub(super) files: KnownFiles,
    /// The manifest's entry of each file.
    pub(super) manifest: BTreeMap<String, ManifestFile>,
}

/// Provides exclusive access to a tree for writing.
pub(super) struct TreeWriter<'a> {
    /// Knowledge from an earlier export.
    known: Option<&'a KnownFiles>,
    /// Files whose content was found to be correct.
    found: RefCell<KnownFiles>,
    directories: Directories,
    before: Option<TreeManifest>,
    /// The manifest of the tree that is being written.
    pub(super) after: TreeManifest,
    staged: Vec<String>,
    /// Traces of the staged files, if they are needed.
    written: Vec<(String, FileTrace)>,
    /// The staged files, open, as long as they are few.
    few: Vec<File>,
    /// Damage of the previous manifest.
    damaged: Option<DamagedFile>,
    report: ExportReport,
}

impl<'a> TreeWriter<'a> {
    /// Opens the tree of a session beneath `to`, waits for exclusive access, and finishes the work
    /// of a killed writer.
    pub(super) fn open(
        to: &Path,
        session: Uuid,
        compression: StateCompression,
        known: Option<&'a KnownFiles>,
    ) -> Result<TreeWriter<'a>> {
        let missing = || Error::io("opened", to)(rustix::io::Errno::NOENT);
        let mut root = TreeDirectory::open(to)?.ok_or_else(missing)?;
        for name in TREES.into_iter().chain([session.to_string().as_str()]) {
            let (child, is_new) = root.make_child(name)?;
            if is_new {
                root.sync()?;
            }
            root = child;
        }
        root.lock(true)?;
        let mut report = ExportReport { dir: root.path().to_owned(), ..ExportReport::default() };
        let directories = Directories::new(root);
        match directories.manifest(NEXT)? {
            FoundManifest::Missing => {}
            FoundManifest::Sound(next) => {
                finish(&directories, &next)?;
                report.finished_another = true;
            }
            FoundManifest::Damaged(_) => directories.make(META)?.remove(NEXT)?,
        }
        let left = directories.list()?;
        for path in left.iter().filter(|path| is_staged(path)) {
            let (directory, name) = layout::split(path);
            directories.make(directory)?.remove(name)?;
        }
        let (before, damaged) = match directories.manifest(MANIFEST)? {
            FoundManifest::Sound(manifest) => (Some(manifest), None),
            FoundManifest::Missing => (None, None),
            FoundManifest::Damaged(file) => (None, Some(file)),
        };
        let after = TreeManifest::new(session, compression);
        let (staged, few) = (Vec::new(), Vec::new());
        let (found, written) = (RefCell::default(), Vec::new());
        Ok(TreeWriter { known, found, directories, before, after, staged, written, few, damaged, report })
    }

    /// Returns the previous manifest of the tree; `None` if there was no tree.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if the manifest is damaged. A writer of all files can continue; a writer
    /// of some files cannot.
    pub(super) fn before(&self) -> Result<Option<&TreeManifest>> {
        match &self.damaged {
            Some(file) => Err(Error::Damaged { dir: self.report.dir.clone(), files: vec![file.clone()] }),
            None => Ok(self.before.as_ref()),
        }
    }

    /// Opens the previous tree for reading.
    pub(super) fn tree(&self, limits: TreeLimits) -> Result<Option<SessionTree>> {
        let before = self.before()?.cloned();
        before
            .map(|before| Ok(SessionTree::as_written(self.directories.root.reopen()?, before, limits)))
            .transpose()
    }

    /// Keeps a file unchanged.
    pub(super) fn keep(&mut self, path: &str) {
        if let Some(file) = self.before.as_ref().and_then(|before| before.files.get(path)) {
            self.after.files.insert(path.to_owned(), file.clone());
        }
    }

    /// Keeps a file unchanged if it is known to match the manifest; returns whether it is.
    pub(super) fn keep_known(&mut self, path: &str) -> bool {
        let before = self.before.as_ref().filter(|before| before.compression == self.after.compression);
        let file = before.and_then(|before| before.files.get(path));
        let Some(file) = file.filter(|file| self.is_known(path, file)).cloned() else { return false };
        self.after.files.insert(path.to_owned(), file);
        true
    }

    /// Keeps all files of a directory unchanged if they are exactly those that were written last,
    /// and at least one; returns whether they are.
    pub(super) fn keep_directory(
        &mut self,
        directory: &str,
        written: &BTreeMap<String, ManifestFile>,
    ) -> bool {
        let Some(before) = &self.before else { return false };
        if before.compression != self.after.compression
            || of_directory(directory, written).next().is_none()
            || !of_directory(directory, &before.files).eq(of_directory(directory, written))
            || !of_directory(directory, written).all(|(path, file)| self.is_stored(path, file))
        {
            return false;
        }
        let kept = of_directory(directory, written).map(|(path, file)| (path.clone(), file.clone()));
        self.after.files.extend(kept);
        true
    }

    /// Returns whether a file is known to match the manifest.
    fn is_known(&self, path: &str, file: &ManifestFile) -> bool {
        let known = self.known.and_then(|known| known.get(path));
        let Some((_, trace)) = known.filter(|(known, _)| known == file) else { return false };
        let is_same = self.trace(path).is_some_and(|now| now == *trace);
        if is_same {
            self.found.borrow_mut().insert(path.to_owned(), (file.clone(), *trace));
        }
        is_same
    }

    fn trace(&self, path: &str) -> Option<FileTrace> {
        let (directory, name) = layout::split(path);
        self.directories.get(directory).ok()??.trace(name).ok()?
    }

    /// Sets the content of a file. A file that already has it is not written.
    pub(super) fn put(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let file = self.report.dir.join(path);
        let failed = |source| Error::Io { op: "written", path: file.clone(), source };
        self.put_streamed(path, &|out| out.write_all(content).map_err(failed))
    }

    /// Sets the content of a file to the JSON text that `write` writes, without buffering it.
    /// `write` is called twice: the first call determines whether the file already has that
    /// content.
    pub(super) fn put_streamed(&mut self, path: &str, write: &WriteText<'_>) -> Result<()> {
        let mut text = DigestWriter::new(io::sink());
        write(&mut text)?;
        let content = text.finish().0;
        if let Some(file) = self.unchanged_as(path, &content) {
            self.after.files.insert(path.to_owned(), file);
            return Ok(());
        }
        let (directory, name) = layout::split(path);
        let file = self.directories.make(directory)?.create(&format!("{name}{STAGED}"))?;
        let failed = |source| Error::Io { op: "written", path: self.report.dir.join(path), source };
        let stored = BufWriter::with_capacity(WRITTEN_BYTES, DigestWriter::new(file));
        let encoder = self.after.compression.encoder(content.bytes, stored).map_err(failed)?;
        let mut text = DigestWriter::new(encoder);
        write(&mut text)?;
        let (content, encoder) = text.finish();
        let stored = encoder.finish().and_then(|out| Ok(out.into_inner()?)).map_err(failed)?;
        let (stored, file) = stored.finish();
        self.stage(path, file, ManifestFile::of_digests(content, stored))
    }

    /// Adds a file to the tree that was written under its provisional name.
    fn stage(&mut self, path: &str, file: File, described: ManifestFile) -> Result<()> {
        let (directory, name) = layout::split(path);
        let directory = self.directories.make(directory)?;
        if self.known.is_some() {
            self.written.push((path.to_owned(), directory.trace_of(name, &file)?));
        }
        self.report.written += 1;
        self.report.written_bytes += described.bytes;
        self.after.files.insert(path.to_owned(), described);
        self.staged.push(path.to_owned());
        match self.staged.len() {
            ..=SYNCED_ALONE_MAX => self.few.push(file),
            _ => self.few.clear(),
        }
        Ok(())
    }

    /// Returns the manifest's entry of a file that has this content by the manifest, and on disk.
    fn unchanged_as(&self, path: &str, content: &ContentDigest) -> Option<ManifestFile> {
        let before = self.before.as_ref().filter(|before| before.compression == self.after.compression)?;
        let file = before.files.get(path)?;
        let is_same = file.content() == (content.bytes, &content.blake3);
        (is_same && self.is_stored(path, file)).then(|| file.clone())
    }

    /// Returns whether a file on disk matches the manifest.
    fn is_stored(&self, path: &str, file: &ManifestFile) -> bool {
        if self.is_known(path, file) {
            return true;
        }
        // Taken before the read: a write during the read changes the trace.
        let trace = self.known.and_then(|_| self.trace(path));
        let is_stored = stored_as(&self.directories, path, file).is_ok();
        if let Some(trace) = trace.filter(|_| is_stored) {
            self.found.borrow_mut().insert(path.to_owned(), (file.clone(), trace));
        }
        is_stored
    }

    /// Replaces the tree by that of the new manifest: first makes it durable next to the old one,
    /// then renames. Returns
    /// cacheable knowledge about the files.
    pub(super) fn commit(mut self) -> Result<WrittenTree> {
        self.report.files = self.after.files.len() as u64;
        let listed = self.directories.list()?;
        let (leaving, foreign): (Vec<String>, Vec<String>) = listed
            .into_iter()
            .filter(|path| !self.after.files.contains_key(path) && !is_staged(path))
            .partition(|path| layout::is_file(path));
        self.report.removed = leaving.len() as u64;
        self.report.foreign = foreign;
        if self.staged.is_empty() && leaving.is_empty() && self.before.as_ref() == Some(&self.after) {
            return Ok(self.with_known());
        }
        self.sync_staged()?;
        let meta = self.directories.make(META)?;
        let written = meta.write(&format!("{MANIFEST}{STAGED}"), &self.after.encode()?)?;
        sync(&written, &meta.path().join(MANIFEST))?;
        meta.rename(&format!("{MANIFEST}{STAGED}"), NEXT)?;
        // From here on the tree is the new one.
        meta.sync()?;
        take_places(&self.directories, &self.staged, &leaving)?;
        Ok(self.with_known())
    }

    /// Adds knowledge about files, but only about those that were changed long enough before the
    /// manifest. For these, a later change is visible in the trace.
    fn with_known(self) -> WrittenTree {
        let mut known = self.found.take();
        for (path, written) in &self.written {
            let now = self.trace(path).filter(|now| now.is_renamed(written));
            if let Some((file, now)) = self.after.files.get(path).zip(now) {
                known.insert(path.clone(), (file.clone(), now));
            }
        }
        match self.known.and_then(|_| self.trace(&format!("{META}/{MANIFEST}"))) {
            Some(manifest) => known.retain(|_, (_, trace)| trace.is_settled(&manifest)),
            None => known.clear(),
        }
        WrittenTree { report: self.report, files: known, manifest: self.after.files }
    }

    /// Makes the new files durable under their provisional names.
    fn sync_staged(&self) -> Result<()> {
        if self.few.len() < self.staged.len() && self.directories.root.sync_file_system()? {
            return Ok(());
        }
        for (path, file) in self.staged.iter().zip(&self.few) {
            sync(file, &self.report.dir.join(path))?;
        }
        for path in self.staged.iter().skip(self.few.len()) {
            let (directory, name) = layout::split(path);
            if let TreeDirectoryEntry::File(file, _) =
                self.directories.make(directory)?.entry(&format!("{name}{STAGED}"))?
            {
                sync(&file, &self.report.dir.join(path))?;
            }
        }
        for path in self.directories.take_changed() {
            match path.as_str() {
                "" => self.directories.root.sync()?,
                path => self.directories.make(path)?.sync()?,
            }
        }
        sync_directories(&self.directories, self.staged.iter().map(String::as_str))
    }
}

fn sync(file: &File, path: &Path) -> Result<()> {
    file.sync_all().map_err(|source| Error::Io { op: "synced", path: path.to_owned(), source })
}

/// Makes the names durable in the directories of these files.
fn sync_directories<'a>(directories: &Directories, paths: impl Iterator<Item = &'a str>) -> Result<()> {
    let touched: BTreeSet<&str> = paths.map(|path| layout::split(path).0).collect();
    for directory in touched {
        if let Some(directory) = directories.get(directory)? {
            directory.sync()?;
        }
    }
    Ok(())
}

/// Renames the new files, removes the `leaving` ones, and makes the next manifest the current one.
fn take_places(directories: &Directories, arriving: &[String], leaving: &[String]) -> Result<()> {
    rename_staged(directories, arriving)?;
    for path in leaving {
        let (directory, name) = layout::split(path);
        directories.make(directory)?.remove(name)?;
    }
    sync_directories(directories, arriving.iter().chain(leaving).map(String::as_str))?;
    let meta = directories.make(META)?;
    meta.rename(NEXT, MANIFEST)?;
    meta.sync()?;
    remove_empty_directories(directories, leaving)
}

/// Renames new files to their final names.
fn rename_staged(directories: &Directories, arriving: &[String]) -> Result<()> {
    for path in arriving {
        let (directory, name) = layout::split(path);
        directories.make(directory)?.rename(&format!("{name}{STAGED}"), name)?;
    }
    Ok(())
}

/// Returns the files of a directory and its subdirectories.
fn of_directory<'a>(
    directory: &'a str,
    files: &'a BTreeMap<String, ManifestFile>,
) -> impl Iterator<Item = (&'a String, &'a ManifestFile)> {
    let behind = files.range(directory.to_owned()..);
    behind
        .take_while(move |(path, _)| path.starts_with(directory))
        .filter(move |(path, _)| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')))
}

/// Removes empty directories of checkpoints.
fn remove_empty_directories(directories: &Directories, left: &[String]) -> Result<()> {
    let emptied: BTreeSet<&str> = left.iter().map(|path| layout::split(path).0).collect();
    for path in emptied.into_iter().filter(|path| path.starts_with(layout::CHECKPOINTS)) {
        let (parent, name) = layout::split(path);
        directories.forget(path);
        directories.make(parent)?.remove_empty(name)?;
    }
    Ok(())
}

/// Finishes the work of a killed writer. Damage of a file is not repaired here; the manifest
/// reveals it.
fn finish(directories: &Directories, next: &TreeManifest) -> Result<()> {
    let listed = directories.list()?;
    let there: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    let arriving: Vec<String> = next
        .files
        .iter()
        .filter(|(path, file)| {
            let staged = staged_path(path);
            there.contains(staged.as_str()) && stored_as(directories, &staged, file).is_ok()
        })
        .map(|(path, _)| path.clone())
        .collect();
    let is_leaving = |path: &&String| layout::is_file(path) && !next.files.contains_key(*path);
    let leaving: Vec<String> = listed.iter().filter(is_leaving).cloned().collect();
    take_places(directories, &arriving, &leaving)
}
