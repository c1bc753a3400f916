//! Tracks the payloads that a session's log names.

use std::collections::HashSet;

use foldlog_codec::body::Dropped;
use foldlog_codec::{Record, RecordKind, SequenceNumber, body};

/// The hashes of the payloads and packs that a log names.
#[derive(Debug, Default)]
pub(crate) struct ReferencedPayloads {
    hashes: HashSet<[u8; 32]>,
    /// First record with references that are unknown here.
    unknown: Option<SequenceNumber>,
}

impl ReferencedPayloads {
    /// Adds the references of a record.
    pub(crate) fn see(&mut self, record: &Record<'_>) {
        let is_read = record.kind.is_known() && body::check(record.kind, record.body).is_ok();
        if !is_read {
            self.unknown.get_or_insert(record.sequence);
        }
        let known = (record.kind == RecordKind::Dropped).then(|| Dropped::decode_known(record.body));
        let known = known.and_then(|known| known.ok().flatten());
        self.hashes.extend(record.objects().iter().chain(&known).map(|object| object.hash));
    }

    /// Adds references from elsewhere.
    pub(crate) fn extend(&mut self, hashes: impl IntoIterator<Item = [u8; 32]>) {
        self.hashes.extend(hashes);
    }

    /// Returns the first record with references that are unknown here.
    pub(crate) fn unknown(&self) -> Option<SequenceNumber> {
        self.unknown
    }

    /// Returns whether a payload is referenced, or may be.
    pub(crate) fn holds(&self, hash: &[u8; 32]) -> bool {
        self.unknown.is_some() || self.hashes.contains(hash)
    }
}
