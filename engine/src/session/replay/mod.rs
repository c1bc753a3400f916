//! Runs a host again over the records of its earlier run. The log is unchanged, and each record
//! that the host produces is compared with the recorded one, lane by lane.
//!
//! | module | contents |
//! |---|---|
//! | here | the cursor of a replay, and the turns of the host's threads |
//! | `recorded_log` | the records, read ahead, their producers, and the divergences |
//! | `compare`, `comparison` | records of the host, compared with the recorded ones |
//! | `attempt` | writes that the live run may have refused |
//! | `handle` | the part of a handle in a replay: its turns, and the inputs that it reads from the log |
//! | `calls`, `decisions`, `replies` | calls, decisions, and replies of providers, from the log |
//!
//! A *process* is the part of a log that one opening for writing wrote. A session that replays one
//! contains the state after the last record that was applied, as the live session did then.
//!
//! # Producers of records
//!
//! | the next record | its producer |
//! |---|---|
//! | an opening, a declaration, an import, the state of the resources before a rollback | the engine, from the log |
//! | a record within a call whose tool does not run again, and the end of that call | the engine, from the log |
//! | the end of a call that an earlier process left open | [`recover`](crate::tools::ToolRunner::recover), from the log |
//! | any other | the host, through a handle of the record's lane |
//!
//! A write through a handle of another lane waits until the records before its own were produced.
//! Without any record for the time of [`Rules::patience`](recorded_log::Rules::patience), the next
//! record counts as missing. A write within a call whose end comes next does not wait: it is an
//! extra record.
//!
//! # Subscribers
//!
//! Subscribers are notified of the recorded records, each once and in order. The records of a call
//! from the log are announced one by one, by the thread that waits for the call's end, as in the
//! live run while the tool ran. All remaining ones are announced after the write that applied them.
//!
//! # Invariants
//!
//! 1. The state after record n is the fold of the recorded records through n, whatever the host
//!    produced.
//! 2. The clock of a write is the time of the recorded record in whose place it is made, before any
//!    reducer runs.
//! 3. Only a part of the log is in memory: the records that are read [ahead](recorded_log), and
//!    their effects.
//! 4. The cursor is locked after the writer's state, and never during a wait.

mod attempt;
mod calls;
mod compare;
mod comparison;
mod decisions;
mod handle;
pub(crate) mod recorded_log;
mod replies;

use std::collections::BTreeSet;
use std::sync::Arc;

use foldlog_codec::body::{Action, Dispatch, ObjectId};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};
use parking_lot::{Mutex, MutexGuard};
use smol_str::SmolStr;

use super::wait::{RUNS_AGAIN, inside};
use super::write::PendingEvent;
use super::{Session, SessionInner, WriterState};
use crate::clock::{self, Clock, FixedClock};
use crate::divergence::{Divergence, OtherRecord};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::items::AnyValue;
use crate::log::objects::Objects;
use crate::names::DeclaredNames;
use crate::types::RecordedBytes;

pub(super) use attempt::Attempt;
use recorded_log::{RecordProducer, ReplayLog, ReplayRecord};
pub use replies::RecordedReply;

/// Position of a replay in its log, and its findings.
pub(super) struct ReplayCursor {
    /// Time of the record in whose place the host writes.
    clock: Arc<FixedClock>,
    log: Mutex<ReplayLog>,
}

impl ReplayCursor {
    pub(super) fn new(mut log: ReplayLog) -> Result<ReplayCursor> {
        log.fill()?;
        Ok(ReplayCursor { clock: Arc::default(), log: Mutex::new(log) })
    }

    /// Returns the clock of the session.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::<FixedClock>::clone(&self.clock)
    }

    /// Retains the content of an object that the host's next record names.
    pub(super) fn put_object(&self, bytes: &[u8]) -> ObjectId {
        let object = ObjectId::from_content(bytes);
        self.log.lock().produced_objects.insert(object, bytes.to_vec());
        object
    }
}

/// The replay of a session.
#[derive(Clone, Copy)]
pub(super) struct SessionReplay<'a> {
    pub(super) inner: &'a SessionInner,
    pub(super) cursor: &'a ReplayCursor,
}

/// Event that a thread of the host waits for.
enum Waits<'w, 'a> {
    /// The turn of its own record, for this write.
    Turn(&'w RecordProducer, Option<&'w mut Attempt<'a>>),
    /// The end of its call, from the log.
    End,
    /// Records of other producers before the next record of its lane.
    Others,
}

/// Next step of a thread that waits.
enum Step<T> {
    Ready(T),
    /// Applies the next record, which the engine produces.
    Apply,
    /// Waits for the record of this producer, unless it timed out before.
    Wait(RecordProducer, bool),
}

/// Returns the error after the last recorded record.
fn replay_ended_error(next: SequenceNumber) -> Error {
    Error::ReplayEnded { position: next.saturating_sub(1) }
}

impl SessionReplay<'_> {
    /// Passes the recorded log to `read`, which must not use the session.
    fn with<T>(self, read: impl FnOnce(&mut ReplayLog) -> T) -> T {
        read(&mut self.cursor.log.lock())
    }

