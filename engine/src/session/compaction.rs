//! The part of a compaction that works on an open session: finishes its last segment, and lets the
//! store replace finished ones.

use foldlog_codec::body::Lane;

use super::SessionLog;
use super::load::open_read;
use crate::error::Result;
use crate::fold::projection::LogSlices;
use crate::types::encode;

impl SessionLog<'_> {
    /// Finishes the current segment, and records in the next one that `name` was the reason, with
    /// the position before it. Needs no types.
    pub(crate) fn finish_segment(&self, name: &str) -> Result<()> {
        let inner = &self.session.inner;
        let mut state = inner.settleable()?;
        let before = state.log.next_sequence();
        inner.roll_over(&mut state)?;
        let data = encode(name, &before)?;
        inner.write_observed(state, inner.now_us(), name, &data, &Lane::default()).map(drop)
    }

    /// Records which bodies a compaction dropped, if a replica has them.
    pub(crate) fn say_dropped(&self) -> Result<()> {
        let Some(replica) = &self.session.inner.replica else { return Ok(()) };
        replica.dropped.lock().is_to_say = true;
        self.session.inner.note_dropped()
    }

    /// Lets `rewrite` replace finished segments of the log, while no thread writes to the log or
    /// seals a segment. Afterwards the session locates its records again, also if `rewrite` failed
    /// halfway.
    pub(crate) fn replace_segments<T>(&self, rewrite: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut state = self.session.inner.settleable()?;
        state.log.finish_seals().map_err(|error| self.session.inner.poison_on_error(error))?;
        let done = rewrite();
        let read = open_read(self.session.read_ground(), self.session.dir(), None, LogSlices::Unread);
        let read = read.map_err(|error| self.session.inner.poison_on_error(error))?;
        state.log.replace_places(read.places(), read.scan.used_bytes);
        done
    }
}
