use std::time::Duration;

use super::{CheckpointStrategy, ResumeValidation};

/// Default limit for the size of a state's JSON, in bytes.
pub const STATE_BYTES_MAX: usize = 64 * 1024;

/// Default age at which a provider's session counts as expired.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Selects whether a resumed session of a provider is changed or copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResumeMode {
    /// Continues in a copy of the provider's session. The original is unchanged.
    #[default]
    Fork,
    /// Continues in the provider's session itself.
    Continue,
}

/// Decides what happens to a state whose JSON has more than [`STATE_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OversizedState {
    /// Refuses the state, and records nothing.
    #[default]
    Refuse,
    /// Records the state. If it is larger than
    /// [`StoreOptions::object_bytes_min`](foldlog::StoreOptions::object_bytes_min), the session
    /// stores it as a separate object to which the record refers.
    Reference,
}

/// Contains the host's choices for the states of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStateOptions {
    /// Whether states are captured. If `false`, none is recorded.
    pub capture_state: bool,
    /// Whether an evaluation that names no state looks for one and resumes it: one of the same
    /// evaluation if it has captured any, else the latest. If `false`, the evaluation starts a
    /// fresh session of its provider, which receives the evaluation's conversation from the log.
    pub auto_resume: bool,
    /// Checks before a state is resumed, whether the host names it or `auto_resume` finds it.
    pub resume_validation: ResumeValidation,
    /// Whether the provider's session is copied or changed.
    pub resume_mode: ResumeMode,
    /// Time of captures. `None` captures as soon as the provider's session is known, and at the
    /// end.
    pub checkpoint: Option<CheckpointStrategy>,
    /// Time since its last activity after which a provider's session counts as expired.
    pub max_age: Duration,
    /// Former directories of the provider, which were moved to the present one. A state that names
    /// one of them passes the check of the directory.
    pub moved_from: Vec<String>,
    /// Treatment of states that are too large.
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
