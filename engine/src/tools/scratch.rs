//! Copies of the resources in a replayed run, in the state that the log records.
//!
//! | user | state of the copies |
//! |---|---|
//! | the host, while no tool runs again | the last recorded capture; before the first one, the first |
//! | a tool that runs again, at its start | the capture of its start record, or for one that only reads, the last recorded capture |
//! | the same later, and calls within it | as the tool left them |
//!
//! In a fork, only captures in its own records count: its parent's captures do not describe its
//! resources, and may be of another place.
//!
//! Copies are created at the first use. Changes by the host last until a tool has run.
//!
//! # Invariants
//!
//! 1. A replay never exposes the original of a copy, under any type under which it was registered.
//!    It leases, captures and restores no original: its run has none to do that with.
//! 2. A tool runs again only if there is a copy of each resource that is rolled back with a failed
//!    tool.
//! 3. No tool runs again on a copy from which the original is reachable, for example by a link: the
//!    replay ends with an error that names it.
//! 4. A copy is restored to another capture only while no tool runs again.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::captures::CaptureSet;
use super::execution::ExecutionState;
use crate::error::{Error, Result};
use crate::session::operation_records::RecordedCaptures;
use crate::tools::resources::{ResourceRegistry, ScratchRegistry};

/// Copies that a replayed run uses in place of its resources.
pub(super) struct Scratch {
    copies: ScratchRegistry,
    stand: Mutex<Stand>,
}

/// State of the copies.
struct Stand {
    /// Number of tools that run again at the moment.
    running: u64,
    /// Captures to which the copies were last restored; `None` if a tool has run since.
    at: Option<RecordedCaptures>,
}

impl Scratch {
    /// Creates copies of the run's resources. Returns `None` if no capture of them is recorded.
    fn from_state(state: &ExecutionState) -> Result<Option<Scratch>> {
        if !state.registered_resources().is_rolled_back() {
            return Ok(None);
        }
        let recorded = match state.session().calls().own_captures_left()? {
            left if left.is_empty() => state.session().calls().captures_to_come()?,
            left => left,
        };
        if recorded.is_empty() {
            return Ok(None);
        }
        let copies = state.registered_resources().scratch(&recorded)?;
        Ok(Some(Scratch { copies, stand: Mutex::new(Stand { running: 0, at: Some(recorded) }) }))
    }

    /// Restores the copies to these captures, unless a tool works on them. Returns the decoded
    /// captures.
    fn bring(&self, stand: &mut Stand, mut recorded: RecordedCaptures) -> Result<CaptureSet> {
        let captures = self.decode_captures(&mut recorded)?;
        if stand.running == 0 && stand.at.as_ref() != Some(&recorded) {
            captures.restore(&self.copies.resources, false, false)?;
            stand.at = Some(recorded);
        }
        Ok(captures)
    }

    /// Decodes captures. Removes captures of resources that the run lacks.
    fn decode_captures(&self, recorded: &mut RecordedCaptures) -> Result<CaptureSet> {
        recorded.retain(|name, _| self.copies.resources.captured_resources().contains_key(name.as_str()));
        CaptureSet::from_recorded(recorded.clone()).decode_recorded(&self.copies.resources, true)
    }
}

impl ExecutionState {
    /// Returns the resources.
    ///
    /// In a [replay](crate::replay), copies in their recorded state replace the resources that are
    /// rolled back with a failed tool. If a copy cannot be created, the next write fails with the
    /// reason.
    pub fn resources(&self) -> &ResourceRegistry {
        let Some(scratch) = self.scratch() else { return self.registered_resources() };
        // The next write reports the error.
        let _ = self.or_end_replay(self.bring_copies(scratch));
        &scratch.copies.resources
    }

    /// Restores the copies to the last recorded captures, unless a tool works on them.
    fn bring_copies(&self, scratch: &Scratch) -> Result<()> {
        let mut stand = scratch.stand.lock();
        if stand.running > 0 {
            return Ok(());
        }
        let left = self.session().calls().own_captures_left()?;
        if !left.is_empty() {
            scratch.bring(&mut stand, left)?;
        }
        Ok(())
    }

    /// Returns the copies that the run uses in place of its resources; `None` if it uses the
    /// resources themselves.
    fn scratch(&self) -> Option<&Scratch> {
        let made = || self.or_end_replay(Scratch::from_state(self)).ok().flatten();
        self.inner.scratch.as_ref()?.get_or_init(made).as_ref()
    }

    /// Ends the replay after a fatal error: every further write fails with the reason.
    pub(super) fn or_end_replay<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| match error {
            // A process may end within a call, and a replay within any.
            Error::ReplayEnded { .. } | Error::Diverged(_) => {}
            error => self.session().poison(error.clone()),
        })
    }

    /// Returns whether a tool that runs again in this replay finds all resources in their recorded
    /// state.
    pub(super) fn has_all_as_it_was(&self) -> bool {
        !self.registered_resources().is_rolled_back()
            || self.scratch().is_some_and(|scratch| scratch.copies.is_whole)
    }

    /// Restores the copies for the start of a tool that runs again: to the captures of its start
    /// record, or, if there are none, to the last recorded ones. Returns the captures to which a
    /// failure of the tool restores them.
    pub(super) fn begin_on_copies(&self, recorded: RecordedCaptures) -> Result<CaptureSet> {
        let Some(scratch) = self.scratch() else { return Ok(CaptureSet::default()) };
        let only_reads = recorded.is_empty();
        let begun = if only_reads { self.session().calls().own_captures_left()? } else { recorded };
        let mut stand = scratch.stand.lock();
        // Before the first capture, the copies are in that capture's state.
        let captures =
            if begun.is_empty() { CaptureSet::default() } else { scratch.bring(&mut stand, begun)? };
        captures.check_apart(&scratch.copies.resources)?;
        stand.running += 1;
        Ok(if only_reads { CaptureSet::default() } else { captures })
    }

    /// Notes that a tool that ran again has finished its work on the copies.
    pub(super) fn end_on_copies(&self) {
        if let Some(scratch) = self.scratch() {
            let mut stand = scratch.stand.lock();
            stand.running = stand.running.saturating_sub(1);
            stand.at = None;
        }
    }

    /// Lists the parts of the copies that differ from these captures, by resource name.
    pub(super) fn differ_from(
        &self,
        mut recorded: RecordedCaptures,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let Some(scratch) = self.scratch() else {
            return Ok(BTreeMap::new());
        };
        scratch.decode_captures(&mut recorded)?.differences(&scratch.copies.resources)
    }
}
