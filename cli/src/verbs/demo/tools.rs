//! The scripted agent's tools and its workspace.

use std::path::{Path, PathBuf};
use std::time::Duration;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::tools::{Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{ExecutionState, ResourceRegistry, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::agent::{DemoNote, StepState};

/// Time that the call in the child process waits to be killed.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Text that the child process prints from within a call, before it waits to be killed.
pub(super) const INSIDE: &str = "inside ";

/// Names what an edit does once it has changed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum EditEnding {
    Succeed,
    Fail,
    /// Prints [`INSIDE`] and waits to be killed.
    WaitForTheEnd,
}

/// Describes changes of files, in the order in which they are made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(super) struct Edit {
    /// Step of the plan that the edit belongs to.
    pub(super) step: String,
    /// Files to write: paths and contents.
    pub(super) write: Vec<(String, String)>,
    /// Files to rename: paths and new paths.
    pub(super) rename: Vec<(String, String)>,
    /// Files to delete: paths.
    pub(super) delete: Vec<String>,
    pub(super) then: EditEnding,
}

/// Name of the tool.
pub(super) const EDIT_FILES: &str = EditFiles::NAME;
pub(super) const READ_FILE: &str = ReadFile::NAME;

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
            EditEnding::Succeed => {}
            EditEnding::Fail => {
                session.dispatch(DemoNote { text: "2 of 40 tests fail: rolling it all back".to_owned() })?;
                return Err(ToolError::failed("2 of 40 tests fail"));
            }
            EditEnding::WaitForTheEnd => {
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

#[derive(Deserialize, JsonSchema)]
struct ReadFileParameters {
    /// Path of the file.
    path: String,
}

struct ReadFile;

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    const DESCRIPTION: &'static str = "Reads a file.";
    type Parameters = ReadFileParameters;
    type Output = usize;

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, named: ReadFileParameters, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let missing = || ToolError::failed("the run has no workspace");
        let files = context.resources().get::<dyn Filesystem>().ok_or_else(missing)?;
        let bytes = files.read(&named.path)?;
        Ok(ToolResult::ok(String::from_utf8_lossy(&bytes).into_owned(), bytes.len()))
    }
}

pub(super) fn registry() -> ToolRegistry {
    ToolRegistry::new().with(EditFiles).with(ReadFile)
}

/// Returns the agent's workspace, a directory next to the store's sessions.
pub(super) fn workspace(root: &Path) -> PathBuf {
    root.join("workspace")
}

/// Creates the agent's runner with the session, the workspace and the tools.
pub(super) fn runner(root: &Path, session: &Session) -> foldlog::Result<ToolRunner> {
    let options = HostFilesystemOptions::default();
    let files = HostFilesystem::open(workspace(root), session.log().captures_dir(), options)?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let state = ExecutionState::new(session.clone(), resources);
    Ok(ToolRunner::new(state, registry()))
}

impl Edit {
    /// Creates an edit of a step that changes nothing yet.
    pub(super) fn new(step: &str, then: EditEnding) -> Edit {
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

    /// Creates the tool call for this edit.
    pub(super) fn call(&self) -> ToolCall {
        ToolCall::new(EditFiles::NAME, serde_json::to_string(self).unwrap_or_default())
    }
}

/// Lists the files of the workspace, each with its length.
pub(super) fn list_files(runner: &ToolRunner) -> foldlog::Result<Vec<String>> {
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
