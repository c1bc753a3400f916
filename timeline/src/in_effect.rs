//! Which changes of undone and redone steps are in effect.
//!
//! A conflict leaves paths of an undo as they were, so that one step can be undone at some paths, redone
//! at others, and unchanged elsewhere. An undo of the step must not repeat an earlier one at a path: a
//! file that was restored there, and that the user has removed since, would come back.

use std::collections::BTreeSet;

use foldlog::filesystem::SnapshotReader;

use crate::Result;
use crate::attribution::{Attribution, Interval, Intervals};
use crate::step::Step;
use crate::undone::{ClosedUndo, closed_undos, undone_calls, undos_of};

/// Effect of a step's change of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No undo has reversed it.
    Own,
    /// An undo has reversed it.
    Undone,
    /// An undo has reversed it, and the redo with this number has brought it back.
    Redone(u64),
}

/// Earlier undos of some steps, and undos of these undos, the latest first.
pub(crate) struct EarlierUndos(Vec<EarlierUndo>);

struct EarlierUndo {
    number: u64,
    of: BTreeSet<u64>,
    is_partial: bool,
    /// Whether the steps affect all calls that it affects.
    is_within: bool,
    changed: ChangedPaths,
}

/// Changed paths. A file and a directory of one name are changed separately: one can have been
/// removed before the other is created.
#[derive(Default)]
pub(crate) struct ChangedPaths {
    pub(crate) files: BTreeSet<String>,
    pub(crate) directories: BTreeSet<String>,
}

type SelectPaths = fn(&ChangedPaths) -> &BTreeSet<String>;

impl EarlierUndos {
    pub(crate) fn new(
        all: &[Step],
        steps: &BTreeSet<u64>,
        intervals: &Intervals<'_>,
        reader: &mut SnapshotReader,
    ) -> Result<EarlierUndos> {
        let calls = undone_calls(all, steps.iter().copied());
        let mut found = Vec::new();
        for ClosedUndo { step, undo, of, calls: affected, .. } in undos_of(&closed_undos(all), steps) {
            let changed = changed_paths(step.number, intervals, reader)?;
            let (is_partial, is_within) = (undo.is_partial, affected.is_subset(&calls));
            found.push(EarlierUndo { number: step.number, of: of.clone(), is_partial, is_within, changed });
        }
        found.reverse();
        Ok(EarlierUndos(found))
    }

    /// Returns the effect of a file's change in an interval.
    pub(crate) fn effect(&self, interval: &Interval<'_>, path: &str) -> Effect {
        self.effect_after(path, |changed| &changed.files, &|undo| {
            interval.attribution(path, undo.is_partial).is_undone(&undo.of, undo.is_partial)
        })
    }

    /// Returns the effect of a directory's creation or removal in an interval.
    pub(crate) fn effect_on_directory(&self, interval: &Interval<'_>, path: &str) -> Effect {
        self.effect_after(path, |changed| &changed.directories, &|undo| {
            interval.directory_belongs_to(path, &undo.of)
        })
    }

    /// Returns the effect of a change that some undos can have reversed.
    fn effect_after(
        &self,
        path: &str,
        paths: SelectPaths,
        is_of_change: &dyn Fn(&EarlierUndo) -> bool,
    ) -> Effect {
        let latest = |is_wanted: &dyn Fn(&EarlierUndo) -> bool| {
            self.0.iter().find(|undo| paths(&undo.changed).contains(path) && is_wanted(undo))
        };
        let Some(undo) = latest(is_of_change) else { return Effect::Own };
        let Some(redo) = latest(&|redo| redo.of.contains(&undo.number)) else { return Effect::Undone };
        // The redo can be undone and redone, too. This ends, as an undo is later than the undone steps.
        match self.effect_after(path, paths, &|undo| undo.of.contains(&redo.number)) {
            // Together with other calls, the redo brought back more than this change.
            Effect::Own if !redo.is_within => Effect::Own,
            Effect::Own => Effect::Redone(redo.number),
            later => later,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn changed_paths(undo: u64, intervals: &Intervals<'_>, reader: &mut SnapshotReader) -> Result<ChangedPaths> {
    let of_undo = BTreeSet::from([undo]);
    let mut paths = ChangedPaths::default();
    for interval in intervals.of_steps(&of_undo) {
        let files = interval.changes(reader)?.into_iter().map(|change| change.path);
        paths.files.extend(files.filter(|path| interval.attribution(path, false) == Attribution::Step(undo)));
        let directories = reader.directory_changes(&interval.from, &interval.to)?.into_iter();
        let directories = directories.map(|change| change.path);
        paths.directories.extend(directories.filter(|path| interval.directory_belongs_to(path, &of_undo)));
    }
    Ok(paths)
}
