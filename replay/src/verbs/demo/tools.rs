//! The scripted agent's tool, and the folder that it works on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::tools::{Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{ExecutionState, ResourceRegistry, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::agent::{Noted, StepState};

/// How long a call that is to be killed waits for that.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What a child says from within a call, before it waits for its end.
pub(super) const INSIDE: &str = "inside ";

/// What an edit does when it has done its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Then {
    Succeed,
    Fail,
    /// Says so and waits to be killed.
    WaitForTheEnd,
}

/// Changes of files, done one after the other.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(super) struct Edit {
    /// The step that the edit is of.
    pub(super) step: String,
    /// Paths and what they are to hold.
    pub(super) write: Vec<(String, String)>,
    /// Paths and their new names.
    pub(super) rename: Vec<(String, String)>,
    /// Paths.
    pub(super) delete: Vec<String>,
    pub(super) then: Then,
}

struct EditFiles;

impl Tool for EditFiles {
    const NAME: &'static str = "edit_files";
    const DESCRIPTION: &'static str = "Writes, renames and deletes files.";
    type Parameters = Edit;
    type Output = usize;

    fn call(&self, edit: Edit, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let missing = || ToolError::failed("the run has no workspace");
        let files = context.resources().get::<dyn Filesystem>().ok_or_else(missing)?;
        let session = context.session();
        session.dispatch(StepState { step: edit.step.clone(), status: "running".to_owned() })?;
        edit.write.iter().try_for_each(|(path, text)| files.write(path, text.as_bytes()))?;
        edit.rename.iter().try_for_each(|(from, to)| files.rename(from, to))?;
        match edit.then {
            Then::Succeed => {}
            Then::Fail => {
                session.dispatch(Noted { text: "2 of 40 tests fail: taking it all back".to_owned() })?;
                return Err(ToolError::failed("2 of 40 tests fail"));
            }
            Then::WaitForTheEnd => {
                println!("{INSIDE}{}", context.operation());
                std::thread::sleep(WAIT_MAX);
                return Err(ToolError::failed("nobody came"));
            }
        }
        edit.delete.iter().try_for_each(|path| files.delete(path))?;
        session.dispatch(StepState { step: edit.step, status: "done".to_owned() })?;
        let edits = edit.write.len() + edit.rename.len() + edit.delete.len();
        Ok(ToolResult::ok(format!("{edits} files changed"), edits))
    }
}

/// The folder that the agent works on: beside the store's sessions.
pub(super) fn workspace(root: &Path) -> PathBuf {
    root.join("workspace")
}

/// The agent's run: the session, the folder, and the tool.
pub(super) fn runner(root: &Path, session: &Session) -> foldlog::Result<ToolRunner> {
    let snapshots = session.dir().join("workspace");
    let files = HostFilesystem::open(workspace(root), snapshots, HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let state = ExecutionState::new(session.clone(), resources);
    Ok(ToolRunner::new(state, ToolRegistry::new().with(EditFiles)))
}

impl Edit {
    /// An edit of a step that does nothing yet.
    pub(super) fn of(step: &str, then: Then) -> Edit {
        Edit { step: step.to_owned(), write: Vec::new(), rename: Vec::new(), delete: Vec::new(), then }
    }

    pub(super) fn write(mut self, path: &str, text: &str) -> Edit {
        self.write.push((path.to_owned(), text.to_owned()));
        self
    }

    pub(super) fn rename(mut self, from: &str, to: &str) -> Edit {
        self.rename.push((from.to_owned(), to.to_owned()));
        self
    }

    pub(super) fn delete(mut self, path: &str) -> Edit {
        self.delete.push(path.to_owned());
        self
    }

    /// The call of the tool with this.
    pub(super) fn call(&self) -> ToolCall {
        ToolCall::new(EditFiles::NAME, serde_json::to_string(self).unwrap_or_default())
    }
}

/// The files of the folder, one a line.
pub(super) fn listed(runner: &ToolRunner) -> foldlog::Result<Vec<String>> {
    let files = runner.state().resources().get::<dyn Filesystem>();
    let mut listed = Vec::new();
    if let Some(files) = files {
        for path in files.glob("**")? {
            if let Ok(bytes) = files.read(&path) {
                listed.push(format!("{path} ({} bytes)", bytes.len()));
            }
        }
    }
    Ok(listed)
}
