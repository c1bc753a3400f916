//! The blocking driver: performs each step of the state machine, and tells it what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use foldlog::conversation::{
    EXPANDED_TEXT, NewAnswer, NewRequestFailure, PromptIdentity, RecordedReply, ToolCallRecord,
};
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{ToolCall, ToolReport, ToolRunner};
use foldlog::{CallOrigin, Cause, NotUndone, SequenceNumber, Session};

use super::journal::{Journal, REFUSED_ID};
use super::machine::InnerLoop;
use super::steps::{CallToRun, Fact, FinalText, Step, ToolEnded};
use crate::adapter::OnTurn;
use crate::budget::{Budget, Unmetered, track};
use crate::deadline::Deadline;
use crate::error::{Error, Phase, Result, SuspendedCall};
use crate::events;
use crate::prompt::{OutputError, Prompt, VisibilityOverrides, overrides_from_json};
use crate::provider::retry::RateLimiter;
use crate::provider::{
    CancelToken, Delta, LlmConfig, Prepared, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, SendOptions, ToolSpec,
};
use crate::sabotage::{self, Breakage};
use crate::shortening::{ShortenOptions, ShortenReason, ShortenRequest};

/// Longest time for which a wait does not notice that it was cancelled.
const NOTICES_WITHIN: Duration = Duration::from_millis(10);

/// Performs the steps of one evaluation.
pub(crate) struct Driver<'a, 'h, P: ?Sized, O> {
    pub(crate) provider: &'a P,
    pub(crate) prompt: &'a Prompt<O>,
    pub(crate) identity: PromptIdentity,
    pub(crate) config: &'a LlmConfig,
    pub(crate) runner: ToolRunner,
    pub(crate) journal: Journal,
    pub(crate) deadline: Deadline,
    pub(crate) budget: Option<Budget>,
    pub(crate) tracker: Option<Arc<BudgetTracker>>,
    pub(crate) cancel: CancelToken,
    pub(crate) on_delta: Option<&'h mut dyn FnMut(Delta<'_>)>,
    pub(crate) on_turn: Option<&'h mut OnTurn<'h>>,
    pub(crate) shorten: Option<ShortenOptions>,
    /// Whether requests of this process wait as long as the provider asks for.
    pub(crate) honour_retry_after: bool,
    /// Tools that the model may call now.
    pub(crate) tools: Vec<ToolSpec>,
    pub(crate) done: Outcome,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) request: Option<SequenceNumber>,
    /// Number of the attempt that is under way, counted from 1.
    pub(crate) attempt: u64,
}

/// Says what a driver did, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Text of the last answer, and why it ended.
    pub(crate) last: FinalText,
    /// Model that gave the last answer.
    pub(crate) model: Option<String>,
    /// Record of the last answer.
    pub(crate) answer: Option<SequenceNumber>,
    /// Number of requests that were sent.
    pub(crate) requests: u64,
    /// Number of calls that the answers asked for.
    pub(crate) tool_calls: u64,
}

impl<P: Provider + ?Sized, O> Driver<'_, '_, P, O> {
    /// Performs steps until the evaluation is complete or fails.
    pub(crate) fn run(mut self, machine: &mut InnerLoop) -> Result<(Outcome, Journal)> {
        let mut fact = Fact::Begun;
        loop {
            let done = match machine.advance(fact) {
                Step::Finish(last) => {
                    self.done.last = last;
                    return Ok((self.done, self.journal));
                }
                Step::Fail(error) => return Err(error),
                step => self.perform(step),
            };
            fact = done.unwrap_or_else(Fact::Failed);
        }
    }

