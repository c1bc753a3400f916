//! The one path that every call takes, whoever asks for it.

use super::call::{AnyTool, CallInfo, ExecuteOptions, Operation, ToolCall, ToolReport};
use super::known::Known;
use super::recovery::Recovery;
use super::runner::{ToolRunner, unsettled_error};
use crate::error::{Error, Result};

impl ToolRunner {
    /// Calls a tool. A call that fails, by an error, a panic, its result or its arguments, leaves no trace in STATE and
    /// in the resources, and is a report all the same.
    ///
    /// Durable as [`Operation::end`] is. No lock of the engine's is held while the tool runs. Another thread has it stop
    /// by [`Session::cancel`](crate::Session::cancel): the call is taken back, and its report says [`Cause::Cancelled`](crate::Cause::Cancelled).
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
    /// let report = runner.execute(&ToolCall::new("say", r#""hello""#), &ExecuteOptions::default())?;
    /// assert!(report.success);
    /// let report = runner.execute(&ToolCall::new("say", r#""""#), &ExecuteOptions::default())?;
    /// assert!(!report.success);
    /// assert_eq!(session.view::<Chat>()?.len(), 1); // what the failed call dispatched is rolled back
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTool`]; [`Error::VisibilityExpansion`] where the tool asks for more of the prompt to be shown, and
    /// [`Error::DeadlineExceeded`] where its time was over: in both cases what it did was taken back.
    /// [`Error::RestoreFailed`] where a resource could not be restored, which it names beside those that were. The call then
    /// has no end: STATE is shown as it was before, the session is [interrupted](crate::Session::is_interrupted) and takes no
    /// writes until [`recover`](ToolRunner::recover), here or in another process, has restored the rest.
    /// [`Error::Interrupted`] where the session is to be recovered first, [`Error::ResourceDirty`] where another one is, which
    /// has left a resource half done; [`Error::ResourceMaybeDirty`] where that one cannot be read. [`Error::Stuck`] where
    /// another call does not end. Where a resource cannot be captured the tool does not run, and nothing is recorded. Else
    /// as [`Session::dispatch`](crate::Session::dispatch).
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
        let info = info_of(call, tool.as_ref());
        self.run(info, &call.arguments, options, |context| tool.call(&call.arguments, context))
    }

    /// Begins a call of a tool that runs elsewhere. A tool of this runner's is begun as it is declared; of any other
    /// nothing is known, so it is [`Manual`](crate::Idempotency::Manual) and may change something.
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
        let info = match self.tools.get(&call.tool) {
            Ok(tool) => info_of(call, tool.as_ref()),
            Err(_) => CallInfo::new(call),
        };
        self.begin_as(info, &call.arguments, options)
    }
}

/// Describes a call of a tool as that is declared.
fn info_of(call: &ToolCall, tool: &dyn AnyTool) -> CallInfo {
    let (idempotency, reads_only) = (tool.idempotency(), tool.reads_only());
    CallInfo { idempotency, reads_only, ..CallInfo::new(call) }
}
