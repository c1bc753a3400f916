//! Reads a reply within its limits.

use std::io::{self, Read};

use foldlog::conversation::TokenUsage;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Body, BodyReader};

use super::sse::Events;
use super::watch::Watch;
use super::{BODY_BYTES_MAX, Bounds, Client, FAILURE_BYTES_MAX, failure};
use crate::json_size::{self, VALUES_MAX};
use crate::provider::{ProviderError, ProviderErrorKind, Result};

/// Prefixes of the headers that state rate limits.
const RATE_LIMITS: [&str; 4] = ["x-ratelimit-", "anthropic-ratelimit-", "ratelimit", "retry-after"];
/// Greatest number of such headers that are stored.
const RATE_LIMITS_MAX: usize = 32;

/// Contains a reply whose body is read in pieces.
pub struct Reply<'c> {
    pub(in crate::provider) client: &'c Client,
    bounds: Bounds,
    pub(in crate::provider) status: u16,
    headers: HeaderMap,
    body: BodyReader<'static>,
    read: u64,
    _watch: Watch,
}

impl<'c> Reply<'c> {
    pub(super) fn new(
        client: &'c Client,
        bounds: Bounds,
        response: Response<Body>,
        watch: Watch,
    ) -> Reply<'c> {
        let (head, body) = response.into_parts();
        // The limit is counted here, because the reader could not distinguish an exceeded limit
        // from the end.
        let body = body.into_with_config().limit(u64::MAX).reader();
        let (status, headers) = (head.status.as_u16(), head.headers);
        Reply { client, bounds, status, headers, body, read: 0, _watch: watch }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns whether the body is a stream of events. Some servers return one JSON value although
    /// a stream was requested.
    pub(super) fn is_stream(&self) -> bool {
        !self.header("content-type").is_some_and(|kind| kind.trim_start().starts_with("application/json"))
    }

    /// Returns the id that the provider assigned to the request.
    pub(super) fn request_id(&self) -> Option<String> {
        let id = self.header("request-id").or_else(|| self.header("x-request-id"))?;
        Some(self.client.hide_secrets(id.get(..id.len().min(256)).unwrap_or_default()))
    }

    /// Returns the headers that state rate limits.
    pub(super) fn rate_limits(&self) -> Vec<(String, String)> {
        let known = self
            .headers
            .iter()
            .filter(|(name, _)| RATE_LIMITS.iter().any(|beginning| name.as_str().starts_with(beginning)));
        let texts = known.filter_map(|(name, value)| {
            let value = value.to_str().ok().filter(|value| value.len() <= 256)?;
            Some((name.as_str().to_owned(), self.client.hide_secrets(value)))
        });
        texts.take(RATE_LIMITS_MAX).collect()
    }

