//! Runs tools as transactions: the begin of a call, its handler, and its end.

use foldlog_codec::OperationId;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foldlog_codec::body::Cause;

use super::call::{
    Answered, CallInfo, Ending, ExecuteOptions, Operation, ToolContext, ToolError, ToolRegistry, ToolReport,
};
use super::execution::ExecutionState;
use crate::error::{Error, Result, panic_message};
use crate::session::Session;
use crate::session::schedule::inside_call;

/// Runs tools as transactions: the one path that every call takes, whoever asks for it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ToolRunner {
    pub(super) state: ExecutionState,
    pub(super) tools: ToolRegistry,
    /// The run's session, or the handle of the operation within which tools are to run.
    pub(super) session: Session,
    /// Whether that operation is another run's, whose resources are not these.
    is_anothers: bool,
}

impl ToolRunner {
    /// A runner of these tools on a run.
    pub fn new(state: ExecutionState, tools: ToolRegistry) -> ToolRunner {
        let session = state.session().clone();
        ToolRunner { state, tools, session, is_anothers: false }
    }

    /// A runner of tools within a tool's call: a sub-agent's. They do not wait for that call, and what they commit is
    /// taken back with it where it fails. A call of another run has none within it: its calls are refused.
    #[must_use]
    pub fn within(&self, context: &ToolContext) -> ToolRunner {
        let is_anothers = !context.resources().is_same(self.state.resources());
        ToolRunner { session: context.session().clone(), is_anothers, ..self.clone() }
    }

    /// The run.
    pub fn state(&self) -> &ExecutionState {
        &self.state
    }

    /// The tools.
    pub fn tools(&self) -> &ToolRegistry {
        &self.tools
    }

    /// Begins a call.
    pub(super) fn begin_as(
        &self,
        info: CallInfo,
        arguments: &str,
        options: &ExecuteOptions,
    ) -> Result<Operation> {
        if self.is_anothers {
            let reason = "the call runs within one of another run, whose resources are not this one's";
            return Err(Error::SnapshotMismatch(reason.to_owned()));
        }
        Operation::begin(&self.state, &self.session, info, arguments, options)
    }

    /// Runs a handler as a call.
    pub(super) fn run(
        &self,
        info: CallInfo,
        arguments: &str,
        options: &ExecuteOptions,
        handler: impl FnOnce(&ToolContext) -> std::result::Result<Answered, ToolError>,
    ) -> Result<ToolReport> {
        let operation = self.begin_as(info, arguments, options)?;
        let context = operation.context();
        if context.running.begun.within.is_late() {
            return operation
                .finish(Ending::failed(Cause::Deadline, "its time was over before it began").harmless());
        }
        let run = || inside_call(&context.session, || handler(context));
        let ending = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(answer) => Ending::of(answer, &context.running.begun.within),
            Err(panic) => Ending::failed(Cause::Panic, format!("panicked: {}", panic_message(&*panic))),
        };
        operation.finish(ending)
    }
}

/// What is said of an interrupted call that nobody but a person can judge.
pub(super) fn unsettled_error(operation: OperationId, tool: &str) -> Error {
    Error::ToolIdempotency { operation, tool: tool.to_owned() }
}
