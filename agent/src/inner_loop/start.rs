//! The state of a conversation when an evaluation starts or continues.

use std::collections::BTreeSet;

use foldlog::conversation::{Conversation, EntryContent, PromptIdentity, Role, ToolCallRecord};
use foldlog::{CallOrigin, Cause, Outcome, SequenceNumber};

use super::journal::REFUSED_ID;
use super::steps::FinalText;
use crate::prompt::{VisibilityOverrides, overrides_from_json};

/// Describes the state of a conversation according to its log. The default is a conversation that
/// has not started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoopStart {
    /// Whether the conversation has its system message.
    pub is_rendered: bool,
    /// Names of the tools in the last rendering.
    pub tools: Vec<String>,
    /// Overrides of the last rendering.
    pub overrides: VisibilityOverrides,
    /// Number of visibility expansions so far.
    pub expansions: u32,
    /// Number of outputs refused so far.
    pub refused: u32,
    /// Number of requests since the last answer.
    pub attempts: u64,
    /// Number of requests so far. It restarts at the request that continues a complete evaluation.
    pub requests: u64,
    /// Whether the conversation was shortened since the last answer.
    pub is_shortened: bool,
    /// Answer whose turn is not recorded.
    pub open: Option<OpenTurn>,
    /// Last answer, if the evaluation is complete.
    pub complete: Option<FinalText>,
}

/// Contains an answer whose turn is not recorded, and the state of its calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenTurn {
    /// Record of the answer; `None` if the conversation is not recorded.
    pub answer: Option<SequenceNumber>,
    /// Text of the answer.
    pub content: Option<String>,
    /// Reason of the provider for ending the answer.
    pub stop: Option<String>,
    /// Calls of the answer, by ordinal.
    pub calls: Vec<ToolCallRecord>,
    /// Whether the arguments of the last call are incomplete.
    pub last_call_incomplete: bool,
    /// Whether the provider expects another request with the unchanged answer.
    pub continues: bool,
    /// Ordinals of the closed calls.
    pub closed: BTreeSet<u32>,
    /// Ordinals of the calls that were suspended and are not closed.
    pub asked: BTreeSet<u32>,
    /// Visibility that calls requested, if the prompt was not rendered since.
    pub expansion: Option<VisibilityOverrides>,
}

/// Collects the state from the records of a conversation.
#[derive(Default)]
struct LoopStartBuilder {
    start: LoopStart,
    /// Last answer: its turn, and whether its request is in this log.
    turn: Option<(OpenTurn, bool)>,
    /// Whether the turn of the last answer is recorded; if so, whether it completes the evaluation.
    recorded: Option<bool>,
    /// Whether the host added a message since the last answer.
    said: bool,
    /// Answer whose output was refused in the latest message about a refusal.
    told_about: Option<String>,
    asked: VisibilityOverrides,
}

impl LoopStart {
    /// Reads the state of a conversation that follows `prompt`. `overrides` are those that the host
    /// gave at the start. The returned flag states whether the open answer was imported; the
    /// outcome of its open calls is then unknown.
    pub fn from_conversation(
        conversation: &Conversation,
        prompt: &PromptIdentity,
        overrides: VisibilityOverrides,
    ) -> (LoopStart, bool) {
        let start = LoopStart { overrides, ..LoopStart::default() };
        let mut reading = LoopStartBuilder { start, ..LoopStartBuilder::default() };
        conversation.entries().iter().for_each(|entry| reading.read(entry.sequence, &entry.content, prompt));
        let LoopStartBuilder { mut start, turn, recorded, said, told_about, asked } = reading;
        let Some((mut turn, is_own)) = turn else { return (start, false) };
        match recorded {
            Some(true) if !said => {
                let text = turn.content.unwrap_or_default();
                start.complete = Some(FinalText { text, stop: turn.stop });
            }
            Some(_) => {}
            None => {
                // The output of the open turn is checked again, and counted then.
                if told_about.is_some() && told_about == turn.answer.map(|answer| answer.to_string()) {
                    start.refused = start.refused.saturating_sub(1);
                }
                turn.expansion = (!asked.is_empty()).then_some(asked);
                start.open = Some(turn);
            }
        }
        (start, !is_own)
    }
}

