//! How a record is written.

use std::sync::Arc;

use foldlog_codec::Kind;
use foldlog_codec::body::Declare;
use foldlog_codec::sabotage::{self, Breakage};
use parking_lot::MutexGuard;
use uuid::Uuid;

use super::subscribers::Notice;
use super::turns::inside;
use super::{Inner, WriterState};
use crate::background::{Background, Left, Rank};
use crate::error::{Error, Result};
use crate::fold::content::Content;
use crate::fold::projection::{AtHand, Folding, Projection};
use crate::log::publish::SyncGate;
use crate::log::storage::Storage;
use crate::log::writer::{AppendContext, Body, SyncPlan};
use crate::store::Level;
use crate::types::AnyValue;

/// Unsynced bytes at which a background sync is started.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;

/// Unsynced time at which a background sync is started, in microseconds.
const UNSYNCED_US_MAX: i64 = 1_000_000;

/// What the background thread was asked for since the last sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    #[default]
    Nothing,
    /// A sync within a second.
    Later,
    /// A sync at once.
    AtOnce,
}

/// A record that is about to be written.
pub(super) struct Draft<'a> {
    pub(super) kind: Kind,
    pub(super) body: &'a [u8],
    /// What the body was built from.
    pub(super) content: Content<'a>,
    /// Values that need not be decoded again.
    pub(super) at_hand: AtHand<'a>,
    /// What subscribers are told beside the kind.
    pub(super) event: Option<DraftEvent>,
}

/// The event of a draft.
pub(super) struct DraftEvent {
    pub(super) name: &'static str,
    pub(super) version: u32,
    /// For subscribers, where there are any.
    pub(super) value: Option<AnyValue>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(kind: Kind, body: &'a [u8], content: Content<'a>) -> Draft<'a> {
        Draft { kind, body, content, at_hand: AtHand::Nothing, event: None }
    }

    /// A draft of a declaration, whose body is `body`.
    pub(super) fn declare(declare: Declare, body: &'a [u8]) -> Draft<'a> {
        Draft::new(Kind::DECLARE, body, Content::Declare(declare))
    }
}

/// Whether the level promises that a record of this kind is durable when the call returns.
pub(crate) fn promises_sync(level: Level, kind: Kind) -> bool {
    match level {
        Level::Process => false,
        Level::Boundary => !matches!(kind, Kind::DISPATCH | Kind::DECLARE | Kind::OBSERVED | Kind::OPENED),
        Level::Every => true,
    }
}

/// How urgent a sync is that nobody waits for.
#[derive(Clone, Copy)]
pub(crate) enum Due {
    /// It may wait; `first` where nobody was asked for one yet.
    InTime { first: bool },
    /// What is unsynced is older than it should be.
    Aged,
    /// More is unsynced than should be; `first` where nobody was asked to sync at once yet.
    Overdue { first: bool },
}

impl WriterState {
    /// How urgent a sync is now that a record was written.
    fn due(&mut self, time_us: i64) -> Due {
        due(&mut self.first_unsynced_us, &mut self.asked, self.log.unsynced_bytes, time_us)
    }
}

/// How urgent a sync is now that a record was written into a log with so many unsynced bytes.
pub(crate) fn due(
    first_unsynced_us: &mut Option<i64>,
    asked: &mut Asked,
    unsynced_bytes: u64,
    time_us: i64,
) -> Due {
    let first_unsynced_us = *first_unsynced_us.get_or_insert(time_us);
    let before = *asked;
    if unsynced_bytes >= UNSYNCED_BYTES_MAX {
        *asked = Asked::AtOnce;
        return Due::Overdue { first: before < Asked::AtOnce };
    }
    *asked = before.max(Asked::Later);
    if time_us.saturating_sub(first_unsynced_us) >= UNSYNCED_US_MAX {
        return Due::Aged;
    }
    Due::InTime { first: before < Asked::Later }
}

