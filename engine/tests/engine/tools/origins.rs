//! Calls of a model's answer: committed ones do not run again.

use std::thread;
use std::time::Duration;

use foldlog::conversation::{NewAnswer, ToolCallRecord};
use foldlog::{SequenceNumber, SnapshotOptions};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// A call of each answer, by its ordinal.
    Run(u32, Then),
    /// A rollback to one of the positions between the steps so far.
    RollBack(prop::sample::Index),
    /// The session is closed, and opened from an image.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let then = prop::sample::select(vec![Then::Succeed, Then::Fail, Then::Die]);
    prop_oneof![
        4 => (0..2_u32, then).prop_map(|(ordinal, then)| Step::Run(ordinal, then)),
        2 => any::<prop::sample::Index>().prop_map(Step::RollBack),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// If an answer is a record of a conversation, the fold knows where its calls ended; if it is
    /// an event of the host's, the log is read. Both must agree about a call: committed, failed,
    /// interrupted or never run.
    #[test]
    fn what_is_known_of_a_call_does_not_depend_on_who_recorded_its_answer(
        steps in prop::collection::vec(step(), 1..12)
    ) {
        let images = || StoreOptions { image_bytes_min: 0, ..StoreOptions::default() };
        let mut run = Run::in_store(Idempotency::Manual, images());
        let answers = [said(run.session(), 0), recorded(run.session(), 2)];
        let mut positions = vec![run.session().log().position().unwrap()];
        let asked = |answer, ordinal, then| call("paper", "one", then).with_origin(answer, ordinal);
        for step in steps {
            match step {
                Step::Run(ordinal, then) => {
                    run.counts.lock().unwrap().ran = 0;
                    let mut ends = Vec::new();
                    for answer in answers {
                        let asked = asked(answer, ordinal, then);
                        let end = run.runner.execute(&asked, &ExecuteOptions::default());
                        if run.counts().ran == 1 && then == Then::Die {
                            run.counts.lock().unwrap().ran = 0;
                            run.reopen(Idempotency::Manual);
                            run.runner.recover(&ExecuteOptions::default()).unwrap();
                        }
                        ends.push(end.map(|report| (report.recorded, report.outcome)).map_err(|error| std::mem::discriminant(&error)));
                    }
                    prop_assert_eq!(&ends[0], &ends[1]);
                }
                Step::RollBack(to) => {
                    run.session().rollback_to(*to.get(&positions)).unwrap();
                }
                Step::Reopen => {
                    run.session().clone().close().unwrap();
                    run.reopen(Idempotency::Manual);
                }
            }
            positions.push(run.session().log().position().unwrap());
            for ordinal in 0..2 {
                let known = |answer| {
                    let known = run.runner.recorded_report(&asked(answer, ordinal, Then::Succeed)).unwrap();
                    known.map(|report| (report.outcome, report.message, report.value))
                };
                prop_assert_eq!(known(answers[0]), known(answers[1]));
            }
        }
    }
}

/// Records an answer as an event of the host.
fn said(session: &Session, _: u32) -> SequenceNumber {
    session.dispatch(Noted { text: "an answer".to_owned() }).unwrap()
}

/// Records an answer of a conversation with this many calls.
fn recorded(session: &Session, calls: u32) -> SequenceNumber {
    let call = |ordinal| ToolCallRecord {
        call_id: format!("call_{ordinal}"),
        name: "write".to_owned(),
        arguments: "{}".to_owned(),
    };
    let calls = (0..calls).map(call).collect();
    session
        .conversation()
        .record_answer(&NewAnswer { evaluation_id: "one".to_owned(), calls, ..NewAnswer::default() })
        .unwrap()
}

const ANSWERS: [fn(&Session, u32) -> SequenceNumber; 2] = [said, recorded];

/// Only the latest call of an answer was checked. After a rollback to the branch in which an
/// earlier one had committed, it ran a second time, since a call in the abandoned branch came
/// later. So it did if a later one had failed.
#[test]
fn a_call_of_an_answer_is_known_in_whichever_branch_it_committed() {
    for answer in ANSWERS {
        let run = Run::new();
        let session = run.session();
        let answer = answer(session, 1);
        let asked = |then| call("paper", "one", then).with_origin(answer, 0);
        let execute = |then| run.runner.execute(&asked(then), &ExecuteOptions::default()).unwrap();
        let before = session.log().position().unwrap();
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
}

/// A failed call ran again when the host resumed its conversation, although the model knew of the
/// failure and could have repeated the call.
#[test]
fn a_call_of_an_answer_that_failed_is_closed_until_the_host_rolls_back_to_before_its_end() {
    for answer in ANSWERS {
        let run = Run::new();
        let session = run.session();
        let answer = answer(session, 1);
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
}

/// The log was checked before the call waited for others. Of two threads that ran one call of an
/// answer, the second ran it too, once the first had committed.
#[test]
fn two_threads_that_run_one_call_of_an_answer_run_it_once() {
    for answer in ANSWERS {
        let run = Run::new();
        let answer = answer(run.session(), 1);
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
}

/// A deadline too far away to be represented counted as passed.
#[test]
fn a_call_may_have_all_the_time_there_is() {
    let run = Run::new();
    let options = ExecuteOptions { deadline: Some(Duration::MAX), ..ExecuteOptions::default() };
    assert!(run.runner.execute(&call("paper", "one", Then::Succeed), &options).unwrap().success);
}
