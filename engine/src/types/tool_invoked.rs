//! The item that each finished run of a tool adds to LOG.

use foldlog_codec::body::{CallOrigin, Cause, ExternalEffects, Outcome, ToolEnd};
use foldlog_codec::{OperationId, SequenceNumber};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Slice;
use crate::operation::SuspendedOperation;

/// Describes one finished run of a tool. There is exactly one for every `tool_begin` that was ended, so an
/// operation that was run again has one for each run. The engine reads it from the record of the end
/// ([`ToolEnd::invoked`](foldlog_codec::body::ToolEnd::invoked)); it takes no bytes of its own in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInvoked {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the `tool_begin` that started this run.
    pub begin: SequenceNumber,
    /// Operation within which this one ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OperationId>,
    /// Operation that this one undid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// Operation about which this one asked the outside what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifies: Option<OperationId>,
    /// Model answer that asked for the call, and the number of the tool call within it.
    #[serde(default, rename = "asked_by", skip_serializing_if = "Option::is_none")]
    pub origin: Option<CallOrigin>,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Call id that the model's provider gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<SmolStr>,
    /// How the run ended.
    pub outcome: Outcome,
    /// Why the run failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Exit code of the command that the tool ran, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What is known of effects that a rollback does not undo.
    pub outside: ExternalEffects,
    /// Duration of the run, in microseconds.
    pub elapsed_us: u64,
}

impl ToolInvoked {
    /// Builds what is known of a suspended call without reading its end.
    pub(crate) fn of_suspended(suspended: &SuspendedOperation) -> ToolInvoked {
        ToolInvoked {
            operation: suspended.operation,
            begin: suspended.begin,
            parent: suspended.parent,
            undoes: None,
            verifies: None,
            origin: suspended.origin,
            tool: suspended.tool.clone(),
            call_id: suspended.call_id.clone(),
            outcome: Outcome::Suspended,
            cause: None,
            exit_code: None,
            outside: ExternalEffects::Unknown,
            elapsed_us: 0,
        }
    }

    /// Builds the item that decoding [`ToolEnd::invoked`] returns.
    pub(crate) fn from_end(end: &ToolEnd<'_>) -> ToolInvoked {
        ToolInvoked {
            operation: end.operation(),
            begin: end.begin,
            parent: end.parent,
            undoes: end.undoes,
            verifies: end.verifies,
            origin: end.origin,
            tool: SmolStr::new(&end.tool),
            call_id: end.call_id.as_deref().map(SmolStr::new),
            outcome: end.outcome,
            cause: end.cause,
            exit_code: end.exit_code,
            outside: end.outside,
            elapsed_us: end.elapsed_us,
        }
    }
}

/// Marks the LOG slice of all tool calls, `tool_invoked`. Every session has it, and a host can declare no
/// other slice of that name. In another program's export, a slice of that name holds other items; they are
/// imported under another name ([`ImportOptions::keep_unknown`](crate::ImportOptions::keep_unknown)).
#[derive(Debug)]
pub struct ToolInvocations;

impl Slice for ToolInvocations {
    const NAME: &'static str = "tool_invoked";
    type Item = ToolInvoked;
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::borrow::Cow;

    use proptest::prelude::*;

    proptest! {
        /// The engine makes the item of a call in two ways: an untyped fold decodes what the end would write,
        /// a typed one takes it from the end.
        #[test]
        fn a_call_taken_from_its_end_is_what_reading_it_would_come_to(
            (tool, call_id, origin) in (".{0,8}", prop::option::of(".{0,8}"), prop::option::of(any::<(u64, u32)>())),
            [again, parent, undoes, verifies] in [(); 4].map(|()| prop::option::of(any::<u64>())),
            outcome in prop::sample::select(Outcome::ALL),
            cause in prop::option::of(prop::sample::select(Cause::ALL)),
            exit_code in prop::option::of(any::<i32>()),
            outside in prop::sample::select(ExternalEffects::ALL),
            (begin, elapsed_us) in any::<(u64, u64)>(),
        ) {
            let end = ToolEnd {
                again: again.map(Into::into),
                call_id: call_id.map(Cow::Owned),
                origin: origin.map(|(answer, ordinal)| CallOrigin::new(answer, ordinal)),
                parent: parent.map(Into::into),
                undoes: undoes.map(Into::into),
                verifies: verifies.map(Into::into),
                cause,
                exit_code,
                rolls_back: outcome != Outcome::Committed,
                outside,
                elapsed_us,
                ..ToolEnd::new(begin.into(), tool, outcome)
            };
            let read: ToolInvoked = foldlog_codec::msgpack::from_slice(&end.encode_invocation()).unwrap();
            prop_assert_eq!(ToolInvoked::from_end(&end), read);
        }
    }
}
