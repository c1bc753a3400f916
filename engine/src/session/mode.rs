//! Live or replay: chosen once, when a session is opened. The steps of a write that differ are the
//! methods here; no other module of the write path distinguishes the two.
//!
//! | step | live | [replay](super::replay) |
//! |---|---|---|
//! | turn | when the [schedule](super::schedule) allows the write | when the recorded log has a record of this lane next |
//! | large payload | becomes an object | is retained for the comparison |
//! | record | is appended and applied | is compared; the recorded one is applied |

use foldlog_codec::body::ObjectId;
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;

use super::replay::{Attempt, ReplayCursor, SessionReplay};
use super::schedule::WriteScope;
use super::{Session, SessionInner, WriterState};
use crate::error::Result;
use crate::fold::live::{FoldSources, LiveState};
use crate::log::writer::{AppendBody, ReservationKind};

/// Source of a session's records.
pub(super) enum Mode {
    /// The host, whose records are appended to the log.
    Live,
    /// The log, with whose records those of the host are compared.
    Replay(Box<ReplayCursor>),
}

/// A record that a write produced.
#[derive(Clone, Copy)]
pub(super) struct AppendedRecord {
    pub(super) sequence: SequenceNumber,
    /// Whether subscribers are still to be notified of it.
    pub(super) is_news: bool,
}

impl Session {
    /// Returns whether this session replays recorded records, and writes none.
    pub fn replays(&self) -> bool {
        matches!(self.inner.mode, Mode::Replay(_))
    }

    /// Waits for the turn of a write through this handle. `attempt` is the write, if its refusal
    /// leaves no record.
    #[inline]
    pub(super) fn turn_to_write<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        change: impl FnOnce() -> WriteScope,
        attempt: Option<Attempt<'_>>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        match &self.inner.mode {
            Mode::Live => self.wait_to_write(state, change),
            Mode::Replay(_) => self.turn_again(state, Some(change()), attempt),
        }
    }

    /// Returns the result of a write that `known` finds in a replay before the write's turn: a call
    /// that writes no record has none.
    pub(super) fn known_before_turn<T>(&self, known: impl FnOnce(&WriterState) -> Option<T>) -> Option<T> {
        self.inner.replay().and_then(|_| known(&self.inner.state.lock()))
    }

    /// Waits for the turn of a record that the schedule never delays.
    pub(super) fn turn_to_settle<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        attempt: Option<Attempt<'_>>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        match &self.inner.mode {
            Mode::Live => Ok(state),
            Mode::Replay(_) => {
                let change = attempt.is_some().then_some(WriteScope::Log);
                self.turn_again(state, change, attempt)
            }
        }
    }
}

impl SessionInner {
    /// Returns the replay of this session; `None` for a live session.
    #[inline]
    pub(super) fn replay(&self) -> Option<SessionReplay<'_>> {
        match &self.mode {
            Mode::Live => None,
            Mode::Replay(cursor) => Some(SessionReplay { inner: self, cursor }),
        }
    }

    /// Reserves space for all records: a record that does not fit is refused together with its
    /// declaration.
    pub(super) fn reserve<'b>(
        &self,
        state: &mut WriterState,
        time_us: i64,
        bodies: impl Iterator<Item = &'b [u8]>,
        room: ReservationKind,
    ) -> Result<()> {
        match &self.mode {
            Mode::Live => self.prepare(state, |log, context| log.reserve(time_us, bodies, room, context)),
            Mode::Replay(_) => Ok(()),
        }
    }

    /// Stores a large payload as an object.
    pub(super) fn put_object(&self, state: &WriterState, bytes: &[u8]) -> Result<ObjectId> {
        match &self.mode {
            Mode::Live => state.log.put_object(bytes).map_err(|error| self.poison_on_error(error)),
            Mode::Replay(cursor) => Ok(cursor.put_object(bytes)),
        }
    }

    /// Adds a record to the log and applies it, or compares it with the recorded one. The log grows
    /// and slices change in no other way.
    #[inline]
    pub(super) fn append(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        time_us: i64,
        kind: RecordKind,
        body: AppendBody<'_>,
        apply: impl FnOnce(&mut LiveState, SequenceNumber, FoldSources<'_>) -> Result<()>,
    ) -> Result<AppendedRecord> {
        match &self.mode {
            Mode::Live => {
                let sequence = self.append_live(state, time_us, kind, body, apply)?;
                Ok(AppendedRecord { sequence, is_news: true })
            }
            Mode::Replay(cursor) => SessionReplay { inner: self, cursor }.append(state, kind, body, apply),
        }
    }

    /// Returns an operation that a subscriber must not wait for.
    pub(super) fn told_within(&self, state: &WriterState) -> Option<(u64, OperationId)> {
        state.running_calls.told_within().or_else(|| self.replay()?.told_within(state))
    }
}
