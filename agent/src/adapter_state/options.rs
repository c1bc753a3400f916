use std::time::Duration;

use super::{CheckpointStrategy, ResumeValidation};

/// Greatest size of a state's JSON, in bytes, that is recorded unless the host chooses otherwise.
pub const STATE_BYTES_MAX: usize = 64 * 1024;

/// Age at which a provider's session counts as expired unless the host chooses otherwise.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Says whether a resumed session of a provider is changed or copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResumeMode {
    /// Goes on in a copy of the provider's session. The original stays as it is.
    #[default]
    Fork,
    /// Goes on in the provider's session itself.
    Continue,
}

impl ResumeMode {
    /// Returns the name of the mode: `fork` or `continue`.
    pub fn name(self) -> &'static str {
        match self {
            ResumeMode::Fork => "fork",
            ResumeMode::Continue => "continue",
        }
    }
}

/// Says what becomes of a state whose JSON has more than [`STATE_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OversizedState {
    /// Refuses the state, and records nothing.
    #[default]
    Refuse,
    /// Records the state. The session stores it as an object of its own, and the record refers to the object, once the
    /// state is larger than [`StoreOptions::object_bytes_min`](foldlog::StoreOptions::object_bytes_min).
    Reference,
}

/// Holds what a host decides about the states of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStateOptions {
    /// Whether states are captured. If not, nothing is recorded.
    pub capture_state: bool,
    /// Whether an evaluation that was asked for without a state looks for one, and resumes it: of the same evaluation, if that
    /// has captured one, or else the latest. If not, it begins a fresh session of its provider, which is told the conversation
    /// that the log holds of the evaluation.
    pub auto_resume: bool,
    /// What is checked before a state is resumed, whether the host names it or `auto_resume` finds it.
    pub resume_validation: ResumeValidation,
    /// Whether the provider's session is copied or changed.
    pub resume_mode: ResumeMode,
    /// When a state is captured. `None` captures as soon as the provider's session is known, and at the end.
    pub checkpoint: Option<CheckpointStrategy>,
    /// Time since its last activity after which a provider's session counts as expired.
    pub max_age: Duration,
    /// Directories in which the provider ran before they were moved to the present one: a state that names one of them passes
    /// the check of the directory.
    pub moved_from: Vec<String>,
    /// What becomes of a state that is too large.
    pub oversized: OversizedState,
}

impl Default for AdapterStateOptions {
    fn default() -> AdapterStateOptions {
        AdapterStateOptions {
            capture_state: true,
            auto_resume: false,
            resume_validation: ResumeValidation::default(),
            resume_mode: ResumeMode::default(),
            checkpoint: None,
            max_age: MAX_AGE,
            moved_from: Vec::new(),
            oversized: OversizedState::default(),
        }
    }
}
