//! A log with every current kind of record, over several segments of a session and of its parent.
//! Each byte, each header bit, each frame and each segment is damaged in turn.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use foldlog::conversation::{
    NewAdapterState, NewAnswer, NewInput, NewRequest, NewRequestFailure, PromptIdentity, Role, ToolCallRecord,
};
use foldlog::storage::CrashKind;
use foldlog::tools::{ExecuteOptions, Question, ToolCall, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    CallOrigin, Durability, Error, ExecutionState, ImportOptions, RecordKind, ResourceRegistry, Session,
    SessionOptions, Settlement, SnapshotOptions, Store, StoreOptions, Value,
};
use foldlog_codec::Record;
use foldlog_codec::body::Lane;
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT, large_note, step, write_steps};
use foldlog_test_support::host::{CurrentStep, DraftEdited, Noted, Plan, StepAdded, Undeclared, types};
use foldlog_test_support::killed;
use foldlog_test_support::replica::MemoryReplica;
use uuid::Uuid;

use super::bytes::{SEGMENT_HEADER, with_each_byte_inverted};
use super::{corruption, frame_at, judge};

pub(super) fn runner(session: &Session) -> ToolRunner {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    ToolRunner::new(state, ToolRegistry::new())
}

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, r#"{"path": "a.txt"}"#).with_id("call_1")
}

fn wrote(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 1 }
}

/// Calls a tool that succeeds and starts a program, one that fails, and one without an end record.
fn call_tools(session: &Session) {
    let runner = runner(session);
    let begin = |name| runner.begin(&call(name), &ExecuteOptions::default()).unwrap();
    let held = begin("write_file");
    held.context().session().dispatch(wrote("held")).unwrap();
    assert!(held.context().command("/bin/true").status().unwrap().success());
    held.end(ToolResult::ok("written", "z".repeat(700))).unwrap();
    let failed = begin("write_file");
    failed.context().session().dispatch(wrote("failed")).unwrap();
    failed.fail(ToolError::failed("no such directory")).unwrap();
    let open = begin("send_mail");
    open.context().session().dispatch(wrote("open")).unwrap();
    // The session is closed under the call, so its end record is never written.
    session.clone().close().unwrap();
    drop(open);
}

/// Writes a turn of a conversation whose first request fails, with a host's decision about it. The
/// message to the model is large enough for an object.
fn converse(session: &Session) {
    let prompt = |digest| PromptIdentity {
        namespace: "agents".to_owned(),
        key: "reviewer".to_owned(),
        digest: [digest; 32],
    };
    let ask = |attempt| {
        let request = NewRequest { evaluation_id: "ev".to_owned(), attempt, ..NewRequest::default() };
        session.conversation().record_request(&request).unwrap()
    };
    let state = NewAdapterState {
        evaluation_id: "ev".to_owned(),
        adapter: "claude_agent_sdk".to_owned(),
        resumable: true,
        state: serde_json::json!({ "session_id": "s-1" }),
        supersedes: None,
        entry: None,
        occasion: "init".to_owned(),
    };
    session.conversation().record_adapter_state(&state).unwrap();
    let said = session.conversation().record_input(&NewInput::system("ev", "Be brief.", prompt(1))).unwrap();
    session.conversation().record_input(&NewInput::user("ev", "u".repeat(700)).with_id("message 1")).unwrap();
    let cut = NewRequestFailure::new("ev", ask(1), "cut", "the connection was closed");
    session.conversation().record_request_failure(&cut).unwrap();
    let call = ToolCallRecord {
        call_id: "call_1".to_owned(),
        name: "read_file".to_owned(),
        arguments: r#"{"path": "a.txt"}"#.to_owned(),
    };
    let answer = NewAnswer {
        evaluation_id: "ev".to_owned(),
        request: Some(ask(2)),
        content: Some("I look.".to_owned()),
        calls: vec![call],
        ..NewAnswer::default()
    };
    let answer = session.conversation().record_answer(&answer).unwrap();
    let origin = CallOrigin { answer, ordinal: 0 };
    session.conversation().record_input(&NewInput::tool_result("ev", origin, "call_1", "the text")).unwrap();
    let turn = session.conversation().record_turn("ev", true).unwrap();
    session
        .conversation()
        .record_shortened("ev", said, turn, &[(Role::User, "u".to_owned())], "long")
        .unwrap();
    session.conversation().accept_prompt("ev", &prompt(1), &prompt(2), "a person", "a word").unwrap();
}

