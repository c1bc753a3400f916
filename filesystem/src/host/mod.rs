//! A directory of the host as a workspace: a tool's operations on it, snapshots of it as git
//! objects, and restores.
//!
//! | module | contents |
//! |---|---|
//! | `options` | the host's options for snapshots |
//! | `snapshot` | taking a snapshot, and making it durable |
//! | `restore` | bringing a snapshot back: walk, plan, check, carry out |
//! | `scratch` | a temporary copy of a snapshot in its own directory |
//! | `audit` | verifying that the store has every object that snapshots need, intact |
//! | `changes` | reading snapshots from their store alone: differences, files, contents |
//! | `ignored` | the paths that `.gitignore` files ignore, for programs that show snapshots |
//! | `path_edits` | editing single paths, each only if it has the expected state |
//! | `edit_leftovers` | names of incomplete edits, and their recovery after a kill |
//! | `time_changes` | reading times of snapshots, and their differences |
//! | `file_merge` | removing one change from the present version of a file |
//! | `rewind_merge` | combining a snapshot with later changes by hand, for a rewind |
//! | `snapshot_comparison` | the walk through two snapshots in parallel |
//! | `packs` | the objects of snapshots as bytes for another machine, and their import there; not `git_packs` |
//! | `pool` | one file for equal objects of several stores |
//! | `collect` | removing objects from the store that no snapshot needs |
//! | `state` | knowledge from one call to the next; reading and writing the stat cache |
//! | `root` | the workspace's directory: opening and recognizing it |
//! | `directory_check` | checking which directory is at the path, and reporting it to the host |
//! | `lease` | one holder at a time |
//! | `mark` | a note of the worker, in case its process ends |
//! | `operations` | a tool's operations on files |
//! | `resolve` | paths that never leave the workspace |
//! | `step` | from an open directory to its entries, through no link and into no mount |
//! | `deep_directories` | deep directories, without open handles on all their parents |
//! | `removal` | removing a directory of any depth |
//! | `walk` | finding all entries and their changes: the walk and its threads; scanning one directory (`scan`); directories and their objects (`assemble`) |
//! | `parallel` | processing many items in several threads |
//! | `rules` | which paths are left out, and where this is defined |
//! | `leave_out` | leave-out lists |
//! | `manifest` | a workspace's content in memory, and as trees and permissions |
//! | `cache` | the stat cache's file |
//! | `content` | from a file to its object, within the limits of a capture |
//! | `sparse` | files with holes |
//! | `shared` | large files whose blocks the file system shares |
//! | `attributes` | owner, permissions, extended attributes and time of one file |
//! | `metadata` | the data of a snapshot about all files in addition to contents and permissions |
//! | `times` | times of the files' last changes |
//! | `objects` | git objects in files |
//! | `git_packs` | git packs: many objects in one file, with an index |
//! | `needed_objects` | the objects that snapshots need |
//! | `new_objects` | the new objects of a capture: in files or, if they are many, in git packs |
//! | `compression` | compressing objects, where it gains |
//! | `known_objects` | which objects are known to be present and intact, and when a capture verifies them |
//! | `object_files` | opening the files of a store by name, and reading those of objects |
//! | `object_sync` | making objects durable |
//! | `listing` | listing the directories of objects |
//! | `trees` | reading trees and commits |
//! | `uncapturable` | entries that prevent snapshots |
//! | `unsynced_snapshots` | snapshots that are not durable yet |
//! | `plan` | the differences between a snapshot and a workspace |
//! | `checked_objects` | reading every object that a restore needs, before anything is changed |
//! | `pre_restore_removal` | removals of a restore before it writes |
//! | `set_aside` | moving entries aside that a restore would replace and that cannot be captured |
//! | `restorer` | carrying a plan out |
//! | `repositories` | the state of git repositories: copying it, and bringing it back |
//!
//! # Invariants
//!
//! 1. No git object of a repository in a workspace is written or removed, except with a repository
//!    that a call created, by the rollback of that call. Only `repositories` reads or writes
//!    anything named `.git`.
//! 2. The system never follows a link: every part of a path is opened through its parent directory.
//! 3. An object's file gets its name only when it is complete, a git pack's and a clone's only when
//!    durable. A
//!    commit is written after everything that it names.
//! 4. A restore has read every object that it needs before it changes anything.
//! 5. Nothing depends on the stat cache: without it every result is the same.
//! 6. A mount inside the workspace is reported by snapshots and restores, and never captured,
//!    entered or removed. If a mount covers an entry of the snapshot, that path is [not
//!    restored](Error::NotRestored). Otherwise the mount stays, with its parent directories. Tools'
//!    own operations pass through mounts, but delete none.

