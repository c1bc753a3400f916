//! Takes the records that the host produces: compares each with the recorded one, and applies that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldlog_codec::RecordKind;
use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Declare, Lane, ObjectId};
use parking_lot::MutexGuard;

use super::comparison::RecordComparison;
use super::recorded_log::ReplayLog;
use super::{SessionReplay, Waits, replay_ended_error};
use crate::divergence::{Difference, Divergence, OtherRecord, shown_name};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::log::writer::AppendBody;
use crate::names::DeclaredNames;
use crate::session::WriterState;
use crate::session::write::AppendedRecord;

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

impl ReplayLog {
    /// Returns the declared names for the host's record, with the declaration that preceded it.
    fn names_declared(&mut self, names: &Arc<DeclaredNames>) -> Arc<DeclaredNames> {
        let mut names = Arc::clone(names);
        if let Some(declare) = self.declared.take() {
            Arc::make_mut(&mut names).learn(declare);
        }
        names
    }
}

impl SessionReplay<'_> {
    /// Compares a record that the host produced with the recorded one, and applies it. The caller
    /// has waited for its [`turn`](SessionReplay::turn). Returns the record that was applied last.
    pub(in crate::session) fn append(
        self,
        state: &mut MutexGuard<'_, WriterState>,
        kind: RecordKind,
        body: AppendBody<'_>,
        apply: impl FnOnce(&mut LiveState, SequenceNumber, FoldSources<'_>) -> Result<()>,
    ) -> Result<AppendedRecord> {
        let inner = self.inner;
        let produced = body.bytes();
        let next = state.log.next_sequence();
        let passed = |sequence: SequenceNumber| AppendedRecord {
            sequence: sequence.saturating_sub(1),
            is_news: false,
        };
        if kind == RecordKind::Declare {
            // A difference shows in the record for which it is declared.
            self.with(|recording| recording.declared = Declare::decode(produced).ok());
            return Ok(passed(next));
        }
        let objects = Arc::clone(&state.log.objects);
        let names = Arc::clone(&state.live.projection.names);
        let (is_equal, produced_objects) = self.with(|recording| {
            recording.fill()?;
            recording.compared += 1;
            let produced_objects = std::mem::take(&mut recording.produced_objects);
            let Some(head) = recording.ahead.front() else {
                return Err(recording.too_many(next, kind, produced, &names));
            };
            let is_equal = head.is(kind, produced);
            if is_equal {
                let checked = if recording.rules.checks_objects { head.objects() } else { BTreeSet::new() };
                checked.iter().try_for_each(|object| objects.check_object(object))?;
                let whose = recording.find_producer(head);
                if let Some(taken) = recording.take(&whose) {
                    recording.remember(whose, taken);
                }
            }
            Ok((is_equal, produced_objects))
        })?;
        if is_equal {
            let WriterState { log, live, .. } = &mut **state;
            log.pass_recorded();
            let sources = FoldSources { objects: log.objects.as_ref(), types: inner.types.as_ref() };
            apply(live, next, sources).map_err(|error| inner.poison_on_error(error))?;
            inner.schedule.notify_all();
            return Ok(AppendedRecord { sequence: next, is_news: true });
        }
        match self.judge(state, kind, produced, &produced_objects)? {
            ReplayVerdict::Same => {}
            ReplayVerdict::Changed(divergence) => {
                self.with(|recording| recording.note(divergence));
                self.check_not_stopped()?;
            }
            ReplayVerdict::Extra(divergence) => {
                self.with(|recording| recording.note(divergence));
                self.check_not_stopped()?;
                return Ok(passed(next));
            }
            ReplayVerdict::Missing(count, other) => self.pass_all_missing(state, count, &other)?,
        }
        self.apply_recorded(state)?;
        Ok(passed(state.log.next_sequence()))
    }

    /// Compares a record of the host with the current recorded one.
    fn judge(
        self,
        state: &WriterState,
        kind: RecordKind,
        produced: &[u8],
        produced_objects: &BTreeMap<ObjectId, Vec<u8>>,
    ) -> Result<ReplayVerdict> {
        self.with(|recording| {
            let names = recording.names_declared(&state.live.projection.names);
            let rules = recording.rules.clone();
            let comparison = RecordComparison {
                kind,
                produced,
                names: &names,
                left_out: &rules.left_out,
                types: self.inner.types.as_ref(),
                objects: &state.log.objects,
                produced_objects,
            };
            let Some((head, whose)) = recording.head()? else {
                return Err(replay_ended_error(state.log.next_sequence()));
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
        })
    }

    /// Notes that a tool, whose end is the next record, left a resource in a different state than
    /// recorded.
    pub(super) fn note_left_otherwise(
        self,
        state: &WriterState,
        resource: &str,
        paths: Vec<String>,
    ) -> Result<()> {
        self.with(|recording| {
            let Some((head, whose)) = recording.head()? else { return Ok(()) };
            let difference = Difference::left_otherwise(resource, paths);
            let record = shown_name(head.kind, &head.body, &state.live.projection.names);
            let divergence = Divergence::changed(head.sequence, whose.lane(), record, difference);
            recording.note(divergence);
            Ok(())
        })
    }

    /// Notes that the next `count` records of a lane are missing, and applies them from the log if
    /// the replay continues. Waits for records of other lanes before the lane's next record.
    fn pass_all_missing(
        self,
        state: &mut MutexGuard<'_, WriterState>,
        count: usize,
        other: &OtherRecord,
    ) -> Result<()> {
        let next = |recording: &mut ReplayLog| Ok::<_, Error>(recording.head()?.map(|(_, whose)| whose));
        let lane = self.with(next)?;
        for _ in 0..count {
            self.pass_missing(state, Some(other))?;
            self.check_not_stopped()?;
            self.move_on(state, Waits::Others, |recording| Ok((next(recording)? == lane).then_some(())))?;
        }
        Ok(())
    }
}

impl ReplayLog {
    /// Notes that the host produced a record after the last one, and returns the error that reports
    /// it.
    fn too_many(
        &mut self,
        next: SequenceNumber,
        kind: RecordKind,
        produced: &[u8],
        names: &Arc<DeclaredNames>,
    ) -> Error {
        let names = self.names_declared(names);
        let lane = Lane::decode(kind, produced).unwrap_or_default().into();
        self.note(Divergence::extra(next, lane, kind, produced, &names));
        self.divergence_error()
    }
}
