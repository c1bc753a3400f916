//! What became of a call.

use foldlog_codec::body::{Cause, ExternalEffects, Outcome};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, SequenceNumber};
use smol_str::SmolStr;

use crate::operation::NotUndone;

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolReport {
    /// The operation's name.
    pub operation: OperationId,
    /// The sequence number of the begin.
    pub begin: SequenceNumber,
    /// The sequence number of the end.
    pub end: SequenceNumber,
    /// The tool.
    pub tool: SmolStr,
    /// The provider's name for the call.
    pub call_id: Option<SmolStr>,
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
    pub outside: ExternalEffects,
    /// What it did to its resources that was not undone with it, where it failed: a file that could not be given back to
    /// its owner, say. Recorded with the end, and shown by the ledger.
    pub not_undone: Vec<NotUndone>,
    /// How long it ran, in microseconds.
    pub elapsed_us: u64,
    /// Whether this is what an earlier run recorded, and the tool was not called.
    pub recorded: bool,
}
