//! Tools that are futures (feature `async`).
//!
//! While a thread polls the future, it is inside the call: a wait there for the call's own end is
//! refused.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use foldlog_codec::body::Idempotency;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smol_str::SmolStr;

use super::answer::{EncodedToolResult, ToolError, ToolResult};
use super::context::ToolContext;
use super::dynamic_tool::DynTool;
use super::interruption::InterruptedCall;
use super::tool::{parameters, schema_of};
use super::verify::CallVerification;
use crate::error::Error;
use crate::offload::{Alarm, BoxedFuture, wait_for};
use crate::session::wait::inside_call;
use crate::wakeups::Listener;

/// Future of a tool's encoded answer, or of its panic.
pub(in crate::tools) type ToolFuture = BoxedFuture<thread::Result<Result<EncodedToolResult, ToolError>>>;

/// Defines a tool as a future. All other members are the same as for a
/// [`Tool`](crate::tools::Tool).
///
/// [`execute_async`](crate::tools::ToolRunner::execute_async) polls the tool in the host's task, so
/// that the tool may use the host's runtime. If the call's deadline passes or the call is
/// cancelled, the tool is dropped at once and the call rolled back.
/// [`execute`](crate::tools::ToolRunner::execute) waits for the tool on its thread.
///
/// ```
/// use foldlog::tools::{AsyncTool, ToolContext, ToolError, ToolResult};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Page {
///     address: String,
/// }
///
/// struct Fetch;
///
/// impl AsyncTool for Fetch {
///     const NAME: &'static str = "fetch";
///     type Parameters = Page;
///     type Output = usize;
///
///     fn reads_only(&self) -> bool {
///         true
///     }
///
///     async fn call(&self, page: Page, _: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
///         let text = std::future::ready(page.address).await; // here: the host's own client
///         Ok(ToolResult::ok(text.clone(), text.len()))
///     }
/// }
/// ```
pub trait AsyncTool: Send + Sync + 'static {
    /// Name by which the model calls the tool. A [`ToolRegistry`](crate::tools::ToolRegistry)
    /// contains one tool of each name.
    const NAME: &'static str;
    /// Description of the tool for the model.
    const DESCRIPTION: &'static str = "";
    /// Parameters of the tool, see [`Tool::Parameters`](crate::tools::Tool::Parameters).
    type Parameters: DeserializeOwned + JsonSchema + Send;
    /// Value of the tool's answer.
    type Output: Serialize + Send;

    /// Returns whether a recovery may run an interrupted call of the tool again, see
    /// [`Tool::idempotency`](crate::tools::Tool::idempotency).
    fn idempotency(&self) -> Idempotency {
        Idempotency::Manual
    }

    /// Returns whether the tool changes neither STATE nor resources, see
    /// [`Tool::reads_only`](crate::tools::Tool::reads_only).
    fn reads_only(&self) -> bool {
        false
    }

    /// Returns whether the tool acts only outside, see
    /// [`Tool::outside_only`](crate::tools::Tool::outside_only).
    fn outside_only(&self) -> bool {
        false
    }

    /// Runs the tool with the parameters of one call. A future that blocks its thread, for example
    /// by a [`dispatch`](crate::Session::dispatch) that waits for the disk, blocks the host's
    /// executor; [`dispatch_async`](crate::Session::dispatch_async) does not.
    ///
    /// # Errors
    ///
    /// A [`ToolError`] if the tool has no answer: the call fails, its changes are rolled back, and
    /// the model sees the error's text. The engine catches panics and treats them as failures.
    fn call(
        &self,
        parameters: Self::Parameters,
        context: &ToolContext,
    ) -> impl Future<Output = Result<ToolResult<Self::Output>, ToolError>> + Send;

    /// Undoes the effects of an interrupted call outside of STATE and resources, see
    /// [`Tool::undo`](crate::tools::Tool::undo).
    ///
    /// # Errors
    ///
    /// A [`ToolError`] if the effects could not be undone; the next recovery tries again. The
    /// default implementation always fails with [`ToolError::Failed`].
    fn undo(
        &self,
        parameters: Self::Parameters,
        undone: &InterruptedCall,
        context: &ToolContext,
    ) -> impl Future<Output = Result<ToolResult<Self::Output>, ToolError>> + Send {
        let _ = (parameters, undone, context);
        async { Err(ToolError::failed(format!("`{}` has no way to undo what it did", Self::NAME))) }
    }

    /// Returns whether the tool can verify the effects of an interrupted call, see
    /// [`Tool::verifies`](crate::tools::Tool::verifies).
    fn verifies(&self) -> bool {
        self.idempotency() == Idempotency::Verify
    }

    /// Determines the effects of an interrupted call outside of STATE and resources, see
    /// [`Tool::verify`](crate::tools::Tool::verify).
    ///
    /// # Errors
    ///
    /// A [`ToolError`] if the query fails. The default implementation returns
    /// [`CallVerification::Unknown`].
    fn verify(
        &self,
        parameters: Self::Parameters,
        interrupted: &InterruptedCall,
        context: &ToolContext,
    ) -> impl Future<Output = Result<CallVerification<Self::Output>, ToolError>> + Send {
        let _ = (parameters, interrupted, context);
        async { Ok(CallVerification::Unknown) }
    }
}

