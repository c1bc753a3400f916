//! The records of one conversation, read from the log, and the messages and state derived from
//! them.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use foldlog_codec::body::{CallOrigin, Cause, Decision, Outcome, Role, TokenUsage};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, SequenceNumber};
use uuid::Uuid;

use super::messages::RecordedMessages;
use super::model::{
    ConversationMessage, ConversationState, ConversationTurn, PromptIdentity, ToolCallRecord,
};

/// Text shown to a model for a call that requested an expansion of the prompt.
pub const EXPANDED_TEXT: &str = "More of the prompt is shown now. Call the tool again if it is still needed.";

/// Text shown to a model for a call that was not run, since an earlier outcome changed the task.
pub const SKIPPED_TEXT: &str = "This call was not run. Call the tool again if it is still needed.";

/// Returns the text that a model reads for a settled call: `shown` if it was given; otherwise the
/// result, as it is if it is a text and as JSON if not, or the reason.
pub(crate) fn settled_text(
    decision: Decision,
    result: Option<&Value>,
    shown: Option<&str>,
    reason: &str,
) -> String {
    match (shown, decision, result) {
        (Some(shown), ..) => shown.to_owned(),
        (None, Decision::Committed, None) => "The call did its work.".to_owned(),
        (None, Decision::Committed, Some(result)) => match result.as_str() {
            Some(text) => text.to_owned(),
            None => serde_json::to_string(result).unwrap_or_default(),
        },
        (None, Decision::Failed, _) => {
            format!("The call did not do its work, and is not run again: {reason}")
        }
        (None, Decision::RunAgain, _) => String::new(),
    }
}

/// A record of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationRecord {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub time: DateTime<Utc>,
    /// Content of the record.
    pub content: EntryContent,
}

/// Contents of a record of a conversation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EntryContent {
    /// A message that the host added.
    Input {
        /// The message.
        message: ConversationMessage,
        /// The host's id for the message.
        id: Option<String>,
        /// Prompt that the message renders.
        prompt: Option<PromptIdentity>,
        /// Call that produced the message as its result.
        origin: Option<CallOrigin>,
    },
    /// A request to a provider.
    Request {
        /// Number of the attempt, counted from 1.
        attempt: u64,
        /// Digest of the prompt.
        prompt: Option<[u8; 32]>,
        /// Requested model.
        model: Option<String>,
        /// Parameters other than messages and tools, as JSON.
        parameters: Option<String>,
        /// BLAKE3 of the body that was sent.
        sent: Option<[u8; 32]>,
    },
    /// The failure of a request.
    RequestFailed {
        /// Record of the request.
        request: SequenceNumber,
        /// Name of the cause.
        cause: String,
        /// Error message.
        message: String,
        /// Status of the provider's reply.
        status: Option<u32>,
        /// Text received before the failure.
        arrived: Option<String>,
        /// Token usage of the request.
        usage: Option<TokenUsage>,
    },
    /// An answer.
    Answer {
        /// The message, with its calls.
        message: ConversationMessage,
        /// Record of the request.
        request: Option<SequenceNumber>,
        /// Ordinals of calls whose arguments are incomplete.
        incomplete: Vec<u32>,
        /// The provider's reason for ending the answer.
        stop: Option<String>,
        /// Whether the answer is to be sent to the provider again, unchanged, to be continued.
        continues: bool,
        /// Model that answered.
        model: Option<String>,
        /// The provider's id for the request.
        request_id: Option<String>,
        /// Token usage of the request.
        usage: Option<TokenUsage>,
        /// Rate limit headers of the reply.
        rate_limits: Vec<(String, String)>,
        /// Other recorded data of the answer, as JSON.
        payload: Option<String>,
    },
    /// The end of a call that an answer requested.
    CallEnded {
        /// The call.
        origin: CallOrigin,
        /// Its operation.
        operation: OperationId,
        /// Name of the tool.
        tool: String,
        /// The provider's id for the call.
        call_id: Option<String>,
        /// Outcome of the call.
        outcome: Outcome,
        /// Cause of a failure.
        cause: Option<Cause>,
        /// Exit code of the command that the tool ran, if it is known.
        exit_code: Option<i32>,
        /// Text for the model.
        shown: Option<String>,
        /// Prompt parts that the call requested to be visible, as JSON.
        overrides: Option<serde_json::Value>,
    },
    /// A decision about an interrupted or suspended call.
    CallSettled {
        /// The call.
        origin: CallOrigin,
        /// Its operation.
        operation: OperationId,
        /// Whether the call had done its work. `None`: it is to run again.
        committed: Option<bool>,
        /// Time at which an approval expires; `None` if it never expires, or if this is no
        /// approval.
        until: Option<DateTime<Utc>>,
        /// Text for the model.
        shown: String,
    },
    /// The end of a turn.
    Turn {
        /// Number of the turn, counted from 1.
        number: u64,
        /// Inputs that were sent since the previous turn.
        inputs: Vec<SequenceNumber>,
        /// The answer.
        answer: SequenceNumber,
        /// Records that closed the answer's calls, by ordinal.
        ends: Vec<SequenceNumber>,
        /// Whether the evaluation is complete.
        complete: bool,
    },
    /// A part of the conversation that is replaced for the provider.
    Shortened {
        /// First record that is replaced.
        from: SequenceNumber,
        /// Last record that is replaced.
        to: SequenceNumber,
        /// Messages in its place.
        messages: Vec<(Role, String)>,
        /// Reason for shortening the conversation.
        reason: String,
    },
    /// A changed prompt that was accepted.
    PromptAccepted {
        /// Prompt that the conversation followed before.
        was: PromptIdentity,
        /// Prompt that it follows from then on.
        now: PromptIdentity,
        /// Person or program that accepted it.
        by: String,
        /// Reason of the decision.
        reason: String,
    },
}

