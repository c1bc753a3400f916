//! Compaction: removal of bodies of STATE that a session no longer needs.
//!
//! # What is dropped, and what stays
//!
//! A compaction covers all records up to one position. It drops the bodies of dispatches at or
//! before that position if they changed only STATE and CACHE slices, and if no slice contains an
//! item of them, neither at that position nor at a kept one. Everything else stays: LOG slices,
//! declarations, tags, calls and their results, conversations. Of a record without its body, the
//! sequence number, time, kind and the BLAKE3 hash of the body stay, so that a copy stored
//! elsewhere can be proven to be the dropped body. A body stays if it is no longer than its
//! replacement, and the log is changed only if it gets shorter.
//!
//! Kept positions are the snapshots that the options keep, the targets of rollbacks after the
//! compaction's position, and the position before the last rewind, so that it can be undone. Any
//! other position in the compacted range gives [`Error::Compacted`].
//!
//! # Replicated sessions
//!
//! If a replica has bodies that were dropped, a record lists them. It is written at once if the
//! session is open, otherwise when the session is next opened for writing with its replicator. From
//! then on the replica may drop the bodies too ([`crate::replication`]).
//!
//! # Which position
//!
//! The last one that the options allow, but none within or after an operation that is open,
//! unsettled or suspended, and none within one that has ended. The last segment with records is
//! finished first, if that lets the compaction drop more.
//!
//! # Compressed segments
//!
//! [`CompactOptions::compression`] determines how the files of finished segments are stored:
//! compressed, or plain. Readers get the same bytes either way ([`crate::log::compressed`]). A
//! segment stays plain if it is shorter than 64 KiB (or the minimum in the options), if it would
//! not get a tenth shorter, or if a fork shares its file. The last segment with records is finished
//! first, if it is long enough. Segments that lose bodies are first written plain, and then stored
//! as before, or as the options say.
//!
//! # During a compaction
//!
//! | process | sees |
//! |---|---|
//! | a writer | the session is locked; [`SessionLog::compact`](crate::SessionLog::compact) compacts the session that its own process has open, and blocks its other calls |
//! | a reader | the log as it was when opened, since it holds the files open ([`crate::inspect::LogReader`]); beyond its maximum of open files, and in a session's views, each segment in its old or new form, and data from a segment that was replaced during the read is read again |
//! | a follower | each segment in its old or new form |
//! | a fork that was made earlier | its own names of the old files |
//! | a process that opens the session after a kill | a partly compacted session, from some segment on ([`crate::log::dropped_ranges`]); for each segment, its plain or its compressed file |

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{
    Action, BaseSlice, BuiltIn, Dispatch, Dropped, ItemRun, Outcome, Payload, Policy, SnapshotBody,
    ToolBegin, ToolEnd,
};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

mod compress;

use super::Store;
use super::bit_set::BitSet;
pub use compress::CompressReport;
use compress::{compress, is_worth_finishing, original_compressions};

use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::live_path::LivePath;
use crate::fold::operations::Operations;
use crate::fold::projection::{LogSlices, Projection};
use crate::items::SliceItems;
use crate::log::chain::Segment;
use crate::log::image_files;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::log::segment_replacement::{self, SegmentRewrite};
use crate::names::DeclaredNames;
use crate::operation::{RESTORE, RestoreArguments};
use crate::options::CompactOptions;
use crate::session::{LoadedSession, Session, SessionLog, lock_to_write, open_read};

/// Bytes that finishing a segment needs: the observation, and the head of the segment that starts
/// with it.
const FINISHING_BYTES: u64 = 512;

/// Name of the observation that a compaction records to finish the last segment with records.
const OBSERVED: &str = "foldlog.compact";

