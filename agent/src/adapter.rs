//! Evaluates prompts with a provider, and resumes interrupted evaluations.
//!
//! [`ProviderAdapter::evaluate`] has the same signature for first and resumed evaluations. Only the
//! session's log ([`SessionConversation::resume`](foldlog::SessionConversation::resume)) determines
//! where an evaluation continues.
//!
//! | state in the log | action of `evaluate` |
//! |---|---|
//! | no conversation of this evaluation | renders the prompt, records it, and calls the provider |
//! | a request is due | sends the recorded messages; nothing is rendered |
//! | calls are due | runs exactly these calls, then calls the provider |
//! | operations wait for a decision | fails, and names them |
//! | complete | returns the recorded answer without a request |

#[cfg(feature = "async")]
mod futures;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog::conversation::{
    Conversation, ConversationMessage, ConversationRecord, ConversationState, ConversationTurn, EntryContent,
    PromptIdentity, ResumePoint, TokenUsage,
};
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{ExecutionState, ToolRunner};
use foldlog::{Clock, ConversationFollower, Generator, OperationId, PendingQuestion, Session};

use crate::adapter_state::{AdapterResume, AdapterState};
use crate::budget::{Budget, Used, track};
use crate::deadline::Deadline;
use crate::error::{Error, EvaluationPhase, Result, SuspendedCall};
use crate::events::{self, PromptExecuted};
#[cfg(feature = "async")]
use crate::inner_loop::detached_jobs;
use crate::inner_loop::{
    BlockingEffects, Evaluation, FinalText, InnerLoop, Journal, LoopLimits, LoopStart, OpenTurn, Outcome,
    answers, read_output, ready, run, runnable,
};
use crate::prompt::{Prompt, VisibilityOverrides};
use crate::provider::{CancelToken, Delta, LlmConfig, Provider, is_cut};
use crate::shortening::ShortenOptions;

/// Decides where an evaluation continues.
#[derive(Clone, Debug, Default)]
pub enum ResumeFrom {
    /// At the point where it stopped according to the session's log. If the log has no conversation
    /// of the evaluation, at the start.
    #[default]
    Auto,
    /// After a conversation that was recorded elsewhere. Its messages become the start of this
    /// conversation. Its calls without a result do not run: the model reads that their result is
    /// unknown. A conversation whose system message has no content has no rendered prompt; it
    /// accepts any prompt, which is then rendered. If the session already contains the
    /// conversation, this is the same as [`Auto`](ResumeFrom::Auto).
    Conversation(Box<ConversationState>),
    /// From a session stored by the provider. Adapters of providers without such sessions refuse
    /// it.
    Adapter(Box<AdapterResume>),
    /// At the start, as an evaluation that the session does not know yet.
    Fresh,
}

/// Contains a message that the host adds before an evaluation continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserMessage {
    /// Id that the host gives the message. If the conversation already contains a message with this
    /// id, the message is not added again; a different text is refused.
    pub id: String,
    /// Text of the message.
    pub text: String,
}

/// Accepts that a conversation continues with a prompt that has changed since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptAcceptance {
    /// Person or program that accepts the prompt.
    pub by: String,
    /// Reason of the decision.
    pub reason: String,
}

/// Receives the parts of an answer as they arrive. The thread that polls an async evaluation calls
/// it, so it must not block there; sending the parts through a channel is fine.
pub type OnDelta<'a> = dyn FnMut(Delta<'_>) + Send + 'a;

/// Function to call after each recorded turn. An async evaluation calls it on a thread of a pool.
pub type OnTurn<'a> = dyn FnMut(&Session) -> Result<()> + Send + 'a;

