//! What is remembered of a session from outside: each record, what was after it, and what was promised.

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

/// The name of the records that say what was there when a rollback began.
const ROLLBACK: &[u8] = b"foldlog.rollback";

/// A record as it was when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Its kind.
    pub kind: RecordKind,
    /// Its time.
    pub time_us: i64,
    /// Its body.
    pub body: Vec<u8>,
}

/// What a crash took, and so what must be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The process alone: everything acknowledged stays.
    Process,
    /// The power: everything promised as durable stays.
    Power,
}

/// What the caller was told of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The record is written.
    Written,
    /// The record, and all before it, are durable.
    Durable,
}

/// What is remembered of one session.
#[derive(Clone, Debug)]
pub struct SessionMemory {
    /// The session.
    pub id: Uuid,
    /// Each record, as it was read back when its call had returned, or after a reopening.
    pub records: Vec<Remembered>,
    /// What all amounted to after each record.
    pub after: Vec<After>,
    /// How many records the caller was told of.
    pub acknowledged: u64,
    /// How many records the caller was told are durable.
    pub durable: u64,
    /// What is attempted, or was where a call did not return well: the first few of these may be there.
    pub pending: VecDeque<Act>,
    /// How many calls had ended in the session that this one was begun with an export of.
    pub imported_calls: u64,
    /// The snapshots that have a tag, by their positions.
    pub(super) tagged: BTreeSet<u64>,
    /// What its compactions may have taken.
    pub compactions: Compactions,
    /// Time at which what is attempted began.
    began_us: i64,
}

/// A moment so many microseconds after that of which clocks begin to count.
fn moment<T: Default + Add<Duration, Output = T>>(us: i64) -> T {
    T::default() + Duration::from_micros(us.unsigned_abs())
}

impl SessionMemory {
    /// A session of which nothing is known but what was asked for.
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

    /// A session that was begun with an export of this one.
    ///
    /// # Errors
    ///
    /// What reading says.
    pub fn imported(&self, session: &Session) -> Result<SessionMemory> {
        let slices = Rc::new(self.now().slices.imported());
        let mut memory = SessionMemory::begun(session.id(), Slices::default());
        memory.imported_calls = self.imported_calls + self.ended_calls();
        let records = session.position().map_or(0, |last| last.get() + 1);
        memory.pending = (0..records).map(|_| Act::Change(Rc::clone(&slices))).collect();
        memory.learn(session)?;
        memory.pending.clear();
        memory.acknowledged = records;
        Ok(memory)
    }

    /// What a fork shares with its parent, through a position.
    pub fn take_over(&mut self, parent: &SessionMemory, position: u64) {
        let shared = position as usize + 1;
        self.records = parent.records[..shared].to_vec();
        self.after = parent.after[..shared].to_vec();
        self.imported_calls = parent.imported_calls;
        self.tagged = parent.tagged.range(..=position).copied().collect();
        self.compactions = parent.compactions.through(position);
    }

    /// How many tool calls have ended.
    fn ended_calls(&self) -> u64 {
        self.records.iter().filter(|record| record.kind == RecordKind::TOOL_END).count() as u64
    }

