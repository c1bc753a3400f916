//! Positions before and after calls, and composite snapshots.

use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::filesystem::{Filesystem, InMemoryFilesystem};
use foldlog::inspect::OperationStatus;
use foldlog::storage::Fault;
use foldlog::tools::{CHECKPOINTS_MAX, CompositeSnapshot, SnapshotMetadata, SnapshotPhase};
use foldlog::{RollbackReport, SmolStr, SnapshotOptions};

use super::*;

fn run_calls(run: &Run, calls: &[(&str, &str)]) {
    for (id, text) in calls {
        run.runner
            .execute(&call("paper", text, Then::Succeed).with_id(*id), &ExecuteOptions::default())
            .unwrap();
    }
}

#[test]
fn state_and_resources_go_back_to_before_and_after_a_call() {
    let run = Run::new();
    run_calls(&run, &[("call_a", "a"), ("call_b", "b"), ("call_c", "c")]);
    let state = run.runner.state();
    state.rollback_to_tool("call_b").unwrap();
    assert_eq!(run.state(), (vec!["a".to_owned()], [("paper".into(), "a".into())].into()));
    let post = state.checkpoints().unwrap().get("call_b").unwrap().unwrap().post.unwrap();
    state.restore(&post).unwrap();
    assert_eq!(run.state(), (vec!["a".to_owned(), "b".to_owned()], [("paper".into(), "b".into())].into()));
    let missing = state.rollback_to_tool("call_x").unwrap_err();
    assert_eq!(missing.to_string(), "No checkpoint for tool call: call_x");
    // A fork starts before the call and continues independently.
    let fork = state.fork_at_tool("call_c").unwrap();
    assert_eq!(plan(&fork), ["a", "b"]);
}

#[test]
fn going_back_to_before_a_call_gives_nothing_back_that_is_spent() {
    // The budget was restored with the rest, as if the tokens had not been sent.
    let run = Run::new();
    run_calls(&run, &[("call_a", "a"), ("call_b", "b")]);
    run.runner.state().rollback_to_tool("call_a").unwrap();
    assert_eq!((run.plan().len(), run.budget.total().input_tokens), (0, 20));
}

#[test]
fn two_snapshots_at_one_position_have_two_names() {
    // After one call and before the next the position is the same. The name was the same too,
    // whatever had changed in between.
    let run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    run.desk.put("paper", "changed meanwhile");
    run_calls(&run, &[("call_b", "b")]);
    let [first, second] = run.runner.state().checkpoints().unwrap().list().try_into().unwrap();
    let post = first.post.unwrap();
    assert_eq!(post.session.position, second.pre.session.position);
    assert_ne!(post.id, second.pre.id);
    // One seed still gives one name.
    let again = Run::new();
    run_calls(&again, &[("call_a", "a")]);
    assert_eq!(again.runner.state().checkpoints().unwrap().list()[0].post.as_ref().unwrap().id, post.id);
}

