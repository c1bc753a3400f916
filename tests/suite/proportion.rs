//! Operations that once took quadratic time in the length of a log. Each log here is so long that a
//! quadratic fold takes minutes, and a linear one well under a second.

use foldlog::SequenceNumber;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::storage::{MemoryStorage, Op};
use foldlog::{Durability, Policy, RecordKind, Store, StoreOptions};
use foldlog_cli::progress::Progress;
use foldlog_cli::replay_check::replay;
use foldlog_codec::body::*;
use foldlog_codec::msgpack;
use foldlog_test_support::crash::Machine;
use foldlog_test_support::host::{self, Plan, StepAdded};
use foldlog_tests::fuzz::Set;
use uuid::Uuid;

/// A log that is built in one piece, without a session that writes each record.
struct Log {
    records: Vec<(RecordKind, Vec<u8>)>,
}

impl Log {
    /// Creates a log with one event, `said`, which is appended to STATE, and the slice of tool
    /// calls.
    fn new() -> Log {
        let opened = SessionOpening {
            session: Uuid::from_u128(0xf0_1d),
            seed: 1,
            tags: BTreeMap::new(),
            parent: None,
        };
        let bindings = vec![Binding { slice: 0, built_in: BuiltIn::Append }];
        let event =
            EventDeclaration { id: 0, name: "said".to_owned(), version: 1, bindings, implicit: false };
        let slice = |id, name: &str, policy| SliceDeclaration {
            id,
            name: name.to_owned(),
            policy,
            item: name.to_owned(),
        };
        let slices = vec![slice(0, "lines", Policy::State), slice(1, "tool_invoked", Policy::Log)];
        let declare = Declare { events: vec![event], slices };
        Log { records: vec![(RecordKind::Opened, opened.encode()), (RecordKind::Declare, declare.encode())] }
    }

    fn next(&self) -> u64 {
        self.records.len() as u64
    }

    /// Adds a line, after all others or before a given one.
    fn say(&mut self, before: Option<ItemId>) {
        let line = msgpack::to_vec(&"a line").unwrap();
        let action = Action::Event { event: 0, data: Payload::new(&line) };
        let effect = Effect { before, ..Effect::append(0) };
        let dispatch = Dispatch { action, effects: before.map(|_| vec![effect]) };
        self.records.push((RecordKind::Dispatch, dispatch.encode()));
    }

    fn roll_back(&mut self, to: u64) {
        self.records.push((RecordKind::Rollback, Rollback { to: to.into(), preserve_logs: true }.encode()));
    }

    /// Adds an interrupted call that is never settled.
    fn interrupted(&mut self) {
        let (begin, arguments) = (self.next(), msgpack::to_vec(&"{}").unwrap());
        let begun = ToolBegin::new("send", Payload::new(&arguments));
        let ended = ToolEnd {
            rolls_back: true,
            slice: 1,
            ..ToolEnd::new(begin.into(), "send", Outcome::Interrupted)
        };
        self.records.extend([(RecordKind::ToolBegin, begun.encode()), (RecordKind::ToolEnd, ended.encode())]);
    }

    /// Returns an auditor's reader of the log, and its disk.
    fn read(&self) -> (LogReader, MemoryStorage, Uuid) {
        let input = Set::input_of_records(self.records.iter().map(|(kind, body)| (*kind, body.as_slice())));
        let (set, disk) = (Set::of(&input), MemoryStorage::new());
        let dir = std::path::Path::new("/store/sessions").join(set.session.to_string());
        for (path, bytes) in set.files {
            disk.write_file(dir.join(path), bytes).unwrap();
        }
        let reader = LogReader::open_on(Arc::new(disk.clone()), &dir).unwrap();
        assert_eq!(reader.records_len(), self.next());
        (reader, disk, set.session)
    }
}

/// The most items that may be compared for one rollback: the changes since the one before, and one
/// unfinished run of 64 items in each of four states.
const COMPARED_MAX: u64 = 4 * 64 + 16;

fn holds(reader: &LogReader, rollbacks: u64) {
    let replayed = replay(reader, true, Progress::new(false, "", 0)).unwrap();
    assert_eq!((replayed.checked, replayed.difference.is_none()), (rollbacks, true));
    let compared = replayed.compared / rollbacks;
    assert!(compared <= COMPARED_MAX, "{compared} items were looked at for each of {rollbacks} rollbacks");
}

