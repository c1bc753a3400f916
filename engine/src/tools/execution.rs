//! A run: a session and the resources that its tools work on, under one root.
//!
//! A run captures its resources, restores them, and takes their leases. Concurrent calls of a run
//! share the leases: one call takes them for all, and the last call that ends releases them.
//!
//! The run of a child session has the resources of its parent's run and takes no lease. Its calls
//! run under the leases of the call that opened the child, as guests of the parent's schedule. They
//! therefore wait for other work on these resources, and that call does not end before them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use chrono::{DateTime, Utc};
use foldlog_codec::SequenceNumber;
use parking_lot::Mutex;

use super::captures::CaptureSet;
use super::checkpoints::CheckpointStore;
use super::children::ParentCall;
use super::composite::{CompositeSnapshot, SnapshotMetadata};
use super::scratch::Scratch;
use crate::clock::Clock;
use crate::error::{Blocker, Error, Result};
use crate::fold::conversation_reading;
use crate::generator::Generator;
use crate::operation::PutBack;
use crate::options::Durability;
use crate::session::operations::{Admission, Guest};
use crate::session::{Asker, Patience, Session, SnapshotOptions, SyncCaptures};
use crate::storage::whole_path;
use crate::tools::resources::{AnyResource, CaptureOptions, LeaseHolder, ResourceLease, ResourceRegistry};

/// Names of the environment variables of this process that the programs of tools inherit by default
/// (see [`ExecutionStateBuilder::inheriting`]): paths of programs and temporary files, the user,
/// the language and the time zone.
pub const INHERITED: [&str; 11] =
    ["HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// Contains the session and the resources of one run, its clock, its random numbers and its
/// checkpoints. Clones are cheap and belong to the same run.
#[derive(Clone)]
pub struct ExecutionState {
    session: Session,
    pub(super) inner: Arc<RunState>,
}

/// State that all clones of a run share.
pub(super) struct RunState {
    /// Resources that the host registered.
    registered: ResourceRegistry,
    /// Resources that calls lease, capture and restore; none in a replay.
    resources: ResourceRegistry,
    clock: Arc<dyn Clock>,
    checkpoints: Option<CheckpointStore>,
    /// Last captures of the resources. A resource that has not changed since is not captured again.
    latest: Mutex<CaptureSet>,
    /// Captures from before calls of this run that could not be ended, by start record. The log
    /// lacks captures that do not outlive the process.
    pub(super) unended: Mutex<BTreeMap<SequenceNumber, CaptureSet>>,
    /// Leases that the running calls share. Locked while a call takes them for all.
    shared: Mutex<Weak<Leases>>,
    /// Set once the resources were compared with their state after the session's last call.
    pub(super) compared: OnceLock<()>,
    /// Set once it is verified that no resource contains the session's own files.
    apart: OnceLock<()>,
    /// Path by which other processes find the session's directory.
    directory: OnceLock<PathBuf>,
    /// Call under whose leases the run works, if its session is a child.
    pub(super) parent: Option<ParentCall>,
    /// Names of the environment variables that the programs of tools inherit.
    pub(super) inherited: Vec<OsString>,
    /// Whether rollbacks continue without a capture.
    pub(super) without_capture: bool,
    /// Copies of the resources, made at the first use; `None` if the session does not replay.
    pub(super) scratch: Option<OnceLock<Option<Scratch>>>,
}

/// Leases that the running calls of a run share. They are released when the last call drops them.
pub(crate) struct Leases {
    /// Handle that does not keep the session open.
    session: Session,
    of_each: Vec<ResourceLease>,
    /// Admission by the schedule of the parent session, in place of leases, if the session is a
    /// child.
    guest: Option<Guest>,
}

impl Leases {
    pub(crate) fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }

    /// Marks the leased resources, before the start record of a call that may make changes.
    pub(crate) fn open(&self) -> Result<()> {
        self.of_each.iter().try_for_each(ResourceLease::open)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // No call starts without the leases, so a call that is open now was left open.
        if self.of_each.is_empty() || !self.session.calls().is_at_rest() {
            return;
        }
        for lease in &self.of_each {
            // If this fails, the mark remains, and the next session reads a log unnecessarily.
            let _ = catch_unwind(AssertUnwindSafe(|| lease.rest()));
        }
    }
}

