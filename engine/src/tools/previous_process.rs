//! State from calls of earlier processes, on this machine or another: spent budgets, and the
//! resources' captures.

use super::captures::CaptureSet;
use super::execution::ExecutionState;

impl ExecutionState {
    /// Captures the resources that are not rolled back with a failed tool; `None` if there are
    /// none, or they cannot be captured.
    pub(super) fn capture_kept(&self) -> Option<CaptureSet> {
        CaptureSet::of_kept(self.registered_resources()).ok().filter(|captures| !captures.is_empty())
    }

    /// Updates the resources that are not rolled back with a tool to the captures of the session's
    /// last call, so that amounts that another process spent remain spent.
    pub(super) fn carry_over(&self) {
        let is_kept =
            self.registered_resources().captured_resources().values().any(|resource| !resource.rolls_back());
        if !is_kept || self.parent().is_some() || self.session().replays() {
            return;
        }
        if let Ok(Some((left, found, true))) = self.session().calls().captures_of_last_call() {
            CaptureSet::carry_over(self.registered_resources(), &left);
            CaptureSet::carry_over(self.registered_resources(), &found);
        }
    }

    /// Lets the resources report differences from their state after the session's last call to the
    /// host, with the first captures of this run. These differences are new to the host if that
    /// call's process was killed, or was on another machine. In a fork without calls, only a
    /// different place than its parent's is reported. If the differences cannot be determined, the
    /// call continues.
    pub(super) fn tell_of_changes(&self, now: &CaptureSet) {
        // A child works on resources that its parent's call captured.
        if now.is_empty() || self.parent().is_some() || self.compared_once().set(()).is_err() {
            return;
        }
        if let Ok(Some((left, found, is_own))) = self.session().calls().captures_of_last_call() {
            now.tell_of_changes(self.registered_resources(), &left, &found, is_own);
        }
    }
}