mod attributes;
mod audit;
mod cache;
mod changes;
mod checked_objects;
mod collect;
mod compression;
mod content;
mod deep_directories;
mod directory_check;
mod edit_leftovers;
mod file_merge;
mod git_packs;
mod ignored;
mod known_objects;
mod lease;
mod leave_out;
mod listing;
mod manifest;
mod mark;
mod metadata;
mod needed_objects;
mod new_objects;
mod object_files;
mod object_sync;
mod objects;
mod operations;
mod options;
mod packs;
mod parallel;
mod path_edits;
mod plan;
mod pool;
mod pre_restore_removal;
mod regular_files;
mod removal;
mod repositories;
mod resolve;
mod restore;
mod restorer;
mod rewind_merge;
mod root;
mod rules;
mod scratch;
mod set_aside;
mod shared;
mod snapshot;
mod snapshot_comparison;
mod sparse;
mod state;
mod step;
mod time_changes;
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

use crate::error::{Error, IoContext, Result};
pub use audit::{DamagedObject, SnapshotsAudited, audit_snapshots, damage_of_object, keeps_any};
pub use changes::{DirectoryChange, FileChange, FileFacts, SnapshotReader};
pub use collect::{CaptureCollectOptions, Collection, collect_snapshots, remember_collected};
pub use directory_check::{Rebind, WorkspaceNotice};
pub use file_merge::FileVersion;
pub use ignored::IgnoredPaths;
pub use lease::WorkspaceLease;
pub use manifest::{FileForm, escape_path, unescape_path};
pub use mark::WorkspaceMark;
use objects::Objects;
pub use options::{CaptureProgress, HostFilesystemOptions, PartialCapture};
pub use packs::{PACK_BYTES_MAX, PackReceiver, SnapshotPacker};
pub use path_edits::{PathEdit, WantedEntry};
pub use pool::{collect_pool, unpool};
pub use regular_files::{open_regular_file, read_regular_file};
pub use restore::WorkspaceRestoreReport;
pub use rewind_merge::{RewindMerge, RewindMergeInputs};
use root::Root;
pub(crate) use set_aside::SET_ASIDE;
pub use snapshot::{FilesystemSnapshot, NotedEntry};
use state::WorkspaceState;
pub use time_changes::TimeChange;
pub use uncapturable::Uncapturable;
use unsynced_snapshots::CaptureSyncQueue;