/// Configures the evaluation of a prompt. Its functions may borrow from the caller, unless the
/// evaluation is async.
pub struct EvaluateOptions<'a> {
    /// Id of the evaluation. If `None`, the evaluation that the session recorded last continues. If
    /// that one is complete, or there is none, a new one gets an id.
    pub evaluation_id: Option<String>,
    /// Point at which the evaluation continues.
    pub resume_from: ResumeFrom,
    /// Messages of the user, added to the conversation before it continues.
    pub messages: Vec<UserMessage>,
    /// Moment at which the evaluation gives up.
    pub deadline: Deadline,
    /// Limits on the tokens of the evaluation, including tokens spent before a resume.
    /// [`Budget::unmetered`] decides how unreported usage counts.
    pub budget: Option<Budget>,
    /// Tracker that is raised to the spending of the evaluation.
    pub tracker: Option<Arc<BudgetTracker>>,
    /// Visibility of sections of the prompt, in place of their own. A resumed evaluation needs the
    /// same overrides as at its start.
    pub visibility_overrides: VisibilityOverrides,
    /// Accepts the given prompt if the recorded conversation follows another one. The acceptance is
    /// recorded once, with both prompts, and the given prompt is rendered again. If `None`, a
    /// changed prompt is refused.
    pub accept_prompt: Option<PromptAcceptance>,
    /// Shortener of the conversation and its thresholds. If `None`, the conversation is never
    /// shortened.
    pub shorten: Option<ShortenOptions>,
    /// Token that cancels the evaluation.
    pub cancel: CancelToken,
    /// Receives the parts of an answer before it is recorded, and a notice if they are discarded.
    /// It enables streaming, regardless of [`LlmConfig::stream`]. The adapter of Claude Code does
    /// not stream, and refuses it.
    pub on_delta: Option<Box<OnDelta<'a>>>,
    /// Called after each recorded turn. An error of it ends the evaluation, which can then be
    /// resumed.
    pub on_turn: Option<Box<OnTurn<'a>>>,
    /// Whether the conversation is recorded; `true` by default. An unrecorded conversation sends
    /// the same messages, but cannot be resumed. Tools are recorded in either case.
    pub record: bool,
}

impl Default for EvaluateOptions<'_> {
    fn default() -> Self {
        EvaluateOptions {
            evaluation_id: None,
            resume_from: ResumeFrom::Auto,
            messages: Vec::new(),
            deadline: Deadline::never(),
            budget: None,
            tracker: None,
            visibility_overrides: VisibilityOverrides::new(),
            accept_prompt: None,
            shorten: None,
            cancel: CancelToken::new(),
            on_delta: None,
            on_turn: None,
            record: true,
        }
    }
}

impl EvaluateOptions<'_> {
    /// Sets whether the conversation is [recorded](EvaluateOptions::record).
    #[must_use]
    pub fn enable_conversation_recording(self, record: bool) -> Self {
        EvaluateOptions { record, ..self }
    }

    /// Returns the same options for another evaluation, with the same functions.
    pub fn reborrow(&mut self) -> EvaluateOptions<'_> {
        EvaluateOptions {
            evaluation_id: self.evaluation_id.clone(),
            resume_from: self.resume_from.clone(),
            messages: self.messages.clone(),
            deadline: self.deadline,
            budget: self.budget,
            tracker: self.tracker.clone(),
            visibility_overrides: self.visibility_overrides.clone(),
            accept_prompt: self.accept_prompt.clone(),
            shorten: self.shorten.clone(),
            cancel: self.cancel.clone(),
            on_delta: self.on_delta.as_mut().map(|on_delta| Box::new(on_delta) as _),
            on_turn: self.on_turn.as_mut().map(|on_turn| Box::new(on_turn) as _),
            record: self.record,
        }
    }
}

/// Contains the result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptResponse<O> {
    /// Name of the prompt: namespace and key.
    pub prompt_name: String,
    /// Text of the last answer. If it [was cut](PromptResponse::is_cut), only its start.
    pub text: String,
    /// Reason with which the provider ended the last answer, in its own words; `None` if it gave
    /// none.
    pub stop: Option<String>,
    /// Output read from the text; `None` if the model did not pass any to the tool `respond` that
    /// takes it.
    pub output: Option<O>,
    /// Id of the evaluation in the session.
    pub evaluation_id: String,
    /// Tokens used by the evaluation, in all processes that worked on it, as far as the provider
    /// reported them.
    pub usage: TokenUsage,
    /// Number of answers without a reported usage; `usage` does not include them.
    pub unmetered: u64,
}

impl<O> PromptResponse<O> {
    /// Returns whether the last answer reached its greatest length. This can only be a text:
    /// structured output is then refused.
    pub fn is_cut(&self) -> bool {
        is_cut(self.stop.as_deref())
    }
}

