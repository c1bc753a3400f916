//! A real folder as a workspace.
//!
//! | module | holds |
//! |---|---|
//! | `options` | what snapshots leave out and keep, as a host says it |
//! | `snapshot` | taking a snapshot, and making it durable |
//! | `restore` | bringing a snapshot back: walk, plan, check, carry out |
//! | `collect` | removing from the store what no snapshot needs |
//! | `state` | what is known from one call to the next; when the stat cache is read and written |
//! | `root` | the folder that a workspace is: open, and known again |
//! | `binding` | which folder it is at the moment, and what a host is told of that |
//! | `lease` | one holder at a time |
//! | `mark` | who works on the workspace, where the process ends meanwhile |
//! | `operations` | what a tool does with files |
//! | `beneath` | paths that never leave the workspace |
//! | `step` | from an open folder to what it holds, through no link and into no mount |
//! | `reach` | deep folders, without holding all around them open |
//! | `removal` | removing a folder, however deep |
//! | `walk` | what is there, and what of it changed: the walk and its threads; scanning one folder (`scan`); folders and their objects (`assemble`) |
//! | `parallel` | one thing done with each of many, in several threads |
//! | `rules` | what is left out, and where that is said |
//! | `leave_out` | lists of what is left out |
//! | `manifest` | a workspace's content in memory, and as trees and permissions |
//! | `cache` | the stat cache's file |
//! | `content` | from a file to its object, as far as a capture may go |
//! | `sparse` | files with holes |
//! | `attributes` | owner, permissions, extended attributes and time of one file |
//! | `metadata` | what a snapshot says of all files beside contents and permissions |
//! | `times` | when files were last changed |
//! | `objects` | git objects in files |
//! | `trees` | trees and commits read back |
//! | `unsynced` | snapshots that are not durable yet |
//! | `plan` | what differs between a snapshot and a workspace |
//! | `checked` | every object that a restore needs, read before anything is changed |
//! | `clearing` | what a restore removes before it writes |
//! | `restorer` | carrying a plan out |
//! | `repositories` | what a tool changed in a `.git`, which stays |
//!
//! # Invariants
//!
//! 1. Nothing named `.git` in a workspace is written, removed or read for a snapshot.
//! 2. The system never follows a link: every part of a path is opened through the folder that holds it.
//! 3. An object's file is named only when it is whole; a commit is written after everything that it names.
//! 4. A restore has read every object that it needs before it changes anything.
//! 5. Nothing depends on the stat cache: without it every answer is the same.
//! 6. A mount inside the workspace is named by snapshots and restores, and never captured, entered or removed. Where one
//!    stands over what the snapshot has, that path is [not restored](Error::NotRestored); elsewhere it stays, with the
//!    folders around it. Tools' own operations go through mounts, but delete none.

mod attributes;
mod beneath;
mod binding;
mod cache;
mod checked;
mod clearing;
mod collect;
mod content;
mod lease;
mod leave_out;
mod manifest;
mod mark;
mod metadata;
mod objects;
mod operations;
mod options;
mod parallel;
mod plan;
mod reach;
mod removal;
mod repositories;
mod restore;
mod restorer;
mod root;
mod rules;
mod snapshot;
mod sparse;
mod state;
mod step;
mod times;
mod trees;
mod unsynced;
mod walk;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Weak;

use parking_lot::Mutex;

use crate::error::{Error, Result};
pub use binding::{Rebind, WorkspaceNotice};
pub use lease::WorkspaceLease;
pub use mark::WorkspaceMark;
use objects::Objects;
pub use options::HostFilesystemOptions;
pub use restore::Restored;
use root::Root;
pub use snapshot::FilesystemSnapshot;
use state::State;
use unsynced::Unsynced;

