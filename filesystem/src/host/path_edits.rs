//! Edits single paths of a workspace, each only if it has the expected state.
//!
//! A [restore](HostFilesystem::restore) brings back a whole snapshot. An undo of one tool call edits
//! only the paths that the call changed. Other programs may write at the same time, so each edit
//! checks the present state itself:
//!
//! 1. The present entry is compared with the expected one, by its content.
//! 2. The new entry is written under a temporary name, and exchanged with the present one in one
//!    step. To remove an entry, it is renamed to a temporary name.
//! 3. The content of the replaced entry is compared with the expected one again. If another program
//!    has replaced or written it since, it is put back, and the edit is refused.
//!
//! So an edit never destroys bytes other than the expected ones. One limit remains: a program that
//! has the file open writes into the replaced file, as after every atomic replacement. Links are
//! never followed, and mounts never entered. After a kill, leftovers are identified by their
//! temporary names (`edit_leftovers.rs`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, symlinkat, unlinkat};
use rustix::fs::{RenameFlags, renameat_with};

use super::HostFilesystem;
use super::attributes::Target;
use super::changes::FileFacts;
use super::edit_leftovers::{TemporaryNames, keep_aside};
use super::file_merge::FileVersion;
use super::manifest::{FileForm, FileKind, Stat, unescape_path};
use super::objects::{Hasher, ObjectId, ObjectKind};
use super::shared::Shared;
use super::sparse::Sparse;
use super::step::{
    NEW_FILE, OPEN_DIRECTORY, describe_errno, discard, nix_errno, open_around, open_at, open_file, read_link,
    set_permissions, stat_at,
};
use crate::error::{Error, IoContext, Result};

/// Changes a path from its expected state to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathEdit {
    /// Path relative to the workspace's root, escaped like that of a
    /// [`FileChange`](super::FileChange).
    pub path: String,
    /// Expected file or link; `None` if the path should not exist.
    pub present: Option<FileFacts>,
    /// Entry after the edit.
    pub wanted: WantedEntry,
    /// Time of the last change of the entry after the edit, in nanoseconds since 1970. `None` is
    /// the present time for a written entry, and no change otherwise.
    pub modified_ns: Option<i64>,
}

/// Describes the entry that an edit leaves at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedEntry {
    /// No entry.
    Nothing,
    /// A file or link of a snapshot in the workspace's store.
    Captured(FileFacts),
    /// A file with this content.
    Content {
        /// Whole content.
        bytes: Vec<u8>,
        /// Permission bits within `0o7777`.
        permissions: u32,
    },
    /// A directory, which may exist already.
    Directory {
        /// Permission bits of a new directory.
        permissions: u32,
    },
    /// No directory; one that is not empty stays, and is no failure.
    NoDirectory,
    /// The present directory, with other permission bits. A directory that is missing, or has other
    /// permission bits than `present`, is left unchanged, without a failure.
    DirectoryPermissions {
        /// Expected permission bits within `0o7777`.
        present: u32,
        /// Permission bits after the edit, within `0o7777`.
        permissions: u32,
    },
    /// The present entry; only its time changes. The empty path is the root. An entry that is
    /// missing, or has a time other than `present_ns`, is left unchanged, without a failure.
    Unchanged {
        /// Expected time; `None` for any.
        present_ns: Option<i64>,
    },
}

impl From<FileVersion> for WantedEntry {
    fn from(version: FileVersion) -> WantedEntry {
        match version {
            FileVersion::Missing => WantedEntry::Nothing,
            FileVersion::Captured(facts) => WantedEntry::Captured(facts),
            FileVersion::Merged { bytes, permissions } => WantedEntry::Content { bytes, permissions },
        }
    }
}

const CHANGED_MEANWHILE: &str = "another program changed it at the same time";

/// Why an edit was not done.
enum EditFailure {
    /// The path is unchanged, for this reason.
    Refused(String),
    Failed(Error),
}

type Edited<T> = std::result::Result<T, EditFailure>;

impl From<Errno> for EditFailure {
    fn from(errno: Errno) -> EditFailure {
        EditFailure::Refused(describe_errno(errno))
    }
}

impl From<Error> for EditFailure {
    fn from(error: Error) -> EditFailure {
        EditFailure::Failed(error)
    }
}

fn refused<T>(reason: impl Into<String>) -> Edited<T> {
    Err(EditFailure::Refused(reason.into()))
}

