//! Rules between a call and the child sessions that work on its resources, on a disk in memory.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use foldlog::StoreOptions;
use foldlog::inspect::OperationStatus;

use super::*;

/// A tool whose work is a closure of a test.
struct Act<F>(F);

impl<F> Tool for Act<F>
where
    F: Fn(&ToolContext) -> Result<ToolResult<()>, ToolError> + Send + Sync + 'static,
{
    const NAME: &'static str = "act";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        (self.0)(context)
    }
}

fn act<F>(state: ExecutionState, act: F, options: &ExecuteOptions) -> Result<ToolReport>
where
    F: Fn(&ToolContext) -> Result<ToolResult<()>, ToolError> + Send + Sync + 'static,
{
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Act(act)));
    runner.execute(&ToolCall::new("act", "{}"), options)
}

fn done() -> Result<ToolResult<()>, ToolError> {
    Ok(ToolResult::ok("done", ()))
}

/// Returns the child's run, with the tools of this one.
fn child_of(run: &Run, context: &ToolContext) -> Result<ToolRunner, ToolError> {
    Ok(ToolRunner::new(context.child(0, &types())?, run.runner.tools().clone()))
}

fn child_fates(run: &Run) -> Vec<OperationStatus> {
    let [child] = run.session().store().children(run.session().id()).unwrap().try_into().unwrap();
    let dir = store_of(&run.disk).session_dir(child);
    let reader = LogReader::open_on(Arc::new(run.disk.clone()), dir).unwrap();
    reader.ledger().unwrap().iter().map(|entry| entry.outcome).collect()
}

/// The child's call has changed the desk, and neither ended nor rolled back: its parent must not
/// commit that.
#[test]
fn a_call_cannot_commit_what_its_child_has_left_half_done() {
    let run = Arc::new(Run::new());
    run.desk.put("paper", "as it was");
    let inner = Arc::clone(&run);
    let drives = move |context: &ToolContext| {
        let child = child_of(&inner, context)?;
        *inner.desk.broken.lock().unwrap() = Some(Broken::Restore);
        let failed = child.execute(&call("paper", "half", Then::Fail), &ExecuteOptions::default());
        assert!(matches!(failed, Err(Error::RestoreFailed { .. })), "{failed:?}");
        *inner.desk.broken.lock().unwrap() = None;
        assert_eq!(inner.desk.text("paper").as_deref(), Some("half"));
        done()
    };
    let report = act(run.runner.state().clone(), drives, &ExecuteOptions::default()).unwrap();
    assert_eq!((report.success, report.cause), (false, Some(Cause::Error)));
    assert!(report.message.contains("has not ended"), "{report:?}");
    assert_eq!(run.desk.text("paper").as_deref(), Some("as it was"));
}

/// If the tool opens the child again, it recovers the child, and may commit.
#[test]
fn a_child_that_was_left_half_done_is_recovered_by_opening_it_again() {
    let run = Arc::new(Run::new());
    run.desk.put("paper", "as it was");
    let inner = Arc::clone(&run);
    let drives = move |context: &ToolContext| {
        let child = child_of(&inner, context)?;
        *inner.desk.broken.lock().unwrap() = Some(Broken::Restore);
        assert!(child.execute(&call("paper", "half", Then::Fail), &ExecuteOptions::default()).is_err());
        *inner.desk.broken.lock().unwrap() = None;
        child.state().session().clone().close().unwrap();
        drop(child);
        let child = child_of(&inner, context)?;
        assert_eq!(inner.desk.text("paper").as_deref(), Some("as it was"));
        child.execute(&call("other", "whole", Then::Succeed), &ExecuteOptions::default())?;
        done()
    };
    assert!(act(run.runner.state().clone(), drives, &ExecuteOptions::default()).unwrap().success);
    let papers =
        [("other", "whole"), ("paper", "as it was")].map(|(one, two)| (one.to_owned(), two.to_owned()));
    assert_eq!(*run.desk.papers(), papers.into());
    assert_eq!(child_fates(&run), [OperationStatus::Interrupted, OperationStatus::Committed]);
}

#[test]
fn a_childs_call_that_is_dropped_ends_before_its_parent() {
    let run = Arc::new(Run::new());
    let inner = Arc::clone(&run);
    let drives = move |context: &ToolContext| {
        let child = child_of(&inner, context)?;
        let operation = child.begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default())?;
        inner.desk.put("paper", "half");
        drop(operation);
        // The session stays open, so that only the parent's end can end the call.
        std::mem::forget(child);
        done()
    };
    let report = act(run.runner.state().clone(), drives, &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
    assert_eq!((run.desk.text("paper"), child_fates(&run)), (None, vec![OperationStatus::Failed]));
}

