//! Determines which captures of resources the log of a session needs.
//!
//! A capture is kept if a record that names it belongs to
//!
//! 1. a call that is open, unsettled or suspended, with all its runs;
//! 2. one of the latest calls, as many as the options say, not counting rewinds; or a call or a
//!    snapshot that is younger than the options say;
//! 3. a snapshot whose position the options keep;
//! 4. the last rewind in effect, so that it can be undone; the last recovery; and the last rollback
//!    of a call that replaced something;
//! 5. the last call that has ended, even if it was rolled back since: a later rewind compares the
//!    workspace with the captures that this call left, to find changes by hand. If the call is a
//!    rewind, it left the captures in effect at its target. The same is kept for each rewind of
//!    which a capture is kept, since a later rewind may go back to a position after it;
//!
//! or if it is in effect at one of these positions: at the end of the log, at each kept snapshot,
//! before the first record that rule 2 keeps and at each rollback after that, and before each
//! operation of rule 4.
//!
//! The capture in effect at a position is the one that the last call left that had ended by then
//! and is on the path of that position. For a resource without such a call, it is the one that the
//! first later call found (as [`captures_at`](crate::SessionCalls::captures_at) of a rewind
//! determines it).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{self, Observed, Outcome, Payload, ResourceSnapshot, Rollback, ToolBegin, ToolEnd};
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};

use super::{CollectOptions, CollectedFiles, Store};
use crate::error::{Error, Result};
use crate::fold::live_path::LivePath;
use crate::log::objects::Objects;
use crate::operation::{RESTORE, RestoreArguments, RollbackBegun};
use crate::session::{LoadedSession, captures_named_by};
use crate::store::bit_set::BitSet;

/// Lists the captures that a log names, by the names of their resources, in their recorded form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CapturesInUse {
    /// Captures that the log needs.
    pub kept: BTreeMap<String, BTreeSet<Vec<u8>>>,
    /// Captures that the log names but does not need.
    pub given_up: BTreeMap<String, BTreeSet<Vec<u8>>>,
}

impl CapturesInUse {
    pub(super) fn add(&mut self, other: CapturesInUse) {
        for (into, from) in [(&mut self.kept, other.kept), (&mut self.given_up, other.given_up)] {
            for (resource, captures) in from {
                into.entry(resource).or_default().extend(captures);
            }
        }
    }
}

/// Describes one run of a call whose start or end record names captures.
#[derive(Default)]
struct CapturedRun {
    begin: SequenceNumber,
    /// End record; `None` if the run is open.
    end: Option<SequenceNumber>,
    operation: OperationId,
    outcome: Option<Outcome>,
    is_restore: bool,
    /// If it is a rewind: its target, and the rewind that it undoes.
    rewind: Option<(SequenceNumber, Option<OperationId>)>,
    /// Whether it undoes the rollback of a call. Later rewinds ignore it, like changes by hand.
    undoes_rollback: bool,
    /// Record of the state that was found when its first rollback began.
    rollback: Option<SequenceNumber>,
    /// Whether its changes were rolled back, and whether that replaced something.
    rolled_back: bool,
    has_replaced: bool,
    /// Resources in its start record, and in its end record.
    before: BitSet,
    after: BitSet,
}

impl CapturedRun {
    /// Returns the record that names the captures left by the run after its end, with their
    /// resources. A restore that was not done has none: it may have worked on another directory.
    fn resources_left(&self) -> Option<(SequenceNumber, &BitSet)> {
        let end = self.end?;
        match self.outcome? {
            Outcome::Committed | Outcome::Suspended if !self.rolled_back => Some((end, &self.after)),
            _ if self.is_restore => None,
            _ => Some((self.begin, &self.before)),
        }
    }
}

/// References to captures, collected in one pass over a log.
#[derive(Default)]
struct CaptureReferences {
    runs: Vec<CapturedRun>,
    /// Ended runs, as indices into `runs`, in the order of their end records.
    ended: Vec<(SequenceNumber, usize)>,
    /// Snapshots, and whether each has a tag.
    snapshots: Vec<(SequenceNumber, bool)>,
    /// Names of resources, in the order of their first mention in the log.
    resources: Vec<String>,
    /// First record that is younger than the options say.
    young: Option<SequenceNumber>,
}

