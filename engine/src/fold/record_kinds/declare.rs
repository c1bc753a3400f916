//! `declare`: names of events and slices.

use std::collections::BTreeSet;

use foldlog_codec::body::Declare;

use super::{Author, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| Declare::decode(body).ok().map(|declare| title(&declare)),
    ..RecordRules::unsynced(Author::Engine, |record| Declare::decode(record.body).map(RecordBody::Declare))
};

fn title(declare: &Declare) -> String {
    let mut declared: Vec<&str> = declare.events.iter().map(|event| event.name.as_str()).collect();
    let events: BTreeSet<&str> = declared.iter().copied().collect();
    // The implicit slice of an undeclared event has the event's name, so it is listed once.
    let slices = declare.slices.iter().map(|slice| slice.name.as_str());
    declared.extend(slices.filter(|slice| !events.contains(slice)));
    declared.join(", ")
}
