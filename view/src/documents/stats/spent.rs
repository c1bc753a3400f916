//! Sums that a session has spent, by model, by tool and over its records.

use std::collections::BTreeMap;

use foldlog::{OperationId, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::{Outcome, Payload, ToolBegin, ToolEnd};
use foldlog_codec::record::time_text;
use serde::Serialize;

use super::payload_bytes;
use crate::spend::{Accounts, SpendEvent, SpendReader, Spent};

/// Maximum number of records for which sums are returned.
const POINTS_MAX: usize = 200;

/// Maximum number of enclosing calls that are charged for a call. A log may claim any number.
const AROUND_MAX: usize = 64;

/// Counts the spending of a model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModelStats {
    /// Name of the model; `None` for requests whose records do not name it.
    pub model: Option<String>,
    /// Number of requests for which the provider reported usage.
    pub requests: u64,
    /// Usage of these requests, and the cost of the runs whose last answer came from this model.
    #[serde(flatten)]
    pub spent: Spent,
}

/// Counts the calls of a tool and their resources.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ToolStats {
    /// Name of the tool.
    pub tool: String,
    /// Number of calls. A call that ran again counts once.
    pub calls: u64,
    /// Number of calls that failed.
    pub failed_calls: u64,
    /// Bytes of the calls' arguments.
    pub argument_bytes: u64,
    /// Bytes of the calls' results, and of the results' text for the model.
    pub result_bytes: u64,
    /// Duration of the calls in microseconds, including the calls within them.
    pub elapsed_us: u64,
    /// Spending of evaluations within the calls, including the calls within them; `None` if no
    /// record reports any.
    #[serde(flatten)]
    pub spent: Option<Spent>,
}

/// Sums that a session had spent when a record was written.
#[derive(Clone, Debug, Serialize)]
pub struct SpentAt {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub time: String,
    /// Sums spent so far.
    #[serde(flatten)]
    pub spent: Spent,
}

struct OpenCall {
    tool: String,
    operation: OperationId,
    parent: Option<OperationId>,
    accounts: Accounts,
    /// State of the budget tracker when the call started.
    budget: Option<SpendEvent>,
}

/// Counts the spending, record by record.
#[derive(Default)]
pub(super) struct SpendTally {
    accounts: Accounts,
    points: Vec<(SequenceNumber, i64, Spent)>,
    models: BTreeMap<Option<String>, ModelStats>,
    /// Models of requests that have no answer yet.
    requested: BTreeMap<SequenceNumber, String>,
    /// Model of each evaluation's last answer.
    answered: BTreeMap<String, String>,
    tools: BTreeMap<String, ToolStats>,
    /// Open calls by start record, and the start record of each open operation.
    open: BTreeMap<SequenceNumber, OpenCall>,
    runs: BTreeMap<OperationId, SequenceNumber>,
}

impl SpendTally {
    pub(super) fn take(&mut self, record: &Record<'_>, sources: &mut SpendReader<'_>) {
        let told = sources.read_event(record);
        if let Some(told) = &told {
            self.count_event(record, told);
        }
        match record.kind {
            RecordKind::ToolBegin => {
                if let Ok(begin) = ToolBegin::decode(record.body) {
                    self.begin(record.sequence, &begin, told);
                }
            }
            RecordKind::ToolEnd => {
                if let Ok(end) = ToolEnd::decode(record.body) {
                    self.end(&end, told.as_ref());
                }
            }
            _ => {}
        }
    }

    fn count_event(&mut self, record: &Record<'_>, told: &SpendEvent) {
        let before = match told {
            SpendEvent::Executed { event, .. } => self.accounts.spent_by(&event.evaluation_id),
            _ => Spent::default(),
        };
        if !self.accounts.take(told).is_empty() {
            self.points.push((record.sequence, record.time_us, self.accounts.total));
        }
        match told {
            SpendEvent::Requested { model } => drop(self.requested.insert(record.sequence, model.clone())),
            SpendEvent::Metered { evaluation, within, request, model, spent } => {
                let asked = request.and_then(|request| self.requested.remove(&request));
                let model = model.clone().or(asked);
                if let Some(model) = &model {
                    self.answered.insert(evaluation.clone(), model.clone());
                }
                let stats = self.model(model);
                stats.requests += 1;
                stats.spent = stats.spent.plus(*spent);
                self.count_for_call(*within, told);
            }
            SpendEvent::Executed { within, event } => {
                let since = self.accounts.spent_by(&event.evaluation_id).minus(before);
                let since = Spent { cost_micros: event.cost_micros, ..since };
                if !since.is_nothing() {
                    let last = || self.answered.get(&event.evaluation_id).cloned();
                    let model = event.model.clone().or_else(last);
                    let stats = self.model(model);
                    stats.spent = stats.spent.plus(since);
                }
                self.count_for_call(*within, told);
            }
            SpendEvent::Budget(_) => {}
        }
    }

