//! Removes and counts files of a store, and leaves entries of other kinds alone.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ObjectId;

use super::captures::{self, CapturesInUse};
use super::{CollectReport, CollectedFiles, LeftAlone, Store};
use crate::error::{Error, Result};
use crate::log::{image_files, layout};
use crate::storage::{Access, DirectoryEntry, EntryKind, Storage};

/// Returns the error of a removal. A file that was already removed is not an error.
pub(in crate::store) fn check_removal(op: &'static str, path: &Path, done: io::Result<()>) -> Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(op, path, error)),
        _ => Ok(()),
    }
}

pub(super) struct FileSweeper<'a> {
    pub(super) store: &'a Store,
    pub(super) dry_run: bool,
    pub(super) collected: CollectedFiles,
    left: Vec<LeftAlone>,
}

impl FileSweeper<'_> {
    pub(super) fn new(store: &Store, dry_run: bool) -> FileSweeper<'_> {
        FileSweeper { store, dry_run, collected: CollectedFiles::default(), left: Vec::new() }
    }

    /// Adds the counts and the entries left alone to a report. Returns the counts.
    pub(super) fn end(self, report: &mut CollectReport) -> CollectedFiles {
        report.all.add(self.collected);
        report.left.extend(self.left);
        self.collected
    }

    pub(super) fn storage(&self) -> &Arc<dyn Storage> {
        self.store.storage()
    }

    /// Lists a directory. An entry of a different kind is left alone and listed as empty.
    pub(super) fn list(&mut self, directory: &Path) -> Result<Vec<DirectoryEntry>> {
        if !self.is_directory(directory)? {
            return Ok(Vec::new());
        }
        Ok(self.storage().entries_if_any(directory)?.unwrap_or_default())
    }

    /// Returns whether a directory exists at `path`. An entry of a different kind is left alone.
    pub(super) fn is_directory(&mut self, path: &Path) -> Result<bool> {
        match self.storage().look_up(path)? {
            Some(entry) if entry.kind == EntryKind::Directory => Ok(true),
            Some(entry) => {
                self.leave(path.to_owned(), entry.kind);
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Lists the regular files in a directory that have names which the engine uses there. Entries
    /// of different kinds with such a name are left alone.
    pub(super) fn files(
        &mut self,
        directory: &Path,
        is_own: impl Fn(&str) -> bool,
    ) -> Result<Vec<DirectoryEntry>> {
        let mut files = self.list(directory)?;
        files.retain(|entry| {
            let is_own = is_own(&entry.name);
            if is_own && entry.kind != EntryKind::File {
                self.leave(directory.join(&entry.name), entry.kind);
            }
            is_own && entry.kind == EntryKind::File
        });
        Ok(files)
    }

    pub(super) fn leave(&mut self, path: PathBuf, what: EntryKind) {
        self.left.push(LeftAlone { path, what: what.to_string() });
    }

    /// Removes a file, and counts its bytes if that was its last name.
    pub(super) fn remove(&mut self, path: &Path, len: u64) -> Result<()> {
        let is_last = self.storage().links(path).is_ok_and(|names| names == 1);
        self.collected.bytes += if is_last { len } else { 0 };
        if self.dry_run {
            return Ok(());
        }
        check_removal("remove", path, self.storage().remove_file(path))
    }

    /// Collects the objects whose names are not in `named`.
    pub(super) fn objects(&mut self, dir: &Path, named: &BTreeSet<String>) -> Result<()> {
        let directory = layout::objects_dir(dir);
        let finished = |name: &str| name.strip_suffix(".new").unwrap_or(name).to_owned();
        for entry in self.files(&directory, |name| ObjectId::from_file_name(&finished(name), 0).is_some())? {
            let is_unfinished = finished(&entry.name) != entry.name;
            if named.contains(&entry.name) {
                continue;
            }
            let path = directory.join(&entry.name);
            let pooled = self.store.pooled_for(&path);
            self.remove(&path, entry.len)?;
            if is_unfinished {
                self.collected.leftovers += 1;
                continue;
            }
            self.collected.objects += 1;
            if let Some(pooled) = pooled {
                self.remove(&pooled, 0)?;
                self.collected.bytes += entry.len;
            }
        }
        Ok(())
    }

    /// Removes from a session's directory of captures all data that no kept capture needs.
    pub(super) fn captures(&mut self, directory: &Path, in_use: &CapturesInUse) -> Result<()> {
        let pool = self.store.own_pool().map(|_| layout::captures_pool(&self.store.inner.root));
        let swept = captures::sweep(directory, pool.as_deref(), in_use, self.dry_run)?;
        self.take(swept)
    }

    fn take(&mut self, swept: captures::SweepOutcome) -> Result<()> {
        self.collected.add(swept.collected);
        for path in swept.left {
            let entry = self.storage().look_up(&path)?;
            if let Some(entry) = entry {
                self.leave(path, entry.kind);
            }
        }
        Ok(())
    }

    /// Removes from the pool the objects that no session has.
    pub(super) fn pool(&mut self) -> Result<()> {
        let directory = layout::pool_dir(&self.store.inner.root);
        for entry in self.files(&directory, |name| ObjectId::from_file_name(name, 0).is_some())? {
            let path = directory.join(&entry.name);
            if self.storage().links(&path).is_ok_and(|links| links == 1) {
                // A session that links the file at the same time still has it.
                self.remove(&path, entry.len)?;
                self.collected.objects += 1;
            }
        }
        if self.store.own_pool().is_some() {
            let captures = layout::captures_pool(&self.store.inner.root);
            self.take(captures::sweep_pool(&captures, self.dry_run)?)?;
        }
        Ok(())
    }

    /// Collects the images that no opening of a log of this length uses.
    pub(super) fn images(&mut self, dir: &Path, next_sequence: SequenceNumber) -> Result<()> {
        let directory = layout::snapshots_dir(dir);
        let of_log: BTreeSet<_> =
            image_files::usable_images(self.storage().as_ref(), dir, next_sequence).collect();
        let is_image = |name: &str| {
            name.ends_with(image_files::UNFINISHED_SUFFIX) || layout::image_position(name).is_some()
        };
        for entry in self.files(&directory, is_image)? {
            let path = directory.join(&entry.name);
            if entry.name.ends_with(image_files::UNFINISHED_SUFFIX) {
                self.remove(&path, entry.len)?;
                self.collected.leftovers += 1;
            } else if !of_log.contains(&path) {
                self.remove(&path, entry.len)?;
                self.collected.images += 1;
            }
        }
        Ok(())
    }

    /// Returns whether a segment file was made ahead and never written to.
    pub(super) fn is_unwritten(&self, path: &Path) -> bool {
        let head = self.storage().open(path, Access::Read).and_then(|file| {
            let mut head = [0; 4096];
            file.read_at(&mut head, 0).map(|_| head)
        });
        head.is_ok_and(|head| head.iter().all(|byte| *byte == 0))
    }
}
