//! The golden frames of conversations and adapters' states: for each kind one with the fewest
//! fields, and one with every field.

use foldlog_codec::RecordKind;
use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, Blocks, CallOrigin, ConversationScope, Input, Original, Payload,
    PromptAccepted, PromptIdentity, Request, RequestFailure, Role, Shortened, ShortenedMessage, TokenUsage,
    Turn,
};

use super::frames::{golden, lane, object_reference};
use super::{Body, EVENT, Golden};

pub(super) const TEXT: &[u8] = b"\xa8It rains";
/// Arguments of a call, as a provider wrote them.
const ARGUMENTS: &[u8] = b"\xaf{\"path\": \"a.b\"}";
const BLOCKS: &[u8] = b"\xb1[{\"type\":\"text\"}]";
const JSON: &[u8] = b"\xab{\"n\": 1.50}";

pub(super) fn conversations() -> Vec<Golden> {
    [inputs(), requests(), answers(), turns(), decisions()].into_iter().flatten().collect()
}

fn inputs() -> Vec<Golden> {
    let least = Input::new(plain(), Role::User, Payload::new(TEXT));
    let whole = Input {
        scope: scope(),
        role: Role::Tool,
        content: Some(Payload::new(object_reference())),
        blocks: Some(blocks()),
        id: Some("message 7".into()),
        name: Some("write_file".into()),
        prompt: None,
        call_id: Some("call_7".into()),
        origin: Some(CallOrigin { answer: 1_001.into(), ordinal: 2 }),
        is_error: false,
        payload: Some(Payload::new(JSON)),
    };
    let failed = Input { role: Role::Tool, origin: whole.origin, is_error: true, ..least.clone() };
    let system = Input { role: Role::System, prompt: Some(prompt(0x11)), ..least.clone() };
    let silent = Input { role: Role::Assistant, content: None, ..least.clone() };
    vec![
        golden("input", RecordKind::Input, Body::Input(least)),
        golden("input-system", RecordKind::Input, Body::Input(system)),
        golden("input-without-text", RecordKind::Input, Body::Input(silent)),
        golden("input-full", RecordKind::Input, Body::Input(whole)),
        golden("input-failed", RecordKind::Input, Body::Input(failed)),
    ]
}

fn requests() -> Vec<Golden> {
    let whole = Request {
        scope: scope(),
        prompt: Some([0x11; 32]),
        model: Some("model-5".into()),
        parameters: Some(Payload::new(JSON)),
        sent: Some([0x22; 32]),
        ..Request::new(plain(), 3)
    };
    let failure = RequestFailure {
        status: Some(529),
        arrived: Some(Payload::new(TEXT)),
        request_id: Some("req_1".into()),
        usage: Some(usage()),
        rate_limits: rate_limits(),
        ..RequestFailure::new(1_011.into(), "overloaded", "the provider answered 529")
    };
    let failed = |failure| Request { failure: Some(failure), ..Request::new(plain(), 1) };
    let least = failed(RequestFailure::new(1_011.into(), "cut", "the connection was closed"));
    vec![
        golden("request", RecordKind::Request, Body::Request(Request::new(plain(), 1))),
        golden("request-full", RecordKind::Request, Body::Request(whole.clone())),
        golden("request-failed", RecordKind::Request, Body::Request(least)),
        golden(
            "request-failed-full",
            RecordKind::Request,
            Body::Request(Request { failure: Some(failure), ..whole }),
        ),
    ]
}

fn answers() -> Vec<Golden> {
    let call = |id: &'static str, arguments, incomplete| AnsweredCall {
        id: id.into(),
        name: "write_file".into(),
        arguments: Payload::new(arguments),
        incomplete,
    };
    let whole = AnswerBody {
        scope: scope(),
        request: Some(1_011.into()),
        content: Some(Payload::new(TEXT)),
        calls: vec![
            call("call_7", ARGUMENTS, false),
            call("call_7", object_reference(), false),
            call("", b"\xa2{\"", true),
        ],
        blocks: Some(blocks()),
        stop: Some("max_tokens".into()),
        continues: true,
        model: Some("model-5".into()),
        request_id: Some("req_1".into()),
        usage: Some(usage()),
        rate_limits: rate_limits(),
        payload: Some(Payload::new(JSON)),
    };
    vec![
        golden(
            "answer",
            RecordKind::Answer,
            Body::Answer(AnswerBody::new(plain(), Some(Payload::new(TEXT)))),
        ),
        golden("answer-of-nothing", RecordKind::Answer, Body::Answer(AnswerBody::new(plain(), None))),
        golden("answer-full", RecordKind::Answer, Body::Answer(whole)),
        golden("answer-imported", RecordKind::Answer, Body::Answer(AnswerBody::new(imported(), None))),
    ]
}

