//! The outside view of a session: each record, the state after it, and the promises.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Add;
use std::rc::Rc;
use std::time::Duration;

use foldlog::inspect::{LogReader, OperationStatus};
use foldlog::{
    Durability, OperationId, Record, RecordKind, Result, SequenceNumber, Session, SuspensionForm,
    ToolInvocations,
};
use uuid::Uuid;

use super::{Act, After, Asked, Change, Compactions, Errand, Slices};

/// The name of the records about the findings of a rollback.
const ROLLBACK: &[u8] = b"foldlog.rollback";

/// A record as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub kind: RecordKind,
    pub time_us: i64,
    pub body: Vec<u8>,
}

/// The loss of a crash, which determines the required remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The process alone: everything acknowledged stays.
    Process,
    /// The power: everything promised as durable stays.
    Power,
}

/// The promise of a change to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The record is written.
    Written,
    /// The record, and all before it, are durable.
    Durable,
}

/// The knowledge about one session.
#[derive(Clone, Debug)]
pub struct SessionMemory {
    pub id: Uuid,
    /// Each record, as it was read back after its call had returned, or after a reopening.
    pub records: Vec<Remembered>,
    /// The state after each record.
    pub after: Vec<After>,
    /// The number of acknowledged records.
    pub acknowledged: u64,
    /// The number of records that were reported as durable.
    pub durable: u64,
    /// The attempted acts, also those of a failed call: the first few of these may have been
    /// recorded.
    pub pending: VecDeque<Act>,
    /// The number of ended calls in the session from whose export this one was created.
    pub imported_calls: u64,
    /// The tagged snapshots, by their positions.
    pub(super) tagged: BTreeSet<u64>,
    /// The positions that its compactions may have dropped.
    pub compactions: Compactions,
    /// The time at which the attempt started.
    began_us: i64,
}

/// Returns the moment this many microseconds after the epoch of its clock.
fn moment<T: Default + Add<Duration, Output = T>>(us: i64) -> T {
    T::default() + Duration::from_micros(us.unsigned_abs())
}

impl SessionMemory {
    /// Returns the memory of a session of which only the request to create it is known.
    pub fn begun(id: Uuid, slices: Slices) -> SessionMemory {
        let pending = VecDeque::from([Act::Change(Rc::new(slices))]);
        SessionMemory {
            id,
            records: Vec::new(),
            after: Vec::new(),
            acknowledged: 0,
            durable: 0,
            pending,
            imported_calls: 0,
            tagged: BTreeSet::new(),
            compactions: Compactions::default(),
            began_us: 0,
        }
    }

    /// Returns the memory of a session that was created from an export of this one.
    pub fn imported(&self, session: &Session) -> Result<SessionMemory> {
        let slices = Rc::new(self.now().slices.imported());
        let mut memory = SessionMemory::begun(session.id(), Slices::default());
        memory.imported_calls = self.imported_calls + self.ended_calls();
        let records = session.log().position().map_or(0, |last| last.get() + 1);
        memory.pending = (0..records).map(|_| Act::Change(Rc::clone(&slices))).collect();
        memory.learn(session)?;
        memory.pending.clear();
        memory.acknowledged = records;
        Ok(memory)
    }

    /// Takes over the records that a fork shares with its parent, through a position.
    pub fn take_over(&mut self, parent: &SessionMemory, position: u64) {
        let shared = position as usize + 1;
        self.records = parent.records[..shared].to_vec();
        self.after = parent.after[..shared].to_vec();
        self.imported_calls = parent.imported_calls;
        self.tagged = parent.tagged.range(..=position).copied().collect();
        self.compactions = parent.compactions.through(position);
    }

    fn ended_calls(&self) -> u64 {
        self.records.iter().filter(|record| record.kind == RecordKind::ToolEnd).count() as u64
    }

