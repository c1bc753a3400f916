//! The histories that real providers refuse. Written from their documentation, independent of the
//! engine's validator: if the two disagree, a test fails.
//!
//! The tests that cross crates read this file too.

use std::collections::HashSet;

use serde_json::Value;

/// Selects the rules of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// OpenAI's chat completions.
    OpenAi,
    /// Anthropic's Messages API.
    Anthropic,
}

/// Returns a description of the rule that a request's body breaks.
pub(crate) fn broken(protocol: Protocol, body: &Value) -> Option<String> {
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
    let Some(messages) = messages else { return Some("messages: at least one message is required".into()) };
    match protocol {
        Protocol::Anthropic => anthropic(body, messages).err(),
        Protocol::OpenAi => openai(messages).err(),
    }
}

fn check(holds: bool, rule: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule()) }
}

fn openai(messages: &[Value]) -> Result<(), String> {
    let (mut ids, mut open): (HashSet<String>, Vec<String>) = (HashSet::new(), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let content = &message["content"];
        check(["system", "user", "assistant", "tool"].contains(&role), || {
            format!("messages.{at}: role {role}")
        })?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let answered = open.iter().position(|open| open == id);
            let answered = answered.ok_or_else(|| {
                format!("messages with role 'tool' must be a response to a preceding message with 'tool_calls': {at}")
            })?;
            open.remove(answered);
        } else {
            check(open.is_empty(), || format!("tool_call_ids did not have response messages: {open:?}"))?;
        }
        let calls = message.get("tool_calls");
        let text = content.is_string() || content.as_array().is_some_and(|parts| !parts.is_empty());
        check(text || calls.is_some() && content.is_null(), || format!("messages.{at}: invalid content"))?;
        let Some(calls) = calls else { continue };
        let calls = calls.as_array().filter(|calls| !calls.is_empty());
        let calls = calls.ok_or_else(|| format!("messages.{at}.tool_calls: empty array"))?;
        for call in calls {
            let (id, name) = (call["id"].as_str(), call["function"]["name"].as_str().unwrap_or_default());
            let id = id
                .filter(|id| !id.is_empty() && id.len() <= 40)
                .ok_or_else(|| format!("{at}: id of a call"))?;
            check(ids.insert(id.to_owned()), || format!("messages.{at}: duplicate tool call id {id}"))?;
            check(is_name(name, 64), || format!("messages.{at}: name {name} does not match the pattern"))?;
            check(call["type"] == "function", || format!("messages.{at}: type of a call"))?;
            check(call["function"]["arguments"].is_string(), || format!("messages.{at}: arguments"))?;
            open.push(id.to_owned());
        }
    }
    check(open.is_empty(), || format!("tool_call_ids did not have response messages: {open:?}"))
}

fn is_name(name: &str, longest: usize) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=longest).contains(&name.len()) && name.chars().all(fits)
}

fn anthropic(body: &Value, messages: &[Value]) -> Result<(), String> {
    check(body["max_tokens"].is_u64(), || "max_tokens: field required".into())?;
    let (mut ids, mut open): (HashSet<String>, Vec<String>) = (HashSet::new(), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        check(message["role"] == role, || {
            format!("messages.{at}: roles must alternate, and begin with user")
        })?;
        let text = [serde_json::json!({ "type": "text", "text": message["content"] })];
        let blocks = message["content"].as_array().map_or(&text[..], Vec::as_slice);
        check(!blocks.is_empty(), || format!("messages.{at}: content must not be empty"))?;
        let mut answered = HashSet::new();
        for (place, block) in blocks.iter().enumerate() {
            let here = || format!("messages.{at}.content.{place}");
            match block["type"].as_str().unwrap_or_default() {
                "text" => {
                    let text = block["text"].as_str().unwrap_or_default();
                    check(!text.trim().is_empty(), || format!("{}: text must be non-empty", here()))?;
                    let last = at + 1 == messages.len() && place + 1 == blocks.len() && role == "assistant";
                    check(!last || text.trim_end() == text, || format!("{}: trailing whitespace", here()))?;
                }
                "tool_use" => {
                    let id = block["id"].as_str().unwrap_or_default();
                    check(role == "assistant", || format!("{}: tool_use of a user", here()))?;
                    check(is_name(id, 200), || format!("{}: id does not match the pattern", here()))?;
                    check(is_name(block["name"].as_str().unwrap_or_default(), 128), || {
                        format!("{}: name", here())
                    })?;
                    check(block["input"].is_object(), || format!("{}: input is no dictionary", here()))?;
                    check(ids.insert(id.to_owned()), || "`tool_use` ids must be unique".into())?;
                    open.push(id.to_owned());
                }
                "tool_result" => {
                    let id = block["tool_use_id"].as_str().unwrap_or_default();
                    check(answered.len() == place, || format!("{}: results come first", here()))?;
                    check(open.iter().any(|open| open == id), || {
                        format!("{}: unexpected tool_use_id", here())
                    })?;
                    check(answered.insert(id.to_owned()), || {
                        format!("{}: each call has one result", here())
                    })?;
                    let content = &block["content"];
                    let says = content.as_str().is_some_and(|text| !text.is_empty()) || content.is_array();
                    check(says || block["is_error"] != true, || format!("{}: content of a failure", here()))?;
                    check(content.is_null() || says, || format!("{}: content cannot be empty", here()))?;
                }
                "thinking" => check(block["signature"].is_string(), || format!("{}: signature", here()))?,
                _ => {}
            }
        }
        let last = blocks.last().and_then(|block| block["type"].as_str()).unwrap_or_default();
        check(!last.ends_with("thinking"), || {
            format!("messages.{at}: The final block in an assistant message cannot be `thinking`.")
        })?;
        if role == "user" {
            check(answered.len() == open.len(), || "`tool_use` ids were found without `tool_result`".into())?;
            open.clear();
        }
    }
    check(open.is_empty(), || "`tool_use` ids were found without `tool_result` blocks".into())
}
