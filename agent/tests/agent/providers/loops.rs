//! Whole evaluations with real providers: the loop runs tools, is killed and resumes, and the
//! servers accept every history that it sends.

use foldlog::conversation::EntryContent;
use foldlog_agent::provider::{LlmConfig, Provider};
use foldlog_agent::{Error, EvaluateOptions, ProviderAdapter};
use serde_json::json;

use super::asking::{BOTH, KEY, Which};
use super::server::{Does, Seen, Server};
use crate::story::{Desk, limits};

type Answer = (&'static str, &'static [(&'static str, &'static str, &'static str)]);

/// Answers with every difficulty: repeated ids within an answer and across answers, a tool that
/// fails, an unknown tool, broken arguments, an expansion that skips its sibling, and an empty
/// answer.
const ANSWERS: [Answer; 5] = [
    (
        "I look.",
        &[
            ("same", "add", "{\"text\":\"a\"}"),
            ("same", "break", "{\"text\":\"b\"}"),
            ("look.1", "look", "{\"text\":\"c\"}"),
        ],
    ),
    ("", &[("same", "no.such", "{}"), ("x", "add", "{\"text\":")]),
    ("More.", &[("e", "more", "{\"text\":\"details\"}"), ("f", "add", "{\"text\":\"never\"}")]),
    ("", &[("same", "look", "{\"text\":\"d\"}")]),
    ("done", &[]),
];

/// Replies by the number of answers in the request's history.
fn reply(which: Which, seen: &Seen) -> Does {
    let messages = seen.body["messages"].as_array().unwrap();
    let answered = messages.iter().filter(|message| message["role"] == "assistant").count();
    let (text, calls) = ANSWERS[answered];
    which.answers(seen.body["stream"] == true, text, calls)
}

fn adapter(which: Which, server: &Server, stream: bool) -> ProviderAdapter<Box<dyn Provider>> {
    let config = LlmConfig { stream, ..LlmConfig::default() };
    ProviderAdapter::new(which.provider(server)).with_config(config).with_limits(limits())
}

fn evaluate(desk: &Desk, which: Which, server: &Server, stream: bool) -> Result<String, Error> {
    let options = EvaluateOptions { evaluation_id: Some("one".to_owned()), ..EvaluateOptions::default() };
    adapter(which, server, stream)
        .evaluate(&desk.prompt(), &desk.state, options)
        .map(|response| response.text)
}

#[test]
fn every_history_of_an_evaluation_is_one_that_the_provider_takes() {
    for (which, stream) in BOTH.into_iter().flat_map(|which| [(which, false), (which, true)]) {
        let server = Server::start(move |seen, _| reply(which, seen));
        let desk = Desk::new();
        assert_eq!(evaluate(&desk, which, &server, stream).unwrap(), "done", "{which:?}, streamed: {stream}");
        assert_eq!((desk.page(), server.seen().len()), (vec!["a".to_owned()], ANSWERS.len()));
    }
}

/// After a kill at any point the provider accepts the next process's requests, and no recorded
/// answer is requested again.
#[test]
fn every_history_after_a_kill_is_one_that_the_provider_takes() {
    for which in BOTH {
        let mut kills = 0;
        loop {
            let server = Server::start(move |seen, _| reply(which, seen));
            let mut desk = Desk::new();
            desk.kill_behind(kills + 1);
            if evaluate(&desk, which, &server, true).is_ok() {
                break;
            }
            kills += 1;
            desk.reopen();
            assert_eq!(
                evaluate(&desk, which, &server, true).unwrap(),
                "done",
                "{which:?}, killed behind {kills}"
            );
            assert_eq!(desk.page(), ["a"], "{which:?}, killed behind {kills}");
            let asked = server.seen().len();
            assert!(asked <= ANSWERS.len() + 1, "one request may be sent again: {asked}");
        }
        assert!(kills > 20, "{kills} kills");
    }
}

/// A provider's error text is recorded, but not the key that it repeats.
#[test]
fn no_record_of_a_failed_request_holds_the_key() {
    for which in BOTH {
        let body = json!({ "error": { "message": format!("wrong key {KEY}"), "type": "overloaded_error" } });
        let headers = [("x-request-id", KEY), ("x-ratelimit-key", KEY)];
        let server = Server::start(move |_, number| match number {
            0 => Does::fails(503, &headers, &body),
            1 => Does::streams(&format!(
                "data: {{\"error\":{{\"message\":\"{KEY}\",\"type\":\"server_error\"}}}}\n\n"
            )),
            _ => Does::fails(401, &headers, &body),
        });
        let desk = Desk::new();
        let error = evaluate(&desk, which, &server, true).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(KEY));
        let conversation = desk.session().conversation().read("one").unwrap().unwrap();
        let failures = conversation
            .entries()
            .iter()
            .filter(|entry| matches!(entry.content, EntryContent::RequestFailed { .. }));
        assert!(failures.count() >= 2, "{which:?}");
        let mut recorded = 0;
        let last = desk.session().log().position().unwrap();
        desk.session()
            .log()
            .records(0, last, |record| {
                recorded += record.body.len();
                let text = String::from_utf8_lossy(record.body);
                assert!(!text.contains(KEY), "{which:?}: {text}");
                Ok(())
            })
            .unwrap();
        assert!(recorded > 0);
    }
}
