use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{Cause, Idempotency, Outcome};

use super::context::ToolContext;
use super::operation::{Ending, Operation, Spec, ToolReport};
use super::tool::{Answered, AnyTool, ToolError, ToolRegistry};
use crate::error::{Error, Result};
use crate::execution::ExecutionState;
use crate::session::Session;
use crate::session::operations::inside;
use crate::session::panic_message;
use crate::types::{ToolInvocations, ToolInvoked};

/// What a tool is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub tool: String,
    /// The provider's name for the call. It is recorded, and is no key: it may have been used before.
    pub call_id: Option<String>,
    /// The arguments as they came: JSON.
    pub arguments: String,
    /// The answer that asks for it, by its record's sequence number, and which of its calls this is. A call that an
    /// earlier process committed for that answer is not run again: what it recorded is returned.
    pub asked_by: Option<(u64, u32)>,
}

impl ToolCall {
    /// A call by the host.
    pub fn new(tool: impl Into<String>, arguments: impl Into<String>) -> ToolCall {
        ToolCall { tool: tool.into(), call_id: None, arguments: arguments.into(), asked_by: None }
    }

    /// The same under a provider's name.
    #[must_use]
    pub fn with_id(self, call_id: impl Into<String>) -> ToolCall {
        ToolCall { call_id: Some(call_id.into()), ..self }
    }

    /// The same, asked for by an answer.
    #[must_use]
    pub fn asked_by(self, answer: u64, ordinal: u32) -> ToolCall {
        ToolCall { asked_by: Some((answer, ordinal)), ..self }
    }
}

/// How a call is to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// How long it may take, waiting for its turn included. By a clock that nobody sets, and for this call alone.
    pub deadline: Option<Duration>,
}

/// Runs tools as transactions: the one path that every call takes, whoever asks for it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ToolRunner {
    pub(super) state: ExecutionState,
    pub(super) tools: ToolRegistry,
    /// The run's session, or the handle of the operation within which tools are to run.
    session: Session,
}

impl ToolRunner {
    /// A runner of these tools on a run.
    pub fn new(state: ExecutionState, tools: ToolRegistry) -> ToolRunner {
        let session = state.session().clone();
        ToolRunner { state, tools, session }
    }

    /// A runner of tools within a tool's call: a sub-agent's. They do not wait for that call, and what they commit is
    /// taken back with it where it fails.
    #[must_use]
    pub fn within(&self, context: &ToolContext) -> ToolRunner {
        ToolRunner { session: context.session().clone(), ..self.clone() }
    }

    /// The run.
    pub fn state(&self) -> &ExecutionState {
        &self.state
    }

    /// The tools.
    pub fn tools(&self) -> &ToolRegistry {
        &self.tools
    }

    /// Calls a tool. A call that fails, by an error, a panic, its result or its arguments, leaves no trace in STATE and
    /// in the resources, and is a report all the same.
    ///
    /// Durable as [`Operation::end`] is. No lock of the engine's is held while the tool runs.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTool`]; [`Error::VisibilityExpansion`] where the tool asks for more of the prompt to be shown, and
    /// [`Error::DeadlineExceeded`] where its time was over: in both cases what it did was taken back.
    /// [`Error::RestoreFailed`] where a resource could not be restored: the end is recorded, and STATE was taken back.
    /// [`Error::Interrupted`] where the session is to be recovered first, [`Error::Stuck`] where another call does not
    /// end. Where a resource cannot be captured the tool does not run, and nothing is recorded. Else as
    /// [`Session::dispatch`].
    pub fn execute(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<ToolReport> {
        if let Some(report) = self.recorded(call)? {
            return Ok(report);
        }
        let tool = Arc::clone(self.tools.get(&call.tool)?);
        let spec = self.spec(call, tool.as_ref());
        self.run(&spec, options, |context| tool.call(&call.arguments, context))
    }

    /// Begins a call of a tool that runs elsewhere. A tool of this runner's is begun as it is declared; of any other
    /// nothing is known, so it is [`Manual`](Idempotency::Manual) and may change something.
    ///
    /// # Errors
    ///
    /// As [`execute`](ToolRunner::execute).
    pub fn begin(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<Operation> {
        let spec = match self.tools.get(&call.tool) {
            Ok(tool) => self.spec(call, tool.as_ref()),
            Err(_) => {
                let (idempotency, reads_only) = (Idempotency::Manual, false);
                Spec { call, idempotency, reads_only, again: None, undoes: None }
            }
        };
        Operation::begin(&self.state, &self.session, &spec, options)
    }

    fn spec<'a>(&self, call: &'a ToolCall, tool: &dyn AnyTool) -> Spec<'a> {
        let (idempotency, reads_only) = (tool.idempotency(), tool.reads_only());
        Spec { call, idempotency, reads_only, again: None, undoes: None }
    }

    /// Runs a handler as a call.
    pub(super) fn run(
        &self,
        spec: &Spec<'_>,
        options: &ExecuteOptions,
        handler: impl FnOnce(&ToolContext) -> std::result::Result<Answered, ToolError>,
    ) -> Result<ToolReport> {
        let operation = Operation::begin(&self.state, &self.session, spec, options)?;
        let context = operation.context().clone();
        let run = || inside(self.session.id(), operation.id(), || handler(&context));
        let ending = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(answer) => Ending::of(answer),
            Err(panic) => Ending::failed(Cause::Panic, format!("panicked: {}", panic_message(&*panic))),
        };
        operation.finish(ending)
    }

    /// What an earlier process recorded of a call that it committed for the same answer.
    fn recorded(&self, call: &ToolCall) -> Result<Option<ToolReport>> {
        let Some((answer, _)) = call.asked_by.filter(|(answer, _)| *answer < self.session.recovery().records)
        else {
            return Ok(None);
        };
        let path = self.session.live_path();
        let position = self.session.position().unwrap_or_default();
        let invocations = self.session.log::<ToolInvocations>()?;
        for place in (0..invocations.len()).rev() {
            let Some(item) = invocations.get(place)? else { break };
            let invoked: &ToolInvoked = &item;
            if invoked.begin < answer {
                break;
            }
            let (end, _) = item.position().unwrap_or_default();
            let is_it = invoked.asked_by == call.asked_by && invoked.outcome == Outcome::Committed;
            if is_it && path.is_live(end, position) {
                let (value, message) = self.session.read_end(end)?;
                return Ok(Some(ToolReport {
                    operation: invoked.operation,
                    begin: invoked.begin,
                    end,
                    tool: invoked.tool.clone(),
                    call_id: invoked.call_id.clone(),
                    outcome: invoked.outcome,
                    cause: None,
                    success: true,
                    message,
                    value,
                    outside: invoked.outside,
                    elapsed_us: invoked.elapsed_us,
                    recorded: true,
                }));
            }
        }
        Ok(None)
    }
}

/// What the session's error says of a tool that nobody knows.
pub(super) fn unsettled(operation: u64, tool: &str) -> Error {
    Error::ToolIdempotency { operation, tool: tool.to_owned() }
}
