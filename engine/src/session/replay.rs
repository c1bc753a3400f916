//! Runs a host again over the records of its earlier run. The log is unchanged, and each record
//! that the host produces is compared with the recorded one, lane by lane.
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
//! Without any record for the time of [`Rules::patience`](super::recorded_log::Rules::patience),
//! the next record counts as missing. A write within a call whose end comes next does not wait: it
//! is an extra record.
//!
//! # Invariants
//!
//! 1. The state after record n is the fold of the recorded records through n, whatever the host
//!    produced.
//! 2. The clock of a write is the time of the recorded record in whose place it is made, before any
//!    reducer runs.
//! 3. Only a part of the log is in memory: the records that are read [ahead](super::recorded_log),
//!    and their effects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use foldlog_codec::body::{Declare, Lane, ObjectId, ToolBegin};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;

use super::recorded_log::{RecordProducer, ReplayLog};
use super::rejected_writes::Attempt;
use super::replay_comparison::RecordComparison;
use super::{Session, SessionInner, WriterState};
use crate::clock;
use crate::divergence::{Difference, Divergence, LaneName, OtherRecord, shown_name};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::log::writer::AppendBody;
use crate::operation::{RESTORE, RestoreArguments};
use crate::types::SessionTypes;

/// State of a replay that is read without the session's lock.
#[derive(Debug, Default)]
pub(crate) struct ReplayClock {
    /// Time of the current record, in microseconds since 1970.
    now_us: AtomicI64,
}

impl ReplayClock {
    pub(super) fn now_us(&self) -> i64 {
        self.now_us.load(Ordering::Relaxed)
    }
}

/// Treatment of a record that the host produced in the place of a recorded one.
enum ReplayVerdict {
    /// Applies the recorded one: no compared value differs.
    Same,
    /// Reports that it has changed, and applies the recorded one.
    Changed(Divergence),
    /// Reports that this many records of the lane are missing before it: it is recorded after them,
    /// as that one.
    Missing(usize, OtherRecord),
    /// Reports that it is not recorded, and discards it.
    Extra(Divergence),
}

/// Event that a thread of the host waits for.
pub(super) enum Waits<'w, 'a> {
    /// The turn of its own record, for this write.
    Turn(&'w RecordProducer, Option<&'w mut Attempt<'a>>),
    /// The end of its call, from the log.
    End,
    /// Records of other producers before the next record of its lane.
    Others,
}

impl WriterState {
    pub(super) fn replay_log_mut(&mut self) -> Result<&mut ReplayLog> {
        let none = Error::NoSuchPosition { position: self.log.next_sequence(), last: None };
        self.recording.as_deref_mut().ok_or(none)
    }

    /// Compares a record of the host with the current recorded one.
    fn judge(
        &mut self,
        kind: RecordKind,
        produced: &[u8],
        produced_objects: &BTreeMap<ObjectId, Vec<u8>>,
        types: Option<&SessionTypes>,
    ) -> Result<ReplayVerdict> {
        let objects = Arc::clone(&self.log.objects);
        let mut names = self.live.projection.names.clone();
        let recording = self.replay_log_mut()?;
        if let Some(declare) = recording.declared.take() {
            Arc::make_mut(&mut names).learn(declare);
        }
        let rules = recording.rules.clone();
        let comparison = RecordComparison {
            kind,
            produced,
            names: &names,
            left_out: &rules.left_out,
            types,
            objects: &objects,
            produced_objects,
        };
        let Some((head, whose)) = recording.head()? else {
            return Err(replay_ended_error(self.log.next_sequence()));
        };
        let lane = whose.lane();
        let difference = match comparison.is_alike(head) {
            true => match comparison.difference(head) {
                None => return Ok(ReplayVerdict::Same),
                difference => difference,
            },
            false => None,
        };
        let (sequence, other) = (head.sequence, comparison.describe_record(head));
        if let Some((missing, behind)) = recording.equal_behind(&lane, &comparison) {
            return Ok(ReplayVerdict::Missing(missing, comparison.describe_record(behind)));
        }
        let repeats = recording.last.get(&lane).is_some_and(|last| comparison.is_same(last));
        Ok(match difference {
            Some(difference) if !repeats => {
                ReplayVerdict::Changed(Divergence::changed(sequence, lane, other.record, difference))
            }
            _ => {
                let extra = Divergence::extra(sequence, lane, kind, produced, &names);
                ReplayVerdict::Extra(Divergence { other: Some(other), ..extra })
            }
        })
    }

