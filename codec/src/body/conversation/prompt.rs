//! Encodes and decodes the identity of a conversation's prompt, and the acceptance of a changed
//! prompt.

use std::borrow::Cow;

use super::ConversationScope;
use crate::Error;
use crate::body::Body;
use crate::body::fields::{WriteField, store, walk, walk_part};
use crate::body::json::{NameBudget, Object, Part, hex};
use crate::msgpack::{MsgpackReader, MsgpackWriter};

const ACCEPTED: &str = "prompt_accepted";

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

impl WriteField for PromptIdentity<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.map(3).str("ns").str(&self.namespace).str("key").str(&self.key).str("d").bin(&self.digest);
    }
}

impl<'a> PromptIdentity<'a> {
    pub(super) fn read(
        kind: &'static str,
        reader: &mut MsgpackReader<'a>,
    ) -> Result<PromptIdentity<'a>, Error> {
        let mut prompt = PromptIdentity::default();
        walk_part(kind, &["ns", "key", "d"], reader, |name, value| match name {
            "ns" => value.read_into(&mut prompt.namespace),
            "key" => value.read_into(&mut prompt.key),
            "d" => value.read_into(&mut prompt.digest),
            _ => Ok(()),
        })?;
        Ok(prompt)
    }
}

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

impl<'a> PromptAccepted<'a> {
    /// Encodes the body of a `prompt_accepted` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        self.scope.encode(128, |fields| {
            fields.set("was", &self.was);
            fields.set("now", &self.now);
            fields.set("by", &self.by);
            fields.set("why", &self.reason);
        })
    }

    /// Decodes the body of a `prompt_accepted` record.
    pub fn decode(bytes: &'a [u8]) -> Result<PromptAccepted<'a>, Error> {
        let mut accepted = PromptAccepted::default();
        walk(ACCEPTED, &["was", "now", "ev"], bytes, |name, value| match name {
            "was" => store(&mut accepted.was, PromptIdentity::read(ACCEPTED, value)),
            "now" => store(&mut accepted.now, PromptIdentity::read(ACCEPTED, value)),
            "by" => value.read_into(&mut accepted.by),
            "why" => value.read_into(&mut accepted.reason),
            _ => accepted.scope.take(name, value),
        })?;
        Ok(accepted)
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
