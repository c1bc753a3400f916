//! Hooks of the real Claude Code program, with a Messages API on loopback. The variable
//! `FOLDLOG_CLAUDE_CLI` names the program: an executable, or a `cli.js` that `node` runs. Without
//! it, these tests report that they are skipped.
//!
//! A session of ten calls runs in a project under git: edits, commands, a failing one, a
//! sub-agent, a refused call, an interrupted one and a killed program, which then resumes. Each
//! call is a prompt of its own, so that a test can look at the project and at the record of events
//! between two calls. In further rounds, a command is interrupted or outlives the killed program at
//! other moments, or dies with its hooks; `FOLDLOG_HOOK_ROUNDS` is their number, by default 4.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code)]
#[path = "../../../claude/tests/claude/api.rs"]
mod api;
mod calls;
mod driver;
mod event;
mod foldlog_run;
mod manifest;
mod messages;
mod model;
mod print_mode;
mod program;
mod project;
mod roots;
mod rounds;
mod session;
mod terminal;
mod tmux;
mod wait;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::driver::Driver;
use crate::event::Event;
use crate::manifest::Change;
use crate::model::{Model, NO_CALL};
use crate::print_mode::PrintMode;
use crate::program::{Program, SESSION};
use crate::project::Project;
use crate::rounds::Round;
use crate::session::{Step, run};
use crate::terminal::Terminal;

/// Asserts what each event of a call says about itself.
fn check_events(step: &Step<'_>) {
    for event in &step.events {
        let input = event.input();
        assert_eq!(input["session_id"], SESSION, "{input}");
        assert_eq!(input["cwd"].as_str().unwrap(), step.project.root().to_str().unwrap(), "{input}");
    }
    // The failing command's exit code is in the text of its error alone.
    if let Some(failure) = step.events.iter().find(|event| event.name() == "PostToolUseFailure") {
        assert_eq!(failure.input()["error"], "Exit code 3\npartial\nwrong");
    }
    let id = |event: &Event| event.input()["tool_use_id"].as_str().map(str::to_owned);
    let mut open = Vec::new();
    for event in &step.events {
        match event.name() {
            "PreToolUse" => open.push(id(event).unwrap()),
            "PostToolUse" | "PostToolUseFailure" => {
                let ended = id(event).unwrap();
                assert!(open.contains(&ended), "{ended} ends without a start");
                open.retain(|open| *open != ended);
            }
            _ => {}
        }
    }
    let remains_open = !matches!(step.call.ending, calls::Ending::Ran);
    assert_eq!(!open.is_empty(), remains_open, "{open:?} after call {}", step.number);
}

/// Runs `foldlog` with the home directory of a project.
fn foldlog(project: &Project, words: &[&str]) -> String {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_foldlog"))
        .args(words)
        .current_dir(project.root())
        .env("HOME", project.path("home"))
        .env_remove("XDG_STATE_HOME")
        .stdin(std::process::Stdio::null())
        .output();
    let ran = ran.unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&ran.stderr));
    text
}

/// Runs a session of ten calls, undoes them one by one from the last to the first, and redoes them.
fn undo_and_redo<D: Driver>() {
    let hook = format!("'{}' hook event claude", env!("CARGO_BIN_EXE_foldlog"));
    let project = Project::new(&[&hook]);
    let first = project.manifest();
    let mut manifests = Vec::new();
    run::<D>(&project, |step| {
        check_events(step);
        manifests.push((step.before.clone(), step.after.clone()));
    });
    let last = project.manifest();
    let log = foldlog(&project, &["--json", "log", "-n", "100"]);
    let steps: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let titles: Vec<&str> = steps.iter().rev().map(|step| step["call"]["tool"].as_str().unwrap()).collect();
    assert_eq!(
        titles,
        ["Write", "Edit", "Bash", "Bash", "Bash", "Bash", "Bash", "Bash", "Bash", "Bash"],
        "{log}"
    );
    let outcomes: Vec<&str> = steps.iter().rev().map(|step| step["outcome"].as_str().unwrap()).collect();
    let mut expected = vec!["succeeded"; 10];
    expected[5] = "failed";
    expected[7..].fill("interrupted");
    assert_eq!(outcomes, expected, "{log}");
    for (place, (before, after)) in manifests.iter().enumerate().rev() {
        let number = (place + 1).to_string();
        // The refused call has nothing to undo.
        if before != after {
            foldlog(&project, &["undo", &number, "--yes"]);
        }
        let manifest = with_single_links(&project.manifest());
        assert_eq!(manifest, with_single_links(before), "undo of call {number}");
    }
    assert_eq!(with_single_links(&project.manifest()), with_single_links(&first));
    for (place, (_, after)) in manifests.iter().enumerate().filter(|(_, (before, after))| before != after) {
        foldlog(&project, &["redo", "--yes"]);
        assert_eq!(
            with_single_links(&project.manifest()),
            with_single_links(after),
            "redo of call {}",
            place + 1
        );
    }
    assert_eq!(with_single_links(&project.manifest()), with_single_links(&last));
}

/// Returns a manifest in which each name is a file of its own: an undo does not join names again.
fn with_single_links(manifest: &manifest::Manifest) -> manifest::Manifest {
    let mut manifest = manifest.clone();
    for entry in manifest.entries.values_mut() {
        if let manifest::Kind::File { links, .. } = &mut entry.kind {
            *links = 1;
        }
    }
    manifest
}

#[test]
fn each_call_without_a_terminal_is_undone_and_redone() {
    if Program::named().is_some() {
        undo_and_redo::<PrintMode>();
    }
}

