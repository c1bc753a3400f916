//! The slices at any position, folded from the nearest cached point.
//!
//! The cache contains points at even distances, and the points of the latest requests. Points share
//! common parts. Their number is bounded: as a log grows, so do the distances.

use std::collections::{BTreeMap, VecDeque};

use foldlog::SequenceNumber;
use foldlog::inspect::{FoldPoint, LogReader};

use crate::records::RunningOperation;

/// Maximum number of points at even distances.
const POINTS_MAX: usize = 64;

/// Minimum number of records between two points.
const SPACING_MIN: u64 = 1024;

/// Maximum number of points from recent requests.
const RECENT_MAX: usize = 8;

/// A point, with the runs of tools that had started and not ended there.
#[derive(Clone, Debug)]
pub(crate) struct CachedPoint {
    pub(crate) point: FoldPoint,
    pub(crate) begun: BTreeMap<SequenceNumber, RunningOperation>,
}

/// Cached points of one log.
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

    /// Returns the position of the next point to cache. Without any point, counts from the log's
    /// start.
    pub(crate) fn next_position(&self) -> SequenceNumber {
        let last = self.last().and_then(|kept| kept.point.position());
        last.map_or(SequenceNumber::new(self.spacing - 1), |last| last + self.spacing)
    }

    /// Caches the point at [`next_position`](Points::next_position).
    pub(crate) fn keep(&mut self, kept: CachedPoint) {
        self.even.push(kept);
        if self.even.len() > POINTS_MAX {
            let mut place = 0;
            // The last point of each pair remains, so that the distances stay even.
            self.even.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            self.spacing *= 2;
        }
    }

    /// Returns the last point at an even distance that is not after `position`.
    pub(crate) fn even_through(&self, position: Option<SequenceNumber>) -> Option<&CachedPoint> {
        self.even.iter().rfind(|kept| kept.point.position() <= position)
    }

    /// Returns the point at a position.
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
