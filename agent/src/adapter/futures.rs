//! Evaluates prompts as futures, for async hosts (feature `async`).
//!
//! | blocks | its form for async hosts |
//! |---|---|
//! | [`ProviderAdapter::evaluate`], also to resume | [`ProviderAdapter::evaluate_async`] |
//! | [`Provider`](crate::provider::Provider) | [`AsyncProvider`], or the same one within [`BlockingProvider`](crate::provider::BlockingProvider) |
//! | [`MainLoop::execute`](crate::MainLoop::execute), [`resume_evaluation`](crate::checkpoint::resume_evaluation) | none: they open sessions and read checkpoints, where blocking is allowed. Recover with [`recover_async`](foldlog::tools::ToolRunner::recover_async), evaluate with `evaluate_async`, and save checkpoints with its `on_turn` |
//! | [`StatefulAdapter`](crate::adapter_state::StatefulAdapter), the adapter of the Claude Code program | none: the program holds a process and its threads for each conversation; evaluate where blocking is allowed |
//! | [`Shortener`](crate::Shortener) | none: a thread of the pool asks it |

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use foldlog::tools::ExecutionState;
use foldlog::tools::resources::BudgetTracker;

use super::{
    AsyncOnDelta, AsyncOnTurn, EvaluateOptions, ExecutionDetails, PromptAcceptance, PromptResponse,
    ProviderAdapter, ResumeFrom, Timing, UserMessage, open, record_execution, response, set_out,
};
use crate::budget::Budget;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::inner_loop::{AsyncDriver, Evaluation, InnerLoop, detached_jobs};
use crate::prompt::{Prompt, VisibilityOverrides};
use crate::provider::{AsyncProvider, CancelToken};
use crate::shortening::ShortenOptions;

/// Says how a prompt is evaluated by [`ProviderAdapter::evaluate_async`]: as [`EvaluateOptions`] do, but with functions that
/// move with the future.
pub struct AsyncEvaluateOptions {
    /// Says what [`EvaluateOptions::evaluation_id`] says.
    pub evaluation_id: Option<String>,
    /// Says what [`EvaluateOptions::resume_from`] says.
    pub resume_from: ResumeFrom,
    /// Says what [`EvaluateOptions::messages`] says.
    pub messages: Vec<UserMessage>,
    /// Says what [`EvaluateOptions::deadline`] says.
    pub deadline: Deadline,
    /// Says what [`EvaluateOptions::budget`] says.
    pub budget: Option<Budget>,
    /// Says what [`EvaluateOptions::tracker`] says.
    pub tracker: Option<Arc<BudgetTracker>>,
    /// Says what [`EvaluateOptions::visibility_overrides`] says.
    pub visibility_overrides: VisibilityOverrides,
    /// Says what [`EvaluateOptions::accept_prompt`] says.
    pub accept_prompt: Option<PromptAcceptance>,
    /// Says what [`EvaluateOptions::shorten`] says.
    pub shorten: Option<ShortenOptions>,
    /// Says what [`EvaluateOptions::cancel`] says.
    pub cancel: CancelToken,
    /// Says what [`EvaluateOptions::on_delta`] says.
    pub on_delta: Option<Box<AsyncOnDelta>>,
    /// Is called after each turn that is recorded. An error of it ends the evaluation, which can be resumed.
    pub on_turn: Option<Box<AsyncOnTurn>>,
    /// Says what [`EvaluateOptions::record`] says.
    pub record: bool,
}

impl Default for AsyncEvaluateOptions {
    fn default() -> Self {
        AsyncEvaluateOptions::from(EvaluateOptions::default())
    }
}

impl fmt::Debug for AsyncEvaluateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvaluateOptions")
            .field("evaluation_id", &self.evaluation_id)
            .field("deadline", &self.deadline)
            .field("budget", &self.budget)
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

impl From<EvaluateOptions<'_>> for AsyncEvaluateOptions {
    /// Makes options without the functions, which need not outlive the call of a blocking evaluation.
    fn from(options: EvaluateOptions<'_>) -> AsyncEvaluateOptions {
        let EvaluateOptions {
            evaluation_id,
            resume_from,
            messages,
            deadline,
            budget,
            tracker,
            visibility_overrides,
            accept_prompt,
            shorten,
            cancel,
            on_delta: _,
            on_turn: _,
            record,
        } = options;
        AsyncEvaluateOptions {
            evaluation_id,
            resume_from,
            messages,
            deadline,
            budget,
            tracker,
            visibility_overrides,
            accept_prompt,
            shorten,
            cancel,
            on_delta: None,
            on_turn: None,
            record,
        }
    }
}

impl From<AsyncEvaluateOptions> for EvaluateOptions<'_> {
    /// Makes options without the functions.
    fn from(options: AsyncEvaluateOptions) -> Self {
        EvaluateOptions {
            evaluation_id: options.evaluation_id,
            resume_from: options.resume_from,
            messages: options.messages,
            deadline: options.deadline,
            budget: options.budget,
            tracker: options.tracker,
            visibility_overrides: options.visibility_overrides,
            accept_prompt: options.accept_prompt,
            shorten: options.shorten,
            cancel: options.cancel,
            on_delta: None,
            on_turn: None,
            record: options.record,
        }
    }
}

