//! A directory of the host as a workspace: a tool's operations on it, snapshots of it as git objects, and restores.
//!
//! | module | holds |
//! |---|---|
//! | `options` | what snapshots leave out and keep, as a host says it |
//! | `snapshot` | taking a snapshot, and making it durable |
//! | `restore` | bringing a snapshot back: walk, plan, check, carry out |
//! | `scratch` | a copy of a snapshot in a directory of its own, which goes with its value |
//! | `audit` | whether all that snapshots need is in the store, and sound |
//! | `changes` | snapshots read from their store alone: what differs, files, contents |
//! | `merge` | a snapshot with what was changed by hand since put in, for a rewind |
//! | `comparison` | the walk through two snapshots side by side |
//! | `packs` | what snapshots need as bytes for another machine, and made objects of there |
//! | `pool` | one file for what several stores hold |
//! | `collect` | removing from the store what no snapshot needs |
//! | `state` | what is known from one call to the next; when the stat cache is read and written |
//! | `root` | the directory that a workspace is: open, and known again |
//! | `directory_check` | which directory it is at the moment, and what a host is told of that |
//! | `lease` | one holder at a time |
//! | `mark` | who works on the workspace, where the process ends meanwhile |
//! | `operations` | what a tool does with files |
//! | `resolve` | paths that never leave the workspace |
//! | `step` | from an open directory to what it holds, through no link and into no mount |
//! | `deep_directories` | deep directories, without holding all around them open |
//! | `removal` | removing a directory, however deep |
//! | `walk` | what is there, and what of it changed: the walk and its threads; scanning one directory (`scan`); directories and their objects (`assemble`) |
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
//! | `known_objects` | which objects are there and sound, and when a capture looks |
//! | `object_files` | opening what lies in a store by its names, and reading the files of objects |
//! | `listing` | what is in the directories of objects |
//! | `trees` | trees and commits read back |
//! | `uncapturable` | what keeps snapshots from being taken |
//! | `unsynced_snapshots` | snapshots that are not durable yet |
//! | `plan` | what differs between a snapshot and a workspace |
//! | `checked_objects` | every object that a restore needs, read before anything is changed |
//! | `pre_restore_removal` | what a restore removes before it writes |
//! | `aside` | what a restore would replace and nothing can capture, moved out of its way |
//! | `restorer` | carrying a plan out |
//! | `repositories` | the state of what is named `.git`: copies of it, and bringing it back |
//!
//! # Invariants
//!
//! 1. No git object of a repository in a workspace is written or removed, but with a repository that a call made, by the
//!    rollback of that call. Of what is named `.git`, only `repositories` reads or writes anything.
//! 2. The system never follows a link: every part of a path is opened through the directory that holds it.
//! 3. An object's file is named only when it is whole; a commit is written after everything that it names.
//! 4. A restore has read every object that it needs before it changes anything.
//! 5. Nothing depends on the stat cache: without it every answer is the same.
//! 6. A mount inside the workspace is named by snapshots and restores, and never captured, entered or removed. Where
//!    one stands over what the snapshot has, that path is [not restored](Error::NotRestored); elsewhere it stays, with
//!    the directories around it. Tools' own operations go through mounts, but delete none.

mod aside;
mod attributes;
mod audit;
mod cache;
mod changes;
mod checked_objects;
mod collect;
mod comparison;
mod content;
mod deep_directories;
mod directory_check;
mod known_objects;
mod lease;
mod leave_out;
mod listing;
mod manifest;
mod mark;
mod merge;
mod metadata;
mod object_files;
mod objects;
mod operations;
mod options;
mod packs;
mod parallel;
mod plan;
mod pool;
mod pre_restore_removal;
mod removal;
mod repositories;
mod resolve;
mod restore;
mod restorer;
mod root;
mod rules;
mod scratch;
mod snapshot;
mod sparse;
mod state;
mod step;
mod times;
mod trees;
mod uncapturable;
mod unsynced_snapshots;
mod walk;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Weak;

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::error::{Error, Result};
pub(crate) use aside::SET_ASIDE;
pub use audit::{DamagedObject, SnapshotsAudited, audit_snapshots, damage_of_object, keeps_any};
pub use changes::{FileChange, FileFacts, FileForm, SnapshotReader};
pub use collect::{CaptureCollectOptions, Collection, collect_snapshots, remember_collected};
pub use directory_check::{Rebind, WorkspaceNotice};
pub use lease::WorkspaceLease;
pub use mark::WorkspaceMark;
pub use merge::{RewindMerge, RewindMergeInputs};
use objects::Objects;
pub use options::{CaptureProgress, HostFilesystemOptions};
pub use packs::{PACK_BYTES_MAX, PackReceiver, SnapshotPacker};
pub use pool::{collect_pool, unpool};
pub use restore::WorkspaceRestoreReport;
use root::Root;
pub use snapshot::FilesystemSnapshot;
use state::WorkspaceState;
pub use uncapturable::Uncapturable;
use unsynced_snapshots::CaptureSyncQueue;

