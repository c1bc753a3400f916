//! Folds along live paths, one after the other.

use std::ops::RangeInclusive;

use foldlog_codec::SequenceNumber;

use super::{LogReader, StateReader};
use crate::error::Result;
use crate::fold::memory::Watch;
use crate::fold::path::Path;
use crate::fold::projection::Projection;
use crate::log::scan::Location;
use crate::session::State;

/// Folds along the live paths of several positions, one after the other. If the next path extends the last
/// one, the fold continues where it stands; otherwise it starts over. An agent mostly rolls back to ever
/// later positions of one path, and then each fold takes time in proportion to the records since the last.
#[derive(Debug)]
pub struct AlongPath<'a> {
    reader: &'a LogReader,
    projection: Projection,
    /// Records that are live at the projection's position, in ascending order.
    live: Vec<RangeInclusive<SequenceNumber>>,
    /// Location of the next record, if it is known.
    at: Option<(SequenceNumber, Location)>,
    /// What counts the memory of the projection.
    watch: Option<Watch>,
}

impl<'a> AlongPath<'a> {
    pub(super) fn of(reader: &'a LogReader) -> AlongPath<'a> {
        let history = reader.history();
        let (projection, watch) = (history.along(), history.watch());
        AlongPath { reader, projection, live: Vec::new(), at: None, watch }
    }

    /// Returns the slices at `position`, folding only the records that were live then.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`](crate::Error::NoSuchPosition) if the log has no record at `position`,
    /// [`Error::OverBudget`](crate::Error::OverBudget) if the fold takes more memory than
    /// [`LogReader::memory_bytes`], [`Error::Io`](crate::Error::Io) or [`Error::Object`](crate::Error::Object) if a
    /// file of the log can no longer be read.
    pub fn state(&mut self, position: impl Into<SequenceNumber>) -> Result<State> {
        let position = position.into();
        self.state_reader(position)?.to_state()
    }

    /// Returns the slices at `position`, folding only the records that were live then, to be read item by
    /// item.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`](crate::Error::NoSuchPosition) if the log has no record at `position`,
    /// [`Error::OverBudget`](crate::Error::OverBudget) if the fold takes more memory than
    /// [`LogReader::memory_bytes`], [`Error::Io`](crate::Error::Io) or [`Error::Object`](crate::Error::Object) if a
    /// file of the log can no longer be read.
    pub fn state_reader(&mut self, position: impl Into<SequenceNumber>) -> Result<StateReader> {
        let position = position.into();
        self.reader.check_position(position)?;
        if !goes_on(&mut self.live, &self.reader.path, position) {
            self.projection = self.reader.history().along();
            self.watch = self.reader.history().watch();
        }
        // A fold that fails midway must not be used again.
        let mut projection = std::mem::replace(&mut self.projection, self.reader.history().along());
        let live = std::mem::take(&mut self.live);
        let beside = (&mut self.at, &mut self.watch);
        self.reader.history().fold_on(&mut projection, &live, position, beside)?;
        let state = self.reader.reader_of(projection.clone());
        (self.projection, self.live) = (projection, live);
        Ok(state)
    }
}

/// Turns a path into the one that was live at `position`, and returns whether the new path extends the old
/// one. If it does, only its new part is visited.
fn goes_on(live: &mut Vec<RangeInclusive<SequenceNumber>>, path: &Path, position: SequenceNumber) -> bool {
    let mut new = Vec::new();
    for range in path.down_from(position) {
        // Ranges of two paths that begin alike begin with the same rollback, or with 0: below them the paths
        // are one.
        if let Some(last) = live.last()
            && last.start() == range.start()
            && last.end() <= range.end()
        {
            live.pop();
            live.push(range);
            live.extend(new.into_iter().rev());
            return true;
        }
        new.push(range);
    }
    new.reverse();
    *live = new;
    false
}
