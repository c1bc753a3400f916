//! Shortens a long conversation for its provider. The log remains complete. A record states what
//! replaces which part.
//!
//! A host supplies a [`Shortener`] in [`ShortenOptions`]. It is called in two cases:
//!
//! | case | when | next step |
//! |---|---|---|
//! | [`Threshold`](ShortenReason::Threshold) | before a request, if the last answer's usage or the number of messages reaches the threshold; once per answer | the request, shortened or not |
//! | [`Overflow`](ShortenReason::Overflow) | the provider found the conversation too long; once per answer | the request again if something was shortened, else [`Error::ContextOverflow`] |
//!
//! # Invariants
//!
//! 1. A call is never separated from its result: a range that contains only one of them is refused.
//! 2. The system message is always sent, even if a range contains its record.
//! 3. A replacement is recorded before anything is sent, so that another process sends the same
//!    messages.
//! 4. Without a shortener, conversations are never shortened.

use std::sync::Arc;

use foldlog::SequenceNumber;
use foldlog::conversation::{Role, SentMessage, TokenUsage};

use crate::budget::spend;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::named;
use crate::provider::CancelToken;

named! {
    /// Gives the reason to shorten a conversation.
    ShortenReason {
        /// The conversation has reached the host's threshold.
        Threshold = "threshold",
        /// The provider refused a request, because the conversation exceeds the model's context.
        Overflow = "overflow",
    }
}

/// Contains the arguments of a [`Shortener`].
#[derive(Clone, Copy, Debug)]
pub struct ShortenRequest<'a> {
    /// Id of the evaluation.
    pub evaluation_id: &'a str,
    /// Messages as they would be sent, with their records. If the conversation is not recorded, the
    /// sequence numbers are the messages' indexes, counted from 0.
    pub messages: &'a [SentMessage],
    /// Usage of the last answer, as far as the provider reported it.
    pub usage: Option<TokenUsage>,
    /// Reason of the call.
    pub reason: ShortenReason,
    /// Deadline of the evaluation.
    pub deadline: Deadline,
    /// Token that cancels the evaluation.
    pub cancel: &'a CancelToken,
}

/// Describes a range of records and the messages that replace it for the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortenedRange {
    /// First replaced record.
    pub from: SequenceNumber,
    /// Last replaced record.
    pub to: SequenceNumber,
    /// Replacement messages, of the user or the assistant. If a provider requires a user's message
    /// and the conversation has none, one is added.
    pub messages: Vec<(Role, String)>,
}

/// Decides how to shorten a long conversation. A shortener may be slow, and may call a model. The
/// tokens that it uses count in no budget.
pub trait Shortener: Send + Sync {
    /// Returns the range to replace and its replacement; `None` leaves the conversation unchanged.
    ///
    /// # Errors
    ///
    /// Any error that prevents it. The evaluation ends with the error, and can be resumed.
    fn shorten(&self, asked: &ShortenRequest<'_>) -> Result<Option<ShortenedRange>>;
}

/// Configures by whom and when a conversation is shortened.
#[derive(Clone)]
pub struct ShortenOptions {
    /// Shortener to call.
    pub shortener: Arc<dyn Shortener>,
    /// Threshold for the tokens sent for the last answer, including those of the provider's cache.
    /// `None` sets no threshold.
    pub input_tokens: Option<u64>,
    /// Threshold for the number of messages to send. `None` sets no threshold.
    pub messages: Option<usize>,
}

impl ShortenOptions {
    /// Creates options that call a shortener only if the provider finds the conversation too long.
    pub fn at_overflow(shortener: impl Shortener + 'static) -> ShortenOptions {
        ShortenOptions { shortener: Arc::new(shortener), input_tokens: None, messages: None }
    }

    /// Returns whether the tokens of the last answer reach the threshold.
    pub(crate) fn has_many_tokens(&self, usage: Option<&TokenUsage>) -> bool {
        let sent = usage.map(|usage| spend(usage).input_tokens);
        self.input_tokens.zip(sent).is_some_and(|(max, sent)| sent >= max)
    }
}

impl ShortenedRange {
    fn holds(&self, sequence: SequenceNumber) -> bool {
        self.from <= sequence && sequence <= self.to
    }

