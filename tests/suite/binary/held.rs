//! Replicated sessions, read from their bucket.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{ExecutionState, ObjectId, ResourceRegistry, Session, Store};
use foldlog_test_support::child;
use foldlog_test_support::host::types;
use foldlog_tests::verbs::{Ran, foldlog, foldlog_following};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use uuid::Uuid;

use super::replicated::worker;
use super::{noted, step};

/// A bucket in a directory, and the store of a worker whose sessions it contains.
struct Held {
    directory: tempfile::TempDir,
    store: Store,
    url: String,
}

impl Held {
    fn new() -> Held {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("bucket/team")).unwrap();
        let store = worker(&directory.path().join("one"), &directory.path().join("bucket"), "one");
        let url = format!("file://{}", directory.path().join("bucket/team").display());
        Held { directory, store, url }
    }

    /// Creates a session with a rollback, and with a payload that is stored as an object.
    fn session(&self) -> Session {
        let session = self.store.create(&types()).unwrap();
        for part in 0..3 {
            session.dispatch(step("go", part)).unwrap();
        }
        session.rollback_to(session.log().position().unwrap() - 1).unwrap();
        session.dispatch(noted(&"long ".repeat(30_000))).unwrap();
        session.sync().unwrap();
        session
    }

    /// Runs a verb. `URL` is a placeholder for the bucket.
    fn run(&self, words: &str) -> Ran {
        foldlog(words.replace("URL", &self.url).split(' ').map(PathBuf::from))
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut directories = vec![self.directory.path().join("bucket")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => directories.push(path),
                    false => drop(files.insert(path.clone(), fs::read(path).unwrap())),
                }
            }
        }
        files
    }

    fn chunk(&self, session: Uuid, number: u64) -> PathBuf {
        self.directory.path().join(format!("bucket/team/sessions/{session}/log/{number:020}"))
    }
}

#[test]
fn a_session_is_read_in_its_place_as_it_is_read_in_its_directory() {
    let held = Held::new();
    let session = held.session();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let before = held.files();
    for verb in
        ["show S", "show S --json", "state S", "ledger S", "transcript S", "diff S 1 3", "show S --payload"]
    {
        let there = held.run(&verb.replace('S', &format!("URL {id}")));
        let here = foldlog(verb.replace('S', &dir.display().to_string()).split(' '));
        assert_eq!((there.code, &there.stdout), (here.code, &here.stdout), "{verb}: {}", there.stderr);
        let said = format!("is read from {}: epoch 1, claimed by `one`", held.url);
        assert!(there.stderr.contains(&said), "{}", there.stderr);
        assert!(!there.stderr.contains("another worker may have continued"), "{}", there.stderr);
    }
    let one_word = held.run(&format!("verify URL/sessions/{id}"));
    assert_eq!(one_word.code, 0, "{}{}", one_word.stdout, one_word.stderr);
    assert!(one_word.stdout.contains("every frame, body, seal and object is intact"), "{}", one_word.stdout);
    let stats: Value = serde_json::from_str(&held.run(&format!("stats URL {id} --json")).stdout).unwrap();
    assert_eq!(stats["session"], id.to_string());
    // The output names the bucket and not the copy.
    let walked = held.run(&format!("verify URL/sessions/{id} --json"));
    assert!(!walked.stdout.contains("/foldlog-"), "{}", walked.stdout);
    assert_eq!(held.files(), before, "reading claims nothing and puts nothing");
}

#[test]
fn tail_prints_of_a_place_what_show_prints_of_a_directory() {
    let held = Held::new();
    let session = held.session();
    let (id, dir) = (session.id(), session.dir().to_owned());
    let last = session.log().position().unwrap();
    session.close().unwrap();
    let dir = dir.display();
    for (tail, show) in [
        (format!("tail URL {id} -n 100"), format!("show {dir}")),
        (format!("tail URL {id} --from 0 --json"), format!("show {dir} --json")),
        (format!("tail URL/sessions/{id} --from 3"), format!("show {dir} --from 3")),
        (format!("tail URL {id} -n 2 --json"), format!("show {dir} --from {} --json", last - 1)),
    ] {
        let (tail, show) = (held.run(&tail), foldlog(show.split(' ')));
        assert!(show.stdout.lines().count() > 1);
        assert_eq!((tail.code, tail.stdout), (0, show.stdout), "{}", tail.stderr);
    }
    assert!(foldlog(["show", &dir.to_string()]).stdout.contains("abandoned"));
    for (words, said) in [
        (format!("tail URL {id} --from 99"), "record 99 does not exist yet"),
        (format!("tail URL {id} --from tag:x"), "--from does not accept a tag with a URL"),
        (format!("tail URL {}", Uuid::from_u128(9)), "there is no session"),
        ("tail URL".to_owned(), "names no session"),
    ] {
        let ran = held.run(&words);
        assert_eq!(ran.code, 2, "{words}");
        assert!(ran.stderr.contains(said), "{words}: {}", ran.stderr);
    }
}

