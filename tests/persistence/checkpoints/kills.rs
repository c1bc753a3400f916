//! Processes that end within a creation, a retention or a restore: at each record, within each
//! record, and by real kills.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog::{SessionTypes, Store, inspect};
use foldlog_tasks::{
    CheckpointHistory, CheckpointId, CheckpointManager, RestoreOptions, RetentionPolicy, TaskStatus,
    TaskTreeState,
};
use foldlog_test_support::child;
use uuid::Uuid;

use crate::{change, create, task, types};

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn retention() -> RetentionPolicy {
    RetentionPolicy { count: Some(3), ..RetentionPolicy::default() }
}

fn manager(store: &Store, id: Uuid, types: &SessionTypes) -> CheckpointManager {
    CheckpointManager::new(store.open_session(id, types).unwrap()).with_retention(retention())
}

/// Returns the file, start and end of each frame in a session's log.
pub(crate) fn frames(dir: &Path) -> Vec<(PathBuf, u64, u64)> {
    let mut frames = Vec::new();
    inspect::walk(dir, &mut |frame| {
        frames.push((frame.segment.to_owned(), frame.offset, frame.offset + frame.bytes));
        Ok(())
    })
    .unwrap();
    frames
}

/// The visible state of a session: its tasks, and the numbers of its checkpoints.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    tasks: Vec<(String, TaskStatus)>,
    kept: Vec<u64>,
}

fn seen(manager: &CheckpointManager) -> Seen {
    let tree = TaskTreeState::from_session(manager.session()).unwrap();
    Seen {
        tasks: tree.tasks.values().map(|task| (task.id.to_string(), task.status)).collect(),
        kept: manager.list().unwrap().iter().map(|one| one.id.0).collect(),
    }
}

/// Makes `act` write, and cuts the log at each place at which its process may end. `check` gets the
/// states before, at the cut, and after.
fn at_each_place(act: impl Fn(&CheckpointManager), check: impl Fn(&Seen, &Seen, &Seen)) {
    let directory = tempfile::tempdir().unwrap();
    let (root, types) = (directory.path().join("store"), types());
    let store = Store::open(&root).unwrap();
    let id = {
        let session = store.create(&types).unwrap();
        let manager = CheckpointManager::new(session.clone()).with_retention(retention());
        for name in ["a", "b", "c"] {
            create(&session, task(name)).unwrap();
            manager.create(None).unwrap();
        }
        change(&session, "a", TaskStatus::Pending, TaskStatus::InProgress).unwrap();
        session.sync().unwrap();
        session.id()
    };
    let session = manager(&store, id, &types);
    let dir = session.session().dir().to_owned();
    let before = seen(&session);
    let written = frames(&dir).len();
    act(&session);
    session.session().sync().unwrap();
    let after = seen(&session);
    let frames = frames(&dir);
    assert!(frames.len() > written + 1);
    for (file, begin, end) in &frames[written..] {
        for cut in [*begin, begin + (end - begin) / 2, end - 1] {
            let copied = directory.path().join("copy");
            let _ = fs::remove_dir_all(&copied);
            copy(&dir, &copied.join("sessions").join(id.to_string()));
            let file = copied.join("sessions").join(id.to_string()).join(file.file_name().unwrap());
            let mut bytes = fs::read(&file).unwrap();
            bytes[usize::try_from(cut).unwrap()..].fill(0);
            fs::write(&file, bytes).unwrap();
            // Later segments did not exist yet.
            for other in fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()) {
                if other.extension().is_some_and(|extension| extension == "seg") && other > file {
                    fs::remove_file(other).unwrap();
                }
            }
            let left = manager(&Store::open(&copied).unwrap(), id, &types);
            let now = seen(&left);
            check(&before, &now, &after);
            let created = CheckpointHistory::from_session(left.session()).unwrap();
            assert!(created.list().iter().all(|one| left.verify(one.id).is_ok()));
            // The next process creates the next checkpoint, and removes those whose removal was
            // prevented by the kill.
            let next = left.create(None).unwrap();
            left.verify(next.id).unwrap();
            let kept = seen(&left).kept;
            assert!(kept.contains(&next.id.0), "{kept:?}");
            left.session().clone().close().unwrap();
        }
    }
}

