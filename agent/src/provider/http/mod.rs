//! Sends one request over HTTP, and reads its reply in pieces.
//!
//! # Invariants
//!
//! 1. A request goes only to the configured host. A redirect is an error that names the other host.
//! 2. The key is sent in one header, which is marked as sensitive. The contents of a reply are
//!    shown without the key.
//! 3. A reply takes no more memory than [`BODY_BYTES_MAX`], its headers no more than
//!    [`HEADER_BYTES_MAX`]. Sizes claimed in headers cause no allocation.
//! 4. JSON of a reply is parsed only if it has at most [`VALUES_MAX`](crate::json_size::VALUES_MAX)
//!    values. In a stream the limit applies to the values in memory from all its events.
//! 5. A deadline ends every phase of a request. A cancellation shuts down the connection within
//!    [`POLL`]; during name resolution and connecting, it takes effect once that phase ends.

mod api_key;
mod failure;
mod merge;
mod parameters;
mod provider;
mod reply;
mod sse;
mod watch;

use std::fmt;
use std::time::{Duration, Instant};

pub use api_key::ApiKey;
use foldlog::escape;
#[cfg(feature = "openai")]
pub(super) use merge::merge_fields;
#[cfg(feature = "anthropic")]
pub(super) use merge::{count, merge};
pub(super) use parameters::{Parameters, names};
pub use provider::HttpProvider;
pub(super) use provider::{Dialect, StreamedAnswer};
pub(super) use reply::Reply;
use ureq::http::{HeaderName, HeaderValue, Uri};
use ureq::{Agent, Proxy};

use self::watch::Watch;
use super::{ProviderError, ProviderErrorKind, Result, SendOptions};

/// Longest body of a reply, in bytes.
const BODY_BYTES_MAX: u64 = 64 << 20;
/// Longest headers of a reply, in bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Number of bytes that are read from the body of a failure.
const FAILURE_BYTES_MAX: u64 = 1 << 20;
/// Longest time until a cancellation is noticed.
const POLL: Duration = Duration::from_millis(20);

/// Limits the duration of the phases of a request, in addition to deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit for resolving the host's name, and for connecting.
    pub connect: Duration,
    /// Longest time without any data. An answer that is not streamed arrives only after the model
    /// has finished it.
    pub silence: Duration,
    /// Limit for the whole request.
    pub total: Duration,
}

impl Default for Timeouts {
    /// Returns limits of 10 seconds to connect, 5 minutes of silence, and 20 minutes in total.
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(300),
            total: Duration::from_secs(1200),
        }
    }
}

/// Sends requests to one address of one provider.
pub struct Client {
    provider: &'static str,
    uri: Uri,
    /// Host, with its port if the URL names one.
    pub(super) host: String,
    /// Name for the rate limiter, which identifies the provider's address and key. It contains a
    /// digest of the key.
    limited_as: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Values of headers that must not appear in any output.
    secrets: Vec<ApiKey>,
    key: Option<ApiKey>,
    timeouts: Timeouts,
    proxy: Option<Proxy>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("host", &self.host).field("key", &self.key).finish_non_exhaustive()
    }
}

/// Shortest header value that may be a secret, in bytes. It is longer than the version numbers that
/// some APIs require.
const SECRET_BYTES_MIN: usize = 12;

pub(super) fn unsupported_error(message: impl Into<String>) -> Box<ProviderError> {
    Box::new(ProviderError::new(ProviderErrorKind::Unsupported, message))
}

