//! Moves entries aside that a restore is about to replace or remove, if they cannot be captured.
//!
//! Files are renamed into the directory [`ASIDE`] of the workspace's root, into one directory for
//! each call, under their original paths. A rename takes no space for contents, and always stays on
//! the file system. Snapshots leave the directory out, and restores do not touch it. A person
//! removes it after inspecting it.
//!
//! A file of a git repository gets a second name there instead, a hard link, since the restore has
//! yet to read it. It becomes the only name once the restore has replaced or removed the first,
//! which it does only by renaming and unlinking.
//!
//! If a restore is interrupted after that, it is run again like any other.

use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use rustix::fs::{RenameFlags, renameat_with};

use super::manifest::{FileKind, display_path, join};
use super::rules::ASIDE;
use super::step::{OPEN_DIRECTORY, list, nix_errno, open_around, open_at, stat_at};
use crate::error::{Error, Result};

pub(crate) const SET_ASIDE: &str = "move into .foldlog-aside";

/// Greatest number of names to try if the same path is already in use.
const NAMES_MAX: u32 = 1_000;

/// Entries to set aside, by paths from the workspace's root.
#[derive(Default)]
pub(super) struct Aside {
    pub(super) moved: Vec<Vec<u8>>,
    /// Files that get a second name.
    pub(super) linked: Vec<Vec<u8>>,
}

struct EntryPlace {
    directory: OwnedFd,
    name: Vec<u8>,
}

/// An entry that was set aside: its previous and its new place.
struct AsideMove {
    from: EntryPlace,
    to: EntryPlace,
    is_linked: bool,
}

/// Returns the path of the entries that were set aside for a call, relative to the workspace's
/// root.
pub(super) fn directory_of(call: &str) -> String {
    format!("{}/{call}", String::from_utf8_lossy(ASIDE))
}

pub(super) fn names(root: &OwnedFd, call: &str) -> Vec<String> {
    let aside = open_at(root, ASIDE, OPEN_DIRECTORY, Mode::empty());
    let directory = aside.and_then(|aside| open_at(&aside, call.as_bytes(), OPEN_DIRECTORY, Mode::empty()));
    let listed = directory.and_then(|directory| list(&directory)).unwrap_or_default();
    let mut names: Vec<String> = listed.iter().map(|(name, _)| display_path(name)).collect();
    names.sort_unstable();
    names
}

/// Finds the entry that had this path before it was set aside, of the call with the highest number.
/// Returns a path from the workspace's root.
pub(super) fn find(root: &OwnedFd, path: &[u8]) -> Option<String> {
    let aside = open_at(root, ASIDE, OPEN_DIRECTORY, Mode::empty()).ok()?;
    let calls = list(&aside).ok()?.into_iter().map(|(call, _)| call);
    let has_it = |call: &Vec<u8>| {
        open_around(&aside, &join(call, path))
            .is_ok_and(|(directory, name)| stat_at(&directory, &name).is_ok())
    };
    let call = calls.filter(has_it).max_by_key(|call| (call.len(), call.clone()))?;
    Some(display_path(&join(&join(ASIDE, &call), path)))
}

/// Returns those of the repositories of which a part, without objects, was set aside for the call.
pub(super) fn parts<'a>(
    root: &OwnedFd,
    call: &str,
    repositories: impl Iterator<Item = &'a Vec<u8>>,
) -> Vec<&'a Vec<u8>> {
    let is_part = |path: &&'a Vec<u8>| {
        let aside = open_at(root, ASIDE, OPEN_DIRECTORY, Mode::empty());
        let directory = aside.and_then(|aside| {
            let (directory, name) = open_around(&aside, &join(call.as_bytes(), path))?;
            open_at(&directory, &name, OPEN_DIRECTORY, Mode::empty())
        });
        directory.is_ok_and(|directory| stat_at(&directory, b"objects").is_err())
    };
    repositories.filter(is_part).collect()
}

/// Sets everything aside, or nothing. Skips missing entries.
pub(super) fn set_all(root: &OwnedFd, place: &Path, call: &str, paths: &Aside) -> Result<()> {
    let mut moved: Vec<AsideMove> = Vec::new();
    let linked = paths.linked.iter().map(|path| (path, true));
    for (path, is_linked) in linked.chain(paths.moved.iter().map(|path| (path, false))) {
        match set_one(root, call, path, is_linked) {
            Ok(one) => moved.extend(one),
            Err(errno) => {
                for AsideMove { from, to, is_linked } in moved.iter().rev() {
                    // Entries that cannot be moved back stay aside, and nothing of them is lost.
                    let _ = match is_linked {
                        true => unlinkat(&to.directory, &*to.name, UnlinkatFlags::NoRemoveDir),
                        false => rename(to, from),
                    };
                }
                // If a different kind of entry is in the directory's place, that entry has to be
                // removed.
                let is_taken = stat_at(root, ASIDE).is_ok_and(|found| found.kind() != FileKind::Directory);
                let named = if is_taken { ASIDE } else { path };
                return Err(Error::io(SET_ASIDE, place.join(display_path(named)), errno));
            }
        }
    }
    Ok(())
}

fn set_one(root: &OwnedFd, call: &str, path: &[u8], is_linked: bool) -> Result<Option<AsideMove>, Errno> {
    let found =
        open_around(root, path).and_then(|(from, name)| Ok((stat_at(&from, &name)?.kind(), from, name)));
    let from = match found {
        // A pipe, a socket or a device has no content.
        Ok((FileKind::Special, ..)) => return Ok(None),
        Ok((_, directory, name)) => EntryPlace { directory, name },
        Err(Errno::ENOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut directory_there = open_or_create(&open_or_create(root, ASIDE)?, call.as_bytes())?;
    let directories = path.strip_suffix(&*from.name).unwrap_or_default();
    for directory in directories.split(|byte| *byte == b'/').filter(|directory| !directory.is_empty()) {
        directory_there = open_or_create(&directory_there, directory)?;
    }
    // An entry there is from an earlier attempt that was interrupted.
    let mut to = EntryPlace { directory: directory_there, name: Vec::new() };
    for number in 0..NAMES_MAX {
        let behind = if number == 0 { String::new() } else { format!(".{number}") };
        to.name = [&from.name, behind.as_bytes()].concat();
        let set = match is_linked {
            true => link(&from, &to),
            false => rename(&from, &to),
        };
        match set {
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
            Ok(()) => return Ok(Some(AsideMove { from, to, is_linked })),
        }
    }
    Err(Errno::EEXIST)
}

fn open_or_create(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match mkdirat(directory, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => open_at(directory, name, OPEN_DIRECTORY, Mode::empty()),
        Err(errno) => Err(errno),
    }
}

/// Gives a file a second name. An earlier attempt may have created it already.
fn link(from: &EntryPlace, to: &EntryPlace) -> Result<(), Errno> {
    match linkat(&from.directory, &*from.name, &to.directory, &*to.name, AtFlags::empty()) {
        Err(Errno::EEXIST) => {
            let (one, other) = (stat_at(&from.directory, &from.name)?, stat_at(&to.directory, &to.name)?);
            let is_one = (one.device, one.inode) == (other.device, other.inode);
            if is_one { Ok(()) } else { Err(Errno::EEXIST) }
        }
        linked => linked,
    }
}

fn rename(from: &EntryPlace, to: &EntryPlace) -> Result<(), Errno> {
    let flags = RenameFlags::NOREPLACE;
    let renamed = renameat_with(&from.directory, &*from.name, &to.directory, &*to.name, flags);
    renamed.map_err(nix_errno)
}
