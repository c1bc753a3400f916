//! The state of an evaluation, and its steps that wait for nothing but the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foldlog::conversation::{EXPANDED_TEXT, NewRequestFailure, PromptIdentity, ToolCallRecord};
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{ToolCall, ToolReport, ToolRunner};
use foldlog::{CallOrigin, NotUndone, RecordedReply, SequenceNumber, Session};

use super::journal::{Journal, REFUSED_ID};
use super::machine::InnerLoop;
use super::steps::{CallToRun, Fact, FinalText, LoopStep, ToolEnded};
use crate::adapter::OnTurn;
use crate::budget::{Budget, UnknownUsagePolicy, track};
use crate::deadline::Deadline;
use crate::error::{Error, EvaluationPhase, Result, SuspendedCall};
use crate::events;
use crate::prompt::{OutputError, Prompt, VisibilityOverrides, overrides_from_json};
use crate::provider::retry::RateLimiter;
use crate::provider::{
    CancelToken, LlmConfig, PreparedRequest, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, ToolSpec, is_cut,
};
use crate::shortening::{ShortenOptions, ShortenReason, ShortenRequest};

/// Contains the state of one evaluation while its steps are performed.
pub(crate) struct Evaluation {
    pub(crate) machine: InnerLoop,
    pub(crate) identity: PromptIdentity,
    pub(crate) runner: ToolRunner,
    pub(crate) journal: Journal,
    /// Whether an earlier process started the evaluation.
    pub(crate) is_resume: bool,
    pub(crate) deadline: Deadline,
    pub(crate) budget: Option<Budget>,
    pub(crate) tracker: Option<Arc<BudgetTracker>>,
    pub(crate) cancel: CancelToken,
    pub(crate) shorten: Option<ShortenOptions>,
    /// Whether the host observes answers as they arrive. They are then streamed regardless of the
    /// configuration.
    pub(crate) is_shown: bool,
    /// Tools that the model may call now.
    pub(crate) tools: Vec<ToolSpec>,
    pub(crate) done: Outcome,
    pub(crate) prepared: Option<PreparedRequest>,
    pub(crate) request: Option<SequenceNumber>,
}

/// Converts a request into the provider's form.
type Prepare<'a> = dyn Fn(&ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> + 'a;

/// Contains the prompt and the provider of an evaluation.
pub(crate) struct EvaluationTarget<'a, O> {
    pub(crate) prompt: &'a Prompt<O>,
    pub(crate) config: &'a LlmConfig,
    pub(crate) provider: &'a str,
    pub(crate) prepare: &'a Prepare<'a>,
}

/// Contains the outcome of an evaluation.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Text of the last answer, and the reason for its end.
    pub last: FinalText,
    /// Model of the last answer.
    pub model: Option<String>,
    /// Record of the last answer.
    pub answer: Option<SequenceNumber>,
    /// Number of requests sent.
    pub requests: u64,
    /// Number of calls in the answers.
    pub tool_calls: u64,
}

impl Evaluation {
    /// Performs a step that waits for nothing but the disk: in a replay also those that would send
    /// a request or wait, and in an unrecorded conversation the closing of a call. `on_turn` is
    /// called after a turn is recorded.
    pub(super) fn perform<O>(
        &mut self,
        step: LoopStep,
        asked: &EvaluationTarget<'_, O>,
        on_turn: &mut Option<Box<OnTurn<'_>>>,
    ) -> Result<Fact> {
        match step {
            LoopStep::Render(overrides) => self.render(overrides, asked),
            LoopStep::Check => self.check().map(|()| Fact::Done),
            LoopStep::Shorten(reason) => self.shorten(reason),
            LoopStep::Prepare => self.prepare(asked),
            LoopStep::RecordRequest { attempt } => {
                let Some(prepared) = &self.prepared else { return Err(self.unprepared_error()) };
                self.request = self.journal.request(attempt, self.identity.digest, prepared)?;
                Ok(Fact::Recorded(self.request))
            }
            LoopStep::RecordFailure { attempt, error } => {
                let recorded = self.journal.failure(attempt, self.request, &error)?;
                self.track();
                Ok(Fact::Recorded(recorded))
            }
            LoopStep::RecordAnswer(answer) => self.record_answer(*answer),
            LoopStep::CheckOutput(last) => self.check_output(&last, asked.prompt),
            LoopStep::Tell { text, about } => {
                let id = about.map(|answer| format!("{REFUSED_ID}{answer}"));
                Ok(Fact::Recorded(self.journal.user(&text, id.as_deref())?))
            }
            LoopStep::RecordTurn { complete } => {
                let recorded = self.journal.turn(complete)?;
                if let (Some(on_turn), Some(session)) = (on_turn, self.journal.session()) {
                    on_turn(session)?;
                }
                Ok(Fact::Recorded(recorded))
            }
            LoopStep::Send => {
                self.take_prepared()?;
                let fact = read_recorded_reply(self.runner.state().session())?;
                self.done.requests += 1;
                Ok(fact)
            }
            LoopStep::Close { call, shown, .. } => {
                self.journal.result(&call, &shown, true);
                Ok(Fact::Recorded(None))
            }
            // The last steps perform nothing, and tools always wait.
            LoopStep::Sleep(_) | LoopStep::RunTools(_) | LoopStep::Finish(_) | LoopStep::Fail(_) => {
                Ok(Fact::Done)
            }
        }
    }

