//! The output of a program that drives a model fits into the records of a conversation: nothing is
//! lost, and content that a provider must get back unchanged is stored byte for byte.
//!
//! The lines are those of an agent program of Anthropic. It writes one line for each content block
//! of an answer, with the same message's id in each, and its own fields around them.

// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, Blocks, ConversationScope, Input, Payload, Role, TokenUsage,
};
use foldlog_codec::msgpack::{self, Value};
use foldlog_codec::record::RecordNames;
use foldlog_codec::{Record, RecordKind};
use serde_json::value::RawValue;

const STREAM: &[&str] = &[
    r#"{"type":"system","subtype":"init","session_id":"s-1","cwd":"/work","tools":["Read","mcp__foldlog__search"],"mcp_servers":[{"name":"foldlog","status":"connected"}],"model":"model-5","permissionMode":"default","claude_code_version":"2.1.330","apiKeySource":"none","capabilities":{"mirror":true},"uuid":"u-0"}"#,
    r#"{"type":"user","session_id":"s-1","message":{"role":"user","content":"Find it, Zoë"},"parent_tool_use_id":null,"uuid":"u-1","client_composed":true}"#,
    r#"{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","model":"model-5","content":[{"type":"thinking","thinking":"Let me \"look\".","signature":"EqQBCkYIBxgCKkD/+a=="}],"stop_reason":null,"usage":{"input_tokens":12,"output_tokens":1,"cache_read_input_tokens":7000,"cache_creation_input_tokens":30,"service_tier":"standard"}},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-2"}"#,
    r#"{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","model":"model-5","content":[{"type":"redacted_thinking","data":"EmwKAhgB"}],"stop_reason":null,"usage":{"input_tokens":12,"output_tokens":1,"cache_read_input_tokens":7000,"cache_creation_input_tokens":30,"service_tier":"standard"}},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-3"}"#,
    r#"{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","model":"model-5","content":[{"type":"text","text":"I will read it.","citations":[{"type":"char_location","cited_text":"it"}]}],"stop_reason":null,"usage":{"input_tokens":12,"output_tokens":1,"cache_read_input_tokens":7000,"cache_creation_input_tokens":30,"service_tier":"standard"}},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-4"}"#,
    r#"{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","model":"model-5","content":[{"type":"tool_use","id":"toolu_1","name":"Read","input":{"path": "b.txt",  "limit": 1.50, "path": "a.txt"}}],"stop_reason":null,"usage":{"input_tokens":12,"output_tokens":1,"cache_read_input_tokens":7000,"cache_creation_input_tokens":30,"service_tier":"standard"}},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-5"}"#,
    r#"{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","model":"model-5","content":[{"type":"tool_use","id":"toolu_2","name":"Read","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":12,"output_tokens":95,"cache_read_input_tokens":7000,"cache_creation_input_tokens":30,"service_tier":"standard"}},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-6"}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_1","type":"tool_result","content":[{"type":"text","text":"the text"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}]},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-7","tool_use_result":{"type":"text","file":{"filePath":"a.txt","numLines":1}}}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_2","type":"tool_result","is_error":true,"content":"InputValidationError: path is missing"}]},"parent_tool_use_id":null,"session_id":"s-1","uuid":"u-8","tool_use_result":"Error: path is missing"}"#,
    r#"{"type":"assistant","message":{"id":"msg_2","type":"message","role":"assistant","model":"model-5","content":[{"type":"block_of_a_later_version","of":{"which":["nobody",-0.0,1e400]}}],"stop_reason":null,"usage":{"input_tokens":40,"output_tokens":1}},"parent_tool_use_id":"toolu_1","session_id":"s-1","uuid":"u-9"}"#,
    r#"{"type":"assistant","message":{"id":"msg_2","type":"message","role":"assistant","model":"model-5","content":[{"type":"text","text":""}],"stop_reason":"end_turn","usage":{"input_tokens":40,"output_tokens":2}},"parent_tool_use_id":"toolu_1","session_id":"s-1","uuid":"u-10"}"#,
    r#"{"type":"result","subtype":"success","is_error":false,"result":"the text","structured_output":{"n":2},"num_turns":2,"session_id":"s-1","usage":{"input_tokens":52,"cache_read_input_tokens":7000,"output_tokens":97,"server_tool_use":{"web_search_requests":0}},"total_cost_usd":0.0123,"modelUsage":{"model-5":{"inputTokens":52,"costUSD":0.0123}},"permission_denials":[],"duration_ms":2034,"terminal_reason":"completed","uuid":"u-11"}"#,
];

