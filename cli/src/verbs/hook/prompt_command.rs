//! The commands `/undo` and `/redo` at the prompt of Claude Code, which a hook answers.
//!
//! Version 2.1.332 takes `/undo` for its own `/rewind`, unless the user has a command of this name.

use super::change::Change;
use super::settings::WithoutHooks;
use super::settings_file::{Scope, SettingsFile};
use crate::failure::Result;

/// Files of the commands. The model reads them only if no hook has answered.
const COMMANDS: [(&str, &str); 2] = [
    ("undo.md", include_str!("../../../plugin/claude/commands/undo.md")),
    ("redo.md", include_str!("../../../plugin/claude/commands/redo.md")),
];

/// The file of one of the user's commands.
pub(super) struct PromptCommand {
    file: SettingsFile,
    /// Its content, if foldlog has written it.
    text: &'static str,
}

impl PromptCommand {
    /// Reads the files next to the user's settings. The commands of a project belong to all of its
    /// people, so the other scopes have none.
    pub(super) fn read_all(scope: Scope) -> Result<Vec<PromptCommand>> {
        if scope != Scope::User {
            return Ok(Vec::new());
        }
        let directory = scope.path()?.with_file_name("commands");
        let read = |(name, text)| Ok(PromptCommand { file: SettingsFile::read(directory.join(name))?, text });
        COMMANDS.into_iter().map(read).collect()
    }

    /// Returns the change that adds the command, unless the user has one.
    pub(super) fn addition(&self) -> Option<Change<'_>> {
        let is_missing = self.file.text.is_none();
        is_missing.then(|| Change::new(&self.file, WithoutHooks::Text(self.text.to_owned())))
    }

    /// Returns the change that removes the command, unless it is another one.
    pub(super) fn removal(&self) -> Option<Change<'_>> {
        let is_own = self.file.text.as_deref() == Some(self.text);
        is_own.then(|| Change::new(&self.file, WithoutHooks::Nothing))
    }
}
