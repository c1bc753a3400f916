//! Errors of evaluations: each states what happened and what to do, names the part that failed, and
//! escapes all external text. Also deadlines, budgets, and the events and transcript that an
//! evaluation writes.

use std::error::Error as _;
use std::time::{Duration, Instant};

use foldlog::conversation::{NewAnswer, NewInput, PromptIdentity, TokenUsage};
use foldlog::tools::ExecutionState;
use foldlog::tools::resources::{BudgetTracker, Usage};
use foldlog::{
    OperationId, ResourceRegistry, Session, SessionTypes, Store, StoreOptions, UndeclaredEvents, escape,
};
use foldlog_agent::budget::{spend, track};
use foldlog_agent::events::{self, PromptExecuted, PromptExecutions, PromptRendered, PromptRenderings};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{ProviderError, ProviderErrorKind, ThrottleDetails, ThrottleKind};
use foldlog_agent::{
    Budget, BudgetLimit, Deadline, Error, EvaluateOptions, EvaluationPhase, MarkdownSection, Prompt,
    ProviderAdapter, SectionVisibility, TranscriptState,
};

const HOSTILE: &str = "a\u{1b}[2J\u{7}\r\n\u{9b}\u{202e}\u{2028}\u{feff}z";

fn identity(key: &str, digest: u8) -> Box<PromptIdentity> {
    Box::new(PromptIdentity { namespace: "demo".into(), key: key.into(), digest: [digest; 32] })
}

fn throttled(kind: ThrottleKind, retry_after: Option<Duration>, attempts: u32) -> Error {
    let details = ThrottleDetails { kind, retry_after, attempts, retry_safe: true, provider_payload: None };
    Box::new(ProviderError::new(ProviderErrorKind::Throttled(details), HOSTILE)).into()
}

fn provider(kind: ProviderErrorKind) -> Error {
    Box::new(ProviderError::new(kind, HOSTILE)).into()
}

/// Returns an error of each kind with hostile texts, and its advice to the reader.
fn all() -> Vec<(Error, &'static str)> {
    let operation = OperationId::from(7);
    let text = || HOSTILE.to_owned();
    vec![
        (
            Error::ConversationStateMismatch { recorded: identity(HOSTILE, 1), given: identity(HOSTILE, 2) },
            "clear the checkpoint and restart, or accept the changed prompt with `EvaluateOptions::accept_prompt`",
        ),
        (Error::MessageChanged { id: text() }, "give the new message another id"),
        (Error::snapshot_restore(HOSTILE, None), "clear the checkpoint and restart"),
        (Error::NoConversationState, "clear the checkpoint and restart"),
        (Error::ToolIdempotency { operation, tool: text() }, "settle operation 7"),
        (Error::evaluation(EvaluationPhase::Response, HOSTILE, "no usage: report it"), "report it"),
        (
            Error::DeadlineExceeded { phase: EvaluationPhase::Tool },
            "resume the evaluation with a later deadline",
        ),
        (
            Error::BudgetExceeded { limit: BudgetLimit::Input, max: 10, spent: 12 },
            "resume with a larger budget",
        ),
        (throttled(ThrottleKind::RateLimit, Some(Duration::from_millis(1500)), 3), "resume in 2 s"),
        (throttled(ThrottleKind::QuotaExhausted, None, 1), "raise it"),
        (throttled(ThrottleKind::Timeout, None, 1), "resume later"),
        (throttled(ThrottleKind::Overloaded, None, 1), "resume later"),
        (throttled(ThrottleKind::Unknown, None, 1), "resume later"),
        (provider(ProviderErrorKind::ContextOverflow), "shorten it, or use a model with a larger context"),
        (provider(ProviderErrorKind::Refused), "change what it is asked to do"),
        (provider(ProviderErrorKind::ContentFilter), "change what the model is asked to do"),
        (
            Error::OutputInvalid { output: text(), attempts: 3, reason: text() },
            "make the output type simpler, or allow more attempts",
        ),
        (Error::TooManyExpansions { max: 10 }, "show these sections from the start"),
        (
            Error::Suspended { operations: vec![operation, 9.into()], calls: vec![] },
            "settle with `foldlog settle` or `SessionCalls::settle`, and resume",
        ),
        (
            Error::InvalidHistory { problems: vec![text(), text()] },
            "repair it, or resume at an earlier position",
        ),
        (Error::Cancelled, "resume it to continue where it stopped"),
    ]
}