impl CaptureReferences {
    fn set_of(&mut self, resources: &[ResourceSnapshot<'_>]) -> BitSet {
        let mut set = BitSet::default();
        for resource in resources.iter().filter(|resource| resource.snapshot.is_some()) {
            let at = self.resources.iter().position(|name| *name == resource.resource);
            let at = at.unwrap_or_else(|| {
                self.resources.push(resource.resource.clone().into_owned());
                self.resources.len() - 1
            });
            set.add(at as u64);
        }
        set
    }

    /// Returns the resources that any run names.
    fn all(&self) -> BitSet {
        let mut all = BitSet::default();
        for run in &self.runs {
            all.extend(&run.before);
            all.extend(&run.after);
        }
        all
    }

    fn take(&mut self, record: &Record<'_>, objects: &Objects) -> Result<()> {
        let bad = Error::unread(record.sequence);
        match record.kind {
            RecordKind::ToolBegin => {
                let begin = ToolBegin::decode(record.body).map_err(bad)?;
                let is_restore = begin.tool == RESTORE;
                let before = self.set_of(&begin.resources);
                let goes = if is_restore { rewind_of(begin.arguments, objects)? } else { None };
                self.runs.push(CapturedRun {
                    begin: record.sequence,
                    operation: begin.again.unwrap_or(OperationId::from(record.sequence)),
                    is_restore,
                    rewind: goes.map(|(position, undoes, _)| (position, undoes)),
                    undoes_rollback: goes.is_some_and(|(.., undoes_rollback)| undoes_rollback),
                    before,
                    ..CapturedRun::default()
                });
            }
            RecordKind::ToolEnd => {
                let end = ToolEnd::decode(record.body).map_err(bad)?;
                let after = self.set_of(&end.resources);
                let Ok(at) = self.runs.binary_search_by_key(&end.begin, |run| run.begin) else {
                    return Ok(());
                };
                if let Some(run) = self.runs.get_mut(at) {
                    (run.end, run.outcome) = (Some(record.sequence), Some(end.outcome));
                    (run.rolled_back, run.has_replaced) = (end.rolls_back, !end.replaced.is_empty());
                    run.after = after;
                    self.ended.push((record.sequence, at));
                }
            }
            RecordKind::Observed => {
                let observed = Observed::decode(record.body).map_err(bad)?;
                let begun = RollbackBegun::read(&observed, objects);
                let at = begun.map(|begun| self.runs.binary_search_by_key(&begun.begin, |run| run.begin));
                if let Some(run) = at.and_then(|at| self.runs.get_mut(at.ok()?)) {
                    run.rollback.get_or_insert(record.sequence);
                }
            }
            RecordKind::Snapshot => {
                let snapshot = body::SnapshotBody::decode(record.body).map_err(bad)?;
                self.set_of(&snapshot.resources);
                self.snapshots.push((record.sequence, snapshot.tag.is_some()));
            }
            _ => {}
        }
        Ok(())
    }
}

struct CaptureSelection<'a> {
    named: &'a CaptureReferences,
    path: LivePath,
    /// Rollbacks by their records, including those of rewinds.
    rollbacks: &'a BTreeMap<SequenceNumber, Rollback>,
    last: SequenceNumber,
    kept: BTreeSet<SequenceNumber>,
}

