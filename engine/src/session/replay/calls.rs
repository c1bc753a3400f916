//! Calls of a replayed host: their start and end records, compared with the recorded ones or read
//! from the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::{Lane, Observed, ToolBegin, ToolEnd};
use foldlog_codec::{Record, RecordKind, SequenceNumber};

use parking_lot::{Mutex, MutexGuard};

use super::recorded_log::{FromLog, RecordProducer};
use super::{SessionReplay, Waits};
use crate::error::Result;
use crate::fold::record_kinds::{MaybeOwned, RecordBody};
use crate::operation::CHILD_SESSION;
use crate::session::operation_records::{RecordedCaptures, captures_of};
use crate::session::operations::{ActiveCall, OperationEnd};
use crate::session::schedule::Access;
use crate::session::wait::{CallScope, RUNS_AGAIN, Stop};
use crate::session::write::PendingRecord;
use crate::session::{SessionCalls, WriterState};

impl SessionCalls<'_> {
    /// Compares the start of a call with the recorded one, and uses the recorded captures. With
    /// `from_log`, everything up to the call's end is read from the log.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] if no such start is recorded; [`Error::ReplayEnded`] after the last
    /// record.
    pub(crate) fn begin_replayed(&self, begin: &ToolBegin<'_>, from_log: bool) -> Result<ActiveCall> {
        let sequence = self.write_begin(begin, from_log)?;
        let inner = &self.session.inner;
        // In no schedule, since the log decides the order.
        let within = Arc::new(CallScope {
            ticket: RUNS_AGAIN,
            operation: begin.again.unwrap_or(sequence.into()),
            run: Some(sequence),
            until: None,
            made_again: Mutex::default(),
            stop: Stop::default(),
            parent: self.session.within.clone(),
            session: inner.id,
            guest_of: None,
        });
        Ok(ActiveCall { inner: Arc::clone(inner), within, begin: sequence, began_us: inner.now_us() })
    }

    fn write_begin(&self, begin: &ToolBegin<'_>, from_log: bool) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let state = inner.writable()?;
        self.session.check_handle(&state, Access::Begin { reads_only: begin.reads_only })?;
        let replay = self.session.as_replay()?;
        let mut state = replay.turn(state, &self.session.own_producer(), None)?;
        let next = state.log.next_sequence();
        let is_begin = RecordKind::ToolBegin;
        let recorded = replay.with_head(|head| (head.kind == is_begin).then(|| head.body.clone()))?;
        let recorded = recorded.flatten().unwrap_or_default();
        let mut produced = begin.clone();
        if let Ok(recorded) = ToolBegin::decode(&recorded) {
            produced.resources = recorded.resources;
        }
        let references = inner.references(&state, produced.payloads_mut())?;
        let mut begin = produced;
        inner.refer(begin.payloads_mut(), &references);
        let mut body = begin.encode();
        // The start record names the enclosing operation in a separate field.
        Lane { within: None, ..self.session.record_lane() }.add_to(&mut body, 0);
        let content = RecordBody::ToolBegin(MaybeOwned::Borrowed(&begin));
        let sequence = inner.write_pending(
            &mut state,
            inner.now_us(),
            PendingRecord::new(RecordKind::ToolBegin, &body, content),
            false,
        )?;
        // It was not recorded.
        if sequence < next {
            return Err(replay.divergence_error());
        }
        if from_log {
            replay.with(|recording| recording.from_log.insert(sequence, FromLog::Awaited));
        }
        inner.finish_write(state, sequence, false)
    }

    /// Waits for the turn of the end of the run with this start record.
    fn turn_of_end(&self, begin: SequenceNumber) -> Result<(SessionReplay<'_>, MutexGuard<'_, WriterState>)> {
        let replay = self.session.as_replay()?;
        let state = self.session.inner.settleable()?;
        Ok((replay, replay.turn(state, &RecordProducer::End(begin), None)?))
    }

    /// Lets the log produce the rest of a call that was dropped, or that the host only reported.
    /// `is_awaited` states that its end will be requested.
    pub(crate) fn let_go_replayed(&self, begin: SequenceNumber, is_awaited: bool) {
        let _state = self.session.inner.state.lock();
        if let Some(replay) = self.session.inner.replay() {
            let from_log = if is_awaited { FromLog::Awaited } else { FromLog::Within };
            replay.with(|recording| recording.from_log.insert(begin, from_log));
        }
        self.session.inner.schedule.notify_all();
    }

    /// Waits for the turn of the end of a call that ran again, and returns the captures in the
    /// recorded end.
    pub(crate) fn captures_at_end(&self, begin: SequenceNumber) -> Result<RecordedCaptures> {
        let (replay, state) = self.turn_of_end(begin)?;
        let recorded = replay.with_head(|head| head.body.clone())?.unwrap_or_default();
        match ToolEnd::decode(&recorded) {
            Ok(end) => captures_of(end.resources, &state.log.objects),
            Err(_) => Ok(RecordedCaptures::new()),
        }
    }

    /// Returns the captures of the first remaining start record that has any; empty if none has.
    pub(crate) fn captures_to_come(&self) -> Result<RecordedCaptures> {
        let replay = self.session.as_replay()?;
        let objects = self.session.inner.state.lock().log.objects.clone();
        let look = |record: &Record<'_>| {
            if record.kind != RecordKind::ToolBegin {
                return Ok(None);
            }
            match ToolBegin::decode(record.body) {
                Ok(begin) if !begin.resources.is_empty() => captures_of(begin.resources, &objects).map(Some),
                _ => Ok(None),
            }
        };
        Ok(replay.with(|recording| recording.look_ahead(look))?.unwrap_or_default())
    }

    /// Returns whether the call that starts next in this handle's lane opened child sessions.
    pub(crate) fn next_call_opens_children(&self) -> Result<bool> {
        let replay = self.session.as_replay()?;
        let _state = replay.turn(self.session.inner.writable()?, &self.session.own_producer(), None)?;
        let begin = replay.with_head(|head| head.sequence)?;
        let look = |record: &Record<'_>| {
            Ok(match record.kind {
                RecordKind::Observed => Observed::decode(record.body)
                    .is_ok_and(|observed| observed.name == CHILD_SESSION)
                    .then_some(true),
                RecordKind::ToolEnd => {
                    ToolEnd::decode(record.body).is_ok_and(|end| Some(end.begin) == begin).then_some(false)
                }
                _ => None,
            })
        };
        Ok(replay.with(|recording| recording.look_ahead(look))?.unwrap_or(false))
    }

    /// Compares the end of a call that ran again with the recorded one. Captures, durations and
    /// failed undos are the recorded ones. `left` names the parts of resources that the tool left
    /// in a different state than recorded.
    pub(crate) fn end_run_again(
        &self,
        end: &ToolEnd<'_>,
        left: BTreeMap<String, Vec<String>>,
    ) -> Result<OperationEnd> {
        let inner = &self.session.inner;
        let (replay, mut state) = self.turn_of_end(end.begin)?;
        for (resource, paths) in left {
            replay.note_left_otherwise(&state, &resource, paths)?;
        }
        replay.check_not_stopped()?;
        let recorded = replay.with_head(|head| head.body.clone())?.unwrap_or_default();
        let mut produced = end.clone();
        if let Ok(recorded) = ToolEnd::decode(&recorded) {
            produced.resources = recorded.resources;
            produced.not_undone = recorded.not_undone;
            produced.replaced = recorded.replaced;
            (produced.elapsed_us, produced.slice) = (recorded.elapsed_us, recorded.slice);
            // The expiry depends on the time of the run.
            if let (Some(produced), Some(recorded)) = (&mut produced.suspension, recorded.suspension) {
                produced.expires_us = recorded.expires_us;
            }
        }
        let references = inner.references(&state, produced.payloads_mut())?;
        let mut end = produced;
        inner.refer(end.payloads_mut(), &references);
        let body = end.encode();
        let content = RecordBody::ToolEnd(MaybeOwned::Borrowed(&end));
        let pending = PendingRecord::new(RecordKind::ToolEnd, &body, content);
        let sequence = inner.write_pending(&mut state, inner.now_us(), pending, false)?;
        Ok(OperationEnd { end: inner.finish_write(state, sequence, false)?, elapsed_us: end.elapsed_us })
    }

    /// Returns whether this session replays and lets tools run again.
    pub(crate) fn runs_tools_again(&self) -> bool {
        let replay = self.session.inner.replay();
        replay.is_some_and(|replay| replay.with(|recording| recording.rules.run_tools))
    }

    /// Waits for the end of a call in the log, and returns its sequence number.
    pub(crate) fn end_of_replayed(&self, begin: SequenceNumber) -> Result<SequenceNumber> {
        let replay = self.session.as_replay()?;
        let mut state = self.session.inner.writable()?;
        replay.move_on(&mut state, Waits::End, |recording| Ok(recording.ends.remove(&begin)))
    }

    /// Reads the end of a call that an earlier process left open from the log.
    pub(crate) fn end_left_open_replayed(&self, begin: SequenceNumber) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let (replay, mut state) = self.turn_of_end(begin)?;
        let end = state.log.next_sequence();
        replay.apply_recorded(&mut state)?;
        let left = state.left_open().next().is_some();
        state.interrupted = left;
        drop(state);
        inner.subscribers.tell(&|| inner.gate.synced_end());
        Ok(end)
    }
}
