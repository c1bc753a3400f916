//! Encodes and decodes the captured state of an adapter.

use std::borrow::Cow;

use super::{ConversationScope, conversation_fields};
use crate::body::fields::{decode, encode};
use crate::body::json::{NameBudget, Object, payload};
use crate::body::operation::payload_len;
use crate::body::{Body, Payload};
use crate::{Error, SequenceNumber};

/// Records the data that an adapter needs to resume its provider's session. No rollback affects it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterState<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// Name of the adapter's type. A reader preserves the states of adapters that it does not know.
    pub adapter: Cow<'a, str>,
    /// Whether the provider's session can be resumed from this state.
    pub resumable: bool,
    /// State, in the adapter's own form: a value of the host.
    pub state: Payload<'a>,
    /// Earlier `adapter_state` record that this one replaces.
    pub supersedes: Option<SequenceNumber>,
    /// Last entry of the provider's session that the state covers, by the provider's own id.
    pub entry: Option<Cow<'a, str>>,
    /// Occasion on which the adapter captured its state, such as `init`, `tool` or `complete`.
    pub occasion: Cow<'a, str>,
}

conversation_fields! { impl<'a> AdapterState<'a> {
    "t" => adapter [required],
    "res" => resumable,
    "st" => state [required],
    "sup" => supersedes,
    "ent" => entry,
    "at" => occasion,
}}

impl<'a> AdapterState<'a> {
    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        std::iter::once(&mut self.state)
    }

    /// Encodes the body of an `adapter_state` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(self.scope.room() + payload_len(Some(self.state)) + self.adapter.len(), self)
    }

    /// Decodes the body of an `adapter_state` record.
    pub fn decode(bytes: &'a [u8]) -> Result<AdapterState<'a>, Error> {
        decode("adapter_state", bytes)
    }
}

impl<'a> Body<'a> for AdapterState<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("adapter", self.adapter);
        object.set("resumable", self.resumable);
        object.set("state", payload(self.state)?);
        object.set("supersedes", self.supersedes);
        object.set("entry", self.entry);
        object.set("occasion", self.occasion);
        Ok(())
    }
}
