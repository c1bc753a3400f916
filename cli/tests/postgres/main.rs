//! Runs the verbs over sessions in a PostgreSQL database, on a real server that the test starts.
//! Without PostgreSQL the test reports that it is skipped. `failures.rs` checks the output for
//! places that fail, over servers of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failures;
#[path = "../../../remote/tests/parts/notes.rs"]
mod notes;
#[path = "../../../remote/tests/parts/refusing.rs"]
mod refusing;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../remote/tests/postgres/server.rs"]
mod server;

use std::path::Path;

use foldlog::replication::Replication;
use foldlog::{ResourceRegistry, Session, Store, StoreOptions};
use foldlog_remote::{PlaceEnvironment, open_place_with};
use serde_json::Value;

use notes::{call, note, runner_over, texts, types};

/// Runs a verb of the program. Returns its exit code, output and error output.
fn foldlog(words: &[&str]) -> (i32, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_foldlog"));
    let ran = command.args(words).env_remove("PGPASSWORD").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap(), text(ran.stdout), text(ran.stderr))
}

fn json(words: &[&str]) -> Value {
    let (code, out, complaints) = foldlog(words);
    assert_eq!(code, 0, "{complaints}");
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}"))
}

fn store(directory: &Path, url: &str, name: &str) -> Store {
    let place = open_place_with(url, server::hasty(), &PlaceEnvironment::new()).unwrap();
    let replication = Some(Replication::new(place.replicator(name).unwrap()));
    Store::open_with(directory, StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}

/// Opens a session of a plain store for reading.
fn opened(directory: &str, session: &Session) -> Vec<String> {
    let options = StoreOptions { unreplicated: true, ..StoreOptions::default() };
    texts(&Store::open_with(directory, options).unwrap().open_session(session.id(), &types()).unwrap())
}

#[test]
fn sessions_go_to_a_database_and_back_are_read_there_and_taken_over() {
    let Some(server) = server::own() else { return };
    let (directory, url) = (tempfile::tempdir().unwrap(), server.url());
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();

    let session = Store::open(path("plain")).unwrap().create(&types()).unwrap();
    let id = session.id().to_string();
    session.dispatch(note("first")).unwrap();
    session.dispatch(note("long ".repeat(30_000))).unwrap();
    assert!(call(&runner_over(&session, ResourceRegistry::default(), |_| Ok(())).unwrap()).unwrap().success);
    session.clone().close().unwrap();
    let pushed = json(&["push", &path("plain"), &url, "--name", "one", "--json"]);
    assert_eq!((pushed["session"].as_str(), pushed["epoch"].as_u64()), (Some(&*id), Some(1)));

    let listed = json(&["sessions", &url, "--json"]);
    assert_eq!(listed["session"].as_str().or(listed["id"].as_str()), Some(&*id), "{listed}");
    let (code, shown, complaints) = foldlog(&["show", &url, &id]);
    assert!(code == 0 && shown.contains("tool_begin"), "{shown}{complaints}");
    let verified = foldlog(&["verify", &url, &id]);
    assert_eq!(verified.0, 0, "{verified:?}");

    let pulled = json(&["pull", &url, "--to", &path("copy"), "--json"]);
    assert_eq!(pulled["records"], pushed["records"]);
    assert_eq!(opened(&path("copy"), &session), texts(&session));

    // A worker continues the session, and another one takes it over.
    let going = store(Path::new(&path("plain")), &url, "one").open_session(session.id(), &types()).unwrap();
    going.dispatch(note("went on")).unwrap();
    going.sync().unwrap();
    // The server knows whether the worker lives.
    let listed = json(&["sessions", &url, "--json"]);
    assert_eq!(listed["lease"]["length_ms"].as_u64(), Some(30_000), "{listed}");
    assert!(listed["lease"]["left_ms"].is_u64(), "{listed}");
    let (to, takes) = (path("taken"), ["--by", "two", "--reason", "lost", "--json"]);
    let takes: Vec<&str> = ["takeover", &url, "--to", &to].into_iter().chain(takes).collect();
    let (code, _, complaints) = foldlog(&takes);
    assert!(code == 2 && complaints.contains("is written by the worker `one`, epoch 2"), "{complaints}");
    assert!(!complaints.contains("watching"), "{complaints}");
    let taken = json(&[takes.as_slice(), &["--now"]].concat());
    assert_eq!(taken["epoch"].as_u64(), Some(3), "{taken}");
    assert_eq!(opened(&path("taken"), &session), texts(&going));
    assert!(call(&runner_over(&going, ResourceRegistry::default(), |_| panic!("it runs")).unwrap()).is_err());
}

#[test]
fn what_is_wrong_with_a_database_is_said_with_what_to_do() {
    let Some(server) = server::own() else { return };
    let nowhere = server.url_of("foldlog", "nowhere", "x");
    let (code, _, complaints) = foldlog(&["sessions", &nowhere]);
    assert_eq!(code, 2);
    assert!(
        complaints.contains("the database does not exist") && complaints.contains("check the database"),
        "{complaints}"
    );
    let secret = "postgres://u:secret@localhost/x";
    let (code, _, complaints) = foldlog(&["pull", secret, "--to", "/nowhere"]);
    assert_eq!(code, 2);
    assert!(complaints.contains("PGPASSWORD") && !complaints.contains("secret"), "{complaints}");
}
