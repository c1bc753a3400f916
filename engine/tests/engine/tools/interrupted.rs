//! Processes that end within a call, and the processes after them.

use foldlog::inspect::OperationStatus;
use foldlog::storage::Fault;
use foldlog::tools::{RecoveredOperation, Recovery};
use foldlog::{Decision, Settlement, Value};

use super::*;

/// A run whose process was killed within its second call, and the next process.
fn interrupted(idempotency: Idempotency) -> Run {
    let mut run = Run::with(idempotency);
    run.session().dispatch(StepAdded { title: "planned".to_owned(), part: 0 }).unwrap();
    run.desk.put("letter", "as it was");
    run.session().sync().unwrap();
    assert!(run.write("letter", "half done", Then::Die).is_err());
    run.reopen(idempotency);
    run
}

#[test]
fn opening_reports_and_shows_the_state_before_the_call_and_takes_no_writes() {
    let run = interrupted(Idempotency::Manual);
    let [open] = run.session().log().recovery().interrupted.clone().try_into().unwrap();
    assert_eq!(
        (open.tool.as_str(), open.operation, open.idempotency),
        ("write", open.begin.into(), Idempotency::Manual)
    );
    assert_eq!(run.plan(), ["planned"], "STATE as at the begin");
    assert_eq!(run.desk.text("letter").as_deref(), Some("half done"), "nothing was restored yet");
    let refused = run.session().dispatch(StepAdded { title: "too early".to_owned(), part: 0 });
    assert!(
        matches!(&refused, Err(Error::Interrupted { operations, .. }) if operations.len() == 1),
        "{refused:?}"
    );
    assert!(matches!(run.write("letter", "too early", Then::Succeed), Err(Error::Interrupted { .. })));
    assert!(matches!(run.session().rollback_to(0), Err(Error::Interrupted { .. })));
}

/// A host that wanted to store a report had to write its fields one by one.
#[test]
fn reports_are_written_as_json_and_read_again() {
    fn again<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(told: &T) {
        let text = serde_json::to_string(told).unwrap();
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *told, "{text}");
    }
    let run = interrupted(Idempotency::Manual);
    again(run.session().log().recovery());
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    again(&run.write("paper", "well", Then::Succeed).unwrap());
    again(&run.write("paper", "badly", Then::Fail).unwrap());
    let began = run.ledger().last().unwrap().begin;
    again(&run.session().rollback_to(began.saturating_sub(1)).unwrap());
    let mut run = run;
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    assert!(!run.session().log().recovery().unsettled.is_empty());
    again(run.session().log().recovery());
}

/// A process that was killed after a sync or a snapshot was taken for one that had closed its
/// session, even within a call.
#[test]
fn only_a_session_that_was_closed_with_nothing_open_is_reported_as_closed() {
    let is_closed = |run: &Run| run.session().log().recovery().closed;
    let killed_behind = |last: &dyn Fn(&Session)| {
        let mut run = Run::new();
        run.session().dispatch(StepAdded { title: "planned".to_owned(), part: 0 }).unwrap();
        last(run.session());
        run.disk.crash(CrashKind::Process);
        run.reopen(Idempotency::Manual);
        run
    };
    assert!(!is_closed(&killed_behind(&|session| session.sync().unwrap())));
    let mut run =
        killed_behind(&|session| drop(session.snapshot(foldlog::SnapshotOptions::default()).unwrap()));
    assert!(!is_closed(&run));
    run.session().dispatch(StepAdded { title: "on".to_owned(), part: 0 }).unwrap();
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    assert!(is_closed(&run));
    // The read-only process changed nothing about it.
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    assert!(is_closed(&run));
    // It reports that it was closed, but the next process has a call to recover.
    let operation =
        run.runner.begin(&call("paper", "half done", Then::Succeed), &ExecuteOptions::default()).unwrap();
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    assert!(!is_closed(&run) && run.session().log().recovery().interrupted.len() == 1);
    drop(operation);
}

