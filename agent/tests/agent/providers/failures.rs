//! Requests without an answer: each failure has its kind, describes what happened, and keeps the
//! known part of its cost.

use std::time::Duration;

use foldlog_agent::provider::retry::RetryPolicy;
use foldlog_agent::provider::{ProviderErrorKind, ThrottleDetails, ThrottleKind};
use serde_json::{Value, json};

use super::asking::{BOTH, Which, ask, chunk, event, message_start};
use super::server::{Does, Server, stream};

type Headers = &'static [(&'static str, &'static str)];

fn said(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message, "code": null } })
}

fn throttled(kind: ProviderErrorKind) -> ThrottleDetails {
    match kind {
        ProviderErrorKind::Throttled(details) => details,
        other => panic!("{other:?}"),
    }
}

const DATE: &str = "Tue, 24 Nov 2026 18:00:00 GMT";

/// The header contains seconds or a date.
#[test]
fn too_many_requests_say_when_to_come_back() {
    let cases: [(Headers, Option<u64>); 6] = [
        (&[("retry-after", "7")], Some(7)),
        (&[("retry-after-ms", "1500"), ("retry-after", "7")], Some(1)),
        (&[("date", DATE), ("retry-after", "Tue, 24 Nov 2026 18:00:30 GMT")], Some(30)),
        (&[("date", DATE), ("retry-after", "Tue, 24 Nov 2026 17:00:00 GMT")], Some(0)),
        (&[("retry-after", "soon")], None),
        (&[], None),
    ];
    for (which, (headers, seconds)) in BOTH.into_iter().flat_map(|which| cases.map(|case| (which, case))) {
        let body = said("rate_limit_error", "slow down");
        let mut headers = headers.to_vec();
        headers.push(("x-ratelimit-remaining-requests", "0"));
        let server = Server::that(Does::fails(429, &headers, &body));
        let error = ask(&*which.provider(&server), true).outcome.unwrap_err();
        assert_eq!((error.status, error.message.contains("slow down")), (Some(429), true));
        assert!(error.rate_limits.contains(&("x-ratelimit-remaining-requests".into(), "0".into())));
        let delay = RetryPolicy::default().next_delay(1, &error);
        let details = throttled(error.kind);
        assert_eq!((details.kind, details.retry_safe), (ThrottleKind::RateLimit, true));
        assert_eq!(details.retry_after.map(|time| time.as_secs()), seconds, "{headers:?}");
        assert_eq!(details.provider_payload, Some(body));
        assert_eq!(delay, Some(details.retry_after.unwrap_or_default().max(Duration::from_secs(1))));
    }
}

/// A busy provider is asked again, but not one that would give the same error.
#[test]
fn every_status_has_its_kind() {
    let overloaded = |error| throttled(error).kind;
    for which in BOTH {
        let kind = |status: u16, body: Value| {
            let server = Server::that(Does::fails(status, &[], &body));
            ask(&*which.provider(&server), false).outcome.unwrap_err().kind
        };
        assert_eq!(overloaded(kind(500, said("api_error", "oops"))), ThrottleKind::Overloaded);
        assert_eq!(overloaded(kind(529, said("overloaded_error", "busy"))), ThrottleKind::Overloaded);
        assert_eq!(overloaded(kind(503, Value::Null)), ThrottleKind::Overloaded);
        assert_eq!(overloaded(kind(504, json!("no object"))), ThrottleKind::Timeout);
        let quota =
            throttled(kind(429, json!({ "error": { "code": "insufficient_quota", "message": "pay" } })));
        assert_eq!((quota.kind, quota.retry_safe), (ThrottleKind::QuotaExhausted, false));
        assert_eq!(kind(401, said("authentication_error", "no")), ProviderErrorKind::Unauthorized);
        assert_eq!(kind(400, said("invalid_request_error", "no such field")), ProviderErrorKind::BadRequest);
        assert_eq!(kind(404, Value::Null), ProviderErrorKind::BadRequest);
        let long = said("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum");
        assert_eq!(kind(400, long), ProviderErrorKind::ContextOverflow);
        let long = json!({ "error": { "code": "context_length_exceeded", "message": "shorten it" } });
        assert_eq!(kind(400, long), ProviderErrorKind::ContextOverflow);
        assert_eq!(kind(413, said("request_too_large", "")), ProviderErrorKind::ContextOverflow);
        let filtered = json!({ "error": { "code": "content_filter", "message": "filtered" } });
        assert_eq!(kind(400, filtered), ProviderErrorKind::ContentFilter);
    }
}

