//! Folds along live paths, one after the other.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use foldlog_codec::SequenceNumber;

use super::{LogReader, StateReader};
use crate::error::Result;
use crate::fold::memory::{KeptFor, ReadSoFar, Watch};
use crate::fold::projection::Projection;
use crate::log::scan::Location;
use crate::session::State;

/// Folds along the live paths of several positions, one after the other. If a stored position lies
/// on the next path, the fold continues from there; otherwise it starts over. Stored are the last
/// position, and [expected](AlongPath::expecting) ones. An agent mostly rolls back to ever later
/// positions of one path. Then each fold takes time proportional to the records since the last one.
#[derive(Debug)]
pub struct AlongPath<'a> {
    reader: &'a LogReader,
    held: BTreeMap<SequenceNumber, PositionFold>,
    /// Last requested position.
    last: Option<SequenceNumber>,
    /// Number of times that each position will be requested.
    expected: BTreeMap<SequenceNumber, u64>,
    /// Location of the next record, if it is known.
    at: Option<(SequenceNumber, Location)>,
    /// Counts the memory of the projections.
    watch: Option<Watch>,
}

/// The fold along the path of a position.
#[derive(Clone, Debug)]
struct PositionFold {
    projection: Projection,
    /// Amount that the fold had read.
    read: ReadSoFar,
}

impl<'a> AlongPath<'a> {
    pub(super) fn new(reader: &'a LogReader) -> AlongPath<'a> {
        let watch = reader.history().watch();
        let (held, expected) = (BTreeMap::new(), BTreeMap::new());
        AlongPath { reader, held, last: None, expected, at: None, watch }
    }

    /// Announces the positions that will be requested, each as often as it is listed. A fold that
    /// passes such a position stores it until it was requested that often, so that no fold to it
    /// starts over.
    #[must_use]
    pub fn expecting(mut self, positions: impl IntoIterator<Item = SequenceNumber>) -> AlongPath<'a> {
        for position in positions {
            *self.expected.entry(position).or_default() += 1;
        }
        self
    }

    /// Returns the slices at `position`, folding only the records that were live then.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`](crate::Error::NoSuchPosition) if the log has no record at
    /// `position`, [`Error::OverBudget`](crate::Error::OverBudget) if the fold exceeds
    /// [`ReadOptions::memory_bytes`](super::ReadOptions::memory_bytes),
    /// [`Error::Io`](crate::Error::Io) or [`Error::Object`](crate::Error::Object) if a file of the
    /// log can no longer be read.
    pub fn state(&mut self, position: impl Into<SequenceNumber>) -> Result<State> {
        let position = position.into();
        self.state_reader(position)?.to_state()
    }

    /// Returns a reader of the slices at `position`, folding only the records that were live then.
    /// It reads them item by item.
    pub fn state_reader(&mut self, position: impl Into<SequenceNumber>) -> Result<StateReader> {
        let position = position.into();
        self.reader.check_position(position)?;
        let (base, live) = self.way_to(position);
        let base = base.and_then(|base| self.held.get(&base)).cloned();
        let PositionFold { mut projection, read } = base.unwrap_or_else(|| PositionFold {
            projection: self.reader.history().new_projection(),
            read: ReadSoFar::default(),
        });
        if let Some(watch) = &mut self.watch {
            watch.so_far = read;
        }
        let passed = live.iter().flat_map(|range| self.expected.range(range.clone()));
        let passed: Vec<_> = passed.map(|(at, _)| *at).filter(|at| *at < position).collect();
        for stop in passed {
            self.fold_on(&mut projection, &live, stop)?;
            self.hold(stop, &projection);
        }
        self.fold_on(&mut projection, &live, position)?;
        self.hold(position, &projection);
        if let Some(left) = self.expected.get_mut(&position) {
            *left -= 1;
            if *left == 0 {
                self.expected.remove(&position);
            }
        }
        if let Some(last) = self.last.replace(position).filter(|last| *last != position) {
            self.let_go(last);
        }
        Ok(self.reader.reader_of(projection))
    }

    /// Finds the last stored position on the path to `position`, and the live ranges after it, in
    /// ascending order. Visits only the part of the path after that position.
    fn way_to(
        &self,
        position: SequenceNumber,
    ) -> (Option<SequenceNumber>, Vec<RangeInclusive<SequenceNumber>>) {
        let (mut base, mut live) = (None, Vec::new());
        for range in self.reader.path.down_from(position) {
            base = self.held.range(range.clone()).next_back().map(|(at, _)| *at);
            let first = base.map_or(*range.start(), |base| base + 1);
            if first <= *range.end() {
                live.push(first..=*range.end());
            }
            if base.is_some() {
                break;
            }
        }
        live.reverse();
        (base, live)
    }

    fn fold_on(
        &mut self,
        projection: &mut Projection,
        live: &[RangeInclusive<SequenceNumber>],
        position: SequenceNumber,
    ) -> Result<()> {
        self.reader.history().fold_on(projection, live, position, &mut self.at, &mut self.watch)
    }

    fn hold(&mut self, position: SequenceNumber, projection: &Projection) {
        let mut read = ReadSoFar::default();
        if let Some(watch) = &mut self.watch {
            watch.keep(KeptFor::Rollback, position, projection);
            read = watch.so_far;
        }
        self.held.insert(position, PositionFold { projection: projection.clone(), read });
    }

    /// Drops a stored position, unless it will be requested again.
    fn let_go(&mut self, position: SequenceNumber) {
        if self.expected.contains_key(&position) {
            return;
        }
        self.held.remove(&position);
        if let Some(watch) = &mut self.watch {
            watch.forget(KeptFor::Rollback, position);
        }
    }
}
