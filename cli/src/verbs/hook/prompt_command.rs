//! The command `/undo` at the prompt of Claude Code, which a hook answers.
//!
//! Version 2.1.332 takes `/undo` for its own `/rewind`, unless the user has a command of this name.

use super::change::Change;
use super::settings::WithoutHooks;
use super::settings_file::{Scope, SettingsFile};
use crate::failure::Result;

/// File of the command. The model reads it only if no hook has answered.
const TEXT: &str = include_str!("../../../plugin/claude/commands/undo.md");

/// The file of the user's command `/undo`.
pub(super) struct PromptCommand(SettingsFile);

impl PromptCommand {
    /// Reads the file next to the settings of a scope; `None` if the scope has no such file, since
    /// the commands of a project belong to all of its people.
    pub(super) fn read(scope: Scope) -> Result<Option<PromptCommand>> {
        match scope {
            Scope::User => {
                let path = scope.path()?.with_file_name("commands").join("undo.md");
                Ok(Some(PromptCommand(SettingsFile::read(path)?)))
            }
            Scope::Project | Scope::Shared => Ok(None),
        }
    }

    /// Returns the change that adds the command, unless the user has one.
    pub(super) fn addition(&self) -> Option<Change<'_>> {
        let is_missing = self.0.text.is_none();
        is_missing.then(|| Change::new(&self.0, WithoutHooks::Text(TEXT.to_owned())))
    }

    /// Returns the change that removes the command, unless it is another one.
    pub(super) fn removal(&self) -> Option<Change<'_>> {
        let is_own = self.0.text.as_deref() == Some(TEXT);
        is_own.then(|| Change::new(&self.0, WithoutHooks::Nothing))
    }
}
