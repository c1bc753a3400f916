//! Single scenarios of checkpoints.

use std::collections::BTreeSet;
use std::time::Duration;

use foldlog::tools::{CompositeSnapshot, SnapshotPhase};
use foldlog::{CompactOptions, SessionOptions, Store};
use foldlog_tasks::{
    Checkpoint, CheckpointCreated, CheckpointId, CheckpointManager, CheckpointPolicy, Checkpoints,
    CompressionAlgorithm, Error, Occasion, RecoveryAction, RecoveryActions, RestoreOptions, RetentionPolicy,
    StateCompression, StateUpdate, TaskStatusChanged, TaskTreeState, Tasks, WorkspaceStores,
};
use foldlog_tasks::{DependencyRemoved, DependencyType, TaskCreated, TaskStatus::*};

use crate::agent::Agent;
use crate::{change, create, id, store, task, types};

fn by_somebody() -> RestoreOptions {
    let (by, reason) = ("ada".to_owned(), "it went wrong".to_owned());
    RestoreOptions { by, reason, ..RestoreOptions::default() }
}

fn actions(manager: &CheckpointManager) -> Vec<(String, Option<String>)> {
    let actions = manager.session().log().slice::<RecoveryActions>().unwrap();
    let actions = actions.iter().map(|action| action.unwrap());
    actions.map(|action| (action.action.clone(), action.subject.clone())).collect()
}

#[test]
fn a_session_is_restored_to_a_checkpoint_and_what_was_there_can_be_brought_back() {
    let (store, clock) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let session = manager.session().clone();
    create(&session, task("design")).unwrap();
    let first = manager.create(Some("designed")).unwrap();
    assert_eq!((first.id, first.name.as_deref()), (CheckpointId(1), Some("designed")));
    assert_eq!(first.id.to_string(), "checkpoint_001");
    clock.advance_us(1_000_000);
    create(&session, task("build")).unwrap();
    change(&session, "design", Pending, InProgress).unwrap();

    let report = manager.restore_from_checkpoint(first.id, &by_somebody()).unwrap();
    assert_eq!(report.checkpoint, first);
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert_eq!((tree.task_counter, tree.active_task), (1, None));
    // The restore is recorded, and no rollback undoes that.
    let subject = Some("checkpoint_001".to_owned());
    assert_eq!(
        actions(&manager),
        [
            (RecoveryAction::RESTORE.to_owned(), subject.clone()),
            (RecoveryAction::RESTORED.to_owned(), subject)
        ]
    );
    // The latest checkpoint is the restored one, and not an abandoned one.
    assert_eq!(manager.latest().unwrap().unwrap().id, first.id);
    let undo = manager.get(report.undo).unwrap();
    assert_eq!(undo.occasion, Occasion::BeforeRestore(first.id));
    assert_eq!(undo.manifest.active_tasks, [id("design")]);
    manager.restore_from_checkpoint(undo.id, &by_somebody()).unwrap();
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert_eq!((tree.task_counter, tree.active_task), (2, Some(id("design"))));
    let ids: Vec<u64> = manager.list().unwrap().iter().map(|one| one.id.0).collect();
    assert_eq!(ids, [1, 2, 3], "no restore takes a checkpoint back");
    assert!(matches!(
        manager.get(CheckpointId(9)),
        Err(Error::NoSuchCheckpoint { id: CheckpointId(9), known: 3 })
    ));
}

/// Records before the checkpoint that were live on another branch were applied again too.
#[test]
fn what_stands_in_front_of_a_checkpoint_is_not_later_whatever_branch_it_counted_on() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let session = manager.session().clone();
    create(&session, task("a")).unwrap();
    let fork = session.log().position().unwrap();
    session.rollback_to(fork).unwrap();
    create(&session, task("b")).unwrap();
    let branch = session.log().position().unwrap();
    session.rollback_to(fork).unwrap();
    create(&session, task("c")).unwrap();
    let checkpoint = manager.create(None).unwrap().id;
    session.rollback_to(branch).unwrap();
    create(&session, task("d")).unwrap();
    let options = RestoreOptions { apply_later_updates: true, ..by_somebody() };
    let report = manager.restore_from_checkpoint(checkpoint, &options).unwrap();
    assert_eq!((report.applied.len(), report.refused.len()), (1, 0));
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert_eq!(tree.tasks.keys().map(|id| id.as_str()).collect::<Vec<_>>(), ["a", "c", "d"]);
}

