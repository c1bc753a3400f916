//! The knowledge of a [`HostFilesystem`] about its directory from one call to the next, and when it
//! reads and writes the stat cache.

use std::fs;
use std::sync::Arc;

use uuid::Uuid;

use super::cache::{self, Cached, StatCacheKey};
use super::lease::DeviceInode;
use super::manifest::{ManifestDirectory, Permissions};
use super::metadata::Metadata;
use super::object_files::read_file;
use super::objects::ObjectId;
use super::repositories::RepositoryStatCache;
use super::root::Root;
use super::trees::Trees;
use super::{HostFilesystem, Rebind, WorkspaceNotice};
use crate::{DirectoryIdentity, boot_id};

pub(super) const CACHE: &str = "stat-cache";

/// Largest stat cache that is read, in bytes.
const CACHE_BYTES_MAX: u64 = 1 << 30;

/// The stat cache is written at the end, and before that once an eighth of it and 64 files are new:
/// the cache of a large workspace is itself large.
pub(super) const UNSAVED_PART: u64 = 8;
pub(super) const UNSAVED_FILES: u64 = 64;

/// Contains the knowledge about a workspace, under the workspace's lock.
#[derive(Default)]
pub(super) struct WorkspaceState {
    /// Result of the last walk or restore: the stat cache. Every object that it names is in the
    /// store.
    pub(super) last: Option<Last>,
    pub(super) trees: Trees,
    /// The last known collection of the store, see [`HostFilesystem::mark`].
    pub(super) mark: Option<[u8; 16]>,
    /// Number of files with an outdated state in the stat cache's file.
    pub(super) unsaved: u64,
    /// State of the workspace's repositories at the last snapshot or restore.
    pub(super) seen: RepositoryStatCache,
    /// The directory to which the other fields refer.
    pub(super) directory: Option<(DeviceInode, DirectoryIdentity)>,
    /// The directory into which snapshots of other directories may be restored.
    pub(super) rebound: Option<(DeviceInode, Rebind)>,
    /// Directory for which [`HostFilesystem::adopt`] was called, and the token of the directories
    /// that it replaces, if any.
    pub(super) adopted: Option<(DeviceInode, Option<Uuid>)>,
    /// The token that the holder of the lease gives to a directory without one.
    pub(super) token: Option<Uuid>,
    /// The directory with changes of a restore that are not synced yet.
    pub(super) unsynced: Option<Arc<Root>>,
    /// Whether the notice about the state after a reboot was given.
    pub(super) is_boot_told: bool,
    /// Whether the notice about captures without a replica was given.
    pub(super) is_held_told: bool,
    pub(super) notices: Vec<WorkspaceNotice>,
}

pub(super) struct Last {
    pub(super) root: Arc<ManifestDirectory>,
    pub(super) permissions: Option<Arc<Permissions>>,
    pub(super) metadata: Option<(Arc<Metadata>, Option<ObjectId>)>,
    /// The commit of the last snapshot, if nothing changed since, and its tag.
    pub(super) commit: Option<(ObjectId, Option<String>)>,
}

impl HostFilesystem {
    /// Removes the stat cache from the store, to free its space: the next process reads every file
    /// again. A failure leaves the cache and is not reported.
    pub fn free_caches(&self) {
        let mut state = self.state.lock();
        let _ = fs::remove_file(self.objects.store().join(CACHE));
        // It is not written again before there are new entries.
        state.unsaved = 0;
    }

    /// Reads the stat cache the first time, and forgets everything if another process collected the
    /// store since.
    pub(super) fn begin(&self, state: &mut WorkspaceState, root: Option<&Root>) {
        if let Some(root) = root {
            state.look_at(root.place(), root.identity());
        }
        let mark = self.mark();
        match state.mark {
            Some(known) if known == mark => {}
            Some(_) => {
                (state.last, state.trees, state.unsaved, state.mark) =
                    (None, Trees::default(), 0, Some(mark));
                state.seen = RepositoryStatCache::default();
                self.objects.forget();
            }
            None => {
                state.mark = Some(mark);
                let path = self.objects.store().join(CACHE);
                let Ok(bytes) = read_file(&path, CACHE_BYTES_MAX) else { return };
                let now = state.directory.map(|(_, now)| now);
                match cache::decode(&bytes, self.stat_cache_key(mark, now), &self.objects) {
                    Some(Cached::Here(root)) => {
                        state.last = Some(Last { root, permissions: None, metadata: None, commit: None });
                    }
                    Some(Cached::Elsewhere(before)) => {
                        state.notices.extend(now.map(|now| WorkspaceNotice::Replaced { before, now }));
                    }
                    None => {}
                }
            }
        }
    }

    fn stat_cache_key(&self, mark: [u8; 16], directory: Option<DirectoryIdentity>) -> StatCacheKey {
        let boot = boot_id().unwrap_or_default();
        StatCacheKey { boot: boot.into_bytes(), mark, directory }
    }

    /// Writes the stat cache if more than `new_max` of its files are new. A failure only costs the
    /// next process time.
    pub(super) fn save(&self, state: &mut WorkspaceState, new_max: u64) {
        let Some(last) = &state.last else { return };
        if state.unsaved <= new_max {
            return;
        }
        let directory = state.directory.map(|(_, directory)| directory);
        let now = self.stat_cache_key(state.mark.unwrap_or_default(), directory);
        let bytes = cache::encode(now, &last.root, &self.objects);
        let _ = self.objects.replace(CACHE, &bytes);
        state.unsaved = 0;
    }
}