#[test]
fn following_a_place_prints_what_comes_and_who_takes_the_session_over() {
    let held = Held::new();
    let session = held.session();
    let id = session.id();
    let next = session.log().position().unwrap().get() + 1;
    let other = worker(&held.directory.path().join("two"), &held.directory.path().join("bucket"), "two");
    let (mut round, mut taken) = (0, None);
    let words = format!("tail {} {id} -n 0 --follow --every 7 --json", held.url);
    let ran = foldlog_following(words.split(' '), || {
        match round {
            1 => {
                session.dispatch(noted("first")).unwrap();
                session.sync().unwrap();
            }
            3 => taken = Some(other.take_over(id, &types()).unwrap()),
            4 => {
                let taken = taken.as_ref().unwrap();
                taken.dispatch(noted("second")).unwrap();
                taken.sync().unwrap();
            }
            _ => {}
        }
        round += 1;
        round < 7
    });
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences: Vec<u64> = lines.iter().map(|line| line["sequence"].as_u64().unwrap()).collect();
    let end = taken.unwrap().log().position().unwrap().get();
    assert_eq!(sequences, (next..=end).collect::<Vec<_>>());
    let texts: Vec<&Value> = lines.iter().map(|line| &line["data"]["text"]).collect();
    assert_eq!(texts, ["first", "second"], "{}", ran.stdout);
    assert_eq!(ran.stderr, "note: epoch 2: `two` has claimed the session\n");
}

#[test]
fn the_sessions_of_a_place_are_listed_with_who_holds_each() {
    let held = Held::new();
    let (first, second) = (held.session(), held.session());
    let (first_id, second_id) = (first.id(), second.id());
    let elsewhere = held.directory.path().join("two");
    let bucket = held.directory.path().join("bucket");
    let taken = worker(&elsewhere, &bucket, "Ada\u{1b}[2J").take_over(first_id, &types()).unwrap();
    taken.sync().unwrap();
    let ran = held.run("sessions URL --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let rows: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |id: Uuid| rows.iter().find(|row| row["session"] == id.to_string()).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&row(first_id)["epoch"], &row(second_id)["epoch"]), (&2.into(), &1.into()));
    assert_eq!(row(second_id)["by"], "one");
    assert_eq!(row(first_id)["records"], taken.log().position().unwrap().get() + 1);
    assert!(row(first_id)["last_at"].is_string());
    let text = held.run("sessions URL --sort records").stdout;
    assert!(text.contains("Ada\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    assert_eq!(held.run("sessions URL --since 2099-01-01T00:00:00Z").stdout.lines().count(), 1);
    let refused = held.run("sessions URL --status running");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("`foldlog pull URL --to STORE`"), "{}", refused.stderr);

    // A damaged log is a row, and the others are shown.
    let chunk = held.chunk(second_id, 1);
    let mut bytes = fs::read(&chunk).unwrap();
    bytes[100] ^= 1;
    fs::write(&chunk, bytes).unwrap();
    let ran = held.run("sessions URL");
    assert_eq!((ran.code, ran.stdout.lines().count()), (1, 3), "{}", ran.stderr);
    assert!(ran.stdout.contains("cannot be read: chunk 1 is damaged"), "{}", ran.stdout);
    let ran = held.run("verify URL --json");
    let verified: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &verified["sessions"]), (1, &json!(1)), "{}", ran.stderr);
    let damage = verified["corrupt"].as_array().unwrap();
    assert_eq!(damage.len(), 1, "{}", ran.stdout);
    assert_eq!(damage[0]["session"], second_id.to_string());
    assert!(damage[0]["reason"].as_str().unwrap().contains("chunk 1 is damaged"), "{}", ran.stdout);
    for verb in ["verify", "show", "tail"] {
        let ran = held.run(&format!("{verb} URL/sessions/{second_id}"));
        assert_eq!(ran.code, 1, "{verb}: {}", ran.stderr);
        assert!(ran.stderr.contains("chunk 1 is damaged"), "{verb}: {}", ran.stderr);
    }
}

