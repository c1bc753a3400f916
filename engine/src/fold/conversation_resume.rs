//! Finds the point at which an interrupted conversation continues.

use std::collections::{BTreeMap, BTreeSet};

use foldlog_codec::body::CallOrigin;
use foldlog_codec::image::{ConversationEntry, EntryKind};
use foldlog_codec::{OperationId, SequenceNumber};

use super::conversations::{Conversations, LiveEntries};
use crate::conversation::ResumePoint;

/// The outcome of one call of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallDisposition {
    Open,
    Closed,
    NeedsSettle(OperationId),
}

/// Returns the point at which the conversation at `place` of the index continues. It follows from
/// the last answer and from the records since the answer before it.
pub(crate) fn resume_of(
    conversations: &Conversations,
    live: &LiveEntries<'_>,
    place: u32,
    waits_for: impl Fn(OperationId) -> Option<OperationId>,
) -> (Option<SequenceNumber>, ResumePoint) {
    let (mut own, mut answers) = (Vec::new(), 0);
    for (sequence, entry) in live.back(place) {
        own.push((sequence, entry));
        if entry.kind == EntryKind::Answer {
            answers += 1;
            own.extend(
                conversations.decided_entries(place, sequence).filter(|(at, entry)| live.holds(*at, entry)),
            );
            if answers == 2 {
                break;
            }
        }
    }
    own.sort_unstable_by_key(|(sequence, _)| *sequence);
    resume_point(own.into_iter(), waits_for)
}

/// Returns the last answer among the live records, and the resume point. `waits_for` returns the
/// operation that must be settled before an interrupted or suspended one continues.
fn resume_point<'a>(
    entries: impl Iterator<Item = (SequenceNumber, &'a ConversationEntry)>,
    waits_for: impl Fn(OperationId) -> Option<OperationId>,
) -> (Option<SequenceNumber>, ResumePoint) {
    let mut answer: Option<(SequenceNumber, &ConversationEntry)> = None;
    let mut calls = BTreeMap::new();
    let (mut any, mut said_since, mut is_last) = (false, false, false);
    // Input that was recorded after the request is not known to its answer.
    let mut said_after_request = None;
    for (sequence, entry) in entries {
        any |= entry.kind != EntryKind::AdapterState;
        match entry.kind {
            EntryKind::Answer => {
                let unheard = said_after_request.take().unwrap_or(false);
                (answer, said_since, is_last) = (Some((sequence, entry)), unheard, false);
                calls.clear();
            }
            EntryKind::Request => said_after_request = Some(false),
            EntryKind::Input => {
                said_since = true;
                said_after_request = said_after_request.map(|_| true);
            }
            // Input after the answer is not answered, even if it precedes the turn's record.
            EntryKind::Turn => {
                let of = entry.origin.map(|origin| origin.answer);
                is_last |= entry.flag && of == answer.map(|(answer, _)| answer);
            }
            kind => {
                let Some(CallOrigin { answer: of, ordinal }) = entry.origin else { continue };
                if answer.is_none_or(|(answer, _)| answer != of) {
                    continue;
                }
                let operation = OperationId::from(entry.number);
                let call = match kind {
                    EntryKind::Committed | EntryKind::Failed | EntryKind::Result => CallDisposition::Closed,
                    EntryKind::Settled if !entry.flag => CallDisposition::Closed,
                    EntryKind::Decided if !entry.flag => CallDisposition::Closed,
                    EntryKind::Interrupted | EntryKind::Suspended => {
                        waits_for(operation).map_or(CallDisposition::Open, CallDisposition::NeedsSettle)
                    }
                    EntryKind::Settled => CallDisposition::Open,
                    _ => continue,
                };
                calls.insert(ordinal, call);
            }
        }
    }
    let Some((sequence, entry)) = answer else {
        return (None, if any { ResumePoint::AwaitProvider } else { ResumePoint::NotRecorded });
    };
    let call = |ordinal: u32| calls.get(&ordinal).copied().unwrap_or(CallDisposition::Open);
    let all = 0..u32::try_from(entry.number).unwrap_or(u32::MAX);
    let open: Vec<u32> = all.clone().filter(|ordinal| call(*ordinal) == CallDisposition::Open).collect();
    let settle: BTreeSet<OperationId> = all
        .filter_map(|ordinal| match call(ordinal) {
            CallDisposition::NeedsSettle(operation) => Some(operation),
            _ => None,
        })
        .collect();
    let point = if is_last {
        if said_since { ResumePoint::AwaitProvider } else { ResumePoint::Complete }
    } else if !open.is_empty() {
        ResumePoint::RunTools(open)
    } else if !settle.is_empty() {
        ResumePoint::NeedsSettle(settle.into_iter().collect())
    } else if entry.number > 0 || entry.flag || said_since {
        ResumePoint::AwaitProvider
    } else {
        ResumePoint::Complete
    };
    (Some(sequence), point)
}
