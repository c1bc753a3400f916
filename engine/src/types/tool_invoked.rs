//! What LOG keeps of each tool call.

use foldlog_codec::body::{CallOrigin, Cause, ExternalEffects, Outcome, ToolEnd};
use foldlog_codec::{OperationId, SequenceNumber};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Slice;

/// One run of a tool: exactly one for every begin that was ended, whatever became of it, so that an operation that was run
/// again has one for each of its runs. Made of the record of its end
/// ([`ToolEnd::invoked`](foldlog_codec::body::ToolEnd::invoked)), and not written a second time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInvoked {
    /// The operation's name: the sequence number of its first begin.
    pub operation: OperationId,
    /// The sequence number of the begin that this ended.
    pub begin: SequenceNumber,
    /// The operation within which it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OperationId>,
    /// The operation that it undid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// The answer that asked for it, and which of its calls this is.
    #[serde(default, rename = "asked_by", skip_serializing_if = "Option::is_none")]
    pub origin: Option<CallOrigin>,
    /// The tool.
    pub tool: SmolStr,
    /// The provider's name for the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<SmolStr>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What is known of its effects outside of what is taken back.
    pub outside: ExternalEffects,
    /// How long it ran, in microseconds.
    pub elapsed_us: u64,
}

impl ToolInvoked {
    /// What reading [`ToolEnd::invoked`] would come to.
    pub(crate) fn of(end: &ToolEnd<'_>) -> ToolInvoked {
        ToolInvoked {
            operation: end.operation(),
            begin: end.begin,
            parent: end.parent,
            undoes: end.undoes,
            origin: end.origin,
            tool: SmolStr::new(&end.tool),
            call_id: end.call_id.as_deref().map(SmolStr::new),
            outcome: end.outcome,
            cause: end.cause,
            outside: end.outside,
            elapsed_us: end.elapsed_us,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    use std::borrow::Cow;

    use proptest::prelude::*;

    proptest! {
        /// What a host sees of a call is made in two ways: an untyped fold reads what the end would write, a typed one
        /// takes it from the end.
        #[test]
        fn a_call_taken_from_its_end_is_what_reading_it_would_come_to(
            (tool, call_id, origin) in (".{0,8}", prop::option::of(".{0,8}"), prop::option::of(any::<(u64, u32)>())),
            [again, parent, undoes] in [(); 3].map(|()| prop::option::of(any::<u64>())),
            outcome in prop::sample::select(Outcome::ALL),
            cause in prop::option::of(prop::sample::select(Cause::ALL)),
            outside in prop::sample::select(ExternalEffects::ALL),
            (begin, elapsed_us) in any::<(u64, u64)>(),
        ) {
            let end = ToolEnd {
                begin: begin.into(),
                again: again.map(Into::into),
                tool: Cow::Owned(tool),
                call_id: call_id.map(Cow::Owned),
                origin: origin.map(CallOrigin::from),
                parent: parent.map(Into::into),
                undoes: undoes.map(Into::into),
                outcome,
                cause,
                rolls_back: outcome != Outcome::Committed,
                outside,
                elapsed_us,
                result: None,
                shown: None,
                overrides: None,
                resources: Vec::new(),
                not_undone: Vec::new(),
                slice: 0,
            };
            let read: ToolInvoked = foldlog_codec::msgpack::from_slice(&end.invoked()).unwrap();
            prop_assert_eq!(ToolInvoked::of(&end), read);
        }
    }
}
