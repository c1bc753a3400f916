use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use foldlog::{SequenceNumber, conversation};

use super::CapturedState;

/// Contains one recorded capture.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterStateSnapshot {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// State of any adapter.
    pub state: CapturedState,
    /// Time of the record.
    pub captured_at: DateTime<Utc>,
    /// Id of the evaluation that captured the state.
    pub evaluation_id: String,
    /// Capture that this one replaces.
    pub supersedes: Option<SequenceNumber>,
    /// Last entry of the provider's session that the state covers, by the provider's own id.
    pub entry: Option<String>,
    /// Name of the occasion of the capture, such as `init`, `tool` or `complete`.
    pub occasion: String,
    /// Whether the capture is on the live path; `false` if a rollback abandoned it.
    pub is_live: bool,
}

impl From<conversation::AdapterStateSnapshot> for AdapterStateSnapshot {
    fn from(recorded: conversation::AdapterStateSnapshot) -> AdapterStateSnapshot {
        AdapterStateSnapshot {
            sequence: recorded.sequence,
            state: CapturedState::from_json(recorded.adapter, recorded.resumable, recorded.state),
            captured_at: recorded.captured_at,
            evaluation_id: recorded.evaluation_id,
            supersedes: recorded.supersedes,
            entry: recorded.entry,
            occasion: recorded.occasion,
            is_live: recorded.is_live,
        }
    }
}

/// Returns the captures that are not superseded, in their order. A capture supersedes only earlier
/// ones.
pub(super) fn heads(
    snapshots: &[AdapterStateSnapshot],
) -> impl DoubleEndedIterator<Item = &AdapterStateSnapshot> {
    let superseded: BTreeSet<SequenceNumber> = snapshots
        .iter()
        .filter_map(|later| later.supersedes.filter(|earlier| *earlier < later.sequence))
        .collect();
    snapshots.iter().filter(move |snapshot| !superseded.contains(&snapshot.sequence))
}

/// Returns a capture and those that it replaced, latest first.
pub(super) fn chain<'a>(
    snapshots: &'a [AdapterStateSnapshot],
    head: &'a AdapterStateSnapshot,
) -> impl Iterator<Item = &'a AdapterStateSnapshot> {
    std::iter::successors(Some(head), move |later| {
        let earlier = later.supersedes.filter(|earlier| *earlier < later.sequence)?;
        let place = snapshots.binary_search_by_key(&earlier, |snapshot| snapshot.sequence).ok()?;
        snapshots.get(place)
    })
}
