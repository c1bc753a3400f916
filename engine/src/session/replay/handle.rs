//! The part of a handle in a replay: its lane, its turns, and the inputs that it reads from the
//! log.

use std::sync::Arc;

use foldlog_codec::body::{Observed, Payload, ToolBegin};
use foldlog_codec::{RecordKind, SequenceNumber, msgpack};
use parking_lot::MutexGuard;
use serde::de::DeserializeOwned;

use super::recorded_log::RecordProducer;
use super::{Attempt, SessionReplay};
use crate::divergence::{Difference, Divergence, LaneName};
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::operation::{RESTORE, RestoreArguments};
use crate::session::schedule::{Access, WriteScope};
use crate::session::wait::runs_again_here;
use crate::session::{Session, WriterState};
use crate::types::encode;

impl Session {
    pub(super) fn lane_name(&self) -> LaneName {
        self.record_lane().into()
    }

    pub(super) fn own_producer(&self) -> RecordProducer {
        RecordProducer::Lane(self.lane_name())
    }

    /// Returns the replay of this session.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the session does not replay.
    pub(super) fn as_replay(&self) -> Result<SessionReplay<'_>> {
        let none =
            || Error::NoSuchPosition { position: self.inner.state.lock().log.next_sequence(), last: None };
        self.inner.replay().ok_or_else(none)
    }

    /// Waits for the turn of this handle's lane. Returns its current record, if the kind is one of
    /// these.
    pub(super) fn next_recorded(
        &self,
        replay: SessionReplay<'_>,
        kinds: &[RecordKind],
    ) -> Result<Option<(SequenceNumber, RecordKind, Vec<u8>)>> {
        let _state = replay.turn(self.inner.writable()?, &self.own_producer(), None)?;
        let next = replay.with_head(|head| {
            kinds.contains(&head.kind).then(|| (head.sequence, head.kind, head.body.clone()))
        })?;
        Ok(next.flatten())
    }

    /// Returns whether this session replays, and the current record in this handle's lane starts a
    /// fill of directories.
    pub(crate) fn is_next_a_fill(&self) -> Result<bool> {
        let Some(replay) = self.inner.replay() else { return Ok(false) };
        let Some((sequence, _, body)) = self.next_recorded(replay, &[RecordKind::ToolBegin])? else {
            return Ok(false);
        };
        let begin = ToolBegin::decode(&body).map_err(Error::unread(sequence))?;
        let arguments = (begin.tool == RESTORE).then(|| RestoreArguments::read(begin.arguments.bytes()));
        Ok(arguments.flatten().and_then(|read| read.rewind).is_some_and(|rewind| rewind.fills))
    }

    /// Ends the replay of one process, after the host has returned. Returns the state after the
    /// process's last record, the divergences, and the number of compared records.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] with the reason if the replay could not continue, such as copies of
    /// resources that cannot be made; [`Error::Object`] or [`Error::Io`] if an object is missing or
    /// damaged, or could not be read, even if only the host read it; otherwise the errors of
    /// reading the log.
    pub(crate) fn end_replay(&self) -> Result<(LiveState, Vec<Divergence>, u64)> {
        let ended = self.as_replay()?.end();
        let mut state = self.inner.state.lock();
        state.closed = true;
        // After damage, the host's behavior is no evidence of a divergence.
        state.log.objects.damage().map_or(ended, Err)
    }

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

    /// Returns the recorded value of the next observation in a replay.
    pub(in crate::session) fn observe_again<T: DeserializeOwned>(
        &self,
        replay: SessionReplay<'_>,
        name: &str,
    ) -> Result<T> {
        let recorded = match self.next_recorded(replay, &[RecordKind::Observed])? {
            Some((sequence, _, body)) => self.observed_as(name, &body)?.map(|data| (sequence, data)),
            None => None,
        };
        if let Some((sequence, data)) = recorded {
            let value = self.read_again(replay, sequence, name, &data);
            self.inputs().write_observation(name, &data)?;
            return value;
        }
        // It is recorded later, after records that are missing, or not at all.
        let sequence = self.inputs().write_observation(name, &encode(name, &())?)?;
        let found = self.read_record(sequence, |record, _| match record.kind {
            RecordKind::Observed => self.observed_as(name, record.body),
            _ => Ok(None),
        })?;
        match found.flatten() {
            Some(data) => self.read_again(replay, sequence, name, &data),
            None => Err(replay.divergence_error()),
        }
    }

    /// Decodes a recorded value as the type that the host requests now. If that fails, the
    /// observation has changed.
    fn read_again<T: DeserializeOwned>(
        &self,
        replay: SessionReplay<'_>,
        sequence: SequenceNumber,
        name: &str,
        data: &[u8],
    ) -> Result<T> {
        msgpack::from_slice(data).map_err(|error| {
            let reason = format!("it cannot be read as `{}`: {error}", std::any::type_name::<T>());
            let difference = Difference::unread("$.data", Payload::new(data), reason);
            self.observed_otherwise(replay, sequence, name, difference)
        })
    }

    /// Returns the data of a recorded observation; `None` if the name differs.
    fn observed_as(&self, name: &str, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok(observed) = Observed::decode(body) else { return Ok(None) };
        if observed.name != name {
            return Ok(None);
        }
        let source = self.inner.log_source(&self.inner.state.lock());
        Ok(Some(source.objects.resolve(observed.data)?.into_owned()))
    }

    /// Notes that an observation of this handle's lane has changed, and returns the error that
    /// reports it.
    fn observed_otherwise(
        &self,
        replay: SessionReplay<'_>,
        sequence: SequenceNumber,
        name: &str,
        difference: Difference,
    ) -> Error {
        let record = format!("{} {name}", RecordKind::Observed);
        let divergence = Divergence::changed(sequence, self.lane_name(), record, difference);
        // Waiting threads have to notice if the replay stops here.
        let _state = self.inner.state.lock();
        replay.with(|recording| recording.note(divergence));
        self.inner.schedule.notify_all();
        replay.divergence_error()
    }
}
