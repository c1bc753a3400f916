//! The messages of a conversation over all positions of a log.

use std::collections::BTreeSet;

use foldlog_codec::SequenceNumber;
use foldlog_codec::image::EntryKind;

use super::LogReader;
use crate::conversation::{ConversationMessage, ConversationRecord, EntryContent, RecordedMessages};
use crate::error::Result;

/// A message, and the record that added it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedMessage {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// The message, as [`Conversation::messages`](crate::conversation::Conversation::messages)
    /// returns it.
    pub message: ConversationMessage,
}

/// Record that added a message.
#[derive(Clone, Copy, Debug)]
struct MessagePlace {
    sequence: SequenceNumber,
    /// Answer without which the message does not count, if the message is the result of one of its
    /// calls.
    answer: Option<SequenceNumber>,
}

/// Describes how a record changed the list of the messages that count. Messages are numbered from 0
/// in the order of their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagesChange<'a> {
    /// One message was appended to the others.
    Appended(usize),
    /// These messages count now, in this order.
    Now(&'a [usize]),
}

/// Lists the messages that the records of one conversation added, and determines at which positions
/// each counts. Does not store the contents of the messages.
#[derive(Debug)]
pub struct MessageHistory<'a> {
    reader: &'a LogReader,
    messages: Vec<MessagePlace>,
}

impl LogReader {
    /// Passes all messages of an evaluation's conversation to `visit`, including abandoned ones, in
    /// the order of their records, and returns where each counts; `None` if there is no such
    /// conversation. One message is in memory at a time, so a conversation may be larger than the
    /// reader's memory limit.
    ///
    /// # Errors
    ///
    /// The errors of [`conversation_at`](LogReader::conversation_at),
    /// [`Error::OverBudget`](crate::Error::OverBudget) only if one message takes more than
    /// [`memory_bytes`](LogReader::memory_bytes); the error of `visit`.
    pub fn message_history(
        &self,
        evaluation_id: &str,
        mut visit: impl FnMut(RecordedMessage) -> Result<()>,
    ) -> Result<Option<MessageHistory<'_>>> {
        let mut recorded = RecordedMessages::new(self.opened.session);
        let mut messages = Vec::new();
        let budget = self.text_budget();
        let reader = self.conversation_reader(&budget);
        let is_any = reader.each_entry(evaluation_id, brings_a_message, &mut |entry| {
            let Some(message) = recorded.message(&entry) else { return Ok(0) };
            let (sequence, answer) = (entry.sequence, answer_of(&entry));
            drop(entry);
            messages.push(MessagePlace { sequence, answer });
            let kept = size_of::<MessagePlace>() as u64 + RecordedMessages::held_bytes(&message);
            visit(RecordedMessage { sequence, message })?;
            Ok(kept)
        })?;
        Ok(is_any.then_some(MessageHistory { reader: self, messages }))
    }

    /// Returns the records that replace parts of an evaluation's conversation for its provider,
    /// including abandoned ones, in order.
    pub fn shortened_parts(&self, evaluation_id: &str) -> Result<Vec<ConversationRecord>> {
        let mut parts = Vec::new();
        let budget = self.text_budget();
        let reader = self.conversation_reader(&budget);
        reader.each_entry(evaluation_id, |kind| kind == EntryKind::Shortened, &mut |entry| {
            let texts = match &entry.content {
                EntryContent::Shortened { messages, reason, .. } => {
                    reason.len() + messages.iter().map(|(_, text)| text.len()).sum::<usize>()
                }
                _ => 0,
            };
            parts.push(entry);
            Ok((size_of::<ConversationRecord>() + texts) as u64)
        })?;
        Ok(parts)
    }
}

fn brings_a_message(kind: EntryKind) -> bool {
    use EntryKind::{Answer, Committed, Decided, Failed, Input, Result, Settled};
    matches!(kind, Input | Result | Answer | Committed | Failed | Settled | Decided)
}

/// Returns the answer whose call a record ended.
fn answer_of(entry: &ConversationRecord) -> Option<SequenceNumber> {
    match &entry.content {
        EntryContent::CallEnded { origin, .. } | EntryContent::CallSettled { origin, .. } => {
            Some(origin.answer)
        }
        _ => None,
    }
}

impl MessageHistory<'_> {
    /// Returns the records of the messages, in order.
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = SequenceNumber> + '_ {
        self.messages.iter().map(|message| message.sequence)
    }

    /// Passes each record that changes which messages count to `visit`, in ascending order. At
    /// every position, these are the messages that [`LogReader::conversation_at`] finds there.
    pub fn changes(&self, mut visit: impl FnMut(SequenceNumber, MessagesChange<'_>)) {
        let conversations = &self.reader.outline.conversations;
        let turning: BTreeSet<SequenceNumber> = conversations.turning_points().collect();
        let own = self.messages.iter().map(|message| message.sequence);
        let positions: BTreeSet<SequenceNumber> = turning.iter().copied().chain(own).collect();
        let mut counting: Vec<usize> = Vec::new();
        let mut next = 0;
        for position in positions {
            let live = conversations.live_at(position);
            let holds = |sequence: SequenceNumber| {
                conversations.entry(sequence).is_some_and(|entry| live.holds(sequence, entry))
            };
            let counts = |place: &usize| {
                self.messages
                    .get(*place)
                    .is_some_and(|message| holds(message.sequence) && message.answer.is_none_or(holds))
            };
            let came =
                self.messages.get(next).is_some_and(|message| message.sequence == position).then_some(next);
            next += usize::from(came.is_some());
            if !turning.contains(&position) {
                let Some(place) = came.filter(counts) else { continue };
                counting.push(place);
                visit(position, MessagesChange::Appended(place));
                continue;
            }
            let now: Vec<usize> = (0..next).filter(counts).collect();
            if now != counting {
                visit(position, MessagesChange::Now(&now));
                counting = now;
            }
        }
    }
}
