//! The loop between a provider and the tools: what an evaluation does next, and a driver that does it.
//!
//! [`InnerLoop`] is a state machine without I/O. It is told facts ([`Fact`]) and says what to do next ([`LoopStep`]); a
//! driver does it, and tells what came of it. This crate has two drivers behind
//! [`ProviderAdapter`](crate::adapter::ProviderAdapter): one blocks its thread, and one is a future (feature `async`). What
//! both do alike is one piece of code.
//!
//! | module | holds |
//! |---|---|
//! | `machine` | [`InnerLoop`]: which step follows which fact |
//! | `steps` | [`LoopStep`] and [`Fact`]: what the state machine and its driver tell each other |
//! | `calls` | which calls of an answer run next, and which are closed without running |
//! | `start` | [`LoopStart`]: where a conversation stands, as its log says |
//! | `journal` | where a driver records: a session, or the memory of the process |
//! | `evaluation` | what both drivers do alike: rendering, checking, preparing, recording |
//! | `driver` | the blocking driver: sends, waits, and runs tools |
//! | `futures` | the async driver, and what is left when its future is dropped (feature `async`) |
//! | `detached_jobs` | waiting for what a dropped future has left to threads (feature `async`) |
//!
//! # The order of an evaluation
//!
//! 1. The prompt is rendered, and the system message recorded; a conversation that goes on skips this.
//! 2. Deadline, budget and cancellation are checked, and a [shortener](crate::shortening) is asked at its threshold. The
//!    request is prepared and recorded, and then sent. If it is too long, a shortener is asked once more.
//! 3. The answer is recorded, and then its calls run or are closed, in the order of their ordinals. Calls that only read or act
//!    outside only and stand side by side run together. Deadline, budget and cancellation are checked before each group.
//! 4. An answer without calls is checked as the output. If it is refused, as one is that reached its greatest length and was
//!    to be structured, the model is told why.
//! 5. A tool that asks for more of the prompt ends the turn: its siblings that have not run are skipped, and the prompt
//!    is rendered anew.
//! 6. The turn is recorded once all of this is, so that a process that ends before repeats what is not recorded yet and
//!    nothing else. Unless the evaluation is complete, step 2 follows.
//!
//! # Invariants
//!
//! 1. A request is recorded before it is sent, and an answer before any of its calls runs.
//! 2. A turn is recorded only when each call of its answer is closed.
//! 3. A call that is closed never runs again, whatever it was closed with.
//! 4. After a step failed, the conversation can be resumed where it stopped.

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
pub(crate) use driver::Driver;
pub(crate) use evaluation::{Evaluation, runnable};
pub use evaluation::{Outcome, read_output};
pub use evaluation::{asked_call, left_by, not_undone};
#[cfg(feature = "async")]
pub(crate) use futures::AsyncDriver;
pub use journal::Journal;
pub(crate) use journal::answers;
pub use machine::{InnerLoop, LoopLimits};
pub use start::{LoopStart, OpenTurn};
pub use steps::{CallToRun, Fact, FinalText, LoopStep, ToolEnded};
