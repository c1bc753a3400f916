//! Chains the contents of a session by hashes, which reveals damage and a forked history.
//!
//! A *link* is the BLAKE3 of the previous link and of one record or claim. The first one is that of
//! the session's id. All integers are little-endian:
//!
//! ```text
//! session   "foldlog session 1\n"  session id (16 bytes)
//! claim     "c"  previous link (32)  epoch (8)  writer id (16)  sequence number of the next record (8)  name (the rest)
//! captures  "p"  previous link (32)  the column `captures` of a record, before that record (the rest)
//! record    "r"  previous link (32)  epoch (8)  sequence number (8)  kind (1)  time (8)  BLAKE3 of the body (32)
//! dropped   "d"  link of the record (32)  body that replaces the dropped one (the rest)
//! ```
//!
//! If a compaction of the session dropped a body, the record's link is computed from its kind and
//! hash as stated in the replacement. The column `dropped` has a hash of the replacement, which is
//! no link and is part of none.
//!
//! Equal links mean equal sessions: such sessions contain the same records, claimed by the same
//! writers, in the same order.

use std::fmt;

use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use crate::chunk::{Epoch, WriterId};

/// Identifies the contents of a session up to some record or claim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link([u8; 32]);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Link {
    /// Returns the link of an empty session.
    pub(super) fn first(session: Uuid) -> Link {
        Link::hash_parts(&[b"foldlog session 1\n", session.as_bytes()])
    }

    /// Returns the link after a claim before the record `next`.
    pub(super) fn claim(self, epoch: Epoch, writer: WriterId, next: SequenceNumber, name: &str) -> Link {
        let epoch = epoch.get().to_le_bytes();
        Link::hash_parts(&[b"c", &self.0, &epoch, writer.0.as_bytes(), &next.to_le_bytes(), name.as_bytes()])
    }

    /// Returns the link after the data of captures, as stored in a column.
    pub(super) fn captures(self, column: &[u8]) -> Link {
        Link::hash_parts(&[b"p", &self.0, column])
    }

    /// Returns the link after a record that the writer of `epoch` appended.
    pub(super) fn record(self, epoch: Epoch, record: &Record<'_>) -> Link {
        self.stated_record(epoch, record, record.kind, *blake3::hash(record.body).as_bytes())
    }

    /// Returns the link after a record with a stated kind and hash of its body.
    pub(super) fn stated_record(
        self,
        epoch: Epoch,
        record: &Record<'_>,
        kind: RecordKind,
        body: [u8; 32],
    ) -> Link {
        let Record { sequence, time_us, .. } = record;
        let (epoch, kind) = (epoch.get().to_le_bytes(), [kind.byte()]);
        Link::hash_parts(&[
            b"r",
            &self.0,
            &epoch,
            &sequence.to_le_bytes(),
            &kind,
            &time_us.to_le_bytes(),
            &body,
        ])
    }

    /// Returns the hash of the replacement of a dropped body, given the link of its record.
    pub(super) fn of_dropped(self, body: &[u8]) -> [u8; 32] {
        Link::hash_parts(&[b"d", &self.0, body]).0
    }

    /// Creates a link from the bytes of a column, if they have the right length.
    pub(super) fn from_column(bytes: &[u8]) -> Option<Link> {
        bytes.try_into().ok().map(Link)
    }

    /// Returns the bytes of a column.
    pub(super) fn column(&self) -> &[u8] {
        &self.0
    }

    fn hash_parts(parts: &[&[u8]]) -> Link {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Link(*hasher.finalize().as_bytes())
    }
}