/// If a connection breaks at any point, there is no partial answer. The shown text is discarded,
/// and the arrived text and the usage are recorded.
#[test]
fn a_connection_that_breaks_gives_no_answer_wherever_it_breaks() {
    for which in BOTH {
        let events = which.events("one two three");
        let begun = &events[..events.find("two").unwrap()];
        let unfinished = &events[..events.rfind("data: ").unwrap()];
        let promised =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"id\":";
        let open = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"id\":";
        for bytes in [&b""[..], b"HTTP/1.1 200 OK\r\nconte", promised, open] {
            let server = Server::that(Does::Writes(bytes.to_vec()));
            let asked = ask(&*which.provider(&server), false);
            let error = asked.outcome.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::Cut, "{which:?}: {error}");
            assert_eq!((error.arrived, asked.shown.len()), (None, 0));
        }
        for (events, arrived) in [(begun, "one "), (unfinished, "one two three")] {
            let server = Server::that(Does::streams(events));
            let asked = ask(&*which.provider(&server), true);
            let error = asked.outcome.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::Cut, "{which:?}: {error}");
            assert_eq!(
                (error.arrived.as_deref(), error.request_id.as_deref()),
                (Some(arrived), Some("req_7"))
            );
            assert_eq!(
                (asked.shown.concat(), RetryPolicy::default().next_delay(1, &error).is_some()),
                (format!("{arrived}<discarded>"), true)
            );
            let knows_usage = which == Which::Anthropic || arrived.ends_with("three");
            assert_eq!(error.usage.map(|usage| usage.cache_read), knows_usage.then_some(4));
        }
    }
    let unexplained = chunk(&json!({ "content": "one" }), None) + "data: [DONE]\n\n";
    let server = Server::that(Does::streams(&unexplained));
    let error = ask(&*Which::OpenAi.provider(&server), true).outcome.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Cut, "nobody said why the answer ends");
}

/// Covers replies that are not JSON, not of the protocol, or empty.
#[test]
fn what_is_no_answer_of_the_protocol_is_none() {
    let html = Does::Replies(200, vec![("content-type", "text/html".into())], b"<html>\x1b[2J".to_vec());
    let bodies = [
        "{}",
        "[]",
        "null",
        "{\"choices\":[]}",
        "{\"choices\":[{\"message\":5}]}",
        "{\"content\":{}}",
        "{\"content\":[{\"type\":\"tool_use\"}]}",
        "{\"choices\":[{\"message\":{\"tool_calls\":[{}]}}]}",
        "",
    ];
    let json =
        bodies.map(|body| Does::Replies(200, vec![("content-type", "application/json".into())], body.into()));
    // Invalid UTF-8 in an otherwise valid answer.
    let other_text: [&[u8]; 2] = [
        b"{\"choices\":[{\"message\":{\"content\":\"\xff\xfe\"},\"finish_reason\":\"stop\"}]}",
        b"{\"content\":[{\"type\":\"text\",\"text\":\"\xff\xfe\"}],\"stop_reason\":\"end_turn\"}",
    ];
    let other_text = other_text
        .map(|body| Does::Replies(200, vec![("content-type", "application/json".into())], body.to_vec()));
    let no_http = Does::Writes(b"SSH-2.0-server\r\n\r\n".to_vec());
    for does in json.into_iter().chain(other_text).chain([html, no_http]) {
        for which in BOTH {
            let server = Server::that(does.clone());
            let error = ask(&*which.provider(&server), false).outcome.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::InvalidAnswer, "{which:?} {does:?}: {error}");
            assert!(!error.message.contains('\u{1b}'));
        }
    }
    for which in BOTH {
        let server = Server::that(Does::streams("data: {\"half\":\n\ndata: x\n\n"));
        assert_eq!(
            ask(&*which.provider(&server), true).outcome.unwrap_err().kind,
            ProviderErrorKind::InvalidAnswer
        );
    }
}

#[test]
fn a_reply_without_end_is_given_up() {
    for which in BOTH {
        let server = Server::that(Does::Floods(Vec::new(), 70 << 20));
        let error = ask(&*which.provider(&server), false).outcome.unwrap_err();
        assert!(
            error.kind == ProviderErrorKind::InvalidAnswer && error.message.contains("64 MiB"),
            "{error}"
        );
        let headers = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(200_000));
        let server = Server::that(Does::Writes(headers.into_bytes()));
        let error = ask(&*which.provider(&server), false).outcome.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::InvalidAnswer, "{error}");
    }
}

