//! Comparison of two logs: where they diverge, and the differences between a position of one and a
//! position of the other.
//!
//! A fork and its parent, or two runs of one program, have a common prefix. The prefix is found by
//! the contents of the records, not by their times, nor by the `opened` record in which a session
//! names itself. The common prefix of a fork and its parent is the part that the fork shares.
//!
//! After the prefix, no name of an item or of a message means the same in both logs. There items
//! are matched by their bytes and messages by their contents, so that as many as possible match in
//! their order (Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1, 1986, in
//! the crate `similar`). Unmatched members between two matches are paired as within one log. Values
//! that differ in each run are ignored: the ids of calls, which a provider draws, durations of
//! calls, and captures of workspaces. While a slice is compared, a digest of each of its items is
//! in memory. Unmatched items are then read again, one pair at a time. If two lists have more than
//! [`MATCHED_MAX`] members between their common prefix and their common suffix, all of these count
//! as changed: matching lists with little in common would take time quadratic in their length.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::ops::ControlFlow;

use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::Value;
use foldlog_codec::{RecordKind, SequenceNumber};
use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices};
use smol_str::SmolStr;

use super::differences::{
    Difference, DifferenceKind, UnpairedItems, VisitDifference, hold_decoded, message_value, of_both,
};
use super::{ItemName, LogReader, SliceReader, StateReader};
use crate::conversation::ConversationMessage;
use crate::divergence::{self, Divergence, LaneName, OtherRecord};
use crate::error::Result;
use crate::fold::conversation_reading::TextBudget;
use crate::names::DeclaredNames;
use crate::types::{Slice, ToolInvocations};

/// Bytes of bodies that are read of one log before the other is read as far.
const READ_BYTES: usize = 1 << 20;

/// Maximum number of members of two lists together that are matched with one another.
const MATCHED_MAX: usize = 10_000;

/// Fields of an invocation of a tool that differ in each run.
const MADE_ANEW: [&str; 2] = ["elapsed_us", "call_id"];

/// Describes where two logs diverge.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogDivergence {
    /// Number of records in the common prefix of both logs.
    pub alike: u64,
    /// First record of this log that differs from the other; `None` if this log ends there.
    pub here: Option<OtherRecord>,
    /// First record of the other log that differs from this one; `None` if the other ends there.
    pub there: Option<OtherRecord>,
    /// First difference between these two records: `recorded` is the value in this log, `produced`
    /// that in the other. `None` if the records are of two kinds, or if one of them is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Divergence>,
}

impl LogDivergence {
    /// Returns whether both logs are the same from their first to their last record.
    pub fn is_none(&self) -> bool {
        self.here.is_none() && self.there.is_none()
    }
}

struct QueuedRecord {
    kind: RecordKind,
    body: Vec<u8>,
}

/// Reads one log a part at a time.
struct BufferedLogReader<'a> {
    reader: &'a LogReader,
    names: &'a DeclaredNames,
    next: u64,
    held: VecDeque<QueuedRecord>,
}

