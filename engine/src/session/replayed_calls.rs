//! Calls of a replayed host: their start and end records, compared with the recorded ones or read
//! from the log.

use std::collections::BTreeMap;

use foldlog_codec::body::{Lane, Observed, ToolBegin, ToolEnd};
use foldlog_codec::{RecordKind, SequenceNumber};

use super::SessionCalls;
use super::operation_records::{RecordedCaptures, captures_of};
use super::operations::{ActiveCall, OperationEnd};
use super::recorded_log::{FromLog, RecordProducer};
use super::replay::Waits;
use super::schedule::Access;
use super::write::PendingRecord;
use crate::error::Result;
use crate::fold::record_kinds::{MaybeOwned, RecordBody};
use crate::operation::CHILD_SESSION;

impl SessionCalls<'_> {
    /// Compares the start of a call with the recorded one, uses the recorded captures, and reads
    /// everything up to the call's end from the log. Returns the sequence number of the start
    /// record.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] if no such start is recorded; [`Error::ReplayEnded`] after the last
    /// record.
    pub(crate) fn begin_replayed(&self, begin: &ToolBegin<'_>) -> Result<SequenceNumber> {
        self.begin_again(begin, true)
    }

    /// Compares the start of a call that runs again with the recorded one.
    pub(crate) fn begin_run_again(&self, begin: &ToolBegin<'_>) -> Result<ActiveCall> {
        let sequence = self.begin_again(begin, false)?;
        let began_us = self.session.inner.now_us();
        Ok(self.session.active_again(sequence, begin.again.unwrap_or(sequence.into()), began_us))
    }

    fn begin_again(&self, begin: &ToolBegin<'_>, from_log: bool) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let state = inner.writable()?;
        self.session.check_handle(&state, Access::Begin { reads_only: begin.reads_only })?;
        let mut state = self.session.in_turn(state)?;
        let next = state.log.next_sequence();
        let recorded = state.replay_log_mut()?.head()?.filter(|(head, _)| head.kind == RecordKind::ToolBegin);
        let recorded = recorded.map(|(head, _)| head.body.clone()).unwrap_or_default();
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
        let recording = state.replay_log_mut()?;
        // It was not recorded.
        if sequence < next {
            return Err(recording.divergence_error());
        }
        if from_log {
            recording.from_log.insert(sequence, FromLog::Awaited);
        }
        inner.finish_write(state, sequence, false)
    }

    /// Reads the rest of a dropped call that ran again from the log. `is_awaited` states that its
    /// end will be requested.
    pub(crate) fn let_go_replayed(&self, begin: SequenceNumber, is_awaited: bool) {
        let mut state = self.session.inner.state.lock();
        if let Ok(recording) = state.replay_log_mut() {
            let from_log = if is_awaited { FromLog::Awaited } else { FromLog::Within };
            recording.from_log.insert(begin, from_log);
        }
        self.session.inner.schedule.notify_all();
    }

    /// Waits for the turn of the end of a call that ran again, and returns the captures in the
    /// recorded end.
    pub(crate) fn captures_at_end(&self, begin: SequenceNumber) -> Result<RecordedCaptures> {
        let inner = &self.session.inner;
        let mut state = inner.turn(inner.settleable()?, &RecordProducer::End(begin), None)?;
        let objects = state.log.objects.clone();
        let Some((head, _)) = state.replay_log_mut()?.head()? else { return Ok(RecordedCaptures::new()) };
        match ToolEnd::decode(&head.body) {
            Ok(end) => captures_of(end.resources, &objects),
            Err(_) => Ok(RecordedCaptures::new()),
        }
    }

    /// Returns the captures of the first remaining start record that has any; empty if none has.
    pub(crate) fn captures_to_come(&self) -> Result<RecordedCaptures> {
        let mut state = self.session.inner.state.lock();
        let objects = state.log.objects.clone();
        let first = state.replay_log_mut()?.look_ahead(|record| {
            if record.kind != RecordKind::ToolBegin {
                return Ok(None);
            }
            match ToolBegin::decode(record.body) {
                Ok(begin) if !begin.resources.is_empty() => captures_of(begin.resources, &objects).map(Some),
                _ => Ok(None),
            }
        });
        Ok(first?.unwrap_or_default())
    }

    /// Returns whether the call that starts next in this handle's lane opened child sessions.
    pub(crate) fn next_call_opens_children(&self) -> Result<bool> {
        let mut state = self.session.in_turn(self.session.inner.writable()?)?;
        let recording = state.replay_log_mut()?;
        let begin = recording.head()?.map(|(head, _)| head.sequence);
        let opened = recording.look_ahead(|record| {
            Ok(match record.kind {
                RecordKind::Observed => Observed::decode(record.body)
                    .is_ok_and(|observed| observed.name == CHILD_SESSION)
                    .then_some(true),
                RecordKind::ToolEnd => {
                    ToolEnd::decode(record.body).is_ok_and(|end| Some(end.begin) == begin).then_some(false)
                }
                _ => None,
            })
        });
        Ok(opened?.unwrap_or(false))
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
        let mut state = inner.turn(inner.settleable()?, &RecordProducer::End(end.begin), None)?;
        for (resource, paths) in left {
            state.note_left_otherwise(&resource, paths)?;
        }
        inner.check_not_stopped(&mut state)?;
        let recorded = state.replay_log_mut()?.head()?.map(|(head, _)| head.body.clone()).unwrap_or_default();
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
        let mut state = self.session.inner.state.lock();
        state.replay_log_mut().is_ok_and(|recording| recording.rules.run_tools)
    }

    /// Waits for the end of a call in the log, and returns its sequence number.
    pub(crate) fn end_of_replayed(&self, begin: SequenceNumber) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let mut state = inner.writable()?;
        inner.move_on(&mut state, Waits::End, |recording| Ok(recording.ends.remove(&begin)))
    }

    /// Reads the end of a call that an earlier process left open from the log.
    pub(crate) fn end_left_open_replayed(&self, begin: SequenceNumber) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let mut state = inner.turn(inner.settleable()?, &RecordProducer::End(begin), None)?;
        let end = state.log.next_sequence();
        inner.apply_recorded(&mut state)?;
        let left = state.left_open().next().is_some();
        state.interrupted = left;
        drop(state);
        inner.subscribers.tell(&|| inner.gate.synced_end());
        Ok(end)
    }
}