    /// How many records are known.
    pub fn len(&self) -> u64 {
        self.records.len() as u64
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What everything amounts to.
    pub fn now(&self) -> After {
        self.after.last().cloned().unwrap_or_default()
    }

    /// Notes that something is about to be tried, at this time.
    pub fn begins_at(&mut self, now_us: i64) {
        self.began_us = now_us;
    }

    /// The least time that is read after all that is known. No clock of the simulator takes smaller steps than 10
    /// microseconds.
    pub fn now_us(&self) -> i64 {
        self.records.last().map_or(self.began_us, |last| self.began_us.max(last.time_us + 10))
    }

    /// Puts in place of what is to be done next the records that follow from it.
    pub fn look_ahead(&mut self) {
        while let Some(Act::Then(_)) = self.pending.front() {
            let Some(Act::Then(next)) = self.pending.pop_front() else { return };
            let acts = self.now().acts(next, self.now_us());
            acts.into_iter().rev().for_each(|act| self.pending.push_front(act));
        }
    }

    /// Notes that a change is about to be tried, which leaves these slices.
    pub fn tries(&mut self, slices: Slices) {
        self.pending.push_back(Act::Change(Rc::new(slices)));
    }

    /// What a durability promises of a change.
    pub fn promise(durability: Durability, change: &Change) -> Promise {
        match durability {
            Durability::Every => Promise::Durable,
            Durability::Boundary if change.is_boundary() => Promise::Durable,
            Durability::Boundary | Durability::Process => Promise::Written,
        }
    }

    /// Notes that a change was acknowledged as the record `sequence`.
    pub fn told(&mut self, sequence: SequenceNumber, promise: Promise) {
        self.acknowledged = self.acknowledged.max(sequence.get() + 1);
        if promise == Promise::Durable {
            self.told_durable(sequence.get() + 1);
        }
    }

    /// Notes that everything below `next` was said to be durable.
    pub fn told_durable(&mut self, next: u64) {
        self.durable = self.durable.max(next);
    }

    /// How many records must be there after a crash.
    pub fn required(&self, lost: Lost) -> u64 {
        match lost {
            Lost::Process => self.acknowledged.max(self.durable),
            Lost::Power => self.durable,
        }
    }

    /// Takes in what the session holds behind what is known. Each pending act may account for one record, with
    /// declarations before it.
    ///
    /// # Errors
    ///
    /// What reading says.
    ///
    /// # Panics
    ///
    /// Where there is more than was ever attempted.
    pub fn learn(&mut self, session: &Session) -> Result<()> {
        self.learn_from(|from, visit| session.records(from, u64::MAX, visit))
    }

    /// Learns as [`learn`](SessionMemory::learn) does, from whatever reads the records from one on.
    ///
    /// # Errors
    ///
    /// What reading says.
    ///
    /// # Panics
    ///
    /// Where there is more than was ever attempted.
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
                RecordKind::DECLARE => now,
                RecordKind::OBSERVED if record.body.windows(ROLLBACK.len()).any(|name| name == ROLLBACK) => {
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

    /// Checks what the session says of the calls that wait: which ask, what, and since when.
    ///
    /// # Errors
    ///
    /// What reading says.
    ///
    /// # Panics
    ///
    /// Where it is not what is known.
    pub fn check_waiting(&self, session: &Session) -> Result<()> {
        let (id, now) = (self.id, self.now());
        let pending = session.pending_questions()?;
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

    /// Checks what an auditor says of the calls: what became of each, how often it began, and which ask.
    ///
    /// # Errors
    ///
    /// What reading says.
    ///
    /// # Panics
    ///
    /// Where it is not what is known.
    pub fn check_ledger(&self, session: &Session, audit: &LogReader) -> Result<()> {
        let ledger: Vec<(OperationId, OperationStatus, u64)> =
            audit.ledger()?.into_iter().map(|entry| (entry.operation, entry.outcome, entry.runs)).collect();
        assert_eq!(ledger, self.now().fates(), "{}: the ledger after {} records", self.id, self.len());
        assert_eq!(
            audit.pending_questions(moment(self.now_us()))?,
            session.pending_questions()?,
            "{}: the auditor's questions",
            self.id
        );
        Ok(())
    }

    /// Checks what a crash left, and goes on from there.
    ///
    /// # Errors
    ///
    /// What reading says.
    ///
    /// # Panics
    ///
    /// Where something promised is gone, where something is there that was never attempted, and where a record
    /// or the slices are not what they were.
    pub fn check_after(&mut self, session: &Session, lost: Lost) -> Result<()> {
        let id = self.id;
        let left = session.position().map_or(0, |last| last.get() + 1);
        let required = self.required(lost);
        assert!(left >= required, "{id}: {required} records were promised ({lost:?}), {left} are left");
        self.forget_from(left);
        let mut sequence = 0;
        session.records(0, self.len().saturating_sub(1), |record| {
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
        let open: Vec<_> = session.open_operations().iter().map(|open| open.begin).collect();
        assert_eq!(open, now.begins(), "{id}: the calls that are open after {left} records");
        assert_eq!(session.is_interrupted(), !open.is_empty(), "{id}: {open:?}");
        let unsettled = session.unsettled_operations();
        let unsettled: Vec<_> =
            unsettled.iter().map(|one| (one.operation, one.undone, one.run_again)).collect();
        let of_model = now.unsettled.iter();
        let expected: Vec<_> =
            of_model.map(|(operation, one)| (*operation, one.undone, one.run_again)).collect();
        assert_eq!(unsettled, expected, "{id}: the calls that are not settled after {left} records");
        let calls = session.log::<ToolInvocations>()?.len();
        assert_eq!(calls, self.imported_calls + self.ended_calls(), "{id}: one item of each call that ended");
        assert!(session.synced_end() <= left.into(), "{id}: more is durable than there is");
        self.acknowledged = left;
        self.durable = self.durable.max(session.synced_end().get());
        if lost == Lost::Power {
            // What a power cut left is on the disk, and nothing that follows may cost it.
            self.durable = left;
        }
        Ok(())
    }

    /// Forgets records that a crash took. What a pending change would have followed is then gone too.
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
