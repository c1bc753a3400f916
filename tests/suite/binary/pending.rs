//! `foldlog pending`: everything that waits for a person, in all sessions of a store.

use std::fs;
use std::sync::Arc;

use foldlog::conversation::{NewAnswer, NewInput, NewRequest, Role};
use foldlog::filesystem::HostFilesystemOptions;
use foldlog::tools::{
    ExecuteOptions, Question, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
use foldlog_tests::verbs::{Ran, foldlog};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::options;

/// Asks the question in its arguments before it changes anything.
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

/// Makes a new session of the store ask each of these questions, and returns its directory.
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
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let ran = pending(&store, false);
    assert_eq!((ran.code, &*ran.stdout), (0, "no call waits for a person\n"));
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

/// A model's question is external text: it must not move the cursor of the person who decides, nor
/// pass for another line.
#[test]
fn a_question_cannot_pass_for_what_the_program_says() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
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
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
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
    let missing = foldlog(["pending", directory.path().join("nothing").to_str().unwrap()]);
    assert_eq!((missing.code, &*missing.stdout), (2, ""), "{}", missing.stderr);
}

/// An approval was recorded and shown as `run-again`, without the approved arguments.
#[test]
fn an_approval_is_shown_with_who_approved_which_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let dir = ask(&store, &["Delete it?"]);
    let dir = dir.to_str().unwrap();
    let row: serde_json::Value = serde_json::from_str(&pending(&store, true).stdout).unwrap();
    let (operation, digest) = (row["operation"].to_string(), row["digest"].as_str().unwrap());

    let decision = ["approved", "--arguments", digest, "--by", "Ada", "--reason", "seen", "--until"];
    let until = ["2026-01-03T00:00:00Z"];
    let settled = foldlog(["settle", dir, &operation].into_iter().chain(decision).chain(until));
    assert_eq!(settled.code, 0, "{}", settled.stderr);

    let digits = &digest[..12];
    let ledger = foldlog(["ledger", dir]).stdout;
    assert!(ledger.contains(&format!("arguments {digits} approved by Ada: seen")), "{ledger}");
    let entry: serde_json::Value =
        serde_json::from_str(&foldlog(["ledger", dir, &operation, "--json"]).stdout).unwrap();
    let recorded = &entry["settled"];
    assert_eq!((&recorded["decision"], &recorded["by"]), (&"approved".into(), &"Ada".into()));
    assert_eq!(recorded["arguments"], digest);
    assert!(recorded["until"].as_str().unwrap().starts_with("2026-01-03T00:00:00"), "{recorded}");
    let told = foldlog(["ledger", dir, &operation]).stdout;
    assert!(told.contains("approved by Ada") && told.contains(digest), "{told}");
    let shown = foldlog(["show", dir, "--kind", "settle"]).stdout;
    assert!(shown.contains(&format!("operation {operation}: approved by Ada")), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(foldlog(["show", dir, "--kind", "settle", "--json"]).stdout.trim()).unwrap();
    assert_eq!((&json["decision"], &json["arguments"]), (&"approved".into(), &digest.into()));
}