#[test]
fn a_manual_tool_is_taken_back_and_waits_for_a_decision() {
    let mut run = interrupted(Idempotency::Manual);
    let operation = run.session().log().recovery().interrupted[0].operation;
    let early = run.session().calls().settle(operation, &Settlement::failed(), "a person", "");
    assert!(matches!(early, Err(Error::NoSuchOperation { .. })), "recover first: {early:?}");

    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(
        matches!(recovered.recovery, Recovery::NeedsSettling(Error::ToolIdempotency { .. })),
        "{recovered:?}"
    );
    assert_eq!(run.state(), (vec!["planned".to_owned()], [("letter".into(), "as it was".into())].into()));
    assert_eq!((run.counts().ran, run.ledger()[0].outcome), (1, OperationStatus::Interrupted));
    assert_eq!(run.ledger()[0].effects, Some(foldlog::ExternalEffects::Unknown));
    // The call waits across processes, and blocks no other call.
    run.session().dispatch(StepAdded { title: "meanwhile".to_owned(), part: 0 }).unwrap();
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    assert_eq!(run.session().log().recovery().unsettled[0].operation, operation);
    assert!(run.session().log().recovery().interrupted.is_empty());
    assert_eq!(run.plan(), ["planned", "meanwhile"], "the log says so too");

    for nobody in ["", " \t"] {
        let refused = run.session().calls().settle(operation, &Settlement::failed(), nobody, "who knows");
        assert!(matches!(refused, Err(Error::Blank { argument: "by" })), "{refused:?}");
    }
    let result = Settlement::committed(Some(Value::from("it was sent")));
    run.session().calls().settle(operation, &result, "a person", "the recipient has it").unwrap();
    assert!(run.session().calls().unsettled_operations().is_empty());
    let again = run.session().calls().settle(operation, &Settlement::failed(), "a person", "again");
    let again = again.unwrap_err();
    let Error::AlreadySettled { operation: of, decision: Decision::Committed, by, sequence, .. } = &again
    else {
        panic!("{again:?}");
    };
    let settled = run.ledger()[0].settled.clone().unwrap();
    assert_eq!((*of, by.as_str(), *sequence), (operation, "a person", settled.sequence));
    let said =
        format!("operation {operation} is already settled: `committed` by a person, in record {sequence}");
    assert_eq!(again.to_string(), said);
    let entry = &run.ledger()[0];
    assert_eq!(
        (entry.outcome, entry.settled.as_ref().unwrap().decision),
        (OperationStatus::Settled, Decision::Committed)
    );
    assert_eq!(entry.settled.as_ref().unwrap().by, "a person");
    assert!(run.runner.recover(&ExecuteOptions::default()).unwrap().is_empty());
    assert_eq!(run.counts().ran, 1, "it never ran a second time");
}

#[test]
fn a_manual_tool_runs_again_once_somebody_says_so() {
    let run = interrupted(Idempotency::Manual);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    let operation = run.session().calls().unsettled_operations()[0].operation;
    run.session()
        .calls()
        .settle(operation, &Settlement::run_again(), "the host", "nothing was sent")
        .unwrap();
    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let Recovery::RanAgain(report) = recovered.recovery else { panic!("{recovered:?}") };
    assert!(report.success && report.operation == operation && report.begin != operation.sequence());
    assert_eq!(run.plan(), ["planned", "half done"]);
    assert_eq!(
        (run.counts().ran, run.ledger()[0].outcome, run.ledger()[0].runs),
        (2, OperationStatus::Committed, 2)
    );
}

/// A host rolled back to before a call whose rerun a person had approved, and the next recovery ran
/// it all the same.
#[test]
fn a_decision_to_run_again_goes_with_the_call_that_a_rollback_abandons() {
    let run = interrupted(Idempotency::Manual);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    let operation = run.session().calls().unsettled_operations()[0].operation;
    let decide =
        || run.session().calls().settle(operation, &Settlement::run_again(), "a person", "nothing was sent");
    decide().unwrap();
    let decided = run.session().log().position().unwrap();
    run.session().rollback_to(operation.sequence() - 1).unwrap();
    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)), "{recovered:?}");
    assert_eq!(run.counts().ran, 1);
    // Rolling forward again restores the decision.
    run.session().rollback_to(decided).unwrap();
    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::RanAgain(_)), "{recovered:?}");
    assert_eq!(run.counts().ran, 2);
}

