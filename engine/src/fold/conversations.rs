//! Where the records of conversations are, and which of them count.
//!
//! The index holds positions, never texts. Nothing is ever removed from it: what a rollback or a failed tool
//! abandons is told by [`Conversations::is_live`], for the present and for any earlier position.
//!
//! # Invariants
//!
//! 1. A record of a conversation counts at a position if it is on the path that the host's own rollbacks leave
//!    there, and if the run of a tool through whose handle it was written, if any, did not fail before that
//!    position. The end of a failed tool rolls back nothing else of a conversation.
//! 2. The end of a call that an answer asked for belongs to the conversation of that answer.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{
    AdapterState, Answer, CallOrigin, ConversationScope, Decision, Input, Outcome, PromptAccepted, Request,
    Role, Settle, Shortened, SuspensionForm, ToolEnd, Turn,
};
use foldlog_codec::image::{ConversationEntry, ConversationsImage, EntryKind, RunFate};
use smol_str::SmolStr;

use super::operations::Operations;
use super::path::Path;
use super::record_body::RecordBody;
use crate::items::tree::Tree;

/// Holds what the fold takes from a record of a conversation.
#[derive(Debug)]
pub(crate) struct ConversationNote {
    evaluation: SmolStr,
    within: Option<SequenceNumber>,
    kind: EntryKind,
    origin: Option<CallOrigin>,
    number: u64,
    flag: bool,
}

impl ConversationNote {
    fn new(scope: &ConversationScope<'_>, kind: EntryKind) -> ConversationNote {
        let evaluation = SmolStr::new(&scope.evaluation);
        ConversationNote { evaluation, within: scope.lane.within, kind, origin: None, number: 0, flag: false }
    }
}

impl From<&Input<'_>> for ConversationNote {
    fn from(input: &Input<'_>) -> ConversationNote {
        let kind = if input.origin.is_some() && input.role == Role::Tool {
            EntryKind::Result
        } else {
            EntryKind::Input
        };
        let number = input.id.as_deref().map_or(0, input_key);
        ConversationNote { origin: input.origin, number, ..ConversationNote::new(&input.scope, kind) }
    }
}

impl From<&Request<'_>> for ConversationNote {
    fn from(request: &Request<'_>) -> ConversationNote {
        let kind = if request.failure.is_some() { EntryKind::RequestFailed } else { EntryKind::Request };
        ConversationNote { number: request.attempt, ..ConversationNote::new(&request.scope, kind) }
    }
}

impl From<&Answer<'_>> for ConversationNote {
    fn from(answer: &Answer<'_>) -> ConversationNote {
        let (number, flag) = (answer.calls.len() as u64, answer.continues);
        ConversationNote { number, flag, ..ConversationNote::new(&answer.scope, EntryKind::Answer) }
    }
}

impl From<&Turn<'_>> for ConversationNote {
    fn from(turn: &Turn<'_>) -> ConversationNote {
        let origin = Some(CallOrigin { answer: turn.answer, ordinal: 0 });
        let (number, flag) = (turn.number, turn.complete);
        ConversationNote { origin, number, flag, ..ConversationNote::new(&turn.scope, EntryKind::Turn) }
    }
}

impl From<&Shortened<'_>> for ConversationNote {
    fn from(shortened: &Shortened<'_>) -> ConversationNote {
        ConversationNote::new(&shortened.scope, EntryKind::Shortened)
    }
}

impl From<&PromptAccepted<'_>> for ConversationNote {
    fn from(accepted: &PromptAccepted<'_>) -> ConversationNote {
        ConversationNote::new(&accepted.scope, EntryKind::PromptAccepted)
    }
}

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

/// Returns what stands for the id that the host gave an input: never 0.
pub(crate) fn input_key(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    let first = hash.as_bytes().first_chunk::<8>().copied().unwrap_or_default();
    u64::from_le_bytes(first).max(1)
}

/// Holds what a record changes in the index, to be carried out once the record is applied.
pub(super) enum ConversationChange {
    Entry(ConversationNote),
    Ended { entry: Option<ConversationEntry>, begin: SequenceNumber, committed: bool },
    Settled(ConversationEntry),
    RolledBack(SequenceNumber),
}

