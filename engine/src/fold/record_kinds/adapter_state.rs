//! `adapter_state`: the captured state of an adapter.

use foldlog_codec::body::AdapterState;
use foldlog_codec::image::EntryKind;

use super::{Author, RecordRules, note, within};
use crate::fold::conversations::ConversationNote;

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| {
        let state = AdapterState::decode(body).ok()?;
        let spent = if state.resumable { "" } else { ", not resumable" };
        Some(within(&state.scope, &format!("{} {}{spent}", state.adapter, state.occasion)))
    },
    ..RecordRules::synced(Author::Host, |record| AdapterState::decode(record.body).map(|state| note(&state)))
};

impl From<&AdapterState<'_>> for ConversationNote {
    fn from(state: &AdapterState<'_>) -> ConversationNote {
        let number = state.supersedes.map_or(0, |sequence| sequence.get().saturating_add(1));
        ConversationNote {
            number,
            flag: state.resumable,
            ..ConversationNote::new(&state.scope, EntryKind::AdapterState)
        }
    }
}