/// Interrupted calls that only a person can judge were not listed, although the session waits for
/// that person.
#[test]
fn an_interrupted_call_that_a_person_has_to_judge_is_listed_with_the_commands_that_settle_it() {
    let fixture = super::operations::fixture();
    let store = Store::open_with(fixture.directory.path(), options()).unwrap();
    let id = store.session_ids().unwrap()[0];
    // No decision is possible before the session is recovered, which waits for a person too.
    let row: serde_json::Value = serde_json::from_str(pending(&store, true).stdout.trim()).unwrap();
    assert_eq!((&row["operation"], &row["waits_for"]), (&12.into(), &"recovery".into()));
    let recover = row["decide"][0]["command"].as_str().unwrap().to_owned();
    assert!(recover.starts_with("foldlog recover ") && pending(&store, false).stdout.contains(&recover));
    let session = store.open_session(id, &foldlog_test_support::host::types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    assert_eq!(pending(&store, false).stdout, "no call waits for a person\n", "its host has it open");
    ToolRunner::new(state, ToolRegistry::new()).recover(&ExecuteOptions::default()).unwrap();
    session.close().unwrap();

    let row: serde_json::Value = serde_json::from_str(pending(&store, true).stdout.trim()).unwrap();
    assert_eq!((&row["operation"], &row["tool"]), (&12.into(), &"send_mail".into()));
    assert_eq!((&row["waits_for"], &row["call_id"]), (&"decision".into(), &"call_3".into()));
    assert_eq!(row["arguments"], r#"{"path": "a.txt"}"#);
    let decide = row["decide"].as_array().unwrap();
    let commands: Vec<&str> = decide.iter().map(|one| one["command"].as_str().unwrap()).collect();
    let text = pending(&store, false).stdout;
    assert!(commands.iter().all(|command| text.contains(command)), "{text}");

    // A listed command works.
    let failed = commands.iter().find(|command| command.contains(" failed ")).unwrap();
    let words = failed.replace("\"$USER\"", "Ada");
    assert_eq!(foldlog(words.split(' ').skip(1)).code, 0, "{words}");
    assert_eq!(pending(&store, false).stdout, "no call waits for a person\n");
}

/// A conversation whose process ended before its answer was listed among the complete ones.
#[test]
fn a_conversation_that_must_be_resumed_is_listed_as_such_until_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let types = SessionTypes::builder().build().unwrap();
    let evaluation_id = || "review 7".to_owned();
    let request = || NewRequest { evaluation_id: evaluation_id(), ..NewRequest::default() };
    let session = store.create(&types).unwrap();
    session.conversation().record_input(&NewInput::new(evaluation_id(), Role::User, "Look at it.")).unwrap();
    session.conversation().record_request(&request()).unwrap();
    let id = session.id();
    session.close().unwrap();
    store.create(&types).unwrap().close().unwrap();

    let listed = |words: &[&str]| {
        let all = ["sessions", directory.path().to_str().unwrap()];
        let ran = foldlog(all.into_iter().chain(words.iter().copied()));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    };
    let row: serde_json::Value =
        serde_json::from_str(listed(&["--status", "resumable", "--json"]).trim()).unwrap();
    assert_eq!((&row["session"], &row["status"]), (&id.to_string().into(), &"resumable".into()));
    let stopped = &row["resumable"][0];
    assert_eq!((&stopped["evaluation"], &stopped["next"]), (&"review 7".into(), &"provider".into()));
    let text = listed(&[]);
    assert!(
        text.contains("resumable") && text.contains("conversation `review 7`, the provider is next"),
        "{text}"
    );
    assert!(listed(&["--status", "closed"]).contains(&id.to_string()), "it was closed too");

    // A process that has the session open will continue the conversation.
    let session = store.open_session(id, &types).unwrap();
    assert!(!listed(&["--status", "resumable"]).contains(&id.to_string()));
    let request = session.conversation().record_request(&request()).unwrap();
    session
        .conversation()
        .record_answer(&NewAnswer {
            evaluation_id: evaluation_id(),
            request: Some(request),
            content: Some("It is well.".to_owned()),
            ..NewAnswer::default()
        })
        .unwrap();
    session.conversation().record_turn("review 7", true).unwrap();
    session.close().unwrap();
    assert!(!listed(&["--status", "resumable"]).contains(&id.to_string()));
}

/// The command that recovers a session named no directory, although the log knows where it was.
#[test]
fn the_command_that_recovers_names_the_last_directories_of_the_workspaces() {
    let (directory, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&foldlog_test_support::host::types()).unwrap();
    let files = session.open_workspace(workspace.path(), HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().named("code", Arc::new(files)).build().unwrap();
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new());
    let open = runner.begin(&ToolCall::new("edit", "{}"), &ExecuteOptions::default()).unwrap();
    let dir = session.dir().to_owned();
    // The session is closed under the call, so its end record is never written.
    session.close().unwrap();
    drop((open, runner));
    let row: serde_json::Value = serde_json::from_str(pending(&store, true).stdout.trim()).unwrap();
    let root = workspace.path().canonicalize().unwrap();
    let command = format!("foldlog recover {} --workspace code={}", dir.display(), root.display());
    assert_eq!(row["decide"][0]["command"], command);
    let recovered = foldlog(command.split(' ').skip(1));
    assert_eq!(recovered.code, 0, "{}", recovered.stderr);
}
