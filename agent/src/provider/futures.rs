//! Providers whose requests are futures (feature `async`).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use blocking::unblock;
use event_listener::EventListener;

use super::{
    CancelState, CancelToken, Delta, PreparedRequest, Provider, ProviderAnswer, ProviderRequest, Result,
    SendOptions,
};

/// Sends requests to a model as futures, for example with the HTTP client of the host's own
/// runtime. Everything else is as with a [`Provider`].
///
/// ```
/// use foldlog_agent::provider::{
///     AsyncProvider, PreparedRequest, ProviderAnswer, ProviderError, ProviderRequest, SendOptions,
/// };
///
/// struct Model;
///
/// impl AsyncProvider for Model {
///     fn name(&self) -> &str {
///         "model"
///     }
///
///     fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
///         let last = request.messages.last().and_then(|last| last.content.clone()).unwrap_or_default();
///         let parameters = serde_json::json!({});
///         Ok(PreparedRequest { model: "model".to_owned(), parameters, body: last.into_bytes(), stream: false })
///     }
///
///     async fn send(
///         &self,
///         prepared: &PreparedRequest,
///         _: &mut SendOptions<'_>,
///     ) -> Result<ProviderAnswer, Box<ProviderError>> {
///         let reply = std::future::ready(prepared.body.clone()).await; // here: the host's own client
///         let content = Some(String::from_utf8_lossy(&reply).into_owned());
///         Ok(ProviderAnswer { content, ..ProviderAnswer::default() })
///     }
/// }
/// ```
pub trait AsyncProvider: Send + Sync {
    /// Returns the provider's name, for records and errors.
    fn name(&self) -> &str;

    /// Returns the provider's name in the [`RateLimiter`](super::retry::RateLimiter) of the
    /// process, as [`Provider::limited_as`] does.
    fn limited_as(&self) -> &str {
        self.name()
    }

    /// Builds the request's body. Sends nothing. It is called on a thread of a pool.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`](super::ProviderError) if this provider does not support the request.
    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest>;

    /// Sends a request once, and returns its complete answer. The caller decides about retries.
    ///
    /// The loop drops the future at the request's deadline, at a cancellation, or when its own
    /// future is dropped. So a provider gives up the request when it is dropped, and does not have
    /// to watch the deadline or the token. The loop itself reports that text is discarded.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`](super::ProviderError) if there is no complete answer.
    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> impl Future<Output = Result<ProviderAnswer>> + Send;
}

/// Adapts a blocking [`Provider`] to the async loop. Each request occupies a thread of a pool until
/// it ends. Giving up a request cancels its token; the thread continues until the provider notices
/// this.
#[derive(Debug)]
pub struct BlockingProvider<P>(Arc<P>);

impl<P: Provider + 'static> BlockingProvider<P> {
    /// Creates an async provider from a blocking one.
    pub fn new(provider: P) -> BlockingProvider<P> {
        BlockingProvider(Arc::new(provider))
    }

    /// Returns the blocking provider.
    pub fn provider(&self) -> &P {
        &self.0
    }
}

/// Cancels a token when it is dropped.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl<P: Provider + 'static> AsyncProvider for BlockingProvider<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limited_as(&self) -> &str {
        self.0.limited_as()
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest> {
        self.0.prepare(request)
    }

    async fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer> {
        let (provider, prepared) = (Arc::clone(&self.0), prepared.clone());
        let given_up = CancelOnDrop(options.cancel.child_token());
        let (deadline, cancel, is_heard) = (options.deadline, given_up.0.clone(), options.on_delta.is_some());
        let (tells, told) = async_channel::unbounded();
        let sent = unblock(move || {
            let mut tell = |delta: Delta<'_>| {
                let told = match delta {
                    Delta::Text(text) => Some(text.to_owned()),
                    Delta::Discarded => None,
                };
                // Without a receiver, the request was given up.
                let _ = tells.try_send(told);
            };
            let on_delta = is_heard.then_some(&mut tell as _);
            provider.send(&prepared, &mut SendOptions { deadline, cancel, on_delta })
        });
        // The thread closes the channel when the provider has returned.
        while let Ok(told) = told.recv().await {
            if let Some(on_delta) = &mut options.on_delta {
                on_delta(told.as_deref().map_or(Delta::Discarded, Delta::Text));
            }
        }
        sent.await
    }
}

impl CancelToken {
    /// Waits until the token is cancelled.
    pub async fn cancelled(&self) {
        loop {
            let mut told: Vec<EventListener> = self.chain().map(|token| token.0.futures.listen()).collect();
            if self.is_cancelled() {
                return;
            }
            poll_fn(|context| {
                let is_told = told.iter_mut().any(|one| Pin::new(one).poll(context).is_ready());
                if is_told { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// Creates a token that is cancelled by itself, or together with this one.
    fn child_token(&self) -> CancelToken {
        CancelToken(Arc::new(CancelState { around: Some(self.clone()), ..CancelState::default() }))
    }

    /// Returns the token and its ancestors.
    fn chain(&self) -> impl Iterator<Item = &CancelToken> {
        std::iter::successors(Some(self), |token| token.0.around.as_ref())
    }
}
