//! Conversations and the states of adapters in exports.
//!
//! An export contains the complete turns of each conversation as an item of one slice, with a name
//! that other programs know. An item also contains whether the evaluation is complete (`complete`)
//! and the prompt's digest in hexadecimal (`prompt_digest`), so that an imported conversation
//! continues with its original prompt.

use foldlog_codec::msgpack::Value;

use super::entries::Conversation;
use super::model::AdapterStateSnapshot;
use crate::error::{Error, Result};
use crate::snapshot_json::ExportedSlice;

/// Name of the slice of conversations, and of the type of its items, in exports.
pub(crate) const CONVERSATION: &str = "weakincentives.runtime.conversation:ConversationState";

/// Name of the slice of adapter states, and of the type of its items, in exports.
pub(crate) const ADAPTER_STATES: &str = "weakincentives.runtime.adapter_state:AdapterStateSnapshot";

/// Returns the slices of these conversations and states, in the order of their names.
///
/// # Errors
///
/// [`Error::Export`] if a state has no JSON form.
pub(crate) fn exported_slices(
    conversations: &[Conversation],
    states: &[AdapterStateSnapshot],
) -> Result<Vec<ExportedSlice>> {
    Ok(exported_states(states)?.into_iter().chain(exported_conversations(conversations)?).collect())
}

/// Returns the slice of these states, including abandoned ones; `None` if there are none.
fn exported_states(states: &[AdapterStateSnapshot]) -> Result<Option<ExportedSlice>> {
    let refused = |error: serde_json::Error| Error::Export(format!("the state of an adapter: {error}"));
    let item = |state: &AdapterStateSnapshot| {
        serde_json::from_value::<Value>(serde_json::to_value(state).map_err(refused)?).map_err(refused)
    };
    let items: Result<Vec<Value>> = states.iter().map(item).collect();
    Ok(slice_of(ADAPTER_STATES, items?))
}

fn slice_of(name: &str, items: Vec<Value>) -> Option<ExportedSlice> {
    let (slice_type, item_type) = (name.to_owned(), name.to_owned());
    (!items.is_empty()).then_some(ExportedSlice { slice_type, item_type, items, item_versions: Vec::new() })
}

/// Returns the slice of these conversations; `None` if none of them has a rendered prompt or a
/// complete turn.
///
/// # Errors
///
/// [`Error::Export`] if a state has no JSON form.
fn exported_conversations(conversations: &[Conversation]) -> Result<Option<ExportedSlice>> {
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
    Ok(slice_of(CONVERSATION, items))
}
