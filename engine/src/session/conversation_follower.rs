//! Reads a conversation that is being written. Each reading covers only the new records.
//!
//! # Invariants
//!
//! 1. [`ConversationFollower::read`] returns the same as
//!    [`SessionConversation::read`](crate::SessionConversation::read) at the same moment.
//! 2. No record is read from the log twice, unless a reading failed. A rollback, and the failure of
//!    a tool, only move known records between the live and the abandoned ones.

use foldlog_codec::SequenceNumber;

use super::{Session, SessionConversation};
use crate::conversation::Conversation;
use crate::error::Result;
use crate::fold::conversation_reading::ConversationReader;

/// Reads one conversation of an open session repeatedly, without reading known records again.
#[derive(Clone, Debug)]
pub struct ConversationFollower {
    session: Session,
    conversation: Conversation,
    /// Last record of the log at the last reading; `None` before the first.
    through: Option<SequenceNumber>,
}

impl ConversationFollower {
    /// Returns the id of the evaluation.
    pub fn evaluation_id(&self) -> &str {
        self.conversation.evaluation_id()
    }

    /// Returns the conversation as it is now, or `None` if the session has recorded none.
    ///
    /// # Errors
    ///
    /// The errors of [`SessionConversation::read`](crate::SessionConversation::read). The next
    /// reading then starts from the beginning.
    pub fn read(&mut self) -> Result<Option<&Conversation>> {
        let (conversations, source, last) = self.session.conversation().recorded_conversations();
        let reader = ConversationReader::new(conversations, source, self.session.inner.id, None);
        match reader.update(&mut self.conversation, self.through, last) {
            Ok(()) => self.through = Some(last),
            Err(error) => {
                self.conversation.clear();
                self.through = None;
                return Err(error);
            }
        }
        Ok(Some(&self.conversation).filter(|conversation| !conversation.is_empty()))
    }
}

impl SessionConversation<'_> {
    /// Returns a reader of one conversation. Each reading costs only the records since the last
    /// one. Use it in a loop that sends the conversation with each request.
    pub fn follow(&self, evaluation_id: impl Into<String>) -> ConversationFollower {
        let conversation = Conversation::new(self.session.inner.id, evaluation_id.into());
        ConversationFollower { session: self.session.clone(), conversation, through: None }
    }
}
