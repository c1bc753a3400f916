use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use foldlog::filesystem::{ChangeKind, FileChange, FileKind, FilesystemSnapshot, NotedEntry, SnapshotReader};

use crate::Result;
use crate::step::{Edge, Moment, Step};

/// Author of the change of a path in an interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attribution {
    User,
    Step(u64),
    Shared(BTreeSet<u64>),
}

impl Attribution {
    /// Returns whether an undo of these steps reverses the change. With `is_named`, the undo is limited
    /// to paths, and this is one of them.
    pub(crate) fn is_undone(&self, steps: &BTreeSet<u64>, is_named: bool) -> bool {
        match self {
            Attribution::User => false,
            Attribution::Step(author) => steps.contains(author),
            Attribution::Shared(authors) => {
                !authors.is_disjoint(steps) && (is_named || authors.is_subset(steps))
            }
        }
    }
}

/// The authors of the changes of one path.
#[derive(Debug, Default)]
pub(crate) struct Authors {
    steps: BTreeSet<u64>,
    has_user: bool,
}

impl fmt::Display for Authors {
    /// Formats as `you`, `step 5`, or `step 5, step 6 and you`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|step| format!("step {step}"));
        let names: Vec<String> = steps.chain(self.has_user.then(|| "you".to_owned())).collect();
        match names.split_last() {
            Some((last, before)) if !before.is_empty() => write!(f, "{} and {last}", before.join(", ")),
            _ => f.write_str(&names.concat()),
        }
    }
}

/// The time between two successive captures.
pub(crate) struct Interval<'a> {
    pub(crate) from: FilesystemSnapshot,
    pub(crate) to: FilesystemSnapshot,
    /// Step whose beginning or end is the start of the interval.
    pub(crate) after: u64,
    /// Steps that were open at any time in the interval.
    owners: BTreeMap<u64, &'a Step>,
    /// Whether there was a time in the interval without an open step. Between captures this means
    /// that a capture at the beginning or the end of a step is missing.
    is_gap: bool,
    /// Repositories within the root. Only listed if an owner works in a linked working tree.
    repositories: Vec<String>,
}

/// The intervals of a timeline, in ascending order. None spans a moment whose capture was removed.
pub struct Intervals<'a>(Vec<Interval<'a>>);

impl<'a> Intervals<'a> {
    /// Derives the intervals from the steps and the moments of a timeline.
    pub fn new(steps: &'a [Step], moments: Vec<Moment>, reader: &SnapshotReader) -> Intervals<'a> {
        let steps: BTreeMap<u64, &Step> = steps.iter().map(|step| (step.number, step)).collect();
        let (mut open, mut owners) = (BTreeMap::new(), BTreeMap::new());
        let mut last: Option<(u64, FilesystemSnapshot)> = None;
        let mut is_gap = true;
        let mut intervals = Vec::new();
        // A call that was taken for interrupted ends with its late report.
        let ends = moments.iter().enumerate().filter(|(_, moment)| moment.edge == Edge::Closed);
        let ends: BTreeMap<u64, usize> = ends.map(|(place, moment)| (moment.step, place)).collect();
        for (place, Moment { step: number, edge, capture, is_removed }) in moments.into_iter().enumerate() {
            let is_captured = capture.is_some();
            if is_removed {
                last = None;
            }
            if let Some(to) = capture
                && let Some((after, from)) = last.replace((number, to.clone()))
            {
                let owners: BTreeMap<u64, &Step> = std::mem::take(&mut owners);
                let mut repositories = BTreeSet::new();
                if owners.values().any(|owner| owner.working_tree.is_some()) {
                    for capture in [&from, &to] {
                        // Without the list, more changes belong to the step.
                        let found = reader.repositories(capture).unwrap_or_default();
                        repositories.extend(
                            found.iter().filter_map(|path| path.strip_suffix("/.git")).map(str::to_owned),
                        );
                    }
                }
                let repositories = repositories.into_iter().collect();
                intervals.push(Interval { from, to, after, owners, is_gap, repositories });
            }
            match (edge, steps.get(&number)) {
                (Edge::Opened, Some(step)) => drop(open.insert(number, *step)),
                (Edge::Opened, None) => {}
                (Edge::Closed, _) if ends.get(&number) != Some(&place) => {}
                (Edge::Closed, _) => drop(open.remove(&number)),
            }
            if is_captured {
                owners.clear();
                is_gap = false;
            }
            owners.extend(open.iter().map(|(number, step)| (*number, *step)));
            is_gap |= open.is_empty();
        }
        Intervals(intervals)
    }

    /// Returns the intervals that start at the beginning or the end of a step.
    pub(crate) fn after(&self, step: u64) -> impl Iterator<Item = &Interval<'a>> {
        self.0.iter().filter(move |interval| interval.after == step)
    }

