//! Effects of a rewind on slices and conversations.

use std::ops::ControlFlow;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Policy;

use super::report::{ConversationRewound, SliceRewound};
use crate::conversation::{Conversation, EntryContent};
use crate::error::Result;
use crate::fold::conversation_reading::{TextBudget, value_bytes};
use crate::inspect::{Difference, StateReader, messages_of};
use crate::session::Session;
use crate::session::rewind::{ConversationBeside, SlicesBeside};

/// Counts the changes of each slice, and finds the differences of STATE slices. The budget counts
/// these and the names of the items.
///
/// # Errors
///
/// [`Error::OverBudget`](crate::Error::OverBudget) if these take more memory than the store's
/// [limit](crate::MemoryLimit); otherwise, the errors of [`StateReader::slice_differences`].
pub(super) fn slices(
    beside: SlicesBeside,
    budget: Option<&TextBudget<'_>>,
) -> Result<(Vec<SliceRewound>, Vec<Difference>)> {
    let counts = beside.counts().into_iter().map(|counts| SliceRewound {
        name: counts.name,
        policy: counts.policy,
        items_before: counts.before,
        items_after: counts.after,
        removed: counts.removed,
        added: counts.added,
    });
    let counts = counts.collect();
    let SlicesBeside { now, then, source, limit } = beside;
    let sequence = now.next_sequence().saturating_sub(1);
    let hold = |bytes| budget.map_or(Ok(()), |budget| budget.hold(sequence, bytes));
    hold(now.items_bytes() + then.items_bytes())?;
    let now = StateReader { projection: now, source: source.clone(), limit: limit.clone() };
    let then = StateReader { projection: then, source, limit };
    let mut differences = Vec::new();
    now.slice_differences(&then, |policy| policy == Policy::State, &mut |difference| {
        hold(value_bytes(&difference.before) + value_bytes(&difference.after))?;
        differences.push(difference);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((counts, differences))
}

/// Counts the changes of each conversation, and finds the messages that are removed or restored,
/// which the budget counts.
///
/// # Errors
///
/// [`Error::OverBudget`](crate::Error::OverBudget) if these, or a compared conversation, take more
/// memory than is left; otherwise, the errors of
/// [`SessionConversation::read_at`](crate::SessionConversation::read_at).
pub(super) fn conversations(
    session: &Session,
    to: SequenceNumber,
    budget: Option<&TextBudget<'_>>,
) -> Result<(Vec<ConversationRewound>, Vec<Difference>)> {
    let (mut conversations, mut differences) = (Vec::new(), Vec::new());
    session.calls().conversations_between(
        to,
        budget,
        &mut |ConversationBeside { evaluation_id, now, then }| {
            let messages =
                |one: &Option<Conversation>| one.as_ref().map_or(0, |one| one.messages().len() as u64);
            let (before, after) = (turns(now.as_ref()), turns(then.as_ref()));
            let of_messages = messages_of(&evaluation_id, now.as_ref(), then.as_ref());
            if before == after && of_messages.is_empty() {
                return Ok(());
            }
            if let Some(budget) = budget {
                let bytes =
                    of_messages.iter().map(|one| value_bytes(&one.before) + value_bytes(&one.after)).sum();
                budget.hold(to, bytes)?;
            }
            differences.extend(of_messages);
            conversations.push(ConversationRewound {
                evaluation_id,
                messages_before: messages(&now),
                messages_after: messages(&then),
                turns_before: before.len() as u64,
                turns_after: after.len() as u64,
                turns_removed: before
                    .iter()
                    .filter(|turn| after.binary_search(turn).is_err())
                    .copied()
                    .collect(),
            });
            Ok(())
        },
    )?;
    Ok((conversations, differences))
}

/// Returns the records of the completed turns, in ascending order.
fn turns(conversation: Option<&Conversation>) -> Vec<SequenceNumber> {
    let entries = conversation.map(Conversation::entries).unwrap_or_default().iter();
    let turns = entries.filter(|entry| matches!(entry.content, EntryContent::Turn { .. }));
    turns.map(|entry| entry.sequence).collect()
}
