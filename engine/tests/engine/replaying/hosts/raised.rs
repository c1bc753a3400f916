//! Hosts with a raised version of events and items, over logs of the previous version: recorded
//! values are upcast before they are compared.

use foldlog::inspect::{LogReader, ReplayReducers};
use foldlog::replay::Replay;
use foldlog::{Error, Event, Item, Policy, Session, SessionTypes, Slice, SliceOp, UpcastError, Value};
use serde::{Deserialize, Serialize};

use super::host::Stored;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Planned {
    title: String,
    dice: u64,
}

impl Event for Planned {
    const NAME: &'static str = "planned";
}

/// Renames `title` to `name`, and adds the planner: Ada, for older events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PlannedBy {
    name: String,
    dice: u64,
    who: String,
}

impl PlannedBy {
    fn ada(name: &str, dice: u64) -> PlannedBy {
        PlannedBy { name: name.to_owned(), dice, who: "ada".to_owned() }
    }
}

impl Event for PlannedBy {
    const NAME: &'static str = "planned";
    const VERSION: u32 = 2;

    fn upcast(_: u32, value: Value) -> Result<Value, UpcastError> {
        let Value::Map(mut pairs) = value else { return Err(UpcastError::new("no map")) };
        for (key, value) in &mut pairs {
            if key.as_str() == Some("title") {
                if value.as_str() == Some("unreadable") {
                    return Err(UpcastError::new("nobody knows what it was"));
                }
                *key = Value::from("name");
            }
        }
        pairs.push((Value::from("who"), Value::from("ada")));
        Ok(Value::Map(pairs))
    }
}

/// Steps as texts; in the second version with a mark.
struct Steps;

impl Slice for Steps {
    const NAME: &'static str = "steps";
    type Item = String;
}

struct MarkedSteps;

impl Slice for MarkedSteps {
    const NAME: &'static str = "steps";
    const ITEM_VERSION: u32 = 2;
    type Item = (String, bool);

    fn upcast_item(_: u32, value: Value) -> Result<Value, UpcastError> {
        Ok(Value::Array(vec![value, Value::from(false)]))
    }
}

struct Diary;

impl Slice for Diary {
    const NAME: &'static str = "diary";
    type Item = Planned;
}

struct DiaryBy;

impl Slice for DiaryBy {
    const NAME: &'static str = "diary";
    type Item = PlannedBy;
}

fn first() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Steps>()
        .reducer::<Steps, Planned>(|_, planned, _| Ok(SliceOp::Append(planned.title.clone())))
        .slice_with::<Diary>(Policy::Log)
        .append_all::<Diary>()
        .build()
        .unwrap()
}

fn second() -> SessionTypes {
    SessionTypes::builder()
        .slice::<MarkedSteps>()
        .reducer::<MarkedSteps, PlannedBy>(|_, planned, _| {
            Ok(SliceOp::Append((planned.name.clone(), planned.dice > 3)))
        })
        .slice_with::<DiaryBy>(Policy::Log)
        .append_all::<DiaryBy>()
        .build()
        .unwrap()
}

/// Records steps in the first version, and replays a host of the second.
fn replayed(all: bool, first_ones: &[(&str, u64)], second_ones: &[PlannedBy]) -> Vec<String> {
    let stored = Stored::new();
    let session = stored.store().create(&first()).unwrap();
    for (title, dice) in first_ones {
        session.dispatch(Planned { title: (*title).to_owned(), dice: *dice }).unwrap();
    }
    let log = LogReader::open(session.dir()).unwrap();
    let host = |session: Session| {
        second_ones.iter().try_for_each(|planned| session.dispatch(planned.clone()).map(drop))
    };
    let types = second();
    let replay = Replay::new(&log, &types);
    match if all { replay.all() } else { replay }.run(host) {
        Ok(report) => report.divergences.iter().map(ToString::to_string).collect(),
        Err(Error::Diverged(first)) => vec![first.to_string()],
        Err(error) => panic!("{error}"),
    }
}

/// After a version was raised, every record of the previous version differed by the version alone.
#[test]
fn old_events_and_items_are_brought_up_to_date_before_they_are_compared() {
    let first_ones = [("cook", 1), ("eat", 2), ("sleep", 3)];
    let found = replayed(true, &first_ones, &first_ones.map(|(name, dice)| PlannedBy::ada(name, dice)));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_difference_that_a_raised_version_does_not_explain_is_shown_at_its_path() {
    let first_ones = [("cook", 1), ("eat", 2), ("sleep", 5)];
    let ben = PlannedBy { who: "ben".to_owned(), ..PlannedBy::ada("cook", 1) };
    let second_ones = [ben, PlannedBy::ada("eat", 2), PlannedBy::ada("sleep", 5)];
    assert_eq!(
        replayed(true, &first_ones, &second_ones),
        [
            r#"record 2 (dispatch `planned`) differs at $.event.who: recorded "ada", produced "ben""#,
            r#"record 4 (dispatch `planned`) differs in slice `steps` at $.added[0][1]: recorded false, produced true"#,
        ]
    );
    // A missing event is distinguished from a changed one.
    let left_out = replayed(true, &first_ones[..2], &[PlannedBy::ada("eat", 2)]);
    assert_eq!(
        left_out,
        [
            "record 2 (dispatch `planned`) was not produced: the host went on with record 3 (dispatch `planned`)"
        ]
    );
}

#[test]
fn an_old_event_that_cannot_be_brought_up_to_date_is_named_with_the_reason() {
    let found = replayed(false, &[("unreadable", 1)], &[PlannedBy::ada("unreadable", 1)]);
    assert!(found[0].starts_with("record 2 (dispatch `planned`) differs at $.event ("), "{}", found[0]);
    assert!(found[0].contains("upcasting from version 1: nobody knows what it was"), "{}", found[0]);
}

/// A reducer that replaced all items by equal ones removed those of an older version, so its replay
/// diverged at once. The fold of the produced records reported every item of an older version as
/// different.
#[test]
fn a_reducer_that_keeps_equal_items_keeps_those_of_an_older_version() {
    let replaced = || {
        SessionTypes::builder()
            .slice::<MarkedSteps>()
            .reducer::<MarkedSteps, PlannedBy>(|steps, planned, _| {
                let mut all: Vec<Item<(String, bool)>> = steps.iter().cloned().map(Item::from).collect();
                all.push((planned.name.clone(), false).into());
                Ok(SliceOp::Replace(all))
            })
            .slice_with::<DiaryBy>(Policy::Log)
            .append_all::<DiaryBy>()
            .build()
            .unwrap()
    };
    let stored = Stored::new();
    let session = stored.store().create(&first()).unwrap();
    for title in ["cook", "eat", "sleep"] {
        session.dispatch(Planned { title: title.to_owned(), dice: 1 }).unwrap();
    }
    let log = LogReader::open(session.dir()).unwrap();
    let host = |session: Session| {
        let said = ["cook", "eat", "sleep"].map(|name| PlannedBy::ada(name, 1));
        said.into_iter().try_for_each(|planned| session.dispatch(planned).map(drop))
    };
    for types in [second(), replaced()] {
        Replay::new(&log, &types).run(host).unwrap();
        let options = ReplayReducers { fold_produced: true, ..ReplayReducers::default() };
        let reduced = log.replay_reducers(&types, &options).unwrap();
        assert!(reduced.holds() && reduced.slices.is_empty() && reduced.stopped.is_none(), "{reduced}");
        assert_eq!(reduced.events, 3);
    }
}