    /// Passes the next record to `read`; `None` after the last.
    fn with_head<T>(self, read: impl FnOnce(&ReplayRecord) -> T) -> Result<Option<T>> {
        self.with(|log| Ok(log.head()?.map(|(head, _)| read(head))))
    }

    /// Applies the next record from the log.
    fn apply_recorded(self, state: &mut WriterState) -> Result<()> {
        let inner = self.inner;
        let WriterState { log, live, .. } = state;
        let taken = self.with(|recording| {
            let checks = recording.rules.checks_objects;
            let Some((head, whose)) = recording.head()? else { return Ok(None) };
            let checked = if checks { head.objects() } else { BTreeSet::new() };
            checked.iter().try_for_each(|object| log.objects.check_object(object))?;
            Ok::<_, Error>(recording.take(&whose).map(|head| (head, whose)))
        })?;
        let Some((head, whose)) = taken else { return Ok(()) };
        let record =
            Record { sequence: head.sequence, kind: head.kind, time_us: head.time_us, body: &head.body };
        log.pass_recorded();
        let sources = FoldSources { objects: log.objects.as_ref(), types: inner.types.as_ref() };
        live.apply_record(&record, sources)?;
        if let Some((sequence, kind)) = live.projection.unsupported {
            return Err(Error::UnsupportedKind { sequence, kind });
        }
        inner.notify(head.sequence, head.time_us, head.kind, false, || {
            self.recorded_event(&record, &live.projection.names, &log.objects)
        });
        self.cursor.clock.set_us(head.time_us);
        self.with(|recording| recording.remember(whose, head));
        inner.schedule.notify_all();
        Ok(())
    }

    /// Applies the engine's records until `ready` returns a value, and returns that. Between them
    /// it waits for records of other lanes, unless the pending write is refused.
    ///
    /// # Errors
    ///
    /// [`Error::ReplayEnded`] after the last record, [`Error::Diverged`] if the replay has stopped;
    /// the error that refuses the write.
    fn move_on<T>(
        self,
        state: &mut MutexGuard<'_, WriterState>,
        mut waits: Waits<'_, '_>,
        mut ready: impl FnMut(&mut ReplayLog) -> Result<Option<T>>,
    ) -> Result<T> {
        let inner = self.inner;
        let patience = self.with(|recording| recording.rules.patience);
        let mut is_checked = false;
        loop {
            if matches!(waits, Waits::End) && inner.subscribers.waits() {
                self.tell(state);
            }
            inner.check_accepting(state)?;
            let next = state.log.next_sequence();
            let step = self.with(|recording| {
                if recording.stopped {
                    return Err(recording.divergence_error());
                }
                if let Some(found) = ready(recording)? {
                    return Ok(Step::Ready(found));
                }
                match recording.head()?.map(|(_, whose)| whose) {
                    Some(RecordProducer::Engine) => Ok(Step::Apply),
                    // A producer that timed out once gets no second wait.
                    Some(whose) if !recording.returned => {
                        let is_gone = recording.gone.contains(&whose);
                        Ok(Step::Wait(whose, is_gone))
                    }
                    _ => Err(replay_ended_error(next)),
                }
            })?;
            let (brings, is_gone) = match step {
                Step::Ready(found) => return Ok(found),
                Step::Apply => {
                    self.apply_recorded(state)?;
                    continue;
                }
                Step::Wait(brings, is_gone) => (brings, is_gone),
            };
            if let Waits::Turn(whose, Some(attempt)) = &mut waits
                && !std::mem::replace(&mut is_checked, true)
            {
                attempt.check(self, state, whose, false)?;
            }
            let is_over = is_gone || inner.schedule.wait_until(state, clock::after(patience)).timed_out();
            if is_over && state.log.next_sequence() == next {
                if let Waits::Turn(whose, Some(attempt)) = &mut waits {
                    attempt.check(self, state, whose, true)?;
                }
                self.with(|recording| recording.gone.insert(brings));
                self.pass_missing(state, None)?;
            }
        }
    }

    /// Notes that the next record is missing, and applies it from the log if the replay continues.
    /// `other` is the record with which the host continued.
    fn pass_missing(self, state: &mut WriterState, other: Option<&OtherRecord>) -> Result<()> {
        let names = &state.live.projection.names;
        let stopped = self.with(|recording| {
            let Some((head, whose)) = recording.head()? else { return Ok(None) };
            let missing = Divergence::missing(head.sequence, whose.lane(), head.kind, &head.body, names);
            recording.note(Divergence { other: other.cloned(), ..missing });
            Ok::<_, Error>(Some(recording.stopped))
        })?;
        let Some(stopped) = stopped else { return Ok(()) };
        self.inner.schedule.notify_all();
        if stopped { Ok(()) } else { self.apply_recorded(state) }
    }