/// A message to send to a provider, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct SentMessage {
    /// Record of the message. For a result: the record that closed the call. For a message of a
    /// shortened part: the first record that is replaced.
    pub sequence: SequenceNumber,
    /// Answer with the call that produced the message as its result; `None` for every other
    /// message.
    pub answer: Option<SequenceNumber>,
    /// The message.
    pub message: ConversationMessage,
}

impl SentMessage {
    fn new(sequence: SequenceNumber, message: ConversationMessage) -> SentMessage {
        SentMessage { sequence, answer: None, message }
    }

    /// Returns the record with which the message is sent or replaced: results go with their answer.
    fn anchor(&self) -> SequenceNumber {
        self.answer.unwrap_or(self.sequence)
    }
}

/// A conversation at one position: its live records in order, and the abandoned ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub(crate) session: Uuid,
    pub(crate) evaluation_id: String,
    pub(crate) entries: Vec<ConversationRecord>,
    pub(crate) abandoned: Vec<ConversationRecord>,
    /// Id and time of the imported state.
    pub(crate) imported: Option<(Uuid, DateTime<Utc>)>,
}

impl Conversation {
    pub(crate) fn new(session: Uuid, evaluation_id: String) -> Conversation {
        Conversation { session, evaluation_id, entries: Vec::new(), abandoned: Vec::new(), imported: None }
    }

