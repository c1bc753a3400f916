//! What reducers may do, the size of their records, and the state after they fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::{Error, Item, Policy, Session, SessionTypes, SliceOp, SnapshotOptions};
use foldlog_test_support::host::*;

use super::{home, kinds, part, step, stored, titles};

#[test]
fn a_reducer_that_refuses_or_panics_leaves_no_trace_of_the_dispatch() {
    let panics = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&panics);
    let types = SessionTypes::builder()
        .slice::<Doubts>()
        .append_all::<Doubts>()
        .slice_with::<GoodOnes>(Policy::Log)
        .reducer::<GoodOnes, Doubted>(move |ones, doubted, _| {
            assert!(!asked.load(Ordering::Relaxed), "this reducer is out of order");
            if doubted.good { Ok(SliceOp::Append(ones.len())) } else { Err("it is doubtful".to_owned()) }
        });
    let home = home();
    let session = home.store.create(&types.build().unwrap()).unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&told);
    session.log().subscribe(move |_| hears.store(true, Ordering::Relaxed));
    let bytes = session.log().bytes();

    let refused = session.dispatch(Doubted { good: false }).unwrap_err();
    let message = "the reducer of `good_ones` refused `doubted`: it is doubtful";
    assert_eq!(refused.to_string(), message);
    panics.store(true, Ordering::Relaxed);
    match session.dispatch(Doubted { good: true }).unwrap_err() {
        Error::ReducerPanicked { slice, event, message } => {
            assert_eq!((slice.as_str(), event.as_str()), ("good_ones", "doubted"));
            assert_eq!(message, "this reducer is out of order");
        }
        other => panic!("{other:?}"),
    }

    assert_eq!(kinds(&session), ["opened"], "not even the declaration is recorded");
    assert_eq!(session.log().bytes(), bytes);
    assert!(stored(&session, "doubts").is_empty(), "the first reducer had taken it");
    assert!(!told.load(Ordering::Relaxed));
    panics.store(false, Ordering::Relaxed);
    session.dispatch(Doubted { good: true }).unwrap();
    assert_eq!(kinds(&session), ["opened", "declare", "dispatch"], "the session goes on");
    assert!(told.load(Ordering::Relaxed));
}

#[test]
fn a_predicate_that_panics_leaves_the_session_as_it_was() {
    let session = home().session();
    session.seed::<Plan>(vec![step("one"), step("two")]).unwrap();
    let (state, position) = (session.dynamic().state().unwrap(), session.log().position());
    let handle = session.clone();
    let clears = move || handle.clear_where::<Plan>(|_| panic!("no idea"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(clears)).is_err());
    assert_eq!((session.dynamic().state().unwrap(), session.log().position()), (state, position));
    session.clear_where::<Plan>(|step| step.title == "one").unwrap();
    assert_eq!(titles::<Plan>(&session), ["two"]);
}

fn last_body(session: &Session) -> usize {
    let mut len = 0;
    let last = session.log().position().unwrap();
    let read = session.log().records(last, last, |record| {
        len = record.body.len();
        Ok(())
    });
    read.unwrap();
    len
}

#[test]
fn one_line_changed_among_ten_thousand_is_a_short_record_that_keeps_the_order() {
    let home = home();
    let session = home.session();
    let mut lines: Vec<String> = (0..10_000).map(|n| format!("line {n}")).collect();
    session.seed::<Draft>(lines.clone()).unwrap();
    let mut edit = |place: usize, line: &str| {
        session.dispatch(DraftEdited { place, line: line.to_owned() }).unwrap();
        match line {
            "" => drop(lines.remove(place)),
            line => lines[place] = line.to_owned(),
        }
        let view = session.view::<Draft>().unwrap();
        assert!(view.iter().eq(&lines), "the order after {place}");
        let len = last_body(&session);
        assert!(len < 120, "{len} bytes for one line at {place}");
    };
    for place in [5_000, 0, 9_999, 5_000, 5_001, 4_999] {
        edit(place, "changed");
    }
    edit(5_000, "");
    edit(0, "");
    edit(9_997, "");
    // Equal text is no change, whether it is the same handle or a new value.
    session.dispatch(DraftEdited { place: 4_999, line: "changed".to_owned() }).unwrap();
    assert!(last_body(&session) < 60);
    let live = session.dynamic().state().unwrap();
    let again = home.reopened(session, &types());
    assert_eq!(again.dynamic().state().unwrap(), live);
    assert!(again.view::<Draft>().unwrap().iter().eq(&lines));
}

