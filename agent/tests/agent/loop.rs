//! The loop between a provider and the tools, one behaviour at a time.

use crate::story;

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use foldlog::conversation::{
    EXPANDED_TEXT, EntryContent, NewInput, ResumePoint, Role, SKIPPED_TEXT, TokenUsage, ToolCallRecord,
};
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Cause, ExecutionState, Idempotency, ToolInvocations};
use foldlog_agent::events::{PromptExecutions, PromptRenderings};
use foldlog_agent::inner_loop::{Fact, LoopStart, LoopStep, ToolEnded};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    CancelToken, Delta, LlmConfig, PreparedRequest, Provider, ProviderAnswer, ProviderError,
    ProviderErrorKind, ProviderRequest, SendOptions, ThrottleDetails, ThrottleKind,
};
use foldlog_agent::{
    Budget, BudgetLimit, Deadline, Error, EvaluateOptions, InnerLoop, LoopLimits, MarkdownSection, Prompt,
    PromptResponse, ProviderAdapter, UserMessage,
};
use story::{Desk, Line, Script, limits};

const EVALUATION: &str = "one";

fn options<'a>() -> EvaluateOptions<'a> {
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), ..EvaluateOptions::default() }
}

fn evaluate(
    desk: &Desk,
    script: &Script,
    options: EvaluateOptions<'_>,
) -> Result<PromptResponse<String>, Error> {
    script.adapter().evaluate(&desk.prompt(), &desk.state, options)
}

fn replies(replies: Vec<ScriptedReply>) -> ProviderAdapter<ScriptedProvider> {
    ProviderAdapter::new(ScriptedProvider::new(replies)).with_limits(limits())
}

/// Returns the text that the model reads for each call, and the cause of its end.
fn results(desk: &Desk) -> Vec<(String, Option<Cause>)> {
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    let shown = conversation.sent_messages().into_iter().filter(|message| message.role == Role::Tool);
    let causes = conversation.entries().iter().filter_map(|entry| match entry.content {
        EntryContent::CallEnded { cause, origin, .. } => Some((origin, cause)),
        _ => None,
    });
    let mut causes: Vec<_> = causes.collect();
    causes.sort_by_key(|(origin, _)| *origin);
    shown.map(|message| message.content.unwrap()).zip(causes.into_iter().map(|(_, cause)| cause)).collect()
}

#[test]
fn a_turn_is_recorded_in_the_order_in_which_it_happens() {
    let desk = Desk::new();
    let script = Script::new(vec![("one", vec![("a", "add", "x"), ("b", "break", "y")]), ("done", vec![])]);
    let response = evaluate(&desk, &script, options()).unwrap();
    assert_eq!(
        desk.kinds(),
        [
            "input",
            "request",
            "answer",
            "tool_begin",
            "tool_end",
            "tool_begin",
            "tool_end",
            "turn",
            "request",
            "answer",
            "turn"
        ]
    );
    assert_eq!((desk.page(), response.usage.input, response.usage.output), (vec!["x".to_owned()], 20, 10));
    assert_eq!(results(&desk), [("added x".to_owned(), None), ("it broke".to_owned(), Some(Cause::Error))]);
    let rendered = desk.session().log().slice::<PromptRenderings>().unwrap().get(0).unwrap().unwrap();
    assert_eq!((rendered.prompt_key.as_str(), rendered.text.clone()), ("page", None));
    let executed = desk.session().log().slice::<PromptExecutions>().unwrap().get(0).unwrap().unwrap();
    assert_eq!(
        (executed.requests, executed.tool_calls, executed.input_tokens, executed.is_resume),
        (2, 2, 20, false)
    );
}

/// Remembers the bodies of its requests.
struct Remembering(ScriptedProvider, Mutex<Vec<Vec<u8>>>);

impl Provider for Remembering {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        self.0.prepare(request)
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        self.1.lock().unwrap().push(prepared.body.clone());
        self.0.send(prepared, options)
    }
}