#[test]
fn later_updates_are_applied_in_order_and_what_is_refused_is_listed() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let session = manager.session().clone();
    create(&session, task("a")).unwrap();
    let early = manager.create(None).unwrap();
    create(&session, task("b")).unwrap();
    session
        .dispatch(foldlog_tasks::ExecutionLogged {
            task: None,
            level: Default::default(),
            message: "no update".into(),
        })
        .unwrap();
    change(&session, "b", Pending, InProgress).unwrap();
    let late = manager.create(None).unwrap();
    change(&session, "b", InProgress, Completed).unwrap();
    // After a restore of the first checkpoint, "b" is created again with other content.
    let report = manager
        .restore_from_checkpoint(early.id, &RestoreOptions { apply_later_updates: true, ..by_somebody() })
        .unwrap();
    assert_eq!((report.applied.len(), report.refused.len()), (3, 0));
    assert_eq!(TaskTreeState::from_session(&session).unwrap().count(Completed), 1);
    manager.restore_from_checkpoint(early.id, &by_somebody()).unwrap();
    create(&session, task("b")).unwrap();
    change(&session, "b", Pending, Cancelled).unwrap();
    // The checkpoint is on an abandoned branch, and has another "b".
    let options = RestoreOptions { apply_later_updates: true, ..by_somebody() };
    let report = manager.restore_from_checkpoint(late.id, &options).unwrap();
    assert!(report.applied.is_empty());
    let reasons: Vec<&str> = report.refused.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(
        reasons,
        ["there is a task `b` already: \"The task b\"", "task `b` is in_progress, not pending"]
    );
    let last = session.log().slice::<RecoveryActions>().unwrap().tail(1).unwrap();
    assert_eq!((last[0].action.as_str(), last[0].lost.len()), (RecoveryAction::RESTORED, 2));
    assert_eq!(TaskTreeState::from_session(&session).unwrap().active_task, Some(id("b")));
}

/// Regression: a restore that applied later updates silently dropped messages and changes of files.
#[test]
fn later_messages_and_changes_of_files_are_named_as_refused() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    agent.start("a");
    agent.write("kept.txt", Some("first"), false);
    let manager = agent.manager();
    let checkpoint = manager.create(None).unwrap();
    agent.write("kept.txt", Some("second"), false);
    agent.converse("talk", "new.txt");
    agent.finish("a");
    let is_later = |one: &StateUpdate| one.position > checkpoint.position;
    let later: Vec<StateUpdate> = agent.updates().into_iter().filter(is_later).collect();
    let expected: Vec<_> = later.iter().map(|one| (one.position, one.operation.clone())).collect();

    let options = RestoreOptions { apply_later_updates: true, with_resources: true, ..by_somebody() };
    let report = manager.restore_from_checkpoint(checkpoint.id, &options).unwrap();
    assert_eq!(
        report.applied.iter().map(|(was, _)| *was).collect::<Vec<_>>(),
        [later.last().unwrap().position]
    );
    let refused: Vec<_> = report.refused.iter().map(|one| (one.sequence, one.operation.clone())).collect();
    assert_eq!(refused, expected[..expected.len() - 1]);
    let names = |what: &str| report.refused.iter().filter(|one| one.reason.contains(what)).count();
    assert_eq!((names("change of `kept.txt`"), names("change of `new.txt`")), (1, 1));
    assert_eq!(names("messages of `talk`"), refused.len() - 2);
    assert!(report.not_compared.is_empty() && names("messages of `talk`") > 2, "{:?}", report.refused);
    let last = agent.session.log().slice::<RecoveryActions>().unwrap().tail(1).unwrap();
    assert_eq!(last[0].lost.len(), refused.len(), "the log names them too");
    // Without the captures of the workspace the report at least states that changes are unknown.
    let manager = agent.manager().with_stores(WorkspaceStores::none());
    let back = RestoreOptions { with_resources: true, ..by_somebody() };
    manager.restore_from_checkpoint(report.undo, &back).unwrap();
    let report = manager.restore_from_checkpoint(checkpoint.id, &options).unwrap();
    assert!(!report.not_compared.is_empty(), "{report:?}");
}

