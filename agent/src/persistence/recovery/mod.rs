//! What a crash left of a session, and four ways to go on.
//!
//! | module | holds |
//! |---|---|
//! | `crash` | [`CrashState`]: what a crash left, and where that is looked for |
//! | `outlook` | [`RecoveryStrategy`], and what each would bring back, told without writing |
//! | `recovering` | [`CrashRecoveryManager`]: recovers by the strategy that somebody names |
//! | `rebuilding` | a session made of the updates of another one alone |
//! | `opening` | a session opened for writing without the types of its host |
//!
//! # Strategies
//!
//! | strategy | needs | yields |
//! |---|---|---|
//! | [`LatestCheckpoint`](RecoveryStrategy::LatestCheckpoint) | a sound log, a checkpoint on the live path | the same session, rolled back |
//! | [`SpecificCheckpoint`](RecoveryStrategy::SpecificCheckpoint) | a sound log, the checkpoint | the same session, rolled back |
//! | [`IncrementalReconstruction`](RecoveryStrategy::IncrementalReconstruction) | a log whose records can be read | a new session, made of the updates that counted |
//! | [`PartialRecovery`](RecoveryStrategy::PartialRecovery) | a first sound record | a new session with the records in front of the damage, which requires validation |
//!
//! # Invariants
//!
//! 1. Detecting and planning write nothing into a store. A damaged log is planned for in a folder of the system's temporary
//!    ones, which is removed.
//! 2. Nothing is done that nobody named. What is done is recorded as [`RecoveryAction`](super::RecoveryAction)s.
//! 3. A damaged log is read only.

mod crash;
mod opening;
mod outlook;
mod rebuilding;
mod recovering;

pub use crash::{CorruptedFile, CrashState, IncompleteWrite, OrphanedResource};
pub use opening::open_without_host;
pub use outlook::{RecoveryOutlook, RecoveryStrategy};
pub use recovering::{CrashRecoveryManager, RecoveredSession};
