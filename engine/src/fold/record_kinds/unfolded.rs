//! Envelope frames, which are no records of a host, and kinds of later versions.

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    decode: |record| Ok(RecordBody::Unsupported(record.kind)),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |_, _| None,
    payloads: NO_PAYLOADS,
};