/// Represents a directory of the host as a workspace, and stores snapshots of it as git commits in
/// its own store.
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
/// # What a restore brings back
///
/// | part of a workspace | state after a failed tool |
/// |---|---|
/// | names, contents, directories, symbolic links | as before |
/// | permission bits | as before; the set-user-ID and set-group-ID bits are dropped, and reported, if the owner or the group differs |
/// | owner and group | as before if the process may give files away; otherwise reported |
/// | extended attributes, access lists and capabilities, of files and directories | as before if the process may set them; otherwise reported; not captured: labels of security modules, and `user.foldlog.*` |
/// | names of the same file, inside | as before |
/// | a file that has other names outside | becomes a separate file with the old content; new content stays under its names outside, and is reported |
/// | holes | as before in files of more than 1 MiB, if the file system reports them |
/// | times of the last change of content | as before if only `.git` and `.aca` are left out of snapshots and `times` is not turned off; otherwise those of the restore |
/// | other times, attributes of symbolic links | those of the restore |
/// | a file that others append to while it is captured | as the tool left it, and reported; the capture has the content up to its length at the start |
/// | paths that the host leaves out | as the tool left them. The same applies in the root to the directory `.aca`, which contains exports of sessions, unless the host includes it, and to the directory `.foldlog-aside`, which receives entries that a rollback replaces and that cannot be captured |
/// | `.git` | `HEAD`, refs, logs, index, config, hooks and the state of merges and rebases as before. Git objects stay. A commit that is no longer referenced gets a ref under `refs/foldlog/lost` and is reported, or is only reported if the refs are in the format reftable. A repository that the tool created is moved to `.foldlog-aside`, like the repository of a submodule. A repository that the tool removed is reported, and so are links to the outside |
/// | mounts | as the tool left them, and reported |
/// | pipes, sockets, devices | removed if the tool created them; no tool starts if there are any |
/// | nested directories | as before down to 256 levels, removed at any depth |
///
/// Reports are in [`WorkspaceRestoreReport::inexact`] and, for a tool call, in the engine's
/// `ToolReport`.
///
/// # Files
///
/// Snapshots and restores never follow a link out of the workspace. They never enter a mount inside
/// it: they report it ([`FilesystemSnapshot::mounts`], [`WorkspaceRestoreReport::mounts`]) and
/// leave it unchanged. Names that consist of `.foldlog-restoring-` and sixteen characters belong to
/// restores: no snapshot contains such a file, and a restore removes it. Names that begin with
/// `.foldlog-editing-` belong to [edits](HostFilesystem::edit_paths): no snapshot contains such an
/// entry, and no restore touches it. A store contains
/// everything that the workspace ever contained, including secrets, until it is
/// [collected](HostFilesystem::collect); only its owner may read it. A write through a memory
/// mapping may appear in a file's times only once the system writes it out; until then a snapshot
/// may miss a second such change.
///
/// # Threads and processes
///
/// Many threads may use one value. Operations run concurrently; snapshots and restores run one
/// after the other. A [`lease`](HostFilesystem::lease) excludes all others that request one. The
/// engine's tool calls also set a [mark](WorkspaceLease::mark) on the root directory, the extended
/// attribute `user.foldlog.work`. It prevents other sessions from working on the remains of a
/// killed call before that call's session is recovered (`Error::ResourceDirty` of the engine). If
/// the file system has no extended attributes, or the root is not writable, the host has to ensure
/// this.
pub struct HostFilesystem {
    root: PathBuf,
    objects: Objects,
    options: HostFilesystemOptions,
    /// Directory that a lease holds.
    bound: Mutex<Weak<Root>>,
    unsynced: CaptureSyncQueue,
    state: Mutex<WorkspaceState>,
    /// Directory of a scratch copy, which is removed when this value is dropped.
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
    /// Opens the directory `root` as a workspace whose snapshots are stored in the directory
    /// `store`. Writes nothing: the first snapshot creates the store.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if `root` is not a directory, if `store` is a link or not a directory, or
    ///   if one of the two is inside the other.
    /// - [`Error::Io`] if the metadata of one of them cannot be read.
    pub fn open(
        root: impl AsRef<Path>,
        store: impl AsRef<Path>,
        options: HostFilesystemOptions,
    ) -> Result<HostFilesystem> {
        let (root, store) = (root.as_ref(), store.as_ref());
        let refused = |path: &Path, reason: &str| Err(Error::path(path.display().to_string(), reason));
        let root = match fs::canonicalize(root) {
            Ok(found) if found.is_dir() => found,
            Ok(_) => return refused(root, "the workspace is not a directory"),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return refused(root, "the workspace does not exist");
            }
            Err(error) => return Err(Error::io("open", root, error)),
        };
        if fs::symlink_metadata(store).is_ok_and(|found| !found.is_dir()) {
            return refused(store, "the store is not a directory, or is a link to one");
        }
        let store = resolve_links(store)?;
        if store.starts_with(&root) {
            return refused(&store, "the store is inside the workspace");
        }
        if root.starts_with(&store) {
            return refused(&store, "the workspace is inside the store");
        }
        Ok(HostFilesystem::at(root, Objects::new(store).with_pool(options.pool.clone()), options, None))
    }

    /// Creates the value for a directory of which nothing is known yet.
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

    /// Returns the workspace's path, with its links resolved when the workspace was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the directory with the snapshots.
    pub fn store(&self) -> &Path {
        self.objects.store()
    }

    /// Returns whether `directory` is the workspace's directory or inside it, by any path. Returns
    /// `false` if `directory` does not exist.
    pub fn holds(&self, directory: &Path) -> bool {
        fs::canonicalize(directory).is_ok_and(|directory| directory.starts_with(&self.root))
    }
}

impl Drop for HostFilesystem {
    fn drop(&mut self) {
        // The state of a scratch copy is not saved.
        if self.scratch.is_none() {
            let mut state = std::mem::take(&mut *self.state.lock());
            self.save(&mut state, 0);
        }
    }
}

/// Resolves the links in a path whose last parts may be missing.
fn resolve_links(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).during("find", path)?;
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
