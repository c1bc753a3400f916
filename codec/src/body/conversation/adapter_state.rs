//! Encodes and decodes the captured state of an adapter.

use std::borrow::Cow;

use super::{ConversationScope, ScopeFields, len};
use crate::body::fields::{require_field, walk};
use crate::body::json::{NameBudget, Object, optional_sequence, optional_text, payload};
use crate::body::{Body, Payload};
use crate::msgpack::Value;
use crate::{Error, SequenceNumber};

const STATE: &str = "adapter_state";

/// Records the data that an adapter needs to resume its provider's session. No rollback affects it.
#[derive(Clone, Debug, PartialEq)]
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

impl<'a> AdapterState<'a> {
    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        std::iter::once(&mut self.state)
    }

    /// Encodes the body of an `adapter_state` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut fields = self.scope.begin(len(Some(&self.state)) + self.adapter.len());
        fields.text("t", Some(&self.adapter));
        fields.flag("res", self.resumable);
        fields.payload("st", Some(self.state));
        fields.sequence("sup", self.supersedes);
        fields.text("ent", self.entry.as_deref());
        fields.text("at", (!self.occasion.is_empty()).then_some(&self.occasion));
        fields.finish()
    }

    /// Decodes the body of an `adapter_state` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<AdapterState<'a>, Error> {
        let mut scope = ScopeFields::default();
        let (mut adapter, mut state, mut supersedes, mut entry) = (None, None, None, None);
        let (mut resumable, mut occasion) = (false, Cow::Borrowed(""));
        walk(STATE, bytes, |name, value| {
            match name {
                "t" => adapter = Some(Cow::Borrowed(value.str()?)),
                "res" => resumable = value.bool()?,
                "st" => state = Some(Payload::new(value.rest())),
                "sup" => supersedes = Some(value.unsigned()?.into()),
                "ent" => entry = Some(Cow::Borrowed(value.str()?)),
                "at" => occasion = Cow::Borrowed(value.str()?),
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        let (adapter, state) = (require_field(STATE, "t", adapter)?, require_field(STATE, "st", state)?);
        Ok(AdapterState {
            scope: scope.finish(STATE)?,
            adapter,
            resumable,
            state,
            supersedes,
            entry,
            occasion,
        })
    }
}

impl<'a> Body<'a> for AdapterState<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("adapter", Value::from(self.adapter.into_owned()));
        object.set("resumable", Value::from(self.resumable));
        object.set("state", payload(self.state)?);
        object.set("supersedes", optional_sequence(self.supersedes));
        object.set("entry", optional_text(self.entry));
        object.set("occasion", Value::from(self.occasion.into_owned()));
        Ok(())
    }
}
