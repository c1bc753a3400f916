use std::collections::{BTreeMap, BTreeSet};

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use foldlog::filesystem::{
    ChangeKind, DirectoryChange, FileChange, FileFacts, FileVersion, FilesystemSnapshot, PathEdit,
    SnapshotReader, TimeChange, WantedEntry, escape_path,
};

use crate::attribution::{Interval, Intervals, Noted, with_directories_around};
use crate::selection::Selection;
use crate::step::{Edge, Moment, Outcome, Step, Undo};
use crate::timeline::Timeline;
use crate::times::PlannedTimes;
use crate::undone::UndoneSteps;
use crate::working_tree::HeadChange;
use crate::{Error, Result};

/// Plan of an undo.
#[derive(Debug, Clone)]
pub struct UndoPlan {
    /// Numbers of the steps to be undone, in ascending order.
    pub steps: Vec<u64>,
    /// Files and links to be changed, in ascending order of their paths.
    pub files: Vec<FileUndo>,
    /// Paths that stay as they are, with the reasons.
    pub conflicts: Vec<Conflict>,
    /// Changed paths that belong to the steps together with overlapping ones, and stay.
    pub shared: Vec<String>,
    /// Changed paths that the user may have changed while a permission dialog was open, and that stay.
    pub possibly_yours: Vec<String>,
    /// Paths that the steps created without captured bytes, which stay.
    pub not_kept: Vec<String>,
    /// Git repositories that the steps changed: their branches, index and configuration stay.
    pub repositories: Vec<ChangedRepository>,
    /// Commits and other changes of `HEAD` while the steps were open, which stay.
    pub head_changes: Vec<HeadChange>,
    /// Whether the undo was limited to some paths.
    pub is_partial: bool,
    /// Whether an earlier attempt was interrupted or failed, and nothing stays, so that the undo is to
    /// be recorded even without changes.
    completes: bool,
    /// In ascending order of their paths.
    directories: Vec<DirectoryChange>,
    pub(crate) edits: Vec<PathEdit>,
}

/// A file or link that an undo changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileUndo {
    /// Path relative to the root, escaped like that of a [`FileChange`].
    pub path: String,
    /// Kind of the change.
    pub change: ChangeKind,
    /// Present state; `None` if there is no file.
    pub present: Option<FileFacts>,
    /// State after the undo.
    pub wanted: WantedEntry,
}

/// A git repository that the steps of an undo changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedRepository {
    /// Path relative to the root, such as `.git`, escaped like that of a [`FileChange`].
    pub path: String,
    /// Numbers of the steps, in ascending order.
    pub steps: Vec<u64>,
    /// Whether it existed before the steps, and no longer exists. Its commits are not captured.
    pub is_lost: bool,
}

/// A path that an undo leaves as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Path relative to the root.
    pub path: String,
    /// The reason.
    pub reason: String,
    /// Whether the path no longer exists, and its content is not captured.
    pub is_lost: bool,
}

impl Conflict {
    pub(crate) fn new(path: String, reason: impl Into<String>) -> Conflict {
        Conflict { path, reason: reason.into(), is_lost: false }
    }
}

impl UndoPlan {
    /// Returns whether there is nothing to carry out.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && !self.completes
    }

    /// Returns the directories that are created or removed without a file in them, as changes by the
    /// steps, in ascending order of their paths.
    pub fn empty_directories(&self) -> Vec<&DirectoryChange> {
        let filled = paths_around(self.files.iter().map(|file| &file.path));
        self.directories.iter().filter(|change| !filled.contains(change.path.as_str())).collect()
    }

    /// Returns the undo as it is recorded.
    pub fn to_undo(&self) -> Undo {
        Undo {
            of: self.steps.clone(),
            is_partial: self.is_partial,
            has_conflicts: [self.conflicts.len(), self.shared.len(), self.possibly_yours.len()] != [0; 3],
            directories: self.directories.iter().map(|change| change.path.clone()).collect(),
            is_reported: false,
        }
    }
}

/// Returns paths with the directories around them.
fn paths_around<'a>(paths: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
    paths.flat_map(|path| with_directories_around(path)).collect()
}

