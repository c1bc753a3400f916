//! Sessions of the program: resumed, forked, mirrored.

use std::fs;
use std::sync::Arc;

use foldlog_claude::{ClaudeMessage, ClaudeMessageBody, Client, ClientOptions, ErrorKind, NoCallbacks};
use serde_json::json;

use super::stand_in::{StandIn, mirrored, rest, result_text, turn};

const ID: &str = "8a7f4ae0-6f0a-4cbb-9b0e-000000000001";

/// Returns a stand-in that plays one turn whose result is all prompts of the session so far.
fn history() -> StandIn {
    StandIn::new(&json!([{"turn": true}, {"text": "yes"}, {"result": "$history"}]))
}

fn said(options: &ClientOptions, prompt: &str) -> (String, Vec<ClaudeMessage>) {
    let client = Client::start(options, Arc::new(NoCallbacks)).unwrap();
    let mut messages = turn(&client, prompt);
    let text = result_text(&messages);
    client.close().unwrap();
    messages.extend(rest(&client));
    (text, messages)
}

fn session_of(messages: &[ClaudeMessage]) -> String {
    let init = messages.iter().find_map(|message| match &message.body {
        ClaudeMessageBody::Init(init) => Some(init.session_id.clone()),
        _ => None,
    });
    init.unwrap()
}

#[test]
fn a_session_of_a_chosen_id_is_resumed_and_forked() {
    let stand_in = history();
    let options = |resume: bool, id: Option<&str>| ClientOptions {
        resume: resume.then(|| ID.to_owned()),
        session_id: id.map(str::to_owned),
        fork_session: resume && id.is_some(),
        ..stand_in.options()
    };
    assert_eq!(said(&options(false, Some(ID)), "a").0, "a");
    let (text, messages) = said(&options(true, None), "b");
    assert_eq!((text.as_str(), session_of(&messages).as_str()), ("a|b", ID));
    let other = "8a7f4ae0-6f0a-4cbb-9b0e-000000000002";
    let (text, messages) = said(&options(true, Some(other)), "c");
    assert_eq!((text.as_str(), session_of(&messages).as_str()), ("a|b|c", other));
    assert_eq!(said(&options(true, None), "d").0, "a|b|d", "the fork left the session as it was");
    let error = Client::start(&options(false, Some(ID)), Arc::new(NoCallbacks)).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::SessionInUse, Some(1)));
}

#[test]
fn a_session_that_the_program_does_not_know_is_told_by_its_id() {
    let stand_in = history();
    let options = ClientOptions { resume: Some(ID.into()), ..stand_in.options() };
    let error = Client::start(&options, Arc::new(NoCallbacks)).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::SessionNotFound, Some(1)));
    assert!(error.to_string().contains(ID), "{error}");
    assert!(!error.is_retryable());
}

/// The last lines arrive when the program ends, so a host reads the rest after `close`.
#[test]
fn the_mirrored_lines_rebuild_the_session_byte_for_byte() {
    let stand_in = history();
    let options = ClientOptions { session_mirror: true, session_id: Some(ID.into()), ..stand_in.options() };
    let (_, messages) = said(&options, "a");
    let (path, rebuilt) = mirrored(&messages);
    assert_eq!(fs::read_to_string(&path).unwrap(), rebuilt);
    let elsewhere = history();
    let directory = elsewhere.path("config").join("projects/any");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(format!("{ID}.jsonl")), rebuilt).unwrap();
    let options = ClientOptions { resume: Some(ID.into()), ..elsewhere.options() };
    assert_eq!(said(&options, "b").0, "a|b");
}