/// Reports the results of a compaction, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompactReport {
    /// Id of the session.
    pub session: Uuid,
    /// Position up to which bodies were dropped; `None` if there was nothing to drop.
    pub through: Option<SequenceNumber>,
    /// Positions at or before `through` at which the slices are known.
    pub kept: Vec<SequenceNumber>,
    /// Number of records whose bodies this compaction dropped.
    pub dropped: u64,
    /// Number of segments that were rewritten.
    pub segments: u64,
    /// Bytes by which the compacted segments became smaller. A segment shared with a fork stays on
    /// the disk for the fork.
    pub bytes: u64,
    /// Bytes of the objects that the dropped bodies named. A [collection](Store::collect) removes
    /// them unless other records name them.
    pub object_bytes: u64,
    /// Result for the files of finished segments; `None` unless [`CompactOptions::compression`] is
    /// set.
    pub compressed: Option<CompressReport>,
}

impl CompactReport {
    /// Returns whether any file was replaced, or would be.
    pub fn changed_anything(&self) -> bool {
        self.through.is_some() || self.compressed.as_ref().is_some_and(|compressed| compressed.segments > 0)
    }
}

#[derive(Default)]
struct CompactionPlan {
    through: SequenceNumber,
    bases: Vec<(SequenceNumber, Vec<BaseSlice>)>,
    drops: BitSet,
    dropped: u64,
    /// Bytes saved in the segments, without the cost of their new heads.
    bytes: u64,
    object_bytes: u64,
}

struct SegmentReplacement<'a> {
    segment: &'a Segment,
    /// The segment after it; `None` if this one has yet to be finished.
    next: Option<&'a Segment>,
    /// Contents of the slices at kept positions in the segment.
    bases: Vec<(SequenceNumber, Vec<BaseSlice>)>,
}

/// Facts about positions, collected in one pass over the records.
#[derive(Default)]
struct Marks {
    /// Runs of tools: the start record, then the end record.
    runs: Vec<(SequenceNumber, SequenceNumber)>,
    snapshots: Vec<(SequenceNumber, bool)>,
    /// Start records of rewinds, by their end records.
    rewinds: BTreeMap<SequenceNumber, SequenceNumber>,
    /// Last record before the first one that is younger than the options allow.
    old: Option<SequenceNumber>,
}

impl Store {
    /// Drops bodies of STATE that a session no longer needs. Afterwards the size of its log is in
    /// proportion to the contents of its slices and to its history. The current contents of the
    /// slices, LOG slices, calls, conversations, times and the hashes of all bodies stay. The
    /// session must not be open for writing; if it is, see
    /// [`SessionLog::compact`](crate::SessionLog::compact).
    ///
    /// ```
    /// # use foldlog::{CompactOptions, Event, SessionTypes, Slice, SnapshotOptions, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Drafted(String);
    /// # impl Event for Drafted {
    /// #     const NAME: &'static str = "text.drafted";
    /// # }
    /// # struct Text;
    /// # impl Slice for Text {
    /// #     const NAME: &'static str = "text";
    /// #     type Item = Drafted;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let types = SessionTypes::builder().slice::<Text>().replace_latest::<Text>().build()?;
    /// let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// for draft in 0..100 {
    ///     session.dispatch(Drafted(format!("draft {draft}, {}", "and so on. ".repeat(20))))?;
    /// }
    /// let id = session.id();
    /// session.close()?;
    /// let report = store.compact(id, &CompactOptions::default())?;
    /// assert_eq!(report.dropped, 99);
    /// assert_eq!(store.open_session(id, &types)?.view::<Text>()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::NoSuchSession`] if the store has no such session, [`Error::Locked`] if it is open
    ///   for writing, [`Error::ReadOnly`] if the store is read-only, [`Error::Full`] if the disk
    ///   has no room for one more segment.
    /// - [`Error::Interrupted`] if an operation was left open: recover the session first.
    /// - [`Error::CompressionUnavailable`] if the options ask for a compression that this build
    ///   lacks.
    /// - The errors of [`LogReader::open`](crate::inspect::LogReader::open) if the session is
    ///   damaged.
    pub fn compact(&self, session: Uuid, options: &CompactOptions) -> Result<CompactReport> {
        let dir = self.find_session_dir(session)?;
        let nothing = CompactReport { session, ..CompactReport::default() };
        let storage = self.storage().as_ref();
        options.compression.map_or(Ok(()), |compression| compression.check_available(&dir))?;
        if options.dry_run {
            let read = open_read(self.read_ground(), &dir, None, LogSlices::Unread)?;
            let chosen = self.choose(&dir, &read, options)?;
            let report = chosen.map_or(nothing, |(plan, _)| plan.report(session, 0));
            let originals = original_compressions(storage, &read, options)?;
            let compressed = compress(storage, &dir, options, &originals)?;
            return Ok(CompactReport { compressed, ..report });
        }
        if !self.finish_last_segment(session, &dir, options)? && options.compression.is_none() {
            return Ok(nothing);
        }
        let lock = lock_to_write(&self.inner, session)?;
        let report = self.compact_finished(session, &dir, options)?;
        drop(lock);
        if report.through.is_some() && self.inner.options.replication.is_some() {
            // Opening records which of the replica's bodies were dropped.
            self.open_to_recover(session)?.close()?;
        }
        Ok(report)
    }

