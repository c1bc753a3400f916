//! Lists the entries in the directories of a store's objects, and removes some of them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::git_packs::{GitPack, is_pack_file};
use super::objects::{ObjectId, Objects, TEMPORARY};
use crate::error::{Error, IoContext, Result};

/// Name of the directory of git packs.
const PACKS: &str = "pack";

impl Objects {
    /// Returns the objects that have files of their own.
    pub(super) fn list(&self) -> Result<Vec<ObjectId>> {
        let mut ids = Vec::new();
        for (directory, path, _) in names(&self.directory())? {
            if directory.len() == 2 {
                let files = names(&path)?.into_iter().filter(|(_, _, is_file)| *is_file);
                ids.extend(files.filter_map(|(file, ..)| ObjectId::parse(&format!("{directory}{file}"))));
            }
        }
        Ok(ids)
    }

    /// Returns the blobs of the files with shared blocks.
    pub(super) fn list_shared(&self) -> Result<Vec<ObjectId>> {
        let files = names(&self.shared_directory())?.into_iter().filter(|(_, _, is_file)| *is_file);
        Ok(files.filter_map(|(name, ..)| ObjectId::parse(&name)).collect())
    }

    /// Returns, in ascending order, the paths of unexpected entries: entries other than regular
    /// files in the place of an object, of a git pack or of a leftover of a kill, or other than
    /// directories in the place of their directories.
    pub(super) fn irregular(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let roots = [self.directory(), self.shared_directory()];
        let mut directories: Vec<_> = roots.into_iter().map(|root| (String::new(), root)).collect();
        while let Some((beginning, directory)) = directories.pop() {
            if fs::symlink_metadata(&directory).is_ok_and(|found| !found.is_dir()) {
                found.push(directory);
                continue;
            }
            for (name, path, is_file) in names(&directory)? {
                let is_hex = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
                if beginning.is_empty() && (is_hex || name == PACKS) {
                    directories.push((name, path));
                } else if !is_file
                    && (name.starts_with(TEMPORARY)
                        || is_pack_file(&path)
                        || ObjectId::parse(&format!("{beginning}{name}")).is_some())
                {
                    found.push(path);
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    pub(super) fn remove(&self, id: ObjectId) -> Result<()> {
        self.forget_one(id);
        remove_if_present(&self.path(id))
    }

    /// Removes a pack. Without an index, its other file would be a leftover of a kill.
    pub(super) fn remove_pack(&self, pack: &GitPack) -> Result<()> {
        pack.files().iter().try_for_each(|path| remove_if_present(path))
    }

    /// Removes leftovers of kills. No other process may write to the store.
    pub(super) fn remove_temporaries(&self) -> Result<()> {
        let mut found = names(&self.directory())?;
        for (name, path, _) in found.clone() {
            if name.len() == 2 {
                found.extend(names(&path)?);
            }
        }
        for (_, path, _) in found.iter().filter(|(name, _, is_file)| *is_file && name.starts_with(TEMPORARY))
        {
            fs::remove_file(path).during("remove", path)?;
        }
        for (_, path, is_file) in names(self.packs.directory())? {
            let other = path.with_extension(match path.extension().is_some_and(|end| end == "idx") {
                true => "pack",
                false => "idx",
            });
            let is_missing =
                || fs::symlink_metadata(&other).is_err_and(|error| error.kind() == ErrorKind::NotFound);
            if is_file && is_pack_file(&path) && is_missing() {
                remove_if_present(&path)?;
            }
        }
        Ok(())
    }
}

/// Removes a file; a missing one is no error.
pub(super) fn remove_if_present(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Returns the entries of a directory of the store, and whether each is a regular file. Returns
/// none if there is no such directory, since the target of a link does not belong to the store.
fn names(directory: &Path) -> Result<Vec<(String, PathBuf, bool)>> {
    let failed = |error| Error::io("list", directory, error);
    if !fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir()) {
        return Ok(Vec::new());
    }
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Ok(name) = entry.file_name().into_string() {
            let is_file = entry.file_type().map_err(failed)?.is_file();
            names.push((name, entry.path(), is_file));
        }
    }
    Ok(names)
}