#[test]
fn each_error_says_what_to_do_and_shows_nothing_from_outside_unescaped() {
    for (error, advice) in all() {
        let message = error.to_string();
        assert!(message.contains(advice), "{message}");
        assert!(!message.starts_with(advice), "what happened comes first: {message}");
        assert!(!message.contains(escape::is_escaped), "{message:?}");
    }
}

#[test]
fn a_changed_prompt_is_named_beside_the_recorded_one() {
    let error = Error::ConversationStateMismatch {
        recorded: identity("review", 0xaa),
        given: identity("review", 0xbb),
    };
    assert_eq!(
        error.to_string(),
        "the conversation was started with prompt demo:review aaaaaaaaaaaaaaaa, and cannot be resumed with \
         demo:review bbbbbbbbbbbbbbbb: clear the checkpoint and restart, or accept the changed prompt with \
         `EvaluateOptions::accept_prompt`"
    );
}

#[test]
fn a_checkpoint_that_cannot_be_restored_keeps_what_its_reader_met() {
    let source = std::io::Error::other("line 3");
    let error = Error::snapshot_restore("the file is truncated", Some(source.into()));
    assert_eq!(
        error.to_string(),
        "the checkpoint cannot be restored: the file is truncated: clear the checkpoint and restart"
    );
    assert_eq!(error.source().unwrap().to_string(), "line 3");
    assert!(Error::NoConversationState.to_string().starts_with("No conversation state in checkpoint"));
}

#[test]
fn a_tool_that_cannot_safely_run_again_asks_for_manual_intervention() {
    let engine = foldlog::Error::ToolIdempotency { operation: 7.into(), tool: "pay".into() };
    let error = Error::from(engine);
    assert!(
        matches!(&error, Error::ToolIdempotency { operation, tool } if operation.get() == 7 && tool == "pay")
    );
    assert!(error.to_string().contains("manual intervention is needed"), "{error}");
}

#[test]
fn what_the_engine_and_a_provider_report_keeps_its_kind() {
    let late = foldlog::Error::DeadlineExceeded { operation: None };
    assert!(matches!(Error::from(late), Error::DeadlineExceeded { phase: EvaluationPhase::Tool }));
    let other = foldlog::Error::NoSuchTool("x".into());
    assert_eq!(Error::from(other).to_string(), "there is no tool `x`");

    assert!(matches!(provider(ProviderErrorKind::Cancelled), Error::Cancelled));
    assert!(matches!(
        provider(ProviderErrorKind::Deadline),
        Error::DeadlineExceeded { phase: EvaluationPhase::Request }
    ));
    let kept = provider(ProviderErrorKind::Unauthorized);
    let Error::Provider(inner) = &kept else { panic!("{kept:?}") };
    assert_eq!(inner.kind, ProviderErrorKind::Unauthorized);
    assert!(
        kept.to_string().starts_with("the provider gave no answer (unauthorized): a\\u{1b}[2J"),
        "{kept}"
    );
}

#[test]
fn an_error_names_the_part_of_the_evaluation_that_failed() {
    let phases = [
        (EvaluationPhase::PromptRender, "prompt_render"),
        (EvaluationPhase::Request, "request"),
        (EvaluationPhase::Response, "response"),
        (EvaluationPhase::Tool, "tool"),
        (EvaluationPhase::Budget, "budget"),
        (EvaluationPhase::Deadline, "deadline"),
    ];
    for (phase, name) in phases {
        let error = Error::evaluation(phase, "demo:review", "it is broken: mend it");
        assert_eq!(error.phase(), Some(phase));
        assert_eq!(error.to_string(), format!("prompt demo:review: {name} failed: it is broken: mend it"));
    }
    let unrendered = foldlog_agent::prompt::PromptError::InvalidKey(String::new());
    assert_eq!(Error::from(unrendered).phase(), Some(EvaluationPhase::PromptRender));
    assert_eq!(throttled(ThrottleKind::Timeout, None, 1).phase(), Some(EvaluationPhase::Request));
    assert_eq!(provider(ProviderErrorKind::Refused).phase(), Some(EvaluationPhase::Response));
    assert_eq!(Error::TooManyExpansions { max: 10 }.phase(), Some(EvaluationPhase::Tool));
    assert_eq!(
        Error::DeadlineExceeded { phase: EvaluationPhase::Tool }.phase(),
        Some(EvaluationPhase::Deadline)
    );
    assert_eq!(Error::Cancelled.phase(), None);
}

