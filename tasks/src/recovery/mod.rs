//! What a crash left of a session, and four ways to go on.
//!
//! | module | holds |
//! |---|---|
//! | `crash` | [`CrashState`]: what a crash left, and where that is looked for |
//! | `outlook` | [`RecoveryStrategy`], and what each would bring back, told without writing |
//! | `recover` | [`CrashRecoveryManager`]: recovers by the strategy that somebody names |
//! | `rebuild` | a session made of the updates of another one alone |
//! | `from_tree` | a session made of what a tree of files still vouches for |
//! | `foreign_files` | [`LeftAlone`], which stands for a resource that nobody gave |
//! | `open` | a session opened for writing without the types of its host |
//!
//! # Strategies
//!
//! | strategy | needs | yields |
//! |---|---|---|
//! | [`LatestCheckpoint`](RecoveryStrategy::LatestCheckpoint) | a sound log, a checkpoint on the live path | the same session, rolled back |
//! | [`SpecificCheckpoint`](RecoveryStrategy::SpecificCheckpoint) | a sound log, the checkpoint | the same session, rolled back |
//! | [`IncrementalReconstruction`](RecoveryStrategy::IncrementalReconstruction) | a log whose records can be read | a new session, made of the updates that counted |
//! | [`PartialRecovery`](RecoveryStrategy::PartialRecovery) | a first sound record, or a [tree of files](CrashRecoveryManager::with_tree) whose manifest is sound | a new session with the records in front of the damage, or with what [that tree vouches for](super::files#what-a-damaged-tree-yields); it requires validation |
//!
//! A call that was open where the sound part of a log ends is ended in the new session, and its changes of STATE are rolled back.
//! Its workspaces stay as the call left them: they are the damaged session's.
//!
//! # Invariants
//!
//! 1. Detecting and planning write nothing into a store. A damaged log is planned for in a directory of the system's temporary
//!    ones, which is removed.
//! 2. Nothing is done that nobody named. What is done is recorded as [`RecoveryAction`](super::RecoveryAction)s.
//! 3. A damaged log is read only.

mod crash;
mod foreign_files;
mod from_tree;
mod open;
mod outlook;
mod rebuild;
mod recover;

pub use crash::{CorruptedFile, CrashState, IncompleteWrite, OrphanedResource};
pub use foreign_files::LeftAlone;
pub use open::open_without_host;
pub use outlook::{RecoveryOutlook, RecoveryStrategy};
pub use recover::{CrashRecoveryManager, RecoveredSession};
