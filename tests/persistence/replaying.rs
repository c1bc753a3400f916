//! Replay of a host of long-running work: tasks, tools, checkpoints by policy, retention with
//! forks, a restore with its workspace, and a kill in the middle.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Error, ExecutionState, LeaveOut, ResourceRegistry, SequenceNumber, Session, SessionOptions, Store,
};
use foldlog_replay::assert_host_replays;
use foldlog_tasks::{
    Checkpoint, CheckpointId, CheckpointManager, CheckpointPolicy, NewTask, RestoreOptions, RetentionPolicy,
    TaskCreated, TaskStatus, TaskStatusChanged, TaskTreeState,
};
use foldlog_test_support::child;
use foldlog_tests::verbs::foldlog;

use super::agent::{self, Written};
use super::{id, quick_directory};

use TaskStatus::{Completed, InProgress, Pending};

type Result<T> = std::result::Result<T, foldlog_tasks::Error>;

/// Writes a file, and may die afterwards.
struct Write {
    dies: bool,
}

impl Tool for Write {
    const NAME: &'static str = "write";
    type Parameters = Written;
    type Output = ();

    fn call(&self, to_do: Written, context: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write(&to_do.path, to_do.text.unwrap_or_default().as_bytes())?;
        if self.dies && to_do.path == "build" {
            std::process::abort();
        }
        Ok(ToolResult::ok("done", ()))
    }
}

/// A host, and its view of its checkpoints.
struct Host<'a> {
    workspace: &'a Path,
    title: &'a str,
    dies: bool,
    created: Vec<Checkpoint>,
}

