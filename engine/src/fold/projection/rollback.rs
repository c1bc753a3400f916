//! Rollbacks of a projection: capturing its present position, and returning to a captured one.
//!
//! A rollback restores STATE and empties CACHE. LOG, names, tags, operations, and the state of
//! replication are unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Policy, Rollback};

use super::super::conversations::Conversations;
use super::{FoldContext, Projection};
use crate::error::{Error, Result};
use crate::items::SliceItems;
use crate::items::log_items::LogItems;
use crate::items::rows::Rows;

#[derive(Clone, Debug)]
pub(crate) struct FrozenProjection {
    pub(crate) projection: Projection,
    /// Whether all slices are those of the position. An image contains no more than STATE.
    pub(crate) is_whole: bool,
}

impl Projection {
    /// Captures the present position for a later rollback. Items are shared, so this costs little.
    pub(crate) fn freeze(&self) -> FrozenProjection {
        // The index of conversations is never read from a captured position. It is not shared with
        // one, so that the next record of a conversation copies nothing.
        let projection = Projection { conversations: Conversations::default(), ..self.clone() };
        FrozenProjection { projection, is_whole: true }
    }

    /// Creates an earlier position for which only STATE is known, by slice id. A slice that is not
    /// named was empty.
    pub(in crate::fold) fn state_alone(&self, mut slices: BTreeMap<u32, Rows>) -> FrozenProjection {
        let mut projection = self.clone();
        for (id, slice) in (0..).zip(&mut projection.slices) {
            if let (Policy::State, SliceItems::Held(rows)) = (slice.policy, &mut slice.items) {
                *rows = slices.remove(&id).unwrap_or_else(|| rows.empty_copy());
            }
        }
        FrozenProjection { projection, is_whole: false }
    }

    /// Sets STATE to that of the first open operation's start, until a recovery rolls back the
    /// changes since. No record contains this change, so it is only for the projection of a session
    /// that accepts no record until then.
    pub(crate) fn show_state_at(&mut self, begin: SequenceNumber, frozen: &FrozenProjection) {
        self.roll_back_to(self.next_sequence, &Rollback { to: begin, preserve_logs: true }, frozen);
    }

    pub(super) fn rollback(
        &mut self,
        sequence: SequenceNumber,
        rollback: &Rollback,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        let to = rollback.to;
        if to >= sequence {
            let reason = format!("it rolls back to {to}, which is not before it");
            return Err(Error::Inconsistent { sequence, reason });
        }
        let frozen = (folding.frozen)(to);
        if self.gathers() {
            if let Some(then) = frozen.as_ref().filter(|then| then.projection.is_exact()) {
                self.gather_from(then);
            }
            if rollback.preserve_logs {
                return Ok(());
            }
        }
        // LOG is known in a compacted range too.
        let is_known = |frozen: &Arc<FrozenProjection>| self.gathers() || frozen.projection.is_exact();
        let known = frozen.filter(is_known).filter(|frozen| rollback.preserve_logs || frozen.is_whole);
        let frozen = known.ok_or_else(|| Error::Inconsistent {
            sequence,
            reason: format!("the state at position {to} is unknown"),
        })?;
        self.roll_back_to(sequence, rollback, &frozen);
        Ok(())
    }

    /// Rolls STATE back to that of `frozen`, and empties CACHE. `sequence` is the rollback's
    /// record.
    fn roll_back_to(&mut self, sequence: SequenceNumber, rollback: &Rollback, frozen: &FrozenProjection) {
        let (to, gathers) = (rollback.to, self.gathers());
        for (index, slice) in self.slices.iter_mut().enumerate() {
            let then = frozen.projection.slices.get(index).map(|then| &then.items);
            match (&mut slice.items, then) {
                (SliceItems::Held(_), _) if gathers && slice.policy != Policy::Log => {}
                (SliceItems::Held(rows), _) if slice.policy == Policy::Cache => rows.clear(),
                _ if slice.policy == Policy::Log && rollback.preserve_logs => {}
                (SliceItems::Held(rows), Some(SliceItems::Held(then))) => *rows = then.clone(),
                // A slice that was declared later was empty then.
                (SliceItems::Held(rows), _) => rows.clear(),
                (SliceItems::InLog(items), Some(SliceItems::InLog(then))) => {
                    items.roll_back(then, to, sequence);
                }
                (SliceItems::InLog(items), _) => {
                    let then = LogItems::new(items.tail_max);
                    items.roll_back(&then, to, sequence);
                }
            }
        }
    }
}