/// A line's fields by name, with their original bytes.
type Fields = BTreeMap<String, Box<RawValue>>;

fn fields(json: &str) -> Fields {
    serde_json::from_str(json).unwrap()
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn text_of(json: &RawValue) -> String {
    serde_json::from_str(json.get()).unwrap()
}

fn text_field(fields: &Fields, name: &str) -> Option<String> {
    serde_json::from_str(fields.get(name)?.get()).unwrap()
}

fn encoded(text: &str) -> Vec<u8> {
    Value::from(text).encode()
}

fn decoded(payload: Payload<'_>) -> String {
    msgpack::from_slice(payload.bytes()).unwrap()
}

fn object(fields: &Fields) -> String {
    serde_json::to_string(fields).unwrap()
}

/// Splits a line into the part around the content of its message, and that content.
fn split(line: &str) -> (String, Box<RawValue>) {
    let mut outer = fields(line);
    let mut message = fields(outer["message"].get());
    let content = message.remove("content").unwrap();
    outer.insert("message".to_owned(), raw(&object(&message)));
    (object(&outer), content)
}

/// Joins the parts that [`split`] made.
fn joined(around: &str, content: &str) -> String {
    let mut outer = fields(around);
    let mut message = fields(outer["message"].get());
    message.insert("content".to_owned(), raw(content));
    outer.insert("message".to_owned(), raw(&object(&message)));
    object(&outer)
}

fn scope() -> ConversationScope<'static> {
    ConversationScope::new("evaluation")
}

fn input(line: &str) -> Vec<u8> {
    let (around, content) = split(line);
    let (around, uuid) = (encoded(&around), text_field(&fields(line), "uuid").unwrap());
    if let Ok(text) = serde_json::from_str::<String>(content.get()) {
        let text = encoded(&text);
        let input = Input::new(scope(), Role::User, Payload::new(&text));
        return Input { id: Some(uuid.into()), payload: Some(Payload::new(&around)), ..input }.encode();
    }
    let blocks: Vec<Fields> = serde_json::from_str(content.get()).unwrap();
    let (json, call_id) = (encoded(content.get()), text_field(&blocks[0], "tool_use_id"));
    let shown = encoded("a result");
    Input {
        id: Some(uuid.into()),
        blocks: Some(Blocks { format: "anthropic".into(), json: Payload::new(&json) }),
        call_id: call_id.map(Into::into),
        payload: Some(Payload::new(&around)),
        ..Input::new(scope(), Role::Tool, Payload::new(&shown))
    }
    .encode()
}

