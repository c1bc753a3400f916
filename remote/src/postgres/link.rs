//! Chains what is held of a session by hashes, so that damage and a forked history are seen.
//!
//! A *link* is the BLAKE3 of the link before it and of one record or claim. The first one is that of the session's id. All
//! integers are little-endian:
//!
//! ```text
//! session   "foldlog session 1\n"  session id (16 bytes)
//! claim     "c"  link before (32)  epoch (8)  writer id (16)  sequence number of the next record (8)  name (the rest)
//! captures  "p"  link before (32)  the column `captures` of a record, which they stand in front of (the rest)
//! record    "r"  link before (32)  epoch (8)  sequence number (8)  kind (1)  time (8)  BLAKE3 of the body (32)
//! ```
//!
//! Equal links stand for equal sessions: such sessions hold the same records, claimed by the same writers, in the same order.

use std::fmt;

use foldlog_codec::{Record, SequenceNumber};
use uuid::Uuid;

use crate::chunk::{Epoch, WriterId};

/// Names all that is held of a session up to some record or claim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link([u8; 32]);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Link {
    /// Returns the link of a session of which nothing is held.
    pub(super) fn first(session: Uuid) -> Link {
        Link::of(&[b"foldlog session 1\n", session.as_bytes()])
    }

    /// Returns the link behind a claim in front of the record `next`.
    pub(super) fn claim(self, epoch: Epoch, writer: WriterId, next: SequenceNumber, name: &str) -> Link {
        let epoch = epoch.get().to_le_bytes();
        Link::of(&[b"c", &self.0, &epoch, writer.as_bytes(), &next.to_le_bytes(), name.as_bytes()])
    }

    /// Returns the link behind what captures add, as a column holds it.
    pub(super) fn captures(self, column: &[u8]) -> Link {
        Link::of(&[b"p", &self.0, column])
    }

    /// Returns the link behind a record that the writer of `epoch` appended.
    pub(super) fn record(self, epoch: Epoch, record: &Record<'_>) -> Link {
        let Record { sequence, kind, time_us, body } = record;
        let (epoch, body) = (epoch.get().to_le_bytes(), *blake3::hash(body).as_bytes());
        let kind = [kind.byte()];
        Link::of(&[b"r", &self.0, &epoch, &sequence.to_le_bytes(), &kind, &time_us.to_le_bytes(), &body])
    }

    /// Makes a link of the bytes of a column, if they can be one.
    pub(super) fn from_column(bytes: &[u8]) -> Option<Link> {
        bytes.try_into().ok().map(Link)
    }

    /// Returns the bytes of a column.
    pub(super) fn column(&self) -> &[u8] {
        &self.0
    }

    fn of(parts: &[&[u8]]) -> Link {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Link(*hasher.finalize().as_bytes())
    }
}
