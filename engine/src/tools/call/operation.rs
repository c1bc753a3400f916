//! A started call: its description, its state, and the [`Operation`] that ends it.
//!
//! An operation is *abandoned* if its [`Operation`] is dropped without an end: the next caller that
//! waits for it ends it as [`Cause::Dropped`].

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use foldlog_codec::body::{
    CallOrigin, Cause, ClosedCall, ExternalEffects, Idempotency, Outcome, Payload, ToolBegin, ToolEnd,
};
use foldlog_codec::{OperationId, SequenceNumber};
use parking_lot::Mutex;
use serde::Serialize;
use smol_str::SmolStr;

use super::answer::{ToolError, ToolResult};
use super::context::ToolContext;
use super::dynamic_tool::DynTool;
use super::finish::CallEnd;
use super::programs::Programs;
use super::report::ToolReport;
use super::request::{Approval, RestoreScope, ToolCall};
use crate::conversation::text_payload;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::operation::OpenOperation;
use crate::session::operations::ActiveCall;
use crate::session::{Asker, Session};
use crate::tools::captures::CaptureSet;
use crate::tools::children::Children;
use crate::tools::execution::{ExecutionState, Leases};
use crate::tools::resources::ResourceRegistry;

/// Describes a call, from before its start to its end.
#[derive(Clone, Debug)]
pub(in crate::tools) struct CallInfo {
    pub(in crate::tools) tool: SmolStr,
    pub(in crate::tools) call_id: Option<SmolStr>,
    /// Arguments, as one MessagePack string.
    pub(in crate::tools) arguments: Vec<u8>,
    pub(in crate::tools) origin: Option<CallOrigin>,
    /// Operation within which the call runs. `None` before the start, and for a call that is not
    /// nested.
    pub(in crate::tools) parent: Option<OperationId>,
    pub(in crate::tools) idempotency: Idempotency,
    /// Whether the call changes neither STATE nor resources.
    pub(in crate::tools) reads_only: bool,
    /// Whether such a call acts outside, and so may not run again like a reading one.
    pub(in crate::tools) outside_only: bool,
    /// Operation that this call repeats.
    pub(in crate::tools) again: Option<OperationId>,
    /// Approval of this call, if it asked for one.
    pub(in crate::tools) approval: Option<Approval>,
    /// Interrupted operation whose outside effects this call undoes.
    pub(in crate::tools) undoes: Option<OperationId>,
    /// Interrupted operation whose outside effects this call verifies.
    pub(in crate::tools) verifies: Option<OperationId>,
    /// Resources to restore, if the call is a restore; `None` for a tool's call.
    pub(in crate::tools) restores: Option<RestoreScope>,
    /// Cause with which the call is closed without running, and the text for the model, as one
    /// MessagePack string.
    pub(in crate::tools) closed: Option<(Cause, Vec<u8>)>,
    /// Location in the host's code of the request.
    pub(in crate::tools) at: &'static Location<'static>,
    /// Whether the thread that starts the call ends it too, unless it hands it over.
    pub(in crate::tools) is_held: bool,
    pub(in crate::tools) worker: Worker,
}

/// Who does the work of a call. A replay repeats that work only if it may be done twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tools) enum Worker {
    /// Its tool, which runs alone.
    Tool,
    /// The engine, or a tool that runs at the same time as others. A replay does not repeat it.
    Once,
    /// The host, whose tool runs elsewhere.
    Host,
    /// A program that reports the call to the host. A replay has the reports.
    Reported,
}

impl CallInfo {
    /// Describes a first run of a call of an unknown tool: it is [`Manual`](Idempotency::Manual)
    /// and may make changes.
    #[track_caller]
    pub(in crate::tools) fn new(call: &ToolCall) -> CallInfo {
        CallInfo {
            tool: call.tool.clone(),
            call_id: call.call_id.clone(),
            arguments: text_payload(&call.arguments),
            origin: call.origin,
            parent: None,
            idempotency: Idempotency::Manual,
            reads_only: false,
            outside_only: false,
            again: None,
            approval: None,
            undoes: None,
            verifies: None,
            restores: None,
            closed: None,
            at: Location::caller(),
            is_held: false,
            worker: Worker::Tool,
        }
    }

    /// Describes a call that a process left open. The caller reads `origin` from the start record,
    /// because `open` does not contain it.
    pub(in crate::tools) fn of_open(open: &OpenOperation, origin: Option<CallOrigin>) -> CallInfo {
        let (tool, call_id) = (open.tool.clone(), open.call_id.clone());
        CallInfo {
            parent: open.parent,
            idempotency: open.idempotency,
            reads_only: open.reads_only,
            outside_only: open.outside_only,
            again: (open.operation.sequence() != open.begin).then_some(open.operation),
            undoes: open.undoes,
            verifies: open.verifies,
            ..CallInfo::new(&ToolCall { tool, call_id, arguments: String::new(), origin })
        }
    }