    fn perform(&mut self, step: Step) -> Result<Fact> {
        match step {
            Step::Render(overrides) => self.render(overrides),
            Step::Check(_) => self.check().map(|()| Fact::Done),
            Step::Shorten(reason) => self.shorten(reason),
            Step::Prepare => self.prepare(),
            Step::RecordRequest { attempt } => {
                let Some(prepared) = &self.prepared else { return Err(self.unprepared()) };
                self.request = self.journal.request(attempt, self.identity.digest, prepared)?;
                self.attempt = attempt;
                Ok(Fact::Recorded(self.request))
            }
            Step::Send => self.send(),
            Step::RecordFailure { attempt, error } => {
                let recorded = self.journal.failure(attempt, self.request, &error)?;
                self.track();
                Ok(Fact::Recorded(recorded))
            }
            Step::Sleep(time) => self.sleep(time).map(|()| Fact::Done),
            Step::RecordAnswer(answer) => self.record_answer(*answer),
            Step::RunTools(calls) => Ok(Fact::ToolsEnded(self.run_tools(&calls))),
            Step::Close { call, cause, shown } => self.close(&call, cause, &shown),
            Step::CheckOutput(last) => self.check_output(&last),
            Step::Tell { text, about } => {
                let id = about.map(|answer| format!("{REFUSED_ID}{answer}"));
                Ok(Fact::Recorded(self.journal.user(&text, id.as_deref())?))
            }
            Step::RecordTurn { complete } => {
                let turn = self.journal.turn(complete)?;
                if let (Some(on_turn), Some(session)) = (&mut self.on_turn, self.journal.session()) {
                    on_turn(session)?;
                }
                Ok(Fact::Recorded(turn))
            }
            Step::Finish(_) | Step::Fail(_) => Ok(Fact::Done),
        }
    }

    fn unprepared(&self) -> Error {
        Error::evaluation(Phase::Request, self.prompt.name(), "there is no request to be sent")
    }

    fn render(&mut self, overrides: VisibilityOverrides) -> Result<Fact> {
        let rendered = self.prompt.render(&overrides)?;
        let input = self.journal.system(&rendered.text, self.identity.clone())?;
        let names = (self.journal.evaluation(), self.provider.name());
        let session = self.runner.state().session();
        events::rendered(session, names, &self.identity, &rendered, (input, overrides))?;
        self.tools = rendered.tools;
        Ok(Fact::Rendered { tools: self.tools.iter().map(|tool| tool.name.clone()).collect() })
    }

