//! Transcripts of Claude Code: each rule of their import, shown with a transcript made for it, and
//! exported files that equal the imported ones.

mod files;
mod graphs;
mod hostile;
mod ids;

use std::fs;
use std::path::{Path, PathBuf};

use foldlog_tests::verbs::{Ran, foldlog};
use serde_json::{Value, json};

struct Place {
    directory: tempfile::TempDir,
}

/// The output of an import.
struct Imported {
    document: Value,
}

impl Imported {
    /// Returns the kinds of the findings, with file and line.
    fn found(&self) -> Vec<(&str, &str, u64)> {
        let findings = self.document["findings"].as_array().unwrap().iter();
        let parts = |it: &'_ Value| it["line"].as_u64().unwrap();
        findings.map(|it| (it["kind"].as_str().unwrap(), it["file"].as_str().unwrap(), parts(it))).collect()
    }

    fn count(&self, field: &str) -> u64 {
        self.document[field].as_u64().unwrap()
    }
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn run(&self, files: &[PathBuf], options: &[&str]) -> Ran {
        let store = self.path("store");
        let files = files.iter().map(|file| file.to_str().unwrap());
        let arguments = ["import", "claude-code", "--store", store.to_str().unwrap()].into_iter();
        foldlog(arguments.chain(files).chain(options.iter().copied()))
    }

