//! Captures and restores resources: everything besides the session that tools work on.
//!
//! A *capture* is the state of a resource at one moment. A *lease* excludes other sessions from a
//! resource while a call works on it, and ends with its process. A *mark* is left on the resource
//! itself and outlives the process; from it, other sessions learn which session left the resource
//! half changed.
//!
//! | module | contents |
//! |---|---|
//! | `registry` | [`ResourceRegistry`]: resources by their types and names |
//! | `lease` | [`ResourceLease`]: a leased resource; [`LeaseHolder`]: the session of a lease; [`LeaseMark`]: its guard, which may leave a mark |
//! | `rewind` | [`RewindRequest`]: the input of a resource's rewind; [`Rewound`]: its result |
//! | `budget` | [`BudgetTracker`]: spent tokens and money, which no failed tool rolls back |
//! | `workspace` | a directory of the host: capture, restore, lease, and the mark on its root |
//! | `filesystem` | registration of filesystems; files in memory |
//!
//! # Invariants
//!
//! 1. The engine captures a resource before it runs a tool that may make changes, and restores that
//!    capture if the tool fails, unless the resource [does not roll
//!    back](Snapshotable::rolls_back).
//! 2. A recorded capture is one MessagePack value, and enough to restore the resource in another
//!    process.
//! 3. A capture is durable before any record that names it. With
//!    [`Durability::Process`](crate::Durability::Process), both become durable in the background.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foldlog_codec::OperationId;
use foldlog_codec::msgpack;
use foldlog_filesystem::UnrestoredPath;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result, catch_panic};
use crate::session::SyncCaptures;

mod budget;
mod filesystem;
mod lease;
mod registry;
mod rewind;
#[cfg(feature = "host-filesystem")]
mod workspace;

pub use budget::{BudgetSnapshot, BudgetTracker, Usage};
pub use lease::{LeaseHolder, LeaseMark, ResourceLease};
pub(crate) use registry::ScratchRegistry;
pub use registry::{ResourceRegistry, ResourceRegistryBuilder};
pub use rewind::{RewindRequest, Rewound};

/// Contains the options of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Whether the capture must be durable when [`Snapshotable::snapshot`] returns, because a
    /// record that names it is about to become durable.
    pub durable: bool,
    /// Time at which the capture must be complete; a resource that takes longer fails with
    /// [`Error::DeadlineExceeded`]. `None` sets no limit.
    pub until: Option<Instant>,
}

/// Describes the effects of a restore of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Parts that differ from the capture after the restore, and changes that a restore does not
    /// undo.
    pub inexact: Vec<UnrestoredPath>,
    /// Existing parts of the resource, such as paths, that were given an earlier content.
    pub changed: Vec<String>,
    /// Parts of the resource that were removed.
    pub removed: Vec<String>,
}

impl From<Vec<UnrestoredPath>> for RestoreReport {
    fn from(inexact: Vec<UnrestoredPath>) -> RestoreReport {
        RestoreReport { inexact, ..RestoreReport::default() }
    }
}

