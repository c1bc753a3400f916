//! Events and slices that a host declares at run time, alone and together with Rust types.

use foldlog::{
    BuiltInReducer, DynamicEvent, DynamicSlice, Error, Event, EventSlice, Policy, RecordNotification,
    SessionTypes, SliceOp, UndeclaredEvents, UpcastError, Value,
};
use foldlog_test_support::host::*;
use foldlog_test_support::named_host::{self, value};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::{Arc, Mutex};

use super::{home, kinds, step, stored, titles};

fn values(session: &foldlog::Session, slice: &str) -> Vec<serde_json::Value> {
    session.dynamic().view(slice).unwrap().iter().map(|item| item.to_json().unwrap()).collect()
}

/// A mistyped name created a slice of its own, which was never read.
#[test]
fn names_that_nobody_declared_are_refused_where_the_host_asks_for_it() {
    let types = SessionTypes::builder()
        .dynamic_slice("cards".to_owned(), Policy::State)
        .dynamic_event(
            DynamicEvent::new("card.moved".to_owned()).bind("cards".to_owned(), BuiltInReducer::Append),
        )
        .dynamic_event(DynamicEvent::new("swept".to_owned()))
        .build()
        .unwrap();
    let home = super::home_with(|options| options.undeclared_events = UndeclaredEvents::Refuse);
    let session = home.store.create(&types).unwrap();
    session.dynamic().dispatch("card.moved", json!({"id": 1})).unwrap();
    session.dynamic().dispatch("swept", Value::Nil).unwrap();
    let before = session.log().position();
    for (name, nearest) in
        [("card.move", "card.moved"), ("crad.moved", "card.moved"), ("", "swept"), ("wept", "swept")]
    {
        let refused = session.dynamic().dispatch(name, json!({"id": 2})).unwrap_err();
        let Error::UndeclaredEvent { event, nearest: found } = &refused else { panic!("{refused:?}") };
        assert_eq!((event.as_str(), found.as_deref()), (name, Some(nearest)));
        let said = format!("event `{name}` is not declared: did you mean `{nearest}`?");
        assert_eq!(refused.to_string(), said);
    }
    assert_eq!(session.log().position(), before, "nothing is recorded");
    // A Rust type declares nothing either: without a reducer its events went to a slice that was
    // never read.
    let refused = session.dispatch(step("typed")).unwrap_err();
    assert!(
        matches!(&refused, Error::UndeclaredEvent { event, .. } if event == "plan.step_added"),
        "{refused:?}"
    );
    assert_eq!(session.log().position(), before, "nothing is recorded");
    let typed = home.store.create(&foldlog_test_support::host::types()).unwrap();
    typed.dispatch(step("declared")).unwrap();
    assert!(matches!(typed.dispatch(Undeclared { value: 1 }), Err(Error::UndeclaredEvent { .. })));
    let nothing = home.store.create(&SessionTypes::builder().build().unwrap()).unwrap();
    let refused = nothing.dynamic().dispatch("card.moved", json!({})).unwrap_err();
    assert_eq!(refused.to_string(), "event `card.moved` is not declared: no event is declared");

    // By default, a host needs no declarations.
    let home = super::home();
    let session = home.store.create(&types).unwrap();
    session.dynamic().dispatch("card.move", json!({"id": 1})).unwrap();
    assert_eq!(values(&session, "card.move"), [json!({"id": 1})]);
}