    /// Returns whether the conversation has no record, not even an abandoned one.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.abandoned.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.abandoned.clear();
    }

    /// Divides the records again into live and abandoned ones.
    pub(crate) fn divide(&mut self, counts: impl Fn(SequenceNumber) -> bool) {
        let mut all = std::mem::take(&mut self.entries);
        all.append(&mut self.abandoned);
        all.sort_by_key(|entry| entry.sequence);
        (self.entries, self.abandoned) = all.into_iter().partition(|entry| counts(entry.sequence));
    }

    /// Returns the id of the evaluation.
    pub fn evaluation_id(&self) -> &str {
        &self.evaluation_id
    }

    /// Returns the live records in order.
    pub fn entries(&self) -> &[ConversationRecord] {
        &self.entries
    }

    /// Returns the records abandoned by a rollback or by the failure of the tool that wrote them.
    pub fn abandoned_entries(&self) -> &[ConversationRecord] {
        &self.abandoned
    }

    /// Returns the prompt that the conversation follows: the one accepted last, or else the one
    /// rendered first.
    pub fn prompt(&self) -> Option<&PromptIdentity> {
        let accepted = self.entries.iter().rev().find_map(|entry| match &entry.content {
            EntryContent::PromptAccepted { now, .. } => Some(now),
            _ => None,
        });
        accepted.or_else(|| {
            self.entries.iter().find_map(|entry| match &entry.content {
                EntryContent::Input { prompt: Some(prompt), .. } => Some(prompt),
                _ => None,
            })
        })
    }

    /// Returns the total usage of all answers and failed requests, abandoned ones included.
    pub fn usage(&self) -> TokenUsage {
        let all = self.entries.iter().chain(&self.abandoned);
        let used = all.filter_map(|entry| match &entry.content {
            EntryContent::Answer { usage, .. } | EntryContent::RequestFailed { usage, .. } => *usage,
            _ => None,
        });
        used.fold(TokenUsage::default(), TokenUsage::plus)
    }

    /// Returns the last answer: its record, and the message.
    pub fn last_answer(&self) -> Option<(SequenceNumber, &ConversationMessage)> {
        self.entries.iter().rev().find_map(|entry| match &entry.content {
            EntryContent::Answer { message, .. } => Some((entry.sequence, message)),
            _ => None,
        })
    }

    /// Returns whether a turn is marked as the last one, and no answer was recorded since.
    pub(crate) fn is_complete(&self) -> bool {
        let last = self.entries.iter().rev().find_map(|entry| match &entry.content {
            EntryContent::Turn { complete, .. } => Some(*complete),
            EntryContent::Answer { .. } => Some(false),
            _ => None,
        });
        last.unwrap_or_default()
    }

    /// Returns the messages as recorded, in the order of their records.
    pub fn messages(&self) -> Vec<ConversationMessage> {
        self.recorded_messages().into_iter().map(|(_, message)| message).collect()
    }

    /// Returns the [messages as recorded](Conversation::messages), each with its record.
    pub fn recorded_messages(&self) -> Vec<(SequenceNumber, ConversationMessage)> {
        let mut recorded = RecordedMessages::new(self.session);
        self.entries.iter().filter_map(|entry| Some((entry.sequence, recorded.message(entry)?))).collect()
    }

    /// Returns the messages to send to a provider.
    ///
    /// The prompt rendered last comes first. Shortened parts are replaced. The results of an
    /// answer's calls follow the answer directly, in the order of the calls; messages added
    /// meanwhile follow them. A call that is still open has no result.
    pub fn sent_messages(&self) -> Vec<ConversationMessage> {
        self.sent_entries().into_iter().map(|sent| sent.message).collect()
    }

    /// Returns the [messages to send to a provider](Conversation::sent_messages), each with its
    /// record.
    pub fn sent_entries(&self) -> Vec<SentMessage> {
        let closed = self.closed_calls();
        let mut sent: Vec<SentMessage> = Vec::new();
        let mut system = None;
        // Messages added while the calls of an answer ran come after their results.
        let mut waiting: Vec<SentMessage> = Vec::new();
        let mut open_until = None;
        for entry in &self.entries {
            let sequence = entry.sequence;
            if open_until.is_some_and(|until| sequence > until) {
                open_until = None;
                sent.append(&mut waiting);
            }
            match &entry.content {
                EntryContent::Input { message, .. } if message.role == Role::System => {
                    system = Some(SentMessage::new(sequence, message.clone()));
                }
                EntryContent::Input { origin: Some(_), message, .. } if message.role == Role::Tool => {}
                EntryContent::Input { message, .. } => {
                    let to = if open_until.is_some() { &mut waiting } else { &mut sent };
                    to.push(SentMessage::new(sequence, message.clone()));
                }
                EntryContent::Answer { message, request, .. } => {
                    sent.append(&mut waiting);
                    // The answer was produced without the messages added after its request.
                    let known = |one: &SentMessage| request.is_none_or(|request| one.anchor() <= request);
                    let late = sent.iter().rposition(known).map_or(0, |at| at + 1);
                    waiting = sent.split_off(late);
                    sent.push(SentMessage::new(sequence, message.clone()));
                    let mut last = None;
                    for (ordinal, call) in (0..).zip(&message.tool_calls) {
                        let end = closed.get(&CallOrigin { answer: sequence, ordinal });
                        // Until an open call ends, all other messages wait.
                        last = last.max(Some(end.map_or(SequenceNumber::MAX, |end| end.sequence)));
                        sent.extend(
                            end.map(|end| SentMessage {
                                message: result_of(&end.message, Some(call)),
                                ..*end
                            }),
                        );
                    }
                    open_until = last;
                    if last.is_none() {
                        sent.append(&mut waiting);
                    }
                }
                _ => {}
            }
        }
        sent.append(&mut waiting);
        self.shorten(&mut sent);
        system.into_iter().chain(sent).collect()
    }

    fn shorten(&self, sent: &mut Vec<SentMessage>) {
        for entry in &self.entries {
            let EntryContent::Shortened { from, to, messages, .. } = &entry.content else { continue };
            let is_replaced =
                |sequence: SequenceNumber| *from <= sequence && sequence <= *to && sequence < entry.sequence;
            let Some(at) = sent.iter().position(|sent| is_replaced(sent.anchor())) else { continue };
            sent.retain(|sent| !is_replaced(sent.anchor()));
            let message = |(ordinal, (role, text)): (u32, &(Role, String))| {
                let message_id = self.message_id(entry.sequence, ordinal);
                let message = ConversationMessage {
                    created_at: entry.time,
                    message_id,
                    ..ConversationMessage::new(*role, text.clone())
                };
                // A later record may shorten this one's messages too, so they count from the start
                // of the part.
                SentMessage::new(*from, message)
            };
            let at = at.min(sent.len());
            sent.splice(at..at, (0..).zip(messages).map(message));
        }
    }

    /// Returns the state of the conversation: its prompt and its complete turns. Returns `None` if
    /// no prompt was rendered and no turn was completed. Without a rendered prompt, the system
    /// message has no content.
    pub fn state(&self) -> Option<ConversationState> {
        let rendered = |entry: &ConversationRecord| match &entry.content {
            EntryContent::Input { message, .. } if message.role == Role::System => Some(message.clone()),
            _ => None,
        };
        let (rendered, turns) = (self.entries.iter().rev().find_map(rendered), self.turns());
        let nothing = || ConversationMessage { content: None, ..ConversationMessage::new(Role::System, "") };
        let system_message = rendered.or_else(|| (!turns.is_empty()).then(nothing))?;
        let (prompt_ns, prompt_key) =
            self.prompt().map(|prompt| (prompt.namespace.clone(), prompt.key.clone())).unwrap_or_default();
        let first = self.entries.first()?;
        Some(ConversationState {
            evaluation_id: self.evaluation_id.clone(),
            prompt_ns,
            prompt_key,
            system_message,
            turns,
            created_at: self.imported.map_or(first.time, |(_, time)| time),
            state_id: self.imported.map_or_else(|| self.message_id(first.sequence, u32::MAX), |(id, _)| id),
        })
    }

    fn turns(&self) -> Vec<ConversationTurn> {
        let by_sequence: BTreeMap<SequenceNumber, &ConversationRecord> =
            self.entries.iter().map(|entry| (entry.sequence, entry)).collect();
        let closed = self.closed_calls();
        // A log may claim otherwise, but an answer belongs to one turn, the last that names it, and
        // an input to the first that names it.
        let last_of: BTreeMap<SequenceNumber, SequenceNumber> = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.content {
                EntryContent::Turn { answer, .. } => Some((*answer, entry.sequence)),
                _ => None,
            })
            .collect();
        let mut told = BTreeSet::new();
        let mut message_of = |sequence: &SequenceNumber| match &by_sequence.get(sequence)?.content {
            EntryContent::Input { message, .. } if message.role != Role::System && told.insert(*sequence) => {
                Some(message)
            }
            _ => None,
        };
        let turn = |entry: &ConversationRecord| {
            let EntryContent::Turn { number, inputs, answer, .. } = &entry.content else { return None };
            if last_of.get(answer) != Some(&entry.sequence) {
                return None;
            }
            let answered = by_sequence.get(answer)?;
            let EntryContent::Answer { message, payload, .. } = &answered.content else { return None };
            let ends = (0..).zip(&message.tool_calls).filter_map(|(ordinal, call)| {
                let end = closed.get(&CallOrigin { answer: *answer, ordinal })?;
                Some(result_of(&end.message, Some(call)))
            });
            Some(ConversationTurn {
                turn_number: *number,
                input_messages: inputs.iter().filter_map(&mut message_of).cloned().collect(),
                assistant_message: message.clone(),
                tool_messages: ends.collect(),
                provider_payload: payload.as_deref().and_then(|json| serde_json::from_str(json).ok()),
                evaluation_id: self.evaluation_id.clone(),
                created_at: message.created_at,
            })
        };
        self.entries.iter().filter_map(turn).collect()
    }

    /// Returns the last record that closed each call.
    fn closed_calls(&self) -> BTreeMap<CallOrigin, SentMessage> {
        let ends = self.entries.iter().filter_map(|entry| {
            let (origin, message) = closed_call(self.session, entry)?;
            Some((origin, SentMessage { sequence: entry.sequence, answer: Some(origin.answer), message }))
        });
        ends.collect()
    }

    fn message_id(&self, sequence: SequenceNumber, ordinal: u32) -> Uuid {
        message_id(self.session, sequence, ordinal)
    }
}

