//! Calls that a model's answer asked for: what committed is not run again.

use std::thread;
use std::time::Duration;

use foldlog::SnapshotOptions;

use super::*;

/// Only the latest call of an answer was looked at: after a rollback to the branch in which an earlier one had committed, that
/// one ran a second time, since a call in the abandoned branch came later. So it did where a later one had failed.
#[test]
fn a_call_of_an_answer_is_known_in_whichever_branch_it_committed() {
    let run = Run::new();
    let session = run.session();
    let answer = session.dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let asked = |then| call("paper", "one", then).with_origin(answer, 0);
    let execute = |then| run.runner.execute(&asked(then), &ExecuteOptions::default()).unwrap();
    let before = session.position().unwrap();
    assert!(!execute(Then::Succeed).recorded);
    let branch = session.snapshot(SnapshotOptions::default()).unwrap();
    session.rollback_to(before).unwrap();
    assert!(!execute(Then::Succeed).recorded, "the first one is abandoned");
    session.rollback_to(before).unwrap();
    assert!(!execute(Then::Fail).success);
    session.rollback(&branch).unwrap();
    let again = execute(Then::Succeed);
    assert_eq!((again.recorded, run.counts().ran, run.plan().len()), (true, 3, 1));
}

/// A call that failed was run again when the host resumed its conversation, although the model had been told that it failed and
/// could have asked for it again.
#[test]
fn a_call_of_an_answer_that_failed_is_closed_until_the_host_rolls_back_to_before_its_end() {
    let run = Run::new();
    let session = run.session();
    let answer = session.dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let asked = |then| call("paper", "one", then).with_origin(answer, 0);
    let execute = |then| run.runner.execute(&asked(then), &ExecuteOptions::default()).unwrap();
    let failed = execute(Then::Fail);
    let again = execute(Then::Succeed);
    assert_eq!((again.recorded, again.success, again.cause), (true, false, failed.cause));
    assert_eq!((again.message, run.counts().ran), (failed.message, 1));
    session.rollback_to(answer).unwrap();
    let anew = execute(Then::Succeed);
    assert_eq!((anew.recorded, anew.success, run.counts().ran), (false, true, 2));
}

/// The log was asked before the call waited for others: of two threads that ran one call of an answer at once, the second ran
/// it too, once the first had committed.
#[test]
fn two_threads_that_run_one_call_of_an_answer_run_it_once() {
    let run = Run::new();
    let answer = run.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let asked = call("paper", "one", Then::Succeed).with_origin(answer, 0);
    let barrier = std::sync::Barrier::new(4);
    let reports = thread::scope(|scope| {
        let one = || {
            barrier.wait();
            run.runner.execute(&asked, &ExecuteOptions::default()).unwrap()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!((run.counts().ran, reports.iter().filter(|report| !report.recorded).count()), (1, 1));
    assert!(reports.iter().all(|report| report.success && report.operation == reports[0].operation));
}

/// A deadline that no moment can name counted as passed.
#[test]
fn a_call_may_have_all_the_time_there_is() {
    let run = Run::new();
    let options = ExecuteOptions { deadline: Some(Duration::MAX) };
    assert!(run.runner.execute(&call("paper", "one", Then::Succeed), &options).unwrap().success);
}
