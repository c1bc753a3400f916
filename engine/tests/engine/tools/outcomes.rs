//! The outcomes of a call, and their effects.

use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::inspect::OperationStatus;
use foldlog::testkit::snapshots_equivalent;
use foldlog::{ExternalEffects, Outcome, Session};

use super::*;

#[test]
fn a_call_that_has_success_stays_and_says_so() {
    let run = Run::new();
    let report = run.write("letter", "dear all", Then::Succeed).unwrap();
    assert!(report.success && report.outcome == Outcome::Committed && !report.recorded);
    assert_eq!((report.message.as_str(), report.value.unwrap().as_u64()), ("written", Some(8)));
    assert_eq!(run.state(), (vec!["dear all".to_owned()], [("letter".into(), "dear all".into())].into()));
    let [invoked] = run.invoked().try_into().unwrap();
    assert_eq!(
        (invoked.operation, invoked.begin, invoked.outcome),
        (report.begin.into(), report.begin, Outcome::Committed)
    );
    let [entry] = run.ledger().try_into().unwrap();
    assert_eq!(
        (entry.outcome, entry.end, entry.effects),
        (OperationStatus::Committed, Some(report.end), Some(ExternalEffects::Unknown))
    );
}

#[test]
fn a_call_that_fails_in_whatever_way_leaves_no_trace_but_in_the_log() {
    let run = Run::new();
    run.write("letter", "dear all", Then::Succeed).unwrap();
    let before = run.state();
    let spent = run.budget.total();
    for (then, cause) in [
        (Then::Fail, Cause::Error),
        (Then::Panic, Cause::Panic),
        (Then::SayNo, Cause::Unsuccessful),
        (Then::Expand, Cause::Expansion),
    ] {
        let notes_before = notes(run.session());
        let result = run.write("letter", "another text", then);
        match (then, result) {
            (Then::Expand, Err(Error::VisibilityExpansion { overrides, .. })) => {
                assert_eq!(overrides, serde_json::json!({ "section": "full" }));
            }
            (_, Ok(report)) => assert!(!report.success && report.cause == Some(cause), "{report:?}"),
            (_, other) => panic!("{then:?}: {other:?}"),
        }
        assert_eq!(run.state(), before, "{then:?}");
        assert_eq!(notes(run.session()), notes_before + 1, "LOG keeps what happened");
        let invoked = run.invoked();
        assert_eq!(
            (invoked.last().unwrap().cause, invoked.last().unwrap().outcome),
            (Some(cause), Outcome::Failed)
        );
    }
    assert_eq!(run.invoked().len(), 5);
    // Spent tokens stay spent.
    assert_eq!(run.budget.total().input_tokens, spent.input_tokens + 40);
    // A reader of the log alone sees the same.
    let ledger = run.ledger();
    assert_eq!(ledger.iter().filter(|entry| entry.outcome == OperationStatus::Failed).count(), 4);
    let mut again = run;
    let shown = again.plan();
    again.runner.state().session().clone().close().unwrap();
    again.reopen(Idempotency::Manual);
    assert_eq!(again.plan(), shown);
    assert_eq!(again.invoked().len(), 5);
}

#[test]
fn a_failed_call_is_one_record_behind_its_begin_and_its_own_writes() {
    let run = Run::new();
    let report = run.write("letter", "dear all", Then::Fail).unwrap();
    // The start record, a step, a note, and the end record, which is the rollback: nothing is
    // between them, and nothing follows.
    let kinds = |session: &Session| {
        let mut kinds = Vec::new();
        session
            .log()
            .records(report.begin, u64::MAX, |record| {
                kinds.push(record.kind.name());
                Ok(())
            })
            .unwrap();
        kinds
    };
    let kinds = kinds(run.session());
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("tool_begin", "tool_end"));
    assert!(!kinds.contains(&"rollback"), "{kinds:?}");
}