/// A real folder, whose snapshots are git objects in a store of its own.
///
/// | of a workspace | after a tool that failed |
/// |---|---|
/// | names, contents, folders, symbolic links | as before |
/// | permission bits | as before; the set-user-ID and set-group-ID bits are left off, and told, where the owner or the group is another one |
/// | owner and group | as before where the process may give files away; else told |
/// | extended attributes, access lists and capabilities, of files and folders | as before where the process may set them; else told; not captured: labels of security modules, and `user.foldlog.*` |
/// | which names are one file, inside | as before |
/// | a file that has other names outside | a file of its own with the old content; what was written to it stays under its names outside, and is told |
/// | holes | as before in files of more than 1 MiB, where the file system tells of them |
/// | times of the last change of content | as before where nothing but `.git` is left out of snapshots and `times` is not turned off; else of the restore |
/// | other times, attributes of symbolic links | of the restore |
/// | a file that others append to while it is captured | as the tool left it, and told; captured as far as it was at the beginning |
/// | what the host leaves out | as the tool left it |
/// | `.git` | as the tool left it; what it changed of hooks, config, `HEAD`, refs and `info` is told |
/// | mounts | as the tool left them, and told |
/// | pipes, sockets, devices | removed where the tool made them; no tool begins where there are some |
/// | folders in one another | as before down to 256, removed however many there are |
///
/// What is told stands in [`Restored::inexact`], and of a tool's call in `ToolReport`. Names of
/// `.foldlog-restoring-` and sixteen characters more are a restore's own: no snapshot holds them, and a restore removes
/// them. A store holds what the workspace once held, secrets as well, until it is [collected](HostFilesystem::collect);
/// nobody but its owner may read it.
///
/// Links are never followed out of the workspace, and what is mounted inside it is left out, named
/// ([`FilesystemSnapshot::mounts`], [`Restored::mounts`]) and left alone. What a program writes through a memory mapping
/// may show in a file's times only once the system writes it out; until then a snapshot may miss a second such change.
///
/// It may be used from many threads; snapshots and restores of one value take turns. Whoever else changes the
/// workspace is held off by a [`lease`](HostFilesystem::lease), as far as they ask for one. Calls of a run set a mark
/// beside it, the extended attribute `user.foldlog.work` of the root folder, so that no other session works on what a
/// killed one left half done, before that one is recovered: see `Error::ResourceDirty` of the engine. Where a file system has no such
/// attributes, or the root may not be written, a host has to see to that.
pub struct HostFilesystem {
    root: PathBuf,
    objects: Objects,
    options: HostFilesystemOptions,
    /// The folder that a lease holds.
    bound: Mutex<Weak<Root>>,
    unsynced: Unsynced,
    state: Mutex<State>,
}

impl fmt::Debug for HostFilesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.objects.store();
        f.debug_struct("HostFilesystem")
            .field("root", &self.root)
            .field("store", &store)
            .finish_non_exhaustive()
    }
}

impl HostFilesystem {
    /// A workspace in the folder `root`, whose snapshots go into the folder `store`. The store is made with the
    /// first snapshot; until then nothing is written.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] where there is no folder at `root`, where one of the two is inside the other, or the
    /// store is a link.
    pub fn open(
        root: impl AsRef<Path>,
        store: impl AsRef<Path>,
        options: HostFilesystemOptions,
    ) -> Result<HostFilesystem> {
        let (root, store) = (root.as_ref(), store.as_ref());
        let refused = |path: &Path, reason: &str| Err(Error::path(path.display().to_string(), reason));
        let root = match fs::canonicalize(root) {
            Ok(found) if found.is_dir() => found,
            Ok(_) => return refused(root, "the workspace is no folder"),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return refused(root, "there is no such workspace");
            }
            Err(error) => return Err(Error::io("open", root, error)),
        };
        if fs::symlink_metadata(store).is_ok_and(|found| !found.is_dir()) {
            return refused(store, "the store is no folder, or a link to one");
        }
        let store = whole(store)?;
        if store.starts_with(&root) {
            return refused(&store, "the store is inside the workspace");
        }
        if root.starts_with(&store) {
            return refused(&store, "the workspace is inside the store");
        }
        Ok(HostFilesystem {
            root,
            objects: Objects::new(store),
            options,
            bound: Mutex::new(Weak::new()),
            unsynced: Unsynced::default(),
            state: Mutex::default(),
        })
    }

    /// The workspace's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the snapshots.
    pub fn store(&self) -> &Path {
        self.objects.store()
    }

    /// Whether a folder is the workspace or inside it, whichever path leads there.
    pub fn holds(&self, folder: &Path) -> bool {
        fs::canonicalize(folder).is_ok_and(|folder| folder.starts_with(&self.root))
    }
}

impl Drop for HostFilesystem {
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *self.state.lock());
        self.save(&mut state, 0);
    }
}

/// A folder's path without links, though the last parts of it may not be there yet.
fn whole(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io("find", path, error))?;
    let mut missing = Vec::new();
    let mut present = absolute.as_path();
    loop {
        match fs::canonicalize(present) {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |path, name| path.join(name))),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io("open", path, error)),
            Err(error) => match (present.parent(), present.file_name()) {
                (Some(parent), Some(name)) => {
                    missing.push(name);
                    present = parent;
                }
                _ => return Err(Error::io("open", path, error)),
            },
        }
    }
}
