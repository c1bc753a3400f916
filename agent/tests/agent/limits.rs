//! Limits of an evaluation: calls of an answer, requests, tokens, the length of an answer, and
//! pauses that providers ask for.

use crate::story;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldlog::conversation::{Role, TokenUsage, ToolCallRecord};
use foldlog::filesystem::UnrestoredPath;
use foldlog::tools::resources::{CaptureOptions, RestoreReport, Snapshotable};
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, ResourceRegistry};
use foldlog_agent::provider::retry::RetryPolicy;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    CancelToken, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, SendOptions, ThrottleDetails, ThrottleKind,
};
use foldlog_agent::{
    Budget, BudgetLimit, Checkpoint, CheckpointHandler, Deadline, Error, EvaluateOptions, EvaluationPhase,
    LoopLimits, MainLoop, MarkdownSection, Prompt, ProviderAdapter, UnknownUsagePolicy,
};
use story::{Desk, Line, Script, limits};
use uuid::Uuid;

const EVALUATION: &str = "one";

fn options<'a>() -> EvaluateOptions<'a> {
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), ..EvaluateOptions::default() }
}

fn replies(replies: Vec<ScriptedReply>) -> ProviderAdapter<ScriptedProvider> {
    ProviderAdapter::new(ScriptedProvider::new(replies)).with_limits(limits())
}

/// Returns the texts that the model reads for its calls.
fn shown(desk: &Desk) -> Vec<String> {
    let results = desk.sent(EVALUATION).into_iter().filter(|said| said.role == Role::Tool);
    results.map(|said| said.content.unwrap()).collect()
}

/// All calls of an answer ran, however many there were.
#[test]
fn calls_beyond_the_limit_of_an_answer_are_skipped_and_the_model_reads_so() {
    let desk = Desk::new();
    let calls = vec![("a", "add", "1"), ("b", "look", "2"), ("c", "add", "3"), ("d", "look", "4")];
    let script = Script::new(vec![("one", calls), ("done", vec![])]);
    let few = LoopLimits { calls_per_answer: 2, ..limits() };
    script.adapter().with_limits(few).evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let shown = shown(&desk);
    assert_eq!(shown[..2], ["added 1", "saw 2"]);
    assert!(shown[2..].iter().all(|text| text.contains("may have 2 calls")), "{shown:?}");
    assert_eq!(desk.ran.lines(), ["add 1", "look 2"]);
}

/// A model that never finished was asked forever.
#[test]
fn requests_of_an_evaluation_are_counted_from_the_log_and_bounded() {
    let mut desk = Desk::new();
    let endless =
        || replies((0..9).map(|_| ScriptedReply::calls([("a", "look", "{\"text\":\"x\"}")])).collect());
    let of = |requests| LoopLimits { requests, ..limits() };
    let adapter = endless().with_limits(of(3));
    let error = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap_err();
    assert!(matches!(error, Error::TooManyRequests { max: 3 }), "{error}");
    assert_eq!(adapter.provider().requests(), 3);
    // Another process has the rest of a larger limit.
    desk.reopen();
    let adapter = endless().with_limits(of(5));
    let error = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap_err();
    assert!(matches!(error, Error::TooManyRequests { max: 5 }), "{error}");
    assert_eq!(adapter.provider().requests(), 2);
    // An evaluation that was complete and is continued has the whole limit again.
    let adapter = replies(vec![ScriptedReply::text("done")]);
    adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let more = foldlog_agent::UserMessage { id: "m".to_owned(), text: "more".to_owned() };
    let more = EvaluateOptions { messages: vec![more], ..options() };
    let adapter = replies(vec![ScriptedReply::text("more")]).with_limits(of(1));
    assert_eq!(adapter.evaluate(&desk.prompt(), &desk.state, more).unwrap().text, "more");
}

fn cut(text: &str, stop: &str) -> ScriptedReply {
    ScriptedReply::Answer(ProviderAnswer {
        content: Some(text.to_owned()),
        stop: Some(stop.to_owned()),
        ..ProviderAnswer::default()
    })
}

/// A text that was cut at its maximum length was returned as if it were complete.
#[test]
fn a_text_that_was_cut_says_so_also_when_it_is_read_from_the_log() {
    for stop in ["length", "max_tokens", "model_context_window_exceeded"] {
        let desk = Desk::new();
        for adapter in [replies(vec![cut("half", stop)]), replies(vec![])] {
            let response = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
            assert_eq!((response.text.as_str(), response.stop.as_deref()), ("half", Some(stop)));
            assert!(response.is_cut());
        }
    }
    let desk = Desk::new();
    let response =
        replies(vec![ScriptedReply::text("whole")]).evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    assert_eq!((response.is_cut(), response.stop.as_deref()), (false, Some("stop")));
}