/// Clock of a session. In a replay, its time is that of the recorded record at the replay's
/// position.
#[derive(Debug)]
struct SessionClock(Session);

impl Clock for SessionClock {
    fn now_us(&self) -> i64 {
        self.0.now_us()
    }

    fn steady_us(&self) -> i64 {
        self.0.open_store().options.clock.steady_us()
    }
}

impl fmt::Debug for ExecutionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionState")
            .field("session", &self.session)
            .field("resources", &self.inner.registered)
            .field("checkpoints", &self.inner.checkpoints.is_some())
            .finish()
    }
}

/// Builds an [`ExecutionState`].
#[must_use]
pub struct ExecutionStateBuilder {
    session: Session,
    inner: RunState,
}

impl fmt::Debug for ExecutionStateBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionStateBuilder")
            .field("session", &self.session)
            .field("resources", &self.inner.registered)
            .finish_non_exhaustive()
    }
}

impl ExecutionStateBuilder {
    /// Makes the run a child session's, under the leases of a call of its parent.
    pub(super) fn under(mut self, parent: ParentCall) -> Self {
        self.inner.parent = Some(parent);
        self
    }

    /// Sets the clock for the tools of the run; the session's clock by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.inner.clock = clock;
        self
    }

    /// Sets the store for snapshots before and after each call; none by default.
    pub fn checkpoints(mut self, checkpoints: CheckpointStore) -> Self {
        self.inner.checkpoints = Some(checkpoints);
        self
    }

    /// Sets the names of the environment variables of this process that the
    /// [programs](crate::tools::ToolCommand) of tools inherit; [`INHERITED`] by default. Variables
    /// that contain keys should not be listed.
    pub fn inheriting(mut self, names: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.inner.inherited = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whether the rollback of a call, here or by a recovery, continues if the current content
    /// can neither be captured nor [set aside](crate::tools::resources::Snapshotable::set_aside),
    /// for example on a disk that the call has filled. Content that the rollback then replaces or
    /// removes is lost; the report states that it was not captured. `false` by default: no content
    /// is touched, the call is left open, and [`Error::Uncaptured`] contains the causes.
    pub fn without_capture(mut self, without_capture: bool) -> Self {
        self.inner.without_capture = without_capture;
        self
    }

    /// Builds the run, makes earlier captures durable, and carries over spent budgets, like
    /// [`ExecutionState::new`].
    pub fn build(self) -> ExecutionState {
        let state = ExecutionState { session: self.session, inner: Arc::new(self.inner) };
        state.sync_earlier();
        if state.inner.parent.is_none() {
            CaptureSet::carry_over(state.live_resources(), state.session());
        }
        state
    }
}

impl ExecutionState {
    /// Creates a run of a session with these resources, the session's clock, and no checkpoints.
    ///
    /// If the session's last writer was killed, this makes its recorded but unsynced captures
    /// durable. It happens before the session's first append, which makes the records with these
    /// captures durable. If it fails, the session rejects writes: they fail with
    /// [`Error::Poisoned`].
    ///
    /// Resources that are not rolled back with a tool, such as a
    /// [budget](crate::tools::resources::BudgetTracker), are updated to the state that the
    /// session's last call recorded, wherever that call ran.
    ///
    /// [`ToolRunner::execute`](crate::tools::ToolRunner::execute) has an example.
    pub fn new(session: Session, resources: ResourceRegistry) -> ExecutionState {
        ExecutionState::builder(session, resources).build()
    }

    /// Returns a builder for a run of a session with these resources, which also sets the clock and
    /// the checkpoints.
    pub fn builder(session: Session, resources: ResourceRegistry) -> ExecutionStateBuilder {
        let clock = Arc::new(SessionClock(session.clone_uncounted()));
        // A replay works on copies, and never touches the originals.
        let (originals, scratch) = match session.replays() {
            true => (ResourceRegistry::default(), Some(OnceLock::new())),
            false => (resources.clone(), None),
        };
        let inner = RunState {
            registered: resources,
            resources: originals,
            clock,
            checkpoints: None,
            latest: Mutex::default(),
            unended: Mutex::default(),
            shared: Mutex::default(),
            compared: OnceLock::new(),
            apart: OnceLock::new(),
            directory: OnceLock::new(),
            parent: None,
            inherited: INHERITED.map(OsString::from).to_vec(),
            without_capture: false,
            scratch,
        };
        ExecutionStateBuilder { session, inner }
    }

