//! Replicated sessions: how they are listed, which writes by a person they accept, and the verbs
//! that push them to a bucket and pull them back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replication;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{Error, ExecutionState, OperationId, ResourceRegistry, Session, Store, StoreOptions};
use foldlog_remote::object_store::local::LocalFileSystem;
use foldlog_remote::{ObjectReplicator, Retries};
use foldlog_test_support::host::types;
use foldlog_test_support::replica::MemoryReplica;
use foldlog_tests::verbs::{Ran, foldlog};
use serde_json::Value;

use super::{noted, options};

fn store(directory: &Path, replica: &MemoryReplica) -> Store {
    Store::open_with(directory, StoreOptions { replication: replica.option(), ..options() }).unwrap()
}

fn runner(session: &Session) -> ToolRunner {
    let resources = ResourceRegistry::builder().build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

/// Runs a verb. `S` is a placeholder for the session's directory.
fn run(session: &Path, words: &str) -> Ran {
    foldlog(words.split(' ').map(|word| match word {
        "S" => session.to_owned(),
        word => PathBuf::from(word),
    }))
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr))
}

/// Creates a replicated session with an open call, and returns its directory and that call.
fn interrupted(directory: &Path, replica: &MemoryReplica) -> (PathBuf, OperationId) {
    let session = store(directory, replica).create(&types()).unwrap();
    let open = runner(&session).begin(&ToolCall::new("send", "{}"), &ExecuteOptions::default()).unwrap();
    let operation = open.context().operation();
    session.clone().close().unwrap();
    drop(open);
    (session.dir().to_owned(), operation)
}

#[test]
fn a_person_settles_no_call_of_a_held_session_unawares() {
    let (directory, replica) = (tempfile::tempdir().unwrap(), MemoryReplica::new("worker 7"));
    let (dir, operation) = interrupted(directory.path(), &replica);
    let held = replica.records_len(foldlog_view::session_dirs::store_of(&dir).unwrap().1);

    let listed = foldlog(["sessions", directory.path().to_str().unwrap()]);
    assert!(listed.stdout.lines().any(|row| row.ends_with("; replicated")), "{}", listed.stdout);
    let listed = json(&foldlog(["sessions", directory.path().to_str().unwrap(), "--json"]));
    assert_eq!(listed["replicated"], serde_json::json!({ "at": "memory", "by": "worker 7", "epoch": 1 }));
    let ledger = run(&dir, "ledger S");
    let said = "this session is replicated (memory, first claimed by `worker 7`)";
    assert!(ledger.stderr.contains(said) && ledger.stderr.contains("another worker"), "{}", ledger.stderr);
    assert!(!ledger.stderr.contains("foldlog settle"), "{}", ledger.stderr);
    let account = run(&dir, &format!("ledger S {operation}"));
    assert!(account.stdout.contains("before") && account.stdout.contains(said), "{}", account.stdout);
    let account = json(&run(&dir, &format!("ledger S {operation} --json")));
    assert_eq!(account["decide"], serde_json::json!([]));

    let settles = format!("settle S {operation} failed --by Ada --reason seen");
    for words in [
        "compact S --compress zstd",
        "recover S",
        &settles,
        "rewind S 0 --by Ada --reason back",
        "task validate S --repair --by Ada",
    ] {
        let refused = run(&dir, words);
        if words.starts_with("task validate") && refused.stdout.contains("nothing to repair") {
            continue;
        }
        assert_eq!(refused.code, 2, "{words}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains("opened without a replicator"), "{words}: {}", refused.stderr);
        assert!(refused.stderr.contains("--unreplicated"), "{words}: {}", refused.stderr);
    }
    let preview = run(&dir, "rewind S 1 --preview");
    assert_eq!(preview.code, 0, "a preview writes nothing");
    // The printed command works as printed.
    let recovers = format!("foldlog recover {} --unreplicated`", dir.display());
    assert!(preview.stdout.contains(&recovers), "{}", preview.stdout);

    // With the option the write is allowed, and the next opening with the replicator replicates it.
    let recovered = run(&dir, "recover S --unreplicated");
    assert_eq!(recovered.code, 0, "{}", recovered.stderr);
    let account = json(&run(&dir, &format!("ledger S {operation} --json")));
    assert_eq!(account["outcome"], "interrupted");
    assert!(account["before"].as_str().unwrap().contains("no other worker has continued"), "{account}");
    let choices = account["decide"].as_array().unwrap();
    let commands: Vec<&str> = choices.iter().map(|choice| choice["command"].as_str().unwrap()).collect();
    assert!(commands.len() >= 2 && commands.iter().all(|one| one.ends_with(" --unreplicated")), "{account}");
    let settled = run(&dir, &format!("{settles} --unreplicated"));
    assert_eq!(settled.code, 0, "{}", settled.stderr);
    let rewound = run(&dir, "rewind S 1 --by Ada --reason back --unreplicated");
    let undoes = rewound.stdout.lines().last().unwrap();
    assert!(undoes.contains("rewind") && undoes.contains("--reason WHY --unreplicated"), "{undoes}");
    assert_eq!(run(&dir, "rewind S --undo --by Ada --reason back --unreplicated").code, 0);
    let (store_dir, id) = foldlog_view::session_dirs::store_of(&dir).unwrap();
    let session = store(&store_dir, &replica).open_session(id, &types()).unwrap();
    assert!(!session.calls().is_interrupted() && session.calls().unsettled_operations().is_empty());
    session.close().unwrap();
    assert!(replica.records_len(id) > held + 2);
}

#[test]
fn a_call_that_was_fenced_before_its_handler_ran_is_not_offered_to_be_settled() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let replica = MemoryReplica::new("one");
    let session = store(directory.path(), &replica).create(&types()).unwrap();
    session.dispatch(noted("held")).unwrap();
    session.sync().unwrap();
    let dir = session.dir().to_owned();
    let other = store(elsewhere.path(), &replica.named("two")).take_over(session.id(), &types()).unwrap();
    let fenced = session.sync_with_begin();
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
    drop(session);
    other.close().unwrap();

    let operations = run(&dir, "ledger S --json");
    let entry = json(&operations);
    assert_eq!(entry["outcome"], "open");
    let account = json(&run(&dir, &format!("ledger S {} --json", entry["operation"])));
    assert_eq!(account["decide"], serde_json::json!([]));
    let before = account["before"].as_str().unwrap();
    assert!(before.contains("does not show whether the start record of this call is replicated"), "{before}");
    let refused = run(&dir, "recover S");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("another worker may have continued"), "{}", refused.stderr);
}