    /// Waits until `whose` produces the next record, and sets the clock to the record's time.
    /// `attempt` is the pending write, if its refusal leaves no record.
    fn turn<'s>(
        self,
        mut state: MutexGuard<'s, WriterState>,
        whose: &RecordProducer,
        attempt: Option<&mut Attempt<'_>>,
    ) -> Result<MutexGuard<'s, WriterState>> {
        self.with(|recording| recording.gone.remove(whose));
        let time_us = self.move_on(&mut state, Waits::Turn(whose, attempt), |recording| {
            let is_too_many = recording.is_closed_behind() && !recording.returned;
            Ok(match recording.head()? {
                // The producer of an extra record gets the error once that is known.
                None => is_too_many.then_some(None),
                Some((head, next)) => {
                    // Any other record of a call is extra once its end is next.
                    let is_behind = matches!((&next, whose), (RecordProducer::End(begin), RecordProducer::Lane(lane)) if lane.within == Some(*begin));
                    (next == *whose || is_behind).then_some(Some(head.time_us))
                }
            })
        })?;
        if let Some(time_us) = time_us {
            self.cursor.clock.set_us(time_us);
        }
        Ok(state)
    }

    /// Fails if the replay has stopped at a divergence.
    fn check_not_stopped(self) -> Result<()> {
        match self.with(|recording| recording.stopped.then(|| recording.divergence_error())) {
            None => Ok(()),
            Some(error) => {
                self.inner.schedule.notify_all();
                Err(error)
            }
        }
    }

    /// Returns the error of a replay that cannot continue after its last divergence.
    fn divergence_error(self) -> Error {
        self.with(|recording| recording.divergence_error())
    }

    /// Returns the time at which expiry is judged: that of the next record if it is a settlement or
    /// if the process starts there, which may be long after the last one.
    pub(super) fn judging_us(self) -> Option<i64> {
        self.with(|recording| recording.judging_us())
    }

    /// Returns the time at which this handle settles an operation that expired, if it does so next.
    pub(super) fn expires_us(self, lane: &Session, operation: OperationId) -> Option<i64> {
        self.with(|recording| recording.expires_us(&lane.lane_name(), operation))
    }

    /// Returns an operation of the replayed process that a subscriber must not wait for.
    pub(super) fn told_within(self, state: &WriterState) -> Option<(u64, OperationId)> {
        let mut open = state.live.projection.operations.open();
        let is_running = |operation| self.with(|recording| recording.is_running(operation));
        let open = open.find(|open| !open.reads_only && is_running(open.operation))?;
        Some((RUNS_AGAIN, open.operation))
    }

    /// Notifies the subscribers of the records that came from the log for a call of this thread. A
    /// subscriber must not wait for that call's end.
    fn tell(self, state: &mut MutexGuard<'_, WriterState>) {
        let inner = self.inner;
        let changing = self.told_within(state);
        MutexGuard::unlocked(state, || {
            let tell = || inner.subscribers.tell(&|| inner.gate.synced_end());
            match changing {
                Some((ticket, operation)) => inside(inner.id, ticket, operation, tell),
                None => tell(),
            }
        });
    }

    /// Returns the notification of a recorded event, upgraded; `None` if the record is no event, or
    /// cannot be read.
    fn recorded_event(
        self,
        record: &Record<'_>,
        names: &DeclaredNames,
        objects: &Objects,
    ) -> Option<PendingEvent> {
        if record.kind != RecordKind::Dispatch {
            return None;
        }
        let Action::Event { event, data } = Dispatch::decode(record.body).ok()?.action else { return None };
        let declared = names.event(event)?;
        let bytes = objects.resolve(data).ok();
        let Some(types) = self.inner.types.as_ref().and_then(|types| types.event(&declared.name)) else {
            let value = bytes.and_then(|bytes| Value::decode(&bytes).ok());
            let value = value.map(|value| Arc::new(value) as AnyValue);
            return Some(PendingEvent {
                name: SmolStr::new(&declared.name),
                version: declared.version,
                value,
            });
        };
        let value = bytes.and_then(|bytes| {
            types.decoder.alone(declared.version, record.sequence, RecordedBytes::Elsewhere(&bytes)).ok()
        });
        Some(PendingEvent { name: types.name.clone(), version: types.version, value })
    }

    /// Produces the remaining records of the process from the log, after the host has returned.
    fn end(self) -> Result<(LiveState, Vec<Divergence>, u64)> {
        let inner = self.inner;
        let mut state = inner.state.lock();
        self.with(|recording| recording.returned = true);
        inner.schedule.notify_all();
        // After a failure, missing records are no evidence of a divergence.
        if let Some(cause) = inner.gate.failure() {
            state.closed = true;
            return Err(Error::Poisoned { cause });
        }
        loop {
            let next = self.with(|recording| match recording.stopped {
                true => Ok(None),
                false => recording.head().map(|head| head.map(|(_, whose)| whose)),
            })?;
            match next {
                None => break,
                Some(RecordProducer::Engine) => self.apply_recorded(&mut state)?,
                Some(_) => self.pass_missing(&mut state, None)?,
            }
        }
        state.closed = true;
        inner.schedule.notify_all();
        let live = std::mem::take(&mut state.live);
        let (found, compared) = self.with(|recording| recording.take_found());
        Ok((live, found, compared))
    }
}
