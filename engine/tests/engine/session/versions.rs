//! Types that change while their logs stay.

use foldlog::{Error, Event, SessionTypes, Slice, SliceOp, UpcastError, Value};
use foldlog_test_support::host::Draft;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Home, home, home_with, stored};

/// A task as it was first recorded.
mod first {
    use super::*;

    #[derive(Serialize, Deserialize, Debug)]
    pub(super) struct TaskSet {
        pub(super) task: String,
    }

    impl Event for TaskSet {
        const NAME: &'static str = "task_set";
    }
}

/// The same with a title and an urgency.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct TaskSet {
    title: String,
    urgent: bool,
}

impl Event for TaskSet {
    const NAME: &'static str = "task_set";
    const VERSION: u32 = 2;

    fn upcast(version: u32, mut value: Value) -> Result<Value, UpcastError> {
        match (version, value.remove("task")) {
            (1, Some(title)) => {
                value.set("title", title);
                value.set("urgent", Value::from(false));
                Ok(value)
            }
            _ => Err(UpcastError::new("a task of version 1 has a field `task`")),
        }
    }
}

/// A slice of tasks of either version.
struct Tasks<E>(std::marker::PhantomData<E>);

impl<E: Event> Slice for Tasks<E> {
    const NAME: &'static str = "tasks";
    type Item = E;
}

fn types<E: Event>() -> SessionTypes {
    SessionTypes::builder().slice::<Tasks<E>>().append_all::<Tasks<E>>().build().unwrap()
}

fn old_session(home: &Home) -> foldlog::Session {
    let session = home.store.create(&types::<first::TaskSet>()).unwrap();
    session.dispatch(first::TaskSet { task: "old".to_owned() }).unwrap();
    session.dispatch(first::TaskSet { task: "x".repeat(200) }).unwrap();
    session
}

#[test]
fn an_event_of_an_older_version_is_read_as_the_present_one_and_its_bytes_stay() {
    // Large payloads are read in the same way.
    let home = home_with(|options| options.object_bytes_min = 100);
    let session = old_session(&home);
    let recorded = session.dynamic().state().unwrap();
    let session = home.reopened(session, &types::<TaskSet>());
    let read = |session: &foldlog::Session| -> Vec<(usize, bool)> {
        let view = session.view::<Tasks<TaskSet>>().unwrap();
        view.iter().map(|task| (task.title.len(), task.urgent)).collect()
    };
    assert_eq!(read(&session), [(3, false), (200, false)]);
    assert_eq!(session.dynamic().state().unwrap(), recorded, "stored bytes are never changed");
    let begin = session.log().position().unwrap();

    session.dispatch(TaskSet { title: "new".to_owned(), urgent: true }).unwrap();

    let session = home.reopened(session, &types::<TaskSet>());
    assert_eq!(read(&session), [(3, false), (200, false), (3, true)]);
    let versions = |session: &foldlog::Session| -> Vec<u32> {
        session.dynamic().state().unwrap().slices["tasks"].items.iter().map(|item| item.version).collect()
    };
    assert_eq!(versions(&session), [1, 1, 2]);
    assert_eq!(stored(&session, "tasks")[0], json!({"task": "old"}));
    // An export keeps each item as it was recorded, with its version.
    let export = session.log().export().unwrap();
    assert_eq!(export.slices[0].item_versions, [1, 1, 2]);
    let import = home.store.import(&export, &types::<TaskSet>(), Default::default()).unwrap();
    assert_eq!((read(&import), versions(&import)), (read(&session), vec![1, 1, 2]));
    // The old code cannot read records of the new one, and reports it.
    let error = home.store.import(&export, &types::<first::TaskSet>(), Default::default()).unwrap_err();
    assert!(matches!(error, Error::NewerVersion { .. }), "{error}");
    session.rollback_to(begin).unwrap();
    assert_eq!(read(&session), [(3, false), (200, false)]);
}

