//! The binary `foldlog`, and what it is made of: reading logs without the code of the host that wrote them.
//!
//! [`run`] takes arguments and an [`Output`] and returns the exit code, so that a test runs a verb in its own
//! process.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | the verbs and their options |
//! | [`verbs`] | one file a verb |
//! | [`diff`] | the differences of two states, by slice and path |
//! | [`runs`] | agent runs of other tools, and how they become sessions |
//! | [`reading`] | a session or a store at a path, its records, their names |
//! | [`output`] | where results, notes and progress go |
//! | [`failure`] | why a verb ends early, its exit code, and what to do next |
//!
//! # Invariants
//!
//! 1. Results go to standard output; notes, progress and errors go to standard error.
//! 2. No verb writes into a log that it reads; `import`, `salvage` and `demo` write new sessions only.
//! 3. The exit code is 0 where what was asked holds, 1 where a log does not hold, 2 for wrong usage and for
//!    what cannot be read.
//! 4. A reader that closes the pipe early is no error.

pub mod cli;
pub mod diff;
pub mod failure;
mod interrupts;
pub mod output;
pub mod progress;
pub mod reading;
pub mod runs;
pub mod verbs;

pub use cli::run;
pub use failure::Failure;
pub use output::Output;
