//! Folds along live paths, one after the other.

use std::ops::RangeInclusive;

use foldlog_codec::SequenceNumber;

use super::{LogReader, StateReader};
use crate::error::Result;
use crate::fold::path::Path;
use crate::fold::projection::{LogSlices, Projection};
use crate::log::scan::Location;
use crate::session::State;

/// A fold along live paths that goes on where it stands, as long as the next path goes on where the last one
/// ended; else it starts anew. The rollbacks of an agent mostly go back to ever later positions of one path: each then
/// takes time in proportion to what came since the last.
#[derive(Debug)]
pub struct AlongPath<'a> {
    reader: &'a LogReader,
    projection: Projection,
    /// What was live at the position that the projection stands at, in ascending order.
    live: Vec<RangeInclusive<SequenceNumber>>,
    /// Where the next record stands, where that is known.
    at: Option<(SequenceNumber, Location)>,
}

impl<'a> AlongPath<'a> {
    pub(super) fn of(reader: &'a LogReader) -> AlongPath<'a> {
        AlongPath { reader, projection: Projection::new(LogSlices::Unread), live: Vec::new(), at: None }
    }

    /// Returns the slices at `position`, folding only the records that were live then.
    ///
    /// # Errors
    ///
    /// As [`LogReader::state_along`].
    pub fn state(&mut self, position: impl Into<SequenceNumber>) -> Result<State> {
        let position = position.into();
        self.state_reader(position)?.to_state()
    }

    /// Returns the slices that [`state`](AlongPath::state) returns, to be read item by item.
    ///
    /// # Errors
    ///
    /// As [`LogReader::state_along`].
    pub fn state_reader(&mut self, position: impl Into<SequenceNumber>) -> Result<StateReader> {
        let position = position.into();
        self.reader.check_position(position)?;
        if !goes_on(&mut self.live, &self.reader.path, position) {
            self.projection = Projection::new(LogSlices::Unread);
        }
        // Of a fold that fails midway nothing is to be used again.
        let mut projection = std::mem::replace(&mut self.projection, Projection::new(LogSlices::Unread));
        let live = std::mem::take(&mut self.live);
        self.reader.history().fold_on(&mut projection, &live, position, &mut self.at)?;
        let state = self.reader.reader_of(projection.clone());
        (self.projection, self.live) = (projection, live);
        Ok(state)
    }
}

/// Turns a path into the one that was live at `position`. Whether that goes on where the other ended; where it does, no
/// more of it is looked at than what is new.
fn goes_on(live: &mut Vec<RangeInclusive<SequenceNumber>>, path: &Path, position: SequenceNumber) -> bool {
    let mut new = Vec::new();
    for range in path.down_from(position) {
        // Ranges of two paths that begin alike begin with the same rollback, or with 0: below them the paths are one.
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
