//! The state of a session after a crash, and four ways to continue.
//!
//! | module | contains |
//! |---|---|
//! | `crash` | [`CrashState`]: the state after a crash, and its detection |
//! | `outlook` | [`RecoveryStrategy`], and a preview of each one's result, without writing |
//! | `recover` | [`CrashRecoveryManager`]: recovers by a given strategy |
//! | `rebuild` | a session created from the updates of an existing one |
//! | `from_tree` | a session created from the intact files of a tree |
//! | `foreign_files` | [`LeftAlone`], a placeholder for a resource that was not supplied |
//! | `open` | a session opened for writing without the types of its host |
//!
//! # Strategies
//!
//! | strategy | needs | yields |
//! |---|---|---|
//! | [`LatestCheckpoint`](RecoveryStrategy::LatestCheckpoint) | an intact log, a checkpoint on the live path | the same session, rolled back |
//! | [`SpecificCheckpoint`](RecoveryStrategy::SpecificCheckpoint) | an intact log, the checkpoint | the same session, rolled back |
//! | [`IncrementalReconstruction`](RecoveryStrategy::IncrementalReconstruction) | a log whose records can be read | a new session, created from the updates that counted |
//! | [`PartialRecovery`](RecoveryStrategy::PartialRecovery) | an intact first record, or a [tree of files](CrashRecoveryManager::with_tree) with an intact manifest | a new session with the records before the damage, or with the [intact files of the tree](super::files#reading-a-damaged-tree); it requires validation |
//!
//! If a call was open at the end of the intact part of a log, it is ended in the new session, and
//! its changes of STATE are rolled back. Its workspaces remain as the call left them: they belong
//! to the damaged session.
//!
//! # Invariants
//!
//! 1. Detecting and planning write nothing into a store. A plan for a damaged log uses a temporary
//!    directory of the system, which is removed.
//! 2. Only the requested strategy is carried out. Its actions are recorded as
//!    [`RecoveryAction`](super::RecoveryAction)s.
//! 3. A damaged log is only read.

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
