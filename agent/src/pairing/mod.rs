//! Checks a list of messages against the rules of a provider before it is sent.
//!
//! # Rules
//!
//! | rule | OpenAI | Anthropic |
//! |---|---|---|
//! | each call of an answer has one result, directly after the answer, in the order of the calls | as stated | as stated |
//! | a result names a call of the answer before it | as stated | as stated |
//! | ids of calls are unique in the whole list | 1 to 40 characters | letters, digits, `_`, `-` |
//! | names of tools: letters, digits, `_`, `-` | 1 to 64 characters | 1 to 128 characters |
//! | names of speakers | 1 to 64 characters, none of them white space or `<`, `\|`, `\`, `/`, `>` | are not sent |
//! | refused contents | missing ones, except for an answer with calls | blank ones, except for an answer with calls and the result of a call that did not fail |
//! | order of the roles | any | system messages first, then a user's |
//! | least number of messages | 1 | 1 that is not a system message |
//!
//! A message's [blocks](ConversationMessage::blocks) count as its content if they have the format's
//! own form, and are ignored otherwise. Both providers tolerate some lists that these rules refuse,
//! such as results in another order. A list that passes leaves them nothing to interpret.
//!
//! The rules do not cover the output of a renderer. It omits blank text next to calls, writes the
//! ids of the calls into blocks that contain older ids, and wraps arguments that are not a JSON
//! object if the provider takes only objects.

mod repair;

use std::collections::HashSet;
use std::fmt;

use foldlog::conversation::{ConversationMessage, Role};
use foldlog::escape;
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::named;

pub(crate) use repair::word;
pub use repair::{Repair, RepairChange, close_open, repair};

named! {
    /// Identifies the rules of a provider for messages. Its name is also the format of
    /// [`ContentBlocks`](foldlog::conversation::ContentBlocks).
    #[non_exhaustive]
    MessageFormat {
        /// Chat completions of OpenAI.
        OpenAi = "openai",
        /// The Messages API of Anthropic.
        Anthropic = "anthropic",
    }
}

/// Identifies a rule that a list of messages breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PairingRule {
    /// A call has no result directly after its answer.
    Unanswered,
    /// A result precedes the result of an earlier call of its answer.
    OutOfOrder,
    /// A call has a second result.
    AnsweredTwice,
    /// A result names no call of the answer directly before it.
    Orphan,
    /// A message that is not an answer has calls.
    CallsElsewhere,
    /// The id of a call is empty, too long, or has characters that the provider refuses.
    MalformedId,
    /// The id of a call repeats that of an earlier one.
    RepeatedId,
    /// The name of a tool is empty, too long, or has characters that the provider refuses.
    ToolName,
    /// The name of a speaker is empty, too long, or has characters that the provider refuses.
    SpeakerName,
    /// The content is missing or blank, and the provider refuses that.
    EmptyContent,
    /// The blocks in the provider's own form are invalid JSON or empty.
    MalformedBlocks,
    /// A system message follows another message.
    SystemNotFirst,
    /// The first message that is not a system message is not a user's.
    UserNotFirst,
    /// There is nothing to answer: no message, or only system messages if the provider takes these
    /// separately.
    NoMessages,
}

impl PairingRule {
    /// Returns the problem, in words that follow the place of the message.
    fn text(self) -> &'static str {
        match self {
            PairingRule::Unanswered => "has no result directly after its answer",
            PairingRule::OutOfOrder => "has its result before the result of an earlier call",
            PairingRule::AnsweredTwice => "has a second result",
            PairingRule::Orphan => "is not in the answer directly before this result",
            PairingRule::CallsElsewhere => "is in a message that is not an answer",
            PairingRule::MalformedId => "has an id that the provider refuses",
            PairingRule::RepeatedId => "has the id of an earlier call",
            PairingRule::ToolName => "is a tool's name that the provider refuses",
            PairingRule::SpeakerName => "is a speaker's name that the provider refuses",
            PairingRule::EmptyContent => "its content is missing or blank",
            PairingRule::MalformedBlocks => "its blocks are not valid JSON, or are empty",
            PairingRule::SystemNotFirst => "a system message follows another message",
            PairingRule::UserNotFirst => "the first message after the system message is not a user's",
            PairingRule::NoMessages => "there is no message for the provider to answer",
        }
    }
}

/// Describes one place at which a list of messages breaks a rule. Its [`Display`](fmt::Display)
/// form is escaped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairingViolation {
    /// Index of the message. For a call without a result it is the index of the answer; for an
    /// empty list it is 0.
    pub message: usize,
    /// The broken rule.
    pub rule: PairingRule,
    /// Id of the call or name that breaks the rule, as in the message; `None` for rules of whole
    /// messages.
    pub subject: Option<String>,
}

