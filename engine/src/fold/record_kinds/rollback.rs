//! `rollback`: a return of STATE to an earlier position.

use foldlog_codec::body::Rollback;

use super::{Author, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| Some(format!("to {}", Rollback::decode(body).ok()?.to)),
    ..RecordRules::synced(Author::Host, |record| Rollback::decode(record.body).map(RecordBody::Rollback))
};
