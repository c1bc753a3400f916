//! Encodes and decodes the first record of a session.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Body;
use super::fields::{
    Place, ReadField, WriteField, decode, encode, map_fields, require_field, walk_map, walk_part,
};
use super::json::{NameBudget, Object, Part, tags};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, OperationId, SequenceNumber};

/// Starts a session. It is the session's first record; in a fork, the first record after those
/// shared with the parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOpening {
    /// Id of the session.
    pub session: Uuid,
    /// Seed of the session's random generator.
    pub seed: u64,
    /// Tags of the session at its creation.
    pub tags: BTreeMap<String, String>,
    /// Session from which this one derives, or `None` if there is none.
    pub parent: Option<Parent>,
}

/// Identifies the session from which another one derives, and the relation between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The session is a fork: it shares the parent's records up to a position.
    Fork {
        /// Id of the parent.
        session: Uuid,
        /// Sequence number of the last shared record.
        position: SequenceNumber,
        /// Checksum of the frame of the last shared record.
        chain: u32,
    },
    /// The session was started on behalf of the parent, and shares no records with it.
    Child {
        /// Id of the parent.
        session: Uuid,
        /// Operation of the parent that started the session. `None` if no operation did, or in an
        /// older log, which does not record it.
        operation: Option<OperationId>,
    },
}

impl Parent {
    /// Returns the id of the parent.
    pub fn session(&self) -> Uuid {
        match self {
            Parent::Fork { session, .. } | Parent::Child { session, .. } => *session,
        }
    }
}

map_fields! { impl<'a> SessionOpening {
    "session" => session [required],
    "seed" => seed [required],
    "tags" => tags,
    "parent" => parent,
}}

impl SessionOpening {
    /// Encodes the body of an `opened` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    /// Decodes the body of an `opened` record.
    pub fn decode(bytes: &[u8]) -> Result<SessionOpening, Error> {
        decode("opened", bytes)
    }
}

impl ReadField<'_> for Parent {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<Parent, Error> {
        let (mut session, mut how, mut position, mut chain, mut operation) = (None, None, None, None, None);
        walk_part(place, &[], reader, |place, value| match place.field {
            "session" => value.read_into(place, &mut session),
            "how" => value.read_into(place, &mut how),
            "position" => value.read_into(place, &mut position),
            "chain" => value.read_into(place, &mut chain),
            "operation" => value.read_into(place, &mut operation),
            _ => Ok(()),
        })?;
        let session = require_field(place.kind, "parent.session", session)?;
        match how {
            Some("fork") => Ok(Parent::Fork {
                session,
                position: require_field(place.kind, "parent.position", position)?,
                chain: require_field(place.kind, "parent.chain", chain)?,
            }),
            Some("child") => Ok(Parent::Child { session, operation }),
            Some(other) => {
                Err(place.bad(format!("the relation to the parent is {other:?}, not `fork` or `child`")))
            }
            None => Err(place.bad("the relation to the parent, `fork` or `child`, is missing")),
        }
    }
}

impl WriteField for Parent {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("session", &self.session());
            match self {
                Parent::Fork { position, chain, .. } => {
                    fields.set("how", "fork");
                    fields.set("position", position);
                    fields.set("chain", chain);
                }
                Parent::Child { operation, .. } => {
                    fields.set("how", "child");
                    fields.some("operation", operation);
                }
            }
        });
    }
}

impl WriteField for BTreeMap<String, String> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.map(self.len());
        for (key, value) in self {
            writer.str(key).str(value);
        }
    }
}

impl ReadField<'_> for BTreeMap<String, String> {
    fn read(_: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<BTreeMap<String, String>, Error> {
        let mut tags = BTreeMap::new();
        walk_map(reader, |name, value| {
            tags.insert(name.to_owned(), value.str()?.to_owned());
            Ok(())
        })?;
        Ok(tags)
    }
}

impl<'a> Body<'a> for SessionOpening {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("session", self.session.to_string());
        // Any number of 64 bits. As a JSON number, most would be misread by readers that represent
        // numbers as doubles.
        object.set("seed", self.seed.to_string());
        object.set("tags", tags(self.tags));
        let parent = self.parent.map_or(Part::Value(Value::Nil), |parent| {
            let mut object = Object::default();
            object.set("session", parent.session().to_string());
            match parent {
                Parent::Fork { position, chain, .. } => {
                    object.set("how", "fork");
                    object.set("position", position);
                    object.set("chain", chain);
                }
                Parent::Child { operation, .. } => {
                    object.set("how", "child");
                    object.some("operation", operation);
                }
            }
            object.into_part()
        });
        object.set("parent", parent);
        Ok(())
    }
}
