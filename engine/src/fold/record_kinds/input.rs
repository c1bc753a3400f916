//! `input`: a message that the host adds to a conversation.

use foldlog_codec::body::{Input, Role};
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::{ConversationNote, input_key};

pub(super) const RULES: RecordRules = RecordRules {
    generated: &["$.id", "$.call_id"],
    json_texts: &["$.blocks.json", "$.provider_payload"],
    excluded_in_both: |body| Input::decode(body).ok()?.is_error.then_some("$.content"),
    subject: |body, _| Some(Input::decode(body).ok()?.scope.evaluation.into_owned()),
    title: |body, _| {
        let input = Input::decode(body).ok()?;
        let call_id = input.call_id.map(|call_id| format!(" {call_id}")).unwrap_or_default();
        Some(within(&input.scope, &format!("{}{call_id}", input.role.name())))
    },
    ..RecordRules::synced(Author::Host, |record| Input::decode(record.body).map(|input| note(&input)))
};

impl From<&Input<'_>> for ConversationNote {
    fn from(input: &Input<'_>) -> ConversationNote {
        let kind = if input.origin.is_some() && input.role == Role::Tool {
            EntryKind::Result
        } else {
            EntryKind::Input
        };
        let number = input.id.as_deref().map_or(0, input_key);
        ConversationNote { origin: input.origin, number, ..ConversationNote::new(&input.scope, kind) }
    }
}