#[test]
fn what_could_not_be_put_back_after_a_restore_that_failed_is_named() {
    // The error named the cause of the failed restore, but not the half-restored desk.
    let run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    let mut taken = run.runner.state().snapshot(None).unwrap();
    taken.session.position = 10_000.into();
    run_calls(&run, &[("call_b", "b")]);
    let before = run.state();
    let missing = run.runner.state().restore(&taken).unwrap_err();
    assert!(matches!(missing, Error::NoSuchPosition { position, .. } if position == 10_000), "{missing:?}");
    assert_eq!(run.state(), before);
    *run.desk.broken.lock().unwrap() = Some(Broken::SecondRestore);
    match run.runner.state().restore(&taken).unwrap_err() {
        Error::RestoreFailed { restored, failed } => {
            assert_eq!(restored, ["budget"]);
            let [(name, error)] = failed.as_slice() else { panic!("{failed:?}") };
            let error = error.to_string();
            assert!(name == "desk" && error.contains("a leg broke") && error.contains("10000"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run.desk.text("paper").as_deref(), Some("a"), "as the snapshot has it");
    // The restore stays open, so that a recovery completes the rollback.
    assert!(run.session().calls().is_interrupted());
    *run.desk.broken.lock().unwrap() = None;
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.state(), before);
}

#[test]
fn a_checkpoint_says_what_the_call_was() {
    let run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    run.runner
        .execute(&call("paper", "b", Then::Fail).with_id("call_b"), &ExecuteOptions::default())
        .unwrap();
    let [first, second] = run.runner.state().checkpoints().unwrap().list().try_into().unwrap();
    assert_eq!(
        (first.tool_call_id.as_deref(), first.tool_name.as_str(), first.success),
        (Some("call_a"), "write", true)
    );
    assert_eq!(
        (first.result_summary.as_deref(), second.result_summary.as_deref()),
        (Some("written"), Some("out of ink"))
    );
    assert!(second.post.is_none() && !second.success);
    let of_call = |tag: &str, call: &str, phase| SnapshotMetadata {
        tag: Some(tag.to_owned()),
        tool_call_id: Some(call.into()),
        tool_name: Some("write".into()),
        phase,
    };
    let post = first.post.unwrap();
    assert_eq!(first.pre.metadata, of_call("pre:call_a", "call_a", SnapshotPhase::PreTool));
    assert_eq!(post.metadata, of_call("post:call_a", "call_a", SnapshotPhase::PostTool));
    assert_eq!(second.pre.metadata, of_call("pre:call_b", "call_b", SnapshotPhase::PreTool));
    // All of these times are from the host's clock.
    let times = [first.pre.created_at_us, post.created_at_us, first.recorded_at_us, second.pre.created_at_us];
    assert!(times.is_sorted() && first.elapsed_us > 0, "{times:?}");
    let hosts = CLOCK_BEGINS_US..CLOCK_BEGINS_US + 1_000_000;
    assert!(times.iter().all(|time| hosts.contains(time)), "{times:?}");
}

#[test]
fn a_call_id_that_came_twice_names_no_single_checkpoint() {
    let run = Run::new();
    run_calls(&run, &[("call_1", "a"), ("call_1", "b")]);
    let checkpoints = run.runner.state().checkpoints().unwrap();
    let operations: Vec<_> = checkpoints.list().iter().map(|kept| kept.operation).collect();
    match checkpoints.get("call_1") {
        Err(Error::AmbiguousCall { operations: named, .. }) => assert_eq!(named, operations),
        other => panic!("{other:?}"),
    }
    assert_eq!(checkpoints.of_operation(operations[1]).unwrap().operation, operations[1]);
    assert_eq!(run.plan(), ["a", "b"], "both ran: the second is no repetition of the first");
}

#[test]
fn the_oldest_of_more_than_a_hundred_is_let_go_of() {
    let run = Run::new();
    let names: Vec<String> = (0..CHECKPOINTS_MAX + 3).map(|number| format!("call_{number}")).collect();
    for name in &names {
        run_calls(&run, &[(name, name)]);
    }
    let checkpoints = run.runner.state().checkpoints().unwrap();
    let kept: Vec<SmolStr> = checkpoints.list().into_iter().filter_map(|kept| kept.tool_call_id).collect();
    assert_eq!(kept, names[3..]);
    assert!(checkpoints.get("call_2").unwrap().is_none());
    run.runner.state().rollback_to_tool("call_3").unwrap();
    assert_eq!(run.plan().len(), 3);
}

#[test]
fn a_composite_snapshot_survives_as_json_and_is_restored_whole_or_not_at_all() {
    let mut run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    let taken = run.runner.state().snapshot(Some("a good moment")).unwrap();
    let json = taken.to_json().unwrap();
    run_calls(&run, &[("call_b", "b")]);
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    let read = CompositeSnapshot::from_json(&json).unwrap();
    assert_eq!(
        (read.id, read.metadata.tag.as_deref(), read.session.position),
        (taken.id, Some("a good moment"), taken.session.position)
    );
    assert_eq!(read.to_json().unwrap(), json);
    // If a resource fails, the session is unchanged too.
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    let before = run.state();
    assert!(matches!(run.runner.state().restore(&read), Err(Error::RestoreFailed { .. })));
    *run.desk.broken.lock().unwrap() = None;
    assert_eq!(run.state(), before);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.state(), before);
    run.runner.state().restore(&read).unwrap();
    assert_eq!(run.state(), (vec!["a".to_owned()], [("paper".into(), "a".into())].into()));
    // A host can restore the budget with everything else, although failing tools do not restore it.
    assert_eq!(run.budget.total().input_tokens, 10);
    let other = Run::new();
    let mut elsewhere = read.clone();
    elsewhere.session.session = Uuid::from_u128(7);
    assert!(matches!(other.runner.state().restore(&elsewhere), Err(Error::SnapshotMismatch(_))));
    assert!(matches!(CompositeSnapshot::from_json("{}"), Err(Error::Export(_))));
}

/// The JSON had `null` for files in memory, and restoring it failed with the claim that another
/// process had taken the snapshot.
#[test]
fn a_snapshot_of_files_in_memory_is_restored_here_and_its_json_names_what_it_leaves_out() {
    let session = store_of(&MemoryStorage::new()).create(&types()).unwrap();
    let (files, budget) = (Arc::new(InMemoryFilesystem::new()), Arc::new(BudgetTracker::default()));
    let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).snapshotable(budget);
    let state = ExecutionState::new(session.clone(), resources.build().unwrap());
    let added = |title: &str| {
        session.dispatch(StepAdded { title: title.to_owned(), part: 1 }).unwrap();
        files.write("paper", title.as_bytes()).unwrap();
    };
    let left = || (plan(&session), files.read("paper").unwrap());
    added("one");
    let (taken, then) = (state.snapshot(Some("one")).unwrap(), left());
    added("two");
    state.restore(&taken).unwrap();
    assert_eq!(left(), then);
    let json = taken.to_json().unwrap();
    let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&shown["left_out"], &shown["resources"]["filesystem"]),
        (&serde_json::json!(["filesystem"]), &serde_json::Value::Null)
    );
    assert!(shown["resources"]["budget"].is_object(), "{json}");
    let read = CompositeSnapshot::from_json(&json).unwrap();
    assert_eq!((read.left_out(), read.to_json().unwrap()), (vec!["filesystem"], json.clone()));
    added("three");
    let before = left();
    let refused = state.restore(&read).unwrap_err().to_string();
    assert!(refused.contains("`filesystem`") && refused.contains("omitted from the JSON"), "{refused}");
    assert_eq!(left(), before);
    // It may not list a resource as left out that it contains, or the reverse.
    let lies = json.replace(r#""left_out":["filesystem"]"#, r#""left_out":["budget"]"#);
    assert!(
        matches!(CompositeSnapshot::from_json(&lies), Err(Error::Export(reason)) if reason.contains("`budget`"))
    );
}