#[test]
fn a_kill_within_a_creation_leaves_the_checkpoints_before_it_and_the_new_one_or_not() {
    at_each_place(
        |manager| drop(manager.create(None).unwrap()),
        |before, now, after| {
            assert_eq!(now.tasks, before.tasks);
            let both = [before.kept.clone(), vec![4]].concat();
            assert!([&before.kept, &both, &after.kept].contains(&&now.kept), "{now:?}");
            assert_eq!(after.kept, [2, 3, 4]);
        },
    );
}

#[test]
fn a_kill_within_a_restore_leaves_what_was_there_or_the_checkpoint_and_some_later_updates() {
    let options = RestoreOptions {
        by: "ada".to_owned(),
        reason: "it went wrong".to_owned(),
        apply_later_updates: true,
        with_resources: false,
    };
    at_each_place(
        |manager| {
            let report = manager.restore_from_checkpoint(CheckpointId(1), &options).unwrap();
            assert_eq!((report.applied.len(), report.refused.len()), (3, 0));
        },
        |before, now, after| {
            assert_eq!(after.tasks, before.tasks, "all later updates are legal");
            let names: Vec<&str> = now.tasks.iter().map(|(name, _)| name.as_str()).collect();
            assert!([vec!["a"], vec!["a", "b"], vec!["a", "b", "c"]].contains(&names), "{now:?}");
            assert!(now.kept.contains(&1), "what is gone back to is kept: {now:?}");
        },
    );
}

#[test]
#[ignore = "the part of a child"]
fn part_of_a_child_that_creates_and_restores_until_it_is_killed() {
    let Some(root) = child::argument() else { return };
    let (store, types) = (Store::open(&root).unwrap(), types());
    let session = match store.session_ids().unwrap().first() {
        Some(id) => store.open_session(*id, &types).unwrap(),
        None => store.create(&types).unwrap(),
    };
    let manager = CheckpointManager::new(session.clone()).with_retention(retention());
    let begin = manager.list().unwrap().last().map_or(0, |one| one.id.0);
    for number in begin.. {
        create(&session, task(&format!("t{}-{number}", std::process::id()))).unwrap();
        let checkpoint = manager.create(None).unwrap();
        session.sync().unwrap();
        child::tell("created", checkpoint.id.0);
        if number % 4 == 3 {
            let options = RestoreOptions { by: "child".to_owned(), ..RestoreOptions::default() };
            manager.restore_from_checkpoint(manager.list().unwrap()[0].id, &options).unwrap();
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_every_checkpoint_that_it_told_of_or_a_record_of_its_removal() {
    let directory = tempfile::tempdir().unwrap();
    let part = "checkpoints::kills::part_of_a_child_that_creates_and_restores_until_it_is_killed";
    let types = types();
    let mut told = 0;
    for lines in [1, 4, 7, 9] {
        let mut started = child::start(part, directory.path().to_str().unwrap());
        for _ in 0..lines {
            told = started.hear("created").expect("it goes on").parse().unwrap();
        }
        started.kill();
        let store = Store::open(directory.path()).unwrap();
        let manager = manager(&store, store.session_ids().unwrap()[0], &types);
        let history = CheckpointHistory::from_session(manager.session()).unwrap();
        let latest = history.list().iter().map(|one| one.id).max().unwrap();
        assert!(latest.0 >= told, "{latest} {told}");
        for id in (1..=latest.0).map(CheckpointId) {
            match manager.get(id) {
                Ok(checkpoint) => assert_eq!(checkpoint.id, id),
                Err(error) => assert!(error.to_string().contains("was removed"), "{error}"),
            }
        }
        manager.verify(latest).unwrap();
        manager.session().clone().close().unwrap();
    }
}
