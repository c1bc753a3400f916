//! The report of a call, with the contents of its end record.

use foldlog_codec::body::{Cause, ExternalEffects, Outcome, Suspension};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, SequenceNumber};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::error::{Error, Result};
use crate::operation::{NotUndone, ReplacedContent};
use crate::session::Session;
use crate::types::ToolInvoked;

/// Contains the outcome and the answer of a call, as its end record states them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolReport {
    /// Operation id: the sequence number of its first `tool_begin`. It is stable across re-runs.
    pub operation: OperationId,
    /// Sequence number of the `tool_begin` of this run.
    pub begin: SequenceNumber,
    /// Sequence number of the `tool_end` of this run.
    pub end: SequenceNumber,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the model's provider assigned to the call.
    pub call_id: Option<SmolStr>,
    /// Outcome of the call.
    pub outcome: Outcome,
    /// Cause of a failure. `None` if the call committed.
    pub cause: Option<Cause>,
    /// Whether the call committed. If not, its changes were rolled back, except those in
    /// `not_undone`.
    pub success: bool,
    /// Text that the model sees: the tool's message, or the reason of the failure.
    pub message: String,
    /// The tool's answer; `None` if it has no value.
    pub value: Option<Value>,
    /// Effects outside of STATE and resources, as far as they are known. No rollback undoes them.
    pub outside: ExternalEffects,
    /// Changes of resources that the rollback of a failed call could not undo, such as the owner of
    /// a file that this process may not change. The end record contains them, and `foldlog ledger`
    /// shows them.
    pub not_undone: Vec<NotUndone>,
    /// Contents of resources that the rollback of a failed call replaced or removed, including
    /// changes by others during the call. The end record names a capture of them, which
    /// [`undo_rewind`](crate::ExecutionState::undo_rewind) restores.
    #[serde(default)]
    pub replaced: Vec<ReplacedContent>,
    /// Time from start to end, in microseconds.
    pub elapsed_us: u64,
    /// Whether the report repeats the recorded outcome of an earlier run of the same
    /// [origin](crate::tools::ToolCall::origin), or a settlement of that run. The tool did not run.
    pub recorded: bool,
}

impl ToolReport {
    /// Reports on a call that has ended before, without the contents that its rollback replaced.
    pub(in crate::tools) fn of_ended(
        invoked: &ToolInvoked,
        end: SequenceNumber,
        success: bool,
        message: String,
        value: Option<Value>,
    ) -> ToolReport {
        ToolReport {
            operation: invoked.operation,
            begin: invoked.begin,
            end,
            tool: invoked.tool.clone(),
            call_id: invoked.call_id.clone(),
            outcome: invoked.outcome,
            cause: invoked.cause,
            success,
            message,
            value,
            outside: invoked.outside,
            not_undone: Vec::new(),
            replaced: Vec::new(),
            elapsed_us: invoked.elapsed_us,
            recorded: true,
        }
    }

    /// Returns the report as the result of the call. A suspension, and a request for more sections
    /// of the prompt, become errors, because the call has no result then.
    pub(in crate::tools) fn into_result(
        self,
        session: &Session,
        suspension: Option<Suspension>,
        overrides: Option<serde_json::Value>,
    ) -> Result<ToolReport> {
        if let Some(Suspension { form, inner, .. }) =
            suspension.filter(|_| self.outcome == Outcome::Suspended)
        {
            // If the call waits for a call within it, the error names the inner one, which has to
            // be settled.
            let session = inner.and_then(|inner| inner.session).unwrap_or(session.id());
            let operation = inner.map_or(self.operation, |inner| inner.operation);
            return Err(Error::Suspended { session, operation, form, question: self.message });
        }
        match self.cause {
            Some(Cause::Expansion) => Err(Error::VisibilityExpansion {
                operation: self.operation,
                overrides: overrides.unwrap_or_default(),
                reason: self.message,
            }),
            _ => Ok(self),
        }
    }
}