/// A host that learns its events elsewhere, such as a Python binding, needed a Rust type for each
/// of them.
#[test]
fn a_host_that_knows_no_types_declares_them_by_name_and_finds_them_again() {
    let home = home();
    // As another process would send them: none of this is known at compile time.
    let reducers: Vec<(String, String, BuiltInReducer)> = serde_json::from_value(json!([
        ["card.moved", "cards", {"upsert": "card.id"}],
        ["card.dropped", "cards", {"remove": "card.id"}],
        ["card.moved", "last", "replace"],
        ["swept", "cards", "clear"],
        ["card.moved", "history", "append"],
    ]))
    .unwrap();
    let mut builder = SessionTypes::builder()
        .dynamic_slice("cards".to_owned(), Policy::State)
        .dynamic_slice("last".to_owned(), Policy::State)
        .dynamic_slice("history".to_owned(), Policy::Log);
    for name in ["card.moved", "card.dropped", "swept"] {
        let of = reducers.iter().filter(|(event, ..)| event == name);
        let event = of.fold(DynamicEvent::new(name.to_owned()), |event, (_, slice, reducer)| {
            event.bind(slice.clone(), reducer.clone())
        });
        builder = builder.dynamic_event(event);
    }
    let types = builder.build().unwrap();
    let session = home.store.create(&types).unwrap();
    let moved =
        |id: u64, to: &str| session.dynamic().dispatch("card.moved", json!({"card": {"id": id}, "to": to}));
    moved(1, "todo").unwrap();
    moved(2, "todo").unwrap();
    moved(1, "done").unwrap();
    let snapshot = session.snapshot(Default::default()).unwrap();
    session.dynamic().dispatch("card.dropped", json!({"card": {"id": 2}})).unwrap();
    assert_eq!(values(&session, "cards"), [json!({"card": {"id": 1}, "to": "done"})]);
    session.dynamic().dispatch("swept", Value::Nil).unwrap();
    assert!(session.dynamic().view("cards").unwrap().is_empty());
    session.rollback(&snapshot).unwrap();
    let session = home.reopened(session, &types);
    let cards = session.dynamic().view("cards").unwrap();
    let found = cards.find_value(&Value::from(2_u64)).unwrap().unwrap();
    assert_eq!(found.get("to"), Some(&Value::from("todo")));
    assert_eq!(cards.find_value(&Value::from(7_u64)).unwrap(), None);
    assert_eq!(values(&session, "last"), [json!({"card": {"id": 1}, "to": "done"})]);
    let history = session.dynamic().log("history").unwrap();
    assert_eq!(history.len(), 3);
    assert_eq!(history.get(1).unwrap().unwrap().get("to"), Some(&Value::from("todo")));
    let before = session.log().position();
    let error = session.dynamic().dispatch("card.moved", json!({"to": "nowhere"})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the reducer of `cards` refused `card.moved`: the event contains no value at `card.id`"
    );
    assert_eq!(session.log().position(), before, "nothing is recorded");
}

#[test]
fn a_value_of_a_declared_event_is_recorded_as_its_type_would_be_and_one_of_another_shape_is_refused() {
    let home = home();
    let (typed, named) = (home.session(), home.session());
    typed.dispatch(step("read")).unwrap();
    // The fields in another order, as JSON may have them.
    named.dynamic().dispatch("plan.step_added", json!({"part": 0, "title": "read"})).unwrap();
    let bytes =
        |session: &foldlog::Session| session.dynamic().state().unwrap().slices["plan"].items[0].bytes.clone();
    assert_eq!(bytes(&typed), bytes(&named));
    assert_eq!(titles::<Plan>(&named), ["read"]);
    assert_eq!(values(&named, "plan"), [json!({"title": "read", "part": 0})]);
    let refused = |value: serde_json::Value| {
        named.dynamic().dispatch("plan.step_added", value).unwrap_err().to_string()
    };
    assert!(refused(json!({"title": "read"})).contains("missing field `part`"));
    assert!(refused(json!({"title": "read", "part": 0, "due": 1})).contains("its type has no field due"));
    assert!(refused(json!([])).contains("plan.step_added"));
    assert_eq!(kinds(&named), ["opened", "declare", "dispatch"]);
}

#[test]
fn a_log_opens_whichever_way_the_host_declares_its_names() {
    let home = home();
    let session = home.session();
    session.dispatch(step("one")).unwrap();
    session.dispatch(Noted { text: "well".to_owned() }).unwrap();
    session.dispatch(DraftEdited { place: 9, line: "a line".to_owned() }).unwrap();
    session.dispatch(Undeclared { value: 7 }).unwrap();
    // An undeclared event is stored as its type here, and still shown as a value.
    assert_eq!(values(&session, "undeclared"), [json!({"value": 7})]);
    let state = session.dynamic().state().unwrap();
    let session = home.reopened(session, &named_host::types());
    assert_eq!(session.dynamic().state().unwrap(), state);
    assert_eq!(values(&session, "draft"), [json!("a line")]);
    session.dynamic().dispatch("plan.step_added", value(&step("two"))).unwrap();
    session.dynamic().dispatch("undeclared", json!({"value": 8})).unwrap();
    let state = session.dynamic().state().unwrap();
    assert_eq!(kinds(&session).iter().filter(|kind| *kind == "declare").count(), 4, "none was needed again");
    let session = home.reopened(session, &types());
    assert_eq!(session.dynamic().state().unwrap(), state);
    assert_eq!(titles::<Plan>(&session), ["one", "two"]);
    let undeclared = session.view::<EventSlice<Undeclared>>().unwrap();
    assert_eq!(undeclared.iter().map(|event| event.value).collect::<Vec<_>>(), [7, 8]);
    // A value next to an event, in the process that knows its type.
    session.dispatch(Undeclared { value: 9 }).unwrap();
    session.dynamic().dispatch("undeclared", json!({"value": 10})).unwrap();
    assert_eq!(session.view::<EventSlice<Undeclared>>().unwrap().len(), 4);
    assert_eq!(
        session.dynamic().latest("undeclared").unwrap().unwrap().get("value"),
        Some(&Value::from(10_u64))
    );
}