    /// Returns who has changed each path after the first of these steps began, without these steps.
    /// If captures since then were removed, the authors are unknown, and none are returned.
    pub(crate) fn later_authors(
        &self,
        steps: &BTreeSet<u64>,
        present: &FilesystemSnapshot,
        reader: &mut SnapshotReader,
    ) -> Result<BTreeMap<String, Authors>> {
        let is_of_steps = |interval: &Interval<'_>| interval.owners.keys().any(|owner| steps.contains(owner));
        let first = self.0.iter().position(is_of_steps).unwrap_or(self.0.len());
        let later = self.0.get(first..).unwrap_or_default();
        let mut found: BTreeMap<String, Authors> = BTreeMap::new();
        if later.windows(2).any(|two| matches!(two, [one, next] if one.to != next.from)) {
            return Ok(found);
        }
        for interval in later {
            for change in interval.changes(reader)? {
                let attribution = interval.attribution(&change.path, true);
                let authors = found.entry(change.path).or_default();
                match attribution {
                    Attribution::User => authors.has_user = true,
                    Attribution::Step(author) => drop(authors.steps.insert(author)),
                    Attribution::Shared(shared) => authors.steps.extend(shared),
                }
            }
        }
        if let Some(last) = later.last() {
            for change in reader.changes(Some(&last.to), present)? {
                found.entry(change.path).or_default().has_user = true;
            }
        }
        for authors in found.values_mut() {
            authors.steps.retain(|author| !steps.contains(author));
        }
        found.retain(|_, authors| authors.has_user || !authors.steps.is_empty());
        Ok(found)
    }

    /// Returns the intervals in which one of the steps was open.
    pub(crate) fn of_steps(&self, steps: &BTreeSet<u64>) -> impl DoubleEndedIterator<Item = &Interval<'a>> {
        self.0.iter().filter(|interval| interval.owners.keys().any(|owner| steps.contains(owner)))
    }
}

