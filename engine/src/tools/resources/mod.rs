//! Captures and restores resources: what a tool works on beside the session.
//!
//! A *capture* is what a resource was at one moment. A *lease* keeps other sessions off a resource while a
//! call works on it, and ends with its process. A *mark* is left on the resource itself and outlives the
//! process, so that others find out who left the resource half done.
//!
//! | module | holds |
//! |---|---|
//! | `registry` | [`ResourceRegistry`]: resources by their types and names |
//! | `lease` | [`ResourceLease`]: a resource that is held; [`LeaseHolder`]: for whom; [`LeaseMark`]: what leaves a mark on it |
//! | `mark` | the mark on the root directory of a workspace |
//! | `rewind` | [`RewindRequest`]: what a rewind asks of a resource; [`Rewound`]: the answer |
//! | `budget` | [`BudgetTracker`]: what was spent, which no failed tool rolls back |
//! | `filesystem` | how filesystems in memory and on disk are captured, restored, leased and registered |
//!
//! # Invariants
//!
//! 1. The engine captures a resource before it runs a tool that may change something, and restores that
//!    capture if the tool fails, unless the resource says that it [does not roll
//!    back](Snapshotable::rolls_back).
//! 2. A recorded capture is one MessagePack value, and enough to restore the resource in another process.
//! 3. A capture is durable before any record that names it. With
//!    [`Durability::Process`](crate::Durability::Process), both become durable in the background.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foldlog_codec::OperationId;
use foldlog_filesystem::UnrestoredPath;

use crate::error::{Error, Result, catch_panic};
use crate::session::SyncCaptures;

mod budget;
mod filesystem;
mod lease;
#[cfg(feature = "host-filesystem")]
mod mark;
mod registry;
mod rewind;

pub use budget::{BudgetSnapshot, BudgetTracker, Usage};
pub use lease::{LeaseHolder, LeaseMark, ResourceLease};
pub(crate) use registry::ScratchRegistry;
pub use registry::{ResourceRegistry, ResourceRegistryBuilder};
pub use rewind::{RewindRequest, Rewound};

/// Says how to capture a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions<'a> {
    /// Name of the capture, for a person who looks at it.
    pub tag: Option<&'a str>,
    /// Whether the capture must be durable when [`Snapshotable::snapshot`] returns, because a record that
    /// names it is about to become durable.
    pub durable: bool,
    /// Moment at which the capture must be complete; a resource that takes longer fails with
    /// [`Error::DeadlineExceeded`]. `None` sets no limit.
    pub until: Option<Instant>,
}

