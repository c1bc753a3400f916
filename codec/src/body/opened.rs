use std::collections::BTreeMap;

use uuid::Uuid;

use super::fields::{bad, fixed, required, walk, walk_map};
use crate::msgpack::{Reader, Writer};
use crate::{Error, OperationId, SequenceNumber};

const KIND: &str = "opened";

/// The first record of a session; in a fork, the first record behind those it shares with its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The session's id.
    pub session: Uuid,
    /// What the session's generator starts from.
    pub seed: u64,
    /// Tags given at creation.
    pub tags: BTreeMap<String, String>,
    /// Where the session comes from.
    pub parent: Option<Parent>,
}

/// Where a session comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// It shares the parent's records up to a position.
    Fork {
        /// The parent's id.
        session: Uuid,
        /// The last shared sequence number.
        position: SequenceNumber,
        /// The checksum of that record's frame.
        chain: u32,
    },
    /// It was begun on behalf of the parent and shares no records with it.
    Child {
        /// The parent's id.
        session: Uuid,
        /// The parent's operation on whose behalf it was begun, where it was one; older logs do not say.
        operation: Option<OperationId>,
    },
}

impl Parent {
    /// The parent's id.
    pub fn session(&self) -> Uuid {
        match self {
            Parent::Fork { session, .. } | Parent::Child { session, .. } => *session,
        }
    }
}

impl Opened {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
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

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &[u8]) -> Result<Opened, Error> {
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
        Ok(Opened {
            session: required(KIND, "session", session)?,
            seed: required(KIND, "seed", seed)?,
            tags,
            parent,
        })
    }
}

fn read_parent(reader: &mut Reader<'_>) -> Result<Parent, Error> {
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
    let session = required(KIND, "parent.session", session)?;
    match how.as_deref() {
        Some("fork") => Ok(Parent::Fork {
            session,
            position: required(KIND, "parent.position", position)?,
            chain: required(KIND, "parent.chain", chain)?,
        }),
        Some("child") => Ok(Parent::Child { session, operation }),
        other => Err(bad(KIND, format!("a parent is `fork` or `child`, not {other:?}"))),
    }
}

pub(crate) fn write_tags(writer: &mut Writer, tags: &BTreeMap<String, String>) {
    writer.map(tags.len());
    for (key, value) in tags {
        writer.str(key).str(value);
    }
}

pub(crate) fn read_tags(reader: &mut Reader<'_>) -> Result<BTreeMap<String, String>, Error> {
    let mut tags = BTreeMap::new();
    walk_map(reader, |name, value| {
        tags.insert(name.to_owned(), value.str()?.to_owned());
        Ok(())
    })?;
    Ok(tags)
}
