//! The changes of a call in the other roots of its session.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use foldlog_timeline::{ChangesReader, Step, Timeline, TimelinePlace, UndoneSteps};
use foldlog_view::text::count_text;

use super::{UserDirs, text};
use crate::failure::Result;
use crate::output::Output;

/// The changes of a call in another root, which are not undone.
pub(crate) struct ChangesElsewhere {
    root: PathBuf,
    /// Number of the call in the timeline of that root.
    number: u64,
    files: usize,
    is_removed: bool,
}

/// The timelines of other roots, each opened once.
pub(crate) struct OtherRoots(Vec<OtherRoot>);

struct OtherRoot {
    timeline: Timeline,
    steps: Vec<Step>,
    undone: UndoneSteps,
}

impl OtherRoots {
    /// Opens the timelines of all other roots of these steps. One that cannot be read is left out.
    ///
    /// # Errors
    ///
    /// [`CommandError::View`](crate::failure::CommandError) if the directory of timelines is
    /// unknown.
    pub(crate) fn of_steps<'a>(
        steps: impl Iterator<Item = &'a Step>,
        here: &TimelinePlace,
    ) -> Result<OtherRoots> {
        let roots: BTreeSet<&Path> =
            steps.filter_map(Step::call).flat_map(|call| &call.roots).map(Path::new).collect();
        let others: Vec<&Path> = roots.into_iter().filter(|root| *root != here.root).collect();
        if others.is_empty() {
            return Ok(OtherRoots(Vec::new()));
        }
        let dirs = UserDirs::from_variables();
        let (timelines, options) = (dirs.timelines()?, dirs.options());
        let open = |root: &&Path| {
            let place = TimelinePlace::around(&timelines, root).ok().filter(|place| place.root == **root)?;
            let timeline = Timeline::open_read_only(&place, &options).ok()?;
            let steps = timeline.steps().ok()?;
            Some(OtherRoot { undone: UndoneSteps::new(&steps), steps, timeline })
        };
        Ok(OtherRoots(others.iter().filter_map(open).collect()))
    }

    pub(crate) fn reader(&self) -> ElsewhereReader<'_> {
        let mut readers = Vec::new();
        for other in &self.0 {
            if let Ok(reader) = other.timeline.changes_reader(&other.steps) {
                readers.push((other, reader));
            }
        }
        ElsewhereReader(readers)
    }
}

/// Reads the changes of calls in other roots.
pub(crate) struct ElsewhereReader<'a>(Vec<(&'a OtherRoot, ChangesReader<'a>)>);

impl ElsewhereReader<'_> {
    /// Returns the changes of a step in all other roots of its session. What cannot be read counts
    /// as no change.
    pub(crate) fn changes(&mut self, step: &Step) -> Vec<ChangesElsewhere> {
        let Some(call) = step.call().filter(|call| !call.roots.is_empty()) else { return Vec::new() };
        let found = self.0.iter_mut().filter_map(|(other, reader)| {
            let is_same = |step: &&Step| {
                step.call().is_some_and(|found| found.id == call.id && found.lane == call.lane)
            };
            let number = other.steps.iter().rfind(is_same)?.number;
            let is_removed = other.timeline.is_root_removed();
            let files = reader.changes(number).ok()?.files.len();
            let is_undone = other.undone.wholly.contains(&number);
            let root = other.timeline.place().root.clone();
            (is_removed || files > 0 && !is_undone).then_some(ChangesElsewhere {
                root,
                number,
                files,
                is_removed,
            })
        });
        found.collect()
    }
}

impl ChangesElsewhere {
    /// Returns what the call changed in a few words.
    pub(crate) fn short_text(&self) -> String {
        let root = foldlog_codec::escape::path(&self.root);
        match self.is_removed {
            true => format!("{root} was removed"),
            false => format!("{} in {root}", self.files_text()),
        }
    }

    fn files_text(&self) -> String {
        count_text(u64::try_from(self.files).unwrap_or(u64::MAX), "file")
    }

    /// Returns what the call changed, and the command that undoes it.
    pub(crate) fn text(&self) -> String {
        let root = foldlog_codec::escape::path(&self.root);
        if self.is_removed {
            return format!("{root} was removed; `{}` restores it", restore_command(&self.root));
        }
        let files = self.files_text();
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
    let steps: Vec<&Step> = steps.iter().filter(|step| numbers.contains(&step.number)).collect();
    let others = OtherRoots::of_steps(steps.iter().copied(), timeline.place())?;
    let (mut reader, mut lines) = (others.reader(), Vec::new());
    for step in steps {
        let found = reader.changes(step);
        lines.extend(found.iter().map(|changes| format!("note: call {} {}", step.number, changes.text())));
    }
    Ok(lines)
}

/// Names removed roots that can be restored: this one, working trees of its repository, and those in it
/// and next to it.
pub(crate) fn note_removed(timeline: &Timeline, output: &mut Output<'_>) -> Result<()> {
    let (root, timelines) = (&timeline.place().root, UserDirs::from_variables().timelines()?);
    let is_near = |other: &PathBuf| other.starts_with(root) || other.parent() == root.parent();
    let near = TimelinePlace::roots(&timelines).into_iter().filter(|other| is_near(other) && !other.exists());
    let mut removed: BTreeSet<PathBuf> = near.collect();
    removed.extend(TimelinePlace::removed_working_trees(&timelines, root));
    for root in removed {
        output.note(format_args!(
            "note: {} was removed; `{}` restores it",
            foldlog_codec::escape::path(&root),
            restore_command(&root)
        ));
    }
    Ok(())
}