impl Timeline {
    /// Captures the root, and plans the undo of steps. With `paths`, only changes at these paths, and
    /// in these directories, are undone, including changes of files that overlapping calls share or
    /// that are possibly the user's. The empty path is the root.
    ///
    /// Later changes of other steps and of the user stay. If a later change is in the same file,
    /// both are separated line by line, and where that is not possible, the file is a conflict.
    ///
    /// The present state counts as the end of an open call. [`apply_undo`](Timeline::apply_undo)
    /// closes the call as interrupted. An undo that was repeated because it was interrupted or
    /// failed is undone together with its earlier attempts.
    ///
    /// # Errors
    ///
    /// - [`Error::NoStep`] if there is no such step.
    /// - [`Error::NotUndoable`] if a step was undone already, or was not captured.
    /// - [`Error::Filesystem`] if the root cannot be captured, or an earlier capture is damaged.
    pub fn plan_undo(&mut self, numbers: &[u64], paths: &[String]) -> Result<UndoPlan> {
        self.plan(numbers, paths, None)
    }

    /// Plans like [`plan_undo`](Timeline::plan_undo) an undo that also restores times of the last
    /// change. Times after later changes by other steps or the user stay, and so do times of merged files.
    ///
    /// # Errors
    ///
    /// As of [`plan_undo`](Timeline::plan_undo).
    pub fn plan_undo_with_times(&mut self, numbers: &[u64], paths: &[String]) -> Result<UndoPlan> {
        self.plan(numbers, paths, Some(PlannedTimes::default()))
    }

    fn plan(&mut self, numbers: &[u64], paths: &[String], times: Option<PlannedTimes>) -> Result<UndoPlan> {
        let steps = self.steps()?;
        let wanted: BTreeSet<u64> = numbers.iter().copied().collect();
        check(&steps, &wanted)?;
        let present = self.capture()?;
        self.plan_at(&present, &steps, with_attempts(&steps, wanted), paths, times)
    }

    /// Plans the undo of steps for a state of the root.
    pub(crate) fn plan_at(
        &self,
        present: &FilesystemSnapshot,
        steps: &[Step],
        wanted: BTreeSet<u64>,
        paths: &[String],
        mut times: Option<PlannedTimes>,
    ) -> Result<UndoPlan> {
        let intervals = self.intervals_until(steps, &wanted, present)?;
        let mut reader = self.reader();
        let selection = Selection::new(steps, &wanted, paths, &intervals, &mut reader)?;
        let mut planner =
            Planner { present, reader: &mut reader, files: BTreeMap::new(), conflicts: BTreeMap::new() };
        let mut others = OtherChanges::default();
        let selected = wanted.iter().chain(selection.redone.keys()).copied().collect();
        let of_steps: Vec<&Interval<'_>> = intervals.of_steps(&selected).collect();
        for interval in of_steps.into_iter().rev() {
            others.add(interval, &selection, planner.reader)?;
            let undone = selection.select(interval, interval.changes(planner.reader)?, &mut others.shared);
            let restored = planner.remove_changes(interval, undone)?;
            if let Some(times) = &mut times {
                let is_selected = |change: &TimeChange| match change.is_directory {
                    true => selection.contains_directory(interval, &change.path),
                    false => selection.contains_change(interval, &change.path),
                };
                times.remove_changes(interval, present, planner.reader, &restored, is_selected)?;
            }
        }
        let OtherChanges { shared, not_kept, repositories, directories } = others;
        let (mut files, mut conflicts) = planner.finish();
        let mut directories = net_changes(directories);
        self.retain_possible(&mut directories, &files);
        self.remove_blocked(&mut files, &directories, &mut conflicts);
        let (mut directories, around): (Vec<DirectoryChange>, Vec<DirectoryChange>) =
            directories.into_iter().partition(|change| selection.contains(&change.path));
        let selected = directories.iter().map(|change| &change.path);
        let needed = paths_around(files.iter().map(|file| &file.path).chain(selected));
        let around: Vec<DirectoryChange> =
            around.into_iter().filter(|change| needed.contains(change.path.as_str())).collect();
        directories.extend(around);
        directories.sort_by(|one, other| one.path.cmp(&other.path));
        let mut conflicts = with_authors(conflicts, &intervals, &wanted, present, &mut reader)?;
        let not_kept = not_kept.into_iter().filter(|(path, _)| selection.contains(path));
        let not_kept = self.split_not_kept(not_kept, &mut conflicts);
        let undone = steps.iter().filter(|step| paths.is_empty() && wanted.contains(&step.number));
        let possibly_yours: BTreeSet<String> = undone.flat_map(|step| step.possibly_yours.clone()).collect();
        let mut edits = in_order(&files, &directories);
        if let Some(times) = times {
            times.add_to(&mut edits, &files, &directories, present, &mut reader)?;
        }
        let mut plan = UndoPlan {
            steps: wanted.iter().copied().collect(),
            files,
            conflicts,
            shared: shared.into_iter().collect(),
            possibly_yours: possibly_yours.into_iter().collect(),
            not_kept,
            repositories: self.present_repositories(repositories),
            head_changes: self.head_changes(steps, &wanted),
            is_partial: !paths.is_empty(),
            completes: false,
            directories,
            edits,
        };
        plan.completes = !plan.is_partial && !plan.to_undo().has_conflicts && has_attempt(steps, &wanted);
        Ok(plan)
    }

