//! A day of a store on a failing disk: sessions are created, written over several segments, rolled
//! back, forked, exported, imported, closed and deleted, with objects, images and tool calls.
//!
//! Each result is judged at once. A refusal ([`Error::Full`], [`Error::ReadOnly`]) has changed
//! nothing, and the call is repeated. After any other failure every later call fails with that
//! first cause, reads still succeed, and the session is reopened and compared with its model.

use foldlog::storage::CrashKind;
use foldlog::tools::{ExecuteOptions, Operation, ToolCall, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    Durability, Error, ExecutionState, Export, ImportOptions, ResourceRegistry, Result, Session,
    SessionOptions, SnapshotOptions, Store,
};
use foldlog_test_support::crash::{
    Act, Call, Change, End, Lost, Machine, Promise, SessionMemory, Slices, large_note, step,
};
use foldlog_test_support::host::{DraftEdited, Noted, types};
use uuid::Uuid;

/// Maximum repetitions of a call: more than a day has faults.
const TRIES: u32 = 16;

/// A session of the day, and the model of its content.
struct Held {
    memory: SessionMemory,
    session: Option<Session>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// Nothing has happened, and the session stays writable.
    Refused,
    /// The session takes no writes before it is reopened.
    Poisoned,
}

pub(super) struct Day {
    pub(super) machine: Machine,
    durability: Durability,
    held: Vec<Held>,
    /// Sessions whose creation failed: they exist completely or not at all.
    unsure: Vec<Uuid>,
    ids: u128,
    /// History for the message of a failed check.
    pub(super) told: Vec<String>,
    pub(super) refused: u32,
    pub(super) poisoned: u32,
    pub(super) failed: u32,
    /// Failures for other reasons than a full disk.
    pub(super) otherwise: Vec<String>,
    /// Called before each action with the number of actions so far.
    before: Before,
    done: u64,
}

type Before = Box<dyn FnMut(&Machine, u64) -> Look>;

/// Whether another process reads the sessions before the next action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Look {
    No,
    Yes,
}

impl Day {
    pub(super) fn new(durability: Durability) -> Day {
        Day {
            machine: Machine::default().with_images(),
            durability,
            held: Vec::new(),
            unsure: Vec::new(),
            ids: 0,
            told: Vec::new(),
            refused: 0,
            poisoned: 0,
            failed: 0,
            otherwise: Vec::new(),
            before: Box::new(|_, _| Look::No),
            done: 0,
        }
    }

    /// Calls `before`, which may change the disk, before each action.
    pub(super) fn before_each(mut self, before: impl FnMut(&Machine, u64) -> Look + 'static) -> Day {
        self.before = Box::new(before);
        self
    }

    pub(super) fn live(&mut self) {
        self.create();
        for n in 0..14 {
            self.change(0, &Change::Step(step(n)));
        }
        self.change(0, &Change::Note(large_note(1)));
        self.change(0, &Change::Snapshot);
        for n in 0..5 {
            self.change(0, &Change::Edit(DraftEdited { place: 9, line: format!("line {n}") }));
            self.change(0, &Change::Note(Noted { text: format!("note {n}") }));
        }
        self.call(0, true, false);
        self.go_back(0, 9);
        self.call(0, false, true);
        self.change(0, &Change::Note(large_note(2)));
        self.sync(0);
        self.fork();
        self.import();
        for n in 0..6 {
            self.change(0, &Change::Step(step(n)));
            self.change(1, &Change::Step(step(n)));
            self.change(2, &Change::Note(large_note(n)));
        }
        self.close(1);
        self.delete(2);
        self.close(0);
        self.open_again(0, "after closing");
        self.change(0, &Change::Tag("after".to_owned(), "closing".to_owned()));
        self.held[0].session = None;
        self.open_again(0, "after letting go");
        self.change(0, &Change::Note(large_note(3)));
        self.call(0, true, true);
        self.close(0);
    }

