//! `shortened`: the messages that a provider is sent in place of a part of a conversation.

use foldlog_codec::body::Shortened;
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| {
        let Shortened { scope, from, to, .. } = Shortened::decode(body).ok()?;
        Some(within(&scope, &format!("{from} to {to}")))
    },
    ..RecordRules::synced(Author::Host, |record| {
        Shortened::decode(record.body).map(|shortened| note(&shortened))
    })
};

impl From<&Shortened<'_>> for ConversationNote {
    fn from(shortened: &Shortened<'_>) -> ConversationNote {
        ConversationNote::new(&shortened.scope, EntryKind::Shortened)
    }
}
