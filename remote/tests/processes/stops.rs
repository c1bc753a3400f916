//! Stops a worker at each step, has its session taken over, and continues the worker.

use foldlog::Error;
use foldlog::tools::ExecuteOptions;

use crate::child::{Said, Worker};
use crate::host::{SESSION, runner_in, store, told};
use crate::kills::{assert_holds, orders, steps};
use crate::notes::{call, note, types};
use crate::steps::Steps;
use crate::worker::Orders;

/// A worker was stopped while the acknowledgement of a start record was on its way. Once continued,
/// it started that call's tool, which the other worker had run again.
#[test]
fn a_worker_that_was_stopped_at_any_step_and_taken_over_is_refused_and_starts_no_tool() {
    let all = std::env::var_os("FOLDLOG_REMOTE_ROUNDS").is_some();
    let (mut fenced, mut went_on) = (0, 0);
    let steps = steps();
    for step in (0..steps).step_by(if all { 1 } else { 2 }) {
        let places = tempfile::tempdir().unwrap();
        let orders = Orders { waits_at: Some(step), ..orders(&places, "stopped") };
        let mut worker = Worker::start(&orders);
        let mut said = worker.hear_until_it_waits();
        assert_eq!(said.pop(), Some(Said::At), "step {step}");
        worker.stop();

        let next = store(&places.path().join("next"), &orders.bucket, "next", Steps::default());
        let session = match next.take_over(SESSION, &types()) {
            Ok(session) => session,
            Err(Error::ReplicaFailed { reason, .. }) if reason.contains("no records of that session") => {
                // There is no claim yet, so the worker can continue.
                worker.go_on();
                let said = worker.hear_out();
                assert!(matches!(said.last(), Some(Said::Done(_))), "step {step}: {said:?}");
                went_on += 1;
                continue;
            }
            Err(error) => panic!("step {step}: {error}"),
        };
        let taken = told(&session);
        assert_holds(&taken, &said, &format!("step {step}, before"));
        let runner = runner_in(&session, &places.path().join("work"), |_| Ok(()));
        runner.recover(&ExecuteOptions::default()).unwrap();

        worker.go_on();
        let after = worker.hear_out();
        // The worker reports only what is replicated, so this was replicated before the claim.
        assert_holds(&taken, &after, &format!("step {step}, after"));
        let late = after.iter().find(|said| matches!(said, Said::Within(_)));
        assert_eq!(late, None, "step {step}: a tool starts late");
        match after.last() {
            Some(Said::Refused(why)) if why == "fenced" => fenced += 1,
            // After its last request all its records are replicated, and no request is left to be
            // refused.
            Some(Said::Done(_)) if step + 1 == steps => {}
            other => panic!("step {step}: {other:?}"),
        }

        session.dispatch(note("went on")).unwrap();
        assert!(call(&runner).unwrap().success);
        drop(runner);
        session.close().unwrap();
        // The continued worker added nothing.
        let session = next.open_session(SESSION, &types()).unwrap();
        let now = told(&session);
        assert_eq!(now.notes.last().map(String::as_str), Some("went on"));
        assert_eq!(now.notes.len(), taken.notes.len() + 1, "step {step}");
    }
    assert!(fenced > 5 && went_on > 0, "{fenced} fenced, {went_on} went on, of {steps} steps");
}

/// Shows the window that `foldlog::replication` documents: a stop between the last check and the
/// start of the tool is not noticed.
#[test]
fn a_worker_that_was_stopped_between_the_last_check_and_the_start_starts_that_tool_and_no_other() {
    let places = tempfile::tempdir().unwrap();
    let orders = Orders { waits_in_window: true, ..orders(&places, "stopped") };
    let mut worker = Worker::start(&orders);
    let said = worker.hear_until_it_waits();
    assert!(matches!(said.as_slice(), [Said::Noted(_), Said::At]), "{said:?}");
    worker.stop();
    let next = store(&places.path().join("next"), &orders.bucket, "next", Steps::default());
    let session = next.take_over(SESSION, &types()).unwrap();
    let taken = told(&session);
    worker.go_on();
    let after = worker.hear_out();
    // The call's start record is acknowledged, its end record is not.
    let [Said::Within(operation), Said::Refused(why)] = after.as_slice() else { panic!("{after:?}") };
    assert_eq!((taken.begins.as_slice(), why.as_str()), ([*operation].as_slice(), "fenced"));
}
