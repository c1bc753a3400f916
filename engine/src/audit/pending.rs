//! The questions of suspended operations, read without the host.

use chrono::{DateTime, Utc};
use foldlog_codec::{OperationId, SequenceNumber};

use super::LogReader;
use crate::error::Result;
use crate::fold::questions::{self, PendingQuestion};
use crate::fold::suspended::Standings;

impl LogReader {
    /// Returns the questions of suspended operations that nobody has answered yet and that have not expired at the time
    /// `now`, in the order of their operation ids.
    ///
    /// # Errors
    ///
    /// Those of [`conversation_at`](LogReader::conversation_at).
    pub fn pending(&self, now: DateTime<Utc>) -> Result<Vec<PendingQuestion>> {
        let standings = self.standings(now.timestamp_micros());
        let budget = self.text_budget();
        let source = self.log_source(&self.outline);
        questions::read(&source, self.opened.session, &standings.waiting(), Some(&budget))
    }

    /// Returns the operations that waited for somebody at a position, and are not over since.
    pub(crate) fn suspended_at(&self, position: SequenceNumber) -> Vec<OperationId> {
        self.standings(i64::MIN).waited_at(position)
    }

    pub(super) fn standings(&self, now_us: i64) -> Standings<'_> {
        Standings {
            operations: &self.outline.operations,
            path: self.live_path(),
            position: self.places.next_sequence.saturating_sub(1),
            opened: self.opened_sequence(),
            now_us,
        }
    }
}
