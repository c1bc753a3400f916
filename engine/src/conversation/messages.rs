//! Messages as they were recorded, made of the records of a conversation one after the other.

use std::collections::BTreeMap;

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use super::entries::{ConversationRecord, EntryContent, closed_call, result_of};
use super::model::{ConversationMessage, ToolCallRecord};

/// Makes the messages of one conversation. Of the answers that it was shown it holds the ids and names of their calls.
#[derive(Debug)]
pub(crate) struct RecordedMessages {
    session: Uuid,
    calls: BTreeMap<SequenceNumber, Vec<ToolCallRecord>>,
}

impl RecordedMessages {
    pub(crate) fn new(session: Uuid) -> RecordedMessages {
        RecordedMessages { session, calls: BTreeMap::new() }
    }

    /// Returns the message that a record brought, which comes behind those that this was asked about before; `None` if it brought
    /// none, as the end of a call does whose answer is not among these.
    pub(crate) fn message(&mut self, entry: &ConversationRecord) -> Option<ConversationMessage> {
        match &entry.content {
            EntryContent::Input { message, .. } => Some(message.clone()),
            EntryContent::Answer { message, .. } => {
                let named = message.tool_calls.iter().map(|call| ToolCallRecord {
                    call_id: call.call_id.clone(),
                    name: call.name.clone(),
                    arguments: String::new(),
                });
                self.calls.insert(entry.sequence, named.collect());
                Some(message.clone())
            }
            EntryContent::CallEnded { origin, .. } | EntryContent::CallSettled { origin, .. } => {
                let (_, closed) = closed_call(entry)?;
                let call = self.calls.get(&origin.answer)?.get(origin.ordinal as usize);
                Some(result_of(self.session, call, &closed))
            }
            _ => None,
        }
    }

    /// Returns about how many bytes are held of a message's calls once it was made.
    pub(crate) fn held_bytes(message: &ConversationMessage) -> u64 {
        let texts = message.tool_calls.iter().map(|call| call.call_id.len() + call.name.len());
        let calls = message.tool_calls.len() * size_of::<ToolCallRecord>();
        (texts.sum::<usize>() + calls) as u64
    }
}
