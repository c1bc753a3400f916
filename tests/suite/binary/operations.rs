//! Tool calls in the verbs' output: ended ones, ones that a process left open, and ones that wait
//! for a person.

use foldlog::tools::{
    ExecuteOptions, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, SessionOptions, Store};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::foldlog;

use super::{Fixture, options, step};

/// Creates a session of four calls: committed, failed, committed and rolled back, and open without
/// an end record. The store is dropped as a killed process would leave it.
pub(super) fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&types()).unwrap();
    let dir = session.dir().to_owned();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let call = |name: &str, id: &str| ToolCall::new(name, r#"{"path": "a.txt"}"#).with_id(id);
    let begin = |name, id| runner.begin(&call(name, id), &ExecuteOptions::default()).unwrap();
    let write = |context: &ToolContext| context.session().dispatch(step("wrote", 1)).unwrap();
    let held = begin("write_file", "call_1");
    write(held.context());
    let held = held.end(ToolResult::ok("written", 5)).unwrap();
    let failed = begin("write_file", "call_1");
    write(failed.context());
    failed.fail(ToolError::failed("no such directory")).unwrap();
    begin("read_file", "call_2").end(ToolResult::ok("the text", "the text")).unwrap();
    session.rollback_to(held.end).unwrap();
    let open = begin("send_mail", "call_3");
    write(open.context());
    // The session is closed under the call, so its end record is never written.
    session.close().unwrap();
    drop(open);
    Fixture { directory, session: dir.clone(), fork: dir }
}

#[test]
fn calls_are_told_by_what_became_of_them() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "ledger SESSION",
        "ledger SESSION --json",
        "show SESSION",
        "settle SESSION 12 failed --by me --reason unsent",
        "verify SESSION",
        "replay SESSION --thorough",
    ]));
}

#[test]
fn an_interrupted_call_is_settled_once_the_host_has_recovered_it() {
    let fixture = fixture();
    let store = Store::open_with(fixture.directory.path(), options()).unwrap();
    let id = store.session_ids().unwrap()[0];
    let session = store.open_session(id, &types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let recovered = ToolRunner::new(state, ToolRegistry::new()).recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(recovered.len(), 1);
    let left = fixture.run("settle SESSION 12 failed --by me --reason unsent --wait 0");
    assert!(left.code == 0 && left.stdout.contains("has not taken it yet"), "{}{}", left.stdout, left.stderr);
    session.close().unwrap();
    insta::assert_snapshot!(fixture.transcript(&[
        "ledger SESSION",
        "settle SESSION 99 failed --by me --reason unsent",
        "settle SESSION 12 failed --by me --reason unsent --result 1",
        "settle SESSION 12 committed --by me --reason {no --result {no",
        "settle SESSION 12 committed --by me --reason sent --result {\"sent\":true}",
        "settle SESSION 12 run-again --by me --reason twice",
        "ledger SESSION",
        "show SESSION --from 11 --kind tool_end",
        "verify SESSION",
    ]));
}

/// The output named the session for which a session was created, but not the call.
#[test]
fn a_session_that_was_begun_by_a_call_names_the_call() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let parent = store.create(&types()).unwrap().id();
    for (operation, line, json) in [
        (None, format!("child of {parent}"), r#""how":"child"}"#),
        (Some(12), format!("child of operation 12 of {parent}"), r#""how":"child","operation":12}"#),
    ] {
        let begun = SessionOptions {
            parent: Some(parent),
            operation: operation.map(Into::into),
            ..SessionOptions::default()
        };
        let child = store.create_with(&types(), begun).unwrap();
        let (id, dir) = (child.id(), child.dir().to_owned());
        child.close().unwrap();
        let run = |words: &[&str]| {
            let ran = foldlog(words.iter().map(AsRef::as_ref).chain([dir.as_os_str()]));
            assert_eq!(ran.code, 0, "{words:?}: {}", ran.stderr);
            ran.stdout
        };
        let first = |printed: String| printed.lines().next().unwrap_or_default().to_owned();
        assert!(run(&["show"]).lines().any(|shown| shown.contains(&line[..32])), "{}", run(&["show"]));
        for words in [&["show", "--json"][..], &["export", "--format", "jsonl"]] {
            assert!(run(words).contains(json), "{words:?}: {}", first(run(words)));
        }
        run(&["verify"]);
        let listed = foldlog(["sessions".as_ref(), directory.path().as_os_str(), "--json".as_ref()]).stdout;
        assert!(listed.lines().any(|one| one.contains(&id.to_string()) && one.contains(json)), "{listed}");
    }
}
