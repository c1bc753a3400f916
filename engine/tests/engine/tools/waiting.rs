//! No call waits in silence. It never waits for a call that its own thread would have to end, and
//! for others no longer than it may. A wait that gives up names its blocker.

use std::thread;
use std::time::Duration;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::{Blocker, SnapshotOptions};

use super::*;

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 0 }
}

/// Begins a call that this thread has to end.
fn begin(run: &Run) -> foldlog::tools::Operation {
    run.runner.begin(&call("paper", "half done", Then::Succeed), &ExecuteOptions::default()).unwrap()
}

/// A thread that had begun an operation and wrote through the session, not through the operation,
/// waited for itself for ever.
#[test]
fn a_thread_that_holds_an_operation_is_refused_what_would_wait_for_it() {
    let run = Run::new();
    let (session, begun) = (run.session(), begin(&run));
    let records = session.log().position();
    let is_refused = |told: Option<Error>| matches!(told, Some(Error::InsideOperation { operation }) if operation == begun.id());
    assert!(is_refused(session.dispatch(step("outside")).err()));
    assert!(is_refused(session.snapshot(SnapshotOptions::default()).err()));
    assert!(is_refused(session.reset().err()));
    assert!(is_refused(run.runner.state().snapshot(None).err()));
    assert!(is_refused(run.write("paper", "second", Then::Succeed).err()));
    let second = run.runner.begin(&call("paper", "second", Then::Succeed), &ExecuteOptions::default());
    assert!(is_refused(second.err()));
    assert_eq!((session.log().position(), run.counts().ran), (records, 0));
    // Writes that never wait succeed, and so does the operation itself.
    session.dispatch(Noted { text: "noted".to_owned() }).unwrap();
    begun.context().session().dispatch(step("inside")).unwrap();
    assert!(begun.end(ToolResult::ok("done", 1)).unwrap().success);
    session.dispatch(step("outside")).unwrap();
    assert_eq!(run.plan(), ["inside", "outside"]);
}

#[test]
fn a_thread_that_hands_its_operation_over_waits_for_who_ends_it() {
    let run = Run::new();
    let begun = begin(&run);
    begun.hand_over();
    thread::scope(|scope| {
        scope.spawn(move || begun.end(ToolResult::ok("done elsewhere", 1)).unwrap());
        run.session().dispatch(step("outside")).unwrap();
    });
    assert_eq!(run.plan(), ["outside"]);
}

/// Other calls find it ended, so none is refused because of it.
#[test]
fn an_operation_that_was_let_go_of_is_ended_and_refuses_nobody() {
    let run = Run::new();
    drop(begin(&run));
    run.session().dispatch(step("outside")).unwrap();
    assert_eq!(run.plan(), ["outside"]);
}

/// Returns the time and the blocker of a call that gave up waiting.
#[track_caller]
fn blocker<T: std::fmt::Debug>(told: Result<T>) -> (Duration, Blocker, String) {
    let told = told.unwrap_err();
    let text = told.to_string();
    let Error::WaitedTooLong { waited, blocker } = told else { panic!("{text}") };
    (waited, *blocker, text)
}

#[test]
fn a_wait_ends_after_its_limit_and_names_what_it_waited_for() {
    let limit = Duration::from_millis(10);
    let run = Run::in_store(Idempotency::Manual, StoreOptions { wait: limit, ..StoreOptions::default() });
    let begun_in = line!() + 1;
    let begun = run.runner.begin(&call("paper", "first", Then::Succeed), &ExecuteOptions::default()).unwrap();
    let (id, session) = (begun.id(), run.session());
    let records = session.log().position();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (waited, blocker, text) = blocker(session.dispatch(step("outside")));
            assert!(waited >= limit, "{waited:?}");
            let Blocker::Operation { operation, tool, open_for, begun_at } = blocker else {
                panic!("{text}")
            };
            assert_eq!((operation, tool.as_str()), (Some(id), "write"));
            assert_eq!((begun_at.file(), begun_at.line()), (file!(), begun_in));
            assert!(open_for >= waited, "{open_for:?} {waited:?}");
            let expected = format!(
                "waited {:.3} s for operation {id} (`write`), open for {:.3} s, started at {begun_at}",
                waited.as_secs_f64(),
                open_for.as_secs_f64()
            );
            assert_eq!(text, expected);
        });
    });
    assert_eq!(session.log().position(), records);
    begun.end(ToolResult::ok("done", 1)).unwrap();
    session.dispatch(step("outside")).unwrap();
}

#[test]
fn a_handle_and_a_call_have_limits_of_their_own() {
    let run = Run::new();
    let begun = begin(&run);
    begun.hand_over();
    let never = Duration::ZERO;
    let hurried = run.session().waiting_at_most(never);
    blocker(hurried.dispatch(step("outside")));
    blocker(hurried.snapshot(SnapshotOptions::default()));
    blocker(hurried.lane("mailbox").reset());
    let options = ExecuteOptions { wait: Some(never), ..ExecuteOptions::default() };
    blocker(run.runner.execute(&call("paper", "second", Then::Succeed), &options));
    blocker(run.runner.begin(&call("paper", "second", Then::Succeed), &options));
    // A deadline is different: it limits the call, not its wait.
    let late = ExecuteOptions { deadline: Some(never), ..options };
    let late = run.runner.execute(&call("paper", "second", Then::Succeed), &late);
    assert!(matches!(late, Err(Error::DeadlineExceeded { operation: None })), "{late:?}");
    begun.end(ToolResult::ok("done", 1)).unwrap();
    hurried.dispatch(step("outside")).unwrap();
    assert!(run.runner.execute(&call("paper", "second", Then::Succeed), &options).unwrap().success);
    assert_eq!(run.counts().ran, 1);
}

/// Two sessions that worked on one directory, in one thread or in two processes, silently waited
/// for each other.
#[test]
fn a_call_that_waits_for_a_directory_says_which_session_works_on_it() {
    let (directory, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (workspace, store) = (directory.path().join("workspace"), Store::open(disk.path()).unwrap());
    std::fs::create_dir(&workspace).unwrap();
    let runner = |session: &Session| {
        let files = HostFilesystem::open(
            &workspace,
            directory.path().join(session.id().to_string()),
            HostFilesystemOptions::default(),
        )
        .unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
    };
    let [one, other] = [(); 2].map(|()| store.create(&types()).unwrap());
    let edit = ToolCall::new("edit", "{}");
    let begun = runner(&one).begin(&edit, &ExecuteOptions::default()).unwrap();
    let options = ExecuteOptions { wait: Some(Duration::from_millis(20)), ..ExecuteOptions::default() };
    let (_, blocker, text) = blocker(runner(&other).begin(&edit, &options));
    let Blocker::Resource { resource, holder } = blocker else { panic!("{text}") };
    let holder = holder.expect("the directory is marked");
    assert_eq!(resource, "workspace");
    assert!(holder.contains(&one.id().to_string()) && text.contains(&holder), "{text}");
    begun.end(ToolResult::ok("done", 1)).unwrap();
    assert!(runner(&other).begin(&edit, &options).unwrap().end(ToolResult::ok("done", 1)).unwrap().success);
}
