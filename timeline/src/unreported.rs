//! Calls and undos whose end was not reported.

use std::path::Path;

use chrono::{DateTime, Utc};
use foldlog::filesystem::FilesystemSnapshot;

use crate::Result;
use crate::step::{Call, Lane, Outcome, Step};
use crate::timeline::Timeline;

/// Reason why a step without a capture at its end cannot be undone.
pub(crate) const NOT_CAPTURED_AFTER: &str = "the state after it could not be captured";

impl Timeline {
    /// Closes the open calls of programs that have ended. Returns their numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be written.
    pub fn close_ended_calls(&mut self, now: DateTime<Utc>) -> Result<Vec<u64>> {
        self.close_where(
            |step| step.call().is_some_and(|call| has_ended(call.process)),
            Outcome::Interrupted,
            now,
        )
    }

    /// Closes open calls of a session whose end was not reported: all of them, or only those of the
    /// main agent. Returns their numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be written.
    pub fn interrupt_calls(
        &mut self,
        program: &str,
        session: &str,
        only_main: bool,
        now: DateTime<Utc>,
    ) -> Result<Vec<u64>> {
        let is_stale = |call: &Call| {
            let lane = &call.lane;
            let is_of_session = lane.program == program && lane.session == session;
            (is_of_session && (lane.agent.is_none() || !only_main)) || has_ended(call.process)
        };
        self.close_where(|step| step.call().is_some_and(is_stale), Outcome::Interrupted, now)
    }

    /// Closes open calls of a lane as failed, except those that run: for programs that report no end
    /// of a call that failed.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be written.
    pub fn fail_calls(
        &mut self,
        lane: &Lane,
        is_running: impl Fn(&Step) -> bool,
        now: DateTime<Utc>,
    ) -> Result<()> {
        let is_of_lane = |step: &Step| step.call().is_some_and(|call| call.lane == *lane);
        self.close_where(|step| is_of_lane(step) && !is_running(step), Outcome::Failed, now)?;
        Ok(())
    }

    /// Closes open steps, and captures the root only if there are any.
    pub(crate) fn close_where(
        &mut self,
        is_stale: impl Fn(&Step) -> bool,
        outcome: Outcome,
        now: DateTime<Utc>,
    ) -> Result<Vec<u64>> {
        let steps = self.steps()?;
        if !steps.iter().any(|step| step.is_open() && is_stale(step)) {
            return Ok(Vec::new());
        }
        let capture = self.capture().ok();
        self.close_unreported(&steps, is_stale, outcome, capture.as_ref(), now)
    }

    /// Closes open steps whose end was not reported. Returns their numbers.
    pub(crate) fn close_unreported(
        &mut self,
        steps: &[Step],
        is_stale: impl Fn(&Step) -> bool,
        outcome: Outcome,
        capture: Option<&FilesystemSnapshot>,
        now: DateTime<Utc>,
    ) -> Result<Vec<u64>> {
        let mut closed = Vec::new();
        for step in steps.iter().filter(|step| step.is_open() && is_stale(step)) {
            let mut step = step.clone();
            if capture.is_none() && step.not_captured.is_none() {
                step.not_captured = Some(NOT_CAPTURED_AFTER.to_owned());
            }
            if let Some(capture) = capture {
                self.set_users_changes(&mut step, capture, None)?;
            }
            closed.push(step.number);
            self.close_step(step, outcome, capture.cloned(), now)?;
        }
        Ok(closed)
    }
}

pub(crate) fn has_ended(process: Option<u32>) -> bool {
    process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
}
