//! Which steps are undone, and which one is undone next.

use std::collections::BTreeSet;

use foldlog::filesystem::SnapshotReader;

use crate::attribution::Intervals;
use crate::selection::Selection;
use crate::step::{Lane, Outcome, Step, StepChanged, StepKind, Undo};
use crate::timeline::Timeline;
use crate::undo_plan::{has_attempt, with_attempts};
use crate::{Error, Result};

/// The steps that are undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UndoneSteps {
    /// Steps without remaining changes.
    pub wholly: BTreeSet<u64>,
    /// Steps with undone and remaining changes.
    pub partly: BTreeSet<u64>,
    /// Those of the partly undone steps of which later changes prevented the rest.
    conflicting: BTreeSet<u64>,
}

/// Returns whether a change of a file by a partly undone step is in effect, or an undo of it is to be
/// completed.
fn has_rest(all: &[Step], step: u64, intervals: &Intervals<'_>, reader: &mut SnapshotReader) -> Result<bool> {
    let steps = BTreeSet::from([step]);
    if has_attempt(all, &steps) {
        return Ok(true);
    }
    let selection = Selection::new(all, &steps, &[], intervals, reader)?;
    if selection.redone.values().any(|redone| !redone.files.is_empty()) {
        return Ok(true);
    }
    for interval in intervals.of_steps(&steps) {
        let changes = interval.changes(reader)?;
        if changes.iter().any(|change| selection.contains_change(interval, &change.path)) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Timeline {
    /// Returns the steps that are undone.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be read.
    pub fn undone(&self) -> Result<UndoneSteps> {
        Ok(UndoneSteps::new(&self.steps()?))
    }

    /// Returns the call that an undo without a number undoes: the last one that has ended and has
    /// [changes of its own](crate::StepChanges::files) that are not undone, or was not captured. A call with a
    /// conflict is undone again only by its number.
    ///
    /// # Errors
    ///
    /// - [`Error::NothingToUndo`] if there is none.
    /// - [`Error::Filesystem`] if a capture is missing or damaged.
    /// - [`Error::Engine`] if the log cannot be read.
    pub fn last_call(&self) -> Result<u64> {
        let steps = self.steps()?;
        let undone = UndoneSteps::new(&steps);
        let is_undone = |number| undone.wholly.contains(&number) || undone.conflicting.contains(&number);
        let (intervals, mut reader) =
            (Intervals::new(&steps, self.moments()?, &self.reader()), self.reader());
        for step in steps.iter().rev().filter(|step| !step.is_open() && step.call().is_some()) {
            if is_undone(step.number) {
                continue;
            }
            let has_changes = match undone.partly.contains(&step.number) {
                true => has_rest(&steps, step.number, &intervals, &mut reader)?,
                false => !intervals.changes(step.number, &mut reader)?.files.is_empty(),
            };
            if step.not_captured.is_some() || has_changes {
                return Ok(step.number);
            }
        }
        Err(Error::NothingToUndo(match steps.is_empty() {
            true => "nothing to undo: no call is recorded here",
            false => "nothing to undo: no call has changes that are not undone",
        }))
    }

    /// Returns the last undo that is not undone itself, which a redo undoes. One that a redo would
    /// not change any more is passed over.
    ///
    /// # Errors
    ///
    /// - [`Error::NothingToUndo`] if there is none.
    /// - [`Error::Engine`] if the log cannot be read.
    pub fn last_undo(&mut self) -> Result<u64> {
        let steps = self.steps()?;
        let undone = UndoneSteps::new(&steps);
        let is_next = |step: &&Step| {
            !step.is_open()
                && !undone.wholly.contains(&step.number)
                && step.undo().is_some_and(|undo| !undo.is_redo(&steps))
        };
        let undos: Vec<&Step> = steps.iter().rev().filter(is_next).collect();
        let Some(last) = undos.first() else {
            return Err(Error::NothingToUndo("nothing to redo: no undo is in effect"));
        };
        // Without a capture, the redo reports the reason.
        let Ok(present) = self.capture() else { return Ok(last.number) };
        let has_effect = |undo: &&&Step| {
            let wanted = with_attempts(&steps, BTreeSet::from([undo.number]));
            let plan = self.plan_at(&present, &steps, wanted, &[], None);
            undo.not_captured.is_some()
                || plan.map_or(true, |plan| !plan.is_empty() || plan.to_undo().has_conflicts)
        };
        Ok(undos.iter().find(has_effect).unwrap_or(last).number)
    }

    /// Returns undos of calls of a lane's session that its model has not been informed about, and
    /// marks them as reported.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be read or written.
    pub fn take_unreported_undos(&mut self, lane: &Lane) -> Result<Vec<Step>> {
        let steps = self.steps()?;
        let is_of_lane = |number: &u64| {
            let step = steps.iter().find(|step| step.number == *number);
            step.and_then(Step::call)
                .is_some_and(|call| call.lane.program == lane.program && call.lane.session == lane.session)
        };
        let mut unreported = Vec::new();
        for step in &steps {
            let Some(undo) = step.undo().filter(|undo| !undo.is_reported && !step.is_open()) else {
                continue;
            };
            if undone_calls(&steps, undo.of.iter().copied()).iter().any(is_of_lane) {
                let undo = Undo { is_reported: true, ..undo.clone() };
                let reported = Step { kind: StepKind::Undo(undo), ..step.clone() };
                self.session.dispatch(StepChanged { step: reported, moment: None })?;
                unreported.push(step.clone());
            }
        }
        Ok(unreported)
    }
}

impl UndoneSteps {
    /// Derives which steps are undone from all steps, in ascending order of their numbers.
    pub fn new(steps: &[Step]) -> UndoneSteps {
        let mut found = UndoneSteps::default();
        // From the latest undo on: an undone undo has no effect.
        for ClosedUndo { step, undo, of, .. } in closed_undos(steps).into_iter().rev() {
            if found.wholly.contains(&step.number) {
                continue;
            }
            // An undo that failed, was interrupted, or is partly undone itself has left changes.
            let is_incomplete =
                step.outcome != Some(Outcome::Succeeded) || found.partly.contains(&step.number);
            if undo.has_conflicts {
                found.conflicting.extend(&of);
            }
            match undo.is_partial || undo.has_conflicts || is_incomplete {
                true => found.partly.extend(of),
                false => found.wholly.extend(of),
            }
        }
        found.partly.retain(|number| !found.wholly.contains(number));
        found
    }
}

/// Returns the numbers of the calls that an undo affects: if it undoes an undo, those of that undo.
pub fn undone_calls(steps: &[Step], of: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
    let mut calls = BTreeSet::new();
    let mut left: Vec<u64> = of.into_iter().collect();
    while let Some(number) = left.pop() {
        match steps.iter().find(|step| step.number == number).and_then(Step::undo) {
            // An undo undoes only steps before it, so this ends.
            Some(undo) => left.extend(undo.of.iter().copied().filter(|of| *of < number)),
            None => drop(calls.insert(number)),
        }
    }
    calls
}

/// A closed undo or redo.
pub(crate) struct ClosedUndo<'a> {
    pub(crate) step: &'a Step,
    pub(crate) undo: &'a Undo,
    /// Steps that it undoes: the named ones, and earlier redos that affect no other calls than it names.
    pub(crate) of: BTreeSet<u64>,
    /// Calls that it affects.
    pub(crate) calls: BTreeSet<u64>,
    is_redo: bool,
}

/// Returns the closed undos in ascending order of their numbers.
pub(crate) fn closed_undos(steps: &[Step]) -> Vec<ClosedUndo<'_>> {
    let mut found: Vec<ClosedUndo<'_>> = Vec::new();
    for step in steps.iter().filter(|step| !step.is_open()) {
        let Some(undo) = step.undo() else { continue };
        // An undo undoes only steps before it.
        let mut of: BTreeSet<u64> = undo.of.iter().copied().filter(|of| *of < step.number).collect();
        let (calls, is_redo) = (undone_calls(steps, of.iter().copied()), undo.is_redo(steps));
        let named: BTreeSet<u64> = of.intersection(&calls).copied().collect();
        let redos = found.iter().filter(|earlier| earlier.is_redo && earlier.calls.is_subset(&named));
        of.extend(redos.map(|redo| redo.step.number));
        found.push(ClosedUndo { step, undo, of, calls, is_redo });
    }
    found
}

/// Returns the closed undos of some steps, and the undos of these undos, the earliest first.
pub(crate) fn undos_of<'a, 'b>(
    undos: &'b [ClosedUndo<'a>],
    steps: &BTreeSet<u64>,
) -> Vec<&'b ClosedUndo<'a>> {
    let mut affected = steps.clone();
    let is_affecting =
        |undo: &&ClosedUndo<'_>| !undo.of.is_disjoint(&affected) && affected.insert(undo.step.number);
    undos.iter().filter(is_affecting).collect()
}