/// `replay --thorough` wrote out the whole path to each rollback's target and compared all of STATE
/// and LOG there: 8,000 rollbacks took 9.8 s.
#[test]
fn each_of_many_chained_rollbacks_is_checked_by_what_it_changed() {
    const ROLLBACKS: u64 = 20_000;
    let mut log = Log::new();
    for _ in 0..ROLLBACKS {
        log.say(None);
        log.roll_back(log.next() - 1);
    }
    let (reader, ..) = log.read();
    holds(&reader, ROLLBACKS);
    assert_eq!(reader.state().unwrap().slices["lines"].items.len() as u64, ROLLBACKS);
}

/// Like the test above, with each line inserted before the last one.
#[test]
fn each_rollback_of_a_list_with_the_newest_first_is_checked_by_what_it_changed() {
    const ROLLBACKS: u64 = 5_000;
    let mut log = Log::new();
    log.say(None);
    for _ in 0..ROLLBACKS {
        let newest = if log.next() == 3 { 2 } else { log.next() - 2 };
        log.say(Some(ItemId { sequence: newest.into(), ordinal: 0 }));
        log.roll_back(log.next() - 1);
    }
    holds(&log.read().0, ROLLBACKS);
}

/// Distant rollback targets must be checked as well.
#[test]
fn rollbacks_that_go_back_and_forth_are_checked_as_well() {
    let mut log = Log::new();
    for round in 0..200_u64 {
        log.say(None);
        log.say((round % 3 == 1).then_some(ItemId { sequence: 2.into(), ordinal: 0 }));
        log.roll_back(2 + round * 7 % (log.next() - 2));
    }
    holds(&log.read().0, 200);
}

/// After every 80 items put in front, all other items got new keys: 40,000 items took 7 s.
#[test]
fn a_list_with_the_newest_first_is_folded_as_one_with_the_newest_last() {
    const LINES: u64 = 150_000;
    let mut log = Log::new();
    log.say(None);
    for _ in 1..LINES {
        let newest = ItemId { sequence: SequenceNumber::new(log.next() - 1), ordinal: 0 };
        log.say(Some(newest));
    }
    let (reader, ..) = log.read();
    let state = reader.state().unwrap();
    let lines = state.slices["lines"].items.iter().map(|item| item.sequence);
    assert!(lines.eq((2..2 + LINES).rev()));
}

/// Each start record and each end record copied all operations that wait to be settled: opening
/// 20,000 took 4.6 s.
#[test]
fn an_operation_that_waits_to_be_settled_costs_those_behind_it_nothing() {
    const CALLS: u64 = 40_000;
    let mut log = Log::new();
    (0..CALLS).for_each(|_| log.interrupted());
    let (reader, disk, session) = log.read();
    assert_eq!(reader.report().unsettled.len() as u64, CALLS);
    let options = StoreOptions { storage: Arc::new(disk), ..StoreOptions::default() };
    let opened = Store::open_with("/store", options).unwrap().open_untyped(session).unwrap();
    assert_eq!(opened.calls().unsettled_operations().len() as u64, CALLS);
    holds(&reader, CALLS);
}

impl Log {
    fn said(&mut self, evaluation: &str) {
        let text = msgpack::to_vec(&"What about it?").unwrap();
        let scope = ConversationScope::new(evaluation);
        self.records.push((RecordKind::Input, Input::new(scope, Role::User, Payload::new(&text)).encode()));
    }

    /// Adds an answer that requests a call, which is interrupted.
    fn interrupted_for_an_answer(&mut self, evaluation: &str) {
        let arguments = msgpack::to_vec(&"{}").unwrap();
        let call = AnsweredCall {
            id: "call".into(),
            name: "send".into(),
            arguments: Payload::new(&arguments),
            incomplete: false,
        };
        let origin = Some(CallOrigin { answer: self.next().into(), ordinal: 0 });
        let answer =
            AnswerBody { calls: vec![call], ..AnswerBody::new(ConversationScope::new(evaluation), None) };
        self.records.push((RecordKind::Answer, answer.encode()));
        let begin = self.next().into();
        let begun = ToolBegin { origin, ..ToolBegin::new("send", Payload::new(&arguments)) };
        let ended = ToolEnd {
            rolls_back: true,
            slice: 1,
            origin,
            ..ToolEnd::new(begin, "send", Outcome::Interrupted)
        };
        self.records.extend([(RecordKind::ToolBegin, begun.encode()), (RecordKind::ToolEnd, ended.encode())]);
    }

