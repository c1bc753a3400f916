//! Rules of the engine for each kind of record; one file for each kind.
//!
//! [`RecordRules::of`] is the only complete match over the kinds.
//! [`Projection::apply`](super::projection::Projection::apply) matches the decoded bodies.

mod adapter_state;
mod answer;
mod declare;
mod dispatch;
mod import;
mod input;
mod observation;
mod prompt_accepted;
mod replica_claim;
mod request;
mod rollback;
mod session_opening;
mod settle;
mod shortened_messages;
mod snapshot;
mod tool_begin;
mod tool_end;
mod turn;

use std::ops::Deref;

use foldlog_codec::body::{
    ConversationScope, Declare, Dispatch, Import, Lane, Payload, Replicated, ResourceSnapshot, Rollback,
    SessionOpening, Settle, ToolBegin, ToolEnd,
};
use foldlog_codec::record::RecordNames;
use foldlog_codec::{Error as CodecError, Record, RecordKind};

pub(crate) use self::dispatch::action_name;
use super::conversations::ConversationNote;
use super::log_source::AddedItem;
use crate::error::{Error, Result};
use crate::names::DeclaredNames;

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

impl<T> From<T> for MaybeOwned<'_, T> {
    fn from(own: T) -> Self {
        MaybeOwned::Owned(Box::new(own))
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
    /// A record that changes no slice and nothing else of the fold.
    NoEffect,
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
            RecordBody::ToolEnd(end) => end.rollback(),
            _ => None,
        }
    }

    /// Decodes a record's body.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if the body is not valid for its kind.
    pub(crate) fn decode(record: &Record<'a>) -> Result<RecordBody<'a>> {
        (RecordRules::of(record.kind).decode)(record).map_err(Error::unread(record.sequence))
    }
}

/// Who writes the records of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The engine: no lane produces them.
    Engine,
    /// A host's call, in the lane that the record states.
    Host,
    /// A host or a person, who decides about an operation. In the lane that the record states.
    Settler,
    /// The start of a run of a tool.
    RunStart,
    /// The end of a run, in the lane of its start record.
    RunEnd,
}

/// The payloads of a record with their names.
type NamedPayloads<'a> = Vec<(&'static str, Payload<'a>)>;

type DecodeForFold = for<'a> fn(&Record<'a>) -> Result<RecordBody<'a>, CodecError>;
type DecodeCaptures = for<'a> fn(&'a [u8]) -> Result<Vec<ResourceSnapshot<'a>>, CodecError>;
type DecodePayloads = for<'a> fn(&'a [u8]) -> Option<NamedPayloads<'a>>;
type ItemsInRecord = for<'a> fn(&Record<'a>, u32, &DeclaredNames) -> Result<Vec<AddedItem<'a>>>;

/// Rules for the records of a kind. The functions take the body; they return `None` also if it does
/// not decode.
pub(crate) struct RecordRules {
    /// Decodes the body for the fold.
    decode: DecodeForFold,
    pub(crate) author: Author,
    /// Whether a record is durable when its call returns, at `Durability::Boundary`.
    pub(crate) synced_at_boundary: bool,
    /// Returns the items that a record added to a slice.
    pub(crate) added_items: ItemsInRecord,
    /// Returns the captures that a record names; `None` for kinds that name none. Observations
    /// name some in their data.
    pub(crate) captures: Option<DecodeCaptures>,
    /// Paths of values that are never compared.
    pub(crate) not_compared: &'static [&'static str],
    /// Paths of values that each run generates, and of digests that cover them: a provider's ids,
    /// its remaining limits, and captures, which contain times of files. Two logs that differ only
    /// in these count as equal.
    pub(crate) generated: &'static [&'static str],
    /// Paths of texts that contain JSON.
    pub(crate) json_texts: &'static [&'static str],
    /// Returns the path of a value that is not compared if both records have one there, such as the
    /// text of an error.
    pub(crate) excluded_in_both: fn(&[u8]) -> Option<&'static str>,
    /// Returns the name that follows the kind in a [`Divergence`](crate::Divergence).
    pub(crate) subject: fn(&[u8], &DeclaredNames) -> Option<String>,
    /// Whether a replay takes records with different subjects for different records, and not for one
    /// that has changed.
    pub(crate) subject_identifies: bool,
    /// Returns the record's name in a listing.
    title: fn(&[u8], &RecordNames) -> Option<String>,
    /// Returns the payloads that a person is shown.
    payloads: DecodePayloads,
}

