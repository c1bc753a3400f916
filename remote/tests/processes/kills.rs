//! Kills a worker at each step, and has the next one take the session over.

use foldlog::Error;
use foldlog::tools::ExecuteOptions;

use crate::child::{Said, Worker};
use crate::directories::copy;
use crate::host::{
    SESSION, Told, assert_captures_are_sound, calls_in, rewind_to_last, runner_in, store, told,
};
use crate::notes::{call, types};
use crate::steps::Steps;
use crate::worker::Orders;

/// Number of notes and calls of a worker that is not disturbed.
pub(crate) fn rounds() -> u64 {
    std::env::var("FOLDLOG_REMOTE_ROUNDS").map_or(2, |rounds| rounds.parse().unwrap())
}

pub(crate) fn orders(places: &tempfile::TempDir, name: &str) -> Orders {
    let bucket = places.path().join("bucket");
    std::fs::create_dir_all(&bucket).unwrap();
    Orders {
        bucket,
        directory: places.path().join(name),
        name: name.to_owned(),
        rounds: rounds(),
        waits_at: None,
        takes_over: false,
        counts_late: false,
        waits_in_window: false,
    }
}

/// Returns the number of steps of a worker that is not disturbed.
pub(crate) fn steps() -> u64 {
    let places = tempfile::tempdir().unwrap();
    match Worker::start(&orders(&places, "alone")).hear_out().last() {
        Some(Said::Done(steps)) => *steps,
        other => panic!("{other:?}"),
    }
}

/// Checks that a log contains the worker's acknowledged notes and the start records of its handlers
/// that ran.
pub(crate) fn assert_holds(told: &Told, said: &[Said], what: &str) {
    let noted: Vec<&String> =
        said.iter().filter_map(|said| if let Said::Noted(text) = said { Some(text) } else { None }).collect();
    let missing: Vec<_> = noted.iter().filter(|text| !told.notes.contains(text)).collect();
    assert!(missing.is_empty(), "{what}: acknowledged and not there: {missing:?} in {told:?}");
    let mut each = told.notes.clone();
    each.sort();
    each.dedup();
    assert_eq!(each.len(), told.notes.len(), "{what}: something is there twice: {told:?}");
    for said in said {
        if let Said::Within(operation) = said {
            assert!(told.begins.contains(operation), "{what}: a handler ran without a begin: {operation}");
        }
    }
}

#[test]
fn a_worker_that_is_killed_at_any_step_leaves_all_that_was_acknowledged() {
    let steps = steps();
    assert!(steps > 20, "{steps}");
    let (mut taken_over, mut interrupted) = (0, 0);
    for step in 0..steps {
        let places = tempfile::tempdir().unwrap();
        let orders = Orders { waits_at: Some(step), ..orders(&places, "killed") };
        let mut worker = Worker::start(&orders);
        let mut said = worker.hear_until_it_waits();
        assert_eq!(said.pop(), Some(Said::At), "step {step}");
        said.extend(worker.kill());

        let next = store(&places.path().join("next"), &orders.bucket, "next", Steps::default());
        let session = match next.take_over(SESSION, &types()) {
            Ok(session) => session,
            // Nothing was recorded yet.
            Err(Error::ReplicaFailed { reason, .. }) if reason.contains("no records of that session") => {
                assert_eq!(said, [], "step {step}");
                continue;
            }
            Err(error) => panic!("step {step}: {error}"),
        };
        taken_over += 1;
        let (told, what) = (told(&session), format!("step {step}"));
        assert_holds(&told, &said, &what);
        assert_captures_are_sound(&session, &what);
        // The files are as the open call's start record captured them, or as the last call left
        // them.
        let open: Vec<u64> =
            session.calls().open_operations().iter().map(|open| open.operation.get()).collect();
        let left: Vec<u64> = told.begins.iter().copied().filter(|begin| !open.contains(begin)).collect();
        let directory = places.path().join("work");
        let runner = runner_in(&session, &directory, |_| Ok(()));
        runner.recover(&ExecuteOptions::default()).unwrap();
        if open.is_empty() && !left.is_empty() {
            rewind_to_last(&runner).unwrap();
        }
        assert_eq!(calls_in(&directory), left, "{what}");
        interrupted += u64::from(!open.is_empty() && !left.is_empty());
        assert!(session.calls().unsettled_operations().is_empty(), "step {step}");
        assert!(call(&runner).unwrap().success);
        drop(runner);
        session.close().unwrap();
    }
    assert!(taken_over > steps / 3, "{taken_over} of {steps}");
    assert!(interrupted > 0, "no call of several was interrupted");
}

#[test]
fn a_takeover_that_is_killed_at_any_step_is_made_again_in_the_same_directory() {
    let places = tempfile::tempdir().unwrap();
    let first = orders(&places, "first");
    assert!(matches!(Worker::start(&first).hear_out().last(), Some(Said::Done(_))));
    let mut step = 0;
    loop {
        // Each claim makes the log longer, so each takeover uses a copy of the bucket.
        let bucket = places.path().join(format!("bucket {step}"));
        copy(&first.bucket, &bucket);
        let taking = orders(&places, &format!("{step}"));
        let orders = Orders { bucket, waits_at: Some(step), takes_over: true, rounds: 0, ..taking };
        let mut worker = Worker::start(&orders);
        if worker.hear_until_it_waits().last() != Some(&Said::At) {
            break;
        }
        worker.kill();
        let what = format!("step {step}");
        let again = store(&orders.directory, &orders.bucket, &orders.name, Steps::default());
        let session = again.take_over(SESSION, &types()).unwrap();
        assert_captures_are_sound(&session, &what);
        let directory = places.path().join(format!("work {step}"));
        let runner = runner_in(&session, &directory, |_| Ok(()));
        rewind_to_last(&runner).unwrap();
        assert_eq!(calls_in(&directory).len() as u64, rounds(), "{what}");
        assert_eq!(std::fs::metadata(directory.join("large")).unwrap().len(), 3 << 19, "{what}");
        drop(runner);
        session.close().unwrap();
        step += 1;
    }
    assert!(step > 10, "{step} steps");
}

#[test]
fn a_session_outlives_any_number_of_workers() {
    let places = tempfile::tempdir().unwrap();
    let workers: u64 = std::env::var("FOLDLOG_REMOTE_KILLS").map_or(8, |workers| workers.parse().unwrap());
    let mut all = Vec::new();
    for number in 0..workers {
        let name = format!("worker {number}");
        // One in three is killed during its takeover, the others during their work.
        let counts_late = number % 3 != 2;
        let waits_at = Some(number * 5 % 7 + 1);
        let takes_over = number > 0;
        let orders = Orders { waits_at, takes_over, counts_late, ..orders(&places, &name) };
        let mut worker = Worker::start(&orders);
        let said = worker.hear_until_it_waits();
        assert!(!said.iter().any(|said| matches!(said, Said::Refused(_))), "{name}: {said:?}");
        all.extend(said);
        all.extend(worker.kill());
    }
    let bucket = places.path().join("bucket");
    let last = store(&places.path().join("last"), &bucket, "last", Steps::default());
    let session = last.take_over(SESSION, &types()).unwrap();
    assert!(all.iter().any(|said| matches!(said, Said::Noted(_))));
    assert_holds(&told(&session), &all, "at the end");
    assert_captures_are_sound(&session, "at the end");
    // A worker that was killed before its claim has no epoch.
    let epoch = session.log().epoch().unwrap();
    assert!((workers * 2 / 3..=workers + 1).contains(&epoch), "{epoch}");
}
