//! Failures of the program or its provider: the error and its phase. The evaluation can continue
//! afterwards.

use std::time::{Duration, Instant};

use foldlog::conversation::Role::{Assistant, User};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::provider::ThrottleKind;
use foldlog_agent::{Deadline, Error, EvaluateOptions, EvaluationPhase};
use foldlog_claude::ProgramExit;
use serde_json::{Value, json};

use super::world::{World, asking, native, prompt};

/// Evaluates over a program that plays these steps and fails.
fn fails(steps: &Value) -> (World, Error) {
    let world = World::new(steps);
    let told = std::cell::RefCell::new(None);
    world.run(|host| {
        let error = host.ask("Go.").unwrap_err();
        // The replay returns the same error without a program.
        if let Some(before) = told.replace(Some(error)) {
            assert_eq!(told.borrow().as_ref().map(Error::to_string), Some(before.to_string()));
        }
    });
    (world, told.into_inner().unwrap())
}

/// Continues with a program that says `ok`, and returns the text.
fn go_on(world: &World) -> String {
    world.stand_in.play(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    world.run_unreplayed(|host| {
        host.recover().unwrap();
        host.ask("Go.").unwrap().text
    })
}

/// Returns the details of a retryable failure.
fn throttled(error: &Error) -> (ThrottleKind, u32, bool, Option<Value>) {
    match error {
        Error::Throttled { details, .. } => {
            assert_eq!(error.phase(), Some(EvaluationPhase::Request));
            assert_eq!(details.retry_after, None);
            (details.kind, details.attempts, details.retry_safe, details.provider_payload.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_is_not_installed_is_named_with_the_way_to_install_it() {
    let world = World::new(&json!([]));
    world.run(|host| {
        let adapter = host.adapter().with_program(world.stand_in.path("absent"), []);
        let error = host.ask_with(&adapter, "Go.").unwrap_err();
        assert_eq!(error.phase(), Some(EvaluationPhase::Request));
        let text = error.to_string();
        assert!(text.contains("Claude Code was not found"), "{text}");
        assert!(text.contains("npm install -g @anthropic-ai/claude-code"), "{text}");
    });
    assert_eq!(go_on(&world), "ok");
}

#[test]
fn a_working_directory_that_is_not_there_is_no_failure_to_try_again() {
    let world = World::new(&json!([]));
    world.run(|host| {
        let mut config = host.config();
        config.cwd = Some(world.stand_in.path("absent"));
        let error = host.ask_with(&host.adapter().with_client_config(config), "Go.").unwrap_err();
        assert!(
            matches!(error, Error::PromptEvaluation { phase: EvaluationPhase::Request, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("absent"), "{error}");
    });
}

#[test]
fn a_program_that_the_system_does_not_start_is_a_timeout_that_may_be_tried_again() {
    let world = World::new(&json!([]));
    let no_program = world.stand_in.path("no program");
    std::fs::write(&no_program, "not executable").unwrap();
    world.run(|host| {
        let error = host.ask_with(&host.adapter().with_program(&no_program, []), "Go.").unwrap_err();
        assert_eq!(throttled(&error), (ThrottleKind::Timeout, 1, true, None));
    });
    assert_eq!(go_on(&world), "ok");
}

/// The client waited a minute for it, regardless of the deadline: the evaluation ended much too
/// late.
#[test]
fn a_program_that_never_answers_initialize_is_a_timeout_within_the_deadline() {
    let world = World::new(&json!([{"initialize": "never"}, {"hold": true}]));
    world.run(|host| {
        let began = Instant::now();
        let options = EvaluateOptions { deadline: Deadline::after(Duration::from_secs(3)), ..asking("Go.") };
        let error = host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err();
        assert_eq!(throttled(&error).0, ThrottleKind::Timeout);
        assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    });
    assert_eq!(go_on(&world), "ok");
}

#[test]
fn a_program_that_refuses_to_start_is_an_error_in_its_own_words() {
    let (world, error) = fails(&json!([{"initialize": "refuse"}]));
    assert_eq!(error.phase(), Some(EvaluationPhase::Request));
    assert!(error.to_string().contains("the script refuses"), "{error}");
    assert_eq!(go_on(&world), "ok");
}

#[test]
fn an_exit_without_a_result_is_told_with_its_code_and_the_end_of_the_standard_error() {
    let (world, error) = fails(&json!([
        {"turn": true}, {"text": "half"}, {"stderr": "first\u{1b}[31m"}, {"stderr": "the last words"}, {"exit": 7}
    ]));
    assert!(matches!(error, Error::PromptEvaluation { phase: EvaluationPhase::Request, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("exit code 7") && text.contains("the last words"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert_eq!(go_on(&world), "ok");
}

#[test]
fn a_line_that_is_no_json_is_a_failure_of_the_response() {
    let (world, error) =
        fails(&json!([{"turn": true}, {"text": "half"}, {"raw": "{\"type\":"}, {"hold": true}]));
    assert!(matches!(error, Error::PromptEvaluation { phase: EvaluationPhase::Response, .. }), "{error:?}");
    assert_eq!(go_on(&world), "ok");
}

#[test]
fn a_death_in_the_middle_of_a_line_leaves_what_came_before_it() {
    let (world, error) = fails(&json!([
        {"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "whole"},
        {"cut": "{\"type\":\"assis", "signal": 9},
    ]));
    assert!(error.to_string().contains("signal 9"), "{error}");
    assert_eq!(world.ledger(), [("add".to_owned(), "committed".to_owned())]);
    world.run_unreplayed(|host| {
        assert_eq!(host.said().pop(), Some((Assistant, "whole".to_owned())));
        assert_eq!(host.page(), ["one"]);
    });
    assert_eq!(go_on(&world), "ok");
}

/// Lines that are not JSON are skipped, as are unknown messages and control requests.
#[test]
fn garbage_between_the_messages_does_no_harm() {
    let world = World::new(&json!([
        {"turn": true}, {"raw": "warning: not JSON"}, {"raw": ""}, {"emit": {"type": "novelty", "of": [1, 2]}},
        {"emit": {"no": "type"}}, {"emit": {"type": "assistant"}}, {"emit": {"type": "user", "message": 7}},
        {"ask": {"subtype": "novelty"}},
        {"emit": {"type": "transcript_mirror", "filePath": "/../x.jsonl", "entries": "none"}},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| assert_eq!(host.ask("Go.").unwrap().text, "ok"));
}

#[test]
fn an_answer_of_thirty_megabytes_and_a_flood_on_the_standard_error_are_taken_whole() {
    let world = World::new(&json!([
        {"turn": true}, {"stderr": "0123456789", "times": 100_000}, {"large": 30_000_000}, {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| {
        assert_eq!(host.ask("Go.").unwrap().text, "ok");
        let said = host.said();
        let lengths: Vec<_> = said.iter().map(|(role, text)| (*role, text.len())).collect();
        assert_eq!(lengths, [(User, 3), (Assistant, 30_000_000), (Assistant, 2)]);
    });
}

/// Older versions report no status, so the text of the failure is used too.
#[test]
fn failures_of_the_provider_are_told_apart() {
    let throttles = [
        (json!({"api_error_status": 429}), ThrottleKind::RateLimit),
        (json!({"api_error_status": 529}), ThrottleKind::Overloaded),
        (json!({"api_error_status": 503}), ThrottleKind::Timeout),
        (json!({"result": "API Error: 429 {\"type\":\"error\"}"}), ThrottleKind::RateLimit),
        (json!({"result": "API Error: Connection error. (ECONNREFUSED)"}), ThrottleKind::Timeout),
    ];
    for (result, kind) in throttles {
        let (_, error) = fails(&json!([{"turn": true}, failed(&result), {"exit": 1}]));
        let payload = result.get("api_error_status").map(|status| json!({"status": status}));
        // The program's own retries are not counted.
        assert_eq!(throttled(&error), (kind, 0, true, payload), "{result}");
    }
    let others = [
        (json!({"api_error_status": 401}), "key", EvaluationPhase::Request),
        (json!({"result": "API Error: 401 {\"type\":\"error\"}"}), "key", EvaluationPhase::Request),
        (json!({"api_error_status": 404}), "model", EvaluationPhase::Request),
        (json!({"subtype": "error_max_budget_usd"}), "max_budget_usd", EvaluationPhase::Budget),
        (json!({"terminal_reason": "prompt_too_long"}), "too long for the model", EvaluationPhase::Request),
        (json!({"result": "something else"}), "something else", EvaluationPhase::Request),
    ];
    for (result, named, phase) in others {
        let (_, error) = fails(&json!([{"turn": true}, failed(&result)]));
        assert_eq!(error.phase(), Some(phase), "{result}: {error:?}");
        assert!(error.to_string().contains(named), "{result}: {error}");
    }
}

fn failed(fields: &Value) -> Value {
    let mut step = json!({"result": "API Error", "is_error": true});
    for (name, value) in fields.as_object().unwrap() {
        step[name] = value.clone();
    }
    step
}

#[test]
fn as_many_answers_as_allowed_is_an_error_that_names_the_number() {
    let world = World::new(
        &json!([{"turn": true}, {"text": "on and on"}, failed(&json!({"subtype": "error_max_turns"}))]),
    );
    world.run(|host| {
        let options = foldlog_claude::RunOptions { max_turns: Some(3), ..native(&[]) };
        let error = host.ask_with(&host.adapter().with_options(options), "Go.").unwrap_err();
        assert!(matches!(error, Error::TooManyRequests { max: 3 }), "{error:?}");
    });
    assert_eq!(go_on(&world), "ok");
}

/// The session of the program fails before its first message: the id that the host chose is in use.
#[test]
fn a_session_id_that_is_in_use_is_no_session_that_is_gone() {
    let (_, error) = fails(
        &json!([{"initialize": "never"}, {"stderr": "Error: Session ID x is already in use."}, {"exit": 1}]),
    );
    assert!(matches!(error, Error::PromptEvaluation { phase: EvaluationPhase::Request, .. }), "{error:?}");
    assert!(error.to_string().contains("in use"), "{error}");
}

/// Only the text of the error contained the exit code and the standard error.
#[test]
fn how_the_program_ended_is_told_in_fields_of_the_error() {
    for (end, code, signal) in [(json!({"exit": 3}), Some(3), None), (json!({"die": 9}), None, Some(9))] {
        let world = World::new(&json!([{"turn": true}, {"stderr": "no space\u{1b}[31m left"}, end]));
        world.run(|host| {
            let error = host.ask("Go.").unwrap_err();
            let ended = ProgramExit::find_in(&error).unwrap();
            assert_eq!((ended.exit_code, ended.signal), (code, signal), "{error:?}");
            assert!(ended.stderr.contains("no space\u{1b}[31m left"), "{ended:?}");
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        });
    }
    let world = World::new(&json!([{"turn": true}, {"text": "no"}, {"result": "no", "is_error": true}]));
    world.run(|host| assert_eq!(ProgramExit::find_in(&host.ask("Go.").unwrap_err()), None));
}

/// The start of an answer counted as the output of the run.
#[test]
fn a_run_whose_last_answer_was_cut_is_resumed() {
    let cut = json!({"result": "half an answ", "stop_reason": null, "num_turns": 1});
    let (_, error) = fails(&json!([{"turn": true}, {"text": "half an answ"}, cut]));
    assert_eq!(error.phase(), Some(EvaluationPhase::Response), "{error:?}");
    assert!(error.to_string().contains("was cut"), "{error}");
}

#[test]
fn a_refusal_of_the_model_is_an_error_of_its_own() {
    let refused = failed(&json!({"stop_reason": "refusal", "result": "API Error: no"}));
    let (_, error) = fails(&json!([{"turn": true}, {"text": "I "}, refused]));
    assert!(matches!(&error, Error::Refused(text) if text == "API Error: no"), "{error:?}");
}
