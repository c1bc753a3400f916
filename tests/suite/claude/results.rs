//! Reasons for a failed turn.

use foldlog_claude::{FailureKind, TurnResult, read_stream};
use serde_json::{Value, json};

fn result(fields: &Value) -> TurnResult {
    let mut line = json!({"type": "result", "subtype": "success", "is_error": true});
    for (name, value) in fields.as_object().unwrap() {
        line[name] = value.clone();
    }
    let line = line.to_string();
    let message = read_stream(line.as_bytes(), 1 << 20).next().unwrap().unwrap();
    message.result().unwrap().clone()
}

/// A failure of the provider arrives as a success with `is_error` set.
#[test]
fn failures_are_told_by_status_subtype_and_reason() {
    use FailureKind::*;
    let cases = [
        (json!({"api_error_status": 429}), RateLimited),
        (json!({"api_error_status": 529}), Overloaded),
        (json!({"api_error_status": 500}), ProviderFailed),
        (json!({"api_error_status": 503}), ProviderFailed),
        (json!({"api_error_status": 401}), Authentication),
        (json!({"api_error_status": 404}), ModelNotFound),
        (json!({"api_error_status": 400}), InvalidRequest),
        (
            json!({"api_error_status": null, "result": "API Error: Unable to connect to API (ECONNREFUSED)"}),
            Unreachable,
        ),
        (json!({"subtype": "error_max_turns"}), MaxTurns),
        (json!({"subtype": "error_max_budget_usd"}), MaxBudget),
        (json!({"subtype": "error_max_turns", "is_error": false}), MaxTurns),
        (json!({"terminal_reason": "prompt_too_long"}), PromptTooLong),
        (json!({"subtype": "error_during_execution", "terminal_reason": "aborted_tools"}), Aborted),
        (json!({"is_error": false, "terminal_reason": "aborted_streaming"}), Aborted),
        (
            json!({"subtype": "error_during_execution", "errors": ["No conversation found with session ID: x"]}),
            SessionNotFound,
        ),
        (json!({"result": "API Error: violates the policy", "stop_reason": "refusal"}), Refused),
        (json!({"result": "something else"}), Other),
        // Version 2.1.100 reports no status.
        (
            json!({"result": "API Error: 429 {\"type\":\"error\"}", "terminal_reason": "completed"}),
            RateLimited,
        ),
        (json!({"result": "API Error: 529 {}"}), Overloaded),
        (json!({"result": "Invalid API key · Fix external API key"}), Authentication),
        (json!({"result": "Failed to authenticate. API Error: 401 {}"}), Authentication),
        (json!({"result": "API Error: 5290 lines"}), Other),
        (json!({"result": "There's an issue with the selected model (m). It may not exist"}), ModelNotFound),
    ];
    for (fields, kind) in cases {
        assert_eq!(result(&fields).failure(), Some(kind), "{fields}");
    }
    for well in [json!({"is_error": false}), json!({"is_error": false, "terminal_reason": "hook_stopped"})] {
        assert_eq!(result(&well).failure(), None, "{well}");
    }
}

/// If a stream was cut after a whole block, versions before 2.1.330 took the start of the answer
/// for the whole answer.
#[test]
fn an_answer_whose_stream_was_cut_is_none() {
    let cut = json!({"is_error": false, "result": "half an answ", "stop_reason": null, "num_turns": 1,
        "terminal_reason": "completed"});
    assert_eq!(result(&cut).failure(), Some(FailureKind::Cut));
    for (name, value) in [
        ("stop_reason", json!("end_turn")),
        // A hook, a command of the program or a structured output ends a turn without a stop reason
        // of the model.
        ("terminal_reason", json!("hook_stopped")),
        ("num_turns", json!(0)),
        ("structured_output", json!({"snow": true})),
    ] {
        let mut well = cut.clone();
        well[name] = value;
        assert_eq!(result(&well).failure(), None, "{well}");
    }
}

#[test]
fn only_what_passes_by_itself_is_to_be_tried_again() {
    use FailureKind::*;
    for kind in [Cut, RateLimited, Overloaded, ProviderFailed, Unreachable] {
        assert!(kind.is_retryable(), "{kind:?}");
    }
    for kind in
        [Authentication, ModelNotFound, InvalidRequest, PromptTooLong, MaxTurns, MaxBudget, Aborted, Other]
    {
        assert!(!kind.is_retryable(), "{kind:?}");
    }
}

#[test]
fn the_text_of_a_failure_is_its_result_or_its_errors() {
    assert_eq!(result(&json!({"result": "why", "errors": ["a"]})).failure_text(), "why");
    assert_eq!(result(&json!({"result": "", "errors": ["a", "b"]})).failure_text(), "a; b");
}
