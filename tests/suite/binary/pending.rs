//! `foldlog pending`: what waits for somebody, in all sessions of a store.

use std::fs;

use foldlog::tools::{
    ExecuteOptions, Question, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
use foldlog_tests::verbs::{Ran, foldlog};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::options;

/// Asks what it is told to ask, before it does anything.
struct Asks;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Text {
    text: String,
}

impl Tool for Asks {
    const NAME: &'static str = "asks";
    type Parameters = Text;
    type Output = ();

    fn call(&self, asked: Text, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        match context.approval() {
            None => Err(ToolError::Ask(Question::new(asked.text))),
            Some(_) => Ok(ToolResult::ok("done", ())),
        }
    }
}

/// Has a new session of the store ask each of these questions, and returns its folder.
fn ask(store: &Store, questions: &[&str]) -> std::path::PathBuf {
    let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Asks));
    for question in questions {
        let arguments = serde_json::json!({ "text": question }).to_string();
        let call = ToolCall::new("asks", arguments).with_id(*question);
        let _ = runner.execute(&call, &ExecuteOptions::default()).unwrap_err();
    }
    let dir = session.dir().to_owned();
    session.close().unwrap();
    dir
}

fn pending(store: &Store, json: bool) -> Ran {
    let words = ["pending", store.path().to_str().unwrap()];
    foldlog(words.into_iter().chain(json.then_some("--json")))
}

#[test]
fn questions_of_all_sessions_are_listed_until_somebody_answers_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
    let ran = pending(&store, false);
    assert_eq!((ran.code, &*ran.stdout), (0, "no call waits for an answer\n"));
    let first = ask(&store, &["Delete it?", "Send it?"]);
    ask(&store, &["Buy it?"]);
    let ran = pending(&store, true);
    let rows: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut questions: Vec<&str> = rows.iter().map(|row| row["question"].as_str().unwrap()).collect();
    questions.sort_unstable();
    assert_eq!((ran.code, questions), (0, vec!["Buy it?", "Delete it?", "Send it?"]));
    let asked = rows.iter().find(|row| row["question"] == "Delete it?").unwrap();
    let (operation, digest) = (asked["operation"].to_string(), asked["digest"].as_str().unwrap());
    let session = first.to_str().unwrap();
    let decision = ["approved", "--arguments", digest, "--by", "Ada", "--reason", "seen"];
    let settled = foldlog(["settle", session, &operation].into_iter().chain(decision));
    assert_eq!(settled.code, 0, "{}", settled.stderr);
    let ran = pending(&store, false);
    assert!(!ran.stdout.contains("Delete it?") && ran.stdout.contains("Send it?"), "{}", ran.stdout);
}

/// What a model asks is from outside: it must not move the cursor of whoever decides about it, nor pass for another line.
#[test]
fn a_question_cannot_pass_for_what_the_program_says() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
    let hostile = "Read it?\n  digest    00\u{1b}[2K\r\u{202e}\u{0}\u{2028}end";
    ask(&store, &[hostile]);
    let ran = pending(&store, false);
    assert!(!ran.stdout.chars().any(|char| char.is_control() && char != '\n'), "{:?}", ran.stdout);
    assert!(!ran.stdout.contains(['\u{202e}', '\u{2028}']), "{:?}", ran.stdout);
    assert_eq!(
        ran.stdout.lines().filter(|line| line.starts_with("  digest ")).count(),
        1,
        "{:?}",
        ran.stdout
    );
    let ran = pending(&store, true);
    let row: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((row["question"].as_str(), row["call_id"].as_str()), (Some(hostile), Some(hostile)));
    assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
}

#[test]
fn a_damaged_session_is_reported_and_the_questions_of_the_others_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
    let damaged = ask(&store, &["Lost?"]);
    ask(&store, &["Found?"]);
    let segment = damaged.join("0000000000.seg");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[200] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let ran = pending(&store, false);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("Found?") && !ran.stdout.contains("Lost?"), "{}", ran.stdout);
    assert!(ran.stderr.contains(damaged.file_name().unwrap().to_str().unwrap()), "{}", ran.stderr);
    let missing = foldlog(["pending", folder.path().join("nothing").to_str().unwrap()]);
    assert_eq!((missing.code, &*missing.stdout), (2, ""), "{}", missing.stderr);
}
