use foldlog_codec::{OperationId, SequenceNumber};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use foldlog_codec::body::{CallOrigin, Cause, Idempotency, Outcome};
use foldlog_codec::msgpack::Value;
use smol_str::SmolStr;

use super::context::ToolContext;
use super::operation::{Ending, Operation, Spec, ToolReport};
use super::recovery::Recovery;
use super::tool::{Answered, AnyTool, ToolError, ToolRegistry};
use crate::error::{Error, Result};
use crate::execution::ExecutionState;
use crate::fold::operations::UnsettledOperation;
use crate::sabotage::{self, Breakage};
use crate::session::panic_message;
use crate::session::schedule::inside_call;
use crate::session::{Session, Settlement};
use crate::types::{Item, ToolInvocations, ToolInvoked};

/// What a tool is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub tool: SmolStr,
    /// The provider's name for the call. It is recorded, and is no key: it may have been used before.
    pub call_id: Option<SmolStr>,
    /// The arguments as they came: JSON.
    pub arguments: String,
    /// The answer that asks for it, by its record's sequence number, and which of its calls this is. A call that an
    /// earlier process committed for that answer is not run again: what it recorded is returned.
    pub origin: Option<CallOrigin>,
}

impl ToolCall {
    /// A call by the host.
    pub fn new(tool: impl Into<SmolStr>, arguments: impl Into<String>) -> ToolCall {
        ToolCall { tool: tool.into(), call_id: None, arguments: arguments.into(), origin: None }
    }

    /// The same under a provider's name.
    #[must_use]
    pub fn with_id(self, call_id: impl Into<SmolStr>) -> ToolCall {
        ToolCall { call_id: Some(call_id.into()), ..self }
    }

