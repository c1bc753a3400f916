use std::collections::BTreeMap;

use crate::Policy;
use crate::error::{Error, Result};
use crate::session::StoredItem;
use crate::tools::{CompositeSnapshot, ExecutionState};

/// Checks that two snapshots of one run hold the same: every STATE slice, item by item as recorded, and every resource
/// that rolls back. LOG, CACHE, and resources that no rollback restores, such as a budget, do not count.
///
/// # Errors
///
/// [`Error::SnapshotMismatch`] with the first difference, or if one of the snapshots is of another session than the run; otherwise the error of
/// reading the log.
pub fn snapshots_equivalent(
    state: &ExecutionState,
    one: &CompositeSnapshot,
    other: &CompositeSnapshot,
) -> Result<()> {
    let own = state.session().id();
    for snapshot in [one, other] {
        let session = snapshot.session.session;
        if session != own {
            let reason = format!("a snapshot is of session {session}, but this run belongs to session {own}");
            return Err(Error::SnapshotMismatch(reason));
        }
    }
    let slices = |snapshot: &CompositeSnapshot| -> Result<BTreeMap<String, Vec<StoredItem>>> {
        let slices = state.session().state_at(snapshot.session.position)?.slices;
        let kept = slices.into_iter().filter(|(_, slice)| slice.policy == Policy::State);
        // An empty slice equals one that was never declared.
        Ok(kept.map(|(name, slice)| (name, slice.items)).filter(|(_, items)| !items.is_empty()).collect())
    };
    let (left, right) = (slices(one)?, slices(other)?);
    for name in left.keys().chain(right.keys()) {
        if left.get(name) != right.get(name) {
            return Err(Error::SnapshotMismatch(format!("slice `{name}` differs")));
        }
    }
    if !one.has_same_resources(other, state.resources())? {
        return Err(Error::SnapshotMismatch("a resource differs".to_owned()));
    }
    Ok(())
}