/// Sees to it that what no call waits for is synced in time: by `sync_now` where nobody else does it, else by
/// the task that `sync` makes, which is only made where it is wanted.
pub(crate) fn sync_in_time<T: FnMut() -> Left + Send + 'static>(
    background: &Background,
    session: Uuid,
    due: Due,
    sync_now: impl FnOnce() -> Result<()>,
    sync: impl FnOnce() -> T,
) -> Result<()> {
    match (background, due) {
        (Background::Inline, Due::Overdue { .. } | Due::Aged) => sync_now()?,
        (Background::Thread(_), Due::Overdue { first: true }) => background.offer(Rank::Sync, sync()),
        (Background::Thread(worker), Due::InTime { first: true }) => worker.offer_later(session, sync()),
        _ => {}
    }
    Ok(())
}

/// Poisons the log, but for errors that left nothing behind.
pub(crate) fn failed(gate: &SyncGate<Error>, error: Error) -> Error {
    if !matches!(error, Error::Full { .. } | Error::ReadOnly { .. } | Error::TooLarge { .. }) {
        gate.fail(Arc::new(error.clone()));
    }
    error
}

/// Returns once everything below `target` is durable. `plan` takes what a sync has to do, and `attest` writes
/// down that it was done. Where the background does it, what is more urgent there is not held up.
pub(crate) fn sync_through(
    gate: &SyncGate<Error>,
    (storage, background): (&dyn Storage, &Background),
    target: u64,
    plan: impl Fn() -> SyncPlan,
    attest: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let led = gate.wait(target, || {
        let plan = plan();
        let run = || plan.run(storage, &|| background.let_pass(Rank::Sync));
        let done = if sabotage::is(Breakage::SyncRetried) { run().or_else(|_| run()) } else { run() };
        done.map_err(Arc::new)?;
        Ok(plan.through)
    });
    match led {
        Ok(false) => Ok(()),
        Ok(true) => {
            // The records are durable whatever becomes of the frame that says so; but nothing may follow a
            // write that failed.
            if let Err(error) = attest() {
                gate.fail(Arc::new(error));
            }
            Ok(())
        }
        Err(cause) => Err(Error::Unknown { sequence: target.saturating_sub(1), cause }),
    }
}

impl Inner {
    /// Ends what the background was asked to do for the log.
    pub(super) fn finish(&self) -> Result<()> {
        self.sound()?.log.finish().map_err(|error| self.failed(error))
    }

    /// Locks the writer's state for a write.
    pub(super) fn writable(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.writable_for(false)
    }