    /// Describes a first run of a call of `tool`, with the tool's declarations.
    #[track_caller]
    pub(in crate::tools) fn of_tool(call: &ToolCall, tool: &DynTool) -> CallInfo {
        CallInfo { idempotency: tool.idempotency, ..CallInfo::new(call) }.declared_by(tool)
    }

    /// Returns the same description, nested in the call to which this handle belongs, if any.
    pub(in crate::tools) fn within(self, session: &Session) -> CallInfo {
        let parent = session.calls().call_scope().map(|within| within.operation());
        CallInfo { parent, ..self }
    }

    pub(in crate::tools) fn to_asker(&self) -> Asker {
        let asker = Asker::new(self.tool.clone(), self.at);
        if self.is_held { asker.held_here() } else { asker }
    }

    /// Returns whether the call follows an interrupted one: it runs that operation again, undoes
    /// it, or verifies it.
    pub(in crate::tools) fn is_resume(&self) -> bool {
        self.again.is_some() || self.undoes.is_some() || self.verifies.is_some()
    }

    /// Returns whether the call makes no changes at all.
    pub(in crate::tools) fn only_reads(&self) -> bool {
        self.reads_only && !self.outside_only
    }

    /// Returns the same description with the effects that `tool` declares.
    pub(in crate::tools) fn declared_by(self, tool: &DynTool) -> CallInfo {
        let DynTool { reads_only, outside_only, .. } = *tool;
        CallInfo { reads_only: reads_only || outside_only, outside_only, ..self }
    }

    /// Returns the default effects outside, for a tool that states none: none for a tool that only
    /// reads or is [`Natural`](Idempotency::Natural), otherwise unknown ones.
    pub(in crate::tools) fn outside(&self) -> ExternalEffects {
        let natural = self.idempotency == Idempotency::Natural && !self.outside_only;
        let none = self.only_reads() || natural;
        if none { ExternalEffects::None } else { ExternalEffects::Unknown }
    }

    /// Returns the body of the start record, without the captures of its resources. `arguments` is
    /// one MessagePack value.
    pub(in crate::tools) fn to_begin(&self) -> ToolBegin<'_> {
        ToolBegin {
            call_id: self.call_id.as_deref().map(Cow::Borrowed),
            origin: self.origin,
            parent: self.parent,
            idempotency: self.idempotency,
            reads_only: self.reads_only,
            outside_only: self.outside_only,
            again: self.again,
            undoes: self.undoes,
            verifies: self.verifies,
            closed: self
                .closed
                .as_ref()
                .map(|(cause, shown)| ClosedCall { cause: *cause, shown: Payload::new(shown) }),
            ..ToolBegin::new(self.tool.as_str(), Payload::new(&self.arguments))
        }
    }

    /// Returns the body of the end record with the facts of the start record, without an answer.
    /// The session sets the duration and the slice of invocations when it writes the record.
    pub(in crate::tools) fn to_end(
        &self,
        begin: SequenceNumber,
        outcome: Outcome,
        cause: Option<Cause>,
    ) -> ToolEnd<'_> {
        ToolEnd {
            again: self.again,
            call_id: self.call_id.as_deref().map(Cow::Borrowed),
            origin: self.origin,
            parent: self.parent,
            undoes: self.undoes,
            verifies: self.verifies,
            cause,
            rolls_back: outcome != Outcome::Committed && !self.reads_only,
            outside: self.outside(),
            ..ToolEnd::new(begin, self.tool.as_str(), outcome)
        }
    }
}

/// Source of a call's effects and of its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::tools) enum CallSource {
    /// Its tool, in a live session.
    Live,
    /// Its tool, which runs again in a replay, on copies of the resources.
    RunAgain,
    /// The host of a replay, except its end, which comes from the log.
    Reported,
    /// The log of a replay.
    Log,
}

/// State of a call from its start on. It outlives the call as long as the tool keeps its context.
pub(in crate::tools) struct RunningCall {
    pub(in crate::tools) state: ExecutionState,
    pub(in crate::tools) begun: ActiveCall,
    pub(in crate::tools) info: CallInfo,
    pub(in crate::tools) programs: Programs,
    /// State for the call's end; `None` once the call is over.
    pub(in crate::tools) held: Mutex<Option<CallEndState>>,
    pub(in crate::tools) source: CallSource,
    /// Child sessions that the call has opened; uninitialized until the first.
    pub(in crate::tools) children: OnceLock<Arc<Mutex<Children>>>,
    /// Resources that are not captured; uninitialized until a call that acts only outside requests
    /// them.
    pub(in crate::tools) uncaptured: OnceLock<ResourceRegistry>,
}