/// Makes calls that wait or waited: approved and run, approved and not run, refused, with a
/// delivered result, still asking, and waiting for a nested call. The decisions are made in their
/// own lane.
pub(super) fn suspend(session: &Session) {
    let (runner, mailbox) = (runner(session), session.lane("mailbox"));
    let answer = session.dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let call = |ordinal| call("send_mail").with_origin(answer, ordinal);
    let begin = |ordinal| {
        let begun = runner.begin(&call(ordinal), &ExecuteOptions::default()).unwrap();
        begun.context().session().dispatch(wrote("asked")).unwrap();
        begun
    };
    let suspended = |ended| match ended {
        Err(Error::Suspended { operation, .. }) => operation,
        ended => panic!("{ended:?}"),
    };
    let day = Duration::from_secs(86_400);
    let ask =
        |ordinal| suspended(begin(ordinal).fail(ToolError::Ask(Question::new("Send it?").expiring(day))));
    let settle = |operation, settlement: Settlement| {
        mailbox.calls().settle(operation, &settlement, "a person", "a word").unwrap();
    };
    let approved = || Settlement::approved(*blake3::hash(call(0).arguments.as_bytes()).as_bytes());
    settle(ask(0), approved().until((SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000)).into()));
    begin(0).end(ToolResult::ok("sent", 1)).unwrap();
    settle(ask(1), approved());
    settle(ask(2), Settlement::failed().showing("Not today."));
    let awaits = suspended(begin(3).end(ToolResult::<u8>::awaits(Question::new("Read it."))));
    settle(awaits, Settlement::committed(Some(Value::from(5_u64))).showing("It was read."));
    ask(4);
    let outer = begin(5);
    let inner = runner.within(outer.context()).begin(&self::call("read_file"), &ExecuteOptions::default());
    let asks = inner.unwrap().fail(ToolError::Ask(Question::new("Read it?"))).unwrap_err();
    suspended(outer.fail(ToolError::Engine(asks)));
}

/// Returns the machine, the session, which is a fork, and its parent. Both are closed, so that all
/// records are attested.
pub(crate) fn everything() -> (Machine, Uuid, Uuid) {
    let machine = Machine::default();
    let store = machine.process(Durability::Boundary);
    let before = store.create(&types()).unwrap();
    write_steps(&before, 1);
    before.dispatch(Noted { text: "before".to_owned() }).unwrap();
    let export = before.log().export().unwrap();
    before.close().unwrap();

    let session = store.import(&export, &types(), ImportOptions::default()).unwrap();
    let parent = session.id();
    session.dispatch(large_note(1)).unwrap();
    session.dispatch(DraftEdited { place: 0, line: "a line".to_owned() }).unwrap();
    session.dispatch(DraftEdited { place: 0, line: "?".to_owned() }).unwrap();
    let here = session.snapshot(SnapshotOptions::with_tag("here")).unwrap();
    write_steps(&session, 2);
    session.seed::<CurrentStep>(vec![step(1)]).unwrap();
    session.clear::<Plan>().unwrap();
    session.rollback(&here).unwrap();
    session.dispatch(Undeclared { value: -3 }).unwrap();
    session.set_tag("outcome", "kept").unwrap();
    call_tools(&session);

    let session = machine.open(parent, Durability::Boundary).unwrap();
    assert_eq!(runner(&session).recover(&ExecuteOptions::default()).unwrap().len(), 1);
    let operation = session.calls().unsettled_operations()[0].operation;
    session.calls().settle(operation, &Settlement::failed(), "a person", "unsent").unwrap();
    converse(&session);
    write_steps(&session, 2);
    // After this kill the next process recovers: it rewrites the last records into a new segment.
    machine.crash(CrashKind::Process);
    let session = machine.open(parent, Durability::Boundary).unwrap();
    write_steps(&session, 2);
    let position = session.log().position().unwrap();
    session.close().unwrap();

    let store = machine.process(Durability::Boundary);
    let fork =
        store.fork(parent, position, &types(), SessionOptions::default().tag("way", "another")).unwrap();
    let id = fork.id();
    write_steps(&fork, 3);
    fork.reset().unwrap();
    fork.dispatch(large_note(2)).unwrap();
    let runner = runner(&fork);
    let held = runner.begin(&call("read_file"), &ExecuteOptions::default()).unwrap();
    held.end(ToolResult::ok("the text", "the text")).unwrap();
    drop(runner);
    suspend(&fork);
    write_steps(&fork, 4);
    fork.close().unwrap();
    let replication = MemoryReplica::new("a machine").option();
    let options = StoreOptions { replication, ..machine.options(Durability::Boundary) };
    let held = Store::open_with("/home/store", options).unwrap().open_session(id, &types()).unwrap();
    write_steps(&held, 1);
    held.close().unwrap();
    (machine, id, parent)
}

