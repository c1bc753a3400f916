//! The context that a tool gets with each call: the call's session handle, the resources, and facts
//! of the call.
//!
//! A *child session* is one that a tool creates on the call's behalf. Its id and seed are derived
//! from the session, the operation id and a number, so that a re-run of the call finds the same
//! child session. [`tools`](crate::tools) describes how a child works on the call's resources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foldlog_codec::OperationId;
use foldlog_codec::body::Parent;
use uuid::Uuid;

use super::command::ToolCommand;
use super::operation::RunningCall;
use super::request::Approval;
use crate::error::{Error, Result};
use crate::operation::{CHILD_SESSION, ChildAnnounced};
use crate::options::SessionOptions;
use crate::session::Session;
use crate::tools::execution::ExecutionState;
use crate::tools::resources::ResourceRegistry;
use crate::types::SessionTypes;

/// Identifies the session's writer and the operation of a request, for an external system.
///
/// With a [replicator](crate::replication), another worker can take a session over while this one
/// is paused. Requests that a handler had started may still arrive afterwards, and within a
/// [bounded window](crate::replication#superseded-workers) a superseded worker even starts a
/// handler. A service that stores the highest epoch of each session and rejects lower ones is safe
/// from superseded workers once the new worker has reached it.
///
/// A [`Keyed`](foldlog_codec::body::Idempotency::Keyed) tool sends both: the operation is its key,
/// and the epoch fences it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    /// Epoch of the worker's claim, higher than that of every earlier worker; `None` if the store
    /// has no replicator.
    pub epoch: Option<u64>,
    /// The operation. It is the same when an interrupted call runs again, also in another worker.
    pub operation: OperationId,
}

/// Gives a tool access to its call: the call's session handle, the resources, and facts of the
/// call.
///
/// Clones share the call and are cheap. Once the call ends, writes through its session fail with
/// [`Error::Revoked`].
#[derive(Clone, Debug)]
pub struct ToolContext {
    pub(in crate::tools) session: Session,
    pub(in crate::tools) running: Arc<RunningCall>,
}

impl ToolContext {
    /// Returns the call's session handle. Events that the tool dispatches through it are rolled
    /// back if the call fails. Once the call is over or cancelled, its writes fail with
    /// [`Error::Revoked`]; once the deadline has passed, with [`Error::DeadlineExceeded`].
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the resources of the run. If the call fails, they are restored to their state before
    /// it. A tool that [acts only outside](crate::tools::Tool::outside_only) gets only resources
    /// that are not captured.
    pub fn resources(&self) -> &ResourceRegistry {
        match self.running.info.outside_only {
            true => self.running.uncaptured_resources(),
            false => self.running.state.resources(),
        }
    }

    /// Returns the run of the call: the call's session handle, the
    /// [resources](ToolContext::resources), the clock, random numbers and checkpoints. A
    /// [runner](crate::tools::ToolRunner::new) for it nests its calls in this one. The time and the
    /// random numbers are recorded within the call: a replay that runs the tool again returns them,
    /// but a new run of an interrupted call draws new numbers.
    ///
    /// The call is one transaction, so the run can neither be captured nor restored here: that
    /// fails with [`Error::InsideOperation`].
    pub fn state(&self) -> ExecutionState {
        let resources = self.running.info.outside_only.then(|| self.running.uncaptured_resources());
        self.running.state.within_call(self.session.clone(), resources)
    }

    /// Returns the operation id, which is unchanged when an interrupted call runs again. Together
    /// with the session's id, it is the key by which a
    /// [`Keyed`](foldlog_codec::body::Idempotency::Keyed) tool finds its earlier work.
    pub fn operation(&self) -> OperationId {
        self.running.begun.within.operation()
    }

    /// Returns the token by which an external system can refuse this worker once another worker has
    /// taken the session over. A [`Keyed`](foldlog_codec::body::Idempotency::Keyed) tool sends it
    /// with each request. See [`FencingToken`].
    pub fn fencing_token(&self) -> FencingToken {
        FencingToken { epoch: self.session.log().epoch(), operation: self.operation() }
    }

    /// Returns the id of the call's child session number `ordinal`. It is derived from the
    /// session's id, the operation id and `ordinal`, so it is unchanged when an interrupted call
    /// runs again.
    pub fn child_session_id(&self, ordinal: u32) -> Uuid {
        self.child_identity(ordinal).0
    }

