//! The request of a call.

use std::time::Duration;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::CallOrigin;
use smol_str::SmolStr;

use crate::session::settle::RecordedSettlement;

/// Describes a request for a tool: its name, its arguments and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the model's provider assigned to the call. It is only recorded; another call may
    /// have the same id.
    pub call_id: Option<SmolStr>,
    /// Arguments: JSON text, recorded unchanged.
    pub arguments: String,
    /// Origin: the model's answer that requests the call, and the number of the call in the answer.
    /// If a call of the same origin already committed or failed, also in an earlier process, and
    /// was not rolled back since, its recorded result is returned and the tool does not run. `None`
    /// for a call that no answer requests.
    pub origin: Option<CallOrigin>,
}

impl ToolCall {
    /// Describes a call by the host, without a provider's id and without an origin. `arguments` is
    /// JSON text.
    pub fn new(tool: impl Into<SmolStr>, arguments: impl Into<String>) -> ToolCall {
        ToolCall { tool: tool.into(), call_id: None, arguments: arguments.into(), origin: None }
    }

    /// Sets the id that the model's provider assigned to the call.
    #[must_use]
    pub fn with_id(self, call_id: impl Into<SmolStr>) -> ToolCall {
        ToolCall { call_id: Some(call_id.into()), ..self }
    }

    /// Links the call to the model's answer recorded at `answer`, as its tool call number
    /// `ordinal`, counted from 0. If that call already committed or failed and was not rolled back
    /// since, the recorded result is returned and the tool does not run.
    #[must_use]
    pub fn with_origin(self, answer: impl Into<SequenceNumber>, ordinal: u32) -> ToolCall {
        ToolCall { origin: Some(CallOrigin { answer: answer.into(), ordinal }), ..self }
    }
}

/// Describes the approval of a call that asked for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Record of the decision.
    pub sequence: SequenceNumber,
    /// Name of the approver.
    pub by: String,
    /// Reason of the approver.
    pub reason: String,
}

impl Approval {
    pub(in crate::tools) fn of_settlement(settled: RecordedSettlement) -> Approval {
        let RecordedSettlement { sequence, by, reason, .. } = settled;
        Approval { sequence, by, reason }
    }
}

/// Contains the options of one run of a call. They are not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// Maximum duration on the monotonic clock, counted from the request, including waits for other
    /// calls and for leases. Nested calls inherit it. `None` sets no limit.
    pub deadline: Option<Duration>,
    /// Longest time that the call waits for others before it starts. `None` uses the limit of the
    /// session's [handle](crate::Session::waiting_at_most), which is the
    /// [store's](crate::StoreOptions::wait) by default.
    pub wait: Option<Duration>,
}

/// Selects the resources of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tools) enum RestoreScope {
    /// All resources of the run.
    All,
    /// Resources that are rolled back when a tool fails.
    AsATool,
}
