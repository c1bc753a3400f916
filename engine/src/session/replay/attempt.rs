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

use std::sync::Arc;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{Action, Dispatch};
use parking_lot::MutexGuard;

use super::SessionReplay;
use super::recorded_log::{RecordProducer, ReplayRecord};
use crate::error::{Error, Result};
use crate::names::DeclaredNames;
use crate::session::schedule::{Access, WriteScope, runs_again_here};
use crate::session::{Session, WriterState};

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

impl Session {
    /// Blocks until the turn of a write through this handle in a replay, or fails as the live run
    /// may have done. `change` is given if the handle has to allow the write.
    pub(in crate::session) fn turn_again<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        change: Option<WriteScope>,
        mut attempt: Option<Attempt<'_>>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        if let Some(change) = change {
            self.check_handle(&state, Access::Write(change))?;
        }
        let Some(replay) = self.inner.replay() else { return Ok(state) };
        // The rules contain the paths of declared events only.
        if let Some((event, paths)) = attempt.as_ref().and_then(|attempt| attempt.left_out)
            && !paths.is_empty()
        {
            replay.with(|recording| Arc::make_mut(&mut recording.rules.left_out).add(event, paths));
        }
        replay.turn(state, &self.own_producer(), attempt.as_mut())
    }

    /// Fails if this handle's call ran again and has ended, or only reads while the write changes
    /// STATE. Also fails if the write would have to wait for a call that runs again on this thread.
    pub(super) fn check_handle(&self, state: &WriterState, access: Access) -> Result<()> {
        let operations = &state.live.projection.operations;
        let open = |operation| operations.open().find(|open| open.operation == operation);
        let changes = access.changes();
        if let Some(within) = self.within.as_deref().filter(|within| within.runs_again()) {
            within.check()?;
            let operation = within.operation();
            let Some(open) = open(operation) else {
                // A call that ends gets the order to stop first.
                return Err(Error::Revoked { operation, reason: "it was cancelled" });
            };
            if let Some(tried) = changes.filter(|_| open.reads_only) {
                return Err(Error::ReadsOnly { operation, tried });
            }
        }
        match runs_again_here(self.inner.id).filter(|_| changes.is_some()) {
            Some(operation) if self.within.as_deref().is_none_or(|within| !within.is_of(operation)) => {
                match open(operation).is_some_and(|open| !open.reads_only) {
                    true => Err(Error::InsideOperation { operation }),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
