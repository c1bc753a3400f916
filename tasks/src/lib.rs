//! Stores long-running work in a session: tasks that depend on each other, and their progress and
//! results.
//!
//! An agent that works for days has more state than a conversation. [`declare`] adds that state to
//! the types of a session. It then survives a kill, is rolled back with the rest, and can be read
//! at any position without the host. The log is the only source of truth: files next to it are
//! exports. All names are also exported here; the docs of the modules have the tables, formats and
//! invariants.
//!
//! | module | contains |
//! |---|---|
//! | [`tasks`] | tasks as one slice over six events, the tree of a position, and the next task |
//! | [`state`] | [`SessionState`]: the whole state of a session at a position, in nine parts |
//! | `updates` | [`StateUpdate`]: the changes of the state, one by one |
//! | [`checkpoints`] | [`CheckpointManager`]: positions to which a session can be restored |
//! | [`validation`] | [`StateValidator`]: whether a state is valid, and the events that repair it |
//! | [`recovery`] | [`CrashRecoveryManager`]: the state after a crash, and four ways to continue |
//! | [`files`] | [`export_tree`] and [`import_tree`]: a session as a directory of JSON files; [`AtomicPersistence`], [`LazyStateManager`] |
//! | [`compression`] | [`StateCompression`]: how files are compressed |
//! | `error` | [`Error`]: errors of files, checkpoints and recoveries |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

/// Gives events their recorded names.
macro_rules! events {
    ($($event:ident = $name:literal),+ $(,)?) => {
        $(impl foldlog::Event for $event {
            const NAME: &'static str = $name;
        })+
    };
}

/// Defines slices with their recorded names and the types of their items.
macro_rules! slices {
    ($($(#[$doc:meta])+ $slice:ident = $name:literal of $item:ident,)+) => {
        $($(#[$doc])+
        #[derive(Debug)]
        pub struct $slice;

        impl foldlog::Slice for $slice {
            const NAME: &'static str = $name;
            type Item = $item;
        })+
    };
}

/// Shows the values of enums by their names in JSON.
macro_rules! display_json_names {
    ($($type:ident),+) => {
        $(impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        })+
    };
}

mod checkpoint;
pub mod checkpoints;
pub mod compression;
mod error;
pub mod files;
pub mod recovery;
pub mod state;
pub mod tasks;
mod updates;
pub mod validation;

use foldlog::SessionTypesBuilder;

#[doc(no_inline)]
pub use checkpoints::*;
#[doc(no_inline)]
pub use compression::*;
pub use error::{DamagedFile, Error, FileDamage, Result};
#[doc(no_inline)]
pub use files::*;
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
