//! The messages of a conversation over all positions of a log.

use std::collections::BTreeSet;

use foldlog_codec::SequenceNumber;

use super::LogReader;
use crate::conversation::{Conversation, ConversationMessage, EntryContent};
use crate::error::Result;
use crate::fold::conversation_reading;

/// Holds a message, and the record that brought it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedMessage {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// The message, as [`Conversation::messages`] returns it.
    pub message: ConversationMessage,
    /// Answer without which the message does not count: that of the call whose result the message is.
    answer: Option<SequenceNumber>,
}

/// Says what a record did to the list of the messages that count. Numbers are places in [`MessageHistory::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagesChange<'a> {
    /// One message came behind the others.
    Appended(usize),
    /// These messages count now, in this order.
    Now(&'a [usize]),
}

/// Holds every message that a record of one conversation brought, whether it counts at the end or not.
#[derive(Debug)]
pub struct MessageHistory<'a> {
    reader: &'a LogReader,
    messages: Vec<RecordedMessage>,
}

impl LogReader {
    /// Reads all messages of an evaluation's conversation, abandoned ones included. `None` if there is no such conversation.
    ///
    /// # Errors
    ///
    /// Those of [`conversation_at`](LogReader::conversation_at).
    pub fn message_history(&self, evaluation_id: &str) -> Result<Option<MessageHistory<'_>>> {
        let read = conversation_reading::conversation(
            &self.outline.conversations,
            &self.log_source(&self.outline),
            self.opened.session,
            (evaluation_id, self.last_position()),
            Some(&self.text_budget()),
        )?;
        let Some(mut conversation) = read else { return Ok(None) };
        conversation.divide(|_| true);
        Ok(Some(MessageHistory { reader: self, messages: recorded(&conversation) }))
    }
}

/// Returns the messages of a conversation, each with what it depends on.
fn recorded(conversation: &Conversation) -> Vec<RecordedMessage> {
    let mut entries = conversation.entries().iter().peekable();
    let messages = conversation.recorded_messages().into_iter().map(|(sequence, message)| {
        while entries.next_if(|entry| entry.sequence < sequence).is_some() {}
        let answer = entries.peek().and_then(|entry| match &entry.content {
            EntryContent::CallEnded { origin, .. } | EntryContent::CallSettled { origin, .. } => {
                Some(origin.answer)
            }
            _ => None,
        });
        RecordedMessage { sequence, message, answer }
    });
    messages.collect()
}

impl MessageHistory<'_> {
    /// Returns the messages, in the order of their records.
    pub fn messages(&self) -> &[RecordedMessage] {
        &self.messages
    }

    /// Hands each record after which other messages count than before it to `visit`, in ascending order. At every position,
    /// the messages that count are those that [`LogReader::conversation_at`] finds there.
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