/// Regression: no checkpoint stated the compressed size of its snapshot.
#[test]
fn a_checkpoint_records_its_compressed_snapshot_size_and_level() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    (0..100).for_each(|n| create(&session, task(&format!("task_{n}"))).unwrap());
    let plain = CheckpointManager::new(session.clone()).create(None).unwrap();
    assert_eq!(plain.snapshot, None, "what nobody asked for costs nothing");
    let compression = StateCompression { level: 9, ..StateCompression::new(CompressionAlgorithm::Zstd) };
    let manager = CheckpointManager::new(session.clone()).with_compression(compression);
    let created = manager.create(None).unwrap();
    let snapshot = created.snapshot.clone().unwrap();
    assert_eq!((snapshot.algorithm, snapshot.level), (CompressionAlgorithm::Zstd, 9));
    let taken =
        session.log().snapshots().unwrap().into_iter().find(|one| one.position == created.position).unwrap();
    let json = session.log().export_snapshot(&taken).unwrap().to_json().unwrap();
    let compressed = compression.compress(json.as_bytes()).unwrap();
    assert_eq!((snapshot.bytes, snapshot.compressed_bytes), (json.len() as u64, compressed.len() as u64));
    assert!(snapshot.compressed_bytes < snapshot.bytes / 4, "{snapshot:?}");
    let again = CheckpointManager::new(session).get(created.id).unwrap();
    assert_eq!(again, created, "the log has it");
}

#[test]
fn checkpoints_are_created_when_the_policy_says_and_auto_save_can_be_switched_off() {
    let (store, clock) = store(false);
    let session = store.create(&types()).unwrap();
    let policy = CheckpointPolicy {
        every: Some(Duration::from_secs(60)),
        every_updates: Some(4),
        before_tasks: true,
        after_tasks: true,
        ..CheckpointPolicy::default()
    };
    let manager = CheckpointManager::new(session.clone()).with_policy(policy.clone());
    let change = |name: &str, old_status, new_status| {
        manager.dispatch(TaskStatusChanged { task_id: id(name), old_status, new_status, reason: None })
    };
    let occasions =
        || -> Vec<Occasion> { manager.list().unwrap().into_iter().map(|one| one.occasion).collect() };
    manager.dispatch(TaskCreated { task: task("a") }).unwrap();
    manager.dispatch(TaskCreated { task: task("b").requires(id("a")) }).unwrap();
    assert!(occasions().is_empty());
    change("a", Pending, InProgress).unwrap();
    change("b", Pending, InProgress).unwrap_err();
    change("a", InProgress, Completed).unwrap();
    assert_eq!(occasions(), [Occasion::BeforeTask(id("a")), Occasion::AfterTask(id("a"))]);
    // Four updates by any source.
    for name in ["c", "d", "e"] {
        create(&session, task(name)).unwrap();
    }
    assert_eq!(manager.after_dispatch().unwrap(), None);
    manager.dispatch(TaskCreated { task: task("f") }).unwrap();
    assert_eq!(occasions()[2..], [Occasion::PeriodicByUpdates]);
    clock.advance_us(59_999_999);
    manager.dispatch(TaskCreated { task: task("g") }).unwrap();
    assert_eq!(occasions().len(), 3);
    clock.advance_us(1);
    manager.dispatch(TaskCreated { task: task("h") }).unwrap();
    assert_eq!(occasions()[3..], [Occasion::PeriodicByTime]);

    assert!(manager.auto_save());
    manager.set_auto_save(false);
    clock.advance_us(600_000_000);
    change("b", Pending, InProgress).unwrap();
    assert_eq!(occasions().len(), 4);
    manager.set_auto_save(true);
    // Another process knows the number of updates since.
    let again = CheckpointManager::new(session.clone()).with_policy(policy);
    assert_eq!(again.after_dispatch().unwrap().unwrap().occasion, Occasion::PeriodicByTime);
    assert_eq!(again.after_dispatch().unwrap(), None);
    let bytes = CheckpointPolicy { every_bytes: Some(2_000), ..CheckpointPolicy::default() };
    let by_bytes = CheckpointManager::new(session.clone()).with_policy(bytes);
    assert_eq!(by_bytes.after_dispatch().unwrap(), None);
    let mut task = task("large");
    task.description = "x".repeat(2_000);
    by_bytes.dispatch(TaskCreated { task }).unwrap();
    assert_eq!(occasions().last(), Some(&Occasion::PeriodicByBytes));
    by_bytes.create_for(Occasion::Shutdown, None).unwrap();
    assert_eq!(occasions().last(), Some(&Occasion::Shutdown));
}