impl fmt::Display for PairingViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}: ", self.message)?;
        match (&self.subject, self.rule) {
            (Some(name), PairingRule::ToolName | PairingRule::SpeakerName) => {
                write!(f, "`{}` ", escape_beginning(name))?;
            }
            (Some(id), _) => write!(f, "the call `{}` ", escape_beginning(id))?,
            (None, _) => {}
        }
        f.write_str(self.rule.text())
    }
}

/// Number of characters of an id or name that an error shows.
const SHOWN_CHARS_MAX: usize = 64;

fn escape_beginning(text: &str) -> String {
    let head: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let more = if head.len() < text.len() { "…" } else { "" };
    format!("{}{more}", escape::text(&head))
}

impl MessageFormat {
    fn takes_id(self, id: &str) -> bool {
        match self {
            MessageFormat::OpenAi => !id.is_empty() && is_within(id, 40),
            MessageFormat::Anthropic => !id.is_empty() && id.bytes().all(is_word),
        }
    }

    /// Returns the length of the longest name of a tool, in characters.
    fn tool_chars_max(self) -> usize {
        match self {
            MessageFormat::OpenAi => 64,
            MessageFormat::Anthropic => 128,
        }
    }

    pub(crate) fn takes_tool(self, name: &str) -> bool {
        !name.is_empty() && name.len() <= self.tool_chars_max() && name.bytes().all(is_word)
    }

    /// Changes the name of a tool to one that the provider accepts.
    pub(crate) fn fit_tool(self, name: &str) -> String {
        word(name, self.tool_chars_max(), "unnamed")
    }

    fn takes_speaker(self, name: &str) -> bool {
        let refused = |c: char| c.is_whitespace() || matches!(c, '<' | '|' | '\\' | '/' | '>');
        match self {
            MessageFormat::OpenAi => !name.is_empty() && is_within(name, 64) && !name.contains(refused),
            MessageFormat::Anthropic => true,
        }
    }

    /// Returns whether the provider accepts the content of a message.
    fn takes_content(self, message: &ConversationMessage) -> bool {
        if message.role == Role::Assistant && !message.tool_calls.is_empty()
            || self.own_blocks(message).is_some()
        {
            return true;
        }
        match (self, &message.content) {
            (MessageFormat::OpenAi, content) => content.is_some(),
            (MessageFormat::Anthropic, _) if message.role == Role::Tool && !message.is_error => true,
            (MessageFormat::Anthropic, content) => {
                content.as_deref().is_some_and(|text| !text.trim().is_empty())
            }
        }
    }

    /// Returns the blocks of a message that have the format's own form.
    pub(crate) fn own_blocks(self, message: &ConversationMessage) -> Option<&str> {
        message
            .blocks
            .as_ref()
            .filter(|blocks| blocks.format == self.name())
            .map(|blocks| blocks.json.as_str())
    }
}

