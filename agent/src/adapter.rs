//! Evaluates prompts with a provider, and resumes evaluations that were cut short.
//!
//! [`ProviderAdapter::evaluate`] has one signature for a first evaluation and for a resumed one. Where an evaluation
//! goes on is asked of the session's log ([`Session::resume`]), and of nothing else.
//!
//! | the log says | what `evaluate` does |
//! |---|---|
//! | no conversation of this evaluation | renders the prompt, records it, and asks the provider |
//! | ask the provider | sends the recorded messages; nothing is rendered |
//! | run these calls | runs them and no others, and then asks the provider |
//! | operations wait for a decision | fails, and names them |
//! | complete | returns the recorded answer, and asks nobody |

#[cfg(feature = "async")]
mod futures;

use std::collections::HashMap;
use std::fmt;
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
    Driver, Evaluation, FinalText, InnerLoop, Journal, LoopLimits, LoopStart, OpenTurn, Outcome, answers,
    read_output, runnable,
};
use crate::prompt::{Prompt, VisibilityOverrides};
use crate::provider::{CancelToken, Delta, LlmConfig, Provider, ProviderAnswer};
use crate::shortening::ShortenOptions;
#[cfg(feature = "async")]
pub use futures::AsyncEvaluateOptions;

/// Says from where an evaluation goes on.
#[derive(Clone, Debug, Default)]
pub enum ResumeFrom {
    /// From where the session's log says that it stopped; from the beginning, if the log has no conversation of the
    /// evaluation.
    #[default]
    Auto,
    /// From a conversation that was recorded elsewhere. Its messages become the beginning of this one, and calls of it
    /// that have no result do not run: the model reads that their result is not known. One without a rendered prompt, whose
    /// system message has no content, goes on with any prompt, which is rendered. If the session holds that
    /// conversation itself, it goes on as with [`Auto`](ResumeFrom::Auto).
    Conversation(Box<ConversationState>),
    /// From a session that the provider itself keeps. An adapter whose provider keeps none refuses it.
    Adapter(Box<AdapterResume>),
    /// From the beginning, as an evaluation that the session does not know yet.
    Fresh,
}

/// Holds a message that the host adds before an evaluation goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserMessage {
    /// Id of the host for the message. A message whose id the conversation holds already is not added again; with another
    /// text it is refused.
    pub id: String,
    /// Text of the message.
    pub text: String,
}

/// Accepts that a conversation goes on with a prompt that was changed since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptAcceptance {
    /// Who accepts the changed prompt.
    pub by: String,
    /// Reason of the decision.
    pub reason: String,
}

/// Is called after each turn that is recorded.
pub type OnTurn<'a> = dyn FnMut(&Session) -> Result<()> + 'a;

/// Takes what arrives of an answer. Whoever polls the evaluation calls it, so that it must not block: one that sends what it takes
/// through a channel does not.
#[cfg(feature = "async")]
pub type AsyncOnDelta = dyn FnMut(Delta<'_>) + Send;

/// Is called after each turn that is recorded, by a thread of a pool.
#[cfg(feature = "async")]
pub type AsyncOnTurn = dyn FnMut(&Session) -> Result<()> + Send;

/// Says how a prompt is evaluated.
pub struct EvaluateOptions<'a> {
    /// Id of the evaluation. If `None`, the evaluation that the session recorded last goes on unless it is complete, and
    /// else a new one gets an id of its own.
    pub evaluation_id: Option<String>,
    /// From where the evaluation goes on.
    pub resume_from: ResumeFrom,
    /// What the user says, added to the conversation before it goes on.
    pub messages: Vec<UserMessage>,
    /// Moment at which the evaluation is given up.
    pub deadline: Deadline,
    /// Tokens that the evaluation may use, those before a resume included. What a provider does not say is counted as
    /// [`Budget::unmetered`] tells.
    pub budget: Option<Budget>,
    /// Tracker that is brought up to what the evaluation has spent.
    pub tracker: Option<Arc<BudgetTracker>>,
    /// How much is shown of sections of the prompt, in place of what they say themselves. A resumed evaluation is to be
    /// given the same as at its beginning.
    pub visibility_overrides: VisibilityOverrides,
    /// Accepts the given prompt if the recorded conversation follows another one. The acceptance is recorded once, with both
    /// prompts, and the given prompt is rendered anew. If `None`, a changed prompt is refused.
    pub accept_prompt: Option<PromptAcceptance>,
    /// Who shortens the conversation for the provider, and when. If `None`, nobody does.
    pub shorten: Option<ShortenOptions>,
    /// Cancels the evaluation when it is set.
    pub cancel: CancelToken,
    /// Is told what arrives of an answer before it is recorded, and when that is discarded. It has answers streamed, whatever
    /// [`LlmConfig::stream`] says. The adapter of Claude Code streams none, and refuses it.
    pub on_delta: Option<&'a mut dyn FnMut(Delta<'_>)>,
    /// Is called after each turn that is recorded. An error of it ends the evaluation, which can be resumed.
    pub on_turn: Option<&'a mut OnTurn<'a>>,
    /// Whether the conversation is recorded, as it is by default. One that is not recorded is sent the same and cannot be
    /// resumed. The records of tools are written in either case.
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

    /// Returns the same options for another evaluation, which calls the same functions.
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
            on_delta: match &mut self.on_delta {
                Some(on_delta) => Some(&mut **on_delta),
                None => None,
            },
            on_turn: match &mut self.on_turn {
                Some(on_turn) => Some(&mut **on_turn),
                None => None,
            },
            record: self.record,
        }
    }
}