    /// Checks whether the next step may be taken.
    fn check(&mut self) -> Result<()> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if self.deadline.is_past() {
            return Err(Error::DeadlineExceeded { phase: Phase::Deadline });
        }
        let Some(budget) = self.budget else { return Ok(()) };
        let answers = self.journal.unmetered();
        if answers > 0 && budget.unmetered == Unmetered::Refuse {
            return Err(Error::UsageUnknown { answers });
        }
        budget.check(&self.journal.estimated()?)
    }

    /// Asks the shortener what to replace, and records that.
    fn shorten(&mut self, reason: ShortenReason) -> Result<Fact> {
        let Some(options) = &self.shorten else { return Ok(Fact::Done) };
        let usage = self.journal.last_usage();
        let is_due = reason == ShortenReason::Overflow || options.has_many_tokens(usage.as_ref());
        if !is_due && options.messages.is_none() {
            return Ok(Fact::Done);
        }
        let messages = self.journal.sent()?;
        if !is_due && options.messages.is_none_or(|max| messages.len() < max) {
            return Ok(Fact::Done);
        }
        let asked = ShortenRequest {
            evaluation_id: self.journal.evaluation(),
            messages: &messages,
            usage,
            reason,
            deadline: self.deadline,
            cancel: &self.cancel,
        };
        let Some(shortening) = options.shortener.shorten(&asked)? else { return Ok(Fact::Done) };
        shortening.check(&messages)?;
        Ok(Fact::Recorded(self.journal.shorten(&shortening, reason)?))
    }

    fn prepare(&mut self) -> Result<Fact> {
        let messages = self.journal.messages()?;
        let request = ProviderRequest {
            messages: &messages,
            tools: &self.tools,
            output: self.prompt.output_spec(),
            config: self.config,
        };
        match self.provider.prepare(&request) {
            Ok(prepared) => {
                self.prepared = Some(prepared);
                Ok(Fact::Done)
            }
            Err(error) => Ok(Fact::NotAnswered(error)),
        }
    }

    fn send(&mut self) -> Result<Fact> {
        let Some(prepared) = self.prepared.take() else { return Err(self.unprepared()) };
        if let Some(session) = self.journal.session().filter(|session| session.replays()) {
            self.done.requests += 1;
            return Ok(replayed(session)?);
        }
        let limiter = RateLimiter::shared();
        let wait = limiter.reserve(self.provider.limited_as(), Instant::now());
        if let Err(error) = self.sleep(wait) {
            let kind = match error {
                Error::Cancelled => ProviderErrorKind::Cancelled,
                _ => ProviderErrorKind::Deadline,
            };
            let message = "given up before the request was sent";
            return Ok(Fact::NotAnswered(Box::new(ProviderError::new(kind, message))));
        }
        let mut shown = false;
        let mut show = self.on_delta.as_mut().map(|on_delta| {
            |delta: Delta<'_>| {
                shown = matches!(delta, Delta::Text(_));
                on_delta(delta);
            }
        });
        let on_delta = show.as_mut().map(|show| show as &mut dyn FnMut(Delta<'_>));
        let (deadline, cancel) = (self.deadline.instant(), self.cancel.clone());
        let sent = self.provider.send(&prepared, &mut SendOptions { deadline, cancel, on_delta });
        self.done.requests += 1;
        match sent {
            Ok(answer) => Ok(Fact::Answered(Box::new(answer))),
            Err(mut error) => {
                if let Some(on_delta) = self.on_delta.as_mut().filter(|_| shown) {
                    on_delta(Delta::Discarded);
                }
                if let ProviderErrorKind::Throttled(details) = &mut error.kind {
                    details.attempts = u32::try_from(self.attempt).unwrap_or(u32::MAX);
                    if let Some(after) = details.retry_after.filter(|_| self.honour_retry_after) {
                        limiter.block(self.provider.limited_as(), Instant::now(), after);
                    }
                }
                Ok(Fact::NotAnswered(error))
            }
        }
    }

    /// Waits, unless somebody cancels the evaluation, or its deadline passes first.
    fn sleep(&self, time: Duration) -> Result<()> {
        if self.journal.session().is_some_and(Session::replays) {
            return Ok(());
        }
        let from = Instant::now();
        if time > self.deadline.remaining() {
            return Err(Error::DeadlineExceeded { phase: Phase::Request });
        }
        loop {
            let left = time.saturating_sub(from.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            thread::sleep(left.min(NOTICES_WITHIN));
        }
    }

    fn record_answer(&mut self, answer: ProviderAnswer) -> Result<Fact> {
        self.done.model.clone_from(&answer.model);
        self.done.tool_calls += answer.calls.len() as u64;
        self.done.answer = self.journal.answer(self.request.take(), answer)?;
        self.track();
        Ok(Fact::Recorded(self.done.answer))
    }

    /// Brings the host's tracker up to what was spent.
    fn track(&self) {
        if let Some(tracker) = &self.tracker {
            track(tracker, self.journal.evaluation(), self.journal.spent());
        }
    }

    fn run_tools(&mut self, calls: &[CallToRun]) -> Vec<(u32, ToolEnded)> {
        let options = self.deadline.for_tools();
        let tool_calls: Vec<ToolCall> = calls.iter().map(tool_call).collect();
        if sabotage::is(Breakage::CallsRunTwice) {
            let once: Vec<ToolCall> =
                tool_calls.iter().map(|call| ToolCall { origin: None, ..call.clone() }).collect();
            drop(self.runner.execute_together(&once, &options));
        }
        let reports = self.runner.execute_together(&tool_calls, &options);
        let ended = |(call, report): (&CallToRun, _)| (call.ordinal, self.ended(call, report));
        calls.iter().zip(reports).map(ended).collect()
    }

    fn ended(&mut self, call: &CallToRun, report: Result<ToolReport, foldlog::Error>) -> ToolEnded {
        match report {
            Ok(report) => {
                self.journal.result(call, &report.message, !report.success);
                match not_undone(&report) {
                    Some(error) if !report.recorded => ToolEnded::Failed(error),
                    _ => ToolEnded::Closed,
                }
            }
            Err(foldlog::Error::VisibilityExpansion { overrides, .. }) => {
                self.journal.result(call, EXPANDED_TEXT, true);
                match overrides_from_json(&overrides) {
                    Ok(overrides) => ToolEnded::Expansion(overrides),
                    Err(error) => ToolEnded::Failed(error.into()),
                }
            }
            Err(foldlog::Error::Suspended { session, operation, form, question }) => {
                ToolEnded::Suspended(SuspendedCall { session, operation, form, question })
            }
            Err(foldlog::Error::NoSuchTool(_)) => ToolEnded::Unknown,
            Err(error) => ToolEnded::Failed(error.into()),
        }
    }

    fn close(&mut self, call: &CallToRun, cause: Cause, shown: &str) -> Result<Fact> {
        if self.journal.session().is_none() {
            self.journal.result(call, shown, true);
            return Ok(Fact::Recorded(None));
        }
        let report = self.runner.close(&tool_call(call), cause, shown)?;
        Ok(Fact::Recorded(Some(report.end)))
    }

    fn check_output(&mut self, last: &FinalText) -> Result<Fact> {
        if self.journal.is_outdated()? {
            return Ok(Fact::Said);
        }
        Ok(match read_output(self.prompt, last) {
            Ok(_) => Fact::Done,
            Err(error) => {
                let shown = error.to_string();
                Fact::OutputRefused { output: error.output, reason: error.reason, shown }
            }
        })
    }
}

/// Returns what came of a request in the run that is replayed.
fn replayed(session: &Session) -> foldlog::Result<Fact> {
    Ok(match session.recorded_reply()? {
        Some(RecordedReply::Answered(answer)) => {
            let NewAnswer { content, calls, last_call_incomplete, blocks, stop, continues, .. } = *answer;
            let NewAnswer { model, request_id, usage, rate_limits, payload, .. } = *answer;
            Fact::Answered(Box::new(ProviderAnswer {
                content,
                calls,
                last_call_incomplete,
                blocks,
                stop,
                continues,
                model,
                request_id,
                usage,
                rate_limits,
                payload,
            }))
        }
        Some(RecordedReply::Failed { failure, asked_again }) => {
            let NewRequestFailure { status, arrived, request_id, usage, rate_limits, .. } = *failure;
            let kind = ProviderErrorKind::recorded(&failure.cause, asked_again);
            let error = ProviderError {
                status,
                arrived,
                request_id,
                usage,
                rate_limits,
                ..ProviderError::new(kind, failure.message)
            };
            Fact::NotAnswered(Box::new(error))
        }
        _ => {
            let kind = ProviderErrorKind::Unsupported;
            Fact::NotAnswered(Box::new(ProviderError::new(
                kind,
                "the run that is replayed has no answer here",
            )))
        }
    })
}

/// Reads the text of an answer as the output. A structured output that reached its greatest length is none: what arrived
/// may be the beginning of another value.
pub(crate) fn read_output<O>(prompt: &Prompt<O>, last: &FinalText) -> Result<O, OutputError> {
    if let Some(spec) = prompt.output_spec().filter(|_| ProviderAnswer::is_cut(last.stop.as_deref())) {
        let reason = "the answer reached its greatest length before it was complete: give a shorter one";
        return Err(OutputError { output: spec.name.clone(), reason: reason.to_owned() });
    }
    prompt.parse_output(&last.text)
}

/// Returns the tools that a runner can run, and whether their calls may run together.
pub(crate) fn runnable(runner: &ToolRunner) -> BTreeMap<String, bool> {
    let names = runner.tools().names();
    names.into_iter().map(|name| (name.to_owned(), runner.runs_together(name))).collect()
}

/// Returns the error of a call that failed and left changes behind; `None` if it left none.
pub(crate) fn not_undone(report: &ToolReport) -> Option<Error> {
    if report.success || report.not_undone.is_empty() {
        return None;
    }
    let change = |one: &NotUndone| format!("{} {}: {}", one.resource, one.path, one.reason);
    let (operation, tool) = (report.operation, report.tool.to_string());
    Some(Error::NotUndone { operation, tool, changes: report.not_undone.iter().map(change).collect() })
}

fn tool_call(call: &CallToRun) -> ToolCall {
    let origin = call.answer.map(|answer| CallOrigin { answer, ordinal: call.ordinal });
    asked_call(&call.call, origin)
}

/// Makes the call that an answer asks for. `origin` is `None` if the conversation is not recorded.
pub(crate) fn asked_call(call: &ToolCallRecord, origin: Option<CallOrigin>) -> ToolCall {
    ToolCall { origin, ..ToolCall::new(&call.name, &call.arguments).with_id(&call.call_id) }
}
