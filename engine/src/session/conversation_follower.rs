//! Reads a conversation that is being written, each time only what was recorded since the time before.
//!
//! # Invariants
//!
//! 1. What [`ConversationFollower::read`] returns equals what [`Session::conversation`] returns at the same moment.
//! 2. No record is read from the log twice, unless a reading failed. A rollback, and the failure of a tool, only move
//!    records that are held already between those that count and those that do not.

use foldlog_codec::SequenceNumber;

use super::Session;
use crate::conversation::Conversation;
use crate::error::Result;
use crate::fold::conversation_reading;

/// Reads one conversation of an open session again and again, without reading again what it knows.
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

    /// Returns the conversation as it is now. `None` if the session has recorded none.
    ///
    /// # Errors
    ///
    /// Those of [`Session::conversation`]. The next reading then begins anew.
    pub fn read(&mut self) -> Result<Option<&Conversation>> {
        let (conversations, source, last) = self.session.recorded_conversations();
        let (conversation, through) = (&mut self.conversation, self.through);
        match conversation_reading::update(conversation, &conversations, &source, through, last, None) {
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

impl Session {
    /// Returns a reader of one conversation, which costs what was recorded since it was last asked. A loop that sends a
    /// conversation again for each request reads it so.
    pub fn follow_conversation(&self, evaluation_id: impl Into<String>) -> ConversationFollower {
        let conversation = Conversation::new(self.inner.id, evaluation_id.into());
        ConversationFollower { session: self.clone(), conversation, through: None }
    }
}
