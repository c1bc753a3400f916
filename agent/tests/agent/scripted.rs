//! The scripted provider: its answers, its usage and its failures. Also the retries of failed
//! requests, and the rate of requests.

// The functions below are all tests, or called by nothing else.

use std::time::{Duration, Instant};

use foldlog::conversation::{ConversationMessage, Role};
use foldlog_agent::provider::retry::{RateLimiter, RetryPolicy};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    CancelToken, Delta, LlmConfig, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, SendOptions, ThrottleDetails, ThrottleKind,
};

fn ask(
    provider: &ScriptedProvider,
    text: &str,
    options: &mut SendOptions<'_>,
) -> Result<ProviderAnswer, Box<ProviderError>> {
    let messages = [ConversationMessage::new(Role::User, text)];
    let config = LlmConfig::default();
    let request = ProviderRequest { messages: &messages, tools: &[], output: None, config: &config };
    provider.send(&provider.prepare(&request)?, options)
}

#[test]
fn a_script_answers_in_order_and_counts_what_was_sent() {
    let replies = [ScriptedReply::text("one two"), ScriptedReply::calls([("1", "search", "{\"q\":1}")])];
    let provider = ScriptedProvider::new(replies);
    let mut shown = Vec::new();
    let mut on_delta = |delta: Delta<'_>| {
        if let Delta::Text(text) = delta {
            shown.push(text.to_owned());
        }
    };
    let mut options = SendOptions { on_delta: Some(&mut on_delta), ..SendOptions::default() };
    assert_eq!(ask(&provider, "a", &mut options).unwrap().content.unwrap(), "one two");
    assert_eq!(ask(&provider, "b", &mut options).unwrap().calls[0].arguments, "{\"q\":1}");
    let over = ask(&provider, "c", &mut SendOptions::default()).unwrap_err();
    assert!(over.message.contains("no reply to request number 3"), "{over}");
    assert_eq!(shown, ["one ", "two"]);
    assert_eq!(provider.requests(), 3);
    assert_eq!(
        provider.seen_requests().iter().map(|seen| seen.last_text().to_owned()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
}

/// The request's digest has to be the same in every process.
#[test]
fn a_request_has_the_same_bytes_whenever_it_is_prepared() {
    let provider =
        ScriptedProvider::from_fn(|request| ScriptedReply::text(format!("you said {}", request.last_text())));
    let config = LlmConfig::default();
    let prepare = |message: ConversationMessage| {
        let request = ProviderRequest { messages: &[message], tools: &[], output: None, config: &config };
        provider.prepare(&request).unwrap()
    };
    let first = prepare(ConversationMessage::new(Role::User, "hi"));
    let mut later = ConversationMessage::new(Role::User, "hi");
    later.created_at += Duration::from_secs(5);
    assert_eq!(first, prepare(later));
    let answer = provider.send(&first, &mut SendOptions::default()).unwrap();
    assert_eq!(answer.content.unwrap(), "you said hi");
}

/// The provider discards the shown text if its answer breaks off.
#[test]
fn a_stream_that_breaks_discards_what_it_showed() {
    let provider = ScriptedProvider::new([ScriptedReply::cut("half an")]);
    let mut shown = String::new();
    let mut on_delta = |delta: Delta<'_>| match delta {
        Delta::Text(text) => shown.push_str(text),
        Delta::Discarded => shown.push('!'),
    };
    let mut options = SendOptions { on_delta: Some(&mut on_delta), ..SendOptions::default() };
    let error = ask(&provider, "a", &mut options).unwrap_err();
    assert_eq!((&error.kind, error.arrived.as_deref()), (&ProviderErrorKind::Cut, Some("half an")));
    assert_eq!(shown, "half an!");
}

#[test]
fn a_cancelled_request_is_not_sent_and_a_cancelled_stream_stops() {
    let provider = ScriptedProvider::from_fn(|_| ScriptedReply::text("one two three"));
    let cancel = CancelToken::new();
    let mut shown = Vec::new();
    let setter = cancel.clone();
    let mut on_delta = |delta: Delta<'_>| {
        shown.push(format!("{delta:?}"));
        setter.cancel();
    };
    let mut options =
        SendOptions { cancel: cancel.clone(), on_delta: Some(&mut on_delta), ..SendOptions::default() };
    let error = ask(&provider, "a", &mut options).unwrap_err();
    assert_eq!((&error.kind, error.arrived.as_deref()), (&ProviderErrorKind::Cancelled, Some("one ")));
    assert_eq!(shown, ["Text(\"one \")", "Discarded"]);
    let mut options = SendOptions { cancel, ..SendOptions::default() };
    assert_eq!(ask(&provider, "b", &mut options).unwrap_err().kind, ProviderErrorKind::Cancelled);
    let mut options = SendOptions { deadline: Some(Instant::now()), ..SendOptions::default() };
    assert_eq!(ask(&provider, "c", &mut options).unwrap_err().kind, ProviderErrorKind::Deadline);
    assert_eq!(provider.requests(), 1);
}