    pub fn len(&self) -> u64 {
        self.records.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn now(&self) -> After {
        self.after.last().cloned().unwrap_or_default()
    }

    /// Records that an attempt starts at this time.
    pub fn begins_at(&mut self, now_us: i64) {
        self.began_us = now_us;
    }

    /// Returns the smallest possible time after all that is known. No clock of the simulator takes
    /// steps below 10 microseconds.
    pub fn now_us(&self) -> i64 {
        self.records.last().map_or(self.began_us, |last| self.began_us.max(last.time_us + 10))
    }

    /// Replaces the next work by the records that follow from it.
    pub fn look_ahead(&mut self) {
        while let Some(Act::Then(_)) = self.pending.front() {
            let Some(Act::Then(next)) = self.pending.pop_front() else { return };
            let acts = self.now().acts(next, self.now_us());
            acts.into_iter().rev().for_each(|act| self.pending.push_front(act));
        }
    }

    /// Records the attempt of a change that leaves these slices.
    pub fn tries(&mut self, slices: Slices) {
        self.pending.push_back(Act::Change(Rc::new(slices)));
    }

    /// Returns the promise of a durability for a change.
    pub fn promise(durability: Durability, change: &Change) -> Promise {
        match durability {
            Durability::Every => Promise::Durable,
            Durability::Boundary if change.is_boundary() => Promise::Durable,
            Durability::Boundary | Durability::Process => Promise::Written,
        }
    }

    /// Records that a change was acknowledged as the record `sequence`.
    pub fn told(&mut self, sequence: SequenceNumber, promise: Promise) {
        self.acknowledged = self.acknowledged.max(sequence.get() + 1);
        if promise == Promise::Durable {
            self.told_durable(sequence.get() + 1);
        }
    }

    /// Records that everything below `next` was reported as durable.
    pub fn told_durable(&mut self, next: u64) {
        self.durable = self.durable.max(next);
    }

    /// Returns the number of records that must exist after a crash.
    pub fn required(&self, lost: Lost) -> u64 {
        match lost {
            Lost::Process => self.acknowledged.max(self.durable),
            Lost::Power => self.durable,
        }
    }

    /// Takes in the session's records after the known ones. Each pending act may account for one
    /// record, with declarations before it.
    ///
    /// # Panics
    ///
    /// If there is more than was ever attempted.
    pub fn learn(&mut self, session: &Session) -> Result<()> {
        self.learn_from(|from, visit| session.log().records(from, u64::MAX, visit))
    }

    /// Like [`learn`](SessionMemory::learn), from any reader of the records from one on.
    ///
    /// # Panics
    ///
    /// If there is more than was ever attempted.
    pub fn learn_from(
        &mut self,
        read: impl FnOnce(u64, &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let mut found = Vec::new();
        read(self.len(), &mut |record| {
            let (kind, time_us, body) = (record.kind, record.time_us, record.body.to_vec());
            found.push((record.sequence, Remembered { kind, time_us, body }));
            Ok(())
        })?;
        for (sequence, record) in found {
            assert_eq!(sequence, self.len(), "{}: sequence numbers have gaps", self.id);
            self.look_ahead();
            let now = self.now();
            let next = match record.kind {
                RecordKind::Declare => now,
                RecordKind::Observed if record.body.windows(ROLLBACK.len()).any(|name| name == ROLLBACK) => {
                    let next = self.pending.front();
                    let rolls_back = matches!(next, Some(Act::End(end)) if end.rolls_back());
                    assert!(rolls_back, "{}: {next:?} was attempted: {record:?}", self.id);
                    now.after_finding(&record.body, sequence)
                }
                _ => match self.pending.pop_front() {
                    Some(act) => {
                        assert!(act.is_of(record.kind), "{}: {act:?} was attempted: {record:?}", self.id);
                        if let Act::Snapshot(_, true) = act {
                            self.tagged.insert(sequence.get());
                        }
                        now.after(&act, sequence, record.time_us)
                    }
                    None => panic!("{}: record {sequence} was never attempted: {record:?}", self.id),
                },
            };
            self.after.push(next);
            self.records.push(record);
        }
        self.look_ahead();
        Ok(())
    }

    /// Checks the session's waiting calls: which ask, what, and since when.
    ///
    /// # Panics
    ///
    /// If they differ from the known ones.
    pub fn check_waiting(&self, session: &Session) -> Result<()> {
        let (id, now) = (self.id, self.now());
        let pending = session.calls().pending_questions()?;
        let asked: Vec<Asked> = pending
            .iter()
            .map(|one| {
                assert_eq!(one.digest, *blake3::hash(one.arguments.as_bytes()).as_bytes(), "{id}: {one:?}");
                let errand: Errand = serde_json::from_str(&one.arguments).expect("a call holds an errand");
                assert_eq!(one.question, errand.question(), "{id}: {one:?}");
                Asked {
                    operation: one.operation,
                    parent: one.parent,
                    awaits: one.form == SuspensionForm::Awaits,
                    errand,
                    expires: one.expires_at.is_some(),
                }
            })
            .collect();
        assert_eq!(asked, now.asked(self.now_us()), "{id}: the questions after {} records", self.len());
        Ok(())
    }

    /// Checks an auditor's ledger: the outcome of each call, how often it started, and which ones
    /// ask.
    ///
    /// # Panics
    ///
    /// If it differs from the known outcomes.
    pub fn check_ledger(&self, session: &Session, audit: &LogReader) -> Result<()> {
        let ledger: Vec<(OperationId, OperationStatus, u64)> =
            audit.ledger()?.into_iter().map(|entry| (entry.operation, entry.outcome, entry.runs)).collect();
        assert_eq!(ledger, self.now().fates(), "{}: the ledger after {} records", self.id, self.len());
        assert_eq!(
            audit.pending_questions(moment(self.now_us()))?,
            session.calls().pending_questions()?,
            "{}: the auditor's questions",
            self.id
        );
        Ok(())
    }

    /// Checks the remains of a crash, and continues from there.
    ///
    /// # Panics
    ///
    /// If promised data is lost, if there is more than was ever attempted, or if a record or the
    /// slices differ.
    pub fn check_after(&mut self, session: &Session, lost: Lost) -> Result<()> {
        let id = self.id;
        let left = session.log().position().map_or(0, |last| last.get() + 1);
        let required = self.required(lost);
        assert!(left >= required, "{id}: {required} records were promised ({lost:?}), {left} are left");
        self.forget_from(left);
        let mut sequence = 0;
        session.log().records(0, self.len().saturating_sub(1), |record| {
            assert_eq!(record.sequence, sequence, "{id}: sequence numbers have gaps");
            let Some(known) = self.records.get(sequence as usize) else { return Ok(()) };
            known.check(record, &self.compactions, id);
            sequence += 1;
            Ok(())
        })?;
        assert_eq!(sequence, self.len(), "{id}: fewer records are read than there are");
        self.learn(session)?;
        self.pending.clear();
        assert_eq!(self.len(), left, "{id}: fewer records are read than there are");
        let now = self.now();
        assert_eq!(Slices::of(session)?, now.shown(), "{id}: the slices after {left} records");
        let open: Vec<_> = session.calls().open_operations().iter().map(|open| open.begin).collect();
        assert_eq!(open, now.begins(), "{id}: the calls that are open after {left} records");
        assert_eq!(session.calls().is_interrupted(), !open.is_empty(), "{id}: {open:?}");
        let unsettled = session.calls().unsettled_operations();
        let unsettled: Vec<_> =
            unsettled.iter().map(|one| (one.operation, one.undone, one.run_again)).collect();
        let of_model = now.unsettled.iter();
        let expected: Vec<_> =
            of_model.map(|(operation, one)| (*operation, one.undone, one.run_again)).collect();
        assert_eq!(unsettled, expected, "{id}: the calls that are not settled after {left} records");
        let calls = session.log().slice::<ToolInvocations>()?.len();
        assert_eq!(calls, self.imported_calls + self.ended_calls(), "{id}: one item of each call that ended");
        assert!(session.log().synced_end() <= left.into(), "{id}: more is durable than there is");
        self.acknowledged = left;
        self.durable = self.durable.max(session.log().synced_end().get());
        if lost == Lost::Power {
            // The remains of a power cut are on the disk, and nothing later may lose them.
            self.durable = left;
        }
        Ok(())
    }

    /// Forgets records that a crash took, and the pending changes that would have followed them.
    fn forget_from(&mut self, left: u64) {
        if left < self.len() {
            let left = left as usize;
            self.records.truncate(left);
            self.after.truncate(left);
            self.tagged.split_off(&(left as u64));
            self.pending.clear();
        }
    }
}
