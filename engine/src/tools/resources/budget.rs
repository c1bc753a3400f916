use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{CaptureOptions, Snapshotable, decode_capture, encode_capture};
use crate::error::Result;

/// Contains amounts of spent tokens and money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of tokens sent to a model.
    pub input_tokens: u64,
    /// Number of tokens that a model returned.
    pub output_tokens: u64,
    /// Cost in millionths of the host's currency.
    pub cost_micros: u64,
}

impl Usage {
    /// Combines each amount with that of `other`.
    fn combine(self, other: Usage, with: fn(u64, u64) -> u64) -> Usage {
        Usage {
            input_tokens: with(self.input_tokens, other.input_tokens),
            output_tokens: with(self.output_tokens, other.output_tokens),
            cost_micros: with(self.cost_micros, other.cost_micros),
        }
    }
}

/// Contains the usage of each evaluation at the capture of a [`BudgetTracker`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSnapshot {
    /// Usage of each evaluation, by the evaluation's name.
    pub spent: BTreeMap<String, Usage>,
}

/// Counts the usage of evaluations, as the resource `budget`. A failed tool does not roll the
/// counts back: spent amounts remain spent. Only
/// [`ExecutionState::restore`](crate::ExecutionState::restore) resets the counts.
///
/// A run of a session raises the counts to those that the session's last call recorded, in any
/// process and on any machine. They are never lower. Amounts that were counted after that call and
/// never captured are known only to their process.
#[derive(Debug, Default)]
pub struct BudgetTracker {
    spent: Mutex<BTreeMap<String, Usage>>,
}

impl BudgetTracker {
    /// Adds `usage` to the amounts of the evaluation of this name. A sum saturates at [`u64::MAX`].
    pub fn record(&self, evaluation: &str, usage: Usage) {
        let mut spent = self.spent.lock();
        let before = spent.entry(evaluation.to_owned()).or_default();
        *before = before.combine(usage, u64::saturating_add);
    }

    /// Returns the usage of the evaluation of this name; zero if it has none.
    pub fn usage_of(&self, evaluation: &str) -> Usage {
        self.spent.lock().get(evaluation).copied().unwrap_or_default()
    }

    /// Returns the total usage of all evaluations. A sum saturates at [`u64::MAX`].
    pub fn total(&self) -> Usage {
        self.spent
            .lock()
            .values()
            .fold(Usage::default(), |total, usage| total.combine(*usage, u64::saturating_add))
    }
}

impl Snapshotable for BudgetTracker {
    const NAME: &'static str = "budget";
    type Snapshot = BudgetSnapshot;

    fn snapshot(&self, _: &CaptureOptions) -> Result<BudgetSnapshot> {
        Ok(BudgetSnapshot { spent: self.spent.lock().clone() })
    }

    /// Sets the counts to those of the snapshot. Only a host requests this: no failed tool rolls a
    /// budget back.
    fn restore(&self, snapshot: &BudgetSnapshot) -> Result<()> {
        self.spent.lock().clone_from(&snapshot.spent);
        Ok(())
    }

    fn record(snapshot: &BudgetSnapshot) -> Result<Option<Vec<u8>>> {
        encode_capture::<Self>(snapshot).map(Some)
    }

    fn recall(recorded: &[u8]) -> Result<BudgetSnapshot> {
        decode_capture::<Self>(recorded)
    }

    fn is_unchanged(&self, since: &BudgetSnapshot) -> bool {
        *self.spent.lock() == since.spent
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn rolls_back(&self) -> bool {
        false
    }

    fn carry_over(&self, recorded: &BudgetSnapshot) {
        let mut spent = self.spent.lock();
        for (evaluation, recorded) in &recorded.spent {
            let known = spent.entry(evaluation.clone()).or_default();
            *known = known.combine(*recorded, u64::max);
        }
    }
}
