//! Removed roots, such as a working tree of git.
//!
//! 1. The timeline of a removed root is kept, and its steps can be listed and shown.
//! 2. The removal itself can be undone, whoever removed the root: it becomes a step, between the
//!    last captured state and an empty directory.
//! 3. The timeline of a working tree that git has removed from its repository is removed after
//!    [`KEPT`]. Other roots may be on a disk that is not mounted, so their timelines stay.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::places::recorded_path;
use crate::step::{Call, Lane, Outcome, StepKind};
use crate::timeline::{Timeline, TimelineOptions, new_step};
use crate::working_tree::WorkingTree;
use crate::{Error, Result, TimelinePlace};

/// How long the timeline of a removed working tree is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// File in a timeline's directory with the git directory of the root's repository.
const REPOSITORY_FILE: &str = "repository";

/// File in a timeline's directory, written when its root was first found to be removed.
const REMOVED_FILE: &str = "removed";

/// Tool of the step of a removal.
const TOOL: &str = "removal";

impl TimelinePlace {
    /// Records to which repository the root belongs, if it is a linked working tree. The caller has
    /// locked the timeline.
    pub(crate) fn record_repository(&self) {
        if self.dir.join(REPOSITORY_FILE).exists() {
            return;
        }
        if let Some(tree) = WorkingTree::at(&self.root).filter(WorkingTree::is_linked) {
            // Without it, the timeline is found only by its root.
            let _ = self.write_file(REPOSITORY_FILE, tree.common.as_os_str().as_bytes());
        }
    }

    pub(crate) fn repository(&self) -> Option<PathBuf> {
        recorded_path(&self.dir.join(REPOSITORY_FILE))
    }

    /// Returns the removed working trees of the repository around a directory that have a timeline.
    pub fn removed_working_trees(timelines: &Path, directory: &Path) -> Vec<PathBuf> {
        let Some(tree) = WorkingTree::around(directory) else { return Vec::new() };
        let is_of_tree =
            |place: &TimelinePlace| !place.root.exists() && place.repository().as_ref() == Some(&tree.common);
        let places = TimelinePlace::all(timelines).into_iter().filter(is_of_tree);
        places.map(|place| place.root).collect()
    }

    /// Removes the timelines of working trees that were removed long ago.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a timeline cannot be removed.
    pub fn collect_removed(timelines: &Path, now: SystemTime) -> Result<()> {
        for place in TimelinePlace::all(timelines) {
            let noticed = place.dir.join(REMOVED_FILE);
            if place.root.exists() {
                let _ = fs::remove_file(noticed);
                continue;
            }
            if !place.repository().is_some_and(|repository| repository.exists()) {
                continue;
            }
            match fs::metadata(&noticed).and_then(|found| found.modified()) {
                Ok(since) if now.duration_since(since).is_ok_and(|passed| passed > KEPT) => {
                    fs::remove_dir_all(&place.dir).map_err(Error::io("remove", &place.dir))?;
                }
                Ok(_) => {}
                Err(_) => fs::write(&noticed, "").map_err(Error::io("write", &noticed))?,
            }
        }
        Ok(())
    }
}

impl Timeline {
    /// Opens the timeline of a removed root for writing. Creates the root as an empty directory, and
    /// records the removal as a step. Returns also the number of the step.
    ///
    /// # Errors
    ///
    /// - [`Error::NothingToUndo`] if no state of the root was captured.
    /// - [`Error::RootReplaced`] if there is something else.
    /// - [`Error::Io`] if the directory cannot be created.
    /// - The errors of [`open`](Timeline::open).
    pub fn open_removed(
        place: &TimelinePlace,
        options: &TimelineOptions,
        now: DateTime<Utc>,
    ) -> Result<(Timeline, u64)> {
        if place.root.symlink_metadata().is_ok() {
            return Err(Error::of_lost_root(&place.root));
        }
        fs::create_dir_all(&place.root).map_err(Error::io("create", &place.root))?;
        let opened = Timeline::open(place, options).and_then(|mut timeline| {
            let number = timeline.record_removal(now)?;
            Ok((timeline, number))
        });
        if opened.is_err() {
            let _ = fs::remove_dir(&place.root);
        }
        opened
    }

    fn record_removal(&mut self, now: DateTime<Utc>) -> Result<u64> {
        let steps = self.steps()?;
        let undone = self.undone()?;
        let last = steps.last().filter(|step| step.call().is_some_and(|call| call.tool == TOOL));
        // A removal whose undo was not confirmed.
        if let Some(last) = last.filter(|last| !undone.wholly.contains(&last.number)) {
            return Ok(last.number);
        }
        let before = self
            .latest_capture()?
            .ok_or(Error::NothingToUndo("nothing to undo: no file is captured here"))?;
        let after = self.capture()?;
        self.close_unreported(&steps, |_| true, Outcome::Interrupted, Some(&before), now)?;
        let number = steps.last().map_or(1, |step| step.number + 1);
        let root = self.place().root.to_string_lossy().into_owned();
        let call = Call {
            lane: Lane { program: "foldlog".to_owned(), session: "removal".to_owned(), agent: None },
            id: number.to_string(),
            tool: TOOL.to_owned(),
            arguments: "{}".to_owned(),
            title: root,
            ..Call::default()
        };
        let step = new_step(number, StepKind::Call(Box::new(call)), now);
        self.open_step(step.clone(), Some(before))?;
        self.close_step(step, Outcome::Succeeded, Some(after), now)?;
        Ok(number)
    }

    /// Returns whether the root was removed, or something else is in its place.
    pub fn is_root_removed(&self) -> bool {
        !self.place().root.is_dir()
    }
}
