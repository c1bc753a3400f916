//! Renders messages in the form that a provider takes.
//!
//! | form | function |
//! |---|---|
//! | OpenAI, as it would be sent | [`render_openai`] |
//! | OpenAI, as it was recorded | [`render_openai_recorded`] |
//! | Anthropic, as it would be sent | [`render_anthropic`], and [`render_anthropic_system`] for what stands beside the messages |
//!
//! # Content blocks
//!
//! [`ContentBlocks`](foldlog::conversation::ContentBlocks) in the provider's own form are sent byte for byte. Blocks in
//! another form are reduced to text: the texts one after the other, thinking and reasoning left out, tool calls left out
//! since the message names them itself, and `[image]`, the type in brackets, on a line of its own for whatever else there
//! is. Blocks that are not JSON are replaced by the message's text, and so are blocks that ask for
//! another number of calls than the message.
//!
//! # Invariants
//!
//! 1. Every call that is sent has an id of its own. Where two calls share one, the later one gets a suffix: `a`, `a_2`,
//!    `a_3`. A result names the id of the call that it answers: the first unanswered one of the answer before it that was
//!    recorded with the same id. An id that stands in content blocks is altered last, and alone of its block, as is a tool's name that no
//!    provider takes.
//! 2. Arguments and texts are not altered. What Anthropic refuses is left out: texts without a visible character, thinking
//!    that an answer ends with, and messages that hold nothing else. A failed result without a text gets one.
//! 3. The same messages are rendered to the same bytes.

mod anthropic;
mod ids;
mod openai;
mod reduction;

use std::borrow::Cow;

use foldlog::conversation::ConversationMessage;

#[cfg(feature = "anthropic")]
pub(super) use self::anthropic::{AnthropicConversation, input, made_blocks};
#[cfg(feature = "openai")]
pub(super) use self::openai::messages as openai_messages;
pub(super) use self::reduction::text_of_blocks;

/// Renders messages as the JSON array of messages that OpenAI's chat completions take.
pub fn render_openai(messages: &[ConversationMessage]) -> String {
    json(&openai::messages(messages, &[]))
}

/// Renders messages as OpenAI messages, with the ids and the names that they were recorded with.
///
/// A provider may refuse them: ids can repeat, and calls can be without a result.
pub fn render_openai_recorded(messages: &[ConversationMessage]) -> String {
    json(&openai::render_recorded(messages))
}

/// Renders messages as the JSON array of messages that Anthropic's Messages API takes. System messages are no part of it.
pub fn render_anthropic(messages: &[ConversationMessage]) -> String {
    json(&anthropic::AnthropicConversation::new(messages, &[]).messages)
}

/// Renders the system messages as the JSON that Anthropic's Messages API takes for `system`; `None` if there are none.
pub fn render_anthropic_system(messages: &[ConversationMessage]) -> Option<String> {
    anthropic::AnthropicConversation::new(messages, &[]).system.map(|system| json(&system))
}

/// Encodes a value whose parts are texts and checked JSON, so that nothing of it can fail to be encoded.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns a tool's name as a provider takes it in a call: known names as they are, others with `_` for each character
/// that no name may hold, and not longer than `longest`.
pub(super) fn sent_name<'a>(name: &'a str, known: &[&str], longest: usize) -> Cow<'a, str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if known.contains(&name) || (!name.is_empty() && name.len() <= longest && name.bytes().all(fits)) {
        return name.into();
    }
    if name.is_empty() {
        return "unnamed".into();
    }
    let fit = |character: char| if character.is_ascii() && fits(character as u8) { character } else { '_' };
    name.chars().take(longest).map(fit).collect::<String>().into()
}