    fn model(&mut self, model: Option<String>) -> &mut ModelStats {
        let named = || ModelStats { model: model.clone(), ..ModelStats::default() };
        self.models.entry(model.clone()).or_insert_with(named)
    }

    fn tool(&mut self, tool: &str) -> &mut ToolStats {
        let named = || ToolStats { tool: tool.to_owned(), ..ToolStats::default() };
        self.tools.entry(tool.to_owned()).or_insert_with(named)
    }

    /// Charges spending within a run of a tool to its call and to the enclosing calls.
    fn count_for_call(&mut self, run: Option<SequenceNumber>, told: &SpendEvent) {
        let mut run = run;
        for _ in 0..AROUND_MAX {
            let Some(call) = run.and_then(|run| self.open.get_mut(&run)) else { return };
            call.accounts.take(told);
            run = call.parent.and_then(|parent| self.runs.get(&parent)).copied();
        }
    }

    fn begin(&mut self, sequence: SequenceNumber, begin: &ToolBegin<'_>, budget: Option<SpendEvent>) {
        let operation = begin.again.unwrap_or(sequence.into());
        let stats = self.tool(&begin.tool);
        stats.calls += u64::from(begin.again.is_none());
        stats.argument_bytes = stats.argument_bytes.saturating_add(payload_bytes(begin.arguments));
        let (tool, accounts) = (begin.tool.to_string(), Accounts::default());
        self.open.insert(sequence, OpenCall { tool, operation, parent: begin.parent, accounts, budget });
        self.runs.insert(operation, sequence);
    }

    fn end(&mut self, end: &ToolEnd<'_>, budget: Option<&SpendEvent>) {
        let spent = self.open.remove(&end.begin).map(|mut call| {
            self.runs.remove(&call.operation);
            if let (Some(SpendEvent::Budget(before)), Some(SpendEvent::Budget(now))) = (&call.budget, budget)
            {
                call.accounts.budget(now, Some(before));
            }
            (call.tool, call.accounts.total)
        });
        // The end record repeats the name, for a log that starts within the call.
        let (tool, spent) = spent.unwrap_or_else(|| (end.tool.to_string(), Spent::default()));
        let stats = self.tool(&tool);
        stats.failed_calls += u64::from(end.outcome == Outcome::Failed);
        let results =
            [end.result, end.shown].into_iter().flatten().map(|one: Payload<'_>| payload_bytes(one));
        stats.result_bytes = results.fold(stats.result_bytes, u64::saturating_add);
        stats.elapsed_us = stats.elapsed_us.saturating_add(end.elapsed_us);
        if !spent.is_nothing() {
            stats.spent = Some(stats.spent.unwrap_or_default().plus(spent));
        }
    }

    /// Returns models and tools, in the order of their names.
    pub(super) fn models_and_tools(&self) -> (Vec<ModelStats>, Vec<ToolStats>) {
        (self.models.values().cloned().collect(), self.tools.values().cloned().collect())
    }

    /// Returns the sums over the records. The last record that spent anything is always included.
    /// Of many records, every n-th is included.
    pub(super) fn points(&self) -> Vec<SpentAt> {
        let every = self.points.len().div_ceil(POINTS_MAX).max(1);
        let kept = self.points.iter().rev().step_by(every).rev();
        let kept = kept.map(|(sequence, time_us, spent)| SpentAt {
            sequence: *sequence,
            time: time_text(*time_us),
            spent: *spent,
        });
        kept.collect()
    }
}
