//! Resources: what a tool works on beside the session. [`Snapshotable`] is one that can be captured.
//!
//! | module | holds |
//! |---|---|
//! | `registry` | [`ResourceRegistry`]: resources by their types |
//! | `lease` | [`Lease`]: a resource that others share, held; [`LeaseHolder`]: for whom; [`Marked`]: what outlives it |
//! | `budget` | [`BudgetTracker`]: what was spent, which no tool takes back with it |
//! | `filesystem` | how filesystems in memory and on disk are captured, restored, leased and registered |
//!
//! # Invariants
//!
//! 1. A resource is captured before a tool runs that may change something, and restored by that capture where the tool
//!    fails, unless it says that it [does not roll back](Snapshotable::rolls_back).
//! 2. A capture that is recorded is one MessagePack value, and enough to restore the resource in another process.
//! 3. A capture is durable before a record that names it is: at the level of `Process` both become so in the background.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foldlog_filesystem::Unrestored;

use crate::error::panic_message;
use crate::error::{Error, Result};
use crate::session::SyncCaptures;

mod budget;
mod filesystem;
mod lease;
#[cfg(feature = "host-filesystem")]
mod mark;
mod registry;

pub use budget::{BudgetSnapshot, BudgetTracker, Usage};
pub use lease::{Lease, LeaseHolder, Marked};
pub use registry::{ResourceRegistry, ResourceRegistryBuilder};

/// How a resource is to be captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions<'a> {
    /// What the capture is called, for a person who looks at it.
    pub tag: Option<&'a str>,
    /// Whether it must be durable when the call returns: a record that is about to be durable names it.
    pub durable: bool,
    /// Until when the capture may take; [`Error::DeadlineExceeded`] where it takes longer.
    pub until: Option<Instant>,
}