/// A reply within its maximum length took many times that length in memory: each of its values
/// takes more than its two bytes of text.
#[test]
fn a_reply_of_too_many_values_is_refused() {
    let many = |value: &str, count| vec![value; count].join(",");
    let nothing = many("0", 300_000);
    for which in BOTH {
        let whole = match which {
            Which::OpenAi => format!(
                "{{\"choices\":[{{\"message\":{{\"content\":\"x\",\"y\":[{nothing}]}},\"finish_reason\":\"stop\"}}]}}"
            ),
            Which::Anthropic => format!("{{\"content\":[{nothing}],\"stop_reason\":\"end_turn\"}}"),
        };
        let begins = match which {
            Which::OpenAi => String::new(),
            Which::Anthropic => {
                "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"x\"}}\n\n"
                    .to_owned()
            }
        };
        let piece = |values: &str| match which {
            Which::OpenAi => format!("data: {{\"choices\":[{{\"delta\":{{\"y\":[{values}]}}}}]}}\n\n"),
            Which::Anthropic => format!(
                "data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"y\",\"y\":[{values}]}}}}\n\n"
            ),
        };
        // As one reply, as one large event, and as many small events.
        let cases = [
            (Does::Replies(200, vec![], whole.into_bytes()), false),
            (Does::streams(&(begins.clone() + &piece(&nothing))), true),
            (Does::streams(&(begins + &piece(&many("0", 100_000)).repeat(3))), true),
        ];
        for (does, stream) in cases {
            let server = Server::that(does);
            let error = ask(&*which.provider(&server), stream).outcome.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::InvalidAnswer, "{error}");
            assert!(error.message.contains("262144 JSON values"), "{which:?}, {stream}: {error}");
        }
    }
}

/// A model's refusal looks like an answer.
#[test]
fn refusals_and_filters_are_failures_of_their_own() {
    let whole = |message: Value, stop: &str| {
        Does::json(
            &json!({ "choices": [{ "message": message, "finish_reason": stop }], "usage": { "prompt_tokens": 3 } }),
        )
    };
    let refused = whole(json!({ "content": null, "refusal": "I will\u{7} not." }), "stop");
    let filtered = whole(json!({ "content": "half" }), "content_filter");
    let streamed = Does::streams(
        &(chunk(&json!({ "refusal": "I will " }), None)
            + &chunk(&json!({ "refusal": "not." }), Some("stop"))
            + "data: [DONE]\n\n"),
    );
    let cases = [
        (refused, false, ProviderErrorKind::Refused),
        (filtered, false, ProviderErrorKind::ContentFilter),
        (streamed, true, ProviderErrorKind::Refused),
    ];
    for (does, stream, kind) in cases {
        let server = Server::that(does);
        let error = ask(&*Which::OpenAi.provider(&server), stream).outcome.unwrap_err();
        assert_eq!(error.kind, kind);
        assert!(
            kind != ProviderErrorKind::Refused
                || error.message.contains("I will") && error.message.contains("not."),
            "{error}"
        );
        assert!(stream || error.usage.unwrap().input == 3);
    }
    let cut_off = chunk(&json!({ "content": "half" }), None) + &chunk(&json!({}), Some("content_filter"));
    let server = Server::that(Does::streams(&(cut_off + "data: [DONE]\n\n")));
    let asked = ask(&*Which::OpenAi.provider(&server), true);
    let error = asked.outcome.unwrap_err();
    assert_eq!((error.kind, error.arrived.as_deref()), (ProviderErrorKind::ContentFilter, Some("half")));
    assert_eq!(asked.shown, ["half", "<discarded>"]);
    let body =
        json!({ "type": "message", "content": [], "stop_reason": "refusal", "usage": { "input_tokens": 3 } });
    let server = Server::that(Does::json(&body));
    let error = ask(&*Which::Anthropic.provider(&server), false).outcome.unwrap_err();
    assert_eq!((error.kind, error.usage.unwrap().input), (ProviderErrorKind::Refused, 3));
}

/// The failure in the stream counts, not the successful status before it.
#[test]
fn a_stream_can_report_a_failure() {
    let begun = Which::Anthropic.events("one two");
    let begun = &begun[..begun.find("event: content_block_stop").unwrap()];
    let server = Server::that(Does::streams(&(begun.to_owned() + &event(&said("overloaded_error", "busy")))));
    let asked = ask(&*Which::Anthropic.provider(&server), true);
    let error = asked.outcome.unwrap_err();
    assert_eq!((error.arrived.as_deref(), error.usage.unwrap().cache_read), (Some("one two"), 4));
    assert_eq!(throttled(error.kind).kind, ThrottleKind::Overloaded);
    assert_eq!(asked.shown.last().unwrap(), "<discarded>");
    let server = Server::that(Does::streams(
        &(chunk(&json!({ "content": "one" }), None)
            + "data: {\"error\":{\"message\":\"gone\",\"code\":502}}\n\n"),
    ));
    let error = ask(&*Which::OpenAi.provider(&server), true).outcome.unwrap_err();
    assert_eq!(throttled(error.kind).kind, ThrottleKind::Overloaded);
    let orphan = message_start()
        + &event(
            &json!({ "type": "content_block_delta", "index": 9, "delta": { "type": "text_delta", "text": "x" } }),
        );
    let server = Server::that(Does::Writes(stream(&orphan)));
    assert_eq!(
        ask(&*Which::Anthropic.provider(&server), true).outcome.unwrap_err().kind,
        ProviderErrorKind::InvalidAnswer
    );
}
