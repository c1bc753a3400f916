//! Removing captures to free space.
//!
//! 1. A step needs the captures from its beginning to its end, and those of its undos, their undos, and
//!    of its earlier attempts, if it is an undo. A step that has lost one of them cannot be undone any
//!    more.
//! 2. A capture stays as long as the most important step that needs it: see [`Importance`].
//! 3. No [interval](crate::Intervals) spans a removed capture, so that no change gets the wrong author.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use foldlog::filesystem::{FileForm, FilesystemSnapshot};

use crate::step::{CapturesCollected, Edge, Moment, Step, StepChanged};
use crate::timeline::Timeline;
use crate::undo_plan::attempts;
use crate::undone::{closed_undos, undos_of};
use crate::{Error, Result};

/// Reason why a step whose captures were removed cannot be undone.
pub(crate) const REMOVED: &str = "its captures were removed to free space";

/// Time since the end of a step in which it is recent.
const RECENT: TimeDelta = TimeDelta::hours(24);

/// Importance of a step's captures: those of the least important steps are removed first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Importance {
    Old,
    /// The step is open, or has ended within the last 24 hours.
    Recent,
    Pinned,
}

/// Places of the moments whose captures each step that can be undone needs.
type NeededMoments = BTreeMap<u64, Vec<Range<usize>>>;

impl Timeline {
    /// Returns the captures at the beginnings and ends of steps that are kept, the earliest first.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be read.
    pub fn captures(&self) -> Result<Vec<FilesystemSnapshot>> {
        Ok(self.moments()?.into_iter().filter_map(|moment| moment.capture).collect())
    }

    /// Pins a step, so that its captures are removed after those of all other steps, or unpins it.
    ///
    /// # Errors
    ///
    /// - [`Error::NoStep`] if there is no such step.
    /// - [`Error::NotPinnable`] if it was not captured, or its captures were removed.
    /// - [`Error::Engine`] if the log cannot be written.
    pub fn set_pinned(&mut self, number: u64, pinned: bool) -> Result<()> {
        let step = self.steps()?.into_iter().find(|step| step.number == number);
        let step = step.ok_or(Error::NoStep { number })?;
        if let Some(reason) = step.not_captured.clone().filter(|_| pinned) {
            return Err(Error::NotPinnable { number, reason });
        }
        if step.pinned != pinned {
            self.session.dispatch(StepChanged { step: Step { pinned, ..step }, moment: None })?;
        }
        Ok(())
    }

    /// Returns whether captures since the beginning of a step were removed.
    pub(crate) fn has_lost_captures(&self, number: u64) -> Result<bool> {
        let moments = self.moments()?;
        let mut since = moments.iter().skip_while(|moment| moment.step != number);
        Ok(since.any(|moment| moment.is_removed))
    }

    /// Removes captures until they take at most `bytes_max` bytes on the disk: first those of steps
    /// that ended more than 24 hours before `now`, then those of later steps, and then those of pinned
    /// steps, each time the earliest first. The steps whose captures are removed stay in the list, and
    /// cannot be undone any more. The latest capture is always kept. Returns whether any was removed.
    ///
    /// Files of the latest capture that are clones of files in the root do not count, since they share
    /// their blocks. Clones in earlier captures count whole, although they may share blocks, too.
    ///
    /// # Errors
    ///
    /// - [`Error::Engine`] if the log cannot be written.
    /// - [`Error::Filesystem`] if a capture is damaged, or an object cannot be removed.
    pub fn collect(&mut self, bytes_max: u64, now: DateTime<Utc>) -> Result<bool> {
        let mut is_any = false;
        if self.exceeds(bytes_max)? {
            // Previews leave captures that belong to no step, and so does a collection that was killed.
            self.files()?.collect(&self.captures()?)?;
        }
        while self.exceeds(bytes_max)? {
            let (steps, mut moments) = (self.steps()?, self.moments()?);
            let needed = needed_moments(&steps, &moments);
            let gone = least_important(&steps, &moments, &needed, now);
            if gone.is_empty() {
                break;
            }
            let is_gone = |step: &&Step| {
                let mut needed = needed.get(&step.number).into_iter().flatten();
                needed.any(|range| gone.range(range.clone()).next().is_some())
            };
            for step in steps.iter().filter(is_gone) {
                let not_captured = Some(REMOVED.to_owned());
                let step = Step { not_captured, pinned: false, ..step.clone() };
                self.session.dispatch(StepChanged { step, moment: None })?;
            }
            for place in gone {
                if let Some(moment) = moments.get_mut(place) {
                    (moment.capture, moment.is_removed) = (None, true);
                }
            }
            let places = || (0_u64..).zip(&moments);
            let removed = places().filter(|(_, moment)| moment.is_removed).last();
            let end = removed.map_or(0, |(place, _)| place + 1);
            let kept =
                places().take_while(|(place, _)| *place < end).filter(|(_, moment)| !moment.is_removed);
            let kept = kept.map(|(place, _)| place).collect();
            self.session.dispatch(CapturesCollected { moments: end, kept })?;
            let keep: Vec<FilesystemSnapshot> =
                moments.into_iter().filter_map(|moment| moment.capture).collect();
            self.files()?.collect(&keep)?;
            is_any = true;
        }
        Ok(is_any)
    }