    /// Returns the intervals until now. The present state counts as the end of open steps that are
    /// undone.
    fn intervals_until<'a>(
        &self,
        steps: &'a [Step],
        undone: &BTreeSet<u64>,
        present: &FilesystemSnapshot,
    ) -> Result<Intervals<'a>> {
        let mut moments = self.moments()?;
        let open = steps.iter().filter(|step| step.is_open() && undone.contains(&step.number));
        moments.extend(open.map(|step| Moment::new(step.number, Edge::Closed, Some(present.clone()))));
        Ok(Intervals::new(steps, moments, &self.reader()))
    }

    /// Returns the changes of `HEAD` while steps were open, each of them once.
    fn head_changes(&self, steps: &[Step], wanted: &BTreeSet<u64>) -> Vec<HeadChange> {
        let mut found: Vec<HeadChange> = Vec::new();
        for step in steps.iter().filter(|step| wanted.contains(&step.number) && step.call().is_some()) {
            let since = self.head_changes_since(step);
            let changes = if step.is_open() { &since } else { &step.head_changes };
            // Calls that overlapped have the same changes.
            let new: Vec<HeadChange> =
                changes.iter().filter(|change| !found.contains(change)).cloned().collect();
            found.extend(new);
        }
        found
    }

    /// Adds changed and removed paths without captured bytes to the conflicts. Returns the created
    /// ones.
    fn split_not_kept(
        &self,
        not_kept: impl Iterator<Item = (String, ChangeKind)>,
        conflicts: &mut Vec<Conflict>,
    ) -> Vec<String> {
        let mut created = Vec::new();
        for (path, kind) in not_kept {
            let is_lost = fs::symlink_metadata(self.place.absolute(&path)).is_err();
            match (kind, is_lost) {
                (ChangeKind::Created, true) => {}
                (ChangeKind::Created, false) => created.push(path),
                (_, is_lost) => {
                    let reason = "its earlier content was not recorded".to_owned();
                    conflicts.push(Conflict { path, reason, is_lost });
                }
            }
        }
        created
    }

    /// Returns changed repositories, except those that the steps created and that no longer exist.
    fn present_repositories(&self, changed: BTreeMap<String, RepositorySteps>) -> Vec<ChangedRepository> {
        let changed = changed.into_iter().filter_map(|(path, RepositorySteps { steps, existed })| {
            let is_lost = !self.place.absolute(&path).exists();
            let steps = steps.into_iter().collect();
            (existed || !is_lost).then_some(ChangedRepository { path, steps, is_lost })
        });
        changed.collect()
    }

    /// Removes changes of directories that have no effect: one is not removed while it has other
    /// entries, and not created if it exists, or if a file that stays is in its place.
    fn retain_possible(&self, changes: &mut Vec<DirectoryChange>, files: &[FileUndo]) {
        let mut removed = removed_paths(files);
        // From the innermost outwards.
        changes.sort_by(|one, other| other.path.cmp(&one.path));
        changes.retain(|DirectoryChange { path, kind, .. }| {
            let place = self.place.absolute(path);
            if *kind == ChangeKind::Removed {
                // A link to a directory is none.
                let is_there = fs::symlink_metadata(&place).is_ok_and(|found| found.is_dir());
                return !is_there && !self.is_blocked(path, &removed);
            }
            let found = fs::read_dir(place);
            let is_removed = |entry: fs::DirEntry| {
                removed.contains(&format!("{path}/{}", escape_path(entry.file_name().as_bytes())))
            };
            let is_emptied = found.is_ok_and(|found| found.flatten().all(is_removed));
            if is_emptied {
                removed.insert(path.clone());
            }
            is_emptied
        });
    }

    /// Makes conflicts of files that cannot be restored because a directory or a file that stays is
    /// in the place of the file, or of a directory around it.
    fn remove_blocked(
        &self,
        files: &mut Vec<FileUndo>,
        directories: &[DirectoryChange],
        conflicts: &mut BTreeMap<String, &'static str>,
    ) {
        let mut removed = removed_paths(files);
        let emptied = directories.iter().filter(|change| change.kind == ChangeKind::Created);
        removed.extend(emptied.map(|change| change.path.clone()));
        files.retain(|FileUndo { path, change, .. }| {
            let place = self.place.absolute(path);
            let reason = if *change != ChangeKind::Created {
                return true;
            } else if place.is_dir() && !place.is_symlink() && !removed.contains(path) {
                "a directory is in its place"
            } else if path.rsplit_once('/').is_some_and(|(around, _)| self.is_blocked(around, &removed)) {
                "a file is in the place of its directory"
            } else {
                return true;
            };
            conflicts.insert(path.clone(), reason);
            false
        });
    }

    /// Returns whether a file or link that is not removed is in the place of a directory, or of one
    /// around it.
    fn is_blocked(&self, directory: &str, removed: &BTreeSet<String>) -> bool {
        with_directories_around(directory).any(|path| {
            let found = fs::symlink_metadata(self.place.absolute(path));
            found.is_ok_and(|found| !found.is_dir()) && !removed.contains(path)
        })
    }
}