impl fmt::Debug for EvaluateOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvaluateOptions")
            .field("evaluation_id", &self.evaluation_id)
            .field("deadline", &self.deadline)
            .field("budget", &self.budget)
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

/// Holds what an evaluation gave.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptResponse<O> {
    /// Name of the prompt: namespace and key.
    pub prompt_name: String,
    /// Text of the last answer. If it [was cut](PromptResponse::is_cut), only its beginning.
    pub text: String,
    /// Reason that the provider gave for ending the last answer, in its own words; `None` if it gave none.
    pub stop: Option<String>,
    /// Output that was read from the text; `None` if the model gave none to a tool `respond` that takes it.
    pub output: Option<O>,
    /// Id of the evaluation, by which it is found in the session.
    pub evaluation_id: String,
    /// Tokens that the evaluation has used, by every process that worked on it, as far as the provider said.
    pub usage: TokenUsage,
    /// Number of answers of which the provider did not say what they used: `usage` leaves them out.
    pub unmetered: u64,
}

impl<O> PromptResponse<O> {
    /// Returns whether the last answer reached its greatest length. A text may be cut; a structured output is refused then.
    pub fn is_cut(&self) -> bool {
        ProviderAnswer::is_cut(self.stop.as_deref())
    }
}

/// Evaluates prompts with one provider. Evaluations of different sessions may run at the same time.
#[derive(Debug)]
pub struct ProviderAdapter<P> {
    provider: P,
    config: LlmConfig,
    limits: LoopLimits,
}

/// Says where an evaluation begins.
struct Begin {
    evaluation: String,
    /// What the session holds of the conversation.
    conversation: Option<ConversationFollower>,
    /// Conversation that is to be imported.
    import: Option<Box<ConversationState>>,
}

impl<P> ProviderAdapter<P> {
    /// Makes an adapter of a provider, with the provider's own parameters and the default limits.
    pub fn new(provider: P) -> ProviderAdapter<P> {
        ProviderAdapter { provider, config: LlmConfig::default(), limits: LoopLimits::default() }
    }

    /// Sets how the model is asked.
    #[must_use]
    pub fn with_config(self, config: LlmConfig) -> ProviderAdapter<P> {
        ProviderAdapter { config, ..self }
    }

    /// Sets how often an evaluation tries what can be tried again.
    #[must_use]
    pub fn with_limits(self, limits: LoopLimits) -> ProviderAdapter<P> {
        ProviderAdapter { limits, ..self }
    }

    /// Returns the provider.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    #[cfg(feature = "async")]
    pub(crate) fn config(&self) -> &LlmConfig {
        &self.config
    }
}