    /// Links the call to the model answer that asked for it: the record at `answer`, whose tool call number `ordinal` this
    /// is, counted from 0. If that call already committed, the recorded result is returned and the tool does not run.
    #[must_use]
    pub fn with_origin(self, answer: impl Into<SequenceNumber>, ordinal: u32) -> ToolCall {
        let answer = answer.into();
        ToolCall { origin: Some(CallOrigin { answer, ordinal }), ..self }
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

    /// Calls a tool. A call that fails, by an error, a panic, its result or its arguments, leaves no trace in STATE and
    /// in the resources, and is a report all the same.
    ///
    /// Durable as [`Operation::end`] is. No lock of the engine's is held while the tool runs. Another thread has it stop
    /// by [`Session::cancel`]: the call is taken back, and its report says [`Cause::Cancelled`].
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTool`]; [`Error::VisibilityExpansion`] where the tool asks for more of the prompt to be shown, and
    /// [`Error::DeadlineExceeded`] where its time was over: in both cases what it did was taken back.
    /// [`Error::RestoreFailed`] where a resource could not be restored, which it names beside those that were. The call then
    /// has no end: STATE is shown as it was before, the session is [interrupted](Session::is_interrupted) and takes no
    /// writes until [`recover`](ToolRunner::recover), here or in another process, has restored the rest.
    /// [`Error::Interrupted`] where the session is to be recovered first, [`Error::ResourceDirty`] where another one is, which
    /// has left a resource half done; [`Error::ResourceMaybeDirty`] where that one cannot be read. [`Error::Stuck`] where
    /// another call does not end. Where a resource cannot be captured the tool does not run, and nothing is recorded. Else
    /// as [`Session::dispatch`].
    pub fn execute(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<ToolReport> {
        match self.known(call)? {
            None => {}
            Some(Known::Recorded(report)) => return Ok(*report),
            Some(Known::Unsettled(unsettled)) => {
                let _recovering = self.session.recovering()?;
                return match self.run_again(unsettled, options).recovery {
                    Recovery::RanAgain(report) | Recovery::NotUndone(report) => Ok(report),
                    Recovery::NeedsSettling(error) | Recovery::Failed(error) => Err(error),
                };
            }
        }
        let tool = self.tools.get(&call.tool)?;
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
        match self.known(call)? {
            None => {}
            Some(Known::Recorded(report)) => {
                let reason = "it was run for that answer before: `recorded` tells what it came to";
                return Err(Error::NoSuchOperation { operation: report.operation, reason });
            }
            Some(Known::Unsettled(unsettled)) => {
                return Err(unsettled_error(unsettled.operation, &unsettled.tool));
            }
        }
        let spec = match self.tools.get(&call.tool) {
            Ok(tool) => self.spec(call, tool.as_ref()),
            Err(_) => {
                let (idempotency, reads_only) = (Idempotency::Manual, false);
                Spec { call, idempotency, reads_only, again: None, undoes: None, goes_back: None }
            }
        };
        self.begin_as(&spec, options)
    }

    fn begin_as(&self, spec: &Spec<'_>, options: &ExecuteOptions) -> Result<Operation> {
        if self.is_anothers {
            let reason = "the call runs within one of another run, whose resources are not this one's";
            return Err(Error::SnapshotMismatch(reason.to_owned()));
        }
        Operation::begin(&self.state, &self.session, spec, options)
    }

    fn spec<'a>(&self, call: &'a ToolCall, tool: &dyn AnyTool) -> Spec<'a> {
        let (idempotency, reads_only) = (tool.idempotency(), tool.reads_only());
        Spec { call, idempotency, reads_only, again: None, undoes: None, goes_back: None }
    }

    /// Runs a handler as a call.
    pub(super) fn run(
        &self,
        spec: &Spec<'_>,
        options: &ExecuteOptions,
        handler: impl FnOnce(&ToolContext) -> std::result::Result<Answered, ToolError>,
    ) -> Result<ToolReport> {
        let operation = self.begin_as(spec, options)?;
        let context = operation.context();
        if context.core.begun.within.is_late() {
            return operation
                .finish(Ending::failed(Cause::Deadline, "its time was over before it began").harmless());
        }
        let run = || inside_call(&context.session, || handler(context));
        let ending = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(answer) => Ending::of(answer, &context.core.begun.within),
            Err(panic) => Ending::failed(Cause::Panic, format!("panicked: {}", panic_message(&*panic))),
        };
        operation.finish(ending)
    }

    /// What is recorded of a call that was run for the same answer before: what it committed, or what somebody decided
    /// about it. The tool is not called.
    ///
    /// # Errors
    ///
    /// What reading the log says.
    pub fn recorded(&self, call: &ToolCall) -> Result<Option<ToolReport>> {
        Ok(self.known(call)?.and_then(|known| match known {
            Known::Recorded(report) => Some(*report),
            Known::Unsettled(_) => None,
        }))
    }

    /// What is known of a call that was begun for the same answer before.
    fn known(&self, call: &ToolCall) -> Result<Option<Known>> {
        let Some(CallOrigin { answer, .. }) =
            call.origin.filter(|_| !sabotage::is(Breakage::CommittedRunAgain))
        else {
            return Ok(None);
        };
        let own = |item: &Item<ToolInvoked>| item.origin == call.origin && item.undoes.is_none();
        // None that is asked for by an answer ends before it.
        let mut latest = None;
        for item in self.session.log::<ToolInvocations>()?.behind(answer) {
            latest = Some(item?).filter(own).or(latest);
        }
        let Some(item) = latest else { return Ok(None) };
        let path = self.session.live_path();
        let position = self.session.position().unwrap_or_default();
        let invoked: &ToolInvoked = &item;
        let (end, _) = item.position().unwrap_or_default();
        match invoked.outcome {
            Outcome::Committed if path.is_live(end, position) => {
                let (value, message) = self.session.read_end(end)?;
                Ok(Some(Known::recorded(invoked, end, (true, message, value))))
            }
            Outcome::Interrupted => self.of_interrupted(invoked, end),
            // What failed, or was taken back since, is run as if it were new.
            Outcome::Committed | Outcome::Failed => Ok(None),
        }
    }

    fn of_interrupted(&self, invoked: &ToolInvoked, end: SequenceNumber) -> Result<Option<Known>> {
        let unsettled = self.session.unsettled_operations();
        if let Some(unsettled) = unsettled.into_iter().find(|one| one.operation == invoked.operation) {
            return Ok(Some(Known::Unsettled(unsettled)));
        }
        Ok(self.session.read_settlement(invoked.operation, end)?.and_then(|settlement| match settlement {
            Settlement::Committed(value) => {
                Some(Known::recorded(invoked, end, (true, "settled as committed".to_owned(), value)))
            }
            Settlement::Failed => {
                Some(Known::recorded(invoked, end, (false, "settled as failed".to_owned(), None)))
            }
            Settlement::RunAgain => None,
        }))
    }
}

/// What is known of a call of an answer.
enum Known {
    Recorded(Box<ToolReport>),
    Unsettled(UnsettledOperation),
}

impl Known {
    fn recorded(
        invoked: &ToolInvoked,
        end: SequenceNumber,
        (success, message, value): (bool, String, Option<Value>),
    ) -> Known {
        Known::Recorded(Box::new(ToolReport {
            operation: invoked.operation,
            begin: invoked.begin,
            end,
            tool: invoked.tool.clone(),
            call_id: invoked.call_id.clone(),
            outcome: invoked.outcome,
            cause: None,
            success,
            message,
            value,
            outside: invoked.outside,
            not_undone: Vec::new(),
            elapsed_us: invoked.elapsed_us,
            recorded: true,
        }))
    }
}

/// What is said of an interrupted call that nobody but a person can judge.
pub(super) fn unsettled_error(operation: OperationId, tool: &str) -> Error {
    Error::ToolIdempotency { operation, tool: tool.to_owned() }
}