/// Describes a resource that can be captured and restored.
///
/// The engine captures the resource before each call that may make changes, and restores it if the
/// call fails. It holds no lock of the session during this time.
#[expect(unused_variables, reason = "most defaults need no arguments")]
pub trait Snapshotable: Send + Sync + 'static {
    /// Name of the resource in records. Keep it stable: a recovery finds the resource by it.
    const NAME: &'static str;

    /// Type of a capture. Later changes to the resource must not change the capture.
    type Snapshot: Clone + Send + Sync + 'static;

    /// Captures the resource.
    ///
    /// # Errors
    ///
    /// Return an error if the resource cannot be captured whole, and leave it unchanged; the tool
    /// then does not run.
    fn snapshot(&self, options: &CaptureOptions) -> Result<Self::Snapshot>;

    /// Restores the resource to a capture. The engine may call this again after a failure.
    ///
    /// # Errors
    ///
    /// Return an error if the state of the resource then differs from the capture.
    fn restore(&self, snapshot: &Self::Snapshot) -> Result<()>;

    /// Restores the resource to a capture like [`restore`](Snapshotable::restore), and reports the
    /// parts that were replaced or removed, the parts that differ from the capture, and changes by
    /// a tool that a restore does not undo. The default calls `restore` and returns an empty
    /// report.
    fn restore_and_tell(&self, snapshot: &Self::Snapshot) -> Result<RestoreReport> {
        self.restore(snapshot).map(|()| RestoreReport::default())
    }

    /// Restores the resource like [`restore_and_tell`](Snapshotable::restore_and_tell) to a capture
    /// from before `operation`, whose changes it undoes. The default calls `restore_and_tell`.
    fn roll_back(&self, snapshot: &Self::Snapshot, operation: OperationId) -> Result<RestoreReport> {
        self.restore_and_tell(snapshot)
    }

    /// Moves content that the rollback of `operation` to a capture will replace or remove to a
    /// place where a person can find it. The engine calls this before a rollback if the resource
    /// cannot be captured. The default is a no-op: the content is lost.
    ///
    /// # Errors
    ///
    /// Return an error if some content cannot be moved: then leave everything unchanged. The
    /// rollback is not carried out in this case, unless the run continues [without
    /// captures](crate::tools::ExecutionStateBuilder::without_capture).
    fn set_aside(&self, snapshot: &Self::Snapshot, operation: OperationId) -> Result<()> {
        Ok(())
    }

    /// Checks that a [`restore`](Snapshotable::restore) of a capture would not be refused, without
    /// any change. A recovery calls this before it touches the resource. The default refuses no
    /// capture.
    ///
    /// # Errors
    ///
    /// Return the error with which `restore` would refuse the capture.
    fn check(&self, snapshot: &Self::Snapshot) -> Result<()> {
        Ok(())
    }

    /// Makes changes of restores durable, before the record that states the restore becomes
    /// durable. The engine calls this after [`restore`](Snapshotable::restore), with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every). The default is a no-op.
    ///
    /// # Errors
    ///
    /// Return an error if a change cannot be made durable; the resource then counts as not
    /// restored.
    fn sync_restored(&self) -> Result<()> {
        Ok(())
    }

    /// Encodes a capture for the log, as one MessagePack value from which another process can
    /// restore the resource. `None`, the default, means that the capture does not outlive its
    /// process.
    ///
    /// The engine refuses bytes that are not one value, and values that are deeper or have more
    /// parts than a log accepts, with [`Error::Resource`]; the tool then does not run.
    ///
    /// # Errors
    ///
    /// Return an error if the capture cannot be encoded.
    fn record(snapshot: &Self::Snapshot) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Decodes a capture from the bytes of [`record`](Snapshotable::record).
    ///
    /// # Errors
    ///
    /// Return an error if the bytes are not a capture. The default always fails with
    /// [`Error::Resource`].
    fn recall(recorded: &[u8]) -> Result<Self::Snapshot> {
        let reason = "its captures do not outlive their process".to_owned();
        Err(Error::Resource { resource: Self::NAME.to_owned(), reason })
    }

    /// Makes all captures durable that this process took without [`CaptureOptions::durable`], and
    /// the captures in `earlier`, which records of a killed process name.
    ///
    /// The engine calls this before each sync of a log whose records may name such a capture, in
    /// the background or in the thread that requests the sync, while a tool may work on the
    /// resource. It passes `earlier` when a run starts on a session that was not closed. The method
    /// must not use the session. The default is a no-op, which is right if a power cut cannot lose
    /// a recorded capture.
    ///
    /// # Errors
    ///
    /// Return an error if a capture may be lost; the log is then not synced, and rejects further
    /// writes.
    fn sync_captures(&self, earlier: &[Self::Snapshot]) -> Result<()> {
        Ok(())
    }

    /// Returns whether the resource is rolled back with a failed tool; `true` by default. Return
    /// `false` for what cannot be given back, such as spent money: the engine then captures it for
    /// the record, and restores it only if a host restores a whole snapshot with
    /// [`ExecutionState::restore`](crate::ExecutionState::restore).
    fn rolls_back(&self) -> bool {
        true
    }

    /// Updates a resource that [does not roll back](Snapshotable::rolls_back) to `recorded`, the
    /// capture by the session's last call, possibly in another process. The engine calls this at
    /// the start of a [run](crate::ExecutionState) of the session, with the call's capture, and
    /// then with that of its recovery, if any. The default is a no-op.
    fn carry_over(&self, recorded: &Self::Snapshot) {}

    /// Returns whether the resource is unchanged since the capture `since`, so that the engine need
    /// not capture it again. `false`, the default, means that only a new capture can show this.
    fn is_unchanged(&self, since: &Self::Snapshot) -> bool {
        false
    }

    /// Removes data that the resource can recreate, such as caches, because the disk is full and a
    /// recovery needs space. The default is a no-op.
    fn free_caches(&self) {}

    /// Returns whether two captures contain the same state of the resource. The default compares
    /// the results of [`record`](Snapshotable::record), and returns `false` if either capture has
    /// no recorded form.
    fn is_same(one: &Self::Snapshot, other: &Self::Snapshot) -> bool {
        matches!((Self::record(one), Self::record(other)), (Ok(Some(one)), Ok(Some(other))) if one == other)
    }

    /// Creates a copy of the resource, in the state of a capture, that is independent of the
    /// resource. In a replay, the host and its tools get the copy in place of the resource. `None`,
    /// the default, means that no copy is possible: in a replay no tool then runs that works on the
    /// resource.
    ///
    /// # Errors
    ///
    /// Return an error if the copy cannot be created; the replay ends with it.
    fn scratch(&self, snapshot: &Self::Snapshot) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        Ok(None)
    }

    /// Returns the capture that a rewind restores: the target, or a capture that preserves changes
    /// by hand. These are the differences between the present state and the capture after the last
    /// call. Does not change the resource. The default returns the target.
    ///
    /// # Errors
    ///
    /// Return an error if the target cannot be restored; the rewind then changes nothing.
    fn rewind(&self, asked: &RewindRequest<'_, Self::Snapshot>) -> Result<Rewound<Self::Snapshot>> {
        Ok(Rewound::whole(asked.target.clone()))
    }

    /// Returns whether a capture belongs to a different place than the resource, such as the
    /// directory of the session that this one was forked from; `false` by default. A rewind of a
    /// fork skips such captures.
    fn is_of_other_place(&self, snapshot: &Self::Snapshot) -> bool {
        false
    }

    /// Returns whether a capture was taken of a different place than the resource's present one,
    /// whether or not it may be restored here; `false` by default. A
    /// [fill](crate::ExecutionState::fill) uses it to find the resources to fill.
    fn is_from_elsewhere(&self, snapshot: &Self::Snapshot) -> bool {
        false
    }

    /// Permits captures of other places to be restored into the present place of the resource. With
    /// `overwrite`, this applies even if there is content, which is then overwritten. The default
    /// is a no-op.
    ///
    /// # Errors
    ///
    /// Return an error if there is content and `overwrite` is `false`.
    fn rebind(&self, overwrite: bool) -> Result<()> {
        Ok(())
    }

    /// Returns whether a capture was taken of the same place as `present`; `true` by default. A
    /// rewind cannot derive changes by hand from a capture of a different place.
    fn is_of_place_of(snapshot: &Self::Snapshot, present: &Self::Snapshot) -> bool {
        true
    }

    /// Lists the parts of the resource that differ from a capture, for a replay that compares a
    /// tool's results. The default captures the resource, and names the whole resource unless both
    /// captures are [the same](Snapshotable::is_same).
    ///
    /// # Errors
    ///
    /// Return an error if the resource cannot be read.
    fn differences(&self, snapshot: &Self::Snapshot) -> Result<Vec<String>> {
        let now = self.snapshot(&CaptureOptions::default())?;
        Ok(if Self::is_same(&now, snapshot) { Vec::new() } else { vec![Self::NAME.to_owned()] })
    }

    /// Reports differences of the resource from its state after the session's last call to the
    /// host, in a way that the resource defines. Called once in a run, with the first capture `now`
    /// of a call; `left` is the capture after the last call, possibly by another process. `found`
    /// is the capture of a recovery of that call, which has restored `left` since. Makes no changes
    /// and fails no call; a no-op by default.
    fn tell_of_changes(&self, left: &Self::Snapshot, found: Option<&Self::Snapshot>, now: &Self::Snapshot) {}

    /// Checks that the original resource cannot be reached from this [copy](Snapshotable::scratch),
    /// such as by a link among its files. Called before a replay runs a tool again; a no-op by
    /// default.
    ///
    /// # Errors
    ///
    /// Return an error that names the connection; the replay ends with it.
    fn check_apart(&self, snapshot: &Self::Snapshot) -> Result<()> {
        Ok(())
    }

    /// Returns whether the resource contains the files in `directory`, so that a restore may change
    /// them; `false` by default. If a resource contains the session's own directory, the engine
    /// takes no capture, and runs no tool that may make changes: rolling back a call would roll
    /// back the log.
    fn holds(&self, directory: &Path) -> bool {
        false
    }

    /// Returns whether others besides this run may work on the resource; `true` by default. The
    /// engine then takes its [lease](Snapshotable::lease) for each call.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns whether its captures, restores and comparisons only use memory and are short;
    /// `false` by default. For other resources, async hosts use a thread of a pool, so that no task
    /// waits for a disk.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Takes the lease of the resource for `holder`: waits for others that work on the resource,
    /// until `until` at the latest. `None`, the default, means that the resource needs no lease.
    ///
    /// If a process is killed within a call, the recovery of its session rolls the resource back,
    /// including all later changes by others. If the lease ends with its process, it should
    /// therefore put a [mark](LeaseMark) of `holder` on the resource, and refuse a holder that
    /// finds the mark of another session which [left a call open](LeaseHolder::left_open).
    ///
    /// # Errors
    ///
    /// Return [`Error::DeadlineExceeded`] if the resource is not free at `until`, or
    /// [`Error::WaitedTooLong`], which may name the holder; [`Error::ResourceDirty`] if another
    /// session left the resource half changed, [`Error::ResourceMaybeDirty`] if that is unknown.
    fn lease(&self, holder: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>> {
        Ok(None)
    }
}

