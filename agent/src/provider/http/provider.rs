//! Providers that send JSON over HTTP: their common part, and the interface of each protocol.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use foldlog::conversation::TokenUsage;
use ureq::Proxy;

use super::parameters::Parameters;
use super::{ApiKey, Client, Reply, Timeouts, unsupported_error};
use crate::json_size::{self, VALUES_MAX};
use crate::provider::{
    Delta, PreparedRequest, Provider, ProviderAnswer, ProviderRequest, Result, SendOptions,
};

/// Defines a protocol between a provider's server and its clients. A new provider implements it in
/// its own directory.
pub trait Dialect: fmt::Debug + Send + Sync + Sized {
    /// Name of the provider.
    const NAME: &'static str;
    /// Path of requests below the base URL.
    const PATH: &'static str;
    /// Collects an answer that arrives in pieces.
    type Stream: StreamedAnswer;

    /// Sets the headers of each request, and returns the variant of the protocol for the client's
    /// host.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// key cannot be a header.
    fn of_client(client: &mut Client) -> Result<Self>;

    /// Adds the parameters that a request's configuration sets, its messages and its tools.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// protocol lacks one of the parameters.
    fn write_request(&self, request: &ProviderRequest<'_>, parameters: &mut Parameters) -> Result<()>;

    /// Returns the body to send for the body of a prepared request.
    fn sent_body<'a>(&self, prepared: &'a [u8]) -> Cow<'a, [u8]> {
        Cow::Borrowed(prepared)
    }

    /// Parses an answer that arrived in one piece.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`](crate::provider::ProviderError) if the server refused the request, or if
    /// its reply is invalid.
    fn read_answer(reply: &Reply<'_>, body: &[u8]) -> Result<ProviderAnswer>;
}

/// Collects the pieces of an answer. The default has none.
pub trait StreamedAnswer: Default {
    /// Takes the data of an event, and shows its text. Returns whether the answer is complete.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`](crate::provider::ProviderError) if the server reports a failure, or if the
    /// event is invalid.
    fn take(&mut self, data: &str, reply: &Reply<'_>, show: &mut dyn FnMut(&str)) -> Result<bool>;

    /// Returns the text so far.
    fn text(&self) -> String;

    /// Returns the usage reported so far.
    fn usage(&self) -> Option<TokenUsage>;

    /// Returns the number of JSON values in memory.
    fn kept(&self) -> usize;

    /// Assembles the complete answer.
    fn finish(self, reply: &Reply<'_>) -> Result<ProviderAnswer>;
}

/// Reads an answer that arrives in pieces, and shows its text.
fn read_stream<S: StreamedAnswer>(
    reply: &mut Reply<'_>,
    options: &mut SendOptions<'_>,
) -> Result<ProviderAnswer> {
    let (mut arrived, mut is_shown) = (S::default(), false);
    let mut show = |text: &str| {
        if let Some(on_delta) = options.on_delta.as_mut().filter(|_| !text.is_empty()) {
            is_shown = true;
            on_delta(Delta::Text(text));
        }
    };
    let outcome = reply.each_event(|data, reply| {
        let is_complete = arrived.take(data, reply, &mut show)?;
        reply.check_values(arrived.kept() <= VALUES_MAX)?;
        Ok(is_complete)
    });
    let (text, usage) = (arrived.text(), arrived.usage());
    outcome.and_then(|()| arrived.finish(reply)).map_err(|error| {
        options.discard(is_shown);
        let usage = error.usage.or(usage);
        reply.error_after(error, &text, usage)
    })
}

/// Sends requests to one model over HTTP, in the protocol `D`. Each request opens a new connection.
#[derive(Debug)]
pub struct HttpProvider<D> {
    client: Client,
    model: String,
    chosen: Vec<(String, Value)>,
    pub(in crate::provider) dialect: D,
}

impl<D: Dialect> HttpProvider<D> {
    /// Creates a provider from a base URL. The path of the protocol is appended to it.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// URL cannot be used.
    pub fn new(base_url: &str, key: Option<ApiKey>, model: impl Into<String>) -> Result<HttpProvider<D>> {
        let mut client = Client::new(D::NAME, base_url, D::PATH, key)?;
        let dialect = D::of_client(&mut client)?;
        Ok(HttpProvider { client, model: model.into(), chosen: Vec::new(), dialect })
    }

    /// Limits the duration of the phases of a request.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> HttpProvider<D> {
        self.client.timeouts = timeouts;
        self
    }

    /// Sends requests through a proxy, such as `http://host:port`. Proxies from the environment are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// URL cannot be used.
    pub fn with_proxy(mut self, url: &str) -> Result<HttpProvider<D>> {
        let wrong = |_| unsupported_error("the proxy is not a URL such as http://host:port");
        self.client.proxy = Some(Proxy::new(url).map_err(wrong)?);
        Ok(self)
    }

    /// Adds a header to each request, such as `anthropic-beta`. Its value is neither shown nor
    /// recorded.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if it is
    /// not a valid header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<HttpProvider<D>> {
        self.client.add_header(name, value)?;
        Ok(self)
    }

    /// Sets a parameter of each request by its name, such as `reasoning_effort` or `thinking`. It
    /// is recorded, and replaces one that the configuration of a request sets.
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<Value>) -> HttpProvider<D> {
        self.chosen.push((name.into(), value.into()));
        self
    }
}

impl<D: Dialect> Provider for HttpProvider<D> {
    fn name(&self) -> &str {
        D::NAME
    }

    fn limited_as(&self) -> &str {
        &self.client.limited_as
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest> {
        let mut parameters = Parameters::default();
        self.dialect.write_request(request, &mut parameters)?;
        parameters.extend(&self.chosen);
        parameters.prepare(&self.model, request.config.stream)
    }

    fn send(&self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> Result<ProviderAnswer> {
        let body = self.dialect.sent_body(&prepared.body);
        let accept = if prepared.stream { "text/event-stream" } else { "application/json" };
        let mut reply = self.client.post(&body, accept, options)?;
        let answer = if prepared.stream && reply.is_stream() {
            read_stream::<D::Stream>(&mut reply, options)?
        } else {
            let body = reply.read_all()?;
            reply.check_values(json_size::is_moderate(&body))?;
            D::read_answer(&reply, &body)?
        };
        let (request_id, rate_limits) = (reply.request_id(), reply.rate_limits());
        Ok(ProviderAnswer { request_id, rate_limits, ..answer })
    }
}
