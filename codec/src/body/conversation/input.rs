//! Encodes and decodes a message that the host adds to a conversation.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::prompt::prompt_json;
use super::{Blocks, ConversationScope, PromptIdentity, blocks_json, conversation_fields};
use crate::Error;
use crate::body::fields::{decode, encode};
use crate::body::json::{NameBudget, Object, Part, optional};
use crate::body::operation::{CallOrigin, asked_by, named, payload_len};
use crate::body::{Body, Payload};
use crate::msgpack::Value;

named! {
    /// Names the author of a message.
    #[derive(Default)]
    Role {
        /// The rendered prompt.
        System = "system",
        /// The user, or the host in the user's place.
        #[default]
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// A tool, with the result of a call.
        Tool = "tool",
    }
}

/// Records a message that the host adds to a conversation: the rendered prompt, a user's message,
/// or the result of a call that another engine ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Input<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// Author of the message.
    pub role: Role,
    /// Text of the message, as one MessagePack string; `None` if the message has no text.
    pub content: Option<Payload<'a>>,
    /// Message in the form of one provider, if the text does not express all of it.
    pub blocks: Option<Blocks<'a>>,
    /// The host's id of the message. A message whose id is already in the conversation is not
    /// recorded again.
    pub id: Option<Cow<'a, str>>,
    /// Name of the speaker, or of the tool.
    pub name: Option<Cow<'a, str>>,
    /// Prompt that the message renders; set for the role `system`.
    pub prompt: Option<PromptIdentity<'a>>,
    /// The provider's id of the call with this result; set for the role `tool`.
    pub call_id: Option<Cow<'a, str>>,
    /// Call with this result, if it ran elsewhere. The record closes the call.
    pub origin: Option<CallOrigin>,
    /// Whether the call with this result failed.
    pub is_error: bool,
    /// Other data of the adapter about the message: JSON, as one MessagePack string.
    pub payload: Option<Payload<'a>>,
}

conversation_fields! { impl<'a> Input<'a> {
    "r" => role,
    "c" => content,
    "blocks" => blocks,
    "id" => id,
    "n" => name,
    "p" => prompt,
    "call" => call_id,
    "by" => origin,
    "failed" => is_error,
    "pp" => payload,
}}

impl<'a> Input<'a> {
    /// Creates a message of a role with a text, and nothing else.
    pub fn new(scope: ConversationScope<'a>, role: Role, content: Payload<'a>) -> Input<'a> {
        Input { scope, role, content: Some(content), ..Input::default() }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let blocks = self.blocks.as_mut().map(|blocks| &mut blocks.json);
        self.content.as_mut().into_iter().chain(blocks).chain(self.payload.as_mut())
    }

    /// Encodes the body of an `input` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let blocks = self.blocks.as_ref().map(|blocks| blocks.json);
        let payloads: usize = [self.content, blocks, self.payload].into_iter().map(payload_len).sum();
        encode(self.scope.room() + payloads, self)
    }

    /// Decodes the body of an `input` record.
    pub fn decode(bytes: &'a [u8]) -> Result<Input<'a>, Error> {
        decode("input", bytes)
    }
}

impl<'a> Body<'a> for Input<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("role", self.role.name());
        object.set("content", optional(self.content)?);
        object.set("blocks", blocks_json(self.blocks)?);
        object.set("id", self.id);
        // A listing uses `name` for the name of the record itself.
        object.set("speaker", self.name);
        object.set("prompt", self.prompt.map_or(Part::Value(Value::Nil), prompt_json));
        object.set("call_id", self.call_id);
        object.set("asked_by", asked_by(self.origin));
        object.flag("is_error", self.is_error);
        object.set("provider_payload", optional(self.payload)?);
        Ok(())
    }
}
