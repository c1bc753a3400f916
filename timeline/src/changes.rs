use std::collections::{BTreeMap, BTreeSet};

use foldlog::filesystem::{ChangeKind, FileChange, NotedEntry, SnapshotReader};

use crate::attribution::{Attribution, Intervals};
use crate::step::Step;
use crate::timeline::Timeline;
use crate::{Error, Result};

/// The changes of files that belong to a step.
#[derive(Debug, Clone, Default)]
pub struct StepChanges {
    /// Changes of files and links, in ascending order of their paths.
    pub files: Vec<FileChange>,
    /// Changes that belong to this step and overlapping ones together.
    pub shared: Vec<FileChange>,
    /// Entries that are not captured and were created, changed or removed.
    pub not_kept: Vec<(ChangeKind, NotedEntry)>,
    /// Whether a git repository in the root was changed: its branches, index or configuration.
    pub repository: bool,
}

impl StepChanges {
    /// Returns whether the step changed no file and no repository.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.shared.is_empty() && self.not_kept.is_empty() && !self.repository
    }
}

impl Timeline {
    /// Returns the changes that belong to a step.
    ///
    /// # Errors
    ///
    /// - [`Error::NoStep`] if there is no such step.
    /// - [`Error::Filesystem`] if a capture is missing or damaged.
    pub fn changes(&self, number: u64) -> Result<StepChanges> {
        self.changes_reader(&self.steps()?)?.changes(number)
    }

    /// Returns a reader of the changes of many of these [steps](Timeline::steps).
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be read.
    pub fn changes_reader<'a>(&self, steps: &'a [Step]) -> Result<ChangesReader<'a>> {
        let reader = self.reader();
        let intervals = Intervals::new(steps, self.moments()?, &reader);
        Ok(ChangesReader { steps, intervals, reader })
    }
}

/// Reads the changes of steps. It reads the log once.
pub struct ChangesReader<'a> {
    steps: &'a [Step],
    intervals: Intervals<'a>,
    reader: SnapshotReader,
}

impl ChangesReader<'_> {
    /// Returns the changes that belong to a step.
    ///
    /// # Errors
    ///
    /// - [`Error::NoStep`] if there is no such step.
    /// - [`Error::Filesystem`] if a capture is missing or damaged.
    pub fn changes(&mut self, number: u64) -> Result<StepChanges> {
        if !self.steps.iter().any(|step| step.number == number) {
            return Err(Error::NoStep { number });
        }
        self.intervals.changes(number, &mut self.reader)
    }

    /// Returns the user's own changes since a step began, until the next step began or ended.
    ///
    /// # Errors
    ///
    /// [`Error::Filesystem`] if a capture is missing or damaged.
    pub fn users_changes_after(&mut self, number: u64) -> Result<Vec<FileChange>> {
        let mut found = ChangesByPath::new();
        for interval in self.intervals.after(number) {
            for change in interval.changes(&mut self.reader)? {
                if interval.attribution(&change.path, false) == Attribution::User {
                    merge_change(&mut found, change);
                }
            }
        }
        Ok(found.into_values().collect())
    }
}

impl Intervals<'_> {
    /// Returns the changes that belong to a step.
    ///
    /// # Errors
    ///
    /// [`Error::Filesystem`] if a capture is missing or damaged.
    pub fn changes(&self, number: u64, reader: &mut SnapshotReader) -> Result<StepChanges> {
        let mut found = StepChanges::default();
        let (mut files, mut shared) = (ChangesByPath::new(), ChangesByPath::new());
        for interval in self.of_steps(&BTreeSet::from([number])) {
            // Damaged records differ as well.
            let repositories = reader.changed_repositories(&interval.from, &interval.to);
            found.repository |= repositories.map_or(true, |changed| !changed.is_empty());
            for change in interval.changes(reader)? {
                match interval.attribution(&change.path, false) {
                    Attribution::Step(owner) if owner == number => merge_change(&mut files, change),
                    Attribution::Shared(owners) if owners.contains(&number) => {
                        merge_change(&mut shared, change);
                    }
                    _ => {}
                }
            }
            if interval.owners().any(|owner| owner.number == number && owner.paths.is_none()) {
                found.not_kept.extend(interval.noted_changes());
            }
        }
        found.files = files.into_values().collect();
        found.shared = shared.into_values().collect();
        Ok(found)
    }
}

type ChangesByPath = BTreeMap<String, FileChange>;

/// Adds a change to those of earlier intervals.
fn merge_change(changes: &mut ChangesByPath, change: FileChange) {
    let Some(earlier) = changes.get_mut(&change.path) else {
        changes.insert(change.path.clone(), change);
        return;
    };
    earlier.after = change.after;
    earlier.kind = match (&earlier.before, &earlier.after) {
        (None, _) => ChangeKind::Created,
        (Some(_), None) => ChangeKind::Removed,
        (Some(_), Some(_)) => ChangeKind::Modified,
    };
    if earlier.before == earlier.after {
        changes.remove(&change.path);
    }
}
