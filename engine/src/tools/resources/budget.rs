use std::collections::BTreeMap;

use foldlog_codec::msgpack;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{CaptureOptions, Snapshotable};
use crate::error::{Error, Result};

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens that were sent.
    pub input_tokens: u64,
    /// Tokens that came back.
    pub output_tokens: u64,
    /// Money, in millionths of the host's currency.
    pub cost_micros: u64,
}

impl Usage {
    fn plus(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }
}

/// What was spent, by evaluation, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSnapshot {
    /// By evaluation.
    pub spent: BTreeMap<String, Usage>,
}

/// Counts what evaluations spend. What is spent stays spent: a tool that fails gives nothing back.
#[derive(Debug, Default)]
pub struct BudgetTracker {
    spent: Mutex<BTreeMap<String, Usage>>,
}

impl BudgetTracker {
    /// Counts what an evaluation spent.
    pub fn record(&self, evaluation: &str, usage: Usage) {
        let mut spent = self.spent.lock();
        let before = spent.entry(evaluation.to_owned()).or_default();
        *before = before.plus(usage);
    }

    /// What an evaluation has spent so far.
    pub fn of(&self, evaluation: &str) -> Usage {
        self.spent.lock().get(evaluation).copied().unwrap_or_default()
    }

    /// What all have spent together.
    pub fn total(&self) -> Usage {
        self.spent.lock().values().fold(Usage::default(), |total, usage| total.plus(*usage))
    }
}

/// About as many bytes as one evaluation takes where it is recorded.
const RECORDED_BYTES: usize = 64;

impl Snapshotable for BudgetTracker {
    const NAME: &'static str = "budget";
    type Snapshot = BudgetSnapshot;

    fn snapshot(&self, _: &CaptureOptions<'_>) -> Result<BudgetSnapshot> {
        Ok(BudgetSnapshot { spent: self.spent.lock().clone() })
    }

    /// Sets the counts to those of the snapshot, which only a host asks for.
    fn restore(&self, snapshot: &BudgetSnapshot) -> Result<()> {
        self.spent.lock().clone_from(&snapshot.spent);
        Ok(())
    }

    fn record(snapshot: &BudgetSnapshot) -> Result<Option<Vec<u8>>> {
        let mut recorded = Vec::with_capacity(RECORDED_BYTES * (1 + snapshot.spent.len()));
        msgpack::append(snapshot, &mut recorded).map_err(|error| refused(error.to_string()))?;
        Ok(Some(recorded))
    }

    fn recall(recorded: &[u8]) -> Result<BudgetSnapshot> {
        msgpack::from_slice(recorded).map_err(|error| refused(error.to_string()))
    }

    fn is_unchanged(&self, since: &BudgetSnapshot) -> bool {
        *self.spent.lock() == since.spent
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn rolls_back(&self) -> bool {
        false
    }
}

fn refused(reason: String) -> Error {
    Error::Resource { resource: BudgetTracker::NAME.to_owned(), reason }
}
