//! Everything that a run changes, under one root: the session and the resources.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use foldlog_codec::SequenceNumber;
use parking_lot::{Condvar, Mutex};

use super::captures::{Captures, CompositeSnapshot, SnapshotMetadata};
use super::checkpoints::CheckpointStore;
use crate::clock::{self, Clock, SystemClock};
use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::operation::NotUndone;
use crate::options::Durability;
use crate::sabotage::{self, Breakage};
use crate::session::{Session, Snapshot, SnapshotOptions, SyncCaptures};
use crate::tools::resources::{CaptureOptions, Lease, LeaseHolder, ResourceRegistry};

/// The session and the resources of one run, its clock, its generator and its checkpoints. Cheap to clone; every clone
/// is the same run.
#[derive(Clone)]
pub struct ExecutionState {
    session: Session,
    inner: Arc<Inner>,
}

struct Inner {
    resources: ResourceRegistry,
    clock: Arc<dyn Clock>,
    generator: Mutex<Generator>,
    checkpoints: Option<CheckpointStore>,
    /// What the resources were when they were last captured: what has not changed since is not captured anew.
    latest: Mutex<Captures>,
    /// What the resources were before calls that could not be brought to their ends, by their begins: of one that does
    /// not outlive its process the log does not say it.
    unended: Mutex<BTreeMap<SequenceNumber, Captures>>,
    shared: Mutex<Shared>,
    /// Told where leases were taken, or could not be.
    taken: Condvar,
    /// Set once it is known that no resource holds the session's own files.
    apart: OnceLock<()>,
    /// The session's folder, as other processes find it.
    folder: OnceLock<PathBuf>,
}

/// The leases that calls hold together.
pub(crate) struct Leases {
    /// Not to be kept open by them.
    session: Session,
    of_each: Vec<Lease>,
}

impl Leases {
    /// A call that may change something is about to be recorded.
    pub(crate) fn open(&self) -> Result<()> {
        self.of_each.iter().try_for_each(Lease::open)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // Nothing begins without a lease, so what is open now was left so.
        if self.of_each.is_empty() || !(self.session.is_at_rest() || sabotage::is(Breakage::HalfDoneUnmarked))
        {
            return;
        }
        for lease in &self.of_each {
            // What fails there leaves a resource to be asked about where it need not be, and nothing else.
            let _ = catch_unwind(AssertUnwindSafe(|| lease.rest()));
        }
    }
}

/// What the calls that run at this moment hold together.
#[derive(Default)]
struct Shared {
    leases: Weak<Leases>,
    /// Whether one of them is taking it for all.
    is_being_taken: bool,
}

/// One call's try at the leases, which is over when this is dropped, whatever came of it.
struct Taking<'a> {
    inner: &'a Inner,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.inner.shared.lock().is_being_taken = false;
        self.inner.taken.notify_all();
    }
}

impl fmt::Debug for ExecutionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionState")
            .field("session", &self.session)
            .field("resources", &self.inner.resources)
            .field("checkpoints", &self.inner.checkpoints.is_some())
            .finish()
    }
}

/// Collects what an [`ExecutionState`] is made of.
#[must_use]
#[derive(Debug)]
pub struct ExecutionStateBuilder {
    session: Session,
    resources: ResourceRegistry,
    clock: Arc<dyn Clock>,
    generator: Option<Generator>,
    checkpoints: Option<CheckpointStore>,
}

impl ExecutionStateBuilder {
    /// The clock that tools of the run are to read; the system's where nothing is said.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        ExecutionStateBuilder { clock, ..self }
    }

    /// The generator that tools of the run are to draw from; one of the session's seed where nothing is said, so that
    /// one seed gives one log.
    pub fn generator(self, generator: Generator) -> Self {
        ExecutionStateBuilder { generator: Some(generator), ..self }
    }

    /// Keeps the positions before and after each call.
    pub fn checkpoints(self, checkpoints: CheckpointStore) -> Self {
        ExecutionStateBuilder { checkpoints: Some(checkpoints), ..self }
    }

    /// The run.
    pub fn build(self) -> ExecutionState {
        let ExecutionStateBuilder { session, resources, clock, generator, checkpoints } = self;
        let generator = Mutex::new(generator.unwrap_or_else(|| Generator::from_seed(session.own_seed())));
        let (latest, unended) = (Mutex::default(), Mutex::default());
        let (shared, taken) = (Mutex::default(), Condvar::new());
        let (apart, folder) = (OnceLock::new(), OnceLock::new());
        let inner =
            Inner { resources, clock, generator, checkpoints, latest, unended, shared, taken, apart, folder };
        let state = ExecutionState { session, inner: Arc::new(inner) };
        state.sync_earlier();
        state
    }
}

