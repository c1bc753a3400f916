//! Runs the reducers of a host again over the events of a log, and compares the resolved effects
//! with the recorded ones.
//!
//! # Terms
//!
//! The *recorded* effect of an event on a slice is the edit in its record. The *produced* effect is
//! the one that the reducer resolves now, from the same event, time, sequence number and generator.
//!
//! # Invariants
//!
//! 1. A reducer sees the slice as the log has it: the fold continues with the recorded effects, so
//!    that one difference does not cause the next.
//! 2. On request, a second fold applies the produced effects. In it, reducers see their own
//!    results.
//! 3. The fold needs the memory of an open session: its slices, and the changes since the positions
//!    of its snapshots. The fold of the produced effects needs three times as much in addition.
//!    Only the first [`ReplayReducers::divergences_max`] divergences are stored.
//!
//! Built-in reducers are not run if log and host name the same ones for the event, since they
//! resolve nothing. Neither are reducers of a binding that the host has
//! [retired](crate::SessionTypesBuilder::retired). Seeds, clears and imports are not made by
//! reducers and are applied as recorded.

mod fold;
mod run;

use std::collections::BTreeSet;
use std::fmt;

use foldlog_codec::msgpack::Value;
use foldlog_codec::{SequenceNumber, escape};
use serde::Serialize;
use uuid::Uuid;

use super::LogReader;
use crate::divergence::{Divergence, LeaveOut};
use crate::error::Result;
use crate::names::UnregisteredEvent;
use crate::types::SessionTypes;

/// Default for the maximum number of divergences in a report.
const DIVERGENCES_MAX: usize = 100;

/// Options of a replay of reducers.
#[derive(Clone, Debug)]
pub struct ReplayReducers {
    /// Paths that are not compared.
    pub leave_out: LeaveOut,
    /// Names of slices that are new, or whose reducers were changed on purpose. Differing edits of
    /// these slices are [counted](ReducersReplayed::accepted), and are not divergences.
    pub changed_slices: BTreeSet<String>,
    /// Whether to fold the produced effects too, to report from which record on STATE differs, and
    /// how.
    pub fold_produced: bool,
    /// Maximum number of divergences in the report. All are counted.
    pub divergences_max: usize,
}

impl Default for ReplayReducers {
    fn default() -> ReplayReducers {
        let (leave_out, changed_slices) = (LeaveOut::new(), BTreeSet::new());
        ReplayReducers { leave_out, changed_slices, fold_produced: false, divergences_max: DIVERGENCES_MAX }
    }
}

/// Reports the results of a replay of reducers. Displays as lines, one for each divergence;
/// serializes as one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReducersReplayed {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records of the log.
    pub records: u64,
    /// Number of events whose reducers were run.
    pub events: u64,
    /// Number of edits that were compared.
    pub compared: u64,
    /// Number of edits that differ.
    pub diverged: u64,
    /// Number of edits that differ in slices that were [changed on
    /// purpose](ReplayReducers::changed_slices).
    pub accepted: u64,
    /// First divergences, in the order of their records.
    pub divergences: Vec<Divergence>,
    /// Number of dispatches in compacted ranges. Their reducers were not run, since the contents of
    /// their slices there are unknown.
    pub compacted: u64,
    /// Events that the log binds to slices for which the host declares no reducers. These were not
    /// run.
    pub not_registered: Vec<UnregisteredEvent>,
    /// Slices that differ at the end, if the produced effects were folded.
    pub slices: Vec<SliceDiffers>,
    /// Why the fold of the produced effects ended before the log did; `None` if it did not.
    pub stopped: Option<String>,
}

/// Describes how a slice would differ at the end of a log with today's reducers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SliceDiffers {
    /// Name of the slice.
    pub slice: String,
    /// Record from which on the slice differs up to the end.
    pub since: SequenceNumber,
    /// Whether the log does not know the slice. Results of its reducers are not folded, and the
    /// numbers of items are 0.
    pub is_new: bool,
    /// Number of items according to the log.
    pub recorded_items: u64,
    /// Number of items according to the produced effects.
    pub produced_items: u64,
    /// Path of the first value that differs, such as `$.items[3].status`.
    pub path: String,
    /// Value according to the log; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// Value according to the produced effects; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produced: Option<Value>,
    /// Description of the difference, if the values do not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl ReducersReplayed {
    /// Returns whether every reducer that the log names was run and resolved the recorded effects.
    pub fn holds(&self) -> bool {
        self.diverged == 0 && self.not_registered.is_empty()
    }
}

