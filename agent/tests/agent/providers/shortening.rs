//! Conversations that are too long for a real provider.

use std::sync::atomic::{AtomicUsize, Ordering};

use foldlog::conversation::EntryContent;
use foldlog_agent::{Error, EvaluateOptions, KeepLastTurns, ProviderAdapter, ShortenOptions};
use serde_json::{Value, json};

use super::asking::{BOTH, Which};
use super::server::{Does, Server};
use crate::story::{Desk, limits};

/// Returns the provider's reply to a request that is too long.
fn too_long(which: Which) -> Does {
    match which {
        Which::OpenAi => Does::fails(
            400,
            &[],
            &json!({ "error": { "code": "context_length_exceeded", "type": "invalid_request_error",
                "message": "This model's maximum context length is 5 messages." } }),
        ),
        Which::Anthropic => Does::fails(
            400,
            &[],
            &json!({ "type": "error", "error": { "type": "invalid_request_error",
                "message": "prompt is too long: 200001 tokens > 200000 maximum" } }),
        ),
    }
}

/// Counts the messages of a request without the system message.
fn spoken(body: &Value) -> usize {
    let messages = body["messages"].as_array().unwrap();
    messages.iter().filter(|message| message["role"] != "system").count()
}

fn evaluate(
    desk: &Desk,
    which: Which,
    fits: usize,
    shorten: Option<ShortenOptions>,
) -> (Result<String, Error>, usize) {
    let answered = AtomicUsize::new(0);
    let server = Server::start(move |seen, _| {
        if spoken(&seen.body) > fits {
            return too_long(which);
        }
        match answered.fetch_add(1, Ordering::SeqCst) {
            4 => which.answers(false, "done", &[]),
            number => which.answers(false, "next", &[("a", "add", &format!("{{\"text\":\"{number}\"}}"))]),
        }
    });
    let adapter = ProviderAdapter::new(which.provider(&server)).with_limits(limits());
    let options =
        EvaluateOptions { evaluation_id: Some("one".to_owned()), shorten, ..EvaluateOptions::default() };
    let text = adapter.evaluate(&desk.prompt(), &desk.state, options).map(|response| response.text);
    (text, server.seen().len())
}

/// One shortened request follows each refusal for length, the provider accepts it, and the
/// evaluation completes.
#[test]
fn a_conversation_that_the_provider_finds_too_long_is_shortened_and_sent_again() {
    for which in BOTH {
        let desk = Desk::new();
        let shorten = ShortenOptions::at_overflow(KeepLastTurns::new(1));
        let (text, requests) = evaluate(&desk, which, 5, Some(shorten));
        assert_eq!(text.unwrap(), "done", "{which:?}");
        assert_eq!(desk.page(), ["0", "1", "2", "3"]);
        let conversation = desk.session().conversation().read("one").unwrap().unwrap();
        let reasons: Vec<&str> = conversation
            .entries()
            .iter()
            .filter_map(|entry| match &entry.content {
                EntryContent::Shortened { reason, .. } => Some(reason.as_str()),
                _ => None,
            })
            .collect();
        assert!(!reasons.is_empty() && reasons.iter().all(|reason| *reason == "overflow"), "{which:?}");
        assert_eq!(requests, 5 + reasons.len(), "{which:?}: one more for each refusal");
    }
}

#[test]
fn a_conversation_that_nobody_can_shorten_is_an_error_and_asked_for_once() {
    for which in BOTH {
        for shorten in [None, Some(ShortenOptions::at_overflow(KeepLastTurns::new(9)))] {
            let (text, requests) = evaluate(&Desk::new(), which, 3, shorten);
            assert!(matches!(text, Err(Error::ContextOverflow(_))), "{which:?}: {text:?}");
            assert_eq!(requests, 3, "{which:?}");
        }
    }
}
