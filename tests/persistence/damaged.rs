//! Damage: each byte of a log and of a workspace's captures, and each length of a file. Damage is
//! reported, each strategy recovers as its plan states, and no loss is silent.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::tools::ExecuteOptions;
use foldlog::{Session, Store, StoreOptions};
use foldlog_tasks::{
    CheckpointId, CheckpointManager, CompressionAlgorithm, CrashRecoveryManager, Error, NewTask,
    RecoveryOutlook, RecoveryStrategy, RestoreOptions, SessionState, Task, TaskStatus, TaskTreeState,
    WorkspaceStores,
};
use uuid::Uuid;

use super::agent::{self, Agent};
use super::checkpoints::kills::copy;
use super::files::{all, by, import, tree_of, two_days};
use super::validation_laws::at;
use super::{change, create, quick_directory, task, types};
use foldlog_test_support::killed::step;

use TaskStatus::{Completed, InProgress, Pending};

#[test]
fn every_file_of_a_tree_that_ends_too_early_is_told_by_its_name() {
    let (told, _) = two_days();
    let directory = quick_directory();
    told.export(directory.path(), &by(CompressionAlgorithm::Zstd));
    let dir = tree_of(directory.path(), told.state.session_id);
    let mut told_of = 0;
    for (name, bytes) in all(&dir) {
        for len in (0..bytes.len()).step_by(step(61)) {
            fs::write(dir.join(&name), &bytes[..len]).unwrap();
            match import(directory.path()) {
                Err(Error::Damaged { files, .. }) => {
                    assert!(files.iter().any(|file| file.path == name), "{name} {len}: {files:?}");
                    told_of += 1;
                }
                // The manifest's final newline contains no data.
                Ok(imported) => {
                    let is_last = name == "meta/checkpoint_manifest.json" && len + 1 == bytes.len();
                    assert!(is_last && told.is(&imported), "{name} {len}");
                }
                Err(other) => panic!("{name} {len}: {other}"),
            }
        }
        fs::write(dir.join(&name), bytes).unwrap();
    }
    println!("{told_of} files that end too early");
    assert!(told_of > 50, "{told_of}");
    assert!(told.is(&import(directory.path()).unwrap()));
}

/// Creates a closed session in small segments, with two checkpoints.
fn small_session(root: &Path) -> (Uuid, PathBuf) {
    let session = small(root).create(&types()).unwrap();
    let manager = CheckpointManager::new(session.clone());
    create(&session, NewTask { description: "x".repeat(1_500), ..task("a") }).unwrap();
    manager.create(None).unwrap();
    create(&session, task("b").requires(super::id("a"))).unwrap();
    change(&session, "a", Pending, InProgress).unwrap();
    change(&session, "a", InProgress, Completed).unwrap();
    manager.create(Some("halfway")).unwrap();
    create(&session, task("c")).unwrap();
    let found = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    found
}

fn small(root: &Path) -> Store {
    let segments = SegmentSizes { first_bytes: 1 << 10, max_bytes: 1 << 10, ahead_bytes_min: 1 << 10 };
    Store::open_with(root, StoreOptions { segments, ..StoreOptions::default() }).unwrap()
}

/// An intact session, and damaged copies of it.
struct Sound {
    dir: PathBuf,
    id: Uuid,
    log: LogReader,
}

impl Sound {
    fn in_directory(root: &Path) -> Sound {
        let (id, dir) = small_session(root);
        let log = LogReader::open(&dir).unwrap();
        Sound { dir, id, log }
    }

    fn tasks_at(&self, position: u64) -> Vec<Task> {
        TaskTreeState::at(&self.log, position).unwrap().tasks.into_values().collect()
    }

    fn tasks(&self) -> Vec<Task> {
        self.tasks_at(self.log.records_len() - 1)
    }

    /// Copies the session into a store, with other bytes in one file.
    fn damaged(&self, root: &Path, name: &Path, bytes: &[u8]) -> Store {
        let _ = fs::remove_dir_all(root);
        let dir = root.join("sessions").join(self.id.to_string());
        copy(&self.dir, &dir);
        fs::write(dir.join(name), bytes).unwrap();
        small(root)
    }

