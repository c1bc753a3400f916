//! Keeps long-running work in a session: tasks that depend on each other, what was done about them, and what came of it.
//!
//! An agent that works for days has more than a conversation. [`declare`] adds what else it has to the types of a session, so
//! that it survives a kill, is rolled back with the rest, and can be read at any position without the host. The log is the
//! only truth: whatever stands in files beside it is an export. All names are exported here too; the docs of the modules have the tables, formats
//! and invariants.
//!
//! | module | contains |
//! |---|---|
//! | [`tasks`] | tasks as one slice over six events, the tree of a position, and what is next |
//! | [`state`] | [`SessionState`]: all that a session is at a position, in nine parts |
//! | `updates` | [`StateUpdate`]: what changed it, one by one |
//! | [`checkpoints`] | [`CheckpointManager`]: positions that a session can be restored to |
//! | [`validation`] | [`StateValidator`]: whether a state holds, and the events that repair it |
//! | [`recovery`] | [`CrashRecoveryManager`]: what a crash left, and four ways to go on |
//! | [`files`] | [`export_tree`] and [`import_tree`]: a session as a directory of JSON files; [`AtomicPersistence`], [`LazyStateManager`] |
//! | [`compression`] | [`StateCompression`]: how files are compressed |
//! | `error` | [`Error`]: what may go wrong with files, checkpoints and recoveries |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod checkpoint;
pub mod checkpoints;
pub mod compression;
mod error;
pub mod files;
pub mod recovery;
#[doc(hidden)]
pub mod sabotage;
pub mod state;
pub mod tasks;
mod updates;
pub mod validation;

use foldlog::SessionTypesBuilder;

#[doc(no_inline)]
pub use checkpoints::*;
#[doc(no_inline)]
pub use compression::{CompressionAlgorithm, StateCompression};
pub use error::{DamagedFile, Error, FileDamage, Result};
#[doc(no_inline)]
pub use files::{
    AccessPattern, AtomicPersistence, CheckpointFiles, ContentDigest, ExportReport, IMPORTED_FROM,
    ImportedSession, ImportedTree, LazyStateManager, ListedCheckpoint, LostFile, ManifestFile, PartialTree,
    SessionIdentity, SessionTree, TreeContents, TreeExporter, TreeLimits, TreeManifest, export_session,
    export_tree, import_session, import_tree, unfinished_imports,
};
#[doc(no_inline)]
pub use recovery::*;
#[doc(no_inline)]
pub use state::*;
#[doc(no_inline)]
pub use tasks::*;
pub use updates::{StateUpdate, UpdateOperation};
#[doc(no_inline)]
pub use validation::*;

/// Declares the slices and events of long-running work.
pub fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    checkpoints::declare(state::declare(tasks::declare(types)))
}
