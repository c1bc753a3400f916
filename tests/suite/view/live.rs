//! Sessions that change while they are shown, and the end of a server.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::conversation::{NewInput, Role};
use foldlog::{Session, SessionOptions};
use foldlog_test_support::child;
use foldlog_test_support::host::{Noted, types};
use foldlog_test_support::runs::Json;
use foldlog_tests::shown;
use foldlog_tests::verbs::foldlog;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Fixture;
use super::client::Viewer;

/// A session that is being written, and its server.
struct Growing {
    directory: tempfile::TempDir,
    session: Session,
    viewer: Viewer,
    id: String,
}

impl Growing {
    fn begun() -> Growing {
        let directory = tempfile::tempdir().unwrap();
        let store = shown::store(directory.path());
        let session = store.create_with(&types(), SessionOptions::default()).unwrap();
        let viewer = Viewer::of(directory.path());
        let id = session.dir().file_name().unwrap().to_str().unwrap().to_owned();
        let growing = Growing { directory, session, viewer, id };
        growing.note("the first");
        growing
    }

    fn note(&self, text: &str) -> u64 {
        self.session.dispatch(Noted { text: text.to_owned() }).unwrap().get()
    }

    fn json(&self, rest: &str) -> Json {
        self.viewer.json(&format!("session/{}/{rest}", self.id))
    }

    /// Returns the page's knowledge: the last record and the epoch.
    fn known(&self) -> (u64, u64) {
        known(&self.json("head"))
    }

    /// Waits for news like a page, until `last` is reported.
    fn told(&self, mut known_now: (u64, u64), last: u64) -> (u64, u64) {
        while known_now.0 != last {
            let (last, epoch) = known_now;
            known_now = known(&self.json(&format!("live?last={last}&epoch={epoch}")));
        }
        known_now
    }
}

fn known(told: &Json) -> (u64, u64) {
    let number = |field: &str| match told.get(field) {
        Some(Json::Scalar(value)) => value.as_u64().unwrap(),
        other => panic!("{field} is {other:?}"),
    };
    (number("last"), number("epoch"))
}

#[test]
fn what_is_written_is_told_to_whoever_waits_for_it() {
    let growing = Growing::begun();
    let before = growing.known();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| growing.told(before, before.0 + 3));
        for number in 0..3 {
            growing.note(&format!("note {number}"));
        }
        assert_eq!(waits.join().unwrap(), (before.0 + 3, before.1), "nothing that was there has changed");
    });
    let notes = growing.json(&format!("items?at={}&slice=notes&from=0&count=100", before.0 + 3));
    assert_eq!(notes.get("items").unwrap().elements().len(), 4);
    // A page that lags is answered at once.
    assert_eq!(growing.told((0, 0), before.0 + 3).0, before.0 + 3);
}

#[test]
fn a_rollback_is_told_as_a_change_of_what_was_there() {
    let growing = Growing::begun();
    let target = growing.note("stays");
    growing.note("goes");
    let before = growing.known();
    let path = |at: u64| {
        let told = growing.json("records?chunk=0");
        let Json::Scalar(place) = &told.get("path").unwrap().elements()[at as usize] else {
            panic!("no path")
        };
        let place = place.as_u64().unwrap() as usize;
        told.get("paths").unwrap().elements()[place].as_str().unwrap().to_owned()
    };
    growing
        .session
        .dispatch(foldlog_test_support::host::StepAdded { title: "step".to_owned(), part: 1 })
        .unwrap();
    let step = growing.session.log().position().unwrap().get();
    let known = growing.told(before, step);
    assert_eq!(path(step), "live");
    growing.session.rollback_to(target).unwrap();
    let last = growing.session.log().position().unwrap().get();
    let after = growing.told(known, last);
    assert!(after.1 > known.1, "the page has to read again what it has");
    assert_ne!(path(step), "live");
    for at in 0..=last {
        let ran =
            foldlog(["state", growing.session.dir().to_str().unwrap(), "--at", &at.to_string(), "--json"]);
        let state = Json::parse(&ran.stdout);
        for slice in growing.json(&format!("step?at={at}")).get("slices").unwrap().elements() {
            let name = slice.get("name").unwrap().as_str().unwrap();
            let items =
                state.get("slices").unwrap().get(name).unwrap().get("items").unwrap().elements().len();
            assert_eq!(slice.get("total"), Some(&Json::Scalar(items.into())), "{name} at {at}");
        }
    }
}

