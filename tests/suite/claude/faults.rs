//! Faulty behaviour of the program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog_agent::EvaluationPhase;
use foldlog_claude::{
    ClaudeBlock, ClaudeMessage, ClaudeMessageBody, Client, ClientOptions, ErrorKind, NoCallbacks, Stage,
};
use serde_json::{Value, json};

use super::stand_in::{StandIn, late, rest, result_text, turn};

/// Plays a script after a prompt, and returns the messages before the error, and the error.
fn fails(steps: &Value) -> (Vec<ClaudeMessage>, foldlog_claude::ClientError) {
    let stand_in = StandIn::new(steps);
    let client = stand_in.start().unwrap();
    client.query("go").unwrap();
    let mut messages = Vec::new();
    loop {
        match client.next_message(late()) {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => panic!("it ended well, after {messages:?}"),
            Err(error) => return (messages, error),
        }
    }
}

#[test]
fn an_exit_without_a_result_is_told_with_its_code_and_the_end_of_the_standard_error() {
    let steps = json!([{"turn": true}, {"stderr": "first\u{1b}[31m\nlast"}, {"exit": 7}]);
    let (messages, error) = fails(&steps);
    assert!(!messages.is_empty(), "what came before is told first");
    assert_eq!(
        (error.kind(), error.stage(), error.phase()),
        (ErrorKind::Exited, Stage::Response, EvaluationPhase::Request)
    );
    assert_eq!((error.exit_code(), error.signal()), (Some(7), None));
    assert_eq!(error.stderr(), "first\u{1b}[31m\nlast\n");
    let shown = error.to_string();
    assert!(shown.contains("exit code 7") && shown.contains("\n  | last"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    assert!(!error.is_retryable());
}

/// A regular exit without a result for the prompt is an error.
#[test]
fn an_exit_with_success_and_no_result_is_an_error_too() {
    let (_, error) = fails(&json!([{"turn": true}, {"exit": 0}]));
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Exited, Some(0)));
}

#[test]
fn an_exit_after_the_result_is_the_end_whatever_its_code() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"result": "no", "is_error": true}, {"exit": 1}]));
    let client = stand_in.start().unwrap();
    turn(&client, "go");
    rest(&client);
    assert_eq!(client.exit().unwrap().code(), Some(1));
}

#[test]
fn a_program_killed_within_a_line_leaves_the_lines_before_it() {
    let steps = json!([{"turn": true}, {"text": "whole"}, {"cut": "{\"type\":\"assis", "signal": 9}]);
    let (messages, error) = fails(&steps);
    assert_eq!((error.kind(), error.signal()), (ErrorKind::Exited, Some(9)));
    let answers = messages.iter().filter(|message| matches!(message.body, ClaudeMessageBody::Assistant(_)));
    assert_eq!(answers.count(), 1);
}

/// The client reads no further output, so the program must not continue to call the model.
#[test]
fn a_line_that_is_no_object_ends_the_program() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"raw": "{\"type\":"}, {"hold": true}]));
    let client = stand_in.start().unwrap();
    client.query("go").unwrap();
    let error = loop {
        match client.next_message(late()) {
            Ok(message) => assert!(message.is_some()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind(), ErrorKind::MalformedLine { .. }), "{error}");
    assert_eq!(error.signal(), Some(9));
    assert!(!client.identity().is_alive());
    let again = client.next_message(late()).unwrap_err();
    assert_eq!(again.kind(), error.kind(), "the error stays");
}