#[test]
fn a_request_is_recorded_with_what_was_asked_and_the_digest_of_what_was_sent() {
    let desk = Desk::new();
    let provider = Remembering(ScriptedProvider::new([ScriptedReply::text("done")]), Mutex::default());
    let config = LlmConfig { temperature: Some(0.5), ..LlmConfig::default() };
    let adapter = ProviderAdapter::new(provider).with_config(config);
    adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    let requests: Vec<_> = conversation
        .entries()
        .iter()
        .filter_map(|entry| match &entry.content {
            EntryContent::Request { attempt, prompt, model, parameters, sent } => {
                Some((*attempt, *prompt, model.clone(), parameters.clone(), *sent))
            }
            _ => None,
        })
        .collect();
    let [(attempt, prompt, model, parameters, sent)] = requests.as_slice() else { panic!("{requests:?}") };
    let body = adapter.provider().1.lock().unwrap().remove(0);
    assert_eq!((*attempt, model.as_deref()), (1, Some("scripted")));
    assert_eq!(*prompt, Some(desk.prompt().identity().digest));
    assert_eq!(*sent, Some(*blake3::hash(&body).as_bytes()));
    assert!(parameters.as_deref().unwrap().contains("0.5"));
}

/// Waits for the other calls of its answer, so that it ends only if all of them run at once.
struct Meet(Barrier);

impl Tool for Meet {
    const NAME: &'static str = "meet";
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.wait();
        Ok(ToolResult::ok(line.text, ()))
    }
}

