//! Evaluates prompts as futures, for async hosts (feature `async`).
//!
//! | blocking | variant for async hosts |
//! |---|---|
//! | [`ProviderAdapter::evaluate`], also to resume | [`ProviderAdapter::evaluate_async`] |
//! | [`Provider`](crate::provider::Provider) | [`AsyncProvider`], or the blocking one within [`BlockingProvider`](crate::provider::BlockingProvider) |
//! | [`MainLoop::execute`](crate::MainLoop::execute), [`resume_evaluation`](crate::checkpoint::resume_evaluation) | none: they open sessions and read checkpoints, where blocking is allowed. Recover with [`recover_async`](foldlog::tools::ToolRunner::recover_async), evaluate with `evaluate_async`, and save checkpoints with its `on_turn` |
//! | [`StatefulAdapter`](crate::adapter_state::StatefulAdapter), the adapter of the Claude Code program | none: each conversation needs a process and its threads; evaluate where blocking is allowed |
//! | [`Shortener`](crate::Shortener) | none: it is called on a thread of the pool |

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog::tools::ExecutionState;

use super::{EvaluateOptions, PromptResponse, ProviderAdapter, Timing, finish};
use crate::error::{Error, Result};
use crate::inner_loop::{AsyncEffects, detached_jobs, run};
use crate::prompt::Prompt;
use crate::provider::AsyncProvider;

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
    /// # use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// # let state = ExecutionState::new(session, ResourceRegistry::builder().build()?);
    /// # let provider = BlockingProvider::new(ScriptedProvider::new([ScriptedReply::text("Hello.")]));
    /// let adapter = Arc::new(ProviderAdapter::new(provider));
    /// let prompt = Prompt::text("demo", "greeting").with_section(MarkdownSection::new("task", "Greet."));
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let evaluation = adapter.evaluate_async(&Arc::new(prompt), &state, EvaluateOptions::default());
    /// assert_eq!(evaluation.await?.text, "Hello.");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn evaluate_async<O: Send + 'static>(
        self: &Arc<Self>,
        prompt: &Arc<Prompt<O>>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'static>,
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
            let (opening, asked) = (Arc::clone(&adapter), Arc::clone(&prompt));
            let open = move || (opening.begin(&asked, &state, &mut options), options);
            let (begun, options) = detached_jobs::on_thread(&session, open).await;
            let evaluation = match begun? {
                ControlFlow::Break(complete) => return Ok(complete),
                ControlFlow::Continue(evaluation) => evaluation,
            };
            let (closing, asked) = (Arc::clone(&adapter), Arc::clone(&prompt));
            let mut effects = AsyncEffects { adapter, prompt, on_turn: options.on_turn };
            let evaluation = run(&mut effects, evaluation, options.on_delta).await?;
            let close = move || finish(closing.provider.name(), &asked, *evaluation, timing);
            detached_jobs::on_thread(&session, close).await
        }
    }
}
