//! `opened`: the start of a session.

use foldlog_codec::body::{Parent, SessionOpening};

use super::{Author, Comparison, NO_ITEMS, NO_PAYLOADS, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    decode: |record| SessionOpening::decode(record.body).map(RecordBody::Opened),
    author: Author::Engine,
    synced_at_boundary: false,
    added_items: NO_ITEMS,
    captures: None,
    comparison: Comparison::COMPLETE,
    subject: |_, _| None,
    title: |body, _| SessionOpening::decode(body).ok().map(|opened| title(&opened)),
    payloads: NO_PAYLOADS,
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