/// Damage to two neighbouring frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meddling {
    Swapped,
    /// The first frame occurs twice.
    Repeated,
    /// The first frame is removed, and the following ones have moved up.
    Removed,
}

impl Meddling {
    pub(super) const ALL: [Meddling; 3] = [Meddling::Swapped, Meddling::Repeated, Meddling::Removed];

    pub(super) fn with(self, first: &FrameAt, second: &FrameAt, bytes: &mut Vec<u8>) {
        match self {
            Meddling::Swapped => bytes[first.start..second.end].rotate_right(second.end - second.start),
            Meddling::Repeated => {
                let frame = bytes[first.start..first.end].to_vec();
                bytes.splice(second.start..second.start, frame);
            }
            Meddling::Removed => drop(bytes.drain(first.start..first.end)),
        }
    }

    /// Returns the missing frame, and so the place of the reported damage.
    pub(super) fn found_at<'a>(self, first: &'a FrameAt, second: &'a FrameAt) -> &'a FrameAt {
        if self == Meddling::Repeated { second } else { first }
    }
}

/// Returns pairs of adjacent frames of one segment.
pub(super) fn neighbours(frames: &[FrameAt]) -> impl Iterator<Item = (&FrameAt, &FrameAt)> {
    let pairs = frames.iter().zip(frames.iter().skip(1));
    pairs.filter(|(first, second)| first.end == second.start && first.segment == second.segment)
}

/// Returns the first frame of a segment, if any of it is in the chain: segments that a recovery cut
/// off do not count.
fn first_of<'a>(frames: &'a [FrameAt], path: &PathBuf) -> Option<&'a FrameAt> {
    frames.iter().find(|frame| frame.segment == *path)
}

/// Returns the missing record after the loss of a segment's header: the next one after all records
/// of the segment before. A recovery's segment starts with records that are there too.
fn after_the_one_before(frames: &[FrameAt], path: &PathBuf) -> u64 {
    let first = first_of(frames, path).unwrap();
    (first.sequence + if path.ends_with("0000000002.seg") { 2 } else { 0 }).get()
}

/// The kinds of frames in the chain of a log without a compaction.
fn written_kinds() -> BTreeSet<RecordKind> {
    let others = [RecordKind::Dropped, RecordKind::Compacted, RecordKind::Base, RecordKind::Seal];
    RecordKind::ALL.iter().copied().filter(|kind| !others.contains(kind)).collect()
}

#[test]
fn the_log_holds_every_kind_in_several_segments_of_both_sessions() {
    let (machine, id, parent) = everything();
    let frames = machine.frames(id).unwrap();
    let kinds: BTreeSet<RecordKind> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, written_kinds());
    assert!(
        machine.segments(parent).len() >= 3
            && machine.segments(id).len() > machine.segments(parent).len() + 1
    );
    let objects =
        machine.disk.files().into_iter().filter(|path| path.starts_with(machine.dir(id).join("objects")));
    assert_eq!(objects.count(), 4);
    let fates: Vec<&str> =
        machine.audit(id).unwrap().ledger().unwrap().iter().map(|entry| entry.outcome.name()).collect();
    let of_suspended =
        ["committed", "suspended", "settled", "settled", "suspended", "suspended", "suspended"];
    assert_eq!(fates, [&["committed", "failed", "settled", "committed"], of_suspended.as_slice()].concat());
    let lanes = ["mailbox", ""].map(|name| Some(name).filter(|name| !name.is_empty()));
    for (within, name) in [(true, lanes[1]), (false, lanes[0]), (false, lanes[1])] {
        let of_lane = |record: &Record<'_>| {
            let lane = Lane::decode(record.kind, record.body).unwrap();
            (lane.within.is_some(), lane.name.as_deref()) == (within, name)
        };
        let mut found = 0;
        let audit = machine.audit(id).unwrap();
        let last = audit.records_len() - 1;
        audit
            .records(0, last, |record| {
                found += u32::from(of_lane(record));
                Ok(())
            })
            .unwrap();
        assert!(found > 3, "{found} records of the lane {name:?}, within a call: {within}");
    }
    assert!(judge(&machine, id).unwrap() > 40);
}