fn is_within(text: &str, chars_max: usize) -> bool {
    text.len() <= chars_max || text.chars().nth(chars_max).is_none()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Returns whether blocks are valid JSON and not empty.
fn is_sound(json: &str) -> bool {
    let bare: String = json.chars().filter(|c| !c.is_ascii_whitespace()).take(5).collect();
    !matches!(bare.as_str(), "" | "null" | "[]" | "{}" | "\"\"")
        && serde_json::from_str::<IgnoredAny>(json).is_ok()
}

/// Returns the call id of a result. A result without one can only belong to a call with an empty
/// id.
fn result_id(message: &ConversationMessage) -> &str {
    message.tool_call_id.as_deref().unwrap_or_default()
}

/// Checks a list of messages against the [rules](self) of a provider.
///
/// # Errors
///
/// All places at which the list breaks a rule, in the order of the messages.
///
/// ```
/// use foldlog::conversation::{ConversationMessage, Role};
/// use foldlog_agent::pairing::{MessageFormat, validate};
///
/// let question = ConversationMessage::new(Role::User, "What is 6 times 7?");
/// assert!(validate(MessageFormat::Anthropic, &[question]).is_ok());
/// let orphan = ConversationMessage::new(Role::Tool, "42");
/// let violations = validate(MessageFormat::OpenAi, &[orphan]).unwrap_err();
/// assert_eq!(
///     violations[0].to_string(),
///     "message 0: the call `` is not in the answer directly before this result"
/// );
/// ```
pub fn validate(
    format: MessageFormat,
    messages: &[ConversationMessage],
) -> Result<(), Vec<PairingViolation>> {
    let mut check = Check {
        format,
        violations: Vec::new(),
        ids: HashSet::new(),
        answer: 0,
        open: Vec::new(),
        spoken: false,
    };
    for (index, message) in messages.iter().enumerate() {
        check.message(index, message);
    }
    check.close();
    let speaks = messages.iter().any(|message| message.role != Role::System);
    if messages.is_empty() || (format == MessageFormat::Anthropic && !speaks) {
        check.add_violation(messages.len().saturating_sub(1), PairingRule::NoMessages, None);
    }
    // A missing result is noticed only at the next message, so the order is restored here.
    check.violations.sort_by_key(|violation| violation.message);
    if check.violations.is_empty() { Ok(()) } else { Err(check.violations) }
}

/// Walks over a list of messages and collects the violations.
struct Check<'a> {
    format: MessageFormat,
    violations: Vec<PairingViolation>,
    /// Ids of all calls so far.
    ids: HashSet<&'a str>,
    /// Index of the answer whose results may follow.
    answer: usize,
    /// Calls of that answer, and whether each has its result.
    open: Vec<(&'a str, bool)>,
    /// Whether there was a message that is not a system message.
    spoken: bool,
}

impl<'a> Check<'a> {
    fn add_violation(&mut self, message: usize, rule: PairingRule, subject: Option<&str>) {
        self.violations.push(PairingViolation { message, rule, subject: subject.map(str::to_owned) });
    }

    fn message(&mut self, index: usize, message: &'a ConversationMessage) {
        if message.role == Role::Tool {
            self.result(index, result_id(message));
        } else {
            self.close();
        }
        self.role(index, message.role);
        self.content(index, message);
        for call in &message.tool_calls {
            let id = call.call_id.as_str();
            if message.role != Role::Assistant {
                self.add_violation(index, PairingRule::CallsElsewhere, Some(id));
                continue;
            }
            if !self.format.takes_id(id) {
                self.add_violation(index, PairingRule::MalformedId, Some(id));
            }
            if !self.ids.insert(id) {
                self.add_violation(index, PairingRule::RepeatedId, Some(id));
            }
            if !self.format.takes_tool(&call.name) {
                self.add_violation(index, PairingRule::ToolName, Some(&call.name));
            }
            self.answer = index;
            self.open.push((id, false));
        }
    }

    /// Assigns a result to the first call with its id that has none yet.
    fn result(&mut self, index: usize, id: &str) {
        let first = self.open.iter().position(|(_, answered)| !answered);
        let asked = self.open.iter().position(|(asked, answered)| *asked == id && !answered);
        let rule = match asked {
            Some(_) if asked == first => None,
            Some(_) => Some(PairingRule::OutOfOrder),
            None if self.open.iter().any(|(asked, _)| *asked == id) => Some(PairingRule::AnsweredTwice),
            None => Some(PairingRule::Orphan),
        };
        if let Some((_, answered)) = asked.and_then(|ordinal| self.open.get_mut(ordinal)) {
            *answered = true;
        }
        if let Some(rule) = rule {
            self.add_violation(index, rule, Some(id));
        }
    }

    /// Ends the part of the list in which results of the last answer may occur.
    fn close(&mut self) {
        for (id, answered) in std::mem::take(&mut self.open) {
            if !answered {
                self.add_violation(self.answer, PairingRule::Unanswered, Some(id));
            }
        }
    }

    fn role(&mut self, index: usize, role: Role) {
        let first = !self.spoken;
        self.spoken |= role != Role::System;
        match (self.format, role) {
            (MessageFormat::Anthropic, Role::System) if !first => {
                self.add_violation(index, PairingRule::SystemNotFirst, None);
            }
            (MessageFormat::Anthropic, Role::Assistant | Role::Tool) if first => {
                self.add_violation(index, PairingRule::UserNotFirst, None);
            }
            _ => {}
        }
    }

    fn content(&mut self, index: usize, message: &ConversationMessage) {
        let blocks = self.format.own_blocks(message);
        if blocks.is_some_and(|json| !is_sound(json)) {
            self.add_violation(index, PairingRule::MalformedBlocks, None);
        } else if !self.format.takes_content(message) {
            self.add_violation(index, PairingRule::EmptyContent, None);
        }
        if let Some(name) = message.name.as_deref().filter(|name| !self.format.takes_speaker(name)) {
            self.add_violation(index, PairingRule::SpeakerName, Some(name));
        }
    }
}
