//! Summaries of a session's conversations at one position.

use std::collections::BTreeSet;

use foldlog::conversation::{Conversation, EntryContent};
use foldlog::inspect::LogReader;
use foldlog::{Outcome, SequenceNumber};
use serde::Serialize;

use crate::failure::Result;

/// Describes a conversation at one position. The fields are those of `state --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ConversationSummary {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Number of messages.
    pub messages: u64,
    /// Number of completed turns.
    pub turns: u64,
    /// Record of the last answer.
    pub last_answer: Option<SequenceNumber>,
    /// Ordinals of that answer's calls that no record has closed.
    pub open_calls: Vec<u32>,
    /// Number of records that a rollback, or the failure of a tool, has abandoned.
    pub abandoned_records: u64,
    /// Input tokens, as far as the provider reported them.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
}

impl ConversationSummary {
    fn from_conversation(conversation: &Conversation) -> ConversationSummary {
        let entries = conversation.entries();
        let answer = conversation.last_answer();
        let mut open: BTreeSet<u32> = answer
            .map(|(_, message)| (0..).zip(&message.tool_calls).map(|(ordinal, _)| ordinal).collect())
            .unwrap_or_default();
        let mut turns = 0;
        for entry in entries {
            let closed = match &entry.content {
                EntryContent::Turn { .. } => {
                    turns += 1;
                    None
                }
                EntryContent::CallEnded { outcome: Outcome::Interrupted | Outcome::Suspended, .. } => None,
                EntryContent::CallEnded { origin, .. } => Some(*origin),
                EntryContent::CallSettled { origin, committed: Some(_), .. } => Some(*origin),
                EntryContent::Input { origin, .. } => *origin,
                _ => None,
            };
            let last = answer.map(|(sequence, _)| sequence);
            if let Some(origin) = closed.filter(|origin| Some(origin.answer) == last) {
                open.remove(&origin.ordinal);
            }
        }
        let usage = conversation.usage();
        ConversationSummary {
            evaluation_id: conversation.evaluation_id().to_owned(),
            messages: conversation.messages().len() as u64,
            turns,
            last_answer: answer.map(|(sequence, _)| sequence),
            open_calls: open.into_iter().collect(),
            abandoned_records: conversation.abandoned_entries().len() as u64,
            input_tokens: usage.input,
            output_tokens: usage.output,
        }
    }
}

/// Describes the conversations at a position, in the order of their first records.
pub(crate) fn summaries(reader: &LogReader, at: SequenceNumber) -> Result<Vec<ConversationSummary>> {
    let mut summaries = Vec::new();
    for evaluation in reader.evaluations_at(at) {
        summaries.extend(
            reader.conversation_at(&evaluation, at)?.as_ref().map(ConversationSummary::from_conversation),
        );
    }
    Ok(summaries)
}
