//! How many tokens an evaluation may use.
//!
//! What was spent is no counter that a process holds: it is a sum over the answers and failed requests of the log,
//! those that a rollback abandoned included. So a resumed evaluation starts with what was spent before, and no rollback
//! refunds a token.
//!
//! # What a provider does not say
//!
//! An answer without a usage is *unmetered*: what it used is unknown. [`PromptResponse`](crate::PromptResponse) counts such
//! answers and leaves them out of its usage, and so does a tracker. A budget either assumes more than they are likely to
//! have used, or ends the evaluation: [`UnknownUsagePolicy`]. A request that failed without a usage counts if text had arrived.

use std::fmt;

use foldlog::conversation::{
    ContentBlocks, Conversation, ConversationMessage, EntryContent, TokenUsage, ToolCallRecord,
};
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
    /// What becomes of answers of which the provider does not say what they used.
    pub unmetered: UnknownUsagePolicy,
}

/// Says what a budget makes of an answer of which the provider does not say what it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownUsagePolicy {
    /// One token for every two bytes, of what was sent and of what was returned: texts, calls and results, those of
    /// shortened parts included. Prose in most languages has fewer tokens. Descriptions of tools are not counted.
    #[default]
    Estimate,
    /// The evaluation ends before the next request or tool: [`Error::UsageUnknown`].
    Refuse,
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

/// Counts what an evaluation has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Tokens that the provider named.
    pub metered: TokenUsage,
    /// Number of answers and broken answers whose usage is not known.
    pub unmetered: u64,
}

impl Used {
    /// Counts what the log says that an evaluation has used, abandoned answers included.
    pub fn from_conversation(conversation: &Conversation) -> Used {
        let all = conversation.entries().iter().chain(conversation.abandoned_entries());
        let unmetered = all.filter(|entry| is_unmetered(&entry.content)).count() as u64;
        Used { metered: conversation.usage(), unmetered }
    }
}

/// Returns whether a record holds an answer, whole or in part, whose usage is not known. An answer that was imported cost
/// this evaluation nothing.
fn is_unmetered(content: &EntryContent) -> bool {
    match content {
        EntryContent::Answer { usage, request, .. } => usage.is_none() && request.is_some(),
        EntryContent::RequestFailed { usage, arrived, .. } => usage.is_none() && arrived.is_some(),
        _ => false,
    }
}

/// Estimates what the unmetered answers of a conversation have used.
pub(crate) fn estimate(conversation: &Conversation) -> Usage {
    let mut all: Vec<_> = conversation.entries().iter().chain(conversation.abandoned_entries()).collect();
    all.sort_by_key(|entry| entry.sequence);
    let (mut sent, mut usage) = (0_u64, Usage::default());
    for entry in all {
        let bytes = match &entry.content {
            EntryContent::Input { message, .. } | EntryContent::Answer { message, .. } => bytes_of(message),
            EntryContent::RequestFailed { arrived: Some(arrived), .. } => arrived.len() as u64,
            EntryContent::CallEnded { shown: Some(shown), .. } | EntryContent::CallSettled { shown, .. } => {
                shown.len() as u64
            }
            _ => 0,
        };
        if is_unmetered(&entry.content) {
            add(&mut usage, sent, bytes);
        }
        if !matches!(entry.content, EntryContent::RequestFailed { .. }) {
            sent = sent.saturating_add(bytes);
        }
    }
    usage
}

/// Adds the estimate for an answer to what others used.
pub(crate) fn add(usage: &mut Usage, sent_bytes: u64, returned_bytes: u64) {
    usage.input_tokens = usage.input_tokens.saturating_add(sent_bytes.div_ceil(2));
    usage.output_tokens = usage.output_tokens.saturating_add(returned_bytes.div_ceil(2));
}

/// Returns the number of bytes of what a message says.
pub(crate) fn bytes_of(message: &ConversationMessage) -> u64 {
    bytes(message.content.as_deref(), &message.tool_calls, message.blocks.as_ref())
}

/// Returns the number of bytes of a text, calls and blocks. Blocks repeat the text.
pub(crate) fn bytes(text: Option<&str>, calls: &[ToolCallRecord], blocks: Option<&ContentBlocks>) -> u64 {
    let calls = calls.iter().map(|call| call.name.len() + call.arguments.len());
    let blocks = blocks.map_or(0, |blocks| blocks.json.len());
    (calls.sum::<usize>() + text.map_or(0, str::len).max(blocks)) as u64
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
    let known = tracker.usage_of(evaluation_id);
    let usage = Usage {
        input_tokens: spent.input_tokens.saturating_sub(known.input_tokens),
        output_tokens: spent.output_tokens.saturating_sub(known.output_tokens),
        cost_micros: spent.cost_micros.saturating_sub(known.cost_micros),
    };
    if usage != Usage::default() {
        tracker.record(evaluation_id, usage);
    }
}