    /// Creates the call's child session number `ordinal` in the same store, or opens it as an
    /// earlier run of the call left it. Its id is
    /// [`child_session_id`](ToolContext::child_session_id), its seed is derived from the same
    /// facts, its durability is this session's, and its [parent](Session::parent) is this session
    /// with the operation.
    ///
    /// This session's log records the child's id before the child is created. If the call fails,
    /// the child session is not rolled back. To open a child that works on the call's resources,
    /// use [`child`](ToolContext::child).
    ///
    /// # Errors
    ///
    /// Those of [`Store::create_with`](crate::Store::create_with) and
    /// [`Store::open_session`](crate::Store::open_session), among them [`Error::Locked`] if a
    /// handle of the child session is still open, in this process or another. [`Error::WrongChild`]
    /// if the store contains a session of that id that this operation did not create.
    /// [`Error::Revoked`] if the call is over or cancelled, [`Error::DeadlineExceeded`] if its
    /// deadline has passed, and otherwise the errors of [`Session::dispatch`] that do not concern
    /// events.
    pub fn child_session(&self, ordinal: u32, types: &SessionTypes) -> Result<Session> {
        let (id, seed) = self.child_identity(ordinal);
        let operation = self.operation();
        self.session.calls().announce_child(&ChildAnnounced::new(operation, ordinal, id))?;
        let (store, durability) = (self.session.store(), self.session.log().durability());
        let options = SessionOptions {
            id: Some(id),
            seed: Some(seed),
            tags: BTreeMap::new(),
            parent: Some(self.session.id()),
            operation: Some(operation),
            durability: Some(durability),
        };
        let children = self.running.children();
        let may_exist = self.running.info.again.is_some() || children.lock().begun.contains(&ordinal);
        let wrong = Error::WrongChild { session: id, parent: self.session.id(), operation };
        let child = match store.create_with(types, options) {
            // The operation has not run before, so a different operation of the same id created it,
            // whose start record was lost.
            Err(Error::SessionExists { .. }) if !may_exist => return Err(wrong),
            Err(Error::SessionExists { .. }) => store.open_session_at(id, types, durability)?,
            created => created?,
        };
        if child.parent() != Some(Parent::Child { session: self.session.id(), operation: Some(operation) }) {
            return Err(wrong);
        }
        children.lock().begun.insert(ordinal);
        Ok(child)
    }

    fn child_identity(&self, ordinal: u32) -> (Uuid, u64) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(CHILD_SESSION.as_bytes()).update(self.session.id().as_bytes());
        hasher.update(&self.operation().get().to_le_bytes()).update(&ordinal.to_le_bytes());
        let (mut id, mut seed, mut output) = ([0; 16], [0; 8], hasher.finalize_xof());
        output.fill(&mut id);
        output.fill(&mut seed);
        (uuid::Builder::from_custom_bytes(id).into_uuid(), u64::from_le_bytes(seed))
    }

    /// Returns the id that the model's provider assigned to the call. Another call may have the
    /// same id.
    pub fn call_id(&self) -> Option<&str> {
        self.running.info.call_id.as_deref()
    }

    /// Returns whether the call follows an interrupted one: it runs that operation again, undoes
    /// it, or verifies it.
    pub fn is_resume(&self) -> bool {
        self.running.info.is_resume()
    }

    /// Returns the approval of the call, if it [asked](crate::tools::ToolError::Ask) for one
    /// before. A tool that asks returns the question if there is no approval, and otherwise does
    /// its work.
    pub fn approval(&self) -> Option<&Approval> {
        self.running.info.approval.as_ref()
    }

    /// Returns the call's deadline on the monotonic clock, or that of an enclosing call if that is
    /// earlier. `None` if there is no limit.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.begun.within.until()
    }

    /// Returns whether the tool should stop: the call or an enclosing one was cancelled, its
    /// deadline has passed, or the call is over. A long-running tool checks this regularly, and
    /// returns [`ToolError::Cancelled`](crate::tools::ToolError::Cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.running.begun.within.is_cancelled()
    }

    /// Returns futures, one of which completes when the call should stop: when it or an enclosing
    /// call is cancelled, or when it ends.
    #[cfg(feature = "async")]
    pub(in crate::tools) fn listen_for_stop(&self) -> Vec<crate::wakeups::Listener> {
        self.running.begun.within.listen()
    }

    /// Returns a command that runs `program` for the tool. When the call ends, the program is
    /// terminated.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> ToolCommand {
        ToolCommand::new(program.as_ref(), Arc::clone(&self.running))
    }
}
