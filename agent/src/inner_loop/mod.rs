//! The loop between a provider and the tools: the steps of an evaluation, and the driver that
//! performs them.
//!
//! [`InnerLoop`] is a state machine without I/O. It receives facts ([`Fact`]) and returns the next
//! step ([`LoopStep`]). A driver performs the step, and reports its outcome as the next fact.
//! One driver performs the steps of every
//! [`ProviderAdapter`](crate::adapter::ProviderAdapter). Its waits block the thread, or yield to an
//! executor (feature `async`).
//!
//! | module | contents |
//! |---|---|
//! | `machine` | [`InnerLoop`]: decides which step follows each fact |
//! | `steps` | [`LoopStep`] and [`Fact`]: the interface between the state machine and its driver |
//! | `calls` | decides which calls of an answer run next, and which are closed without running |
//! | `start` | [`LoopStart`]: the state of a conversation, according to its log |
//! | `journal` | records a conversation in a session, or in the memory of the process |
//! | `evaluation` | the state of an evaluation: rendering, checking, preparing, recording |
//! | `driver` | the driver, and its effects that block: sends, waits, and runs tools |
//! | `futures` | its effects that yield, and what a dropped future leaves (feature `async`) |
//! | `detached_jobs` | the wait for jobs that a dropped future has left on threads (feature `async`) |
//!
//! # The order of an evaluation
//!
//! 1. The prompt is rendered, and the system message recorded. A resumed conversation skips this.
//! 2. Deadline, budget and cancellation are checked, and a [shortener](crate::shortening) is called
//!    at its threshold. The request is prepared, recorded, and then sent. If it is too long, a
//!    shortener is called once more.
//! 3. The answer is recorded. Then its calls run or are closed, in the order of their ordinals.
//!    Adjacent calls that only read, or that have only external effects, run concurrently.
//!    Deadline, budget and cancellation are checked before each group.
//! 4. An answer without calls is checked as the output. If it is refused, the model is told why. A
//!    structured output that reached its greatest length is always refused.
//! 5. A tool that requests more of the prompt ends the turn: its siblings that have not run are
//!    skipped, and the prompt is rendered again.
//! 6. The turn is recorded after all of this. So a process that ends earlier leaves only unrecorded
//!    steps to repeat. Unless the evaluation is complete, step 2 follows.
//!
//! # Invariants
//!
//! 1. A request is recorded before it is sent, and an answer before any of its calls runs.
//! 2. A turn is recorded only after each call of its answer is closed.
//! 3. A closed call never runs again, regardless of its result.
//! 4. After a failed step, the conversation can be resumed where it stopped.

mod calls;
#[cfg(feature = "async")]
pub(crate) mod detached_jobs;
mod driver;
mod evaluation;
#[cfg(feature = "async")]
mod futures;
mod journal;
mod machine;
mod start;
mod steps;

pub use calls::shorten_for_model;
pub(crate) use driver::{BlockingEffects, ready, run};
pub(crate) use evaluation::{Evaluation, runnable};
pub use evaluation::{Outcome, read_output};
pub use evaluation::{asked_call, left_by, not_undone};
#[cfg(feature = "async")]
pub(crate) use futures::AsyncEffects;
pub use journal::Journal;
pub(crate) use journal::answers;
pub use machine::{InnerLoop, LoopLimits};
pub use start::{LoopStart, OpenTurn};
pub use steps::{CallToRun, Fact, FinalText, LoopStep, ToolEnded};
