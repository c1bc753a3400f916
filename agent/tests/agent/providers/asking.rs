//! Sends the same requests to both providers, and writes their protocols.

use std::time::Duration;

use foldlog::conversation::{ConversationMessage, Role, ToolCallRecord};
use foldlog_agent::provider::anthropic::AnthropicProvider;
use foldlog_agent::provider::openai::OpenAiProvider;
use foldlog_agent::provider::{
    ApiKey, Delta, LlmConfig, Provider, ProviderAnswer, ProviderError, ProviderRequest, SendOptions, Timeouts,
};
use serde_json::{Value, json};

use super::server::{Does, Server};

pub(crate) const KEY: &str = "sk-test-3f9a0c-not-a-real-key";
pub(crate) const BOTH: [Which; 2] = [Which::OpenAi, Which::Anthropic];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    OpenAi,
    Anthropic,
}

/// Timeouts that no test reaches.
pub(crate) const PATIENT: Timeouts = Timeouts {
    connect: Duration::from_secs(20),
    silence: Duration::from_secs(60),
    total: Duration::from_secs(120),
};

impl Which {
    pub(crate) fn provider(self, server: &Server) -> Box<dyn Provider> {
        self.with(server, PATIENT)
    }

    pub(crate) fn with(self, server: &Server, timeouts: Timeouts) -> Box<dyn Provider> {
        let key = Some(ApiKey::new(KEY).unwrap());
        match self {
            Which::OpenAi => {
                let provider = OpenAiProvider::new(&format!("{}/v1", server.url()), key, "model-1");
                Box::new(provider.unwrap().with_timeouts(timeouts))
            }
            Which::Anthropic => {
                let provider = AnthropicProvider::new(&server.url(), key, "model-1");
                Box::new(provider.unwrap().with_timeouts(timeouts))
            }
        }
    }

    /// Replies with a text and calls (id, name and arguments), whole or as a stream.
    pub(crate) fn answers(self, stream: bool, text: &str, calls: &[(&str, &str, &str)]) -> Does {
        match (self, stream) {
            (Which::OpenAi, false) => Does::json(&openai_whole(text, calls)),
            (Which::OpenAi, true) => Does::streams(&openai_stream(text, calls)),
            (Which::Anthropic, false) => Does::json(&anthropic_whole(text, calls)),
            (Which::Anthropic, true) => Does::streams(&anthropic_stream(text, calls)),
        }
    }

    /// Returns the events of a streamed answer.
    pub(crate) fn events(self, text: &str) -> String {
        match self {
            Which::OpenAi => openai_stream(text, &[]),
            Which::Anthropic => anthropic_stream(text, &[]),
        }
    }
}

fn openai_calls(calls: &[(&str, &str, &str)]) -> Vec<Value> {
    let call = |(id, name, arguments): &(&str, &str, &str)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    calls.iter().map(call).collect()
}

fn openai_whole(text: &str, calls: &[(&str, &str, &str)]) -> Value {
    let mut message = json!({ "role": "assistant", "content": (!text.is_empty()).then_some(text), "refusal": null,
        "annotations": [] });
    if !calls.is_empty() {
        message["tool_calls"] = openai_calls(calls).into();
    }
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": "model-1-2026",
        "choices": [{ "index": 0, "message": message, "logprobs": null,
            "finish_reason": if calls.is_empty() { "stop" } else { "tool_calls" } }],
        "usage": { "prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18,
            "prompt_tokens_details": { "cached_tokens": 4, "audio_tokens": 0 },
            "completion_tokens_details": { "reasoning_tokens": 3 } },
    })
}

pub(crate) fn chunk(delta: &Value, stop: Option<&str>) -> String {
    let choices = json!([{ "index": 0, "delta": delta, "finish_reason": stop }]);
    let chunk = json!({ "object": "chat.completion.chunk", "model": "model-1-2026", "choices": choices, "usage": null });
    format!("data: {chunk}\n\n")
}

fn openai_stream(text: &str, calls: &[(&str, &str, &str)]) -> String {
    let mut events = chunk(&json!({ "role": "assistant", "content": "", "refusal": null }), None);
    for word in text.split_inclusive(' ') {
        events += &chunk(&json!({ "content": word }), None);
    }
    for (index, call) in openai_calls(calls).into_iter().enumerate() {
        let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
        let mut begun = call;
        begun["index"] = index.into();
        begun["function"]["arguments"] = "".into();
        events += &chunk(&json!({ "tool_calls": [begun] }), None);
        for piece in arguments.split_inclusive(',') {
            events += &chunk(
                &json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }),
                None,
            );
        }
    }
    events += &chunk(&json!({}), Some(if calls.is_empty() { "stop" } else { "tool_calls" }));
    let usage = openai_whole(text, calls)["usage"].clone();
    events + &format!("data: {}\n\ndata: [DONE]\n\n", json!({ "choices": [], "usage": usage }))
}

