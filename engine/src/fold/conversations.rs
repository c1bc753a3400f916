//! Index of the records of conversations, with their liveness.
//!
//! The index contains positions, never texts. Entries are never removed. [`Conversations::live_at`]
//! determines which entries a rollback or a failed tool has abandoned, for the present and for any
//! earlier position.
//!
//! # Invariants
//!
//! 1. A record of a conversation is live at a position under two conditions. It is on the path that
//!    the host's own rollbacks leave there, and the tool run through whose handle it was written,
//!    if any, did not fail before that position. The end of a failed tool rolls back no other
//!    record of a conversation.
//! 2. The end of a call that an answer requested belongs to the conversation of that answer.
//! 3. A rollback does not undo the interruption of an operation, or the decision about it: such a
//!    record is live wherever its answer is. The decision about a question is live wherever the
//!    question is.
//! 4. The cost of a record does not grow with the index, nor does the cost of each step of a walk
//!    back over the live entries.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{
    CallOrigin, ConversationScope, Decision, Outcome, Settle, SuspensionForm, ToolEnd,
};
use foldlog_codec::image::{ConversationEntry, ConversationsImage, EntryKind, RunFate};
use smol_str::SmolStr;

use super::operations::Operations;
use super::record_kinds::RecordBody;
use crate::items::tree::{CowTree, Weigh};

/// The part of a conversation's record that the fold retains.
#[derive(Debug)]
pub(crate) struct ConversationNote {
    pub(super) evaluation: SmolStr,
    pub(super) within: Option<SequenceNumber>,
    pub(super) kind: EntryKind,
    pub(super) origin: Option<CallOrigin>,
    pub(super) number: u64,
    pub(super) flag: bool,
}

impl ConversationNote {
    pub(super) fn new(scope: &ConversationScope<'_>, kind: EntryKind) -> ConversationNote {
        let evaluation = SmolStr::new(&scope.evaluation);
        ConversationNote { evaluation, within: scope.lane.within, kind, origin: None, number: 0, flag: false }
    }
}

/// Returns the index key of the id that the host gave an input; never 0.
pub(crate) fn input_key(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    let first = hash.as_bytes().first_chunk::<8>().copied().unwrap_or_default();
    u64::from_le_bytes(first).max(1)
}

/// A record's change to the index, to be made once the record is applied.
pub(super) enum ConversationChange {
    Entry(ConversationNote),
    Ended { entry: Option<ConversationEntry>, begin: SequenceNumber, committed: bool },
    Settled(ConversationEntry),
    RolledBack(SequenceNumber),
}

/// Memory of an entry in bytes, including its share of every tree.
const ENTRY_BYTES: u64 = 176;

/// Memory of an evaluation in bytes, without its id, which is stored twice.
const EVALUATION_BYTES: u64 = 160;

/// Memory of a run, and of a rollback, in bytes.
const RUN_BYTES: u64 = 96;

type Index<K, V> = CowTree<K, V, 32, 16>;

impl Weigh for ConversationEntry {}
impl Weigh for RunFate {}

/// Locates the records of all conversations of a log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Conversations {
    inner: Arc<ConversationIndex>,
}

impl Default for Conversations {
    /// Returns an index without records; it needs no allocation.
    fn default() -> Conversations {
        Conversations { inner: Arc::clone(&NONE) }
    }
}

/// The index. A copy costs little at any length: unchanged parts are shared.
#[derive(Clone, Default)]
struct ConversationIndex {
    /// Ids of evaluations, in the order of their first records.
    evaluations: Index<u32, SmolStr>,
    places: Index<SmolStr, u32>,
    entries: Index<SequenceNumber, ConversationEntry>,
    /// Entries that are judged by their own position, by evaluation.
    own: Index<(u32, SequenceNumber), ()>,
    /// Entries that are live wherever their answer is, by evaluation and answer.
    decided: Index<(u32, SequenceNumber, SequenceNumber), ()>,
    /// Last entry of an interrupted call, by its operation.
    interrupted: Index<u64, SequenceNumber>,
    /// Messages and results with an id from the host, by evaluation and the id's key.
    inputs: Index<(u32, u64, SequenceNumber), ()>,
    /// Runs of tools through whose handles records were written, and the runs around them.
    runs: Index<SequenceNumber, RunFate>,
    /// The host's own rollbacks since the first entry: the target of each.
    rollbacks: Index<SequenceNumber, SequenceNumber>,
    /// Last record that changed the liveness of earlier ones.
    changed_before: Option<SequenceNumber>,
    text_bytes: u64,
}