    /// Checks a shortener's range against the messages that it received.
    pub(crate) fn check(&self, sent: &[SentMessage]) -> Result<()> {
        let ShortenedRange { from, to, messages } = self;
        let refused = |reason: String| Err(Error::ShorteningRefused { reason });
        for result in sent {
            let Some(answer) =
                result.answer.filter(|answer| self.holds(*answer) != self.holds(result.sequence))
            else {
                continue;
            };
            let id = result.message.tool_call_id.as_deref().unwrap_or_default();
            let result = result.sequence;
            return refused(format!(
                "records {from} through {to} separate the call `{id}` of the answer in record {answer} from \
                 its result in record {result}: replace both or neither"
            ));
        }
        let spoken = || sent.iter().filter(|sent| sent.message.role != Role::System);
        if !spoken().any(|sent| self.holds(sent.sequence)) {
            return refused(format!("records {from} through {to} contain no message that is sent"));
        }
        for (role, text) in messages {
            if !matches!(role, Role::User | Role::Assistant) {
                return refused(format!(
                    "a replacement has the role `{}`: use `user` or `assistant`",
                    role.name()
                ));
            }
            if text.trim().is_empty() {
                return refused("a replacement has no text".to_owned());
            }
        }
        if messages.is_empty() && spoken().all(|sent| self.holds(sent.sequence)) {
            return refused(format!(
                "records {from} through {to} are the whole conversation, and nothing replaces them"
            ));
        }
        Ok(())
    }
}

/// Keeps the last turns, and replaces all earlier ones with a fixed text of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepLastTurns {
    turns: usize,
    text: String,
}

impl KeepLastTurns {
    /// Creates a shortener that keeps the last `turns` answers, at least one, and the user's
    /// messages directly before the first of them.
    pub fn new(turns: usize) -> KeepLastTurns {
        let text = "[The earlier part of this conversation was left out.]".to_owned();
        KeepLastTurns { turns: turns.max(1), text }
    }

    /// Sets the text that replaces the earlier turns.
    #[must_use]
    pub fn with_text(self, text: impl Into<String>) -> KeepLastTurns {
        KeepLastTurns { text: text.into(), ..self }
    }

    /// Returns the number of messages to replace.
    fn count_replaced(&self, spoken: &[&SentMessage]) -> Option<usize> {
        let is_answer = |sent: &&SentMessage| sent.message.role == Role::Assistant;
        let answers: Vec<usize> =
            (0..).zip(spoken).filter(|(_, sent)| is_answer(sent)).map(|it| it.0).collect();
        let mut cut = *answers.get(answers.len().checked_sub(self.turns)?)?;
        // A message that was inserted late comes after newer records. No range of records can
        // replace one without the other.
        let is_apart = |cut: usize| {
            let (before, behind) = spoken.split_at(cut);
            let last = before.iter().map(|sent| sent.sequence).max();
            behind.iter().all(|sent| sent.answer.is_some() || Some(sent.sequence) > last)
        };
        let is_user = |at: usize| spoken.get(at).is_some_and(|sent| sent.message.role == Role::User);
        while cut > 0 && (is_user(cut - 1) || !is_apart(cut) || spoken.get(cut)?.answer.is_some()) {
            cut -= 1;
        }
        spoken.get(..cut)?.iter().any(is_answer).then_some(cut)
    }
}

impl Shortener for KeepLastTurns {
    fn shorten(&self, asked: &ShortenRequest<'_>) -> Result<Option<ShortenedRange>> {
        let spoken: Vec<&SentMessage> =
            asked.messages.iter().filter(|sent| sent.message.role != Role::System).collect();
        let Some(replaced) = self.count_replaced(&spoken) else { return Ok(None) };
        let records = || spoken.iter().take(replaced).map(|sent| sent.sequence);
        let (Some(from), Some(to)) = (records().min(), records().max()) else { return Ok(None) };
        Ok(Some(ShortenedRange { from, to, messages: vec![(Role::User, self.text.clone())] }))
    }
}