/// State that a call needs for its end: the captures to restore and the leases to release.
#[derive(Default)]
pub(in crate::tools) struct CallEndState {
    /// Captures of the resources, from before the start record.
    pub(in crate::tools) before: CaptureSet,
    /// Leases of the resources; `None` for a nested call, whose enclosing call holds them.
    pub(in crate::tools) leases: Option<Arc<Leases>>,
}

impl fmt::Debug for RunningCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCall")
            .field("begin", &self.begun.begin)
            .field("tool", &self.info.tool)
            .finish_non_exhaustive()
    }
}

impl RunningCall {
    pub(in crate::tools) fn uncaptured_resources(&self) -> &ResourceRegistry {
        self.uncaptured.get_or_init(|| self.state.resources().without_captured())
    }

    pub(in crate::tools) fn children(&self) -> &Arc<Mutex<Children>> {
        self.children.get_or_init(Arc::default)
    }
}

/// Contains a started call, for a tool that runs elsewhere. [`end`](Operation::end),
/// [`fail`](Operation::fail) or [`abort`](Operation::abort) ends the call.
///
/// If the `Operation` is dropped instead, the call stays open until a later call or write has to
/// wait for it, the enclosing call ends, or the session closes. A call that was started for an
/// async host ends as soon as a thread is free. The engine then ends the call with
/// [`Cause::Dropped`] and rolls its changes back.
#[must_use]
#[derive(Debug)]
pub struct Operation {
    context: ToolContext,
    /// Whether the end is known to be recorded.
    ended: bool,
    /// Whether dropping this ends the call soon, even if no other call waits for it.
    #[cfg(feature = "async")]
    ends_soon: bool,
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let begun = &self.running_call().begun;
        match self.running_call().source {
            CallSource::Live => {}
            CallSource::Log => return,
            source => {
                if source == CallSource::RunAgain {
                    self.running_call().state.end_on_copies();
                }
                return self.context.session.calls().let_go_replayed(begun.begin, false);
            }
        }
        let Some(leases) = self.running_call().held.lock().as_ref().map(|held| held.leases.clone()) else {
            return;
        };
        let running = Arc::clone(self.running_call());
        let dropped =
            move || running.finish(CallEnd::with_cause(Cause::Dropped, "dropped without an end")).map(drop);
        self.running_call().begun.abandon(Arc::new(dropped));
        if let Some(guest) = leases.as_deref().and_then(Leases::guest) {
            guest.abandon(self.running_call().state.session());
        }
        #[cfg(feature = "async")]
        if self.ends_soon {
            self.running_call().begun.end_soon();
        }
    }
}

impl Operation {
    fn running_call(&self) -> &Arc<RunningCall> {
        &self.context.running
    }

    /// Returns the operation id: the sequence number of its first `tool_begin`. It is stable across
    /// re-runs.
    pub fn id(&self) -> OperationId {
        self.running_call().begun.within.operation()
    }

    /// Returns the context of the call, for the tool.
    pub fn context(&self) -> &ToolContext {
        &self.context
    }

    /// Cancels the call and its nested calls: writes through their handles fail with
    /// [`Error::Revoked`], and a program that a tool waits for is terminated with the call's other
    /// programs. The call still has to be ended; its changes are rolled back even if it reports
    /// success. If it has not ended after the store's [grace](crate::StoreOptions::grace), it
    /// counts as [stuck](crate::SessionCalls::stuck_operations).
    pub fn cancel(&self) {
        self.running_call().begun.cancel();
    }

    /// Declares that another thread ends the call. Before this, the thread that started the call
    /// gets [`Error::InsideOperation`] where it would have to wait for the call; afterwards it
    /// blocks like other threads.
    pub fn hand_over(&self) {
        self.running_call().begun.hand_over();
    }

    /// Ends the call with the tool's result. The call's changes are rolled back if the result
    /// reports failure or cannot be recorded, if a program of the call cannot be terminated, or if
    /// the call or an enclosing one was [cancelled](Operation::cancel) before.
    ///
    /// The end is durable when this returns, with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every).
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
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    /// let operation = runner.begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default())?;
    /// operation.context().session().dispatch(Said("hello".to_owned()))?;
    /// let report = operation.end(ToolResult::ok("done", 7))?;
    /// assert!(report.success);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Suspended`] if the result is deferred; the call has an end then.
    ///
    /// [`Error::Stuck`] if a nested call does not end within the store's
    /// [grace](crate::StoreOptions::grace): once the nested call has ended, the engine ends this
    /// call as if it were dropped. [`Error::NoSuchOperation`] if the call is over.
    ///
    /// [`Error::RestoreFailed`] if a resource cannot be restored; [`Error::Interrupted`] if a
    /// nested call was left open; [`Error::Full`], [`Error::Io`], [`Error::DurabilityUnknown`],
    /// [`Error::Poisoned`] or [`Error::Closed`] if the end cannot be recorded. With these the call
    /// is left open: the session rejects writes until
    /// [`ToolRunner::recover`](crate::tools::ToolRunner::recover), here or in another process, has
    /// ended it. A session that fails with [`Error::Poisoned`] has to be opened again first.
    pub fn end<T: Serialize>(self, result: ToolResult<T>) -> Result<ToolReport> {
        // A result that cannot be recorded fails the call, like that of a tool that runs here.
        let answer = result.encode(&self.running_call().info.tool);
        let answer = answer.map_err(|error| ToolError::failed(error.to_string()));
        let ending = CallEnd::from_answer(answer, &self.running_call().begun.within);
        self.finish(ending)
    }