    /// Reads the next piece into a buffer, and returns its length: 0 at the end of the body.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if let Some(kind) = self.bounds.give_up_reason() {
            return Err(self.error(kind, "the request was given up"));
        }
        let count = self.body.read(buffer).map_err(|error| self.broken(error))?;
        self.read = self.read.saturating_add(count as u64);
        if self.read > BODY_BYTES_MAX {
            let message = format!("the reply is longer than {} MiB", BODY_BYTES_MAX >> 20);
            return Err(self.error(ProviderErrorKind::InvalidAnswer, message));
        }
        match self.bounds.give_up_reason().filter(|_| count == 0) {
            Some(kind) => Err(self.error(kind, "the request was given up")),
            None => Ok(count),
        }
    }

    pub(super) fn read_all(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(body),
                count => body.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            }
        }
    }

    /// Reads the body as a stream of events, and passes the data of each to `take`, until that
    /// returns that the answer is complete.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Cut`] if the body ends before; those of reading, and of `take`.
    pub(super) fn each_event(&mut self, mut take: impl FnMut(&str, &Self) -> Result<bool>) -> Result<()> {
        let (mut events, mut buffer, mut is_complete) = (Events::default(), vec![0; 16 << 10], false);
        while !is_complete {
            let count = self.read(&mut buffer)?;
            if count == 0 {
                let message = "the stream ended before the answer was complete";
                return Err(self.error(ProviderErrorKind::Cut, message));
            }
            let bytes = buffer.get(..count).unwrap_or_default();
            events.push(bytes, |data| {
                if is_complete {
                    return Ok(());
                }
                self.check_values(json_size::is_moderate(data.as_bytes()))?;
                take(&data, self).map(|complete| is_complete = complete)
            })?;
        }
        Ok(())
    }

    /// Checks that received JSON takes little more memory than its text.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::InvalidAnswer`] if it has too many values.
    pub(super) fn check_values(&self, is_moderate: bool) -> Result<()> {
        if is_moderate {
            return Ok(());
        }
        let message = format!("the reply holds more than {VALUES_MAX} JSON values");
        Err(self.error(ProviderErrorKind::InvalidAnswer, message))
    }

    fn broken(&self, error: io::Error) -> Box<ProviderError> {
        let error = ureq::Error::from(error);
        let (kind, what) = failure::of_transport(&error, &self.bounds);
        let message = format!("{what} ({})", self.client.sanitize(&error.to_string()));
        self.error(kind, message)
    }

    /// Creates an error with the details of the reply.
    pub(in crate::provider) fn error(
        &self,
        kind: ProviderErrorKind,
        message: impl Into<String>,
    ) -> Box<ProviderError> {
        let message = message.into();
        let mut error = ProviderError::new(kind, format!("{}: {message}", self.client.provider));
        error.status = Some(self.status);
        error.request_id = self.request_id();
        error.rate_limits = self.rate_limits();
        Box::new(error)
    }

    /// Creates an error of a stream that had started, with the received text and the usage.
    pub(in crate::provider) fn error_after(
        &self,
        mut error: Box<ProviderError>,
        arrived: &str,
        usage: Option<TokenUsage>,
    ) -> Box<ProviderError> {
        error.arrived = (!arrived.is_empty()).then(|| self.client.hide_secrets(arrived));
        error.usage = usage;
        error
    }

    /// Creates an error from the error body of a provider, in a reply or in the middle of a stream.
    pub(in crate::provider) fn refusal_error(
        &self,
        status: u16,
        body: &serde_json::Value,
    ) -> Box<ProviderError> {
        let (kind, message) = failure::classify(self, status, body);
        let said = message.map_or_else(|| format!("status {status}"), |text| self.client.sanitize(text));
        self.error(kind, said)
    }

    /// Returns an error body as it can be recorded.
    pub(super) fn payload(&self, body: &serde_json::Value) -> Option<serde_json::Value> {
        const BYTES_MAX: usize = 16 << 10;
        let text = self.client.hide_secrets(&body.to_string());
        (text.len() <= BYTES_MAX && !body.is_null()).then(|| serde_json::from_str(&text).ok()).flatten()
    }

    /// Reports a redirect, which is not followed.
    pub(super) fn redirect_error(&self, own: &Uri) -> Box<ProviderError> {
        let location = self.header("location").unwrap_or_default();
        let target: Option<Uri> = location.parse().ok();
        let host = target.as_ref().and_then(Uri::host).or_else(|| own.host()).unwrap_or_default();
        let message = format!(
            "the server redirects to {}, where nothing was sent: set the base URL to where the provider is",
            self.client.sanitize(host)
        );
        self.error(ProviderErrorKind::InvalidAnswer, message)
    }

    /// Reads the body of a failure, as far as it arrives, and reports the failure.
    pub(super) fn into_failure(mut self) -> Box<ProviderError> {
        let mut body = Vec::new();
        let limited = (&mut self.body).take(FAILURE_BYTES_MAX).read_to_end(&mut body);
        if let Some(kind) = self.bounds.give_up_reason().filter(|_| limited.is_err()) {
            return self.error(kind, "the request was given up");
        }
        self.refusal_error(self.status, &serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Reports a body that is not valid JSON.
    pub(in crate::provider) fn not_json(&self, error: &serde_json::Error) -> Box<ProviderError> {
        let kind = if error.is_eof() && self.read > 0 {
            ProviderErrorKind::Cut
        } else {
            ProviderErrorKind::InvalidAnswer
        };
        self.error(
            kind,
            format!("the reply is no complete JSON: {}", self.client.sanitize(&error.to_string())),
        )
    }

    /// Reports an event whose data is not valid JSON.
    pub(in crate::provider) fn not_json_event(&self, error: &serde_json::Error) -> Box<ProviderError> {
        let message = format!(
            "an event of the stream is no JSON as expected: {}",
            self.client.sanitize(&error.to_string())
        );
        self.error(ProviderErrorKind::InvalidAnswer, message)
    }
}