const DROPPED: RecordRules = RecordRules::synced(Author::Host, |_| Ok(RecordBody::Dropped));

/// Rules of envelope frames, which are no records of a host, and of kinds of later versions.
const UNFOLDED: RecordRules =
    RecordRules::synced(Author::Host, |record| Ok(RecordBody::Unsupported(record.kind)));

impl RecordRules {
    /// Rules of a kind whose records are durable when their call returns, at
    /// `Durability::Boundary`. They add no items, name no captures, are compared completely, and
    /// are listed without a name.
    const fn synced(author: Author, decode: DecodeForFold) -> RecordRules {
        RecordRules {
            decode,
            author,
            synced_at_boundary: true,
            added_items: |_, _, _| Ok(Vec::new()),
            captures: None,
            not_compared: &[],
            generated: &[],
            json_texts: &[],
            excluded_in_both: |_| None,
            subject: |_, _| None,
            subject_identifies: false,
            title: |_, _| None,
            payloads: |_| None,
        }
    }

    /// Rules of a kind whose records become durable with a later one; otherwise like
    /// [`synced`](RecordRules::synced).
    const fn unsynced(author: Author, decode: DecodeForFold) -> RecordRules {
        RecordRules { synced_at_boundary: false, ..RecordRules::synced(author, decode) }
    }

    pub(crate) fn of(kind: RecordKind) -> &'static RecordRules {
        match kind {
            RecordKind::Opened => &session_opening::RULES,
            RecordKind::Declare => &declare::RULES,
            RecordKind::Dispatch => &dispatch::RULES,
            RecordKind::Observed => &observation::RULES,
            RecordKind::ToolBegin => &tool_begin::RULES,
            RecordKind::ToolEnd => &tool_end::RULES,
            RecordKind::Settle => &settle::RULES,
            RecordKind::Input => &input::RULES,
            RecordKind::Request => &request::RULES,
            RecordKind::Answer => &answer::RULES,
            RecordKind::Turn => &turn::RULES,
            RecordKind::Shortened => &shortened_messages::RULES,
            RecordKind::PromptAccepted => &prompt_accepted::RULES,
            RecordKind::AdapterState => &adapter_state::RULES,
            RecordKind::Snapshot => &snapshot::RULES,
            RecordKind::Rollback => &rollback::RULES,
            RecordKind::Import => &import::RULES,
            RecordKind::Dropped => &DROPPED,
            RecordKind::Replicated => &replica_claim::RULES,
            RecordKind::Synced
            | RecordKind::Seal
            | RecordKind::Resumed
            | RecordKind::Declared
            | RecordKind::Closed
            | RecordKind::Compacted
            | RecordKind::Base
            | RecordKind::Unknown(_) => &UNFOLDED,
        }
    }
}

/// Returns a record's name in a listing: its event, a snapshot's tag, the target of a rollback, the
/// tool of a call or the evaluation of a conversation. The name of its lane follows, if the host
/// named one. The name is not escaped: pass it through
/// [`escape::text`](foldlog_codec::escape::text) before printing it to a terminal.
pub fn record_title(record: &Record<'_>, names: &RecordNames) -> String {
    let title = (RecordRules::of(record.kind).title)(record.body, names).unwrap_or_default();
    match Lane::decode(record.kind, record.body).unwrap_or_default().name {
        Some(lane) if title.is_empty() => format!("lane {lane}"),
        Some(lane) => format!("{title}, lane {lane}"),
        None => title,
    }
}

/// Returns the payloads of a record that a person is shown, each with its name: the value of an
/// event, the arguments of a call, its result and the text for the model. Returns none if the
/// record's body cannot be decoded.
pub fn shown_payloads<'a>(record: &Record<'a>) -> Vec<(&'static str, Payload<'a>)> {
    (RecordRules::of(record.kind).payloads)(record.body).unwrap_or_default()
}

fn present_payloads<'a>(payloads: [(&'static str, Option<Payload<'a>>); 2]) -> NamedPayloads<'a> {
    payloads.into_iter().filter_map(|(name, payload)| Some((name, payload?))).collect()
}

/// Returns the part of a record of a conversation that the fold retains.
fn note<'a>(body: impl Into<ConversationNote>) -> RecordBody<'a> {
    RecordBody::Conversation(Some(body.into()))
}

/// Returns the title of a record of a conversation: its content and its evaluation.
fn within(scope: &ConversationScope<'_>, content: &str) -> String {
    format!("{content} in {}", scope.evaluation)
}
