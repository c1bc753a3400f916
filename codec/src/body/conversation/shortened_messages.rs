//! Encodes and decodes the replacement of a part of a conversation for the provider.

use std::borrow::Cow;

use super::{ConversationScope, Role, conversation_fields};
use crate::body::fields::{decode, encode, map_fields};
use crate::body::json::{NameBudget, Object, array, payload};
use crate::body::operation::payload_len;
use crate::body::{Body, Payload};
use crate::{Error, SequenceNumber};

/// Records that the provider is sent other messages in place of a part of the conversation. That
/// part stays in the log.
#[derive(Clone, Debug, Default, PartialEq)]
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShortenedMessage<'a> {
    /// Author of the message.
    pub role: Role,
    /// Text, as one MessagePack string.
    pub content: Payload<'a>,
}

conversation_fields! { impl<'a> Shortened<'a> {
    "from" => from [required],
    "to" => to [required],
    "msgs" => messages [always],
    "why" => reason,
}}

map_fields! { impl<'a> ShortenedMessage<'a> {
    "r" => role [required],
    "c" => content [required],
}}

impl<'a> Shortened<'a> {
    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        self.messages.iter_mut().map(|message| &mut message.content)
    }

    /// Encodes the body of a `shortened` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let messages: usize =
            self.messages.iter().map(|message| payload_len(Some(message.content)) + 16).sum();
        encode(self.scope.room() + messages + self.reason.len(), self)
    }

    /// Decodes the body of a `shortened` record.
    pub fn decode(bytes: &'a [u8]) -> Result<Shortened<'a>, Error> {
        decode("shortened", bytes)
    }
}

impl<'a> Body<'a> for Shortened<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("from", self.from);
        object.set("to", self.to);
        let messages = array(self.messages.into_iter(), |message| {
            let mut object = Object::with_capacity(2);
            object.set("role", message.role.name());
            object.set("content", payload(message.content)?);
            Ok(object.into_part())
        });
        object.set("messages", messages?);
        object.set("reason", self.reason);
        Ok(())
    }
}