/// A prefix of a number is a number, so a truncated structured output could be taken for another
/// value.
#[test]
fn a_structured_output_that_was_cut_is_refused_and_the_model_reads_why() {
    let desk = Desk::new();
    let prompt = Prompt::<u64>::structured("story", "number");
    let adapter = replies(vec![cut("12", "length"), cut("1234", "stop")]);
    let response = adapter.evaluate(&prompt, &desk.state, options()).unwrap();
    assert_eq!(response.output, Some(1234));
    let told = desk.sent(EVALUATION)[2].content.clone().unwrap();
    assert!(told.contains("greatest length"), "{told}");

    let desk = Desk::new();
    let never = LoopLimits { output_retries: 0, ..limits() };
    for adapter in [replies(vec![cut("12", "max_tokens")]), replies(vec![])] {
        let adapter = adapter.with_limits(never.clone());
        let error = adapter.evaluate(&prompt, &desk.state, options()).unwrap_err();
        assert!(
            matches!(&error, Error::OutputInvalid { reason, .. } if reason.contains("length")),
            "{error}"
        );
    }
}

/// Counts its concurrent calls.
#[derive(Clone, Default)]
struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Tool for Crowd {
    const NAME: &'static str = "crowd";
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..1_000 {
            std::thread::yield_now();
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(ToolResult::ok(line.text, ()))
    }
}

/// Each call of a read-only tool had a thread of its own, however many there were.
#[test]
fn no_more_than_eight_calls_run_at_the_same_time() {
    let (desk, crowd) = (Desk::new(), Crowd::default());
    let prompt = story::prompt_of(ToolRegistry::new().with(crowd.clone()));
    let calls: Vec<String> = (0..30).map(|number| format!("{{\"text\":\"{number}\"}}")).collect();
    let answer = ScriptedReply::calls(calls.iter().map(|call| ("a", "crowd", call.as_str())));
    replies(vec![answer, ScriptedReply::text("done")]).evaluate(&prompt, &desk.state, options()).unwrap();
    let expected: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    assert_eq!(shown(&desk), expected);
    let most = crowd.most.load(Ordering::SeqCst);
    assert!((1..=foldlog::tools::TOGETHER_MAX).contains(&most), "{most}");
}

fn unmetered(text: &str, calls: Vec<ToolCallRecord>) -> ScriptedReply {
    ScriptedReply::Answer(ProviderAnswer {
        content: Some(text.to_owned()),
        calls,
        ..ProviderAnswer::default()
    })
}

fn call(text: &str) -> ToolCallRecord {
    let arguments = format!("{{\"text\":\"{text}\"}}");
    ToolCallRecord { call_id: "a".to_owned(), name: "look".to_owned(), arguments }
}

/// A provider that did not report its usage was free, so that no budget ever ended.
#[test]
fn what_a_provider_does_not_say_it_used_is_estimated_or_refused_and_always_counted() {
    let script = || vec![unmetered(&"x".repeat(400), vec![call("1")]), unmetered("done", vec![])];
    for record in [true, false] {
        let desk = Desk::new();
        let budget = Some(Budget { max_output_tokens: Some(200), ..Budget::default() });
        let bounded = EvaluateOptions { budget, record, ..options() };
        let error = replies(script()).evaluate(&desk.prompt(), &desk.state, bounded).unwrap_err();
        assert!(
            matches!(error, Error::BudgetExceeded { limit: BudgetLimit::Output, spent: 200.., .. }),
            "{error}"
        );

        let desk = Desk::new();
        let budget = Some(Budget { unmetered: UnknownUsagePolicy::Refuse, ..Budget::default() });
        let strict = EvaluateOptions { budget, record, ..options() };
        let error = replies(script()).evaluate(&desk.prompt(), &desk.state, strict).unwrap_err();
        assert!(matches!(error, Error::UsageUnknown { answers: 1 }), "{error}");

        let desk = Desk::new();
        let plain = EvaluateOptions { record, ..options() };
        let response = replies(script()).evaluate(&desk.prompt(), &desk.state, plain).unwrap();
        assert_eq!((response.unmetered, response.usage), (2, TokenUsage::default()));
    }
}

