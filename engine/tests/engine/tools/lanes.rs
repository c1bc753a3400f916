//! Lanes: the log alone identifies the handle of the host that wrote each record.

use foldlog::conversation::NewInput;
use foldlog::{RecordKind, SequenceNumber, SessionOptions, SnapshotOptions};
use foldlog_codec::body::{Action, Dispatch, Lane};

use super::*;

/// The identity of a record in the log: its lane, its kind, and a tag's key.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    sequence: SequenceNumber,
    within: Option<SequenceNumber>,
    lane: Option<String>,
    kind: RecordKind,
    tag: Option<String>,
}

/// Reads all records of a session's log, without the session and without types.
fn told(disk: &MemoryStorage, session: &Session) -> Vec<Told> {
    let reader = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    let mut told = Vec::new();
    let read = reader.records(SequenceNumber::MIN, SequenceNumber::MAX, |record| {
        let lane = Lane::decode(record.kind, record.body).unwrap();
        let tag =
            (record.kind == RecordKind::Dispatch).then(|| Dispatch::decode(record.body).unwrap().action);
        let tag = match tag {
            Some(Action::Tag { key, .. }) => Some(key),
            _ => None,
        };
        let lane_name = lane.name.map(|name| name.into_owned());
        let (sequence, within) = (record.sequence, lane.within);
        told.push(Told { sequence, within, lane: lane_name, kind: record.kind, tag });
        Ok(())
    });
    read.unwrap();
    told
}

fn kinds_of(told: &[Told], within: Option<SequenceNumber>, lane: Option<&str>) -> Vec<RecordKind> {
    let of = |one: &&Told| one.within == within && one.lane.as_deref() == lane;
    told.iter().filter(of).map(|one| one.kind).collect()
}

/// Writes one record of each kind that a handle can write without a tool.
fn write_each(session: &Session) {
    session.dispatch(StepAdded { title: "a step".to_owned(), part: 1 }).unwrap();
    session.dispatch(Noted { text: "a note".to_owned() }).unwrap();
    session.dispatch(Noted { text: "a long note ".repeat(8_000) }).unwrap();
    session.set_tag("state", "at work").unwrap();
    session.clear_where::<Plan>(|_| false).unwrap();
    session.conversation().record_input(&NewInput::user("evaluation", "hello")).unwrap();
    let here = session.snapshot(SnapshotOptions::default()).unwrap();
    session.rollback(&here).unwrap();
    session.reset().unwrap();
}

const EACH: [RecordKind; 9] = [
    RecordKind::Dispatch,
    RecordKind::Dispatch,
    RecordKind::Dispatch,
    RecordKind::Dispatch,
    RecordKind::Dispatch,
    RecordKind::Input,
    RecordKind::Snapshot,
    RecordKind::Rollback,
    RecordKind::Dispatch,
];

/// Two threads whose records interleave at random: a replay compares each with its own.
#[test]
fn records_of_two_threads_on_two_lanes_are_told_apart_by_the_log_alone() {
    let mut run = Run::new();
    std::thread::scope(|scope| {
        for name in ["left", "right"] {
            let session = run.session().lane(name);
            scope.spawn(move || {
                for round in 0..40 {
                    session.set_tag(format!("{name} {round}"), "done").unwrap();
                    session.dispatch(Noted { text: format!("{name} {round}") }).unwrap();
                }
            });
        }
        for round in 0..40 {
            run.session().set_tag(format!("main {round}"), "done").unwrap();
        }
    });
    let before = told(&run.disk, run.session());
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    let end = run.session().log().position().unwrap();
    let fork = store_of(&run.disk).fork(run.id, end, &types(), SessionOptions::default()).unwrap();
    for told in [before, told(&run.disk, run.session()), told(&run.disk, &fork)] {
        for name in ["left", "right", "main"] {
            let lane = Some(name).filter(|name| *name != "main");
            let own = told.iter().filter(|one| one.lane.as_deref() == lane);
            let tags: Vec<String> = own.filter_map(|one| one.tag.clone()).collect();
            let expected: Vec<String> = (0..40).map(|round| format!("{name} {round}")).collect();
            assert_eq!(tags, expected, "{name}");
        }
        assert_eq!(kinds_of(&told, None, Some("left")).len(), 80);
        assert!(told.iter().all(|one| one.within.is_none()));
    }
}

#[test]
fn every_kind_that_a_handle_writes_names_the_lane_and_the_main_lane_takes_no_bytes() {
    let run = Run::new();
    write_each(run.session());
    write_each(&run.session().lane("mailbox"));
    // A lane of a lane is a sibling of it.
    write_each(&run.session().lane("mailbox").lane("clock"));
    let told = told(&run.disk, run.session());
    for lane in ["mailbox", "clock"] {
        assert_eq!(kinds_of(&told, None, Some(lane)), EACH, "{lane}");
    }
    let mut main = kinds_of(&told, None, None);
    main.retain(|kind| ![RecordKind::Opened, RecordKind::Declare].contains(kind));
    assert_eq!(main, EACH);
}

