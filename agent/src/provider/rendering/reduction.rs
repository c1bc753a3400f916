//! Reduces content blocks of one provider to text that every provider accepts.

use foldlog::conversation::ContentBlocks;
use serde_json::Value;

/// Types of blocks that are left out: only their provider reads them, or the message has their
/// contents in another form.
const SILENT: [&str; 6] =
    ["thinking", "redacted_thinking", "reasoning", "tool_use", "reasoning_content", "refusal"];

/// Returns content blocks as text, as the docs of [`rendering`](super) describe; `None` if they are
/// not JSON with content.
pub(crate) fn text_of_blocks(blocks: &ContentBlocks) -> Option<String> {
    let value: Value = serde_json::from_str(&blocks.json).ok()?;
    let content = match &value {
        Value::Object(message) => message.get("content")?,
        other => other,
    };
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let mut text = String::new();
            let mut after_mark = false;
            parts.iter().for_each(|part| add(&mut text, &mut after_mark, part));
            Some(text)
        }
        _ => None,
    }
}

fn add(text: &mut String, after_mark: &mut bool, part: &Value) {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    if SILENT.contains(&kind) {
        return;
    }
    let own = part.get("text").and_then(Value::as_str).or_else(|| part.as_str());
    let is_mark = own.is_none();
    if !text.is_empty() && (is_mark || *after_mark) && !text.ends_with('\n') {
        text.push('\n');
    }
    match own {
        Some(own) => text.push_str(own),
        None => {
            let named = kind.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40);
            let named: String = named.collect();
            text.push_str(&format!("[{}]", if named.is_empty() { "content" } else { &named }));
        }
    }
    *after_mark = is_mark;
}
