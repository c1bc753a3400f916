//! Works through a tree of tasks. The first process is killed within one of them. The next process
//! finds that task, tries it again, and completes the rest.
//!
//! `cargo run --bin task_tree` runs both; `cargo run --bin task_tree DIRECTORY` runs one process,
//! and leaves its session in the directory.

use std::path::Path;
use std::process::{Command, abort};
use std::{env, fs};

use foldlog::{Session, SessionTypes, Store};
use foldlog_tasks::{
    CheckpointManager, CheckpointPolicy, NewTask, TaskCreated, TaskId, TaskStatus, TaskStatusChanged,
    TaskTreeState, declare,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn plan(session: &Session) -> Result<()> {
    let id = TaskId::new;
    let tasks = [
        NewTask::new(id("notes")?, "Write the notes"),
        NewTask::new(id("tag")?, "Tag the commit").requires(id("notes")?),
        NewTask::new(id("draft")?, "Draft the announcement").with_parent(id("tag")?),
        NewTask::new(id("publish")?, "Publish the release").requires(id("tag")?).requires(id("draft")?),
    ];
    for task in tasks {
        session.dispatch(TaskCreated { task })?;
    }
    Ok(())
}

/// Works through the tree from where a process left it.
fn work(session: &Session, dies_in: &str) -> Result<()> {
    use TaskStatus::{Completed, InProgress, Pending};
    let policy = CheckpointPolicy { after_tasks: true, ..CheckpointPolicy::default() };
    let checkpoints = CheckpointManager::new(session.clone()).with_policy(policy);
    let change = |task_id: &TaskId, old_status, new_status, reason: Option<&str>| {
        let reason = reason.map(str::to_owned);
        checkpoints.dispatch(TaskStatusChanged { task_id: task_id.clone(), old_status, new_status, reason })
    };
    // Tasks that a killed process had started are tried again.
    for left in TaskTreeState::from_session(session)?.scheduling_state.in_progress {
        println!("was interrupted: {left}");
        change(&left, InProgress, Pending, Some("its process ended"))?;
    }
    while let Some(next) = TaskTreeState::from_session(session)?.scheduling_state.ready.first().cloned() {
        change(&next, Pending, InProgress, None)?;
        if next.as_str() == dies_in {
            abort()
        }
        println!("done: {next}");
        change(&next, InProgress, Completed, None)?;
    }
    Ok(())
}

/// Runs one process of the host. The first one dies.
fn host(directory: &Path) -> Result<()> {
    let (store, types) = (Store::open(directory)?, declare(SessionTypes::builder()).build()?);
    let Some(id) = store.session_ids()?.into_iter().next() else {
        let session = store.create(&types)?;
        plan(&session)?;
        return work(&session, "draft");
    };
    let session = store.open_session(id, &types)?;
    work(&session, "")?;
    let tree = TaskTreeState::from_session(&session)?;
    println!("completed: {} of {}", tree.count(TaskStatus::Completed), tree.tasks.len());
    println!("session: {}", session.dir().display());
    Ok(session.close()?)
}

fn main() -> Result<()> {
    if let Some(directory) = env::args_os().nth(1) {
        fs::create_dir_all(&directory)?;
        return host(Path::new(&directory));
    }
    let directory = tempfile::tempdir()?;
    let ended = Command::new(env::current_exe()?).arg(directory.path()).status()?;
    println!("the first process ended by itself: {}", ended.success());
    host(directory.path())
}
