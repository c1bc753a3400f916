//! `replicated`: the statement that a replica has the session's records.

use foldlog_codec::body::Replicated;

use super::{Author, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| {
        let Replicated { at, by, epoch } = Replicated::decode(body).ok()?;
        Some(format!("{at}, epoch {epoch} of {by}"))
    },
    ..RecordRules::unsynced(Author::Engine, |record| {
        Replicated::decode(record.body).map(RecordBody::Replicated)
    })
};
