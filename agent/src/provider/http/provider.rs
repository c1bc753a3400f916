//! Providers that send JSON over HTTP: their common part, and the interface of each protocol.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use super::{Client, Reply, Timeouts};
use crate::pairing::MessageFormat;
use crate::provider::parameters::Parameters;
use crate::provider::{
    ApiKey, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderRequest, SendOptions,
};

/// Defines a protocol between a provider's server and its clients. A new provider implements it in
/// its own directory.
pub trait Dialect: fmt::Debug + Send + Sync + Sized {
    /// Default name of the provider.
    const NAME: &'static str;
    /// Path of requests below the base URL.
    const PATH: &'static str;
    /// Format of the messages, and its rules.
    const MESSAGE_FORMAT: MessageFormat;

    /// Sets the headers of each request, and returns the variant of the protocol for the client's
    /// host.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// key cannot be a header.
    fn of_client(client: &mut Client) -> Result<Self, Box<ProviderError>>;

    /// Adds the parameters that a request's configuration sets.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// protocol lacks one of them.
    fn set_parameters(
        &self,
        request: &ProviderRequest<'_>,
        parameters: &mut Parameters,
    ) -> Result<(), Box<ProviderError>>;

    /// Adds messages and tools.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if they
    /// cannot be encoded as JSON.
    fn add_parts(
        &self,
        request: &ProviderRequest<'_>,
        parameters: &mut Parameters,
    ) -> Result<(), Box<ProviderError>>;

    /// Returns the body to send for the body of a prepared request.
    fn sent_body<'a>(&self, prepared: &'a [u8]) -> Cow<'a, [u8]> {
        Cow::Borrowed(prepared)
    }

    /// Parses an answer that arrived in one piece.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`] if the server refused the request, or if its reply is invalid.
    fn read_answer(reply: &Reply<'_>, body: &[u8]) -> Result<ProviderAnswer, Box<ProviderError>>;

    /// Reads an answer that arrives in pieces.
    ///
    /// # Errors
    ///
    /// Those of [`read_answer`](Dialect::read_answer), and an error if the stream broke.
    fn read_stream(
        reply: &mut Reply<'_>,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>>;
}

/// Sends requests to one model over HTTP, in the protocol `D`. Each request opens a new connection.
#[derive(Debug)]
pub struct HttpProvider<D> {
    client: Client,
    model: String,
    name: String,
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
    pub fn new(
        base_url: &str,
        key: Option<ApiKey>,
        model: impl Into<String>,
    ) -> Result<HttpProvider<D>, Box<ProviderError>> {
        let mut client = Client::new(D::NAME, base_url, D::PATH, key)?;
        let dialect = D::of_client(&mut client)?;
        let (model, name) = (model.into(), D::NAME.to_owned());
        Ok(HttpProvider { client, model, name, chosen: Vec::new(), dialect })
    }

    /// Sets the provider's name. The default is that of the protocol.
    pub fn with_name(mut self, name: impl Into<String>) -> HttpProvider<D> {
        self.name = name.into();
        self
    }

    /// Limits the duration of the phases of a request.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> HttpProvider<D> {
        self.client.set_timeouts(timeouts);
        self
    }

    /// Sends requests through a proxy, such as `http://host:port`. Proxies from the environment are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// URL cannot be used.
    pub fn with_proxy(mut self, url: &str) -> Result<HttpProvider<D>, Box<ProviderError>> {
        self.client.set_proxy(url)?;
        Ok(self)
    }

    /// Adds a header to each request, such as `anthropic-beta`. Its value is neither shown nor
    /// recorded.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if it is
    /// not a valid header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<HttpProvider<D>, Box<ProviderError>> {
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
        &self.name
    }

    fn limited_as(&self) -> &str {
        self.client.limited_as()
    }

    fn message_format(&self) -> MessageFormat {
        D::MESSAGE_FORMAT
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        let mut parameters = Parameters::default();
        self.dialect.set_parameters(request, &mut parameters)?;
        parameters.extend(&self.chosen);
        self.dialect.add_parts(request, &mut parameters)?;
        parameters.prepare(&self.model, request.config.stream)
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        let body = self.dialect.sent_body(&prepared.body);
        let accept = if prepared.stream { "text/event-stream" } else { "application/json" };
        let mut reply = self.client.post(&body, accept, options)?;
        if prepared.stream && reply.is_stream() {
            return D::read_stream(&mut reply, options);
        }
        let body = reply.read_all()?;
        D::read_answer(&reply, &body)
    }
}