/// Reports what a restore of a resource did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// What was restored otherwise than it was captured, and what a restore does not undo.
    pub inexact: Vec<UnrestoredPath>,
    /// Parts of the resource, such as paths, that were there and were given an earlier content.
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
/// The engine captures the resource before each call that may change something, and restores it if the call
/// fails. It holds no lock of the session meanwhile.
pub trait Snapshotable: Send + Sync + 'static {
    /// Name of the resource in records. Keep it stable: a recovery finds the resource by it.
    const NAME: &'static str;

    /// Type of a capture. Later changes to the resource must not change the capture.
    type Snapshot: Clone + Send + Sync + 'static;

    /// Captures the resource as it is.
    ///
    /// # Errors
    ///
    /// Return an error if the resource cannot be captured whole, and leave it unchanged; the tool then does
    /// not run.
    fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<Self::Snapshot>;

    /// Restores the resource to a capture. The engine may call this again after it failed.
    ///
    /// # Errors
    ///
    /// Return an error if the resource is not as it was when it was captured.
    fn restore(&self, snapshot: &Self::Snapshot) -> Result<()>;

    /// Restores the resource to a capture like [`restore`](Snapshotable::restore), and reports what part of
    /// it was replaced or removed, what was restored otherwise than it was, and what a tool did to it that a
    /// restore does not undo. The default calls `restore` and reports nothing.
    ///
    /// # Errors
    ///
    /// Those of [`restore`](Snapshotable::restore).
    fn restore_and_tell(&self, snapshot: &Self::Snapshot) -> Result<RestoreReport> {
        self.restore(snapshot).map(|()| RestoreReport::default())
    }

    /// Restores the resource like [`restore_and_tell`](Snapshotable::restore_and_tell) to a capture from before
    /// `operation`, whose changes it undoes. The default calls `restore_and_tell`.
    ///
    /// # Errors
    ///
    /// Those of [`restore`](Snapshotable::restore).
    fn roll_back(&self, snapshot: &Self::Snapshot, operation: OperationId) -> Result<RestoreReport> {
        let _ = operation;
        self.restore_and_tell(snapshot)
    }

    /// Puts aside what the rollback of `operation` to a capture will replace or remove, where somebody finds it. The engine calls this
    /// before a rollback if the resource cannot be captured as it is. The default puts nothing aside: what is there is lost.
    ///
    /// # Errors
    ///
    /// Return an error if something cannot be put aside: then leave everything as it is. The rollback is not carried out then, unless
    /// the run goes on [without captures](crate::tools::ExecutionStateBuilder::without_capture).
    fn set_aside(&self, snapshot: &Self::Snapshot, operation: OperationId) -> Result<()> {
        let _ = (snapshot, operation);
        Ok(())
    }

    /// Checks that a [`restore`](Snapshotable::restore) of a capture would not be refused, and changes
    /// nothing. A recovery calls this before it touches the resource. The default refuses nothing.
    ///
    /// # Errors
    ///
    /// Return the error with which `restore` would refuse the capture.
    fn check(&self, snapshot: &Self::Snapshot) -> Result<()> {
        let _ = snapshot;
        Ok(())
    }

    /// Makes durable what restores changed, before the record that says that the resource is restored becomes
    /// durable. The engine calls this after [`restore`](Snapshotable::restore), with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every). The default does nothing.
    ///
    /// # Errors
    ///
    /// Return an error if a change cannot be made durable; the resource then counts as not restored.
    fn sync_restored(&self) -> Result<()> {
        Ok(())
    }

    /// Encodes a capture for the log, as one MessagePack value from which another process can restore the
    /// resource. `None`, the default, says that the capture does not outlive its process.
    ///
    /// The engine refuses bytes that are not one value, and a value that is deeper or has more parts than a
    /// log takes, with [`Error::Resource`]; the tool then does not run.
    ///
    /// # Errors
    ///
    /// Return an error if the capture cannot be encoded.
    fn record(snapshot: &Self::Snapshot) -> Result<Option<Vec<u8>>> {
        let _ = snapshot;
        Ok(None)
    }

    /// Decodes a capture from the bytes that [`record`](Snapshotable::record) returned.
    ///
    /// # Errors
    ///
    /// Return an error if the bytes hold no capture. The default always fails with [`Error::Resource`].
    fn recall(recorded: &[u8]) -> Result<Self::Snapshot> {
        let _ = recorded;
        let reason = "it does not outlive its process".to_owned();
        Err(Error::Resource { resource: Self::NAME.to_owned(), reason })
    }

    /// Makes durable every capture that this process took without [`CaptureOptions::durable`], and the
    /// captures in `earlier`, which records of a killed process name.
    ///
    /// The engine calls this before each sync of a log whose records may name such a capture, in the
    /// background or in the thread that asks for the sync, while a tool may work on the resource. It passes
    /// `earlier` when a run of a session begins that was not closed. The method must not use the session. The
    /// default does nothing, which is right if a power cut cannot lose a recorded capture.
    ///
    /// # Errors
    ///
    /// Return an error if a capture may be lost; the log is then not synced, and takes no more writes.
    fn sync_captures(&self, earlier: &[Self::Snapshot]) -> Result<()> {
        let _ = earlier;
        Ok(())
    }

    /// Returns whether the resource is rolled back with a tool that fails; `true` by default. Return `false`
    /// for what cannot be given back, such as money spent: the engine then captures the resource for the
    /// record, and restores it only if a host asks for a whole snapshot with
    /// [`ExecutionState::restore`](crate::ExecutionState::restore).
    fn rolls_back(&self) -> bool {
        true
    }

    /// Brings a resource that [does not roll back](Snapshotable::rolls_back) up to what `recorded` says, which the session's last call
    /// recorded of it, in another process perhaps. The engine calls this when a [run](crate::ExecutionState) of the session begins, with what
    /// the call left, and then with what a recovery of it found if there was one. The default does nothing.
    fn carry_over(&self, recorded: &Self::Snapshot) {
        let _ = recorded;
    }

    /// Returns whether the resource is still as it was when `since` was captured, so that the engine need not
    /// capture it again. `false`, the default, says that only a new capture can tell.
    fn is_unchanged(&self, since: &Self::Snapshot) -> bool {
        let _ = since;
        false
    }

    /// Removes what the resource can make again, such as caches, because the disk is full and a recovery
    /// needs space. The default does nothing.
    fn free_caches(&self) {}

    /// Returns whether two captures hold the same state of the resource. The default compares what
    /// [`record`](Snapshotable::record) returns, and answers `false` if either capture has no recorded form.
    fn is_same(one: &Self::Snapshot, other: &Self::Snapshot) -> bool {
        matches!((Self::record(one), Self::record(other)), (Ok(Some(one)), Ok(Some(other))) if one == other)
    }

    /// Makes a copy of the resource, as it was at a capture, that shares nothing with the resource. A replay shows it to
    /// the host and its tools in the place of the resource. `None`, the default, says that there is no such copy: in a
    /// replay no tool runs then that works on the resource.
    ///
    /// # Errors
    ///
    /// Return an error if the copy cannot be made; the replay ends with it.
    fn scratch(&self, snapshot: &Self::Snapshot) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        let _ = snapshot;
        Ok(None)
    }

    /// Says what a rewind restores: the target, or a capture that keeps what was changed by hand, which is what the present
    /// has otherwise than the last capture that a call left. Changes nothing in the resource. The default keeps nothing.
    ///
    /// # Errors
    ///
    /// Return an error if the target cannot be restored; the rewind then changes nothing.
    fn rewind(&self, asked: &RewindRequest<'_, Self::Snapshot>) -> Result<Rewound<Self::Snapshot>> {
        Ok(Rewound::whole(asked.target.clone()))
    }

    /// Returns whether a capture is of another place than the one that the resource stands for, such as the directory of the
    /// session that this one was forked from; `false` by default. A rewind of a fork passes over such captures.
    fn is_of_other_place(&self, snapshot: &Self::Snapshot) -> bool {
        let _ = snapshot;
        false
    }

    /// Returns whether a capture was taken of another place than the one that the resource stands for now, whether or not it may be
    /// restored here; `false` by default. A [fill](crate::ExecutionState::fill) asks so what is to be filled.
    fn is_from_elsewhere(&self, snapshot: &Self::Snapshot) -> bool {
        let _ = snapshot;
        false
    }

    /// Lets captures of other places be restored into the one that the resource stands for now, also if something is there already that
    /// is not worth keeping, if `overwrite` says so. The default does nothing.
    ///
    /// # Errors
    ///
    /// Return an error if something is there and is not to be overwritten.
    fn rebind(&self, overwrite: bool) -> Result<()> {
        let _ = overwrite;
        Ok(())
    }

    /// Returns whether a capture was taken of the place of which `present` was taken; `true` by default. By what is of another place, a
    /// rewind cannot tell what was changed by hand.
    fn is_of_place_of(snapshot: &Self::Snapshot, present: &Self::Snapshot) -> bool {
        let _ = (snapshot, present);
        true
    }

    /// Names what of the resource is not as it was at a capture, for a replay that compares what a tool left. The default
    /// captures the resource, and names the whole resource unless both captures are [the same](Snapshotable::is_same).
    ///
    /// # Errors
    ///
    /// Return an error if the resource cannot be looked at.
    fn differences(&self, snapshot: &Self::Snapshot) -> Result<Vec<String>> {
        let now = self.snapshot(&CaptureOptions::default())?;
        Ok(if Self::is_same(&now, snapshot) { Vec::new() } else { vec![Self::NAME.to_owned()] })
    }

    /// Tells the host, in a way of its own, what of the resource is not as the session's last call left it. Called once in a run, with the
    /// first capture `now` that a call of it takes; `left` is what the last call left, which another process may have recorded, and
    /// `found` what a recovery of that call found, which restored `left` since. Changes nothing and fails no call; does nothing by default.
    fn tell_of_changes(&self, left: &Self::Snapshot, found: Option<&Self::Snapshot>, now: &Self::Snapshot) {
        let _ = (left, found, now);
    }

    /// Checks that nobody who works on this [copy](Snapshotable::scratch) gets to the resource that it stands for, such as by a link
    /// among its files. Called before a replay runs a tool again; does nothing by default.
    ///
    /// # Errors
    ///
    /// Return an error that names what leads there; the replay ends with it.
    fn check_apart(&self, snapshot: &Self::Snapshot) -> Result<()> {
        let _ = snapshot;
        Ok(())
    }

    /// Returns whether the resource holds the files in `directory`, so that a restore may change them; `false`
    /// by default. The engine captures nothing, and runs no tool that may change something, if a resource
    /// holds the session's own directory: rolling back a call would roll back the log.
    fn holds(&self, directory: &Path) -> bool {
        let _ = directory;
        false
    }

    /// Returns whether others beside this run may work on the resource; `true` by default. The engine then
    /// takes its [lease](Snapshotable::lease) for each call.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns whether its captures, restores and comparisons work on memory alone and are short; `false` by default. Async hosts
    /// have the others done by a thread of a pool, so that no task waits for a disk.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Takes the lease of the resource for `holder`: waits until nobody else works on the resource, but not
    /// past `until`. `None`, the default, says that the resource needs no lease.
    ///
    /// If a process is killed within a call, the recovery of its session rolls the resource back, together
    /// with everything that others did to it meanwhile. So if the lease ends with its process, let it put a
    /// [mark](LeaseMark) of `holder` on the resource, and refuse a holder that finds the mark of another session
    /// which [left a call open](LeaseHolder::left_open).
    ///
    /// # Errors
    ///
    /// Return [`Error::DeadlineExceeded`] if the resource is not free at `until`, or [`Error::WaitedTooLong`], which may name
    /// who holds it; [`Error::ResourceDirty`] if
    /// another session left the resource half done, [`Error::ResourceMaybeDirty`] if that cannot be known.
    fn lease(&self, holder: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>> {
        let _ = (holder, until);
        Ok(None)
    }
}

/// Holds a capture whose type is erased.
pub(crate) type AnySnapshot = Arc<dyn Any + Send + Sync>;

/// Is a [`Snapshotable`] resource whose type of capture is erased. Each method does what the method of that
/// name in `Snapshotable` does, `restore` what [`restore_and_tell`](Snapshotable::restore_and_tell) does, or
/// [`roll_back`](Snapshotable::roll_back) of the operation that it undoes. For
/// a capture of another type it returns [`Error::SnapshotMismatch`] or `false`.
pub(crate) trait AnyResource: SyncCaptures {
    fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<AnySnapshot>;
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

/// Returns a capture as the type that the resource `R` makes.
fn downcast_snapshot<R: Snapshotable>(snapshot: &AnySnapshot) -> Result<&R::Snapshot> {
    snapshot
        .downcast_ref()
        .ok_or_else(|| Error::SnapshotMismatch(format!("the capture of `{}` is of another type", R::NAME)))
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
    fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<AnySnapshot> {
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