impl<P: Provider> ProviderAdapter<P> {
    /// Evaluates a prompt: asks the provider and runs the tools that its answers ask for, until there is an output.
    /// Every request, answer and call is recorded, so that another process can go on wherever this one ends.
    ///
    /// The session must be [recovered](ToolRunner::recover) first if a process ended while a tool ran.
    ///
    /// # Errors
    ///
    /// [`Error::ConversationStateMismatch`] if the recorded conversation follows another prompt, and the options do not
    /// [accept](EvaluateOptions::accept_prompt) the given one; [`Error::MessageChanged`] if a message has the id of a
    /// recorded one and another text;
    /// [`Error::ToolIdempotency`] or [`Error::Suspended`] if operations have to be settled first;
    /// [`Error::DeadlineExceeded`], [`Error::BudgetExceeded`], [`Error::UsageUnknown`] and [`Error::Cancelled`] if the
    /// evaluation was given up; [`Error::NotUndone`] if a tool failed and left changes behind;
    /// [`Error::OutputInvalid`], [`Error::TooManyExpansions`] and [`Error::TooManyRequests`] if the model did not come to
    /// an end; the errors of the
    /// provider; [`Error::Engine`] if the session is interrupted, takes no writes, or if the evaluation is called within
    /// a tool of the same session. After each of them the conversation can be resumed.
    pub fn evaluate<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'_>,
    ) -> Result<PromptResponse<O>> {
        let (session, timing) = (state.session(), Timing::begin(state));
        #[cfg(feature = "async")]
        detached_jobs::wait(session, options.deadline, &options.cancel);
        let opened = open(prompt, session, &mut options)?;
        if let Some(last) = opened.start.complete.clone() {
            return response(prompt, &opened.journal, last, opened.start.refused);
        }
        let is_resume = opened.is_resume;
        let (mut machine, evaluation) = set_out(prompt, state, opened, &mut options, &self.limits);
        let driver = Driver {
            provider: &self.provider,
            prompt,
            config: &self.config,
            evaluation,
            on_delta: options.on_delta,
            on_turn: options.on_turn,
        };
        let (outcome, mut journal) = driver.run(&mut machine)?;
        let execution =
            ExecutionDetails { adapter: self.provider.name(), timing, is_resume, cost_micros: None };
        record_execution(prompt, session, &mut journal, &outcome, execution)?;
        response(prompt, &journal, outcome.last, machine.refused_outputs())
    }
}

/// Makes what decides about an evaluation that is not complete, and what a driver performs it with.
fn set_out<O>(
    prompt: &Prompt<O>,
    state: &ExecutionState,
    opened: OpenConversation,
    options: &mut EvaluateOptions<'_>,
    limits: &LoopLimits,
) -> (InnerLoop, Evaluation) {
    let OpenConversation { journal, start, identity, .. } = opened;
    let runner = ToolRunner::new(state.clone(), prompt.tools().clone());
    let tools = prompt.shown_tools(&start.overrides);
    let start = LoopStart { tools: tools.iter().map(|tool| tool.name.clone()).collect(), ..start };
    let mut machine = InnerLoop::new(limits.clone(), runnable(&runner), start);
    if options.shorten.is_some() {
        machine = machine.with_shortener();
    }
    let evaluation = Evaluation {
        identity,
        runner,
        journal,
        deadline: options.deadline,
        budget: options.budget,
        tracker: options.tracker.take(),
        cancel: options.cancel.clone(),
        shorten: options.shorten.take(),
        honour_retry_after: limits.retry.honour_retry_after,
        is_shown: options.on_delta.is_some(),
        tools,
        done: Outcome::default(),
        prepared: None,
        request: None,
        attempt: 0,
    };
    (machine, evaluation)
}

/// Measures how long an evaluation takes, by the clock of its run.
pub struct Timing {
    clock: Arc<dyn Clock>,
    began_us: i64,
}

impl Timing {
    /// Starts measuring.
    pub fn begin(state: &ExecutionState) -> Timing {
        let clock = Arc::clone(state.clock());
        Timing { began_us: clock.steady_us(), clock }
    }

    fn elapsed_us(&self) -> u64 {
        u64::try_from(self.clock.steady_us().saturating_sub(self.began_us)).unwrap_or_default()
    }
}

/// What the record of an executed prompt says of the evaluation beyond its outcome.
pub struct ExecutionDetails<'a> {
    /// Name of the adapter that evaluated the prompt.
    pub adapter: &'a str,
    /// Measures how long the evaluation took.
    pub timing: Timing,
    /// Whether an earlier process had begun the evaluation.
    pub is_resume: bool,
    /// Cost in millionths of a dollar; `None` if it is unknown.
    pub cost_micros: Option<u64>,
}