impl std::fmt::Debug for Conversations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversations").field("entries", &self.inner.entries.len()).finish()
    }
}

/// Shared by all logs without a conversation.
static NONE: LazyLock<Arc<ConversationIndex>> = LazyLock::new(Arc::default);

/// Returns whether a record is judged by another record's position instead of its own. This applies
/// to the interruption of a call, and to the decision about a call.
fn is_decision(entry: &ConversationEntry) -> bool {
    matches!(entry.kind, EntryKind::Interrupted | EntryKind::Settled | EntryKind::Decided)
}

/// Returns the record by whose position a decision is judged: its question if there is one, else
/// its answer.
fn judged_by(entry: &ConversationEntry) -> Option<SequenceNumber> {
    match entry.kind {
        EntryKind::Decided => Some(entry.number.into()),
        _ => entry.origin.filter(|_| is_decision(entry)).map(|origin| origin.answer),
    }
}

impl Conversations {
    pub(super) fn from_image(image: &ConversationsImage<'_>) -> Conversations {
        let mut inner = ConversationIndex::default();
        for evaluation in &image.evaluations {
            inner.place_or_add(&SmolStr::new(evaluation));
        }
        for (sequence, entry) in &image.entries {
            inner.add(*sequence, *entry);
        }
        for (begin, fate) in &image.runs {
            inner.runs.insert(*begin, *fate);
            inner.changed_by(fate.ended.filter(|(_, committed)| !committed).map(|(end, _)| end));
        }
        image.rollbacks.iter().for_each(|(at, to)| inner.roll_back(*at, *to));
        Conversations { inner: Arc::new(inner) }
    }