fn removed_paths(files: &[FileUndo]) -> BTreeSet<String> {
    let removed = files.iter().filter(|file| file.change == ChangeKind::Removed);
    removed.map(|file| file.path.clone()).collect()
}

/// Joins the changes of each directory, from the latest to the earliest. One that was created and
/// removed again, or the reverse, has not changed.
fn net_changes(changes: Vec<DirectoryChange>) -> Vec<DirectoryChange> {
    let mut found: BTreeMap<String, (ChangeKind, DirectoryChange)> = BTreeMap::new();
    for change in changes {
        match found.get_mut(&change.path) {
            Some((_, earliest)) => *earliest = change,
            None => drop(found.insert(change.path.clone(), (change.kind, change))),
        }
    }
    let net = found.into_values().filter(|(latest, earliest)| *latest == earliest.kind);
    net.map(|(_, earliest)| earliest).collect()
}

/// Adds to the reasons of conflicts who has changed the files since.
fn with_authors(
    reasons: BTreeMap<String, &'static str>,
    intervals: &Intervals<'_>,
    wanted: &BTreeSet<u64>,
    present: &FilesystemSnapshot,
    reader: &mut SnapshotReader,
) -> Result<Vec<Conflict>> {
    if reasons.is_empty() {
        return Ok(Vec::new());
    }
    let mut authors = intervals.later_authors(wanted, present, reader)?;
    let conflicts = reasons.into_iter().map(|(path, reason)| {
        let by = authors.remove(&path).map(|authors| format!(", by {authors}")).unwrap_or_default();
        Conflict::new(path, format!("{reason}{by}"))
    });
    Ok(conflicts.collect())
}

/// Checks that all steps can be undone.
fn check(steps: &[Step], wanted: &BTreeSet<u64>) -> Result<()> {
    let undone = UndoneSteps::new(steps);
    for number in wanted.iter().copied() {
        let step = steps.iter().find(|step| step.number == number).ok_or(Error::NoStep { number })?;
        let refused = |reason: String| Err(Error::NotUndoable { number, reason });
        if undone.wholly.contains(&number) {
            let by = steps.iter().rfind(|step| step.undo().is_some_and(|undo| undo.of.contains(&number)));
            let by = by.map(|by| format!(", by step {}", by.number)).unwrap_or_default();
            return refused(format!("it is undone already{by}"));
        }
        if let Some(reason) = &step.not_captured {
            return refused(format!("the files were not captured: {reason}"));
        }
    }
    Ok(())
}

