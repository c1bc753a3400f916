//! What the calls of earlier processes left, on this machine or another: what they spent, and what they left of the resources.

use super::captures::CaptureSet;
use super::execution::ExecutionState;
use crate::sabotage::{self, Breakage};

impl ExecutionState {
    /// Captures what is not rolled back with a tool that failed; `None` if there is nothing, or it cannot be captured.
    pub(super) fn capture_kept(&self) -> Option<CaptureSet> {
        if sabotage::is(Breakage::SpendingForgotten) {
            return None;
        }
        CaptureSet::of_kept(self.registered_resources()).ok().filter(|captures| !captures.is_empty())
    }

    /// Brings what is not rolled back with a tool up to what the session's last call recorded of it: what another process spent stays spent.
    pub(super) fn carry_over(&self) {
        let is_kept =
            self.registered_resources().captured_resources().values().any(|resource| !resource.rolls_back());
        if !is_kept
            || self.parent().is_some()
            || self.session().replays()
            || sabotage::is(Breakage::SpendingForgotten)
        {
            return;
        }
        if let Ok(Some((left, found, true))) = self.session().captures_of_last_call() {
            CaptureSet::carry_over(self.registered_resources(), &left);
            CaptureSet::carry_over(self.registered_resources(), &found);
        }
    }

    /// Has the resources tell the host what of them is not as the session's last call left them, with the first captures of this run: nobody
    /// saw it before if that call's process was killed, or was on another machine. Where a fork has made no call yet, that is only whether they
    /// are of another place than its parent's. That it cannot be known is no reason to fail a call.
    pub(super) fn tell_of_changes(&self, now: &CaptureSet) {
        // A child works on what its parent's call captured.
        if now.is_empty() || self.parent().is_some() || self.compared_once().set(()).is_err() {
            return;
        }
        if let Ok(Some((left, found, is_own))) = self.session().captures_of_last_call() {
            now.tell_of_changes(self.registered_resources(), &left, &found, is_own);
        }
    }
}