    /// As [`writable`](Inner::writable); while the session is to be recovered only for that.
    pub(super) fn writable_for(&self, recovering: bool) -> Result<MutexGuard<'_, WriterState>> {
        if self.types.is_none() {
            return Err(Error::Untyped { session: self.id });
        }
        let state = self.settleable()?;
        let recovering = recovering || sabotage::is(Breakage::InterruptedWrittenOn);
        if state.interrupted && !recovering {
            let operations = state.projection.operations.open().cloned().collect();
            return Err(Error::Interrupted { session: self.id, operations });
        }
        Ok(state)
    }

    /// Locks the writer's state for a record that asks for no types.
    pub(super) fn settleable(&self) -> Result<MutexGuard<'_, WriterState>> {
        let session = self.id;
        let state = self.sound()?;
        if let Some(reason) = &self.read_only {
            return Err(Error::ReadOnly { session, reason: reason.clone() });
        }
        if state.closed {
            return Err(Error::Closed { session });
        }
        if let Some((sequence, kind)) = state.projection.unsupported {
            return Err(Error::UnsupportedKind { sequence, kind });
        }
        Ok(state)
    }

    /// Locks the writer's state, unless a write or sync has failed. Writes fail under that lock, so it is asked
    /// only there: whoever waited for the lock meanwhile must not write over what a failed write left.
    fn sound(&self) -> Result<MutexGuard<'_, WriterState>> {
        let state = self.state.lock();
        match self.gate.failure().filter(|_| !sabotage::is(Breakage::PoisonIgnored)) {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(state),
        }
    }

    /// Writes the drafts one after the other, keeps the level's promise and tells the subscribers. Returns
    /// the last one's sequence number.
    pub(super) fn write<'a>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        drafts: impl AsRef<[Draft<'a>]> + IntoIterator<Item = Draft<'a>>,
    ) -> Result<u64> {
        if let several @ [_, _, ..] = drafts.as_ref() {
            self.reserve(&mut state, time_us, several.iter().map(|draft| draft.body.len()))?;
        }
        let mut last = None;
        for draft in drafts {
            let kind = draft.kind;
            last =
                Some((self.write_draft(&mut state, time_us, draft, promises_sync(self.level, kind))?, kind));
        }
        let Some((sequence, kind)) = last else {
            return Err(Error::NoSuchPosition { position: 0, last: None });
        };
        self.finish_write(state, time_us, sequence, promises_sync(self.level, kind))
    }

    /// Writes one draft; its promise is still to be kept.
    pub(super) fn write_draft(
        &self,
        state: &mut WriterState,
        time_us: i64,
        draft: Draft<'_>,
        promised: bool,
    ) -> Result<u64> {
        let Draft { kind, body, content, at_hand, event } = draft;
        let sequence = self.write_one(state, time_us, (kind, body), content, at_hand)?;
        self.notify((sequence, time_us, kind), promised, || event);
        Ok(sequence)
    }

    /// Queues a notice of a record, where anyone listens.
    pub(super) fn notify(
        &self,
        (sequence, time_us, kind): (u64, i64, Kind),
        promised: bool,
        event: impl FnOnce() -> Option<DraftEvent>,
    ) {
        let durable_first = if promised { sequence + 1 } else { 0 };
        self.subscribers.queue(durable_first, || Notice::of(sequence, time_us, kind, event()));
    }

    /// Keeps the level's promise of the last record that was written, where it has one to keep, and tells the subscribers.
    pub(super) fn finish_write(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        sequence: u64,
        promised: bool,
    ) -> Result<u64> {
        let promised = promised && !sabotage::is(Breakage::AcknowledgedBeforeSync);
        let due = state.due(time_us);
        let image = self.image_at_turn(&mut state);
        let within = state.table.told_within();
        drop(state);
        if sabotage::is(Breakage::ToldBeforeSync) {
            self.subscribers.tell(&|| u64::MAX);
        }
        if promised {
            self.sync_through(sequence + 1)?;
        } else {
            self.sync_in_background(due, sequence + 1)?;
        }
        if let Some(write) = image {
            write();
        }
        let tell = || self.subscribers.tell(&|| self.gate.synced());
        match within {
            // A subscriber that waited for an operation might wait for the very call that tells it.
            Some((ticket, operation)) => inside((self.id, ticket, operation), tell),
            None => tell(),
        }
        Ok(sequence)
    }

    /// Sees to it that what no call waits for is synced in time.
    fn sync_in_background(self: &Arc<Self>, due: Due, target: u64) -> Result<()> {
        let task = || {
            let session = Arc::downgrade(self);
            move || {
                if let Some(session) = session.upgrade() {
                    // A failure poisons the session, and its next call says so.
                    let _ = session.sync();
                }
                Left::Nothing
            }
        };
        sync_in_time(&self.store.background, self.id, due, || self.sync_through(target), task)
    }

    /// Sees to it that there is room for all drafts: what does not fit is refused with its declaration.
    pub(super) fn reserve(
        &self,
        state: &mut WriterState,
        time_us: i64,
        body_lens: impl Iterator<Item = usize>,
    ) -> Result<()> {
        let WriterState { log, projection, .. } = state;
        let names = &projection.names;
        let context = AppendContext { synced: self.gate.synced(), declared: &|| names.all() };
        log.reserve(time_us, body_lens, &context).map_err(|error| self.failed(error))
    }

    fn write_one(
        &self,
        state: &mut WriterState,
        time_us: i64,
        (kind, body): (Kind, &[u8]),
        content: Content<'_>,
        at_hand: AtHand<'_>,
    ) -> Result<u64> {
        let sequence = self.append(state, time_us, kind, Body::Alone(body))?;
        let rollback = content.rollback();
        let ended = if let Content::ToolEnd(end) = &content { Some(end.begin) } else { None };
        // Nothing goes back there any more, and what is not shared with it need not be copied to be changed.
        if let Some(begin) = ended.filter(|_| rollback.is_none()) {
            state.positions.end(begin);
        }
        let begins = matches!(&content, Content::ToolBegin(begin) if !begin.reads_only);
        self.fold(state, |projection, folding| projection.apply(sequence, content, at_hand, folding))?;
        let WriterState { projection, positions, rollbacks, path, .. } = state;
        if kind == Kind::SNAPSHOT {
            positions.keep_snapshot(sequence, Arc::new(projection.freeze()));
        }
        if begins {
            positions.begin(sequence, None);
        }
        if let Some(begin) = ended {
            positions.end(begin);
        }
        if let Some(rollback) = rollback {
            path.add(sequence, rollback.to);
            rollbacks.insert(sequence, rollback);
        }
        Ok(sequence)
    }

    /// Appends a record to the log; it is to be folded next.
    pub(super) fn append(
        &self,
        state: &mut WriterState,
        time_us: i64,
        kind: Kind,
        body: Body<'_>,
    ) -> Result<u64> {
        let WriterState { log, projection, imaged, .. } = state;
        let segments = log.places.segments.len();
        let names = &projection.names;
        let context = AppendContext { synced: self.gate.synced(), declared: &|| names.all() };
        let sequence = log.append(kind, time_us, body, &context).map_err(|error| self.failed(error))?;
        imaged.turned |= segments != log.places.segments.len();
        Ok(sequence)
    }

    /// Folds a record that is in the log. Where that fails, what follows could not be trusted.
    pub(super) fn fold(
        &self,
        state: &mut WriterState,
        fold: impl FnOnce(&mut Projection, &Folding<'_>) -> Result<()>,
    ) -> Result<()> {
        let WriterState { log, projection, positions, .. } = state;
        positions.before_change(projection);
        let folding = Folding {
            objects: log.objects.as_ref(),
            types: self.types.as_ref(),
            frozen: &|to| positions.get(to),
        };
        fold(projection, &folding).map_err(|error| self.failed(error))
    }

    /// Poisons the session, but for errors that left nothing behind.
    pub(super) fn failed(&self, error: Error) -> Error {
        failed(&self.gate, error)
    }

    /// Sees to it that a sync covers what opening found behind the watermark: those records are in the files
    /// of an earlier process, which a sync of this one's would not touch. Returns the next sequence number.
    pub(super) fn settle_unattested(&self) -> Result<u64> {
        let mut state = self.sound()?;
        let next = state.log.next_sequence();
        if state.log.is_writing() || self.gate.synced() >= next {
            return Ok(next);
        }
        if let Some(reason) = &self.read_only {
            return Err(Error::ReadOnly { session: self.id, reason: reason.clone() });
        }
        if state.closed {
            return Err(Error::Closed { session: self.id });
        }
        let WriterState { log, projection, .. } = &mut *state;
        let names = &projection.names;
        let context = AppendContext { synced: self.gate.synced(), declared: &|| names.all() };
        log.begin(self.now_us(), &context).map_err(|error| self.failed(error))?;
        Ok(next)
    }

    /// Returns once everything below `target` is durable.
    pub(super) fn sync_through(&self, target: u64) -> Result<()> {
        let plan = || {
            let mut state = self.state.lock();
            state.first_unsynced_us = None;
            state.asked = Asked::Nothing;
            state.log.sync_plan()
        };
        // A session that failed meanwhile is not written any more.
        let attest = || match self.sound() {
            Ok(mut state) => state.log.attest(self.gate.synced()),
            Err(_) => Ok(()),
        };
        let ground = (self.store.options.storage.as_ref(), &self.store.background);
        sync_through(&self.gate, ground, target, plan, attest)
    }
}
