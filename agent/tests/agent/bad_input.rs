//! Conversations with invalid input. `resuming` has the tests of changed prompts, `main_loop` those
//! of damaged checkpoints.

use crate::story;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use foldlog::conversation::{ConversationMessage, Role};
use foldlog::{Cause, Idempotency, Settlement, Store};
use foldlog_agent::checkpoint::{load_checkpoint, recover_session, save_checkpoint};
use foldlog_agent::provider::ProviderErrorKind;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{Error, EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, ResumeFrom};
use story::{Desk, Script, limits, types};

fn options<'a>() -> EvaluateOptions<'a> {
    EvaluateOptions { evaluation_id: Some("one".to_owned()), ..EvaluateOptions::default() }
}

fn replies(replies: Vec<ScriptedReply>) -> ProviderAdapter<ScriptedProvider> {
    ProviderAdapter::new(ScriptedProvider::new(replies)).with_limits(limits())
}

/// Returns the text that the model reads for each call, and whether the call succeeded.
fn told(desk: &Desk) -> Vec<(String, bool)> {
    let conversation = desk.session().conversation().read("one").unwrap().unwrap();
    let results = conversation.sent_messages().into_iter().filter(|message| message.role == Role::Tool);
    results.map(|message| (message.content.unwrap_or_default(), message.is_error)).collect()
}

/// Every provider refuses a history whose results belong to no call, so it is refused before any
/// request.
#[test]
fn a_history_that_no_provider_accepts_is_refused_and_nobody_is_asked() {
    let (desk, script) =
        (Desk::new(), Script::new(vec![("one", vec![("a", "look", "x")]), ("done", vec![])]));
    script.adapter().evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let mut state = desk.session().conversation().read("one").unwrap().unwrap().state().unwrap();
    let stray = ConversationMessage {
        tool_call_id: Some("z".to_owned()),
        ..ConversationMessage::new(Role::Tool, "?")
    };
    state.turns[0].tool_messages.push(stray);
    for record in [true, false] {
        let (other, script) = (Desk::new(), Script::new(vec![("never", vec![])]));
        let resume_from = ResumeFrom::Conversation(Box::new(state.clone()));
        let options = EvaluateOptions { resume_from, record, ..EvaluateOptions::default() };
        let refused = script.adapter().evaluate(&other.prompt(), &other.state, options);
        let Err(Error::InvalidHistory { problems }) = refused else { panic!("{refused:?}") };
        assert_eq!(problems, ["1 results belong to no call of their answer"]);
        assert!(script.asked().is_empty(), "recorded: {record}");
    }
}

/// If a model calls tools although it was offered none, or a tool that the prompt does not show, it
/// gets an error and continues.
#[test]
fn an_answer_that_was_not_asked_for_is_told_to_the_model() {
    let desk = Desk::new();
    let prompt = Prompt::text("story", "bare").with_section(MarkdownSection::new("task", "Say something."));
    let calls = [("a", "add", "{\"text\":\"x\"}"), ("", "\u{202e}", ""), ("a", "rm -rf", "{}")];
    let adapter = replies(vec![ScriptedReply::calls(calls), ScriptedReply::text("done")]);
    let response = adapter.evaluate(&prompt, &desk.state, options()).unwrap();
    assert_eq!(response.text, "done");
    let told = told(&desk);
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|(_, is_error)| *is_error), "{told:?}");
    assert!(desk.ran.lines().is_empty() && desk.page().is_empty());
    let conversation = desk.session().conversation().read("one").unwrap().unwrap();
    let causes = conversation.entries().iter().filter_map(|entry| match entry.content {
        foldlog::conversation::EntryContent::CallEnded { cause, .. } => cause,
        _ => None,
    });
    assert_eq!(causes.collect::<Vec<_>>(), [Cause::UnknownTool; 3]);
}

#[test]
fn arguments_that_are_no_json_or_another_json_are_told_to_the_model_and_run_nothing() {
    let desk = Desk::new();
    let broken = [
        "",
        "{",
        "{\"text\":",
        "nul",
        "[1]",
        "{\"text\":1}",
        "{\"another\":\"x\"}",
        "\u{feff}{}",
        "\"\\ud800\"",
    ];
    let calls: Vec<(&str, &str, &str)> = broken.iter().map(|arguments| ("a", "add", *arguments)).collect();
    let adapter = replies(vec![ScriptedReply::calls(calls), ScriptedReply::text("done")]);
    assert_eq!(adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap().text, "done");
    let told = told(&desk);
    assert_eq!(told.len(), broken.len());
    for (arguments, (text, is_error)) in broken.iter().zip(&told) {
        assert!(*is_error && !text.is_empty(), "{arguments:?}: {text}");
    }
    assert!(desk.ran.lines().is_empty(), "{:?}", desk.ran.lines());
}

/// A decision about a call that is not open changes nothing.
#[test]
fn a_settlement_of_what_is_not_open_is_refused() {
    let (desk, script) = (Desk::new(), Script::new(vec![("one", vec![("a", "add", "x")]), ("done", vec![])]));
    script.adapter().evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let conversation = desk.session().conversation().read("one").unwrap().unwrap();
    let ended = conversation.entries().iter().find_map(|entry| match entry.content {
        foldlog::conversation::EntryContent::CallEnded { operation, .. } => Some(operation),
        _ => None,
    });
    let position = desk.session().log().position();
    for operation in [ended.unwrap(), 0.into(), 9_999.into()] {
        let refused =
            desk.session().calls().settle(operation, &Settlement::failed(), "a person", "no reason");
        assert!(matches!(refused, Err(foldlog::Error::NoSuchOperation { .. })), "{operation}: {refused:?}");
    }
    assert_eq!((desk.session().log().position(), desk.page()), (position, vec!["x".to_owned()]));
}

/// Names the directory of a store to a process that a test starts.
const STORE: &str = "FOLDLOG_TEST_STORE";

/// Runs in a process of its own. Starts an evaluation, and keeps its session open until its input
/// ends.
#[test]
#[ignore = "a part of the test below"]
fn part_of_a_process_that_runs_a_conversation() {
    let Some(directory) = std::env::var_os(STORE) else { return };
    let directory = Path::new(&directory);
    let session = Store::open(directory.join("store")).unwrap().create(&types()).unwrap();
    let registry = foldlog::ResourceRegistry::builder().build().unwrap();
    let state = foldlog::ExecutionState::new(session.clone(), registry);
    let prompt = story::prompt_of(story::tools(&story::Ran::new(), Idempotency::Natural));
    let reply = vec![ScriptedReply::fail(ProviderErrorKind::BadRequest, "it stops here")];
    replies(reply).evaluate(&prompt, &state, options()).unwrap_err();
    save_checkpoint(&session, directory.join("checkpoint.json")).unwrap();
    println!("\nrunning");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_conversation_that_another_process_runs_is_not_resumed_and_the_error_names_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "bad_input::part_of_a_process_that_runs_a_conversation",
        ])
        .env(STORE, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(other.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line == "running"), "it ended");
    let store = Store::open(directory.path().join("store")).unwrap();
    let checkpoint = load_checkpoint(directory.path().join("checkpoint.json")).unwrap().unwrap();
    let refused = recover_session(&store, &types(), &checkpoint);
    // A damaged checkpoint's error advises a restart, which would pay for everything twice here.
    let Err(error @ Error::Engine(foldlog::Error::Locked { .. })) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains(&other.id().to_string()), "{error}");
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    recover_session(&store, &types(), &checkpoint).unwrap();
}
