//! Capture, restore, lease and registration of the filesystem of a run: files in memory, or a
//! directory of the host.

use std::sync::Arc;

use super::{CaptureOptions, ResourceRegistryBuilder, Snapshotable};
use crate::error::Result;
use foldlog_filesystem::{Filesystem, InMemoryFilesystem, MemorySnapshot};

impl Snapshotable for InMemoryFilesystem {
    const NAME: &'static str = "filesystem";
    type Snapshot = MemorySnapshot;

    fn snapshot(&self, _: &CaptureOptions<'_>) -> Result<MemorySnapshot> {
        Ok(InMemoryFilesystem::snapshot(self))
    }

    fn restore(&self, snapshot: &MemorySnapshot) -> Result<()> {
        InMemoryFilesystem::restore(self, snapshot);
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn is_unchanged(&self, since: &MemorySnapshot) -> bool {
        self.is_at(since)
    }

    fn is_same(one: &MemorySnapshot, other: &MemorySnapshot) -> bool {
        one.is_same(other)
    }
}

impl ResourceRegistryBuilder {
    /// Registers a filesystem under its own type and as the run's [`Filesystem`]. The engine
    /// captures it before each call that may make changes, and restores it if the call fails.
    pub fn filesystem<F: Filesystem + Snapshotable>(self, filesystem: Arc<F>) -> Self {
        let shared: Arc<dyn Filesystem> = Arc::clone(&filesystem) as _;
        self.register_captured(F::NAME.into(), Arc::clone(&filesystem), |builder, copy| {
            builder.filesystem::<F>(copy)
        })
        .resource::<F>(filesystem)
        .resource::<dyn Filesystem>(shared)
    }
}

#[cfg(feature = "host-filesystem")]
mod host {
    use std::io::ErrorKind;
    use std::path::Path;
    use std::time::Instant;

    use foldlog_codec::OperationId;
    use foldlog_codec::msgpack;
    use foldlog_filesystem::{
        self as filesystem, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, Rebind, RewindMerge,
        RewindMergeInputs, UnrestoredPath, WorkspaceRestoreReport,
    };

    use crate::clock;
    use crate::error::{Blocker, Error, Result};
    use crate::log::layout;
    use crate::session::Session;
    use crate::tools::resources::mark::{MarkedLease, marked_by};
    use crate::tools::resources::{
        CaptureOptions, LeaseHolder, ResourceLease, RestoreReport, RewindRequest, Rewound, Snapshotable,
    };

    impl Session {
        /// Opens the directory `root` as the session's workspace. Its captures are stored in
        /// [`captures_dir`](crate::SessionLog::captures_dir), and equal captures of the store's
        /// sessions are stored once. Performs no writes.
        ///
        /// ```
        /// # use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
        /// # use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
        /// # use std::sync::Arc;
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let directory = tempfile::tempdir()?;
        /// # std::fs::create_dir(directory.path().join("work"))?;
        /// # let store = Store::open(directory.path().join("store"))?;
        /// let session = store.create(&SessionTypes::builder().build()?)?;
        /// let files = Arc::new(session.open_workspace(directory.path().join("work"), HostFilesystemOptions::default())?);
        /// let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build()?;
        /// let state = ExecutionState::new(session, resources);
        /// let before = state.snapshot(Some("before"))?;
        /// files.write("page", b"one")?;
        /// state.restore(&before)?;
        /// assert!(!files.exists("page")?);
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        ///
        /// See [`HostFilesystem::open`].
        pub fn open_workspace(
            &self,
            root: impl AsRef<Path>,
            options: HostFilesystemOptions,
        ) -> Result<HostFilesystem> {
            let pool = options.pool.clone().unwrap_or_else(|| layout::captures_pool(self.store().path()));
            Ok(HostFilesystem::open(root, self.log().captures_dir(), options.pool(pool))?)
        }
    }