/// Evaluates prompts with one provider. Evaluations of different sessions may run concurrently.
#[derive(Debug)]
pub struct ProviderAdapter<P> {
    pub(crate) provider: P,
    pub(crate) config: LlmConfig,
    limits: LoopLimits,
}

struct Begin {
    evaluation: String,
    /// Conversation in the session.
    conversation: Option<ConversationFollower>,
    /// Conversation to import.
    import: Option<Box<ConversationState>>,
}

impl<P> ProviderAdapter<P> {
    /// Creates an adapter of a provider, with the provider's own parameters and the default limits.
    pub fn new(provider: P) -> ProviderAdapter<P> {
        ProviderAdapter { provider, config: LlmConfig::default(), limits: LoopLimits::default() }
    }

    /// Sets the parameters of requests.
    #[must_use]
    pub fn with_config(self, config: LlmConfig) -> ProviderAdapter<P> {
        ProviderAdapter { config, ..self }
    }

    /// Sets the limits of requests and retries.
    #[must_use]
    pub fn with_limits(self, limits: LoopLimits) -> ProviderAdapter<P> {
        ProviderAdapter { limits, ..self }
    }

    /// Returns the provider.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Opens the conversation of an evaluation. Returns the response of a complete one, or else the
    /// state in which it continues.
    fn begin<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        options: &mut EvaluateOptions<'_>,
    ) -> Result<ControlFlow<PromptResponse<O>, Box<Evaluation>>> {
        let OpenConversation { journal, start, identity, is_resume } =
            open(prompt, state.session(), options)?;
        if let Some(last) = start.complete {
            return Ok(ControlFlow::Break(response(prompt, &journal, last, start.refused)?));
        }
        let runner = ToolRunner::new(state.clone(), prompt.tools().clone());
        let tools = prompt.shown_tools(&start.overrides);
        let start = LoopStart { tools: tools.iter().map(|tool| tool.name.clone()).collect(), ..start };
        let mut machine = InnerLoop::new(self.limits.clone(), runnable(&runner), start);
        if options.shorten.is_some() {
            machine = machine.with_shortener();
        }
        Ok(ControlFlow::Continue(Box::new(Evaluation {
            machine,
            identity,
            runner,
            journal,
            is_resume,
            deadline: options.deadline,
            budget: options.budget,
            tracker: options.tracker.take(),
            cancel: options.cancel.clone(),
            shorten: options.shorten.take(),
            is_shown: options.on_delta.is_some(),
            tools,
            done: Outcome::default(),
            prepared: None,
            request: None,
        })))
    }
}

/// Records that an evaluation is complete, and returns its response.
fn finish<O>(
    adapter: &str,
    prompt: &Prompt<O>,
    evaluation: Evaluation,
    timing: Timing,
) -> Result<PromptResponse<O>> {
    let Evaluation { machine, runner, mut journal, is_resume, done, .. } = evaluation;
    let execution = ExecutionDetails { adapter, timing, is_resume, cost_micros: None };
    record_execution(prompt, runner.state().session(), &mut journal, &done, execution)?;
    response(prompt, &journal, done.last, machine.refused_outputs())
}

impl<P: Provider> ProviderAdapter<P> {
    /// Evaluates a prompt: calls the provider, and runs the tools that its answers call, until
    /// there is an output. Every request, answer and call is recorded, so another process can
    /// continue at any point.
    ///
    /// If a process ended while a tool ran, [recover](ToolRunner::recover) the session first.
    ///
    /// # Errors
    ///
    /// [`Error::ConversationStateMismatch`] if the recorded conversation follows another prompt,
    /// and the options do not [accept](EvaluateOptions::accept_prompt) the given one;
    /// [`Error::MessageChanged`] if a message has the id of a recorded one and another text;
    /// [`Error::ToolIdempotency`] or [`Error::Suspended`] if operations have to be settled first;
    /// [`Error::DeadlineExceeded`], [`Error::BudgetExceeded`], [`Error::UsageUnknown`] and
    /// [`Error::Cancelled`] if the evaluation gave up; [`Error::NotUndone`] if a tool failed and
    /// some of its changes remain; [`Error::OutputInvalid`], [`Error::TooManyExpansions`] and
    /// [`Error::TooManyRequests`] if the model did not finish; the errors of the provider;
    /// [`Error::Engine`] if the session is interrupted, refuses writes, or if the evaluation is
    /// called within a tool of the same session. After each of them the conversation can be
    /// resumed.
    pub fn evaluate<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'_>,
    ) -> Result<PromptResponse<O>> {
        let timing = Timing::begin(state);
        #[cfg(feature = "async")]
        detached_jobs::wait(state.session(), options.deadline, &options.cancel);
        let evaluation = match self.begin(prompt, state, &mut options)? {
            ControlFlow::Break(complete) => return Ok(complete),
            ControlFlow::Continue(evaluation) => evaluation,
        };
        let mut effects = BlockingEffects { adapter: self, prompt, on_turn: options.on_turn };
        let evaluation = ready(run(&mut effects, evaluation, options.on_delta))?;
        finish(self.provider.name(), prompt, *evaluation, timing)
    }
}