    fn compact_finished(&self, session: Uuid, dir: &Path, options: &CompactOptions) -> Result<CompactReport> {
        let storage = self.storage().as_ref();
        let read = open_read(self.read_ground(), dir, None, LogSlices::Unread)?;
        let originals = original_compressions(storage, &read, options)?;
        let report = match self.plan(dir, &read, options, false)? {
            Some(plan) => self.carry_out(dir, &read, plan)?,
            None => CompactReport { session, ..CompactReport::default() },
        };
        let compressed = compress(storage, dir, options, &originals)?;
        Ok(CompactReport { compressed, ..report })
    }

    /// Finishes the last segment with records, if more is dropped then, or if it is to be
    /// compressed. Returns whether there is anything to drop.
    fn finish_last_segment(&self, session: Uuid, dir: &Path, options: &CompactOptions) -> Result<bool> {
        let opened = self.open_to_recover(session)?;
        let operations = opened.log().recovery().interrupted.clone();
        if !operations.is_empty() {
            opened.close()?;
            return Err(Error::Interrupted { session, operations });
        }
        let chosen = self.finish_as_chosen(&opened, dir, options);
        opened.close().and(chosen)
    }

    fn finish_as_chosen(&self, opened: &Session, dir: &Path, options: &CompactOptions) -> Result<bool> {
        let read = || open_read(self.read_ground(), dir, None, LogSlices::Unread);
        let mut now = read()?;
        let mut chosen = self.choose(dir, &now, options)?;
        // A compacted segment attests that its contents are durable. So everything before it, and
        // the objects that it names, must be durable first. A sync may rewrite the last segments,
        // so they are read again.
        if (chosen.is_some() || options.compression.is_some()) && opened.log().recovery().unattested > 0 {
            opened.sync()?;
            now = read()?;
            chosen = self.choose(dir, &now, options)?;
        }
        if matches!(chosen, Some((_, true))) || is_worth_finishing(&now, options) {
            opened.log().finish_segment(OBSERVED)?;
        }
        Ok(chosen.is_some())
    }

    /// Plans the compaction, and determines whether the last segment has to be finished for it.
    /// `None` if there is nothing to drop. The last segment may also be the only reason why a body
    /// in an earlier segment can be dropped.
    fn choose(
        &self,
        dir: &Path,
        read: &LoadedSession,
        options: &CompactOptions,
    ) -> Result<Option<(CompactionPlan, bool)>> {
        let (whole, finished) = (self.plan(dir, read, options, true)?, self.plan(dir, read, options, false)?);
        let saved = |plan: &CompactionPlan| plan.bytes.saturating_add(plan.object_bytes);
        let without = finished.as_ref().map_or(0, saved);
        Ok(match whole {
            Some(whole) if saved(&whole) > without + FINISHING_BYTES => Some((whole, true)),
            _ => finished.map(|plan| (plan, false)),
        })
    }

