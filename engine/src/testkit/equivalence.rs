use std::collections::BTreeMap;

use crate::Policy;
use crate::error::{Error, Result};
use crate::session::StoredItem;
use crate::tools::{CompositeSnapshot, ExecutionState};

/// Checks that two snapshots of one run have the same contents: every STATE slice, item by item as
/// recorded, and every resource that rolls back. LOG, CACHE, and resources that no rollback
/// restores, such as a budget, are ignored.
///
/// # Errors
///
/// [`Error::SnapshotMismatch`] with the first difference, or if one of the snapshots is of another
/// session than the run; otherwise the error of reading the log.
pub fn snapshots_equivalent(
    state: &ExecutionState,
    one: &CompositeSnapshot,
    other: &CompositeSnapshot,
) -> Result<()> {
    check_same(slices(state, one)?, slices(state, other)?)?;
    check_resources(state, one, other)
}

/// Checks that a snapshot of one run and a snapshot of another one have the same contents, as
/// [`snapshots_equivalent`] does for one run. The runs may be of different sessions, so the records
/// that inserted the items are not compared.
///
/// # Errors
///
/// The errors of [`snapshots_equivalent`]; each snapshot must be of the session of its own run.
pub fn runs_equivalent(
    state: &ExecutionState,
    one: &CompositeSnapshot,
    other_state: &ExecutionState,
    other: &CompositeSnapshot,
) -> Result<()> {
    let stored = |slices: Slices| -> BTreeMap<String, Vec<_>> {
        let item = |item: StoredItem| (item.version, item.bytes);
        slices.into_iter().map(|(name, items)| (name, items.into_iter().map(item).collect())).collect()
    };
    check_same(stored(slices(state, one)?), stored(slices(other_state, other)?))?;
    check_resources(state, one, other)
}

type Slices = BTreeMap<String, Vec<StoredItem>>;

/// Returns the STATE slices of a snapshot that have items: an empty slice equals one that was never
/// declared.
fn slices(state: &ExecutionState, snapshot: &CompositeSnapshot) -> Result<Slices> {
    let (own, session) = (state.session().id(), snapshot.session.session);
    if session != own {
        let reason = format!("a snapshot is of session {session}, but this run belongs to session {own}");
        return Err(Error::SnapshotMismatch(reason));
    }
    let slices = state.session().dynamic().state_at(snapshot.session.position)?.slices;
    let kept = slices.into_iter().filter(|(_, slice)| slice.policy == Policy::State);
    Ok(kept.map(|(name, slice)| (name, slice.items)).filter(|(_, items)| !items.is_empty()).collect())
}

fn check_same<T: PartialEq>(left: BTreeMap<String, T>, right: BTreeMap<String, T>) -> Result<()> {
    match left.keys().chain(right.keys()).find(|name| left.get(*name) != right.get(*name)) {
        Some(name) => Err(Error::SnapshotMismatch(format!("slice `{name}` differs"))),
        None => Ok(()),
    }
}

fn check_resources(state: &ExecutionState, one: &CompositeSnapshot, other: &CompositeSnapshot) -> Result<()> {
    match one.has_same_resources(other, state.resources())? {
        true => Ok(()),
        false => Err(Error::SnapshotMismatch("a resource differs".to_owned())),
    }
}
