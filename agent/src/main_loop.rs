//! The loop over requests: a session and a prompt for each, and a checkpoint until it succeeds.
//!
//! # Life of a checkpoint
//!
//! 1. [`MainLoop::execute`] loads the request's checkpoint. If there is one, its session is opened,
//!    its conversation is checked against the prompt, and open calls are recovered within the
//!    request's deadline. The work then continues at the end of the session's log. If one of these
//!    steps fails, the request fails, and no other session is created in its place.
//! 2. If there is none, a session is created. Its checkpoint is saved before the first request to
//!    the provider, so that a process that ends within the first turn leaves a session that can be
//!    found.
//! 3. The checkpoint is saved again after each turn.
//! 4. It is removed when the request succeeds, and only then.

use foldlog::Session;
use foldlog::tools::ExecutionState;
use uuid::Uuid;

use crate::adapter::{EvaluateOptions, PromptResponse, ProviderAdapter, check_prompt};
use crate::checkpoint::{Checkpoint, CheckpointHandler, recover_calls};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::prompt::Prompt;
use crate::provider::Provider;

/// Executes a host's requests, each in its own session. The host supplies the session, prompt and
/// provider of a request. [`execute`](MainLoop::execute) does the rest, and continues a request
/// that another process left unfinished.
pub trait MainLoop {
    /// A request of the host.
    type Request: Sync;
    /// Output of a request.
    type Output;
    /// Provider of the model.
    type Provider: Provider;

    /// Returns the adapter that evaluates prompts.
    fn adapter(&self) -> &ProviderAdapter<Self::Provider>;

    /// Creates the session of a new request, with the resources of its tools.
    ///
    /// # Errors
    ///
    /// Any error that prevents it, such as [`Error::Engine`](crate::Error::Engine).
    fn create_session(&self, request: &Self::Request) -> Result<ExecutionState>;

    /// Opens the session of a request that another process left unfinished, with the resources of
    /// its tools.
    ///
    /// # Errors
    ///
    /// Any error that prevents it, such as [`Error::Engine`](crate::Error::Engine).
    fn open_session(&self, request: &Self::Request, session: Uuid) -> Result<ExecutionState>;

    /// Creates the prompt of a request.
    ///
    /// # Errors
    ///
    /// Any error that prevents it, such as [`Error::Prompt`](crate::Error::Prompt).
    fn create_prompt(&self, request: &Self::Request) -> Result<Prompt<Self::Output>>;

    /// Returns the handler of the checkpoints. By default there is none, and a repeated request
    /// starts from the beginning.
    fn checkpoints(&self) -> Option<&dyn CheckpointHandler<Self::Request>> {
        None
    }

    /// Returns the options with which a request's prompt is evaluated. The loop itself sets the
    /// evaluation's id and `on_turn`.
    fn options(&self, request: &Self::Request) -> EvaluateOptions<'_> {
        let _ = request;
        EvaluateOptions::default()
    }

    /// Executes a request, or continues it where another process stopped.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotRestore`](crate::Error::SnapshotRestore) if the request's checkpoint cannot
    /// be read or belongs to another session; the errors of creating or opening the session, of
    /// creating the prompt, of recovering open calls, and of [`ProviderAdapter::evaluate`]. The
    /// checkpoint remains after each of them.
    fn execute(&self, request: &Self::Request) -> Result<PromptResponse<Self::Output>> {
        self.request(request, Deadline::never())
    }

    /// Executes a request as [`execute`](MainLoop::execute) does, and gives up at `deadline` or at
    /// the deadline of [`options`](MainLoop::options), whichever is earlier. The request can then
    /// be executed again, and continues.
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if the deadline passed; else
    /// those of [`execute`](MainLoop::execute).
    fn request(&self, request: &Self::Request, deadline: Deadline) -> Result<PromptResponse<Self::Output>> {
        let checkpoints = self.checkpoints();
        let save = |session: &Session| {
            let Some(checkpoints) = checkpoints else { return Ok(()) };
            checkpoints.save(request, &Checkpoint::from_session(session, checkpoints.wants_snapshots())?)
        };
        let found = checkpoints.map_or(Ok(None), |checkpoints| checkpoints.load(request))?;
        let prompt = self.create_prompt(request)?;
        let own = self.options(request);
        let deadline = own.deadline.earlier(deadline);
        let state = match found {
            Some(checkpoint) => {
                let state = self.open_session(request, checkpoint.session)?;
                let session = state.session();
                checkpoint.check(session)?;
                let conversation = session.conversation().read(&session.id().to_string())?;
                check_prompt(conversation.as_ref(), &prompt.identity(), own.accept_prompt.is_some())?;
                recover_calls(&state, &prompt, deadline, &own.cancel)?;
                state
            }
            None => {
                let state = self.create_session(request)?;
                save(state.session())?;
                state
            }
        };
        let options = EvaluateOptions {
            evaluation_id: Some(state.session().id().to_string()),
            deadline,
            on_turn: Some(Box::new(save)),
            ..own
        };
        let response = self.adapter().evaluate(&prompt, &state, options)?;
        checkpoints.map_or(Ok(()), |checkpoints| checkpoints.clear(request))?;
        Ok(response)
    }
}
