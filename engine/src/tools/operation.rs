use std::fmt;
use std::sync::Arc;

use foldlog_codec::body::{Cause, Idempotency, Outcome, OutsideEffects, Payload, ToolBegin, ToolEnd};
use foldlog_codec::msgpack::{Value, Writer};
use parking_lot::Mutex;
use serde::Serialize;

use super::command::Programs;
use super::context::ToolContext;
use super::runner::{ExecuteOptions, ToolCall};
use super::tool::{Answered, ToolError, ToolResult};
use crate::clock;
use crate::error::{Error, Result};
use crate::execution::{Captures, ExecutionState, Phase, SnapshotMetadata, ToolCheckpoint};
use crate::resources::Lease;
use crate::session::operations::Begun;
use crate::session::{Session, Snapshot};
use crate::types::encode;

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolReport {
    /// The operation's name.
    pub operation: u64,
    /// The sequence number of the begin.
    pub begin: u64,
    /// The sequence number of the end.
    pub end: u64,
    /// The tool.
    pub tool: String,
    /// The provider's name for the call.
    pub call_id: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, where it failed.
    pub cause: Option<Cause>,
    /// Whether it had success: committed, and nothing else.
    pub success: bool,
    /// What the model is to see.
    pub message: String,
    /// The tool's answer.
    pub value: Option<Value>,
    /// What is known of its effects outside of what is taken back.
    pub outside: OutsideEffects,
    /// How long it ran, in microseconds.
    pub elapsed_us: u64,
    /// Whether this is what an earlier run recorded, and the tool was not called.
    pub recorded: bool,
}

/// What is known of a call before it begins.
pub(super) struct Spec<'a> {
    pub(super) call: &'a ToolCall,
    pub(super) idempotency: Idempotency,
    pub(super) reads_only: bool,
    pub(super) again: Option<u64>,
    pub(super) undoes: Option<u64>,
}

/// How a call is to end.
pub(super) struct Ending {
    answered: Option<Answered>,
    cause: Option<Cause>,
    message: String,
    overrides: Option<serde_json::Value>,
    outside: Option<OutsideEffects>,
}

impl Ending {
    pub(super) fn failed(cause: Cause, message: impl Into<String>) -> Ending {
        Ending { answered: None, cause: Some(cause), message: message.into(), overrides: None, outside: None }
    }

    pub(super) fn of(answer: std::result::Result<Answered, ToolError>) -> Ending {
        match answer {
            Ok(answered) => Ending {
                cause: (!answered.success).then_some(Cause::Unsuccessful),
                message: answered.message.clone(),
                overrides: None,
                outside: answered.outside,
                answered: Some(answered),
            },
            Err(error) => {
                let ending = Ending::failed(error.cause(), error.to_string());
                match error {
                    ToolError::Failed { outside, .. } => Ending { outside, ..ending },
                    // Nothing had run yet.
                    ToolError::InvalidArguments(_) => {
                        Ending { outside: Some(OutsideEffects::None), ..ending }
                    }
                    ToolError::VisibilityExpansion { overrides, .. }
                    | ToolError::Engine(Error::VisibilityExpansion { overrides, .. }) => {
                        Ending { overrides: Some(overrides), ..ending }
                    }
                    _ => ending,
                }
            }
        }
    }
}

/// One call from its begin to its end, for tools that run elsewhere. Ended by [`end`](Operation::end),
/// [`fail`](Operation::fail) or [`abort`](Operation::abort); where it is dropped instead, the next call that waits for
/// it takes back what it did.
#[must_use]
pub struct Operation {
    core: Arc<Core>,
    context: ToolContext,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("begin", &self.core.begun.begin)
            .field("tool", &self.core.tool)
            .finish()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !*self.core.over.lock() {
            let core = Arc::clone(&self.core);
            let dropped =
                move || core.finish(Ending::failed(Cause::Dropped, "dropped without an end")).map(drop);
            self.core.begun.abandon(Arc::new(dropped));
        }
    }
}

impl Operation {
    /// The operation's name.
    pub fn id(&self) -> u64 {
        self.core.begun.within.operation()
    }

    /// What the tool is to be given.
    pub fn context(&self) -> &ToolContext {
        &self.context
    }

    /// Tells the tool to stop: its handle is no longer good, and the programs that it started are to end.
    pub fn cancel(&self) {
        self.core.begun.within.cancel();
    }

    /// Ends the call with what the tool answered. Without success all that it did is taken back.
    ///
    /// Durable when this returns at [`Level::Boundary`](crate::Level::Boundary) and
    /// [`Level::Every`](crate::Level::Every).
    ///
    /// # Errors
    ///
    /// As [`ToolRunner::execute`](super::ToolRunner::execute).
    pub fn end<T: Serialize>(self, result: ToolResult<T>) -> Result<ToolReport> {
        let ToolResult { success, message, value, outside } = result;
        let value = value.map(|value| encode(&self.core.tool, &value)).transpose()?;
        self.core.finish_and_raise(Ending::of(Ok(Answered { success, message, value, outside })))
    }

