//! An agent over a real directory: tasks, a tool that writes files, a scripted model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::conversation::Role;
use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions, Rebind};
use foldlog::inspect::LogReader;
use foldlog::storage::FileStorage;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    BackgroundSync, ExecutionState, FixedClock, ResourceRegistry, SequenceNumber, Session, SessionTypes,
    Store, StoreOptions,
};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};
use foldlog_tasks::{CheckpointManager, SessionState, StateUpdate, TaskStatus, WorkspaceStores};

use super::{BEGIN_US, change, create, task};

#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub(super) struct Written {
    pub(super) path: String,
    /// `None` removes the file.
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) fails: bool,
}

pub(super) struct Write;

impl Tool for Write {
    const NAME: &'static str = "write";
    const DESCRIPTION: &'static str = "Writes or removes a file.";
    type Parameters = Written;
    type Output = ();

    fn call(&self, to_do: Written, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        match &to_do.text {
            Some(text) => files.write(&to_do.path, text.as_bytes())?,
            None => files.delete(&to_do.path)?,
        }
        if to_do.fails {
            Err(ToolError::failed("the disk is on fire"))
        } else {
            Ok(ToolResult::ok("done", ()))
        }
    }
}

/// A session with its workspace, in a directory of their own.
pub(super) struct Agent {
    pub(super) clock: Arc<FixedClock>,
    pub(super) store: Store,
    pub(super) session: Session,
    state: ExecutionState,
    root: PathBuf,
    calls: AtomicU64,
}

pub(super) fn types() -> SessionTypes {
    foldlog_agent::events::declare(foldlog_tasks::declare(SessionTypes::builder())).build().unwrap()
}

pub(super) fn open_store(root: &Path) -> (Store, Arc<FixedClock>) {
    open_store_on(root, FileStorage::new())
}

fn open_store_on(root: &Path, storage: FileStorage) -> (Store, Arc<FixedClock>) {
    let clock = Arc::new(FixedClock::new(BEGIN_US));
    let options = StoreOptions {
        storage: Arc::new(storage),
        clock: Arc::clone(&clock) as _,
        seed: Some(1),
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    (Store::open_with(root.join("store"), options).unwrap(), clock)
}

/// Returns a workspace with its captures. After a copy to another place, it is another directory
/// than its captures know.
pub(super) fn resources(workspace: &Path, captures: &Path, is_copied: bool) -> ResourceRegistry {
    let files = HostFilesystem::open(workspace, captures, HostFilesystemOptions::default()).unwrap();
    if is_copied {
        files.rebind(Rebind::Overwrite).unwrap();
    }
    ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap()
}

/// Creates a run of a session over a workspace that was copied from another place, whose captures
/// may be damaged.
pub(super) fn try_run(workspace: &Path, captures: &Path, session: &Session) -> foldlog::Result<ToolRunner> {
    let files = HostFilesystem::open(workspace, captures, HostFilesystemOptions::default())?;
    files.rebind(Rebind::Overwrite)?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    Ok(ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new().with(Write)))
}

impl Agent {
    /// Creates a session below a directory.
    pub(super) fn begin(root: &Path) -> Agent {
        let (store, clock) = open_store(root);
        let session = store.create(&types()).unwrap();
        Agent::of(root, store, clock, session, false)
    }

    /// Continues the only session below a directory.
    pub(super) fn resume(root: &Path) -> Agent {
        let (store, clock) = open_store(root);
        Agent::go_on(root, store, clock, false)
    }

    /// Continues the only session below a directory, with one system call for each record, so that
    /// a tracer sees it.
    pub(super) fn resume_positioned(root: &Path) -> Agent {
        let (store, clock) = open_store_on(root, FileStorage::with_positioned_writes());
        Agent::go_on(root, store, clock, false)
    }

    /// Continues the only session below a directory that was copied from another place.
    pub(super) fn resume_copied(root: &Path) -> Agent {
        let (store, clock) = open_store(root);
        Agent::go_on(root, store, clock, true)
    }

