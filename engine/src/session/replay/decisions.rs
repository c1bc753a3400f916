//! Decisions that other processes left for the host, which a replay takes from the log.

use std::time::Instant;

use foldlog_codec::body::Settle;
use foldlog_codec::{OperationId, RecordKind};

use super::recorded_log::RecordProducer;
use super::{SessionReplay, Waits};
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::session::decisions::value;
use crate::session::settle::{RecordedSettlement, Settlement};
use crate::session::{DecisionWait, DecisionsTaken, SessionCalls, TakenDecision};

impl SessionCalls<'_> {
    /// In a replay, reads the decisions that the host recorded here from the log.
    pub(in crate::session) fn take_replayed(&self, replay: SessionReplay<'_>) -> Result<DecisionsTaken> {
        let lane = self.of_decisions();
        let mut report = DecisionsTaken::default();
        while let Some((operation, time_us, next)) = lane.calls().next_replayed(replay)? {
            let sequence = lane.calls().settle(operation, &next.settlement, &next.by, &next.reason)?;
            let decided_at = conversation_reading::time(time_us);
            report.taken.push(TakenDecision { operation, by: next.by, decided_at, sequence });
        }
        Ok(report)
    }

    /// Returns the next record of a replay with its operation and its time, if it is a decision of
    /// this lane.
    fn next_replayed(
        &self,
        replay: SessionReplay<'_>,
    ) -> Result<Option<(OperationId, i64, RecordedSettlement)>> {
        let (source, own) = (self.session.log_source(), self.session.own_producer());
        let mut state = self.session.inner.state.lock();
        // Records of the engine come first; no caller brings them.
        replay.move_on(&mut state, Waits::Others, |recording| {
            let is_engines = matches!(recording.head()?, Some((_, RecordProducer::Engine)));
            Ok((!is_engines).then_some(()))
        })?;
        let next = replay.with(|recording| {
            let head = recording.head()?;
            let head = head.filter(|(head, whose)| head.kind == RecordKind::Settle && *whose == own);
            Ok::<_, Error>(head.map(|(head, _)| (head.sequence, head.time_us, head.body.clone())))
        })?;
        let Some((sequence, time_us, body)) = next else { return Ok(None) };
        let settle = Settle::decode(&body).map_err(Error::unread(sequence))?;
        let operation = settle.operation;
        let settlement =
            Settlement::of_record(&settle, |payload| value(operation, &source.objects.resolve(payload)?))?;
        let Settle { by, reason, .. } = settle;
        Ok(Some((operation, time_us, RecordedSettlement { sequence, settlement, by, reason })))
    }

    /// Reads the decisions that ended the wait from the log. Waits for earlier records of other
    /// lanes until `until` at the latest.
    pub(in crate::session) fn wait_replayed(
        &self,
        replay: SessionReplay<'_>,
        operations: &[OperationId],
        until: Instant,
    ) -> Result<DecisionWait> {
        let own = self.session.own_producer();
        loop {
            self.take_replayed(replay)?;
            let decided = self.session.inner.filter_decided(operations);
            if !decided.is_empty() || operations.is_empty() {
                return Ok(DecisionWait { decided, refused: Vec::new() });
            }
            let mut state = self.session.inner.state.lock();
            let (is_others, patience) = replay.with(|recording| {
                let is_others = |whose| whose != own && whose != RecordProducer::Engine;
                let is_others = recording.head()?.is_some_and(|(_, whose)| is_others(whose));
                Ok::<_, Error>((is_others, recording.rules.patience))
            })?;
            let over_at = clock::after(patience).min(until);
            // The wait timed out, or the host's next call brings the next record.
            if !is_others || self.session.inner.schedule.wait_until(&mut state, over_at).timed_out() {
                return Ok(DecisionWait::default());
            }
        }
    }
}
