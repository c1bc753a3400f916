//! Effects of a rewind on slices and conversations.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{ItemId, Policy};

use super::report::{ConversationRewound, SliceRewound};
use crate::conversation::{Conversation, EntryContent};
use crate::error::Result;
use crate::fold::conversation_reading::{TextBudget, value_bytes};
use crate::fold::projection::Projection;
use crate::inspect::{Difference, StateReader, messages_of};
use crate::items::SliceItems;
use crate::session::Session;
use crate::session::rewind::SlicesBeside;

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
    let SlicesBeside { now, then, source, limit } = beside;
    let slices = now.names.slices().iter();
    let mut counts: Vec<_> = slices.filter_map(|slice| slice_rewound(&now, &then, slice.id)).collect();
    counts.sort_by(|one: &SliceRewound, other| one.name.cmp(&other.name));
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

/// Counts the items of a slice that are removed and restored; `None` if it is unchanged.
fn slice_rewound(now: &Projection, then: &Projection, id: u32) -> Option<SliceRewound> {
    let name = now.names.slice(id)?.name.clone();
    let (policy, SliceItems::Held(now)) = now.items(id)? else { return None };
    let items_before = now.len() as u64;
    let counts = |items_after, removed, added| {
        let counts = SliceRewound { name, policy, items_before, items_after, removed, added };
        (removed > 0 || added > 0).then_some(counts)
    };
    if policy == Policy::Cache {
        return counts(0, items_before, 0);
    }
    let then = match then.items(id) {
        Some((_, SliceItems::Held(then))) => Some(then),
        _ => None,
    };
    let in_then = |item: ItemId| then.is_some_and(|then| then.contains(item));
    let removed = now.iter().filter(|row| !in_then(row.id)).count() as u64;
    let added = then.map_or(0, |then| then.iter().filter(|row| !now.contains(row.id)).count() as u64);
    counts(then.map_or(0, |then| then.len() as u64), removed, added)
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
    let recorded = session.conversation();
    let mut evaluations = recorded.evaluations();
    let known: BTreeSet<_> = evaluations.iter().cloned().collect();
    evaluations.extend(recorded.evaluations_at(to).into_iter().filter(|one| !known.contains(one)));
    for evaluation in evaluations {
        // Each may use at most the memory that is left of the budget now.
        let left = budget.cloned();
        let read = |at| recorded.read_conversation(&evaluation, at, left.as_ref());
        let (now, then) = (read(SequenceNumber::MAX)?, read(to)?);
        let messages = |one: &Option<Conversation>| one.as_ref().map_or(0, |one| one.messages().len() as u64);
        let (before, after) = (turns(now.as_ref()), turns(then.as_ref()));
        let of_messages = messages_of(&evaluation, now.as_ref(), then.as_ref());
        if before == after && of_messages.is_empty() {
            continue;
        }
        if let Some(budget) = budget {
            let bytes =
                of_messages.iter().map(|one| value_bytes(&one.before) + value_bytes(&one.after)).sum();
            budget.hold(to, bytes)?;
        }
        differences.extend(of_messages);
        conversations.push(ConversationRewound {
            evaluation_id: evaluation.to_string(),
            messages_before: messages(&now),
            messages_after: messages(&then),
            turns_before: before.len() as u64,
            turns_after: after.len() as u64,
            turns_removed: before.iter().filter(|turn| after.binary_search(turn).is_err()).copied().collect(),
        });
    }
    Ok((conversations, differences))
}

/// Returns the records of the completed turns, in ascending order.
fn turns(conversation: Option<&Conversation>) -> Vec<SequenceNumber> {
    let entries = conversation.map(Conversation::entries).unwrap_or_default().iter();
    let turns = entries.filter(|entry| matches!(entry.content, EntryContent::Turn { .. }));
    turns.map(|entry| entry.sequence).collect()
}
