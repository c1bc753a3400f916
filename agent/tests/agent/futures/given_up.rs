//! Requests that end early: by a token, a deadline, or a dropped future.

use std::future::{Future, pending, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use foldlog::ExecutionState;
use foldlog::conversation::EntryContent;
use foldlog::tools::{
    AsyncTool, ExecuteOptions, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog_agent::provider::retry::RetryPolicy;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    AsyncProvider, BlockingProvider, CancelToken, Delta, PreparedRequest, Provider, ProviderAnswer,
    ProviderError, ProviderErrorKind, ProviderRequest, SendOptions,
};
use foldlog_agent::{
    Deadline, Error, EvaluateOptions, EvaluationPhase, LoopLimits, ProviderAdapter, ShortenReason,
    ShortenRequest, ShortenedRange, Shortener,
};
use tokio::sync::Notify;

use super::story::{Desk, Line, limits, prompt_of};
use super::{dropped_once, single, slow, soon};

const EVALUATION: &str = "one";

fn options() -> EvaluateOptions<'static> {
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), ..EvaluateOptions::default() }
}

/// Starts an answer, and never completes it.
#[derive(Default)]
struct Hangs {
    asked: Arc<Notify>,
    given_up: Arc<AtomicUsize>,
}

struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn prepared(request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
    ScriptedProvider::new(Vec::<ScriptedReply>::new()).prepare(request)
}

impl AsyncProvider for Hangs {
    fn name(&self) -> &str {
        "hangs"
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        prepared(request)
    }

    async fn send(
        &self,
        _: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        let _given_up = Counts(self.given_up.clone());
        if let Some(on_delta) = &mut options.on_delta {
            on_delta(Delta::Text("half an "));
        }
        self.asked.notify_one();
        pending().await
    }
}

/// Returns the cause of the last request's failure, and the part that had arrived.
fn failed(desk: &Desk) -> (String, Option<String>) {
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    match &conversation.entries().last().unwrap().content {
        EntryContent::RequestFailed { cause, arrived, .. } => (cause.clone(), arrived.clone()),
        other => panic!("{other:?}"),
    }
}

/// Evaluates again, in the same session.
async fn goes_on(desk: &Desk) {
    let adapter = slow(ScriptedProvider::new([ScriptedReply::text("done")]), limits());
    let response = adapter.evaluate_async(&Arc::new(desk.prompt()), &desk.state, options());
    assert_eq!(soon(response).await.unwrap().text, "done");
}