/// The next process takes the estimate from the log.
#[test]
fn an_estimate_is_the_same_in_the_next_process() {
    let mut desk = Desk::new();
    let spent = |desk: &Desk| {
        let budget = Some(Budget { max_total_tokens: Some(1), ..Budget::default() });
        let options = EvaluateOptions { budget, ..options() };
        match replies(vec![unmetered("one", vec![call("1")])]).evaluate(&desk.prompt(), &desk.state, options)
        {
            Err(Error::BudgetExceeded { spent, .. }) => spent,
            other => panic!("{other:?}"),
        }
    };
    let first = spent(&desk);
    assert!(first > 10, "{first}");
    desk.reopen();
    assert_eq!(spent(&desk), first);
}

/// A rollback to before the conversation refunded its usage.
#[test]
fn a_conversation_that_was_abandoned_as_a_whole_was_not_free() {
    let desk = Desk::new();
    let before = desk.session().snapshot(Default::default()).unwrap();
    let answer = || replies(vec![ScriptedReply::text("done")]);
    answer().evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    desk.session().rollback(&before).unwrap();
    let response = answer().evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    assert_eq!((response.usage.input, response.usage.output), (2, 2));
}

/// Has a change that no restore undoes.
struct Ink;

impl Snapshotable for Ink {
    const NAME: &'static str = "ink";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> foldlog::Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> foldlog::Result<()> {
        Ok(())
    }

    fn restore_and_tell(&self, (): &()) -> foldlog::Result<RestoreReport> {
        Ok(vec![UnrestoredPath::new("page 1", "ink does not come off")].into())
    }
}

/// A tool that failed and left changes was closed like any other call, and nobody was warned.
#[test]
fn a_failed_call_that_left_changes_behind_ends_the_evaluation_and_is_not_repeated() {
    let desk = Desk::new();
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(Ink)).build().unwrap();
    let state = ExecutionState::new(desk.session().clone(), resources);
    let script = Script::new(vec![("one", vec![("a", "break", "1")]), ("done", vec![])]);
    let error = script.adapter().evaluate(&desk.prompt(), &state, options()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NotUndone { .. }) && text.contains("page 1: ink does not"), "{text}");
    let response = script.adapter().evaluate(&desk.prompt(), &state, options()).unwrap();
    assert!(response.text.starts_with("done"));
    assert_eq!((desk.ran.lines(), shown(&desk)), (vec!["break 1".to_owned()], vec!["it broke".to_owned()]));
}

/// A scripted provider with its own name for rate limits.
struct Limited(ScriptedProvider, &'static str);

impl Provider for Limited {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limited_as(&self) -> &str {
        self.1
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        self.0.prepare(request)
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        self.0.send(prepared, options)
    }
}

fn throttled() -> ScriptedReply {
    let details = ThrottleDetails {
        kind: ThrottleKind::RateLimit,
        retry_after: Some(Duration::from_secs(50)),
        attempts: 1,
        retry_safe: true,
        provider_payload: None,
    };
    ScriptedReply::fail(ProviderErrorKind::Throttled(details), "slow down")
}

/// A pause for one key held back all keys of the provider, even if the host ignores such requests.
#[test]
fn a_provider_that_asks_for_a_pause_holds_back_those_that_share_its_limit_alone() {
    let ask = |limited_as, honour_retry_after, reply| {
        let desk = Desk::new();
        let retry = RetryPolicy { honour_retry_after, ..RetryPolicy::never() };
        let adapter = ProviderAdapter::new(Limited(ScriptedProvider::new([reply]), limited_as))
            .with_limits(LoopLimits { retry, ..limits() });
        let options = EvaluateOptions { deadline: Deadline::after(Duration::from_secs(20)), ..options() };
        adapter.evaluate(&desk.prompt(), &desk.state, options).map(|response| response.text)
    };
    let text = || ScriptedReply::text("done");
    assert!(matches!(ask("defiant", false, throttled()), Err(Error::Throttled { .. })));
    assert_eq!(ask("defiant", false, text()).unwrap(), "done", "the host honours no pause");
    assert!(matches!(ask("polite", true, throttled()), Err(Error::Throttled { .. })));
    assert_eq!(ask("another key", true, text()).unwrap(), "done", "it has a limit of its own");
    let error = ask("polite", true, text()).unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { phase: EvaluationPhase::Request }), "{error}");
}