#[test]
fn what_a_fenced_log_has_beyond_what_was_acknowledged_is_said_to_count_nowhere() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let replica = MemoryReplica::new("one");
    let session = store(directory.path(), &replica).create(&types()).unwrap();
    session.dispatch(noted("held")).unwrap();
    session.sync().unwrap();
    let (dir, id) = (session.dir().to_owned(), session.id());
    let store_dir = directory.path().to_str().unwrap();
    assert!(json(&foldlog(["sessions", store_dir, "--json"]))["fenced"].is_null());
    let from = replica.records_len(id);
    let other = store(elsewhere.path(), &replica.named("t\u{1b}wo")).take_over(id, &types()).unwrap();
    // At this durability no write waits.
    session.dispatch(noted("too late")).unwrap();
    assert!(matches!(session.sync(), Err(Error::Fenced { .. })));
    drop(session);
    other.close().unwrap();

    let said = format!(
        "another worker (t\\u{{1b}}wo, epoch 2) has claimed this session and continues it: the records from {from} on were never acknowledged"
    );
    for verb in ["ledger S", "show S", "state S"] {
        let ran = run(&dir, verb);
        assert!(ran.stderr.contains(&said), "{verb}: {}", ran.stderr);
    }
    let listed = json(&foldlog(["sessions", store_dir, "--json"]));
    assert_eq!(listed["fenced"], serde_json::json!({ "from": from, "epoch": 2, "by": "t\u{1b}wo" }));
    let listed = foldlog(["sessions", store_dir]).stdout;
    assert!(listed.contains(&format!("fenced: records from {from} on")), "{listed}");

    // The note about a session is removed with it.
    Store::open(directory.path()).unwrap().delete(id).unwrap();
    assert!(!directory.path().join(format!("writers/{id}.fenced")).exists());
    assert!(elsewhere.path().join("writers").exists());
}

/// Starts a call that another worker's claim refuses.
trait Begins {
    fn sync_with_begin(&self) -> Error;
}

impl Begins for Session {
    fn sync_with_begin(&self) -> Error {
        let begun = runner(self).begin(&ToolCall::new("send", "{}"), &ExecuteOptions::default());
        match begun {
            Err(error) => error,
            // At this durability the start record does not wait; the next sync reports the refusal.
            Ok(open) => {
                let error = self.sync().unwrap_err();
                drop(open);
                error
            }
        }
    }
}

/// Creates a worker with a bucket in a directory, without leases.
pub(super) fn worker(directory: &Path, bucket: &Path, name: &str) -> Store {
    worker_with(directory, bucket, name, None)
}

pub(super) fn worker_with(directory: &Path, bucket: &Path, name: &str, lease: Option<Duration>) -> Store {
    let files = LocalFileSystem::new_with_prefix(bucket).unwrap();
    let replicator = ObjectReplicator::new(Arc::new(files), "team", name, Retries::default()).unwrap();
    let replicator = match lease {
        Some(length) => replicator.with_lease(length).unwrap(),
        None => replicator.without_lease(),
    };
    let replication = Some(Replication::new(Arc::new(replicator)));
    Store::open_with(directory, StoreOptions { replication, ..options() }).unwrap()
}