#[test]
fn arguments_that_a_tool_does_not_take_are_refused_before_it_runs() {
    let run = Run::new();
    for arguments in [
        "{}",
        "no JSON",
        r#"{"paper":"a","text":"b","then":"succeed"} and more"#,
        r#"{"paper":"a","text":"b","then":"succeed","colour":"red"}"#,
    ] {
        let report =
            run.runner.execute(&ToolCall::new("write", arguments), &ExecuteOptions::default()).unwrap();
        assert_eq!((report.cause, report.outside), (Some(Cause::InvalidArguments), ExternalEffects::None));
        if arguments.contains("colour") {
            assert!(report.message.contains("unknown parameters: colour"), "{}", report.message);
        }
    }
    assert_eq!((run.counts().ran, run.invoked().len()), (0, 4));
    let unknown = run.runner.execute(&ToolCall::new("paint", "{}"), &ExecuteOptions::default());
    assert!(matches!(unknown, Err(Error::NoSuchTool(tool)) if tool == "paint"));
    let (description, schema) = run.runner.tools().describe("write").unwrap();
    assert_eq!(description, "Writes a paper.");
    assert_eq!(
        (&schema["additionalProperties"], &schema["required"]),
        (&false.into(), &serde_json::json!(["paper", "text", "then"]))
    );
}

#[test]
fn a_resource_that_cannot_be_captured_keeps_the_tool_from_running() {
    let run = Run::new();
    let records = run.session().log().position();
    *run.desk.broken.lock().unwrap() = Some(Broken::Snapshot);
    let refused = run.write("letter", "dear all", Then::Succeed);
    assert!(matches!(&refused, Err(Error::Resource { resource, .. }) if resource == "desk"), "{refused:?}");
    assert_eq!((run.counts().ran, run.session().log().position()), (0, records));
    *run.desk.broken.lock().unwrap() = None;
    assert!(run.write("letter", "dear all", Then::Succeed).unwrap().success, "the turn was given back");
}

/// Its end was recorded all the same, and then nothing would have restored the desk.
#[test]
fn a_call_whose_resource_cannot_be_restored_is_left_open_until_a_recovery_restores_it() {
    let mut run = Run::new();
    run.session().dispatch(StepAdded { title: "before".to_owned(), part: 0 }).unwrap();
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    match run.write("letter", "dear all", Then::Fail) {
        Err(Error::RestoreFailed { restored, failed }) => {
            assert_eq!((restored.as_slice(), failed[0].0.as_str()), (&[] as &[String], "desk"));
        }
        other => panic!("{other:?}"),
    }
    // STATE is as before and the desk is as the error says; the log has no end record, and nothing
    // is written after it.
    assert_eq!((run.plan(), run.invoked().len()), (vec!["before".to_owned()], 0));
    assert_eq!(run.desk.text("letter").as_deref(), Some("dear all"));
    assert!(run.session().calls().is_interrupted());
    assert_eq!(run.ledger()[0].outcome, OperationStatus::Open);
    let early = run.session().dispatch(StepAdded { title: "too early".to_owned(), part: 0 });
    assert!(matches!(early, Err(Error::Interrupted { .. })), "{early:?}");
    // Recovery is repeated, in this process or the next, until the restore succeeds.
    for reopened in [false, true] {
        if reopened {
            run.disk.crash(CrashKind::Process);
            run.reopen(Idempotency::Manual);
        }
        let again = run.runner.recover(&ExecuteOptions::default());
        assert!(matches!(again, Err(Error::RestoreFailed { .. })), "{again:?}");
        assert!(run.session().calls().is_interrupted());
    }
    *run.desk.broken.lock().unwrap() = None;
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.state(), (vec!["before".to_owned()], BTreeMap::new()));
    assert_eq!((run.ledger()[0].outcome, run.invoked().len()), (OperationStatus::Interrupted, 1));
    assert!(run.write("letter", "after", Then::Succeed).unwrap().success);
}

/// A shelf unknown to other processes, whose restore can fail on request.
#[derive(Default)]
struct Shelf {
    books: Mutex<u32>,
    is_stuck: AtomicBool,
}

impl Snapshotable for Shelf {
    const NAME: &'static str = "shelf";
    type Snapshot = u32;

    fn snapshot(&self, _: &CaptureOptions) -> Result<u32> {
        Ok(*self.books.lock().unwrap())
    }