/// Locates the records of all conversations of a log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Conversations {
    inner: Arc<Inner>,
}

impl Default for Conversations {
    fn default() -> Conversations {
        Conversations::none()
    }
}

#[derive(Clone, Default)]
struct Inner {
    /// Ids of evaluations, in the order of their first records.
    evaluations: Vec<SmolStr>,
    /// Places in `evaluations`.
    places: BTreeMap<SmolStr, u32>,
    entries: Tree<SequenceNumber, ConversationEntry, 32, 16>,
    /// Last input with an id of the host, by evaluation and the id's key.
    inputs: BTreeMap<(u32, u64), SequenceNumber>,
    /// Runs of tools through whose handles records were written, and the runs around them.
    runs: BTreeMap<SequenceNumber, RunFate>,
    /// The host's own rollbacks since the first entry.
    rollbacks: Path,
    targets: Vec<(SequenceNumber, SequenceNumber)>,
}

impl std::fmt::Debug for Conversations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversations").field("entries", &self.inner.entries.len()).finish()
    }
}

/// What all logs without a conversation share.
static NONE: LazyLock<Arc<Inner>> = LazyLock::new(Arc::default);

impl Conversations {
    /// Returns an index without records, which costs no allocation.
    pub(super) fn none() -> Conversations {
        Conversations { inner: Arc::clone(&NONE) }
    }

    /// Takes what an image holds.
    pub(super) fn restored(image: &ConversationsImage<'_>) -> Conversations {
        let mut inner = Inner { runs: image.runs.iter().copied().collect(), ..Inner::default() };
        for evaluation in &image.evaluations {
            inner.place(&SmolStr::new(evaluation));
        }
        for (sequence, entry) in &image.entries {
            inner.add(*sequence, *entry);
        }
        image.rollbacks.iter().for_each(|(at, to)| inner.roll_back(*at, *to));
        Conversations { inner: Arc::new(inner) }
    }

    /// Returns the index of the records through `position` alone, as a fork begins with.
    pub(crate) fn through(&self, position: SequenceNumber) -> Conversations {
        let mut image = self.image();
        image.entries.retain(|(sequence, _)| *sequence <= position);
        // Evaluations are in the order of their first records.
        let all = std::mem::take(&mut image.evaluations);
        let mut places = BTreeMap::new();
        for (_, entry) in &mut image.entries {
            let next = places.len() as u32;
            let place = *places.entry(entry.evaluation).or_insert(next);
            if place == next {
                image.evaluations.extend(all.get(entry.evaluation as usize).copied());
            }
            entry.evaluation = place;
        }
        image.rollbacks.retain(|(at, _)| *at <= position);
        image.runs.retain(|(begin, _)| *begin <= position);
        for (_, fate) in &mut image.runs {
            fate.ended = fate.ended.filter(|(end, _)| *end <= position);
        }
        Conversations::restored(&image)
    }