/// Returns the result of a call with the call's name and id.
pub(super) fn result_of(end: &ConversationMessage, call: Option<&ToolCallRecord>) -> ConversationMessage {
    let mut result = end.clone();
    if let Some(call) = call {
        result.tool_call_id = Some(call.call_id.clone());
        result.name.get_or_insert_with(|| call.name.clone());
    }
    result
}

/// Derives the id of a message from its place in the log.
pub(crate) fn message_id(session: Uuid, sequence: SequenceNumber, ordinal: u32) -> Uuid {
    let mut hasher = blake3::Hasher::new();
    hasher.update(session.as_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&ordinal.to_le_bytes());
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk::<16>().copied().unwrap_or_default();
    uuid::Builder::from_custom_bytes(first).into_uuid()
}

/// Returns the call that a record closes, and its result.
pub(super) fn closed_call(
    session: Uuid,
    entry: &ConversationRecord,
) -> Option<(CallOrigin, ConversationMessage)> {
    let end = || ConversationMessage {
        created_at: entry.time,
        message_id: message_id(session, entry.sequence, 0),
        ..ConversationMessage::new(Role::Tool, "")
    };
    match &entry.content {
        EntryContent::CallEnded { outcome: Outcome::Interrupted | Outcome::Suspended, .. } => None,
        EntryContent::CallEnded { origin, tool, call_id, outcome, cause, exit_code, shown, .. } => {
            let fixed = match cause {
                Some(Cause::Expansion) => Some(EXPANDED_TEXT.to_owned()),
                Some(Cause::Skipped) if shown.is_none() => Some(SKIPPED_TEXT.to_owned()),
                _ => None,
            };
            let message = ConversationMessage {
                content: fixed.or_else(|| shown.clone()),
                // A program that drives a model marks the output of a command with a nonzero exit
                // code as an error, although the call did not fail.
                is_error: *outcome != Outcome::Committed || exit_code.is_some_and(|code| code != 0),
                name: Some(tool.clone()),
                tool_call_id: call_id.clone(),
                ..end()
            };
            Some((*origin, message))
        }
        EntryContent::CallSettled { origin, committed: Some(committed), shown, .. } => {
            let (content, is_error) = (Some(shown.clone()), !committed);
            Some((*origin, ConversationMessage { content, is_error, ..end() }))
        }
        EntryContent::Input { origin: Some(origin), message, .. } if message.role == Role::Tool => {
            Some((*origin, ConversationMessage { tool_calls: Vec::new(), ..message.clone() }))
        }
        _ => None,
    }
}