    /// Returns whether the captures take more bytes on the disk, without the clones of the latest one.
    fn exceeds(&self, bytes_max: u64) -> Result<bool> {
        let captures = self.place.captures();
        if bytes_on_disk(&captures, &BTreeSet::new()) <= bytes_max {
            return Ok(false);
        }
        let moments = self.moments()?;
        let latest = moments.iter().rev().find_map(|moment| moment.capture.as_ref());
        let clones = latest.map_or_else(|| Ok(BTreeSet::new()), |latest| self.clones(latest))?;
        Ok(bytes_on_disk(&captures, &clones) > bytes_max)
    }

    /// Returns the names of the clones that a capture needs.
    fn clones(&self, capture: &FilesystemSnapshot) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        self.reader().files(capture, |_, facts| {
            names.extend((facts.form == FileForm::Shared).then(|| facts.digest.clone()));
            Ok(())
        })?;
        Ok(names)
    }
}

fn needed_moments(steps: &[Step], moments: &[Moment]) -> NeededMoments {
    let mut spans: BTreeMap<u64, Range<usize>> = BTreeMap::new();
    for (place, moment) in moments.iter().enumerate() {
        let span = spans.entry(moment.step).or_insert(place..moments.len());
        if moment.edge == Edge::Closed {
            span.end = place + 1;
        }
    }
    let undos = closed_undos(steps);
    let undoable = steps.iter().filter(|step| step.not_captured.is_none());
    let ranges = undoable.map(|step| {
        let attempts = attempts(steps, step).filter(|step| step.not_captured.is_none());
        let undos = undos_of(&undos, &BTreeSet::from([step.number])).into_iter();
        let undos = undos.map(|undo| undo.step.number);
        let parts = attempts.map(|attempt| attempt.number).chain([step.number]).chain(undos);
        (step.number, parts.filter_map(|part| spans.get(&part).cloned()).collect())
    });
    ranges.collect()
}

/// Returns the places of the captures that are removed next: a quarter of the least important ones.
fn least_important(
    steps: &[Step],
    moments: &[Moment],
    needed: &NeededMoments,
    now: DateTime<Utc>,
) -> BTreeSet<usize> {
    let mut importances = vec![Importance::Old; moments.len()];
    for step in steps {
        let importance = match step.closed_at {
            _ if step.pinned => Importance::Pinned,
            Some(closed_at) if now - closed_at > RECENT => Importance::Old,
            _ => Importance::Recent,
        };
        for range in needed.get(&step.number).into_iter().flatten() {
            let of_step = importances.get_mut(range.clone()).unwrap_or_default();
            of_step.iter_mut().for_each(|known| *known = importance.max(*known));
        }
    }
    // The next capture is compared with the latest one.
    let latest = moments.iter().rposition(|moment| moment.capture.is_some()).unwrap_or_default();
    let all = moments.iter().zip(importances).enumerate().take(latest);
    let all: Vec<(usize, Importance)> = all
        .filter(|(_, (moment, _))| !moment.is_removed)
        .map(|(place, (_, importance))| (place, importance))
        .collect();
    let least = all.iter().map(|(_, importance)| *importance).min();
    let places: Vec<usize> =
        all.iter().filter(|(_, one)| Some(*one) == least).map(|(place, _)| *place).collect();
    let count = places.len().div_ceil(4);
    places.into_iter().take(count).collect()
}

/// Returns the bytes that the files in a directory take on the disk, except clones.
fn bytes_on_disk(directory: &Path, clones: &BTreeSet<String>) -> u64 {
    let (mut bytes, mut left) = (0_u64, vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => left.push(entry.path()),
                Ok(_) if entry.file_name().to_str().is_some_and(|name| clones.contains(name)) => {}
                Ok(found) => bytes = bytes.saturating_add(found.blocks().saturating_mul(512)),
                Err(_) => {}
            }
        }
    }
    bytes
}