#[test]
fn sessions_go_to_a_bucket_and_back_and_are_taken_over_from_there() {
    let places = tempfile::tempdir().unwrap();
    let place = |name: &str| places.path().join(name);
    std::fs::create_dir_all(place("bucket/team")).unwrap();
    let url = format!("file://{}", place("bucket/team").display());
    let words = |words: &str| {
        let words = words.replace("URL", &url);
        foldlog(words.split(' ').map(|word| match word.strip_prefix('@') {
            Some(name) => place(name),
            None => PathBuf::from(word),
        }))
    };
    let plain = Store::open_with(place("one"), options()).unwrap();
    let (first, second) = (plain.create(&types()).unwrap(), plain.create(&types()).unwrap());
    let id = first.id();
    first.dispatch(noted("pushed")).unwrap();
    first.close().unwrap();
    second.close().unwrap();
    let pushed = words("push @one URL --name one");
    assert_eq!(pushed.code, 0, "{}{}", pushed.stdout, pushed.stderr);
    assert!(
        pushed.stdout.contains(&format!("{id}: 4 records replicated, epoch 1 of `one`")),
        "{}",
        pushed.stdout
    );

    let pulled = words("pull URL --to @copies");
    assert_eq!(pulled.code, 0, "{}{}", pulled.stdout, pulled.stderr);
    assert_eq!(pulled.stdout.lines().count(), 2);
    let verified = foldlog(["verify", place("copies").to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    let listed = foldlog(["sessions", place("copies").to_str().unwrap()]).stdout;
    assert!(listed.lines().any(|row| row.ends_with("replicated")), "{listed}");
    // The worker continues under the name in its log, and the copy follows.
    let session = worker(&place("one"), &place("bucket"), "one").open_session(id, &types()).unwrap();
    session.dispatch(noted("went on")).unwrap();
    session.sync().unwrap();
    let pulled = json(&words(&format!("pull URL --to @copies --session {id} --json")));
    assert_eq!((&pulled["records"], &pulled["new"]), (&5.into(), &1.into()));

    let takes = format!("takeover URL --to @two --session {id} --by Ada --reason gone");
    let taken = words(&takes);
    assert_eq!(taken.code, 0, "{}{}", taken.stdout, taken.stderr);
    assert!(taken.stdout.contains("6 records, epoch 3"), "{}", taken.stdout);
    assert!(taken.stderr.contains("a replicator with the name `Ada`"), "{}", taken.stderr);
    session.dispatch(noted("too late")).unwrap();
    assert!(matches!(session.sync(), Err(Error::Fenced { .. })));
    drop(session);
    let dir = place("two").join("sessions").join(id.to_string());
    let shown = foldlog(["show", dir.to_str().unwrap(), "--json"]).stdout;
    let last: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    assert_eq!((&last["name"], &last["data"]["by"]), (&"foldlog.taken_over".into(), &"Ada".into()));
    assert_eq!((&last["data"]["reason"], &last["data"]["epoch"]), (&"gone".into(), &3.into()));
    let session = worker(&place("two"), &place("bucket"), "Ada").open_session(id, &types()).unwrap();
    session.dispatch(noted("here")).unwrap();
    session.close().unwrap();
    assert_eq!(json(&words(&format!("pull URL --to @copies --session {id} --json")))["new"], 2);

    // Impossible actions are refused with a reason.
    let superseded = words(&format!("push @one URL --session {id}"));
    assert_eq!(superseded.code, 2);
    assert!(superseded.stderr.contains("superseded"), "{}", superseded.stderr);
    assert!(words(&takes).stderr.contains("already"), "{}", words(&takes).stderr);
    for (words, said) in [
        (foldlog(["pull", "s3://key:secret@bucket/team", "--to", "x"]), "it contains more than a place"),
        (words("pull file:///nowhere/at/all --to @copies"), "the directory does not exist"),
        (words("takeover URL --to @three --by Ada --reason gone"), "there are 2 sessions at this URL"),
        (words(&format!("pull {url}x --to @three")), "the directory does not exist"),
    ] {
        assert_eq!(words.code, 2, "{said}");
        assert!(words.stderr.contains(said) && !words.stderr.contains("secret"), "{}", words.stderr);
    }
    assert!(!place("three").exists());
}

/// The damage of one session ended the push of all.
#[test]
fn a_push_reports_sessions_that_are_damaged_in_the_bucket_and_goes_on_with_the_others() {
    let places = tempfile::tempdir().unwrap();
    let (one, team) = (places.path().join("one"), places.path().join("bucket/team"));
    std::fs::create_dir_all(&team).unwrap();
    let plain = Store::open_with(&one, options()).unwrap();
    let mut ids = [(); 3].map(|()| {
        let session = plain.create(&types()).unwrap();
        let id = session.id();
        session.close().unwrap();
        id
    });
    ids.sort();
    let push = |more: &[&str]| {
        let url = format!("file://{}", team.display());
        foldlog([&["push", one.to_str().unwrap(), &url], more].concat())
    };
    assert_eq!(push(&["--name", "one"]).code, 0);
    for chunk in files(&team).into_iter().filter(|path| path.contains(&ids[0].to_string())) {
        std::fs::write(chunk, "damaged").unwrap();
    }
    let pushed = push(&[]);
    assert_eq!(pushed.code, 1, "{}{}", pushed.stdout, pushed.stderr);
    assert!(pushed.stderr.contains(&format!("session {}: ", ids[0])), "{}", pushed.stderr);
    for id in &ids[1..] {
        assert!(pushed.stdout.contains(&format!("{id}: 2 records replicated")), "{}", pushed.stdout);
    }
}

/// Returns the paths of all files below a directory.
fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![path.display().to_string()],
    };
    entries.flat_map(below).collect()
}

