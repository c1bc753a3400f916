//! Logs of older versions of a host, decoded with its current types.

use std::path::Path;

use foldlog::inspect::{LogReader, VersionOutcome, VersionSubject, VersionsReplayed, replay_versions};
use foldlog::{
    Event, EventSlice, Export, ImportOptions, Session, SessionTypes, Slice, SliceOp, Store, UpcastError,
    Value,
};
use foldlog_replay::{assert_reducers_replay, assert_versions_replay};
use serde::{Deserialize, Serialize};

use super::panicked;

/// The old host: one event of version 1, and a slice whose items are of version 1.
mod first {
    use super::*;

    #[derive(Serialize, Deserialize, Debug)]
    pub(super) struct TaskSet {
        pub(super) task: String,
    }

    impl Event for TaskSet {
        const NAME: &'static str = "task_set";
    }

    /// An event unknown to later hosts.
    #[derive(Serialize, Deserialize, Debug)]
    pub(super) struct Forgotten {
        pub(super) why: String,
    }

    impl Event for Forgotten {
        const NAME: &'static str = "forgotten";
    }

    pub(super) struct Tasks;

    impl Slice for Tasks {
        const NAME: &'static str = "tasks";
        type Item = TaskSet;
    }

    pub(super) struct Lengths;

    impl Slice for Lengths {
        const NAME: &'static str = "lengths";
        type Item = u64;
    }

    pub(super) fn types() -> SessionTypes {
        SessionTypes::builder()
            .slice::<Tasks>()
            .append_all::<Tasks>()
            .slice::<Lengths>()
            .reducer::<Lengths, TaskSet>(|_, set, _| Ok(SliceOp::Append(set.task.len() as u64)))
            .build()
            .unwrap()
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct TaskSet {
    title: String,
    urgent: bool,
}

impl Event for TaskSet {
    const NAME: &'static str = "task_set";
    const VERSION: u32 = 2;

    fn upcast(_: u32, mut value: Value) -> Result<Value, UpcastError> {
        let Some(title) = value.remove("task") else {
            return Err(UpcastError::new("it has no field `task`"));
        };
        if title.as_str() == Some("cursed") {
            return Err(UpcastError::new("nobody knows what it means"));
        }
        value.set("title", title);
        value.set("urgent", Value::from(false));
        Ok(value)
    }
}

struct Tasks;

impl Slice for Tasks {
    const NAME: &'static str = "tasks";
    type Item = TaskSet;
}

struct Lengths;

impl Slice for Lengths {
    const NAME: &'static str = "lengths";
    type Item = (u64, String);
    const ITEM_VERSION: u32 = 2;

    fn upcast_item(_: u32, value: Value) -> Result<Value, UpcastError> {
        Ok(Value::Array(vec![value, Value::from("characters")]))
    }
}

fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Tasks>()
        .append_all::<Tasks>()
        .slice::<Lengths>()
        .reducer::<Lengths, TaskSet>(|_, set, _| {
            Ok(SliceOp::Append((set.title.len() as u64, "characters".to_owned())))
        })
        .build()
        .unwrap()
}

/// Creates a store of the first host, with one session for each task.
fn old_store(directory: &Path, tasks: &[&str]) -> Vec<Session> {
    let store = Store::open(directory).unwrap();
    let begun = |task: &&str| {
        let session = store.create(&first::types()).unwrap();
        session.dispatch(first::TaskSet { task: (*task).to_owned() }).unwrap();
        // So long that it becomes an object.
        session.dispatch(first::TaskSet { task: "x".repeat(70_000) }).unwrap();
        session.dispatch(first::Forgotten { why: "who knows".to_owned() }).unwrap();
        session
    };
    tasks.iter().map(begun).collect()
}

fn row(
    replayed: &VersionsReplayed,
    of: VersionSubject,
    name: &str,
    version: u32,
) -> (u64, u64, VersionOutcome) {
    let row = replayed.rows.iter().find(|row| row.of == of && row.name == name && row.version == version);
    let row = row.unwrap_or_else(|| panic!("no row of {name}: {replayed}"));
    (row.count, row.failed, row.outcome)
}

#[test]
fn every_event_of_every_old_log_decodes_and_the_table_says_how() {
    let directory = tempfile::tempdir().unwrap();
    for session in old_store(directory.path(), &["one", "two"]) {
        session.close().unwrap();
    }
    let replayed = assert_versions_replay(directory.path(), &types());
    assert_eq!((replayed.sessions, replayed.records), (2, 12));
    assert_eq!(row(&replayed, VersionSubject::Event, "task_set", 1), (4, 0, VersionOutcome::Upcast));
    assert_eq!(row(&replayed, VersionSubject::Event, "forgotten", 1), (2, 0, VersionOutcome::Unknown));
    assert_eq!(row(&replayed, VersionSubject::Item, "lengths", 1), (4, 0, VersionOutcome::Upcast));
    let lines: Vec<String> = replayed.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(
        lines,
        [
            "2 sessions, 12 records",
            "recording           recorded  present     count  outcome",
            "event `forgotten`          1        -         2  unknown",
            "event `task_set`           1        2         4  upcast",
            "items of `lengths`         1        2         4  upcast",
        ]
    );
    // Events of the current host next to it are decoded unchanged.
    let store = Store::open(directory.path()).unwrap();
    let id = store.session_ids().unwrap()[0];
    let session = store.open_session(id, &types()).unwrap();
    session.dispatch(TaskSet { title: "three".to_owned(), urgent: true }).unwrap();
    session.close().unwrap();
    let replayed = assert_versions_replay(directory.path(), &types());
    assert_eq!(row(&replayed, VersionSubject::Event, "task_set", 2), (1, 0, VersionOutcome::Decoded));
    // Its reducers give the old results for old events, once the items are upcast.
    for (id, _) in store.sessions().unwrap() {
        assert_eq!(assert_reducers_replay(store.session_dir(id), &types()).diverged, 0);
    }
}

#[test]
fn what_does_not_decode_is_named_with_its_session_its_record_and_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = old_store(directory.path(), &["one", "cursed", "cursed"]);
    let ids: Vec<_> = sessions.iter().map(Session::id).collect();
    sessions.into_iter().for_each(|session| session.close().unwrap());
    let message = panicked(|| drop(assert_versions_replay(directory.path(), &types())));
    assert!(message.contains("FAILED: 2 of them; first session "), "{message}");
    assert!(ids[1..].iter().any(|id| message.contains(&format!("{id}, record 2: "))), "{message}");
    assert!(message.contains("nobody knows what it means"), "{message}");