    fn settle(&mut self, operation: u64) {
        let settle = Settle::new(operation.into(), Decision::Failed, "a person", "so it is");
        self.records.push((RecordKind::Settle, settle.encode()));
    }
}

/// Each settlement searched all records of all conversations for its call.
#[test]
fn each_of_many_settlements_finds_its_call_at_once() {
    const CALLS: u64 = 40_000;
    let mut log = Log::new();
    let mut operations = Vec::new();
    for _ in 0..CALLS {
        operations.push(log.next() + 1);
        log.interrupted_for_an_answer("one");
    }
    operations.into_iter().for_each(|operation| log.settle(operation));
    let (reader, ..) = log.read();
    assert!(reader.report().unsettled.is_empty());
    let held = reader.conversation_at("one", u64::MAX).unwrap().unwrap();
    assert_eq!(held.entries().len() as u64, 3 * CALLS);
}

/// The next record of a conversation and its content were searched for among the records of all
/// others.
#[test]
fn each_of_many_conversations_is_found_at_once() {
    const EVALUATIONS: u64 = 40_000;
    let mut log = Log::new();
    let name = |number: u64| format!("evaluation {number}");
    (0..EVALUATIONS).for_each(|number| log.said(&name(number)));
    let (reader, disk, session) = log.read();
    assert_eq!(reader.evaluations_at(u64::MAX).len() as u64, EVALUATIONS);
    let options = StoreOptions { storage: Arc::new(disk), ..StoreOptions::default() };
    let opened = Store::open_with("/store", options).unwrap().open_untyped(session).unwrap();
    for number in 0..EVALUATIONS {
        let resume = opened.conversation().resume(Some(&name(number))).unwrap();
        assert_eq!(resume.point, foldlog::conversation::ResumePoint::AwaitProvider);
    }
    for number in (0..EVALUATIONS).step_by(40) {
        let held = reader.conversation_at(&name(number), u64::MAX).unwrap().unwrap();
        assert_eq!(held.entries().len(), 1);
    }
}

/// A conversation with many rollbacks skips abandoned records at once.
#[test]
fn what_was_abandoned_costs_a_conversation_nothing() {
    const ROLLBACKS: u64 = 20_000;
    let mut log = Log::new();
    log.said("one");
    let first = log.next() - 1;
    for _ in 0..ROLLBACKS {
        log.said("one");
        log.roll_back(first);
    }
    let (reader, disk, session) = log.read();
    let options = StoreOptions { storage: Arc::new(disk), ..StoreOptions::default() };
    let opened = Store::open_with("/store", options).unwrap().open_untyped(session).unwrap();
    for _ in 0..ROLLBACKS {
        let resume = opened.conversation().resume(Some("one")).unwrap();
        assert_eq!(resume.point, foldlog::conversation::ResumePoint::AwaitProvider);
    }
    let held = reader.conversation_at("one", u64::MAX).unwrap().unwrap();
    assert_eq!((held.entries().len(), held.abandoned_entries().len() as u64), (1, ROLLBACKS));
}

/// Writing an image read a record again for every few thousand of its items: closing after a seed
/// of two million took a minute.
#[test]
fn a_record_of_many_items_is_read_once_for_its_image() {
    let reads = |items: u32| {
        let machine = Machine::default().with_images();
        let disk = machine.disk.clone();
        let session = machine.process(Durability::Process).create(&host::types()).unwrap();
        let steps = (0..items).map(|part| StepAdded { title: format!("step {part}"), part: 0 });
        session.seed::<Plan>(steps.collect()).unwrap();
        let _ = disk.take_trace();
        session.close().unwrap();
        let trace = disk.take_trace();
        assert!(
            trace.iter().any(|(_, path)| path.extension().is_some_and(|end| end == "image")),
            "an image is written"
        );
        trace.iter().filter(|(op, _)| *op == Op::Read).count()
    };
    let (few, many) = (reads(10_000), reads(100_000));
    println!("{few} reads for the image of 10,000 items, {many} for that of 100,000");
    assert!(many < 2 * few, "{few} reads for 10,000 items, {many} for 100,000");
}