    /// Returns the index of the records through `position`, with which a fork starts.
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
        Conversations::from_image(&image)
    }

    pub(crate) fn image(&self) -> ConversationsImage<'_> {
        ConversationsImage {
            evaluations: self.inner.evaluations.iter().map(|(_, evaluation)| evaluation.as_str()).collect(),
            entries: self.inner.entries.iter().map(|(sequence, entry)| (*sequence, *entry)).collect(),
            runs: self.inner.runs.iter().map(|(begin, fate)| (*begin, *fate)).collect(),
            rollbacks: self.inner.rollbacks.iter().map(|(at, to)| (*at, *to)).collect(),
        }
    }

    /// Returns the change of a record, before the record is applied.
    pub(super) fn change(
        &self,
        content: &mut RecordBody<'_>,
        operations: &Operations,
    ) -> Option<ConversationChange> {
        match content {
            RecordBody::Conversation(note) => note.take().map(ConversationChange::Entry),
            _ if self.inner.evaluations.is_empty() => None,
            RecordBody::ToolEnd(end) => self.end_change(end, operations),
            RecordBody::Settle(settle) => self.settle_change(settle, operations),
            RecordBody::Rollback(rollback) => Some(ConversationChange::RolledBack(rollback.to)),
            _ => None,
        }
    }

    fn end_change(&self, end: &ToolEnd<'_>, operations: &Operations) -> Option<ConversationChange> {
        let kind = match end.outcome {
            Outcome::Committed => EntryKind::Committed,
            // A session that contains an outcome of a later version is never written to; the call
            // has ended, whatever its outcome.
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
        let is_run = self.inner.runs.get(&end.begin).is_some();
        // The effects of a call that waits for its result stay.
        let committed = end.outcome == Outcome::Committed
            || end.suspension.is_some_and(|it| it.form == SuspensionForm::Awaits);
        (entry.is_some() || is_run).then_some(ConversationChange::Ended {
            entry,
            begin: end.begin,
            committed,
        })
    }

    fn settle_change(&self, settle: &Settle<'_>, operations: &Operations) -> Option<ConversationChange> {
        let flag = settle.decision == Decision::RunAgain;
        if let Some(suspended) = operations.suspended_one(settle.operation) {
            let suspension = self.entry(suspended.end)?;
            let (kind, number) = (EntryKind::Decided, suspended.end.get());
            return Some(ConversationChange::Settled(ConversationEntry {
                kind,
                number,
                flag,
                ..*suspension
            }));
        }
        let interrupted = self.entry(*self.inner.interrupted.get(&settle.operation.get())?)?;
        Some(ConversationChange::Settled(ConversationEntry {
            kind: EntryKind::Settled,
            flag,
            ..*interrupted
        }))
    }

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
                let evaluation = inner.place_or_add(&evaluation);
                inner.add(sequence, ConversationEntry { kind, evaluation, within, origin, number, flag });
                inner.know_run(within, operations);
            }
            ConversationChange::Ended { entry, begin, committed } => {
                if let Some(mut fate) = inner.runs.get(&begin).copied() {
                    fate.ended = Some((sequence, committed));
                    inner.runs.insert(begin, fate);
                    inner.changed_by((!committed).then_some(sequence));
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

    pub(super) fn held_bytes(&self) -> u64 {
        self.inner.text_bytes
            + self.inner.evaluations.len() as u64 * EVALUATION_BYTES
            + self.inner.entries.len() as u64 * ENTRY_BYTES
            + (self.inner.runs.len() + self.inner.rollbacks.len()) as u64 * RUN_BYTES
    }

    pub(crate) fn evaluation(&self, place: u32) -> Option<&SmolStr> {
        self.inner.evaluations.get(&place)
    }

    pub(crate) fn place(&self, evaluation: &str) -> Option<u32> {
        self.inner.places.get(&SmolStr::new(evaluation)).copied()
    }

    /// Returns the entries, in ascending order.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (SequenceNumber, &ConversationEntry)> {
        self.inner.entries.iter().map(|(sequence, entry)| (*sequence, entry))
    }

    /// Returns all entries of an evaluation from `first` through `last`, live or not, in ascending
    /// order.
    pub(crate) fn entries_of(
        &self,
        evaluation: u32,
        first: SequenceNumber,
        last: SequenceNumber,
    ) -> Vec<(SequenceNumber, &ConversationEntry)> {
        let own = self.inner.own.range((evaluation, first)..=(evaluation, last)).map(|((_, own), ())| *own);
        let (lowest, highest) = (SequenceNumber::MIN, SequenceNumber::MAX);
        let decided = self
            .inner
            .decided
            .range((evaluation, lowest, lowest)..=(evaluation, highest, highest))
            .map(|((_, _, decided), ())| *decided)
            .filter(|decided| (first..=last).contains(decided));
        let mut all: Vec<SequenceNumber> = own.chain(decided).collect();
        all.sort_unstable();
        all.into_iter().filter_map(|sequence| Some((sequence, self.entry(sequence)?))).collect()
    }

    /// Returns the records of interruptions of an answer's calls, and of decisions about them.
    pub(crate) fn decided_entries(
        &self,
        evaluation: u32,
        answer: SequenceNumber,
    ) -> impl Iterator<Item = (SequenceNumber, &ConversationEntry)> {
        let (lowest, highest) = (SequenceNumber::MIN, SequenceNumber::MAX);
        let of_answer =
            self.inner.decided.range((evaluation, answer, lowest)..=(evaluation, answer, highest));
        of_answer.filter_map(|((_, _, decided), ())| Some((*decided, self.entry(*decided)?)))
    }

    /// Returns the last end record of the call of an origin, among those on `live` and its
    /// interruptions. `live` contains the ranges of a live path in descending order. Returns `None`
    /// if there is none, or if the answer is not a record of a conversation.
    pub(crate) fn last_end(
        &self,
        origin: CallOrigin,
        live: impl Iterator<Item = RangeInclusive<SequenceNumber>>,
    ) -> Option<SequenceNumber> {
        let place = self.entry(origin.answer)?.evaluation;
        // No call ends before the answer that requested it.
        let behind = origin.answer.saturating_add(1);
        let live = live.take_while(|range| behind <= *range.end());
        let own = live.flat_map(|range| {
            self.inner.own.range_back((place, behind.max(*range.start()))..=(place, *range.end()))
        });
        let is_end = |entry: &ConversationEntry| {
            entry.origin == Some(origin)
                && matches!(entry.kind, EntryKind::Committed | EntryKind::Failed | EntryKind::Suspended)
        };
        let mut ends = own.map(|((_, sequence), ())| *sequence);
        let ended = ends.find(|sequence| self.entry(*sequence).is_some_and(is_end));
        let interrupted = self
            .decided_entries(place, origin.answer)
            .filter(|(_, entry)| entry.origin == Some(origin) && entry.kind == EntryKind::Interrupted);
        ended.max(interrupted.map(|(sequence, _)| sequence).last())
    }

    /// Returns the ids of the evaluations with a live conversation at `position`, in the order of
    /// their first records.
    pub(crate) fn evaluations_at(&self, position: SequenceNumber) -> Vec<SmolStr> {
        let live = self.live_at(position);
        self.evaluations_with(|sequence, entry| live.holds(sequence, entry))
    }

    /// Returns the ids of the evaluations with a conversation that had begun by `position`, in the
    /// order of their first records. This includes those that are no longer live.
    pub(crate) fn evaluations_through(&self, position: SequenceNumber) -> Vec<SmolStr> {
        self.evaluations_with(|sequence, _| sequence <= position)
    }

    fn evaluations_with(&self, counts: impl Fn(SequenceNumber, &ConversationEntry) -> bool) -> Vec<SmolStr> {
        let mut found = vec![false; self.inner.evaluations.len()];
        for (sequence, entry) in self.entries() {
            if entry.kind != EntryKind::AdapterState
                && let Some(found) = found.get_mut(entry.evaluation as usize).filter(|found| !**found)
            {
                *found = counts(sequence, entry);
            }
        }
        let evaluations = self.inner.evaluations.iter().zip(found);
        evaluations.filter(|(_, found)| *found).map(|((_, evaluation), _)| evaluation.clone()).collect()
    }

    /// Returns the set of live records at `position`.
    pub(crate) fn live_at(&self, position: SequenceNumber) -> LiveEntries<'_> {
        LiveEntries { of: &self.inner, position, path: RefCell::default(), fates: RefCell::default() }
    }

    /// Returns the records that may have changed the liveness of earlier ones: rollbacks, and the
    /// ends of failed runs.
    pub(crate) fn turning_points(&self) -> impl Iterator<Item = SequenceNumber> {
        let rollbacks = self.inner.rollbacks.iter().map(|(at, _)| *at);
        let failed = |fate: &RunFate| fate.ended.filter(|(_, committed)| !committed).map(|(end, _)| end);
        rollbacks.chain(self.inner.runs.iter().filter_map(move |(_, fate)| failed(fate)))
    }

    /// Returns the last record that changed the liveness of earlier ones; `None` if all of them are
    /// live.
    pub(crate) fn changed_before(&self) -> Option<SequenceNumber> {
        self.inner.changed_before
    }

    /// Returns the messages and results of an evaluation whose id from the host has this key, last
    /// one first.
    pub(crate) fn inputs(
        &self,
        evaluation: u32,
        key: u64,
    ) -> impl Iterator<Item = (SequenceNumber, &ConversationEntry)> {
        let (first, last) = (SequenceNumber::MIN, SequenceNumber::MAX);
        let of_key = self.inner.inputs.range_back((evaluation, key, first)..=(evaluation, key, last));
        of_key.filter_map(|((.., sequence), ())| Some((*sequence, self.entry(*sequence)?)))
    }

    /// Returns the run whose end decides whether the records written through the handle of `run`
    /// stay; `None` if they stay in any case.
    pub(crate) fn undecided_run(&self, mut run: Option<SequenceNumber>) -> Option<SequenceNumber> {
        while let Some(RunFate { parent, ended: Some((_, true)) }) = self.inner.runs.get(&run?) {
            run = *parent;
        }
        run
    }

    pub(crate) fn entry(&self, sequence: SequenceNumber) -> Option<&ConversationEntry> {
        self.inner.entries.get(&sequence)
    }
}