#[test]
fn a_snapshot_says_why_it_was_taken() {
    let run = Run::new();
    let metadata = SnapshotMetadata {
        tag: Some("after the paper".to_owned()),
        tool_call_id: Some("call_a".into()),
        tool_name: Some("write".into()),
        phase: SnapshotPhase::Checkpoint,
    };
    let taken = run.runner.state().snapshot_with(metadata.clone()).unwrap();
    let read = CompositeSnapshot::from_json(&taken.to_json().unwrap()).unwrap();
    assert_eq!((&taken.metadata, &read.metadata), (&metadata, &metadata));
    assert_eq!(taken.session.tag.as_deref(), Some("after the paper"));
    let phases = [
        (SnapshotPhase::PreTool, "pre_tool"),
        (SnapshotPhase::PostTool, "post_tool"),
        (SnapshotPhase::Checkpoint, "checkpoint"),
        (SnapshotPhase::Manual, "manual"),
    ];
    for (phase, name) in phases {
        let taken = run.runner.state().snapshot_with(SnapshotMetadata { phase, ..metadata.clone() }).unwrap();
        let json: serde_json::Value = serde_json::from_str(&taken.to_json().unwrap()).unwrap();
        assert_eq!(json["metadata"]["phase"], name);
    }
    let plain = run.runner.state().snapshot(Some("plain")).unwrap();
    assert_eq!(plain.metadata.phase, SnapshotPhase::Manual);
    assert_eq!(
        plain.metadata,
        SnapshotMetadata { tag: Some("plain".to_owned()), ..SnapshotMetadata::default() }
    );
}

/// A desk whose process is killed during its restore, or at the n-th later call to the disk.
struct Fragile {
    desk: Desk,
    disk: MemoryStorage,
    kill_at: Mutex<Option<u64>>,
    /// Whether the process is dead before a second restore, although its code still runs.
    is_doomed: AtomicBool,
    was_brought_back: AtomicBool,
}