/// If a rerun of the call was interrupted too, the decision about the later run was looked up after
/// the wrong run, so its rollback was not noticed: the call ran a third time, although the host had
/// rolled back to before it.
#[test]
fn a_decision_goes_with_a_call_that_was_interrupted_twice_too() {
    let mut interrupted_twice = 0;
    for at in 1..40 {
        let mut run = interrupted(Idempotency::Manual);
        run.runner.recover(&ExecuteOptions::default()).unwrap();
        let operation = run.session().calls().unsettled_operations()[0].operation;
        let decide = |run: &Run| {
            run.session().calls().settle(operation, &Settlement::run_again(), "a person", "go on")
        };
        decide(&run).unwrap();
        run.session().sync().unwrap();
        run.disk.inject(Fault::Die { nth: at, bytes: 20 });
        let _ = run.runner.recover(&ExecuteOptions::default());
        run.disk.clear_faults();
        run.disk.crash(CrashKind::Process);
        run.reopen(Idempotency::Manual);
        let again = run.session().log().recovery().interrupted.first().map(|open| open.begin);
        let Some(again) = again.filter(|begin| *begin != operation.sequence()) else { continue };
        run.runner.recover(&ExecuteOptions::default()).unwrap();
        decide(&run).unwrap();
        let decided = run.session().log().position().unwrap();
        let ran = run.counts().ran;
        run.session().rollback_to(again - 1).unwrap();
        let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)), "killed at {at}: {recovered:?}");
        assert_eq!(run.counts().ran, ran, "killed at {at}");
        run.session().rollback_to(decided).unwrap();
        let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        assert!(matches!(recovered.recovery, Recovery::RanAgain(_)), "killed at {at}: {recovered:?}");
        interrupted_twice += 1;
    }
    assert!(interrupted_twice > 0);
}

/// A new decision may follow the rollback.
#[test]
fn a_call_that_a_rollback_abandons_runs_again_where_somebody_says_so_afterwards() {
    let run = interrupted(Idempotency::Manual);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    let operation = run.session().calls().unsettled_operations()[0].operation;
    run.session().rollback_to(operation.sequence() - 1).unwrap();
    run.session()
        .calls()
        .settle(operation, &Settlement::run_again(), "a person", "nothing was sent")
        .unwrap();
    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::RanAgain(_)), "{recovered:?}");
    assert_eq!(run.counts().ran, 2);
}

#[test]
fn natural_and_keyed_tools_run_again_as_the_same_operation() {
    for idempotency in [Idempotency::Natural, Idempotency::Keyed] {
        let run = interrupted(idempotency);
        let operation = run.session().log().recovery().interrupted[0].operation;
        let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        let Recovery::RanAgain(report) = recovered.recovery else { panic!("{recovered:?}") };
        assert_eq!((report.operation, report.message.as_str()), (operation, "written after all"));
        assert_eq!(run.state().0, ["planned", "half done"]);
        assert_eq!((run.counts().ran, run.invoked().len()), (2, 2));
        assert!(run.runner.recover(&ExecuteOptions::default()).unwrap().is_empty(), "and not a third time");
    }
}

#[test]
fn a_tool_that_compensates_undoes_first_also_where_that_is_interrupted_too() {
    let mut run = interrupted(Idempotency::Compensate);
    let operation = run.session().log().recovery().interrupted[0].operation;
    run.counts.lock().unwrap().dies_undoing = true;
    // The process is killed during the undo.
    let _ = run.runner.recover(&ExecuteOptions::default());
    assert_eq!(run.counts(), Counts { ran: 1, undone: 1, dies_undoing: false });
    run.reopen(Idempotency::Compensate);
    assert_eq!(run.session().log().recovery().interrupted[0].undoes, Some(operation));
    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let Recovery::RanAgain(report) = recovered.recovery else { panic!("{recovered:?}") };
    assert!(report.success && report.operation == operation);
    assert_eq!(run.counts(), Counts { ran: 2, undone: 2, dies_undoing: false });
    let ledger = run.ledger();
    let undoing: Vec<_> = ledger.iter().filter(|entry| entry.undoes == Some(operation)).collect();
    assert_eq!(
        undoing.iter().map(|entry| entry.outcome).collect::<Vec<_>>(),
        [OperationStatus::Interrupted, OperationStatus::Committed]
    );
}

