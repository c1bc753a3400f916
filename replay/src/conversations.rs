//! What a person wants to know of a session's conversations at one position.

use std::collections::BTreeSet;

use foldlog::audit::LogReader;
use foldlog::conversation::{Conversation, ConversationMessage, EntryContent};
use foldlog::{Outcome, SequenceNumber, Value};
use serde::Serialize;
use uuid::Uuid;

use crate::diff::{Change, Difference, Sink};
use crate::failure::Result;

/// Describes a conversation at one position. The fields are those of `state --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Number of messages.
    pub messages: u64,
    /// Number of turns that are over.
    pub turns: u64,
    /// Record of the last answer.
    pub last_answer: Option<SequenceNumber>,
    /// Ordinals of the calls of that answer that no record has closed.
    pub open_calls: Vec<u32>,
    /// Number of records that a rollback, or the failure of a tool, has abandoned.
    pub abandoned_records: u64,
    /// Tokens that were sent, as far as the provider said.
    pub input_tokens: u64,
    /// Tokens that were answered.
    pub output_tokens: u64,
}

impl Summary {
    fn of(conversation: &Conversation) -> Summary {
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
        Summary {
            evaluation_id: conversation.evaluation_id().to_owned(),
            messages: conversation.messages().len() as u64,
            turns,
            last_answer: answer.map(|(sequence, _)| sequence),
            open_calls: open.into_iter().collect(),
            abandoned_records: conversation.abandoned().len() as u64,
            input_tokens: usage.input,
            output_tokens: usage.output,
        }
    }
}

/// Describes the conversations at a position, in the order of their first records.
///
/// # Errors
///
/// The engine's error if the log cannot be read.
pub(crate) fn summaries(reader: &LogReader, at: SequenceNumber) -> Result<Vec<Summary>> {
    let mut summaries = Vec::new();
    for evaluation in reader.evaluations_at(at) {
        summaries.extend(reader.conversation_at(&evaluation, at)?.as_ref().map(Summary::of));
    }
    Ok(summaries)
}

/// Hands the messages that only one of two positions has to `sink`, conversation by conversation. A path is the message's
/// place in its conversation.
///
/// # Errors
///
/// The engine's error if the log cannot be read, or the error of `sink`.
pub(crate) fn differences(
    reader: &LogReader,
    (before, after): (SequenceNumber, SequenceNumber),
    sink: &mut Sink<'_>,
) -> Result<()> {
    let mut evaluations = reader.evaluations_at(before);
    let known: BTreeSet<_> = evaluations.iter().cloned().collect();
    evaluations.extend(reader.evaluations_at(after).into_iter().filter(|one| !known.contains(one)));
    for evaluation in evaluations {
        let at = |position| -> Result<Vec<ConversationMessage>> {
            let conversation = reader.conversation_at(&evaluation, position)?;
            Ok(conversation.map(|conversation| conversation.messages()).unwrap_or_default())
        };
        let (before, after) = (at(before)?, at(after)?);
        let ids = |messages: &[ConversationMessage]| -> BTreeSet<Uuid> {
            messages.iter().map(|message| message.message_id).collect()
        };
        let mut only = |messages: &[ConversationMessage], others: &BTreeSet<Uuid>, change| -> Result<()> {
            for (place, message) in messages.iter().enumerate() {
                if others.contains(&message.message_id) {
                    continue;
                }
                let value = value(message);
                let (before, after) =
                    if change == Change::Added { (Value::Nil, value) } else { (value, Value::Nil) };
                let (conversation, path) = (Some(evaluation.to_string()), format!("messages[{place}]"));
                sink(Difference { slice: None, conversation, path, change, before, after })?;
            }
            Ok(())
        };
        only(&before, &ids(&after), Change::Removed)?;
        only(&after, &ids(&before), Change::Added)?;
    }
    Ok(())
}

/// Returns what a message says as a value, without time and id.
fn value(message: &ConversationMessage) -> Value {
    let text = |text: &Option<String>| text.as_deref().map_or(Value::Nil, Value::from);
    let mut fields = vec![
        (Value::from("role"), Value::from(message.role.name())),
        (Value::from("content"), text(&message.content)),
    ];
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let (id, name) = (Value::from(call.call_id.as_str()), Value::from(call.name.as_str()));
            let arguments = Value::from(call.arguments.as_str());
            Value::Map(vec![
                (Value::from("call_id"), id),
                (Value::from("name"), name),
                (Value::from("arguments"), arguments),
            ])
        });
        fields.push((Value::from("tool_calls"), Value::Array(calls.collect())));
    }
    if message.tool_call_id.is_some() {
        fields.push((Value::from("tool_call_id"), text(&message.tool_call_id)));
    }
    if let Some(blocks) = &message.blocks {
        fields.push((Value::from("blocks"), Value::from(blocks.json.as_str())));
    }
    Value::Map(fields)
}
