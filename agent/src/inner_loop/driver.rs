//! The driver: performs each step of the state machine, and reports the outcome to it.
//!
//! [`run`] performs the steps of every evaluation. Whatever it waits for is an [`Effects`]. Those
//! of [`BlockingEffects`] block the thread, so that their futures are ready when they are first
//! polled. The other ones are in `futures` (feature `async`).

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::Cause;
use foldlog::tools::{ToolCall, ToolReport, ToolRunner};

use super::evaluation::{Evaluation, EvaluationTarget, tool_call};
use super::steps::{Fact, LoopStep};
use crate::adapter::{OnDelta, OnTurn, ProviderAdapter};
use crate::error::{Error, EvaluationPhase, Result};
use crate::prompt::Prompt;
use crate::provider::retry::RateLimiter;
use crate::provider::{
    CancelToken, Delta, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, SendOptions,
};

/// Longest time until a blocking wait notices a cancellation.
const NOTICES_WITHIN: Duration = Duration::from_millis(10);

/// Outcome of a request. The outer error is that of a request that was given up without waiting for
/// the provider.
pub(super) type SendResult = Result<Result<ProviderAnswer, Box<ProviderError>>, ProviderError>;

/// End of a call.
pub(super) type CallEnd = foldlog::Result<ToolReport>;

/// The evaluation, which a step may move to another thread, and the step's fact.
pub(super) type StepResult = (Box<Evaluation>, Result<Fact>);

/// Performs the parts of steps that wait.
pub(crate) trait Effects {
    /// Returns the provider's name in the rate limiter.
    fn limited_as(&self) -> &str;

    /// Performs a step that waits for nothing but the disk.
    async fn perform(&mut self, evaluation: Box<Evaluation>, step: LoopStep) -> StepResult;

    /// Waits. Fails at a cancellation.
    async fn sleep(&mut self, time: Duration, cancel: &CancelToken) -> Result<()>;

    async fn send(&mut self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> SendResult;

    async fn run_tools(&mut self, evaluation: &Evaluation, calls: &[ToolCall]) -> Vec<CallEnd>;

    /// Records the end of a call that does not run.
    async fn close(&mut self, runner: &ToolRunner, call: &ToolCall, cause: Cause, shown: &str) -> CallEnd;
}

/// Performs steps until the evaluation is complete or fails.
pub(crate) async fn run(
    effects: &mut impl Effects,
    mut evaluation: Box<Evaluation>,
    mut on_delta: Option<Box<OnDelta<'_>>>,
) -> Result<Box<Evaluation>> {
    let mut fact = Fact::Begun;
    loop {
        let done = match evaluation.machine.advance(fact) {
            LoopStep::Finish(last) => {
                evaluation.done.last = last;
                return Ok(evaluation);
            }
            LoopStep::Fail(error) => return Err(error),
            LoopStep::Send if !evaluation.replays() => {
                send(effects, &mut evaluation, on_delta.as_deref_mut()).await
            }
            LoopStep::Sleep(time) if !evaluation.replays() => {
                sleep(effects, &evaluation, time).await.map(|()| Fact::Done)
            }
            LoopStep::RunTools(calls) => {
                let tool_calls: Vec<ToolCall> = calls.iter().map(tool_call).collect();
                let reports = effects.run_tools(&evaluation, &tool_calls).await;
                Ok(evaluation.tools_ended(&calls, reports))
            }
            LoopStep::Close { call, cause, shown } if evaluation.journal.session().is_some() => {
                let closed = effects.close(&evaluation.runner, &tool_call(&call), cause, &shown).await;
                closed.map(|report| Fact::Recorded(Some(report.end))).map_err(Error::from)
            }
            step => {
                let done;
                (evaluation, done) = effects.perform(evaluation, step).await;
                done
            }
        };
        fact = done.unwrap_or_else(Fact::Failed);
    }
}

/// Waits. Fails at a cancellation, or at once if the wait would end after the deadline.
async fn sleep(effects: &mut impl Effects, evaluation: &Evaluation, time: Duration) -> Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    if time > evaluation.deadline.remaining() {
        return Err(Error::DeadlineExceeded { phase: EvaluationPhase::Request });
    }
    effects.sleep(time, &evaluation.cancel).await
}

