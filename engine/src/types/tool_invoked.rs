//! The item that each finished run of a tool adds to the LOG slice `tool_invoked`.

use foldlog_codec::body::{CallOrigin, Cause, ExternalEffects, Outcome, ToolEnd};
use foldlog_codec::{OperationId, SequenceNumber};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Slice;
use crate::operation::SuspendedOperation;

/// Describes one finished run of a tool. Each ended `tool_begin` has exactly one, so an operation
/// that was run again has one per run. The engine derives it from the end record
/// ([`encode_invocation`](foldlog_codec::body::ToolEnd::encode_invocation)); it takes no extra bytes
/// in the log.
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
    /// Operation whose outcome this one verified with the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifies: Option<OperationId>,
    /// Model answer that requested the call, and the number of the tool call within it.
    #[serde(default, rename = "asked_by", skip_serializing_if = "Option::is_none")]
    pub origin: Option<CallOrigin>,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Call id from the model's provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<SmolStr>,
    /// Outcome of the run.
    pub outcome: Outcome,
    /// Cause of the failure, if the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Exit code of the command that the tool ran, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Describes effects that a rollback does not undo, as far as known.
    pub outside: ExternalEffects,
    /// Duration of the run, in microseconds.
    pub elapsed_us: u64,
}

impl ToolInvoked {
    /// Builds the item of a suspended call without reading its end record.
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

    /// Builds the same item as decoding [`ToolEnd::encode_invocation`] does.
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

/// Marks the LOG slice of all tool calls, `tool_invoked`. Every session has it, and a host can
/// declare no other slice of that name. In another program's export, a slice of that name has other
/// items; these are imported under another name
/// ([`ImportOptions::keep_unknown`](crate::ImportOptions::keep_unknown)).
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
        /// The engine builds the item of a call in two ways: an untyped fold decodes the end
        /// record's encoding of it, and a typed fold builds it from the end record's fields.
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
