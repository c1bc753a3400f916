//! `foldlog checkpoints`, `restore` and `recover --strategy`: what was kept of a session, and going back to it without its host.

use foldlog::{Event, SessionTypes, Slice, Store};
use foldlog_agent::persistence::{
    CheckpointManager, NewTask, TaskCreated, TaskId, TaskTreeState, declare, open_without_host,
};
use foldlog_tests::verbs::foldlog;

use super::options;

#[derive(serde::Serialize, serde::Deserialize)]
struct Noted(String);

impl Event for Noted {
    const NAME: &'static str = "host.noted";
}

/// A slice of the host's own, which the binary does not know.
struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "host.notes";
    type Item = Noted;
}

#[test]
fn checkpoints_are_listed_and_a_session_is_restored_or_recovered_without_its_host() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
    let types = declare(SessionTypes::builder()).slice::<Notes>().append_all::<Notes>().build().unwrap();
    let session = store.create(&types).unwrap();
    let manager = CheckpointManager::new(session.clone());
    let create = |name: &str| {
        session.dispatch(Noted(name.to_owned())).unwrap();
        session.dispatch(TaskCreated { task: NewTask::new(TaskId::new(name).unwrap(), name) }).unwrap();
    };
    create("design");
    manager.create(Some("designed \u{1b}[31m")).unwrap();
    create("build");
    let (id, dir) = (session.id(), session.dir().to_str().unwrap().to_owned());
    // While it is open elsewhere, nothing is restored.
    let words = ["restore", &dir, "1", "--by", "ada", "--reason", "it went wrong"];
    let ran = foldlog(words);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    assert!(ran.stderr.contains("already open for writing"), "{ran:?}");
    drop(manager);
    session.close().unwrap();

    let ran = foldlog(["checkpoints", &dir]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.starts_with("checkpoint_001  2"), "{ran:?}");
    assert!(
        ran.stdout.contains("manual  \"designed \\u{1b}[31m\"  <- latest\n    1 task, 0 completed; "),
        "{ran:?}"
    );
    let ran = foldlog(["checkpoints", &dir, "--json"]);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["checkpoints"][0]["manifest"]["total_tasks"], 1);

    let ran = foldlog(["recover", &dir, "--strategies"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("no crash left anything\nlatest: this session at position "), "{ran:?}");
    assert!(ran.stdout.contains("1 task, 0 completed; 0 messages; 0 files; 1 update lost\n"), "{ran:?}");
    let ran = foldlog(["recover", &dir, "--strategy", "checkpoint:9", "--by", "ada", "--reason", "x"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let ran = foldlog(["recover", &dir, "--strategy", "guess", "--by", "ada", "--reason", "x"]);
    assert!(ran.stderr.contains("none of latest, checkpoint:ID, updates, partial"), "{ran:?}");

    let ran = foldlog(words);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("goes back from position "), "{ran:?}");
    assert!(ran.stdout.contains("checkpoint_002 undoes that\n"), "{ran:?}");
    let (session, _) = open_without_host(&store, id).unwrap();
    assert_eq!(TaskTreeState::of(&session).unwrap().tasks.len(), 1);
    session.close().unwrap();
    let ran = foldlog(["restore", &dir, "checkpoint_002", "--by", "ada", "--reason", "it did not", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    // The host opens it again with all that is its own.
    let session = store.open_session(id, &types).unwrap();
    assert_eq!(
        (session.view::<Notes>().unwrap().len(), TaskTreeState::of(&session).unwrap().tasks.len()),
        (2, 2)
    );
    session.close().unwrap();

    let to = folder.path().join("to");
    let to = to.to_str().unwrap();
    for strategy in ["updates", "partial"] {
        let ran =
            foldlog(["recover", &dir, "--strategy", strategy, "--to", to, "--by", "ada", "--reason", "x"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.contains(&format!("{strategy}: a new session at position ")), "{ran:?}");
        assert!(ran.stdout.contains("recovered: "), "{ran:?}");
    }
    assert_eq!(Store::open(to).unwrap().session_ids().unwrap().len(), 2);
}
