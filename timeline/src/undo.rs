use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use foldlog::filesystem::{FileChange, FilesystemSnapshot, PathEdit, WantedEntry};

use crate::Result;
use crate::step::{Outcome, Step, StepKind, Steps};
use crate::timeline::{Timeline, new_step};
use crate::times::without_unknown_times;
use crate::undo_plan::{Conflict, UndoPlan};
use crate::unreported::NOT_CAPTURED_AFTER;

/// Result of an undo.
#[derive(Debug, Clone)]
pub struct UndoReport {
    /// Number of the undo's own step.
    pub number: u64,
    /// Paths that were changed, in ascending order.
    pub changed: Vec<String>,
    /// Paths that stay as they are, with the reasons.
    pub conflicts: Vec<Conflict>,
}

impl Timeline {
    /// Carries a plan out, and records it as a step. A path that was changed since the plan was
    /// made stays as it is, and is reported.
    ///
    /// # Errors
    ///
    /// - [`Error::Engine`](crate::Error::Engine) if the log cannot be written. Nothing was changed.
    /// - [`Error::Filesystem`](crate::Error::Filesystem) if the root cannot be captured, which changes
    ///   nothing, or if a capture is damaged; the edits before the damaged one are done, and
    ///   [`undo`](Timeline::plan_undo) of this step reverses them.
    pub fn apply_undo(&mut self, plan: &UndoPlan, now: DateTime<Utc>) -> Result<UndoReport> {
        let steps = self.steps()?;
        let number = steps.last().map_or(1, |step| step.number + 1);
        let mut undo = plan.to_undo();
        let is_timed =
            |edit: &&PathEdit| matches!(edit.wanted, WantedEntry::Unchanged { present_ns: Some(_) });
        let timed = plan.edits.iter().filter(is_timed).map(|edit| &edit.path);
        let paths = Some(plan.files.iter().map(|file| &file.path).chain(timed).cloned().collect());
        let mut step = Step { paths, ..new_step(number, StepKind::Undo(undo.clone()), now) };
        let before = self.capture()?;
        let is_undone = |step: &Step| plan.steps.contains(&step.number);
        self.close_unreported(&steps, is_undone, Outcome::Interrupted, Some(&before), now)?;
        self.open_step(step.clone(), Some(before))?;
        let files = self.files()?;
        let (edits, times_kept) = without_unknown_times(&plan.edits);
        let edited = files.edit_paths(&edits);
        if edited.is_err() {
            self.remove_leftovers(&step);
        }
        let synced = files.sync_restored();
        let after = self.capture().ok();
        let outcome = if edited.is_ok() && synced.is_ok() { Outcome::Succeeded } else { Outcome::Failed };
        undo.has_conflicts |= edited.as_ref().is_ok_and(|edited| edited.iter().any(Option::is_some));
        step.kind = StepKind::Undo(undo);
        self.close_step(step, outcome, after, now)?;
        synced?;
        let mut report = UndoReport { number, changed: Vec::new(), conflicts: plan.conflicts.clone() };
        report.conflicts.extend(times_kept);
        for (edit, refusal) in edits.iter().zip(edited?) {
            let path = edit.path.clone();
            match (refusal, &edit.wanted) {
                (Some(reason), _) => report.conflicts.push(Conflict::new(path, reason)),
                (None, WantedEntry::Nothing | WantedEntry::Captured(_) | WantedEntry::Content { .. }) => {
                    report.changed.push(path);
                }
                (None, _) => {}
            }
        }
        report.changed.sort();
        Ok(report)
    }

    /// Closes the undo of a process that was killed within it: that process had the lock. Removes
    /// the leftovers of its edits.
    pub(crate) fn close_killed_undo(&mut self) -> Result<()> {
        let is_killed = |step: &Step| step.is_open() && step.undo().is_some();
        let killed = self.session.view::<Steps>()?.iter().find(|step| is_killed(step)).cloned();
        let Some(mut killed) = killed else { return Ok(()) };
        self.remove_leftovers(&killed);
        let present = self.capture().ok();
        match &present {
            Some(present) => {
                // If earlier captures are damaged, all paths stay the undo's.
                if let Ok(paths) = self.edited_paths(&killed, present) {
                    killed.paths = Some(paths);
                }
            }
            None => killed.not_captured = Some(NOT_CAPTURED_AFTER.to_owned()),
        }
        let now = killed.opened_at;
        self.close_step(killed, Outcome::Interrupted, present, now)
    }

    /// Returns the paths of a killed undo without those that are changed, but not as it was to change
    /// them: they are the user's.
    fn edited_paths(&self, killed: &Step, present: &FilesystemSnapshot) -> Result<BTreeSet<String>> {
        let mut paths = killed.paths.clone().unwrap_or_default();
        let opened = self.moments()?.into_iter().find(|moment| moment.step == killed.number);
        let (Some(undo), Some(before)) = (killed.undo(), opened.and_then(|opened| opened.capture)) else {
            return Ok(paths);
        };
        let selected: Vec<String> = paths.iter().filter(|_| undo.is_partial).cloned().collect();
        let of = undo.of.iter().copied().collect();
        let plan = self.plan_at(&before, &self.steps()?, of, &selected, None)?;
        let wanted: BTreeMap<&String, &WantedEntry> =
            plan.files.iter().map(|file| (&file.path, &file.wanted)).collect();
        let mut reader = self.reader();
        for FileChange { path, after, .. } in reader.changes(Some(&before), present)? {
            let is_edited = match (wanted.get(&path), after) {
                (None, _) | (Some(WantedEntry::Nothing), None) => true,
                (Some(WantedEntry::Captured(wanted)), Some(found)) => found == *wanted,
                (Some(WantedEntry::Content { bytes, permissions }), Some(found)) => {
                    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    found.permissions == Some(*permissions)
                        && found.len == len
                        && reader.content(&found, len)? == *bytes
                }
                _ => false,
            };
            if !is_edited {
                paths.remove(&path);
            }
        }
        Ok(paths)
    }

    /// Removes the leftovers of an undo's edits.
    fn remove_leftovers(&self, undo: &Step) {
        let directories = undo.undo().map(|undo| undo.directories.as_slice()).unwrap_or_default();
        let paths = undo.paths.iter().flatten().chain(directories);
        // Leftovers that cannot be removed now have no effect on captures.
        let _ = self.files().map(|files| files.recover_edits(paths.map(String::as_str)));
    }
}