#[test]
fn a_recovery_whose_resource_cannot_be_restored_can_be_tried_again() {
    let run = interrupted(Idempotency::Natural);
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    let failed = run.runner.recover(&ExecuteOptions::default());
    assert!(matches!(failed, Err(Error::RestoreFailed { .. })), "{failed:?}");
    assert!(run.session().calls().is_interrupted() && run.counts().ran == 1);
    *run.desk.broken.lock().unwrap() = None;
    assert_eq!(run.runner.recover(&ExecuteOptions::default()).unwrap().len(), 1);
    assert_eq!(run.plan(), ["planned", "half done"]);
}

#[test]
fn a_recovery_that_is_killed_at_any_step_ends_the_same_way() {
    for at in 1..40 {
        let mut run = interrupted(Idempotency::Natural);
        // Within each call that changes or syncs something, until none is left.
        run.disk.inject(Fault::Die { nth: at, bytes: 20 });
        let first = run.runner.recover(&ExecuteOptions::default());
        run.disk.clear_faults();
        let is_whole = |all: &Vec<RecoveredOperation>| {
            all.iter().all(|one| matches!(one.recovery, Recovery::RanAgain(_)))
        };
        if !first.as_ref().is_ok_and(is_whole) {
            run.disk.crash(CrashKind::Process);
            run.reopen(Idempotency::Natural);
            run.runner.recover(&ExecuteOptions::default()).unwrap();
        }
        assert_eq!(
            run.state(),
            (
                vec!["planned".to_owned(), "half done".to_owned()],
                [("letter".into(), "half done".into())].into()
            ),
            "killed at {at}"
        );
        assert!(
            run.session().calls().open_operations().is_empty()
                && run.session().calls().unsettled_operations().is_empty()
        );
    }
}

#[test]
fn what_was_committed_for_an_answer_is_returned_and_not_run_again() {
    let mut run = Run::with(Idempotency::Manual);
    let answer = run.session().dispatch(Noted { text: "an answer with two calls".to_owned() }).unwrap();
    let first = call("letter", "one", Then::Succeed).with_id("call_1").with_origin(answer, 0);
    let second = call("letter", "two", Then::Die).with_id("call_1").with_origin(answer, 1);
    let done = run.runner.execute(&first, &ExecuteOptions::default()).unwrap();
    run.counts.lock().unwrap().ran = 0;
    assert!(run.runner.execute(&second, &ExecuteOptions::default()).is_err());
    run.reopen(Idempotency::Manual);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    // The same call of the same answer returns its recorded result. The other call with the same
    // provider id is a different one.
    let again = run.runner.execute(&first, &ExecuteOptions::default()).unwrap();
    assert!(again.recorded && again.operation == done.operation && again.value == done.value);
    assert_eq!((again.message.as_str(), run.counts().ran), ("written", 1));
    // That one was interrupted, and whether it may run again is unknown.
    let other = run.runner.execute(&second, &ExecuteOptions::default());
    assert!(matches!(other, Err(Error::ToolIdempotency { .. })), "{other:?}");
    let operation = run.session().calls().unsettled_operations()[0].operation;
    run.session()
        .calls()
        .settle(operation, &Settlement::run_again(), "a person", "it had not begun")
        .unwrap();
    let other = run.runner.execute(&second, &ExecuteOptions::default()).unwrap();
    assert!(!other.recorded && other.success && other.operation == operation);
    assert_eq!(run.plan(), ["one", "two"]);
}

/// A process ends at every possible moment of a call, for every declaration. Real executions are
/// counted outside, and the ledger agrees with the count.
#[test]
fn of_a_turn_that_was_interrupted_what_was_committed_is_not_run_again_and_the_others_run() {
    let mut run = Run::with(Idempotency::Natural);
    let answer = run.session().dispatch(Noted { text: "please write three letters".to_owned() }).unwrap();
    let letter = |place: u32| {
        let then = if place == 1 { Then::Die } else { Then::Succeed };
        call(&format!("letter {place}"), &format!("text {place}"), then).with_origin(answer, place)
    };
    let execute = |run: &Run, place: u32| run.runner.execute(&letter(place), &ExecuteOptions::default());
    let first = execute(&run, 0).unwrap();
    // The process is killed within the second call, and the third has not begun.
    run.counts.lock().unwrap().ran = 0;
    execute(&run, 1).unwrap_err();
    run.reopen(Idempotency::Natural);
    assert!(matches!(execute(&run, 2), Err(Error::Interrupted { .. })));
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.counts().ran, 2, "the interrupted one, once more");
    let reports: Vec<ToolReport> = (0..3).map(|place| execute(&run, place).unwrap()).collect();
    assert_eq!(run.counts().ran, 3, "the third, for the first time");
    assert_eq!(reports.iter().map(|report| report.recorded).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((reports[0].operation, &reports[0].value), (first.operation, &first.value));
    assert_eq!(run.plan(), ["text 0", "text 1", "text 2"]);
    assert_eq!(run.desk.papers().len(), 3);
}