/// Type-erased capture.
pub(crate) type AnySnapshot = Arc<dyn Any + Send + Sync>;

/// A [`Snapshotable`] resource with a type-erased capture. Each method calls the method of that
/// name in `Snapshotable`, except `restore`. It calls
/// [`restore_and_tell`](Snapshotable::restore_and_tell), or [`roll_back`](Snapshotable::roll_back)
/// if it undoes an operation. For a capture of another type, the methods return
/// [`Error::SnapshotMismatch`] or `false`.
pub(crate) trait AnyResource: SyncCaptures {
    fn snapshot(&self, options: &CaptureOptions) -> Result<AnySnapshot>;
    fn restore(&self, snapshot: &AnySnapshot, undoes: Option<OperationId>) -> Result<RestoreReport>;
    fn set_aside(&self, snapshot: &AnySnapshot, operation: OperationId) -> Result<()>;
    fn check(&self, snapshot: &AnySnapshot) -> Result<()>;
    fn sync_restored(&self) -> Result<()>;
    fn record(&self, snapshot: &AnySnapshot) -> Result<Option<Vec<u8>>>;
    fn recall(&self, recorded: &[u8]) -> Result<AnySnapshot>;
    fn rolls_back(&self) -> bool;
    fn carry_over(&self, recorded: &AnySnapshot);
    fn is_unchanged(&self, since: &AnySnapshot) -> bool;
    fn is_shared(&self) -> bool;
    #[cfg(feature = "async")]
    fn is_in_memory(&self) -> bool;
    fn free_caches(&self);
    fn is_same(&self, one: &AnySnapshot, other: &AnySnapshot) -> bool;
    fn rewind(&self, asked: &RewindRequest<'_, AnySnapshot>) -> Result<Rewound<AnySnapshot>>;
    fn is_of_other_place(&self, snapshot: &AnySnapshot) -> bool;
    fn is_from_elsewhere(&self, snapshot: &AnySnapshot) -> bool;
    fn rebind(&self, overwrite: bool) -> Result<()>;
    fn is_of_place_of(&self, snapshot: &AnySnapshot, present: &AnySnapshot) -> bool;
    fn differences(&self, snapshot: &AnySnapshot) -> Result<Vec<String>>;
    fn tell_of_changes(&self, left: &AnySnapshot, found: Option<&AnySnapshot>, now: &AnySnapshot);
    fn check_apart(&self, snapshot: &AnySnapshot) -> Result<()>;
    fn holds(&self, directory: &Path) -> bool;
    fn lease(&self, holder: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>>;
}

/// Encodes a capture as one MessagePack value.
fn encode_capture<R: Snapshotable<Snapshot: Serialize>>(snapshot: &R::Snapshot) -> Result<Vec<u8>> {
    let mut recorded = Vec::new();
    msgpack::append(snapshot, &mut recorded).map_err(|error| capture_error::<R>(&error))?;
    Ok(recorded)
}

fn decode_capture<R: Snapshotable<Snapshot: DeserializeOwned>>(recorded: &[u8]) -> Result<R::Snapshot> {
    msgpack::from_slice(recorded).map_err(|error| capture_error::<R>(&error))
}

fn capture_error<R: Snapshotable>(error: &dyn std::fmt::Display) -> Error {
    Error::Resource { resource: R::NAME.to_owned(), reason: error.to_string() }
}

/// Returns a capture as the type of the resource `R`.
fn downcast_snapshot<R: Snapshotable>(snapshot: &AnySnapshot) -> Result<&R::Snapshot> {
    snapshot
        .downcast_ref()
        .ok_or_else(|| Error::SnapshotMismatch(format!("the capture of `{}` has another type", R::NAME)))
}

impl<R: Snapshotable> SyncCaptures for R {
    fn sync_captures(&self, earlier: &[Vec<u8>]) -> Result<()> {
        let sync = || {
            // A capture that cannot be decoded cannot be restored either, durable or not.
            let earlier: Vec<_> = earlier.iter().filter_map(|recorded| R::recall(recorded).ok()).collect();
            Snapshotable::sync_captures(self, &earlier)
        };
        catch_panic(R::NAME, sync)
    }
}

impl<R: Snapshotable> AnyResource for R {
    fn snapshot(&self, options: &CaptureOptions) -> Result<AnySnapshot> {
        Ok(Arc::new(Snapshotable::snapshot(self, options)?))
    }

    fn restore(&self, snapshot: &AnySnapshot, undoes: Option<OperationId>) -> Result<RestoreReport> {
        match undoes {
            Some(operation) => self.roll_back(downcast_snapshot::<R>(snapshot)?, operation),
            None => self.restore_and_tell(downcast_snapshot::<R>(snapshot)?),
        }
    }

    fn set_aside(&self, snapshot: &AnySnapshot, operation: OperationId) -> Result<()> {
        Snapshotable::set_aside(self, downcast_snapshot::<R>(snapshot)?, operation)
    }

    fn check(&self, snapshot: &AnySnapshot) -> Result<()> {
        Snapshotable::check(self, downcast_snapshot::<R>(snapshot)?)
    }

    fn sync_restored(&self) -> Result<()> {
        Snapshotable::sync_restored(self)
    }

    fn record(&self, snapshot: &AnySnapshot) -> Result<Option<Vec<u8>>> {
        R::record(downcast_snapshot::<R>(snapshot)?)
    }

    fn recall(&self, recorded: &[u8]) -> Result<AnySnapshot> {
        Ok(Arc::new(R::recall(recorded)?))
    }

    fn rolls_back(&self) -> bool {
        Snapshotable::rolls_back(self)
    }

    fn carry_over(&self, recorded: &AnySnapshot) {
        if let Ok(recorded) = downcast_snapshot::<R>(recorded) {
            Snapshotable::carry_over(self, recorded);
        }
    }

    fn is_shared(&self) -> bool {
        Snapshotable::is_shared(self)
    }

    #[cfg(feature = "async")]
    fn is_in_memory(&self) -> bool {
        Snapshotable::is_in_memory(self)
    }

    fn free_caches(&self) {
        Snapshotable::free_caches(self);
    }

    fn is_unchanged(&self, since: &AnySnapshot) -> bool {
        downcast_snapshot::<R>(since).is_ok_and(|since| Snapshotable::is_unchanged(self, since))
    }

    fn is_same(&self, one: &AnySnapshot, other: &AnySnapshot) -> bool {
        matches!((downcast_snapshot::<R>(one), downcast_snapshot::<R>(other)), (Ok(one), Ok(other)) if R::is_same(one, other))
    }

    fn rewind(&self, asked: &RewindRequest<'_, AnySnapshot>) -> Result<Rewound<AnySnapshot>> {
        let RewindRequest { target, last, last_is_here, present, overwrite, unless_changed, after_restore } =
            *asked;
        let (target, last, present) = (
            downcast_snapshot::<R>(target)?,
            downcast_snapshot::<R>(last)?,
            downcast_snapshot::<R>(present)?,
        );
        let asked =
            RewindRequest { target, last, last_is_here, present, overwrite, unless_changed, after_restore };
        let Rewound { to, files, kept, unknown, left_out } = Snapshotable::rewind(self, &asked)?;
        Ok(Rewound { to: Arc::new(to), files, kept, unknown, left_out })
    }

    fn is_of_other_place(&self, snapshot: &AnySnapshot) -> bool {
        downcast_snapshot::<R>(snapshot).is_ok_and(|snapshot| Snapshotable::is_of_other_place(self, snapshot))
    }

    fn is_from_elsewhere(&self, snapshot: &AnySnapshot) -> bool {
        downcast_snapshot::<R>(snapshot).is_ok_and(|snapshot| Snapshotable::is_from_elsewhere(self, snapshot))
    }

    fn rebind(&self, overwrite: bool) -> Result<()> {
        Snapshotable::rebind(self, overwrite)
    }

    fn is_of_place_of(&self, snapshot: &AnySnapshot, present: &AnySnapshot) -> bool {
        let typed = downcast_snapshot::<R>(snapshot)
            .and_then(|snapshot| Ok((snapshot, downcast_snapshot::<R>(present)?)));
        typed.is_ok_and(|(snapshot, present)| R::is_of_place_of(snapshot, present))
    }

    fn differences(&self, snapshot: &AnySnapshot) -> Result<Vec<String>> {
        Snapshotable::differences(self, downcast_snapshot::<R>(snapshot)?)
    }

    fn tell_of_changes(&self, left: &AnySnapshot, found: Option<&AnySnapshot>, now: &AnySnapshot) {
        if let (Ok(left), Ok(now)) = (downcast_snapshot::<R>(left), downcast_snapshot::<R>(now)) {
            let found = found.and_then(|found| downcast_snapshot::<R>(found).ok());
            Snapshotable::tell_of_changes(self, left, found, now);
        }
    }

    fn check_apart(&self, snapshot: &AnySnapshot) -> Result<()> {
        Snapshotable::check_apart(self, downcast_snapshot::<R>(snapshot)?)
    }

    fn holds(&self, directory: &Path) -> bool {
        Snapshotable::holds(self, directory)
    }

    fn lease(&self, holder: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>> {
        Snapshotable::lease(self, holder, until)
    }
}
