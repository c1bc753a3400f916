//! Encodes and decodes the replacement of a part of a conversation for the provider.

use std::borrow::Cow;

use super::{ConversationScope, Role, ScopeFields, len};
use crate::body::fields::{list, require_field, walk, walk_map};
use crate::body::json::{NameBudget, Object, array, payload};
use crate::body::operation::read_named;
use crate::body::{Body, Payload};
use crate::msgpack::{MsgpackReader, Value};
use crate::{Error, SequenceNumber};

const SHORTENED: &str = "shortened";

/// Records that the provider is sent other messages in place of a part of the conversation. That
/// part stays in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortened<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// First record of the replaced part.
    pub from: SequenceNumber,
    /// Last record of the replaced part.
    pub to: SequenceNumber,
    /// Messages that are sent in its place.
    pub messages: Vec<ShortenedMessage<'a>>,
    /// Why the conversation is shortened.
    pub reason: Cow<'a, str>,
}

/// Contains a message that replaces a part of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortenedMessage<'a> {
    /// Author of the message.
    pub role: Role,
    /// Text, as one MessagePack string.
    pub content: Payload<'a>,
}

impl<'a> Shortened<'a> {
    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        self.messages.iter_mut().map(|message| &mut message.content)
    }

    /// Encodes the body of a `shortened` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let messages: usize = self.messages.iter().map(|message| len(Some(&message.content)) + 16).sum();
        let mut fields = self.scope.begin(messages + self.reason.len());
        fields.sequence("from", Some(self.from));
        fields.sequence("to", Some(self.to));
        let writer = fields.field("msgs").array(self.messages.len());
        for message in &self.messages {
            writer.map(2).str("r").str(message.role.name()).str("c").raw(message.content.bytes());
        }
        fields.text("why", (!self.reason.is_empty()).then_some(&self.reason));
        fields.finish()
    }

    /// Decodes the body of a `shortened` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Shortened<'a>, Error> {
        let mut scope = ScopeFields::default();
        let (mut from, mut to, mut messages, mut reason) = (None, None, Vec::new(), Cow::Borrowed(""));
        walk(SHORTENED, bytes, |name, value| {
            match name {
                "from" => from = Some(value.unsigned()?.into()),
                "to" => to = Some(value.unsigned()?.into()),
                "msgs" => messages = list(value, ShortenedMessage::read)?,
                "why" => reason = Cow::Borrowed(value.str()?),
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        let (from, to) = (require_field(SHORTENED, "from", from)?, require_field(SHORTENED, "to", to)?);
        Ok(Shortened { scope: scope.finish(SHORTENED)?, from, to, messages, reason })
    }
}

impl<'a> ShortenedMessage<'a> {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<ShortenedMessage<'a>, Error> {
        let (mut role, mut content) = (None, None);
        walk_map(reader, |name, value| {
            match name {
                "r" => role = Some(read_named(SHORTENED, name, value, Role::from_name)?),
                "c" => content = Some(Payload::new(value.rest())),
                _ => {}
            }
            Ok(())
        })?;
        let (role, content) =
            (require_field(SHORTENED, "msgs.r", role)?, require_field(SHORTENED, "msgs.c", content)?);
        Ok(ShortenedMessage { role, content })
    }
}

impl<'a> Body<'a> for Shortened<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("from", Value::from(self.from));
        object.set("to", Value::from(self.to));
        let messages = array(self.messages.into_iter(), |message| {
            let mut object = Object::with_capacity(2);
            object.set("role", Value::from(message.role.name()));
            object.set("content", payload(message.content)?);
            Ok(object.into_part())
        });
        object.set("messages", messages?);
        object.set("reason", Value::from(self.reason.into_owned()));
        Ok(())
    }
}
