//! `foldlog task`: the commands for long-running work.

pub mod checkpoints;
pub mod list;
pub mod restore;
pub mod validate;

use crate::command::commands;

commands! {
    /// List, check and restore long-running work.
    ///
    /// The former names `tasks`, `validate`, `checkpoints` and `restore` of these commands still
    /// work.
    TaskVerb {
        List(list::Args),
        Validate(validate::Args),
        Checkpoints(checkpoints::Args),
        Restore(restore::Args),
    }
}
