//! `snapshot`: a named position.

use foldlog_codec::body::SnapshotBody;

use super::{Author, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    // The snapshot's tag and policies matter for exports only.
    decode: |_| Ok(RecordBody::Snapshot),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: Some(|body| Ok(SnapshotBody::decode(body)?.resources)),
    not_compared: &["$.resources"],
    generated: &[],
    json_texts: &[],
    excluded_in_both: |_| None,
    subject: |_, _| None,
    title: |body, _| SnapshotBody::decode(body).ok()?.tag,
    payloads: NO_PAYLOADS,
};