#[test]
fn the_chunks_of_a_place_are_collected_once_their_volumes_are_a_day_old() {
    let held = Held::new();
    let session = held.session();
    let id = session.id();
    for part in 0..70 {
        session.dispatch(step("on", part)).unwrap();
        session.sync().unwrap();
    }
    let texts = |ran: &Ran| ran.stdout.clone();
    let before = texts(&held.run(&format!("show URL {id}")));
    let nothing = held.run("gc URL").stdout;
    assert!(nothing.starts_with("nothing to remove\n7"), "{nothing}");
    // The worker writes the volume after its appends; this collection completes it if necessary.
    held.run("gc URL --yes");
    let volume = held.directory.path().join(format!("bucket/team/sessions/{id}/volumes/64/{:020}", 0));
    let day = Duration::from_secs(24 * 60 * 60 + 60);
    File::options().write(true).open(volume).unwrap().set_modified(SystemTime::now() - day).unwrap();
    let would = held.run("gc URL");
    let left = held.run("gc URL --json");
    let left: Value = serde_json::from_str(&left.stdout).unwrap();
    assert_eq!(left["young"], 0);
    let stays = format!("{} chunks remain: {0} that no volume contains yet", left["left"]);
    let [of_it, total, stay] = would.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{would:?}") };
    assert!(of_it.ends_with(&stays), "{of_it}");
    assert!(
        total.starts_with("would remove 64 chunks, ") && total.ends_with("; --yes removes them"),
        "{total}"
    );
    assert_eq!(stay, stays);
    assert!(held.chunk(id, 0).exists());
    let ran = held.run(&format!("gc URL {id} --yes --json"));
    let row: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    assert_eq!((&row["chunks"], &row["session"]), (&json!(64), &json!(id.to_string())));
    assert!(!held.chunk(id, 63).exists() && held.chunk(id, 64).exists());
    assert_eq!(texts(&held.run(&format!("show URL {id}"))), before);
    // The worker continues, and another one takes the session over.
    session.dispatch(step("on", 70)).unwrap();
    session.sync().unwrap();
    assert!(held.run("gc URL").stdout.starts_with("nothing to remove\n"));
    let two = worker(&held.directory.path().join("two"), &held.directory.path().join("bucket"), "two");
    let taken = two.take_over(id, &types()).unwrap();
    assert!(taken.log().position().unwrap() >= session.log().position().unwrap());
    fs::write(held.directory.path().join(format!("bucket/team/sessions/{id}/volumes/64/{:020}", 0)), b"x")
        .unwrap();
    let damaged = held.run("gc URL --yes");
    assert_eq!(damaged.code, 1, "{}", damaged.stderr);
    assert!(damaged.stderr.contains("the volume of the removed chunks 0 to 63"), "{}", damaged.stderr);
}

