//! Projections at earlier positions.
//!
//! A rollback needs STATE as it was at its target. Keeping it costs little, since items are shared: the
//! session keeps the positions of its latest snapshots, and a fold over a log with rollbacks keeps each
//! rollback's target from the time it passes it until the last rollback that needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;

use super::projection::{Frozen, Projection};

/// How many snapshots' positions are kept.
const KEPT_MAX: usize = 256;

/// Kept positions.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// The latest snapshots.
    snapshots: BTreeMap<SequenceNumber, Arc<Frozen>>,
    /// Positions that rollbacks of the log go back to: how many are still to come, and STATE there.
    targets: BTreeMap<SequenceNumber, (usize, Option<Arc<Frozen>>)>,
    /// STATE where operations began that have not ended, a few at most; nothing at the last one, where all is still as
    /// it was then.
    begun: Vec<(SequenceNumber, Option<Arc<Frozen>>)>,
}

impl Positions {
    /// Says that one more rollback of the log goes back to a position, which is to be kept once it is passed.
    pub(crate) fn expect_target(&mut self, sequence: SequenceNumber) {
        self.targets.entry(sequence).or_insert((0, None)).0 += 1;
    }

    /// Whether the position of a record that was just applied is worth keeping.
    pub(crate) fn wants(&self, sequence: SequenceNumber) -> bool {
        self.targets.contains_key(&sequence)
    }

    /// Keeps a position that a rollback of the log goes back to.
    pub(crate) fn keep_target(&mut self, sequence: SequenceNumber, frozen: Arc<Frozen>) {
        if let Some((_, slot)) = self.targets.get_mut(&sequence) {
            *slot = Some(frozen);
        }
    }

    /// Keeps a snapshot's position, and lets go of the oldest where there are too many.
    pub(crate) fn keep_snapshot(&mut self, sequence: SequenceNumber, frozen: Arc<Frozen>) {
        self.snapshots.insert(sequence, frozen);
        if self.snapshots.len() > KEPT_MAX {
            self.snapshots.pop_first();
        }
    }

    /// STATE at a position, where it is kept.
    pub(crate) fn get(&self, sequence: SequenceNumber) -> Option<Arc<Frozen>> {
        let target = || self.targets.get(&sequence).and_then(|(_, frozen)| frozen.clone());
        let begun = || self.begun.iter().find(|(begin, _)| *begin == sequence)?.1.as_ref();
        self.snapshots.get(&sequence).or_else(begun).cloned().or_else(target)
    }

    /// Keeps the position at which an operation began, until it ends. Without `frozen` it is kept
    /// [before anything changes](Positions::before_change), which spares an operation that changes nothing the cost.
    pub(crate) fn begin(&mut self, sequence: SequenceNumber, frozen: Option<Arc<Frozen>>) {
        self.begun.push((sequence, frozen));
    }

    /// Keeps the position at which the last operation began, where it is not kept and all is still as it was then.
    #[inline]
    pub(crate) fn before_change(&mut self, present: &Projection) {
        if let Some((_, frozen @ None)) = self.begun.last_mut() {
            *frozen = Some(Arc::new(present.freeze()));
        }
    }

    /// The positions at which open operations began, where `present` is how all is now.
    pub(crate) fn begun(&self, present: &Projection) -> Vec<(SequenceNumber, Arc<Frozen>)> {
        let state = |frozen: &Option<Arc<Frozen>>| match frozen {
            Some(frozen) => Arc::clone(frozen),
            None => Arc::new(present.freeze()),
        };
        self.begun.iter().map(|(sequence, frozen)| (*sequence, state(frozen))).collect()
    }

    /// Lets go of the position of an operation that has ended.
    pub(crate) fn end(&mut self, begin: SequenceNumber) {
        self.begun.retain(|(sequence, _)| *sequence != begin);
    }

    /// Keeps a position for one rollback that is about to be written.
    pub(crate) fn hold(&mut self, sequence: SequenceNumber, frozen: Arc<Frozen>) {
        self.expect_target(sequence);
        self.keep_target(sequence, frozen);
    }

    /// Counts one rollback to `sequence` as done; whether it was the last one that is still to come.
    pub(crate) fn done(&mut self, sequence: SequenceNumber) -> bool {
        if let Some((left, _)) = self.targets.get_mut(&sequence) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.targets.remove(&sequence);
                return true;
            }
        }
        false
    }
}