    impl Snapshotable for HostFilesystem {
        const NAME: &'static str = "workspace";
        type Snapshot = FilesystemSnapshot;

        /// Captures the workspace without the tag of `options`, so that equal content has equal
        /// snapshots, and a snapshot of an unchanged workspace writes nothing.
        fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<FilesystemSnapshot> {
            self.keep_unsynced();
            Ok(HostFilesystem::snapshot_until(self, None, options.durable, options.until)?)
        }

        fn sync_captures(&self, earlier: &[FilesystemSnapshot]) -> Result<()> {
            Ok(HostFilesystem::sync_captures(self, earlier)?)
        }

        fn restore(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
            Ok(HostFilesystem::restore(self, snapshot).map(drop)?)
        }

        fn restore_and_tell(&self, snapshot: &FilesystemSnapshot) -> Result<RestoreReport> {
            Ok(report_of(HostFilesystem::restore(self, snapshot)?))
        }

        fn roll_back(&self, snapshot: &FilesystemSnapshot, operation: OperationId) -> Result<RestoreReport> {
            Ok(report_of(HostFilesystem::roll_back(self, snapshot, &operation.to_string())?))
        }

        fn set_aside(&self, snapshot: &FilesystemSnapshot, operation: OperationId) -> Result<()> {
            Ok(HostFilesystem::set_aside(self, snapshot, &operation.to_string())?)
        }

        fn check(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
            self.check_kept(snapshot)?;
            Ok(self.check_directory(snapshot)?)
        }

        fn sync_restored(&self) -> Result<()> {
            Ok(HostFilesystem::sync_restored(self)?)
        }

        /// Compares the files, but neither the directories of the snapshots nor the repositories in
        /// them, whose indexes contain times.
        fn is_same(one: &FilesystemSnapshot, other: &FilesystemSnapshot) -> bool {
            let own = |snapshot: &FilesystemSnapshot| FilesystemSnapshot {
                repositories: None,
                directory: None,
                path: None,
                ..snapshot.clone()
            };
            own(one) == own(other)
        }

        fn record(snapshot: &FilesystemSnapshot) -> Result<Option<Vec<u8>>> {
            let mut recorded = Vec::new();
            msgpack::append(snapshot, &mut recorded).map_err(|error| resource_error(error.to_string()))?;
            Ok(Some(recorded))
        }

        fn recall(recorded: &[u8]) -> Result<FilesystemSnapshot> {
            msgpack::from_slice(recorded).map_err(|error| resource_error(error.to_string()))
        }

        fn scratch(&self, snapshot: &FilesystemSnapshot) -> Result<Option<HostFilesystem>> {
            Ok(Some(HostFilesystem::scratch(self, snapshot)?))
        }

        fn rewind(
            &self,
            asked: &RewindRequest<'_, FilesystemSnapshot>,
        ) -> Result<Rewound<FilesystemSnapshot>> {
            let RewindRequest {
                target,
                last,
                last_is_here,
                present,
                overwrite,
                unless_changed,
                after_restore,
            } = *asked;
            self.check_directory(target)?;
            let here =
                last_is_here.then(|| FilesystemSnapshot { directory: present.directory, ..last.clone() });
            let last = here.as_ref().unwrap_or(last);
            let RewindMerge { snapshot, kept, unknown, left_out } = self
                .merge_for_rewind(&RewindMergeInputs { target, last, present, overwrite, after_restore })?;
            let files = self.rewound(present, &snapshot)?;
            let to = FilesystemSnapshot { unless_changed, ..snapshot };
            Ok(Rewound { to, files, kept, unknown, left_out })
        }

        fn is_of_other_place(&self, snapshot: &FilesystemSnapshot) -> bool {
            matches!(self.check_directory(snapshot), Err(filesystem::Error::Replaced { .. }))
        }

        fn is_from_elsewhere(&self, snapshot: &FilesystemSnapshot) -> bool {
            HostFilesystem::is_from_elsewhere(self, snapshot)
        }