#[test]
fn a_line_of_thirty_megabytes_arrives_whole_unless_the_limit_is_lower() {
    let steps = json!([{"turn": true}, {"large": 30_000_000}, {"result": "ok"}]);
    let stand_in = StandIn::new(&steps);
    let client = stand_in.start().unwrap();
    let messages = turn(&client, "go");
    let length = messages.iter().find_map(|message| match &message.body {
        ClaudeMessageBody::Assistant(answer) => match &answer.content[..] {
            [ClaudeBlock::Text(text)] => Some(text.len()),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(length, Some(30_000_000));
    let options = ClientOptions { line_limit: 1 << 20, ..stand_in.options() };
    let client = Client::start(&options, Arc::new(NoCallbacks)).unwrap();
    client.query("go").unwrap();
    let error = std::iter::from_fn(|| Some(client.next_message(late()))).find_map(Result::err).unwrap();
    assert!(matches!(error.kind(), ErrorKind::LineTooLong { .. }), "{error}");
}

/// The pipe takes 64 KiB: without a reader, the program would wait forever.
#[test]
fn a_flood_on_the_standard_error_blocks_nobody_and_its_end_is_kept() {
    let steps = json!([{"turn": true}, {"stderr": "0123456789", "times": 100_000}, {"stderr": "the end"},
        {"result": "ok"}]);
    let stand_in = StandIn::new(&steps);
    let options = ClientOptions { stderr_limit: 1000, ..stand_in.options() };
    let client = Client::start(&options, Arc::new(NoCallbacks)).unwrap();
    assert_eq!(result_text(&turn(&client, "go")), "ok");
    client.close().unwrap();
    let kept = client.stderr();
    assert_eq!(kept.len(), 1000);
    assert!(kept.ends_with("0123456789\nthe end\n"), "{kept}");
}

/// The program's input is a pipe too, and the program reads nothing from it.
#[test]
fn a_program_that_does_not_read_keeps_the_host_from_nothing() {
    let script = "exec sleep 600";
    let directory = tempfile::TempDir::new().unwrap();
    let mut options = ClientOptions::new("/bin/sh", directory.path());
    options.leading_arguments = vec!["-c".into(), script.into()];
    options.initialize_timeout = Duration::from_millis(300);
    options.agents = json!({"long": "x".repeat(1 << 20)}).as_object().cloned();
    let error = Client::start(&options, Arc::new(NoCallbacks)).unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::InitializeTimeout, Stage::Initialize));
}

#[test]
fn a_program_that_never_answers_initialize_is_killed_in_time() {
    let stand_in = StandIn::new(&json!([{"initialize": "never"}, {"stderr": "busy"}, {"hold": true}]));
    let options = ClientOptions { initialize_timeout: Duration::from_secs(3), ..stand_in.options() };
    let began = Instant::now();
    let error = Client::start(&options, Arc::new(NoCallbacks)).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!((error.kind(), error.signal()), (ErrorKind::InitializeTimeout, Some(9)));
    assert_eq!(error.stderr(), "busy\n");
    assert!(error.is_retryable());
}

#[test]
fn a_refused_initialize_is_an_error_and_a_second_answer_is_none() {
    let error = StandIn::new(&json!([{"initialize": "refuse"}, {"hold": true}])).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("the script refuses"), "{error}");
    let stand_in = StandIn::new(&json!([{"initialize": "twice"}, {"turn": true}, {"result": "ok"}]));
    assert_eq!(result_text(&turn(&stand_in.start().unwrap(), "go")), "ok");
}

#[test]
fn an_exit_before_initialize_is_told_by_what_the_program_says() {
    for (said, kind) in [
        ("Error: Session ID 1 is already in use.", ErrorKind::SessionInUse),
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges", ErrorKind::RootRefused),
        ("Segmentation fault", ErrorKind::Exited),
    ] {
        let steps = json!([{"initialize": "never"}, {"stderr": said}, {"exit": 1}]);
        let error = StandIn::new(&steps).start().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (kind, Stage::Initialize), "{said}");
        assert_eq!(error.exit_code(), Some(1));
        assert!(error.stderr().contains(said), "{error}");
    }
}

#[test]
fn a_program_or_a_directory_that_does_not_exist_is_named() {
    let stand_in = StandIn::new(&json!([]));
    let absent = ClientOptions { program: "/nowhere/claude".into(), ..stand_in.options() };
    let error = Client::start(&absent, Arc::new(NoCallbacks)).unwrap_err();
    assert_eq!(
        (error.kind(), error.stage(), error.phase()),
        (ErrorKind::ProgramNotFound, Stage::Spawn, EvaluationPhase::Request)
    );
    let shown = error.to_string();
    assert!(shown.contains("/nowhere/claude") && shown.contains("@anthropic-ai/claude-code"), "{shown}");
    let lost = ClientOptions { cwd: stand_in.path("nowhere"), ..stand_in.options() };
    let error = Client::start(&lost, Arc::new(NoCallbacks)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectoryNotFound);
    assert!(!error.is_retryable());
}

#[test]
fn a_prompt_to_a_program_that_has_ended_is_refused() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"result": "ok"}, {"exit": 0}]));
    let client = stand_in.start().unwrap();
    turn(&client, "go");
    rest(&client);
    let error = client.query("again").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    assert!(error.is_retryable());
    let error = client.interrupt().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Disconnected), "{error}");
}

#[test]
fn a_deadline_passes_and_the_client_goes_on() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"gate": "go_on"}, {"result": "ok"}]));
    let client = stand_in.start().unwrap();
    client.query("go").unwrap();
    let error = loop {
        match client.next_message(Some(Instant::now() + Duration::from_millis(50))) {
            Ok(message) => assert!(message.is_some()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    stand_in.open_gate("go_on");
    assert_eq!(result_text(&super::stand_in::up_to_result(&client)), "ok");
}
