//! What an adapter needs to resume a session that its provider keeps.
//!
//! Some adapters leave the conversation to a program or a server that holds a session of its own. What such an adapter
//! has to remember, mostly an id, is captured as a record: it stays in the log through every rollback, and a process
//! that opens the session later finds it there.
//!
//! | module | holds |
//! |---|---|
//! | `state` | [`AdapterState`], and [`CapturedState`], which holds the state of any adapter |
//! | `claude` | [`ClaudeAgentSDKState`] |
//! | `composite` | [`CompositeAdapterState`] |
//! | `options` | [`AdapterStateOptions`]: what a host decides |
//! | `strategy` | [`CheckpointStrategy`]: when a state is captured |
//! | `snapshot` | [`AdapterStateSnapshot`], and which of them are heads of their chains |
//! | `diff` | [`diff_states`] |
//! | `validation` | [`ResumeValidation`]: whether a state may be resumed here and now |
//! | `capture` | [`StateCapture`]: records the states of one evaluation |
//! | `resume` | [`find_resumable_state`], and [`plan_resume`]: where to go on |
//! | `stateful` | [`StatefulAdapter`]: evaluates prompts with a provider that may keep a session |
//!
//! # Terms
//!
//! A *capture* is one recorded state. It *supersedes* the capture that it replaces, and the captures that replace each
//! other are a *chain*, whose *head* nothing supersedes. To *fork* a provider's session is to go on in a copy of it.
//!
//! # Invariants
//!
//! 1. Only heads are resumed: a session that was completed is not resumed through an older capture.
//! 2. A state that this program has no type for is read and written as it was recorded.
//! 3. A resume that fails never starts a fresh session unless the log says why.

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