impl<'a> BufferedLogReader<'a> {
    fn new(reader: &'a LogReader) -> BufferedLogReader<'a> {
        BufferedLogReader { reader, names: &reader.outline.names, next: 0, held: VecDeque::new() }
    }

    /// Returns the next record; `None` at the end of the log.
    fn next(&mut self) -> Result<Option<QueuedRecord>> {
        if self.held.is_empty() && self.next < self.reader.records_len() {
            let (held, mut bytes) = (&mut self.held, 0);
            let places = &self.reader.places;
            let (from, through) = (SequenceNumber::new(self.next), SequenceNumber::MAX);
            places.read_until(&self.reader.storage, from, through, &mut |record| {
                bytes += record.body.len();
                held.push_back(QueuedRecord { kind: record.kind, body: record.body.to_vec() });
                let is_enough = bytes >= READ_BYTES;
                Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        let record = self.held.pop_front();
        self.next += u64::from(record.is_some());
        Ok(record)
    }
}

impl LogReader {
    /// Finds where this log and another diverge: the first record that only one of them has, or
    /// whose contents differ. Takes at most a mebibyte and one record of each log in memory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if a segment of either can no longer be read,
    /// [`Error::OverBudget`](crate::Error::OverBudget) if two records that differ would take more
    /// memory than the [reader may](LogReader::memory_bytes).
    pub fn find_divergence(&self, other: &LogReader) -> Result<LogDivergence> {
        let (mut here, mut there) = (BufferedLogReader::new(self), BufferedLogReader::new(other));
        // Equal bytes have equal meanings only if the numbers of declarations mean the same in both
        // logs.
        let is_declared_alike = here.names.all() == there.names.all();
        let mut alike = 0;
        loop {
            let sequence = SequenceNumber::new(alike);
            let shown = |side: &BufferedLogReader<'_>, record: &QueuedRecord| OtherRecord {
                sequence,
                record: divergence::shown_name(record.kind, &record.body, side.names),
            };
            let (ours, theirs) = (here.next()?, there.next()?);
            let (Some(one), Some(two)) = (&ours, &theirs) else {
                let (here, there) =
                    (ours.map(|record| shown(&here, &record)), theirs.map(|record| shown(&there, &record)));
                return Ok(LogDivergence { alike, here, there, difference: None });
            };
            // The record in which a session names itself is the first of every log.
            let is_head = sequence == SequenceNumber::MIN && one.kind == RecordKind::Opened;
            // The record of a session's replication does not concern its contents.
            let is_head = is_head || one.kind == RecordKind::Replicated;
            let is_equal = is_declared_alike && one.body == two.body;
            let difference = match one.kind == two.kind && !is_head && !is_equal {
                true => {
                    let budget = self.text_budget();
                    hold_decoded(&budget, sequence, &one.body)?;
                    hold_decoded(&budget, sequence, &two.body)?;
                    divergence::between_logs(one.kind, &one.body, here.names, &two.body, there.names)
                }
                false => None,
            };
            if one.kind == two.kind && difference.is_none() {
                alike += 1;
                continue;
            }
            let (here, there) = (shown(&here, one), shown(&there, two));
            let record = here.record.clone();
            let divergence =
                |difference| Divergence::changed(sequence, LaneName::default(), record, difference);
            let difference = difference.map(divergence);
            return Ok(LogDivergence { alike, here: Some(here), there: Some(there), difference });
        }
    }
}

/// One conversation of two logs, message by message.
#[derive(Clone, Debug)]
pub struct ConversationBeside {
    /// Id of the evaluation.
    pub evaluation_id: SmolStr,
    /// Messages of this log; empty if it has no such conversation.
    pub here: Vec<ConversationMessage>,
    /// Messages of the other log; empty if it has no such conversation.
    pub there: Vec<ConversationMessage>,
    /// Pairing of the messages: each message of both logs is in one row, in order.
    pub rows: Vec<MessageRow>,
}

/// Pairs two messages by their indices in the lists of a [`ConversationBeside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// Index of this log's message; `None` if the other's has no counterpart.
    pub here: Option<usize>,
    /// Index of the other log's message; `None` if this log's has no counterpart.
    pub there: Option<usize>,
    /// Whether both messages are the same.
    pub alike: bool,
}

impl LogReader {
    /// Pairs the conversations of this log at `position` with the other log's at `other_position`,
    /// message by message: first all of this log, in the order of their first records, then the
    /// ones that only the other has.
    ///
    /// # Errors
    ///
    /// The errors of [`conversation_at`](LogReader::conversation_at), for both.
    pub fn conversations_between(
        &self,
        position: impl Into<SequenceNumber>,
        other: &LogReader,
        other_position: impl Into<SequenceNumber>,
    ) -> Result<Vec<ConversationBeside>> {
        let mut beside = Vec::new();
        self.each_conversation_beside(position.into(), other, other_position.into(), &mut |conversation| {
            beside.push(conversation);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(beside)
    }

    fn each_conversation_beside(
        &self,
        position: SequenceNumber,
        other: &LogReader,
        other_position: SequenceNumber,
        visit: &mut dyn FnMut(ConversationBeside) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        for evaluation_id in of_both(self.evaluations_at(position), other.evaluations_at(other_position)) {
            let messages = |reader: &LogReader, at| -> Result<Vec<ConversationMessage>> {
                let conversation = reader.conversation_at(&evaluation_id, at)?;
                Ok(conversation.map(|conversation| conversation.messages()).unwrap_or_default())
            };
            let (here, there) = (messages(self, position)?, messages(other, other_position)?);
            let said = |messages: &[ConversationMessage]| -> Vec<Vec<u8>> {
                messages.iter().map(|message| without_call_ids(message).encode()).collect()
            };
            let rows = rows(&said(&here), &said(&there));
            if visit(ConversationBeside { evaluation_id, here, there, rows })?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Passes the messages that differ between the conversations of this log at `position` and the
    /// other log's at `other_position` to `visit`, until it breaks. Keeps one conversation of each
    /// log in memory.
    ///
    /// # Errors
    ///
    /// The errors of [`conversation_at`](LogReader::conversation_at), for both; the error of
    /// `visit`.
    pub fn conversation_differences_between(
        &self,
        position: impl Into<SequenceNumber>,
        other: &LogReader,
        other_position: impl Into<SequenceNumber>,
        visit: &mut VisitDifference<'_>,
    ) -> Result<()> {
        self.each_conversation_beside(position.into(), other, other_position.into(), &mut |conversation| {
            for difference in conversation.differences() {
                if visit(difference)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}

impl StateReader {
    /// Passes the differences from this state to one of another log to `visit`, until it breaks.
    /// Compares the slices whose policy is `wanted`, in the order of their names. Keeps a digest of
    /// each item of one slice in memory, and one pair of items.
    ///
    /// # Errors
    ///
    /// The errors of [`slice_differences`](StateReader::slice_differences);
    /// [`Error::OverBudget`](crate::Error::OverBudget) also if the names of both states' items and
    /// the digests would take more memory than the reader may.
    pub fn slice_differences_between(
        &self,
        other: &StateReader,
        wanted: impl Fn(Policy) -> bool,
        visit: &mut VisitDifference<'_>,
    ) -> Result<()> {
        self.compare_slices(other, wanted, visit, |here, there| {
            self.check_digests(other, here, there)?;
            let (of_here, of_there) = (self.digests(here)?, other.digests(there)?);
            let (mut here_stays, mut there_stays) = (vec![false; of_here.len()], vec![false; of_there.len()]);
            for part in parts(&of_here, &of_there) {
                if matches!(part, DiffOp::Equal { .. }) {
                    here_stays.get_mut(part.old_range()).into_iter().for_each(|alike| alike.fill(true));
                    there_stays.get_mut(part.new_range()).into_iter().for_each(|alike| alike.fill(true));
                }
            }
            let stays = |places: Vec<bool>| move |place: usize, _: ItemName| places.get(place) == Some(&true);
            Ok((UnpairedItems::new(here, stays(here_stays)), UnpairedItems::new(there, stays(there_stays))))
        })
    }

    /// Checks that the digests of two slices fit in memory next to the names of the items of both
    /// states.
    fn check_digests(
        &self,
        other: &StateReader,
        here: Option<SliceReader<'_>>,
        there: Option<SliceReader<'_>>,
    ) -> Result<()> {
        let Some((dir, budget)) = self.limit() else { return Ok(()) };
        let (budget, sequence) = (TextBudget::new(dir, budget), self.position().unwrap_or_default());
        budget.hold(sequence, self.projection.items_bytes())?;
        budget.hold(sequence, other.projection.items_bytes())?;
        let items = |slice: Option<SliceReader<'_>>| slice.map_or(0, |slice| slice.len() as u64);
        budget.hold(sequence, (items(here) + items(there)) * (size_of::<ItemDigest>() as u64 + 1))
    }

    /// Returns a digest of each item of a slice, without the values that differ in each run.
    fn digests(&self, slice: Option<SliceReader<'_>>) -> Result<Vec<ItemDigest>> {
        let Some(slice) = slice else { return Ok(Vec::new()) };
        let is_calls = slice.name() == ToolInvocations::NAME;
        let mut digests = Vec::with_capacity(slice.len());
        slice.read(|name, bytes| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&name.version.to_le_bytes());
            if is_calls {
                self.check_decoded(name.sequence, bytes)?;
                hasher.update(&without_times(bytes));
            } else {
                hasher.update(bytes);
            }
            digests.push(hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(digests)
    }
}

/// Half of a BLAKE3 hash: no two different items have the same one.
type ItemDigest = [u8; 16];

/// Matches two lists. Members between two matches are paired in their order.
fn rows<T: Ord>(here: &[T], there: &[T]) -> Vec<MessageRow> {
    // Numbers are cheaper to compare than the members themselves.
    let mut numbers: BTreeMap<&T, usize> = BTreeMap::new();
    let mut number = |one| {
        let next = numbers.len();
        *numbers.entry(one).or_insert(next)
    };
    let (here, there): (Vec<usize>, Vec<usize>) =
        (here.iter().map(&mut number).collect(), there.iter().map(&mut number).collect());
    let mut rows = Vec::with_capacity(here.len().max(there.len()));
    for part in parts(&here, &there) {
        let alike = matches!(part, DiffOp::Equal { .. });
        let (mut old, mut new) = (part.old_range(), part.new_range());
        loop {
            let (here, there) = (old.next(), new.next());
            if here.is_none() && there.is_none() {
                break;
            }
            rows.push(MessageRow { here, there, alike });
        }
    }
    rows
}

/// Returns which parts of two lists are equal, and which are not.
fn parts<T: Ord + Hash>(here: &[T], there: &[T]) -> Vec<DiffOp> {
    let begins = here.iter().zip(there).take_while(|(one, two)| one == two).count();
    let behind = |list: &[T]| list.len() - begins;
    let ends = here.iter().rev().zip(there.iter().rev()).take_while(|(one, two)| one == two).count();
    let ends = ends.min(behind(here)).min(behind(there));
    let between = |list: &[T]| behind(list) - ends;
    if between(here) + between(there) <= MATCHED_MAX {
        return capture_diff_slices(Algorithm::Myers, here, there);
    }
    let alike = |old_index, new_index, len| DiffOp::Equal { old_index, new_index, len };
    vec![
        alike(0, 0, begins),
        DiffOp::Replace {
            old_index: begins,
            old_len: between(here),
            new_index: begins,
            new_len: between(there),
        },
        alike(here.len() - ends, there.len() - ends, ends),
    ]
}

/// Returns the bytes of an invocation of a tool, without the values that differ in each run.
fn without_times(bytes: &[u8]) -> Cow<'_, [u8]> {
    match Value::decode(bytes) {
        Ok(Value::Map(mut fields)) => {
            fields.retain(|(name, _)| !MADE_ANEW.contains(&name.as_str().unwrap_or_default()));
            Value::Map(fields).encode().into()
        }
        _ => bytes.into(),
    }
}

/// Returns the content of a message, without the ids of calls, which differ in each run.
fn without_call_ids(message: &ConversationMessage) -> Value {
    let mut message = message.clone();
    message.tool_call_id = message.tool_call_id.map(|_| String::new());
    for call in &mut message.tool_calls {
        call.call_id.clear();
    }
    message_value(&message)
}

impl ConversationBeside {
    /// Returns the messages that differ. Their paths are their indices in this log's conversation,
    /// or in the other's if only that one has the message.
    pub fn differences(&self) -> Vec<Difference> {
        let said = |list: &[ConversationMessage], at: Option<usize>| {
            at.and_then(|at| list.get(at)).map_or(Value::Nil, message_value)
        };
        let unlike = self.rows.iter().filter(|row| !row.alike).map(|row| Difference {
            slice: None,
            conversation: Some(self.evaluation_id.to_string()),
            path: format!("messages[{}]", row.here.or(row.there).unwrap_or_default()),
            change: match (row.here, row.there) {
                (Some(_), Some(_)) => DifferenceKind::Changed,
                (None, _) => DifferenceKind::Added,
                (_, None) => DifferenceKind::Removed,
            },
            before: said(&self.here, row.here),
            after: said(&self.there, row.there),
        });
        unlike.collect()
    }
}
