//! The async driver (feature `async`): performs each step of the state machine without blocking the
//! executor.
//!
//! | step | performed by | state if the future is dropped during the step |
//! |---|---|---|
//! | opening the conversation, preparing a request, calling a shortener, checking an output, creating the response | a thread of the pool, for that time | the records that the thread has written and still writes; nothing, if it has not started |
//! | recording a request, a failure, an answer, a message, a turn | the future's own thread; a thread of the pool if records are synced | the complete record, or none |
//! | the host's function after a turn | a thread of the pool | the turn, and the effects of the function |
//! | sending | the thread that polls the future; a thread of the pool for a [blocking](crate::provider::BlockingProvider) provider | the request without an answer: it is sent again |
//! | waiting before a request | no thread: a timer wakes the future | the failure before it |
//! | running tools, closing calls | see [`execute_async`](foldlog::tools::ToolRunner::execute_async) | calls that have started are rolled back and closed as dropped or cancelled; the others run when the evaluation continues |
//!
//! In each case the session stays usable. The next evaluation waits for running jobs
//! ([`detached_jobs`]) and continues at the end of the log.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::tools::ToolCall;
use foldlog::{Durability, Session};
use futures_lite::future::or;
use futures_timer::Delay;

use super::detached_jobs::on_thread;
use super::evaluation::{Evaluation, EvaluationTarget, Outcome, read_recorded_reply, tool_call};
use super::journal::Journal;
use super::machine::InnerLoop;
use super::steps::{CallToRun, Fact, LoopStep};
use crate::adapter::{AsyncOnDelta, AsyncOnTurn, ProviderAdapter};
use crate::error::{Error, Result};
use crate::prompt::Prompt;
use crate::provider::retry::RateLimiter;
use crate::provider::{
    AsyncProvider, AsyncSendOptions, CancelToken, Delta, ProviderError, ProviderErrorKind, ProviderRequest,
};

/// Longest interval of a single timer, because timers have an upper limit.
const TIMER_MAX: Duration = Duration::from_secs(60 * 60);

/// Performs the steps of one evaluation.
pub(crate) struct AsyncDriver<P, O> {
    pub(crate) adapter: Arc<ProviderAdapter<P>>,
    pub(crate) prompt: Arc<Prompt<O>>,
    /// Session of the evaluation, even if the conversation is not recorded.
    pub(crate) session: Session,
    pub(crate) on_delta: Option<Box<AsyncOnDelta>>,
    pub(crate) on_turn: Option<Box<AsyncOnTurn>>,
}

/// State that moves to a thread of the pool and back.
struct OffloadedStep {
    evaluation: Box<Evaluation>,
    on_turn: Option<Box<AsyncOnTurn>>,
    done: Result<Fact>,
}

impl<P: AsyncProvider + 'static, O: 'static> AsyncDriver<P, O> {
    /// Performs steps until the evaluation is complete or fails.
    pub(crate) async fn run(
        mut self,
        machine: &mut InnerLoop,
        mut evaluation: Box<Evaluation>,
    ) -> Result<(Outcome, Journal)> {
        let mut fact = Fact::Begun;
        loop {
            let done = match machine.advance(fact) {
                LoopStep::Finish(last) => {
                    let Evaluation { done, journal, .. } = *evaluation;
                    return Ok((Outcome { last, ..done }, journal));
                }
                LoopStep::Fail(error) => return Err(error),
                LoopStep::Send => self.send(&mut evaluation).await,
                LoopStep::Sleep(time) => sleep(&evaluation, time).await.map(|()| Fact::Done),
                LoopStep::RunTools(calls) => Ok(run_tools(&mut evaluation, &calls).await),
                LoopStep::Close { call, cause, shown } => match evaluation.close_unrecorded(&call, &shown) {
                    Some(closed) => Ok(closed),
                    None => {
                        let closed = evaluation.runner.close_async(&tool_call(&call), cause, &shown).await;
                        closed.map(|report| Fact::Recorded(Some(report.end))).map_err(Error::from)
                    }
                },
                step if self.is_short(&step, &evaluation) => {
                    perform(&self.adapter, &self.prompt, &mut evaluation, step)
                }
                step => {
                    let done;
                    (evaluation, done) = self.perform_on_thread(evaluation, step).await;
                    done
                }
            };
            fact = done.unwrap_or_else(Fact::Failed);
        }
    }

    /// Returns whether a step reads little and does not sync, so that the future's own thread
    /// performs it.
    fn is_short(&self, step: &LoopStep, evaluation: &Evaluation) -> bool {
        match step {
            LoopStep::Prepare | LoopStep::CheckOutput(_) => return false,
            LoopStep::Shorten(_) if evaluation.shorten.is_some() => return false,
            // The usage of unmetered answers is estimated from the whole conversation.
            LoopStep::Check(_) => {
                return evaluation.budget.is_none() || evaluation.journal.unmetered_answers() == 0;
            }
            LoopStep::RecordTurn { .. } if self.on_turn.is_some() => return false,
            _ => {}
        }
        !self.session.replays() && self.session.log().durability() == Durability::Process
    }

