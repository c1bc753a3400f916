//! The changes of a call in the other roots of its session.

use std::path::{Path, PathBuf};

use foldlog_timeline::{Step, Timeline, TimelinePlace};
use foldlog_view::text::count_text;

use super::{UserDirs, text};
use crate::failure::Result;

/// The changes of a call in another root, which are not undone.
pub(crate) struct ChangesElsewhere {
    root: PathBuf,
    /// Number of the call in the timeline of that root.
    number: u64,
    files: usize,
    is_removed: bool,
}

impl ChangesElsewhere {
    /// Returns the changes of a step in all other roots of its session.
    ///
    /// # Errors
    ///
    /// [`CommandError::View`](crate::failure::CommandError) if the directory of timelines is
    /// unknown. A timeline that cannot be read has no changes.
    pub(crate) fn of_step(step: &Step, timeline: &Timeline) -> Result<Vec<ChangesElsewhere>> {
        let Some(call) = step.call().filter(|call| !call.roots.is_empty()) else { return Ok(Vec::new()) };
        let dirs = UserDirs::from_variables();
        let (timelines, here) = (dirs.timelines()?, timeline.place());
        let others = call.roots.iter().map(Path::new).filter(|root| *root != here.root);
        let found = others.filter_map(|root| {
            let place = TimelinePlace::around(&timelines, root).ok().filter(|place| place.root == root)?;
            let other = Timeline::open_read_only(&place, &dirs.options()).ok()?;
            let found = other.call_step(&call.lane, &call.id).ok()??;
            let is_removed = other.is_root_removed();
            let files = other.changes(found.number).ok()?.files.len();
            let is_undone = other.undone().ok()?.wholly.contains(&found.number);
            (is_removed || files > 0 && !is_undone).then_some(ChangesElsewhere {
                root: place.root,
                number: found.number,
                files,
                is_removed,
            })
        });
        Ok(found.collect())
    }

    /// Returns what the call changed, and the command that undoes it.
    pub(crate) fn text(&self) -> String {
        let root = foldlog_codec::escape::path(&self.root);
        if self.is_removed {
            return format!("{root} was removed; `{}` restores it", restore_command(&self.root));
        }
        let files = count_text(u64::try_from(self.files).unwrap_or(u64::MAX), "file");
        format!(
            "changed {files} in {root}; `{}` undoes that",
            text::undo_command(self.number, Some(&self.root))
        )
    }
}

/// Returns the command that restores a removed root.
pub(crate) fn restore_command(root: &Path) -> String {
    format!("foldlog undo --root {}", foldlog_view::shell::quote_word(root.as_os_str()))
}

/// Returns a line for each other root in which steps have changes that are not undone.
pub(crate) fn lines_elsewhere(numbers: &[u64], timeline: &Timeline) -> Result<Vec<String>> {
    let steps = timeline.steps()?;
    let mut lines = Vec::new();
    for step in steps.iter().filter(|step| numbers.contains(&step.number)) {
        let found = ChangesElsewhere::of_step(step, timeline)?;
        lines.extend(found.iter().map(|changes| format!("note: call {} {}", step.number, changes.text())));
    }
    Ok(lines)
}
