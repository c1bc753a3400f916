//! Decides which calls of an answer run next, and which are closed without running.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::Cause;
use foldlog::conversation::{SKIPPED_TEXT, ToolCallRecord};
use foldlog::tools::TOGETHER_MAX;

use super::start::OpenTurn;
use super::steps::CallToRun;
use crate::error::SuspendedCall;

/// Returns the text that the model reads instead of a result if an answer has too many calls.
fn too_many(max: u32) -> String {
    format!(
        "An answer may have {max} calls, and this one is beyond them. The call did not run: call the tool again."
    )
}

/// Text that the model reads instead of a result if the arguments of a call are incomplete.
const INCOMPLETE: &str = "The answer reached its greatest length before the arguments of this call were complete. The call did not run.";
/// Text that the model reads instead of a result if a call had not started at the cancellation.
const CANCELLED: &str = "The evaluation was cancelled before this call began. The call did not run.";

/// Reason why the remaining calls of an answer do not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skip {
    /// Another call requested more of the prompt.
    Expansion,
    /// The evaluation was cancelled.
    Cancelled,
}

/// Next step for the calls of an answer.
#[derive(Debug, PartialEq)]
pub(super) enum NextCalls {
    /// Run these concurrently.
    Run(Vec<CallToRun>),
    /// Close this one.
    Close { call: CallToRun, cause: Cause, shown: String },
    /// All are closed or suspended.
    Closed,
}

/// Contains the answer whose turn is not recorded, and the state of its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerToolCalls {
    /// The answer. Calls that were suspended before the evaluation was resumed run even if another
    /// call of the answer requested an expansion.
    pub(super) turn: OpenTurn,
    /// Reason why the remaining calls do not run.
    pub(super) skip: Option<Skip>,
    /// Ordinal below which all calls are closed.
    pub(super) first: u32,
    /// Calls that wait for a decision.
    pub(super) suspended: BTreeMap<u32, SuspendedCall>,
    /// Calls whose tool turned out to be missing when they were to run.
    pub(super) missing: BTreeSet<u32>,
}

impl AnswerToolCalls {
    /// Returns the next step. Calls with an ordinal of at least `max` do not run. `known` returns
    /// whether the calls of a tool may run concurrently; `None` for a tool that cannot run.
    pub(super) fn next(&mut self, max: u32, known: impl Fn(&str) -> Option<bool>) -> NextCalls {
        let OpenTurn { answer, calls, closed, asked, .. } = &self.turn;
        while closed.contains(&self.first) {
            self.first += 1;
        }
        let mut group = Vec::new();
        for (ordinal, call) in (self.first..).zip(calls.iter().skip(self.first as usize)) {
            if closed.contains(&ordinal) || self.suspended.contains_key(&ordinal) {
                if group.is_empty() { continue } else { break }
            }
            let next = CallToRun { answer: *answer, ordinal, call: call.clone() };
            let has_asked = asked.contains(&ordinal);
            let closing = match self.skip {
                // Its question remains open.
                Some(Skip::Cancelled) if has_asked => continue,
                Some(Skip::Expansion) if has_asked => None,
                Some(Skip::Expansion) => Some((Cause::Skipped, SKIPPED_TEXT.to_owned())),
                Some(Skip::Cancelled) => Some((Cause::Skipped, CANCELLED.to_owned())),
                None if ordinal >= max => Some((Cause::Skipped, too_many(max))),
                None => self.reason_to_close(ordinal, call, &known),
            };
            let together = known(&call.name).unwrap_or_default();
            match closing {
                Some((cause, shown)) if group.is_empty() => {
                    return NextCalls::Close { call: next, cause, shown };
                }
                None if together && group.len() < TOGETHER_MAX => group.push(next),
                None if group.is_empty() => return NextCalls::Run(vec![next]),
                _ => break,
            }
        }
        if group.is_empty() { NextCalls::Closed } else { NextCalls::Run(group) }
    }

    pub(super) fn are_closed(&self) -> bool {
        (0..).zip(&self.turn.calls).all(|(ordinal, _)| self.turn.closed.contains(&ordinal))
    }

    /// Returns the cause and the text with which to close a call that cannot run.
    fn reason_to_close(
        &self,
        ordinal: u32,
        call: &ToolCallRecord,
        known: impl Fn(&str) -> Option<bool>,
    ) -> Option<(Cause, String)> {
        let is_last = (ordinal as usize).checked_add(1) == Some(self.turn.calls.len());
        if self.turn.last_call_incomplete && is_last {
            return Some((Cause::InvalidArguments, INCOMPLETE.to_owned()));
        }
        let is_missing = self.missing.contains(&ordinal) || known(&call.name).is_none();
        is_missing
            .then(|| (Cause::UnknownTool, format!("There is no tool `{}`.", shorten_for_model(&call.name))))
    }
}

/// Shortens a name for the model, which may invent names of any length.
pub fn shorten_for_model(name: &str) -> String {
    const SHOWN: usize = 200;
    let short: String = name.chars().take(SHOWN).collect();
    if short.len() < name.len() { format!("{short}…") } else { short }
}
