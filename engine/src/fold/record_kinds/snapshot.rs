//! `snapshot`: a named position.

use foldlog_codec::body::SnapshotBody;

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    // The snapshot's tag and policies matter for exports only.
    decode: |_| Ok(RecordBody::Snapshot),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: Some(|body| Ok(SnapshotBody::decode(body)?.resources)),
    comparison: Comparison { not_compared: &["$.resources"], ..Comparison::COMPLETE },
    subject: |_, _| None,
    title: |body, _| SnapshotBody::decode(body).ok()?.tag,
    payloads: NO_PAYLOADS,
};
