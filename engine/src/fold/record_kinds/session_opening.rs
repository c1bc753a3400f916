//! `opened`: the start of a session.

use foldlog_codec::body::{Parent, SessionOpening};

use super::{Author, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| SessionOpening::decode(body).ok().map(|opened| title(&opened)),
    ..RecordRules::unsynced(Author::Engine, |record| {
        SessionOpening::decode(record.body).map(RecordBody::Opened)
    })
};

fn title(opened: &SessionOpening) -> String {
    match opened.parent {
        Some(Parent::Fork { session, position, .. }) => format!("fork of {session} at {position}"),
        Some(Parent::Child { session, operation: Some(operation) }) => {
            // The operation comes first, since the column is too narrow for a session's id.
            format!("child of operation {operation} of {session}")
        }
        Some(Parent::Child { session, operation: None }) => format!("child of {session}"),
        None => String::new(),
    }
}
