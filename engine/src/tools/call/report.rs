//! The report of a call: what its end in the log says, for whoever asked for the call.

use foldlog_codec::body::{Cause, ExternalEffects, Outcome};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, SequenceNumber};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::operation::{NotUndone, ReplacedContent};

/// Reports how a call ended and what it answered, as its end in the log records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolReport {
    /// Operation id: the sequence number of its first `tool_begin`. Stable across re-runs.
    pub operation: OperationId,
    /// Sequence number of the `tool_begin` of this run.
    pub begin: SequenceNumber,
    /// Sequence number of the `tool_end` of this run.
    pub end: SequenceNumber,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the model's provider gave to the call.
    pub call_id: Option<SmolStr>,
    /// How the call ended.
    pub outcome: Outcome,
    /// Why the call failed. `None` if it committed.
    pub cause: Option<Cause>,
    /// Whether the call committed. If not, its changes were rolled back, save those in `not_undone`.
    pub success: bool,
    /// Text that the model sees: the tool's message, or why the call failed.
    pub message: String,
    /// The tool's answer, if it gave one.
    pub value: Option<Value>,
    /// Effects outside of STATE and resources, which no rollback undoes, as far as they are known.
    pub outside: ExternalEffects,
    /// Changes to resources that the rollback of a failed call could not undo, such as the owner of a file
    /// that this process must not give away. The end records them, and `foldlog ledger` shows them.
    pub not_undone: Vec<NotUndone>,
    /// What the rollback of a failed call replaced or removed in resources, whether the call or somebody else had
    /// changed it meanwhile. The end names a capture of it, which [`undo_rewind`](crate::ExecutionState::undo_rewind)
    /// brings back.
    #[serde(default)]
    pub replaced: Vec<ReplacedContent>,
    /// Time from the begin to the end, in microseconds.
    pub elapsed_us: u64,
    /// Whether the report repeats what an earlier run of the same [origin](crate::tools::ToolCall::origin)
    /// recorded, or what a settlement decided about that run. The tool did not run.
    pub recorded: bool,
}
