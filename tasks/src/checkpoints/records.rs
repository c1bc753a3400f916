//! Sources of records for checkpoints: an open session, or a log.

use foldlog::conversation::{Conversation, EntryContent};
use foldlog::inspect::{DecodedRecord, LogReader};
use foldlog::{LivePath, Outcome, Result, SequenceNumber, Session, SmolStr, State};

/// Reads records, and the state at a position.
pub(super) trait RecordSource {
    /// Passes records to `visit`, in order, including those whose bodies a compaction has dropped.
    fn visit(
        &self,
        from: SequenceNumber,
        through: SequenceNumber,
        visit: &mut dyn FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()>;
    /// Returns the path of the records that count.
    fn path(&self) -> LivePath;
    /// Returns all slices at a position.
    fn state_at(&self, position: SequenceNumber) -> Result<State>;
    /// Counts the messages of all conversations at a position.
    fn messages_at(&self, position: SequenceNumber) -> Result<u64>;
    /// Counts the messages of all conversations that were recorded after `after` and count at
    /// `position`. Returns `None` if earlier messages may no longer count.
    fn messages_behind(&self, after: SequenceNumber, position: SequenceNumber) -> Result<Option<u64>>;
}

impl RecordSource for Session {
    fn visit(
        &self,
        from: SequenceNumber,
        through: SequenceNumber,
        visit: &mut dyn FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        self.log().contents_left(from, through, visit)
    }

    fn path(&self) -> LivePath {
        self.log().live_path()
    }

    fn state_at(&self, position: SequenceNumber) -> Result<State> {
        self.dynamic().state_at(position)
    }

    fn messages_at(&self, position: SequenceNumber) -> Result<u64> {
        messages_in(&self.conversation().evaluations(), |id| self.conversation().read_at(id, position))
    }

    fn messages_behind(&self, after: SequenceNumber, position: SequenceNumber) -> Result<Option<u64>> {
        let mut sum = 0;
        for id in self.conversation().evaluations() {
            match self.conversation().read_behind(&id, after, position)? {
                Some(conversation) => sum += messages_of(&conversation),
                None => return Ok(None),
            }
        }
        Ok(Some(sum))
    }
}

impl RecordSource for LogReader {
    fn visit(
        &self,
        from: SequenceNumber,
        through: SequenceNumber,
        visit: &mut dyn FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        self.contents_left(from, through, visit)
    }

    fn path(&self) -> LivePath {
        self.live_path().clone()
    }

    fn state_at(&self, position: SequenceNumber) -> Result<State> {
        LogReader::state_at(self, position)
    }

    fn messages_at(&self, position: SequenceNumber) -> Result<u64> {
        messages_in(&self.evaluations_at(position), |id| self.conversation_at(id, position))
    }

    fn messages_behind(&self, _: SequenceNumber, _: SequenceNumber) -> Result<Option<u64>> {
        Ok(None)
    }
}

fn messages_in(evaluations: &[SmolStr], read: impl Fn(&str) -> Result<Option<Conversation>>) -> Result<u64> {
    evaluations.iter().try_fold(0, |sum, id| {
        let conversation = read(id)?;
        Ok(sum + conversation.map_or(0, |one| one.recorded_messages().len() as u64))
    })
}

/// Counts the messages at the end of a conversation: user messages, answers, and results of calls.
/// The answers with these calls may be before it.
fn messages_of(end: &Conversation) -> u64 {
    let is_message = |content: &EntryContent| match content {
        EntryContent::Input { .. } | EntryContent::Answer { .. } => true,
        EntryContent::CallEnded { outcome, .. } => {
            !matches!(outcome, Outcome::Interrupted | Outcome::Suspended)
        }
        EntryContent::CallSettled { committed, .. } => committed.is_some(),
        _ => false,
    };
    end.entries().iter().filter(|entry| is_message(&entry.content)).count() as u64
}