/// A resource that can be captured and restored.
pub trait Snapshotable: Send + Sync + 'static {
    /// The resource's name in records: stable, and the host's own.
    const NAME: &'static str;

    /// A capture, which later changes leave as it is.
    type Snapshot: Clone + Send + Sync + 'static;

    /// Captures the resource as it is.
    ///
    /// # Errors
    ///
    /// Where it cannot be captured whole; nothing has changed then, and the tool does not run.
    fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<Self::Snapshot>;

    /// Brings the resource back to a capture. May be called again after it failed.
    ///
    /// # Errors
    ///
    /// Where it is not as it was then.
    fn restore(&self, snapshot: &Self::Snapshot) -> Result<()>;

    /// Brings the resource back to a capture, as [`restore`](Snapshotable::restore) does, and tells what of it is back but
    /// not as it was, and what a tool did to it that a restore does not undo. By default it has nothing to tell.
    ///
    /// # Errors
    ///
    /// As `restore`.
    fn restore_and_tell(&self, snapshot: &Self::Snapshot) -> Result<Vec<Unrestored>> {
        self.restore(snapshot).map(|()| Vec::new())
    }

    /// Says whether a [`restore`](Snapshotable::restore) of a capture would be refused, and changes nothing: asked before
    /// a recovery touches the resource. By default it is not.
    ///
    /// # Errors
    ///
    /// As the restore would be.
    fn check(&self, snapshot: &Self::Snapshot) -> Result<()> {
        let _ = snapshot;
        Ok(())
    }

    /// Makes what restores changed durable, so that an end which says that the resource is back can be. Called behind
    /// [`restore`](Snapshotable::restore), from [`Durability::Boundary`](crate::Durability::Boundary) on. By default there is nothing
    /// to do.
    ///
    /// # Errors
    ///
    /// Where that cannot be; the resource counts as not restored.
    fn sync_restored(&self) -> Result<()> {
        Ok(())
    }

    /// One MessagePack value by which another process can restore the resource; `None`, as by default, where it
    /// lives in this process alone. Anything else, and a value that is deeper or has more parts than a log takes, is
    /// [`Error::Resource`], and the tool does not run.
    ///
    /// # Errors
    ///
    /// Where the capture cannot be written.
    fn record(snapshot: &Self::Snapshot) -> Result<Option<Vec<u8>>> {
        let _ = snapshot;
        Ok(None)
    }

    /// The capture that was recorded by these bytes.
    ///
    /// # Errors
    ///
    /// Where they are no capture; so by default.
    fn recall(recorded: &[u8]) -> Result<Self::Snapshot> {
        let _ = recorded;
        let reason = "it does not outlive its process".to_owned();
        Err(Error::Resource { resource: Self::NAME.to_owned(), reason })
    }

    /// Makes every capture durable that this process took without [`CaptureOptions::durable`], and those of `earlier`, which
    /// records of a process that was killed name. Called ahead of each sync of a log whose records may name one: in the
    /// background or in the thread that asks for the sync, beside a tool that works on the resource, and with `earlier`
    /// where a run of a session begins that was not closed. It may not use the session. Does nothing by default, which is
    /// right where captures need nothing that could be lost.
    ///
    /// # Errors
    ///
    /// Where a capture may be lost: the log is not synced then, and takes no more writes.
    fn sync_captures(&self, earlier: &[Self::Snapshot]) -> Result<()> {
        let _ = earlier;
        Ok(())
    }

    /// Whether a failed tool takes the resource back with it. What cannot be given back, such as money spent, says
    /// no: it is captured for the record, and restored only where a host asks for all of a moment
    /// ([`ExecutionState::restore`](crate::ExecutionState::restore)).
    fn rolls_back(&self) -> bool {
        true
    }

    /// Whether the resource is still as it was when it was captured, so that no new capture need be made. `false`, as by
    /// default, where that is not known without making one.
    fn is_unchanged(&self, since: &Self::Snapshot) -> bool {
        let _ = since;
        false
    }

    /// Removes what the resource can make again, since the disk is full and a recovery needs room. Nothing by default.
    fn free_caches(&self) {}

    /// Whether two captures are of the same state. By default whether both have a record and it is the same.
    fn is_same(one: &Self::Snapshot, other: &Self::Snapshot) -> bool {
        matches!((Self::record(one), Self::record(other)), (Ok(Some(one)), Ok(Some(other))) if one == other)
    }

    /// Whether the resource holds the files in this folder, so that to restore it is to change them. Where it holds the
    /// session's own folder nothing is captured, and no tool runs that may change something: what takes back a call would
    /// take back the log.
    fn holds(&self, folder: &Path) -> bool {
        let _ = folder;
        false
    }

    /// Whether others may work on the resource beside this run, so that its [lease](Snapshotable::lease) is asked for.
    fn is_shared(&self) -> bool {
        true
    }

    /// Waits until nobody else works on the resource, but not past `until`. `None`, where it is not shared with
    /// others.
    ///
    /// A session that was killed within a call takes the resource back when it is recovered, and what others did to it
    /// meanwhile too. So where the lease itself does not outlive its holder's process, the resource should bear a
    /// [mark](Marked) of the `lessee` that does, and refuse whoever finds that of another one who
    /// [left a call open](LeaseHolder::left_open).
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`] where the moment passed; [`Error::ResourceDirty`] where another session left the resource
    /// half done, [`Error::ResourceMaybeDirty`] where that cannot be known.
    fn lease(&self, lessee: &LeaseHolder<'_>, until: Option<Instant>) -> Result<Option<Lease>> {
        let _ = (lessee, until);
        Ok(None)
    }
}

/// A capture, its type erased.
pub(crate) type AnySnapshot = Arc<dyn Any + Send + Sync>;

/// A resource, its type erased.
pub(crate) trait AnyResource: SyncCaptures {
    fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<AnySnapshot>;
    fn restore(&self, snapshot: &AnySnapshot) -> Result<Vec<Unrestored>>;
    fn check(&self, snapshot: &AnySnapshot) -> Result<()>;
    fn sync_restored(&self) -> Result<()>;
    fn record(&self, snapshot: &AnySnapshot) -> Result<Option<Vec<u8>>>;
    fn recall(&self, recorded: &[u8]) -> Result<AnySnapshot>;
    fn rolls_back(&self) -> bool;
    fn is_unchanged(&self, since: &AnySnapshot) -> bool;
    fn is_shared(&self) -> bool;
    fn free_caches(&self);
    fn is_same(&self, one: &AnySnapshot, other: &AnySnapshot) -> bool;
    fn holds(&self, folder: &Path) -> bool;
    fn lease(&self, lessee: &LeaseHolder<'_>, until: Option<Instant>) -> Result<Option<Lease>>;
}

/// A capture as the type that the resource makes.
fn typed<R: Snapshotable>(snapshot: &AnySnapshot) -> Result<&R::Snapshot> {
    snapshot.downcast_ref().ok_or_else(|| {
        Error::SnapshotMismatch(format!("what was captured of `{}` is of another type", R::NAME))
    })
}

impl<R: Snapshotable> SyncCaptures for R {
    fn sync_captures(&self, earlier: &[Vec<u8>]) -> Result<()> {
        let sync = || {
            // What cannot be read back cannot be restored either, durable or not.
            let earlier: Vec<_> = earlier.iter().filter_map(|recorded| R::recall(recorded).ok()).collect();
            Snapshotable::sync_captures(self, &earlier)
        };
        catch_unwind(AssertUnwindSafe(sync)).unwrap_or_else(|panic| {
            let reason = format!("panicked: {}", panic_message(&*panic));
            Err(Error::Resource { resource: R::NAME.to_owned(), reason })
        })
    }
}

impl<R: Snapshotable> AnyResource for R {
    fn snapshot(&self, options: &CaptureOptions<'_>) -> Result<AnySnapshot> {
        Ok(Arc::new(Snapshotable::snapshot(self, options)?))
    }

    fn restore(&self, snapshot: &AnySnapshot) -> Result<Vec<Unrestored>> {
        self.restore_and_tell(typed::<R>(snapshot)?)
    }

    fn check(&self, snapshot: &AnySnapshot) -> Result<()> {
        Snapshotable::check(self, typed::<R>(snapshot)?)
    }

    fn sync_restored(&self) -> Result<()> {
        Snapshotable::sync_restored(self)
    }

    fn record(&self, snapshot: &AnySnapshot) -> Result<Option<Vec<u8>>> {
        R::record(typed::<R>(snapshot)?)
    }

    fn recall(&self, recorded: &[u8]) -> Result<AnySnapshot> {
        Ok(Arc::new(R::recall(recorded)?))
    }

    fn rolls_back(&self) -> bool {
        Snapshotable::rolls_back(self)
    }

    fn is_shared(&self) -> bool {
        Snapshotable::is_shared(self)
    }

    fn free_caches(&self) {
        Snapshotable::free_caches(self);
    }

    fn is_unchanged(&self, since: &AnySnapshot) -> bool {
        typed::<R>(since).is_ok_and(|since| Snapshotable::is_unchanged(self, since))
    }

    fn is_same(&self, one: &AnySnapshot, other: &AnySnapshot) -> bool {
        matches!((typed::<R>(one), typed::<R>(other)), (Ok(one), Ok(other)) if R::is_same(one, other))
    }

    fn holds(&self, folder: &Path) -> bool {
        Snapshotable::holds(self, folder)
    }

    fn lease(&self, lessee: &LeaseHolder<'_>, until: Option<Instant>) -> Result<Option<Lease>> {
        Snapshotable::lease(self, lessee, until)
    }
}
