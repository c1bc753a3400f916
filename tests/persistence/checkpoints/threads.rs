//! Checkpoints and restores in parallel with other threads, other managers, and subscribers that
//! call the manager.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use foldlog_tasks::{CheckpointCreated, CheckpointManager, RestoreOptions, RetentionPolicy, TaskTreeState};

use crate::{create, id, store, task, types};

/// A restore that applies later updates read them before its rollback: records of another thread in
/// between were neither applied again nor reported.
#[test]
fn a_restore_that_applies_later_updates_loses_none_that_another_thread_was_told_of() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let session = manager.session().clone();
    create(&session, task("first")).unwrap();
    let early = manager.create(Some("early")).unwrap().id;
    let is_over = AtomicBool::new(false);
    // Each restore applies all of them again: without a limit, the writer would write more and
    // more.
    let allowed = AtomicUsize::new(0);
    let told = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut told = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                if told.len() >= allowed.load(Ordering::Relaxed) {
                    thread::yield_now();
                    continue;
                }
                let name = format!("t{}", told.len());
                create(&session, task(&name)).unwrap();
                told.push(name);
            }
            told
        });
        let options =
            RestoreOptions { by: "ada".to_owned(), apply_later_updates: true, ..RestoreOptions::default() };
        for _ in 0..8 {
            allowed.fetch_add(100, Ordering::Relaxed);
            let report = manager.restore_from_checkpoint(early, &options).unwrap();
            assert!(report.refused.is_empty(), "{:?}", report.refused);
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let tree = TaskTreeState::from_session(&session).unwrap();
    let lost: Vec<&String> = told.iter().filter(|name| !tree.tasks.contains_key(&id(name))).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), told.len());
}

/// A manager held its lock while it wrote, so that a subscriber that called the manager waited
/// forever.
#[test]
fn a_subscriber_may_ask_the_manager_whose_checkpoint_it_is_told_of() {
    let (store, _) = store(false);
    let manager = Arc::new(CheckpointManager::new(store.create(&types()).unwrap()));
    let (asked, asker) = (Arc::clone(&manager), mpsc::channel());
    let told = asker.0.clone();
    let subscription = manager.session().log().subscribe(move |record| {
        if record.event::<CheckpointCreated>().is_some() {
            told.send(asked.list().unwrap().len()).unwrap();
        }
    });
    let creating = Arc::clone(&manager);
    let created = thread::spawn(move || creating.create(None).unwrap().id);
    assert_eq!(asker.1.recv_timeout(Duration::from_secs(20)), Ok(1));
    assert_eq!(created.join().unwrap().0, 1);
    let _ = subscription;
}

/// Two managers of one session computed different numbers for the next checkpoint.
#[test]
fn managers_of_one_session_create_beside_each_other_and_number_without_gaps() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    let retention = RetentionPolicy { count: Some(3), ..RetentionPolicy::default() };
    let each = 12;
    thread::scope(|scope| {
        for _ in 0..3 {
            let manager = CheckpointManager::new(session.clone()).with_retention(retention.clone());
            scope.spawn(move || (0..each).for_each(|_| drop(manager.create(None).unwrap())));
        }
    });
    let manager = CheckpointManager::new(session).with_retention(retention);
    let latest = manager.latest().unwrap().unwrap().id;
    assert_eq!(latest.0, 3 * each);
    manager.verify(latest).unwrap();
    manager.create(None).unwrap();
    assert_eq!(manager.list().unwrap().len(), 3);
}
