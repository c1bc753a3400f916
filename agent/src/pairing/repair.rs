//! Makes a list of messages acceptable to a provider with as few changes as possible.

use std::collections::{HashMap, HashSet};
use std::fmt;

use foldlog::conversation::{ConversationMessage, Role, ToolCallRecord};
use serde::Serialize;

use super::{MessageFormat, escape_beginning, is_sound, is_word, result_id};

/// Text of the result that replaces a missing one.
const NO_RESULT: &str = "There is no result: the call was not run, or its result was not recorded.";

/// Name of the tool in the call that replaces a missing one.
const NO_NAME: &str = "unrecorded_tool";

/// Text that replaces missing or blank content.
const NO_CONTENT: &str = "(no content)";

/// Longest id derived from another one, in bytes. Every provider accepts this length.
const MADE_ID_BYTES_MAX: usize = 40;

/// Contains a list of messages that was changed for a provider, with the changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Repair {
    /// Changes to the given list; empty if it was valid.
    pub changes: Vec<RepairChange>,
    /// Resulting messages. Those of [`repair`] pass [`validate`](super::validate).
    pub messages: Vec<ConversationMessage>,
}

/// Describes one change of a repair. `message` is an index in the given list. The
/// [`Display`](fmt::Display) form is escaped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairChange {
    /// The calls of a message that is not an answer are removed.
    CallsDropped {
        /// Index of the message.
        message: usize,
        /// Ids of the calls.
        call_ids: Vec<String>,
    },
    /// Blocks that are invalid JSON or empty are removed.
    BlocksDropped {
        /// Index of the message.
        message: usize,
    },
    /// A message without content is removed.
    MessageDropped {
        /// Index of the message.
        message: usize,
    },
    /// Missing or blank content is replaced with a text that states this.
    ContentFilled {
        /// Index of the message.
        message: usize,
    },
    /// A call without a result gets a result that states this, marked as failed.
    ResultAdded {
        /// Index of the answer.
        message: usize,
        /// Id of the call.
        call_id: String,
    },
    /// A result without a call gets an answer with that call before it.
    CallAdded {
        /// Index of the result.
        message: usize,
        /// Call id of the result.
        call_id: String,
    },
    /// A result that belongs to no call is removed.
    ResultDropped {
        /// Index of the result.
        message: usize,
        /// Call id of the result.
        call_id: String,
    },
    /// A result is moved after its answer, in the order of the calls.
    ResultMoved {
        /// Index of the result.
        message: usize,
        /// Id of its call.
        call_id: String,
    },
    /// A call and its result get another id.
    IdRenamed {
        /// Index of the answer.
        message: usize,
        /// Index of the call in the answer, from 0.
        ordinal: usize,
        /// Id before.
        was: String,
        /// Id afterwards.
        now: String,
    },
    /// A tool gets another name.
    ToolRenamed {
        /// Index of the answer.
        message: usize,
        /// Index of the call in the answer, from 0.
        ordinal: usize,
        /// Name before.
        was: String,
        /// Name afterwards.
        now: String,
    },
    /// The name of a speaker is removed.
    SpeakerDropped {
        /// Index of the message.
        message: usize,
        /// The removed name.
        name: String,
    },
    /// A system message is moved before all other messages.
    SystemMoved {
        /// Index of the message.
        message: usize,
    },
    /// A user's message without content is added, because the provider requires one first.
    UserAdded,
}

impl fmt::Display for RepairChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| format!("`{}`", escape_beginning(text));
        let (message, change) = match self {
            RepairChange::CallsDropped { message, call_ids } => {
                let ids: Vec<String> = call_ids.iter().map(|id| quoted(id)).collect();
                let ids = ids.join(" ");
                (message, format!("the calls of a message that is not an answer are removed: {ids}"))
            }
            RepairChange::BlocksDropped { message } => {
                (message, "its malformed blocks are removed".to_owned())
            }
            RepairChange::MessageDropped { message } => {
                (message, "it has no content and is removed".to_owned())
            }
            RepairChange::ContentFilled { message } => {
                (message, format!("its content is filled with `{NO_CONTENT}`"))
            }
            RepairChange::ResultAdded { message, call_id } => {
                (message, format!("the call {} gets a placeholder result", quoted(call_id)))
            }
            RepairChange::CallAdded { message, call_id } => {
                (message, format!("the result for {} gets a placeholder call", quoted(call_id)))
            }
            RepairChange::ResultDropped { message, call_id } => {
                (message, format!("the result for {} belongs to no call and is removed", quoted(call_id)))
            }
            RepairChange::ResultMoved { message, call_id } => {
                (message, format!("the result for {} is moved after its answer", quoted(call_id)))
            }
            RepairChange::IdRenamed { message, ordinal, was, now } => {
                (message, format!("the id {} of call {ordinal} becomes {}", quoted(was), quoted(now)))
            }
            RepairChange::ToolRenamed { message, ordinal, was, now } => {
                (message, format!("the tool {} of call {ordinal} becomes {}", quoted(was), quoted(now)))
            }
            RepairChange::SpeakerDropped { message, name } => {
                (message, format!("the speaker's name {} is removed", quoted(name)))
            }
            RepairChange::SystemMoved { message } => {
                (message, "the system message is moved before all others".to_owned())
            }
            RepairChange::UserAdded => {
                return f.write_str("a user's message without content is added first");
            }
        };
        write!(f, "message {message}: {change}")
    }
}

