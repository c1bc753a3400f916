//! Encodes and decodes the identity of a conversation's prompt, and the acceptance of a changed
//! prompt.

use std::borrow::Cow;
use std::iter;

use super::{ConversationScope, ScopeFields};
use crate::Error;
use crate::body::fields::{fixed, require_field, walk, walk_map};
use crate::body::json::{NameBudget, Object, Part, optional_digest};
use crate::body::{Body, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};

const ACCEPTED: &str = "prompt_accepted";

/// Identifies a prompt by its names and by a digest of its unrendered form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptIdentity<'a> {
    /// Namespace of the prompt.
    pub namespace: Cow<'a, str>,
    /// Key of the prompt within its namespace.
    pub key: Cow<'a, str>,
    /// BLAKE3 of the prompt's template, tools and output schema.
    pub digest: [u8; 32],
}

impl<'a> PromptIdentity<'a> {
    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        writer.map(3).str("ns").str(&self.namespace).str("key").str(&self.key).str("d").bin(&self.digest);
    }

    pub(super) fn read(
        kind: &'static str,
        reader: &mut MsgpackReader<'a>,
    ) -> Result<PromptIdentity<'a>, Error> {
        let (mut namespace, mut key, mut digest) = (None, None, None);
        walk_map(reader, |name, value| {
            match name {
                "ns" => namespace = Some(Cow::Borrowed(value.str()?)),
                "key" => key = Some(Cow::Borrowed(value.str()?)),
                "d" => digest = Some(fixed(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(PromptIdentity {
            namespace: require_field(kind, "ns", namespace)?,
            key: require_field(kind, "key", key)?,
            digest: require_field(kind, "d", digest)?,
        })
    }
}

/// Records that a prompt was accepted although it has changed since the conversation started.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let mut fields = self.scope.begin(128);
        self.was.write(fields.field("was"));
        self.now.write(fields.field("now"));
        fields.text("by", Some(&self.by));
        fields.text("why", Some(&self.reason));
        fields.finish()
    }

    /// Decodes the body of a `prompt_accepted` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<PromptAccepted<'a>, Error> {
        let mut scope = ScopeFields::default();
        let (mut was, mut now) = (None, None);
        let (mut by, mut reason) = (Cow::Borrowed(""), Cow::Borrowed(""));
        walk(ACCEPTED, bytes, |name, value| {
            match name {
                "was" => was = Some(PromptIdentity::read(ACCEPTED, value)?),
                "now" => now = Some(PromptIdentity::read(ACCEPTED, value)?),
                "by" => by = Cow::Borrowed(value.str()?),
                "why" => reason = Cow::Borrowed(value.str()?),
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        let (was, now) = (require_field(ACCEPTED, "was", was)?, require_field(ACCEPTED, "now", now)?);
        Ok(PromptAccepted { scope: scope.finish(ACCEPTED)?, was, now, by, reason })
    }
}

impl<'a> Body<'a> for PromptAccepted<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("was", prompt_json(self.was));
        object.set("now", prompt_json(self.now));
        object.set("by", Value::from(self.by.into_owned()));
        object.set("reason", Value::from(self.reason.into_owned()));
        Ok(())
    }
}

pub(super) fn prompt_json<'a>(prompt: PromptIdentity<'_>) -> Part<'a> {
    let mut object = Object::with_capacity(3);
    object.set("namespace", Value::from(prompt.namespace.into_owned()));
    object.set("key", Value::from(prompt.key.into_owned()));
    object.set("digest", optional_digest(Some(prompt.digest)));
    object.into_part()
}
