//! `request`: a request to a provider, or its failure.

use foldlog_codec::body::Request;
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    not_compared: &["$.failure.message"],
    generated: &["$.sent_digest", "$.failure.request_id", "$.failure.rate_limits"],
    json_texts: &["$.parameters"],
    subject: |body, _| Some(Request::decode(body).ok()?.scope.evaluation.into_owned()),
    title: |body, _| {
        let request = Request::decode(body).ok()?;
        let what = match &request.failure {
            Some(failure) => format!("{} failed: {}", failure.request, failure.cause),
            None => format!("attempt {}", request.attempt),
        };
        Some(within(&request.scope, &what))
    },
    ..RecordRules::unsynced(Author::Host, |record| Request::decode(record.body).map(|request| note(&request)))
};

impl From<&Request<'_>> for ConversationNote {
    fn from(request: &Request<'_>) -> ConversationNote {
        let kind = if request.failure.is_some() { EntryKind::RequestFailed } else { EntryKind::Request };
        ConversationNote { number: request.attempt, ..ConversationNote::new(&request.scope, kind) }
    }
}
