//! Conversations of a log, read without the host.

use foldlog_codec::SequenceNumber;
use smol_str::SmolStr;

use super::LogReader;
use crate::conversation::{AdapterStateSnapshot, Conversation};
use crate::error::Result;
use crate::fold::conversation_reading::{ConversationReader, TextBudget};

impl LogReader {
    /// Returns the ids of the evaluations with a conversation on the live path as of `position`, in
    /// the order of their first records.
    pub fn evaluations_at(&self, position: impl Into<SequenceNumber>) -> Vec<SmolStr> {
        self.outline.conversations.evaluations_at(self.at_most(position.into()))
    }

    /// Returns the ids of all evaluations whose conversation had begun by `position`, including
    /// conversations that a rollback has abandoned since, in the order of their first records.
    pub fn evaluations_through(&self, position: impl Into<SequenceNumber>) -> Vec<SmolStr> {
        self.outline.conversations.evaluations_through(self.at_most(position.into()))
    }

    /// Returns the conversation of an evaluation as of `position`. `None` if there was none.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged,
    /// [`Error::Inconsistent`](crate::Error::Inconsistent) if a text is not valid text,
    /// [`Error::OverBudget`](crate::Error::OverBudget) if the texts take more than
    /// [`memory_bytes`](LogReader::memory_bytes).
    pub fn conversation_at(
        &self,
        evaluation_id: &str,
        position: impl Into<SequenceNumber>,
    ) -> Result<Option<Conversation>> {
        self.conversation_reader(&self.text_budget())
            .conversation(evaluation_id, self.at_most(position.into()))
    }

    /// Returns the conversations of all evaluations as of `position`. Together they take no more
    /// than [`memory_bytes`](LogReader::memory_bytes).
    pub(crate) fn conversations_at(&self, position: SequenceNumber) -> Result<Vec<Conversation>> {
        let (evaluations, budget) = (self.evaluations_at(position), self.text_budget());
        let (reader, position) = (self.conversation_reader(&budget), self.at_most(position));
        let read = |one: &SmolStr| reader.conversation(one, position).transpose();
        evaluations.iter().filter_map(read).collect()
    }

    pub(super) fn conversation_reader<'a>(&self, budget: &'a TextBudget<'a>) -> ConversationReader<'a> {
        let (conversations, source) = (self.outline.conversations.clone(), self.log_source(&self.outline));
        ConversationReader::new(conversations, source, self.opened.session, Some(budget))
    }

    pub(super) fn text_budget(&self) -> TextBudget<'_> {
        TextBudget::new(&self.dir, self.memory_bytes())
    }

    /// Returns the states that adapters had recorded by `position`, in the order of their records.
    pub fn adapter_states_at(
        &self,
        position: impl Into<SequenceNumber>,
    ) -> Result<Vec<AdapterStateSnapshot>> {
        let position = self.at_most(position.into());
        self.conversation_reader(&self.text_budget()).adapter_states(position)
    }

    fn at_most(&self, position: SequenceNumber) -> SequenceNumber {
        position.min(self.places.next_sequence.saturating_sub(1))
    }
}
