//! The questions of suspended operations, read without the host.

use chrono::{DateTime, Utc};
use foldlog_codec::body::ToolBegin;
use foldlog_codec::{OperationId, SequenceNumber};

use super::LogReader;
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::fold::questions::{self, PendingQuestion};
use crate::fold::suspensions::Standings;
use crate::session::{Settlement, settle};

impl LogReader {
    /// Returns the questions of suspended operations that are unanswered and have not expired at
    /// the time `now`, in the order of their operation ids.
    pub fn pending_questions(&self, now: DateTime<Utc>) -> Result<Vec<PendingQuestion>> {
        let standings = self.standings(now.timestamp_micros());
        let budget = self.text_budget();
        let source = self.log_source(&self.outline);
        questions::read(&source, self.opened.session, &standings.waiting_operations(), Some(&budget))
    }

    /// Returns the BLAKE3 hash of the arguments of an operation that can be settled in this way at
    /// the time `now_us`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperation`] if the operation waits for no such decision. The errors of
    /// [`pending_questions`](LogReader::pending_questions).
    pub(crate) fn waits_for_decision(
        &self,
        operation: OperationId,
        settlement: &Settlement,
        now_us: i64,
    ) -> Result<[u8; 32]> {
        settle::check(&self.standings(now_us), operation, settlement)?;
        if let Some(suspended) = self.outline.operations.suspended_one(operation) {
            return Ok(suspended.suspension.arguments);
        }
        let begin = self.outline.operations.unsettled_one(operation).map(|unsettled| unsettled.begin);
        let (begin, source) = (begin.unwrap_or(operation.sequence()), self.log_source(&self.outline));
        let mut digest = None;
        self.records(begin, begin, |record| {
            let arguments = ToolBegin::decode(record.body).map_err(Error::unread(begin))?.arguments;
            let text = conversation_reading::text(&source, begin, arguments)?;
            digest = Some(*blake3::hash(text.as_bytes()).as_bytes());
            Ok(())
        })?;
        digest
            .ok_or(Error::NoSuchOperation { operation, reason: "the log does not contain its start record" })
    }

    /// Returns the operations that waited for a decision at a position, and are not over since.
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
