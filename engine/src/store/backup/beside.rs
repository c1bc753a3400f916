//! What stands in a session's folder beside its log: the captures of workspaces, where a host keeps them there, and files
//! of the host's own.
//!
//! A capture is named by a record once it is whole, and its files never change afterwards; so those that are copied behind
//! the log's end was found hold each capture that the copied records name. Links, pipes and the like are left out, and files
//! that the engine is making: the objects of captures and the files of a backup, by the names that they have until then.
//! Whatever a host calls its files, they are copied.

use std::io::ErrorKind;
use std::path::Path;

use super::captures::{MARK, is_damaged};
use super::{Copied, Copying};
use crate::error::{Error, Result};
use crate::log::copying::{copy_bytes, same_bytes};
use crate::log::layout;
use crate::sabotage::{self, Breakage};
use crate::storage::{Entry, EntryKind};

/// Name of a file that is being copied, whose own name it has once it is durable.
pub(in crate::store) const COPIED: &str = ".foldlog-backup.new";

/// What the names begin with that objects of captures have until they are whole: a process id and a number follow.
const OBJECT: &str = "tmp_obj_";

impl Copying<'_> {
    /// Copies what stands beside the log into `dir`, as far as that lacks it.
    pub(super) fn copy_beside(&self, dir: &Path, copied: &mut Copied) -> Result<()> {
        let mut folders = vec![(self.from.to_owned(), dir.to_owned())];
        while let Some((from, to)) = folders.pop() {
            let is_session = from == self.from;
            let Some(entries) = self.listed(&from)? else { continue };
            // A backup that was killed may have left a file.
            let _ = self.storage().remove_file(&to.join(COPIED));
            for entry in entries.iter().filter(|entry| !is_session || is_beside(entry)) {
                let (from, to) = (from.join(&entry.name), to.join(&entry.name));
                match entry.kind {
                    EntryKind::Folder => {
                        let made = self.storage().create_dir_all(&to);
                        made.map_err(|error| Error::unmade("create", &to, 0, error))?;
                        folders.push((from, to));
                    }
                    EntryKind::File if !is_unfinished(&entry.name) => {
                        self.copy_file(entry, (&from, &to), copied)?;
                    }
                    _ => {}
                }
            }
            // A backup that was killed may have given names that are not durable yet: what is there already counts for
            // nothing.
            self.storage().sync_dir(&to).map_err(|error| Error::io("sync", &to, error))?;
        }
        Ok(())
    }

    /// Returns the names in a folder; `None` if it is gone.
    fn listed(&self, folder: &Path) -> Result<Option<Vec<Entry>>> {
        match self.storage().list(folder) {
            Ok(entries) => Ok(Some(entries)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("list", folder, error)),
        }
    }

    /// Copies a file, unless the copy holds it.
    fn copy_file(&self, entry: &Entry, (from, to): (&Path, &Path), copied: &mut Copied) -> Result<()> {
        let storage = self.storage().as_ref();
        let there = storage.entry(to).map_err(|error| Error::io("look up", to, error))?;
        if let Some(there) = there.filter(|there| there.kind == EntryKind::File) {
            if there.len == entry.len && (is_git_object(from) || same_bytes(storage, (from, to), entry.len)?)
            {
                return Ok(());
            }
            // Of two lengths of one object one is damaged: no older copy gives way to that.
            if is_git_object(from) && is_damaged(from) && !sabotage::is(Breakage::CapturesCopiedOverSound) {
                copied.found_damaged = true;
                return Ok(());
            }
        }
        self.replace_file(entry, (from, to), copied).map(drop)
    }

    /// Copies a file into the place of whatever file the copy has there. Returns `false` if the session's is gone.
    pub(super) fn replace_file(
        &self,
        entry: &Entry,
        (from, to): (&Path, &Path),
        copied: &mut Copied,
    ) -> Result<bool> {
        let storage = self.storage().as_ref();
        let building = to.with_file_name(COPIED);
        let copy = copy_bytes(storage, (from, &building), entry.len, &mut |_| {});
        let named = copy.and_then(|bytes| {
            let renamed = storage.rename(&building, to);
            renamed.map(|()| bytes).map_err(|error| Error::io("rename", to, error))
        });
        match named {
            Ok(bytes) => {
                copied.files += 1;
                copied.bytes += bytes;
                copied.beside.extend(from.strip_prefix(self.from).map(Path::to_owned));
                Ok(true)
            }
            // It went while it was copied.
            Err(Error::Io { source, path, .. }) if source.kind() == ErrorKind::NotFound && path == from => {
                Ok(false)
            }
            Err(error) => {
                let _ = storage.remove_file(&building);
                Err(error)
            }
        }
    }
}

/// Returns whether a name in a session's folder is no part of its log.
fn is_beside(entry: &Entry) -> bool {
    let path = Path::new(&entry.name);
    let here = Path::new("");
    ![layout::objects_dir(here), layout::snapshots_dir(here), layout::spare_file(here)]
        .contains(&path.to_owned())
        && layout::segment_ordinal(&entry.name).is_none()
        && layout::building_ordinal(&entry.name).is_none()
}

/// Returns whether a file has a name that the engine gives to what is not whole yet.
pub(in crate::store) fn is_unfinished(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(OBJECT).and_then(|numbers| numbers.split_once('_'));
    name == COPIED
        || name == MARK
        || numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
}

/// Returns whether a path is that of a git object, whose content its name stands for.
pub(super) fn is_git_object(path: &Path) -> bool {
    let is_hex = |name: Option<&std::ffi::OsStr>, len: usize| {
        let name = name.map(std::ffi::OsStr::as_encoded_bytes).unwrap_or_default();
        name.len() == len && name.iter().all(u8::is_ascii_hexdigit)
    };
    is_hex(path.file_name(), 38) && is_hex(path.parent().and_then(Path::file_name), 2)
}