    fn begin(&mut self, what: &str) {
        let look = (self.before)(&self.machine, self.done);
        self.done += 1;
        self.told.push(format!("{}. {what}", self.done));
        if look == Look::Yes {
            self.look();
        }
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    fn look(&mut self) {
        let store =
            Store::open_with("/home/store", self.machine.options(self.durability)).expect("the store opens");
        for held in &self.held {
            let memory = &held.memory;
            let reader = store.open_read_only(memory.id, &types()).expect("a reader opens it");
            assert_eq!(reader.log().position().map_or(0, |last| last.get() + 1), memory.len());
            assert_eq!(Slices::of(&reader).expect("it is read"), memory.now().shown());
            let audit = self.machine.audit(memory.id).expect("an auditor reads it");
            assert_eq!(audit.records_len(), memory.len());
        }
    }

    fn note(&mut self, what: &str, error: &Error) {
        self.failed += 1;
        if !matches!(error, Error::Full { .. } | Error::Interrupted { .. }) {
            self.otherwise.push(format!("{what}: {error}"));
        }
        self.told.push(format!("   {what}: {error}"));
    }

    fn store(&mut self) -> Store {
        self.again("open the store", |day| {
            Store::open_with("/home/store", day.machine.options(day.durability)).map(Some)
        })
        .expect("an old store opens")
    }

    /// Repeats a call until it succeeds; a failure must leave nothing behind. `None` if the disk is
    /// full.
    fn again<T>(&mut self, what: &str, mut call: impl FnMut(&mut Day) -> Result<Option<T>>) -> Option<T> {
        for _ in 0..TRIES {
            match call(self) {
                Ok(done) => return done,
                Err(error @ (Error::Io { .. } | Error::ReadOnly { .. })) => self.note(what, &error),
                Err(
                    error @ (Error::Full { .. } | Error::DurabilityUnknown { .. } | Error::Poisoned { .. }),
                ) => {
                    self.note(what, &error);
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        None
    }

    fn read<T>(&mut self, what: &str, mut read: impl FnMut(&mut Day) -> Result<T>) -> T {
        self.again(what, |day| read(day).map(Some)).expect("reading goes on")
    }

    fn session(&self, at: usize) -> Session {
        self.held[at].session.clone().expect("it is open")
    }

    fn promised(&self, boundary: bool) -> Promise {
        match self.durability {
            Durability::Process => Promise::Written,
            Durability::Boundary if !boundary => Promise::Written,
            Durability::Boundary | Durability::Every => Promise::Durable,
        }
    }

    fn next_id(&mut self) -> SessionOptions {
        self.ids += 1;
        SessionOptions { id: Some(Uuid::from_u128(self.ids)), ..SessionOptions::default() }
    }

    fn hold(&mut self, session: Session, mut memory: SessionMemory, promise: Promise) {
        memory.told(session.log().position().expect("it has a record"), promise);
        self.read("what was begun", |_| memory.learn(&session));
        memory.told_durable(session.log().synced_end().get());
        self.held.push(Held { memory, session: Some(session) });
    }

    fn create(&mut self) {
        self.begin("create");
        let store = self.store();
        let made = self.again("create", |day| {
            let options = day.next_id();
            day.unsure.extend(options.id);
            store.create_with(&types(), options.tag("n", "1")).map(Some)
        });
        let session = made.expect("the disk is not full yet");
        self.unsure.retain(|id| *id != session.id());
        let slices = Slices::tagged([("n".to_owned(), "1".to_owned())].into());
        let memory = SessionMemory::begun(session.id(), slices);
        let promise = self.promised(false);
        self.hold(session, memory, promise);
    }

    fn fork(&mut self) {
        self.begin("fork");
        let store = self.store();
        if self.session(0).calls().is_interrupted() {
            return;
        }
        let parent = self.held[0].memory.clone();
        let position = parent.len() - 1;
        let made = self.again("fork", |day| {
            let options = day.next_id();
            day.unsure.extend(options.id);
            let made = store.fork(parent.id, position, &types(), options.tag("fork", "1"));
            if made.is_err() && matches!(day.session(0).sync(), Err(Error::Poisoned { .. })) {
                // A fork syncs the records that it shares with its parent's writer.
                day.poisoned += 1;
                day.open_again(0, "after a fork that failed");
            }
            made.map(Some)
        });
        let Some(session) = made else { return };
        self.unsure.retain(|id| *id != session.id());
        let shared = &parent.after[position as usize];
        let mut memory = SessionMemory::begun(session.id(), shared.slices.with_tag("fork", "1"));
        memory.take_over(&parent, position);
        self.hold(session, memory, Promise::Durable);
    }

    fn import(&mut self) {
        self.begin("import");
        let store = self.store();
        let from = self.session(0);
        let text = self.read("export", |_| from.log().export().and_then(|export| export.to_json()));
        let origin = self.held[0].memory.clone();
        let export = Export::from_json(&text).expect("an export comes in again");
        let made = self.again("import", |day| {
            let session = day.next_id();
            day.unsure.extend(session.id);
            store.import(&export, &types(), ImportOptions { session, ..ImportOptions::default() }).map(Some)
        });
        let Some(session) = made else { return };
        self.unsure.retain(|id| *id != session.id());
        let memory = self.read("what was imported", |_| origin.imported(&session));
        let promise = self.promised(true);
        self.hold(session, memory, promise);
    }

    fn delete(&mut self, at: usize) {
        if at >= self.held.len() {
            return;
        }
        self.begin("delete");
        self.held[at].session = None;
        let id = self.held[at].memory.id;
        let store = self.store();
        self.again("delete", |_| match store.delete(id) {
            // The failed attempt before has already deleted it.
            Err(Error::NoSuchSession { .. }) => Ok(Some(())),
            done => done.map(Some),
        })
        .expect("deleting needs no room");
        self.held.remove(at);
        let gone = store.open_session(id, &types());
        assert!(matches!(gone, Err(Error::NoSuchSession { .. } | Error::Io { .. })), "{gone:?}");
    }

    /// Returns the meaning of a failure, and checks that the session agrees.
    fn judge(&mut self, at: usize, handle: &Session, error: &Error) -> Verdict {
        let first = match error {
            // A session that could not be recovered for lack of space takes no other writes either.
            Error::Full { .. } | Error::ReadOnly { .. } | Error::Interrupted { .. } => {
                return self.untouched(at, handle, error);
            }
            Error::DurabilityUnknown { cause, .. } | Error::Poisoned { cause } => cause.to_string(),
            // Reads that a change needs, such as of a rollback target, come before any write.
            Error::Io { op: "open" | "read", .. } => match handle.sync() {
                Ok(()) => return self.untouched(at, handle, error),
                Err(Error::DurabilityUnknown { cause, .. } | Error::Poisoned { cause }) => cause.to_string(),
                Err(other) => panic!("after {error}: {other}"),
            },
            Error::Io { .. } => error.to_string(),
            other => panic!("no failing disk is answered like this: {other}"),
        };
        self.poisoned += 1;
        let later = [
            handle.set_tag("later", "1").map(drop),
            handle.dispatch(large_note(9)).map(drop),
            handle.snapshot(SnapshotOptions::default()).map(drop),
            handle.rollback_to(0).map(drop),
            handle.sync(),
        ];
        for again in later {
            match again {
                Err(Error::Poisoned { cause }) => assert_eq!(cause.to_string(), first, "the first cause"),
                other => panic!("after {error}: {other:?}"),
            }
        }
        let (slices, memory) = (self.read("slices", |_| Slices::of(handle)), &self.held[at].memory);
        // If it is unknown whether a call's start or end record is in the log, the session shows
        // the state before the call.
        let now = memory.now();
        let left = now.slices.back_to(&now.slices);
        let next = memory.pending.front().map(|act| (*now.after(act, memory.len().into(), 0).slices).clone());
        let now = [Some((*now.slices).clone()), next, Some(now.shown()), Some(left)];
        assert!(now.iter().flatten().any(|now| *now == slices), "after {error}: {slices:?}");
        Verdict::Poisoned
    }

    fn untouched(&mut self, at: usize, handle: &Session, error: &Error) -> Verdict {
        self.refused += 1;
        let (slices, memory) = (self.read("slices", |_| Slices::of(handle)), &self.held[at].memory);
        // A session that is not yet recovered shows the state before the open call.
        let expected = if handle.calls().is_interrupted() {
            memory.now().shown()
        } else {
            (*memory.now().slices).clone()
        };
        assert_eq!(slices, expected, "refused, and yet something changed: {error}");
        assert_eq!(handle.log().position().map_or(0, |last| last.get() + 1), memory.len(), "{error}");
        Verdict::Refused
    }

    /// Makes a change by a handle. `None` if the session has to be reopened.
    fn perform(&mut self, at: usize, handle: &Session, change: &Change) -> Option<()> {
        let mut read_only = false;
        for _ in 0..TRIES {
            let memory = &mut self.held[at].memory;
            memory.pending.clear();
            memory.tries(memory.now().slices.after(change));
            match change.perform(handle) {
                Ok(sequence) => {
                    let promise = self.promised(change.is_boundary());
                    self.acknowledged(at, handle, sequence.get(), promise);
                    return Some(());
                }
                Err(error) => {
                    self.note("change", &error);
                    read_only = matches!(error, Error::ReadOnly { .. });
                    if self.judge(at, handle, &error) == Verdict::Poisoned {
                        return None;
                    }
                }
            }
        }
        self.held[at].memory.pending.clear();
        // A session that found no lock when it was opened has none until it is reopened; otherwise
        // the disk is full.
        (!read_only).then_some(())
    }

    fn acknowledged(&mut self, at: usize, handle: &Session, sequence: u64, promise: Promise) {
        self.held[at].memory.told(sequence.into(), promise);
        let mut memory = self.held[at].memory.clone();
        self.read("what was acknowledged", |_| memory.learn(handle));
        memory.told_durable(handle.log().synced_end().get());
        assert_eq!(memory.len(), sequence + 1);
        self.held[at].memory = memory;
    }

    fn change(&mut self, at: usize, change: &Change) {
        if at >= self.held.len() {
            return;
        }
        self.begin("change");
        let handle = self.session(at);
        if self.perform(at, &handle, change).is_none() {
            drop(handle);
            self.open_again(at, "after a change that failed");
        }
    }

    fn go_back(&mut self, at: usize, to: u64) {
        let then = (*self.held[at].memory.after[to as usize].slices).clone();
        self.change(at, &Change::Rollback(to, Box::new(then)));
    }

    fn sync(&mut self, at: usize) {
        self.begin("sync");
        let session = self.session(at);
        match session.sync() {
            Ok(()) => {
                let len = self.held[at].memory.len();
                self.held[at].memory.told_durable(len);
            }
            Err(error) => {
                self.note("sync", &error);
                if self.judge(at, &session, &error) == Verdict::Poisoned {
                    drop(session);
                    self.open_again(at, "after a sync that failed");
                }
            }
        }
    }

    fn runner(&self, at: usize) -> ToolRunner {
        let resources = ResourceRegistry::builder().build().expect("none contradict each other");
        ToolRunner::new(ExecutionState::new(self.session(at), resources), ToolRegistry::new())
    }

    /// A tool call that writes STATE and LOG, and succeeds or fails.
    fn call(&mut self, at: usize, well: bool, large: bool) {
        self.begin("call");
        if self.call_through(at, well, large).is_none() {
            self.open_again(at, "after a call that failed");
        }
    }

    fn call_through(&mut self, at: usize, well: bool, large: bool) -> Option<()> {
        let Some(operation) = self.begin_call(at)? else { return Some(()) };
        let inside = operation.context().session().clone();
        for n in 0..3 {
            self.begin("change within a call");
            self.perform(at, &inside, &Change::Step(step(n)))?;
            let note = if large { large_note(n) } else { Noted { text: format!("within {n}") } };
            self.perform(at, &inside, &Change::Note(note))?;
        }
        self.begin("end of a call");
        let memory = &mut self.held[at].memory;
        memory.pending = [Act::End(if well { End::Committed } else { End::Failed })].into();
        let ended = match well {
            true => operation.end(ToolResult::ok("done", 1)),
            false => operation.fail(ToolError::failed("out of ink")),
        };
        let session = self.session(at);
        match ended {
            Ok(report) => {
                assert_eq!(report.success, well, "there is room for a small end: {}", report.message);
                let promise = self.promised(true);
                self.acknowledged(at, &session, report.end.get(), promise);
                Some(())
            }
            Err(error) => {
                self.note("end", &error);
                let verdict = self.judge(at, &session, &error);
                assert_eq!(verdict, Verdict::Poisoned, "room was kept for the end: {error}");
                None
            }
        }
    }

    /// Begins a call. `None` if the session has to be reopened, `Some(None)` if the disk is full.
    fn begin_call(&mut self, at: usize) -> Option<Option<Operation>> {
        let (runner, session) = (self.runner(at), self.session(at));
        for _ in 0..TRIES {
            let memory = &mut self.held[at].memory;
            memory.pending = [Act::Begin(Call::elsewhere(), None, None)].into();
            match runner.begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()) {
                Ok(operation) => {
                    let promise = self.promised(true);
                    self.acknowledged(at, &session, operation.id().get(), promise);
                    return Some(Some(operation));
                }
                Err(error) => {
                    self.note("begin", &error);
                    if self.judge(at, &session, &error) == Verdict::Poisoned {
                        return None;
                    }
                }
            }
        }
        self.held[at].memory.pending.clear();
        Some(None)
    }

    fn close(&mut self, at: usize) {
        if at >= self.held.len() {
            return;
        }
        self.begin("close");
        let session = self.held[at].session.take().expect("it is open");
        match session.close() {
            Ok(()) => {
                let memory = &mut self.held[at].memory;
                // A session that was opened and not written since makes no statement about the
                // records that it found.
                if self.failed == 0 {
                    memory.told_durable(memory.len());
                }
            }
            Err(error) => self.note("close", &error),
        }
    }

    /// Reopens a session as the next process does, and compares it with its model.
    fn open_again(&mut self, at: usize, why: &str) {
        self.begin(why);
        self.held[at].session = None;
        for _ in 0..TRIES {
            let store = self.store();
            let id = self.held[at].memory.id;
            let durability = self.durability;
            let session = self.read("open", |_| store.open_session_at(id, &types(), durability));
            if !session.log().recovery().interrupted.is_empty() && !session.calls().is_interrupted() {
                // No lock was available, so the session can only be read.
                continue;
            }
            let mut memory = self.held[at].memory.clone();
            self.read("what is left", |_| memory.check_after(&session, Lost::Process));
            self.held[at] = Held { memory, session: Some(session) };
            if !self.session(at).calls().is_interrupted() || self.recover(at).is_some() {
                return;
            }
            self.held[at].session = None;
        }
        panic!("it is never recovered");
    }

    /// Ends the open call of a session. `None` if the session has to be reopened.
    fn recover(&mut self, at: usize) -> Option<()> {
        let (runner, session) = (self.runner(at), self.session(at));
        for _ in 0..TRIES {
            let memory = &mut self.held[at].memory;
            memory.pending = memory.now().recovery().into();
            let before = memory.len();
            match runner.recover(&ExecuteOptions::default()) {
                Ok(_) => {
                    let promise = self.promised(true);
                    self.acknowledged(at, &session, before, promise);
                    assert!(!session.calls().is_interrupted());
                    return Some(());
                }
                // The start record is read from the log.
                Err(error @ Error::Io { op: "open" | "read", .. }) => self.note("recover", &error),
                Err(error) => {
                    self.note("recover", &error);
                    if self.judge(at, &session, &error) == Verdict::Poisoned {
                        return None;
                    }
                }
            }
        }
        self.held[at].memory.pending.clear();
        Some(())
    }

    /// Ends all processes, repairs the disk, and compares the sessions with what was promised. Then
    /// the day continues.
    pub(super) fn end(&mut self, kind: CrashKind) {
        self.told.push(format!("the end: {kind:?}"));
        for held in &mut self.held {
            held.session = None;
        }
        self.machine.disk.clear_faults();
        self.machine.crash(kind);
        let lost = if kind == CrashKind::Process { Lost::Process } else { Lost::Power };
        let store = Store::open_with("/home/store", self.machine.options(self.durability))
            .expect("the disk is mended");
        for held in &mut self.held {
            let id = held.memory.id;
            let session = match store.open_session(id, &types()) {
                Ok(session) => session,
                Err(Error::NoSuchSession { .. } | Error::NotASession { .. })
                    if held.memory.required(lost) == 0 =>
                {
                    continue;
                }
                Err(error) => panic!("{id}: {error}"),
            };
            held.memory.check_after(&session, lost).expect("the disk is sound");
            let audit = self.machine.audit(id).expect("an auditor reads it");
            assert_eq!(audit.records_len(), held.memory.len());
            if !session.calls().is_interrupted() {
                assert_eq!(audit.state().unwrap(), session.dynamic().state().expect("it is read"));
            }
            audit.check_seals().expect("each seal is of its segment");
            held.session = Some(session);
        }
        for id in std::mem::take(&mut self.unsure) {
            match store.open_session(id, &types()) {
                Ok(session) => drop(session.set_tag("after", "all").expect("the next write works")),
                Err(Error::NoSuchSession { .. } | Error::NotASession { .. }) => {}
                Err(error) => panic!("{id}, whose making failed: {error}"),
            }
        }
        let (held, failed) = (std::mem::take(&mut self.held), self.failed);
        for one in held {
            let Some(session) = &one.session else { continue };
            let (id, at) = (session.id(), self.held.len());
            let interrupted = session.calls().is_interrupted();
            self.held.push(one);
            if interrupted {
                self.recover(at).expect("nothing fails any more");
            }
            self.change(at, &Change::Note(large_note(7)));
            assert_eq!(self.failed, failed, "{id}: nothing fails any more");
            self.close(at);
            let session = store.open_session(id, &types()).expect("it was closed");
            self.held[at].memory.check_after(&session, Lost::Process).expect("the disk is sound");
            assert!(session.log().recovery().closed);
        }
    }
}