/// Items of an event declared at run time without a slice were shown as recorded, whatever their
/// version, and seeded ones counted as version 1.
#[test]
fn the_items_of_an_event_without_a_slice_are_of_its_version() {
    let types = |version| {
        let found = DynamicEvent::new("found").version(version).upcast(|from, value| match value.as_u64() {
            Some(metres) if from == 1 => Ok(Value::from(metres * 100)),
            _ => Ok(value),
        });
        SessionTypes::builder().dynamic_event(found).build().unwrap()
    };
    let home = home();
    let session = home.store.create(&types(1)).unwrap();
    session.dynamic().dispatch("found", 2_u64).unwrap();
    let session = home.reopened(session, &types(2));
    assert_eq!(values(&session, "found"), [json!(200)], "recorded in metres, and shown in centimetres");
    session.dynamic().dispatch("found", 150_u64).unwrap();
    assert_eq!(values(&session, "found"), [json!(200), json!(150)]);
    session.dynamic().seed("found", vec![Value::from(30_u64)]).unwrap();
    let session = home.reopened(session, &types(2));
    assert_eq!(values(&session, "found"), [json!(30)]);
    assert_eq!(session.dynamic().latest("found").unwrap().as_deref(), Some(&Value::from(30_u64)));
    // A host that does not know the event keeps the version that the log knows.
    let session = home.reopened(session, &SessionTypes::builder().build().unwrap());
    session.dynamic().seed("found", vec![Value::from(40_u64)]).unwrap();
    let session = home.reopened(session, &types(2));
    assert_eq!(values(&session, "found"), [json!(40)]);
}

/// After a process had dispatched a value by the name of an undeclared event, it kept the version
/// that it had found then, even after it had recorded a later one.
#[test]
fn a_value_is_recorded_at_the_version_that_the_log_knows_by_now() {
    #[derive(Clone, Serialize, Deserialize)]
    struct Undeclared {
        value: i64,
    }
    impl Event for Undeclared {
        const NAME: &'static str = "undeclared";
        const VERSION: u32 = 2;
    }
    let home = home();
    let session = home.store.create(&SessionTypes::builder().build().unwrap()).unwrap();
    session.dynamic().dispatch("undeclared", json!({"value": 1})).unwrap();
    session.dynamic().dispatch("undeclared", json!({"value": 2})).unwrap();
    session.dispatch(Undeclared { value: 3 }).unwrap();
    session.dynamic().dispatch("undeclared", json!({"value": 4})).unwrap();
    let versions: Vec<u32> = session.dynamic().state().unwrap().slices["undeclared"]
        .items
        .iter()
        .map(|item| item.version)
        .collect();
    assert_eq!(versions, [1, 1, 2, 2]);
}