impl Snapshotable for Fragile {
    const NAME: &'static str = "fragile desk";
    type Snapshot = BTreeMap<String, String>;

    fn snapshot(&self, options: &CaptureOptions) -> Result<Self::Snapshot> {
        self.desk.snapshot(options)
    }

    fn restore(&self, snapshot: &Self::Snapshot) -> Result<()> {
        if self.was_brought_back.swap(true, Ordering::Relaxed) && self.is_doomed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut half = self.desk.papers().clone();
        half.extend(snapshot.clone());
        if self.kill_at.lock().unwrap().take_if(|nth| *nth == 0).is_some() {
            // Half way through its own work.
            *self.desk.papers() = half;
            self.disk.crash(CrashKind::Process);
            return Ok(());
        }
        if let Some(nth) = self.kill_at.lock().unwrap().take() {
            self.disk.inject(Fault::Die { nth, bytes: 20 });
        }
        self.desk.restore(snapshot)
    }

    fn record(snapshot: &Self::Snapshot) -> Result<Option<Vec<u8>>> {
        Desk::record(snapshot)
    }

    fn recall(recorded: &[u8]) -> Result<Self::Snapshot> {
        Desk::recall(recorded)
    }
}

fn fragile(session: Session, desk: &Desk, disk: &MemoryStorage, at: Option<At>) -> ToolRunner {
    let kill_at = Mutex::new(if let Some(At::Back(nth)) = at { Some(nth) } else { None });
    let fragile = Fragile {
        desk: desk.clone(),
        disk: disk.clone(),
        kill_at,
        is_doomed: AtomicBool::new(at.is_some()),
        was_brought_back: AtomicBool::new(false),
    };
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(fragile)).build().unwrap();
    let state = ExecutionState::builder(session, resources).checkpoints(CheckpointStore::new()).build();
    ToolRunner::new(state, ToolRegistry::new())
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// At the n-th call to the disk, before the desk is touched or after.
    Call(u64),
    /// At the n-th call to the disk after the desk is restored; within the desk's own restore if it
    /// is 0.
    Back(u64),
}

/// Kills a restore, and recovers in the next process, which may be killed too. Returns the papers,
/// the plan, and whether the restore completed.
fn killed_restore(
    at: At,
    power: bool,
    again: Option<u64>,
) -> (bool, (Vec<String>, BTreeMap<String, String>)) {
    let told = format!("{at:?}, power cut: {power}, recovery killed: {again:?}");
    let (disk, desk) = (MemoryStorage::new(), Desk::default());
    let session = store_of(&disk).create(&types()).unwrap();
    let id = session.id();
    let runner = fragile(session.clone(), &desk, &disk, Some(at));
    session.dispatch(step("then")).unwrap();
    desk.put("letter", "as it was then");
    let taken = runner.state().snapshot(Some("then")).unwrap();
    session.dispatch(step("since")).unwrap();
    desk.put("letter", "as it was since");
    desk.put("note", "made since");
    session.sync().unwrap();
    if let At::Call(nth) = at {
        disk.inject(Fault::Die { nth, bytes: 20 });
    }
    let restored = runner.state().restore(&taken);
    disk.clear_faults();
    let whole = restored.is_ok();
    disk.crash(if power { CrashKind::PowerLosingAll } else { CrashKind::Process });
    drop((runner, session));

    let reopen = || {
        let session = store_of(&disk).open_session(id, &types()).unwrap();
        fragile(session, &desk, &disk, None)
    };
    let mut runner = reopen();
    if let Some(nth) = again {
        disk.inject(Fault::Die { nth, bytes: 20 });
        let _ = runner.recover(&ExecuteOptions::default());
        disk.clear_faults();
        disk.crash(CrashKind::Process);
        runner = reopen();
    }
    let session = runner.state().session().clone();
    let open = session.calls().is_interrupted();
    assert!(!open || !whole, "{told}: what was answered stays");
    assert!(runner.recover(&ExecuteOptions::default()).unwrap().is_empty(), "{told}: nobody has to decide");
    assert!(
        session.calls().unsettled_operations().is_empty() && session.calls().open_operations().is_empty(),
        "{told}"
    );
    let ledger = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap().ledger().unwrap();
    let fates: Vec<(&str, OperationStatus, Option<Cause>)> =
        ledger.iter().map(|entry| (entry.tool.as_str(), entry.outcome, entry.cause)).collect();
    let came_back = plan(&session) == ["then"];
    match fates.as_slice() {
        // Killed before it had begun.
        [] => assert!(!whole && !came_back, "{told}"),
        [("foldlog.restore", OperationStatus::Committed, None)] => assert!(came_back, "{told}"),
        [("foldlog.restore", OperationStatus::Failed, Some(Cause::Dropped))] => {
            assert!(!came_back && !whole, "{told}")
        }
        other => panic!("{told}: {other:?}"),
    }
    // The log, read from its start, gives the same STATE as the live session.
    session.dispatch(step("after")).unwrap();
    let mut expected = if came_back { vec!["then"] } else { vec!["then", "since"] };
    expected.push("after");
    assert_eq!(plan(&session), expected, "{told}");
    super::regressions::audit_of(&disk, &session);
    session.rollback_to(session.log().position().unwrap() - 1).unwrap();
    assert_eq!(plan(&session), expected[..expected.len() - 1], "{told}");
    (came_back, (plan(&session), desk.papers().clone()))
}

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 0 }
}