/// Returns the earlier attempts of an undo that were interrupted or failed.
pub(crate) fn attempts<'a>(steps: &'a [Step], repeated: &'a Step) -> impl Iterator<Item = &'a Step> {
    repeated.undo().into_iter().flat_map(move |Undo { of, .. }| {
        let before = steps.iter().rev().filter(move |step| step.number < repeated.number);
        before
            .filter(move |step| step.undo().is_some_and(|undo| undo.of == *of))
            .take_while(|step| step.outcome != Some(Outcome::Succeeded))
    })
}

/// Adds to each undo its earlier [attempts] that are not undone.
pub(crate) fn with_attempts(steps: &[Step], mut wanted: BTreeSet<u64>) -> BTreeSet<u64> {
    let undone = UndoneSteps::new(steps);
    let mut added = BTreeSet::new();
    for repeated in steps.iter().filter(|step| wanted.contains(&step.number)) {
        let is_undoable = |step: &&Step| !undone.wholly.contains(&step.number) && step.not_captured.is_none();
        added.extend(attempts(steps, repeated).filter(is_undoable).map(|step| step.number));
    }
    wanted.extend(added);
    wanted
}

/// Returns whether an undo of these steps was interrupted or failed.
pub(crate) fn has_attempt(steps: &[Step], wanted: &BTreeSet<u64>) -> bool {
    let is_attempt = |step: &&Step| {
        step.undo().is_some_and(|undo| undo.of.iter().any(|of| wanted.contains(of)))
            && step.outcome.is_some_and(|outcome| outcome != Outcome::Succeeded)
    };
    let undone = UndoneSteps::new(steps);
    steps.iter().filter(is_attempt).any(|step| !undone.wholly.contains(&step.number))
}

/// Changes of undone steps that are no changes of captured files.
#[derive(Default)]
struct OtherChanges {
    /// Paths of files that stay because overlapping steps share them.
    shared: BTreeSet<String>,
    /// Changes of entries that are only noted, the earliest of each path.
    not_kept: BTreeMap<String, ChangeKind>,
    repositories: BTreeMap<String, RepositorySteps>,
    directories: Vec<DirectoryChange>,
}

/// Steps that changed a repository.
#[derive(Default)]
struct RepositorySteps {
    steps: BTreeSet<u64>,
    /// Whether it existed before the earliest one.
    existed: bool,
}

impl OtherChanges {
    /// Adds the changes of an earlier interval, except shared ones.
    fn add(
        &mut self,
        interval: &Interval<'_>,
        selection: &Selection<'_>,
        reader: &mut SnapshotReader,
    ) -> Result<()> {
        let owners = interval.owners().filter(|owner| selection.steps.contains(&owner.number));
        let unlimited: Vec<u64> =
            owners.filter(|owner| owner.paths.is_none()).map(|owner| owner.number).collect();
        if !unlimited.is_empty() {
            let noted = interval.noted_changes().into_iter();
            self.not_kept.extend(noted.map(|(kind, entry)| (entry.path, kind)));
        }
        if !unlimited.is_empty() {
            // A damaged record of repositories, which stay in any case, prevents no undo of files.
            for path in reader.changed_repositories(&interval.from, &interval.to).unwrap_or_default() {
                let existed = reader.repositories(&interval.from).is_ok_and(|before| before.contains(&path));
                let changed = self.repositories.entry(path).or_default();
                changed.steps.extend(&unlimited);
                changed.existed = existed;
            }
        }
        let mut changes = reader.directory_changes(&interval.from, &interval.to)?;
        changes.retain(|change| selection.contains_directory_change(interval, change));
        self.directories.extend(changes);
        Ok(())
    }
}

struct Planned {
    present: Option<FileFacts>,
    version: FileVersion,
}

/// Removes changes from the present files, from the latest to the earliest.
struct Planner<'a> {
    present: &'a FilesystemSnapshot,
    reader: &'a mut SnapshotReader,
    files: BTreeMap<String, Planned>,
    conflicts: BTreeMap<String, &'static str>,
}