/// A reducer may return its own handles in any order, some twice, with new items between them.
#[test]
fn a_replacement_keeps_what_it_can_and_is_exactly_what_was_asked_for() {
    let types = SessionTypes::builder()
        .slice::<Draft>()
        .reducer::<Draft, LinesPasted>(|lines, pasted, _| {
            // `*3` is the item at place 3, anything else a new line.
            let items: Vec<Item<String>> = lines.items().collect();
            let wanted = pasted.lines.iter().map(|line| match line.strip_prefix('*') {
                Some(place) => items[place.parse::<usize>().unwrap()].clone(),
                None => line.clone().into(),
            });
            Ok(SliceOp::Replace(wanted.collect()))
        })
        .build()
        .unwrap();
    let home = home();
    let session = home.store.create(&types).unwrap();
    let mut now: Vec<String> = Vec::new();
    for wanted in [
        "a b c d e",
        "*0 *1 *2 *3 *4",
        "*4 *3 *2 *1 *0",
        "*0 *0 *0",
        "*2 x *0",
        "y *0 *1 *2 z",
        "*1 *2 *3 *4",
        "*0 new *1 *2 *3",
        "*0 *1 n1 n2 *2 *3 *4",
        "*0 *6",
        "*1 *0 *1 *0",
        "",
        "again",
    ] {
        let lines: Vec<String> = wanted.split_whitespace().map(str::to_owned).collect();
        let expected = lines.iter().map(|line| match line.strip_prefix('*') {
            Some(place) => now[place.parse::<usize>().unwrap()].clone(),
            None => line.clone(),
        });
        now = expected.collect();
        session.dispatch(LinesPasted { lines }).unwrap();
        assert_eq!(session.view::<Draft>().unwrap().iter().cloned().collect::<Vec<_>>(), now, "{wanted}");
    }
    let live = session.dynamic().state().unwrap();
    assert_eq!(home.reopened(session, &types).dynamic().state().unwrap(), live);
}

#[test]
fn an_item_knows_where_it_was_inserted() {
    let session = home().session();
    let first = session.seed::<Plan>(vec![step("one"), step("two")]).unwrap();
    let third = session.dispatch(step("three")).unwrap();
    let positions: Vec<_> = session.view::<Plan>().unwrap().items().map(|item| item.position()).collect();
    assert_eq!(positions, [Some((first, 0)), Some((first, 1)), Some((third, 0))]);
    let latest = session.log().latest::<Plan>().unwrap().unwrap();
    assert_eq!((latest.title.as_str(), latest.position()), ("three", Some((third, 0))));
    assert_eq!(Item::from(step("new")).position(), None);
}

#[test]
fn upsert_by_key_drops_equal_keys_and_puts_the_new_one_last() {
    let session = home().session();
    for (title, of) in [("a", 1), ("b", 2), ("c", 1), ("d", 3), ("e", 2)] {
        session.dispatch(part(title, of)).unwrap();
    }
    assert_eq!(titles::<StepOfPart>(&session), ["c", "d", "e"]);
    assert_eq!(titles::<CurrentStep>(&session), ["e"]);
    assert_eq!(titles::<Plan>(&session), ["a", "b", "c", "d", "e"]);
}

