//! Works through a tree of tasks. Its process is killed within one of them; the next process finds which one that was, tries
//! it again, and does the rest.
//!
//! `cargo run --bin task_tree`

use std::env;
use std::path::Path;
use std::process::{Command, abort};

use foldlog::{Session, SessionTypes, Store};
use foldlog_agent::persistence::{
    NewTask, TaskCreated, TaskId, TaskStatus, TaskStatusChanged, TaskTreeState, declare,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn plan(session: &Session) -> Result<()> {
    let (release, notes, tag) = (TaskId::new("release")?, TaskId::new("notes")?, TaskId::new("tag")?);
    let tasks = [
        NewTask::new(notes.clone(), "Write the notes"),
        NewTask::new(tag, "Tag the commit").requires(notes.clone()),
        NewTask::new(release, "Publish the release").requires(notes),
    ];
    for task in tasks {
        session.dispatch(TaskCreated { task })?;
    }
    Ok(())
}

fn change(session: &Session, task: &TaskId, old_status: TaskStatus, new_status: TaskStatus) -> Result<()> {
    let reason = (new_status == TaskStatus::Pending).then(|| "its process ended".to_owned());
    session.dispatch(TaskStatusChanged { task_id: task.clone(), old_status, new_status, reason })?;
    Ok(())
}

/// Goes on wherever a process left the tree.
fn work(session: &Session, dies_in: &str) -> Result<()> {
    if TaskTreeState::of(session)?.tasks.is_empty() {
        plan(session)?;
    }
    // What a killed process had begun is tried again.
    for left in TaskTreeState::of(session)?.scheduling_state.in_progress {
        println!("was interrupted: {left}");
        change(session, &left, TaskStatus::InProgress, TaskStatus::Pending)?;
    }
    while let Some(next) = TaskTreeState::of(session)?.scheduling_state.ready.first() {
        change(session, next, TaskStatus::Pending, TaskStatus::InProgress)?;
        if next.as_str() == dies_in {
            abort()
        }
        println!("done: {next}");
        change(session, next, TaskStatus::InProgress, TaskStatus::Completed)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let types = declare(SessionTypes::builder()).build()?;
    if let Some(folder) = env::args_os().nth(1) {
        return work(&Store::open(Path::new(&folder))?.create(&types)?, "tag");
    }
    let folder = tempfile::tempdir()?;

    let ended = Command::new(env::current_exe()?).arg(folder.path()).status()?;
    println!("the first process ended by itself: {}", ended.success());
    let store = Store::open(folder.path())?;
    let id = store.session_ids()?.into_iter().next().ok_or("there is no session")?;
    let session = store.open_session(id, &types)?;
    work(&session, "nothing")?;
    let tree = TaskTreeState::of(&session)?;
    println!("completed: {} of {}", tree.count(TaskStatus::Completed), tree.tasks.len());
    Ok(session.close()?)
}