#[test]
fn a_session_that_is_compacted_meanwhile_is_shown_on() {
    let fixture = Fixture::of_history(1500, 21);
    let viewer = Viewer::of(fixture.store());
    let of = |rest: &str| viewer.json(&format!("session/{}/{rest}", fixture.id()));
    let last = known(&of("head")).0;
    let before = of(&format!("items?at={last}&slice=plan&from=0&count=1000"));
    let ran = foldlog(["compact", fixture.session.to_str().unwrap(), "--keep", "none"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for at in [last, last / 2, 3] {
        let answer =
            viewer.get(&format!("session/{}/items?at={at}&slice=plan&from=0&count=1000", fixture.id()));
        assert_eq!(answer.status, 200, "at {at}: {}", answer.body);
    }
    assert_eq!(of(&format!("items?at={last}&slice=plan&from=0&count=1000")), before);
}

#[test]
fn a_damaged_session_shows_its_sound_part_and_says_so() {
    let fixture = Fixture::of_history(400, 22);
    let mut segments: Vec<PathBuf> =
        fs::read_dir(&fixture.session).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.sort();
    let segment = segments.first().unwrap();
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x40;
    fs::write(segment, bytes).unwrap();
    let viewer = Viewer::of(fixture.store());
    let head = viewer.json(&format!("session/{}/head", fixture.id()));
    let damage = head.get("damage").unwrap();
    let (last, epoch) = known(&head);
    assert_eq!(damage.get("sequence"), Some(&Json::Scalar((last + 1).into())));
    assert!(damage.get("reason").unwrap().as_str().is_some());
    viewer.json(&format!("session/{}/step?at={last}", fixture.id()));
    // After the damage come the records that `show` lists there.
    let dir = fixture.session.to_str().unwrap();
    let shown = foldlog(["show", dir, "--beyond-damage", "--json"]).stdout;
    let is_behind = |record: &Json| record.get("path").and_then(Json::as_str) == Some("unattached");
    let shown: Vec<Json> = shown.lines().map(Json::parse).filter(is_behind).collect();
    assert_eq!(damage.get("behind"), Some(&Json::Scalar(shown.len().into())));
    let told = viewer.json(&format!("session/{}/beyond?from=0&count=10000", fixture.id()));
    assert_eq!(told.elements().len(), shown.len());
    for (number, (row, record)) in told.elements().iter().zip(&shown).enumerate() {
        assert_eq!(row.get("sequence"), record.get("sequence"));
        let document = viewer.json(&format!("session/{}/beyond-document?number={number}", fixture.id()));
        assert_eq!(&Json::parse(document.get("text").unwrap().as_str().unwrap()), record);
    }
    let none = viewer.get(&format!("session/{}/beyond-document?number={}", fixture.id(), shown.len()));
    assert_eq!(none.status, 400);
    // A damaged log cannot be written, so there is no reason to wait.
    let live = viewer.json(&format!("session/{}/live?last={last}&epoch={epoch}", fixture.id()));
    assert_eq!(live.get("ended"), Some(&Json::Scalar(true.into())));
}

#[test]
fn a_session_that_takes_too_much_memory_is_told_in_words_and_so_is_its_row() {
    let fixture = Fixture::of_history(400, 24);
    let viewer = Viewer::with(fixture.store(), &["--memory", "2K"]);
    let answer = viewer.get(&format!("session/{}/head", fixture.id()));
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("memory") && answer.body.contains("--memory BYTES"), "{}", answer.body);
    let rows = viewer.json("sessions");
    let [row] = rows.get("rows").unwrap().elements() else { panic!("not one row") };
    assert_eq!(row.get("status").unwrap().as_str(), Some("unreadable"));
    assert!(row.get("error").unwrap().as_str().unwrap().contains("memory"));
}

/// A reader of records named the missing record, and a reader of frames named the first one of the
/// segment.
#[test]
fn a_record_that_is_damaged_while_a_session_is_shown_has_one_name_in_all_answers() {
    let fixture = Fixture::of_history(400, 22);
    let viewer = Viewer::of(fixture.store());
    let last = known(&viewer.json(&format!("session/{}/head", fixture.id()))).0;
    let dir = fixture.session.to_str().unwrap();
    let shown = foldlog(["show", dir, "--json"]).stdout;
    let records: Vec<Json> = shown.lines().map(Json::parse).collect();
    let number = |record: &Json| match record.get("sequence") {
        Some(Json::Scalar(sequence)) => sequence.as_u64().unwrap(),
        other => panic!("{other:?}"),
    };
    // The last start record of a call, which the ledger reads after many others.
    let is_begin = |record: &&Json| record.get("kind").and_then(Json::as_str) == Some("tool_begin");
    let damaged = number(records.iter().rfind(is_begin).unwrap());
    let mut named = BTreeSet::new();
    foldlog::inspect::LogReader::open(&fixture.session)
        .unwrap()
        .frames(|frame| {
            if frame.record.sequence == damaged && !frame.record.kind.is_envelope() {
                let mut bytes = fs::read(frame.segment).unwrap();
                bytes[usize::try_from(frame.offset).unwrap() + 40] ^= 0x40;
                fs::write(frame.segment, bytes).unwrap();
            }
            Ok(())
        })
        .unwrap();
    let compare = format!("compare?with={}", fixture.id());
    let document = format!("document?at={damaged}");
    for path in ["operations", "statistics", &compare, &document, &format!("document?at={last}")] {
        let answer = viewer.get(&format!("session/{}/{path}", fixture.id()));
        if answer.status != 200 {
            let error = Json::parse(&answer.body).get("error").unwrap().as_str().unwrap().to_owned();
            assert!(error.contains(&format!(", record {damaged}:")), "{path}: {error}");
            named.insert((path.to_owned(), error));
        }
    }
    let said: BTreeSet<&String> = named.iter().map(|(_, error)| error).collect();
    assert!(named.len() >= 3 && said.len() == 1, "{named:?}");
}

/// Steps of a session whose conversation took too much memory were answered with 500, and later
/// without the conversation.
#[test]
fn a_conversation_larger_than_memory_is_shown_and_a_message_that_is_takes_nothing_else_of_a_step() {
    let directory = tempfile::tempdir().unwrap();
    let session = shown::store(directory.path()).create(&foldlog_test_support::host::types()).unwrap();
    let say = |evaluation: &str, text: String| {
        session.conversation().record_input(&NewInput::new(evaluation, Role::User, text)).unwrap()
    };
    let mut half = None;
    for number in 0..40 {
        session.dispatch(foldlog_test_support::crash::step(number)).unwrap();
        let said = say("long", format!("{number} {}", "said ".repeat(8000)));
        half = half.or((number == 19).then_some(said));
    }
    let half = half.unwrap();
    // Abandoned records are not shown.
    let kept = session.log().position().unwrap();
    say("long", "in vain".to_owned());
    session.rollback_to(kept).unwrap();
    say("huge", "said ".repeat(160_000));
    say("short", "said".to_owned());
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let viewer = Viewer::with(directory.path(), &["--memory", "600K"]);
    let head = viewer.json(&format!("session/{id}/head"));
    let Some(Json::Scalar(last)) = head.get("last") else { panic!("{head:?}") };
    // The second request reads nothing again.
    for _ in 0..2 {
        let step = viewer.json(&format!("session/{id}/step?at={last}"));
        assert!(!step.get("slices").unwrap().elements().is_empty());
        let [long, huge, short] = step.get("conversations").unwrap().elements() else { panic!("{step:?}") };
        assert_eq!((long.get("total"), long.get("refused")), (Some(&Json::Scalar(40.into())), None));
        assert_eq!(huge.get("total"), Some(&Json::Scalar(serde_json::Value::Null)));
        let refused = huge.get("refused").unwrap().as_str().unwrap();
        assert!(refused.contains("memory") && refused.contains("--memory BYTES"), "{refused}");
        assert_eq!((short.get("total"), short.get("refused")), (Some(&Json::Scalar(1.into())), None));
    }
    // Every window equals the output of the command line, which has enough memory.
    let transcript = ["transcript", dir.to_str().unwrap(), "--evaluation", "long", "--as-recorded", "--json"];
    let printed = foldlog(transcript).stdout;
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed.len(), 40);
    for from in [0, 17, 35] {
        let path = format!("session/{id}/messages?at={last}&evaluation=long&from={from}&count=5");
        let told = viewer.json(&path);
        let items = told.get("items").unwrap().elements().iter();
        let texts = items.map(|item| item.get("value").unwrap().get("text").unwrap().as_str().unwrap());
        assert_eq!(texts.collect::<Vec<_>>(), printed[from..from + 5], "from {from}");
    }
    // An earlier step has fewer.
    let earlier = viewer.json(&format!("session/{id}/step?at={half}"));
    let [long] = earlier.get("conversations").unwrap().elements() else { panic!("{earlier:?}") };
    assert_eq!(long.get("total"), Some(&Json::Scalar(20.into())));
    let answer = viewer.get(&format!("session/{id}/messages?at={last}&evaluation=huge&from=0&count=10"));
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("memory"), "{}", answer.body);
    // The comparison reads whole conversations: the comparable part is shown, with the reason for
    // the missing one.
    let told = viewer.json(&format!("session/{id}/diff?before=5&after={last}"));
    let refused = told.get("refused").unwrap().as_str().unwrap();
    assert!(refused.contains("--memory BYTES"), "{refused}");
    let of_slices = |line: &&Json| line.as_str().unwrap().contains(r#""slice":"plan""#);
    assert!(told.get("differences").unwrap().elements().iter().any(|line| of_slices(&line)), "{told:?}");
}

