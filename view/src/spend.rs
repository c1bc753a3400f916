//! Tokens that a session has spent on models, and money as far as it is reported.
//!
//! | record | counted for |
//! |---|---|
//! | an answer, or the failure of a request: tokens, as the provider counted them | its evaluation, its model |
//! | the event `prompt_executed`: the cost of a run, and tokens if no record contains the answer | its evaluation, its model |
//! | a capture of the resource `budget`, at the start and at the end of a call: the sums of a host's own tracker | the evaluations that it names |
//!
//! # Invariants
//!
//! 1. No spending is counted twice. An evaluation's tokens come from its answers, or else from its
//!    events, or else from the budget. Its cost is that of its events or that of the budget,
//!    whichever is more.
//! 2. Sums never decrease: abandoned records count, and so does the maximum of a budget, since a
//!    host may reset one.
//! 3. An unreported cost is `None`, not 0. A budget whose cost is 0 reports none, since a tracker
//!    starts at 0.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::tools::resources::{BudgetSnapshot, BudgetTracker, Snapshotable};
use foldlog::{Event, Record, RecordKind, SequenceNumber};
use foldlog_agent::events::PromptExecuted;
use foldlog_codec::body::{
    Action, AnswerBody, Dispatch, Lane, Request, ResourceSnapshot, TokenUsage, ToolBegin, ToolEnd,
};
use foldlog_codec::msgpack;
use serde::Serialize;

/// Tokens and cost that were spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Input tokens, without those that the provider read from its cache or wrote into it.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Tokens that the provider read from its cache.
    pub cache_read_tokens: u64,
    /// Tokens that the provider wrote into its cache.
    pub cache_write_tokens: u64,
    /// Cost in millionths of the host's currency; `None` if it is not reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

impl Spent {
    /// Returns the number of input tokens, including those of the cache.
    pub fn sent_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.cache_read_tokens).saturating_add(self.cache_write_tokens)
    }

    /// Returns whether any tokens are counted.
    pub fn has_tokens(&self) -> bool {
        self.sent_tokens() > 0 || self.output_tokens > 0
    }

    /// Returns whether neither tokens nor cost are known.
    pub fn is_nothing(&self) -> bool {
        *self == Spent::default()
    }

    /// Returns the sum of both; saturates at the maximum.
    #[must_use]
    pub fn plus(self, other: Spent) -> Spent {
        self.each(other, u64::saturating_add)
    }

    /// Returns the difference; saturates at 0.
    #[must_use]
    pub fn minus(self, other: Spent) -> Spent {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Spent, of: impl Fn(u64, u64) -> u64) -> Spent {
        let cost = (self.cost_micros, other.cost_micros);
        Spent {
            input_tokens: of(self.input_tokens, other.input_tokens),
            output_tokens: of(self.output_tokens, other.output_tokens),
            cache_read_tokens: of(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: of(self.cache_write_tokens, other.cache_write_tokens),
            cost_micros: match cost {
                (None, None) => None,
                (one, two) => Some(of(one.unwrap_or_default(), two.unwrap_or_default())),
            },
        }
    }
}