#[test]
fn a_request_that_is_cancelled_is_dropped_and_what_had_arrived_is_recorded() {
    let (desk, provider) = (Desk::new(), Hangs::default());
    let (asked, given_up) = (provider.asked.clone(), provider.given_up.clone());
    let (cancel, shown) = (CancelToken::new(), Arc::new(Mutex::new(Vec::new())));
    let showing = shown.clone();
    let on_delta = move |delta: Delta<'_>| showing.lock().unwrap().push(format!("{delta:?}"));
    let options = EvaluateOptions { cancel: cancel.clone(), on_delta: Some(Box::new(on_delta)), ..options() };
    single().block_on(async {
        let adapter = Arc::new(ProviderAdapter::new(provider));
        let evaluation = adapter.evaluate_async(&Arc::new(desk.prompt()), &desk.state, options);
        let evaluation = tokio::spawn(evaluation);
        soon(asked.notified()).await;
        cancel.cancel();
        let stopped = soon(evaluation).await.unwrap();
        assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
        assert_eq!(failed(&desk), ("cancelled".to_owned(), Some("half an ".to_owned())));
        assert_eq!(*shown.lock().unwrap(), [r#"Text("half an ")"#, "Discarded"]);
        assert_eq!(given_up.load(Ordering::SeqCst), 1);
        goes_on(&desk).await;
    });
}

#[test]
fn a_request_whose_deadline_passes_is_dropped_then() {
    let (desk, provider) = (Desk::new(), Hangs::default());
    let given_up = provider.given_up.clone();
    let deadline = Deadline::after(Duration::from_secs(1));
    single().block_on(async {
        let adapter = Arc::new(ProviderAdapter::new(provider));
        let options = EvaluateOptions { deadline, ..options() };
        let late = soon(adapter.evaluate_async(&Arc::new(desk.prompt()), &desk.state, options)).await;
        assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
        assert_eq!(failed(&desk), ("deadline".to_owned(), Some("half an ".to_owned())));
        assert_eq!(given_up.load(Ordering::SeqCst), 1);
        goes_on(&desk).await;
    });
}

#[test]
fn a_request_whose_conversation_is_dropped_is_dropped_and_asked_for_again() {
    let (desk, provider) = (Desk::new(), Hangs::default());
    let (asked, given_up) = (provider.asked.clone(), provider.given_up.clone());
    single().block_on(async {
        let adapter = Arc::new(ProviderAdapter::new(provider));
        let evaluation = adapter.evaluate_async(&Arc::new(desk.prompt()), &desk.state, options());
        dropped_once(evaluation, asked.notified()).await;
        assert_eq!(given_up.load(Ordering::SeqCst), 1);
        goes_on(&desk).await;
        assert_eq!(desk.kinds(), ["input", "request", "request", "answer", "turn"]);
    });
}

/// A token is cancelled while the loop waits before a retry. A wait that cannot end before the
/// deadline does not start.
#[test]
fn a_wait_before_a_request_hears_of_its_token_and_of_its_deadline() {
    let retry = RetryPolicy {
        base: Duration::from_secs(3_600),
        max: Duration::from_secs(3_600),
        ..RetryPolicy::default()
    };
    let limits = LoopLimits { retry, ..limits() };
    let cut = || ScriptedProvider::new([ScriptedReply::cut("half")]);
    single().block_on(async {
        let (desk, cancel) = (Desk::new(), CancelToken::new());
        let cancelled = EvaluateOptions { cancel: cancel.clone(), ..options() };
        let adapter = slow(cut(), limits.clone());
        let waits = tokio::spawn(adapter.evaluate_async(&Arc::new(desk.prompt()), &desk.state, cancelled));
        while !desk.kinds().ends_with(&["request", "request"]) {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        let stopped = soon(waits).await.unwrap();
        assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
        goes_on(&desk).await;

        let (desk, began) = (Desk::new(), Instant::now());
        let late = EvaluateOptions { deadline: Deadline::after(Duration::from_secs(60)), ..options() };
        let late = slow(cut(), limits).evaluate_async(&Arc::new(desk.prompt()), &desk.state, late).await;
        assert!(matches!(late, Err(Error::DeadlineExceeded { phase: EvaluationPhase::Request })), "{late:?}");
        assert!(began.elapsed() < Duration::from_secs(30));
    });
}

/// Blocks its thread until its request is cancelled. Reports when it has shown text and when it
/// returns.
struct Blocks(Mutex<mpsc::Sender<&'static str>>);

impl Provider for Blocks {
    fn name(&self) -> &str {
        "blocks"
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        prepared(request)
    }

    fn send(
        &self,
        _: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        if let Some(on_delta) = &mut options.on_delta {
            on_delta(Delta::Text("half an "));
        }
        while !options.cancel.is_cancelled() {
            std::thread::yield_now();
        }
        self.0.lock().unwrap().send("returned").unwrap();
        Err(Box::new(ProviderError::new(ProviderErrorKind::Cancelled, "cancelled")))
    }
}

/// The thread is notified although the host's token is not set.
#[test]
fn a_provider_that_blocks_hears_that_its_conversation_was_dropped() {
    let (desk, (tells, told)) = (Desk::new(), mpsc::channel());
    let (shown, asked) = (Arc::new(Notify::new()), CancelToken::new());
    let showing = shown.clone();
    let on_delta = move |_: Delta<'_>| showing.notify_one();
    let options = EvaluateOptions { cancel: asked.clone(), on_delta: Some(Box::new(on_delta)), ..options() };
    single().block_on(async {
        let adapter = Arc::new(ProviderAdapter::new(BlockingProvider::new(Blocks(Mutex::new(tells)))));
        let evaluation = adapter.evaluate_async(&Arc::new(desk.prompt()), &desk.state, options);
        dropped_once(evaluation, shown.notified()).await;
        assert_eq!(told.recv_timeout(super::SOON), Ok("returned"));
        assert!(!asked.is_cancelled());
        goes_on(&desk).await;
    });
}

/// Blocks until it is released.
struct Ponders(Mutex<mpsc::Receiver<()>>, Arc<Notify>);

impl Shortener for Ponders {
    fn shorten(&self, asked: &ShortenRequest<'_>) -> foldlog_agent::Result<Option<ShortenedRange>> {
        assert_eq!(asked.reason, ShortenReason::Threshold);
        self.1.notify_one();
        self.0.lock().unwrap().recv().unwrap();
        Ok(None)
    }
}

/// A thread still runs the shortener of a dropped evaluation. The session's next evaluation waits
/// for it, but not beyond its own deadline.
#[test]
fn an_evaluation_waits_for_what_a_dropped_one_has_left_until_its_deadline() {
    let (desk, (lets_go, waits)) = (Desk::new(), mpsc::channel());
    let asked = Arc::new(Notify::new());
    let shortener = Arc::new(Ponders(Mutex::new(waits), asked.clone()));
    let shorten = Some(foldlog_agent::ShortenOptions { shortener, input_tokens: None, messages: Some(1) });
    single().block_on(async {
        let adapter = slow(ScriptedProvider::new([ScriptedReply::text("done")]), limits());
        let prompt = Arc::new(desk.prompt());
        let first = EvaluateOptions { shorten, ..options() };
        dropped_once(adapter.evaluate_async(&prompt, &desk.state, first), asked.notified()).await;
        let late = EvaluateOptions { deadline: Deadline::after(Duration::from_millis(20)), ..options() };
        let late = soon(adapter.evaluate_async(&prompt, &desk.state, late)).await;
        assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
        let mut next = std::pin::pin!(adapter.evaluate_async(&prompt, &desk.state, options()));
        let waits = poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_pending())).await;
        assert!(waits, "it did not wait");
        lets_go.send(()).unwrap();
        assert_eq!(soon(next).await.unwrap().text, "done");
    });
}

/// Evaluates a prompt in the session that it runs in, which would wait for its own end.
struct Inside(Arc<Mutex<Option<ExecutionState>>>);

impl AsyncTool for Inside {
    const NAME: &'static str = "inside";
    type Parameters = Line;
    type Output = ();

    async fn call(&self, _: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let state = self.0.lock().unwrap().clone().unwrap();
        let adapter = slow(ScriptedProvider::new([ScriptedReply::text("done")]), limits());
        let prompt = Arc::new(prompt_of(ToolRegistry::new()));
        let refused = adapter.evaluate_async(&prompt, &state, options()).await;
        assert!(matches!(refused, Err(Error::Engine(foldlog::Error::InsideOperation { .. }))), "{refused:?}");
        Ok(ToolResult::ok("refused", ()))
    }
}

#[test]
fn a_conversation_within_a_tool_of_the_same_session_is_refused() {
    let desk = Desk::new();
    let tools = ToolRegistry::new().with_async(Inside(Arc::new(Mutex::new(Some(desk.state.clone())))));
    let runner = ToolRunner::new(desk.state, tools);
    let call = ToolCall::new("inside", r#"{"text":""}"#);
    let report = single().block_on(soon(runner.execute_async(&call, &ExecuteOptions::default()))).unwrap();
    assert_eq!(report.message, "refused");
}