/// Records for people that an evaluation gave its output.
pub fn record_execution<O>(
    prompt: &Prompt<O>,
    session: &Session,
    journal: &mut Journal,
    outcome: &Outcome,
    execution: ExecutionDetails<'_>,
) -> Result<()> {
    let ExecutionDetails { adapter, timing, is_resume, cost_micros } = execution;
    let usage = journal.used();
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

/// Reads the text of the last answer as the output.
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

/// Makes the response of an evaluation that gave no output.
pub fn without_output<O>(prompt: &Prompt<O>, journal: &Journal, last: FinalText) -> PromptResponse<O> {
    let FinalText { text, stop } = last;
    let (prompt_name, evaluation_id) = (prompt.name(), journal.evaluation().to_owned());
    let (usage, unmetered) = (journal.used(), journal.unmetered_answers());
    PromptResponse { prompt_name, text, stop, output: None, evaluation_id, usage, unmetered }
}

/// Holds a conversation that begins or goes on, and where it stands.
pub struct OpenConversation {
    /// Where the evaluation is recorded.
    pub journal: Journal,
    /// Where its loop starts.
    pub start: LoopStart,
    /// The prompt that is evaluated.
    pub identity: PromptIdentity,
    /// Whether the session or the host holds a part of it already.
    pub is_resume: bool,
}

/// Opens the conversation of an evaluation, adds what the host says, and reads where it stands.
pub fn open<O>(
    prompt: &Prompt<O>,
    session: &Session,
    options: &mut EvaluateOptions<'_>,
) -> Result<OpenConversation> {
    if let Some(operation) = session.inside_operation() {
        return Err(Error::Engine(foldlog::Error::InsideOperation { operation }));
    }
    let identity = prompt.identity();
    let Begin { evaluation, conversation, import } = begin(session, options)?;
    let goes_on = conversation.is_some();
    let follow = || session.follow_conversation(&evaluation);
    let mut followed = options.record.then(|| conversation.unwrap_or_else(follow));
    // A conversation that a rollback has abandoned as a whole does not go on, and what it used was used.
    let held = match &mut followed {
        Some(followed) => followed.read()?,
        None => None,
    };
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

/// Checks that a conversation, if there is one, follows a prompt, unless the host accepts a changed one.
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

/// Records that a conversation goes on with the given prompt, if it follows another one.
fn accept_prompt(
    journal: &mut Journal,
    given: &PromptIdentity,
    PromptAcceptance { by, reason }: &PromptAcceptance,
) -> Result<()> {
    let recorded = journal.conversation()?.and_then(Conversation::prompt).filter(|one| !one.is_of(given));
    if let (Some(recorded), Some(session)) = (recorded.cloned(), journal.session()) {
        session.accept_prompt(journal.evaluation(), &recorded, given, by, reason)?;
    }
    Ok(())
}

/// Checks that no message has the id of another one, recorded or given, and another text.
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

/// Returns the id of the evaluation that goes on if the host names none: the one that the session recorded last unless it
/// is complete, and else a new one.
pub(crate) fn evaluation_to_go_on(session: &Session) -> Result<String> {
    last_incomplete(session)?.map_or_else(|| new_id(session), Ok)
}

/// Returns the id of the evaluation that the session recorded last; `None` if that is complete, or there is none.
pub fn last_incomplete(session: &Session) -> Result<Option<String>> {
    let resume = session.resume(None)?;
    let goes_on = !matches!(resume.point, ResumePoint::Complete | ResumePoint::NotRecorded);
    Ok(resume.evaluation_id.filter(|_| goes_on))
}

/// Draws an id by the session's generator, which records the number drawn: a replay has the same id. Sessions of one seed have ids of
/// their own.
pub fn new_id(session: &Session) -> Result<String> {
    let (high, low) = session.id().as_u64_pair();
    Ok(Generator::from_seed(session.draw()? ^ high ^ low).uuid().to_string())
}

/// Returns what the last answer of a conversation has used, as far as the provider said.
fn last_usage(conversation: &Conversation) -> Option<TokenUsage> {
    let last = conversation.entries().iter().rev().find_map(|entry| match &entry.content {
        EntryContent::Answer { usage, .. } => Some(*usage),
        _ => None,
    });
    last.flatten()
}

/// Finds the evaluation that goes on or begins, and what the session holds of it.
fn begin(session: &Session, options: &mut EvaluateOptions<'_>) -> Result<Begin> {
    let given = options.evaluation_id.take();
    let fresh = |evaluation| Begin { evaluation, conversation: None, import: None };
    match std::mem::take(&mut options.resume_from) {
        ResumeFrom::Adapter(resume) => {
            let reason = format!(
                "a provider that keeps no session of its own cannot resume the state of adapter `{}`",
                foldlog::escape::text(resume.snapshot.state.adapter_type())
            );
            Err(Error::evaluation(EvaluationPhase::Request, "", reason))
        }
        ResumeFrom::Conversation(state) if !options.record => {
            let evaluation = given.unwrap_or_else(|| state.evaluation_id.clone());
            Ok(Begin { import: Some(state), ..fresh(evaluation) })
        }
        ResumeFrom::Conversation(state) => {
            let evaluation = given.unwrap_or_else(|| state.evaluation_id.clone());
            match follow_recorded(session, &evaluation)? {
                Some(mut conversation) => {
                    let is_partly = match conversation.read()? {
                        Some(held) => is_partly_imported(held, &state)?,
                        None => true,
                    };
                    let import = is_partly.then_some(state);
                    Ok(Begin { conversation: Some(conversation), import, ..fresh(evaluation) })
                }
                None => Ok(Begin { import: Some(state), ..fresh(evaluation) }),
            }
        }
        ResumeFrom::Fresh => {
            let evaluation = given.map_or_else(|| new_id(session), Ok)?;
            if options.record && session.conversation(&evaluation)?.is_some() {
                let id = foldlog::escape::text(&evaluation);
                let reason =
                    format!("the session already holds evaluation `{id}`: resume it, or give a new id");
                return Err(Error::evaluation(EvaluationPhase::Request, "", reason));
            }
            Ok(fresh(evaluation))
        }
        ResumeFrom::Auto if !options.record => Ok(fresh(given.map_or_else(|| new_id(session), Ok)?)),
        ResumeFrom::Auto => {
            let evaluation = match given {
                Some(given) => given,
                None => evaluation_to_go_on(session)?,
            };
            let conversation = follow_recorded(session, &evaluation)?;
            Ok(Begin { conversation, ..fresh(evaluation) })
        }
    }
}

/// Returns what the session holds of a conversation, if that can go on.
fn follow_recorded(session: &Session, evaluation: &str) -> Result<Option<ConversationFollower>> {
    session.take_decisions()?;
    match session.resume(Some(evaluation))?.point {
        ResumePoint::NotRecorded => Ok(None),
        ResumePoint::NeedsSettle(operations) => Err(must_settle(session, operations)?),
        _ => Ok(Some(session.follow_conversation(evaluation))),
    }
}

/// Returns the error of a conversation with calls that somebody has to settle before it continues.
pub fn must_settle(session: &Session, operations: Vec<OperationId>) -> Result<Error> {
    let pending = session.pending_questions()?.into_iter().filter(|one| operations.contains(&one.operation));
    let suspended = |PendingQuestion { session, operation, form, question, .. }| SuspendedCall {
        session,
        operation,
        form,
        question,
    };
    let calls: Vec<SuspendedCall> = pending.map(suspended).collect();
    let unsettled = session.unsettled_operations();
    Ok(match operations.as_slice() {
        [operation] if calls.is_empty() => {
            let own = unsettled.into_iter().find(|unsettled| unsettled.operation == *operation);
            let tool = own.map(|own| own.tool.to_string()).unwrap_or_default();
            Error::ToolIdempotency { operation: *operation, tool }
        }
        _ => Error::Suspended { operations, calls },
    })
}

/// Returns whether a state has still to be imported, by a process that goes on where another one ended. Fails if the
/// session holds another conversation than that of the state.
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
        "the session holds another conversation of evaluation `{}`",
        foldlog::escape::text(&state.evaluation_id)
    );
    Err(Error::InvalidHistory { problems: vec![problem] })
}

/// Returns the prompt that a state follows: the given one, if it has the same names or was not rendered yet. A state names no
/// digest.
fn imported_prompt(state: &ConversationState, given: &PromptIdentity) -> PromptIdentity {
    let is_same = (&state.prompt_ns, &state.prompt_key) == (&given.namespace, &given.key);
    if is_same || state.system_message.content.is_none() {
        return given.clone();
    }
    PromptIdentity { namespace: state.prompt_ns.clone(), key: state.prompt_key.clone(), digest: [0; 32] }
}

/// Reads where a recorded conversation stands. Open calls of an answer that was imported are closed as unknown.
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

/// Returns where a conversation stands that is not recorded. The flag says whether the imported state follows the given
/// prompt.
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