impl Client {
    /// Creates a client for `path` below the base URL. The URL's query is preserved.
    pub(super) fn new(provider: &'static str, base: &str, path: &str, key: Option<ApiKey>) -> Result<Client> {
        let (address, query) = base.split_once('?').map_or((base, None), |(base, query)| (base, Some(query)));
        let address = address.trim_end_matches('/');
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let wrong = || {
            unsupported_error(format!(
                "the base URL of {provider} is not a URL that begins with http:// or https://"
            ))
        };
        let uri: Uri = format!("{address}{path}{query}").parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong());
        }
        if authority.as_str().contains('@') {
            let message = format!("the base URL of {provider} contains a user name: use an API key instead");
            return Err(unsupported_error(message));
        }
        let host = authority.as_str().to_owned();
        let digest = blake3::hash(key.as_ref().map_or("", ApiKey::expose).as_bytes()).to_hex();
        let limited_as = format!("{provider} {host} {digest}");
        let (headers, secrets, timeouts, proxy) = (Vec::new(), Vec::new(), Timeouts::default(), None);
        Ok(Client { provider, uri, host, limited_as, headers, secrets, key, timeouts, proxy })
    }

    /// Adds a header. Its value is removed from all failure messages, unless it is too short to be
    /// a secret.
    pub(super) fn add_header(&mut self, name: &str, value: &str) -> Result<()> {
        let wrong = || {
            unsupported_error(format!(
                "`{}` is not a valid name of a header, or its value is not valid",
                escape::text(name)
            ))
        };
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        if value.len() >= SECRET_BYTES_MIN
            && let Ok(secret) = ApiKey::new(value)
        {
            self.secrets.push(secret);
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        self.headers.push((name, value));
        Ok(())
    }

    /// Sets the header with the key, which follows a prefix.
    pub(super) fn set_key_header(&mut self, name: &str, prefix: &str) -> Result<()> {
        match self.key.clone() {
            Some(key) => self.add_header(name, &format!("{prefix}{}", key.expose())),
            None => Ok(()),
        }
    }

    /// Returns a text from outside in a form that can be shown and recorded: without the key,
    /// escaped, and of limited length.
    pub(super) fn sanitize(&self, text: &str) -> String {
        const CHARS_MAX: usize = 500;
        let text = self.hide_secrets(text);
        let mut shown = escape::text(&text).into_owned();
        if let Some((end, _)) = shown.char_indices().nth(CHARS_MAX) {
            shown.truncate(end);
            shown.push('…');
        }
        shown
    }

    /// Returns a text from outside without the key and the values of headers.
    fn hide_secrets(&self, text: &str) -> String {
        let secrets = self.key.iter().chain(&self.secrets);
        secrets.fold(text.to_owned(), |text, secret| secret.hide(&text).into_owned())
    }

    /// Sends a body, and returns the reply once its headers announce an answer.
    pub(super) fn post(&self, body: &[u8], accept: &str, options: &SendOptions<'_>) -> Result<Reply<'_>> {
        let bounds = Bounds { cancel: options.cancel.clone(), deadline: options.deadline };
        if let Some(kind) = bounds.give_up_reason() {
            return Err(Box::new(ProviderError::new(
                kind,
                "nothing was sent: the request was given up before",
            )));
        }
        let agent = self.agent(&bounds);
        let watch = Watch::start(agent.clone(), options.cancel.clone()).map_err(|error| {
            unsupported_error(format!("no thread for the request: {}", escape::display(error)))
        })?;
        let mut request = agent.post(&self.uri).content_type("application/json").header("accept", accept);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = request.send(body).map_err(|error| self.unsent(error, &bounds))?;
        let reply = Reply::new(self, bounds, response, watch);
        match reply.status {
            200..=299 => Ok(reply),
            300..=399 => Err(reply.redirect_error(&self.uri)),
            _ => Err(reply.into_failure()),
        }
    }

    fn agent(&self, bounds: &Bounds) -> Agent {
        let left = bounds.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(HEADER_BYTES_MAX)
            .max_idle_connections(0)
            .user_agent(concat!("foldlog/", env!("CARGO_PKG_VERSION")))
            .proxy(self.proxy.clone())
            .timeout_resolve(Some(self.timeouts.connect))
            .timeout_connect(Some(self.timeouts.connect))
            .timeout_per_read(Some(self.timeouts.silence))
            .timeout_per_write(Some(self.timeouts.silence))
            .timeout_per_call(Some(self.timeouts.total))
            .timeout_global(left);
        config.build().into()
    }

    /// Reports a request that got no reply.
    fn unsent(&self, error: ureq::Error, bounds: &Bounds) -> Box<ProviderError> {
        let (kind, what) = failure::of_transport(&error, bounds);
        let cause = self.sanitize(&error.to_string());
        let message = format!("{} at {}: {what} ({cause})", self.provider, escape::text(&self.host));
        Box::new(ProviderError::new(kind, message))
    }
}

/// Contains the conditions that end a request early.
pub(super) struct Bounds {
    cancel: super::CancelToken,
    deadline: Option<Instant>,
}

impl Bounds {
    /// Returns the reason to give up the request, if there is one.
    fn give_up_reason(&self) -> Option<ProviderErrorKind> {
        if self.cancel.is_cancelled() {
            return Some(ProviderErrorKind::Cancelled);
        }
        let passed = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        passed.then_some(ProviderErrorKind::Deadline)
    }
}
