//! Calls of a run in `foldlog log`, and their undo.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Binary, Place, answering, start, within};

impl Place {
    /// Runs a command in the workspace, and returns its results.
    fn in_work(&self, words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let mut command = self.binary("part_that_is_the_binary", &words);
        let output = command.current_dir(self.path("work")).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        let stdout = String::from_utf8(output.stdout).unwrap();
        stdout.split_once(" ... ").unwrap().1.to_owned()
    }

    /// Returns the listed calls from the first one on: tool, call, outcome, and number of changed
    /// files.
    fn calls(&self) -> Vec<(String, String, String, usize)> {
        let listed = self.in_work(&["--json", "log", "-n", "100"]);
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let calls = rows.filter(|row| row["call"].is_object()).map(|row| {
            let text = |value: &Value| value.as_str().unwrap_or("running").to_owned();
            let call = &row["call"];
            (
                text(&call["tool"]),
                text(&call["title"]),
                text(&row["outcome"]),
                row["files"].as_array().unwrap().len(),
            )
        });
        let mut calls: Vec<_> = calls.collect();
        calls.reverse();
        calls
    }

    fn files(&self) -> BTreeMap<PathBuf, String> {
        let (mut files, mut left) = (BTreeMap::new(), vec![self.path("work")]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => left.push(path),
                    false => drop(files.insert(path.clone(), fs::read_to_string(path).unwrap())),
                }
            }
        }
        files
    }

    /// Runs a script as a process of its own, and returns its exit code and standard error.
    fn run_apart(&self, others: &[&str]) -> (Option<i32>, String) {
        self.start(&[&["--tool", "Read,Edit,Write,Bash"], others].concat()).ended()
    }
}

fn call(tool: &str, title: &str, outcome: &str, files: usize) -> (String, String, String, usize) {
    (tool.to_owned(), title.to_owned(), outcome.to_owned(), files)
}

/// Returns a script that calls each tool that changes files, once with success and once without.
fn calling() -> Value {
    json!([
        {"turn": true},
        {"native": "Read", "input": {"file_path": "notes"}},
        {"native": "Edit", "input": {"file_path": "notes"}, "write": {"notes": "edited"}},
        {"native": "Bash", "input": {"command": "make"}, "write": {"src/a": "A", "b": "B"}, "remove": ["old"]},
        {"native": "Bash", "input": {"command": "test"}, "write": {"report": "red"}, "fails": "Exit code 3\nred"},
        {"native": "Write", "input": {"file_path": "half"}, "write": {"half": ""}, "fails": "no space"},
        {"text": "done"},
        {"result": "done"},
    ])
}

#[test]
fn calls_of_a_run_are_listed_and_each_one_is_undone_and_redone() {
    let place = Place::new(&calling());
    fs::write(place.path("work/old"), "old").unwrap();
    let before = place.files();
    let (code, stderr) = place.run_apart(&[]);
    assert_eq!(code, Some(0), "{stderr}");
    let after = place.files();
    let calls = [
        call("Edit", "notes", "succeeded", 1),
        call("Bash", "make", "succeeded", 3),
        call("Bash", "test", "failed", 1),
        // The run has rolled it back.
        call("Write", "half", "failed", 0),
    ];
    assert_eq!(place.calls(), calls);
    let listed = place.in_work(&["--json", "log", "-n", "2"]);
    let test: Value = serde_json::from_str(listed.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&test["call"]["exit_code"], &test["call"]["result"]),
        (&json!(3), &json!("Exit code 3\nred"))
    );
    assert!(place.in_work(&["diff", "1"]).contains("+edited"));
    for number in ["3", "2", "1"] {
        place.in_work(&["undo", number, "--yes"]);
    }
    assert_eq!(place.files(), before);
    for _ in 0..3 {
        place.in_work(&["redo", "--yes"]);
    }
    assert_eq!(place.files(), after);
}

