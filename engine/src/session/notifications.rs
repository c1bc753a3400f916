//! Notifies subscribers of a replayed session of the recorded records, each once and in order.
//!
//! The records of a call from the log are announced one by one, by the thread that waits for the
//! call's end, as in the live run while the tool ran. All remaining ones are announced after the
//! write that applied them.

use std::sync::Arc;

use foldlog_codec::body::{Action, Dispatch};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;

use super::schedule::{RUNS_AGAIN, inside};
use super::write::PendingEvent;
use super::{SessionInner, WriterState};
use crate::items::AnyValue;
use crate::log::objects::Objects;
use crate::names::DeclaredNames;
use crate::types::RecordedBytes;

impl WriterState {
    /// Returns an operation of the replayed process that a subscriber must not wait for.
    pub(super) fn replayed_within(&self) -> Option<(u64, OperationId)> {
        let recording = self.recording.as_ref()?;
        let mut open = self.live.projection.operations.open();
        let open = open.find(|open| !open.reads_only && recording.is_running(open.operation))?;
        Some((RUNS_AGAIN, open.operation))
    }
}

impl SessionInner {
    /// Returns the notification of a recorded event, upgraded; `None` if the record is no event, or
    /// cannot be read.
    pub(super) fn recorded_event(
        &self,
        record: &Record<'_>,
        names: &DeclaredNames,
        objects: &Objects,
    ) -> Option<PendingEvent> {
        if record.kind != RecordKind::Dispatch {
            return None;
        }
        let Action::Event { event, data } = Dispatch::decode(record.body).ok()?.action else { return None };
        let declared = names.event(event)?;
        let Some(types) = self.types.as_ref().and_then(|types| types.event(&declared.name)) else {
            let value = objects.resolve(data).ok().and_then(|bytes| Value::decode(&bytes).ok());
            let (name, value) =
                (SmolStr::new(&declared.name), value.map(|value| Arc::new(value) as AnyValue));
            return Some(PendingEvent { name, version: declared.version, value });
        };
        let value = objects.resolve(data).ok().and_then(|bytes| {
            types.decoder.alone(declared.version, record.sequence, RecordedBytes::Elsewhere(&bytes)).ok()
        });
        Some(PendingEvent { name: types.name.clone(), version: types.version, value })
    }

    /// Returns whether subscribers are still to be notified of a record that was written, or that
    /// took the place of a recorded one. Marks the record as announced.
    #[inline]
    pub(super) fn is_news(&self, state: &mut WriterState, sequence: SequenceNumber) -> bool {
        let Some(recording) = &mut state.recording else { return true };
        let is_news = recording.told < Some(sequence);
        recording.told = recording.told.max(Some(sequence));
        is_news
    }

    /// Notifies the subscribers of the records that came from the log for a call of this thread. A
    /// subscriber must not wait for that call's end.
    pub(super) fn tell_replayed(&self, state: &mut MutexGuard<'_, WriterState>) {
        let changing = state.replayed_within();
        MutexGuard::unlocked(state, || {
            let tell = || self.subscribers.tell(&|| self.gate.synced_end());
            match changing {
                Some((ticket, operation)) => inside(self.id, ticket, operation, tell),
                None => tell(),
            }
        });
    }
}