impl CaptureSelection<'_> {
    fn keep(&mut self, run: &CapturedRun) {
        self.kept.insert(run.begin);
        self.kept.extend(run.rollback.into_iter().chain(run.end));
    }

    /// Keeps the captures in effect at a position. Returns the last end record of a call that named
    /// some of them.
    fn keep_at(&mut self, position: SequenceNumber) -> Option<SequenceNumber> {
        let named = self.named;
        let mut last_end = None;
        let (all, mut found) = (named.all(), BitSet::default());
        let over = named.ended.partition_point(|(end, _)| *end <= position);
        for (end, at) in named.ended.iter().take(over).rev() {
            if found == all {
                return last_end;
            }
            let Some((record, resources)) = named.runs.get(*at).and_then(CapturedRun::resources_left) else {
                continue;
            };
            if !found.contains_all(resources) && self.path.is_live(*end, position) {
                found.extend(resources);
                self.kept.insert(record);
                last_end = last_end.max(Some(*end));
            }
        }
        let behind = named.runs.partition_point(|run| run.begin <= position);
        for run in named.runs.iter().skip(behind) {
            if found == all {
                return last_end;
            }
            if !found.contains_all(&run.before) && self.path.is_live(position, run.begin) {
                found.extend(&run.before);
                self.kept.insert(run.begin);
            }
        }
        last_end
    }

    /// Keeps the captures that a later rewind attributes to tools: the ones left by the last call
    /// that had ended before `limit`, even if it was rolled back since. If that call is a rewind,
    /// keeps the captures at its target, and follows that target in turn.
    fn keep_by_tools(&mut self, mut limit: SequenceNumber) {
        let named = self.named;
        let (all, mut found) = (named.all(), BitSet::default());
        let mut ended = named.ended.iter().rev();
        while let Some((end, at)) = ended.next().filter(|_| found != all) {
            let Some(run) = named.runs.get(*at).filter(|run| *end < limit && !run.undoes_rollback) else {
                continue;
            };
            match run.rewind.filter(|_| run.outcome == Some(Outcome::Committed)) {
                Some((_, Some(undone))) => limit = undone.into(),
                Some((to, None)) => match self.keep_at(to) {
                    Some(behind) => limit = behind.saturating_add(1),
                    None => return,
                },
                None => {
                    let Some((record, resources)) = run.resources_left() else { continue };
                    found.extend(resources);
                    self.kept.insert(record);
                }
            }
        }
    }

    fn keep_from(&mut self, first: SequenceNumber) {
        let named = self.named;
        let is_young = |run: &&CapturedRun| run.begin >= first || run.end.is_some_and(|end| end >= first);
        named.runs.iter().filter(is_young).for_each(|run| self.keep(run));
        self.kept.extend(named.snapshots.iter().map(|(position, _)| *position).filter(|it| *it >= first));
        // After a rollback, the captures at its target are in effect, however old they are.
        let turns = self.rollbacks.range(first..).map(|(at, _)| *at);
        for position in first.checked_sub(1).into_iter().chain(turns) {
            self.keep_at(position);
        }
    }

    fn choose(&mut self, options: &CollectOptions, waiting: &BTreeSet<OperationId>) {
        let named = self.named;
        let is_waiting = |run: &&CapturedRun| run.end.is_none() || waiting.contains(&run.operation);
        named.runs.iter().filter(is_waiting).for_each(|run| self.keep(run));
        let calls = usize::try_from(options.calls).unwrap_or(usize::MAX);
        // Rewinds and restores do not count towards the number of calls.
        let names =
            |run: &&CapturedRun| !(run.is_restore || run.before.first().or(run.after.first()).is_none());
        let naming = named.runs.iter().filter(names);
        let latest = naming.rev().take(calls).last().map(|run| run.begin);
        for first in latest.into_iter().chain(named.young) {
            self.keep_from(first);
        }
        for (position, tagged) in &named.snapshots {
            if options.snapshots.keeps(*tagged) {
                self.kept.insert(*position);
                self.keep_at(*position);
            }
        }
        // The current captures, whatever the options say: the next call starts from them.
        self.keep_at(self.last);
        self.keep_by_tools(SequenceNumber::MAX);
        let counts = |run: &&CapturedRun| run.end.is_some_and(|end| self.path.is_live(end, self.last));
        let rewind = named
            .runs
            .iter()
            .rfind(|run| run.rewind.is_some() && run.outcome == Some(Outcome::Committed) && counts(run));
        let recovery = named.runs.iter().rfind(|run| run.outcome == Some(Outcome::Interrupted));
        let rollback = named.runs.iter().rfind(|run| run.has_replaced);
        for run in rewind.into_iter().chain(recovery).chain(rollback) {
            self.keep(run);
            if let Some(before) = run.begin.checked_sub(1) {
                self.keep_at(before);
            }
        }
        self.keep_behind_rewinds();
    }

    /// Keeps, for each rewind with a kept record, the captures that a later rewind to a position
    /// after it attributes to tools.
    fn keep_behind_rewinds(&mut self) {
        let named = self.named;
        let mut looked_at = BTreeSet::new();
        loop {
            let is_next = |(end, at): &&(SequenceNumber, usize)| {
                let is_rewind = named.runs.get(*at).is_some_and(|run| run.rewind.is_some());
                is_rewind && self.kept.contains(end) && !looked_at.contains(end)
            };
            let Some((end, _)) = named.ended.iter().find(is_next) else { return };
            looked_at.insert(*end);
            self.keep_by_tools(end.saturating_add(1));
        }
    }
}

/// If these are the arguments of a rewind, returns its target, the operation that it undoes, and
/// whether that is a call whose rollback it undoes instead of a rewind.
fn rewind_of(
    arguments: Payload<'_>,
    objects: &Objects,
) -> Result<Option<(SequenceNumber, Option<OperationId>, bool)>> {
    let arguments = RestoreArguments::read(&objects.resolve(arguments)?);
    let rewind = arguments.and_then(|arguments| Some((arguments.position, arguments.rewind?)));
    Ok(rewind.map(|(position, rewind)| (position, rewind.undoes, rewind.undoes_rollback)))
}