#[test]
fn neighbouring_calls_that_only_read_run_together_and_end_in_their_order() {
    let desk = Desk::new();
    let calls = vec![
        ("a", "meet", "1"),
        ("b", "meet", "2"),
        ("c", "add", "x"),
        ("d", "meet", "3"),
        ("e", "meet", "4"),
    ];
    let script = Script::new(vec![("one", calls), ("done", vec![])]);
    let prompt = story::prompt_of(desk.tools().with(Meet(Barrier::new(2))));
    script.adapter().evaluate(&prompt, &desk.state, options()).unwrap();
    let shown: Vec<_> = results(&desk).into_iter().map(|(shown, _)| shown).collect();
    assert_eq!(shown, ["1", "2", "added x", "3", "4"]);
    let log = desk.session().log().slice::<ToolInvocations>().unwrap();
    let ended: Vec<_> = log.iter().map(|item| item.unwrap().origin.unwrap().ordinal).collect();
    assert_eq!(ended, [0, 1, 2, 3, 4]);
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCallRecord {
    ToolCallRecord { call_id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

/// The answer was cut within the arguments of its last call, and calls a tool that does not exist.
#[test]
fn calls_that_cannot_run_are_closed_and_the_model_is_told_why() {
    let desk = Desk::new();
    let answer = ProviderAnswer {
        calls: vec![call("a", "fly", "{}"), call("b", "add", "no JSON"), call("c", "add", r#"{"te"#)],
        last_call_incomplete: true,
        stop: Some("length".to_owned()),
        ..ProviderAnswer::default()
    };
    let adapter = replies(vec![ScriptedReply::Answer(answer), ScriptedReply::text("done")]);
    adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let results = results(&desk);
    assert_eq!(
        results.iter().map(|(_, cause)| cause.unwrap()).collect::<Vec<_>>(),
        [Cause::UnknownTool, Cause::InvalidArguments, Cause::InvalidArguments]
    );
    assert!(
        results[0].0.contains("no tool `fly`") && results[2].0.contains("greatest length"),
        "{results:?}"
    );
    assert_eq!((desk.page().len(), desk.ran.lines().len()), (0, 0));
}

/// Text was not streamed, and no error explained why.
#[test]
fn answers_are_streamed_if_somebody_is_told_what_arrives() {
    for is_told in [false, true] {
        let desk = Desk::new();
        let adapter = replies(vec![ScriptedReply::text("whole answer")]);
        let on_delta = is_told.then(|| Box::new(|_: Delta<'_>| {}) as _);
        adapter.evaluate(&desk.prompt(), &desk.state, EvaluateOptions { on_delta, ..options() }).unwrap();
        let streamed: Vec<bool> =
            adapter.provider().seen_requests().iter().map(|request| request.stream).collect();
        assert_eq!(streamed, [is_told]);
    }
}

#[test]
fn a_failed_request_is_recorded_with_what_arrived_and_is_sent_again() {
    let desk = Desk::new();
    let mut cut = ProviderError::new(ProviderErrorKind::Cut, "the stream broke");
    cut.arrived = Some("half an ".to_owned());
    cut.usage = Some(TokenUsage { input: 7, output: 3, ..TokenUsage::default() });
    cut.rate_limits = vec![("x-requests-left".to_owned(), "3".to_owned())];
    let details = ThrottleDetails {
        kind: ThrottleKind::Overloaded,
        retry_after: None,
        attempts: 1,
        retry_safe: true,
        provider_payload: None,
    };
    let mut throttled = ProviderError::new(ProviderErrorKind::Throttled(details), "no capacity");
    throttled.status = Some(529);
    let adapter = replies(vec![cut.into(), throttled.into(), ScriptedReply::text("whole answer")]);
    let mut shown = Vec::new();
    let on_delta = |delta: Delta<'_>| match delta {
        Delta::Text(text) => shown.push(text.to_owned()),
        Delta::Discarded => shown.push("DISCARDED".to_owned()),
    };
    let options = EvaluateOptions { on_delta: Some(Box::new(on_delta)), ..options() };
    let response = adapter.evaluate(&desk.prompt(), &desk.state, options).unwrap();
    assert_eq!(shown, ["half ", "an ", "DISCARDED", "whole ", "answer"]);
    assert_eq!((response.usage.input, response.usage.output), (8, 4), "what a failed request used counts");
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    let failures: Vec<_> = conversation
        .entries()
        .iter()
        .filter_map(|entry| match &entry.content {
            EntryContent::RequestFailed { cause, status, arrived, .. } => {
                Some((cause.as_str(), *status, arrived.as_deref()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(failures, [("cut", None, Some("half an ")), ("throttled", Some(529), None)]);
    let attempts: Vec<_> = conversation
        .entries()
        .iter()
        .filter_map(|entry| match &entry.content {
            EntryContent::Request { attempt, .. } => Some(*attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
}

#[test]
fn a_request_that_fails_for_good_leaves_a_conversation_that_can_be_resumed() {
    let desk = Desk::new();
    let adapter = replies(vec![ScriptedReply::fail(ProviderErrorKind::ContextOverflow, "too long")]);
    let failed = adapter.evaluate(&desk.prompt(), &desk.state, options());
    assert!(matches!(failed, Err(Error::ContextOverflow(_))), "{failed:?}");
    assert_eq!(desk.kinds(), ["input", "request", "request"]);
    assert_eq!(
        desk.session().conversation().resume(Some(EVALUATION)).unwrap().point,
        ResumePoint::AwaitProvider
    );
    let adapter = replies(vec![ScriptedReply::text("done")]);
    let response = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    assert_eq!(response.text, "done");
    assert_eq!(
        desk.session().log().slice::<PromptRenderings>().unwrap().len(),
        1,
        "nothing was rendered again"
    );
}

#[test]
fn budget_and_deadline_are_checked_before_each_request_and_each_tool() {
    let script = Script::new(vec![("one", vec![("a", "add", "x"), ("b", "add", "y")]), ("done", vec![])]);
    // 15 tokens an answer: the first one uses up the budget, so that none of its tools runs.
    let desk = Desk::new();
    let tracker = Arc::new(BudgetTracker::default());
    let budget = |max| EvaluateOptions {
        budget: Some(Budget::total(max)),
        tracker: Some(Arc::clone(&tracker)),
        ..options()
    };
    let spent = evaluate(&desk, &script, budget(15));
    assert!(
        matches!(spent, Err(Error::BudgetExceeded { limit: BudgetLimit::Total, max: 15, spent: 15 })),
        "{spent:?}"
    );
    assert_eq!((desk.ran.lines().len(), tracker.usage_of(EVALUATION).input_tokens), (0, 10));
    let again = evaluate(&desk, &script, budget(15));
    assert!(matches!(again, Err(Error::BudgetExceeded { .. })), "a resumed budget starts where it was");
    evaluate(&desk, &script, budget(16)).unwrap();
    assert_eq!((desk.page(), script.asked()), (vec!["x".to_owned(), "y".to_owned()], vec![0, 1]));
    assert_eq!(tracker.usage_of(EVALUATION).input_tokens, 20);

    let desk = Desk::new();
    let late = EvaluateOptions { deadline: Deadline::after(Duration::ZERO), ..options() };
    let late = evaluate(&desk, &script, late);
    assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
    assert_eq!((desk.kinds(), script.asked().len()), (vec!["input"], 2));
}

#[test]
fn an_expansion_skips_the_calls_behind_it_and_the_conversation_goes_on_with_the_new_prompt() {
    let desk = Desk::new();
    let calls = vec![("a", "add", "x"), ("b", "more", "details"), ("c", "add", "z")];
    let script = Script::new(vec![("one", calls), ("done", vec![])]);
    evaluate(&desk, &script, options()).unwrap();
    assert_eq!(
        results(&desk),
        [
            ("added x".to_owned(), None),
            (EXPANDED_TEXT.to_owned(), Some(Cause::Expansion)),
            (SKIPPED_TEXT.to_owned(), Some(Cause::Skipped))
        ]
    );
    assert_eq!(desk.page(), ["x"], "what was committed stays");
    let sent = desk.sent(EVALUATION);
    assert!(sent[0].content.as_deref().unwrap().contains("All the details."));
    assert_eq!(sent.iter().filter(|said| said.role == Role::System).count(), 1);
    let rendered = desk.session().log().slice::<PromptRenderings>().unwrap();
    let overridden = rendered.iter().map(|item| item.unwrap().visibility_overrides.len()).collect::<Vec<_>>();
    assert_eq!(overridden, [0, 1]);
}

#[test]
fn expansions_are_counted_from_the_log_and_end_at_ten() {
    let mut desk = Desk::new();
    let more = || ("again", vec![("a", "more", "details")]);
    let script = Script::new((0..20).map(|_| more()).collect());
    let mut turns = 0;
    // Each process ends after four turns.
    let failed = loop {
        let on_turn = |_: &foldlog::Session| {
            turns += 1;
            if turns % 4 == 0 { Err(Error::Cancelled) } else { Ok(()) }
        };
        match evaluate(&desk, &script, EvaluateOptions { on_turn: Some(Box::new(on_turn)), ..options() }) {
            Err(Error::Cancelled) => desk.reopen(),
            other => break other,
        }
    };
    assert!(matches!(failed, Err(Error::TooManyExpansions { max: 10 })), "{failed:?}");
    assert_eq!(desk.ran.times("more details"), 11);
}

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Verdict {
    good: bool,
}

fn structured(desk: &Desk) -> Prompt<Verdict> {
    Prompt::structured("story", "verdict")
        .with_section(MarkdownSection::new("task", "Judge."))
        .with_tools(desk.tools())
}

#[test]
fn an_output_that_is_refused_is_told_to_the_model_a_bounded_number_of_times() {
    let desk = Desk::new();
    let texts = ["no JSON", r#"{"good": "yes"}"#, r#"{"good": true}"#];
    let adapter = replies(texts.map(ScriptedReply::text).to_vec());
    let response = adapter.evaluate(&structured(&desk), &desk.state, options()).unwrap();
    assert_eq!(response.output, Some(Verdict { good: true }));
    let told = adapter.provider().seen_requests()[2].messages.clone();
    let users = told.iter().filter(|message| message.role == Role::User);
    assert_eq!(
        users.filter(|message| message.content.as_ref().unwrap().contains("not a valid `Verdict`")).count(),
        2
    );

    let desk = Desk::new();
    let adapter = replies(vec![ScriptedReply::text("no"); 5]);
    let failed = adapter.evaluate(&structured(&desk), &desk.state, options());
    assert!(matches!(failed, Err(Error::OutputInvalid { attempts: 3, .. })), "{failed:?}");
    // The recorded answer is read again, without a request.
    let again = adapter.evaluate(&structured(&desk), &desk.state, options());
    assert!(matches!(again, Err(Error::OutputInvalid { attempts: 3, .. })), "{again:?}");
    assert_eq!(adapter.provider().requests(), 3);
}

#[test]
fn an_answer_that_wants_to_go_on_is_sent_back_as_it_is() {
    let desk = Desk::new();
    let paused = ProviderAnswer {
        content: Some("thinking".to_owned()),
        continues: true,
        stop: Some("pause_turn".to_owned()),
        ..ProviderAnswer::default()
    };
    let adapter = replies(vec![paused.into(), ScriptedReply::text("done")]);
    assert_eq!(adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap().text, "done");
    let second = adapter.provider().seen_requests()[1].messages.clone();
    assert_eq!(second.last().unwrap().content.as_deref(), Some("thinking"));
    assert_eq!(second.last().unwrap().role, Role::Assistant);
}

/// Cancels the evaluation from within a tool, as another thread may at any time.
struct Stop(CancelToken);

impl Tool for Stop {
    const NAME: &'static str = "stop";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.cancel();
        Ok(ToolResult::ok("stopped", ()))
    }
}

#[test]
fn cancelling_skips_the_calls_that_have_not_begun_and_the_conversation_can_be_resumed() {
    let desk = Desk::new();
    let cancel = CancelToken::new();
    let prompt = story::prompt_of(desk.tools().with(Stop(cancel.clone())));
    let script = Script::new(vec![("one", vec![("a", "stop", "now"), ("b", "add", "x")]), ("done", vec![])]);
    let adapter = script.adapter();
    let stopped = EvaluateOptions { cancel, ..options() };
    let stopped = adapter.evaluate(&prompt, &desk.state, stopped);
    assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
    let causes: Vec<_> = results(&desk).into_iter().map(|(_, cause)| cause).collect();
    assert_eq!(causes, [None, Some(Cause::Skipped)]);
    assert_eq!(desk.kinds().last(), Some(&"turn"));
    adapter.evaluate(&prompt, &desk.state, options()).unwrap();
    assert_eq!((desk.page().len(), script.asked()), (0, vec![0, 1]));
}

#[test]
fn cancelling_a_request_records_what_had_arrived_of_its_answer() {
    let desk = Desk::new();
    let adapter = replies(vec![ScriptedReply::text("a long answer"), ScriptedReply::text("done")]);
    let cancel = CancelToken::new();
    let (stop, mut discarded) = (cancel.clone(), 0);
    let on_delta = |delta: Delta<'_>| match delta {
        Delta::Text(_) => stop.cancel(),
        Delta::Discarded => discarded += 1,
    };
    let stopped = EvaluateOptions { cancel, on_delta: Some(Box::new(on_delta)), ..options() };
    assert!(matches!(adapter.evaluate(&desk.prompt(), &desk.state, stopped), Err(Error::Cancelled)));
    assert_eq!(discarded, 1);
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    let EntryContent::RequestFailed { cause, arrived, .. } = &conversation.entries().last().unwrap().content
    else {
        panic!("{conversation:?}")
    };
    assert_eq!((cause.as_str(), arrived.as_deref()), ("cancelled", Some("a ")));
    assert_eq!(adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap().text, "done");
}

#[test]
fn a_conversation_that_is_not_recorded_is_sent_the_same_and_leaves_nothing_to_resume() {
    let calls = vec![("a", "add", "x"), ("a", "fly", "y"), ("b", "more", "details"), ("c", "look", "z")];
    let seen = |record| {
        let desk = Desk::new();
        let script = Script::new(vec![("one", calls.clone()), ("done", vec![])]);
        let adapter = script.adapter();
        let message = UserMessage { id: "1".to_owned(), text: "hello".to_owned() };
        let options = EvaluateOptions { messages: vec![message], ..options() };
        assert!(options.record, "conversations are recorded by default");
        let options = options.enable_conversation_recording(record);
        let response = adapter.evaluate(&desk.prompt(), &desk.state, options).unwrap();
        let plain = |message| story::Said::of(message);
        let requests = adapter.provider().seen_requests();
        let seen: Vec<Vec<_>> =
            requests.iter().map(|request| request.messages.iter().map(plain).collect()).collect();
        // Each scripted answer contains a nonce.
        let (text, _) = response.text.split_once(" nonce ").unwrap();
        ((seen, text.to_owned(), response.usage), (desk.page(), desk.ran.lines()), desk)
    };
    let ((told, left, _), (same_told, same_left, desk)) = (seen(true), seen(false));
    assert_eq!((same_told, same_left), (told, left));
    assert_eq!((desk.page(), desk.ran.times("add x")), (vec!["x".to_owned()], 1));
    let conversation = ["input", "request", "answer", "turn"];
    let mut kinds = Vec::new();
    let last = desk.session().log().position().unwrap();
    let see = |record: &foldlog::Record<'_>| {
        kinds.push(record.kind.name());
        Ok(())
    };
    desk.session().log().records(0, last, see).unwrap();
    assert!(!kinds.iter().any(|kind| conversation.contains(kind)), "{kinds:?}");
    assert_eq!(desk.session().conversation().resume(None).unwrap().point, ResumePoint::NotRecorded);
}

/// A resuming process does not add the user's message again.
#[test]
fn a_message_of_the_user_is_added_once_and_opens_a_complete_conversation_again() {
    let desk = Desk::new();
    let script = Script::new(vec![("one", vec![]), ("two", vec![])]);
    let with = |ids: &[&str]| EvaluateOptions {
        messages: ids
            .iter()
            .map(|id| UserMessage { id: (*id).to_owned(), text: format!("message {id}") })
            .collect(),
        ..options()
    };
    for _ in 0..2 {
        assert!(evaluate(&desk, &script, with(&["1"])).unwrap().text.starts_with("one"));
    }
    assert!(evaluate(&desk, &script, with(&["1", "2"])).unwrap().text.starts_with("two"));
    let said: Vec<_> = desk.sent(EVALUATION).into_iter().map(|said| said.content.unwrap()).skip(1).collect();
    assert_eq!(said, ["message 1", "one", "message 2", "two"]);
}

/// The other text was taken for the recorded one, and never reached the model.
#[test]
fn a_message_with_a_known_id_and_another_text_is_refused() {
    let script = Script::new(vec![("one", vec![]), ("two", vec![])]);
    let message = |id: &str, text: &str| UserMessage { id: id.to_owned(), text: text.to_owned() };
    let with = |messages: Vec<UserMessage>| EvaluateOptions { messages, ..options() };
    let desk = Desk::new();
    evaluate(&desk, &script, with(vec![message("1", "hello")])).unwrap();
    let last = desk.session().log().position();
    for messages in [
        vec![message("1", "goodbye")],
        vec![message("2", "more"), message("1", "hello "), message("3", "still more")],
        vec![message("2", "more"), message("2", "other")],
    ] {
        let refused = evaluate(&desk, &script, with(messages.clone())).unwrap_err();
        let id = if messages.len() == 2 { "2" } else { "1" };
        assert!(matches!(&refused, Error::MessageChanged { id: known } if known == id), "{refused:?}");
        assert_eq!(desk.session().log().position(), last, "something was recorded");
    }
    let unrecorded = EvaluateOptions { record: false, ..with(vec![message("2", "a"), message("2", "b")]) };
    assert!(matches!(evaluate(&desk, &script, unrecorded), Err(Error::MessageChanged { .. })));
    // A message that a rollback abandoned does not count.
    let said = desk.session().conversation().read(EVALUATION).unwrap().unwrap().entries()[0].sequence;
    desk.session().rollback_to(said - 1).unwrap();
    let again = Script::new(vec![("three", vec![])]);
    assert!(evaluate(&desk, &again, with(vec![message("1", "goodbye")])).unwrap().text.starts_with("three"));
}

/// Evaluates a prompt in the session that it runs in.
struct Inside(Arc<Mutex<Option<ExecutionState>>>);

impl Tool for Inside {
    const NAME: &'static str = "inside";
    type Parameters = Line;
    type Output = ();

    fn call(&self, _: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let state = self.0.lock().unwrap().clone().unwrap();
        let script = Script::new(vec![("done", vec![])]);
        let prompt = story::prompt_of(ToolRegistry::new());
        let refused = script.adapter().evaluate(&prompt, &state, EvaluateOptions::default());
        assert!(matches!(refused, Err(Error::Engine(foldlog::Error::InsideOperation { .. }))), "{refused:?}");
        Ok(ToolResult::ok("refused", ()))
    }
}

#[test]
fn a_conversation_within_a_tool_of_the_same_session_is_refused() {
    let desk = Desk::new();
    let tools = ToolRegistry::new().with(Inside(Arc::new(Mutex::new(Some(desk.state.clone())))));
    let call = ToolCall::new("inside", r#"{"text":""}"#);
    let report = ToolRunner::new(desk.state, tools).execute(&call, &ExecuteOptions::default()).unwrap();
    assert_eq!(report.message, "refused");
}

#[test]
fn limits_of_a_loop_are_the_hosts() {
    let desk = Desk::new();
    let script = Script::new(vec![("one", vec![("a", "more", "details")]), ("done", vec![])]);
    let none = LoopLimits { expansions: 0, ..limits() };
    let failed = script.adapter().with_limits(none).evaluate(&desk.prompt(), &desk.state, options());
    assert!(matches!(failed, Err(Error::TooManyExpansions { max: 0 })));
}

/// A user's message arrives during the model's last answer. The answer does not respond to it, so
/// another one is requested.
#[test]
fn what_is_said_while_the_last_answer_arrives_is_answered_too() {
    let desk = Desk::new();
    let session = desk.session().clone();
    let adapter = ProviderAdapter::new(ScriptedProvider::from_fn(move |request| {
        if request.number == 1 {
            session.conversation().record_input(&NewInput::user(EVALUATION, "one more thing")).unwrap();
        }
        ScriptedReply::text(format!("answer {}", request.number))
    }));
    let response = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    assert_eq!(response.text, "answer 2");
    let second = adapter.provider().seen_requests()[1].messages.clone();
    let said: Vec<_> = second.iter().skip(1).map(|message| message.content.as_deref().unwrap()).collect();
    assert_eq!(said, ["answer 1", "one more thing"]);
}

/// Runs the state machine alone, as an asynchronous driver would: no session, no provider, no
/// thread.
#[test]
fn the_loop_says_what_to_do_and_does_nothing_itself() {
    let runnable = [("add".to_owned(), false), ("look".to_owned(), true)].into();
    let mut machine = InnerLoop::new(limits(), runnable, LoopStart::default());
    assert!(matches!(machine.advance(Fact::Begun), LoopStep::Render(overrides) if overrides.is_empty()));
    let tools = vec!["add".to_owned(), "look".to_owned()];
    assert!(matches!(machine.advance(Fact::Rendered { tools }), LoopStep::Check));
    assert!(matches!(machine.advance(Fact::Done), LoopStep::Prepare));
    assert!(matches!(machine.advance(Fact::Done), LoopStep::RecordRequest { attempt: 1 }));
    assert!(matches!(machine.advance(Fact::Recorded(None)), LoopStep::Send));
    let calls =
        vec![call("a", "look", "1"), call("b", "look", "2"), call("c", "add", "3"), call("d", "fly", "4")];
    let answer = Box::new(ProviderAnswer { calls, ..ProviderAnswer::default() });
    assert!(matches!(machine.advance(Fact::Answered(answer)), LoopStep::RecordAnswer(_)));
    assert!(matches!(machine.advance(Fact::Recorded(Some(7.into()))), LoopStep::Check));
    let ordinals = |step| match step {
        LoopStep::RunTools(calls) => calls.into_iter().map(|call| call.ordinal).collect::<Vec<_>>(),
        step => panic!("{step:?}"),
    };
    assert_eq!(ordinals(machine.advance(Fact::Done)), [0, 1]);
    let ended = vec![(0, ToolEnded::Closed), (1, ToolEnded::Closed)];
    assert!(matches!(machine.advance(Fact::ToolsEnded(ended)), LoopStep::Check));
    assert_eq!(ordinals(machine.advance(Fact::Done)), [2]);
    let closing = machine.advance(Fact::ToolsEnded(vec![(2, ToolEnded::Closed)]));
    let LoopStep::Close { call, cause: Cause::UnknownTool, .. } = closing else { panic!("{closing:?}") };
    assert_eq!((call.ordinal, call.answer), (3, Some(7.into())));
    assert!(matches!(machine.advance(Fact::Recorded(None)), LoopStep::RecordTurn { complete: false }));
    // A fact that does not fit the step is an error, not a panic.
    assert!(matches!(machine.advance(Fact::Done), LoopStep::Fail(Error::PromptEvaluation { .. })));
}

/// Calls a tool again and again, and ends after the last turn. It ignores its requests.
struct Tireless {
    turns: u64,
    asked: Mutex<u64>,
}

impl Provider for Tireless {
    fn name(&self) -> &str {
        "tireless"
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        ScriptedProvider::new(Vec::<ScriptedReply>::new())
            .prepare(&ProviderRequest { messages: &request.messages[..1], ..*request })
    }

    fn send(
        &self,
        _: &PreparedRequest,
        _: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        if *asked > self.turns {
            return Ok(ProviderAnswer { content: Some("done".to_owned()), ..ProviderAnswer::default() });
        }
        let call = |number: u64| ToolCallRecord {
            call_id: format!("call_{number:08}"),
            name: "add".to_owned(),
            arguments: format!(r#"{{"text":"line {number} of turn {:08}"}}"#, *asked),
        };
        let content = Some("Two more lines are to be added to the page before it is done.".to_owned());
        Ok(ProviderAnswer { content, calls: vec![call(1), call(2)], ..ProviderAnswer::default() })
    }
}

/// The third law of conversations. A log that contains the messages of each request grows with the
/// square of the conversation.
#[test]
fn the_bytes_written_for_a_turn_do_not_grow_with_the_conversation() {
    const TURNS: u64 = 1_000;
    let desk = Desk::new();
    let limits = LoopLimits { requests: TURNS + 1, ..limits() };
    let provider = Tireless { turns: TURNS, asked: Mutex::default() };
    let adapter = ProviderAdapter::new(provider).with_limits(limits);
    adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let (mut turns, mut bytes) = (Vec::new(), 0);
    let session = desk.session();
    session
        .log()
        .records(0, session.log().position().unwrap(), |record| {
            bytes += 28 + record.body.len();
            if record.kind == foldlog::RecordKind::Turn {
                turns.push(std::mem::take(&mut bytes));
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(turns.len() as u64, TURNS + 1);
    // The first turn includes the prompt and the log's declarations.
    let (early, late) = (turns[9], turns[TURNS as usize - 1]);
    assert!(late * 10 <= early * 11, "{early} bytes in turn 10, {late} in turn {TURNS}");
}
