//! Encodes and decodes the first record of a session.

use std::collections::BTreeMap;
use std::iter;

use uuid::Uuid;

use super::fields::{bad, fixed, require_field, walk, walk_map};
use super::json::{NameBudget, Object, Part, tags};
use super::{Body, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, OperationId, SequenceNumber};

const KIND: &str = "opened";

/// Starts a session. It is the session's first record; in a fork, the first record after those
/// shared with the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl SessionOpening {
    /// Encodes the body of an `opened` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        let fields = 2 + usize::from(!self.tags.is_empty()) + usize::from(self.parent.is_some());
        writer.map(fields);
        writer.str("session").bin(self.session.as_bytes());
        writer.str("seed").unsigned(self.seed);
        if !self.tags.is_empty() {
            writer.str("tags");
            write_tags(&mut writer, &self.tags);
        }
        match &self.parent {
            None => {}
            Some(Parent::Fork { session, position, chain }) => {
                writer.str("parent").map(4);
                writer.str("session").bin(session.as_bytes()).str("how").str("fork");
                writer.str("position").unsigned(position.get()).str("chain").unsigned(u64::from(*chain));
            }
            Some(Parent::Child { session, operation }) => {
                writer.str("parent").map(2 + usize::from(operation.is_some()));
                writer.str("session").bin(session.as_bytes()).str("how").str("child");
                if let Some(operation) = operation {
                    writer.str("operation").unsigned(operation.get());
                }
            }
        }
        writer.finish()
    }

    /// Decodes the body of an `opened` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<SessionOpening, Error> {
        let (mut session, mut seed, mut tags, mut parent) = (None, None, BTreeMap::new(), None);
        walk(KIND, bytes, |name, value| {
            match name {
                "session" => session = Some(Uuid::from_bytes(fixed(value)?)),
                "seed" => seed = Some(value.unsigned()?),
                "tags" => tags = read_tags(value)?,
                "parent" => parent = Some(read_parent(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(SessionOpening {
            session: require_field(KIND, "session", session)?,
            seed: require_field(KIND, "seed", seed)?,
            tags,
            parent,
        })
    }
}

fn read_parent(reader: &mut MsgpackReader<'_>) -> Result<Parent, Error> {
    let (mut session, mut how, mut position, mut chain, mut operation) = (None, None, None, None, None);
    walk_map(reader, |name, value| {
        match name {
            "session" => session = Some(Uuid::from_bytes(fixed(value)?)),
            "how" => how = Some(value.str()?.to_owned()),
            "position" => position = Some(value.unsigned()?.into()),
            "chain" => chain = Some(value.unsigned32()?),
            "operation" => operation = Some(value.unsigned()?.into()),
            _ => {}
        }
        Ok(())
    })?;
    let session = require_field(KIND, "parent.session", session)?;
    match how.as_deref() {
        Some("fork") => Ok(Parent::Fork {
            session,
            position: require_field(KIND, "parent.position", position)?,
            chain: require_field(KIND, "parent.chain", chain)?,
        }),
        Some("child") => Ok(Parent::Child { session, operation }),
        Some(other) => {
            Err(bad(KIND, format!("the relation to the parent is {other:?}, not `fork` or `child`")))
        }
        None => Err(bad(KIND, "the relation to the parent, `fork` or `child`, is missing")),
    }
}

pub(crate) fn write_tags(writer: &mut MsgpackWriter, tags: &BTreeMap<String, String>) {
    writer.map(tags.len());
    for (key, value) in tags {
        writer.str(key).str(value);
    }
}

pub(crate) fn read_tags(reader: &mut MsgpackReader<'_>) -> Result<BTreeMap<String, String>, Error> {
    let mut tags = BTreeMap::new();
    walk_map(reader, |name, value| {
        tags.insert(name.to_owned(), value.str()?.to_owned());
        Ok(())
    })?;
    Ok(tags)
}

impl<'a> Body<'a> for SessionOpening {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("session", Value::from(self.session.to_string()));
        // Any number of 64 bits. As a JSON number, most would be misread by readers that represent
        // numbers as doubles.
        object.set("seed", Value::from(self.seed.to_string()));
        object.set("tags", tags(self.tags));
        let parent = self.parent.map_or(Part::Value(Value::Nil), |parent| {
            let mut object = Object::default();
            object.set("session", Value::from(parent.session().to_string()));
            match parent {
                Parent::Fork { position, chain, .. } => {
                    object.set("how", Value::from("fork"));
                    object.set("position", Value::from(position));
                    object.set("chain", Value::from(u64::from(chain)));
                }
                Parent::Child { operation, .. } => {
                    object.set("how", Value::from("child"));
                    if let Some(operation) = operation {
                        object.set("operation", Value::from(operation));
                    }
                }
            }
            object.into_part()
        });
        object.set("parent", parent);
        Ok(())
    }
}
