//! Failures reported by users of other engines, each as a story that cannot happen here.
//! `docs/reference/durability.md` names the promise that rules it out.

use foldlog::inspect::ReplayReducers;
use foldlog::tools::Recovery;
use foldlog::{Outcome, Parent, SessionOptions};

use super::*;

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 0 }
}

/// langgraph#8443: a reload folded an abandoned branch into a branch that was forked from before
/// it.
#[test]
fn a_reload_folds_no_abandoned_branch_into_a_fork() {
    let mut run = Run::new();
    run.session().dispatch(step("shared")).unwrap();
    let fork_at = run.session().snapshot(foldlog::SnapshotOptions::default()).unwrap();
    run.session().dispatch(step("abandoned")).unwrap();
    run.session().rollback(&fork_at).unwrap();
    run.session().dispatch(step("kept")).unwrap();
    run.session().sync().unwrap();
    run.disk.crash(CrashKind::Process);
    let store = store_of(&run.disk);
    let position = run.session().log().position().unwrap().get();
    let forks = [fork_at.position.get(), position].map(|at| {
        let fork = store.fork(run.id, at, &types(), SessionOptions::default()).unwrap();
        fork.dispatch(step("forked")).unwrap();
        let id = fork.id();
        fork.close().unwrap();
        id
    });
    run.reopen(Idempotency::Manual);
    assert_eq!(run.plan(), ["shared", "kept"]);
    let reloaded = forks.map(|id| plan(&store.open_session(id, &types()).unwrap()));
    assert_eq!(reloaded[0], ["shared", "forked"]);
    assert_eq!(reloaded[1], ["shared", "kept", "forked"]);
}

/// langgraph#7956: the state of a running process differed from a replay of the same history.
#[test]
fn live_state_is_what_a_replay_of_the_log_comes_to() {
    let mut run = Run::new();
    for then in [Then::Succeed, Then::Fail, Then::Succeed, Then::Panic, Then::SayNo] {
        let before = run.session().snapshot(foldlog::SnapshotOptions::default()).unwrap();
        let _ = run.write("paper", &format!("{then:?}"), then);
        run.session().dispatch(step("between")).unwrap();
        if then == Then::SayNo {
            run.session().rollback(&before).unwrap();
        }
        let live = run.session().dynamic().state().unwrap().digest();
        let reader = || LogReader::open_on(Arc::new(run.disk.clone()), run.session().dir()).unwrap();
        assert_eq!(reader().state().unwrap().digest(), live, "{then:?}: folded without the host's types");
        let again = reader().replay_reducers(&types(), &ReplayReducers::default()).unwrap();
        assert!(again.divergences.is_empty(), "{then:?}: the host's reducers over the same log: {again:?}");
    }
    let live = run.session().dynamic().state().unwrap().digest();
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    assert_eq!(run.session().dynamic().state().unwrap().digest(), live);
}

/// strands#4396: a restore that failed half way overwrote the checkpoint that it was restoring.
#[test]
fn a_failed_restore_leaves_the_checkpoint_as_it_was() {
    let mut run = Run::new();
    run.write("paper", "good", Then::Succeed).unwrap();
    let checkpoint = run.runner.state().snapshot(Some("good")).unwrap();
    run.write("paper", "bad", Then::Succeed).unwrap();
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    let failed = run.runner.state().restore(&checkpoint);
    assert!(matches!(failed, Err(Error::RestoreFailed { .. })), "{failed:?}");
    // Neither process has lost it: the one that failed, and the next one.
    *run.desk.broken.lock().unwrap() = None;
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.desk.text("paper").as_deref(), Some("bad"), "the failed restore was rolled back");
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    run.runner.state().restore(&checkpoint).unwrap();
    assert_eq!((run.plan(), run.desk.text("paper").as_deref()), (vec!["good".to_owned()], Some("good")));
}

/// agent-framework#4588 and #3758: a copy of a run did not know its origin, and a run that
/// continued after a failed step took the step for done.
#[test]
fn lineage_stays_and_a_failed_step_is_not_skipped() {
    let mut run = Run::new();
    let first = call("paper", "first", Then::Fail).with_origin(1, 0);
    let failed = run.runner.execute(&first, &ExecuteOptions::default()).unwrap();
    assert!(!failed.success);
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    // A repeated call reports the failure, and nothing of it is there.
    let again = run.runner.execute(&first, &ExecuteOptions::default()).unwrap();
    assert_eq!((again.success, again.outcome, again.recorded), (false, Outcome::Failed, true));
    assert!(run.plan().is_empty() && run.desk.papers().is_empty());
    // A new call of the same step runs.
    assert!(run.write("paper", "first", Then::Succeed).unwrap().success);
    run.session().sync().unwrap();
    let store = store_of(&run.disk);
    let at = run.session().log().position().unwrap();
    let child = store.fork(run.id, at, &types(), SessionOptions::default()).unwrap();
    child.dispatch(step("in the child")).unwrap();
    child.sync().unwrap();
    let (of_child, child_at) = (child.id(), child.log().position().unwrap());
    let grandchild = store.fork(of_child, child_at, &types(), SessionOptions::default()).unwrap().id();
    child.close().unwrap();
    for (session, parent, position) in [(of_child, run.id, at), (grandchild, of_child, child_at)] {
        let reader = LogReader::open_on(Arc::new(run.disk.clone()), store.session_dir(session)).unwrap();
        let Some(Parent::Fork { session, position: from, .. }) = reader.opening_record().parent else {
            panic!()
        };
        assert_eq!((session, from), (parent, position));
        // All of them know the failure in the first one.
        let fates: Vec<bool> =
            reader.ledger().unwrap().iter().map(|entry| entry.outcome.name() == "failed").collect();
        assert_eq!(fates, [true, false]);
    }
}

/// pydantic-ai-harness#373: a process ended after a tool had finished, and the run could not be
/// resumed, since the recorded result of the call was not used.
#[test]
fn a_finished_tool_is_resumed_with_its_result_and_does_not_run_again() {
    let mut run = Run::new();
    let asked = call("paper", "text", Then::Succeed).with_origin(1, 0);
    let told = run.runner.execute(&asked, &ExecuteOptions::default()).unwrap();
    run.disk.crash(CrashKind::Process);
    run.reopen(Idempotency::Manual);
    assert!(!run.session().calls().is_interrupted());
    let resumed = run.runner.execute(&asked, &ExecuteOptions::default()).unwrap();
    assert_eq!((resumed.message, resumed.value, resumed.recorded), (told.message, told.value, true));
    assert_eq!(run.counts().ran, 1);
    // If it ended within the tool, the next process learns that, and may settle or repeat the call.
    let second = call("paper", "more", Then::Die).with_origin(1, 1);
    run.counts.lock().unwrap().ran = 0;
    run.runner.execute(&second, &ExecuteOptions::default()).unwrap_err();
    run.reopen(Idempotency::Natural);
    let [recovered] = run.runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    // The interrupted call is declared as one that only a person may decide about.
    assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)), "{recovered:?}");
}