    /// Ends the call with why the tool gave no answer; all that it did is taken back.
    ///
    /// # Errors
    ///
    /// As [`end`](Operation::end).
    pub fn fail(self, error: ToolError) -> Result<ToolReport> {
        self.core.finish_and_raise(Ending::of(Err(error)))
    }

    /// Ends the call, whatever it did, as cancelled; all that it did is taken back.
    ///
    /// # Errors
    ///
    /// As [`end`](Operation::end).
    pub fn abort(self, reason: &str) -> Result<ToolReport> {
        self.core.finish_and_raise(Ending::failed(Cause::Cancelled, reason))
    }

    /// Ends the call with what its handler came to.
    pub(super) fn finish(self, ending: Ending) -> Result<ToolReport> {
        self.core.finish_and_raise(ending)
    }

    /// Gives the call its turn, captures the resources and records the begin.
    pub(super) fn begin(
        state: &ExecutionState,
        session: &Session,
        spec: &Spec<'_>,
        options: &ExecuteOptions,
    ) -> Result<Operation> {
        let Spec { call, idempotency, reads_only, again, undoes } = *spec;
        let until = options.deadline.map(clock::after);
        let admission = session.admit(reads_only, until)?;
        let parent = session.within().map(|within| within.operation());
        // What an operation holds, those within it work on too.
        let leases = if parent.is_none() { Some(state.lease(until)?) } else { None };
        let tag = call.call_id.as_ref().map(|call_id| format!("pre:{call_id}"));
        let before = if reads_only { Captures::default() } else { state.capture(tag.as_deref())? };
        let mut arguments = Writer::new();
        arguments.str(&call.arguments);
        let arguments = arguments.finish();
        let body = ToolBegin {
            tool: call.tool.clone(),
            call_id: call.call_id.clone(),
            arguments: Payload::new(&arguments),
            asked_by: call.asked_by,
            parent,
            idempotency,
            reads_only,
            again,
            undoes,
            resources: before.to_record(),
        };
        let started_us = session.now_us();
        let begun = admission.begin(body, state.checkpoints().is_some())?;
        let programs = Arc::new(Programs::of(&begun.within, &begun.session));
        let context = ToolContext {
            session: begun.session.clone(),
            within: Arc::clone(&begun.within),
            resources: state.resources().clone(),
            programs: Arc::clone(&programs),
            call_id: call.call_id.clone(),
            is_resume: again.is_some() || undoes.is_some(),
        };
        let core = Core {
            state: state.clone(),
            tool: call.tool.clone(),
            call_id: call.call_id.clone(),
            asked_by: call.asked_by,
            parent,
            idempotency,
            reads_only,
            undoes,
            before,
            started_us,
            leases: Mutex::new(leases),
            programs,
            over: Mutex::new(false),
            begun,
        };
        Ok(Operation { core: Arc::new(core), context })
    }
}

struct Core {
    state: ExecutionState,
    begun: Begun,
    tool: String,
    call_id: Option<String>,
    asked_by: Option<(u64, u32)>,
    parent: Option<u64>,
    idempotency: Idempotency,
    reads_only: bool,
    undoes: Option<u64>,
    before: Captures,
    started_us: i64,
    leases: Mutex<Option<Arc<Vec<Lease>>>>,
    programs: Arc<Programs>,
    over: Mutex<bool>,
}

impl Core {
    /// Ends the call; what its caller has to handle in another way is an error.
    fn finish_and_raise(&self, ending: Ending) -> Result<ToolReport> {
        let overrides = ending.overrides.clone();
        let report = self.finish(ending)?;
        let operation = report.operation;
        match (report.cause, overrides) {
            (Some(Cause::Expansion), overrides) => Err(Error::VisibilityExpansion {
                operation,
                overrides: overrides.unwrap_or_default(),
                reason: report.message,
            }),
            (Some(Cause::Deadline), _) => Err(Error::DeadlineExceeded { operation: Some(operation) }),
            _ => Ok(report),
        }
    }

