//! Hooks of the real Codex and Gemini CLI programs, with their APIs on loopback. The variables
//! `FOLDLOG_CODEX_CLI` and `FOLDLOG_GEMINI_CLI` name the programs: an executable, or a script that
//! `node` runs. Without them, these tests report that they are skipped.
//!
//! `foldlog hook install` adds the hooks, and a session of calls runs in a project: edits, commands,
//! failing ones, a refused call, an interrupted one and a killed program. Then each call is undone,
//! from the last to the first, and redone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod api;
mod codex;
mod gemini;
#[allow(dead_code)]
#[path = "../claude/manifest.rs"]
mod manifest;
#[path = "../claude/messages.rs"]
mod messages;
mod project;
mod session;
#[path = "../claude/tmux.rs"]
mod tmux;
#[path = "../claude/wait.rs"]
mod wait;

use crate::codex::Codex;
use crate::gemini::Gemini;
use crate::project::{Project, program};
use crate::session::{Driver, run};

#[test]
fn each_call_of_codex_is_undone_and_redone() {
    if let Some(program) = program("FOLDLOG_CODEX_CLI") {
        run(&Project::new("codex", &program), Codex::start, &codex::CALLS);
    }
}

#[test]
fn each_call_of_gemini_cli_is_undone_and_redone() {
    if let Some(program) = program("FOLDLOG_GEMINI_CLI")
        && tmux::has_tmux()
    {
        run(&Project::new("gemini", &program), Gemini::start, &gemini::CALLS);
    }
}

#[test]
fn codex_runs_hooks_only_once_they_are_trusted() {
    let Some(program) = program("FOLDLOG_CODEX_CLI") else { return };
    let project = Project::new("codex", &program);
    let api = api::Api::start();
    codex::write_settings(&project, &api.url());
    let untrusted = project.status();
    assert!(untrusted.contains("problem: not trusted yet: Codex runs none of 9 hooks"), "{untrusted}");
    codex::trust_hooks(&project);
    let trusted = project.status();
    assert!(!trusted.contains("problem"), "{trusted}");
    // Another installation changes nothing, so the hooks stay trusted.
    project.foldlog(&["hook", "install", "codex", "--yes"]);
    assert_eq!(project.status().matches("problem").count(), 0);
}

#[test]
fn a_command_at_the_prompt_is_answered_without_the_model() {
    if let Some(program) = program("FOLDLOG_CODEX_CLI") {
        answers(&Project::new("codex", &program), Codex::start, "foldlog undo");
    }
    if let Some(program) = program("FOLDLOG_GEMINI_CLI")
        && tmux::has_tmux()
    {
        answers(&Project::new("gemini", &program), Gemini::start, "/undo");
    }
}

fn answers<D: Driver>(project: &Project, start: fn(&Project, &str) -> D, command: &str) {
    let api = api::Api::start();
    let mut driver = start(project, &api.url());
    // "foldlog has recorded no call", or "no call is recorded" once the directory is prepared.
    driver.ask(command, "no call");
    assert!(!api.has_seen("undo"), "the model was asked");
    driver.end();
}
