//! Limits on the tokens of an evaluation.
//!
//! Spending is not counted in a process. It is the sum over the answers and failed requests of the
//! log, including those abandoned by a rollback. A resumed evaluation therefore starts with its
//! earlier spending, and no rollback refunds a token.
//!
//! # Unknown usage
//!
//! An answer without a usage is *unmetered*. [`PromptResponse`](crate::PromptResponse) counts such
//! answers but leaves them out of its usage, and so does a tracker. A budget either assumes more
//! tokens than they probably used, or ends the evaluation: see [`UnknownUsagePolicy`]. A failed
//! request without a usage counts as unmetered if text had arrived.

use foldlog::conversation::{
    ContentBlocks, Conversation, ConversationMessage, EntryContent, TokenUsage, ToolCallRecord,
};
use foldlog::tools::resources::{BudgetTracker, Usage};

use crate::error::{Error, Result};
use crate::named;

/// Limits the tokens of an evaluation. A field that is `None` sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Greatest number of input and output tokens together.
    pub max_total_tokens: Option<u64>,
    /// Greatest number of input tokens.
    pub max_input_tokens: Option<u64>,
    /// Greatest number of output tokens.
    pub max_output_tokens: Option<u64>,
    /// Treatment of answers without a reported usage.
    pub unmetered: UnknownUsagePolicy,
}

/// Decides how a budget counts answers without a reported usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownUsagePolicy {
    /// Assumes one token per two bytes sent and returned: texts, calls and results, including those
    /// of shortened parts. Prose in most languages has fewer tokens. Descriptions of tools are not
    /// counted.
    #[default]
    Estimate,
    /// Ends the evaluation before the next request or tool, with [`Error::UsageUnknown`].
    Refuse,
}

named! {
    /// Identifies a limit of a [`Budget`], by the name of its field.
    BudgetLimit {
        /// Input and output tokens together.
        Total = "max_total_tokens",
        /// Input tokens.
        Input = "max_input_tokens",
        /// Output tokens.
        Output = "max_output_tokens",
    }
}

impl Budget {
    /// Creates a budget that limits input and output tokens together.
    pub fn total(max_total_tokens: u64) -> Budget {
        Budget { max_total_tokens: Some(max_total_tokens), ..Budget::default() }
    }

    /// Checks that another request may be sent. A limit reached exactly is used up, because the
    /// next request would exceed it.
    ///
    /// # Errors
    ///
    /// [`Error::BudgetExceeded`] if a limit is used up. It names the first such limit, in the order
    /// total, input, output.
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

/// Contains the usage of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Tokens reported by the provider.
    pub metered: TokenUsage,
    /// Number of complete and partial answers without a known usage.
    pub unmetered: u64,
}

impl Used {
    /// Computes the usage of an evaluation from its log, including abandoned answers.
    pub fn from_conversation(conversation: &Conversation) -> Used {
        let all = conversation.entries().iter().chain(conversation.abandoned_entries());
        let unmetered = all.filter(|entry| is_unmetered(&entry.content)).count() as u64;
        Used { metered: conversation.usage(), unmetered }
    }
}

/// Returns whether a record contains a complete or partial answer without a known usage. An
/// imported answer is excluded: it cost this evaluation nothing.
fn is_unmetered(content: &EntryContent) -> bool {
    match content {
        EntryContent::Answer { usage, request, .. } => usage.is_none() && request.is_some(),
        EntryContent::RequestFailed { usage, arrived, .. } => usage.is_none() && arrived.is_some(),
        _ => false,
    }
}

/// Estimates the usage of the unmetered answers of a conversation.
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

/// Adds the estimate for one answer to a usage.
pub(crate) fn add(usage: &mut Usage, sent_bytes: u64, returned_bytes: u64) {
    usage.input_tokens = usage.input_tokens.saturating_add(sent_bytes.div_ceil(2));
    usage.output_tokens = usage.output_tokens.saturating_add(returned_bytes.div_ceil(2));
}

/// Returns the size of a message's contents, in bytes.
pub(crate) fn bytes_of(message: &ConversationMessage) -> u64 {
    bytes(message.content.as_deref(), &message.tool_calls, message.blocks.as_ref())
}

/// Returns the size of a text, calls and blocks, in bytes. Blocks repeat the text, so the larger of
/// the two counts.
pub(crate) fn bytes(text: Option<&str>, calls: &[ToolCallRecord], blocks: Option<&ContentBlocks>) -> u64 {
    let calls = calls.iter().map(|call| call.name.len() + call.arguments.len());
    let blocks = blocks.map_or(0, |blocks| blocks.json.len());
    (calls.sum::<usize>() + text.map_or(0, str::len).max(blocks)) as u64
}

/// Converts a provider's token counts for a budget. Tokens that the provider read from its cache or
/// wrote into it count as input. The cost is zero, because foldlog knows no prices.
pub fn spend(usage: &TokenUsage) -> Usage {
    Usage {
        input_tokens: usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write),
        output_tokens: usage.output,
        cost_micros: 0,
    }
}

/// Raises a tracker to the spending that the log contains. Tokens that the tracker has already
/// counted are not added again. So a resumed process and an uninterrupted one count the same.
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