#[test]
fn a_session_that_is_deleted_is_told_in_words() {
    let growing = Growing::begun();
    let (last, epoch) = growing.known();
    fs::remove_dir_all(growing.session.dir()).unwrap();
    for rest in [format!("live?last={last}&epoch={epoch}"), "head".to_owned()] {
        let answer = growing.viewer.get(&format!("session/{}/{rest}", growing.id));
        assert!([404, 410].contains(&answer.status), "{rest}: {}", answer.status);
        assert!(answer.body.contains("error"), "{rest}: {}", answer.body);
    }
    drop(growing.directory);
}

/// Returns the file that redirects a browser to the server, and its directory.
fn redirects(directory: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("foldlog-view-")).collect()
}

fn set(name: &str, value: &Path) -> String {
    format!("{name}={}", value.display())
}

#[test]
fn a_signal_ends_the_server_and_removes_the_file_that_led_to_it() {
    use std::os::unix::fs::PermissionsExt;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let fixture = Fixture::of_history(20, 23);
        let temporary = tempfile::tempdir().unwrap();
        let (browser, asked) = (temporary.path().join("browser"), temporary.path().join("asked"));
        fs::write(&browser, "#!/bin/sh\necho \"$1\" > \"$TMPDIR/asked\"\n").unwrap();
        fs::set_permissions(&browser, fs::Permissions::from_mode(0o700)).unwrap();
        nix::unistd::mkfifo(&asked, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let variables = ["env".to_owned(), set("TMPDIR", temporary.path()), set("BROWSER", &browser)];
        let mut server = child::start_under(
            &variables,
            "view::live::part_of_a_child_that_serves",
            fixture.store().to_str().unwrap(),
        );
        let url = loop {
            let line = server.line().expect("the address is printed");
            // The test runner's output comes first, perhaps on the same line.
            if let Some(at) = line.find("http://127.0.0.1:") {
                break line[at..].to_owned();
            }
        };
        // The test's browser writes its argument to the pipe, for which this waits.
        let page = PathBuf::from(fs::read_to_string(&asked).unwrap().trim_end());
        let [directory] = redirects(temporary.path()).try_into().unwrap();
        assert_eq!(page.parent(), Some(directory.as_path()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&page), mode(&directory)), (0o600, 0o700));
        assert!(fs::read_to_string(&page).unwrap().contains(&format!("url={url}\"")));
        let id = Pid::from_raw(server.id().try_into().unwrap());
        let arguments = fs::read(format!("/proc/{id}/cmdline")).unwrap();
        let token = url.trim_end_matches('/').rsplit('/').next().unwrap();
        assert!(!String::from_utf8_lossy(&arguments).contains(token));
        kill(id, signal).unwrap();
        assert!(server.passed());
        assert_eq!(redirects(temporary.path()), [] as [PathBuf; 0], "{signal}");
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_serves() {
    let Some(store) = child::argument() else { return };
    let words = ["foldlog", "view", &store].map(std::ffi::OsString::from);
    let code = foldlog_cli::output::with_process(|output| foldlog_cli::run(words, output));
    assert_eq!(code, 0);
}