    // The old host cannot read records of a later one.
    let later = tempfile::tempdir().unwrap();
    let session = Store::open(later.path()).unwrap().create(&types()).unwrap();
    session.dispatch(TaskSet { title: "new".to_owned(), urgent: true }).unwrap();
    session.close().unwrap();
    let replayed = replay_versions(later.path(), &first::types()).unwrap();
    assert_eq!(
        row(&replayed, VersionSubject::Event, "task_set", 2),
        (1, 1, VersionOutcome::Failed),
        "{replayed}"
    );
    assert!(!replayed.holds());
}

#[test]
fn a_session_that_cannot_be_read_does_not_hide_the_others_and_an_empty_store_is_no_proof() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = old_store(directory.path(), &["one", "two"]);
    let damaged = sessions[0].dir().to_owned();
    sessions.into_iter().for_each(|session| session.close().unwrap());
    let segment = damaged.join("0000000000.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[300] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let replayed = replay_versions(directory.path(), &types()).unwrap();
    assert_eq!((replayed.sessions, replayed.unreadable.len()), (1, 1), "{replayed}");
    assert_eq!(replayed.unreadable[0].0, damaged);
    assert!(!replayed.holds() && replayed.to_string().contains(" cannot be read: "), "{replayed}");

    let empty = tempfile::tempdir().unwrap();
    Store::open(empty.path()).unwrap();
    let message = panicked(|| drop(assert_versions_replay(empty.path(), &types())));
    assert_eq!(message, "the store has no sessions");
}

/// Returns the bodies of the records of the unknown event, in order.
fn bodies(dir: &Path) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    let reader = LogReader::open(dir).unwrap();
    let read = reader.records(0, u64::MAX, |record| {
        if record.body.windows(9).any(|part| part == b"who knows") {
            bodies.push(record.body.to_vec());
        }
        Ok(())
    });
    read.unwrap();
    bodies
}

#[test]
fn events_that_a_host_does_not_know_are_kept_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let session = old_store(directory.path(), &["one"]).pop().unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let (before, items) = (bodies(&dir), |session: &Session| {
        session.dynamic().state().unwrap().slices["forgotten"].items.clone()
    });
    assert_eq!(before.len(), 1);

    // The current host opens, writes, rolls back, forks and exports the session.
    let store = Store::open(directory.path()).unwrap();
    let session = store.open_session(id, &types()).unwrap();
    let kept = items(&session);
    session.dispatch(TaskSet { title: "new".to_owned(), urgent: true }).unwrap();
    let position = session.log().position().unwrap();
    session.rollback_to(position - 1).unwrap();
    assert_eq!(items(&session), kept);
    let fork = store.fork(id, position, &types(), Default::default()).unwrap();
    assert_eq!(items(&fork), kept);
    let export = Export::from_json(&session.log().export().unwrap().to_json().unwrap()).unwrap();
    let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
    let import = store.import(&export, &types(), options).unwrap();
    let stored = |session: &Session| items(session).into_iter().map(|item| item.bytes).collect::<Vec<_>>();
    assert_eq!(stored(&import), stored(&session));
    let fork_dir = fork.dir().to_owned();
    drop((fork, import));
    session.close().unwrap();
    assert_eq!((bodies(&dir), bodies(&fork_dir)), (before.clone(), before));
    // A host that knows the event again reads it.
    let session = store.open_session(id, &types()).unwrap();
    let forgotten = session.view::<EventSlice<first::Forgotten>>().unwrap();
    assert_eq!(forgotten.latest().unwrap().why, "who knows");
}