    fn restore(&self, books: &u32) -> Result<()> {
        if self.is_stuck.load(Ordering::Relaxed) {
            return Err(Error::Resource {
                resource: Self::NAME.to_owned(),
                reason: "it is stuck".to_owned(),
            });
        }
        *self.books.lock().unwrap() = *books;
        Ok(())
    }
}

/// Puts a book on the shelf, and then fails.
struct Shelve;

impl Tool for Shelve {
    const NAME: &'static str = "shelve";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        *context.resources().get::<Shelf>().unwrap().books.lock().unwrap() += 1;
        Err(ToolError::failed("no room"))
    }
}

/// A resource that does not outlive its process is not in the log, so only its own run can restore
/// it.
#[test]
fn a_recovery_by_the_same_run_restores_what_no_log_says_too() {
    let (run, shelf) = (Run::new(), Arc::new(Shelf::default()));
    let resources = ResourceRegistry::builder().snapshotable(Arc::clone(&shelf)).build().unwrap();
    let state = ExecutionState::new(run.session().clone(), resources);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Shelve));
    shelf.is_stuck.store(true, Ordering::Relaxed);
    let failed = runner.execute(&ToolCall::new("shelve", "{}"), &ExecuteOptions::default());
    assert!(matches!(failed, Err(Error::RestoreFailed { .. })), "{failed:?}");
    assert_eq!(*shelf.books.lock().unwrap(), 1);
    shelf.is_stuck.store(false, Ordering::Relaxed);
    runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!((*shelf.books.lock().unwrap(), run.session().calls().is_interrupted()), (0, false));
}

/// An outer call that continues cannot end before an inner one, and does not commit the inner one's
/// unfinished changes.
#[test]
fn a_call_around_one_that_is_left_open_is_left_open_too_and_recovered_with_it() {
    let run = Run::new();
    let outer =
        run.runner.begin(&call("letter", "outer", Then::Succeed), &ExecuteOptions::default()).unwrap();
    run.desk.put("letter", "outer");
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    let within = run.runner.within(outer.context());
    let inner = within.execute(&call("letter", "inner", Then::Fail), &ExecuteOptions::default());
    assert!(matches!(inner, Err(Error::RestoreFailed { .. })), "{inner:?}");
    *run.desk.broken.lock().unwrap() = None;
    let ended = outer.end(ToolResult::ok("all is well", ()));
    assert!(matches!(ended, Err(Error::Interrupted { .. })), "{ended:?}");
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.state(), (vec![], BTreeMap::new()));
    assert!(run.session().calls().open_operations().is_empty() && !run.session().calls().is_interrupted());
}

/// The acceptance tests of specification E, in its own words where possible.
#[test]
fn a_visibility_expansion_is_as_if_the_tool_had_never_run() {
    let run = Run::new();
    run.write("data.txt", "before", Then::Succeed).unwrap();
    let state = run.runner.state();
    let before = state.snapshot(None).unwrap();
    assert!(matches!(run.write("data.txt", "after", Then::Expand), Err(Error::VisibilityExpansion { .. })));
    let after = state.snapshot(None).unwrap();
    snapshots_equivalent(state, &before, &after).unwrap();
    // The comparison can fail.
    run.write("data.txt", "after", Then::Succeed).unwrap();
    let changed = state.snapshot(None).unwrap();
    assert!(matches!(snapshots_equivalent(state, &before, &changed), Err(Error::SnapshotMismatch(_))));
    run.desk.put("data.txt", "behind the engine's back");
    let moved = state.snapshot(None).unwrap();
    assert!(matches!(snapshots_equivalent(state, &changed, &moved), Err(Error::SnapshotMismatch(_))));
}

/// The positions of another session's snapshots were looked up in this session's log.
#[test]
fn snapshots_of_another_session_are_not_compared() {
    let run = Run::new();
    let own = run.runner.state().snapshot(None).unwrap();
    let mut others = own.clone();
    others.session.session = uuid::Uuid::from_u128(1);
    for (one, two) in [(&own, &others), (&others, &own), (&others, &others)] {
        let refused = snapshots_equivalent(run.runner.state(), one, two).unwrap_err();
        assert!(refused.to_string().contains("a snapshot is of session"), "{refused}");
    }
    snapshots_equivalent(run.runner.state(), &own, &own).unwrap();
}

