//! The slices at any position: from the nearest of some kept points on, the log is folded to it.
//!
//! Points are kept at even distances, and those that were asked for last. They share what they have in common, and their number
//! is bounded: as a log grows the distances do.

use std::collections::{BTreeMap, VecDeque};

use foldlog::SequenceNumber;
use foldlog::inspect::{FoldPoint, LogReader};

use crate::records::RunningOperation;

/// Number of points at even distances.
const POINTS_MAX: usize = 64;

/// Number of records between two points at least.
const SPACING_MIN: u64 = 1024;

/// Number of points that are kept because they were asked for.
const RECENT_MAX: usize = 8;

/// Holds a point, and the runs of tools that had begun and not ended there.
#[derive(Clone, Debug)]
pub(crate) struct CachedPoint {
    pub(crate) point: FoldPoint,
    pub(crate) begun: BTreeMap<SequenceNumber, RunningOperation>,
}

/// Holds points of one log.
#[derive(Debug)]
pub(crate) struct Points {
    /// In ascending order.
    even: Vec<CachedPoint>,
    recent: VecDeque<FoldPoint>,
    spacing: u64,
}

impl Points {
    pub(crate) fn new() -> Points {
        Points { even: Vec::new(), recent: VecDeque::new(), spacing: SPACING_MIN }
    }

    /// Drops the points from which the log cannot be folded to its end.
    pub(crate) fn retain_reaching(&mut self, reader: &LogReader) {
        let last = reader.last_position();
        self.even.retain(|kept| kept.point.reaches(reader, last));
        self.recent.retain(|point| point.reaches(reader, last));
    }

    /// Returns the last point at an even distance.
    pub(crate) fn last(&self) -> Option<&CachedPoint> {
        self.even.last()
    }

    /// Returns the position of the point that is to be kept next; the first record is at none.
    pub(crate) fn next_position(&self) -> SequenceNumber {
        let last = self.last().and_then(|kept| kept.point.position());
        last.map_or(SequenceNumber::new(self.spacing - 1), |last| last + self.spacing)
    }

    /// Keeps the point at [`next_position`](Points::next_position).
    pub(crate) fn keep(&mut self, kept: CachedPoint) {
        self.even.push(kept);
        if self.even.len() > POINTS_MAX {
            let mut place = 0;
            // The last one of each pair stays, so that the distances stay even.
            self.even.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            self.spacing *= 2;
        }
    }

    /// Returns the last point at an even distance through `position`.
    pub(crate) fn even_through(&self, position: Option<SequenceNumber>) -> Option<&CachedPoint> {
        self.even.iter().rfind(|kept| kept.point.position() <= position)
    }

    /// Returns the point at a position.
    ///
    /// # Errors
    ///
    /// Those of [`LogReader::fold_on`].
    pub(crate) fn at(&mut self, reader: &LogReader, position: SequenceNumber) -> foldlog::Result<FoldPoint> {
        let all = self.recent.iter().chain(self.even.iter().map(|kept| &kept.point));
        let reaching = all.filter(|point| point.reaches(reader, position));
        let nearest = reaching.max_by_key(|point| point.position());
        let point = match nearest {
            Some(nearest) if nearest.position() == Some(position) => nearest.clone(),
            nearest => reader.fold_on(nearest, position, |_, _| Ok(()))?,
        };
        self.recent.retain(|recent| recent.position() != Some(position));
        self.recent.push_back(point.clone());
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        Ok(point)
    }
}
