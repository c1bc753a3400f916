//! The commands `/undo` and `/redo` at the prompt of a program, which a hook answers.

use foldlog_codec::escape;

use super::change::Change;
use super::settings_file::SettingsFile;
use crate::agents::{AgentProgram, Scope};
use crate::failure::Result;

/// The file of one of the user's commands.
pub(super) struct PromptCommand {
    file: SettingsFile,
    /// Its content, if foldlog has written it.
    text: &'static str,
}

impl PromptCommand {
    /// Reads the files next to the user's settings. The commands of a project belong to all of its
    /// people, so the other scopes have none.
    pub(super) fn read_all(agent: &AgentProgram, scope: Scope) -> Result<Vec<PromptCommand>> {
        if scope != Scope::User {
            return Ok(Vec::new());
        }
        let settings = agent.settings.path(scope)?;
        // The model reads a file only if no hook has answered.
        let read = |(name, text): &(&str, &'static str)| {
            Ok(PromptCommand { file: SettingsFile::read(settings.with_file_name(name))?, text })
        };
        agent.prompt_commands.iter().map(read).collect()
    }

    /// Returns the change that adds the command, unless the user has one.
    pub(super) fn addition(&self) -> Option<Change<'_>> {
        let is_missing = self.file.text.is_none();
        is_missing.then(|| {
            let summary = vec![format!("adds the command `{}`", self.name())];
            Change::new(&self.file, Some(self.text.to_owned()), summary)
        })
    }

    /// Returns the change that removes the command, unless it is another one.
    pub(super) fn removal(&self) -> Option<Change<'_>> {
        let is_own = self.file.text.as_deref() == Some(self.text);
        is_own.then(|| {
            let summary = vec![format!("removes the command `{}`", self.name())];
            Change::new(&self.file, None, summary)
        })
    }

    /// Returns the note about a command of the user, in whose place the hook answers.
    pub(super) fn note(&self) -> Option<String> {
        let is_other = self.file.text.as_deref().is_some_and(|text| text != self.text);
        let (name, path) = (self.name(), escape::path(&self.file.path));
        is_other
            .then(|| format!("note: foldlog answers `{name}` in place of your command {path}, which remains"))
    }

    /// Returns what the user types at the prompt.
    fn name(&self) -> String {
        format!("/{}", self.file.path.file_stem().unwrap_or_default().display())
    }
}