#[test]
fn a_recording_newer_than_the_code_is_refused_on_opening() {
    let home = home();
    let session = home.store.create(&types::<TaskSet>()).unwrap();
    session.dispatch(TaskSet { title: "new".to_owned(), urgent: true }).unwrap();
    let id = session.id();
    session.close().unwrap();
    match home.store.open_session(id, &types::<first::TaskSet>()) {
        Err(Error::NewerVersion { name, stored, supported }) => {
            assert_eq!((name.as_str(), stored, supported), ("task_set", 2, 1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stored(&home.store.open_untyped(id).unwrap(), "tasks").len(), 1, "without types it reads");
}

#[test]
fn an_event_that_nobody_declared_is_brought_up_to_date_too() {
    let home = home();
    let session = home.store.create(&SessionTypes::default()).unwrap();
    session.dispatch(first::TaskSet { task: "old".to_owned() }).unwrap();
    let session = home.reopened(session, &SessionTypes::default());
    session.dispatch(TaskSet { title: "new".to_owned(), urgent: true }).unwrap();
    let view = session.view::<foldlog::EventSlice<TaskSet>>().unwrap();
    assert!(view.iter().map(|task| task.title.as_str()).eq(["old", "new"]));
    let session = home.reopened(session, &SessionTypes::default());
    let error = session.view::<foldlog::EventSlice<first::TaskSet>>().unwrap_err();
    assert!(matches!(error, Error::NewerVersion { .. }), "{error}");
    // The failed read does not affect a correct one.
    assert_eq!(session.view::<foldlog::EventSlice<TaskSet>>().unwrap().len(), 2);
}

#[test]
fn an_item_of_an_older_version_is_brought_up_to_date() {
    #[derive(Serialize, Deserialize)]
    struct OldLine {
        line: String,
    }
    struct OldDraft;
    impl Slice for OldDraft {
        const NAME: &'static str = "draft";
        type Item = OldLine;
        const ITEM_NAME: &'static str = "draft_line";
    }
    let old = SessionTypes::builder().slice::<OldDraft>().seeded::<OldDraft>().build().unwrap();
    let home = home();
    let session = home.store.create(&old).unwrap();
    let lines = ["one", "two"].map(|line| OldLine { line: line.to_owned() });
    session.seed::<OldDraft>(lines.into()).unwrap();
    let session = home.reopened(session, &foldlog_test_support::host::types());
    assert!(session.view::<Draft>().unwrap().iter().eq(["one", "two"]));
    let edit =
        |place: usize, line: &str| foldlog_test_support::host::DraftEdited { place, line: line.to_owned() };
    session.dispatch(edit(1, "three")).unwrap();
    assert_eq!(stored(&session, "draft"), [json!({"line": "one"}), json!("three")], "old bytes stay");
    // Equal text recorded again has the new version: stored bytes match their version.
    session.dispatch(edit(0, "one")).unwrap();
    let session = home.reopened(session, &foldlog_test_support::host::types());
    assert!(session.view::<Draft>().unwrap().iter().eq(["one", "three"]));
}

#[test]
fn a_recording_that_cannot_be_brought_up_to_date_says_where_and_why() {
    #[derive(Serialize, Deserialize, Debug)]
    struct Stubborn {
        title: String,
    }
    impl Event for Stubborn {
        const NAME: &'static str = "task_set";
        const VERSION: u32 = 3;
    }
    let home = home();
    let session = old_session(&home);
    let id = session.id();
    session.close().unwrap();
    match home.store.open_session(id, &types::<Stubborn>()) {
        Err(Error::Decode { name, sequence, reason }) => {
            assert_eq!((name.as_str(), sequence), ("task_set", 2.into()));
            assert_eq!(reason, "upcasting from version 1: there is no upcast from version 1 to 3");
        }
        other => panic!("{other:?}"),
    }
    assert!(home.store.open_session(id, &types::<first::TaskSet>()).is_ok(), "nothing was harmed");
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_happens() {
    #[derive(Debug, Deserialize)]
    struct Mute;
    impl Serialize for Mute {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not a word"))
        }
    }
    impl Event for Mute {
        const NAME: &'static str = "mute";
    }
    let types = SessionTypes::builder()
        .slice::<Draft>()
        .reducer::<Draft, Mute>(|_, _, _| Ok(SliceOp::Append(String::new())))
        .build()
        .unwrap();
    let session = home().store.create(&types).unwrap();
    match session.dispatch(Mute) {
        Err(Error::Encode { name, reason }) => {
            assert_eq!(name, "mute");
            assert!(reason.contains("not a word"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.log().position(), Some(0.into()));
}