fn turns() -> Vec<Golden> {
    let least = Turn {
        scope: plain(),
        number: 1,
        inputs: Vec::new(),
        answer: 1_012.into(),
        ends: Vec::new(),
        complete: false,
    };
    let whole = Turn {
        scope: scope(),
        number: 300,
        inputs: vec![1_009.into(), 1_010.into()],
        answer: 70_000.into(),
        ends: vec![70_004.into(), 70_003.into()],
        complete: true,
    };
    vec![
        golden("turn", RecordKind::Turn, Body::Turn(least)),
        golden("turn-full", RecordKind::Turn, Body::Turn(whole)),
    ]
}

/// Returns the host's decisions about a conversation: to shorten it, and to continue with another
/// prompt.
fn decisions() -> Vec<Golden> {
    let message = |role, content| ShortenedMessage { role, content: Payload::new(content) };
    let least = Shortened {
        scope: plain(),
        from: 1_001.into(),
        to: 1_001.into(),
        messages: Vec::new(),
        reason: "".into(),
    };
    let whole = Shortened {
        scope: scope(),
        from: 1_001.into(),
        to: 1_030.into(),
        messages: vec![message(Role::User, TEXT), message(Role::Assistant, object_reference())],
        reason: "it is longer than the model's context".into(),
    };
    let accepted = |scope, by: &'static str, reason: &'static str| PromptAccepted {
        scope,
        was: prompt(0x11),
        now: PromptIdentity { digest: [0x12; 32], ..prompt(0x11) },
        by: by.into(),
        reason: reason.into(),
    };
    vec![
        golden("shortened", RecordKind::Shortened, Body::Shortened(least)),
        golden("shortened-full", RecordKind::Shortened, Body::Shortened(whole)),
        golden(
            "prompt-accepted",
            RecordKind::PromptAccepted,
            Body::PromptAccepted(accepted(plain(), "", "")),
        ),
        golden(
            "prompt-accepted-full",
            RecordKind::PromptAccepted,
            Body::PromptAccepted(accepted(scope(), "a person", "only a tool's description changed")),
        ),
    ]
}

pub(super) fn adapter_states() -> Vec<Golden> {
    let least = AdapterState {
        scope: plain(),
        adapter: "claude_agent_sdk".into(),
        resumable: false,
        state: Payload::new(b"\xc0"),
        supersedes: None,
        entry: None,
        occasion: "".into(),
    };
    let whole = AdapterState {
        scope: scope(),
        adapter: "claude_agent_sdk".into(),
        resumable: true,
        state: Payload::new(EVENT),
        supersedes: Some(1_002.into()),
        entry: Some("f0e1".into()),
        occasion: "complete".into(),
    };
    vec![
        golden("adapter-state", RecordKind::AdapterState, Body::AdapterState(least.clone())),
        golden("adapter-state-full", RecordKind::AdapterState, Body::AdapterState(whole)),
        golden(
            "adapter-state-object",
            RecordKind::AdapterState,
            Body::AdapterState(AdapterState { state: Payload::new(object_reference()), ..least }),
        ),
    ]
}

fn plain() -> ConversationScope<'static> {
    ConversationScope::new("evaluation 1")
}

fn scope() -> ConversationScope<'static> {
    ConversationScope { lane: lane(), ..plain() }
}

fn imported() -> ConversationScope<'static> {
    let state = Some(([8; 16], 1_767_225_600_000_000));
    let original = Original { id: [7; 16], time_us: 1_767_225_600_000_001, state };
    ConversationScope { original: Some(original), ..plain() }
}

fn blocks() -> Blocks<'static> {
    Blocks { format: "anthropic".into(), json: Payload::new(BLOCKS) }
}

fn prompt(digest: u8) -> PromptIdentity<'static> {
    PromptIdentity { namespace: "agents".into(), key: "reviewer".into(), digest: [digest; 32] }
}

fn usage() -> TokenUsage {
    TokenUsage { input: 1_200, output: 80, cache_read: 70_000, cache_write: 0, reasoning: 64 }
}

fn rate_limits() -> Vec<(std::borrow::Cow<'static, str>, std::borrow::Cow<'static, str>)> {
    [("retry-after", "2"), ("x-ratelimit-remaining-tokens", "0")]
        .map(|(name, value)| (name.into(), value.into()))
        .into()
}
