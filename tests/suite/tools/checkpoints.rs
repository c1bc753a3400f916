//! Positions before and after calls, and snapshots of everything.

use foldlog::execution::{CHECKPOINTS_MAX, CompositeSnapshot, Phase};

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
    let post = state.checkpoints().unwrap().get_post("call_b").unwrap().unwrap();
    state.restore(&post).unwrap();
    assert_eq!(run.state(), (vec!["a".to_owned(), "b".to_owned()], [("paper".into(), "b".into())].into()));
    let missing = state.rollback_to_tool("call_x").unwrap_err();
    assert_eq!(missing.to_string(), "No checkpoint for tool call: call_x");
    // A fork begins before the call and goes its own way.
    let fork = state.fork_at_tool("call_c").unwrap();
    assert_eq!(plan(&fork), ["a", "b"]);
}

#[test]
fn going_back_to_before_a_call_gives_nothing_back_that_is_spent() {
    // The budget went back with the rest, as if the tokens had not been sent.
    let run = Run::new();
    run_calls(&run, &[("call_a", "a"), ("call_b", "b")]);
    run.runner.state().rollback_to_tool("call_a").unwrap();
    assert_eq!((run.plan().len(), run.budget.total().input_tokens), (0, 20));
}

#[test]
fn two_snapshots_at_one_position_have_two_names() {
    // After one call and before the next the position is one, and so was the name, whatever had changed between.
    let run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    run.desk.put("paper", "changed meanwhile");
    run_calls(&run, &[("call_b", "b")]);
    let [first, second] = run.runner.state().checkpoints().unwrap().list().try_into().unwrap();
    let post = first.post.unwrap();
    assert_eq!(post.session.position, second.pre.session.position);
    assert_ne!(post.id, second.pre.id);
    // One seed gives one name still.
    let again = Run::new();
    run_calls(&again, &[("call_a", "a")]);
    assert_eq!(again.runner.state().checkpoints().unwrap().list()[0].post.as_ref().unwrap().id, post.id);
}

#[test]
fn what_could_not_be_put_back_after_a_restore_that_failed_is_named() {
    // The error told why the restore had failed, and nothing of the desk that was left in between.
    let run = Run::new();
    run_calls(&run, &[("call_a", "a")]);
    let mut taken = run.runner.state().snapshot(None).unwrap();
    taken.session.position = 10_000;
    run_calls(&run, &[("call_b", "b")]);
    let before = run.state();
    let missing = run.runner.state().restore(&taken).unwrap_err();
    assert!(matches!(missing, Error::NoSuchPosition { position: 10_000, .. }), "{missing:?}");
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
    assert!(first.post.is_some() && second.post.is_none() && !second.success);
    assert_eq!(
        (first.pre.metadata.phase, first.post.unwrap().metadata.phase),
        (Phase::PreTool, Phase::PostTool)
    );
    assert_eq!(first.pre.metadata.tool_call_id.as_deref(), Some("call_a"));
    assert_eq!(first.pre.metadata.tool_name.as_deref(), Some("write"));
    assert!(first.elapsed_us > 0 && first.recorded_at_us > 0);
}

#[test]
fn a_call_id_that_came_twice_names_no_single_checkpoint() {
    let run = Run::new();
    run_calls(&run, &[("call_1", "a"), ("call_1", "b")]);
    let checkpoints = run.runner.state().checkpoints().unwrap();
    let operations: Vec<u64> = checkpoints.list().iter().map(|kept| kept.operation).collect();
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
    let kept: Vec<String> = checkpoints.list().into_iter().filter_map(|kept| kept.tool_call_id).collect();
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
    // Where a resource fails, the session stays too.
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    let before = run.state();
    assert!(matches!(run.runner.state().restore(&read), Err(Error::RestoreFailed { .. })));
    *run.desk.broken.lock().unwrap() = None;
    assert_eq!(run.state(), before);
    run.runner.state().restore(&read).unwrap();
    assert_eq!(run.state(), (vec!["a".to_owned()], [("paper".into(), "a".into())].into()));
    // The budget goes back where a host asks for all of a moment, though no failing tool takes it back.
    assert_eq!(run.budget.total().input_tokens, 10);
    let other = Run::new();
    let mut elsewhere = read.clone();
    elsewhere.session.session = Uuid::from_u128(7);
    assert!(matches!(other.runner.state().restore(&elsewhere), Err(Error::SnapshotMismatch(_))));
    assert!(matches!(CompositeSnapshot::from_json("{}"), Err(Error::Export(_))));
}
