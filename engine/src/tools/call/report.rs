//! The report of a call, with the contents of its end record.

use foldlog_codec::body::{Cause, ExternalEffects, Outcome};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, SequenceNumber};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::operation::{NotUndone, ReplacedContent};

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