fn throttled(kind: ThrottleKind, retry_after: Option<u64>) -> ProviderError {
    let details = ThrottleDetails {
        kind,
        retry_after: retry_after.map(Duration::from_secs),
        attempts: 1,
        retry_safe: kind != ThrottleKind::QuotaExhausted,
        provider_payload: None,
    };
    ProviderError::new(ProviderErrorKind::Throttled(details), "later")
}

#[test]
fn a_failed_request_is_sent_again_later_each_time_and_as_late_as_the_provider_asks() {
    let policy = RetryPolicy { attempts: 4, ..RetryPolicy::default() };
    let limited = throttled(ThrottleKind::RateLimit, None);
    let seconds =
        |attempt, error: &ProviderError| policy.next_delay(attempt, error).map(|delay| delay.as_secs());
    assert_eq!([1, 2, 3, 4].map(|attempt| seconds(attempt, &limited)), [Some(1), Some(2), Some(4), None]);
    assert_eq!(seconds(1, &throttled(ThrottleKind::RateLimit, Some(30))), Some(30));
    assert_eq!(
        seconds(3, &throttled(ThrottleKind::Overloaded, Some(1))),
        Some(4),
        "not sooner than its own delay"
    );
    assert_eq!(seconds(1, &throttled(ThrottleKind::RateLimit, Some(3600))), None, "nobody waits an hour");
    let deaf = RetryPolicy { honour_retry_after: false, ..policy.clone() };
    assert_eq!(
        deaf.next_delay(1, &throttled(ThrottleKind::RateLimit, Some(30))),
        Some(Duration::from_secs(1))
    );
    assert_eq!(seconds(1, &ProviderError::new(ProviderErrorKind::Cut, "")), Some(1));
    let many = RetryPolicy { attempts: u32::MAX, ..policy.clone() };
    assert_eq!(many.next_delay(4_000_000_000, &limited), Some(policy.max));
    assert_eq!(RetryPolicy::never().next_delay(1, &limited), None);
}

/// Covers errors that would occur again and requests that were ended on purpose: neither is paid
/// for twice.
#[test]
fn what_would_fail_again_is_not_sent_again() {
    let policy = RetryPolicy::default();
    assert_eq!(policy.next_delay(1, &throttled(ThrottleKind::QuotaExhausted, Some(1))), None);
    for kind in [
        ProviderErrorKind::Refused,
        ProviderErrorKind::ContentFilter,
        ProviderErrorKind::ContextOverflow,
        ProviderErrorKind::Unauthorized,
        ProviderErrorKind::BadRequest,
        ProviderErrorKind::InvalidAnswer,
        ProviderErrorKind::Deadline,
        ProviderErrorKind::Cancelled,
        ProviderErrorKind::Unsupported,
    ] {
        assert_eq!(policy.next_delay(1, &ProviderError::new(kind.clone(), "")), None, "{kind:?}");
    }
}

/// Two loops of one process kept the provider's limit each, but not together.
#[test]
fn requests_of_one_process_wait_for_each_other() {
    let (limiter, now) = (RateLimiter::new(), Instant::now());
    let seconds = |provider, now| limiter.reserve(provider, now).as_secs();
    assert_eq!([seconds("a", now), seconds("a", now)], [0, 0]);
    limiter.set_interval("a", Duration::from_secs(2));
    assert_eq!([seconds("a", now), seconds("a", now), seconds("a", now)], [0, 2, 4]);
    assert_eq!(seconds("b", now), 0);
    let later = now + Duration::from_secs(60);
    assert_eq!(seconds("a", later), 0, "a limit that was kept costs nothing");
    limiter.block("a", later, Duration::from_secs(9));
    limiter.block("a", later, Duration::from_secs(5));
    assert_eq!([seconds("a", later), seconds("a", later)], [9, 11]);
    limiter.block("c", now, Duration::MAX);
    assert_eq!(seconds("c", now), 60, "nobody waits for a wrong clock");
    assert!(std::ptr::eq(RateLimiter::shared(), RateLimiter::shared()));
}
