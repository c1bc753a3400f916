//! `shortened`: the messages that a provider is sent in place of a part of a conversation.

use foldlog_codec::body::Shortened;
use foldlog_codec::image::EntryKind;

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    decode: |record| Shortened::decode(record.body).map(|shortened| note(&shortened)),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |body, _| {
        let Shortened { scope, from, to, .. } = Shortened::decode(body).ok()?;
        Some(within(&scope, &format!("{from} to {to}")))
    },
    payloads: NO_PAYLOADS,
};

impl From<&Shortened<'_>> for ConversationNote {
    fn from(shortened: &Shortened<'_>) -> ConversationNote {
        ConversationNote::new(&shortened.scope, EntryKind::Shortened)
    }
}