#[test]
fn each_call_in_a_terminal_is_undone_and_redone() {
    if Program::named().is_some() && tmux::has_tmux() {
        undo_and_redo::<Terminal>();
    }
}

#[test]
fn interrupted_and_killed_commands_are_undone() {
    if Program::named().is_none() || !tmux::has_tmux() {
        return;
    }
    let rounds = std::env::var("FOLDLOG_HOOK_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let hook = format!("'{}' hook event claude", env!("CARGO_BIN_EXE_foldlog"));
    let project = Project::new(&[&hook]);
    let mut undone = 0;
    rounds::run::<Terminal>(&project, rounds, |round| {
        let Round { before, after, number, ending, file, .. } = round;
        let text = fs::read_to_string(round.project.root().join(file)).unwrap_or_default();
        let lines: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        println!("round {number}: {ending:?}, {} lines", lines.len());
        assert!(lines.iter().copied().eq(1..=lines.len()), "{lines:?}");
        let expected = (!lines.is_empty()).then(|| (file.clone(), Change::Created));
        assert_eq!(before.changes(after), Vec::from_iter(expected), "round {number}");
        // No event follows the start of a command that was stopped.
        assert_eq!(round.events.len(), 2);
        // A command that was stopped before it wrote has nothing to undo.
        if before != after {
            let log = foldlog(round.project, &["--json", "log", "-n", "1"]);
            let step: serde_json::Value = serde_json::from_str(&log).unwrap();
            foldlog(round.project, &["undo", &step["number"].to_string(), "--yes"]);
            undone += 1;
        }
        assert_eq!(with_single_links(&round.project.manifest()), with_single_links(before), "round {number}");
    });
    assert!(undone > 0 || rounds == 0, "no command wrote before it was stopped");
}

/// The program has checkpoints and a state of its own. `FOLDLOG_HOOK_WAIT` is the time in seconds
/// after the undo, by default none.
#[test]
fn the_running_program_brings_nothing_back_that_was_undone() {
    if Program::named().is_none() || !tmux::has_tmux() {
        return;
    }
    let wait = std::env::var("FOLDLOG_HOOK_WAIT").map_or(0, |seconds| seconds.parse().unwrap());
    let hook = format!("'{}' hook event claude", env!("CARGO_BIN_EXE_foldlog"));
    let project = Project::new(&[&hook]);
    let before = project.manifest();
    let model = Model::start();
    let (readme, notes) = (project.root().join("README.md"), project.root().join("notes.txt"));
    let edit = json!({"file_path": readme, "old_string": "# A project", "new_string": "# Another"});
    let tools = vec![
        ("Read", json!({"file_path": readme})),
        ("Edit", edit),
        ("Write", json!({"file_path": notes, "content": "new\n"})),
        ("Bash", json!({"command": "rm src/old.txt; echo x > made", "description": "d"})),
    ];
    model.teach("Change files.", tools);
    let mut terminal = Terminal::start(&project, &model.url(), false);
    terminal.prompt("Change files.");
    let mut past = project
        .wait_for(0, "the end of the turn", |events| events.last().is_some_and(Event::ends_turn))
        .len();
    assert_eq!(before.changes(&project.manifest()).len(), 4);
    foldlog(&project, &["undo", "--to", "1", "--yes"]);
    assert_eq!(project.manifest(), before);
    std::thread::sleep(std::time::Duration::from_secs(wait));
    assert_eq!(project.manifest(), before, "after {wait} s");
    terminal.prompt(NO_CALL);
    past += project.wait_for(past, "a turn", |events| events.last().is_some_and(Event::ends_turn)).len();
    assert_eq!(project.manifest(), before, "after the next turn");
    assert!(model.has_seen("The user has used `foldlog undo`"), "the model was not informed");
    terminal.end();
    project.wait_for(past, "the end of the session", |events| !events.is_empty());
    assert_eq!(project.manifest(), before, "after the end");
}

/// A hook that answers the user's `/undo` itself.
const ANSWERING: &str = r#"#!/bin/sh
case $(cat) in
*'"prompt":"/undo'*) printf '%s' '{"decision":"block","reason":"The hook answers.\n  Second line."}' ;;
esac
"#;

/// Version 2.1.332 has a command `/undo` of its own, which fires no hook. A command of the user
/// precedes it.
#[test]
fn a_hook_answers_a_command_of_the_user_without_the_model() {
    if Program::named().is_none() || !tmux::has_tmux() {
        return;
    }
    let hook = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    fs::write(&hook, ANSWERING).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let project = Project::new(&[hook.to_str().unwrap()]);
    fs::create_dir(project.path("home/.claude/commands")).unwrap();
    fs::write(project.path("home/.claude/commands/undo.md"), "Undo the last call.\n").unwrap();
    let model = Model::start();
    let mut terminal = Terminal::start(&project, &model.url(), false);

    for (past, prompt) in [(1, "/undo"), (2, "/undo yes")] {
        terminal.prompt(prompt);
        let events = project.wait_for(past, "the prompt's event", |events| !events.is_empty());
        assert_eq!(events[0].title(), "UserPromptSubmit");
        assert_eq!(events[0].input()["prompt"], prompt);
        terminal.tmux.wait_for("the answer", |screen| screen.matches("  Second line.").count() == past);
    }

    assert!(!model.has_seen("/undo"), "the model was asked");
    terminal.prompt(NO_CALL);
    project.wait_for(3, "a turn", |events| events.last().is_some_and(Event::ends_turn));
    terminal.end();
}
