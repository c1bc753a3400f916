use std::collections::{BTreeMap, BTreeSet};

use foldlog::filesystem::{
    ChangeKind, DirectoryChange, FileChange, FilesystemSnapshot, PathEdit, SnapshotReader, TimeChange,
    WantedEntry,
};

use crate::Result;
use crate::attribution::Interval;
use crate::undo_plan::{Conflict, FileUndo};

/// Times that an undo restores, collected from the latest undone interval to the earliest.
///
/// A file that gets the version of a capture also gets its time there. Apart from that, an entry
/// gets back the time before the undone changes, unless others changed it in between.
#[derive(Default)]
pub(crate) struct PlannedTimes(BTreeMap<String, PlannedTime>);

struct PlannedTime {
    is_directory: bool,
    present_ns: Option<i64>,
    /// `None` if there is no entry.
    ns: Option<i64>,
    /// Whether others have changed the time as well.
    is_mixed: bool,
}

impl PlannedTimes {
    /// Removes the changes of times in an interval, as far as they are selected. `restored` are the
    /// changes of contents whose files get the version from the beginning of the interval.
    pub(crate) fn remove_changes(
        &mut self,
        interval: &Interval<'_>,
        present: &FilesystemSnapshot,
        reader: &mut SnapshotReader,
        restored: &[FileChange],
        is_selected: impl Fn(&TimeChange) -> bool,
    ) -> Result<()> {
        let changes = reader.time_changes(&interval.from, &interval.to)?.unwrap_or_default();
        let later = reader.time_changes(&interval.to, present)?.unwrap_or_default();
        let later: BTreeMap<String, Option<i64>> =
            later.into_iter().map(|change| (change.path, change.after_ns)).collect();
        let mut before: BTreeMap<&str, Option<i64>> = BTreeMap::new();
        for change in &changes {
            before.insert(&change.path, change.before_ns);
            if !is_selected(change) {
                continue;
            }
            let planned = self.0.entry(change.path.clone()).or_insert_with(|| {
                let ns = later.get(&change.path).copied().unwrap_or(change.after_ns);
                PlannedTime { is_directory: change.is_directory, present_ns: ns, ns, is_mixed: false }
            });
            planned.is_mixed |= planned.ns != change.after_ns;
            if !planned.is_mixed {
                planned.ns = change.before_ns;
            }
        }
        for FileChange { path, .. } in restored {
            let ns = match before.get(path.as_str()) {
                Some(ns) => *ns,
                None => reader.modified_ns(&interval.from, path)?,
            };
            let time = PlannedTime { is_directory: false, present_ns: None, ns, is_mixed: false };
            let planned = self.0.entry(path.clone()).or_insert(time);
            (planned.ns, planned.is_mixed) = (ns, false);
        }
        Ok(())
    }

    /// Adds the times to the edits of an undo.
    pub(crate) fn add_to(
        self,
        edits: &mut Vec<PathEdit>,
        files: &[FileUndo],
        directories: &[DirectoryChange],
        present: &FilesystemSnapshot,
        reader: &mut SnapshotReader,
    ) -> Result<()> {
        for edit in edits.iter_mut().filter(|edit| matches!(edit.wanted, WantedEntry::Captured(_))) {
            let planned = self.0.get(&edit.path).filter(|planned| !planned.is_mixed);
            edit.modified_ns = planned.and_then(|planned| planned.ns);
        }
        let edited: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let edit = |path: &str, present_ns, ns| PathEdit {
            path: path.to_owned(),
            present: None,
            wanted: WantedEntry::Unchanged { present_ns },
            modified_ns: Some(ns),
        };
        for (path, planned) in self.0.iter().filter(|(_, planned)| !planned.is_directory) {
            if let Some(ns) = planned.ns.filter(|_| !edited.contains(path.as_str()) && !planned.is_mixed) {
                edits.push(edit(path, planned.present_ns, ns));
            }
        }
        // An edit changes the time of the directory around it, with or without a change of names.
        let of_files = files.iter().map(|file| (file.path.as_str(), file.change != ChangeKind::Modified));
        let of_directories = directories.iter().map(|change| (change.path.as_str(), true));
        let mut around: BTreeMap<&str, bool> = BTreeMap::new();
        for (path, is_renamed) in of_files.chain(of_directories) {
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            *around.entry(directory).or_default() |= is_renamed;
        }
        for (path, planned) in self.0.iter().filter(|(_, planned)| planned.is_directory) {
            let is_renamed = around.remove(path.as_str()).unwrap_or_default();
            let ns = if planned.is_mixed { planned.present_ns.filter(|_| !is_renamed) } else { planned.ns };
            edits.extend(ns.map(|ns| edit(path, None, ns)));
        }
        for (path, _) in around.into_iter().filter(|(_, is_renamed)| !is_renamed) {
            let ns = reader.modified_ns(present, path)?;
            edits.extend(ns.map(|ns| edit(path, None, ns)));
        }
        Ok(())
    }
}

/// Removes times that are not recorded exactly from edits: those before 1677 and after 2262 are the
/// nearest one that can be recorded. Returns also the reasons.
pub(crate) fn without_unknown_times(edits: &[PathEdit]) -> (Vec<PathEdit>, Vec<Conflict>) {
    let (mut known, mut kept) = (Vec::new(), Vec::new());
    for edit in edits {
        if !edit.modified_ns.is_some_and(|ns| [i64::MIN, i64::MAX].contains(&ns)) {
            known.push(edit.clone());
            continue;
        }
        let reason = "its time is not restored: it is before 1677 or after 2262";
        kept.push(Conflict::new(edit.path.clone(), reason));
        if !matches!(edit.wanted, WantedEntry::Unchanged { .. }) {
            known.push(PathEdit { modified_ns: None, ..edit.clone() });
        }
    }
    (known, kept)
}