/// The error always reported one attempt, however often the provider was asked.
#[test]
fn a_throttled_evaluation_says_how_often_the_provider_was_asked() {
    let desk = Desk::new();
    let again = || match throttled() {
        ScriptedReply::Fail(mut error) => {
            if let ProviderErrorKind::Throttled(details) = &mut error.kind {
                details.retry_after = None;
            }
            ScriptedReply::Fail(error)
        }
        answer => answer,
    };
    let error = replies(vec![again(), again(), again(), again()])
        .evaluate(&desk.prompt(), &desk.state, options())
        .unwrap_err();
    let Error::Throttled { details, .. } = &error else { panic!("{error}") };
    assert_eq!(details.attempts, 4);
    assert!(error.to_string().contains("tried 4 times"), "{error}");
}

/// A host's main loop over a session that a process left during a tool.
struct Left<'a> {
    desk: &'a Desk,
    adapter: ProviderAdapter<ScriptedProvider>,
    checkpoint: Kept,
    prompt: Prompt<String>,
    cancel: CancelToken,
}

/// Keeps one checkpoint, and ignores changes.
struct Kept(Checkpoint);

impl CheckpointHandler<()> for Kept {
    fn load(&self, (): &()) -> Result<Option<Checkpoint>, Error> {
        Ok(Some(self.0.clone()))
    }

    fn save(&self, (): &(), _: &Checkpoint) -> Result<(), Error> {
        Ok(())
    }

    fn clear(&self, (): &()) -> Result<(), Error> {
        Ok(())
    }
}

impl MainLoop for Left<'_> {
    type Request = ();
    type Output = String;
    type Provider = ScriptedProvider;

    fn adapter(&self) -> &ProviderAdapter<ScriptedProvider> {
        &self.adapter
    }

    fn create_session(&self, (): &()) -> Result<ExecutionState, Error> {
        panic!("the session exists")
    }

    fn open_session(&self, (): &(), _: Uuid) -> Result<ExecutionState, Error> {
        Ok(self.desk.state.clone())
    }

    fn create_prompt(&self, (): &()) -> Result<Prompt<String>, Error> {
        Ok(self.prompt.clone())
    }

    fn checkpoints(&self) -> Option<&dyn CheckpointHandler<()>> {
        Some(&self.checkpoint)
    }

    fn options(&self, (): &()) -> EvaluateOptions<'_> {
        EvaluateOptions { cancel: self.cancel.clone(), ..EvaluateOptions::default() }
    }
}

/// A main loop ran interrupted tools again before it checked the prompt, the deadline and the
/// cancellation.
#[test]
fn a_main_loop_recovers_nothing_of_another_prompt_or_for_a_request_that_is_given_up() {
    let script = Script::new(vec![("one", vec![("a", "add", "1")]), ("done", vec![])]);
    let interrupted = |session: &foldlog::Session| {
        matches!(session.conversation().resume(None), Err(foldlog::Error::Interrupted { .. }))
    };
    // Kills after more and more records, until a kill is within the tool.
    let cut = (1..20).find_map(|records| {
        let mut desk = Desk::new();
        desk.session().dispatch(Line { text: "before".to_owned() }).unwrap();
        let checkpoint = Checkpoint::from_session(desk.session(), false).unwrap();
        desk.kill_behind(records);
        let evaluation_id = Some(desk.id.to_string());
        let options = EvaluateOptions { evaluation_id, ..EvaluateOptions::default() };
        script.adapter().evaluate(&desk.prompt(), &desk.state, options).unwrap_err();
        desk.open();
        interrupted(desk.session()).then_some((desk, checkpoint))
    });
    let (desk, checkpoint) = cut.unwrap();
    let host = |prompt: Prompt<String>, cancel: CancelToken| {
        let (adapter, checkpoint) = (script.adapter(), Kept(checkpoint.clone()));
        Left { desk: &desk, adapter, checkpoint, prompt, cancel }
    };
    let other = desk.prompt().with_section(MarkdownSection::new("more", "Something else."));
    let ran = desk.ran.lines();
    let error = host(other, CancelToken::new()).execute(&()).unwrap_err();
    assert!(matches!(error, Error::ConversationStateMismatch { .. }), "{error}");
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let error = host(desk.prompt(), cancelled).execute(&()).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    let late = host(desk.prompt(), CancelToken::new());
    let error = late.request(&(), Deadline::after(Duration::ZERO)).unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    assert!(interrupted(desk.session()) && desk.ran.lines() == ran, "nothing was recovered");
    assert!(late.execute(&()).unwrap().text.starts_with("done"));
}
