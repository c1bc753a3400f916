//! Classifies failures by a status, by the provider's error body, or by the error of the
//! connection.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use serde_json::Value;
use ureq::{Error, Timeout};

use super::{Bounds, Reply};
use crate::provider::{ProviderErrorKind, ThrottleDetails, ThrottleKind};

/// Classifies a failure by its status and by the error in a body, in the forms that are in use.
/// Returns also the error's message.
pub(super) fn classify<'a>(
    reply: &Reply<'_>,
    status: u16,
    body: &'a Value,
) -> (ProviderErrorKind, Option<&'a str>) {
    let error = body.get("error").unwrap_or(body);
    let text = |name: &str| error.get(name).and_then(Value::as_str);
    let said = text("message").or_else(|| error.as_str()).or_else(|| body.get("detail")?.as_str());
    // Some providers send a status in the middle of a stream, in addition to that of the reply.
    let own = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let status = own.filter(|code| (400..600).contains(code)).unwrap_or(status);
    let throttle = |kind| {
        let (retry_after, provider_payload) = (retry_after(reply), reply.payload(body));
        let details = ThrottleDetails::new(kind);
        ProviderErrorKind::Throttled(ThrottleDetails { retry_after, provider_payload, ..details })
    };
    let message = said.unwrap_or_default().to_ascii_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    let kind = match (status, text("type").unwrap_or_default(), text("code").unwrap_or_default()) {
        (_, _, "insufficient_quota") | (_, "insufficient_quota" | "billing_error", _) | (402, _, _) => {
            throttle(ThrottleKind::QuotaExhausted)
        }
        (_, "rate_limit_error", _) | (429, _, _) => throttle(ThrottleKind::RateLimit),
        (_, "overloaded_error" | "api_error" | "server_error", _) => throttle(ThrottleKind::Overloaded),
        (_, "timeout_error", _) | (408 | 504, _, _) => throttle(ThrottleKind::Timeout),
        (409 | 425, _, _) => throttle(ThrottleKind::Unknown),
        (500.., _, _) => throttle(ThrottleKind::Overloaded),
        (401 | 403, _, _) | (_, "authentication_error" | "permission_error", _) => {
            ProviderErrorKind::Unauthorized
        }
        (_, _, "context_length_exceeded") | (_, "request_too_large", _) | (413, _, _) => {
            ProviderErrorKind::ContextOverflow
        }
        (_, _, "content_filter" | "content_policy_violation") => ProviderErrorKind::ContentFilter,
        _ if says(&["prompt is too long", "maximum context length", "context window", "context length"]) => {
            ProviderErrorKind::ContextOverflow
        }
        _ => ProviderErrorKind::BadRequest,
    };
    (kind, said)
}

/// Returns the time after which the provider accepts another request: from `retry-after-ms`, or
/// from `retry-after` in seconds or as a date.
fn retry_after(reply: &Reply<'_>) -> Option<Duration> {
    let milliseconds = reply.header("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok());
    if let Some(milliseconds) = milliseconds {
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    let text = reply.header("retry-after")?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = |text: &str| DateTime::parse_from_rfc2822(text.trim()).ok().map(|date| date.timestamp());
    #[expect(clippy::disallowed_methods, reason = "only the wait before the next try depends on it")]
    let own = || {
        SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|time| i64::try_from(time.as_secs()).ok())
    };
    let now = reply.header("date").and_then(date).or_else(own)?;
    Some(Duration::from_secs(u64::try_from(date(text)?.saturating_sub(now)).unwrap_or(0)))
}

/// Classifies the failure of a connection, and describes it.
pub(super) fn of_transport(error: &Error, bounds: &Bounds) -> (ProviderErrorKind, &'static str) {
    let throttle = |kind| ProviderErrorKind::Throttled(ThrottleDetails::new(kind));
    match (bounds.give_up_reason(), error) {
        (Some(ProviderErrorKind::Cancelled), _) => {
            (ProviderErrorKind::Cancelled, "the request was cancelled")
        }
        (Some(kind), Error::Timeout(_)) => (kind, "the deadline of the request passed"),
        (_, Error::Timeout(Timeout::Global)) => {
            (ProviderErrorKind::Deadline, "the deadline of the request passed")
        }
        (_, Error::Timeout(_)) => (throttle(ThrottleKind::Timeout), "the provider took too long"),
        (_, Error::HostNotFound | Error::ConnectionFailed | Error::ConnectProxyFailed(_)) => {
            (throttle(ThrottleKind::Unknown), "no connection to the provider")
        }
        (_, Error::Io(io)) => match io.kind() {
            ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable => {
                (throttle(ThrottleKind::Unknown), "no connection to the provider")
            }
            _ => (ProviderErrorKind::Cut, "the connection broke before the reply was complete"),
        },
        _ => (ProviderErrorKind::InvalidAnswer, "the reply is not HTTP as expected"),
    }
}