/// Holds an evaluation that was opened.
enum SetOut<O> {
    Complete(PromptResponse<O>),
    GoesOn { machine: Box<InnerLoop>, evaluation: Box<Evaluation>, is_resume: bool },
}

impl<P: AsyncProvider + 'static> ProviderAdapter<P> {
    /// Evaluates a prompt as [`evaluate`](ProviderAdapter::evaluate) does, for async hosts of any runtime: the future blocks no
    /// executor, and holds no thread while it waits for the provider, for another call, or for a tool that is an
    /// [`AsyncTool`](foldlog::tools::AsyncTool). What reads much or is synced is done by a pool of threads. Every request,
    /// answer and call is recorded as `evaluate` records it, so that either form goes on with what the other one began.
    ///
    /// The future owns what it needs, so that a host may spawn it: it shares the adapter and the prompt, and holds a handle of
    /// the session, the resources and the functions of `options` until it ends or is dropped. A session is closed
    /// behind that.
    ///
    /// If the future is dropped, the evaluation is given up at once: a request that was sent is dropped, and calls of tools are
    /// cancelled, rolled back, and closed as failed. The session stays usable, and a later evaluation goes on where the log
    /// ends; it waits first for what threads still do for the one that was dropped. A conversation that is not
    /// [recorded](EvaluateOptions::record) is lost.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
    /// # use foldlog_agent::provider::BlockingProvider;
    /// # use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
    /// # use foldlog_agent::{AsyncEvaluateOptions, MarkdownSection, Prompt, ProviderAdapter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// # let state = ExecutionState::new(session, ResourceRegistry::builder().build()?);
    /// # let provider = BlockingProvider::new(ScriptedProvider::new([ScriptedReply::text("Hello.")]));
    /// let adapter = Arc::new(ProviderAdapter::new(provider));
    /// let prompt = Prompt::text("demo", "greeting").with_section(MarkdownSection::new("task", "Greet."));
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let evaluation = adapter.evaluate_async(&Arc::new(prompt), &state, AsyncEvaluateOptions::default());
    /// assert_eq!(evaluation.await?.text, "Hello.");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`evaluate`](ProviderAdapter::evaluate).
    pub fn evaluate_async<O: Send + 'static>(
        self: &Arc<Self>,
        prompt: &Arc<Prompt<O>>,
        state: &ExecutionState,
        options: AsyncEvaluateOptions,
    ) -> impl Future<Output = Result<PromptResponse<O>>> + Send + use<P, O> {
        let (adapter, prompt, state) = (Arc::clone(self), Arc::clone(prompt), state.clone());
        let timing = Timing::begin(&state);
        async move {
            let session = state.session().clone();
            if let Some(operation) = session.inside_operation() {
                return Err(Error::Engine(foldlog::Error::InsideOperation { operation }));
            }
            if !session.replays() {
                detached_jobs::wait_until_ended(&session, options.deadline, &options.cancel).await;
            }
            let (mut machine, evaluation, is_resume, on_delta, on_turn) = {
                let mut options = options;
                let (on_delta, on_turn) = (options.on_delta.take(), options.on_turn.take());
                let (adapter, prompt) = (Arc::clone(&adapter), Arc::clone(&prompt));
                let set_out = detached_jobs::on_thread(&session, move || {
                    adapter.open_to_go_on(&prompt, &state, options)
                });
                match set_out.await? {
                    SetOut::Complete(response) => return Ok(response),
                    SetOut::GoesOn { machine, mut evaluation, is_resume } => {
                        evaluation.is_shown = on_delta.is_some();
                        (machine, evaluation, is_resume, on_delta, on_turn)
                    }
                }
            };
            let driver = AsyncDriver {
                adapter: Arc::clone(&adapter),
                prompt: Arc::clone(&prompt),
                session: session.clone(),
                on_delta,
                on_turn,
            };
            let (outcome, mut journal) = driver.run(&mut machine, evaluation).await?;
            let refused = machine.refused_outputs();
            let written = session.clone();
            let respond = move || {
                let adapter = adapter.provider().name();
                let execution = ExecutionDetails { adapter, timing, is_resume, cost_micros: None };
                record_execution(&prompt, &written, &mut journal, &outcome, execution)?;
                response(&prompt, &journal, outcome.last, refused)
            };
            detached_jobs::on_thread(&session, respond).await
        }
    }

    /// Opens the conversation of an evaluation.
    fn open_to_go_on<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        options: AsyncEvaluateOptions,
    ) -> Result<SetOut<O>> {
        let mut options = EvaluateOptions::from(options);
        let opened = open(prompt, state.session(), &mut options)?;
        if let Some(last) = opened.start.complete.clone() {
            return Ok(SetOut::Complete(response(prompt, &opened.journal, last, opened.start.refused)?));
        }
        let is_resume = opened.is_resume;
        let (machine, evaluation) = set_out(prompt, state, opened, &mut options, &self.limits);
        Ok(SetOut::GoesOn { machine: Box::new(machine), evaluation: Box::new(evaluation), is_resume })
    }
}