/// Updates were counted by a list of the first four events of tasks: repair events caused no
/// checkpoint.
#[test]
fn events_that_repair_tasks_are_updates_too() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    create(&session, task("a")).unwrap();
    create(&session, task("b").requires(id("a"))).unwrap();
    let policy = CheckpointPolicy { every_updates: Some(1), ..CheckpointPolicy::default() };
    let manager = CheckpointManager::new(session).with_policy(policy);
    manager.create(None).unwrap();
    let (from, to, dep_type) = (id("b"), id("a"), DependencyType::Requires);
    manager.dispatch(DependencyRemoved { from, to, dep_type, reason: None }).unwrap();
    let occasions: Vec<_> = manager.list().unwrap().into_iter().map(|one| one.occasion).collect();
    assert_eq!(occasions, [Occasion::Manual, Occasion::PeriodicByUpdates]);
}

#[test]
fn a_host_that_asks_for_none_gets_none() {
    let (store, clock) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    for number in 0..50 {
        clock.advance_us(3_600_000_000);
        manager.dispatch(TaskCreated { task: task(&format!("t{number}")) }).unwrap();
    }
    assert_eq!(manager.list().unwrap(), []);
    assert!(manager.latest().unwrap().is_none());
}

#[test]
fn a_checkpoint_whose_hash_does_not_fit_the_records_is_refused_with_both_hashes() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let session = manager.session().clone();
    let first = manager.create(None).unwrap();
    // A forged checkpoint claims the hash of the first for another position.
    let snapshot = session.snapshot(Default::default()).unwrap();
    let forged = Checkpoint { id: CheckpointId(2), position: snapshot.position, ..first.clone() };
    session.dispatch(CheckpointCreated { checkpoint: forged.clone() }).unwrap();
    let third = manager.create(None).unwrap();
    let before = session.log().position();
    for id in [forged.id, third.id] {
        match manager.restore_from_checkpoint(id, &by_somebody()) {
            Err(Error::CheckpointMismatch { id, expected, found, .. }) => {
                assert_eq!((id, expected), (CheckpointId(2), first.validation_hash.clone()));
                assert_ne!(found, first.validation_hash);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(session.log().position(), before, "nothing was changed");
    manager.restore_from_checkpoint(first.id, &by_somebody()).unwrap();
    // No number is repeated or left out.
    for id in [0, 1, 3, 9] {
        let forged = Checkpoint { id: CheckpointId(id), ..first.clone() };
        session.dispatch(CheckpointCreated { checkpoint: forged }).unwrap_err();
    }
}

#[test]
fn a_workspace_is_restored_with_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = {
        let agent = Agent::begin(directory.path());
        let manager =
            CheckpointManager::new(agent.session.clone()).with_resources(agent.runner().state().clone());
        agent.start("a");
        agent.write("kept.txt", Some("as it was"), false);
        let checkpoint = manager.create(None).unwrap();
        agent.write("kept.txt", Some("spoiled"), false);
        agent.write("new.txt", Some("new"), false);
        agent.finish("a");
        checkpoint
    };
    let taken = CompositeSnapshot::from_json(checkpoint.resources.as_deref().unwrap()).unwrap().metadata;
    assert_eq!((taken.phase, taken.tag), (SnapshotPhase::Checkpoint, Some(checkpoint.id.to_string())));
    // Another process restores it.
    let agent = Agent::resume(directory.path());
    let alone = CheckpointManager::new(agent.session.clone());
    let options = RestoreOptions { with_resources: true, ..by_somebody() };
    assert!(matches!(alone.restore_from_checkpoint(checkpoint.id, &options), Err(Error::NoResources { .. })));
    let manager =
        CheckpointManager::new(agent.session.clone()).with_resources(agent.runner().state().clone());
    manager.restore_from_checkpoint(checkpoint.id, &options).unwrap();
    assert_eq!(std::fs::read_to_string(agent.workspace().join("kept.txt")).unwrap(), "as it was");
    assert!(!agent.workspace().join("new.txt").exists());
    assert_eq!(TaskTreeState::from_session(&agent.session).unwrap().active_task, Some(id("a")));
    // The restore can be undone too.
    let undo = manager.list().unwrap().last().unwrap().id;
    manager.restore_from_checkpoint(undo, &options).unwrap();
    assert_eq!(std::fs::read_to_string(agent.workspace().join("kept.txt")).unwrap(), "spoiled");
}

#[test]
fn a_checkpoint_costs_what_was_recorded_since_the_last_one_however_much_there_is() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let sizes: Vec<u64> = [10, 2_000]
        .into_iter()
        .map(|tasks| {
            let session = manager.session();
            let there = session.view::<Tasks>().unwrap().len();
            (there..tasks).for_each(|number| create(session, task(&format!("t{number}"))).unwrap());
            manager.create(None).unwrap();
            let before = session.log().bytes();
            manager.create(None).unwrap();
            session.log().bytes() - before
        })
        .collect();
    assert!(sizes[1] < sizes[0] + 16, "{sizes:?}");
}

