//! What is known of a call: what the host or a model asked for, and what the log says of it in its begin and in its end.

use std::borrow::Cow;
use std::time::Duration;

use foldlog_codec::body::{
    CallOrigin, Cause, ExternalEffects, Idempotency, Outcome, Payload, ToolBegin, ToolEnd,
};
use foldlog_codec::{OperationId, SequenceNumber};
use smol_str::SmolStr;

use crate::operation::OpenOperation;

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
        ToolCall { origin: Some(CallOrigin { answer: answer.into(), ordinal }), ..self }
    }
}

/// How a call is to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// How long it may take, waiting for its turn included. By a clock that nobody sets, and for this call alone.
    pub deadline: Option<Duration>,
}

/// Which resources a restore brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tools) enum RestoreScope {
    /// All of them.
    All,
    /// Those that are rolled back with a tool that failed.
    AsATool,
}

/// Describes a call, from before its begin to its end.
#[derive(Clone, Debug)]
pub(in crate::tools) struct CallInfo {
    pub(in crate::tools) tool: SmolStr,
    pub(in crate::tools) call_id: Option<SmolStr>,
    pub(in crate::tools) origin: Option<CallOrigin>,
    /// The operation within which it runs, once that is known.
    pub(in crate::tools) parent: Option<OperationId>,
    pub(in crate::tools) idempotency: Idempotency,
    pub(in crate::tools) reads_only: bool,
    /// The operation that is run again.
    pub(in crate::tools) again: Option<OperationId>,
    /// The operation whose effects are undone.
    pub(in crate::tools) undoes: Option<OperationId>,
    /// Of a restore, and of no tool: which resources it brings back.
    pub(in crate::tools) restores: Option<RestoreScope>,
}

impl CallInfo {
    /// Describes a call that is neither run again nor undoes another, of a tool of which nothing is known.
    pub(in crate::tools) fn new(call: &ToolCall) -> CallInfo {
        CallInfo {
            tool: call.tool.clone(),
            call_id: call.call_id.clone(),
            origin: call.origin,
            parent: None,
            idempotency: Idempotency::Manual,
            reads_only: false,
            again: None,
            undoes: None,
            restores: None,
        }
    }

    /// Describes a call that a process left open; its origin stands in its begin alone.
    pub(in crate::tools) fn of_open(open: &OpenOperation, origin: Option<CallOrigin>) -> CallInfo {
        CallInfo {
            tool: open.tool.clone(),
            call_id: open.call_id.clone(),
            origin,
            parent: open.parent,
            idempotency: open.idempotency,
            reads_only: open.reads_only,
            again: (open.operation.sequence() != open.begin).then_some(open.operation),
            undoes: open.undoes,
            restores: None,
        }
    }

    /// Whether an earlier call of the same operation was interrupted.
    pub(in crate::tools) fn is_resume(&self) -> bool {
        self.again.is_some() || self.undoes.is_some()
    }

    /// Returns what is known of effects outside where the tool says nothing: one that may have some has.
    pub(in crate::tools) fn outside(&self) -> ExternalEffects {
        let none = self.reads_only || self.idempotency == Idempotency::Natural;
        if none { ExternalEffects::None } else { ExternalEffects::Unknown }
    }

    /// Returns the body of the call's begin, without resources.
    pub(in crate::tools) fn to_begin<'a>(&'a self, arguments: &'a [u8]) -> ToolBegin<'a> {
        ToolBegin {
            tool: Cow::Borrowed(&self.tool),
            call_id: self.call_id.as_deref().map(Cow::Borrowed),
            arguments: Payload::new(arguments),
            origin: self.origin,
            parent: self.parent,
            idempotency: self.idempotency,
            reads_only: self.reads_only,
            again: self.again,
            undoes: self.undoes,
            resources: Vec::new(),
        }
    }

    /// Returns the body of an end, with nothing but what the begin says too. How long the call took and its slice are
    /// set where the record is written.
    pub(in crate::tools) fn to_end(
        &self,
        begin: SequenceNumber,
        (outcome, cause): (Outcome, Option<Cause>),
    ) -> ToolEnd<'_> {
        ToolEnd {
            begin,
            again: self.again,
            tool: Cow::Borrowed(&self.tool),
            call_id: self.call_id.as_deref().map(Cow::Borrowed),
            origin: self.origin,
            parent: self.parent,
            undoes: self.undoes,
            outcome,
            cause,
            rolls_back: outcome != Outcome::Committed && !self.reads_only,
            outside: self.outside(),
            elapsed_us: 0,
            result: None,
            shown: None,
            overrides: None,
            resources: Vec::new(),
            not_undone: Vec::new(),
            slice: 0,
        }
    }
}
