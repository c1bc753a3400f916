//! Long-running work: tasks and refused changes to them, the whole state of a session, and its
//! exports and checkpoints.

mod agent;
mod checkpoints;
mod compression;
mod damaged;
mod files;
mod files_exporter;
mod files_killed;
mod files_lazy;
mod files_session;
mod git;
mod history;
mod laws;
mod recovery;
mod recovery_tree;
mod replaying;
mod scenarios;
mod sessions_killed;
mod state;
mod story;
mod tasks;
mod validation;
mod validation_laws;
mod validation_log;

use std::collections::BTreeSet;
use std::sync::Arc;

use foldlog::storage::MemoryStorage;
use foldlog::{BackgroundSync, FixedClock, Session, SessionTypes, Store, StoreOptions};
use foldlog_tasks::{NewTask, TaskCreated, TaskId, TaskStatus, TaskStatusChanged, declare};
use foldlog_test_support::killed::quick_directory;

/// The time at which every test starts: 2026-01-02T03:00:00Z.
const BEGIN_US: i64 = 1_767_322_800_000_000;

fn types() -> SessionTypes {
    declare(SessionTypes::builder()).build().unwrap()
}

/// Returns a store in memory whose clock only moves on request; with `images`, it writes images
/// often.
fn store(images: bool) -> (Store, Arc<FixedClock>) {
    store_on(&MemoryStorage::new(), images)
}

fn store_on(disk: &MemoryStorage, images: bool) -> (Store, Arc<FixedClock>) {
    let clock = Arc::new(FixedClock::new(BEGIN_US));
    let options = StoreOptions {
        storage: Arc::new(disk.clone()),
        clock: Arc::clone(&clock) as _,
        seed: Some(1),
        background: BackgroundSync::Inline,
        image_bytes_min: if images { 256 } else { u64::MAX },
        ..StoreOptions::default()
    };
    (Store::open_with("/store", options).unwrap(), clock)
}

fn id(id: &str) -> TaskId {
    TaskId::new(id).unwrap()
}

fn task(name: &str) -> NewTask {
    NewTask::new(id(name), format!("The task {name}"))
}

fn create(session: &Session, task: NewTask) -> foldlog::Result<()> {
    session.dispatch(TaskCreated { task }).map(drop)
}

/// Moves a task from one state to another.
fn change(
    session: &Session,
    name: &str,
    old_status: TaskStatus,
    new_status: TaskStatus,
) -> foldlog::Result<()> {
    let event = TaskStatusChanged { task_id: id(name), old_status, new_status, reason: None };
    session.dispatch(event).map(drop)
}

fn refusal(refused: foldlog::Result<()>) -> String {
    match refused {
        Err(foldlog::Error::Refused { reason, .. }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}
