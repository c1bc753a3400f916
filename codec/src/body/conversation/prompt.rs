//! Encodes and decodes the identity of a conversation's prompt, and the acceptance of a changed
//! prompt.

use std::borrow::Cow;

use super::{ConversationScope, conversation_fields};
use crate::Error;
use crate::body::Body;
use crate::body::fields::{decode, encode, map_fields};
use crate::body::json::{NameBudget, Object, Part, hex};

/// Identifies a prompt by its names and by a digest of its unrendered form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptIdentity<'a> {
    /// Namespace of the prompt.
    pub namespace: Cow<'a, str>,
    /// Key of the prompt within its namespace.
    pub key: Cow<'a, str>,
    /// BLAKE3 of the prompt's template, tools and output schema.
    pub digest: [u8; 32],
}

map_fields! { impl<'a> PromptIdentity<'a> {
    "ns" => namespace [required],
    "key" => key [required],
    "d" => digest [required],
}}

/// Records that a prompt was accepted although it has changed since the conversation started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptAccepted<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// Prompt that the conversation has followed so far.
    pub was: PromptIdentity<'a>,
    /// Prompt that it follows from now on.
    pub now: PromptIdentity<'a>,
    /// Name of the person or program that accepted the prompt.
    pub by: Cow<'a, str>,
    /// Reason of the decision.
    pub reason: Cow<'a, str>,
}

conversation_fields! { impl<'a> PromptAccepted<'a> {
    "was" => was [required],
    "now" => now [required],
    "by" => by [always],
    "why" => reason [always],
}}

impl<'a> PromptAccepted<'a> {
    /// Encodes the body of a `prompt_accepted` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(self.scope.room() + 128, self)
    }

    /// Decodes the body of a `prompt_accepted` record.
    pub fn decode(bytes: &'a [u8]) -> Result<PromptAccepted<'a>, Error> {
        decode("prompt_accepted", bytes)
    }
}

impl<'a> Body<'a> for PromptAccepted<'a> {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("was", prompt_json(self.was));
        object.set("now", prompt_json(self.now));
        object.set("by", self.by);
        object.set("reason", self.reason);
        Ok(())
    }
}

pub(super) fn prompt_json<'a>(prompt: PromptIdentity<'_>) -> Part<'a> {
    let mut object = Object::with_capacity(3);
    object.set("namespace", prompt.namespace);
    object.set("key", prompt.key);
    object.set("digest", hex(prompt.digest));
    object.into_part()
}