    /// Checks the report about a damaged copy, and each strategy against its plan; returns how many
    /// strategies succeeded.
    fn check(&self, root: &Path, name: &Path, bytes: &[u8], about: &str) -> usize {
        let store = self.damaged(root, name, bytes);
        let manager = CrashRecoveryManager::new(store.clone(), self.id);
        let left = match manager.detect_crash_state(at(0)) {
            Ok(left) => left,
            // Without any valid header there is no session, and the error states that.
            Err(error) => {
                let names_it = error.to_string().contains(&self.id.to_string());
                assert!(names_it && LogReader::open(store.session_dir(self.id)).is_err(), "{about}: {error}");
                return 0;
            }
        };
        let read = LogReader::open(store.session_dir(self.id));
        let is_whole = read.is_ok_and(|log| {
            let tree = TaskTreeState::at(&log, log.last_position());
            tree.is_ok_and(|tree| tree.tasks.into_values().eq(self.tasks()))
        });
        assert!(is_whole || left.is_some(), "{about}: something is lost, and nobody says so");
        if let Some(damaged) = left.iter().flat_map(|left| &left.corrupted_files).next() {
            let of_session = damaged.file.starts_with(store.session_dir(self.id));
            assert!(of_session && !damaged.reason.is_empty(), "{about}: {damaged:?}");
        }
        let followed = [
            RecoveryStrategy::PartialRecovery,
            RecoveryStrategy::IncrementalReconstruction,
            // This strategy writes into the session itself.
            RecoveryStrategy::LatestCheckpoint,
        ];
        let to = Store::open(root.join("to")).unwrap();
        // A log without its end looks like that of a process killed before it wrote the end: the
        // lost records contained any evidence.
        let is_open = left.is_some_and(|left| !left.incomplete_writes.is_empty());
        let follows =
            |strategy: &RecoveryStrategy| self.follow(&manager, *strategy, &store, &to, is_open, about);
        followed.iter().filter(|strategy| follows(strategy)).count()
    }

    /// Recovers a damaged copy by a strategy if possible, and returns whether it was.
    fn follow(
        &self,
        manager: &CrashRecoveryManager,
        strategy: RecoveryStrategy,
        own: &Store,
        to: &Store,
        is_open: bool,
        about: &str,
    ) -> bool {
        let about = format!("{about}, {strategy}");
        let outlook = manager.plan(strategy).unwrap();
        let recovered = manager.recover(strategy, to, "ada", "a bad disk");
        if let Some(reason) = &outlook.impossible {
            assert!(!reason.is_empty() && recovered.is_err(), "{about}");
            return false;
        }
        let recovered = recovered.unwrap_or_else(|error| panic!("{about}: {error}"));
        let store = if outlook.new_session { to } else { own };
        let dir = store.session_dir(recovered.session);
        let log = LogReader::open(dir).unwrap();
        let state = SessionState::at(&log, log.last_position(), &WorkspaceStores::none()).unwrap();
        let tree = &state.task_tree;
        let RecoveryOutlook { tasks, completed_tasks, messages, position, .. } = outlook;
        assert_eq!((tree.tasks.len() as u64, tree.count(Completed)), (tasks, completed_tasks), "{about}");
        assert_eq!(state.claude_context.conversation_history.messages_len(), messages, "{about}");
        let found: Vec<Task> = tree.tasks.values().cloned().collect();
        // The recovered tasks are those at that position, and the missing ones are reported as
        // lost.
        match strategy {
            RecoveryStrategy::IncrementalReconstruction => {
                assert!(recovered.differences.is_empty(), "{about}")
            }
            _ => assert_eq!(found, self.tasks_at(position.unwrap().get()), "{about}"),
        }
        if strategy != RecoveryStrategy::IncrementalReconstruction && found != self.tasks() {
            let is_said = outlook.lost_updates > 0 || !recovered.lost.is_empty() || is_open;
            assert!(is_said, "{about}: something is lost, and nobody says so");
        }
        true
    }
}