impl ConversationIndex {
    fn place_or_add(&mut self, evaluation: &SmolStr) -> u32 {
        if let Some(place) = self.places.get(evaluation) {
            return *place;
        }
        let place = self.evaluations.len() as u32;
        self.evaluations.insert(place, evaluation.clone());
        self.places.insert(evaluation.clone(), place);
        self.text_bytes += 2 * evaluation.len() as u64;
        place
    }

    fn add(&mut self, sequence: SequenceNumber, entry: ConversationEntry) {
        if matches!(entry.kind, EntryKind::Input | EntryKind::Result) && entry.number != 0 {
            self.inputs.insert((entry.evaluation, entry.number, sequence), ());
        }
        if entry.kind == EntryKind::Interrupted {
            self.interrupted.insert(entry.number, sequence);
        }
        match entry.origin.filter(|_| is_decision(&entry)).map(|origin| origin.answer) {
            Some(answer) => self.decided.insert((entry.evaluation, answer, sequence), ()),
            None => self.own.insert((entry.evaluation, sequence), ()),
        };
        self.entries.insert(sequence, entry);
    }

    fn roll_back(&mut self, sequence: SequenceNumber, to: SequenceNumber) {
        // A path only descends.
        if to < sequence {
            self.rollbacks.insert(sequence, to);
            self.changed_by(Some(sequence));
        }
    }

