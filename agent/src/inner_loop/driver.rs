//! The blocking driver: performs each step of the state machine, and reports the outcome to it.

use std::thread;
use std::time::{Duration, Instant};

use foldlog::Cause;
use foldlog::tools::ToolCall;

use super::evaluation::{Evaluation, EvaluationTarget, Outcome, read_recorded_reply, tool_call};
use super::journal::Journal;
use super::machine::InnerLoop;
use super::steps::{CallToRun, Fact, LoopStep};
use crate::adapter::OnTurn;
use crate::error::{Error, Result};
use crate::prompt::Prompt;
use crate::provider::retry::RateLimiter;
use crate::provider::{Delta, LlmConfig, Provider, ProviderRequest, SendOptions};

/// Longest time until a wait notices a cancellation.
const NOTICES_WITHIN: Duration = Duration::from_millis(10);

/// Performs the steps of one evaluation.
pub(crate) struct Driver<'a, 'h, P: ?Sized, O> {
    pub(crate) provider: &'a P,
    pub(crate) prompt: &'a Prompt<O>,
    pub(crate) config: &'a LlmConfig,
    pub(crate) evaluation: Evaluation,
    pub(crate) on_delta: Option<&'h mut dyn FnMut(Delta<'_>)>,
    pub(crate) on_turn: Option<&'h mut OnTurn<'h>>,
}

impl<P: Provider + ?Sized, O> Driver<'_, '_, P, O> {
    /// Performs steps until the evaluation is complete or fails.
    pub(crate) fn run(mut self, machine: &mut InnerLoop) -> Result<(Outcome, Journal)> {
        let mut fact = Fact::Begun;
        loop {
            let done = match machine.advance(fact) {
                LoopStep::Finish(last) => {
                    let Evaluation { done, journal, .. } = self.evaluation;
                    return Ok((Outcome { last, ..done }, journal));
                }
                LoopStep::Fail(error) => return Err(error),
                step => self.perform(step),
            };
            fact = done.unwrap_or_else(Fact::Failed);
        }
    }

    fn perform(&mut self, step: LoopStep) -> Result<Fact> {
        match step {
            LoopStep::Send => self.send(),
            LoopStep::Sleep(time) => self.sleep(time).map(|()| Fact::Done),
            LoopStep::RunTools(calls) => Ok(self.run_tools(&calls)),
            LoopStep::Close { call, cause, shown } => self.close(&call, cause, &shown),
            LoopStep::RecordTurn { .. } => {
                let recorded = self.perform_alike(step)?;
                if let (Some(on_turn), Some(session)) = (&mut self.on_turn, self.evaluation.journal.session())
                {
                    on_turn(session)?;
                }
                Ok(recorded)
            }
            step => self.perform_alike(step),
        }
    }

    /// Performs a step that is the same for every driver.
    fn perform_alike(&mut self, step: LoopStep) -> Result<Fact> {
        let prepare = |request: &ProviderRequest<'_>| self.provider.prepare(request);
        let (prompt, config, provider) = (self.prompt, self.config, self.provider.name());
        self.evaluation.perform(step, &EvaluationTarget { prompt, config, provider, prepare: &prepare })
    }

    fn send(&mut self) -> Result<Fact> {
        let prepared = self.evaluation.take_prepared()?;
        if let Some(session) = self.evaluation.replayed_session() {
            let fact = read_recorded_reply(session)?;
            self.evaluation.done.requests += 1;
            return Ok(fact);
        }
        let wait = RateLimiter::shared().reserve(self.provider.limited_as(), Instant::now());
        if let Err(error) = self.sleep(wait) {
            return Ok(Evaluation::not_sent(&error));
        }
        let mut shown = false;
        let mut show = self.on_delta.as_mut().map(|on_delta| {
            |delta: Delta<'_>| {
                shown = matches!(delta, Delta::Text(_));
                on_delta(delta);
            }
        });
        let on_delta = show.as_mut().map(|show| show as &mut dyn FnMut(Delta<'_>));
        let (deadline, cancel) = (self.evaluation.deadline.instant(), self.evaluation.cancel.clone());
        let sent = self.provider.send(&prepared, &mut SendOptions { deadline, cancel, on_delta });
        if let Some(on_delta) = self.on_delta.as_mut().filter(|_| shown && sent.is_err()) {
            on_delta(Delta::Discarded);
        }
        Ok(self.evaluation.note_reply(self.provider.limited_as(), sent))
    }

    /// Waits. Fails at a cancellation, or at once if the wait would end after the deadline.
    fn sleep(&self, time: Duration) -> Result<()> {
        if self.evaluation.replayed_session().is_some() {
            return Ok(());
        }
        let from = Instant::now();
        self.evaluation.check_wait(time)?;
        loop {
            let left = time.saturating_sub(from.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            if self.evaluation.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            thread::sleep(left.min(NOTICES_WITHIN));
        }
    }

    fn run_tools(&mut self, calls: &[CallToRun]) -> Fact {
        let (options, runner) = (self.evaluation.deadline.for_tools(), &self.evaluation.runner);
        let tool_calls: Vec<ToolCall> = calls.iter().map(tool_call).collect();
        let reports = runner.execute_together(&tool_calls, &options);
        self.evaluation.tools_ended(calls, reports)
    }

    fn close(&mut self, call: &CallToRun, cause: Cause, shown: &str) -> Result<Fact> {
        if let Some(closed) = self.evaluation.close_unrecorded(call, shown) {
            return Ok(closed);
        }
        let report = self.evaluation.runner.close(&tool_call(call), cause, shown)?;
        Ok(Fact::Recorded(Some(report.end)))
    }
}