/// Measures the duration of an evaluation, by the clock of its run.
pub struct Timing {
    clock: Arc<dyn Clock>,
    began_us: i64,
}

impl Timing {
    /// Starts the measurement.
    pub fn begin(state: &ExecutionState) -> Timing {
        let clock = Arc::clone(state.clock());
        Timing { began_us: clock.steady_us(), clock }
    }

    fn elapsed_us(&self) -> u64 {
        u64::try_from(self.clock.steady_us().saturating_sub(self.began_us)).unwrap_or_default()
    }
}

/// Contains the details for the record of an executed prompt that are not in its outcome.
pub struct ExecutionDetails<'a> {
    /// Name of the adapter that evaluated the prompt.
    pub adapter: &'a str,
    /// Duration of the evaluation.
    pub timing: Timing,
    /// Whether an earlier process started the evaluation.
    pub is_resume: bool,
    /// Cost in millionths of a dollar; `None` if it is unknown.
    pub cost_micros: Option<u64>,
}

/// Records, for people, that an evaluation returned its output.
pub fn record_execution<O>(
    prompt: &Prompt<O>,
    session: &Session,
    journal: &mut Journal,
    outcome: &Outcome,
    execution: ExecutionDetails<'_>,
) -> Result<()> {
    let ExecutionDetails { adapter, timing, is_resume, cost_micros } = execution;
    let usage = journal.used.metered;
    let (requests, tool_calls) = journal.counts()?.unwrap_or((outcome.requests, outcome.tool_calls));
    let event = PromptExecuted {
        evaluation_id: journal.evaluation().to_owned(),
        prompt_ns: prompt.namespace().to_owned(),
        prompt_key: prompt.key().to_owned(),
        adapter: adapter.to_owned(),
        model: outcome.model.clone(),
        answer: outcome.answer,
        text: outcome.answer.is_none().then(|| outcome.last.text.clone()),
        requests,
        tool_calls,
        input_tokens: usage.input,
        output_tokens: usage.output,
        cache_read_tokens: usage.cache_read,
        cost_micros,
        elapsed_us: timing.elapsed_us(),
        is_resume,
    };
    events::record(session, event)
}

/// Parses the text of the last answer as the output.
pub fn response<O>(
    prompt: &Prompt<O>,
    journal: &Journal,
    last: FinalText,
    refused: u32,
) -> Result<PromptResponse<O>> {
    let output = read_output(prompt, &last).map_err(|error| Error::OutputInvalid {
        output: error.output,
        attempts: refused.saturating_add(1),
        reason: error.reason,
    })?;
    Ok(PromptResponse { output: Some(output), ..without_output(prompt, journal, last) })
}

/// Creates the response of an evaluation without an output.
pub fn without_output<O>(prompt: &Prompt<O>, journal: &Journal, last: FinalText) -> PromptResponse<O> {
    let FinalText { text, stop } = last;
    let (prompt_name, evaluation_id) = (prompt.name(), journal.evaluation().to_owned());
    let Used { metered: usage, unmetered } = journal.used;
    PromptResponse { prompt_name, text, stop, output: None, evaluation_id, usage, unmetered }
}