fn anthropic_whole(text: &str, calls: &[(&str, &str, &str)]) -> Value {
    let mut content = Vec::new();
    if !text.is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    content.extend(calls.iter().map(|(id, name, input)| {
        let input: Value = serde_json::from_str(input).unwrap_or_else(|_| json!({ "broken": input }));
        json!({ "type": "tool_use", "id": id, "name": name, "input": input })
    }));
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "model-1-2026", "content": content,
        "stop_reason": if calls.is_empty() { "end_turn" } else { "tool_use" }, "stop_sequence": null,
        "usage": { "input_tokens": 11, "output_tokens": 7, "cache_creation_input_tokens": 5,
            "cache_read_input_tokens": 4 },
    })
}

pub(crate) fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap())
}

/// Writes the first event of a stream, which reports the input's usage.
pub(crate) fn message_start() -> String {
    event(
        &json!({ "type": "message_start", "message": { "id": "msg_1", "type": "message", "role": "assistant",
        "model": "model-1-2026", "content": [], "stop_reason": null, "usage": { "input_tokens": 11,
        "output_tokens": 1, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 4 } } }),
    )
}

/// Writes the events of one block that arrives in pieces.
pub(crate) fn block(index: usize, start: &Value, deltas: &[Value]) -> String {
    let mut events = event(&json!({ "type": "content_block_start", "index": index, "content_block": start }));
    for delta in deltas {
        events += &event(&json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }
    events + &event(&json!({ "type": "content_block_stop", "index": index }))
}

pub(crate) fn message_stop(reason: &str) -> String {
    event(&json!({ "type": "message_delta", "delta": { "stop_reason": reason, "stop_sequence": null },
        "usage": { "output_tokens": 7 } }))
        + &event(&json!({ "type": "message_stop" }))
}

fn anthropic_stream(text: &str, calls: &[(&str, &str, &str)]) -> String {
    let mut events = message_start() + &event(&json!({ "type": "ping" }));
    let mut index = 0;
    if !text.is_empty() {
        let deltas = text.split_inclusive(' ').map(|word| json!({ "type": "text_delta", "text": word }));
        events += &block(index, &json!({ "type": "text", "text": "" }), &deltas.collect::<Vec<_>>());
        index += 1;
    }
    for (id, name, input) in calls {
        let deltas = input
            .split_inclusive(',')
            .map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
        let start = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
        events += &block(index, &start, &deltas.collect::<Vec<_>>());
        index += 1;
    }
    events
        + &event(&json!({ "type": "of_a_later_version", "x": 1 }))
        + &message_stop(if calls.is_empty() { "end_turn" } else { "tool_use" })
}

/// The result of a request, and the text that was shown meanwhile.
pub(crate) struct Asked {
    pub(crate) outcome: Result<ProviderAnswer, Box<ProviderError>>,
    pub(crate) shown: Vec<String>,
}

pub(crate) fn ask(provider: &dyn Provider, stream: bool) -> Asked {
    ask_with(provider, &[ConversationMessage::new(Role::User, "hello")], stream, SendOptions::default())
}

pub(crate) fn ask_with(
    provider: &dyn Provider,
    messages: &[ConversationMessage],
    stream: bool,
    options: SendOptions<'_>,
) -> Asked {
    let config = LlmConfig { stream, ..LlmConfig::default() };
    let request = ProviderRequest { messages, tools: &[], output: None, config: &config };
    let mut shown = Vec::new();
    let mut on_delta = |delta: Delta<'_>| match delta {
        Delta::Text(text) => shown.push(text.to_owned()),
        Delta::Discarded => shown.push("<discarded>".to_owned()),
    };
    let SendOptions { deadline, cancel, .. } = options;
    let mut options = SendOptions { deadline, cancel, on_delta: Some(&mut on_delta) };
    let outcome = provider.prepare(&request).and_then(|prepared| provider.send(&prepared, &mut options));
    Asked { outcome, shown }
}

/// Returns an answer's message in a conversation.
pub(crate) fn message_of(answer: &ProviderAnswer) -> ConversationMessage {
    ConversationMessage {
        content: answer.content.clone(),
        tool_calls: answer.calls.clone(),
        blocks: answer.blocks.clone(),
        ..ConversationMessage::new(Role::Assistant, "")
    }
}

pub(crate) fn result_of(call: &ToolCallRecord, text: &str) -> ConversationMessage {
    ConversationMessage {
        tool_call_id: Some(call.call_id.clone()),
        name: Some(call.name.clone()),
        ..ConversationMessage::new(Role::Tool, text)
    }
}
