//! Which changes an undo reverses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use foldlog::filesystem::{ChangeKind, DirectoryChange, FileChange, SnapshotReader};

use crate::Result;
use crate::attribution::{Attribution, Interval, Intervals};
use crate::in_effect::{ChangedPaths, EarlierUndos, Effect};
use crate::step::Step;

/// The steps and paths of an undo, without changes that earlier undos have reversed.
pub(crate) struct Selection<'a> {
    pub(crate) steps: &'a BTreeSet<u64>,
    /// Files and directories; empty for all.
    pub(crate) paths: &'a [String],
    earlier: EarlierUndos,
    /// Changes of redos to be reversed in place of those of the steps, by redo.
    pub(crate) redone: BTreeMap<u64, ChangedPaths>,
}

impl<'a> Selection<'a> {
    pub(crate) fn new(
        all: &[Step],
        steps: &'a BTreeSet<u64>,
        paths: &'a [String],
        intervals: &Intervals<'_>,
        reader: &mut SnapshotReader,
    ) -> Result<Selection<'a>> {
        let earlier = EarlierUndos::new(all, steps, intervals, reader)?;
        let mut selection = Selection { steps, paths, earlier, redone: BTreeMap::new() };
        if selection.earlier.is_empty() {
            return Ok(selection);
        }
        let mut redone: BTreeMap<u64, ChangedPaths> = BTreeMap::new();
        for interval in intervals.of_steps(steps) {
            for FileChange { path, .. } in interval.changes(reader)? {
                if selection.is_of_steps(interval, &path)
                    && let Effect::Redone(redo) = selection.earlier.effect(interval, &path)
                {
                    redone.entry(redo).or_default().files.insert(path);
                }
            }
            for DirectoryChange { path, .. } in reader.directory_changes(&interval.from, &interval.to)? {
                if interval.directory_belongs_to(&path, steps)
                    && let Effect::Redone(redo) = selection.earlier.effect_on_directory(interval, &path)
                {
                    redone.entry(redo).or_default().directories.insert(path);
                }
            }
        }
        selection.redone = redone;
        Ok(selection)
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|selected| Path::new(path).starts_with(selected))
    }

    /// Returns the undone changes of an interval. Adds to `shared` the paths that stay because
    /// overlapping steps share them.
    pub(crate) fn select(
        &self,
        interval: &Interval<'_>,
        mut changes: Vec<FileChange>,
        shared: &mut BTreeSet<String>,
    ) -> Vec<FileChange> {
        changes.retain(|FileChange { path, .. }| {
            let is_selected = self.contains_change(interval, path);
            if !is_selected
                && self.contains(path)
                && let Attribution::Shared(authors) = interval.attribution(path, !self.paths.is_empty())
                && !authors.is_disjoint(self.steps)
                && self.earlier.effect(interval, path) == Effect::Own
            {
                shared.insert(path.clone());
            }
            is_selected
        });
        changes
    }

    /// Returns whether the change of a path in an interval is undone.
    pub(crate) fn contains_change(&self, interval: &Interval<'_>, path: &str) -> bool {
        self.contains(path)
            && match self.is_of_steps(interval, path) {
                true => self.earlier.effect(interval, path) == Effect::Own,
                false => self.redone_in(interval).any(|redone| redone.files.contains(path)),
            }
    }

    /// Returns whether the creation or removal of a directory in an interval is undone.
    pub(crate) fn contains_directory(&self, interval: &Interval<'_>, path: &str) -> bool {
        self.contains(path) && self.is_directory_undone(interval, path)
    }

    /// Returns whether a change of a directory is undone, or is needed for a selected path in it: a
    /// removed directory gets its permissions back with the first file that is restored in it.
    pub(crate) fn contains_directory_change(
        &self,
        interval: &Interval<'_>,
        change: &DirectoryChange,
    ) -> bool {
        let is_around = |selected: &String| Path::new(selected).starts_with(&change.path);
        let is_needed = change.kind == ChangeKind::Removed && self.paths.iter().any(is_around);
        (is_needed || self.contains(&change.path)) && self.is_directory_undone(interval, &change.path)
    }

    fn is_directory_undone(&self, interval: &Interval<'_>, path: &str) -> bool {
        match interval.directory_belongs_to(path, self.steps) {
            true => self.earlier.effect_on_directory(interval, path) == Effect::Own,
            false => self.redone_in(interval).any(|redone| redone.directories.contains(path)),
        }
    }

    fn is_of_steps(&self, interval: &Interval<'_>, path: &str) -> bool {
        let is_named = !self.paths.is_empty();
        interval.attribution(path, is_named).is_undone(self.steps, is_named)
    }

    /// Returns the changes of redos in an interval that are reversed.
    fn redone_in(&self, interval: &Interval<'_>) -> impl Iterator<Item = &ChangedPaths> {
        interval.owners().filter_map(|owner| self.redone.get(&owner.number))
    }
}
