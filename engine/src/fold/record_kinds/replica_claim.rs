//! `replicated`: the statement that a replica has the session's records.

use foldlog_codec::body::Replicated;

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    decode: |record| Replicated::decode(record.body).map(RecordBody::Replicated),
    author: Author::Engine,
    synced_at_boundary: false,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |body, _| {
        let Replicated { at, by, epoch } = Replicated::decode(body).ok()?;
        Some(format!("{at}, epoch {epoch} of {by}"))
    },
    payloads: NO_PAYLOADS,
};