impl LogReader {
    /// Runs the reducers of `types` again over all events of the log, and compares each resolved
    /// edit with the recorded one.
    ///
    /// ```
    /// # use foldlog::{Event, SessionTypes, Slice, SliceOp, Store};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Loud;
    /// # impl Slice for Loud {
    /// #     const NAME: &'static str = "loud";
    /// #     type Item = String;
    /// # }
    /// use foldlog::inspect::{LogReader, ReplayReducers};
    ///
    /// let types = |end: &'static str| {
    ///     let loud = move |said: &Said| SliceOp::Append(said.0.to_uppercase() + end);
    ///     SessionTypes::builder().slice::<Loud>().reducer::<Loud, Said>(move |_, said, _| Ok(loud(said))).build()
    /// };
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&types("!")?)?;
    /// session.dispatch(Said("ship it".to_owned()))?;
    /// # let dir = session.dir().to_owned();
    /// session.close()?;
    /// let reader = LogReader::open(&dir)?;
    /// assert!(reader.replay_reducers(&types("!")?, &ReplayReducers::default())?.holds());
    /// let replayed = reader.replay_reducers(&types("?")?, &ReplayReducers::default())?;
    /// assert_eq!(
    ///     replayed.divergences[0].to_string(),
    ///     r#"record 2 (dispatch `chat.said`) differs in slice `loud` at $.added[0]: recorded "SHIP IT!", produced "SHIP IT?""#
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) or
    /// [`Error::NewerVersion`](crate::Error::NewerVersion) if an item cannot be read as the host's
    /// type, [`Error::Inconsistent`](crate::Error::Inconsistent) if a record contradicts those
    /// before it, [`Error::Object`](crate::Error::Object) if an object is missing or damaged,
    /// [`Error::Io`](crate::Error::Io) if a segment can no longer be read.
    pub fn replay_reducers(
        &self,
        types: &SessionTypes,
        options: &ReplayReducers,
    ) -> Result<ReducersReplayed> {
        run::replay(self, types, options)
    }
}

impl fmt::Display for SliceDiffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_new {
            let slice = escape::text(&self.slice);
            let since = self.since;
            return write!(f, "slice `{slice}` is new: record {since} is the first that would change it");
        }
        let (recorded, produced) =
            crate::divergence::shortened(self.recorded.as_ref(), self.produced.as_ref());
        let note = self.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        write!(
            f,
            "slice `{}` differs from record {} on: {} items recorded, {} produced; first at {}{}: recorded {recorded}, \
             produced {produced}",
            escape::text(&self.slice),
            self.since,
            self.recorded_items,
            self.produced_items,
            escape::text(&self.path),
            escape::text(&note),
        )
    }
}

impl fmt::Display for ReducersReplayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReducersReplayed { session, records, events, compared, diverged, .. } = self;
        write!(
            f,
            "session {session}: {records} records, {events} events reduced again, {compared} edits compared, "
        )?;
        write!(f, "{diverged} differ")?;
        if self.accepted > 0 {
            write!(f, ", {} more do in slices that changed on purpose", self.accepted)?;
        }
        if self.compacted > 0 {
            write!(
                f,
                "\n{} dispatches were not run: a compaction dropped the input of their reducers",
                self.compacted
            )?;
        }
        for event in &self.not_registered {
            write!(f, "\n{event}")?;
        }
        for divergence in &self.divergences {
            write!(f, "\n{divergence}")?;
        }
        let more = diverged.saturating_sub(self.divergences.len() as u64);
        if more > 0 {
            write!(f, "\n… and {more} more")?;
        }
        for slice in &self.slices {
            write!(f, "\n{slice}")?;
        }
        match &self.stopped {
            Some(stopped) => {
                let stopped = escape::text(stopped);
                write!(f, "\nthe fold of what the reducers produce ended early: {stopped}")
            }
            None => Ok(()),
        }
    }
}