    fn import(&self, files: &[PathBuf]) -> Imported {
        let ran = self.run(files, &["--json"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        Imported { document: serde_json::from_str(&ran.stdout).unwrap() }
    }

    fn lines(&self, lines: &[Value]) -> Imported {
        let file = self.write("s.jsonl", text(lines));
        self.import(&[file])
    }

    /// Returns the sessions in the store, those of sub-agents last.
    fn sessions(&self) -> Vec<PathBuf> {
        let listed = foldlog(["sessions", self.path("store").to_str().unwrap(), "--json"]).stdout;
        let listed = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut sessions: Vec<(bool, PathBuf)> = listed
            .map(|row| {
                let path = self.path("store/sessions").join(row["session"].as_str().unwrap());
                (row["tags"].get("claude_code_session").is_none(), path)
            })
            .collect();
        sessions.sort();
        sessions.into_iter().map(|(_, path)| path).collect()
    }

    fn session(&self) -> PathBuf {
        self.sessions().remove(0)
    }

    /// Returns the only session of a sub-agent.
    fn child(&self) -> PathBuf {
        let sessions = self.sessions();
        assert_eq!(sessions.len(), 2);
        sessions[1].clone()
    }

    /// Checks that the store is valid, and that the exported files equal the imported ones.
    fn comes_out(&self) {
        let ran = foldlog(["verify", self.path("store").to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{}", ran.stdout);
        let out = self.path("out");
        fs::remove_dir_all(&out).ok();
        fs::create_dir(&out).unwrap();
        for session in self.sessions() {
            let is_child = !state(&session).contains("claude_code_files");
            let ran = foldlog(["replay", session.to_str().unwrap(), "--thorough"]);
            assert_eq!(ran.code, 0, "{}", ran.stdout);
            if !is_child {
                export(&session, &out);
            }
        }
        assert_eq!(tree(&out), tree(&self.path("in")));
    }
}

fn state(session: &Path) -> String {
    foldlog(["state", session.to_str().unwrap(), "--json"]).stdout
}

fn export(session: &Path, out: &Path) {
    let arguments = ["export", session.to_str().unwrap(), "--format", "claude-code", "--out"];
    let ran = foldlog(arguments.into_iter().chain([out.to_str().unwrap()]));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

fn tree(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => directories.push(path),
                false => {
                    files.push((path.strip_prefix(directory).unwrap().to_owned(), fs::read(&path).unwrap()));
                }
            }
        }
    }
    files.sort();
    files
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the texts of a session's only conversation as recorded.
fn said(session: &Path) -> Vec<String> {
    let messages = messages(session, &["--as-recorded"]);
    messages.iter().map(|message| message["content"].as_str().unwrap_or("-").to_owned()).collect()
}

fn messages(session: &Path, options: &[&str]) -> Vec<Value> {
    let ran = foldlog([&["transcript", session.to_str().unwrap(), "--json"], options].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ledger(session: &Path) -> Vec<Value> {
    let ran = foldlog(["ledger", session.to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns a time in the transcript by its second.
fn time(second: u32) -> String {
    format!("2026-01-01T{:02}:{:02}:{:02}.000Z", second / 3600, second / 60 % 60, second % 60)
}

/// Returns a line of the transcript; an empty `parent` means none.
fn line(kind: &str, uuid: &str, parent: &str, second: u32, message: Value) -> Value {
    let parent = Some(parent).filter(|parent| !parent.is_empty());
    json!({
        "type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": time(second), "isSidechain": false,
        "sessionId": "s", "version": "2.1.330", "message": message,
    })
}

fn user(uuid: &str, parent: &str, second: u32, content: impl Into<Value>) -> Value {
    let content = content.into();
    line("user", uuid, parent, second, json!({"role": "user", "content": content}))
}

fn assistant(uuid: &str, parent: &str, second: u32, message: &str, blocks: Value) -> Value {
    let usage = json!({"input_tokens": 10, "output_tokens": second, "cache_read_input_tokens": 3});
    let message =
        json!({"id": message, "role": "assistant", "model": "m", "content": blocks, "usage": usage});
    line("assistant", uuid, parent, second, message)
}

fn says(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!([{"type": "tool_use", "id": id, "name": name, "input": input}])
}

fn result(uuid: &str, parent: &str, second: u32, id: &str, content: impl Into<Value>) -> Value {
    let content: Value = content.into();
    user(uuid, parent, second, json!([{"type": "tool_result", "tool_use_id": id, "content": content}]))
}

/// Turns a line into one of a sub-agent.
fn of_agent(agent: &str, mut line: Value) -> Value {
    line["isSidechain"] = true.into();
    line["agentId"] = agent.into();
    line
}

/// Returns a question, two calls of one answer in two lines, their results, and an answer.
fn parallel() -> Vec<Value> {
    vec![
        user("u1", "", 1, "Oslo and Rome?"),
        assistant("a1", "u1", 2, "m1", call("c1", "weather", json!({"city": "Oslo"}))),
        assistant("a2", "a1", 3, "m1", call("c2", "weather", json!({"city": "Rome"}))),
        result("r1", "a1", 4, "c1", "snow"),
        result("r2", "a2", 5, "c2", says("sun")),
        assistant("a3", "r2", 6, "m2", says("Snow and sun.")),
    ]
}

#[test]
fn lines_of_one_message_are_one_answer_whose_usage_counts_once() {
    let place = Place::new();
    let imported = place.lines(&parallel());
    assert_eq!((imported.count("messages"), imported.count("rewinds")), (5, 0));
    assert_eq!(imported.found(), []);
    let session = place.session();
    let messages = messages(&session, &["--as-recorded"]);
    let calls: Vec<&str> = messages[1]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["call_id"].as_str().unwrap())
        .collect();
    assert_eq!(calls, ["c1", "c2"]);
    assert_eq!(said(&session), ["Oslo and Rome?", "-", "snow", "sun", "Snow and sun."]);
    let state: Value = serde_json::from_str(&state(&session)).unwrap();
    let conversation = &state["conversations"][0];
    // Two answers; the first one has the usage of its last line.
    assert_eq!((&conversation["input_tokens"], &conversation["output_tokens"]), (&json!(20), &json!(9)));
    place.comes_out();
}

#[test]
fn calls_are_operations_and_a_result_that_says_so_is_a_failure() {
    let place = Place::new();
    let mut lines = parallel();
    lines[4]["message"]["content"][0]["is_error"] = true.into();
    let imported = place.lines(&lines);
    assert_eq!(imported.count("rollbacks"), 1);
    let ledger = ledger(&place.session());
    let outcomes: Vec<(&str, &str)> =
        ledger.iter().map(|it| (it["call_id"].as_str().unwrap(), it["outcome"].as_str().unwrap())).collect();
    assert_eq!(outcomes, [("c1", "committed"), ("c2", "failed")]);
    let sent = messages(&place.session(), &[]);
    assert_eq!((&sent[3]["content"], &sent[3]["is_error"]), (&json!("sun"), &json!(true)));
}

#[test]
fn a_parent_that_no_file_has_is_reported_and_its_part_stands_where_its_time_says() {
    let place = Place::new();
    let imported = place.lines(&[
        user("u1", "", 1, "one"),
        assistant("a1", "u1", 2, "m1", says("two")),
        user("u3", "a1", 5, "five"),
        assistant("a3", "u3", 6, "m3", says("six")),
        user("u2", "gone", 3, "three"),
        assistant("a2", "u2", 4, "m2", says("four")),
    ]);
    assert_eq!(imported.found(), [("dangling_parent", "s.jsonl", 5)]);
    assert_eq!(imported.document["findings"][0]["id"], "gone");
    // Nothing is abandoned because of the missing parent.
    assert_eq!(imported.count("rewinds"), 0);
    assert_eq!(said(&place.session()), ["one", "two", "three", "four", "five", "six"]);
    place.comes_out();
    let plain = place.run(&[place.path("in/s.jsonl")], &[]).stdout;
    let told = "s.jsonl, line 5: its parent `gone` is in no file; it is placed by its time\n";
    assert!(plain.ends_with(told), "{plain}");
}

#[test]
fn a_loose_part_stands_behind_results_and_a_further_beginning_is_one() {
    let place = Place::new();
    let mut lines = parallel();
    lines.push(user("v", "", 3, "meanwhile"));
    let imported = place.lines(&lines);
    assert_eq!(imported.found(), [("second_beginning", "s.jsonl", 7)]);
    assert_eq!(imported.count("rewinds"), 0);
    let expected = ["Oslo and Rome?", "-", "snow", "sun", "meanwhile", "Snow and sun."];
    assert_eq!(said(&place.session()), expected);
}

#[test]
fn a_cycle_is_broken_at_its_earliest_line_and_reported() {
    let place = Place::new();
    let imported = place.lines(&[
        user("u1", "a2", 1, "one"),
        assistant("a1", "u1", 2, "m1", says("two")),
        user("u2", "a1", 3, "three"),
        assistant("a2", "u2", 4, "m2", says("four")),
        user("u3", "a2", 5, "five"),
        user("self", "self", 6, "six"),
    ]);
    assert_eq!(imported.found(), [("cycle", "s.jsonl", 1), ("cycle", "s.jsonl", 6)]);
    assert_eq!(imported.count("rewinds"), 0);
    assert_eq!(said(&place.session()), ["one", "two", "three", "four", "five", "six"]);
    place.comes_out();
}

#[test]
fn messages_that_name_each_other_through_their_lines_are_a_cycle() {
    let place = Place::new();
    let imported = place.lines(&[
        assistant("a1", "b2", 1, "m1", says("one")),
        assistant("a2", "a1", 2, "m1", says("also one")),
        assistant("b1", "a2", 3, "m2", says("two")),
        assistant("b2", "b1", 4, "m2", says("also two")),
    ]);
    assert_eq!(imported.found(), [("cycle", "s.jsonl", 1)]);
    assert_eq!(said(&place.session()), ["one\nalso one", "two\nalso two"]);
}

#[test]
fn ids_of_the_file_history_are_no_ids_of_lines() {
    let place = Place::new();
    let snapshot = |id: &str, backups: Value| {
        let snapshot = json!({"messageId": id, "trackedFileBackups": backups, "timestamp": time(1)});
        json!({"type": "file-history-snapshot", "messageId": id, "uuid": id, "snapshot": snapshot,
            "isSnapshotUpdate": false})
    };
    let backups = json!({
        "src/new.rs": {"backupFileName": null, "version": 1, "backupTime": time(1)},
        "src/old.rs": {"backupFileName": "abc@v1", "version": 1, "backupTime": time(1)},
    });
    let imported = place.lines(&[
        snapshot("u1", backups),
        user("u1", "", 1, "one"),
        snapshot("u2", json!({})),
        assistant("a1", "u1", 2, "m1", says("two")),
    ]);
    // The message is neither a repeated line nor the child of a snapshot.
    assert_eq!(imported.found(), []);
    assert_eq!(said(&place.session()), ["one", "two"]);
    let state: Value = serde_json::from_str(&state(&place.session())).unwrap();
    let slices = state["slices"].to_string();
    assert!(slices.contains("claude_code_backups"), "{slices}");
    let shown =
        foldlog(["state", place.session().to_str().unwrap(), "--slice", "claude_code_backups", "--json"]);
    // `null` means that the file did not exist, unlike a file without a backup.
    assert!(
        shown.stdout.contains(r#""path":"src/new.rs","existed":false,"backup":null"#),
        "{}",
        shown.stdout
    );
    assert!(
        shown.stdout.contains(r#""path":"src/old.rs","existed":true,"backup":"abc@v1""#),
        "{}",
        shown.stdout
    );
    place.comes_out();
}

#[test]
fn a_compaction_does_not_cut_the_conversation() {
    let place = Place::new();
    let mut boundary = line("system", "b", "", 4, Value::Null);
    boundary["logicalParentUuid"] = "a1".into();
    boundary["subtype"] = "compact_boundary".into();
    let mut lost = boundary.clone();
    lost["uuid"] = "b2".into();
    lost["logicalParentUuid"] = "gone".into();
    lost["timestamp"] = time(7).into();
    let imported = place.lines(&[
        user("u1", "", 1, "one"),
        assistant("a1", "u1", 2, "m1", says("two")),
        boundary,
        // By time alone the conversation would continue elsewhere; its parent decides.
        user("u2", "b", 5, "three"),
        assistant("a2", "u2", 6, "m2", says("four")),
        lost,
        user("u3", "b2", 8, "five"),
    ]);
    assert_eq!(imported.found(), [("dangling_logical_parent", "s.jsonl", 6)]);
    assert_eq!((imported.count("sessions"), imported.count("rewinds")), (1, 0));
    assert_eq!(said(&place.session()), ["one", "two", "three", "four", "five"]);
    place.comes_out();
}

#[test]
fn a_rewind_is_a_rollback_and_the_last_line_says_which_branch_is_live() {
    let place = Place::new();
    let mut lines = vec![
        user("u1", "", 1, "one"),
        assistant("a1", "u1", 2, "m1", says("two")),
        user("u2", "a1", 3, "first try"),
        assistant("a2", "u2", 4, "m2", call("c1", "write", json!({}))),
        result("r2", "a2", 5, "c1", "written"),
        user("u3", "a1", 6, "second try"),
        assistant("a3", "u3", 7, "m3", says("better")),
    ];
    let imported = place.lines(&lines);
    assert_eq!((imported.count("rewinds"), imported.found()), (1, vec![]));
    let session = place.session();
    assert_eq!(said(&session), ["one", "two", "second try", "better"]);
    // The log also contains the abandoned messages.
    assert_eq!(ledger(&session)[0]["outcome"], "abandoned");
    let rollbacks = foldlog(["show", session.to_str().unwrap(), "--kind", "rollback", "--json"]).stdout;
    assert_eq!(rollbacks.lines().count(), 1);
    place.comes_out();

    // The first branch continues: it is live, and is recorded last.
    let place = Place::new();
    lines.push(assistant("a4", "r2", 8, "m4", says("done")));
    let imported = place.lines(&lines);
    assert_eq!(imported.count("rewinds"), 1);
    assert_eq!(said(&place.session()), ["one", "two", "first try", "-", "written", "done"]);
    assert_eq!(ledger(&place.session())[0]["outcome"], "committed");
    place.comes_out();
}

#[test]
fn children_of_one_time_and_results_of_different_calls_are_no_rewind() {
    let place = Place::new();
    let progress = line("progress", "p", "a1", 9, Value::Null);
    let mut lines = parallel();
    lines.extend([progress, user("x", "a3", 7, "beside"), user("y", "a3", 7, "each other")]);
    assert_eq!(place.lines(&lines).count("rewinds"), 0);
    let expected = ["Oslo and Rome?", "-", "snow", "sun", "Snow and sun.", "beside", "each other"];
    assert_eq!(said(&place.session()), expected);

    // A second result of one call is another attempt.
    let place = Place::new();
    let mut lines = parallel();
    lines.insert(4, result("r1b", "a1", 9, "c1", "rain"));
    let imported = place.lines(&lines);
    assert_eq!(imported.count("rewinds"), 1);
    assert_eq!(said(&place.session()), ["Oslo and Rome?", "-", "snow", "sun", "Snow and sun."]);
}

#[test]
fn many_rewinds_within_one_another_leave_the_live_branch() {
    let place = Place::new();
    let mut lines = vec![user("u", "", 0, "begin")];
    for (number, parent) in [("1", "u"), ("2", "q1"), ("3", "q2")] {
        let second = number.parse::<u32>().unwrap() * 10;
        lines.push(user(&format!("p{number}"), parent, second, format!("tried {number}")));
        lines.push(user(&format!("q{number}"), parent, second + 1, format!("kept {number}")));
    }
    let imported = place.lines(&lines);
    assert_eq!(imported.count("rewinds"), 3);
    assert_eq!(said(&place.session()), ["begin", "kept 1", "kept 2", "kept 3"]);
    place.comes_out();
}

#[test]
fn lines_that_are_replayed_count_once_and_files_that_replay_are_one_session() {
    let place = Place::new();
    let first = parallel();
    let mut second: Vec<Value> = first.clone();
    for line in &mut second {
        line["sessionId"] = "t".into();
    }
    second.push(user("u9", "a3", 9, "And Bern?"));
    let files = [place.write("s.jsonl", text(&first)), place.write("t.jsonl", text(&second))];
    let imported = place.import(&files);
    assert_eq!(imported.found(), [("replayed_lines", "t.jsonl", 1)]);
    assert_eq!(imported.document["findings"][0]["lines"], 6);
    assert_eq!((imported.count("sessions"), imported.count("rewinds")), (1, 0));
    assert_eq!(said(&place.session()).last().unwrap(), "And Bern?");
    assert_eq!(said(&place.session()).len(), 6);
    let state: Value = serde_json::from_str(&state(&place.session())).unwrap();
    assert_eq!(state["conversations"][0]["input_tokens"], 20);
    place.comes_out();

    // One file continues where another one ended, as in a resumed or compacted session.
    let place = Place::new();
    let mut boundary = line("system", "b", "", 8, Value::Null);
    boundary["logicalParentUuid"] = "u9".into();
    let files = [
        place.write("u.jsonl", text(&[boundary, user("u10", "b", 9, "And Graz?")])),
        place.write("s.jsonl", text(&first)),
        place.write("t.jsonl", text(&second[6..])),
    ];
    let imported = place.import(&files);
    assert_eq!((imported.count("sessions"), imported.count("rewinds"), imported.found()), (1, 0, vec![]));
    assert_eq!(said(&place.session())[4..], ["Snow and sun.", "And Bern?", "And Graz?"]);
    place.comes_out();

    // A resumed session that starts in the middle of another is a rewind of it, in any order of the
    // files.
    for names in [["a.jsonl", "b.jsonl"], ["b.jsonl", "a.jsonl"]] {
        let place = Place::new();
        place.write("a.jsonl", text(&first));
        place.write("b.jsonl", text(&[user("v", "u1", 20, "Only Oslo.")]));
        let imported = place.import(&names.map(|name| place.path("in").join(name)));
        assert_eq!((imported.count("sessions"), imported.count("rewinds")), (1, 1));
        assert_eq!(said(&place.session()), ["Oslo and Rome?", "Only Oslo."], "{names:?}");
        place.comes_out();
    }

    // A line with the same uuid and other content is not dropped; other files are their own
    // sessions.
    let place = Place::new();
    let files = [
        place.write("s.jsonl", text(&[user("u1", "", 1, "one"), user("u1", "", 2, "two")])),
        place.write("t.jsonl", text(&[user("v1", "", 1, "else")])),
    ];
    let imported = place.import(&files);
    let found = imported.found();
    assert_eq!(found, [("second_beginning", "s.jsonl", 2), ("repeated_uuid", "s.jsonl", 2)]);
    assert_eq!(imported.count("sessions"), 2);
    let mut all: Vec<Vec<String>> = place.sessions().iter().map(|session| said(session)).collect();
    all.sort();
    assert_eq!(all, [vec!["else"], vec!["one", "two"]]);
    place.comes_out();
}

#[test]
fn content_may_be_null_missing_or_of_any_other_form() {
    let place = Place::new();
    let imported = place.lines(&[
        user("u1", "", 1, Value::Null),
        assistant("a1", "u1", 2, "m1", Value::Null),
        line("user", "u2", "a1", 3, json!({"role": "user"})),
        user("u3", "u2", 4, 7),
        user("u4", "u3", 5, json!([])),
        user("u5", "u4", 6, json!([null, "x", {"type": 3}])),
        assistant("a2", "u5", 7, "m2", json!([{"type": "tool_use"}])),
        result("r2", "a2", 8, "", Value::Null),
        line("user", "u6", "r2", 9, json!("no object")),
        line("assistant", "a3", "u6", 10, Value::Null),
    ]);
    assert_eq!(imported.found(), []);
    assert_eq!(said(&place.session()), ["-", "-", "-", "-", "-", "-", "-", ""]);
    place.comes_out();
}