#[test]
fn a_session_whose_worker_lives_is_taken_over_by_whoever_says_so_and_one_whose_worker_is_gone_by_anybody() {
    let places = tempfile::tempdir().unwrap();
    let place = |name: &str| places.path().join(name);
    std::fs::create_dir_all(place("bucket/team")).unwrap();
    let lease = Some(Duration::from_millis(2_500));
    let session = worker_with(&place("one"), &place("bucket"), "on\u{1b}e", lease).create(&types()).unwrap();
    session.dispatch(noted("held")).unwrap();
    session.sync().unwrap();
    let words = |words: &str, bucket: &str| {
        let url = format!("file://{}", place(bucket).join("team").display());
        foldlog(words.replace("URL", &url).split(' ').map(|word| match word.strip_prefix('@') {
            Some(name) => place(name),
            None => PathBuf::from(word),
        }))
    };
    let takes = |to: &str, bucket| words(&format!("takeover URL --to @{to} --by Ada --reason gone"), bucket);

    // The worker renews its lease while the verb watches.
    let refused = takes("two", "bucket");
    assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
    let said = "is written by the worker `on\\u{1b}e`, epoch 1, which renewed its lease of 2.5 s";
    assert!(refused.stderr.contains("watching for 2.5 s"), "{}", refused.stderr);
    assert!(refused.stderr.contains(said) && refused.stderr.contains("--now"), "{}", refused.stderr);
    assert!(!place("two").exists());
    let listed = json(&words("sessions URL --json", "bucket"));
    assert_eq!((&listed["lease"]["length_ms"], &listed["worker"]), (&2_500.into(), &"unknown".into()));
    let watched = words("sessions URL --json --wait", "bucket");
    assert!(watched.stderr.contains("watching for up to 2.5 s"), "{}", watched.stderr);
    assert_eq!(json(&watched)["worker"], "alive");
    let renewed_at = listed["lease"]["renewed_at"].as_str().unwrap();
    assert!(renewed_at.starts_with("20") && listed["lease"]["left_ms"].is_null(), "{listed}");
    assert!(words("sessions URL", "bucket").stdout.contains("lease_renewed"));

    // In a copy of the bucket no lease is renewed.
    copy(&place("bucket"), &place("copy"));
    assert_eq!(json(&words("sessions URL --json --wait", "copy"))["worker"], "ran_out");
    let taken = takes("three", "copy");
    assert_eq!(taken.code, 0, "{}{}", taken.stdout, taken.stderr);
    assert!(taken.stderr.contains("watching for 2.5 s"), "{}", taken.stderr);
    // After the verb has closed the session, nobody owns it.
    let closed = json(&words("sessions URL --json --wait", "copy"));
    assert!(closed["lease"].is_null() && closed["worker"] == "closed", "{closed}");
    let again = takes("four", "copy");
    assert_eq!((again.code, again.stderr.contains("watching")), (0, false), "{}", again.stderr);

    let taken = words("takeover URL --to @two --by Ada --reason gone --now", "bucket");
    assert_eq!(taken.code, 0, "{}{}", taken.stdout, taken.stderr);
    session.dispatch(noted("too late")).unwrap();
    assert!(matches!(session.sync(), Err(Error::Fenced { epoch: 2, .. })));
}

/// Copies a directory. Files that are removed meanwhile are not in the copy.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => match std::fs::copy(entry.path(), to.join(entry.file_name())) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => drop(copied.unwrap()),
            },
        }
    }
}