    fn plan(
        &self,
        dir: &Path,
        read: &LoadedSession,
        options: &CompactOptions,
        whole: bool,
    ) -> Result<Option<CompactionPlan>> {
        if options.keep_bodies {
            return Ok(None);
        }
        let storage = self.storage();
        let (scan, projection) = (&read.scan, &read.folded.projection);
        if let Some((sequence, kind)) = projection.unsupported {
            return Err(Error::UnsupportedKind { sequence, kind });
        }
        let places = scan.places();
        let objects = Objects::new(Arc::clone(storage), dir);
        let next = scan.next_sequence;
        // A segment after the end of the log does not belong to it: if the last record of the
        // segment before was lost, that one is not finished.
        let mut begins = scan.segments.iter().rev().map(|segment| segment.header.first_sequence);
        let finished = begins.find(|first| *first <= next).unwrap_or(SequenceNumber::MIN);
        let marks = self.marks(&places, options)?;
        let Some(mut through) = (if whole { next } else { finished }).checked_sub(1) else { return Ok(None) };
        if options.younger_than.is_some() {
            let Some(old) = marks.old else { return Ok(None) };
            through = through.min(old);
        }
        let Some(through) = outside_calls(through, &projection.operations, marks.runs) else {
            return Ok(None);
        };
        let before = places.compaction.as_deref();
        let last_range = before.and_then(|before| before.ranges().last());
        if last_range.is_some_and(|range| through < *range.end()) {
            return Ok(None);
        }
        let snapshots = marks.snapshots.iter().filter(|(_, tagged)| options.snapshots.keeps(*tagged));
        let behind = scan.rollbacks.range(through + 1..).map(|(_, rollback)| rollback.to);
        let path = LivePath::new(scan.rollbacks.iter().map(|(at, rollback)| (*at, rollback.to)));
        let is_live = |end: &SequenceNumber| path.is_live(*end, next.saturating_sub(1));
        let rewound = marks.rewinds.iter().rfind(|(end, _)| is_live(end));
        let rewound = rewound.and_then(|(_, begin)| begin.checked_sub(1));
        let kept: BTreeSet<SequenceNumber> = snapshots
            .map(|(position, _)| *position)
            .chain(options.positions.iter().copied())
            .chain(behind)
            .chain(rewound)
            .filter(|position| *position < through && before.is_none_or(|before| before.knows(*position)))
            .chain([through])
            .collect();
        let (rollbacks, limit) = (&scan.rollbacks, (dir, self.inner.options.memory));
        let history = History { storage, places: &places, objects: &objects, rollbacks, limit };
        let Some(plan) = CompactionPlan::from_history(&history, through, &kept)? else { return Ok(None) };
        let (mut gained, mut spent) = (plan.bytes, 0);
        for SegmentReplacement { segment, bases, .. } in plan.replaces(&scan.segments) {
            gained += before.map_or(0, |before| before.head_bytes(segment));
            spent += segment_replacement::head_bytes(&bases);
        }
        let bytes = gained.saturating_sub(spent);
        Ok((bytes > 0 || plan.object_bytes > 0).then_some(CompactionPlan { bytes, ..plan }))
    }