    /// Notes that the host produced a record after the last one, and returns the error that reports
    /// it.
    fn too_many(&mut self, kind: RecordKind, produced: &[u8]) -> Result<Error> {
        let (mut names, next) = (self.live.projection.names.clone(), self.log.next_sequence());
        let recording = self.replay_log_mut()?;
        if let Some(declare) = recording.declared.take() {
            Arc::make_mut(&mut names).learn(declare);
        }
        let lane = Lane::decode(kind, produced).unwrap_or_default().into();
        recording.note(Divergence::extra(next, lane, kind, produced, &names));
        Ok(recording.divergence_error())
    }

    /// Notes that a tool, whose end is the next record, left a resource in a different state than
    /// recorded.
    pub(super) fn note_left_otherwise(&mut self, resource: &str, paths: Vec<String>) -> Result<()> {
        let names = self.live.projection.names.clone();
        let recording = self.replay_log_mut()?;
        let Some((head, whose)) = recording.head()? else { return Ok(()) };
        let difference = Difference::left_otherwise(resource, paths);
        let record = shown_name(head.kind, &head.body, &names);
        let divergence = Divergence::changed(head.sequence, whose.lane(), record, difference);
        recording.note(divergence);
        Ok(())
    }

    /// Returns the divergence that the next record was not produced.
    fn missing(&mut self) -> Result<Option<Divergence>> {
        let names = self.live.projection.names.clone();
        let Some((head, whose)) = self.replay_log_mut()?.head()? else { return Ok(None) };
        Ok(Some(Divergence::missing(head.sequence, whose.lane(), head.kind, &head.body, &names)))
    }
}

/// Returns the error after the last recorded record.
fn replay_ended_error(next: SequenceNumber) -> Error {
    Error::ReplayEnded { position: next.saturating_sub(1) }
}

impl SessionInner {
    /// Applies the next record from the log.
    pub(super) fn apply_recorded(&self, state: &mut WriterState) -> Result<()> {
        let WriterState { log, live, recording, .. } = state;
        let Some(recording) = recording.as_deref_mut() else { return Ok(()) };
        let checks = recording.rules.checks_objects;
        let Some((head, whose)) = recording.head()? else { return Ok(()) };
        let checked = if checks { head.objects() } else { BTreeSet::new() };
        checked.iter().try_for_each(|object| log.objects.check_object(object))?;
        let Some(head) = recording.take(&whose) else { return Ok(()) };
        let record =
            Record { sequence: head.sequence, kind: head.kind, time_us: head.time_us, body: &head.body };
        log.pass_recorded();
        live.apply_record(
            &record,
            FoldSources { objects: log.objects.as_ref(), types: self.types.as_ref() },
        )?;
        if let Some((sequence, kind)) = live.projection.unsupported {
            return Err(Error::UnsupportedKind { sequence, kind });
        }
        recording.told = Some(head.sequence);
        self.notify(head.sequence, head.time_us, head.kind, false, || {
            self.recorded_event(&record, &live.projection.names, &log.objects)
        });
        if let Some(replayed) = &self.replayed {
            replayed.now_us.store(head.time_us, Ordering::Relaxed);
        }
        recording.remember(whose, head);
        self.schedule.notify_all();
        Ok(())
    }

    /// Applies the engine's records until `ready` returns a value, and returns that. Between them
    /// it waits for records of other lanes, unless the pending write is refused.
    ///
    /// # Errors
    ///
    /// [`Error::ReplayEnded`] after the last record, [`Error::Diverged`] if the replay has stopped;
    /// the error that refuses the write.
    pub(super) fn move_on<T>(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        mut waits: Waits<'_, '_>,
        mut ready: impl FnMut(&mut ReplayLog) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut is_checked = false;
        loop {
            if matches!(waits, Waits::End) && self.subscribers.waits() {
                self.tell_replayed(state);
            }
            if let Some(refusal) = self.refusal(state) {
                return Err(self.refusal_error(refusal, state));
            }
            let next = state.log.next_sequence();
            let recording = state.replay_log_mut()?;
            if recording.stopped {
                return Err(recording.divergence_error());
            }
            if let Some(found) = ready(recording)? {
                return Ok(found);
            }
            let brings = recording.head()?.map(|(_, whose)| whose);
            let returned = recording.returned;
            let patience = recording.rules.patience;
            // A producer that timed out once gets no second wait.
            let is_gone = brings.as_ref().is_some_and(|brings| recording.gone.contains(brings));
            match brings {
                Some(RecordProducer::Engine) => {
                    self.apply_recorded(state)?;
                    continue;
                }
                Some(_) if !returned => {}
                _ => return Err(replay_ended_error(next)),
            }
            if let Waits::Turn(whose, Some(attempt)) = &mut waits
                && !std::mem::replace(&mut is_checked, true)
            {
                attempt.check(state, whose, false)?;
            }
            let is_over = is_gone || self.schedule.wait_until(state, clock::after(patience)).timed_out();
            if is_over && state.log.next_sequence() == next {
                if let Waits::Turn(whose, Some(attempt)) = &mut waits {
                    attempt.check(state, whose, true)?;
                }
                state.replay_log_mut()?.gone.extend(brings);
                self.pass_missing(state, None)?;
            }
        }
    }