impl From<TokenUsage> for Spent {
    fn from(usage: TokenUsage) -> Spent {
        Spent {
            input_tokens: usage.input,
            output_tokens: usage.output,
            cache_read_tokens: usage.cache_read,
            cache_write_tokens: usage.cache_write,
            cost_micros: None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum SpendEvent {
    /// A model received a request.
    Requested { model: String },
    /// A request was answered, or failed.
    Metered {
        evaluation: String,
        /// Start record of the run of a tool through whose handle the record was written.
        within: Option<SequenceNumber>,
        request: Option<SequenceNumber>,
        model: Option<String>,
        spent: Spent,
    },
    /// An evaluation returned its output.
    Executed { within: Option<SequenceNumber>, event: Box<PromptExecuted> },
    /// Sums of a tracker.
    Budget(Arc<BudgetSnapshot>),
}

/// Reads spending from the records of one log.
pub(crate) struct SpendReader<'a> {
    reader: &'a LogReader,
    /// Ids under which the log declares the event `prompt_executed`.
    executed: BTreeSet<u32>,
    /// The last capture of a budget, encoded and decoded: most calls do not change it.
    budget: Option<(Vec<u8>, Arc<BudgetSnapshot>)>,
}

impl<'a> SpendReader<'a> {
    pub(crate) fn new(reader: &'a LogReader) -> SpendReader<'a> {
        let declared = reader.declarations().events.into_iter();
        let executed = declared.filter(|event| event.name == PromptExecuted::NAME).map(|event| event.id);
        SpendReader { reader, executed: executed.collect(), budget: None }
    }

    /// Returns the spending that a record reports; `None` if it reports none or cannot be read.
    pub(crate) fn read_event(&mut self, record: &Record<'_>) -> Option<SpendEvent> {
        match record.kind {
            RecordKind::Answer => {
                let AnswerBody { scope, request, model, usage, .. } = AnswerBody::decode(record.body).ok()?;
                Some(SpendEvent::Metered {
                    evaluation: scope.evaluation.into_owned(),
                    within: scope.lane.within,
                    request,
                    model: model.map(std::borrow::Cow::into_owned),
                    spent: usage?.into(),
                })
            }
            RecordKind::Request => {
                let Request { scope, model, failure, .. } = Request::decode(record.body).ok()?;
                let Some(failure) = failure else {
                    return Some(SpendEvent::Requested { model: model?.into_owned() });
                };
                Some(SpendEvent::Metered {
                    evaluation: scope.evaluation.into_owned(),
                    within: scope.lane.within,
                    request: Some(failure.request),
                    model: None,
                    spent: failure.usage?.into(),
                })
            }
            RecordKind::Dispatch if !self.executed.is_empty() => self.read_execution(record),
            RecordKind::ToolBegin => self.budget(&ToolBegin::decode(record.body).ok()?.resources),
            RecordKind::ToolEnd => self.budget(&ToolEnd::decode(record.body).ok()?.resources),
            _ => None,
        }
    }

    fn read_execution(&self, record: &Record<'_>) -> Option<SpendEvent> {
        let Action::Event { event, data } = Dispatch::decode(record.body).ok()?.action else { return None };
        if !self.executed.contains(&event) {
            return None;
        }
        // A host may use this name for another event.
        let event = msgpack::from_slice(&self.reader.payload(data).ok()?).ok()?;
        let within = Lane::decode(record.kind, record.body).ok()?.within;
        Some(SpendEvent::Executed { within, event: Box::new(event) })
    }

    fn budget(&mut self, captures: &[ResourceSnapshot<'_>]) -> Option<SpendEvent> {
        let capture = captures.iter().find(|capture| capture.resource == BudgetTracker::NAME)?;
        let bytes = self.reader.payload(capture.snapshot?).ok()?;
        if let Some((_, read)) = self.budget.as_ref().filter(|(known, _)| known[..] == bytes[..]) {
            return Some(SpendEvent::Budget(Arc::clone(read)));
        }
        let read = Arc::new(BudgetTracker::recall(&bytes).ok()?);
        self.budget = Some((bytes.to_vec(), Arc::clone(&read)));
        Some(SpendEvent::Budget(read))
    }
}

/// Spending of one evaluation, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Account {
    metered: Spent,
    executed: Spent,
    budget: Spent,
}

impl Account {
    fn spent(&self) -> Spent {
        let told = [self.metered, self.executed, self.budget];
        let tokens = told.into_iter().find(Spent::has_tokens).unwrap_or_default();
        Spent { cost_micros: self.executed.cost_micros.max(self.budget.cost_micros), ..tokens }
    }

    fn add_execution(&mut self, event: &PromptExecuted) {
        if event.answer.is_none() {
            // Each event contains the sums of its evaluation so far.
            let sums = Spent {
                input_tokens: event.input_tokens,
                output_tokens: event.output_tokens,
                cache_read_tokens: event.cache_read_tokens,
                ..Spent::default()
            };
            self.executed = self.executed.each(sums, u64::max);
        }
        let cost = Spent { cost_micros: event.cost_micros, ..Spent::default() };
        self.executed = self.executed.plus(cost);
    }
}

/// Returns a tracker's counts for each evaluation since an earlier capture.
fn counted_since<'a>(
    now: &'a BudgetSnapshot,
    before: Option<&'a BudgetSnapshot>,
) -> impl Iterator<Item = (&'a String, Spent)> {
    now.spent.iter().map(move |(evaluation, now)| {
        let before = before.and_then(|before| before.spent.get(evaluation)).copied().unwrap_or_default();
        let cost = now.cost_micros.saturating_sub(before.cost_micros);
        let spent = Spent {
            input_tokens: now.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: now.output_tokens.saturating_sub(before.output_tokens),
            cost_micros: (cost > 0).then_some(cost),
            ..Spent::default()
        };
        (evaluation, spent)
    })
}

/// Spending of the evaluations of a session, or of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    accounts: BTreeMap<String, Account>,
    pub(crate) total: Spent,
}

impl Accounts {
    pub(crate) fn spent_by(&self, evaluation: &str) -> Spent {
        self.accounts.get(evaluation).map(Account::spent).unwrap_or_default()
    }

    /// Counts the spending of a record. Returns each evaluation whose sum grew, with the new sum.
    pub(crate) fn take(&mut self, told: &SpendEvent) -> Vec<(String, Spent)> {
        match told {
            SpendEvent::Requested { .. } => Vec::new(),
            SpendEvent::Metered { evaluation, spent, .. } => {
                let count = |account: &mut Account| account.metered = account.metered.plus(*spent);
                self.change(evaluation, count).into_iter().collect()
            }
            SpendEvent::Executed { event, .. } => self
                .change(&event.evaluation_id, |account| account.add_execution(event))
                .into_iter()
                .collect(),
            SpendEvent::Budget(held) => self.budget(held, None),
        }
    }

    /// Counts a tracker's sums since an earlier capture.
    pub(crate) fn budget(
        &mut self,
        held: &BudgetSnapshot,
        before: Option<&BudgetSnapshot>,
    ) -> Vec<(String, Spent)> {
        let counted = counted_since(held, before).filter_map(|(evaluation, spent)| {
            self.change(evaluation, |account| account.budget = account.budget.each(spent, u64::max))
        });
        counted.collect()
    }

    fn change(&mut self, evaluation: &str, change: impl FnOnce(&mut Account)) -> Option<(String, Spent)> {
        let known = self.accounts.get(evaluation).copied().unwrap_or_default();
        let mut account = known;
        change(&mut account);
        let (before, now) = (known.spent(), account.spent());
        if account != known {
            self.accounts.insert(evaluation.to_owned(), account);
        }
        if now == before {
            return None;
        }
        self.total = self.total.minus(before).plus(now);
        Some((evaluation.to_owned(), now))
    }
}