/// Returns one answer of all lines with a part of it.
fn answer(lines: &[&str]) -> Vec<u8> {
    let parts: Vec<(String, Box<RawValue>)> = lines.iter().map(|line| split(line)).collect();
    let blocks: Vec<Box<RawValue>> = parts
        .iter()
        .flat_map(|(_, content)| serde_json::from_str::<Vec<Box<RawValue>>>(content.get()).unwrap())
        .collect();
    let around: Vec<Box<RawValue>> = parts.iter().map(|(around, _)| raw(around)).collect();
    let (json, payload) = (
        encoded(&serde_json::to_string(&blocks).unwrap()),
        encoded(&serde_json::to_string(&around).unwrap()),
    );
    let of_type = |wanted: &'static str| {
        let blocks = blocks.iter().map(|block| fields(block.get()));
        blocks.filter(move |block| text_of(&block["type"]) == wanted)
    };
    let text: String = of_type("text").map(|block| text_of(&block["text"])).collect();
    let text = encoded(&text);
    let calls: Vec<(String, String, Vec<u8>)> = of_type("tool_use")
        .map(|block| (text_of(&block["id"]), text_of(&block["name"]), encoded(block["input"].get())))
        .collect();
    let line = fields(lines.last().unwrap());
    let message = fields(line["message"].get());
    let usage: BTreeMap<String, serde_json::Value> = serde_json::from_str(message["usage"].get()).unwrap();
    let tokens = |name: &str| usage.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default();
    AnswerBody {
        calls: calls
            .iter()
            .map(|(id, name, arguments)| AnsweredCall {
                id: id.into(),
                name: name.into(),
                arguments: Payload::new(arguments),
                incomplete: false,
            })
            .collect(),
        blocks: Some(Blocks { format: "anthropic".into(), json: Payload::new(&json) }),
        stop: text_field(&message, "stop_reason").map(Into::into),
        model: text_field(&message, "model").map(Into::into),
        request_id: text_field(&message, "id").map(Into::into),
        usage: Some(TokenUsage {
            input: tokens("input_tokens"),
            output: tokens("output_tokens"),
            cache_read: tokens("cache_read_input_tokens"),
            cache_write: tokens("cache_creation_input_tokens"),
            reasoning: 0,
        }),
        payload: Some(Payload::new(&payload)),
        ..AnswerBody::new(scope(), Some(Payload::new(&text)))
    }
    .encode()
}

fn state(line: &str, occasion: &str, supersedes: Option<u64>) -> Vec<u8> {
    let value = msgpack::from_json(line).unwrap().encode();
    AdapterState {
        scope: scope(),
        adapter: "claude_agent_sdk".into(),
        resumable: true,
        state: Payload::new(&value),
        supersedes: supersedes.map(Into::into),
        entry: text_field(&fields(line), "uuid").map(Into::into),
        occasion: occasion.to_owned().into(),
    }
    .encode()
}

/// Returns the records of the stream in order.
fn recorded() -> Vec<(RecordKind, Vec<u8>)> {
    let message_id = |line: &&str| text_field(&fields(fields(line)["message"].get()), "id");
    let mut records = Vec::new();
    let mut lines = STREAM;
    while let [line, rest @ ..] = lines {
        let kind = text_of(&fields(line)["type"]);
        let mut taken = 1;
        records.push(match kind.as_str() {
            "system" => (RecordKind::AdapterState, state(line, "init", None)),
            "result" => (RecordKind::AdapterState, state(line, "complete", Some(0))),
            "user" => (RecordKind::Input, input(line)),
            _ => {
                let same = |other: &&&str| {
                    text_of(&fields(other)["type"]) == "assistant" && message_id(other) == message_id(line)
                };
                taken += rest.iter().take_while(same).count();
                (RecordKind::Answer, answer(&lines[..taken]))
            }
        });
        lines = &lines[taken..];
    }
    records
}

/// Returns the lines from which a record was made.
fn lines_of(kind: RecordKind, body: &[u8]) -> Vec<String> {
    match kind {
        RecordKind::AdapterState => {
            let state = AdapterState::decode(body).unwrap();
            vec![serde_json::to_string(&Value::decode(state.state.bytes()).unwrap()).unwrap()]
        }
        RecordKind::Input => {
            let input = Input::decode(body).unwrap();
            let content = match (input.blocks, input.content) {
                (Some(blocks), _) => decoded(blocks.json),
                (None, content) => serde_json::to_string(&decoded(content.unwrap())).unwrap(),
            };
            vec![joined(&decoded(input.payload.unwrap()), &content)]
        }
        _ => {
            let answer = AnswerBody::decode(body).unwrap();
            let (blocks, around) = (decoded(answer.blocks.unwrap().json), decoded(answer.payload.unwrap()));
            let blocks: Vec<Box<RawValue>> = serde_json::from_str(&blocks).unwrap();
            let around: Vec<Box<RawValue>> = serde_json::from_str(&around).unwrap();
            assert_eq!(blocks.len(), around.len());
            let lines = around.iter().zip(blocks);
            lines.map(|(around, block)| joined(around.get(), &format!("[{block}]"))).collect()
        }
    }
}