    /// Notes that the next record is missing, and applies it from the log if the replay continues.
    /// `other` is the record with which the host continued.
    fn pass_missing(&self, state: &mut WriterState, other: Option<&OtherRecord>) -> Result<()> {
        let Some(missing) = state.missing()? else { return Ok(()) };
        state.replay_log_mut()?.note(Divergence { other: other.cloned(), ..missing });
        self.schedule.notify_all();
        if !state.replay_log_mut()?.stopped {
            self.apply_recorded(state)?;
        }
        Ok(())
    }

    /// Waits until `whose` produces the next record, and sets the clock to the record's time.
    /// `attempt` is the pending write, if its refusal leaves no record.
    pub(super) fn turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, WriterState>,
        whose: &RecordProducer,
        attempt: Option<&mut Attempt<'_>>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        state.replay_log_mut()?.gone.remove(whose);
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
        if let Some((replayed, time_us)) = self.replayed.as_ref().zip(time_us) {
            replayed.now_us.store(time_us, Ordering::Relaxed);
        }
        Ok(state)
    }

    /// Compares a record that the host produced with the recorded one, and applies it. The caller
    /// has waited for its [`turn`](SessionInner::turn). Returns the sequence number of the record
    /// that was applied last.
    pub(super) fn append_replayed(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        kind: RecordKind,
        body: AppendBody<'_>,
        apply: impl FnOnce(&mut LiveState, SequenceNumber, FoldSources<'_>) -> Result<()>,
    ) -> Result<SequenceNumber> {
        let produced = body.bytes();
        let next = state.log.next_sequence();
        let recording = state.replay_log_mut()?;
        recording.fill()?;
        if kind == RecordKind::Declare {
            // A difference shows in the record for which it is declared.
            recording.declared = Declare::decode(produced).ok();
            return Ok(next.saturating_sub(1));
        }
        recording.compared += 1;
        let produced_objects = std::mem::take(recording.produced_objects.get_mut());
        let Some(head) = recording.ahead.front() else { return Err(state.too_many(kind, produced)?) };
        if head.is(kind, produced) {
            let checked = if recording.rules.checks_objects { head.objects() } else { BTreeSet::new() };
            let WriterState { log, live, recording, .. } = &mut **state;
            checked.iter().try_for_each(|object| log.objects.check_object(object))?;
            if let Some(recording) = recording
                && let Some(whose) = recording.ahead.front().map(|head| recording.find_producer(head))
                && let Some(taken) = recording.take(&whose)
            {
                recording.remember(whose, taken);
            }
            log.pass_recorded();
            let sources = FoldSources { objects: log.objects.as_ref(), types: self.types.as_ref() };
            apply(live, next, sources).map_err(|error| self.poison_on_error(error))?;
            self.schedule.notify_all();
            return Ok(next);
        }
        let verdict = state.judge(kind, produced, &produced_objects, self.types.as_ref())?;
        match verdict {
            ReplayVerdict::Same => self.apply_recorded(state)?,
            ReplayVerdict::Changed(divergence) => {
                state.replay_log_mut()?.note(divergence);
                self.check_not_stopped(state)?;
                self.apply_recorded(state)?;
            }
            ReplayVerdict::Extra(divergence) => {
                state.replay_log_mut()?.note(divergence);
                self.check_not_stopped(state)?;
                return Ok(next.saturating_sub(1));
            }
            ReplayVerdict::Missing(count, other) => {
                self.pass_all_missing(state, count, &other)?;
                self.apply_recorded(state)?;
            }
        }
        Ok(state.log.next_sequence().saturating_sub(1))
    }

    /// Notes that the next `count` records of a lane are missing, and applies them from the log if
    /// the replay continues. Waits for records of other lanes before the lane's next record.
    fn pass_all_missing(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        count: usize,
        other: &OtherRecord,
    ) -> Result<()> {
        let lane = state.replay_log_mut()?.head()?.map(|(_, whose)| whose);
        for _ in 0..count {
            self.pass_missing(state, Some(other))?;
            self.check_not_stopped(state)?;
            self.move_on(state, Waits::Others, |recording| {
                let next = recording.head()?.map(|(_, whose)| whose);
                Ok((next == lane).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Fails if the replay has stopped at a divergence.
    pub(super) fn check_not_stopped(&self, state: &mut WriterState) -> Result<()> {
        let recording = state.replay_log_mut()?;
        if recording.stopped {
            self.schedule.notify_all();
            return Err(recording.divergence_error());
        }
        Ok(())
    }
}

impl Session {
    /// Returns whether this session replays recorded records, and writes none.
    pub fn replays(&self) -> bool {
        self.inner.replayed.is_some()
    }

    pub(super) fn lane_name(&self) -> LaneName {
        self.record_lane().into()
    }

    /// Waits for the turn of this handle's lane if the session replays.
    pub(super) fn in_turn<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        if !self.replays() {
            return Ok(state);
        }
        self.inner.turn(state, &RecordProducer::Lane(self.lane_name()), None)
    }

    /// Returns the current record in this handle's lane, if its kind is one of these.
    pub(super) fn next_recorded(
        &self,
        kinds: &[RecordKind],
    ) -> Result<Option<(SequenceNumber, RecordKind, Vec<u8>)>> {
        let mut state = self.in_turn(self.inner.writable()?)?;
        let head = state.replay_log_mut()?.head()?;
        let head = head.filter(|(head, _)| kinds.contains(&head.kind));
        Ok(head.map(|(head, _)| (head.sequence, head.kind, head.body.clone())))
    }

    /// Returns whether the current record in this handle's lane starts a fill of directories.
    pub(crate) fn is_next_a_fill(&self) -> Result<bool> {
        let Some((sequence, _, body)) = self.next_recorded(&[RecordKind::ToolBegin])? else {
            return Ok(false);
        };
        let begin = ToolBegin::decode(&body).map_err(Error::unread(sequence))?;
        let arguments = (begin.tool == RESTORE).then(|| RestoreArguments::read(begin.arguments.bytes()));
        Ok(arguments.flatten().and_then(|read| read.rewind).is_some_and(|rewind| rewind.fills))
    }

    /// Returns whether the record after the next one of this lane is a request.
    pub(super) fn is_asked_again(&self) -> Result<bool> {
        let mut state = self.in_turn(self.inner.writable()?)?;
        let recording = state.replay_log_mut()?;
        recording.fill()?;
        let behind = recording.behind_next(&RecordProducer::Lane(self.lane_name()));
        Ok(behind.is_some_and(|record| record.kind == RecordKind::Request))
    }

    /// Notes that an observation of this handle's lane has changed, and returns the error that
    /// reports it.
    pub(super) fn observed_otherwise(
        &self,
        sequence: SequenceNumber,
        name: &str,
        difference: Difference,
    ) -> Error {
        let record = format!("{} {name}", RecordKind::Observed);
        let divergence = Divergence::changed(sequence, self.lane_name(), record, difference);
        let mut state = self.inner.state.lock();
        match state.replay_log_mut() {
            Ok(recording) => {
                recording.note(divergence);
                // Waiting threads have to notice if the replay stops here.
                self.inner.schedule.notify_all();
                recording.divergence_error()
            }
            Err(error) => error,
        }
    }

    /// Returns the error of a replay that cannot continue after its last divergence.
    pub(super) fn divergence_error(&self) -> Error {
        match self.inner.state.lock().replay_log_mut() {
            Ok(recording) => recording.divergence_error(),
            Err(error) => error,
        }
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
        let ended = self.end_recorded();
        let mut state = self.inner.state.lock();
        state.closed = true;
        // After damage, the host's behavior is no evidence of a divergence.
        state.log.objects.damage().map_or(ended, Err)
    }

    fn end_recorded(&self) -> Result<(LiveState, Vec<Divergence>, u64)> {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        state.replay_log_mut()?.returned = true;
        inner.schedule.notify_all();
        // After a failure, missing records are no evidence of a divergence.
        if let Some(cause) = inner.gate.failure() {
            state.closed = true;
            return Err(Error::Poisoned { cause });
        }
        loop {
            let recording = state.replay_log_mut()?;
            if recording.stopped {
                break;
            }
            match recording.head()?.map(|(_, whose)| whose) {
                None => break,
                Some(RecordProducer::Engine) => inner.apply_recorded(&mut state)?,
                Some(_) => inner.pass_missing(&mut state, None)?,
            }
        }
        state.closed = true;
        inner.schedule.notify_all();
        let live = std::mem::take(&mut state.live);
        let recording = state.recording.take().map(|recording| recording.into_found());
        let (found, compared) = recording.unwrap_or_default();
        Ok((live, found, compared))
    }
}
