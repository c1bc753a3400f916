//! A conversation in which every name and text is hostile.

use std::borrow::Cow;

use foldlog::{RecordKind, Value};
use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, Blocks, CallOrigin, ConversationScope, Input, Lane, Payload,
    PromptAccepted, PromptIdentity, Request, RequestFailure, Role, Shortened, ShortenedMessage, Turn,
};

use super::{hostile, payload};

/// Places of the texts, which must appear in the output of `show`.
pub(super) const PLACES: [&str; 37] = [
    "evaluation",
    "lane",
    "system text",
    "prompt namespace",
    "prompt key",
    "user text",
    "input format",
    "input blocks",
    "input id",
    "speaker",
    "input payload",
    "asked model",
    "parameters",
    "failure cause",
    "failure message",
    "arrived",
    "failed request id",
    "header",
    "header value",
    "answer text",
    "answered id",
    "answered tool",
    "answered arguments",
    "answer format",
    "answer blocks",
    "stop",
    "answering model",
    "request id",
    "answer payload",
    "result id",
    "short text",
    "shortening",
    "accepted by",
    "accepted reason",
    "adapter",
    "state value",
    "entry",
];

fn text(place: &str) -> Cow<'static, str> {
    hostile(place).into()
}

/// Returns one MessagePack string, which lives as long as the test runs.
fn string(place: &str) -> Payload<'static> {
    Payload::new(Value::from(hostile(place)).encode().leak())
}

fn scope() -> ConversationScope<'static> {
    ConversationScope {
        evaluation: text("evaluation"),
        lane: Lane { within: None, name: Some(text("lane")) },
        original: None,
    }
}

fn prompt() -> PromptIdentity<'static> {
    PromptIdentity { namespace: text("prompt namespace"), key: text("prompt key"), digest: [7; 32] }
}

fn blocks(of: &str) -> Option<Blocks<'static>> {
    Some(Blocks { format: text(&format!("{of} format")), json: string(&format!("{of} blocks")) })
}

/// Returns the records, of which the first has the sequence number `first`.
pub(super) fn records(first: u64) -> Vec<(RecordKind, Vec<u8>)> {
    let input = |role, content| Input::new(scope(), role, string(content));
    let system = Input { prompt: Some(prompt()), ..input(Role::System, "system text") };
    let user = Input {
        blocks: blocks("input"),
        id: Some(text("input id")),
        name: Some(text("speaker")),
        payload: Some(string("input payload")),
        ..input(Role::User, "user text")
    };
    let request = Request {
        prompt: Some([7; 32]),
        model: Some(text("asked model")),
        parameters: Some(string("parameters")),
        ..Request::new(scope(), 1)
    };
    let failure = RequestFailure {
        arrived: Some(string("arrived")),
        request_id: Some(text("failed request id")),
        rate_limits: vec![(text("header"), text("header value"))],
        ..RequestFailure::new((first + 2).into(), text("failure cause"), text("failure message"))
    };
    let failed = Request { failure: Some(failure), ..Request::new(scope(), 1) };
    let (answered, again) = (first + 5, Request::new(scope(), 2));
    let call = AnsweredCall {
        id: text("answered id"),
        name: text("answered tool"),
        arguments: string("answered arguments"),
        incomplete: false,
    };
    let answer = AnswerBody {
        request: Some((first + 4).into()),
        calls: vec![call],
        blocks: blocks("answer"),
        stop: Some(text("stop")),
        model: Some(text("answering model")),
        request_id: Some(text("request id")),
        payload: Some(string("answer payload")),
        ..AnswerBody::new(scope(), Some(string("answer text")))
    };
    let result = Input {
        call_id: Some(text("result id")),
        origin: Some(CallOrigin { answer: answered.into(), ordinal: 0 }),
        ..input(Role::Tool, "result text")
    };
    let turn = Turn {
        scope: scope(),
        number: 1,
        inputs: vec![first.into(), (first + 1).into()],
        answer: answered.into(),
        ends: vec![(answered + 1).into()],
        complete: true,
    };
    let shortened = Shortened {
        scope: scope(),
        from: (first + 1).into(),
        to: (answered + 1).into(),
        messages: vec![ShortenedMessage { role: Role::User, content: string("short text") }],
        reason: text("shortening"),
    };
    let accepted = PromptAccepted {
        scope: scope(),
        was: prompt(),
        now: prompt(),
        by: text("accepted by"),
        reason: text("accepted reason"),
    };
    let captured = payload("state");
    let state = AdapterState {
        scope: scope(),
        adapter: text("adapter"),
        resumable: true,
        state: Payload::new(&captured),
        supersedes: None,
        entry: Some(text("entry")),
        occasion: text("occasion"),
    };
    vec![
        (RecordKind::Input, system.encode()),
        (RecordKind::Input, user.encode()),
        (RecordKind::Request, request.encode()),
        (RecordKind::Request, failed.encode()),
        (RecordKind::Request, again.encode()),
        (RecordKind::Answer, answer.encode()),
        (RecordKind::Input, result.encode()),
        (RecordKind::Turn, turn.encode()),
        (RecordKind::Shortened, shortened.encode()),
        (RecordKind::PromptAccepted, accepted.encode()),
        (RecordKind::AdapterState, state.encode()),
    ]
}
