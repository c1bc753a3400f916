//! Other files in a session's directory, next to its log: captures of workspaces that a host stores
//! there, and files of the host's own.
//!
//! A record names a capture only after the capture is complete, and its files never change
//! afterwards. So files that are copied after the log's end was determined include every capture
//! that the copied records name. Links, pipes and the like are left out, as are unfinished files of
//! the engine, by their temporary names: objects of captures and files of a backup. Files of the
//! host are copied under any name.
//!
//! An entry of a different kind than its name indicates, in the session or in the copy, is reported
//! as damage and left alone. All other entries are copied.

use std::io::ErrorKind;
use std::path::Path;

use super::captures::{MARK, is_damaged};
use super::{BackupRun, CopyTotals, DamagedCapture};
use crate::error::{Error, Result};
use crate::log::copy::{copy_bytes, same_bytes};
use crate::log::layout;
use crate::storage::{DirectoryEntry, EntryKind};

/// Name of a file while it is copied. It gets its own name once it is durable.
pub(in crate::store) const COPIED: &str = ".foldlog-backup.new";

/// Name prefix of unfinished objects of captures. A process id and a number follow.
const OBJECT: &str = "tmp_obj_";

impl BackupRun<'_> {
    /// Copies files next to the log into `dir` that it lacks.
    pub(super) fn copy_beside(&self, dir: &Path, copied: &mut CopyTotals) -> Result<()> {
        let mut directories = vec![(self.from.to_owned(), dir.to_owned())];
        while let Some((from, to)) = directories.pop() {
            let is_session = from == self.from;
            let Some(entries) = self.storage().entries_if_any(&from)? else { continue };
            if is_session {
                self.miss_captures(&entries, dir, copied)?;
            }
            // A killed backup may have left a file.
            let _ = self.storage().remove_file(&to.join(COPIED));
            for entry in entries.iter().filter(|entry| !is_session || is_beside(entry)) {
                let (from, to) = (from.join(&entry.name), to.join(&entry.name));
                if let Some(wanted) = self.expected_kind(&from, entry.kind) {
                    copied.note_irregular(&from, entry.kind, wanted);
                    continue;
                }
                match entry.kind {
                    EntryKind::Directory => {
                        if let Some(found) = self.in_place_of(&to, EntryKind::Directory)? {
                            copied.note_irregular(&to, found, EntryKind::Directory);
                            continue;
                        }
                        self.storage().make_directory(&to)?;
                        directories.push((from, to));
                    }
                    EntryKind::File if !is_unfinished(&entry.name) => {
                        self.copy_file(entry, &from, &to, copied)?;
                    }
                    _ => {}
                }
            }
            // A killed backup may have created names that are not durable yet. So the sync is
            // needed even if nothing was copied.
            self.storage().sync_directory(&to)?;
        }
        Ok(())
    }

    /// Returns the expected kind of an entry in the session's captures, if a different kind was
    /// found. Elsewhere a host may create entries of any kind.
    fn expected_kind(&self, path: &Path, found: EntryKind) -> Option<EntryKind> {
        let captures = layout::captures_dir(self.from);
        let name = path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        let is_hex = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_in = |directory: &Path| path.parent() == Some(directory);
        let is_within = is_in(&captures);
        let wanted = match name {
            _ if is_git_object(path) => EntryKind::File,
            // A session without captures may have a file of that name.
            _ if path == captures && found != EntryKind::File => EntryKind::Directory,
            "HEAD" | "config" if is_within => EntryKind::File,
            "objects" | "refs" if is_within => EntryKind::Directory,
            _ if (is_hex || name == "pack") && is_in(&captures.join("objects")) => EntryKind::Directory,
            _ => return None,
        };
        (wanted != found).then_some(wanted)
    }

    /// Returns the kind of the entry at a path if it is not the wanted one; `None` if it is, or if
    /// there is no entry.
    pub(super) fn in_place_of(&self, path: &Path, wanted: EntryKind) -> Result<Option<EntryKind>> {
        let there = self.storage().look_up(path)?;
        Ok(there.map(|there| there.kind).filter(|kind| *kind != wanted))
    }

    /// Reports that the session has lost its directory of captures, if the copy has one.
    fn miss_captures(&self, entries: &[DirectoryEntry], copy: &Path, copied: &mut CopyTotals) -> Result<()> {
        let (own, copy) = (layout::captures_dir(self.from), layout::captures_dir(copy).join("objects"));
        if entries.iter().any(|entry| own.file_name() == Some(entry.name.as_ref())) {
            return Ok(());
        }
        let kept = self.storage().look_up(&copy)?;
        if kept.is_some_and(|kept| kept.kind == EntryKind::Directory) {
            let reason =
                "the directory of the session's captures is missing; the copy contains them".to_owned();
            copied.note(DamagedCapture { path: own, reason });
        }
        Ok(())
    }

    /// Copies a file, unless the copy has it.
    fn copy_file(
        &self,
        entry: &DirectoryEntry,
        from: &Path,
        to: &Path,
        copied: &mut CopyTotals,
    ) -> Result<()> {
        let storage = self.storage().as_ref();
        let there = storage.look_up(to)?;
        if let Some(there) = there {
            if there.kind != EntryKind::File {
                copied.note_irregular(to, there.kind, EntryKind::File);
                return Ok(());
            }
            if there.len == entry.len && (is_git_object(from) || same_bytes(storage, from, to, entry.len)?) {
                return Ok(());
            }
            // If two files of one object differ in length, one is damaged. A damaged file must not
            // replace the older copy.
            if is_git_object(from) && is_damaged(from) {
                copied.found_damaged = true;
                return Ok(());
            }
        }
        self.replace_file(entry, from, to, copied).map(drop)
    }

    /// Copies a file, replacing the file in the copy if there is one. Returns `false` if the
    /// session's file was removed.
    pub(super) fn replace_file(
        &self,
        entry: &DirectoryEntry,
        from: &Path,
        to: &Path,
        copied: &mut CopyTotals,
    ) -> Result<bool> {
        let storage = self.storage().as_ref();
        let building = to.with_file_name(COPIED);
        let copy = copy_bytes(storage, from, &building, entry.len, &mut |_| {});
        let named = copy.and_then(|bytes| storage.rename_to(&building, to).map(|()| bytes));
        match named {
            Ok(bytes) => {
                copied.report.files += 1;
                copied.report.bytes += bytes;
                copied.beside.extend(from.strip_prefix(self.from).map(Path::to_owned));
                Ok(true)
            }
            // The file was removed while it was copied.
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

impl CopyTotals {
    /// Reports an entry of a different kind than its name indicates.
    pub(super) fn note_irregular(&mut self, path: &Path, found: EntryKind, wanted: EntryKind) {
        if self.irregular.iter().any(|one| one.path == path) {
            return;
        }
        let reason = format!("it is {}: it is left alone", found.in_place_of(wanted));
        self.note(DamagedCapture { path: path.to_owned(), reason });
    }

    /// Reports damage that prevents copying a file or a directory. All captures are read then.
    pub(super) fn note(&mut self, damaged: DamagedCapture) {
        self.found_damaged = true;
        self.irregular.push(damaged);
    }
}

/// Returns whether a name in a session's directory is not part of its log.
fn is_beside(entry: &DirectoryEntry) -> bool {
    let path = Path::new(&entry.name);
    let here = Path::new("");
    // Pending decisions are for the host of this session, not for that of a copy.
    let own = [
        layout::objects_dir(here),
        layout::snapshots_dir(here),
        layout::decisions_dir(here),
        layout::spare_file(here),
    ];
    !own.contains(&path.to_owned())
        && layout::segment_ordinal(&entry.name).is_none()
        && layout::building_ordinal(&entry.name).is_none()
}

/// Returns whether the name is one that the engine gives to unfinished files.
pub(in crate::store) fn is_unfinished(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(OBJECT).and_then(|numbers| numbers.split_once('_'));
    name == COPIED
        || name == MARK
        || numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
}

/// Returns whether a path is that of a git object or of a file of a git pack, whose name is the hash
/// of its content.
pub(super) fn is_git_object(path: &Path) -> bool {
    let is_hex = |name: Option<&std::ffi::OsStr>, len: usize| {
        let name = name.map(std::ffi::OsStr::as_encoded_bytes).unwrap_or_default();
        name.len() == len && name.iter().all(u8::is_ascii_hexdigit)
    };
    let directory = path.parent().and_then(Path::file_name);
    let pack = path.file_stem().and_then(|name| name.to_str()?.strip_prefix("pack-"));
    let is_pack = pack.is_some_and(|digits| is_hex(Some(digits.as_ref()), 40))
        && directory.is_some_and(|directory| directory == "pack")
        && path.extension().is_some_and(|end| end == "pack" || end == "idx");
    is_pack || (is_hex(path.file_name(), 38) && is_hex(directory, 2))
}
