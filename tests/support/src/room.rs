//! A session with a workspace, in which a tool runs scripts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use foldlog::filesystem::{ChangeKind, Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::tools::{
    ExecuteOptions, RewindOptions, RewindPreview, RewindReport, Tool, ToolCall, ToolContext, ToolError,
    ToolRegistry, ToolReport, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, ExecutionState, Idempotency, ResourceRegistry, Result, SequenceNumber, Session, Store,
    StoreOptions,
};
use futures_lite::future::block_on;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::host::{Plan, StepAdded, types};

pub struct Room {
    pub directory: tempfile::TempDir,
    pub runner: ToolRunner,
    pub id: Uuid,
    /// Whether rewinds use the async methods.
    pub awaits: bool,
}

/// A script, and whether the tool fails after running it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
pub struct Script {
    pub script: String,
    pub fails: bool,
}

/// Runs any script in the workspace, and adds it to the plan.
pub struct Shell {
    root: PathBuf,
}

impl Tool for Shell {
    const NAME: &'static str = "shell";
    type Parameters = Script;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Keyed
    }

    fn call(&self, asked: Script, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        sh(&self.root, &asked.script);
        context.session().dispatch(step(&asked.script))?;
        if asked.fails { Err(ToolError::failed("it was told to")) } else { Ok(ToolResult::ok("done", ())) }
    }
}

fn sh(root: &Path, script: &str) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(root).status().unwrap();
    assert!(status.success(), "{script}");
}

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 0 }
}

pub fn root(directory: &Path) -> PathBuf {
    directory.join("workspace")
}

pub fn runner_in(directory: &Path, session: Session) -> ToolRunner {
    let captures = session.log().captures_dir();
    let files = HostFilesystem::open(root(directory), captures, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let shell = Shell { root: root(directory) };
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(shell))
}

pub fn store_in(directory: &Path) -> Store {
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    Store::open_with(directory.join("store"), options).unwrap()
}

impl Default for Room {
    fn default() -> Room {
        Room::new()
    }
}

impl Room {
    pub fn new() -> Room {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(root(directory.path())).unwrap();
        let session = store_in(directory.path()).create(&types()).unwrap();
        let id = session.id();
        Room { runner: runner_in(directory.path(), session), directory, id, awaits: false }
    }

    /// Continues the session in another process.
    pub fn reopen(self) -> Room {
        let Room { directory, runner, id, awaits } = self;
        runner.state().session().clone().close().unwrap();
        drop(runner);
        let session = store_in(directory.path()).open_session(id, &types()).unwrap();
        Room { runner: runner_in(directory.path(), session), directory, id, awaits }
    }

    pub fn shell(&self) -> Shell {
        Shell { root: root(self.directory.path()) }
    }

    pub fn state(&self) -> &ExecutionState {
        self.runner.state()
    }

    pub fn session(&self) -> &Session {
        self.state().session()
    }

    pub fn at(&self) -> SequenceNumber {
        self.session().log().position().unwrap()
    }

    /// Makes the tool run a script; returns the position after the call.
    pub fn call(&self, script: &str) -> SequenceNumber {
        self.execute(script, false);
        self.at()
    }

    pub fn execute(&self, script: &str, fails: bool) -> ToolReport {
        let arguments = serde_json::to_string(&Script { script: script.to_owned(), fails }).unwrap();
        self.runner.execute(&ToolCall::new("shell", arguments), &ExecuteOptions::default()).unwrap()
    }

    /// Runs a script outside of all tools.
    pub fn by_hand(&self, script: &str) {
        sh(&root(self.directory.path()), script);
    }

    pub fn rewind(&self, to: SequenceNumber) -> RewindReport {
        self.rewind_by(to, &RewindOptions::default())
    }

    /// Rewinds, after a preview that must have predicted the changes and written nothing.
    pub fn rewind_by(&self, to: SequenceNumber, options: &RewindOptions) -> RewindReport {
        let at = self.at();
        let state = self.state();
        let preview = match self.awaits {
            true => block_on(state.preview_rewind_async(to, options)),
            false => state.preview_rewind(to, options),
        };
        let preview = preview.unwrap();
        assert_eq!(self.at(), at, "a preview writes nothing");
        let report = match self.awaits {
            true => block_on(state.rewind_async(to, options)),
            false => state.rewind(to, options),
        };
        let report = report.unwrap();
        assert_told(&preview, &report);
        report
    }

    pub fn undo(&self) -> RewindReport {
        let options = RewindOptions::default();
        let preview = match self.awaits {
            true => block_on(self.state().preview_undo_async(&options)),
            false => self.state().preview_undo(&options),
        };
        let report = self.undo_by(&options).unwrap();
        assert_told(&preview.unwrap(), &report);
        report
    }

    /// Undoes the last rewind.
    pub fn undo_by(&self, options: &RewindOptions) -> Result<RewindReport> {
        match self.awaits {
            true => block_on(self.state().undo_rewind_async(options)),
            false => self.state().undo_rewind(options),
        }
    }

    pub fn file(&self, path: &str) -> Option<String> {
        fs::read_to_string(root(self.directory.path()).join(path)).ok()
    }

    /// Returns the plan, and the files with their contents.
    pub fn seen(&self) -> (Vec<String>, BTreeMap<String, String>) {
        let plan = self.session().view::<Plan>().unwrap();
        let files = self.state().resources().get::<dyn Filesystem>().unwrap();
        let text = |path: String| Some((path.clone(), String::from_utf8(files.read(&path).ok()?).unwrap()));
        let held = files.glob("**").unwrap().into_iter().filter_map(text).collect();
        (plan.iter().map(|step| step.title.clone()).collect(), held)
    }
}

fn assert_told(preview: &RewindPreview, report: &RewindReport) {
    let json = serde_json::to_string(preview).unwrap();
    assert_eq!(&serde_json::from_str::<RewindPreview>(&json).unwrap(), preview);
    assert_eq!(
        serde_json::from_str::<RewindReport>(&serde_json::to_string(report).unwrap()).unwrap(),
        *report
    );
    assert_eq!(
        (preview.to, &preview.left, preview.undoes),
        (report.rolled_back.to, &report.left, report.undoes)
    );
    assert_eq!(preview.resources.len(), report.resources.len());
    for (told, done) in preview.resources.iter().zip(&report.resources) {
        let count = |kind| told.files.iter().filter(|file| file.change == kind).count() as u64;
        assert_eq!((&told.name, told.capture, told.left_out), (&done.name, done.capture, done.left_out));
        assert_eq!(told.kept, done.kept);
        let counted = [ChangeKind::Created, ChangeKind::Modified, ChangeKind::Removed].map(count);
        assert_eq!(counted, [done.created, done.modified, done.removed]);
    }
}
