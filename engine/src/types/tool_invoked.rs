//! What LOG keeps of each tool call.

use foldlog_codec::body::{Cause, Outcome, OutsideEffects};
use serde::{Deserialize, Serialize};

use super::Slice;

/// One run of a tool: exactly one for every begin that was ended, whatever became of it, so that an operation that was run
/// again has one for each of its runs. Made of the record of its end
/// ([`ToolEnd::invoked`](foldlog_codec::body::ToolEnd::invoked)), and not written a second time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInvoked {
    /// The operation's name: the sequence number of its first begin.
    pub operation: u64,
    /// The sequence number of the begin that this ended.
    pub begin: u64,
    /// The operation within which it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    /// The operation that it undid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<u64>,
    /// The answer that asked for it, and which of its calls this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<(u64, u32)>,
    /// The tool.
    pub tool: String,
    /// The provider's name for the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What is known of its effects outside of what is taken back.
    pub outside: OutsideEffects,
    /// How long it ran, in microseconds.
    pub elapsed_us: u64,
}

/// The LOG slice of all tool calls: `tool_invoked`. Every session has it, and a host has none of its own of that name. In an
/// export of another program's, items of that name are something else; they come in under another name
/// ([`ImportOptions::keep_unknown`](crate::ImportOptions::keep_unknown)).
#[derive(Debug)]
pub struct ToolInvocations;

impl Slice for ToolInvocations {
    const NAME: &'static str = "tool_invoked";
    type Item = ToolInvoked;
}