/// Writes through its own handle, and through a lane of that.
struct Clerk;

impl Tool for Clerk {
    const NAME: &'static str = "clerk";
    type Parameters = Write;
    type Output = usize;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, params: Write, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        write(context, &params)?;
        write_each(&context.session().lane("inside"));
        match params.then {
            Then::Succeed => Ok(ToolResult::ok("written", 1)),
            _ => Err(ToolError::failed("out of ink")),
        }
    }
}

fn clerk(session: &Session, run: &Run) -> ToolRunner {
    let state = ExecutionState::builder(session.clone(), run.runner.state().resources().clone()).build();
    ToolRunner::new(state, ToolRegistry::new().with(Clerk))
}

fn ask(then: Then) -> ToolCall {
    let arguments = Write { paper: "paper".to_owned(), text: "one".to_owned(), then };
    ToolCall::new("clerk", serde_json::to_string(&arguments).unwrap())
}

/// A note or a tag that the host wrote during a call looked like one of the tool's.
#[test]
fn records_of_a_tools_handle_and_of_a_lane_inside_of_it_are_told_from_the_hosts() {
    let run = Run::new();
    let operation =
        run.runner.begin(&call("paper", "one", Then::Succeed), &ExecuteOptions::default()).unwrap();
    let begin = operation.id().sequence();
    // Events that change no STATE do not wait for tools.
    run.session().dispatch(Noted { text: "the host's".to_owned() }).unwrap();
    operation.context().session().dispatch(Noted { text: "the tool's".to_owned() }).unwrap();
    run.session().lane("mailbox").set_tag("mail", "read").unwrap();
    operation.context().session().lane("inside").set_tag("mail", "answered").unwrap();
    operation.end(ToolResult::ok("done", 1)).unwrap();
    let told = told(&run.disk, run.session());
    let handle = |one: &Told| (one.within, one.lane.clone(), one.kind);
    let last: Vec<_> = told.iter().filter(|one| one.sequence > begin).map(handle).collect();
    let expected = [
        (None, None, RecordKind::Declare),
        (None, None, RecordKind::Dispatch),
        (Some(begin), None, RecordKind::Dispatch),
        (None, Some("mailbox".to_owned()), RecordKind::Dispatch),
        (Some(begin), Some("inside".to_owned()), RecordKind::Dispatch),
        (None, None, RecordKind::ToolEnd),
    ];
    assert_eq!(last, expected);
}

/// The records of a rolled back operation stay in the log with their lanes, and so does the call's
/// own lane, which its start record names.
#[test]
fn lanes_survive_a_tool_that_fails_a_rollback_and_the_next_process() {
    let mut run = Run::new();
    let lane = run.session().lane("worker");
    let report = clerk(&lane, &run).execute(&ask(Then::Fail), &ExecuteOptions::default()).unwrap();
    let begin = report.operation.sequence();
    assert!(!report.success && run.plan().is_empty());
    let here = lane.snapshot(SnapshotOptions::default()).unwrap();
    let report = clerk(&lane, &run).execute(&ask(Then::Succeed), &ExecuteOptions::default()).unwrap();
    let second = report.operation.sequence();
    lane.rollback(&here).unwrap();
    drop(lane);
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    let told = told(&run.disk, run.session());
    // For a call: the tool's own two records, and those of the lane within it.
    for run in [begin, second] {
        assert_eq!(kinds_of(&told, Some(run), None), [RecordKind::Dispatch; 2]);
        assert_eq!(kinds_of(&told, Some(run), Some("inside")), EACH);
    }
    let worker = [RecordKind::ToolBegin, RecordKind::Snapshot, RecordKind::ToolBegin, RecordKind::Rollback];
    assert_eq!(kinds_of(&told, None, Some("worker")), worker);
}

#[test]
fn an_operation_that_runs_again_names_its_own_run() {
    let mut run = Run::with(Idempotency::Natural);
    assert!(run.write("paper", "one", Then::Die).is_err());
    run.reopen(Idempotency::Natural);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    let told = told(&run.disk, run.session());
    let begins: Vec<SequenceNumber> =
        told.iter().filter(|one| one.kind == RecordKind::ToolBegin).map(|one| one.sequence).collect();
    assert_eq!(begins.len(), 2);
    for begin in begins {
        assert_eq!(kinds_of(&told, Some(begin), None), [RecordKind::Dispatch; 2]);
    }
}