    fn finish(&self, mut ending: Ending) -> Result<ToolReport> {
        let mut over = self.over.lock();
        let operation = self.begun.within.operation();
        if *over {
            return Err(Error::NoSuchOperation { operation, reason: "it is over" });
        }
        *over = true;
        if self.begun.within.is_late() && ending.cause.is_none() {
            ending =
                Ending { outside: ending.outside, ..Ending::failed(Cause::Deadline, "its time was over") };
        }
        self.begun.within.cancel();
        let joined = self.begun.join_inner();
        if !self.programs.end() && ending.cause.is_none() {
            ending = Ending::failed(Cause::Error, "a program that it started does not end");
        }
        joined?;
        let mut after = None;
        if ending.cause.is_none() && !self.reads_only {
            match self
                .state
                .capture(self.call_id.as_ref().map(|call_id| format!("post:{call_id}")).as_deref())
            {
                Ok(captures) => after = Some(captures),
                Err(error) => {
                    ending =
                        Ending::failed(Cause::Error, format!("what it left cannot be captured: {error}"));
                }
            }
        }
        let committed = ending.cause.is_none();
        let restored = if committed || self.reads_only {
            Ok(())
        } else {
            self.before.restore(self.state.resources(), false)
        };
        let result = self.record(&ending, after.as_ref());
        self.leases.lock().take();
        let report = result?;
        self.checkpoint(&report, after);
        restored.map(|()| report)
    }

    /// What is known of effects outside: a tool that may have some has, unless it says that it has none.
    fn outside(&self, ending: &Ending) -> OutsideEffects {
        let none = self.reads_only || self.idempotency == Idempotency::Natural;
        ending.outside.unwrap_or(if none { OutsideEffects::None } else { OutsideEffects::Unknown })
    }

    fn record(&self, ending: &Ending, after: Option<&Captures>) -> Result<ToolReport> {
        let (session, begin) = (self.state.session(), self.begun.begin);
        let outcome = if ending.cause.is_none() { Outcome::Committed } else { Outcome::Failed };
        let committed = outcome == Outcome::Committed;
        let elapsed_us = u64::try_from(session.now_us().saturating_sub(self.started_us)).unwrap_or_default();
        let outside = self.outside(ending);
        let operation = self.begun.within.operation();
        let mut shown = Writer::new();
        shown.str(&ending.message);
        let shown = shown.finish();
        let overrides =
            ending.overrides.as_ref().map(|overrides| encode("overrides", overrides)).transpose()?;
        let value = ending.answered.as_ref().and_then(|answered| answered.value.as_deref());
        let end = ToolEnd {
            begin,
            again: (operation != begin).then_some(operation),
            tool: self.tool.clone(),
            call_id: self.call_id.clone(),
            asked_by: self.asked_by,
            parent: self.parent,
            undoes: self.undoes,
            outcome,
            cause: ending.cause,
            rolls_back: !committed && !self.reads_only,
            outside,
            elapsed_us,
            result: value.map(Payload::new),
            shown: Some(Payload::new(&shown)),
            overrides: overrides.as_deref().map(Payload::new),
            resources: after.map(Captures::to_record).unwrap_or_default(),
            // Known to the session.
            slice: 0,
        };
        let sequence = self.begun.end(&end, self.state.checkpoints().is_some())?;
        let value = value.map(Value::decode).transpose();
        Ok(ToolReport {
            operation,
            begin,
            end: sequence,
            tool: self.tool.clone(),
            call_id: self.call_id.clone(),
            outcome,
            cause: ending.cause,
            success: committed,
            message: ending.message.clone(),
            value: value
                .map_err(|error| Error::Encode { name: self.tool.clone(), reason: error.to_string() })?,
            outside,
            elapsed_us,
            recorded: false,
        })
    }

    fn checkpoint(&self, report: &ToolReport, after: Option<Captures>) {
        let Some(checkpoints) = self.state.checkpoints() else { return };
        let session = self.state.session();
        let at = |position: u64, resources: Captures, phase: Phase| {
            let policies = [crate::Policy::State].into_iter().collect();
            let (time_us, tag) = (self.started_us, None);
            let snapshot = Snapshot { session: session.id(), position, time_us, tag, policies };
            let side = if phase == Phase::PreTool { "pre" } else { "post" };
            let metadata = SnapshotMetadata {
                tag: self.call_id.as_ref().map(|call_id| format!("{side}:{call_id}")),
                tool_call_id: self.call_id.clone(),
                tool_name: Some(self.tool.clone()),
                phase,
            };
            self.state.composite(snapshot, resources, metadata)
        };
        // No tool begins with the first record, which opens the session.
        let before = report.begin.saturating_sub(1);
        checkpoints.record(ToolCheckpoint {
            operation: report.operation,
            tool_call_id: self.call_id.clone(),
            tool_name: self.tool.clone(),
            pre: at(before, self.before.clone(), Phase::PreTool),
            post: report.success.then(|| at(report.end, after.unwrap_or_default(), Phase::PostTool)),
            result_summary: Some(report.message.clone()),
            success: report.success,
            elapsed_us: report.elapsed_us,
            recorded_at_us: self.state.clock().now_us(),
        });
    }
}
