//! Slow providers: no request exceeds its timeout, and cancellation takes effect at once.

use std::time::{Duration, Instant};

use foldlog::conversation::{ConversationMessage, Role};
use foldlog_agent::provider::{
    CancelToken, Delta, LlmConfig, ProviderErrorKind, ProviderRequest, SendOptions, ThrottleKind, Timeouts,
};

use super::asking::{BOTH, PATIENT, Which, ask, ask_with};
use super::server::{Does, Server, stream};

/// Longest time that a test takes for immediate.
const SOON: Duration = Duration::from_secs(10);

fn hello() -> [ConversationMessage; 1] {
    [ConversationMessage::new(Role::User, "hello")]
}

/// Returns the bytes that a slow server sends before it falls silent: none, headers, or half of a
/// stream.
fn beginnings(which: Which) -> [Vec<u8>; 3] {
    let events = which.events("one two");
    let half = events[..events.find("two").unwrap()].to_owned();
    [Vec::new(), b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec(), stream(&half)]
}

#[test]
fn silence_ends_a_request_before_and_within_its_reply() {
    for which in BOTH {
        for (begun, beginning) in beginnings(which).into_iter().enumerate() {
            let server = Server::that(Does::Hangs(beginning));
            let provider = which.with(&server, Timeouts { silence: Duration::from_millis(500), ..PATIENT });
            let asked = ask(&*provider, true);
            let error = asked.outcome.unwrap_err();
            assert!(
                matches!(&error.kind, ProviderErrorKind::Throttled(details) if details.kind == ThrottleKind::Timeout),
                "{which:?}: {error}"
            );
            assert_eq!(error.arrived.as_deref(), (begun == 2).then_some("one "));
            assert_eq!(asked.shown.concat(), if begun == 2 { "one <discarded>" } else { "" });
        }
    }
}

/// A deadline ends a request at any stage.
#[test]
fn a_deadline_ends_a_request_before_and_within_its_reply() {
    for which in BOTH {
        for beginning in beginnings(which) {
            let server = Server::that(Does::Hangs(beginning));
            let start = Instant::now();
            let deadline = Some(start + Duration::from_millis(80));
            let options = SendOptions { deadline, ..SendOptions::default() };
            let error = ask_with(&*which.provider(&server), &hello(), true, options).outcome.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::Deadline, "{which:?}: {error}");
            assert!(start.elapsed() < SOON);
        }
        let server = Server::start(move |_, _| which.answers(false, "late", &[]));
        let options = SendOptions { deadline: Some(Instant::now()), ..SendOptions::default() };
        let error = ask_with(&*which.provider(&server), &hello(), false, options).outcome.unwrap_err();
        assert_eq!((error.kind, server.seen().len()), (ProviderErrorKind::Deadline, 0), "nothing was sent");
    }
}

/// The thread that waits for a silent provider is woken.
#[test]
fn cancelling_wakes_a_request_that_waits() {
    for which in BOTH {
        for beginning in beginnings(which) {
            let cancel = CancelToken::new();
            let canceller = cancel.clone();
            // The server itself cancels once the request has arrived, so that the test needs no
            // clock.
            let server = Server::start(move |_, _| {
                canceller.cancel();
                Does::Hangs(beginning.clone())
            });
            let start = Instant::now();
            let options = SendOptions { cancel, ..SendOptions::default() };
            let asked = ask_with(&*which.provider(&server), &hello(), true, options);
            assert_eq!(asked.outcome.unwrap_err().kind, ProviderErrorKind::Cancelled, "{which:?}");
            assert!(start.elapsed() < SOON);
        }
    }
}

/// A user who cancels because of the streamed text finds that text in the failure.
#[test]
fn cancelling_in_the_middle_of_a_stream_keeps_what_arrived() {
    for which in BOTH {
        let [.., half] = beginnings(which);
        let server = Server::that(Does::Hangs(half));
        let provider = which.provider(&server);
        let (cancel, messages) = (CancelToken::new(), hello());
        let (config, setter) = (LlmConfig { stream: true, ..LlmConfig::default() }, cancel.clone());
        let request = ProviderRequest { messages: &messages, tools: &[], output: None, config: &config };
        let mut on_delta = |delta: Delta<'_>| {
            if delta == Delta::Text("one ") {
                setter.cancel();
            }
        };
        let mut options = SendOptions { deadline: None, cancel, on_delta: Some(&mut on_delta) };
        let error = provider.send(&provider.prepare(&request).unwrap(), &mut options).unwrap_err();
        assert_eq!((&error.kind, error.arrived.as_deref()), (&ProviderErrorKind::Cancelled, Some("one ")));
    }
}

#[test]
fn a_provider_that_nobody_runs_may_come_back() {
    for which in BOTH {
        let server = Server::start(move |_, _| which.answers(false, "", &[]));
        let provider = which.provider(&server);
        drop(server);
        let error = ask(&*provider, false).outcome.unwrap_err();
        assert!(
            matches!(&error.kind, ProviderErrorKind::Throttled(details) if details.retry_safe),
            "{error}"
        );
        assert!(error.message.contains("127.0.0.1"), "{error}");
    }
}
