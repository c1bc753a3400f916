//! Encodes and decodes the part of an image about conversations: the locations of their records,
//! not their content.

use crate::Error;
use crate::SequenceNumber;
use crate::body::CallOrigin;
use crate::body::fields::{bad, list};
use crate::msgpack::{MsgpackReader, MsgpackWriter};

use super::{KIND, PackedReader};

/// Names the role of a record in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A message that the host added.
    Input,
    /// A request to a provider.
    Request,
    /// The failure of a request.
    RequestFailed,
    /// An answer.
    Answer,
    /// The result of a call that ran elsewhere.
    Result,
    /// The end of a call that committed.
    Committed,
    /// The end of a call that failed.
    Failed,
    /// The end of a call whose process ended before it did.
    Interrupted,
    /// A decision about an interrupted call.
    Settled,
    /// The end of a turn.
    Turn,
    /// A part that is replaced for the provider.
    Shortened,
    /// A changed prompt that was accepted.
    PromptAccepted,
    /// The state of an adapter.
    AdapterState,
    /// The end of a call that is suspended.
    Suspended,
    /// A decision about a suspended call.
    Decided,
}

impl EntryKind {
    const ALL: [EntryKind; 15] = [
        EntryKind::Input,
        EntryKind::Request,
        EntryKind::RequestFailed,
        EntryKind::Answer,
        EntryKind::Result,
        EntryKind::Committed,
        EntryKind::Failed,
        EntryKind::Interrupted,
        EntryKind::Settled,
        EntryKind::Turn,
        EntryKind::Shortened,
        EntryKind::PromptAccepted,
        EntryKind::AdapterState,
        EntryKind::Suspended,
        EntryKind::Decided,
    ];

    fn byte(self) -> u8 {
        EntryKind::ALL.iter().position(|kind| *kind == self).unwrap_or_default() as u8
    }
}

/// Locates one record of a conversation, and contains the data that is needed without reading the
/// record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversationEntry {
    /// Role of the record in its conversation.
    pub kind: EntryKind,
    /// Index of the evaluation's id among those of the log.
    pub evaluation: u32,
    /// Start record of the tool run through whose handle the record was written.
    pub within: Option<SequenceNumber>,
    /// Call that the record concerns.
    pub origin: Option<CallOrigin>,
    /// A number that depends on the kind:
    ///
    /// - answer: number of its calls
    /// - end of a call, or decision about an interrupted call: its operation
    /// - decision about a suspended call: sequence number of the end that suspended it
    /// - input: hash of the id that the host gave it
    /// - turn: its number
    /// - otherwise: 0
    pub number: u64,
    /// For an answer, whether another request follows; for a turn, whether it is the last one; for
    /// a decision, whether the call is to run again.
    pub flag: bool,
}

/// Describes the fate of a tool run through whose handle records of conversations were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunFate {
    /// Start record of the run within which this one ran.
    pub parent: Option<SequenceNumber>,
    /// Sequence number of the end of the run, and whether it committed; `None` while the run is
    /// open.
    pub ended: Option<(SequenceNumber, bool)>,
}

/// Contains the locations of the records of conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationsImage<'a> {
    /// Ids of evaluations, in the order of their first records.
    pub evaluations: Vec<&'a str>,
    /// Entries in ascending order of their sequence numbers.
    pub entries: Vec<(SequenceNumber, ConversationEntry)>,
    /// Runs of tools, by the sequence numbers of their start records.
    pub runs: Vec<(SequenceNumber, RunFate)>,
    /// Rollbacks by the host: sequence number and target of each.
    pub rollbacks: Vec<(SequenceNumber, SequenceNumber)>,
}

const NONE: u64 = u64::MAX;

fn optional(number: u64) -> Option<SequenceNumber> {
    (number != NONE).then(|| number.into())
}

impl<'a> ConversationsImage<'a> {
    /// Returns whether the log has no conversation.
    pub fn is_empty(&self) -> bool {
        self.evaluations.is_empty()
    }

    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(4).array(self.evaluations.len());
        self.evaluations.iter().for_each(|evaluation| {
            writer.str(evaluation);
        });
        let mut packed = Vec::with_capacity(42 * self.entries.len());
        for (sequence, entry) in &self.entries {
            packed.extend(sequence.to_le_bytes());
            packed.push(entry.kind.byte());
            packed.push(u8::from(entry.flag) + 2 * u8::from(entry.origin.is_some()));
            packed.extend(entry.evaluation.to_le_bytes());
            packed.extend(entry.within.map_or(NONE, SequenceNumber::get).to_le_bytes());
            let origin = entry.origin.unwrap_or(CallOrigin { answer: SequenceNumber::MIN, ordinal: 0 });
            packed.extend(origin.answer.to_le_bytes());
            packed.extend(origin.ordinal.to_le_bytes());
            packed.extend(entry.number.to_le_bytes());
        }
        writer.bin(&packed);
        packed.clear();
        for (begin, fate) in &self.runs {
            packed.extend(begin.to_le_bytes());
            packed.extend(fate.parent.map_or(NONE, SequenceNumber::get).to_le_bytes());
            packed.extend(fate.ended.map_or(NONE, |(end, _)| end.get()).to_le_bytes());
            packed.push(u8::from(fate.ended.is_some_and(|(_, committed)| committed)));
        }
        writer.bin(&packed);
        packed.clear();
        for (sequence, to) in &self.rollbacks {
            packed.extend(sequence.to_le_bytes());
            packed.extend(to.to_le_bytes());
        }
        writer.bin(&packed);
    }

    pub(super) fn read(reader: &mut MsgpackReader<'a>) -> Result<ConversationsImage<'a>, Error> {
        if reader.array()? != 4 {
            return Err(bad(KIND, "field `conversations` is not an array of 4 elements"));
        }
        let evaluations = list(reader, |value| value.str())?;
        let entries = PackedReader(reader.bin()?).all(|packed| {
            let (sequence, kind, flags) = (packed.sequence()?, packed.u8()?, packed.u8()?);
            let kind = EntryKind::ALL.get(usize::from(kind)).copied();
            let kind = kind.ok_or_else(|| bad(KIND, "an entry of a conversation has an unknown kind"))?;
            let (evaluation, within) = (packed.u32()?, optional(packed.u64()?));
            let origin = CallOrigin { answer: packed.sequence()?, ordinal: packed.u32()? };
            let origin = (flags & 2 != 0).then_some(origin);
            let (number, flag) = (packed.u64()?, flags & 1 != 0);
            Ok((sequence, ConversationEntry { kind, evaluation, within, origin, number, flag }))
        })?;
        if entries.iter().any(|(_, entry)| entry.evaluation as usize >= evaluations.len()) {
            return Err(bad(KIND, "an entry of a conversation names an unknown evaluation"));
        }
        let runs = PackedReader(reader.bin()?).all(|packed| {
            let (begin, parent, end) = (packed.sequence()?, optional(packed.u64()?), optional(packed.u64()?));
            let committed = packed.u8()? != 0;
            Ok((begin, RunFate { parent, ended: end.map(|end| (end, committed)) }))
        })?;
        if runs.iter().any(|(begin, fate)| fate.parent.is_some_and(|parent| parent >= *begin)) {
            return Err(bad(KIND, "a run of a tool lies within a later one"));
        }
        let rollbacks =
            PackedReader(reader.bin()?).all(|packed| Ok((packed.sequence()?, packed.sequence()?)))?;
        Ok(ConversationsImage { evaluations, entries, runs, rollbacks })
    }
}
