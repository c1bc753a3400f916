//! Conversations as futures. They write the same records as blocking ones, many of them share few
//! threads, and one that is dropped at any point leaves a session in which the next one continues.

mod dropped;
mod given_up;
mod laws;
mod many;
mod together;

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::story::{self, Line};
use foldlog::Idempotency;
use foldlog::tools::{AsyncTool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog_agent::provider::scripted::ScriptedProvider;
use foldlog_agent::provider::{
    AsyncProvider, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderRequest, SendOptions,
};
use foldlog_agent::{LoopLimits, ProviderAdapter};
use tokio::task::yield_now;

/// Longest time that a test waits for an immediate event.
const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("this should have happened at once")
}

/// Polls a future until another one completes, and then drops it.
async fn dropped_once<T: Debug>(future: impl Future<Output = T>, happened: impl Future<Output = ()>) {
    let (mut future, mut happened) = (Box::pin(future), pin!(soon(happened)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(ended) => panic!("{ended:?}"),
        Poll::Pending => happened.as_mut().poll(context),
    })
    .await;
}

fn single() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

fn two_workers() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Answers by a script after a yield, so that the future is polled before and after the answer.
struct Slow(ScriptedProvider);

impl AsyncProvider for Slow {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        self.0.prepare(request)
    }

    async fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        yield_now().await;
        let answer = self.0.send(prepared, options);
        yield_now().await;
        answer
    }
}

fn slow(provider: ScriptedProvider, limits: LoopLimits) -> Arc<ProviderAdapter<Slow>> {
    Arc::new(ProviderAdapter::new(Slow(provider)).with_limits(limits))
}

/// Adds a line, as a future.
struct Write;

impl AsyncTool for Write {
    const NAME: &'static str = "write";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    async fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        yield_now().await;
        let message = format!("added {}", line.text);
        context.session().dispatch_async(line).await?;
        yield_now().await;
        Ok(ToolResult::ok(message, ()))
    }
}

/// Looks at something, or calls an outside service, as a future that others of its kind may
/// overtake.
struct Beside<const OUTSIDE: bool>;

impl<const OUTSIDE: bool> AsyncTool for Beside<OUTSIDE> {
    const NAME: &'static str = if OUTSIDE { "fetch" } else { "read" };
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn reads_only(&self) -> bool {
        !OUTSIDE
    }

    fn outside_only(&self) -> bool {
        OUTSIDE
    }

    async fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        for _ in 0..line.text.len() % 3 {
            yield_now().await;
        }
        Ok(ToolResult::ok(format!("got {}", line.text), ()))
    }
}

/// Adds the `async` tools to others.
fn with_futures(tools: ToolRegistry) -> ToolRegistry {
    tools.with_async(Write).with_async(Beside::<false>).with_async(Beside::<true>)
}