#[test]
fn declarations_of_one_name_agree_or_are_refused_with_what_both_say() {
    let refused = |types: foldlog::SessionTypesBuilder| types.build().unwrap_err().to_string();
    let step = || DynamicEvent::new("plan.step_added");
    let same = builder().dynamic_slice("plan", Policy::State).dynamic_event("noted").dynamic_event(
        step().append("plan").replace("current_step").upsert("step_of_part", "part").append("preview"),
    );
    let session = home().store.create(&same.build().unwrap()).unwrap();
    session.dynamic().dispatch("noted", json!({"text": "held as its type"})).unwrap();
    assert_eq!(session.log().slice::<Notes>().unwrap().get(0).unwrap().unwrap().text, "held as its type");

    let error = refused(builder().dynamic_slice("plan", Policy::Log));
    assert_eq!(error, "slice `plan` is declared as log, but was first declared as state");
    let error = refused(builder().dynamic_event(DynamicEvent::new("noted").version(2).append("notes")));
    assert_eq!(
        error,
        "`noted` is declared twice: by Rust type `foldlog_test_support::host::Noted`, version 1: append `notes`, reducer \
         `note_sizes`; and at run time, version 2: append `notes`"
    );
    let error = refused(builder().dynamic_slice(DynamicSlice::new("draft").items("line", 2), Policy::State));
    assert!(
        error.contains("items `draft_line` of version 2, and at run time with items `line` of version 2"),
        "{error}"
    );
    let error = refused(builder().dynamic_slice(DynamicSlice::new("plan").keyed_by("part"), Policy::State));
    assert!(error.contains("without keys, and at run time with keys at `part`"), "{error}");
    let error = refused(builder().dynamic_event(DynamicEvent::new("other").append("plan")));
    assert!(error.contains("StepAdded`, and for the event `other`, which has no Rust type"), "{error}");
    let error = refused(
        SessionTypes::builder()
            .dynamic_slice("plan", Policy::State)
            .dynamic_event(DynamicEvent::new("a").append("plan"))
            .dynamic_event(DynamicEvent::new("b").append("plan")),
    );
    assert_eq!(error, "`plan` is declared twice: with events `a` as its items, and with events `b`");
    let twice = |second: DynamicEvent| {
        SessionTypes::builder()
            .dynamic_slice("plan", Policy::State)
            .dynamic_event(DynamicEvent::new("a").append("plan"))
            .dynamic_event(second)
    };
    assert!(twice(DynamicEvent::new("a").append("plan")).build().is_ok(), "twice alike is once");
    assert!(twice("a".into()).build().is_ok());
    let error = refused(twice(DynamicEvent::new("a").replace("plan")));
    assert!(
        error.contains("version 1: append `plan`; and at run time, version 1: replace `plan`"),
        "{error}"
    );
    let error = refused(twice(DynamicEvent::new("a").reduce("plan", |_, _, _| Ok(SliceOp::nothing()))));
    assert!(error.contains("reducer `plan`"), "a closure cannot be compared: {error}");

    // The additions of a second declaration were silently ignored.
    let error = refused(twice(DynamicEvent::new("a").append("plan").upcast(|_, value| Ok(value))));
    assert!(error.contains("an upcast, which cannot be compared"), "{error}");
    let error = refused(twice(DynamicEvent::new("a").append("plan").not_compared("$.event.at")));
    assert!(error.contains("without comparing `$.event.at`"), "{error}");
    let log = |items| DynamicSlice::new("log").tail_items(items);
    let logs = |one, other| {
        SessionTypes::builder().dynamic_slice(one, Policy::Log).dynamic_slice(other, Policy::Log)
    };
    let error = refused(logs(log(2), log(3)));
    assert!(error.contains("with 2 last items for its reducers, and with 3"), "{error}");
    let converted = log(2).upcast(|_, value| Ok(value));
    assert!(refused(logs(log(2), converted.clone())).contains("an upcast, which cannot be compared"));
    assert!(logs(converted.clone(), converted.clone()).build().is_ok(), "the same closure is the same");
    assert!(logs(converted, "log".into()).build().is_ok(), "the second one says nothing of it");

    let log = || SessionTypes::builder().dynamic_slice("log", Policy::Log);
    for reducer in [
        BuiltInReducer::Replace,
        BuiltInReducer::Upsert("id".to_owned()),
        BuiltInReducer::Remove("id".to_owned()),
        BuiltInReducer::Clear,
    ] {
        let types = log().dynamic_event(DynamicEvent::new("e").bind("log", reducer));
        assert!(matches!(types.build(), Err(Error::LogOnlyGrows { .. })));
    }
    let types = SessionTypes::builder().dynamic_slice(DynamicSlice::new("x").keyed_by("a..b"), Policy::State);
    assert_eq!(refused(types), "slice `x`: `a..b` is not a path of a value, such as `card.id` or `ids[0]`");
    let unknown = SessionTypes::builder().dynamic_event(DynamicEvent::new("e").append("nowhere"));
    assert!(matches!(unknown.build(), Err(Error::NoSuchSlice { .. })));

    // Against a log with other declarations.
    let home = home();
    let session = home
        .store
        .create(&log().dynamic_event(DynamicEvent::new("e").append("log")).build().unwrap())
        .unwrap();
    session.dynamic().dispatch("e", json!(1)).unwrap();
    let id = session.id();
    session.close().unwrap();
    let other = SessionTypes::builder()
        .dynamic_slice("log", Policy::State)
        .dynamic_event(DynamicEvent::new("e").append("log"));
    let error = home.store.open_session(id, &other.build().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "slice `log` is declared as state, but was first declared as log");
    let none = SessionTypes::builder().build().unwrap();
    let error = home.store.open_session(id, &none).unwrap_err();
    assert!(error.to_string().contains("`retired`"), "{error}");
    let retired = SessionTypes::builder().retired("e", "log").build().unwrap();
    assert_eq!(home.store.open_session(id, &retired).unwrap().dynamic().log("log").unwrap().len(), 1);
}