#[test]
fn one_path_for_tools_that_run_here_and_for_those_that_run_elsewhere() {
    let (here, elsewhere) = (Run::new(), Run::new());
    for (text, then) in
        [("one", Then::Succeed), ("two", Then::Fail), ("three", Then::SayNo), ("four", Then::Succeed)]
    {
        here.write("paper", text, then).unwrap();
        // What a hook of another program reports: a start, the tool's own work, and an end, or
        // none.
        let params = Write { paper: "paper".to_owned(), text: text.to_owned(), then };
        let operation =
            elsewhere.runner.begin(&call("paper", text, then), &ExecuteOptions::default()).unwrap();
        write(operation.context(), &params).unwrap();
        let report = match then {
            Then::Succeed => operation.end(ToolResult::ok("written", text.len())),
            Then::SayNo => operation.end(ToolResult::<usize>::unsuccessful("not today")),
            _ => operation.fail(ToolError::failed("out of ink")),
        };
        assert_eq!(report.unwrap().success, then == Then::Succeed);
    }
    assert_eq!(here.state(), elsewhere.state());
    assert_eq!(
        here.session().dynamic().state().unwrap().slices,
        elsewhere.session().dynamic().state().unwrap().slices
    );
    let content = |run: &Run| {
        let mut content = Vec::new();
        let last = run.session().log().position().unwrap();
        run.session()
            .log()
            .records(0, last, |record| {
                content.push((record.kind, record.body.to_vec()));
                Ok(())
            })
            .unwrap();
        content.split_off(1)
    };
    assert_eq!(content(&here), content(&elsewhere), "record for record");
}

#[test]
fn an_operation_that_is_let_go_of_is_taken_back_by_the_next_call() {
    let run = Run::new();
    let operation =
        run.runner.begin(&call("paper", "lost", Then::Succeed), &ExecuteOptions::default()).unwrap();
    let context = operation.context().clone();
    write(&context, &Write { paper: "paper".to_owned(), text: "lost".to_owned(), then: Then::Succeed })
        .unwrap();
    drop(operation);
    assert!(run.write("paper", "kept", Then::Succeed).unwrap().success);
    assert_eq!(run.state(), (vec!["kept".to_owned()], [("paper".into(), "kept".into())].into()));
    assert_eq!(run.invoked()[0].cause, Some(Cause::Dropped));
    let late = context.session().dispatch(StepAdded { title: "late".to_owned(), part: 0 });
    assert!(matches!(late, Err(Error::Revoked { .. })), "{late:?}");

    // A write from outside has the same effect.
    drop(run.runner.begin(&call("paper", "lost", Then::Succeed), &ExecuteOptions::default()).unwrap());
    run.session().dispatch(StepAdded { title: "outside".to_owned(), part: 0 }).unwrap();
    assert_eq!(run.plan(), ["kept", "outside"]);
    assert_eq!(run.session().calls().open_operations(), []);

    // A call that was ended explicitly is over.
    let operation =
        run.runner.begin(&call("paper", "no", Then::Succeed), &ExecuteOptions::default()).unwrap();
    let report = operation.abort("changed my mind").unwrap();
    assert_eq!((report.cause, report.message.as_str()), (Some(Cause::Cancelled), "changed my mind"));
}

#[test]
fn a_large_result_is_kept_whole_and_shown_again() {
    let run = Run::new();
    let text = "long ".repeat(40_000);
    let operation = run.runner.begin(&call("paper", "x", Then::Succeed), &ExecuteOptions::default()).unwrap();
    let report = operation.end(ToolResult::ok(text.clone(), text.clone())).unwrap();
    assert_eq!(report.value.unwrap().as_str(), Some(text.as_str()));
    let mut body_len = 0;
    run.session()
        .log()
        .records(report.end, report.end, |record| {
            body_len = record.body.len();
            Ok(())
        })
        .unwrap();
    assert!(body_len < 1_000, "the record holds references: {body_len}");
    assert_eq!(
        run.disk.files().iter().filter(|path| path.to_string_lossy().contains("/objects/")).count(),
        1 + usize::from(false)
    );
}
