//! `turn`: the end of a turn.

use foldlog_codec::body::{CallOrigin, Turn};
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| {
        let turn = Turn::decode(body).ok()?;
        let complete = if turn.complete { ", complete" } else { "" };
        Some(within(&turn.scope, &format!("turn {}{complete}", turn.number)))
    },
    ..RecordRules::synced(Author::Host, |record| Turn::decode(record.body).map(|turn| note(&turn)))
};

impl From<&Turn<'_>> for ConversationNote {
    fn from(turn: &Turn<'_>) -> ConversationNote {
        let origin = Some(CallOrigin { answer: turn.answer, ordinal: 0 });
        let (number, flag) = (turn.number, turn.complete);
        ConversationNote { origin, number, flag, ..ConversationNote::new(&turn.scope, EntryKind::Turn) }
    }
}