#[test]
fn a_deadline_passes_at_its_moment_and_not_before() {
    let now = Instant::now();
    let deadline = Deadline::at(now + Duration::from_secs(5));
    assert_eq!(deadline.remaining_at(now), Duration::from_secs(5));
    assert_eq!(deadline.remaining_at(now + Duration::from_secs(6)), Duration::ZERO);
    assert!(Deadline::after(Duration::ZERO).is_past());
    assert!(!Deadline::after(Duration::from_secs(3600)).is_past());
    assert_eq!(deadline.earlier(Deadline::at(now)), Deadline::at(now));
}

#[test]
fn a_deadline_that_the_clock_cannot_name_never_passes() {
    let never = Deadline::after(Duration::MAX);
    assert_eq!((never, never.instant(), never.remaining()), (Deadline::never(), None, Duration::MAX));
    let now = Deadline::at(Instant::now());
    assert_eq!((never.earlier(now), now.earlier(never)), (now, now));
}

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cost_micros: 0 }
}

#[test]
fn a_budget_names_the_limit_that_is_used_up() {
    let budget = Budget {
        max_total_tokens: Some(100),
        max_input_tokens: Some(80),
        max_output_tokens: Some(30),
        ..Budget::default()
    };
    assert!(budget.check(&usage(79, 20)).is_ok());
    for (spent, limit, max, used) in [
        (usage(80, 0), BudgetLimit::Input, 80, 80),
        (usage(0, 31), BudgetLimit::Output, 30, 31),
        (usage(79, 21), BudgetLimit::Total, 100, 100),
        (usage(u64::MAX, 2), BudgetLimit::Total, 100, u64::MAX),
    ] {
        let error = budget.check(&spent).unwrap_err();
        let Error::BudgetExceeded { limit: named, max: of, spent } = error else { panic!("{error}") };
        assert_eq!((named, of, spent), (limit, max, used));
    }
    assert!(Budget::default().check(&usage(u64::MAX, u64::MAX)).is_ok());
    let error = Budget::total(5).check(&usage(5, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the budget is used up: 6 tokens were spent, and max_total_tokens is 5: resume with a larger budget"
    );
}

#[test]
fn a_tracker_brought_up_to_the_log_counts_nothing_twice() {
    let tokens = TokenUsage { input: 5, output: 3, cache_read: 2, cache_write: 1, reasoning: 2 };
    let spent = spend(&tokens);
    assert_eq!(spent, usage(8, 3), "cached tokens were sent, and reasoning is part of the answer");

    let tracker = BudgetTracker::default();
    for _ in 0..2 {
        track(&tracker, "one", spent);
    }
    assert_eq!(tracker.usage_of("one"), spent);
    track(&tracker, "one", usage(10, 4));
    assert_eq!(tracker.usage_of("one"), usage(10, 4));
    track(&tracker, "two", usage(1, 1));
    assert_eq!(tracker.total(), usage(11, 5));
}

#[test]
fn events_of_an_evaluation_survive_a_rollback_and_a_new_process() {
    let directory = tempfile::tempdir().unwrap();
    let types = events::declare(SessionTypes::builder()).build().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types).unwrap();
    let before = session.snapshot(Default::default()).unwrap();

    let rendered = PromptRendered {
        evaluation_id: "one".into(),
        prompt_ns: "demo".into(),
        prompt_key: "review".into(),
        prompt_digest: "aa".into(),
        adapter: "scripted".into(),
        input: Some(3.into()),
        text: None,
        tools: vec!["search".into()],
        output: None,
        visibility_overrides: [("files/list".parse().unwrap(), SectionVisibility::Summary)].into(),
    };
    let executed = PromptExecuted {
        evaluation_id: "one".into(),
        prompt_ns: "demo".into(),
        prompt_key: "review".into(),
        adapter: "scripted".into(),
        model: None,
        answer: None,
        text: Some("done".into()),
        requests: 2,
        tool_calls: 1,
        input_tokens: 10,
        output_tokens: 4,
        cache_read_tokens: 0,
        cost_micros: None,
        elapsed_us: 12,
        is_resume: true,
    };
    session.dispatch(rendered.clone()).unwrap();
    session.dispatch(executed.clone()).unwrap();
    session.rollback(&before).unwrap();
    let id = session.id();
    session.close().unwrap();

    let again = store.open_session(id, &types).unwrap();
    let [item] = &again.log().slice::<PromptRenderings>().unwrap().tail(9).unwrap()[..] else { panic!() };
    assert_eq!(**item, rendered);
    let [item] = &again.log().slice::<PromptExecutions>().unwrap().tail(9).unwrap()[..] else { panic!() };
    assert_eq!(**item, executed);
}

