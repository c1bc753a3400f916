//! What became of each operation, from the log alone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog_codec::body::{
    Cause, Decision, ExternalEffects, Idempotency, Outcome, Settle, ToolBegin, ToolEnd,
};
use foldlog_codec::{Kind, OperationId, Record, SequenceNumber};
use serde::Serialize;

use super::LogReader;
use crate::error::{Error, Result};
use crate::operation::NotUndone;

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It has begun and not ended.
    Open,
    /// What it did stays.
    Committed,
    /// What it did was taken back.
    Failed,
    /// Its process ended before it did; nobody has settled it.
    Interrupted,
    /// It was interrupted, and somebody decided what became of it.
    Settled,
    /// It was committed, and a later rollback took back what it did in STATE.
    Abandoned,
}

impl Fate {
    /// The name in listings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Open => "open",
            Fate::Committed => "committed",
            Fate::Failed => "failed",
            Fate::Interrupted => "interrupted",
            Fate::Settled => "settled",
            Fate::Abandoned => "abandoned",
        }
    }
}

/// What somebody decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settled {
    /// The decision.
    pub decision: Decision,
    /// Who decided.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The decision's record.
    pub sequence: SequenceNumber,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerEntry {
    /// Its name: the sequence number of its first begin.
    pub operation: OperationId,
    /// The operation within which it ran.
    pub parent: Option<OperationId>,
    /// The operation that it undid.
    pub undoes: Option<OperationId>,
    /// The provider's name for the call.
    pub call_id: Option<String>,
    /// The tool.
    pub tool: String,
    /// What might be done with it when it was interrupted.
    pub idempotency: Idempotency,
    /// What became of it.
    pub outcome: Fate,
    /// Why, where it failed.
    pub cause: Option<Cause>,
    /// What is known of its effects outside; nothing while it is open.
    pub effects: Option<ExternalEffects>,
    /// What it did to its resources and was not undone with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_undone: Vec<NotUndone>,
    /// The sequence number of its latest begin.
    pub begin: SequenceNumber,
    /// The sequence number of the end of that.
    pub end: Option<SequenceNumber>,
    /// How long that ran, in microseconds.
    pub elapsed_us: Option<u64>,
    /// How often it began.
    pub runs: u64,
    /// The latest decision about it.
    pub settled: Option<Settled>,
}

#[derive(Default)]
struct Ledger {
    entries: BTreeMap<OperationId, LedgerEntry>,
    /// From the begins of those that are open to their names.
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
        };
        entry.cause = end.cause;
        entry.effects = Some(end.outside);
        entry.not_undone = end.not_undone.iter().map(NotUndone::of_record).collect();
        entry.end = Some(sequence);
        entry.elapsed_us = Some(end.elapsed_us);
    }
}

impl LogReader {
    /// What became of each operation, in the order in which they first began.
    ///
    /// # Errors
    ///
    /// What reading says.
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
