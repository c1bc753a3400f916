//! Conversations in exports.
//!
//! An export holds each conversation's complete turns, as an item of one slice whose name other programs know too. An item
//! also holds whether the evaluation is complete (`complete`) and the prompt's digest in hexadecimal (`prompt_digest`), so that an imported conversation goes on with the prompt
//! that it began with.

use foldlog_codec::msgpack::Value;

use super::entries::Conversation;
use crate::error::{Error, Result};
use crate::snapshot_json::ExportedSlice;

/// Name of the slice, and of the type of its items, in exports.
pub(crate) const CONVERSATION: &str = "weakincentives.runtime.conversation:ConversationState";

/// Returns the slice of these conversations; `None` if none of them has a rendered prompt or a complete turn.
///
/// # Errors
///
/// [`Error::Export`] if a state has no JSON form.
pub(crate) fn exported(conversations: &[Conversation]) -> Result<Option<ExportedSlice>> {
    let refused = |error: serde_json::Error| Error::Export(format!("a conversation: {error}"));
    let mut items = Vec::new();
    for conversation in conversations {
        let Some(state) = conversation.state() else { continue };
        let mut json = serde_json::to_value(&state).map_err(refused)?;
        if let (Some(fields), Some(prompt)) = (json.as_object_mut(), conversation.prompt()) {
            let digest = blake3::Hash::from_bytes(prompt.digest).to_hex().to_string();
            fields.insert("prompt_digest".to_owned(), digest.into());
            fields.insert("complete".to_owned(), conversation.is_complete().into());
        }
        items.push(serde_json::from_value::<Value>(json).map_err(refused)?);
    }
    let (slice_type, item_type) = (CONVERSATION.to_owned(), CONVERSATION.to_owned());
    Ok((!items.is_empty()).then_some(ExportedSlice {
        slice_type,
        item_type,
        items,
        item_versions: Vec::new(),
    }))
}
