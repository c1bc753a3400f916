//! `prompt_accepted`: the acceptance of a changed prompt.

use foldlog_codec::body::PromptAccepted;
use foldlog_codec::image::EntryKind;

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    decode: |record| PromptAccepted::decode(record.body).map(|accepted| note(&accepted)),
    author: Author::Host,
    synced_at_boundary: true,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |body, _| {
        let PromptAccepted { scope, now, by, .. } = PromptAccepted::decode(body).ok()?;
        Some(within(&scope, &format!("{}:{} by {by}", now.namespace, now.key)))
    },
    payloads: NO_PAYLOADS,
};

impl From<&PromptAccepted<'_>> for ConversationNote {
    fn from(accepted: &PromptAccepted<'_>) -> ConversationNote {
        ConversationNote::new(&accepted.scope, EntryKind::PromptAccepted)
    }
}
