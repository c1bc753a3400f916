//! `prompt_accepted`: the acceptance of a changed prompt.

use foldlog_codec::body::PromptAccepted;
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| {
        let PromptAccepted { scope, now, by, .. } = PromptAccepted::decode(body).ok()?;
        Some(within(&scope, &format!("{}:{} by {by}", now.namespace, now.key)))
    },
    ..RecordRules::synced(Author::Host, |record| {
        PromptAccepted::decode(record.body).map(|accepted| note(&accepted))
    })
};

impl From<&PromptAccepted<'_>> for ConversationNote {
    fn from(accepted: &PromptAccepted<'_>) -> ConversationNote {
        ConversationNote::new(&accepted.scope, EntryKind::PromptAccepted)
    }
}