/// Contains a new or resumed conversation and its state.
pub struct OpenConversation {
    /// Record of the evaluation.
    pub journal: Journal,
    /// State at which the loop starts.
    pub start: LoopStart,
    /// Prompt of the evaluation.
    pub identity: PromptIdentity,
    /// Whether the session or the host already has a part of the conversation.
    pub is_resume: bool,
}

/// Opens the conversation of an evaluation, adds the host's messages, and reads its state.
pub fn open<O>(
    prompt: &Prompt<O>,
    session: &Session,
    options: &mut EvaluateOptions<'_>,
) -> Result<OpenConversation> {
    if let Some(operation) = session.calls().inside_operation() {
        return Err(Error::Engine(foldlog::Error::InsideOperation { operation }));
    }
    let identity = prompt.identity();
    let Begin { evaluation, conversation, import } = begin(session, options)?;
    let goes_on = conversation.is_some();
    let follow = || session.conversation().follow(&evaluation);
    let mut followed = options.record.then(|| conversation.unwrap_or_else(follow));
    // A conversation that a rollback has completely abandoned does not continue, but its usage
    // still counts.
    let held = followed.as_mut().map(ConversationFollower::read).transpose()?.flatten();
    let accepts = options.accept_prompt.is_some();
    check_prompt(held.filter(|_| goes_on), &identity, accepts)?;
    let imported = import.as_deref().map_or(identity.clone(), |state| imported_prompt(state, &identity));
    if imported != identity && !accepts {
        return Err(mismatch(&imported, &identity));
    }
    check_messages(held, &options.messages)?;
    let used = held.map(Used::from_conversation).unwrap_or_default();
    let last_usage = held.filter(|_| goes_on).and_then(last_usage);
    let is_resume = goes_on || import.is_some();
    let mut journal = match followed {
        Some(followed) => Journal::in_session(session.clone(), followed, used, last_usage),
        None => Journal::in_memory(evaluation.clone()),
    };
    if let Some(tracker) = &options.tracker {
        track(tracker, &evaluation, journal.spent());
    }
    if let Some(import) = &import {
        journal.import(import, &imported)?;
    }
    if let Some(acceptance) = &options.accept_prompt {
        accept_prompt(&mut journal, &identity, acceptance)?;
    }
    for message in &options.messages {
        journal.user(&message.text, Some(&message.id))?;
    }
    let start = match options.record {
        true => recorded_start(&mut journal, &identity, std::mem::take(&mut options.visibility_overrides))?,
        false => memory_start(import.as_deref().map(|state| (state, imported == identity)), options)?,
    };
    Ok(OpenConversation { journal, start, identity, is_resume })
}

/// Checks that a conversation, if any, follows a prompt, unless the host accepts a changed one.
pub(crate) fn check_prompt(
    conversation: Option<&Conversation>,
    given: &PromptIdentity,
    accepts: bool,
) -> Result<()> {
    match conversation.and_then(Conversation::prompt).filter(|recorded| !recorded.is_of(given) && !accepts) {
        Some(recorded) => Err(mismatch(recorded, given)),
        None => Ok(()),
    }
}

fn mismatch(recorded: &PromptIdentity, given: &PromptIdentity) -> Error {
    let (recorded, given) = (Box::new(recorded.clone()), Box::new(given.clone()));
    Error::ConversationStateMismatch { recorded, given }
}

/// Records that a conversation continues with the given prompt, if it follows another one.
fn accept_prompt(
    journal: &mut Journal,
    given: &PromptIdentity,
    PromptAcceptance { by, reason }: &PromptAcceptance,
) -> Result<()> {
    let recorded = journal.conversation()?.and_then(Conversation::prompt).filter(|one| !one.is_of(given));
    if let (Some(recorded), Some(session)) = (recorded.cloned(), journal.session()) {
        session.conversation().accept_prompt(journal.evaluation(), &recorded, given, by, reason)?;
    }
    Ok(())
}

/// Checks that no message has the id of another one, recorded or given, but a different text.
fn check_messages(conversation: Option<&Conversation>, given: &[UserMessage]) -> Result<()> {
    let entries = conversation.into_iter().flat_map(Conversation::entries);
    let mut known: HashMap<&str, Option<&str>> = entries
        .filter_map(|entry| match &entry.content {
            EntryContent::Input { message, id: Some(id), .. } => {
                Some((id.as_str(), message.content.as_deref()))
            }
            _ => None,
        })
        .collect();
    for UserMessage { id, text } in given {
        if known.insert(id, Some(text)).is_some_and(|known| known != Some(text)) {
            return Err(Error::MessageChanged { id: id.clone() });
        }
    }
    Ok(())
}