#[test]
fn whenever_a_process_ends_the_ledger_says_what_may_have_run() {
    for &idempotency in Idempotency::ALL {
        for (power, bytes) in [(false, 0), (false, 20), (true, 0)] {
            let mut at = 0;
            loop {
                at += 1;
                let told = format!("{idempotency:?}, power cut: {power}, killed at {at} with {bytes} bytes");
                let mut run = Run::with(idempotency);
                run.desk.put("letter", "as it was");
                run.session().sync().unwrap();
                run.disk.inject(Fault::Die { nth: at, bytes });
                let answered = run.write("letter", "done", Then::Succeed);
                run.disk.clear_faults();
                let ran = run.counts().ran;
                if answered.is_ok() && at > 1 && run.session().sync().is_ok() {
                    // No step was left for a kill.
                    break;
                }
                run.disk.crash(if power { CrashKind::PowerLosingAll } else { CrashKind::Process });
                run.reopen(idempotency);
                let before = run.ledger();
                // Nothing runs before its start record is durable, and recorded results are kept.
                assert!(ran == 0 || before.len() == 1, "{told}: it ran, and the log does not know");
                if answered.is_ok() {
                    assert_eq!(before[0].outcome, OperationStatus::Committed, "{told}");
                }
                let recovered = run.runner.recover(&ExecuteOptions::default()).unwrap();
                let after = run.ledger();
                let done = (vec!["done".to_owned()], [("letter".to_owned(), "done".to_owned())].into());
                let undone = (vec![], [("letter".to_owned(), "as it was".to_owned())].into());
                match (before.first().map(|entry| entry.outcome), idempotency) {
                    (None, _) => assert_eq!((run.state(), ran), (undone, 0), "{told}"),
                    (Some(OperationStatus::Committed), _) => {
                        assert_eq!((run.state(), run.counts().ran), (done, 1), "{told}")
                    }
                    (Some(OperationStatus::Open), Idempotency::Manual | Idempotency::Verify) => {
                        assert_eq!(
                            (run.state(), run.counts().ran),
                            (undone, ran),
                            "{told}: no silent second run"
                        );
                        assert_eq!(after[0].outcome, OperationStatus::Interrupted, "{told}");
                        assert!(matches!(recovered[0].recovery, Recovery::NeedsSettling(_)), "{told}");
                    }
                    (Some(OperationStatus::Open), _) => {
                        assert_eq!((run.state(), run.counts().ran), (done, ran + 1), "{told}");
                        assert_eq!(
                            (after[0].outcome, after[0].runs),
                            (OperationStatus::Committed, 2),
                            "{told}"
                        );
                        let undone = u32::from(idempotency == Idempotency::Compensate);
                        assert_eq!(run.counts().undone, undone, "{told}: undone before it runs again");
                    }
                    (fate, _) => panic!("{told}: {fate:?}"),
                }
                // One item for each finished run, and the whole log is readable.
                let ended: u64 = after.iter().map(|entry| entry.runs).sum();
                assert_eq!(run.invoked().len() as u64, ended, "{told}");
            }
            assert!(at > 4, "{idempotency:?}: there are several moments to be killed in, {at}");
        }
    }
}

#[test]
fn a_call_that_another_process_left_open_is_recovered_and_cannot_be_cancelled() {
    let mut run = Run::new();
    run.write("paper", "text", Then::Die).unwrap_err();
    run.reopen(Idempotency::Manual);
    let open = run.session().calls().open_operations()[0].operation;
    assert!(!run.session().calls().cancel(open), "nobody of this process runs it");
    assert_eq!(run.session().calls().open_operations().len(), 1);
}