    fn go_on(root: &Path, store: Store, clock: Arc<FixedClock>, is_copied: bool) -> Agent {
        let id = store.session_ids().unwrap()[0];
        let session = store.open_session(id, &types()).unwrap();
        let agent = Agent::of(root, store, clock, session, is_copied);
        agent.runner().recover(&ExecuteOptions::default()).unwrap();
        agent
    }

    fn of(root: &Path, store: Store, clock: Arc<FixedClock>, session: Session, is_copied: bool) -> Agent {
        let workspace = root.join("workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        let captures = session.dir().join("files");
        let state = ExecutionState::new(session.clone(), resources(&workspace, &captures, is_copied));
        Agent { clock, store, session, state, root: root.to_owned(), calls: AtomicU64::new(0) }
    }

    pub(super) fn runner(&self) -> ToolRunner {
        ToolRunner::new(self.state.clone(), ToolRegistry::new().with(Write))
    }

    /// Returns a manager of the session's checkpoints, which also captures the workspace.
    pub(super) fn manager(&self) -> CheckpointManager {
        CheckpointManager::new(self.session.clone()).with_resources(self.state.clone())
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    /// Makes a tool write a file, and perhaps fail afterwards; returns whether it committed.
    pub(super) fn write(&self, path: &str, text: Option<&str>, fails: bool) -> bool {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let arguments = Written { path: path.to_owned(), text: text.map(str::to_owned), fails };
        let arguments = serde_json::to_string(&arguments).unwrap();
        let call = ToolCall::new("write", arguments).with_id(format!("call_{number}"));
        self.runner().execute(&call, &ExecuteOptions::default()).unwrap().success
    }

    /// Creates a task and starts to work on it.
    pub(super) fn start(&self, name: &str) {
        create(&self.session, task(name)).unwrap();
        change(&self.session, name, TaskStatus::Pending, TaskStatus::InProgress).unwrap();
    }

    pub(super) fn finish(&self, name: &str) {
        change(&self.session, name, TaskStatus::InProgress, TaskStatus::Completed).unwrap();
    }

    /// Sends a prompt to the model, which first calls a tool that writes a file.
    pub(super) fn converse(&self, evaluation: &str, path: &str) -> String {
        let arguments =
            Written { path: path.to_owned(), text: Some("by the model".to_owned()), fails: false };
        let arguments = serde_json::to_string(&arguments).unwrap();
        let model =
            ProviderAdapter::new(ScriptedProvider::from_fn(move |request| match request.messages.last() {
                Some(last) if last.role == Role::Tool => ScriptedReply::text("It is written."),
                _ => ScriptedReply::calls([("call_1", "write", arguments.as_str())]),
            }));
        let prompt = Prompt::text("tests", "write")
            .with_section(MarkdownSection::new("task", "You write files."))
            .with_tools(ToolRegistry::new().with(Write));
        let options = EvaluateOptions {
            evaluation_id: Some(evaluation.to_owned()),
            messages: vec![UserMessage { id: "1".to_owned(), text: "Write the file.".to_owned() }],
            ..EvaluateOptions::default()
        };
        model.evaluate(&prompt, &self.state, options).unwrap().text
    }

    pub(super) fn position(&self) -> SequenceNumber {
        self.session.log().position().unwrap()
    }

    pub(super) fn log(&self) -> LogReader {
        LogReader::open(self.session.dir()).unwrap()
    }

    pub(super) fn stores(&self) -> WorkspaceStores {
        WorkspaceStores::from_session_dir(self.session.dir())
    }

    pub(super) fn read(&self) -> SessionState {
        SessionState::at(&self.log(), self.position(), &self.stores()).unwrap()
    }

    pub(super) fn updates(&self) -> Vec<StateUpdate> {
        StateUpdate::list(&self.log(), self.position(), &self.stores()).unwrap()
    }
}