    /// Ends the call with the tool's error. The call's changes are rolled back.
    ///
    /// # Errors
    ///
    /// [`Error::VisibilityExpansion`] if `error` requests more sections of the prompt,
    /// [`Error::Suspended`] if it asks for an approval; the call has an end then. Otherwise, the
    /// errors of [`end`](Operation::end).
    pub fn fail(self, error: ToolError) -> Result<ToolReport> {
        let ending = CallEnd::from_answer(Err(error), &self.running_call().begun.within);
        self.finish(ending)
    }

    /// Ends the call with [`Cause::Cancelled`], and `reason` as the text for the model. The call's
    /// changes are rolled back.
    pub fn abort(self, reason: &str) -> Result<ToolReport> {
        self.finish(CallEnd::with_cause(Cause::Cancelled, reason))
    }

    /// Returns the sequence number of the start record.
    pub(in crate::tools) fn begin(&self) -> SequenceNumber {
        self.running_call().begun.begin
    }

    /// Returns whether all effects of the call come from the log, so that no tool runs.
    pub(in crate::tools) fn is_from_log(&self) -> bool {
        self.running_call().source == CallSource::Log
    }

    /// Returns the captures of the resources from before the call; empty once the call is over.
    pub(in crate::tools) fn before(&self) -> CaptureSet {
        self.running_call().held.lock().as_ref().map(|held| held.before.clone()).unwrap_or_default()
    }

    /// Confirms, directly before the tool starts, that this worker's claim of the session is still
    /// valid.
    ///
    /// # Errors
    ///
    /// See [`SessionCalls::confirm_claim`](crate::SessionCalls::confirm_claim). The call is left open
    /// then, and its tool must not start.
    pub(in crate::tools) fn confirm_claim(self) -> Result<Operation> {
        let confirmed = match self.running_call().info.only_reads() {
            true => Ok(()),
            false => self.context.session.calls().confirm_claim(),
        };
        self.if_confirmed(confirmed)
    }

    /// Async variant of [`confirm_claim`](Operation::confirm_claim).
    #[cfg(feature = "async")]
    pub(in crate::tools) async fn confirmed_async(self) -> Result<Operation> {
        let confirmed = match self.running_call().info.only_reads() {
            true => Ok(()),
            false => self.context.session.calls().confirm_claim_async().await,
        };
        self.if_confirmed(confirmed)
    }

    fn if_confirmed(mut self, confirmed: Result<()>) -> Result<Operation> {
        if let Err(error) = confirmed {
            self.running_call().leave_open();
            self.ended = true;
            return Err(error);
        }
        Ok(self)
    }

    /// Lets the engine end the call as soon as this is dropped without an end.
    #[cfg(feature = "async")]
    pub(in crate::tools) fn ending_soon(mut self) -> Operation {
        self.ends_soon = true;
        self
    }

    /// Ends the call with `ending`.
    pub(in crate::tools) fn finish(mut self, ending: CallEnd) -> Result<ToolReport> {
        let report = self.running_call().finish(ending);
        self.ended = report.is_ok();
        report
    }

    /// Creates the operation of a call whose start record is `begun`.
    pub(in crate::tools) fn new(
        state: &ExecutionState,
        session: &Session,
        begun: ActiveCall,
        info: CallInfo,
        held: CallEndState,
        source: CallSource,
    ) -> Operation {
        let session = session.through(Arc::clone(&begun.within));
        let running = Arc::new(RunningCall {
            // An abandoned operation must not keep its session open: the next waiter or the closing
            // of the session ends it.
            state: state.clone_uncounted(),
            begun,
            info,
            programs: Programs::default(),
            held: Mutex::new(Some(held)),
            source,
            children: OnceLock::new(),
            uncaptured: OnceLock::new(),
        });
        Operation {
            context: ToolContext { session, running },
            ended: false,
            #[cfg(feature = "async")]
            ends_soon: false,
        }
    }
}