        fn rebind(&self, overwrite: bool) -> Result<()> {
            let rebind = if overwrite { Rebind::Overwrite } else { Rebind::IfEmpty };
            Ok(HostFilesystem::rebind(self, rebind)?)
        }

        fn is_of_place_of(snapshot: &FilesystemSnapshot, present: &FilesystemSnapshot) -> bool {
            snapshot.is_of_directory_of(present)
        }

        fn differences(&self, snapshot: &FilesystemSnapshot) -> Result<Vec<String>> {
            Ok(HostFilesystem::differences(self, snapshot)?)
        }

        fn tell_of_changes(
            &self,
            left: &FilesystemSnapshot,
            found: Option<&FilesystemSnapshot>,
            now: &FilesystemSnapshot,
        ) {
            HostFilesystem::tell_of_changes(self, left, found, now);
        }

        fn check_apart(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
            Ok(HostFilesystem::check_apart(self, snapshot)?)
        }

        fn free_caches(&self) {
            HostFilesystem::free_caches(self);
        }

        fn holds(&self, directory: &Path) -> bool {
            HostFilesystem::holds(self, directory)
        }

        /// Takes the lease of the workspace, whose root directory is marked while a call may change
        /// its contents. Refuses a `holder` that finds the mark of another session which left the
        /// workspace half changed.
        fn lease(&self, holder: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>> {
            let began = clock::now();
            let mut may_open_up = holder.is_interrupted();
            loop {
                let leased = match self.lease_for(until, || holder.draw_token()) {
                    // The interrupted call may have revoked all permissions to open the directory.
                    Err(filesystem::Error::Io { source, .. })
                        if may_open_up && source.kind() == ErrorKind::PermissionDenied =>
                    {
                        may_open_up = false;
                        if let Some(recorded) = holder.interrupted_capture(Self::NAME)? {
                            self.make_openable(&Self::recall(&recorded)?)?;
                        }
                        continue;
                    }
                    leased => leased?,
                };
                match leased {
                    Some(lease) => {
                        if let Some(held) = holder.held_captures_dir() {
                            self.tell_unless_held(&held);
                        }
                        let marked = MarkedLease::new(lease, self.root(), holder)?;
                        self.adopt(|| {
                            let last = match holder.is_interrupted() {
                                true => holder.interrupted_capture(Self::NAME),
                                // A refused call's capture is not work of the session.
                                false => holder.last_left(Self::NAME),
                            };
                            Self::recall(&last.ok()??).ok()
                        })?;
                        // An interrupted session is about to restore the workspace anyway.
                        if marked.was_before_boot() && !holder.is_interrupted() {
                            self.tell_of_boot(|| {
                                let recorded = holder.last_captured(Self::NAME)?;
                                recorded.map(|recorded| Self::recall(&recorded)).transpose()
                            });
                        }
                        return Ok(Some(ResourceLease::with_mark(marked)));
                    }
                    None => {
                        let (resource, holder) =
                            (Self::NAME.to_owned(), self.mark_now().ok().and_then(marked_by));
                        let blocker = Box::new(Blocker::Resource { resource, holder });
                        return Err(Error::WaitedTooLong { waited: began.elapsed(), blocker });
                    }
                }
            }
        }
    }

    fn report_of(restored: WorkspaceRestoreReport) -> RestoreReport {
        let WorkspaceRestoreReport { inexact, mounts, changed_paths, removed_paths, .. } = restored;
        let reason = "something is mounted there, and was left alone with all that is in it";
        let mounts = mounts.into_iter().map(|path| UnrestoredPath::new(path, reason));
        let inexact = inexact.into_iter().chain(mounts).collect();
        RestoreReport { inexact, changed: changed_paths, removed: removed_paths }
    }

    fn resource_error(reason: String) -> Error {
        Error::Resource { resource: HostFilesystem::NAME.to_owned(), reason }
    }
}