/// The papers were as at the snapshot, the plan was not, and the log did not mention it.
#[test]
fn a_restore_whose_process_is_killed_at_any_step_is_done_or_taken_back_whole() {
    let text = |text: &str| text.to_owned();
    let then = (vec![text("then")], BTreeMap::from([(text("letter"), text("as it was then"))]));
    let since = (
        vec![text("then"), text("since")],
        BTreeMap::from([(text("letter"), text("as it was since")), (text("note"), text("made since"))]),
    );
    let (mut done, mut taken_back) = (0, 0);
    let ats = (1..24).map(At::Call).chain((0..24).map(At::Back));
    for at in ats {
        for power in [false, true] {
            for again in [None, Some(1), Some(2), Some(3), Some(5), Some(8)] {
                let (came_back, found) = killed_restore(at, power, again);
                let told = format!("{at:?}, power cut: {power}, recovery killed: {again:?}");
                assert_eq!(found, if came_back { then.clone() } else { since.clone() }, "{told}");
                *(if came_back { &mut done } else { &mut taken_back }) += 1;
            }
        }
    }
    println!("{done} restores done, {taken_back} taken back");
    assert!(done > 50 && taken_back > 50, "{done} done, {taken_back} taken back");
}

#[test]
fn a_restore_stands_in_the_log_as_an_operation_of_its_own() {
    let run = Run::new();
    run_calls(&run, &[("call_a", "a"), ("call_b", "b")]);
    let kept = run.runner.state().checkpoints().unwrap().list().len();
    run.runner.state().rollback_to_tool("call_b").unwrap();
    let ledger = run.ledger();
    let told: Vec<(&str, OperationStatus)> =
        ledger.iter().map(|entry| (entry.tool.as_str(), entry.outcome)).collect();
    assert_eq!(
        told,
        [
            ("write", OperationStatus::Committed),
            ("write", OperationStatus::Abandoned),
            ("foldlog.restore", OperationStatus::Committed)
        ]
    );
    assert_eq!(run.runner.state().checkpoints().unwrap().list().len(), kept, "it is no tool's call");
    super::regressions::audit_of(&run.disk, run.session());
    // A position within the restore would be half of it.
    let restore = &ledger[2];
    let within = run.session().rollback_to(restore.begin + 1);
    assert!(matches!(within, Err(Error::InsideTransaction { .. })), "{within:?}");
    run.session().rollback_to(restore.end.unwrap()).unwrap();
    assert_eq!(run.plan(), ["a"]);
    // The records that it abandoned can be a target.
    run.session().rollback_to(restore.begin - 1).unwrap();
    assert_eq!(run.plan(), ["a", "b"]);
}

/// Returns the calls that a rollback reports as not undone.
fn told(done: &RollbackReport) -> Vec<&str> {
    done.outside.iter().filter_map(|call| call.call_id.as_deref()).collect()
}

