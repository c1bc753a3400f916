//! `answer`: a provider's answer.

use foldlog_codec::body::AnswerBody;
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    generated: &["$.tool_calls[*].id", "$.request_id", "$.rate_limits", "$.provider_payload.id"],
    json_texts: &["$.tool_calls[*].arguments", "$.blocks.json", "$.provider_payload"],
    title: |body, _| {
        let answer = AnswerBody::decode(body).ok()?;
        let calls = answer.calls.len();
        let stop = answer.stop.map(|stop| format!(", {stop}")).unwrap_or_default();
        Some(within(&answer.scope, &format!("{calls} call{}{stop}", if calls == 1 { "" } else { "s" })))
    },
    ..RecordRules::synced(Author::Host, |record| AnswerBody::decode(record.body).map(|answer| note(&answer)))
};

impl From<&AnswerBody<'_>> for ConversationNote {
    fn from(answer: &AnswerBody<'_>) -> ConversationNote {
        let (number, flag) = (answer.calls.len() as u64, answer.continues);
        ConversationNote { number, flag, ..ConversationNote::new(&answer.scope, EntryKind::Answer) }
    }
}
