//! `rollback`: a return of STATE to an earlier position.

use foldlog_codec::body::Rollback;

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    decode: |record| Rollback::decode(record.body).map(RecordBody::Rollback),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |body, _| Some(format!("to {}", Rollback::decode(body).ok()?.to)),
    payloads: NO_PAYLOADS,
};
