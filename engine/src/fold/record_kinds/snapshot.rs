//! `snapshot`: a named position.

use foldlog_codec::body::SnapshotBody;

use super::{Author, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    captures: Some(|body| Ok(SnapshotBody::decode(body)?.resources)),
    not_compared: &["$.resources"],
    title: |body, _| SnapshotBody::decode(body).ok()?.tag,
    // The snapshot's tag and policies matter for exports only.
    ..RecordRules::synced(Author::Host, |_| Ok(RecordBody::Snapshot))
};