/// The property of the small log above, for each kind of record, for the segments of a recovery,
/// and for those shared with a parent.
#[test]
fn each_byte_of_every_kind_of_record_is_found_and_named() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let (all, state) = (whole.audit(id).unwrap().records_len(), whole.audit(id).unwrap().state().unwrap());
    let closing = frames.last().unwrap();
    let (mut found, mut of_no_chain) = (BTreeSet::new(), 0);
    with_each_byte_inverted(&whole, id, OTHER_BOOT, |machine, path, at| {
        let told = format!("byte {at} of {}", path.display());
        let judged = judge(machine, id);
        let frame = frame_at(&frames, path, at);
        let in_chain = first_of(&frames, path);
        let (offset, sequence) = match (frame, in_chain) {
            (Some(frame), _) => (frame.start, frame.sequence),
            (None, Some(_)) if at < SEGMENT_HEADER => (0, after_the_one_before(&frames, path).into()),
            _ => {
                // A seal, or a segment that a recovery cut off or left out.
                assert_eq!(judged.unwrap_or_else(|error| panic!("{told}: {error}")), all);
                of_no_chain += 1;
                return;
            }
        };
        if frame == Some(closing) {
            assert_eq!(judged.unwrap_or_else(|error| panic!("{told}: {error}")), all);
            assert_eq!(machine.audit(id).unwrap().state().unwrap(), state);
            return;
        }
        let error = judged.map(|records| panic!("{told}: {records} records are read")).unwrap_err();
        let corruption = corruption(error);
        assert_eq!(
            (&corruption.segment, corruption.offset, corruption.sequence),
            (path, offset as u64, sequence),
            "{told}: {corruption}"
        );
        found.extend(frame.map(|frame| frame.kind));
    });
    assert_eq!(found, written_kinds());
    assert!(of_no_chain > 100 / killed::step(5), "{of_no_chain}");
}

#[test]
fn each_bit_of_each_header_is_found_and_named() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let machine = whole.copied(OTHER_BOOT);
    for path in whole.segments(id) {
        if first_of(&frames, &path).is_none() {
            continue;
        }
        let next = after_the_one_before(&frames, &path);
        for bit in (0..SEGMENT_HEADER * 8).step_by(killed::step(5)) {
            let invert = |bytes: &mut Vec<u8>| bytes[bit / 8] ^= 1 << (bit % 8);
            machine.disk.mutate_file(&path, invert).unwrap();
            let found = corruption(judge(&machine, id).unwrap_err());
            assert_eq!(
                (&found.segment, found.offset, found.sequence),
                (&path, 0, next.into()),
                "bit {bit}: {found}"
            );
            machine.disk.mutate_file(&path, invert).unwrap();
        }
    }
    assert!(judge(&machine, id).is_ok());
}

