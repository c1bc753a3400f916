//! What a replayed run shows of its resources: copies, as the log says that the resources were.
//!
//! | who looks | what the copies are |
//! |---|---|
//! | the host, while no tool runs again | as the last recorded capture says; before the first one, as that says |
//! | a tool that runs again, at its begin | as its begin recorded, or for one that only reads, as the last recorded capture says |
//! | the same later, and calls within it | as the tool left them |
//!
//! In a fork, only captures of its own records count: those of its parent say nothing about its resources, and may lie elsewhere.
//!
//! Copies are made when somebody looks for the first time. What a host does to one lasts until a tool has run.
//!
//! # Invariants
//!
//! 1. Nobody finds in a replay what a copy stands for, under whatever type it was registered.
//! 2. A tool runs again only if a copy stands for each resource that is rolled back with a failed tool.
//! 3. No tool runs again on a copy in which something, such as a link, leads to what the copy stands for: the replay ends with an
//!    error that names it.
//! 4. A copy is brought to another capture only while no tool runs again.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::captures::CaptureSet;
use super::execution::ExecutionState;
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};
use crate::session::operation_records::RecordedCaptures;
use crate::tools::resources::{ResourceRegistry, ScratchRegistry};

/// Holds the copies that a replayed run shows in the place of its resources.
pub(super) struct Scratch {
    copies: ScratchRegistry,
    stand: Mutex<Stand>,
}

/// Says what the copies hold.
struct Stand {
    /// Number of tools that run again at the moment.
    running: u64,
    /// Captures to which the copies were brought last; `None` if a tool has run since.
    at: Option<RecordedCaptures>,
}

impl Scratch {
    /// Makes copies of the run's resources. `None` if no capture of them is recorded.
    fn from_state(state: &ExecutionState) -> Result<Option<Scratch>> {
        if !state.registered_resources().is_rolled_back() {
            return Ok(None);
        }
        let recorded = match state.session().captures_left()? {
            left if left.is_empty() => state.session().captures_to_come()?,
            left => left,
        };
        if recorded.is_empty() {
            return Ok(None);
        }
        let copies = state.registered_resources().scratch(&recorded)?;
        Ok(Some(Scratch { copies, stand: Mutex::new(Stand { running: 0, at: Some(recorded) }) }))
    }

    /// Brings the copies to these captures, unless a tool works on them. Returns the captures, recalled.
    fn bring(&self, stand: &mut Stand, mut recorded: RecordedCaptures) -> Result<CaptureSet> {
        let captures = self.decode_captures(&mut recorded)?;
        if stand.running == 0 && stand.at.as_ref() != Some(&recorded) {
            captures.restore(&self.copies.resources, false, false)?;
            stand.at = Some(recorded);
        }
        Ok(captures)
    }

    /// Recalls captures. Those of resources that the run lacks do not count, and are taken out.
    fn decode_captures(&self, recorded: &mut RecordedCaptures) -> Result<CaptureSet> {
        recorded.retain(|name, _| self.copies.resources.captured_resources().contains_key(name.as_str()));
        CaptureSet::from_recorded(recorded.clone()).decode_recorded(&self.copies.resources, true)
    }
}

impl ExecutionState {
    /// Returns the resources.
    ///
    /// In a [replay](crate::replay) copies stand for those that are rolled back with a failed tool, as the log says that they were.
    /// If one cannot be made, the next write fails with the reason.
    pub fn resources(&self) -> &ResourceRegistry {
        let Some(scratch) = self.scratch() else { return self.registered_resources() };
        // Told by the next write.
        let _ = self.or_end_replay(self.bring_copies(scratch));
        &scratch.copies.resources
    }

    /// Brings the copies to what was recorded last, unless a tool works on them.
    fn bring_copies(&self, scratch: &Scratch) -> Result<()> {
        let mut stand = scratch.stand.lock();
        if stand.running > 0 {
            return Ok(());
        }
        let left = self.session().captures_left()?;
        if !left.is_empty() {
            scratch.bring(&mut stand, left)?;
        }
        Ok(())
    }

    /// Returns the copies that the run shows in the place of its resources; `None` if it shows the resources themselves.
    fn scratch(&self) -> Option<&Scratch> {
        if !self.session().replays() || sabotage::is(Breakage::ReplayedOnResources) {
            return None;
        }
        let made = || self.or_end_replay(Scratch::from_state(self)).ok().flatten();
        self.scratch_once().get_or_init(made).as_ref()
    }

    /// Ends the replay if something failed without which it cannot go on: every further write fails with the reason.
    pub(super) fn or_end_replay<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| match error {
            // A process may end within a call, and a replay within any.
            Error::ReplayEnded { .. } | Error::Diverged(_) => {}
            error => self.session().poison(error.clone()),
        })
    }

    /// Returns whether a tool that runs again in this replay finds all as it was.
    pub(super) fn has_all_as_it_was(&self) -> bool {
        !self.registered_resources().is_rolled_back()
            || self.scratch().is_some_and(|scratch| scratch.copies.is_whole)
            || sabotage::is(Breakage::ReplayedOnResources)
    }

    /// Brings the copies to where a tool begins that runs again: to what its begin recorded, or, if that is nothing, to what was
    /// recorded last. Returns the captures to which a failure of the tool restores them.
    pub(super) fn begin_on_copies(&self, recorded: RecordedCaptures) -> Result<CaptureSet> {
        let Some(scratch) = self.scratch() else { return Ok(CaptureSet::default()) };
        let only_reads = recorded.is_empty();
        let begun = if only_reads { self.session().captures_left()? } else { recorded };
        let mut stand = scratch.stand.lock();
        // Before the first capture they are as that says.
        let captures =
            if begun.is_empty() { CaptureSet::default() } else { scratch.bring(&mut stand, begun)? };
        captures.check_apart(&scratch.copies.resources)?;
        stand.running += 1;
        Ok(if only_reads { CaptureSet::default() } else { captures })
    }

    /// Notes that a tool that ran again works no more on the copies.
    pub(super) fn end_on_copies(&self) {
        if let Some(scratch) = self.scratch() {
            let mut stand = scratch.stand.lock();
            stand.running = stand.running.saturating_sub(1);
            stand.at = None;
        }
    }

    /// Names what of the copies is not as these captures say, by the resources' names.
    pub(super) fn differ_from(
        &self,
        mut recorded: RecordedCaptures,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let Some(scratch) = self.scratch().filter(|_| !sabotage::is(Breakage::LeftOtherwiseUntold)) else {
            return Ok(BTreeMap::new());
        };
        scratch.decode_captures(&mut recorded)?.differences(&scratch.copies.resources)
    }
}