impl HostFilesystem {
    /// Edits paths of the workspace, one after the other in the given order. Returns for each edit
    /// `None` if the path is now as wanted, or the reason why it is unchanged.
    ///
    /// An edit is refused if the path does not have the expected state, even if that changes while
    /// it is edited. Missing parent directories of a wanted entry are created. The changes are
    /// durable once [`sync_restored`](HostFilesystem::sync_restored) returns. A kill leaves each
    /// path as it was or as wanted, and may leave an entry with a temporary name, which no snapshot
    /// contains and [`recover_edits`](HostFilesystem::recover_edits) removes or puts back.
    ///
    /// # Errors
    ///
    /// - [`Error::Object`] if an object that is needed is missing or damaged. The edits before it
    ///   are done.
    /// - [`Error::Io`] if the workspace's root cannot be opened.
    pub fn edit_paths(&self, edits: &[PathEdit]) -> Result<Vec<Option<String>>> {
        let root = self.bound_root()?;
        self.state.lock().unsynced = Some(std::sync::Arc::clone(&root));
        let done = edits.iter().map(|edit| match self.edit_path(root.directory(), edit) {
            Ok(()) => Ok(None),
            Err(EditFailure::Refused(reason)) => Ok(Some(reason)),
            Err(EditFailure::Failed(error)) => Err(error),
        });
        done.collect()
    }

    fn edit_path(&self, root: &OwnedFd, edit: &PathEdit) -> Edited<()> {
        if edit.path.is_empty() && matches!(edit.wanted, WantedEntry::Unchanged { .. }) {
            return Ok(set_time(root, b".", None, edit.modified_ns)?);
        }
        let path = unescape_path(&edit.path).filter(|path| is_plain(path));
        let Some(path) = path else { return refused("it is not a path in the workspace") };
        let is_made = matches!(
            edit.wanted,
            WantedEntry::Captured(_) | WantedEntry::Content { .. } | WantedEntry::Directory { .. }
        );
        let around = if is_made { make_parents(root, &path) } else { open_around(root, &path) };
        let (directory, name) = match around {
            Ok(around) => around,
            Err(_) if !is_made && edit.present.is_none() => return Ok(()),
            Err(errno) => return refused(format!("its directory: {}", errno.desc())),
        };
        match &edit.wanted {
            WantedEntry::Directory { permissions } => make_directory(&directory, &name, *permissions)?,
            WantedEntry::NoDirectory => remove_directory(&directory, &name)?,
            WantedEntry::DirectoryPermissions { present, permissions } => {
                change_permissions(&directory, &name, *present, *permissions)?;
            }
            WantedEntry::Unchanged { present_ns } => {
                set_time(&directory, &name, *present_ns, edit.modified_ns)?;
            }
            _ => self.edit_leaf(&directory, &name, edit)?,
        }
        Ok(())
    }

    fn edit_leaf(&self, directory: &OwnedFd, name: &[u8], edit: &PathEdit) -> Edited<()> {
        let seen = self.compare_present(directory, name, edit.present.as_ref())?;
        let names = TemporaryNames::new(name);
        if edit.wanted == WantedEntry::Nothing {
            let Some(facts) = &edit.present else { return Ok(()) };
            return self.take_away(directory, name, &names.old(), facts);
        }
        let incomplete = names.new_entry();
        let written = self.write_entry(directory, &incomplete, edit, seen.as_ref()).and_then(|()| {
            let own = stat_at(directory, &incomplete)?;
            let complete = names.complete(own.inode);
            rename(directory, &incomplete, &complete, RenameFlags::NOREPLACE)?;
            Ok((complete, own))
        });
        let (temporary, own) = written.inspect_err(|_| discard(directory, &incomplete))?;
        if let Some(facts) = &edit.present {
            return self.exchange(directory, name, &temporary, facts, &own);
        }
        match rename(directory, &temporary, name, RenameFlags::NOREPLACE)
            .inspect_err(|_| discard(directory, &temporary))
        {
            Err(Errno::EEXIST) => refused("another program created an entry there"),
            placed => Ok(placed?),
        }
    }

