//! Description of a call: the request of a host or a model, the options of one run, and the facts
//! that the start and end records of the call share.
//!
//! [`CallInfo`] is the only source of those facts for both records, so that start and end records
//! always describe the call in the same way.

use std::borrow::Cow;
use std::panic::Location;
use std::time::Duration;

use foldlog_codec::body::{
    CallOrigin, Cause, ClosedCall, ExternalEffects, Idempotency, Outcome, Payload, ToolBegin, ToolEnd,
};
use foldlog_codec::{OperationId, SequenceNumber};
use smol_str::SmolStr;

use super::tool::AnyTool;
use crate::operation::OpenOperation;
use crate::session::Asker;
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

/// Describes a call, from before its start to its end.
#[derive(Clone, Debug)]
pub(in crate::tools) struct CallInfo {
    pub(in crate::tools) tool: SmolStr,
    pub(in crate::tools) call_id: Option<SmolStr>,
    pub(in crate::tools) origin: Option<CallOrigin>,
    /// Operation within which the call runs. `None` before the start, and for a call that is not
    /// nested.
    pub(in crate::tools) parent: Option<OperationId>,
    pub(in crate::tools) idempotency: Idempotency,
    /// Whether the call changes neither STATE nor resources.
    pub(in crate::tools) reads_only: bool,
    /// Whether such a call acts outside, and so may not run again like a reading one.
    pub(in crate::tools) outside_only: bool,
    /// Operation that this call repeats.
    pub(in crate::tools) again: Option<OperationId>,
    /// Approval of this call, if it asked for one.
    pub(in crate::tools) approval: Option<Approval>,
    /// Interrupted operation whose outside effects this call undoes.
    pub(in crate::tools) undoes: Option<OperationId>,
    /// Interrupted operation whose outside effects this call verifies.
    pub(in crate::tools) verifies: Option<OperationId>,
    /// Resources to restore, if the call is a restore; `None` for a tool's call.
    pub(in crate::tools) restores: Option<RestoreScope>,
    /// Cause with which the call is closed without running, and the text for the model, as one
    /// MessagePack string.
    pub(in crate::tools) closed: Option<(Cause, Vec<u8>)>,
    /// Location in the host's code of the request.
    pub(in crate::tools) at: &'static Location<'static>,
    /// Whether the thread that starts the call ends it too, unless it hands it over.
    pub(in crate::tools) is_held: bool,
}

impl CallInfo {
    /// Describes a first run of a call of an unknown tool: it is [`Manual`](Idempotency::Manual)
    /// and may make changes.
    #[track_caller]
    pub(in crate::tools) fn new(call: &ToolCall) -> CallInfo {
        CallInfo {
            tool: call.tool.clone(),
            call_id: call.call_id.clone(),
            origin: call.origin,
            parent: None,
            idempotency: Idempotency::Manual,
            reads_only: false,
            outside_only: false,
            again: None,
            approval: None,
            undoes: None,
            verifies: None,
            restores: None,
            closed: None,
            at: Location::caller(),
            is_held: false,
        }
    }

    /// Describes a call that a process left open. The caller reads `origin` from the start record,
    /// because `open` does not contain it.
    pub(in crate::tools) fn of_open(open: &OpenOperation, origin: Option<CallOrigin>) -> CallInfo {
        CallInfo {
            tool: open.tool.clone(),
            call_id: open.call_id.clone(),
            origin,
            parent: open.parent,
            idempotency: open.idempotency,
            reads_only: open.reads_only,
            outside_only: open.outside_only,
            again: (open.operation.sequence() != open.begin).then_some(open.operation),
            approval: None,
            undoes: open.undoes,
            verifies: open.verifies,
            restores: None,
            closed: None,
            at: Location::caller(),
            is_held: false,
        }
    }

    pub(in crate::tools) fn to_asker(&self) -> Asker {
        let asker = Asker::new(self.tool.clone(), self.at);
        if self.is_held { asker.held_here() } else { asker }
    }

    /// Returns whether the call follows an interrupted one: it runs that operation again, undoes
    /// it, or verifies it.
    pub(in crate::tools) fn is_resume(&self) -> bool {
        self.again.is_some() || self.undoes.is_some() || self.verifies.is_some()
    }

    /// Returns whether the call makes no changes at all.
    pub(in crate::tools) fn only_reads(&self) -> bool {
        self.reads_only && !self.outside_only
    }

    /// Returns the same description with the declarations of `tool`.
    pub(in crate::tools) fn of_tool(self, tool: &dyn AnyTool) -> CallInfo {
        let outside_only = tool.outside_only();
        CallInfo { reads_only: tool.reads_only() || outside_only, outside_only, ..self }
    }

    /// Returns the default effects outside, for a tool that states none: none for a tool that only
    /// reads or is [`Natural`](Idempotency::Natural), otherwise unknown ones.
    pub(in crate::tools) fn outside(&self) -> ExternalEffects {
        let natural = self.idempotency == Idempotency::Natural && !self.outside_only;
        let none = self.only_reads() || natural;
        if none { ExternalEffects::None } else { ExternalEffects::Unknown }
    }

    /// Returns the body of the start record, without the captures of its resources. `arguments` is
    /// one MessagePack value.
    pub(in crate::tools) fn to_begin<'a>(&'a self, arguments: &'a [u8]) -> ToolBegin<'a> {
        ToolBegin {
            call_id: self.call_id.as_deref().map(Cow::Borrowed),
            origin: self.origin,
            parent: self.parent,
            idempotency: self.idempotency,
            reads_only: self.reads_only,
            outside_only: self.outside_only,
            again: self.again,
            undoes: self.undoes,
            verifies: self.verifies,
            closed: self
                .closed
                .as_ref()
                .map(|(cause, shown)| ClosedCall { cause: *cause, shown: Payload::new(shown) }),
            ..ToolBegin::new(self.tool.as_str(), Payload::new(arguments))
        }
    }

    /// Returns the body of the end record with the facts of the start record, without an answer.
    /// The session sets the duration and the slice of invocations when it writes the record.
    pub(in crate::tools) fn to_end(
        &self,
        begin: SequenceNumber,
        outcome: Outcome,
        cause: Option<Cause>,
    ) -> ToolEnd<'_> {
        ToolEnd {
            again: self.again,
            call_id: self.call_id.as_deref().map(Cow::Borrowed),
            origin: self.origin,
            parent: self.parent,
            undoes: self.undoes,
            verifies: self.verifies,
            cause,
            rolls_back: outcome != Outcome::Committed && !self.reads_only,
            outside: self.outside(),
            ..ToolEnd::new(begin, self.tool.as_str(), outcome)
        }
    }
}
