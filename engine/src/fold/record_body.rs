//! Decoded bodies of records.

use std::ops::Deref;

use foldlog_codec::body::{
    AdapterState, AnswerBody, Declare, Dispatch, Import, Input, PromptAccepted, Replicated, Request,
    Rollback, SessionOpening, Settle, Shortened, ToolBegin, ToolEnd, Turn,
};
use foldlog_codec::{Record, RecordKind};

use super::conversations::ConversationNote;
use crate::error::{Error, Result};

/// A large part of a body: owned if it was decoded, borrowed if a writer encoded it.
#[derive(Debug)]
pub(crate) enum MaybeOwned<'a, T> {
    Owned(Box<T>),
    Borrowed(&'a T),
}

impl<T> Deref for MaybeOwned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            MaybeOwned::Owned(own) => own,
            MaybeOwned::Borrowed(of) => of,
        }
    }
}

/// A decoded body. A writer passes the parts from which it encoded the body.
#[derive(Debug)]
pub(crate) enum RecordBody<'a> {
    Opened(SessionOpening),
    Declare(Declare),
    Dispatch(Dispatch<'a>),
    Import(Import<'a>),
    Rollback(Rollback),
    Snapshot,
    /// A fact that changes no slice.
    Observed,
    ToolBegin(MaybeOwned<'a, ToolBegin<'a>>),
    ToolEnd(MaybeOwned<'a, ToolEnd<'a>>),
    Settle(Settle<'a>),
    Replicated(Replicated),
    /// A record whose body a compaction has dropped.
    Dropped,
    /// A record of a conversation. The fold retains only its position; it takes the note.
    Conversation(Option<ConversationNote>),
    Unsupported(RecordKind),
}

impl<'a> RecordBody<'a> {
    /// Returns the rollback, if the record is one or includes one.
    pub(crate) fn rollback(&self) -> Option<Rollback> {
        match self {
            RecordBody::Rollback(rollback) => Some(*rollback),
            RecordBody::ToolEnd(end) => end.rolled_back_to().map(|to| Rollback { to, preserve_logs: true }),
            _ => None,
        }
    }

    /// Decodes a record's body.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if the body is not valid for its kind.
    pub(crate) fn decode(record: &Record<'a>) -> Result<RecordBody<'a>> {
        let Record { sequence, kind, body, .. } = *record;
        let conversation = |note: ConversationNote| RecordBody::Conversation(Some(note));
        let content = match kind {
            RecordKind::Opened => SessionOpening::decode(body).map(RecordBody::Opened),
            RecordKind::Declare => Declare::decode(body).map(RecordBody::Declare),
            RecordKind::Dispatch => Dispatch::decode(body).map(RecordBody::Dispatch),
            RecordKind::Import => Import::decode(body).map(RecordBody::Import),
            RecordKind::Rollback => Rollback::decode(body).map(RecordBody::Rollback),
            // The snapshot's tag and policies matter for exports only.
            RecordKind::Snapshot => Ok(RecordBody::Snapshot),
            RecordKind::Observed => Ok(RecordBody::Observed),
            RecordKind::Dropped => Ok(RecordBody::Dropped),
            RecordKind::ToolBegin => {
                ToolBegin::decode(body).map(|begin| RecordBody::ToolBegin(MaybeOwned::Owned(Box::new(begin))))
            }
            RecordKind::ToolEnd => {
                ToolEnd::decode(body).map(|end| RecordBody::ToolEnd(MaybeOwned::Owned(Box::new(end))))
            }
            RecordKind::Settle => Settle::decode(body).map(RecordBody::Settle),
            RecordKind::Replicated => Replicated::decode(body).map(RecordBody::Replicated),
            RecordKind::Input => Input::decode(body).map(|body| conversation((&body).into())),
            RecordKind::Request => Request::decode(body).map(|body| conversation((&body).into())),
            RecordKind::Answer => AnswerBody::decode(body).map(|body| conversation((&body).into())),
            RecordKind::Turn => Turn::decode(body).map(|body| conversation((&body).into())),
            RecordKind::Shortened => Shortened::decode(body).map(|body| conversation((&body).into())),
            RecordKind::PromptAccepted => {
                PromptAccepted::decode(body).map(|body| conversation((&body).into()))
            }
            RecordKind::AdapterState => AdapterState::decode(body).map(|body| conversation((&body).into())),
            kind => Ok(RecordBody::Unsupported(kind)),
        };
        content.map_err(Error::unread(sequence))
    }
}
