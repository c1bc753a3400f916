//! Detects session logs that users outside of a store's access can read.

use std::path::{Path, PathBuf};

use foldlog_codec::escape;
use serde::{Deserialize, Serialize};

use super::layout;
use crate::storage::{EntryKind, Storage, StoreAccess};

/// Reports a file of a session that more users may read or write than the store's access allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileExposure {
    /// Path of the first such file.
    pub path: PathBuf,
    /// Permission bits that the file has.
    pub mode: u32,
    /// Permission bits that the file should have.
    pub expected: u32,
}

impl std::fmt::Display for FileExposure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FileExposure { path, mode, expected } = self;
        write!(f, "{} has mode {mode:04o}, not {expected:04o}: others may read it", escape::path(path))
    }
}

/// Finds a file in the session's directory that more users can read or write than `access` allows.
/// A parent directory that they may not pass excludes them. Unreadable entries are skipped.
pub(crate) fn find(storage: &dyn Storage, dir: &Path, access: StoreAccess) -> Option<FileExposure> {
    let expected = access.file_mode();
    let mut passable = 0o077;
    for directory in std::path::absolute(dir).ok()?.ancestors() {
        let mode = storage.entry(&layout::path_through_link(directory)).ok()??.mode?;
        // A user who may pass a directory may read the files in it whose names are known; these
        // names are.
        passable &= (mode & 0o011) * 0o7;
    }
    let others = passable & !expected;
    if others == 0 {
        return None;
    }
    let listed = storage.list(dir).ok()?.into_iter().filter(|entry| entry.kind == EntryKind::File);
    let mut found = listed.filter_map(|entry| Some((dir.join(&entry.name), entry.mode?)));
    let (path, mode) = found.find(|(_, mode)| mode & others != 0)?;
    Some(FileExposure { path, mode, expected })
}
