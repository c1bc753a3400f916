//! `dropped`: the placeholder of a record whose body a compaction has dropped.

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    decode: |_| Ok(RecordBody::Dropped),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |_, _| None,
    payloads: NO_PAYLOADS,
};
