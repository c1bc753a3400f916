//! The effects of async evaluations (feature `async`), which never block the executor.
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

use foldlog::tools::{ToolCall, ToolRunner};
use foldlog::{Cause, Durability};
use futures_lite::future::or;
use futures_timer::Delay;

use super::detached_jobs::on_thread;
use super::driver::{CallEnd, Effects, SendResult, StepResult};
use super::evaluation::{Evaluation, EvaluationTarget};
use super::steps::LoopStep;
use crate::adapter::{OnTurn, ProviderAdapter};
use crate::error::{Error, Result};
use crate::prompt::Prompt;
use crate::provider::{
    AsyncProvider, CancelToken, PreparedRequest, ProviderError, ProviderErrorKind, ProviderRequest,
    SendOptions,
};

/// Longest interval of a single timer, because timers have an upper limit.
const TIMER_MAX: Duration = Duration::from_secs(60 * 60);

/// Yields to the executor while it waits.
pub(crate) struct AsyncEffects<P, O> {
    pub(crate) adapter: Arc<ProviderAdapter<P>>,
    pub(crate) prompt: Arc<Prompt<O>>,
    pub(crate) on_turn: Option<Box<OnTurn<'static>>>,
}

impl<P: AsyncProvider + 'static, O: 'static> AsyncEffects<P, O> {
    /// Returns whether a step reads little and does not sync, so that the future's own thread
    /// performs it.
    fn is_short(&self, step: &LoopStep, evaluation: &Evaluation) -> bool {
        match step {
            LoopStep::Prepare | LoopStep::CheckOutput(_) => return false,
            LoopStep::Shorten(_) if evaluation.shorten.is_some() => return false,
            // The usage of unmetered answers is estimated from the whole conversation.
            LoopStep::Check => {
                return evaluation.budget.is_none() || evaluation.journal.used.unmetered == 0;
            }
            LoopStep::RecordTurn { .. } if self.on_turn.is_some() => return false,
            _ => {}
        }
        let session = evaluation.runner.state().session();
        !session.replays() && session.log().durability() == Durability::Process
    }
}

impl<P: AsyncProvider + 'static, O: 'static> Effects for AsyncEffects<P, O> {
    fn limited_as(&self) -> &str {
        self.adapter.provider.limited_as()
    }

    async fn perform(&mut self, mut evaluation: Box<Evaluation>, step: LoopStep) -> StepResult {
        let is_short = self.is_short(&step, &evaluation);
        let (adapter, prompt, mut on_turn) =
            (Arc::clone(&self.adapter), Arc::clone(&self.prompt), self.on_turn.take());
        let session = evaluation.runner.state().session().clone();
        let perform = move || {
            let ProviderAdapter { provider, config, .. } = &*adapter;
            let prepare = |request: &ProviderRequest<'_>| provider.prepare(request);
            let target =
                EvaluationTarget { prompt: &prompt, config, provider: provider.name(), prepare: &prepare };
            let done = evaluation.perform(step, &target, &mut on_turn);
            (evaluation, on_turn, done)
        };
        let (evaluation, on_turn, done) =
            if is_short { perform() } else { on_thread(&session, perform).await };
        self.on_turn = on_turn;
        (evaluation, done)
    }

    async fn sleep(&mut self, time: Duration, cancel: &CancelToken) -> Result<()> {
        let cancelled = async {
            cancel.cancelled().await;
            Err(Error::Cancelled)
        };
        let over = async {
            timer(Instant::now().checked_add(time)).await;
            Ok(())
        };
        or(cancelled, over).await
    }

    async fn send(&mut self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> SendResult {
        let (deadline, cancel) = (options.deadline, options.cancel.clone());
        let sent = self.adapter.provider.send(prepared, options);
        or(async { Ok(sent.await) }, given_up(deadline, &cancel)).await
    }

    async fn run_tools(&mut self, evaluation: &Evaluation, calls: &[ToolCall]) -> Vec<CallEnd> {
        evaluation.runner.execute_together_async(calls, &evaluation.deadline.for_tools()).await
    }

    async fn close(&mut self, runner: &ToolRunner, call: &ToolCall, cause: Cause, shown: &str) -> CallEnd {
        runner.close_async(call, cause, shown).await
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
