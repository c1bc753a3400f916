//! Shortens a long conversation for its provider. The log keeps everything; a record says what is sent in place of a part.
//!
//! A host gives a [`Shortener`] with [`ShortenOptions`]. It is asked in two cases:
//!
//! | case | when | what follows |
//! |---|---|---|
//! | [`Threshold`](ShortenReason::Threshold) | before a request, once the last answer's usage or the number of messages reaches the threshold; once for each answer | the request, shortened or not |
//! | [`Overflow`](ShortenReason::Overflow) | the provider found the conversation too long; once for each answer | the request once more if something was shortened, else [`Error::ContextOverflow`] |
//!
//! # Invariants
//!
//! 1. A call is never parted from its result: a range that holds one and not the other is refused.
//! 2. The system message stays, whatever range holds its record.
//! 3. What is shortened is recorded before anything is sent, so that another process sends the same.
//! 4. Without a shortener, nothing of this happens.

use std::fmt;
use std::sync::Arc;

use foldlog::SequenceNumber;
use foldlog::conversation::{Role, SentMessage, TokenUsage};

use crate::budget::spend;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::provider::CancelToken;

/// Says why a conversation is to be shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShortenReason {
    /// The conversation has reached the host's threshold.
    Threshold,
    /// The provider refused a request, since the conversation is longer than the model takes.
    Overflow,
}

impl ShortenReason {
    /// Returns the reason's name in records: `threshold` or `overflow`.
    pub fn name(self) -> &'static str {
        match self {
            ShortenReason::Threshold => "threshold",
            ShortenReason::Overflow => "overflow",
        }
    }
}

/// Holds what a shortener is asked.
#[derive(Clone, Copy, Debug)]
pub struct ShortenRequest<'a> {
    /// Id of the evaluation.
    pub evaluation_id: &'a str,
    /// Messages as they would be sent, with their records. If the conversation is not recorded, the sequence numbers are
    /// the messages' places, counted from 0.
    pub messages: &'a [SentMessage],
    /// What the last answer used, as far as the provider said.
    pub usage: Option<TokenUsage>,
    /// Why the shortener is asked.
    pub reason: ShortenReason,
    /// Moment at which the evaluation is given up.
    pub deadline: Deadline,
    /// Cancels the evaluation when it is set.
    pub cancel: &'a CancelToken,
}

/// Says which records are replaced for the provider, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortenedRange {
    /// First record that is replaced.
    pub from: SequenceNumber,
    /// Last record that is replaced.
    pub to: SequenceNumber,
    /// Messages in their place, of the user or the assistant. A provider that takes no conversation without a user's
    /// message gets one.
    pub messages: Vec<(Role, String)>,
}

/// Decides how a long conversation is shortened. A shortener may take its time, and may ask a model; the tokens that it
/// uses itself are in no budget.
pub trait Shortener: Send + Sync {
    /// Returns what is replaced by what; `None` to leave the conversation as it is.
    ///
    /// # Errors
    ///
    /// Whatever prevents it. The evaluation ends with the error, and can be resumed.
    fn shorten(&self, asked: &ShortenRequest<'_>) -> Result<Option<ShortenedRange>>;
}

/// Says who shortens a conversation, and when.
#[derive(Clone)]
pub struct ShortenOptions {
    /// Who is asked.
    pub shortener: Arc<dyn Shortener>,
    /// Number of tokens sent for the last answer, those of the provider's cache included, from which on the shortener is
    /// asked. If `None`, no number of tokens is too many.
    pub input_tokens: Option<u64>,
    /// Number of messages to be sent from which on the shortener is asked. If `None`, no number is too large.
    pub messages: Option<usize>,
}

impl fmt::Debug for ShortenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortenOptions")
            .field("input_tokens", &self.input_tokens)
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}

impl ShortenOptions {
    /// Makes options with which a shortener is asked only if the provider finds the conversation too long.
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
    /// Returns whether a record is replaced.
    fn holds(&self, sequence: SequenceNumber) -> bool {
        self.from <= sequence && sequence <= self.to
    }

    /// Checks what a shortener returned against the messages that it was given.
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
                "records {from} through {to} part the call `{id}` of the answer in record {answer} from its result in \
                 record {result}: replace both or neither"
            ));
        }
        let spoken = || sent.iter().filter(|sent| sent.message.role != Role::System);
        if !spoken().any(|sent| self.holds(sent.sequence)) {
            return refused(format!("records {from} through {to} hold no message that is sent"));
        }
        for (role, text) in messages {
            if !matches!(role, Role::User | Role::Assistant) {
                return refused(format!("a message of the role `{}` replaces records", role.name()));
            }
            if text.trim().is_empty() {
                return refused("a message without a text replaces records".to_owned());
            }
        }
        if messages.is_empty() && spoken().all(|sent| self.holds(sent.sequence)) {
            return refused(format!(
                "records {from} through {to} are all there is, and nothing replaces them"
            ));
        }
        Ok(())
    }
}

/// Keeps the last turns, and replaces all that stands before them by a fixed text of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepLastTurns {
    turns: usize,
    text: String,
}

impl KeepLastTurns {
    /// Makes a shortener that keeps the last `turns` answers, at least one, with what was said directly before the first
    /// of them.
    pub fn new(turns: usize) -> KeepLastTurns {
        let text = "[The earlier part of this conversation was left out.]".to_owned();
        KeepLastTurns { turns: turns.max(1), text }
    }

    /// Sets the text that replaces the earlier turns.
    #[must_use]
    pub fn with_text(self, text: impl Into<String>) -> KeepLastTurns {
        KeepLastTurns { text: text.into(), ..self }
    }

    /// Returns how many of the messages are replaced.
    fn count_replaced(&self, spoken: &[&SentMessage]) -> Option<usize> {
        let is_answer = |sent: &&SentMessage| sent.message.role == Role::Assistant;
        let answers: Vec<usize> =
            (0..).zip(spoken).filter(|(_, sent)| is_answer(sent)).map(|it| it.0).collect();
        let mut cut = *answers.get(answers.len().checked_sub(self.turns)?)?;
        // What was said late stands behind records that are newer: no range of records replaces one without the other.
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