/// A message during a repair, with its index in the given list; `None` for an added message.
type IndexedMessage = (Option<usize>, ConversationMessage);

/// Returns the list that the provider accepts and that differs least from `messages`, with the
/// changes. A valid list is returned unchanged.
///
/// Results between other messages are moved after their answer. Calls without a result get one that
/// states this. Results without a call are removed. Ids and names that the provider refuses are
/// changed. The new id of a call depends only on the messages before it, so ids do not change when
/// messages are appended.
///
/// # Example
///
/// ```
/// use foldlog::conversation::{ConversationMessage, Role};
/// use foldlog_agent::pairing::{MessageFormat, repair, validate};
///
/// let question = ConversationMessage::new(Role::User, "What is 6 times 7?");
/// let orphan = ConversationMessage::new(Role::Tool, "42");
/// let repaired = repair(MessageFormat::OpenAi, &[question, orphan]);
/// assert_eq!(repaired.messages.len(), 1);
/// assert_eq!(
///     repaired.changes[0].to_string(),
///     "message 1: the result for `` belongs to no call and is removed"
/// );
/// assert!(validate(MessageFormat::OpenAi, &repaired.messages).is_ok());
/// ```
pub fn repair(format: MessageFormat, messages: &[ConversationMessage]) -> Repair {
    let mut changes = Vec::new();
    let kept = contents(format, messages, &mut changes);
    let mut kept = pairs(kept, Orphans::LeftOut, &mut changes);
    if format == MessageFormat::Anthropic {
        kept = systems_first(kept, &mut changes);
    }
    let first =
        kept.iter().find(|(_, message)| message.role != Role::System || format == MessageFormat::OpenAi);
    let takes_first =
        |message: &ConversationMessage| message.role == Role::User || format == MessageFormat::OpenAi;
    if !first.is_some_and(|(_, message)| takes_first(message)) {
        let place = kept.iter().take_while(|(_, message)| message.role == Role::System).count();
        kept.insert(place, (None, ConversationMessage::new(Role::User, NO_CONTENT)));
        changes.push(RepairChange::UserAdded);
    }
    let mut messages = names(format, kept, &mut changes);
    unique_ids(format, &mut messages, &mut changes);
    Repair { changes, messages: messages.into_iter().map(|(_, message)| message).collect() }
}

/// Adds missing results and calls to a list, and reports the additions. Unlike [`repair`], it
/// removes nothing: a result without a call gets an answer with that call before it. Ids, names and
/// contents that a provider refuses are unchanged.
///
/// # Example
///
/// ```
/// use foldlog::conversation::{ConversationMessage, Role};
/// use foldlog_agent::pairing::close_open;
///
/// let orphan = ConversationMessage::new(Role::Tool, "42");
/// let closed = close_open(&[orphan.clone()]);
/// assert_eq!(closed.messages.len(), 2);
/// assert_eq!(closed.messages[1], orphan);
/// assert_eq!(closed.changes[0].to_string(), "message 0: the result for `` gets a placeholder call");
/// ```
pub fn close_open(messages: &[ConversationMessage]) -> Repair {
    let mut changes = Vec::new();
    let placed = messages.iter().enumerate().map(|(index, message)| (Some(index), message.clone()));
    let paired = pairs(placed.collect(), Orphans::Called, &mut changes);
    Repair { changes, messages: paired.into_iter().map(|(_, message)| message).collect() }
}

