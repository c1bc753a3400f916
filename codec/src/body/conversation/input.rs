//! Encodes and decodes a message that the host adds to a conversation.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::prompt::prompt_json;
use super::{Blocks, ConversationScope, PromptIdentity, ScopeFields, blocks_json, len};
use crate::Error;
use crate::body::fields::walk;
use crate::body::json::{NameBudget, Object, Part, optional, optional_text};
use crate::body::operation::{CallOrigin, asked_by, named, read_named};
use crate::body::{Body, Payload};
use crate::msgpack::Value;

const INPUT: &str = "input";

named! {
    /// Names the author of a message.
    Role {
        /// The rendered prompt.
        System = "system",
        /// The user, or the host in the user's place.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// A tool, with the result of a call.
        Tool = "tool",
    }
}

/// Records a message that the host adds to a conversation: the rendered prompt, a user's message,
/// or the result of a call that another engine ran.
#[derive(Clone, Debug, PartialEq)]
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

impl<'a> Input<'a> {
    /// Creates a message of a role with a text, and nothing else.
    pub fn new(scope: ConversationScope<'a>, role: Role, content: Payload<'a>) -> Input<'a> {
        Input::from_parts(scope, role, Some(content))
    }

    fn from_parts(scope: ConversationScope<'a>, role: Role, content: Option<Payload<'a>>) -> Input<'a> {
        let (blocks, id, name, prompt, call_id, origin) = (None, None, None, None, None, None);
        let is_error = false;
        Input { scope, role, content, blocks, id, name, prompt, call_id, origin, is_error, payload: None }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let blocks = self.blocks.as_mut().map(|blocks| &mut blocks.json);
        self.content.as_mut().into_iter().chain(blocks).chain(self.payload.as_mut())
    }

    /// Encodes the body of an `input` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let blocks = self.blocks.as_ref().map(|blocks| &blocks.json);
        let payloads = [self.content.as_ref(), blocks, self.payload.as_ref()];
        let mut fields = self.scope.begin(payloads.into_iter().map(len).sum());
        fields.text("r", (self.role != Role::User).then(|| self.role.name()));
        fields.payload("c", self.content);
        if let Some(blocks) = &self.blocks {
            blocks.write(fields.field("blocks"));
        }
        fields.text("id", self.id.as_deref());
        fields.text("n", self.name.as_deref());
        if let Some(prompt) = &self.prompt {
            prompt.write(fields.field("p"));
        }
        fields.text("call", self.call_id.as_deref());
        if let Some(origin) = self.origin {
            origin.write(fields.field("by"));
        }
        fields.flag("failed", self.is_error);
        fields.payload("pp", self.payload);
        fields.finish()
    }

    /// Decodes the body of an `input` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Input<'a>, Error> {
        let mut scope = ScopeFields::default();
        let mut input = Input::from_parts(ConversationScope::default(), Role::User, None);
        walk(INPUT, bytes, |name, value| {
            match name {
                "r" => input.role = read_named(INPUT, name, value, Role::from_name)?,
                "c" => input.content = Some(Payload::new(value.rest())),
                "blocks" => input.blocks = Some(Blocks::read(INPUT, value)?),
                "id" => input.id = Some(Cow::Borrowed(value.str()?)),
                "n" => input.name = Some(Cow::Borrowed(value.str()?)),
                "p" => input.prompt = Some(PromptIdentity::read(INPUT, value)?),
                "call" => input.call_id = Some(Cow::Borrowed(value.str()?)),
                "by" => input.origin = Some(CallOrigin::read(value)?),
                "failed" => input.is_error = value.bool()?,
                "pp" => input.payload = Some(Payload::new(value.rest())),
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        input.scope = scope.finish(INPUT)?;
        Ok(input)
    }
}

impl<'a> Body<'a> for Input<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("role", Value::from(self.role.name()));
        object.set("content", optional(self.content)?);
        object.set("blocks", blocks_json(self.blocks)?);
        object.set("id", optional_text(self.id));
        // A listing uses `name` for the name of the record itself.
        object.set("speaker", optional_text(self.name));
        object.set("prompt", self.prompt.map_or(Part::Value(Value::Nil), prompt_json));
        object.set("call_id", optional_text(self.call_id));
        object.set("asked_by", asked_by(self.origin));
        if self.is_error {
            object.set("is_error", Value::from(true));
        }
        object.set("provider_payload", optional(self.payload)?);
        Ok(())
    }
}
