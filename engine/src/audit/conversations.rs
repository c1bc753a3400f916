//! Conversations of a log, read without the host.

use foldlog_codec::SequenceNumber;
use smol_str::SmolStr;

use super::LogReader;
use crate::conversation::{AdapterStateSnapshot, Conversation};
use crate::error::Result;
use crate::fold::conversation_reading::{self, TextBudget};

impl LogReader {
    /// Returns the ids of the evaluations that had a conversation on the live path when the record at `position` had been
    /// written, in the order of their first records.
    pub fn evaluations_at(&self, position: impl Into<SequenceNumber>) -> Vec<SmolStr> {
        self.outline.conversations.evaluations_at(self.at_most(position.into()))
    }

    /// Returns the conversation of an evaluation as it was when the record at `position` had been written. `None` if
    /// there was none.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read, [`Error::Object`](crate::Error::Object) if an object is
    /// missing or damaged, [`Error::Inconsistent`](crate::Error::Inconsistent) if a text is no text,
    /// [`Error::OverBudget`](crate::Error::OverBudget) if the texts take more than
    /// [`memory_bytes`](LogReader::memory_bytes).
    pub fn conversation_at(
        &self,
        evaluation_id: &str,
        position: impl Into<SequenceNumber>,
    ) -> Result<Option<Conversation>> {
        let wanted = (evaluation_id, self.at_most(position.into()));
        let session = self.opened.session;
        let budget = TextBudget { session_dir: &self.dir, bytes: self.memory_bytes() };
        let conversations = &self.outline.conversations;
        conversation_reading::conversation(
            conversations,
            &self.log_source(&self.outline),
            session,
            wanted,
            Some(budget),
        )
    }

    /// Returns the conversations of all evaluations as they were at `position`.
    pub(crate) fn conversations_at(&self, position: SequenceNumber) -> Result<Vec<Conversation>> {
        let evaluations = self.evaluations_at(position);
        evaluations.iter().filter_map(|one| self.conversation_at(one, position).transpose()).collect()
    }

    /// Returns the states that adapters had recorded when the record at `position` had been written, in the order of
    /// their records.
    ///
    /// # Errors
    ///
    /// Those of [`conversation_at`](LogReader::conversation_at).
    pub fn adapter_states_at(
        &self,
        position: impl Into<SequenceNumber>,
    ) -> Result<Vec<AdapterStateSnapshot>> {
        let position = self.at_most(position.into());
        conversation_reading::adapter_states(
            &self.outline.conversations,
            &self.log_source(&self.outline),
            position,
        )
    }

    fn at_most(&self, position: SequenceNumber) -> SequenceNumber {
        position.min(self.places.next_sequence.saturating_sub(1))
    }
}