    fn unprepared_error(&self) -> Error {
        let name = format!("{}:{}", self.identity.namespace, self.identity.key);
        Error::evaluation(EvaluationPhase::Request, name, "no request was prepared")
    }

    fn render<O>(
        &mut self,
        overrides: VisibilityOverrides,
        target: &EvaluationTarget<'_, O>,
    ) -> Result<Fact> {
        let rendered = target.prompt.render(&overrides)?;
        let input = self.journal.system(&rendered.text, self.identity.clone(), None)?;
        let (session, evaluation) = (self.runner.state().session(), self.journal.evaluation());
        events::record_rendered(
            session,
            evaluation,
            target.provider,
            &self.identity,
            &rendered,
            input,
            overrides,
        )?;
        self.tools = rendered.tools;
        Ok(Fact::Rendered { tools: self.tools.iter().map(|tool| tool.name.clone()).collect() })
    }

    /// Checks whether the next step may be taken.
    fn check(&mut self) -> Result<()> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if self.deadline.is_past() {
            return Err(Error::DeadlineExceeded { phase: EvaluationPhase::Deadline });
        }
        let Some(budget) = self.budget else { return Ok(()) };
        let answers = self.journal.used.unmetered;
        if answers > 0 && budget.unmetered == UnknownUsagePolicy::Refuse {
            return Err(Error::UsageUnknown { answers });
        }
        budget.check(&self.journal.estimate_usage()?)
    }

    /// Calls the shortener, and records its replacement.
    fn shorten(&mut self, reason: ShortenReason) -> Result<Fact> {
        let Some(options) = &self.shorten else { return Ok(Fact::Done) };
        let usage = self.journal.last_usage;
        let is_due = reason == ShortenReason::Overflow || options.has_many_tokens(usage.as_ref());
        if !is_due && options.messages.is_none() {
            return Ok(Fact::Done);
        }
        let messages = self.journal.sent_entries()?;
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

    fn prepare<O>(&mut self, asked: &EvaluationTarget<'_, O>) -> Result<Fact> {
        let messages = self.journal.messages()?;
        let streamed = self.is_shown.then(|| LlmConfig { stream: true, ..asked.config.clone() });
        let request = ProviderRequest {
            messages: &messages,
            tools: &self.tools,
            output: asked.prompt.output_spec(),
            config: streamed.as_ref().unwrap_or(asked.config),
        };
        match (asked.prepare)(&request) {
            Ok(prepared) => {
                self.prepared = Some(prepared);
                Ok(Fact::Done)
            }
            Err(error) => Ok(Fact::NotAnswered(error)),
        }
    }

    pub(super) fn take_prepared(&mut self) -> Result<PreparedRequest> {
        self.prepared.take().ok_or_else(|| self.unprepared_error())
    }

    /// Returns whether the evaluation replays another run. In a replay nothing is sent, and there
    /// are no waits.
    pub(super) fn replays(&self) -> bool {
        self.journal.session().is_some_and(Session::replays)
    }

    /// Notes the outcome of a request. `provider` is the provider's name in the rate limiter.
    pub(super) fn note_reply(
        &mut self,
        provider: &str,
        sent: Result<ProviderAnswer, Box<ProviderError>>,
    ) -> Fact {
        self.done.requests += 1;
        match sent {
            Ok(answer) => Fact::Answered(Box::new(answer)),
            Err(mut error) => {
                if let ProviderErrorKind::Throttled(details) = &mut error.kind {
                    details.attempts = u32::try_from(self.machine.attempt_number()).unwrap_or(u32::MAX);
                    if let Some(after) =
                        details.retry_after.filter(|_| self.machine.limits.retry.honour_retry_after)
                    {
                        RateLimiter::shared().block(provider, Instant::now(), after);
                    }
                }
                Fact::NotAnswered(error)
            }
        }
    }

    fn record_answer(&mut self, answer: ProviderAnswer) -> Result<Fact> {
        self.done.model.clone_from(&answer.model);
        self.done.tool_calls += answer.calls.len() as u64;
        self.done.answer = self.journal.answer(self.request.take(), answer)?;
        self.track();
        Ok(Fact::Recorded(self.done.answer))
    }

    /// Updates the host's tracker with the spending.
    fn track(&self) {
        if let Some(tracker) = &self.tracker {
            track(tracker, self.journal.evaluation(), self.journal.spent());
        }
    }

    /// Processes the reports of the calls that ran.
    pub(super) fn tools_ended(
        &mut self,
        calls: &[CallToRun],
        reports: Vec<Result<ToolReport, foldlog::Error>>,
    ) -> Fact {
        let ended = |(call, report): (&CallToRun, _)| (call.ordinal, self.take_tool_report(call, report));
        Fact::ToolsEnded(calls.iter().zip(reports).map(ended).collect())
    }

    fn take_tool_report(
        &mut self,
        call: &CallToRun,
        report: Result<ToolReport, foldlog::Error>,
    ) -> ToolEnded {
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

    fn check_output<O>(&mut self, last: &FinalText, prompt: &Prompt<O>) -> Result<Fact> {
        if self.journal.is_outdated()? {
            return Ok(Fact::Said);
        }
        Ok(match read_output(prompt, last) {
            Ok(_) => Fact::Done,
            Err(error) => Fact::OutputRefused(error),
        })
    }
}

/// Returns the outcome of a request in the replayed run.
fn read_recorded_reply(session: &Session) -> foldlog::Result<Fact> {
    Ok(match session.conversation().recorded_reply()? {
        Some(RecordedReply::Answered(answer)) => Fact::Answered(answer),
        Some(RecordedReply::Failed { failure, asked_again }) => {
            let NewRequestFailure { status, arrived, request_id, usage, rate_limits, .. } = *failure;
            let kind = ProviderErrorKind::from_recorded_name(&failure.cause, asked_again);
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

/// Parses the text of an answer as the output. Structured output that reached its greatest length
/// is refused, because the part that arrived may be the start of another value.
pub fn read_output<O>(prompt: &Prompt<O>, last: &FinalText) -> Result<O, OutputError> {
    if let Some(spec) = prompt.output_spec().filter(|_| is_cut(last.stop.as_deref())) {
        let reason = "the answer reached its greatest length before it was complete: give a shorter one";
        return Err(OutputError { output: spec.name.clone(), reason: reason.to_owned() });
    }
    prompt.parse_output(&last.text)
}

/// Returns the available tools of a runner, and whether their calls may run concurrently.
pub(crate) fn runnable(runner: &ToolRunner) -> BTreeMap<String, bool> {
    let names = runner.tools().names();
    names.into_iter().map(|name| (name.to_owned(), runner.runs_together(name))).collect()
}

/// Returns the error of a call that failed and left changes behind; `None` if it left none.
pub fn not_undone(report: &ToolReport) -> Option<Error> {
    // Entries without a resource are not changes.
    let has_changes = report.not_undone.iter().any(|one| !one.resource.is_empty());
    if report.success || !has_changes {
        return None;
    }
    let (operation, tool) = (report.operation, report.tool.to_string());
    Some(Error::NotUndone { operation, tool, changes: left_by(report) })
}

/// Describes the changes that a call left behind.
pub fn left_by(report: &ToolReport) -> Vec<String> {
    let change = |one: &NotUndone| format!("{} {}: {}", one.resource, one.path, one.reason);
    report.not_undone.iter().map(change).collect()
}

pub(super) fn tool_call(call: &CallToRun) -> ToolCall {
    let origin = call.answer.map(|answer| CallOrigin { answer, ordinal: call.ordinal });
    asked_call(&call.call, origin)
}

/// Converts a call of an answer into a tool call. `origin` is `None` if the conversation is not
/// recorded.
pub fn asked_call(call: &ToolCallRecord, origin: Option<CallOrigin>) -> ToolCall {
    ToolCall { origin, ..ToolCall::new(&call.name, &call.arguments).with_id(&call.call_id) }
}
