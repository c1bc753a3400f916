//! Shows whether a state may be resumed in a given context.

use std::time::Duration;

use foldlog::escape;
use foldlog_agent::Error;
use foldlog_agent::adapter_state::*;
use serde_json::json;

use super::world::*;

fn refused(
    validation: ResumeValidation,
    state: ClaudeAgentSDKState,
    context: ResumeContext,
) -> Option<ResumeRefusal> {
    let snapshot = snapshot(CapturedState::from_state(&state).unwrap());
    validation.check(&snapshot, &context, Duration::from_secs(3600)).err()
}

#[test]
fn the_strict_validation_refuses_another_directory_another_prompt_and_what_is_too_old_and_names_both_values()
{
    let strict = |state, context| refused(ResumeValidation::Strict, state, context);
    assert_eq!(strict(claude("abc123"), context()), None);

    let elsewhere = ResumeContext { workspace_path: Some("/other".into()), ..context() };
    let refusal = strict(claude("abc123"), elsewhere).unwrap();
    assert_eq!(refusal.check, ResumeCheck::WorkspacePath);
    assert_eq!(
        refusal.to_string(),
        "the state of adapter `claude_agent_sdk` in record 7 fails the check `workspace_path`: it has \
         `/work`, expected `/other`: resume in the recorded directory, declare that it was moved here, or \
         validate less strictly"
    );
    let moved_from = vec!["/first".to_owned(), "/work".to_owned()];
    let moved = ResumeContext { workspace_path: Some("/other".into()), moved_from, ..context() };
    assert_eq!(strict(claude("abc123"), moved.clone()), None, "a directory that was declared moved");
    let nowhere = ResumeContext { workspace_path: None, ..moved };
    assert_eq!(strict(claude("abc123"), nowhere).unwrap().check, ResumeCheck::WorkspacePath);
    let nowhere = ResumeContext { workspace_path: None, ..context() };
    let refusal = strict(claude("abc123"), nowhere).unwrap();
    assert_eq!((refusal.recorded.as_str(), refusal.expected.as_str()), ("`/work`", "nothing"));

    let other = ResumeContext { prompt_name: "demo:write".into(), ..context() };
    let refusal = strict(claude("abc123"), other).unwrap();
    assert_eq!(refusal.check, ResumeCheck::PromptName);
    assert_eq!((refusal.recorded.as_str(), refusal.expected.as_str()), ("`demo:review`", "`demo:write`"));

    let hour = ResumeContext { now: at(3600), ..context() };
    assert_eq!(strict(claude("abc123"), hour), None, "at the limit");
    let late = ResumeContext { now: at(3601), ..context() };
    let refusal = strict(claude("abc123"), late).unwrap();
    assert_eq!(refusal.check, ResumeCheck::Recency);
    assert_eq!(refusal.recorded, "last activity at 2026-01-01T12:00:00+00:00");
    assert_eq!(refusal.expected, "at most 3600 s before 2026-01-01T13:00:01+00:00");

    let ahead = ResumeContext { now: at(-3600), ..context() };
    assert_eq!(strict(claude("abc123"), ahead), None, "a time ahead is another clock's");
    let slashed = ResumeContext { workspace_path: Some("/work/".into()), ..context() };
    assert_eq!(strict(claude("abc123"), slashed), None, "it is the same directory");
}

/// Returns a context that differs from a state in every respect.
fn elsewhere() -> ResumeContext {
    ResumeContext {
        workspace_path: None,
        moved_from: Vec::new(),
        prompt_name: String::new(),
        now: at(1_000_000_000),
    }
}

#[test]
fn the_relaxed_validation_asks_only_for_an_id_and_a_session_that_can_be_resumed() {
    for validation in [ResumeValidation::Relaxed, ResumeValidation::Strict] {
        let check = |state| refused(validation, state, elsewhere()).map(|refusal| refusal.check);
        assert_eq!(check(claude("")), Some(ResumeCheck::SessionId));
        assert_eq!(check(complete("abc123")), Some(ResumeCheck::Resumable));
    }
    assert_eq!(refused(ResumeValidation::Relaxed, claude("abc123"), elsewhere()), None);
}

#[test]
fn without_validation_any_state_is_tried() {
    assert_eq!(refused(ResumeValidation::None, complete(""), elsewhere()), None);
    assert_eq!(ResumeValidation::default(), ResumeValidation::Strict);
}

#[test]
fn a_state_that_does_not_say_what_is_checked_is_refused_by_the_strict_validation_alone() {
    let snapshot = snapshot(CapturedState::from_json("threads", true, json!({"session_id": "7"})));
    let check = |validation: ResumeValidation| validation.check(&snapshot, &context(), Duration::MAX);
    assert_eq!(check(ResumeValidation::Strict).unwrap_err().recorded, "nothing");
    assert_eq!(check(ResumeValidation::Relaxed), Ok(()));
}

#[test]
fn of_a_composite_each_part_that_can_be_resumed_is_validated() {
    let composite = |part: ClaudeAgentSDKState| {
        let composite = CompositeAdapterState::new()
            .with("done", CapturedState::from_state(&complete("x")).unwrap())
            .with("part", CapturedState::from_state(&part).unwrap());
        snapshot(CapturedState::from_state(&composite).unwrap())
    };
    let check = |part| ResumeValidation::Strict.check(&composite(part), &context(), Duration::MAX);
    assert_eq!(check(claude("abc123")), Ok(()));
    let elsewhere = ClaudeAgentSDKState { workspace_path: None, ..claude("abc123") };
    assert_eq!(check(elsewhere).unwrap_err().check, ResumeCheck::WorkspacePath);
    assert_eq!(check(complete("abc123")).unwrap_err().check, ResumeCheck::Resumable);
}

#[test]
fn a_refusal_shows_nothing_of_a_state_unescaped() {
    let hostile = "a\u{1b}[2J\u{7}\r\n\u{9b}\u{202e}z";
    let state = ClaudeAgentSDKState { workspace_path: Some(hostile.into()), ..claude("abc123") };
    let refusal = refused(ResumeValidation::Strict, state, context()).unwrap();
    let error = Error::from(Box::new(refusal));
    assert!(!error.to_string().contains(escape::is_escaped), "{error:?}");
    let (before, after) = (
        CapturedState::from_json(hostile, true, json!({hostile: hostile})),
        CapturedState::from_json("x", true, json!({})),
    );
    let diff = diff_states(&snapshot(before), &snapshot(after)).to_string();
    assert!(!diff.replace('\n', "").contains(escape::is_escaped), "{diff:?}");
}