impl Planner<'_> {
    /// Removes changes in an interval. Returns the changes after which a file gets its earlier version.
    fn remove_changes(
        &mut self,
        interval: &Interval<'_>,
        changes: Vec<FileChange>,
    ) -> Result<Vec<FileChange>> {
        let mut restored = Vec::new();
        if changes.is_empty() {
            return Ok(restored);
        }
        let later = self.reader.changes(Some(&interval.to), self.present)?;
        let later: BTreeMap<String, Option<FileFacts>> =
            later.into_iter().map(|change| (change.path, change.after)).collect();
        let noted = Noted::new([self.present]);
        for change in changes {
            let FileChange { path, before, after, .. } = change.clone();
            if self.conflicts.contains_key(&path) {
                continue;
            }
            if noted.contains(&path) {
                self.conflicts.insert(path, "its present content is not captured");
                continue;
            }
            let planned = match self.files.get(&path) {
                Some(planned) => planned.version.clone(),
                None => later.get(&path).cloned().unwrap_or_else(|| after.clone()).into(),
            };
            let (before, after) = (FileVersion::from(before), FileVersion::from(after));
            match self.reader.remove_change(&before, &after, &planned)? {
                Ok(version) => {
                    if version == before {
                        restored.push(change);
                    }
                    let present = match planned {
                        FileVersion::Captured(facts) => Some(facts),
                        FileVersion::Missing | FileVersion::Merged { .. } => None,
                    };
                    let planned = Planned { present, version: FileVersion::Missing };
                    self.files.entry(path).or_insert(planned).version = version;
                }
                Err(reason) => {
                    self.files.remove(&path);
                    self.conflicts.insert(path, reason);
                }
            }
        }
        Ok(restored)
    }

    fn finish(self) -> (Vec<FileUndo>, BTreeMap<String, &'static str>) {
        let mut files = Vec::new();
        for (path, Planned { present, version }) in self.files {
            let change = match (&present, &version) {
                (None, FileVersion::Missing) => continue,
                (None, _) => ChangeKind::Created,
                (Some(_), FileVersion::Missing) => ChangeKind::Removed,
                (Some(facts), FileVersion::Captured(wanted)) if facts == wanted => continue,
                (Some(_), _) => ChangeKind::Modified,
            };
            files.push(FileUndo { path, change, present, wanted: version.into() });
        }
        (files, self.conflicts)
    }
}

/// Permission bits that an owner needs to change the entries of a directory.
const OWNER_ALL: u32 = 0o700;

/// Orders edits so that a file can take the place of a directory, and a directory that of a file. A
/// created or removed directory that its owner cannot change gets its permissions last.
fn in_order(files: &[FileUndo], directories: &[DirectoryChange]) -> Vec<PathEdit> {
    let edit =
        |path: &str, present, wanted| PathEdit { path: path.to_owned(), present, wanted, modified_ns: None };
    let file = |file: &FileUndo| edit(&file.path, file.present.clone(), file.wanted.clone());
    let (created, removed): (Vec<&DirectoryChange>, Vec<&DirectoryChange>) =
        directories.iter().partition(|change| change.kind == ChangeKind::Created);
    let set_permissions = |change: &DirectoryChange, present, permissions| {
        edit(&change.path, None, WantedEntry::DirectoryPermissions { present, permissions })
    };
    let is_closed = |change: &&DirectoryChange| change.permissions & OWNER_ALL != OWNER_ALL;
    let opened = |change: &DirectoryChange| change.permissions | OWNER_ALL;
    let opening = |change: &DirectoryChange| set_permissions(change, change.permissions, opened(change));
    let closing = |change: &DirectoryChange| set_permissions(change, opened(change), change.permissions);
    let creation = |change: &DirectoryChange| {
        edit(&change.path, None, WantedEntry::Directory { permissions: opened(change) })
    };
    let removal = |change: &DirectoryChange| edit(&change.path, None, WantedEntry::NoDirectory);
    let mut edits: Vec<PathEdit> = created.iter().copied().filter(is_closed).map(opening).collect();
    edits.extend(files.iter().filter(|file| file.change == ChangeKind::Removed).map(file));
    // Created directories are removed from the innermost outwards, if they are empty.
    edits.extend(created.into_iter().rev().map(removal));
    edits.extend(removed.into_iter().map(creation));
    edits.extend(files.iter().filter(|file| file.change != ChangeKind::Removed).map(file));
    edits.extend(directories.iter().rev().filter(is_closed).map(closing));
    edits
}