impl<'a> Host<'a> {
    fn new(workspace: &'a Path) -> Host<'a> {
        Host { workspace, title: "Build it", dies: false, created: Vec::new() }
    }

    /// Continues the tasks of a session from any state. A live run and a replay call it alike.
    fn run(&mut self, session: &Session) -> Result<()> {
        let captures = session.dir().join("files");
        let files = HostFilesystem::open(self.workspace, captures, HostFilesystemOptions::default())
            .map_err(Error::from)?;
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
        let state = ExecutionState::new(session.clone(), resources);
        let runner = ToolRunner::new(state.clone(), ToolRegistry::new().with(Write { dies: self.dies }));
        runner.recover(&ExecuteOptions::default())?;
        let policy = CheckpointPolicy {
            every: Some(Duration::from_millis(20)),
            every_updates: Some(3),
            every_bytes: Some(600),
            before_tasks: true,
            after_tasks: true,
        };
        let retention = RetentionPolicy { count: Some(3), bytes: Some(4_000), ..RetentionPolicy::default() };
        let manager = CheckpointManager::new(session.clone())
            .with_resources(state)
            .with_policy(policy)
            .with_retention(retention);
        let write = |path: &str, text: &str| -> Result<()> {
            let arguments = serde_json::json!({ "path": path, "text": text }).to_string();
            runner.execute(&ToolCall::new("write", arguments), &ExecuteOptions::default())?;
            manager.after_dispatch().map(drop)
        };
        let change = |name: &str, old_status, new_status| {
            let event = TaskStatusChanged { task_id: id(name), old_status, new_status, reason: None };
            manager.dispatch(event).map(drop)
        };
        for name in ["design", "build", "test"] {
            let status = TaskTreeState::from_session(session)?.tasks.get(&id(name)).map(|task| task.status);
            if status.is_none() {
                let title = if name == "build" { self.title } else { name };
                manager.dispatch(TaskCreated { task: NewTask::new(id(name), title) })?;
            }
            if matches!(status, None | Some(Pending)) {
                change(name, Pending, InProgress)?;
            }
            if status != Some(Completed) {
                write(name, "as planned")?;
                change(name, InProgress, Completed)?;
            }
        }
        let good = manager.create(Some("good"))?;
        write("test", "spoiled")?;
        manager.dispatch(TaskCreated { task: NewTask::new(id("more"), "More") })?;
        let (by, reason) = ("ada".to_owned(), "it was spoiled".to_owned());
        let options = RestoreOptions { by, reason, apply_later_updates: true, with_resources: true };
        manager.restore_from_checkpoint(good.id, &options)?;
        self.created.push(manager.create(None)?);
        self.created.extend(manager.list()?);
        Ok(())
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_host_that_dies_within_a_tool() {
    let Some(directory) = child::argument() else { return };
    let directory = Path::new(&directory);
    let session = Store::open(directory.join("store")).unwrap().create(&agent::types()).unwrap();
    let workspace = directory.join("workspace");
    Host { dies: true, ..Host::new(&workspace) }.run(&session).unwrap();
}

/// A run with tasks must replay. The log does not contain its size on the disk, the workspace's
/// captures, or the forks. Checkpoints were created by the first, contained the second, and were
/// retained because of the third, and a replay of the same host diverged at each.
#[test]
fn a_host_with_tasks_tools_checkpoints_a_restore_and_a_kill_replays_and_a_changed_one_is_told_where() {
    let directory = quick_directory();
    let workspace = directory.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let part = "replaying::part_of_a_host_that_dies_within_a_tool";
    assert!(!child::start(part, directory.path().to_str().unwrap()).passed(), "it dies in its task");
    let (store, types) = (Store::open(directory.path().join("store")).unwrap(), agent::types());
    let session_id = store.session_ids().unwrap()[0];
    // Another process forks the session meanwhile: the fork's position is kept, and the replay does
    // not know the fork.
    let log = LogReader::open(store.session_dir(session_id)).unwrap();
    let before = SequenceNumber::from(log.ledger().unwrap().last().unwrap().operation).saturating_sub(1);
    let fork = store.fork(session_id, before, &types, SessionOptions::default()).unwrap();

    let mut live = Host::new(&workspace);
    let session = store.open_session(session_id, &types).unwrap();
    live.run(&session).unwrap();
    let dir = session.dir().to_owned();
    assert_eq!(std::fs::read_to_string(workspace.join("test")).unwrap(), "as planned");
    session.close().unwrap();
    let fork_id = fork.id();
    fork.close().unwrap();
    store.delete(fork_id).unwrap();
    let kept: Vec<CheckpointId> = live.created[1..].iter().map(|one| one.id).collect();
    assert!(kept.len() > 3 && live.created.iter().any(|one| one.resources.is_some()), "{kept:?}");

    let elsewhere = quick_directory();
    let mut again = Host::new(elsewhere.path());
    let mut returned = Vec::new();
    let report = assert_host_replays(&dir, &types, |session| returned.push(again.run(&session)));
    assert_eq!((report.processes, report.divergences.len()), (2, 0));
    assert!(report.compared > 40, "{report:?}");
    returned.pop().unwrap().unwrap();
    assert_eq!(again.created, live.created, "and the host is told the same of its checkpoints");

    let ran = foldlog(["replay", dir.to_str().unwrap(), "--thorough"]);
    assert_eq!(ran.code, 0, "{ran:?}");

    // Another title of a task: found at its record, and at the slice if only effects are compared.
    let log = LogReader::open(&dir).unwrap();
    let mut changed = Host { title: "Rebuild it", ..Host::new(elsewhere.path()) };
    let error = Replay::new(&log, &types).run(|session| changed.run(&session)).unwrap_err();
    let Error::Diverged(diverged) = &error else { panic!("{error}") };
    let told = diverged.to_string();
    assert!(told.contains("task_created") && told.contains("$.event.task.title"), "{told}");
    let left_out = LeaveOut::new().path("task_created", "$.event");
    let error =
        Replay::new(&log, &types).leaving_out(left_out).run(|session| changed.run(&session)).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("tasks") && told.contains("title"), "{told}");
    assert!(told.contains("recorded \"Build it\", produced \"Rebuild it\""), "{told}");
}