#[test]
fn a_rollback_names_the_committed_calls_whose_effects_it_cannot_take_back() {
    let run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    let before = run.session().snapshot(SnapshotOptions::default()).unwrap();
    run.session().dispatch(StepAdded { title: "by hand".to_owned(), part: 1 }).unwrap();
    assert_eq!(told(&run.session().rollback(&before).unwrap()), [""; 0], "no tool has run since");
    run_calls(&run, &[("call_b", "b"), ("call_c", "c")]);
    run.write("paper", "d", Then::Fail).unwrap();
    let latest = run.session().log().position().unwrap();
    let done = run.session().rollback(&before).unwrap();
    assert_eq!(told(&done), ["call_b", "call_c"], "the failed one left nothing to be abandoned");
    assert_eq!(done.outside[0].tool, "write");
    let ledger = run.ledger();
    let abandoned = ledger.iter().filter(|entry| entry.outcome == OperationStatus::Abandoned);
    let operations = done.outside.iter().map(|call| call.operation);
    assert!(abandoned.map(|entry| entry.operation).eq(operations));
    // Abandoned calls are not reported again, unless they are live again.
    assert_eq!(told(&run.session().rollback(&before).unwrap()), [""; 0]);
    assert_eq!(told(&run.session().rollback_to(latest).unwrap()), [""; 0]);
    assert_eq!(told(&run.runner.state().rollback_to_tool("call_c").unwrap()), ["call_c"]);
}

#[test]
fn a_rollback_names_no_call_that_says_it_had_no_effects() {
    let run = Run::with(Idempotency::Natural);
    let before = run.session().snapshot(SnapshotOptions::default()).unwrap();
    run_calls(&run, &[("call_a", "a"), ("call_b", "b")]);
    assert_eq!(told(&run.session().rollback(&before).unwrap()), [""; 0]);
}

#[test]
fn a_rollback_behind_hundreds_of_calls_names_each_that_came_later() {
    let run = Run::new();
    let names: Vec<String> = (0..600).map(|number| format!("call_{number}")).collect();
    let mut positions = Vec::new();
    for name in &names {
        positions.push(run.session().log().position().unwrap());
        run_calls(&run, &[(name, name)]);
    }
    // At and next to the places in the slice's index, and from far to near.
    for at in [0, 255, 256, 257, 511, 512, 513, 599] {
        let done = run.session().rollback_to(positions[at]).unwrap();
        assert_eq!(told(&done), names[at..], "{at}");
        run.session().rollback_to(done.sequence - 1).unwrap();
    }
}

/// Only the host creates the run; adapters and tools receive it.
#[test]
fn adapters_and_tools_take_the_run_that_the_host_owns() {
    let run = Run::new();
    let at_once = ExecuteOptions::default();
    // Two adapters, each with its own runner over the run that it received.
    let adapters = [(); 2].map(|()| ToolRunner::new(run.runner.state().clone(), run.runner.tools().clone()));
    for (adapter, text) in adapters.iter().zip(["one", "two"]) {
        adapter.execute(&call("paper", text, Then::Succeed).with_id(text), &at_once).unwrap();
    }
    let paper = |text: &str| BTreeMap::from([("paper".to_owned(), text.to_owned())]);
    assert_eq!(run.state(), (vec!["one".to_owned(), "two".to_owned()], paper("two")));
    let kept = run.runner.state().checkpoints().unwrap().list();
    assert!(kept.iter().filter_map(|kept| kept.tool_call_id.as_deref()).eq(["one", "two"]));
    // A tool receives the same run, and the run of another host is refused.
    let operation = adapters[0].begin(&call("paper", "three", Then::Succeed), &at_once).unwrap();
    let context = operation.context();
    assert_eq!(context.session().id(), run.session().id());
    assert!(Arc::ptr_eq(&context.resources().get::<BudgetTracker>().unwrap(), &run.budget));
    let other = Run::new();
    let within = other.runner.within(context).execute(&call("paper", "four", Then::Succeed), &at_once);
    assert!(matches!(within, Err(Error::SnapshotMismatch(_))), "{within:?}");
    operation.abort("seen").unwrap();
    // One rolls back the calls of the other.
    adapters[1].state().rollback_to_tool("one").unwrap();
    assert_eq!(run.state(), (vec![], BTreeMap::new()));
}
