//! Reports: one file that shows at every step the output of the command line, contains no data that
//! was not requested, and no markup except its own.

mod page;

use std::fs;
use std::path::{Path, PathBuf};

use foldlog_test_support::child;
use foldlog_test_support::loop_disk::LoopDisk;
use foldlog_tests::shown::{self, HOSTILE, SECRET};
use foldlog_tests::verbs::{Ran, foldlog};
use serde_json::Value;

use page::Page;

fn run<const N: usize>(arguments: [&str; N]) -> Ran {
    foldlog(arguments)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

struct Fixture {
    directory: tempfile::TempDir,
    session: PathBuf,
}

impl Fixture {
    fn of_history(records: u64, seed: u64) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let session = shown::history(&shown::store(directory.path()), records, seed);
        Fixture { directory, session }
    }

    fn of_work() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let (session, _) = shown::work(&shown::store(directory.path()));
        Fixture { directory, session }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn try_report(&self, name: &str, more: &[&str]) -> Ran {
        let file = self.file(name);
        let arguments = ["report", text(&self.session), "--html", text(&file)];
        foldlog(arguments.iter().chain(more).copied())
    }

    fn report(&self, name: &str, more: &[&str]) -> Page {
        let ran = self.try_report(name, more);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        Page::read(&self.file(name))
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let ran = foldlog(
            arguments[0]
                .split(' ')
                .chain([text(&self.session)])
                .chain(arguments[1..].iter().copied())
                .chain(["--json"]),
        );
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn assert_state(&self, page: &Page, at: u64) {
        let state = self.assert_slices(page, at);
        if state.get("conversations").is_some() {
            let said = self.json(&["transcript", "--as-recorded", "--at", &at.to_string()]);
            assert_eq!(page.messages_at("talk", at), said, "messages at {at}");
        }
    }

    /// Asserts that the page has the slices of the command line's output at a position, and returns
    /// that output.
    fn assert_slices(&self, page: &Page, at: u64) -> Value {
        let state = self.json(&["state", "--at", &at.to_string()]).remove(0);
        let slices = state["slices"].as_object().unwrap();
        let shown = page.slices_at(at);
        assert_eq!(shown.keys().collect::<Vec<_>>(), slices.keys().collect::<Vec<_>>(), "slices at {at}");
        for (name, slice) in slices {
            assert_eq!(Value::from(shown[name].clone()), slice["items"], "{name} at {at}");
        }
        state
    }
}

#[test]
fn a_page_has_at_every_step_what_the_command_line_prints() {
    let fixture = Fixture::of_history(400, 1);
    let page = fixture.report("report.html", &["--payloads"]);
    let last = page.head["last"].as_u64().unwrap();
    for at in (0..=last).step_by(13).chain([last]) {
        fixture.assert_state(&page, at);
    }
    assert_eq!(page.documents(), fixture.json(&["show"]));
    let ledger = fixture.json(&["ledger"]);
    assert_eq!(page.json_block("operations")["ledger"], Value::from(ledger));
    assert_eq!(page.json_block("statistics"), fixture.json(&["stats"])[0]);
    assert_eq!(page.json_block("integrity")["found"], fixture.json(&["verify"])[0]);
}

#[test]
fn a_page_of_a_range_knows_the_state_before_it() {
    let fixture = Fixture::of_history(300, 2);
    let page = fixture.report("report.html", &["--payloads", "--from", "150", "--to", "220", "--at", "200"]);
    assert_eq!(
        (&page.head["from"], &page.head["last"], &page.head["at"]),
        (&150.into(), &220.into(), &200.into())
    );
    for at in [150, 151, 187, 220] {
        fixture.assert_state(&page, at);
    }
    let shown = fixture.json(&["show", "--from", "150", "--to", "220"]);
    assert_eq!(page.documents(), shown);
    for (more, says) in [
        (["--from", "200", "--to", "100"], "record 200 is after record 100"),
        (["--to", "100", "--at", "200"], "the report lists records 0 to 100, but not position 200"),
        (["--from", "0", "--to", "99999"], "there is no position 99999"),
    ] {
        let ran = fixture.try_report("other.html", &more);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
        assert!(!fixture.file("other.html").exists());
    }
}

#[test]
fn no_payload_is_in_a_page_that_was_not_asked_for_any() {
    let fixture = Fixture::of_history(300, 3);
    let without = fixture.report("without.html", &[]);
    assert!(!without.holds(SECRET));
    assert!(
        without
            .documents()
            .iter()
            .all(|document| document["sequence"].is_u64() && document["name"].is_string())
    );
    let with = fixture.report("with.html", &["--payloads"]);
    assert!(with.holds(SECRET));
    // A value over the limit is marked as cut; the others are whole.
    let cut = fixture.report("cut.html", &["--payloads", "--limit", "20"]);
    let last = cut.head["last"].as_u64().unwrap();
    let (notes, sizes) = (&cut.slices_at(last)["notes"], &cut.slices_at(last)["note_sizes"]);
    assert!(
        notes.iter().all(|note| note["$left_out"] == "map" && note["bytes"].as_u64().unwrap() > 20),
        "{notes:?}"
    );
    assert!(!sizes.is_empty() && sizes.iter().all(Value::is_array), "{sizes:?}");
}

#[test]
fn no_text_of_a_session_becomes_markup() {
    let directory = tempfile::tempdir().unwrap();
    let session = shown::hostile(&shown::store(directory.path()));
    let fixture = Fixture { directory, session };
    for more in [&["--payloads", "--limit", "64M"][..], &[]] {
        let name = format!("{}.html", more.len());
        let page = fixture.report(&name, more);
        assert!(page.holds(HOSTILE), "names are there");
        page.assert_own_markup_only();
        assert!(page.documents().len() > 5);
    }
}

#[test]
fn a_file_that_is_there_is_replaced_on_demand_only_and_none_is_left_half_written() {
    let fixture = Fixture::of_history(60, 4);
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(fixture.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    fs::write(fixture.file("report.html"), "mine").unwrap();
    let refused = fixture.try_report("report.html", &[]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("report.html"), "{}", refused.stderr);
    assert_eq!(fs::read(fixture.file("report.html")).unwrap(), b"mine");
    fixture.report("report.html", &["--force"]);
    let missing =
        run(["report", text(&fixture.file("nothing")), "--html", text(&fixture.file("other.html"))]);
    assert_eq!(missing.code, 2);
    let after: Vec<_> = names().into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(after, ["report.html"]);
}

/// With --force, a report once replaced a device, and a session's own log.
#[test]
fn a_report_takes_the_place_of_no_device_and_of_nothing_of_a_session() {
    let fixture = Fixture::of_history(60, 4);
    let pipe = fixture.file("pipe.html");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = fixture.try_report("pipe.html", &["--force"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("is not a regular file, and cannot be replaced"), "{}", refused.stderr);
    assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
    let segment = fixture.session.join("0000000000.seg");
    let before = fs::read(&segment).unwrap();
    for file in
        [&segment, &fixture.session.join("new.html"), &fixture.session.parent().unwrap().join("new.html")]
    {
        let refused = run(["report", text(&fixture.session), "--html", text(file), "--force"]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains("outside of the store"), "{}", refused.stderr);
    }
    assert_eq!(fs::read(&segment).unwrap(), before);
    assert!(!fixture.session.join("new.html").exists());
}

fn names_in(directory: &Path) -> Vec<String> {
    let all = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A file size limit kills the process that exceeds it, or causes an error. All but the end of the
/// report fits.
#[test]
fn nothing_is_left_of_a_report_whose_process_is_killed_or_has_no_room_while_it_is_written() {
    let fixture = Fixture::of_history(60, 4);
    let whole = fixture.try_report("whole.html", &[]);
    assert_eq!(whole.code, 0, "{}", whole.stderr);
    let limit = fs::metadata(fixture.file("whole.html")).unwrap().len() - 100;
    fs::write(fixture.file("report.html"), "mine").unwrap();
    let before = names_in(fixture.directory.path());
    let limited = |more: &str| {
        let script = format!("{more} exec prlimit --fsize={limit} -- \"$@\"");
        let words = ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()];
        child::start_under(&words, "report::part_of_who_may_write_no_long_files", text(&fixture.session))
    };
    if std::process::Command::new("prlimit").output().is_err() {
        foldlog_test_support::skipped("there is no prlimit here");
        return;
    }
    let mut killed = limited("");
    assert!(!killed.passed(), "the signal ends it");
    assert_eq!(names_in(fixture.directory.path()), before);
    let mut told = limited("trap '' XFSZ;");
    assert_eq!(told.hear("code").as_deref(), Some("2"));
    assert!(told.passed());
    assert_eq!(names_in(fixture.directory.path()), before);
    assert_eq!(fs::read(fixture.file("report.html")).unwrap(), b"mine");
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_who_may_write_no_long_files() {
    let Some(session) = child::argument() else { return };
    let directory = Path::new(&session).parent().unwrap().parent().unwrap();
    let ran = run(["report", &session, "--html", text(&directory.join("report.html")), "--force"]);
    assert!(ran.stderr.contains("report.html"), "{}", ran.stderr);
    child::tell("code", ran.code);
}

#[test]
fn nothing_is_left_of_a_report_on_a_full_disk() {
    let Ok(disk) = LoopDisk::mounted(1 << 20)
        .inspect_err(|reason| foldlog_test_support::skipped(format_args!("no disk of its own: {reason}")))
    else {
        return;
    };
    let fixture = Fixture::of_history(60, 4);
    disk.fill("full");
    let before = names_in(&disk.root());
    let path = disk.root().join("report.html");
    let ran = run(["report", text(&fixture.session), "--html", text(&path)]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("report.html") && ran.stderr.contains("space"), "{}", ran.stderr);
    assert_eq!(names_in(&disk.root()), before);
    fs::remove_file(disk.root().join("full")).unwrap();
    assert_eq!(run(["report", text(&fixture.session), "--html", text(&path)]).code, 0);
    Page::read(&path).assert_own_markup_only();
}

#[test]
fn the_files_of_a_workspace_are_those_of_the_last_capture() {
    let directory = tempfile::tempdir().unwrap();
    let (session, expected) = shown::edits(&shown::store(directory.path()), &directory.path().join("work"));
    let fixture = Fixture { directory, session };
    let with = fixture.report("with.html", &["--payloads"]);
    for (at, files) in &expected {
        assert_eq!(&with.files_at("workspace", *at), files, "files at {at}");
    }
    assert!(expected.values().any(|files| files.len() > 2));
    let without = fixture.report("without.html", &[]);
    assert!(!without.holds(SECRET));
    let (last, files) = expected.last_key_value().unwrap();
    assert!(without.files_at("workspace", *last).keys().eq(files.keys()), "names are there");
    without.assert_own_markup_only();
    // If a capture is missing, the page reports it and continues.
    fs::remove_dir_all(fixture.session.join("files/objects")).unwrap();
    let gone = fixture.report("gone.html", &["--payloads"]);
    assert!(gone.files_at("workspace", *last).is_empty());
    let gaps = gone.head["files"]["workspaces"][0]["gaps"].as_array().unwrap();
    assert!(!gaps.is_empty() && gaps[0][1].as_str().unwrap().contains("object"), "{gaps:?}");
}

/// Returns the tasks at a position from `tasks --json`, each with the fields that a page shows.
fn tasks_at(fixture: &Fixture, at: u64) -> Vec<Value> {
    let tree = &fixture.json(&["task list", "--at", &at.to_string()])[0];
    let schedule = &tree["scheduling_state"];
    let tasks = tree["tasks"].as_object().unwrap();
    let mut shown: Vec<Value> = tasks
        .values()
        .map(|task| {
            let next = schedule["ready"].as_array().unwrap().iter().position(|id| *id == task["id"]);
            serde_json::json!({
                "number": task["number"],
                "parent": task.get("parent").map(|id| tasks[id.as_str().unwrap()]["number"].clone()),
                "id": task["id"], "title": task["title"], "status": task["status"],
                "next": next.map(|place| place + 1), "active": tree["active_task"] == task["id"],
                "attempts": task["attempts"], "failures": task["failures"], "priority": task["priority"],
            })
        })
        .collect();
    shown.sort_by_key(|task| task["number"].as_u64());
    shown
}

fn assert_tasks(rows: &[Value], expected: &[Value], at: u64) {
    assert_eq!(rows.len(), expected.len(), "tasks at {at}");
    for (row, task) in rows.iter().zip(expected) {
        for (field, value) in task.as_object().unwrap() {
            assert_eq!(&row[field], value, "{field} of {row} at {at}");
        }
    }
}

#[test]
fn the_tasks_at_every_step_are_those_that_the_command_line_prints() {
    let fixture = Fixture::of_work();
    let page = fixture.report("report.html", &["--payloads"]);
    let viewer = crate::view::Viewer::of(&fixture.session);
    let id = fixture.session.file_name().unwrap().to_str().unwrap();
    let (documents, last) = (page.documents(), page.head["last"].as_u64().unwrap());
    let mut waiting = 0;
    for at in 0..=last {
        let expected = tasks_at(&fixture, at);
        let rows = page.tasks_at(at);
        assert_tasks(&rows, &expected, at);
        let told = viewer.get(&format!("session/{id}/tasks?at={at}")).body;
        assert_eq!(serde_json::from_str::<Vec<Value>>(&told).unwrap(), rows, "the server's at {at}");
        for row in &rows {
            let record = row["record"].as_u64().unwrap();
            assert!(record <= at && documents[record as usize]["kind"] == "dispatch", "{row}");
            waiting += u64::from(row["why"] == "waits for pages");
        }
    }
    assert!(waiting > 0);
    let without = fixture.report("without.html", &[]);
    assert!(!without.holds(SECRET) && without.tasks_at(last)[0]["title"]["$left_out"] == "text");
    without.assert_own_markup_only();
    page.assert_own_markup_only();
}

#[test]
fn the_summaries_at_every_step_are_those_that_a_provider_is_sent_there() {
    let fixture = Fixture::of_work();
    let page = fixture.report("report.html", &["--payloads"]);
    let viewer = crate::view::Viewer::of(&fixture.session);
    let id = fixture.session.file_name().unwrap().to_str().unwrap();
    let texts = |summaries: &[Value]| -> Vec<Value> {
        let messages = summaries.iter().flat_map(|one| one["messages"].as_array().unwrap());
        messages.map(|message| message[1].clone()).collect()
    };
    let mut counts = Vec::new();
    for at in 0..=page.head["last"].as_u64().unwrap() {
        let sent = fixture.json(&["transcript", "--at", &at.to_string()]);
        let is_summary = |text: &Value| {
            let text = text.as_str().unwrap_or_default();
            text.starts_with("Twice it was") || text == "Nothing of it counts."
        };
        let sent: Vec<Value> =
            sent.iter().map(|message| message["content"].clone()).filter(is_summary).collect();
        assert_eq!(texts(&page.summaries_at("talk", at)), sent, "at {at}");
        let told = viewer.get(&format!("session/{id}/messages?at={at}&evaluation=talk&count=0")).body;
        let told: Value = serde_json::from_str(&told).unwrap();
        let none = Vec::new();
        assert_eq!(texts(told["summaries"].as_array().unwrap_or(&none)), sent, "the server's at {at}");
        counts.push(sent.len());
    }
    assert!(counts.contains(&2) && counts.first() == Some(&0) && counts.last() == Some(&1), "{counts:?}");
    assert!(!fixture.report("without.html", &[]).holds(SECRET));
}

#[test]
fn a_damaged_session_is_shown_up_to_its_damage() {
    let fixture = Fixture::of_history(200, 5);
    let segment = fixture.session.join("0000000000.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let place = bytes.len() / 3;
    bytes[place] ^= 0x40;
    fs::write(&segment, bytes).unwrap();
    let ran = fixture.try_report("report.html", &["--payloads"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let page = Page::read(&fixture.file("report.html"));
    let last = page.head["last"].as_u64().unwrap();
    assert_eq!(page.head["damage"]["sequence"], last + 1);
    let found = &page.json_block("integrity")["found"]["corrupt"][0];
    assert_eq!(found["sequence"], last + 1);
    let damage = &page.head["damage"];
    assert_eq!((&damage["segment"], &damage["offset"]), (&found["segment"], &found["offset"]));
    for said in ["expected", "found"] {
        let checksum = damage[said].as_str().unwrap().strip_prefix("checksum ").unwrap();
        assert!(damage["reason"].as_str().unwrap().contains(checksum), "{damage}");
    }
    // The intact records after the damage appear as `show` lists them.
    let mut shown = fixture.json(&["show", "--beyond-damage"]);
    shown.retain(|record| record["path"] == "unattached");
    assert!(shown.len() > 20, "{} records", shown.len());
    assert_eq!((&damage["behind"], &damage["listed"]), (&shown.len().into(), &shown.len().into()));
    let (rows, documents) = page.beyond();
    assert_eq!(documents, shown);
    for (row, record) in rows.iter().zip(&shown) {
        for field in ["sequence", "kind", "name", "segment", "offset"] {
            assert_eq!(row[field], record[field], "{field} of {row}");
        }
    }
    fixture.try_report("without.html", &[]);
    assert!(!Page::read(&fixture.file("without.html")).holds(SECRET));
    // No verb reads the conversation of a damaged session.
    for at in [0, last / 2, last] {
        fixture.assert_slices(&page, at);
    }
}

#[test]
fn a_compacted_session_says_where_nobody_knows_its_state() {
    let fixture = Fixture::of_history(900, 6);
    let compacted = run(["compact", text(&fixture.session), "--keep", "none", "--keep-position", "200"]);
    assert_eq!(compacted.code, 0, "{}", compacted.stderr);
    let page = fixture.report("report.html", &["--payloads"]);
    let unknown: Vec<(u64, u64)> = serde_json::from_value(page.head["unknown"].clone()).unwrap();
    assert!(!unknown.is_empty());
    let last = page.head["last"].as_u64().unwrap();
    let (mut known, mut asked) = (0, 0);
    for at in (0..=last).step_by(7).chain([200, last]) {
        asked += 1;
        let is_known = run(["state", text(&fixture.session), "--at", &at.to_string(), "--json"]).code == 0;
        assert_eq!(is_known, !unknown.iter().any(|(from, to)| (*from..=*to).contains(&at)), "position {at}");
        if is_known {
            known += 1;
            fixture.assert_state(&page, at);
        }
    }
    assert!(0 < known && known < asked, "{known} of {asked} positions are known");
}