/// A host that did not declare these events had no record of them.
#[test]
fn events_of_an_evaluation_are_recorded_although_the_host_does_not_declare_them() {
    let directory = tempfile::tempdir().unwrap();
    let types = SessionTypes::builder().build().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types).unwrap();
    let before = session.snapshot(Default::default()).unwrap();
    let prompt = Prompt::text("demo", "review").with_section(MarkdownSection::new("task", "Review."));
    let evaluate = |session: &Session, id: &str| {
        let adapter = ProviderAdapter::new(ScriptedProvider::new(vec![ScriptedReply::text("done")]));
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
        let options = EvaluateOptions { evaluation_id: Some(id.to_owned()), ..EvaluateOptions::default() };
        adapter.evaluate(&prompt, &state, options).map(|response| response.text)
    };
    assert_eq!(evaluate(&session, "one").unwrap(), "done");
    session.rollback(&before).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();

    let again = store.open_session(id, &types).unwrap();
    let [item] = &again.log().slice::<PromptRenderings>().unwrap().tail(9).unwrap()[..] else { panic!() };
    assert_eq!((item.prompt_key.as_str(), item.adapter.as_str()), ("review", "scripted"));
    let [item] = &again.log().slice::<PromptExecutions>().unwrap().tail(9).unwrap()[..] else { panic!() };
    assert_eq!((item.requests, item.is_resume), (1, false));
    again.close().unwrap();
    // The duration is not compared.
    foldlog_replay::assert_host_replays(&dir, &types, |session| {
        let before = session.snapshot(Default::default()).unwrap();
        assert_eq!(evaluate(&session, "one").unwrap(), "done");
        session.rollback(&before).unwrap();
        session.close().unwrap();
    });
    // A host may declare them later.
    let declared = events::declare(SessionTypes::builder()).build().unwrap();
    let later = store.open_session(id, &declared).unwrap();
    evaluate(&later, "two").unwrap();
    assert_eq!(later.log().slice::<PromptExecutions>().unwrap().len(), 2);

    // A store that refuses undeclared events has no such record, and no error.
    let options = StoreOptions { undeclared_events: UndeclaredEvents::Refuse, ..StoreOptions::default() };
    let strict = Store::open_with(directory.path().join("strict"), options).unwrap();
    assert_eq!(evaluate(&strict.create(&types).unwrap(), "one").unwrap(), "done");
}

#[test]
fn the_transcript_holds_what_would_be_sent_and_the_last_payload_of_the_provider() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
    let answer = |content: &str, payload| NewAnswer {
        evaluation_id: "one".into(),
        content: Some(content.into()),
        payload,
        ..NewAnswer::default()
    };
    session.conversation().record_input(&NewInput::user("one", "a question")).unwrap();
    session.conversation().record_answer(&answer("first", Some(serde_json::json!({"id": 1})))).unwrap();
    session.conversation().record_input(&NewInput::user("one", "another")).unwrap();
    session
        .conversation()
        .record_answer(&answer("second", Some(serde_json::json!({"id": 2, "cached": [null]}))))
        .unwrap();

    let transcript =
        TranscriptState::from_conversation(&session.conversation().read("one").unwrap().unwrap());
    let texts: Vec<_> = transcript.messages.iter().filter_map(|message| message.content.as_deref()).collect();
    assert_eq!(texts, ["a question", "first", "another", "second"]);
    assert_eq!(transcript.provider_payload, Some(serde_json::json!({"id": 2, "cached": [null]})));
    let json = serde_json::to_string(&transcript).unwrap();
    assert_eq!(serde_json::from_str::<TranscriptState>(&json).unwrap(), transcript);

    session.conversation().record_answer(&answer("third", None)).unwrap();
    let transcript =
        TranscriptState::from_conversation(&session.conversation().read("one").unwrap().unwrap());
    assert_eq!(transcript.provider_payload, None, "the last answer has none");
}