/// Returns a line with its fields sorted by name. The fields of its message's content keep their
/// order.
fn ordered(line: &str) -> String {
    match fields(line).contains_key("message") {
        true => {
            let (around, content) = split(line);
            joined(&around, content.get())
        }
        false => serde_json::to_string(&msgpack::from_json(line).unwrap()).unwrap(),
    }
}

#[test]
fn every_line_of_a_stream_can_be_written_again_from_its_records() {
    let records = recorded();
    let kinds: Vec<RecordKind> = records.iter().map(|(kind, _)| *kind).collect();
    let expected = [
        RecordKind::AdapterState,
        RecordKind::Input,
        RecordKind::Answer,
        RecordKind::Input,
        RecordKind::Input,
        RecordKind::Answer,
        RecordKind::AdapterState,
    ];
    assert_eq!(kinds, expected, "the lines of one message are one answer");
    let found: Vec<String> = records.iter().flat_map(|(kind, body)| lines_of(*kind, body)).collect();
    let lines: Vec<String> = STREAM.iter().map(|line| ordered(line)).collect();
    assert_eq!(found.len(), lines.len());
    found.iter().zip(&lines).for_each(|(found, line)| assert_eq!(found, line));
}

/// A provider refuses a conversation whose thinking does not match its signature, and a tool parses
/// its arguments itself. So numbers, spaces and repeated names keep their original bytes.
#[test]
fn what_a_provider_has_to_get_back_is_held_byte_for_byte() {
    let records = recorded();
    let answer = AnswerBody::decode(&records[2].1).unwrap();
    let blocks = decoded(answer.blocks.clone().unwrap().json);
    for block in [
        r#"{"type":"thinking","thinking":"Let me \"look\".","signature":"EqQBCkYIBxgCKkD/+a=="}"#,
        r#"{"type":"redacted_thinking","data":"EmwKAhgB"}"#,
        r#""citations":[{"type":"char_location","cited_text":"it"}]"#,
    ] {
        assert!(blocks.contains(block), "{blocks}");
    }
    assert_eq!(decoded(answer.content.unwrap()), "I will read it.");
    let calls: Vec<(&str, String)> =
        answer.calls.iter().map(|call| (&*call.id, decoded(call.arguments))).collect();
    let arguments = r#"{"path": "b.txt",  "limit": 1.50, "path": "a.txt"}"#;
    assert_eq!(calls, [("toolu_1", arguments.to_owned()), ("toolu_2", "{}".to_owned())]);
    let counted = TokenUsage { input: 12, output: 95, cache_read: 7000, cache_write: 30, reasoning: 0 };
    assert_eq!((answer.usage, answer.stop.as_deref()), (Some(counted), Some("tool_use")));
    let later = AnswerBody::decode(&records[5].1).unwrap();
    assert!(decoded(later.blocks.unwrap().json).contains(r#"["nobody",-0.0,1e400]"#));
    let refused = Input::decode(&records[4].1).unwrap();
    assert_eq!(refused.call_id.as_deref(), Some("toolu_2"));
    assert!(decoded(refused.blocks.unwrap().json).contains(r#""is_error":true"#));
    assert!(decoded(refused.payload.unwrap()).contains(r#""tool_use_result":"Error: path is missing""#));
}

/// The records can be shown, and their JSON contains the texts as strings.
#[test]
fn the_json_forms_hold_the_texts_as_they_are() {
    for (kind, body) in recorded() {
        let record = Record { sequence: 1.into(), kind, time_us: 0, body: &body };
        let shown = serde_json::to_value(record.to_json(&RecordNames::default()).unwrap()).unwrap();
        assert_eq!(shown["evaluation_id"], "evaluation");
        if let Some(blocks) = shown.get("blocks").filter(|blocks| !blocks.is_null()) {
            let json = blocks["json"].as_str().unwrap();
            assert!(serde_json::from_str::<Vec<Box<RawValue>>>(json).is_ok(), "{json}");
        }
        assert!(record.objects().is_empty());
    }
}