impl LoopStartBuilder {
    fn read(&mut self, sequence: SequenceNumber, content: &EntryContent, follows: &PromptIdentity) {
        match content {
            EntryContent::Input { message, prompt, .. } if message.role == Role::System => {
                self.start.is_rendered = prompt.as_ref().is_some_and(|prompt| prompt.is_of(follows));
                if !self.asked.is_empty() {
                    self.start.expansions += 1;
                    self.start.overrides.append(&mut self.asked);
                }
            }
            EntryContent::Input { origin: Some(origin), .. } => self.close(*origin),
            EntryContent::Input { id, .. } => match id {
                Some(id) if id.starts_with(REFUSED_ID) => {
                    self.start.refused += 1;
                    self.told_about = id.strip_prefix(REFUSED_ID).map(str::to_owned);
                }
                _ => {
                    self.said = true;
                    // If a complete evaluation is continued, its attempts are counted from zero.
                    if self.recorded == Some(true) {
                        (self.start.refused, self.start.requests) = (0, 0);
                    }
                }
            },
            EntryContent::Request { .. } => {
                self.start.attempts += 1;
                self.start.requests += 1;
            }
            EntryContent::Shortened { .. } => self.start.is_shortened = true,
            EntryContent::Answer { message, request, incomplete, continues, stop, .. } => {
                let last =
                    u32::try_from(message.tool_calls.len()).ok().and_then(|calls| calls.checked_sub(1));
                let turn = OpenTurn {
                    answer: Some(sequence),
                    content: message.content.clone(),
                    stop: stop.clone(),
                    calls: message.tool_calls.clone(),
                    last_call_incomplete: last.is_some_and(|last| incomplete.contains(&last)),
                    continues: *continues,
                    ..OpenTurn::default()
                };
                self.turn = Some((turn, request.is_some()));
                (self.recorded, self.said, self.start.attempts) = (None, false, 0);
                self.start.is_shortened = false;
                self.asked.clear();
            }
            EntryContent::CallEnded { outcome: Outcome::Interrupted, .. } => {}
            EntryContent::CallEnded { origin, outcome: Outcome::Suspended, .. } => {
                if let Some(turn) = self.of_last(*origin) {
                    turn.asked.insert(origin.ordinal);
                }
            }
            EntryContent::CallEnded { origin, cause, overrides, .. } => {
                self.close(*origin);
                let asked = overrides.as_ref().filter(|_| *cause == Some(Cause::Expansion));
                self.asked
                    .extend(asked.and_then(|asked| overrides_from_json(asked).ok()).unwrap_or_default());
            }
            EntryContent::CallSettled { origin, committed: Some(_), .. } => self.close(*origin),
            EntryContent::Turn { answer, complete, .. } if self.is_last(*answer) => {
                self.recorded = Some(*complete);
                self.asked.clear();
            }
            _ => {}
        }
    }

    fn is_last(&self, answer: SequenceNumber) -> bool {
        self.turn.as_ref().is_some_and(|(turn, _)| turn.answer == Some(answer))
    }

    /// Returns the turn of the last answer, if the call belongs to it.
    fn of_last(&mut self, origin: CallOrigin) -> Option<&mut OpenTurn> {
        self.turn.as_mut().map(|(turn, _)| turn).filter(|turn| turn.answer == Some(origin.answer))
    }

    fn close(&mut self, origin: CallOrigin) {
        if let Some(turn) = self.of_last(origin) {
            turn.closed.insert(origin.ordinal);
            turn.asked.remove(&origin.ordinal);
        }
    }
}
