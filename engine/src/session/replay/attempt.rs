//! Writes of a replayed host that the live run may have refused.
//!
//! A refused write left no record. In a replay it must not wait for the turn of a record that does
//! not exist: the same thread may go on to start the lane whose record comes next.
//!
//! | a write before its turn | outcome |
//! |---|---|
//! | through a handle whose call has ended, or may not do this | it is refused at once, as in the live run |
//! | that may produce the next record of its lane | it waits for its turn, and is refused there or not |
//! | any other that the present state refuses | it is refused at once |
//! | that still waits when the [patience](crate::replay::Replay::patience) is over, and that the state then refuses | it is refused, and no record counts as missing |
//!
//! Only the last two can differ from the live run, if the record of a different lane causes the
//! refusal. A host whose threads do not read records of other lanes does not notice the difference.

use foldlog_codec::RecordKind;
use foldlog_codec::body::{Action, Dispatch};

use super::SessionReplay;
use super::recorded_log::{RecordProducer, ReplayRecord};
use crate::error::Result;
use crate::names::DeclaredNames;
use crate::session::WriterState;

/// A write whose refusal leaves no record, before its turn in a replay.
pub(in crate::session) struct Attempt<'a> {
    /// Returns whether a recorded record may be the one that the write produces.
    pub(in crate::session) brings: &'a dyn Fn(&ReplayRecord, &DeclaredNames) -> bool,
    /// Returns the error with which the state refuses the write, if it does.
    pub(in crate::session) refused: &'a mut dyn FnMut(&mut WriterState) -> Result<()>,
    /// Event with values that are not compared, and their paths.
    pub(in crate::session) left_out: Option<(&'static str, &'static [&'static str])>,
}

impl Attempt<'_> {
    /// Fails if the write is refused now. `waited` states that the patience for its turn is over.
    pub(super) fn check(
        &mut self,
        replay: SessionReplay<'_>,
        state: &mut WriterState,
        whose: &RecordProducer,
        waited: bool,
    ) -> Result<()> {
        let names = &state.live.projection.names;
        let brings = |record: &ReplayRecord| (self.brings)(record, names);
        if !waited && replay.with(|recording| recording.next_of(whose).is_some_and(brings)) {
            return Ok(());
        }
        (self.refused)(state)
    }
}

impl ReplayRecord {
    /// Returns whether this is an event of that name with that payload, or one with a payload that
    /// is stored as an object.
    pub(in crate::session) fn is_event(&self, name: &str, payload: &[u8], names: &DeclaredNames) -> bool {
        match Dispatch::decode(&self.body).map(|dispatch| dispatch.action) {
            Ok(Action::Event { event, data }) if self.kind == RecordKind::Dispatch => {
                names.event(event).is_some_and(|event| event.name == name)
                    && (data.object().is_some() || data.bytes() == payload)
            }
            _ => false,
        }
    }
}