/// This includes envelope frames: no frame can pass for another's neighbour.
#[test]
fn frames_of_every_kind_that_are_swapped_repeated_or_removed_are_damage() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let closing = frames.last().unwrap();
    let mut tried = 0;
    for (first, second) in neighbours(&frames) {
        for what in Meddling::ALL {
            let place = what.found_at(first, second);
            for boot in [BOOT, OTHER_BOOT] {
                let machine = whole.copied(boot);
                machine.disk.mutate_file(&first.segment, |bytes| what.with(first, second, bytes)).unwrap();
                let told =
                    format!("{} at {} of {} {what:?}", first.kind, first.start, first.segment.display());
                let judged = judge(&machine, id);
                if second == closing && what == Meddling::Repeated && boot == OTHER_BOOT {
                    // All records are present. Only the frame that attests them may have been torn
                    // by a power cut.
                    assert_eq!(judged.unwrap(), whole.audit(id).unwrap().records_len());
                    continue;
                }
                let found = corruption(judged.map(|records| panic!("{told}: {records}")).unwrap_err());
                assert_eq!(
                    (found.offset, found.sequence),
                    (place.start as u64, place.sequence),
                    "{told}: {found}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 300, "{tried}");
    // A removed closing frame is undetectable: it alone attests the last records.
    let machine = whole.copied(OTHER_BOOT);
    machine.disk.mutate_file(&closing.segment, |bytes| bytes[closing.start..].fill(0)).unwrap();
    assert_eq!(judge(&machine, id).unwrap(), whole.audit(id).unwrap().records_len());
}

/// A disk may show any old pages after a tear. Each frame there is intact in itself, and none
/// passes for the missing one.
#[test]
fn a_sound_frame_from_anywhere_behind_a_tear_is_never_taken_in() {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let session = machine.open(id, Durability::Process).unwrap();
    write_steps(&session, 5);
    machine.crash(CrashKind::Process);
    let frames = machine.frames(id).unwrap();
    let segment = machine.segments(id).pop().unwrap();
    let tail: Vec<&FrameAt> = frames
        .iter()
        .filter(|frame| frame.segment == segment && frame.kind == RecordKind::Dispatch)
        .collect();
    let sound = machine.disk.read_file(&segment).unwrap();
    let mut tried = 0;
    for (torn, stale) in tail.iter().flat_map(|torn| tail.iter().map(move |stale| (torn, stale))) {
        if torn == stale {
            continue;
        }
        for boot in [BOOT, OTHER_BOOT] {
            let copy = machine.copied(boot);
            let patch = |bytes: &mut Vec<u8>| {
                bytes[torn.start..].fill(0);
                let frame = &sound[stale.start..stale.end];
                bytes[torn.start..torn.start + frame.len()].copy_from_slice(frame);
            };
            copy.disk.mutate_file(&segment, patch).unwrap();
            let judged = judge(&copy, id);
            // A later frame proves that one is missing, unless a power cut occurred.
            if boot == BOOT && stale.sequence > torn.sequence {
                let found = corruption(judged.unwrap_err());
                assert_eq!((found.offset, found.sequence), (torn.start as u64, torn.sequence), "{found}");
            } else {
                assert_eq!(judged.unwrap(), torn.sequence);
                let left_out = copy.audit(id).unwrap().report().torn.clone().unwrap();
                assert_eq!((left_out.offset, left_out.sequence), (torn.start as u64, torn.sequence));
            }
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

/// Two sessions of one host differ only in their ids: each pair of their segments changes places.
#[test]
fn segments_that_changed_places_between_two_sessions_are_found_in_both() {
    let machine = Machine::default();
    let live = || {
        let session = machine.process(Durability::Boundary).create(&types()).unwrap();
        write_steps(&session, 20);
        let id = session.id();
        session.close().unwrap();
        id
    };
    let (one, other) = (live(), live());
    let (of_one, of_other) = (machine.segments(one), machine.segments(other));
    assert!(of_one.len() > 1 && of_one.len() == of_other.len());
    let wrong = |machine: &Machine, id: Uuid, told: &str| match judge(machine, id) {
        Err(Error::WrongSession { .. } | Error::MissingSegment { .. }) => {}
        Err(Error::Corrupt(found)) => {
            assert!(machine.segments(id).contains(&found.segment), "{told}: {found}")
        }
        judged => panic!("{told}: {judged:?}"),
    };
    for left in &of_one {
        for right in &of_other {
            for boot in [BOOT, OTHER_BOOT] {
                let copy = machine.copied(boot);
                copy.disk.write_file(left, machine.disk.read_file(right).unwrap()).unwrap();
                copy.disk.write_file(right, machine.disk.read_file(left).unwrap()).unwrap();
                let told = format!("{} and {}", left.display(), right.display());
                wrong(&copy, one, &told);
                wrong(&copy, other, &told);
            }
        }
    }
}