impl Interval<'_> {
    pub(crate) fn owners(&self) -> impl Iterator<Item = &Step> {
        self.owners.values().copied()
    }

    /// Returns the changes of files in the interval, except files that one of the two captures only
    /// notes.
    pub(crate) fn changes(&self, reader: &mut SnapshotReader) -> Result<Vec<FileChange>> {
        let noted = Noted::new([&self.from, &self.to]);
        let mut changes = reader.changes(Some(&self.from), &self.to)?;
        changes.retain(|change| !noted.contains(&change.path));
        Ok(changes)
    }

    /// Returns the entries that are only noted, and were created, changed or removed.
    pub(crate) fn noted_changes(&self) -> Vec<(ChangeKind, NotedEntry)> {
        let by_path = |capture: &FilesystemSnapshot| -> BTreeMap<String, NotedEntry> {
            capture.noted.iter().map(|entry| (entry.path.clone(), entry.clone())).collect()
        };
        let (mut was, is) = (by_path(&self.from), by_path(&self.to));
        let mut changes = Vec::new();
        for (path, entry) in is {
            match was.remove(&path) {
                None => changes.push((ChangeKind::Created, entry)),
                // Entries of a directory come and go without the directory being noted again.
                Some(before) if before != entry && entry.kind != FileKind::Directory => {
                    changes.push((ChangeKind::Modified, entry));
                }
                Some(_) => {}
            }
        }
        changes.extend(was.into_values().map(|entry| (ChangeKind::Removed, entry)));
        changes
    }

    /// Returns whether the creation or removal of a directory belongs to these steps alone.
    pub(crate) fn directory_belongs_to(&self, path: &str, steps: &BTreeSet<u64>) -> bool {
        if let Some(undo) = self.owners().find(|owner| owner.undo().is_some()) {
            return steps.contains(&undo.number) && undo.can_undo_change(path);
        }
        match self.attribution(path, false) {
            Attribution::Step(author) => steps.contains(&author),
            _ => {
                self.owners().all(|owner| steps.contains(&owner.number))
                    && self.owners().any(|owner| self.can_change(owner, path))
            }
        }
    }

    /// Returns whether a step may have changed a path, as far as its working tree tells. A program
    /// creates and removes working trees of other agents at any time, without a call.
    pub(crate) fn can_change(&self, step: &Step, path: &str) -> bool {
        let is_in = |path: &str, top: &str| {
            path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let Some(own) = &step.working_tree else { return true };
        !self.repositories.iter().any(|other| is_in(path, other) && !is_in(own, other))
    }

    /// Returns the author of a path's change. With `with_possible`, changes that are possibly the
    /// user's are attributed to the call.
    pub(crate) fn attribution(&self, path: &str, with_possible: bool) -> Attribution {
        // An undo comes first: its captures are taken directly before and after its edits.
        let owning = || self.owners().filter(|owner| owner.owns(path));
        if let Some(owner) = owning().find(|owner| owner.undo().is_some()).or_else(|| owning().next()) {
            return Attribution::Step(owner.number);
        }
        // Of a step that was not captured at one end, no change is known to be its own.
        if self.is_gap {
            return Attribution::User;
        }
        let is_users = |owner: &&Step| {
            let possible = owner.possibly_yours.iter().filter(|_| !with_possible);
            owner.yours.iter().chain(possible).any(|own| own == path)
        };
        let owners = self.owners().filter(|owner| owner.paths.is_none() && !is_users(owner));
        // Agents in working trees of their own run at the same time, so that they do not share
        // changes. A call in a working tree is more likely to change it than one elsewhere.
        let mut owners: Vec<&Step> = owners.filter(|owner| self.can_change(owner, path)).collect();
        let nearest = owners.iter().filter_map(|owner| owner.works_around(path)).max();
        if nearest.is_some() {
            owners.retain(|owner| owner.works_around(path) == nearest);
        }
        let owners: BTreeSet<u64> = owners.iter().map(|owner| owner.number).collect();
        match owners.first() {
            None => Attribution::User,
            Some(owner) if owners.len() == 1 => Attribution::Step(*owner),
            Some(_) => Attribution::Shared(owners),
        }
    }
}

/// The paths that captures only note.
pub(crate) struct Noted<'a>(BTreeMap<&'a str, FileKind>);

impl<'a> Noted<'a> {
    pub(crate) fn new(captures: impl IntoIterator<Item = &'a FilesystemSnapshot>) -> Noted<'a> {
        let noted = captures.into_iter().flat_map(|capture| &capture.noted);
        Noted(noted.map(|entry| (entry.path.as_str(), entry.kind)).collect())
    }

    /// Returns whether a path, or a directory around it, is noted.
    pub(crate) fn contains(&self, path: &str) -> bool {
        !self.0.is_empty() && with_directories_around(path).any(|around| self.0.contains_key(around))
    }
}

/// Returns the directories around a path, the outermost first, and the path.
pub(crate) fn with_directories_around(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    ends.filter_map(|end| path.get(..end))
}