/// Returns the id of the evaluation to continue. If the host gives none, that is the last recorded
/// one unless it is complete, else a new id.
pub(crate) fn evaluation_to_go_on(session: &Session, given: Option<String>, record: bool) -> Result<String> {
    let last = match given {
        None if record => last_incomplete(session)?,
        given => given,
    };
    last.map_or_else(|| new_id(session), Ok)
}

/// Returns the id of the evaluation that the session recorded last; `None` if it is complete, or
/// there is none.
pub fn last_incomplete(session: &Session) -> Result<Option<String>> {
    let resume = session.conversation().resume(None)?;
    let goes_on = !matches!(resume.point, ResumePoint::Complete | ResumePoint::NotRecorded);
    Ok(resume.evaluation_id.filter(|_| goes_on))
}

/// Draws an id from the session's generator. The drawn number is recorded, so a replay gets the
/// same id. Sessions with the same seed get different ids.
pub fn new_id(session: &Session) -> Result<String> {
    let (high, low) = session.id().as_u64_pair();
    Ok(Generator::from_seed(session.inputs().draw()? ^ high ^ low).uuid().to_string())
}

/// Returns the usage of the last answer of a conversation, as far as the provider reported it.
fn last_usage(conversation: &Conversation) -> Option<TokenUsage> {
    let last = conversation.entries().iter().rev().find_map(|entry| match &entry.content {
        EntryContent::Answer { usage, .. } => Some(*usage),
        _ => None,
    });
    last.flatten()
}

/// Finds the evaluation to continue or start, and its conversation in the session.
fn begin(session: &Session, options: &mut EvaluateOptions<'_>) -> Result<Begin> {
    let given = options.evaluation_id.take();
    match std::mem::take(&mut options.resume_from) {
        ResumeFrom::Adapter(resume) => {
            let reason = format!(
                "the state of adapter `{}` cannot be resumed: this provider keeps no sessions",
                foldlog::escape::text(resume.snapshot.state.adapter_type())
            );
            Err(Error::evaluation(EvaluationPhase::Request, "", reason))
        }
        ResumeFrom::Conversation(state) => {
            let evaluation = given.unwrap_or_else(|| state.evaluation_id.clone());
            let mut conversation = follow_recorded(session, &evaluation, options.record)?;
            let held = conversation.as_mut().map(ConversationFollower::read).transpose()?.flatten();
            let is_partly = held.map_or(Ok(true), |held| is_partly_imported(held, &state))?;
            Ok(Begin { evaluation, conversation, import: is_partly.then_some(state) })
        }
        ResumeFrom::Fresh => {
            let evaluation = given.map_or_else(|| new_id(session), Ok)?;
            if options.record && session.conversation().read(&evaluation)?.is_some() {
                let id = foldlog::escape::text(&evaluation);
                let reason =
                    format!("the session already contains evaluation `{id}`: resume it, or use a new id");
                return Err(Error::evaluation(EvaluationPhase::Request, "", reason));
            }
            Ok(Begin { evaluation, conversation: None, import: None })
        }
        ResumeFrom::Auto => {
            let evaluation = evaluation_to_go_on(session, given, options.record)?;
            let conversation = follow_recorded(session, &evaluation, options.record)?;
            Ok(Begin { evaluation, conversation, import: None })
        }
    }
}

/// Returns the session's record of a conversation, if it is recorded and can continue.
fn follow_recorded(
    session: &Session,
    evaluation: &str,
    record: bool,
) -> Result<Option<ConversationFollower>> {
    if !record {
        return Ok(None);
    }
    session.calls().take_decisions()?;
    match session.conversation().resume(Some(evaluation))?.point {
        ResumePoint::NotRecorded => Ok(None),
        ResumePoint::NeedsSettle(operations) => Err(must_settle(session, operations)?),
        _ => Ok(Some(session.conversation().follow(evaluation))),
    }
}