/// No loss may be silent: each byte of each file of a session's log is damaged, and each file is
/// cut at each length.
#[test]
fn every_wrong_byte_and_every_end_of_a_log_is_told_and_recovered_as_far_as_each_strategy_states() {
    let directory = quick_directory();
    let sound = Sound::in_directory(&directory.path().join("sound"));
    let segments = all(&sound.dir).into_keys().filter(|name| name.ends_with(".seg"));
    assert!(segments.count() > 1);
    let (mut tried, mut followed) = (0, [0; 4]);
    let root = directory.path().join("damaged");
    for (name, bytes) in all(&sound.dir) {
        for place in (0..bytes.len()).step_by(step(419)) {
            let mut wrong = bytes.clone();
            wrong[place] ^= 1 << (place % 8);
            followed[sound.check(&root, Path::new(&name), &wrong, &format!("{name}, byte {place}"))] += 1;
            tried += 1;
        }
        for len in (0..bytes.len()).step_by(step(701)) {
            followed
                [sound.check(&root, Path::new(&name), &bytes[..len], &format!("{name}, length {len}"))] += 1;
            tried += 1;
        }
    }
    println!("{tried} times damaged: {followed:?} times none, one, two, three strategies");
    assert!(followed[1] > 0 && followed[3] > 0 && tried > 10, "{tried} {followed:?}");
}

/// Restores the checkpoint of a session whose captures are damaged, with its workspace.
fn restore(root: &Path) -> Result<(), String> {
    let (store, _) = agent::open_store(root);
    let session = store.open_session(store.session_ids().unwrap()[0], &agent::types()).unwrap();
    let restored = with_workspace(root, &session);
    session.close().unwrap();
    restored
}

fn with_workspace(root: &Path, session: &Session) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let captures = session.dir().join("files");
    let run = agent::try_run(&root.join("workspace"), &captures, session).map_err(|error| told(&error))?;
    run.recover(&ExecuteOptions::default()).map_err(|error| told(&error))?;
    let manager = CheckpointManager::new(session.clone()).with_resources(run.state().clone());
    let options = RestoreOptions { by: "ada".to_owned(), with_resources: true, ..RestoreOptions::default() };
    manager.restore_from_checkpoint(CheckpointId(1), &options).map(drop).map_err(|error| told(&error))
}

/// A checkpoint restores either the captured workspace or nothing, with an error.
#[test]
fn every_wrong_byte_of_a_capture_is_told_by_a_restore_which_leaves_the_files_as_they_were() {
    let directory = quick_directory();
    let whole = directory.path().join("whole");
    fs::create_dir(&whole).unwrap();
    let captures = {
        let agent = Agent::begin(&whole);
        agent.start("a");
        agent.write("kept.txt", Some("as it was"), false);
        agent.manager().create(None).unwrap();
        agent.write("kept.txt", Some("spoiled"), false);
        agent.finish("a");
        let captures = agent.session.dir().join("files");
        agent.session.clone().close().unwrap();
        captures.strip_prefix(&whole).unwrap().to_owned()
    };
    let (mut restored, mut refused) = (0, 0);
    for (name, bytes) in all(&whole.join(&captures)) {
        for place in (0..bytes.len()).step_by(step(97)) {
            let root = directory.path().join("damaged");
            let _ = fs::remove_dir_all(&root);
            copy(&whole, &root);
            let mut wrong = bytes.clone();
            wrong[place] ^= 1 << (place % 8);
            fs::write(root.join(&captures).join(&name), wrong).unwrap();
            let told = restore(&root);
            let about = format!("{name}, byte {place}: {told:?}");
            let text = fs::read_to_string(root.join("workspace/kept.txt")).unwrap();
            let log = LogReader::open(agent::open_store(&root).0.session_dir(session_of(&root))).unwrap();
            let tree = TaskTreeState::at(&log, log.last_position()).unwrap();
            let status = tree.tasks[&super::id("a")].status;
            match told {
                Ok(()) => {
                    assert_eq!((text.as_str(), status), ("as it was", InProgress), "{about}");
                    restored += 1;
                }
                Err(reason) => {
                    assert_eq!((text.as_str(), status), ("spoiled", Completed), "{about}");
                    assert!(!reason.is_empty());
                    refused += 1;
                }
            }
        }
    }
    println!("{restored} restores in spite of a wrong byte, {refused} refused");
    assert!(refused > 2, "{restored} {refused}");
}

fn session_of(root: &Path) -> Uuid {
    agent::open_store(root).0.session_ids().unwrap()[0]
}