/// Returns the captures that the log of a session needs, and the unneeded ones that it names.
pub(super) fn in_use(
    store: &Store,
    dir: &Path,
    read: &LoadedSession,
    options: &CollectOptions,
) -> Result<CapturesInUse> {
    let (storage, places) = (store.storage(), read.places());
    let young_us = store.inner.options.old_until_us(options.younger_than);
    let objects = Objects::new(Arc::clone(storage), dir);
    let mut named = CaptureReferences::default();
    places.read(storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
        if named.young.is_none() && young_us.is_some_and(|young| record.time_us > young) {
            named.young = Some(record.sequence);
        }
        named.take(&record, &objects)
    })?;
    let operations = &read.folded.projection.operations;
    let waiting = operations
        .open()
        .map(|open| open.operation)
        .chain(operations.unsettled().map(|one| one.operation))
        .chain(operations.suspended().map(|one| one.operation))
        .collect();
    let rollbacks = &read.scan.rollbacks;
    let mut choosing = CaptureSelection {
        named: &named,
        path: LivePath::new(rollbacks.iter().map(|(at, rollback)| (*at, rollback.to))),
        rollbacks,
        last: read.scan.next_sequence.saturating_sub(1),
        kept: BTreeSet::new(),
    };
    choosing.choose(options, &waiting);
    let kept = choosing.kept;
    let mut in_use = CapturesInUse::default();
    places.read(storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
        // Of the kinds that `take` does not know, all captures stay.
        let is_known = matches!(
            record.kind,
            RecordKind::ToolBegin | RecordKind::ToolEnd | RecordKind::Observed | RecordKind::Snapshot
        );
        let is_kept = !is_known || kept.contains(&record.sequence);
        let into = if is_kept { &mut in_use.kept } else { &mut in_use.given_up };
        for (resource, recorded) in captures_named_by(&record, &objects)? {
            into.entry(resource).or_default().extend(recorded);
        }
        Ok(())
    })?;
    for (resource, captures) in &mut in_use.given_up {
        let needed = in_use.kept.get(resource);
        captures.retain(|capture| needed.is_none_or(|needed| !needed.contains(capture)));
    }
    Ok(in_use)
}

#[derive(Default)]
pub(super) struct SweepOutcome {
    pub(super) collected: CollectedFiles,
    pub(super) left: Vec<PathBuf>,
}

/// Removes from a store of snapshots all data that no kept capture of a workspace needs.
#[cfg(feature = "host-filesystem")]
pub(super) fn sweep(
    store: &Path,
    pool: Option<&Path>,
    in_use: &CapturesInUse,
    dry_run: bool,
) -> Result<SweepOutcome> {
    use foldlog_codec::msgpack;
    use foldlog_filesystem::{CaptureCollectOptions, FilesystemSnapshot, collect_snapshots};

    // Captures of other kinds of resources have other forms, and no data in the store.
    let of = |captures: &BTreeMap<String, BTreeSet<Vec<u8>>>| -> Vec<FilesystemSnapshot> {
        captures.values().flatten().filter_map(|recorded| msgpack::from_slice(recorded).ok()).collect()
    };
    let (keep, give_up) = (of(&in_use.kept), of(&in_use.given_up));
    let asked = CaptureCollectOptions { keep: &keep, give_up: &give_up, pool, dry_run };
    Ok(sweep_outcome(collect_snapshots(store, &asked)?))
}

/// Removes from the pool the files that no session has.
#[cfg(feature = "host-filesystem")]
pub(super) fn sweep_pool(pool: &Path, dry_run: bool) -> Result<SweepOutcome> {
    Ok(sweep_outcome(foldlog_filesystem::collect_pool(pool, dry_run)?))
}

#[cfg(feature = "host-filesystem")]
fn sweep_outcome(removed: foldlog_filesystem::Collection) -> SweepOutcome {
    let collected =
        CollectedFiles { captures: removed.objects, bytes: removed.bytes, ..CollectedFiles::default() };
    SweepOutcome { collected, left: removed.left }
}

/// Removes from the pool the files that only this store of captures has.
#[cfg(feature = "host-filesystem")]
pub(super) fn unpool(store: &Path, pool: &Path) {
    // A later collection removes files that are left.
    let _ = foldlog_filesystem::unpool(store, pool);
}

/// Leaves the pool unchanged, as [`sweep`] leaves captures.
#[cfg(not(feature = "host-filesystem"))]
pub(super) fn unpool(_: &Path, _: &Path) {}

/// Leaves the pool unchanged, as [`sweep`] leaves captures.
#[cfg(not(feature = "host-filesystem"))]
pub(super) fn sweep_pool(_: &Path, _: bool) -> Result<SweepOutcome> {
    Ok(SweepOutcome::default())
}

/// Leaves captures unchanged: their contents are unknown without the feature `host-filesystem`.
#[cfg(not(feature = "host-filesystem"))]
pub(super) fn sweep(_: &Path, _: Option<&Path>, _: &CapturesInUse, _: bool) -> Result<SweepOutcome> {
    Ok(SweepOutcome::default())
}