/// Returns the error of a conversation whose calls have to be settled before it continues.
pub fn must_settle(session: &Session, operations: Vec<OperationId>) -> Result<Error> {
    let pending =
        session.calls().pending_questions()?.into_iter().filter(|one| operations.contains(&one.operation));
    let suspended = |PendingQuestion { session, operation, form, question, .. }| SuspendedCall {
        session,
        operation,
        form,
        question,
    };
    let calls: Vec<SuspendedCall> = pending.map(suspended).collect();
    let unsettled = session.calls().unsettled_operations();
    Ok(match operations.as_slice() {
        [operation] if calls.is_empty() => {
            let own = unsettled.into_iter().find(|unsettled| unsettled.operation == *operation);
            let tool = own.map(|own| own.tool.to_string()).unwrap_or_default();
            Error::ToolIdempotency { operation: *operation, tool }
        }
        _ => Error::Suspended { operations, calls },
    })
}

/// Returns whether the session contains nothing of a conversation but an import of the state, and
/// possibly only a part of it, because a process ended during the import. The import then has to
/// run again, which completes it. Once a request follows, the import is complete. Fails if the
/// session contains another conversation than the state.
fn is_partly_imported(conversation: &Conversation, state: &ConversationState) -> Result<bool> {
    let held: Vec<_> = answers(conversation).map(|(_, message)| message).collect();
    let is_held = |(turn, held): (&ConversationTurn, &&ConversationMessage)| {
        let one = &turn.assistant_message;
        (&one.content, &one.tool_calls, &one.blocks) == (&held.content, &held.tool_calls, &held.blocks)
    };
    let is_request = |entry: &ConversationRecord| matches!(entry.content, EntryContent::Request { .. });
    let is_import = !conversation.entries().iter().any(is_request) && held.len() <= state.turns.len();
    if (is_import || state.turns.len() <= held.len()) && state.turns.iter().zip(&held).all(is_held) {
        return Ok(is_import);
    }
    let problem = format!(
        "the session contains a different conversation of evaluation `{}`",
        foldlog::escape::text(&state.evaluation_id)
    );
    Err(Error::InvalidHistory { problems: vec![problem] })
}

/// Returns the prompt of a state: the given one, if it has the same names or the state's prompt was
/// not rendered yet. A state contains no digest.
fn imported_prompt(state: &ConversationState, given: &PromptIdentity) -> PromptIdentity {
    let is_same = (&state.prompt_ns, &state.prompt_key) == (&given.namespace, &given.key);
    if is_same || state.system_message.content.is_none() {
        return given.clone();
    }
    PromptIdentity { namespace: state.prompt_ns.clone(), key: state.prompt_key.clone(), digest: [0; 32] }
}

/// Reads the state of a recorded conversation. Open calls of an imported answer are closed as
/// unknown.
fn recorded_start(
    journal: &mut Journal,
    identity: &PromptIdentity,
    overrides: VisibilityOverrides,
) -> Result<LoopStart> {
    let Some(conversation) = journal.conversation()? else {
        return Ok(LoopStart { overrides, ..LoopStart::default() });
    };
    let (mut start, is_imported) = LoopStart::from_conversation(conversation, identity, overrides);
    if let Some(open) = start.open.as_mut().filter(|_| is_imported) {
        journal.close_unknown(open)?;
    }
    Ok(start)
}

/// Returns the state of an unrecorded conversation. The flag states whether the imported
/// conversation follows the given prompt.
fn memory_start(
    import: Option<(&ConversationState, bool)>,
    options: &EvaluateOptions<'_>,
) -> Result<LoopStart> {
    let overrides = options.visibility_overrides.clone();
    let Some((state, is_same)) = import else { return Ok(LoopStart { overrides, ..LoopStart::default() }) };
    let last = state.turns.last().map(|turn| &turn.assistant_message);
    let open = last.filter(|last| last.tool_calls.is_empty()).map(|last| OpenTurn {
        content: last.content.clone(),
        continues: !options.messages.is_empty(),
        ..OpenTurn::default()
    });
    let is_rendered = is_same && state.system_message.content.is_some();
    Ok(LoopStart { is_rendered, overrides, open, ..LoopStart::default() })
}