    fn changed_by(&mut self, sequence: Option<SequenceNumber>) {
        self.changed_before = self.changed_before.max(sequence);
    }

    /// Adds a run through whose handle a record was written, and the runs around it.
    fn know_run(&mut self, run: Option<SequenceNumber>, operations: &Operations) {
        let mut next = run;
        while let Some(begin) = next {
            if self.runs.get(&begin).is_some() {
                return;
            }
            let parent = operations.parent_run(begin);
            self.runs.insert(begin, RunFate { parent, ended: None });
            next = parent;
        }
    }
}

/// The set of live records of conversations at one position. Follows the path to that position
/// lazily.
pub(crate) struct LiveEntries<'a> {
    of: &'a ConversationIndex,
    position: SequenceNumber,
    /// Ranges of the path in descending order, as far as they were needed.
    path: RefCell<Vec<RangeInclusive<SequenceNumber>>>,
    /// Whether no run has failed, from this one outwards.
    fates: RefCell<BTreeMap<SequenceNumber, bool>>,
}

impl LiveEntries<'_> {
    pub(crate) fn holds(&self, sequence: SequenceNumber, entry: &ConversationEntry) -> bool {
        sequence <= self.position
            && self.is_on_path(judged_by(entry).unwrap_or(sequence))
            && self.counts(entry.within)
    }

    /// Returns the live entries of an evaluation, last one first. Entries that are judged by their
    /// answer's position are omitted.
    pub(crate) fn back(&self, evaluation: u32) -> impl Iterator<Item = (SequenceNumber, &ConversationEntry)> {
        let ranges = (0..).map_while(|at| self.range(at));
        let own = ranges.flat_map(move |range| {
            self.of.own.range_back((evaluation, *range.start())..=(evaluation, *range.end()))
        });
        own.filter_map(|((_, sequence), ())| Some((*sequence, self.of.entries.get(sequence)?)))
            .filter(|(_, entry)| self.counts(entry.within))
    }

    /// Returns the range of the path with this number, counted from the position downwards.
    fn range(&self, at: usize) -> Option<RangeInclusive<SequenceNumber>> {
        let mut ranges = self.path.borrow_mut();
        while ranges.len() <= at {
            let last = match ranges.last() {
                None => self.position,
                Some(above) => *self.of.rollbacks.get(above.start())?,
            };
            let begin = self.of.rollbacks.range_back(SequenceNumber::MIN..=last).next();
            ranges.push(begin.map_or(SequenceNumber::MIN, |(rolled_back, _)| *rolled_back)..=last);
        }
        ranges.get(at).cloned()
    }

    fn is_on_path(&self, sequence: SequenceNumber) -> bool {
        let below = |range: &RangeInclusive<SequenceNumber>| *range.start() <= sequence;
        let known = self.path.borrow().partition_point(|range| !below(range));
        let range = (known..).map_while(|at| self.range(at)).find(below);
        range.is_some_and(|range| range.contains(&sequence))
    }

    /// Returns whether no run has failed, from this one outwards.
    fn counts(&self, run: Option<SequenceNumber>) -> bool {
        let (mut fates, mut asked) = (self.fates.borrow_mut(), Vec::new());
        let (mut next, mut counts) = (run, true);
        while let Some(begin) = next {
            if let Some(known) = fates.get(&begin) {
                counts = *known;
                break;
            }
            asked.push(begin);
            match self.of.runs.get(&begin).and_then(|fate| Some((fate.ended?, fate.parent))) {
                Some(((end, committed), _)) if end <= self.position && !committed => {
                    counts = false;
                    break;
                }
                Some(((end, _), parent)) if end <= self.position => next = parent,
                // The records of an open run are live for itself and for observers.
                _ => break,
            }
        }
        fates.extend(asked.into_iter().map(|run| (run, counts)));
        counts
    }
}