#[test]
fn older_recordings_are_brought_up_to_date_and_newer_ones_are_refused() {
    let home = home();
    let types = |version: u32| {
        let event = DynamicEvent::new("said").version(version).append("chat");
        let event = event.upcast(|version, value| match value {
            Value::Str(text) if version == 1 => Ok(json!({ "text": text }).into()),
            _ => Err(UpcastError::new("version 1 was text")),
        });
        let chat = SessionTypes::builder().dynamic_slice("chat", Policy::State);
        chat.dynamic_event(event).build().unwrap()
    };
    let session = home.store.create(&types(1)).unwrap();
    session.dynamic().dispatch("said", "hello").unwrap();
    let session = home.reopened(session, &types(2));
    session.dynamic().dispatch("said", json!({"text": "bye"})).unwrap();
    assert_eq!(values(&session, "chat"), [json!({"text": "hello"}), json!({"text": "bye"})]);
    assert_eq!(stored(&session, "chat")[0], json!("hello"), "what is recorded stays");
    let id = session.id();
    session.close().unwrap();
    let error = home.store.open_session(id, &types(1)).unwrap_err();
    assert!(matches!(error, Error::NewerVersion { stored: 2, supported: 1, .. }));
}

#[test]
fn values_keep_what_json_lacks_and_what_no_record_can_hold_is_refused() {
    let home = home();
    let types = || {
        SessionTypes::builder()
            .dynamic_slice("s", Policy::State)
            .dynamic_event(DynamicEvent::new("e").append("s"))
    };
    let types = types().build().unwrap();
    let session = home.store.create(&types).unwrap();
    let odd = Value::Map(vec![
        (Value::Unsigned(1), Value::Bin(vec![0, 255])),
        (Value::from("x"), Value::Ext(-5, vec![1])),
        (Value::from("n"), Value::F64(f64::INFINITY)),
    ]);
    session.dynamic().dispatch("e", odd.clone()).unwrap();
    session.dynamic().dispatch("e", "x".repeat(2_000_000)).unwrap();
    let session = home.reopened(session, &types);
    let items = session.dynamic().view("s").unwrap();
    assert_eq!(items.get(0), Some(&odd));
    assert_eq!(items.get(1).and_then(Value::as_str).map(str::len), Some(2_000_000));
    let deep = (0..500).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
    assert!(matches!(session.dynamic().dispatch("e", deep), Err(Error::Encode { .. })));
    assert!(matches!(session.dynamic().dispatch("e", Value::Ext(1, vec![0; 40])), Err(Error::Encode { .. })));
    assert!(matches!(session.dynamic().view("nowhere"), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(session.dynamic().log("s"), Err(Error::NoSuchSlice { .. })));
}

/// A Rust type with the name of an event that is declared at run time.
#[derive(Serialize, Deserialize)]
struct Typed(u8);

impl Event for Typed {
    const NAME: &'static str = "e";
}

#[test]
fn subscribers_are_told_of_values_and_one_name_has_one_type() {
    let types = SessionTypes::builder().dynamic_slice("s", Policy::State);
    let types = types.dynamic_event(DynamicEvent::new("e").append("s")).build().unwrap();
    let session = home().store.create(&types).unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    session.log().subscribe(move |told: &RecordNotification| {
        hears.lock().unwrap().extend(told.event_value().cloned());
    });
    session.dynamic().dispatch("e", 7_u64).unwrap();
    session.dynamic().dispatch("unknown", "x").unwrap();
    assert_eq!(*heard.lock().unwrap(), [Value::from(7_u64), Value::from("x")]);
    let error = session.dispatch(Typed(7)).unwrap_err().to_string();
    assert!(
        error.contains("declared twice: by a declaration at run time, and dispatched as Rust type"),
        "{error}"
    );
    assert_eq!(values(&session, "s"), [json!(7)]);
}
