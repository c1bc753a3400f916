use std::collections::BTreeSet;

use foldlog::filesystem::{ChangeKind, FileChange, NotedEntry};

use crate::attribution::{Attribution, Intervals};
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
        let steps = self.steps()?;
        if !steps.iter().any(|step| step.number == number) {
            return Err(Error::NoStep { number });
        }
        let intervals = Intervals::new(&steps, self.moments()?);
        let mut reader = self.reader();
        let mut found = StepChanges::default();
        for interval in intervals.of_steps(&BTreeSet::from([number])) {
            found.repository |= interval.from.repositories != interval.to.repositories;
            for change in interval.changes(&mut reader)? {
                match interval.attribution(&change.path, false) {
                    Attribution::Step(owner) if owner == number => merge_change(&mut found.files, change),
                    Attribution::Shared(owners) if owners.contains(&number) => {
                        merge_change(&mut found.shared, change);
                    }
                    _ => {}
                }
            }
            if interval.owners().any(|owner| owner.number == number && owner.paths.is_none()) {
                found.not_kept.extend(interval.noted_changes());
            }
        }
        Ok(found)
    }

    /// Returns the user's own changes since a step began, until the next step began or ended.
    ///
    /// # Errors
    ///
    /// [`Error::Filesystem`] if a capture is missing or damaged.
    pub fn users_changes_after(&self, number: u64) -> Result<Vec<FileChange>> {
        let steps = self.steps()?;
        let intervals = Intervals::new(&steps, self.moments()?);
        let (mut reader, mut found) = (self.reader(), Vec::new());
        for interval in intervals.after(number) {
            for change in interval.changes(&mut reader)? {
                if interval.attribution(&change.path, false) == Attribution::User {
                    merge_change(&mut found, change);
                }
            }
        }
        Ok(found)
    }
}

/// Adds a change to those of earlier intervals of the same step.
fn merge_change(changes: &mut Vec<FileChange>, change: FileChange) {
    let Some(earlier) = changes.iter_mut().find(|earlier| earlier.path == change.path) else {
        return changes.push(change);
    };
    earlier.after = change.after;
    earlier.kind = match (&earlier.before, &earlier.after) {
        (None, _) => ChangeKind::Created,
        (Some(_), None) => ChangeKind::Removed,
        (Some(_), Some(_)) => ChangeKind::Modified,
    };
    if earlier.before == earlier.after {
        changes.retain(|earlier| earlier.path != change.path);
    }
}