    /// Returns what an image holds.
    pub(crate) fn image(&self) -> ConversationsImage<'_> {
        let Inner { evaluations, entries, runs, targets, .. } = self.inner.as_ref();
        ConversationsImage {
            evaluations: evaluations.iter().map(SmolStr::as_str).collect(),
            entries: entries.iter().map(|(sequence, entry)| (*sequence, *entry)).collect(),
            runs: runs.iter().map(|(begin, fate)| (*begin, *fate)).collect(),
            rollbacks: targets.clone(),
        }
    }

    /// Returns what a record is to change, before the record is applied.
    pub(super) fn change(
        &self,
        content: &mut RecordBody<'_>,
        operations: &Operations,
    ) -> Option<ConversationChange> {
        match content {
            RecordBody::Conversation(note) => note.take().map(ConversationChange::Entry),
            _ if self.inner.evaluations.is_empty() => None,
            RecordBody::ToolEnd(end) => self.ended(end, operations),
            RecordBody::Settle(settle) => self.settled(settle, operations),
            RecordBody::Rollback(rollback) => Some(ConversationChange::RolledBack(rollback.to)),
            _ => None,
        }
    }

    fn ended(&self, end: &ToolEnd<'_>, operations: &Operations) -> Option<ConversationChange> {
        let kind = match end.outcome {
            Outcome::Committed => EntryKind::Committed,
            // No session that holds an outcome of a later version is written to; the call has ended, whatever became of it.
            Outcome::Failed | Outcome::Other(_) => EntryKind::Failed,
            Outcome::Interrupted => EntryKind::Interrupted,
            Outcome::Suspended => EntryKind::Suspended,
        };
        let answer = end
            .origin
            .filter(|_| end.undoes.is_none() && end.verifies.is_none())
            .and_then(|origin| self.inner.entries.get(&origin.answer));
        let entry = answer.map(|answer| ConversationEntry {
            kind,
            evaluation: answer.evaluation,
            within: end.parent.and_then(|parent| operations.run_of(parent)),
            origin: end.origin,
            number: end.operation().get(),
            flag: false,
        });
        let is_run = self.inner.runs.contains_key(&end.begin);
        // What a call did that waits for its result stays.
        let committed = end.outcome == Outcome::Committed
            || end.suspension.is_some_and(|it| it.form == SuspensionForm::Awaits);
        (entry.is_some() || is_run).then_some(ConversationChange::Ended {
            entry,
            begin: end.begin,
            committed,
        })
    }

    fn settled(&self, settle: &Settle<'_>, operations: &Operations) -> Option<ConversationChange> {
        let flag = settle.decision == Decision::RunAgain;
        if let Some(suspended) = operations.suspended_one(settle.operation) {
            let suspension = self.inner.entries.get(&suspended.end)?;
            let (kind, number) = (EntryKind::Decided, suspended.end.get());
            return Some(ConversationChange::Settled(ConversationEntry {
                kind,
                number,
                flag,
                ..*suspension
            }));
        }
        let operation = settle.operation.get();
        let of_call =
            |entry: &&ConversationEntry| entry.kind == EntryKind::Interrupted && entry.number == operation;
        let interrupted = self.inner.entries.iter().rev().map(|(_, entry)| entry).find(of_call)?;
        Some(ConversationChange::Settled(ConversationEntry {
            kind: EntryKind::Settled,
            flag,
            ..*interrupted
        }))
    }

    /// Carries out what an applied record changes.
    pub(super) fn carry_out(
        &mut self,
        sequence: SequenceNumber,
        change: ConversationChange,
        operations: &Operations,
    ) {
        let inner = Arc::make_mut(&mut self.inner);
        match change {
            ConversationChange::Entry(note) => {
                let ConversationNote { evaluation, within, kind, origin, number, flag } = note;
                let evaluation = inner.place(&evaluation);
                inner.add(sequence, ConversationEntry { kind, evaluation, within, origin, number, flag });
                inner.know_run(within, operations);
            }
            ConversationChange::Ended { entry, begin, committed } => {
                if let Some(fate) = inner.runs.get_mut(&begin) {
                    fate.ended = Some((sequence, committed));
                }
                if let Some(entry) = entry {
                    inner.add(sequence, entry);
                    inner.know_run(entry.within, operations);
                }
            }
            ConversationChange::Settled(entry) => inner.add(sequence, entry),
            ConversationChange::RolledBack(to) => inner.roll_back(sequence, to),
        }
    }

    /// Returns the ids of all evaluations, in the order of their first records.
    pub(crate) fn evaluations(&self) -> &[SmolStr] {
        &self.inner.evaluations
    }

    /// Returns the place of an evaluation.
    pub(crate) fn place(&self, evaluation: &str) -> Option<u32> {
        self.inner.places.get(evaluation).copied()
    }

    /// Returns the entries, in ascending order.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (SequenceNumber, &ConversationEntry)> {
        self.inner.entries.iter().map(|(sequence, entry)| (*sequence, entry))
    }

    /// Returns the ids of the evaluations with a conversation that counts at `position`, in the order of their first records.
    pub(crate) fn evaluations_at(&self, position: SequenceNumber) -> Vec<SmolStr> {
        let live = self.live_at(position);
        let mut found = vec![false; self.inner.evaluations.len()];
        for (sequence, entry) in self.entries() {
            if entry.kind != EntryKind::AdapterState
                && live.holds(sequence, entry)
                && let Some(found) = found.get_mut(entry.evaluation as usize)
            {
                *found = true;
            }
        }
        let evaluations = self.inner.evaluations.iter().zip(found);
        evaluations.filter(|(_, found)| *found).map(|(evaluation, _)| evaluation.clone()).collect()
    }

    /// Returns which records count at `position`.
    pub(crate) fn live_at(&self, position: SequenceNumber) -> LiveEntries<'_> {
        LiveEntries { inner: &self.inner, position, ranges: self.inner.rollbacks.live_at(position) }
    }

    /// Returns the last input of an evaluation to which the host gave an id with this key.
    pub(crate) fn input(&self, evaluation: u32, key: u64) -> Option<SequenceNumber> {
        self.inner.inputs.get(&(evaluation, key)).copied()
    }

    /// Returns the entry of a record.
    pub(crate) fn entry(&self, sequence: SequenceNumber) -> Option<&ConversationEntry> {
        self.inner.entries.get(&sequence)
    }
}

