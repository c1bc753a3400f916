//! Evaluates prompts as futures, for async hosts (feature `async`).
//!
//! | blocking | variant for async hosts |
//! |---|---|
//! | [`ProviderAdapter::evaluate`], also to resume | [`ProviderAdapter::evaluate_async`] |
//! | [`Provider`](crate::provider::Provider) | [`AsyncProvider`], or the blocking one within [`BlockingProvider`](crate::provider::BlockingProvider) |
//! | [`MainLoop::execute`](crate::MainLoop::execute), [`resume_evaluation`](crate::checkpoint::resume_evaluation) | none: they open sessions and read checkpoints, where blocking is allowed. Recover with [`recover_async`](foldlog::tools::ToolRunner::recover_async), evaluate with `evaluate_async`, and save checkpoints with its `on_turn` |
//! | [`StatefulAdapter`](crate::adapter_state::StatefulAdapter), the adapter of the Claude Code program | none: each conversation needs a process and its threads; evaluate where blocking is allowed |
//! | [`Shortener`](crate::Shortener) | none: it is called on a thread of the pool |

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

/// Configures [`ProviderAdapter::evaluate_async`]. The fields are those of [`EvaluateOptions`],
/// with functions that move with the future.
pub struct AsyncEvaluateOptions {
    /// See [`EvaluateOptions::evaluation_id`].
    pub evaluation_id: Option<String>,
    /// See [`EvaluateOptions::resume_from`].
    pub resume_from: ResumeFrom,
    /// See [`EvaluateOptions::messages`].
    pub messages: Vec<UserMessage>,
    /// See [`EvaluateOptions::deadline`].
    pub deadline: Deadline,
    /// See [`EvaluateOptions::budget`].
    pub budget: Option<Budget>,
    /// See [`EvaluateOptions::tracker`].
    pub tracker: Option<Arc<BudgetTracker>>,
    /// See [`EvaluateOptions::visibility_overrides`].
    pub visibility_overrides: VisibilityOverrides,
    /// See [`EvaluateOptions::accept_prompt`].
    pub accept_prompt: Option<PromptAcceptance>,
    /// See [`EvaluateOptions::shorten`].
    pub shorten: Option<ShortenOptions>,
    /// See [`EvaluateOptions::cancel`].
    pub cancel: CancelToken,
    /// See [`EvaluateOptions::on_delta`].
    pub on_delta: Option<Box<AsyncOnDelta>>,
    /// Called after each recorded turn. An error of it ends the evaluation, which can then be
    /// resumed.
    pub on_turn: Option<Box<AsyncOnTurn>>,
    /// See [`EvaluateOptions::record`].
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
    /// Converts the options without their functions, which may not outlive the call of a blocking
    /// evaluation.
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
    /// Converts the options without their functions.
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

enum SetOut<O> {
    Complete(PromptResponse<O>),
    GoesOn { machine: Box<InnerLoop>, evaluation: Box<Evaluation>, is_resume: bool },
}

impl<P: AsyncProvider + 'static> ProviderAdapter<P> {
    /// Evaluates a prompt as [`evaluate`](ProviderAdapter::evaluate) does, for async hosts of any
    /// runtime. The future never blocks the executor. It occupies no thread while it waits for the
    /// provider, for another call, or for an [`AsyncTool`](foldlog::tools::AsyncTool). Long reads
    /// and syncs run on a pool of threads. Requests, answers and calls are recorded as by
    /// `evaluate`, so either variant can continue an evaluation of the other.
    ///
    /// The future owns its data, so a host may spawn it. It shares the adapter and the prompt, and
    /// owns a handle of the session, the resources and the functions of `options` until it ends or
    /// is dropped. Only after that is the session closed.
    ///
    /// Dropping the future gives up the evaluation at once. A request in flight is dropped; calls
    /// of tools are cancelled, rolled back, and closed as failed. The session remains usable, and a
    /// later evaluation continues at the end of the log. It first waits for threads that still work
    /// for the dropped one. A conversation that is not [recorded](EvaluateOptions::record) is lost.
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
            if let Some(operation) = session.calls().inside_operation() {
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
