//! Messages as recorded, derived from the records of a conversation in order.

use std::collections::BTreeMap;

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use super::entries::{ConversationRecord, EntryContent, closed_call, result_of};
use super::model::{ConversationMessage, ToolCallRecord};

/// Derives the messages of one conversation. Of each answer it stores only the ids and names of the
/// calls.
#[derive(Debug)]
pub(crate) struct RecordedMessages {
    session: Uuid,
    calls: BTreeMap<SequenceNumber, Vec<ToolCallRecord>>,
}

impl RecordedMessages {
    pub(crate) fn new(session: Uuid) -> RecordedMessages {
        RecordedMessages { session, calls: BTreeMap::new() }
    }

    /// Returns the message of a record, or `None` if it has none, such as the end of a call if its
    /// answer was not passed before. Records must be passed in order.
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
                let (_, end) = closed_call(self.session, entry)?;
                let call = self.calls.get(&origin.answer)?.get(origin.ordinal as usize);
                Some(result_of(&end, call))
            }
            _ => None,
        }
    }

    /// Returns about how many bytes are stored for a message's calls.
    pub(crate) fn held_bytes(message: &ConversationMessage) -> u64 {
        let texts = message.tool_calls.iter().map(|call| call.call_id.len() + call.name.len());
        let calls = message.tool_calls.len() * size_of::<ToolCallRecord>();
        (texts.sum::<usize>() + calls) as u64
    }
}
