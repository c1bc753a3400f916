//! Subscribers: who receives records, when, and the effect of their failures.

use std::sync::{Arc, Mutex};

use foldlog::storage::{Fault, Op};
use foldlog::{Durability, Error, RecordKind, SnapshotOptions};
use foldlog_test_support::host::*;

use super::{home, home_with, step, titles};

type Heard<T> = Arc<Mutex<Vec<T>>>;

fn heard<T>() -> (Heard<T>, Heard<T>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    (Arc::clone(&heard), heard)
}

#[test]
fn they_hear_every_record_in_order_with_the_event() {
    let home = home();
    let session = home.session();
    let (hears, heard) = heard();
    session.log().subscribe(move |notice| {
        let title = notice.event::<StepAdded>().map(|step| step.title.clone());
        let name = notice.event_name().map(|(name, version)| (name.to_owned(), version));
        hears.lock().unwrap().push((notice.sequence().get(), notice.kind(), name, title));
    });
    session.dispatch(step("read")).unwrap();
    session.snapshot(SnapshotOptions::default()).unwrap();
    session.rollback_to(0).unwrap();
    let name = Some(("plan.step_added".to_owned(), 1));
    let expected = [
        (1, RecordKind::Declare, None, None),
        (2, RecordKind::Dispatch, name, Some("read".to_owned())),
        (3, RecordKind::Snapshot, None, None),
        (4, RecordKind::Rollback, None, None),
    ];
    assert_eq!(*heard.lock().unwrap(), expected);
}

#[test]
fn they_are_told_once_the_levels_promise_holds() {
    for durability in [Durability::Boundary, Durability::Every] {
        let home = home_with(|options| options.durability = durability);
        let session = home.session();
        let (hears, heard) = heard();
        let handle = Arc::new(Mutex::new(Some(session.clone())));
        let looks = Arc::clone(&handle);
        session.log().subscribe(move |notice| {
            let synced = looks.lock().unwrap().as_ref().unwrap().log().synced_end();
            hears.lock().unwrap().push((notice.kind(), notice.sequence() < synced));
        });
        session.dispatch(step("read")).unwrap();
        session.snapshot(SnapshotOptions::default()).unwrap();
        let durable = durability == Durability::Every;
        let expected =
            [(RecordKind::Declare, durable), (RecordKind::Dispatch, durable), (RecordKind::Snapshot, true)];
        assert_eq!(*heard.lock().unwrap(), expected, "{durability:?}");
        handle.lock().unwrap().take();
    }
}

#[test]
fn nobody_is_told_of_what_may_be_lost() {
    let home = home_with(|options| options.durability = Durability::Every);
    let session = home.session();
    session.dispatch(step("kept")).unwrap();
    let (hears, heard) = heard();
    session.log().subscribe(move |notice| hears.lock().unwrap().push(notice.sequence().get()));
    home.disk.inject(Fault::FailNth { op: Op::SyncData, nth: 1, error: std::io::ErrorKind::Other });
    assert!(matches!(session.dispatch(step("unknown")), Err(Error::DurabilityUnknown { .. })));
    assert!(matches!(session.dispatch(step("refused")), Err(Error::Poisoned { .. })));
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn one_that_panics_costs_a_warning_and_nothing_else() {
    let home = home();
    let session = home.session();
    session.log().subscribe(|notice| panic!("deaf at {}", notice.sequence()));
    let (hears, heard) = heard();
    session.log().subscribe(move |notice| hears.lock().unwrap().push(notice.sequence().get()));
    let sequence = session.dispatch(step("read")).unwrap();
    assert_eq!(*heard.lock().unwrap(), [1, 2], "the others are told");
    assert_eq!(titles::<Plan>(&session), ["read"], "the record is kept");
    let warnings = session.log().take_panics();
    assert_eq!(warnings.len(), 2);
    assert_eq!((warnings[1].sequence, warnings[1].message.as_str()), (sequence, "deaf at 2"));
    assert!(session.log().take_panics().is_empty());
    // Only the last of many are kept.
    for _ in 0..100 {
        session.dispatch(step("more")).unwrap();
    }
    let warnings = session.log().take_panics();
    assert_eq!((warnings.len(), warnings[63].sequence), (64, session.log().position().unwrap()));
}

#[test]
fn one_that_dispatches_is_told_of_its_own_after_the_others_heard_the_first() {
    let home = home();
    let session = home.session();
    session.dispatch(Noted { text: "declared".to_owned() }).unwrap();
    let (first, second) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (hears, handle) = (Arc::clone(&first), session.clone());
    session.log().subscribe(move |notice| {
        hears.lock().unwrap().push(notice.sequence().get());
        if let Some(step) = notice.event::<StepAdded>() {
            let sequence = handle.dispatch(Noted { text: step.title.clone() }).unwrap();
            assert_eq!(handle.log().position(), Some(sequence), "it is kept when the call returns");
        }
    });
    let hears = Arc::clone(&second);
    session.log().subscribe(move |notice| hears.lock().unwrap().push(notice.sequence().get()));
    session.dispatch(step("read")).unwrap();
    session.dispatch(step("write")).unwrap();
    let all: Vec<u64> = (3..=session.log().position().unwrap().get()).collect();
    assert_eq!((&*first.lock().unwrap(), &*second.lock().unwrap()), (&all, &all));
    assert_eq!(session.log().slice::<Notes>().unwrap().len(), 3);
    session.close().unwrap();
}

#[test]
fn a_subscription_lasts_from_its_call_to_its_end() {
    let home = home();
    let session = home.session();
    session.dispatch(step("before")).unwrap();
    let (hears, heard) = heard();
    let (late_hears, late) = self::heard();
    let handle = session.clone();
    let subscription = session.log().subscribe(move |notice| {
        hears.lock().unwrap().push(notice.sequence().get());
        if notice.sequence() == 3 {
            // A record that is not yet delivered, and a new subscriber that receives only later
            // ones.
            handle.dispatch(step("during")).unwrap();
            let late_hears = Arc::clone(&late_hears);
            handle.log().subscribe(move |notice| late_hears.lock().unwrap().push(notice.sequence().get()));
        }
    });
    session.dispatch(step("begins")).unwrap();
    session.dispatch(step("goes on")).unwrap();
    session.log().unsubscribe(subscription);
    session.log().unsubscribe(subscription);
    session.dispatch(step("ended")).unwrap();
    assert_eq!(*heard.lock().unwrap(), [3, 4, 5]);
    assert_eq!(*late.lock().unwrap(), [5, 6]);
    session.close().unwrap();
}
