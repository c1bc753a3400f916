//! The state with which an adapter resumes a session that its provider stores.
//!
//! Some adapters leave the conversation to a program or a server with sessions of its own. Such an
//! adapter has to remember a little data, mostly an id. This state is captured as a record. It
//! remains in the log through every rollback, and a process that opens the session later finds it
//! there.
//!
//! | module | contents |
//! |---|---|
//! | `state` | [`AdapterState`], and [`CapturedState`], which contains the state of any adapter |
//! | `claude` | [`ClaudeAgentSDKState`] |
//! | `composite` | [`CompositeAdapterState`] |
//! | `options` | [`AdapterStateOptions`]: the host's choices |
//! | `strategy` | [`CheckpointStrategy`]: when a state is captured |
//! | `snapshot` | [`AdapterStateSnapshot`], and which of them are heads of their chains |
//! | `diff` | [`diff_states`] |
//! | `validation` | [`ResumeValidation`]: whether a state may be resumed in the present circumstances |
//! | `capture` | [`StateCapture`]: records the states of one evaluation |
//! | `resume` | [`find_resumable_state`], and [`plan_resume`]: where to continue |
//! | `stateful` | [`StatefulAdapter`]: evaluates prompts with a provider that may store a session |
//!
//! # Terms
//!
//! A *capture* is one recorded state. It *supersedes* the capture that it replaces. Captures that
//! replace each other are a *chain*, whose *head* is not superseded. To *fork* a provider's session
//! is to continue in a copy of it.
//!
//! # Invariants
//!
//! 1. Only heads are resumed: a completed session is not resumed through an older capture.
//! 2. A state without a type in this program is read and written unchanged.
//! 3. After a failed resume, a fresh session starts only if the log states why.

mod capture;
mod claude;
mod composite;
mod diff;
mod options;
mod resume;
mod snapshot;
mod state;
mod stateful;
mod strategy;
mod validation;

pub use capture::StateCapture;
pub use capture::{check_size, retire};
pub use claude::ClaudeAgentSDKState;
pub use composite::CompositeAdapterState;
pub use diff::{FieldChange, StateDiff, diff_states};
pub use options::{AdapterStateOptions, OversizedState, ResumeMode, STATE_BYTES_MAX};
pub use resume::{AdapterResume, ResumePlan, find_resumable_state, plan_resume};
pub use snapshot::AdapterStateSnapshot;
pub use state::{AdapterState, AdapterStateType, CapturedState};
pub use stateful::StatefulAdapter;
pub use strategy::{CaptureOccasion, CheckpointDecider, CheckpointStrategy};
pub use validation::{ResumeCheck, ResumeContext, ResumeRefusal, ResumeValidation};