impl Inner {
    fn place(&mut self, evaluation: &SmolStr) -> u32 {
        if let Some(place) = self.places.get(evaluation) {
            return *place;
        }
        let place = self.evaluations.len() as u32;
        self.evaluations.push(evaluation.clone());
        self.places.insert(evaluation.clone(), place);
        place
    }

    fn add(&mut self, sequence: SequenceNumber, entry: ConversationEntry) {
        if entry.kind == EntryKind::Input && entry.number != 0 {
            self.inputs.insert((entry.evaluation, entry.number), sequence);
        }
        self.entries.insert(sequence, entry);
    }

    fn roll_back(&mut self, sequence: SequenceNumber, to: SequenceNumber) {
        self.rollbacks.add(sequence, to);
        self.targets.push((sequence, to));
    }

    /// Takes note of a run through whose handle a record was written, and of the runs around it.
    fn know_run(&mut self, run: Option<SequenceNumber>, operations: &Operations) {
        let mut next = run;
        while let Some(begin) = next {
            if self.runs.contains_key(&begin) {
                return;
            }
            let parent = operations.parent_run(begin);
            self.runs.insert(begin, RunFate { parent, ended: None });
            next = parent;
        }
    }
}

/// Tells which records of conversations count at one position.
pub(crate) struct LiveEntries<'a> {
    inner: &'a Inner,
    position: SequenceNumber,
    ranges: Vec<std::ops::RangeInclusive<SequenceNumber>>,
}

impl LiveEntries<'_> {
    /// Returns whether a record counts.
    pub(crate) fn holds(&self, sequence: SequenceNumber, entry: &ConversationEntry) -> bool {
        // No rollback undoes that an operation was interrupted, nor what somebody decided about it.
        let judged = match (entry.kind, entry.origin) {
            (EntryKind::Interrupted | EntryKind::Settled, Some(origin)) => origin.answer,
            // A decision counts where its question does.
            (EntryKind::Decided, _) => entry.number.into(),
            _ => sequence,
        };
        let at = self.ranges.partition_point(|range| *range.end() < judged);
        sequence <= self.position
            && self.ranges.get(at).is_some_and(|range| range.contains(&judged))
            && self.counts(entry.within)
    }

    /// Returns whether no run, from this one outwards, has failed.
    fn counts(&self, mut run: Option<SequenceNumber>) -> bool {
        while let Some(begin) = run {
            let Some(fate) = self.inner.runs.get(&begin) else { return true };
            match fate.ended {
                Some((end, committed)) if end <= self.position && !committed => return false,
                Some((end, _)) if end <= self.position => run = fate.parent,
                // What an open run wrote counts for itself, and for those who look on.
                _ => return true,
            }
        }
        true
    }
}