#[test]
fn an_undo_keeps_later_changes_and_the_model_of_the_resumed_run_is_told() {
    let lines = |first: &str, last: &str| format!("{first}\n2\n3\n4\n5\n{last}\n");
    let edit =
        json!({"native": "Edit", "input": {"file_path": "list"}, "write": {"list": lines("edited", "6")}});
    let place = Place::new(&json!([{"turn": true}, edit, {"text": "done"}, {"result": "done"}]));
    fs::write(place.path("work/list"), lines("1", "6")).unwrap();
    let (code, stderr) = place.run_apart(&[]);
    assert_eq!(code, Some(0), "{stderr}");
    fs::write(place.path("work/list"), lines("edited", "mine")).unwrap();
    place.in_work(&["undo", "--yes"]);
    assert_eq!(place.work("list"), lines("1", "mine"));
    fs::write(place.path("task.md"), "And now?").unwrap();
    place.play(&json!([
        {"turn": true},
        {"native": "Bash", "input": {"command": "true"}},
        {"native": "Bash", "input": {"command": "true"}},
        {"result": "done"},
    ]));
    let (code, stderr) = place.run_apart(&["--resume", &place.id()]);
    assert_eq!(code, Some(0), "{stderr}");
    let heard = fs::read_to_string(place.path("script.heard")).unwrap();
    let told = "The user has used `foldlog undo`. Undone calls: Edit: list.";
    assert_eq!(heard.matches(told).count(), 1, "{heard}");
}

/// A command that writes between the kill and the resume closes the call with its changes. Their
/// rollback is none of the user's changes.
#[test]
fn a_killed_call_has_no_changes_once_the_resumed_run_has_rolled_it_back() {
    for is_closed_between in [false, true] {
        let place = Place::new(&within("Bash"));
        let binary = place.start(&["--tool", "Write,Bash"]);
        place.wait_for("began");
        binary.signal(Signal::SIGKILL);
        binary.ended();
        let write = call("Write", "greeting", "succeeded", 1);
        assert_eq!(place.calls(), [write.clone(), call("Bash", "", "running", 0)]);
        if is_closed_between {
            place.in_work(&["undo", "1", "--preview"]);
            assert_eq!(place.calls()[1], call("Bash", "", "interrupted", 1));
        }
        place.play(&answering("done"));
        let (code, stderr) = place.run_apart(&["--resume"]);
        assert!(code == Some(0) && stderr.contains("interrupted and rolled back"), "{stderr}");
        assert!(!place.path("work/half").exists());
        assert_eq!(place.calls(), [write, call("Bash", "", "failed", 0)]);
        place.in_work(&["undo", "--yes"]);
        assert_eq!(place.files().into_values().collect::<Vec<_>>(), ["before"]);
    }
}

#[test]
fn an_interrupted_run_closes_its_call_after_the_rollback() {
    let place = Place::new(&within("Bash"));
    let binary = place.start(&["--tool", "Write,Bash"]);
    place.wait_for("began");
    binary.signal(Signal::SIGINT);
    let (code, stderr) = binary.ended();
    assert_eq!(code, Some(2), "{stderr}");
    assert_eq!(place.calls()[1], call("Bash", "", "failed", 0));
}

#[test]
fn a_run_whose_calls_cannot_be_recorded_says_so_once_and_goes_on() {
    let run = |place: &Place, change: &dyn Fn(&mut std::process::Command)| {
        let mut command =
            place.binary("part_that_is_the_binary", &place.words(&["--tool", "Read,Edit,Write,Bash"]));
        change(&mut command);
        let (code, stderr) = Binary(Some(start(&mut command))).ended();
        assert_eq!((code, place.work("notes")), (Some(0), "edited".to_owned()), "{stderr}");
        stderr
    };
    let new = || {
        let place = Place::new(&calling());
        fs::write(place.path("work/old"), "old").unwrap();
        place
    };
    let place = new();
    fs::write(place.path("state"), "").unwrap();
    let stderr = run(&place, &|_| {});
    let note = "note: `foldlog undo` cannot undo calls that could not be recorded: ";
    assert_eq!(stderr.matches(note).count(), 1, "{stderr}");
    let place = new();
    let stderr = run(&place, &|command| {
        command.env("HOME", place.path("work"));
    });
    assert_eq!(
        stderr.matches("work: it is a root or home directory. `foldlog hook allow ").count(),
        1,
        "{stderr}"
    );
    assert!(!place.path("state").exists());
    let place = new();
    let stderr = run(&place, &|command| {
        command.env_remove("HOME").env_remove("XDG_STATE_HOME");
    });
    assert!(!stderr.contains("foldlog undo") && !stderr.contains("XDG_STATE_HOME"), "{stderr}");
}