    /// Performs a step on a thread of the pool, including the host's function after a turn.
    async fn perform_on_thread(
        &mut self,
        mut evaluation: Box<Evaluation>,
        step: LoopStep,
    ) -> (Box<Evaluation>, Result<Fact>) {
        let (adapter, prompt) = (Arc::clone(&self.adapter), Arc::clone(&self.prompt));
        let mut on_turn = self.on_turn.take();
        let moved = on_thread(&self.session, move || {
            let is_turn = matches!(step, LoopStep::RecordTurn { .. });
            let mut done = perform(&adapter, &prompt, &mut evaluation, step);
            if let (Ok(_), true, Some(on_turn)) = (&done, is_turn, &mut on_turn)
                && let Some(session) = evaluation.journal.session()
                && let Err(error) = on_turn(session)
            {
                done = Err(error);
            }
            OffloadedStep { evaluation, on_turn, done }
        });
        let OffloadedStep { evaluation, on_turn, done } = moved.await;
        self.on_turn = on_turn;
        (evaluation, done)
    }

    async fn send(&mut self, evaluation: &mut Evaluation) -> Result<Fact> {
        let prepared = evaluation.take_prepared()?;
        if let Some(session) = evaluation.replayed_session().cloned() {
            let fact = on_thread(&self.session, move || read_recorded_reply(&session)).await?;
            evaluation.done.requests += 1;
            return Ok(fact);
        }
        let wait = RateLimiter::shared().reserve(self.adapter.provider().limited_as(), Instant::now());
        if let Err(error) = sleep(evaluation, wait).await {
            return Ok(Evaluation::not_sent(&error));
        }
        let (deadline, cancel) = (evaluation.deadline.instant(), evaluation.cancel.clone());
        let mut showing = DeltaForwarder { on_delta: self.on_delta.as_deref_mut(), arrived: String::new() };
        let sent = {
            let mut show = |delta: Delta<'_>| showing.show(delta);
            let on_delta: Option<&mut (dyn FnMut(Delta<'_>) + Send)> = Some(&mut show);
            let mut options = AsyncSendOptions { deadline, cancel: cancel.clone(), on_delta };
            let sent = self.adapter.provider().send(&prepared, &mut options);
            or(async { Ok(sent.await) }, given_up(deadline, &cancel)).await
        };
        let arrived = std::mem::take(&mut showing.arrived);
        if !arrived.is_empty() && !matches!(sent, Ok(Ok(_))) {
            showing.show(Delta::Discarded);
        }
        let sent = sent.unwrap_or_else(|given_up| {
            let arrived = Some(arrived).filter(|arrived| !arrived.is_empty());
            Err(Box::new(ProviderError { arrived, ..given_up }))
        });
        Ok(evaluation.note_reply(self.adapter.provider().limited_as(), sent))
    }
}

/// Performs a step that is the same for every driver.
fn perform<P: AsyncProvider, O>(
    adapter: &ProviderAdapter<P>,
    prompt: &Prompt<O>,
    evaluation: &mut Evaluation,
    step: LoopStep,
) -> Result<Fact> {
    let (provider, config) = (adapter.provider(), adapter.config());
    let prepare = |request: &ProviderRequest<'_>| provider.prepare(request);
    evaluation
        .perform(step, &EvaluationTarget { prompt, config, provider: provider.name(), prepare: &prepare })
}

/// Shows the parts of one answer, and stores them until it is recorded.
struct DeltaForwarder<'a> {
    on_delta: Option<&'a mut AsyncOnDelta>,
    /// Text that was shown and not discarded.
    arrived: String,
}

impl DeltaForwarder<'_> {
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

/// Waits for the deadline or the cancellation of a request, and returns the error.
async fn given_up<T>(deadline: Option<Instant>, cancel: &CancelToken) -> Result<T, ProviderError> {
    let cancelled = async {
        cancel.cancelled().await;
        (ProviderErrorKind::Cancelled, "the request was cancelled")
    };
    let late = async {
        timer(deadline).await;
        (ProviderErrorKind::Deadline, "the deadline of the request passed")
    };
    let (kind, message) = or(cancelled, late).await;
    Err(ProviderError::new(kind, message))
}

/// Waits. Fails at a cancellation, or at once if the wait would end after the deadline.
async fn sleep(evaluation: &Evaluation, time: Duration) -> Result<()> {
    if time.is_zero() || evaluation.replayed_session().is_some() {
        return Ok(());
    }
    evaluation.check_wait(time)?;
    let cancelled = async {
        evaluation.cancel.cancelled().await;
        Err(Error::Cancelled)
    };
    let over = async {
        timer(Instant::now().checked_add(time)).await;
        Ok(())
    };
    or(cancelled, over).await
}

/// Waits until a moment; forever if there is none.
pub(super) async fn timer(at: Option<Instant>) {
    let Some(at) = at else { return pending().await };
    loop {
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        Delay::new(left.min(TIMER_MAX)).await;
    }
}

async fn run_tools(evaluation: &mut Evaluation, calls: &[CallToRun]) -> Fact {
    let tool_calls: Vec<ToolCall> = calls.iter().map(tool_call).collect();
    let running = evaluation.runner.execute_together_async(&tool_calls, &evaluation.deadline.for_tools());
    let reports = running.await;
    evaluation.tools_ended(calls, reports)
}