    fn marks(&self, places: &RecordLocator, options: &CompactOptions) -> Result<Marks> {
        let young = self.inner.options.old_until_us(options.younger_than);
        let (mut marks, mut is_young, mut begun) = (Marks::default(), false, BTreeSet::new());
        places.read(self.storage(), SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
            is_young |= young.is_some_and(|young| record.time_us > young);
            if !is_young {
                marks.old = Some(record.sequence);
            }
            let bad = Error::unread(record.sequence);
            match record.kind {
                RecordKind::Snapshot => {
                    let tagged = SnapshotBody::decode(record.body).map_err(bad)?.tag.is_some();
                    marks.snapshots.push((record.sequence, tagged));
                }
                RecordKind::ToolBegin => {
                    let begin = ToolBegin::decode(record.body).map_err(bad)?;
                    if begin.tool == RESTORE && is_rewind(begin.arguments) {
                        begun.insert(record.sequence);
                    }
                }
                RecordKind::ToolEnd => {
                    let end = ToolEnd::decode(record.body).map_err(bad)?;
                    marks.runs.push((end.begin, record.sequence));
                    if begun.remove(&end.begin) && end.outcome == Outcome::Committed {
                        marks.rewinds.insert(record.sequence, end.begin);
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(marks)
    }

    fn carry_out(&self, dir: &Path, read: &LoadedSession, plan: CompactionPlan) -> Result<CompactReport> {
        let (mut written, storage) = (0, self.storage().as_ref());
        let mut replaced = plan.replaces(&read.scan.segments);
        replaced.reverse();
        for SegmentReplacement { segment, next, bases } in replaced {
            let Some(next) = next else { continue };
            SegmentRewrite {
                storage,
                dir,
                segment,
                next: &next.header,
                through: plan.through,
                bases: &bases,
                drops: &|sequence| plan.drops.contains(sequence.get()),
            }
            .run()?;
            written += 1;
        }
        image_files::remove_all(storage, dir, &Arc::default());
        Ok(plan.report(read.scan.session, written))
    }
}

impl SessionLog<'_> {
    /// Drops bodies of STATE as [`Store::compact`] does, while the session is open. No call of a
    /// tool may be open. Other calls of the session block until the segments are rewritten, which
    /// takes as long as reading the log a few times.
    ///
    /// # Errors
    ///
    /// - [`Error::InsideTransaction`] if an operation is open.
    /// - The errors of [`sync`](Session::sync) and of [`Store::compact`]. If the log cannot be read
    ///   after a compaction, the session rejects further writes.
    pub fn compact(&self, options: &CompactOptions) -> Result<CompactReport> {
        let (store, session, dir) = (self.session.store(), self.session.id(), self.session.dir());
        if options.dry_run {
            return store.compact(session, options);
        }
        if let Some(open) = self.session.calls().open_operations().first() {
            let position = self.position().unwrap_or_default();
            return Err(Error::InsideTransaction { position, operation: open.operation });
        }
        options.compression.map_or(Ok(()), |compression| compression.check_available(dir))?;
        if !store.finish_as_chosen(self.session, dir, options)? && options.compression.is_none() {
            return Ok(CompactReport { session, ..CompactReport::default() });
        }
        self.session.sync()?;
        let report = self.replace_segments(|| store.compact_finished(session, dir, options))?;
        if report.through.is_some() {
            self.say_dropped()?;
        }
        Ok(report)
    }
}

impl CompactionPlan {
    /// Plans to drop the bodies before `through` that no kept position needs.
    fn from_history(
        history: &History<'_>,
        through: SequenceNumber,
        kept: &BTreeSet<SequenceNumber>,
    ) -> Result<Option<CompactionPlan>> {
        let mut plan = CompactionPlan { through, ..CompactionPlan::default() };
        let mut saving: Vec<(SequenceNumber, u32, u64)> = Vec::new();
        let mut needed = BitSet::default();
        history.fold(through + 1, None, LogSlices::Unread, &mut |record, projection| {
            // The last record stays, so that a reader that continues from the position needs
            // nothing of the range before it.
            let may_go = record.kind == RecordKind::Dispatch
                && record.sequence < through
                && is_droppable(record, &projection.names)?;
            if may_go {
                let (saved, of_objects) = (saved_by(record), record.objects().iter().map(|it| it.len).sum());
                if saved > 0 || of_objects > 0 {
                    saving.push((record.sequence, saved, of_objects));
                }
            }
            if kept.contains(&record.sequence) {
                let base = names_in(projection);
                for id in base.iter().flat_map(|slice| &slice.items).flat_map(|run| run.ids()) {
                    needed.add(id.sequence.get());
                }
                plan.bases.push((record.sequence, base));
            }
            Ok(())
        })?;
        for (sequence, saved, of_objects) in saving {
            if !needed.contains(sequence.get()) {
                plan.drops.add(sequence.get());
                plan.dropped += 1;
                plan.bytes += u64::from(saved);
                plan.object_bytes += of_objects;
            }
        }
        Ok((plan.dropped > 0).then_some(plan))
    }

    /// Returns the segments to rewrite, oldest first.
    fn replaces<'a>(&self, segments: &'a [Segment]) -> Vec<SegmentReplacement<'a>> {
        let first = self.drops.first().map(SequenceNumber::new);
        let nexts = segments.iter().skip(1).map(Some).chain([None]);
        let replaced = segments.iter().zip(nexts).filter_map(|(segment, next)| {
            let from = segment.header.first_sequence;
            let below = next.map_or(SequenceNumber::MAX, |next| next.header.first_sequence);
            let bases = self.bases.iter().filter(|(position, _)| (from..below).contains(position));
            let is_replaced = from <= self.through && first.is_some_and(|first| first < below);
            is_replaced.then(|| SegmentReplacement { segment, next, bases: bases.cloned().collect() })
        });
        replaced.collect()
    }

    fn report(&self, session: Uuid, segments: u64) -> CompactReport {
        CompactReport {
            session,
            through: Some(self.through),
            kept: self.bases.iter().map(|(position, _)| *position).collect(),
            dropped: self.dropped,
            segments,
            bytes: self.bytes,
            object_bytes: self.object_bytes,
            compressed: None,
        }
    }
}

/// Returns the last position up to `through` that lies within no call, and before all calls that
/// are open, unsettled or suspended.
fn outside_calls(
    mut through: SequenceNumber,
    operations: &Operations,
    mut runs: Vec<(SequenceNumber, SequenceNumber)>,
) -> Option<SequenceNumber> {
    let waiting = operations
        .open()
        .flat_map(|open| [open.begin, open.operation.get().into()])
        .chain(operations.unsettled().flat_map(|one| [one.begin, one.operation.get().into()]))
        .chain(operations.suspended().map(|one| one.operation.get().into()));
    if let Some(first) = waiting.min() {
        through = through.min(first.checked_sub(1)?);
    }
    runs.sort_unstable();
    for (begin, end) in runs.into_iter().rev() {
        if (begin..end).contains(&through) {
            through = begin.checked_sub(1)?;
        }
    }
    Some(through)
}

/// Returns whether a restore with these arguments is a rewind, which can be undone. Returns `true`
/// if the arguments cannot be read here, for example because they are in an object.
fn is_rewind(arguments: Payload<'_>) -> bool {
    RestoreArguments::read(arguments.bytes()).is_none_or(|arguments| arguments.rewind.is_some())
}

/// Returns by how many bytes the log shrinks if the body of a record is dropped.
fn saved_by(record: &Record<'_>) -> u32 {
    let stands = Dropped { kind: record.kind, len: record.body.len() as u64, hash: [0; 32] }.encode().len();
    u32::try_from(record.body.len().saturating_sub(stands)).unwrap_or(u32::MAX)
}

/// Returns whether a dispatch changed slices, none of which is a LOG slice.
fn is_droppable(record: &Record<'_>, names: &DeclaredNames) -> Result<bool> {
    let Dispatch { action, effects } =
        Dispatch::decode(record.body).map_err(Error::unread(record.sequence))?;
    let is_log = |slice: u32| names.slice(slice).is_none_or(|slice| slice.policy == Policy::Log);
    Ok(match (&action, effects) {
        (Action::Tag { .. }, _) => false,
        (_, Some(effects)) => !effects.is_empty() && !effects.iter().any(|effect| is_log(effect.slice)),
        (Action::Event { event, .. }, None) => {
            let bindings = names.event(*event).map(|event| event.bindings.as_slice()).unwrap_or_default();
            let changed = bindings.iter().filter(|binding| binding.built_in != BuiltIn::Explicit);
            changed.clone().next().is_some() && !changed.clone().any(|binding| is_log(binding.slice))
        }
        (_, None) => false,
    })
}

/// Returns the names of the items of STATE and CACHE slices.
fn names_in(projection: &Projection) -> Vec<BaseSlice> {
    let mut base = Vec::new();
    for id in 0..projection.names.slices().len() as u32 {
        let Some((policy, SliceItems::Held(rows))) = projection.items(id) else { continue };
        if policy == Policy::Log || rows.is_empty() {
            continue;
        }
        let mut items: Vec<ItemRun> = Vec::new();
        for row in rows.iter() {
            match items.last_mut() {
                Some(run)
                    if run.version == row.version
                        && run.first.ordinal == row.id.ordinal
                        && run.first.sequence + u64::from(run.count) == row.id.sequence
                        && run.count < u32::MAX =>
                {
                    run.count += 1;
                }
                _ => items.push(ItemRun { first: row.id, version: row.version, count: 1 }),
            }
        }
        base.push(BaseSlice { slice: id, items });
    }
    base
}