async fn send(
    effects: &mut impl Effects,
    evaluation: &mut Evaluation,
    on_delta: Option<&mut OnDelta<'_>>,
) -> Result<Fact> {
    let prepared = evaluation.take_prepared()?;
    let wait = RateLimiter::shared().reserve(effects.limited_as(), Instant::now());
    if let Err(error) = sleep(effects, evaluation, wait).await {
        let kind = match error {
            Error::Cancelled => ProviderErrorKind::Cancelled,
            _ => ProviderErrorKind::Deadline,
        };
        let error = ProviderError::new(kind, "given up before the request was sent");
        return Ok(Fact::NotAnswered(Box::new(error)));
    }
    let mut deltas = DeltaForwarder { on_delta, arrived: String::new() };
    let sent = {
        let mut show = |delta: Delta<'_>| deltas.show(delta);
        let (deadline, cancel) = (evaluation.deadline.instant(), evaluation.cancel.clone());
        effects.send(&prepared, &mut SendOptions { deadline, cancel, on_delta: Some(&mut show) }).await
    };
    let arrived = std::mem::take(&mut deltas.arrived);
    if !arrived.is_empty() && !matches!(sent, Ok(Ok(_))) {
        deltas.show(Delta::Discarded);
    }
    let sent = sent.unwrap_or_else(|given_up| {
        let arrived = Some(arrived).filter(|arrived| !arrived.is_empty());
        Err(Box::new(ProviderError { arrived, ..given_up }))
    });
    Ok(evaluation.note_reply(effects.limited_as(), sent))
}

/// Shows the parts of one answer, and stores them until it is recorded.
struct DeltaForwarder<'a, 'h> {
    on_delta: Option<&'a mut OnDelta<'h>>,
    /// Text that was shown and not discarded.
    arrived: String,
}

impl DeltaForwarder<'_, '_> {
    fn show(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) => self.arrived.push_str(text),
            Delta::Discarded => self.arrived.clear(),
        }
        if let Some(on_delta) = &mut self.on_delta {
            on_delta(delta);
        }
    }
}

/// Blocks the thread while it waits.
pub(crate) struct BlockingEffects<'a, 'h, P, O> {
    pub(crate) adapter: &'a ProviderAdapter<P>,
    pub(crate) prompt: &'a Prompt<O>,
    pub(crate) on_turn: Option<Box<OnTurn<'h>>>,
}

impl<P: Provider, O> Effects for BlockingEffects<'_, '_, P, O> {
    fn limited_as(&self) -> &str {
        self.adapter.provider.limited_as()
    }

    async fn perform(&mut self, mut evaluation: Box<Evaluation>, step: LoopStep) -> StepResult {
        let ProviderAdapter { provider, config, .. } = self.adapter;
        let prepare = |request: &ProviderRequest<'_>| provider.prepare(request);
        let (prompt, provider) = (self.prompt, provider.name());
        let target = EvaluationTarget { prompt, config, provider, prepare: &prepare };
        let done = evaluation.perform(step, &target, &mut self.on_turn);
        (evaluation, done)
    }

    async fn sleep(&mut self, time: Duration, cancel: &CancelToken) -> Result<()> {
        let from = Instant::now();
        loop {
            let left = time.saturating_sub(from.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            thread::sleep(left.min(NOTICES_WITHIN));
        }
    }

    async fn send(&mut self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> SendResult {
        Ok(self.adapter.provider.send(prepared, options))
    }

    async fn run_tools(&mut self, evaluation: &Evaluation, calls: &[ToolCall]) -> Vec<CallEnd> {
        evaluation.runner.execute_together(calls, &evaluation.deadline.for_tools())
    }

    async fn close(&mut self, runner: &ToolRunner, call: &ToolCall, cause: Cause, shown: &str) -> CallEnd {
        runner.close(call, cause, shown)
    }
}

/// Returns the output of a future that is ready when it is polled.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let (mut future, mut context) = (pin!(future), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