/// Nested calls and the child's calls exclude each other, so a child's tool that begins a call in
/// its parent would wait for itself.
#[test]
fn a_tool_of_a_child_is_refused_what_would_wait_for_it() {
    let run = Arc::new(Run::new());
    let inner = Arc::clone(&run);
    let drives = move |context: &ToolContext| {
        let child = context.child(0, &types())?;
        let (outer, nested) = (context.clone(), inner.runner.within(context));
        let within = move |_: &ToolContext| {
            let refused = nested.execute(&call("paper", "no", Then::Succeed), &ExecuteOptions::default());
            assert!(matches!(refused, Err(Error::InsideOperation { .. })), "{refused:?}");
            // It may still dispatch to its parent.
            outer.session().dispatch(StepAdded { title: "told".to_owned(), part: 0 })?;
            done()
        };
        assert!(act(child, within, &ExecuteOptions::default())?.success);
        done()
    };
    assert!(act(run.runner.state().clone(), drives, &ExecuteOptions::default()).unwrap().success);
    assert_eq!(run.state(), (vec!["told".to_owned()], BTreeMap::new()));
}

#[test]
fn a_childs_call_stops_with_its_parent_and_none_begins_after_it() {
    let run = Arc::new(Run::new());
    let (kept, child) = mpsc::channel();
    let (inner, began) = (Arc::clone(&run), Mutex::new(kept));
    let drives = move |context: &ToolContext| {
        let state = context.child(0, &types())?;
        let (inner, session) = (Arc::clone(&inner), inner.session().clone());
        let operation = context.operation();
        let waits = move |own: &ToolContext| {
            inner.desk.put("paper", "half");
            assert!(session.calls().cancel(operation));
            assert!(own.is_cancelled());
            Err(ToolError::Cancelled)
        };
        let report = act(state.clone(), waits, &ExecuteOptions::default())?;
        assert_eq!(report.cause, Some(Cause::Cancelled));
        began.lock().unwrap().send(ToolRunner::new(state, ToolRegistry::new())).unwrap();
        done()
    };
    let report = act(run.runner.state().clone(), drives, &ExecuteOptions::default()).unwrap();
    assert_eq!((report.cause, run.desk.text("paper")), (Some(Cause::Cancelled), None));
    let late = child.recv().unwrap().begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default());
    assert!(matches!(late, Err(Error::Revoked { .. })), "{late:?}");
}

#[test]
fn a_childs_call_has_no_more_time_than_its_parent() {
    let run = Arc::new(Run::new());
    let drives = move |context: &ToolContext| {
        let waits = |own: &ToolContext| {
            assert!(own.deadline().is_some());
            while !own.is_cancelled() {
                thread::yield_now();
            }
            done()
        };
        let late = act(context.child(0, &types())?, waits, &ExecuteOptions::default());
        assert!(is_late(&late), "{late:?}");
        done()
    };
    let options = ExecuteOptions { deadline: Some(Duration::from_secs(1)), ..ExecuteOptions::default() };
    let late = act(run.runner.state().clone(), drives, &options);
    assert!(is_late(&late), "{late:?}");
}

#[test]
fn calls_of_two_children_at_once_take_turns_on_the_resources() {
    let run = Arc::new(Run::in_store(Idempotency::Manual, StoreOptions::default()));
    let inner = Arc::clone(&run);
    let drives = move |context: &ToolContext| {
        let children = [0, 1].map(|number| context.child(number, &types()).unwrap());
        thread::scope(|scope| {
            for (child, name) in children.iter().zip(["one", "other"]) {
                let runner = ToolRunner::new(child.clone(), inner.runner.tools().clone());
                scope.spawn(move || {
                    for nth in 0..20 {
                        let then = if nth % 2 == 0 { Then::Succeed } else { Then::Fail };
                        let write = call(&format!("{name} {nth}"), "text", then);
                        runner.execute(&write, &ExecuteOptions::default()).unwrap();
                    }
                });
            }
        });
        done()
    };
    assert!(act(run.runner.state().clone(), drives, &ExecuteOptions::default()).unwrap().success);
    // Otherwise a failed call would have removed a paper of the other.
    assert_eq!(run.desk.papers().len(), 20);
}

/// The child of a tool declared as read-only cannot change anything.
#[test]
fn a_child_of_a_call_that_only_reads_changes_nothing() {
    struct Look(Arc<Run>);
    impl Tool for Look {
        const NAME: &'static str = "look";
        type Parameters = Nothing;
        type Output = ();

        fn reads_only(&self) -> bool {
            true
        }

        fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
            let child = child_of(&self.0, context)?;
            let refused = child.execute(&call("paper", "no", Then::Succeed), &ExecuteOptions::default());
            assert!(matches!(refused, Err(Error::ReadsOnly { .. })), "{refused:?}");
            done()
        }
    }
    let run = Arc::new(Run::new());
    let runner =
        ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(Look(Arc::clone(&run))));
    assert!(runner.execute(&ToolCall::new("look", "{}"), &ExecuteOptions::default()).unwrap().success);
    assert!(run.desk.papers().is_empty());
}