#[test]
fn a_fork_goes_on_with_the_checkpoints_that_it_shares() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    create(manager.session(), task("a")).unwrap();
    let first = manager.create(None).unwrap();
    let at = manager.session().log().position().unwrap();
    manager.create(None).unwrap();
    let fork = fork(&store, &manager, at.get());
    let forked = CheckpointManager::new(fork);
    assert_eq!(forked.list().unwrap(), std::slice::from_ref(&first));
    let second = forked.create(None).unwrap();
    assert_eq!((second.id, second.session_id), (CheckpointId(2), forked.session().id()));
    forked.verify(second.id).unwrap();
    forked.restore_from_checkpoint(first.id, &by_somebody()).unwrap();
    assert_eq!(manager.list().unwrap().len(), 2, "the parent's are its own");
}

pub(super) fn fork(store: &Store, manager: &CheckpointManager, at: u64) -> foldlog::Session {
    store.fork(manager.session().id(), at, &types(), SessionOptions::default()).unwrap()
}

#[test]
fn two_managers_of_one_session_see_what_the_other_does() {
    let (store, _) = store(true);
    let session = store.create(&types()).unwrap();
    let (one, other) = (CheckpointManager::new(session.clone()), CheckpointManager::new(session.clone()));
    let other = other.with_retention(RetentionPolicy { count: Some(2), ..RetentionPolicy::default() });
    let ids: BTreeSet<u64> = (0..6)
        .map(|at| if at % 2 == 0 { one.create(None) } else { other.create(None) }.unwrap().id.0)
        .collect();
    assert_eq!(ids.len(), 6);
    assert_eq!(one.list().unwrap(), other.list().unwrap());
    let kept: Vec<u64> = one.list().unwrap().iter().map(|one| one.id.0).collect();
    assert_eq!(kept, [5, 6]);
    assert_eq!(session.log().slice::<Checkpoints>().unwrap().len(), 6 + 2);
    assert!(matches!(one.get(CheckpointId(1)), Err(Error::CheckpointRemoved { .. })));
}

/// Compactions keep the positions of checkpoints. But hashes and counts depend on records that a
/// compaction had dropped: no checkpoint could be restored or created any more.
#[test]
fn checkpoints_are_restored_and_created_behind_a_compaction() {
    let (store, _) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap());
    let session = manager.session().clone();
    let names: Vec<String> = (0..20).map(|n| format!("task_{n}")).collect();
    names.iter().for_each(|name| create(&session, task(name)).unwrap());
    let work = |to_do: &[String]| {
        for name in to_do {
            change(&session, name, Pending, InProgress).unwrap();
            change(&session, name, InProgress, Completed).unwrap();
        }
    };
    work(&names[..5]);
    let first = manager.create(Some("five are done")).unwrap();
    work(&names[5..15]);
    let second = manager.create(None).unwrap();
    work(&names[15..19]);
    let id = session.id();
    drop(manager);
    session.close().unwrap();
    let report = store.compact(id, &CompactOptions::default()).unwrap();
    assert!(report.dropped > 10, "{report:?}");
    assert!([&first, &second].iter().all(|one| report.kept.contains(&one.position)), "{report:?}");

    let manager = CheckpointManager::new(store.open_session(id, &types()).unwrap());
    manager.verify(second.id).unwrap();
    let third = manager.create(None).unwrap();
    assert_eq!((third.manifest.total_tasks, third.manifest.completed_tasks), (20, 19));
    manager.verify(third.id).unwrap();
    let later = RestoreOptions { apply_later_updates: true, ..by_somebody() };
    let refused = manager.restore_from_checkpoint(first.id, &later).unwrap_err();
    assert!(matches!(refused, Error::Engine(foldlog::Error::Compacted { .. })), "{refused}");
    assert_eq!(manager.latest().unwrap().unwrap().id, third.id, "nothing has changed");
    for (checkpoint, completed) in [(first.id, 5), (second.id, 15), (third.id, 19)] {
        manager.restore_from_checkpoint(checkpoint, &by_somebody()).unwrap();
        let tasks = manager.session().view::<Tasks>().unwrap();
        let done = tasks.iter().filter(|task| task.status == Completed).count();
        assert_eq!((tasks.len(), done), (20, completed));
    }
}
