//! Renders messages in the format of a provider.
//!
//! | format | function |
//! |---|---|
//! | OpenAI, as it would be sent | [`render_openai`] |
//! | OpenAI, as it was recorded | [`render_openai_recorded`] |
//! | Anthropic, as it would be sent | [`render_anthropic`], and [`render_anthropic_system`] for the system prompt, which is separate from the messages |
//!
//! # Content blocks
//!
//! [`ContentBlocks`](foldlog::conversation::ContentBlocks) in the provider's own form are sent byte
//! for byte. Blocks in another form are reduced to text. The texts are concatenated. Thinking and
//! reasoning are left out, and so are tool calls, because the message itself names them. Any other
//! block becomes its type in brackets, such as `[image]`, on its own line. Blocks that are not
//! JSON, or that contain another number of calls than the message, are replaced by the message's
//! text.
//!
//! # Invariants
//!
//! 1. Every call that is sent has a unique id. If two calls share one, the later one gets a suffix:
//!    `a`, `a_2`, `a_3`. But ids in content blocks take precedence over all others, so that the
//!    blocks can be sent unchanged. If such an id has to be replaced nevertheless, or if the tool's
//!    name in the block is invalid, nothing else in the block changes. A result has the id of its
//!    call: the first unanswered one of the preceding answer that was recorded with the same id.
//! 2. Arguments and texts are not changed. Parts that Anthropic refuses are left out: texts without
//!    a visible character, thinking at the end of an answer, and messages without other content. A
//!    failed result without a text gets one.
//! 3. The same messages are rendered to the same bytes.

mod anthropic;
mod ids;
mod openai;
mod reduction;

use std::borrow::Cow;

use foldlog::conversation::ConversationMessage;

use crate::pairing::MessageFormat;

#[cfg(feature = "anthropic")]
pub(super) use self::anthropic::{AnthropicConversation, input, made_blocks};
#[cfg(feature = "openai")]
pub(super) use self::openai::messages as openai_messages;
pub(super) use self::reduction::text_of_blocks;

/// Renders messages as the JSON array `messages` of OpenAI's chat completions.
pub fn render_openai(messages: &[ConversationMessage]) -> String {
    json(&openai::messages(messages, &[]))
}

/// Renders messages as OpenAI messages, with their recorded ids and names.
///
/// A provider may refuse them: ids can repeat, and calls can lack a result.
pub fn render_openai_recorded(messages: &[ConversationMessage]) -> String {
    json(&openai::render_recorded(messages))
}

/// Renders messages as the JSON array `messages` of Anthropic's Messages API, without the system
/// messages.
pub fn render_anthropic(messages: &[ConversationMessage]) -> String {
    json(&anthropic::AnthropicConversation::new(messages, &[]).messages)
}

/// Renders the system messages as the JSON `system` of Anthropic's Messages API; `None` if there
/// are none.
pub fn render_anthropic_system(messages: &[ConversationMessage]) -> Option<String> {
    anthropic::AnthropicConversation::new(messages, &[]).system.map(|system| json(&system))
}

/// Encodes a value that consists of texts and checked JSON, so that the encoding cannot fail.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Adapts a tool's name to a provider. Known names are unchanged. In other names, `_` replaces each
/// invalid character, and the length is limited.
pub(super) fn sent_name<'a>(name: &'a str, known: &[&str], format: MessageFormat) -> Cow<'a, str> {
    if known.contains(&name) || format.takes_tool(name) { name.into() } else { format.fit_tool(name).into() }
}