impl DynTool {
    /// Erases the types of an [`AsyncTool`] for the registry.
    pub(super) fn of_async<T: AsyncTool>(tool: T) -> DynTool {
        let tool = Arc::new(tool);
        let (started, undoing, verifying) = (Arc::clone(&tool), Arc::clone(&tool), Arc::clone(&tool));
        let start = move |arguments: &str, context: &ToolContext| {
            let (tool, parameters, within) = (Arc::clone(&started), parameters(arguments), context.clone());
            inside(context, async move { tool.call(parameters?, &within).await?.encode(T::NAME) })
        };
        DynTool {
            description: T::DESCRIPTION.to_owned(),
            idempotency: tool.idempotency(),
            reads_only: tool.reads_only(),
            outside_only: tool.outside_only(),
            verifies: tool.verifies(),
            undo: Arc::new(move |undone, context| {
                let (tool, undone, within) = (Arc::clone(&undoing), undone.clone(), context.clone());
                let parameters = parameters(&undone.arguments);
                wait_for_answer(inside(context, async move {
                    tool.undo(parameters?, &undone, &within).await?.encode(T::NAME)
                }))
            }),
            verify: Arc::new(move |interrupted, context| {
                let (tool, call, within) = (Arc::clone(&verifying), interrupted.clone(), context.clone());
                let parameters = parameters(&call.arguments);
                wait_for_answer(inside(context, async move {
                    tool.verify(parameters?, &call, &within).await?.encode(T::NAME)
                }))
            }),
            ..DynTool::with_start(SmolStr::new_static(T::NAME), schema_of::<T::Parameters>(), Arc::new(start))
        }
    }
}

/// Wraps a tool's future so that it runs inside its call.
pub(super) fn inside(
    context: &ToolContext,
    answer: impl Future<Output = Result<EncodedToolResult, ToolError>> + Send + 'static,
) -> ToolFuture {
    Box::pin(InsideCall {
        context: context.clone(),
        future: Some(Box::pin(answer)),
        stopped: context.listen_for_stop(),
        late: context.deadline().map(Alarm::at),
    })
}

/// Blocks until the tool's answer, and propagates the tool's panic.
pub(super) fn wait_for_answer(answering: ToolFuture) -> Result<EncodedToolResult, ToolError> {
    match wait_for(answering) {
        Some(Ok(answer)) => answer,
        Some(Err(panic)) => resume_unwind(panic),
        None => Err(ToolError::Cancelled),
    }
}

/// Polls a tool inside its call. Completes early with the tool's panic, at its deadline, or when
/// the call is cancelled.
struct InsideCall {
    context: ToolContext,
    /// `None` once the future is dropped.
    future: Option<BoxedFuture<Result<EncodedToolResult, ToolError>>>,
    /// Futures that complete when the call should stop.
    stopped: Vec<Listener>,
    late: Option<Alarm>,
}

impl InsideCall {
    /// Returns the reason if the tool has to stop; otherwise registers the task to be woken then.
    fn must_stop(&mut self, waker: &mut Context<'_>) -> Option<ToolError> {
        if self.late.as_mut().is_some_and(|late| late.is_over(waker)) {
            let operation = Some(self.context.operation());
            return Some(ToolError::Engine(Error::DeadlineExceeded { operation }));
        }
        let heard = self.stopped.iter_mut().any(|one| Pin::new(one).poll(waker).is_ready());
        (heard || self.context.is_cancelled()).then_some(ToolError::Cancelled)
    }
}

impl Future for InsideCall {
    type Output = thread::Result<Result<EncodedToolResult, ToolError>>;

    fn poll(mut self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<Self::Output> {
        let InsideCall { context, future, .. } = &mut *self;
        let Some(running) = future else { return Poll::Pending };
        let poll = || inside_call(&context.session, || running.as_mut().poll(waker));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
            Ok(Poll::Pending) => match self.must_stop(waker) {
                Some(error) => Poll::Ready(Ok(Err(error))),
                None => Poll::Pending,
            },
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl Drop for InsideCall {
    fn drop(&mut self) {
        let future = self.future.take();
        let dropped = || inside_call(&self.context.session, || drop(future));
        // A panic while the tool is dropped cannot be reported.
        let _ = catch_unwind(AssertUnwindSafe(dropped));
    }
}