/// Treatment of results without a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orphans {
    /// They are removed.
    LeftOut,
    /// An answer with their calls is added before them.
    Called,
}

/// Removes calls of messages that are not answers, malformed blocks, and empty answers and system
/// messages. Fills the other empty messages.
fn contents(
    format: MessageFormat,
    messages: &[ConversationMessage],
    changes: &mut Vec<RepairChange>,
) -> Vec<IndexedMessage> {
    let mut kept = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let mut message = message.clone();
        if message.role != Role::Assistant && !message.tool_calls.is_empty() {
            let call_ids = message.tool_calls.drain(..).map(|call| call.call_id).collect();
            changes.push(RepairChange::CallsDropped { message: index, call_ids });
        }
        if format.own_blocks(&message).is_some_and(|json| !is_sound(json)) {
            message.blocks = None;
            changes.push(RepairChange::BlocksDropped { message: index });
        }
        if !format.takes_content(&message) {
            if matches!(message.role, Role::Assistant | Role::System) {
                changes.push(RepairChange::MessageDropped { message: index });
                continue;
            }
            message.content = Some(NO_CONTENT.to_owned());
            changes.push(RepairChange::ContentFilled { message: index });
        }
        kept.push((Some(index), message));
    }
    kept
}

/// Moves the results of each answer after it. Only results before the next answer are considered.
fn pairs(
    messages: Vec<IndexedMessage>,
    orphans: Orphans,
    changes: &mut Vec<RepairChange>,
) -> Vec<IndexedMessage> {
    let mut paired = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(first) = rest.next() {
        let (answer, mut behind) = match first.1.role {
            Role::Assistant => (Some(first), Vec::new()),
            _ => (None, vec![first]),
        };
        while let Some(next) = rest.next_if(|(_, message)| message.role != Role::Assistant) {
            behind.push(next);
        }
        let calls = answer.as_ref().map(|(index, answer)| (*index, answer.tool_calls.clone()));
        let (index, calls) = calls.unwrap_or_default();
        paired.extend(answer);
        let ids: Vec<String> = calls.into_iter().map(|call| call.call_id).collect();
        part(index, &ids, behind, orphans, &mut paired, changes);
    }
    paired
}

/// Puts the results of the calls `ids` first among the messages after an answer, in the order of
/// the calls.
fn part(
    answer: Option<usize>,
    ids: &[String],
    behind: Vec<IndexedMessage>,
    orphans: Orphans,
    paired: &mut Vec<IndexedMessage>,
    changes: &mut Vec<RepairChange>,
) {
    // Each result, with a flag whether it follows a message that is not a result.
    let mut results: Vec<Option<(IndexedMessage, bool)>> = ids.iter().map(|_| None).collect();
    let mut others = Vec::new();
    for (index, message) in behind {
        if message.role != Role::Tool {
            others.push((index, message));
            continue;
        }
        let id = result_id(&message);
        let place = ids.iter().zip(&mut results).find(|(asked, result)| *asked == id && result.is_none());
        match place {
            Some((_, place)) => *place = Some(((index, message), !others.is_empty())),
            None if orphans == Orphans::Called => others.push((index, message)),
            None => {
                let call_id = id.to_owned();
                changes.extend(index.map(|message| RepairChange::ResultDropped { message, call_id }));
            }
        }
    }
    let mut last = None;
    for (id, result) in ids.iter().zip(results) {
        let call_id = id.clone();
        let Some(((index, message), displaced)) = result else {
            let mut stand_in = ConversationMessage::new(Role::Tool, NO_RESULT);
            (stand_in.tool_call_id, stand_in.is_error) = (Some(call_id.clone()), true);
            paired.push((None, stand_in));
            changes.extend(answer.map(|message| RepairChange::ResultAdded { message, call_id }));
            continue;
        };
        if displaced || index < last {
            changes.extend(index.map(|message| RepairChange::ResultMoved { message, call_id }));
        }
        last = last.max(index);
        paired.push((index, message));
    }
    for run in others.chunk_by(|one, next| (one.1.role == Role::Tool) == (next.1.role == Role::Tool)) {
        paired.extend(calls_of(run, changes).map(|answer| (None, answer)));
        paired.extend_from_slice(run);
    }
}