    /// Replaces the entry at a name by the temporary one, unless the replaced entry differs from the
    /// expected one. `own` is the state of the temporary entry.
    fn exchange(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        temporary: &[u8],
        expected: &FileFacts,
        own: &Stat,
    ) -> Edited<()> {
        let swap = || rename(directory, temporary, name, RenameFlags::EXCHANGE);
        swap().inspect_err(|_| discard(directory, temporary))?;
        // Its content again: a write before the exchange may leave length and times as they were.
        if self.is_expected(directory, temporary, expected)? {
            return Ok(unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir)?);
        }
        let is_own = || stat_at(directory, temporary).is_ok_and(|found| found.inode == own.inode);
        match swap() {
            Ok(()) if is_own() => discard(directory, temporary),
            // Another program has replaced the new entry: its entry is the latest. The former one
            // is not captured either, and stays next to it.
            Ok(()) => {
                if swap().is_ok() {
                    return refused(kept_reason(keep_aside(directory, temporary, name)));
                }
            }
            // Another program has taken the new entry away.
            Err(_) => drop(rename(directory, temporary, name, RenameFlags::NOREPLACE)),
        }
        refused(CHANGED_MEANWHILE)
    }

    /// Removes the entry at a name, unless it differs from the expected one.
    fn take_away(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        temporary: &[u8],
        expected: &FileFacts,
    ) -> Edited<()> {
        rename(directory, name, temporary, RenameFlags::NOREPLACE)?;
        if self.is_expected(directory, temporary, expected)? {
            return Ok(unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir)?);
        }
        match rename(directory, temporary, name, RenameFlags::NOREPLACE) {
            Ok(()) => refused(CHANGED_MEANWHILE),
            Err(_) => refused(kept_reason(keep_aside(directory, temporary, name))),
        }
    }

    fn is_expected(&self, directory: &OwnedFd, name: &[u8], expected: &FileFacts) -> Result<bool> {
        match self.compare_present(directory, name, Some(expected)) {
            Err(EditFailure::Failed(error)) => Err(error),
            compared => Ok(compared.is_ok()),
        }
    }

    /// Compares the entry at a name with the expected one. Returns its state, or `None` if there is
    /// none and none is expected. Refuses a different entry.
    fn compare_present(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        expected: Option<&FileFacts>,
    ) -> Edited<Option<Stat>> {
        let stat = match stat_at(directory, name) {
            Err(Errno::ENOENT) => None,
            stat => Some(stat?),
        };
        let (stat, facts) = match (stat, expected) {
            (None, None) => return Ok(None),
            (Some(stat), Some(facts)) => (stat, facts),
            (Some(_), None) => return refused("there is an entry that no capture contains"),
            (None, Some(_)) => return refused("it was removed since the plan was made"),
        };
        let is_same_form = stat.kind() == facts.kind
            && stat.len == facts.len
            && facts.permissions.is_none_or(|permissions| permissions == stat.permissions());
        if !is_same_form || !self.has_content(directory, name, facts)? {
            return refused("it was changed since the plan was made");
        }
        Ok(Some(stat))
    }

    /// Returns whether an entry of the expected kind and length has the expected content.
    fn has_content(&self, directory: &OwnedFd, name: &[u8], facts: &FileFacts) -> Result<bool> {
        let id = self.objects.named(&facts.digest)?;
        let is_read = |source: &mut dyn Read, len, id| {
            Hasher::hash_blob(source, len).is_ok_and(|found| found == Some(id))
        };
        if facts.kind == FileKind::Link {
            let target = read_link(directory, name);
            return Ok(target.is_ok_and(|target| is_read(&mut target.as_slice(), facts.len, id)));
        }
        let Ok(file) = open_file(directory, name).map(File::from) else { return Ok(false) };
        Ok(match facts.form {
            FileForm::Shared => Shared::read(&self.objects, id)?.is_content_of(&file),
            // The data ranges of a copy may differ, so the data is read at the recorded ranges.
            FileForm::Sparse => {
                let (sparse, data) = Sparse::read(&self.objects, id)?;
                is_read(&mut sparse.data(&file), sparse.data_len(), data)
            }
            FileForm::Whole | FileForm::Prefix => is_read(&mut &file, facts.len, id),
        })
    }

    /// Writes a wanted file or link under a temporary name.
    fn write_entry(
        &self,
        directory: &OwnedFd,
        temporary: &[u8],
        edit: &PathEdit,
        replaced: Option<&Stat>,
    ) -> Edited<()> {
        let (facts, permissions) = match &edit.wanted {
            WantedEntry::Captured(facts) => {
                (Some((facts, self.objects.named(&facts.digest)?)), facts.permissions)
            }
            WantedEntry::Content { permissions, .. } => (None, Some(*permissions)),
            _ => (None, None),
        };
        let set_time = |target: Target<'_>| edit.modified_ns.map_or(Ok(()), |ns| target.set_time(ns));
        if let Some((facts, id)) = facts
            && facts.kind == FileKind::Link
        {
            let target = self.objects.read(id, ObjectKind::Blob, facts.len)?;
            symlinkat(OsStr::from_bytes(&target), directory, temporary)?;
            return Ok(set_time(Target::Link(directory.as_fd(), temporary))?);
        }
        let mut file = File::from(openat(directory, temporary, NEW_FILE, Mode::S_IRUSR | Mode::S_IWUSR)?);
        let written = match (facts, &edit.wanted) {
            (Some((facts, id)), _) => self.copy_content(facts, id, &mut file),
            (None, WantedEntry::Content { bytes, .. }) => {
                file.write_all(bytes).during("write", OsStr::from_bytes(temporary))
            }
            (None, _) => Ok(()),
        };
        match written {
            Err(Error::Io { source, .. }) => return refused(source.to_string()),
            written => written?,
        }
        if let Some(Stat { owner, .. }) = replaced {
            // Only the superuser can give files away. A new owner clears bits of the mode.
            let _ = fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)));
        }
        fchmod(&file, Mode::from_bits_truncate(permissions.unwrap_or(0o644)))?;
        Ok(set_time(Target::Opened(file.as_fd()))?)
    }

    fn copy_content(&self, facts: &FileFacts, id: ObjectId, file: &mut File) -> Result<()> {
        match facts.form {
            FileForm::Shared => Shared::read(&self.objects, id)?.copy(&self.objects, id, file),
            FileForm::Sparse => {
                let (sparse, data) = Sparse::read(&self.objects, id)?;
                let mut pieces = sparse.writer(file).during("write", self.root())?;
                self.objects.copy(data, ObjectKind::Blob, &mut pieces).map(drop)
            }
            FileForm::Whole | FileForm::Prefix => self.objects.copy(id, ObjectKind::Blob, file).map(drop),
        }
    }
}

