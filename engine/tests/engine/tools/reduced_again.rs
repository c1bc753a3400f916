//! Reducers run again over a log with tool calls.

use foldlog::inspect::LogReader;
use foldlog_test_support::host::assert_reduced_again;

use super::*;

#[test]
fn reducers_are_run_again_over_calls_that_commit_fail_and_die() {
    let mut run = Run::with(Idempotency::Natural);
    run.session().dispatch(StepAdded { title: "before".to_owned(), part: 1 }).unwrap();
    let snapshot = run.session().snapshot(Default::default()).unwrap();
    // A writer dies in its first run only.
    let _ = run.write("page", "e", Then::Die);
    run.reopen(Idempotency::Natural);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    for (text, then) in [("a", Then::Succeed), ("b", Then::Fail), ("c", Then::Panic), ("d", Then::SayNo)] {
        run.write("page", text, then).unwrap();
    }
    run.session().set_tag("kept", "yes").unwrap();
    run.session().rollback(&snapshot).unwrap();
    run.write("page", "f", Then::Succeed).unwrap();

    let reader = || LogReader::open_on(Arc::new(run.disk.clone()), run.session().dir()).unwrap();
    assert!(reader().ledger().unwrap().len() >= 6);
    assert_reduced_again(&reader(), &types());
    run.session().clone().close().unwrap();
    assert_reduced_again(&reader(), &types());
}