/// Creates the answer with the calls of results that have none; `None` if the messages are not
/// results.
fn calls_of(results: &[IndexedMessage], changes: &mut Vec<RepairChange>) -> Option<ConversationMessage> {
    results.first().filter(|(_, first)| first.role == Role::Tool)?;
    let mut answer =
        ConversationMessage { content: None, ..ConversationMessage::new(Role::Assistant, String::new()) };
    for (index, result) in results {
        let call_id = result_id(result).to_owned();
        let name = result.name.clone().unwrap_or_else(|| NO_NAME.to_owned());
        changes.extend(index.map(|message| RepairChange::CallAdded { message, call_id: call_id.clone() }));
        answer.tool_calls.push(ToolCallRecord { call_id, name, arguments: "{}".to_owned() });
    }
    Some(answer)
}

fn systems_first(messages: Vec<IndexedMessage>, changes: &mut Vec<RepairChange>) -> Vec<IndexedMessage> {
    let front = messages.iter().take_while(|(_, message)| message.role == Role::System).count();
    let is_system = |(_, message): &IndexedMessage| message.role == Role::System;
    let (mut systems, others): (Vec<IndexedMessage>, Vec<IndexedMessage>) =
        messages.into_iter().partition(is_system);
    let moved = systems.iter().skip(front).filter_map(|(index, _)| *index);
    changes.extend(moved.map(|message| RepairChange::SystemMoved { message }));
    systems.extend(others);
    systems
}

fn names(
    format: MessageFormat,
    mut messages: Vec<IndexedMessage>,
    changes: &mut Vec<RepairChange>,
) -> Vec<IndexedMessage> {
    for (index, message) in &mut messages {
        let Some(index) = *index else { continue };
        for (ordinal, call) in message.tool_calls.iter_mut().enumerate() {
            if format.takes_tool(&call.name) {
                continue;
            }
            let now = format.fit_tool(&call.name);
            let was = std::mem::replace(&mut call.name, now.clone());
            changes.push(RepairChange::ToolRenamed { message: index, ordinal, was, now });
        }
        if let Some(name) = message.name.take_if(|name| !format.takes_speaker(name)) {
            changes.push(RepairChange::SpeakerDropped { message: index, name });
        }
    }
    messages
}

/// Replaces all characters of a text other than letters, digits, `_` and `-`.
pub(crate) fn word(text: &str, bytes_max: usize, empty: &str) -> String {
    let plain = |c: char| u8::try_from(c).ok().filter(|byte| is_word(*byte)).map_or('_', char::from);
    let word: String = text.chars().take(bytes_max).map(plain).collect();
    if word.is_empty() { empty.to_owned() } else { word }
}

/// Replaces the ids that the provider refuses. The results must already follow their answers, in
/// order.
fn unique_ids(format: MessageFormat, messages: &mut [IndexedMessage], changes: &mut Vec<RepairChange>) {
    let mut ids = CallIds::default();
    let mut results = Vec::new().into_iter();
    for (index, message) in messages {
        if message.role == Role::Tool {
            if let Some(id) = results.next() {
                message.tool_call_id = Some(id);
            }
            continue;
        }
        let mut answered = Vec::with_capacity(message.tool_calls.len());
        for (ordinal, call) in message.tool_calls.iter_mut().enumerate() {
            if !format.takes_id(&call.call_id) || ids.taken.contains(&call.call_id) {
                let now = ids.make_unused_id(&call.call_id, format);
                let was = std::mem::replace(&mut call.call_id, now.clone());
                let message = *index;
                changes.extend(message.map(|message| RepairChange::IdRenamed { message, ordinal, was, now }));
            }
            ids.taken.insert(call.call_id.clone());
            answered.push(call.call_id.clone());
        }
        results = answered.into_iter();
    }
}

#[derive(Default)]
struct CallIds {
    taken: HashSet<String>,
    /// Next number to try as a suffix, by the text before it. Without it, many thousand calls with
    /// the same id would take quadratic time.
    numbers: HashMap<String, usize>,
}

impl CallIds {
    /// Returns an id that no earlier call has, and that resembles `id`.
    fn make_unused_id(&mut self, id: &str, format: MessageFormat) -> String {
        let base = word(id, MADE_ID_BYTES_MAX, "call");
        if format.takes_id(&base) && !self.taken.contains(&base) {
            return base;
        }
        let number = self.numbers.entry(base.clone()).or_insert(1);
        loop {
            *number += 1;
            let suffix = format!("_{number}");
            let head: String = base.chars().take(MADE_ID_BYTES_MAX.saturating_sub(suffix.len())).collect();
            let made = format!("{head}{suffix}");
            if !self.taken.contains(&made) {
                return made;
            }
        }
    }
}
