//! The fate of each operation, read from the log alone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog_codec::body::{
    CallOrigin, Cause, Decision, ExternalEffects, Idempotency, Outcome, Settle, ToolBegin, ToolEnd,
};
use foldlog_codec::{Kind, OperationId, Record, SequenceNumber};
use serde::Serialize;

use super::LogReader;
use crate::error::{Error, Result};
use crate::operation::NotUndone;

/// Names what became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The operation has begun and not ended.
    Open,
    /// The operation succeeded, and its changes stay.
    Committed,
    /// The operation failed, and its changes were rolled back.
    Failed,
    /// The operation's process ended before it did, and nobody has settled it.
    Interrupted,
    /// The operation was interrupted, and somebody decided about it.
    Settled,
    /// The operation was committed, and a later rollback undid its changes of STATE.
    Abandoned,
    /// The operation ended in a way that only a later version of foldlog knows.
    Unknown,
}

impl Fate {
    /// Returns the name that listings and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Open => "open",
            Fate::Committed => "committed",
            Fate::Failed => "failed",
            Fate::Interrupted => "interrupted",
            Fate::Settled => "settled",
            Fate::Abandoned => "abandoned",
            Fate::Unknown => "unknown",
        }
    }
}

/// Describes what somebody decided about an interrupted operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settled {
    /// The decision.
    pub decision: Decision,
    /// Who decided.
    pub by: String,
    /// Reason that was given.
    pub reason: String,
    /// Sequence number of the decision's record.
    pub sequence: SequenceNumber,
}

/// Describes one operation, over all of its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerEntry {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Operation within which this one ran.
    pub parent: Option<OperationId>,
    /// Operation that this one undid.
    pub undoes: Option<OperationId>,
    /// Operation about which this one asked the outside what came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verifies: Option<OperationId>,
    /// Answer that asked for the call, and which of its calls it is. `None` if no answer did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<CallOrigin>,
    /// Call id that the model's provider gave.
    pub call_id: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// What may be done with the operation if it is interrupted.
    pub idempotency: Idempotency,
    /// What became of the operation.
    pub outcome: Fate,
    /// Why the operation failed, if it did.
    pub cause: Option<Cause>,
    /// What is known of effects that a rollback does not undo. `None` while the operation is open.
    pub effects: Option<ExternalEffects>,
    /// Changes of its resources that could not be undone when the operation was rolled back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_undone: Vec<NotUndone>,
    /// Sequence number of the operation's latest `tool_begin`.
    pub begin: SequenceNumber,
    /// Sequence number of the end of that run. `None` while it is open.
    pub end: Option<SequenceNumber>,
    /// Duration of that run, in microseconds.
    pub elapsed_us: Option<u64>,
    /// Number of times that the operation began.
    pub runs: u64,
    /// Latest decision about the operation.
    pub settled: Option<Settled>,
}

/// Collects the entries of a ledger from the records of a log.
#[derive(Default)]
struct Ledger {
    entries: BTreeMap<OperationId, LedgerEntry>,
    /// Operation ids of open operations, by the sequence numbers of their begins.
    open: BTreeMap<SequenceNumber, OperationId>,
}

impl Ledger {
    fn take(&mut self, record: &Record<'_>) -> Result<()> {
        let sequence = record.sequence;
        let bad = Error::unread(sequence);
        match record.kind {
            Kind::TOOL_BEGIN => self.begin(sequence, ToolBegin::decode(record.body).map_err(bad)?),
            Kind::TOOL_END => self.end(sequence, &ToolEnd::decode(record.body).map_err(bad)?),
            Kind::SETTLE => {
                let Settle { operation, decision, by, reason, .. } =
                    Settle::decode(record.body).map_err(bad)?;
                if let Some(entry) = self.entries.get_mut(&operation) {
                    if decision != Decision::RunAgain {
                        entry.outcome = Fate::Settled;
                    }
                    entry.settled = Some(Settled { decision, by, reason, sequence });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, sequence: SequenceNumber, begin: ToolBegin<'_>) {
        let operation = begin.again.unwrap_or(sequence.into());
        self.open.insert(sequence, operation);
        let entry = self.entries.entry(operation).or_insert_with(|| LedgerEntry {
            operation,
            parent: begin.parent,
            undoes: begin.undoes,
            verifies: begin.verifies,
            asked_by: begin.origin,
            call_id: begin.call_id.map(Cow::into_owned),
            tool: begin.tool.into_owned(),
            idempotency: begin.idempotency,
            outcome: Fate::Open,
            cause: None,
            effects: None,
            not_undone: Vec::new(),
            begin: sequence,
            end: None,
            elapsed_us: None,
            runs: 0,
            settled: None,
        });
        entry.runs += 1;
        entry.begin = sequence;
        (entry.outcome, entry.cause, entry.effects) = (Fate::Open, None, None);
        (entry.end, entry.elapsed_us) = (None, None);
        entry.not_undone.clear();
    }

    fn end(&mut self, sequence: SequenceNumber, end: &ToolEnd<'_>) {
        let Some(operation) = self.open.remove(&end.begin) else { return };
        let Some(entry) = self.entries.get_mut(&operation) else { return };
        entry.outcome = match end.outcome {
            Outcome::Committed => Fate::Committed,
            Outcome::Failed => Fate::Failed,
            Outcome::Interrupted => Fate::Interrupted,
            Outcome::Other(_) => Fate::Unknown,
        };
        entry.cause = end.cause;
        entry.effects = Some(end.outside);
        entry.not_undone = end.not_undone.iter().map(NotUndone::of_record).collect();
        entry.end = Some(sequence);
        entry.elapsed_us = Some(end.elapsed_us);
    }
}

impl LogReader {
    /// Returns what became of each operation, in the order of their first begins.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if a record's body cannot be decoded,
    /// [`Error::Io`] if a segment can no longer be read.
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>> {
        let mut ledger = Ledger::default();
        let Some(last) = self.places.next_sequence.checked_sub(1) else { return Ok(Vec::new()) };
        self.records(SequenceNumber::MIN, last, |record| ledger.take(record))?;
        let live = self.live_path().live_at(last);
        let is_live = |sequence: SequenceNumber| {
            let at = live.partition_point(|range| *range.end() < sequence);
            live.get(at).is_some_and(|range| range.contains(&sequence))
        };
        let mut entries: Vec<LedgerEntry> = ledger.entries.into_values().collect();
        for entry in &mut entries {
            if entry.outcome == Fate::Committed && !entry.end.is_some_and(is_live) {
                entry.outcome = Fate::Abandoned;
            }
        }
        Ok(entries)
    }
}