/// Holds a directory of the host as a workspace, and keeps snapshots of it as git commits in a store of its own.
///
/// ```
/// use foldlog_filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
///
/// let dir = tempfile::tempdir()?;
/// let (directory, store) = (dir.path().join("work"), dir.path().join("store"));
/// std::fs::create_dir(&directory)?;
///
/// let options = HostFilesystemOptions::default().leave_out("target/");
/// let work = HostFilesystem::open(&directory, &store, options)?;
/// work.write("src/main.rs", b"fn main() {}\n")?;
/// let before = work.snapshot(Some("before the call"), true)?;
///
/// // Whoever changes the directory, and however.
/// std::fs::remove_dir_all(directory.join("src"))?;
/// std::fs::write(directory.join("stray"), "")?;
///
/// let restored = work.restore(&before)?;
/// assert_eq!(work.read("src/main.rs")?, b"fn main() {}\n");
/// assert!(!work.exists("stray")? && restored.inexact.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What a restore gives back
///
/// | of a workspace | after a tool that failed |
/// |---|---|
/// | names, contents, directories, symbolic links | as before |
/// | permission bits | as before; the set-user-ID and set-group-ID bits are left off, and told, where the owner or the group is another one |
/// | owner and group | as before where the process may give files away; else told |
/// | extended attributes, access lists and capabilities, of files and directories | as before where the process may set them; else told; not captured: labels of security modules, and `user.foldlog.*` |
/// | which names are one file, inside | as before |
/// | a file that has other names outside | a file of its own with the old content; what was written to it stays under its names outside, and is told |
/// | holes | as before in files of more than 1 MiB, where the file system tells of them |
/// | times of the last change of content | as before where nothing but `.git` and `.aca` is left out of snapshots and `times` is not turned off; else of the restore |
/// | other times, attributes of symbolic links | of the restore |
/// | a file that others append to while it is captured | as the tool left it, and told; captured as far as it was at the beginning |
/// | what the host leaves out | as the tool left it; so is the directory `.aca` in the root, which holds exports of sessions, unless the host includes it, and the directory `.foldlog-aside` there, into which goes what a rollback replaces and cannot capture |
/// | `.git` | `HEAD`, refs, logs, index, config, hooks and the state of merges and rebases as before; git objects stay, and a commit that nothing names any more is kept under `refs/foldlog/lost` and told, or told alone if the refs are in the format reftable; moved to `.foldlog-aside` where the tool made it, as the repository of a submodule is; told where the tool removed it, and what it leads to outside |
/// | mounts | as the tool left them, and told |
/// | pipes, sockets, devices | removed where the tool made them; no tool begins where there are some |
/// | directories in one another | as before down to 256, removed however many there are |
///
/// What is told stands in [`WorkspaceRestoreReport::inexact`], and for a tool call in the engine's `ToolReport`.
///
/// # Files
///
/// Snapshots and restores never follow a link out of the workspace. They never enter a mount inside it: they name it
/// ([`FilesystemSnapshot::mounts`], [`WorkspaceRestoreReport::mounts`]) and leave it alone. Names that consist of
/// `.foldlog-restoring-` and sixteen characters belong to restores: no snapshot holds such a file, and a restore
/// removes it. A store holds whatever the workspace once held, secrets as well, until it is
/// [collected](HostFilesystem::collect); only its owner may read it. What a program writes through a memory mapping may
/// show in a file's times only once the system writes it out; until then a snapshot may miss a second such change.
///
/// # Threads and processes
///
/// Many threads may use one value: operations run at once, snapshots and restores one after the other. A
/// [`lease`](HostFilesystem::lease) keeps everybody else out who asks for one. The engine's tool calls also set a
/// [mark](WorkspaceLease::mark) on the root directory, the extended attribute `user.foldlog.work`, so that no other
/// session works on what a killed call left half done before that call's session is recovered (`Error::ResourceDirty`
/// of the engine). If the file system has no extended attributes, or the root may not be written, the host has to see
/// to that.
pub struct HostFilesystem {
    root: PathBuf,
    objects: Objects,
    options: HostFilesystemOptions,
    /// Directory that a lease holds.
    bound: Mutex<Weak<Root>>,
    unsynced: CaptureSyncQueue,
    state: Mutex<WorkspaceState>,
    /// Directory of a scratch copy, which is removed with it.
    scratch: Option<TempDir>,
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
    /// Opens the directory `root` as a workspace whose snapshots are kept in the directory `store`. Nothing is written: the
    /// first snapshot creates the store.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] if `root` is no directory, if `store` is a link or no directory, or if one of the two is inside the
    /// other; [`Error::Io`] if one of them cannot be looked at.
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
        Ok(HostFilesystem::at(root, Objects::new(store).with_pool(options.pool.clone()), options, None))
    }

    /// Makes the value of a directory of which nothing is known yet.
    fn at(
        root: PathBuf,
        objects: Objects,
        options: HostFilesystemOptions,
        scratch: Option<TempDir>,
    ) -> HostFilesystem {
        let (bound, unsynced, state) =
            (Mutex::new(Weak::new()), CaptureSyncQueue::default(), Mutex::default());
        HostFilesystem { root, objects, options, bound, unsynced, state, scratch }
    }

    /// Returns the workspace's path, its links resolved when the workspace was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the directory that keeps the snapshots.
    pub fn store(&self) -> &Path {
        self.objects.store()
    }

    /// Returns whether `directory` is the workspace's directory or inside it, whichever path leads there. Returns `false` if
    /// nothing stands at `directory`.
    pub fn holds(&self, directory: &Path) -> bool {
        fs::canonicalize(directory).is_ok_and(|directory| directory.starts_with(&self.root))
    }
}

impl Drop for HostFilesystem {
    fn drop(&mut self) {
        // What is known of a copy goes with it.
        if self.scratch.is_none() {
            let mut state = std::mem::take(&mut *self.state.lock());
            self.save(&mut state, 0);
        }
    }
}

/// Resolves the links in a path whose last parts may be missing.
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
