//! Points at which a fold can continue, so that many positions of a log are read without a new fold
//! for each.

use std::sync::Arc;

use foldlog_codec::{Record, SequenceNumber};

use super::{LogReader, StateReader};
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::fold::memory::Watch;
use crate::fold::positions::Positions;
use crate::fold::projection::{FrozenProjection, Projection};

/// Stores the slices of a log at one position, and at earlier positions that are targets of later
/// rollbacks. Points of one log share common data, so a further one takes little memory.
#[derive(Clone, Debug)]
pub struct FoldPoint {
    projection: Projection,
    /// Positions before this one that a later record rolls back to.
    targets: Vec<(SequenceNumber, Arc<FrozenProjection>)>,
    watch: Option<Watch>,
}

impl FoldPoint {
    /// Returns the position: the sequence number of the last record that was folded. `None` before
    /// the first.
    pub fn position(&self) -> Option<SequenceNumber> {
        self.projection.next_sequence().checked_sub(1)
    }

    /// Returns whether a fold can continue from here through the record at `position`: whether the
    /// point has all earlier positions that are targets of rollbacks on the way there. A log that
    /// has grown may have further targets.
    pub fn reaches(&self, reader: &LogReader, position: impl Into<SequenceNumber>) -> bool {
        let (next, end) = (self.projection.next_sequence(), position.into() + 1);
        let holds =
            |to: SequenceNumber| to + 1 >= next || self.targets.iter().any(|(target, _)| *target == to);
        next <= end && reader.rollbacks.range(next..end).all(|(_, rollback)| holds(rollback.to))
    }
}

impl LogReader {
    /// Continues a fold from a point, or from the start of the log, through the record at
    /// `position`. `visit` receives each record, and a function that returns the slices after it. A
    /// fold can pass positions that a compaction has dropped, and continue from them. The slices
    /// that it returns there are not the original ones.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`, or the point does not
    /// [reach](FoldPoint::reaches) it; [`Error::CompactedMeanwhile`] if a compaction has replaced a
    /// segment since the log was opened; otherwise the errors of [`fold`](LogReader::fold).
    pub fn fold_on(
        &self,
        from: Option<&FoldPoint>,
        position: impl Into<SequenceNumber>,
        mut visit: impl FnMut(&Record<'_>, &dyn Fn() -> StateReader) -> Result<()>,
    ) -> Result<FoldPoint> {
        let position = position.into();
        let next = self.places.next_sequence;
        if position >= next || from.is_some_and(|from| !from.reaches(self, position)) {
            return Err(Error::NoSuchPosition { position, last: next.checked_sub(1) });
        }
        let (projection, targets, watch) = match from {
            Some(FoldPoint { projection, targets, watch }) => {
                (projection.clone(), targets.as_slice(), watch.clone())
            }
            None => (self.history().new_projection(), [].as_slice(), self.history().watch()),
        };
        let mut positions = Positions::default();
        let to_come = self.rollbacks.range(projection.next_sequence()..);
        to_come.for_each(|(_, rollback)| positions.expect_target(rollback.to));
        targets.iter().for_each(|(to, frozen)| positions.keep_target(*to, Arc::clone(frozen)));
        let begin = LiveState { projection, positions, watch, ..LiveState::default() };
        let folded = self.history().fold_expected(begin, position + 1, None, &mut |record, projection| {
            visit(record, &|| self.reader_of(projection.clone()))
        })?;
        let LiveState { projection, positions, watch, .. } = folded;
        Ok(FoldPoint { projection, targets: positions.into_targets(), watch })
    }

    /// Returns a reader of the slices at a point of this log. It reads them item by item.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] if a compaction has dropped the contents of the slices there.
    pub fn state_reader_of(&self, point: &FoldPoint) -> Result<StateReader> {
        if let Some(position) = point.position() {
            self.places.check_known(position)?;
        }
        Ok(self.reader_of(point.projection.clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{Event, SessionTypes, Store};

    #[derive(Serialize, Deserialize)]
    struct Said(u64);

    impl Event for Said {
        const NAME: &'static str = "said";
    }

    #[test]
    fn a_fold_that_goes_on_from_any_point_is_one_that_starts_anew() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
        for number in 0..40_u64 {
            session.dispatch(Said(number)).unwrap();
            if number % 3 == 2 {
                session.rollback_to(number * 7 % (session.log().position().unwrap().get() + 1)).unwrap();
            }
        }
        let dir = session.dir().to_owned();
        let reader = LogReader::open(&dir).unwrap();
        let last = reader.last_position();
        let mut points = vec![reader.fold_on(None, 0_u64, |_, _| Ok(())).unwrap()];
        for position in 1..=last.get() {
            points.push(reader.fold_on(points.last(), position, |_, _| Ok(())).unwrap());
        }
        for (at, point) in (0..).zip(&points) {
            for position in (at..=last.get()).step_by(7) {
                let anew = reader.state_at(position).unwrap();
                let on = reader.fold_on(Some(point), position, |_, _| Ok(())).unwrap();
                assert_eq!(
                    reader.state_reader_of(&on).unwrap().to_state().unwrap(),
                    anew,
                    "{at} to {position}"
                );
            }
        }
        // The log now rolls back to a position that later points have not stored.
        session.rollback_to(3).unwrap();
        session.close().unwrap();
        let grown = LogReader::open(&dir).unwrap();
        let now = grown.last_position();
        let reaching: Vec<u64> =
            (0..).zip(&points).filter(|(_, point)| point.reaches(&grown, now)).map(|(at, _)| at).collect();
        assert_eq!(reaching, [0, 1, 2, 3]);
        assert!(grown.fold_on(points.get(9), now, |_, _| Ok(())).is_err());
        let on = grown.fold_on(points.get(3), now, |_, _| Ok(())).unwrap();
        assert_eq!(grown.state_reader_of(&on).unwrap().to_state().unwrap(), grown.state().unwrap());
    }
}