impl ExecutionState {
    /// Begins a run of a session with these resources. Where the session's last writer was killed, captures that it recorded
    /// without making them durable are synced now: they are before the session's first append makes the records so.
    ///
    /// ```
    /// # use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
    /// # use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # struct Say;
    /// # impl Tool for Say {
    /// #     const NAME: &'static str = "say";
    /// #     type Parameters = Said;
    /// #     type Output = ();
    /// #     fn call(&self, said: Said, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
    /// #         context.session().dispatch(said.clone())?;
    /// #         if said.0.is_empty() { Err(ToolError::failed("nothing to say")) } else { Ok(ToolResult::ok("said", ())) }
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(folder.path())?.create(&types)?;
    /// let state = ExecutionState::new(session, ResourceRegistry::builder().build()?);
    /// let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(session: Session, resources: ResourceRegistry) -> ExecutionState {
        ExecutionState::builder(session, resources).build()
    }

    /// Begins a run of a session with these resources, with more to say about it.
    pub fn builder(session: Session, resources: ResourceRegistry) -> ExecutionStateBuilder {
        let clock = Arc::new(SystemClock);
        ExecutionStateBuilder { session, resources, clock, generator: None, checkpoints: None }
    }

    /// Makes the captures durable that a killed process recorded and that the session's first append attests. Where that
    /// fails the session takes no writes.
    fn sync_earlier(&self) {
        if self.resources().captured().is_empty() || sabotage::is(Breakage::EarlierCapturesUnsynced) {
            return;
        }
        let synced = self.session().unattested_captures().and_then(|captured| {
            captured.iter().try_for_each(|(name, recorded)| {
                match self.resources().captured().get(name.as_str()) {
                    Some(resource) => resource.sync_captures(recorded),
                    None => Ok(()),
                }
            })
        });
        if let Err(error) = synced {
            self.session().poison(error);
        }
    }

    /// The same run, by what does not keep its session open.
    pub(crate) fn uncounted(&self) -> ExecutionState {
        ExecutionState { session: self.session.uncounted(), inner: Arc::clone(&self.inner) }
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The resources.
    pub fn resources(&self) -> &ResourceRegistry {
        &self.inner.resources
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Draws from the run's generator.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Generator) -> T) -> T {
        draw(&mut self.inner.generator.lock())
    }

    /// The positions before and after calls, where they are kept.
    pub fn checkpoints(&self) -> Option<&CheckpointStore> {
        self.inner.checkpoints.as_ref()
    }

    /// Captures the session and every resource, as they are together at one moment: no tool runs meanwhile.
    ///
    /// Durable as a [`Session::snapshot`] is.
    ///
    /// ```
    /// # use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
    /// # use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # struct Say;
    /// # impl Tool for Say {
    /// #     const NAME: &'static str = "say";
    /// #     type Parameters = Said;
    /// #     type Output = ();
    /// #     fn call(&self, said: Said, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
    /// #         context.session().dispatch(said.clone())?;
    /// #         if said.0.is_empty() { Err(ToolError::failed("nothing to say")) } else { Ok(ToolResult::ok("said", ())) }
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(folder.path())?.create(&types)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    /// let state = runner.state();
    /// let snapshot = state.snapshot(Some("before"))?;
    /// runner.execute(&ToolCall::new("say", r#""hello""#), &ExecuteOptions::default())?;
    /// state.restore(&snapshot)?;
    /// assert!(session.view::<Chat>()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Where a resource cannot be leased or captured; nothing is recorded then. Else as [`Session::snapshot`].
    pub fn snapshot(&self, tag: Option<&str>) -> Result<CompositeSnapshot> {
        let admission = self.session().admit(false, None)?;
        let _leases = self.lease(None)?;
        let resources = self.capture(None, || tag.map(str::to_owned))?;
        let options = SnapshotOptions { tag: tag.map(str::to_owned), ..SnapshotOptions::default() };
        let session = admission.handle().snapshot(options)?;
        let metadata = SnapshotMetadata { tag: tag.map(str::to_owned), ..SnapshotMetadata::default() };
        Ok(self.composite(session, resources, metadata))
    }

    /// Captures every resource as it is, no longer than until a moment. `tag` is asked for where there is anything to be
    /// captured anew.
    pub(crate) fn capture(
        &self,
        until: Option<Instant>,
        tag: impl FnOnce() -> Option<String>,
    ) -> Result<Captures> {
        let latest = self.inner.latest.lock().clone();
        if latest.are_all(self.resources()) {
            return Ok(latest);
        }
        self.check_apart()?;
        let tag = tag();
        let durable = self.session().durability() != Durability::Process;
        let options = CaptureOptions { tag: tag.as_deref(), durable, until };
        let captures = Captures::of(self.resources(), &options, &latest);
        if !durable {
            // Behind the captures, so that no sync takes this in before they are there, and before any record of theirs.
            let captured = self.resources().captured().values();
            self.session().sync_first(captured.map(|resource| Arc::clone(resource) as Arc<dyn SyncCaptures>));
        }
        let captures = captures?;
        *self.inner.latest.lock() = captures.clone();
        Ok(captures)
    }

    /// Has the resources remove what they can make again.
    pub(crate) fn free_caches(&self) {
        for resource in self.resources().captured().values() {
            // A host's resource may panic; the recovery goes on all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| resource.free_caches()));
        }
    }

    /// Keeps what the resources were before a call of this run that is left open, for this run's recovery.
    pub(crate) fn leave_unended(&self, begin: SequenceNumber, before: Captures) {
        self.inner.unended.lock().insert(begin, before);
    }

    /// What the resources were before a call of this run that was left open.
    pub(crate) fn unended(&self, begin: SequenceNumber) -> Option<Captures> {
        self.inner.unended.lock().get(&begin).cloned()
    }

    /// Nothing is left open any more.
    pub(crate) fn all_ended(&self) {
        self.inner.unended.lock().clear();
    }

    /// Brings resources back to what they were; what that changed is durable where the session promises so much.
    pub(crate) fn put_back(&self, captures: &Captures, all: bool) -> Result<Vec<NotUndone>> {
        let durable =
            self.session().durability() != Durability::Process && !sabotage::is(Breakage::RestoreUnsynced);
        captures.restore(self.resources(), all, durable)
    }

    /// Checks, the first time, that no resource would take the session's own log back with it.
    fn check_apart(&self) -> Result<()> {
        if self.inner.apart.get().is_some() || sabotage::is(Breakage::LogInWorkspace) {
            return Ok(());
        }
        let folder = self.session().dir();
        let mut captured = self.resources().captured().iter();
        if let Some((name, _)) = captured.find(|(_, resource)| resource.holds(folder)) {
            let reason = format!("the session's own folder is in it, {}", folder.display());
            return Err(Error::Resource { resource: name.clone().into_owned(), reason });
        }
        let _ = self.inner.apart.set(());
        Ok(())
    }

    pub(crate) fn composite(
        &self,
        session: Snapshot,
        resources: Captures,
        metadata: SnapshotMetadata,
    ) -> CompositeSnapshot {
        CompositeSnapshot::new(session, self.clock().now_us(), resources, metadata)
    }

    /// Waits until nobody else works on the resources; nothing where others work on none of them. Calls of one run that
    /// run together share what they hold: one of them takes it, and where it cannot, another tries.
    pub(crate) fn lease(&self, until: Option<Instant>) -> Result<Option<Arc<Leases>>> {
        let inner = &*self.inner;
        if !inner.resources.is_shared() {
            return Ok(None);
        }
        let mut shared = inner.shared.lock();
        loop {
            if let Some(leases) = shared.leases.upgrade() {
                return Ok(Some(leases));
            }
            if !shared.is_being_taken {
                break;
            }
            match until {
                Some(until) if clock::is_past(until) => {
                    return Err(Error::DeadlineExceeded { operation: None });
                }
                Some(until) => drop(inner.taken.wait_until(&mut shared, until)),
                None => inner.taken.wait(&mut shared),
            }
        }
        shared.is_being_taken = true;
        drop(shared);
        // Dropped after the leases are known to all, and where the resource fails or panics.
        let _taking = Taking { inner };
        let mut leases = Leases { session: self.session.uncounted(), of_each: Vec::new() };
        let holder =
            LeaseHolder::new(&self.session, inner.folder.get_or_init(|| found_by_all(self.session.dir())));
        inner.resources.lease(&holder, until, &mut leases.of_each)?;
        let leases = Arc::new(leases);
        inner.shared.lock().leases = Arc::downgrade(&leases);
        Ok(Some(leases))
    }
}

/// A folder's whole path, without links. One that is in no real file system has none but that which it is given.
fn found_by_all(folder: &Path) -> PathBuf {
    let whole = fs::canonicalize(folder).or_else(|_| std::path::absolute(folder));
    whole.unwrap_or_else(|_| folder.to_owned())
}
