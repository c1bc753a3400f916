use std::sync::Arc;
use std::time::Duration;

use foldlog::Clock;

use crate::named;

/// Selects when an adapter's state is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointStrategy {
    /// When the evaluation ends, successfully or not.
    OnComplete,
    /// After each tool call.
    OnToolUse,
    /// At the first occasion after this much time since the last capture, or since the start.
    Periodic(Duration),
    /// Only when the host requests it.
    OnDemand,
}

named! {
    /// Identifies an occasion at which an adapter considers a capture.
    #[non_exhaustive]
    CaptureOccasion {
        /// The provider's session became known.
        Init = "init",
        /// A message arrived.
        Message = "message",
        /// A tool call ended.
        Tool = "tool",
        /// The evaluation returned its output.
        Complete = "complete",
        /// The evaluation failed.
        Failed = "failed",
        /// The host requested a capture.
        Demand = "demand",
        /// The provider no longer has the session.
        Expired = "expired",
        /// A rollback abandoned the capture, and the provider's session has no entry to return to.
        Abandoned = "abandoned",
    }
}

impl CaptureOccasion {
    fn is_end(self) -> bool {
        matches!(self, CaptureOccasion::Complete | CaptureOccasion::Failed)
    }
}

/// Decides at each occasion whether a state is captured.
///
/// Two occasions do not depend on the strategy. A request of the host is always honored. The end of
/// an evaluation is captured if an earlier state was captured, because a completed session would
/// otherwise look resumable.
pub struct CheckpointDecider {
    strategy: Option<CheckpointStrategy>,
    clock: Arc<dyn Clock>,
    /// Reading of the clock at the last capture, or at the start.
    last_us: i64,
    /// Whether the log contains a capture that the evaluation's next one will supersede.
    pub(super) has_captured: bool,
}

impl CheckpointDecider {
    /// Creates a decider for an evaluation that starts now. `None` captures as soon as the
    /// provider's session is known, and at the end.
    pub fn new(strategy: Option<CheckpointStrategy>, clock: Arc<dyn Clock>) -> CheckpointDecider {
        let last_us = clock.steady_us();
        CheckpointDecider { strategy, clock, last_us, has_captured: false }
    }

    /// Returns whether a state must be captured at this occasion.
    pub fn is_due(&self, occasion: CaptureOccasion) -> bool {
        if occasion.is_end() && self.has_captured {
            return true;
        }
        match (self.strategy, occasion) {
            (_, CaptureOccasion::Demand | CaptureOccasion::Expired | CaptureOccasion::Abandoned) => true,
            (None, CaptureOccasion::Init) => true,
            (None | Some(CheckpointStrategy::OnComplete), occasion) => occasion.is_end(),
            (Some(CheckpointStrategy::OnToolUse), occasion) => occasion == CaptureOccasion::Tool,
            (Some(CheckpointStrategy::Periodic(every)), _) => self.elapsed() >= every,
            (Some(CheckpointStrategy::OnDemand), _) => false,
        }
    }

    /// Notes that a state was captured.
    pub fn note_capture(&mut self) {
        self.has_captured = true;
        self.last_us = self.clock.steady_us();
    }

    fn elapsed(&self) -> Duration {
        let passed_us = self.clock.steady_us().saturating_sub(self.last_us);
        Duration::from_micros(u64::try_from(passed_us).unwrap_or_default())
    }
}