    /// Makes the captures of a killed process durable, before the session's first append attests
    /// their records. If that fails, the session rejects writes.
    fn sync_earlier(&self) {
        if self.live_captured().is_empty() {
            return;
        }
        let synced = self.session().calls().unattested_captures().and_then(|captured| {
            captured.iter().try_for_each(|(name, recorded)| match self.live_captured().get(name.as_str()) {
                Some(resource) => resource.sync_captures(recorded),
                None => Ok(()),
            })
        });
        if let Err(error) = synced {
            self.session().poison(error);
        }
    }

    /// Returns the run for a tool: `session` is the call's own handle, and `resources` are those
    /// that the tool may use.
    pub(super) fn within_call(
        &self,
        session: Session,
        resources: Option<&ResourceRegistry>,
    ) -> ExecutionState {
        let Some(resources) = resources else {
            return ExecutionState { session, inner: Arc::clone(&self.inner) };
        };
        let mut builder =
            ExecutionState::builder(session, resources.clone()).clock(Arc::clone(&self.inner.clock));
        builder.inner.checkpoints.clone_from(&self.inner.checkpoints);
        builder.inheriting(self.inner.inherited.iter()).build()
    }

    /// Returns this run with a session handle that belongs to no call.
    pub(super) fn outside_call(self) -> ExecutionState {
        match self.session.calls().call_scope() {
            Some(_) => ExecutionState { session: self.session.outside(), inner: self.inner },
            None => self,
        }
    }

    /// Fails for the run of a tool's context, which is neither captured nor restored within the
    /// call.
    pub(super) fn check_outside(&self) -> Result<()> {
        match self.session.calls().call_scope() {
            Some(within) => Err(Error::InsideOperation { operation: within.operation() }),
            None => Ok(()),
        }
    }

    /// Returns a clone that does not keep the session open.
    pub(crate) fn clone_uncounted(&self) -> ExecutionState {
        ExecutionState { session: self.session.clone_uncounted(), inner: Arc::clone(&self.inner) }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the resources that the host registered, also in a replay.
    pub(super) fn registered_resources(&self) -> &ResourceRegistry {
        &self.inner.registered
    }

    /// Returns the resources that calls of this run lease, capture and restore: those that the host
    /// registered. A replay has none.
    pub(crate) fn live_resources(&self) -> &ResourceRegistry {
        &self.inner.resources
    }

    /// Returns those of the [live resources](ExecutionState::live_resources) that are captured.
    pub(super) fn live_captured(&self) -> &BTreeMap<Cow<'static, str>, Arc<dyn AnyResource>> {
        self.inner.resources.captured_resources()
    }

    /// Returns the run's clock. Its readings are not recorded; use [`now`](ExecutionState::now) for
    /// a time on which records depend.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Reads the run's clock and records the time. A replay returns the recorded time.
    pub fn now(&self) -> Result<DateTime<Utc>> {
        let now_us = self.session.inputs().observe("run.now", || self.clock().now_us())?;
        Ok(conversation_reading::time(now_us))
    }