/// Returns the reason of a refusal after which the former entry has a different name.
fn kept_reason(kept: Option<Vec<u8>>) -> String {
    match kept {
        Some(kept) => {
            format!("another program replaced it; the former one is `{}`", OsStr::from_bytes(&kept).display())
        }
        None => "another program replaced it".to_owned(),
    }
}

/// Returns whether a path names an entry below the root, by names only, and outside of `.git`.
fn is_plain(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".." | b".git"))
}

/// Opens the parent directory of a path, and creates missing directories.
fn make_parents(root: &OwnedFd, path: &[u8]) -> std::result::Result<(OwnedFd, Vec<u8>), Errno> {
    let mut directory = open_at(root, b".", OPEN_DIRECTORY, Mode::empty())?;
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let last = names.pop().unwrap_or_default();
    for name in names {
        let open = || open_at(&directory, name, OPEN_DIRECTORY, Mode::empty());
        directory = match open() {
            Err(Errno::ENOENT) => make_directory(&directory, name, 0o755).and_then(|()| open())?,
            opened => opened?,
        };
    }
    Ok((directory, last.to_vec()))
}

/// Creates a directory, which gets its name once it has its permissions.
fn make_directory(around: &OwnedFd, name: &[u8], permissions: u32) -> std::result::Result<(), Errno> {
    let is_there = || stat_at(around, name).is_ok_and(|stat| stat.kind() == FileKind::Directory);
    if is_there() {
        return Ok(());
    }
    let temporary = TemporaryNames::new(name).new_entry();
    mkdirat(around, &*temporary, Mode::S_IRWXU)?;
    let made = open_at(around, &temporary, OPEN_DIRECTORY, Mode::empty())
        .and_then(|made| fchmod(&made, Mode::from_bits_truncate(permissions)))
        .and_then(|()| rename(around, &temporary, name, RenameFlags::NOREPLACE));
    if made.is_err() {
        let _ = unlinkat(around, &*temporary, UnlinkatFlags::RemoveDir);
    }
    match made {
        Err(Errno::EEXIST) if is_there() => Ok(()),
        made => made,
    }
}

fn change_permissions(
    around: &OwnedFd,
    name: &[u8],
    present: u32,
    permissions: u32,
) -> std::result::Result<(), Errno> {
    match stat_at(around, name) {
        Ok(stat) if stat.kind() == FileKind::Directory && stat.permissions() == present => {
            set_permissions(around, name, permissions)
        }
        Ok(_) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Sets the time of an entry, if it has the expected one.
fn set_time(
    around: &OwnedFd,
    name: &[u8],
    present_ns: Option<i64>,
    modified_ns: Option<i64>,
) -> std::result::Result<(), Errno> {
    let stat = match stat_at(around, name) {
        Err(Errno::ENOENT) => return Ok(()),
        stat => stat?,
    };
    let Some(ns) = modified_ns.filter(|_| present_ns.is_none_or(|ns| ns == stat.modified_ns)) else {
        return Ok(());
    };
    match stat.kind() {
        FileKind::Link => Target::Link(around.as_fd(), name).set_time(ns),
        _ => Target::Opened(open_file(around, name)?.as_fd()).set_time(ns),
    }
}

fn remove_directory(around: &OwnedFd, name: &[u8]) -> std::result::Result<(), Errno> {
    match unlinkat(around, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Renames an entry within a directory.
pub(super) fn rename(
    directory: &OwnedFd,
    from: &[u8],
    to: &[u8],
    flags: RenameFlags,
) -> std::result::Result<(), Errno> {
    renameat_with(directory, from, directory, to, flags).map_err(nix_errno)
}
