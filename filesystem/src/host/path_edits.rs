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
use super::manifest::{FileForm, FileKind, Stat, unshown};
use super::objects::{Hasher, ObjectId, ObjectKind, pump};
use super::shared::Shared;
use super::snapshot::named_object;
use super::sparse::Sparse;
use super::step::{
    NEW_FILE, OPEN_DIRECTORY, OPEN_FILE, describe_errno, nix_errno, open_around, open_at, open_file,
    read_link, stat_at,
};
use crate::error::{Error, Result};

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

/// Reason why a path was left unchanged.
type Refusal = String;

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
    pub fn edit_paths(&self, edits: &[PathEdit]) -> Result<Vec<Option<Refusal>>> {
        let root = self.bound_root()?;
        self.state.lock().unsynced = Some(std::sync::Arc::clone(&root));
        edits.iter().map(|edit| self.edit_path(root.directory(), edit)).collect()
    }

    fn edit_path(&self, root: &OwnedFd, edit: &PathEdit) -> Result<Option<Refusal>> {
        if edit.path.is_empty() && matches!(edit.wanted, WantedEntry::Unchanged { .. }) {
            return Ok(set_time(root, b".", None, edit.modified_ns).err().map(describe_errno));
        }
        let path = unshown(&edit.path).filter(|path| is_plain(path));
        let Some(path) = path else { return Ok(Some("it is not a path in the workspace".to_owned())) };
        let is_made = matches!(
            edit.wanted,
            WantedEntry::Captured(_) | WantedEntry::Content { .. } | WantedEntry::Directory { .. }
        );
        let around = if is_made {
            make_parents(root, &path)
        } else {
            open_around(root, &path).map_err(describe_errno)
        };
        let (directory, name) = match around {
            Ok(around) => around,
            Err(_) if !is_made && edit.present.is_none() => return Ok(None),
            Err(reason) => return Ok(Some(format!("its directory: {reason}"))),
        };
        let done = match &edit.wanted {
            WantedEntry::Directory { permissions } => make_directory(&directory, &name, *permissions),
            WantedEntry::NoDirectory => remove_directory(&directory, &name),
            WantedEntry::Unchanged { present_ns } => {
                set_time(&directory, &name, *present_ns, edit.modified_ns).map_err(describe_errno)
            }
            _ => return self.edit_leaf(&directory, &name, edit),
        };
        Ok(done.err())
    }

    fn edit_leaf(&self, directory: &OwnedFd, name: &[u8], edit: &PathEdit) -> Result<Option<Refusal>> {
        let seen = match self.compare_present(directory, name, edit.present.as_ref())? {
            Ok(seen) => seen,
            Err(reason) => return Ok(Some(reason)),
        };
        let names = TemporaryNames::new(name);
        if edit.wanted == WantedEntry::Nothing {
            let Some(facts) = &edit.present else { return Ok(None) };
            return self.take_away(directory, name, &names.old(), facts);
        }
        let incomplete = names.new_entry();
        let temporary = match self.write_entry(directory, &incomplete, edit, seen.as_ref())? {
            Ok(()) => stat_at(directory, &incomplete).and_then(|own| {
                let complete = names.complete(own.inode);
                rename(directory, &incomplete, &complete, RenameFlags::NOREPLACE)?;
                Ok((complete, own))
            }),
            Err(reason) => {
                let _ = unlinkat(directory, &*incomplete, UnlinkatFlags::NoRemoveDir);
                return Ok(Some(reason));
            }
        };
        let (temporary, own) = match temporary {
            Ok(temporary) => temporary,
            Err(errno) => {
                let _ = unlinkat(directory, &*incomplete, UnlinkatFlags::NoRemoveDir);
                return Ok(Some(describe_errno(errno)));
            }
        };
        if let Some(facts) = &edit.present {
            return self.exchange(directory, name, &temporary, facts, &own);
        }
        let placed = rename(directory, &temporary, name, RenameFlags::NOREPLACE);
        if placed.is_err() {
            let _ = unlinkat(directory, &*temporary, UnlinkatFlags::NoRemoveDir);
        }
        Ok(placed.err().map(|errno| match errno {
            Errno::EEXIST => "another program created an entry there".to_owned(),
            errno => describe_errno(errno),
        }))
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
    ) -> Result<Option<Refusal>> {
        let remove = || unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir);
        let swap = || rename(directory, temporary, name, RenameFlags::EXCHANGE);
        if let Err(errno) = swap() {
            let _ = remove();
            return Ok(Some(describe_errno(errno)));
        }
        // Its content again: a write before the exchange may leave length and times as they were.
        if let Ok(Some(_)) = self.compare_present(directory, temporary, Some(expected))? {
            return Ok(remove().err().map(describe_errno));
        }
        let is_own = || stat_at(directory, temporary).is_ok_and(|found| found.inode == own.inode);
        match swap() {
            Ok(()) if is_own() => drop(remove()),
            // Another program has replaced the new entry: its entry is the latest. The former one
            // is not captured either, and stays next to it.
            Ok(()) => {
                if swap().is_ok() {
                    return Ok(Some(kept_reason(keep_aside(directory, temporary, name))));
                }
            }
            // Another program has taken the new entry away.
            Err(_) => drop(rename(directory, temporary, name, RenameFlags::NOREPLACE)),
        }
        Ok(Some("another program changed it at the same time".to_owned()))
    }

    /// Removes the entry at a name, unless it differs from the expected one.
    fn take_away(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        temporary: &[u8],
        expected: &FileFacts,
    ) -> Result<Option<Refusal>> {
        if let Err(errno) = rename(directory, name, temporary, RenameFlags::NOREPLACE) {
            return Ok(Some(describe_errno(errno)));
        }
        if let Ok(Some(_)) = self.compare_present(directory, temporary, Some(expected))? {
            let removed = unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir);
            return Ok(removed.err().map(describe_errno));
        }
        let back = rename(directory, temporary, name, RenameFlags::NOREPLACE);
        Ok(Some(match back {
            Ok(()) => "another program changed it at the same time".to_owned(),
            Err(_) => kept_reason(keep_aside(directory, temporary, name)),
        }))
    }

    /// Compares the entry at a name with the expected one. Returns its state, `None` if there is
    /// none and none is expected, or the difference.
    fn compare_present(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        expected: Option<&FileFacts>,
    ) -> Result<std::result::Result<Option<Stat>, Refusal>> {
        let refused = |reason: &str| Ok(Err(reason.to_owned()));
        let stat = match stat_at(directory, name) {
            Ok(stat) => Some(stat),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Ok(Err(describe_errno(errno))),
        };
        let (stat, facts) = match (stat, expected) {
            (None, None) => return Ok(Ok(None)),
            (Some(stat), Some(facts)) => (stat, facts),
            (Some(_), None) => return refused("there is an entry that no capture contains"),
            (None, Some(_)) => return refused("it was removed since the plan was made"),
        };
        let is_same_form = stat.kind() == facts.kind
            && stat.len == facts.len
            && facts.permissions.is_none_or(|permissions| permissions == stat.permissions());
        if !is_same_form || self.content_of(directory, name, &stat, facts)? != Some(facts.digest.clone()) {
            return refused("it was changed since the plan was made");
        }
        Ok(Ok(Some(stat)))
    }

    /// Returns the digest of an entry's present content, in the form of the expected one; `None`
    /// if it cannot be read.
    fn content_of(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        stat: &Stat,
        facts: &FileFacts,
    ) -> Result<Option<String>> {
        if stat.kind() == FileKind::Link {
            let target = read_link(directory, name).ok();
            return Ok(target.and_then(|target| digest_of(&mut target.as_slice(), stat.len)));
        }
        let Ok(file) = open_file(directory, name).map(File::from) else { return Ok(None) };
        if facts.form == FileForm::Shared {
            let shared = Shared::read(&self.objects, self.object_of(&facts.digest)?)?;
            return Ok(shared.is_content_of(&file).then(|| facts.digest.clone()));
        }
        if facts.form != FileForm::Sparse {
            return Ok(digest_of(&mut &file, stat.len));
        }
        // The data ranges of a copy may differ, so the data is read at the recorded ranges.
        let (sparse, data) = Sparse::read(&self.objects, self.object_of(&facts.digest)?)?;
        let found = digest_of(&mut sparse.data(&file), sparse.data_len());
        Ok((found == Some(data.to_string())).then(|| facts.digest.clone()))
    }

    /// Writes a wanted file or link under a temporary name.
    fn write_entry(
        &self,
        directory: &OwnedFd,
        temporary: &[u8],
        edit: &PathEdit,
        replaced: Option<&Stat>,
    ) -> Result<std::result::Result<(), Refusal>> {
        let (facts, permissions) = match &edit.wanted {
            WantedEntry::Captured(facts) => {
                (Some((facts, named_object(&self.objects, &facts.digest)?)), facts.permissions)
            }
            WantedEntry::Content { permissions, .. } => (None, Some(*permissions)),
            _ => (None, None),
        };
        if let Some((facts, id)) = facts
            && facts.kind == FileKind::Link
        {
            let target = self.objects.read(id, ObjectKind::Blob, facts.len)?;
            let made = symlinkat(OsStr::from_bytes(&target), directory, temporary).and_then(|()| {
                let link = Target::Link(directory.as_fd(), temporary);
                edit.modified_ns.map_or(Ok(()), |ns| link.set_time(ns).map_err(nix_errno))
            });
            return Ok(made.map_err(describe_errno));
        }
        let file = openat(directory, temporary, NEW_FILE, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = match file {
            Ok(file) => File::from(file),
            Err(errno) => return Ok(Err(describe_errno(errno))),
        };
        let written = match (facts, &edit.wanted) {
            (Some((facts, id)), _) => self.copy_content(facts, id, &mut file),
            (None, WantedEntry::Content { bytes, .. }) => {
                file.write_all(bytes).map_err(|error| Error::io("write", OsStr::from_bytes(temporary), error))
            }
            (None, _) => Ok(()),
        };
        match written {
            Err(Error::Io { source, .. }) => return Ok(Err(source.to_string())),
            written => written?,
        }
        if let Some(Stat { owner, .. }) = replaced {
            // Only the superuser can give files away. A new owner clears bits of the mode.
            let _ = fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)));
        }
        let mode = Mode::from_bits_truncate(permissions.unwrap_or(0o644));
        let done = fchmod(&file, mode).and_then(|()| {
            let file = Target::Opened(file.as_fd());
            edit.modified_ns.map_or(Ok(()), |ns| file.set_time(ns).map_err(nix_errno))
        });
        Ok(done.map_err(describe_errno))
    }

    fn copy_content(&self, facts: &FileFacts, id: ObjectId, file: &mut File) -> Result<()> {
        if facts.form == FileForm::Shared {
            return Shared::read(&self.objects, id)?.copy(&self.objects, id, file);
        }
        if facts.form != FileForm::Sparse {
            return self.objects.copy(id, ObjectKind::Blob, file).map(drop);
        }
        let (sparse, data) = Sparse::read(&self.objects, id)?;
        let mut pieces = sparse.writer(file).map_err(|error| Error::io("write", self.root(), error))?;
        self.objects.copy(data, ObjectKind::Blob, &mut pieces).map(drop)
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

pub(super) fn digest_of(source: &mut dyn Read, len: u64) -> Option<String> {
    let mut hash = Hasher::new(ObjectKind::Blob, len);
    let read = pump(source, &mut |bytes| {
        hash.update(bytes);
        Ok(())
    });
    let id = read.is_ok_and(|read| read == len).then(|| hash.finish().ok()).flatten();
    id.map(|id| id.to_string())
}

/// Opens the parent directory of a path, and creates missing directories.
fn make_parents(root: &OwnedFd, path: &[u8]) -> std::result::Result<(OwnedFd, Vec<u8>), Refusal> {
    let mut directory = open_at(root, b".", OPEN_DIRECTORY, Mode::empty()).map_err(describe_errno)?;
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let last = names.pop().unwrap_or_default();
    for name in names {
        directory = match open_at(&directory, name, OPEN_DIRECTORY, Mode::empty()) {
            Err(Errno::ENOENT) => {
                make_directory(&directory, name, 0o755)?;
                open_at(&directory, name, OPEN_DIRECTORY, Mode::empty()).map_err(describe_errno)?
            }
            opened => opened.map_err(describe_errno)?,
        };
    }
    Ok((directory, last.to_vec()))
}

/// Creates a directory, which gets its name once it has its permissions.
fn make_directory(around: &OwnedFd, name: &[u8], permissions: u32) -> std::result::Result<(), Refusal> {
    if stat_at(around, name).is_ok_and(|stat| stat.kind() == FileKind::Directory) {
        return Ok(());
    }
    let temporary = TemporaryNames::new(name).new_entry();
    mkdirat(around, &*temporary, Mode::S_IRWXU).map_err(describe_errno)?;
    let made = open_at(around, &temporary, OPEN_DIRECTORY, Mode::empty())
        .and_then(|made| fchmod(&made, Mode::from_bits_truncate(permissions)))
        .and_then(|()| rename(around, &temporary, name, RenameFlags::NOREPLACE));
    if made.is_err() {
        let _ = unlinkat(around, &*temporary, UnlinkatFlags::RemoveDir);
    }
    match made {
        Err(Errno::EEXIST) if stat_at(around, name).is_ok_and(|stat| stat.kind() == FileKind::Directory) => {
            Ok(())
        }
        made => made.map_err(describe_errno),
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
    let done = match stat.kind() {
        FileKind::Link => Target::Link(around.as_fd(), name).set_time(ns),
        _ => Target::Opened(open_at(around, name, OPEN_FILE, Mode::empty())?.as_fd()).set_time(ns),
    };
    done.map_err(nix_errno)
}

fn remove_directory(around: &OwnedFd, name: &[u8]) -> std::result::Result<(), Refusal> {
    match unlinkat(around, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => Ok(()),
        Err(errno) => Err(describe_errno(errno)),
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