    /// Calls `draw` with a generator, and returns its result. The generator's start is drawn with
    /// [`SessionInputs::draw`](crate::SessionInputs::draw) and recorded, so a replay draws the same numbers.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Generator) -> T) -> Result<T> {
        Ok(draw(&mut Generator::from_seed(self.session.inputs().draw()?)))
    }

    /// Returns the store of snapshots before and after each call; `None` if the run has none.
    pub fn checkpoints(&self) -> Option<&CheckpointStore> {
        self.inner.checkpoints.as_ref()
    }

    /// Captures the session and every resource at one moment. Waits until no other tool runs, and
    /// prevents others from starting until it returns.
    ///
    /// The snapshot's record is durable when this returns, with [`Durability::Boundary`] and
    /// [`Durability::Every`].
    ///
    /// ```
    /// # use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// let snapshot = state.snapshot(Some("before"))?;
    /// session.dispatch(Said("hello".to_owned()))?; // tools, with runners of `state`, may work here
    /// state.restore(&snapshot)?;
    /// assert!(session.view::<Chat>()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ResourceDirty`] if another session left a resource half changed,
    /// [`Error::ResourceMaybeDirty`] if that session's log cannot be read; the resource's error,
    /// such as [`Error::Filesystem`] or [`Error::Resource`], if a resource cannot be leased or
    /// captured; [`Error::InsideOperation`] for the run of a [tool's
    /// context](crate::tools::ToolContext::state). No record is written then. Otherwise, the errors
    /// of [`Session::snapshot`].
    #[track_caller]
    pub fn snapshot(&self, tag: Option<&str>) -> Result<CompositeSnapshot> {
        let tag = tag.map(str::to_owned);
        self.snapshot_with(SnapshotMetadata { tag, ..SnapshotMetadata::default() })
    }

    /// Captures the session and every resource like [`snapshot`](ExecutionState::snapshot), with
    /// metadata: a [`SnapshotPhase`](crate::tools::SnapshotPhase), and the related call, if any.
    #[track_caller]
    pub fn snapshot_with(&self, metadata: SnapshotMetadata) -> Result<CompositeSnapshot> {
        let patience = self.session().patience(None, None);
        self.snapshot_within(metadata, &patience, Location::caller())
    }

    /// Captures the session and every resource. Waits for other work as long as `patience` allows.
    pub(super) fn snapshot_within(
        &self,
        metadata: SnapshotMetadata,
        patience: &Patience,
        at: &'static Location<'static>,
    ) -> Result<CompositeSnapshot> {
        self.check_outside()?;
        let options = SnapshotOptions { tag: metadata.tag.clone(), ..SnapshotOptions::default() };
        let asker = Asker::new("snapshot", at);
        let admission = self.session().admit(false, patience, asker.clone())?;
        let _leases = self.lease(true, patience, &asker)?;
        let resources = self.capture(None)?;
        self.tell_of_changes(&resources);
        let admitted = admission.as_ref().map(Admission::handle);
        let session = admitted.as_ref().unwrap_or_else(|| self.session());
        let session = session.snapshot_of(options, resources.to_snapshot_record())?;
        Ok(CompositeSnapshot::new(session, self.clock().now_us(), resources, metadata))
    }

    /// Captures every resource, until `until` at the latest. The captures are durable when this
    /// returns, unless the session's durability is [`Durability::Process`]; then the next sync of
    /// the log makes them durable first.
    pub(crate) fn capture(&self, until: Option<Instant>) -> Result<CaptureSet> {
        let latest = self.inner.latest.lock().clone();
        if latest.are_all(self.live_resources()) {
            return Ok(latest);
        }
        self.check_apart()?;
        let durable = self.session().log().durability() != Durability::Process;
        let options = CaptureOptions { durable, until };
        let captures = CaptureSet::capture_all(self.live_resources(), &options, &latest);
        if !durable {
            // After the captures, so that no sync takes this request before they exist, and before
            // any record names them.
            let captured = self.live_captured().values();
            self.session().sync_first(captured.map(|resource| Arc::clone(resource) as Arc<dyn SyncCaptures>));
        }
        let captures = captures?;
        *self.inner.latest.lock() = captures.clone();
        Ok(captures)
    }

    /// Lets the resources and the session remove data that can be recreated, to free space on the
    /// disk.
    pub(crate) fn free_caches(&self) {
        self.session().give_up_caches();
        for resource in self.live_captured().values() {
            // A host's resource may panic; the recovery continues.
            let _ = catch_unwind(AssertUnwindSafe(|| resource.free_caches()));
        }
    }

    /// Restores resources to `captures`: all of them with `all`, otherwise only resources that are
    /// rolled back with a failed tool. Returns the changes that the restore could not undo, and the
    /// contents that it replaced. The changes are durable when this returns, unless the session's
    /// durability is [`Durability::Process`].
    pub(crate) fn put_back(&self, captures: &CaptureSet, all: bool) -> Result<PutBack> {
        let durable = self.session().log().durability() != Durability::Process;
        captures.restore(self.resources(), all, durable)
    }

    /// Fails if a resource contains the session's own directory, because restoring it would roll
    /// the log back. Has no effect after the first success.
    fn check_apart(&self) -> Result<()> {
        if self.inner.apart.get().is_some() {
            return Ok(());
        }
        let directory = self.session().dir();
        let mut captured = self.live_captured().iter();
        if let Some((name, _)) = captured.find(|(_, resource)| resource.holds(directory)) {
            let reason = format!("the session's own directory is in it, {}", directory.display());
            return Err(Error::Resource { resource: name.clone().into_owned(), reason });
        }
        let _ = self.inner.apart.set(());
        Ok(())
    }

    /// If the session is a child, announces in the parent's log that a call of this run is about to
    /// change the resources. Requires the lease that excludes the other children.
    pub(crate) fn announce_work(&self) -> Result<()> {
        match &self.inner.parent {
            Some(parent) if !self.live_captured().is_empty() => parent.announce_work(),
            _ => Ok(()),
        }
    }

    /// Returns whether all captures of the run are in memory, so that its calls write only records.
    #[cfg(feature = "async")]
    pub(crate) fn is_in_memory(&self) -> bool {
        self.inner.parent.is_none() && self.live_resources().is_in_memory()
    }

    /// Lets the resources report changes since the session's last call, with the first captures of
    /// this run.
    pub(super) fn tell_of_changes(&self, now: &CaptureSet) {
        // A child works on resources that its parent's call captured.
        if !now.is_empty() && self.inner.parent.is_none() && self.inner.compared.set(()).is_ok() {
            now.tell_of_changes(self.live_resources(), self.session());
        }
    }

    /// Returns the earlier one of `until` and the deadline of the call under whose leases the run
    /// works.
    pub(crate) fn until(&self, until: Option<Instant>) -> Option<Instant> {
        let parent = self.inner.parent.as_ref().and_then(|parent| parent.call.calls().call_scope()?.until());
        until.into_iter().chain(parent).min()
    }

    /// Takes the leases of the shared resources, or shares those of another call of this run. Waits
    /// for other work on these resources, as long as `patience` allows. One call takes the leases
    /// for all; if it fails, the next waiting call tries. Returns `None` if none of the resources
    /// is shared with other sessions.
    ///
    /// The run of a child session becomes a guest of its parent's schedule instead. It counts as
    /// reading with `reads_only`, or if its calls can change nothing.
    pub(crate) fn lease(
        &self,
        reads_only: bool,
        patience: &Patience,
        asker: &Asker,
    ) -> Result<Option<Arc<Leases>>> {
        let inner = &*self.inner;
        if inner.parent.is_none() && !inner.resources.is_shared() {
            return Ok(None);
        }
        let blocker = || {
            let resource = inner.resources.captured_resources().keys().next().map(ToString::to_string);
            Blocker::Resource { resource: resource.unwrap_or_default(), holder: None }
        };
        let shared = inner.shared.try_lock_until(patience.over_at());
        let mut shared = shared.ok_or_else(|| patience.waited_for(blocker()))?;
        if let Some(leases) = shared.upgrade() {
            return Ok(Some(leases));
        }
        let mut leases = Leases { session: self.session.clone_uncounted(), of_each: Vec::new(), guest: None };
        if let Some(parent) = &inner.parent {
            let reads_only = reads_only || inner.resources.captured_resources().is_empty();
            leases.guest = parent.call.admit_live(reads_only, patience, asker.clone())?.into_guest();
        } else {
            let directory = inner.directory.get_or_init(|| whole_path(self.session.dir()));
            let holder = LeaseHolder::new(&self.session, directory);
            let captured = inner.resources.captured_resources().iter();
            for (name, resource) in captured.filter(|(_, resource)| resource.is_shared()) {
                let unnamed = || Blocker::Resource { resource: name.to_string(), holder: None };
                let lease = resource.lease(&holder, patience.over_at()).map_err(|error| match error {
                    Error::DeadlineExceeded { operation: None } => patience.waited_for(unnamed()),
                    Error::WaitedTooLong { blocker, .. } => patience.waited_for(*blocker),
                    error => error,
                })?;
                leases.of_each.extend(lease);
            }
        }
        let leases = Arc::new(leases);
        *shared = Arc::downgrade(&leases);
        Ok(Some(leases))
    }
}
