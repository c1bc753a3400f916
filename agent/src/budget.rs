//! How many tokens an evaluation may use.
//!
//! What was spent is no counter that a process holds: it is a sum over the answers and failed requests of the log,
//! those that a rollback abandoned included. So a resumed evaluation starts with what was spent before, and no rollback
//! refunds a token.

use std::fmt;

use foldlog::conversation::TokenUsage;
use foldlog::tools::resources::{BudgetTracker, Usage};

use crate::error::{Error, Result};

/// Limits the tokens that an evaluation may use. What is `None` has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Greatest number of tokens sent and returned together.
    pub max_total_tokens: Option<u64>,
    /// Greatest number of tokens sent to the model.
    pub max_input_tokens: Option<u64>,
    /// Greatest number of tokens that the model returned.
    pub max_output_tokens: Option<u64>,
}

/// Names one of the limits of a [`Budget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BudgetLimit {
    /// Tokens sent and returned together.
    Total,
    /// Tokens sent to the model.
    Input,
    /// Tokens that the model returned.
    Output,
}

impl BudgetLimit {
    /// Returns the name of the limit's field in [`Budget`].
    pub fn name(self) -> &'static str {
        match self {
            BudgetLimit::Total => "max_total_tokens",
            BudgetLimit::Input => "max_input_tokens",
            BudgetLimit::Output => "max_output_tokens",
        }
    }
}

impl fmt::Display for BudgetLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Budget {
    /// Makes a budget without limits.
    pub fn unlimited() -> Budget {
        Budget::default()
    }

    /// Makes a budget that limits the tokens sent and returned together.
    pub fn total(max_total_tokens: u64) -> Budget {
        Budget { max_total_tokens: Some(max_total_tokens), ..Budget::default() }
    }

    /// Checks that another request may be sent. A limit that was reached exactly is used up: the next request would
    /// exceed it.
    ///
    /// # Errors
    ///
    /// [`Error::BudgetExceeded`] if a limit is used up; it names the first of total, input and output that is.
    pub fn check(&self, spent: &Usage) -> Result<()> {
        let total = spent.input_tokens.saturating_add(spent.output_tokens);
        let limits = [
            (BudgetLimit::Total, self.max_total_tokens, total),
            (BudgetLimit::Input, self.max_input_tokens, spent.input_tokens),
            (BudgetLimit::Output, self.max_output_tokens, spent.output_tokens),
        ];
        for (limit, max, spent) in limits {
            if let Some(max) = max.filter(|max| spent >= *max) {
                return Err(Error::BudgetExceeded { limit, max, spent });
            }
        }
        Ok(())
    }
}

/// Returns what a count of tokens, as a provider gave it, comes to in a budget: tokens that the provider read from its
/// cache or wrote into it were sent too. The cost is left at zero, since foldlog knows no prices.
pub fn spend(usage: &TokenUsage) -> Usage {
    Usage {
        input_tokens: usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write),
        output_tokens: usage.output,
        cost_micros: 0,
    }
}

/// Brings a tracker up to what the log says an evaluation has spent. Counts that the tracker already has are not added
/// again, so that a resumed process and one that never stopped come to the same.
pub fn track(tracker: &BudgetTracker, evaluation_id: &str, spent: Usage) {
    let known = tracker.of(evaluation_id);
    let usage = Usage {
        input_tokens: spent.input_tokens.saturating_sub(known.input_tokens),
        output_tokens: spent.output_tokens.saturating_sub(known.output_tokens),
        cost_micros: spent.cost_micros.saturating_sub(known.cost_micros),
    };
    if usage != Usage::default() {
        tracker.record(evaluation_id, usage);
    }
}