/// A worker died between a payload and the record that was to name it, and a collection died after
/// its probe.
#[test]
fn what_nothing_names_is_told_of_a_place_and_removed_a_day_later() {
    let held = Held::new();
    let session = held.session();
    let id = session.id();
    session.close().unwrap();
    let directory = held.directory.path().join(format!("bucket/team/sessions/{id}"));
    let (payload, probe) = (
        directory.join(format!("objects/{}", ObjectId::from_content(b"left").file_name())),
        directory.join("probe/1"),
    );
    for path in [&payload, &probe] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"left").unwrap();
    }
    let pass_a_day = || {
        let day = Duration::from_secs(24 * 60 * 60 + 60);
        if let Ok(file) = File::options().write(true).open(&probe) {
            // The probe has been unused for a week.
            file.set_modified(SystemTime::now() - 7 * day).unwrap();
        }
        let withdrawal = directory.join(format!("withdrawn/{:020}", 1));
        for path in [&payload, &withdrawal] {
            let Ok(file) = File::options().write(true).open(path) else { continue };
            file.set_modified(SystemTime::now() - day).unwrap();
        }
    };
    let stays =
        "1 payload that no record names any more remains until `gc` finds it unused again, 24 h later";
    let gc = |words: &str| {
        let ran = held.run(&format!("gc URL{words}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words}");
        ran.stdout
    };
    let young = gc(" --yes");
    assert!(young.contains("nothing to remove\n") && young.ends_with(&format!("{stays}\n")), "{young}");
    assert!(!directory.join("withdrawn").exists() && probe.exists());
    pass_a_day();
    assert!(gc(" --yes").ends_with(&format!("{stays}\n")));
    assert!(directory.join("withdrawn").exists() && payload.exists() && !probe.exists());
    pass_a_day();
    let would = gc("");
    let goes = "1 payload that no record names any more, 4 bytes";
    assert!(
        would.contains(&format!("would remove 0 chunks, 0 bytes, and {goes}; --yes removes them\n")),
        "{would}"
    );
    let ran = gc(" --yes --json");
    let row: Value = serde_json::from_str(&ran).unwrap();
    assert_eq!(
        [&row["payloads"], &row["payload_bytes"], &row["payloads_left"]],
        [&json!(1), &json!(4), &json!(0)]
    );
    assert!(!payload.exists());
    assert!(gc(" --yes").starts_with("nothing to remove\n"));
}