#[test]
fn an_event_that_nobody_declared_has_a_slice_of_its_own() {
    let home = home();
    let session = home.session();
    assert!(session.view::<foldlog::EventSlice<Undeclared>>().unwrap().is_empty());
    session.dispatch(Undeclared { value: 1 }).unwrap();
    let position = session.log().position().unwrap();
    session.dispatch(Undeclared { value: 2 }).unwrap();
    let values = |session: &Session| -> Vec<i64> {
        session.view::<foldlog::EventSlice<Undeclared>>().unwrap().iter().map(|event| event.value).collect()
    };
    let session = home.reopened(session, &types());
    assert_eq!(values(&session), [1, 2]);
    session.rollback_to(position).unwrap();
    assert_eq!(values(&session), [1], "it is STATE");
    session.clear::<foldlog::EventSlice<Undeclared>>().unwrap();
    session.seed::<foldlog::EventSlice<Undeclared>>(vec![Undeclared { value: 3 }]).unwrap();
    assert_eq!(values(&home.reopened(session, &types())), [3]);
}

/// A slice missing from the registration differs from an empty one.
#[test]
fn a_slice_that_nobody_declared_is_an_error_to_read() {
    struct Forgotten;
    impl foldlog::Slice for Forgotten {
        const NAME: &'static str = "forgotten";
        type Item = StepAdded;
    }
    let session = home().session();
    assert!(matches!(session.view::<Forgotten>(), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(session.log().latest::<Forgotten>(), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(session.seed::<Forgotten>(vec![]), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(session.clear::<Forgotten>(), Err(Error::NoSuchSlice { .. })));
    assert_eq!(kinds(&session), ["opened"]);
}

#[test]
fn an_upsert_finds_all_of_its_key_also_what_was_seeded_and_what_a_rollback_brought_back() {
    let home = home();
    let session = home.session();
    session.seed::<StepOfPart>(vec![part("a", 1), part("b", 2), part("c", 1)]).unwrap();
    let before = session.snapshot(SnapshotOptions::default()).unwrap();
    session.dispatch(part("d", 1)).unwrap();
    assert_eq!(titles::<StepOfPart>(&session), ["b", "d"]);
    session.clear_where::<StepOfPart>(|step| step.part == 1).unwrap();
    session.dispatch(part("e", 1)).unwrap();
    assert_eq!(titles::<StepOfPart>(&session), ["b", "e"]);
    session.rollback(&before).unwrap();
    session.dispatch(part("f", 1)).unwrap();
    assert_eq!(titles::<StepOfPart>(&session), ["b", "f"]);
    let session = home.reopened(session, &types());
    session.dispatch(part("g", 2)).unwrap();
    assert_eq!(titles::<StepOfPart>(&session), ["f", "g"]);
    session.reset().unwrap();
    session.dispatch(part("h", 2)).unwrap();
    assert_eq!(titles::<StepOfPart>(&session), ["h"]);
}

#[test]
fn a_key_that_panics_refuses_the_dispatch_and_spoils_nothing() {
    let home = home();
    let types = SessionTypes::builder()
        .slice::<StepOfPart>()
        .upsert_by::<StepOfPart, _>(|step| {
            assert!(step.part != 13, "no such part");
            step.part
        })
        .build()
        .unwrap();
    let session = home.store.create(&types).unwrap();
    session.dispatch(part("a", 1)).unwrap();
    let refused = session.dispatch(part("b", 13));
    assert!(matches!(&refused, Err(Error::ReducerPanicked { message, .. }) if message == "no such part"));
    // A seed calls no reducer: items without a key are accepted, and only a dispatch that reads
    // them is refused.
    session.seed::<StepOfPart>(vec![part("c", 1), part("d", 13)]).unwrap();
    assert_eq!(titles::<StepOfPart>(&session), ["c", "d"]);
    assert!(matches!(session.dispatch(part("e", 1)), Err(Error::ReducerPanicked { .. })));
    let session = home.reopened(session, &types);
    assert_eq!(titles::<StepOfPart>(&session), ["c", "d"]);
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Balance {
    owner: String,
    amount: i64,
}

struct Balances;

impl foldlog::Slice for Balances {
    const NAME: &'static str = "balances";
    type Item = Balance;
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Paid {
    owner: String,
    amount: i64,
}

impl foldlog::Event for Paid {
    const NAME: &'static str = "paid";
}

fn paid(owner: &str, amount: i64) -> Paid {
    Paid { owner: owner.to_owned(), amount }
}

fn balances() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Balances>()
        .keyed_by::<Balances, String>(|balance| balance.owner.clone())
        .reducer::<Balances, Paid>(|balances, paid, _| {
            let before = balances.find(&paid.owner).map_err(|error| error.to_string())?;
            match before.map_or(0, |balance| balance.amount) + paid.amount {
                amount if amount < 0 => Err(format!("{} has too little", paid.owner)),
                amount => Ok(SliceOp::Upsert(Balance { owner: paid.owner.clone(), amount })),
            }
        })
        .build()
        .unwrap()
}

/// A reducer that changed one of many items had to read and rewrite all of them.
#[test]
fn a_reducer_finds_an_item_by_its_key_and_changes_that_alone() {
    let home = home();
    let session = home.store.create(&balances()).unwrap();
    let of = |session: &Session| -> Vec<(String, i64)> {
        session.view::<Balances>().unwrap().iter().map(|one| (one.owner.clone(), one.amount)).collect()
    };
    let pairs = |pairs: &[(&str, i64)]| -> Vec<(String, i64)> {
        pairs.iter().map(|(owner, amount)| ((*owner).to_owned(), *amount)).collect()
    };
    session.seed::<Balances>(vec![Balance { owner: "cy".to_owned(), amount: 5 }]).unwrap();
    for event in [paid("ada", 3), paid("ben", 1), paid("ada", 4)] {
        session.dispatch(event).unwrap();
    }
    let before = session.snapshot(SnapshotOptions::default()).unwrap();
    let refused = session.dispatch(paid("ben", -2));
    assert!(matches!(&refused, Err(Error::Refused { reason, .. }) if reason == "ben has too little"));
    session.dispatch(paid("cy", 1)).unwrap();
    session.dispatch(paid("ben", -1)).unwrap();
    assert_eq!(of(&session), pairs(&[("ada", 7), ("cy", 6), ("ben", 0)]));
    let view = session.view::<Balances>().unwrap();
    session.rollback(&before).unwrap();
    assert_eq!(of(&session), pairs(&[("cy", 5), ("ben", 1), ("ada", 7)]));
    let session = home.reopened(session, &balances());
    session.dispatch(paid("ben", 2)).unwrap();
    assert_eq!(of(&session), pairs(&[("cy", 5), ("ada", 7), ("ben", 3)]));
    // A view is unchanged; a key of another type finds nothing, and is an error.
    let amount = |owner: &str| view.find(&owner.to_owned()).unwrap().map(|one| one.amount);
    assert_eq!((amount("ben"), amount("cy"), amount("nobody")), (Some(0), Some(6), None));
    let error = view.find(&1_u64).unwrap_err();
    assert!(error.to_string().contains("keys of type `u64`"), "{error}");
}

#[test]
fn an_upsert_in_a_slice_without_keys_is_refused() {
    let types = SessionTypes::builder()
        .slice::<Balances>()
        .reducer::<Balances, Paid>(|_, paid, _| {
            Ok(SliceOp::Upsert(Balance { owner: paid.owner.clone(), amount: paid.amount }))
        })
        .build()
        .unwrap();
    let session = home().store.create(&types).unwrap();
    let refused = session.dispatch(paid("ada", 1)).unwrap_err();
    assert!(refused.to_string().contains("it has no keys to upsert by"), "{refused}");
    assert_eq!(kinds(&session), ["opened"]);
    let log = SessionTypes::builder()
        .slice_with::<Balances>(Policy::Log)
        .keyed_by::<Balances, String>(|balance| balance.owner.clone())
        .build();
    assert!(matches!(log, Err(Error::LogOnlyGrows { operation: "keyed_by", .. })));
}