#[test]
fn a_place_without_sessions_says_so_and_one_session_is_listed_alone() {
    let held = Held::new();
    let (first, second) = (held.session().id(), held.session().id());
    let nobody = Uuid::from_u128(9);
    let one = held.run(&format!("sessions URL/sessions/{first}"));
    assert_eq!((one.code, one.stdout.lines().count()), (0, 2), "{}", one.stdout);
    assert!(one.stdout.contains(&first.to_string()) && !one.stdout.contains(&second.to_string()));
    let none = held.run(&format!("sessions URL {nobody}"));
    assert_eq!((none.code, none.stdout.as_str()), (2, ""), "{}", none.stderr);
    assert!(none.stderr.contains(&format!("there is no session {nobody} at this URL")), "{}", none.stderr);
    fs::create_dir(held.directory.path().join("bucket/other")).unwrap();
    for (verb, code) in [("sessions", 0), ("verify", 2), ("gc", 2)] {
        let ran =
            held.run(&format!("{verb} file://{}", held.directory.path().join("bucket/other").display()));
        assert_eq!(ran.code, code, "{verb}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("there are no sessions at this URL"), "{verb}: {}", ran.stderr);
        assert!(ran.stderr.contains("with its prefix"), "{verb}: {}", ran.stderr);
    }
    // The directory of a bucket is no store, and neither are its subdirectories.
    let bucket = held.directory.path().join("bucket").canonicalize().unwrap();
    let team = format!("file://{}", bucket.join("team").display());
    for (words, url) in [
        (format!("sessions {}", bucket.display()), team.clone()),
        (format!("sessions {}/team", bucket.display()), team.clone()),
        (format!("verify {}/team", bucket.display()), team.clone()),
        (format!("show {}/team/sessions/{first}", bucket.display()), format!("{team}/sessions/{first}")),
    ] {
        let ran = foldlog(words.split(' '));
        assert_eq!(ran.code, 2, "{words}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("this directory contains a bucket"), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("give its URL: {url}\n")), "{words}: {}", ran.stderr);
    }
    // The worker's directory is a store.
    assert_eq!(foldlog(["sessions".into(), held.directory.path().join("one")]).code, 0);
}

#[test]
fn a_call_that_waits_in_a_place_is_decided_in_a_store() {
    let held = Held::new();
    let session = held.session();
    let runner = ToolRunner::new(
        ExecutionState::new(session.clone(), ResourceRegistry::default()),
        ToolRegistry::new(),
    );
    let open = runner.begin(&ToolCall::new("send", "{}"), &ExecuteOptions::default()).unwrap();
    session.sync().unwrap();
    let (id, operation) = (session.id(), open.context().operation());
    let account = || held.run(&format!("ledger URL/sessions/{id} {operation}")).stdout;
    let there = account();
    let takes =
        format!("`foldlog takeover {} --session {id} --to STORE --by \"$USER\" --reason WHY`", held.url);
    assert!(there.contains(&takes), "{there}");
    assert!(
        there.contains(&format!("`foldlog recover STORE/sessions/{id} --unreplicated` there first")),
        "{there}"
    );
    assert!(!there.contains("foldlog settle"), "{there}");
    session.clone().close().unwrap();
    drop(open);
    let session = held.store.open_session(id, &types()).unwrap();
    let runner = ToolRunner::new(
        ExecutionState::new(session.clone(), ResourceRegistry::default()),
        ToolRegistry::new(),
    );
    runner.recover(&ExecuteOptions::default()).unwrap();
    session.sync().unwrap();
    let there = account();
    assert!(there.contains(&takes) && !there.contains(&format!("settle {}", held.url)), "{there}");
    let settles = format!(
        "foldlog settle STORE/sessions/{id} {operation} failed --by \"$USER\" --reason WHY --unreplicated"
    );
    assert!(there.contains(&settles), "{there}");
}

#[test]
fn a_place_is_not_written_and_what_is_none_is_refused() {
    let held = Held::new();
    let id = held.session().id();
    let before = held.files();
    let secret = format!("show s3://key:hunter2@bucket/team {id}");
    for (words, said) in [
        (format!("recover URL {id}"), "is a URL, and this command needs a directory"),
        (format!("rewind URL/sessions/{id} 0 --by Ada --reason back"), "`foldlog takeover URL --to STORE "),
        ("gc URL --keep-calls 3".to_owned(), "a bucket or database keeps all captures"),
        ("show URL".to_owned(), "names no session"),
        (format!("show URL/nowhere {id}"), "the directory does not exist"),
        (format!("show URL {}", Uuid::from_u128(9)), "it contains no records of that session"),
        (secret, "it contains more than a place"),
        (format!("state s3://bucket/team {id}"), "built without support for this kind of bucket"),
    ] {
        let ran = held.run(&words);
        assert_eq!(ran.code, 2, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{words}: {}", ran.stderr);
        let quoted = ran.stderr.lines().filter(|line| line.contains("hunter2")).count();
        assert_eq!(quoted, 0, "{}", ran.stderr);
    }
    assert_eq!(held.files(), before);
}

/// The child's part: shows a session with the process's own streams and signals.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_shows() {
    let Some(argument) = child::argument() else { return };
    let code = foldlog_cli::output::with_process(|output| {
        let arguments = ["foldlog", "show", "--payload", &argument];
        foldlog_cli::run(arguments.map(Into::into), output)
    });
    std::process::exit(code.into());
}

/// Creates a session with more output than a pipe takes: its reader can read a part while the verb
/// is still writing.
fn long_session(held: &Held) -> Session {
    let session = held.session();
    for _ in 0..5_000 {
        session.dispatch(noted("a line of its own")).unwrap();
    }
    session.sync().unwrap();
    session
}

#[test]
fn nothing_is_left_of_what_was_read_also_by_a_signal() {
    let held = Held::new();
    let session = long_session(&held);
    let url = format!("{}/sessions/{}", held.url, session.id());
    let temporary = held.directory.path().join("tmp");
    let left = |directory: &Path| fs::read_dir(directory).unwrap().count();
    for signal in [None, Some(Signal::SIGINT), Some(Signal::SIGTERM), Some(Signal::SIGHUP)] {
        fs::create_dir_all(&temporary).unwrap();
        let mut process = child::command("binary::held::part_of_a_child_that_shows", &url)
            .env("TMPDIR", &temporary)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut line = || lines.next().and_then(Result::ok);
        while line().expect("it shows records").split_whitespace().next() != Some("0") {}
        assert_eq!(left(&temporary), 1, "a copy is read");
        if let Some(signal) = signal {
            kill(Pid::from_raw(process.id().try_into().unwrap()), signal).unwrap();
        } else {
            while line().is_some() {}
        }
        let status = process.wait().unwrap();
        let by = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(by, signal.map(|signal| signal as i32), "{status}");
        assert_eq!(left(&temporary), 0, "{signal:?}");
    }
}

#[test]
fn bodies_that_a_compaction_dropped_go_from_a_place_and_who_reads_there_is_told() {
    let held = Held::new();
    let session = held.session();
    let (id, dir) = (session.id(), session.dir().to_owned());
    for part in 0..40 {
        let before = session.log().position().unwrap();
        session.dispatch(step(&"is gone ".repeat(40), part)).unwrap();
        session.sync().unwrap();
        session.rollback_to(before).unwrap();
        session.sync().unwrap();
    }
    session.close().unwrap();
    held.run("gc URL --yes");
    for path in held.files().into_keys() {
        let day = Duration::from_secs(24 * 60 * 60 + 60);
        File::options().write(true).open(path).unwrap().set_modified(SystemTime::now() - day).unwrap();
    }
    let told = foldlog(format!("compact {} --unreplicated", dir.display()).split(' '));
    assert!(told.stdout.contains("dropped the bodies of 4"), "{}{}", told.stdout, told.stderr);
    // The bucket learns of the compaction when the worker opens the session again.
    let would = held.run("gc URL").stdout;
    assert!(!would.contains("bodies"), "{would}");
    held.store.open_session(id, &types()).unwrap().close().unwrap();
    let stands = |held: &Held| {
        let is_in = |bytes: &Vec<u8>| bytes.windows(16).any(|window| window == b"is gone is gone ");
        held.files().values().filter(|bytes| is_in(bytes)).count()
    };
    let before = stands(&held);
    let would = held.run("gc URL").stdout;
    assert_eq!(stands(&held), before);
    let ran = held.run("gc URL --yes");
    let line = ran.stdout.lines().next().unwrap();
    assert!(
        line.contains(": removed 64 chunks, ")
            && line.contains(", and the bodies of 31 records that a compaction dropped, "),
        "{line}"
    );
    assert!(line.ends_with("; the bodies of 9 more records wait until their chunks are collected"), "{line}");
    assert_eq!(ran.stdout.replace("removed", "would remove").lines().next(), would.lines().next());
    assert!(stands(&held) < before);
    let row: Value = serde_json::from_str(&held.run("gc URL --json").stdout).unwrap();
    assert_eq!((&row["dropped"], &row["waiting"]), (&json!(0), &json!(9)));

    let ran = held.run("verify URL");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    // The state at a rollback within a dropped range was compared with the state at its target.
    for session in [format!("URL {id}"), dir.display().to_string()] {
        let ran = held.run(&format!("replay {session} --thorough"));
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("cannot be checked: a compaction has dropped"), "{}", ran.stdout);
    }
    for verb in ["show S", "state S", "ledger S"] {
        let there = held.run(&verb.replace('S', &format!("URL {id}")));
        let here = foldlog(verb.replace('S', &dir.display().to_string()).split(' '));
        assert_eq!(there.code, 0, "{verb}: {}", there.stderr);
        assert!(verb == "show S" || there.stdout == here.stdout, "{verb}: {}", there.stdout);
    }
    let gone = held.run(&format!("state URL {id} --at 20"));
    assert!(gone.code != 0 && gone.stderr.contains("compact"), "{}{}", gone.stdout, gone.stderr);
}

/// The remains of a killed reader contain a whole conversation, in an unknown place.
#[test]
fn what_a_killed_reader_left_is_removed_by_the_next_one() {
    let held = Held::new();
    let session = long_session(&held);
    let url = format!("{}/sessions/{}", held.url, session.id());
    let temporary = held.directory.path().join("tmp");
    // A directory that is about to be locked, one that others may enter, and an unrelated one.
    fs::create_dir_all(temporary.join("foldlog-held-new")).unwrap();
    fs::create_dir_all(temporary.join("foldlog-held-open/one")).unwrap();
    fs::create_dir_all(temporary.join("another/one")).unwrap();
    for (name, mode) in [("new", 0o700), ("open", 0o755)] {
        let directory = temporary.join(format!("foldlog-held-{name}"));
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    }
    let others = 3;
    let left = || fs::read_dir(&temporary).unwrap().count() - others;
    let reads = |stdout| {
        child::command("binary::held::part_of_a_child_that_shows", &url)
            .env("TMPDIR", &temporary)
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut killed = reads(Stdio::piped());
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    while lines.next().expect("it shows records").unwrap().split_whitespace().next() != Some("0") {}
    let copies =
        fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().metadata().unwrap().mode() & 0o7777);
    assert_eq!(copies.filter(|mode| *mode == 0o700).count(), 2, "the copy is this user's alone");
    // A live reader keeps its copy, whatever other readers do.
    assert!(reads(Stdio::null()).wait().unwrap().success());
    assert_eq!(left(), 1);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(left(), 1);
    assert!(reads(Stdio::null()).wait().unwrap().success());
    assert_eq!(left(), 0);
}
