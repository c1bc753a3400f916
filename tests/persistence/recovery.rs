//! The remains of a crash, and the four recovery strategies.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::log::SegmentSizes;
use foldlog::process::ProcessIdentity;
use foldlog::storage::{FileStorage, Op};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Session, SessionTypes, Store, StoreOptions};
use foldlog_tasks::{
    CheckpointId, CheckpointManager, CrashRecoveryManager, CrashState, Error, IncompleteWrite, NewTask,
    OrphanedResource, RecoveryAction, RecoveryActions, RecoveryStrategy, RestoreOptions, SessionState,
    TaskTreeState, Tasks, WorkspaceStores,
};
use foldlog_tasks::{StateCompression, TreeContents, export_tree};
use foldlog_tasks::{TaskStatus::*, open_without_host};
use foldlog_test_support::{Watched, child};

use crate::agent::{self, Agent};
use crate::checkpoints::kills::{copy, frames};
use crate::{change, create, task, types};

/// The time of the check.
macro_rules! now {
    () => {
        serde_json::from_str("\"2026-01-02T03:00:00Z\"").unwrap()
    };
}

fn detect(session: &Session) -> Option<CrashState> {
    let (store, id) = (session.store(), session.id());
    CrashRecoveryManager::new(store, id).detect_crash_state(now!()).unwrap()
}

fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut next = vec![root.to_owned()];
    while let Some(directory) = next.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                next.push(path);
            } else {
                found.insert(path.to_str().unwrap().to_owned(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// Creates a session in small segments: three tasks, with a checkpoint after each of the first two.
fn session_in(store: &Store) -> Session {
    let session = store.create(&types()).unwrap();
    let manager = CheckpointManager::new(session.clone());
    let long = |name: &str| NewTask { description: "x".repeat(3_000), ..task(name) };
    create(&session, long("a")).unwrap();
    manager.create(None).unwrap();
    create(&session, long("b")).unwrap();
    change(&session, "a", Pending, InProgress).unwrap();
    manager.create(Some("halfway")).unwrap();
    change(&session, "a", InProgress, Completed).unwrap();
    create(&session, long("c").requires(crate::id("b"))).unwrap();
    session
}

fn small(root: &Path) -> Store {
    let segments = SegmentSizes { first_bytes: 1 << 10, max_bytes: 1 << 10, ahead_bytes_min: 1 << 10 };
    Store::open_with(root, StoreOptions { segments, ..StoreOptions::default() }).unwrap()
}

#[test]
fn a_session_that_was_closed_left_nothing_and_each_thing_that_a_crash_leaves_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = session_in(&store);
    // An open session is in use, so its remains are undetermined.
    let manager = CrashRecoveryManager::new(store.clone(), session.id());
    let error = manager.detect_crash_state(now!()).unwrap_err();
    assert!(matches!(error, Error::Engine(foldlog::Error::Locked { .. })), "{error}");
    session.clone().close().unwrap();
    assert_eq!(detect(&session), None);

    // A writer that did not close it.
    let killed = directory.path().join("killed");
    let again = store.open_session(session.id(), &types()).unwrap();
    create(&again, task("d")).unwrap();
    copy(again.dir(), &killed.join("sessions").join(session.id().to_string()));
    again.close().unwrap();
    let left = Store::open(&killed).unwrap();
    let left = CrashRecoveryManager::new(left, session.id());
    let found = left.detect_crash_state(now!()).unwrap().unwrap();
    assert!(matches!(found.incomplete_writes[..], [IncompleteWrite::NotClosed { .. }]), "{found:?}");
    assert!(found.corrupted_files.is_empty() && found.orphaned_resources.is_empty());
    assert_eq!(serde_json::to_value(found.detected_at).unwrap(), "2026-01-02T03:00:00Z");

    // An unfinished restore, the directory of a deletion, and a recorded process.
    let again = store.open_session(session.id(), &types()).unwrap();
    let restore = RecoveryAction {
        action: RecoveryAction::RESTORE.to_owned(),
        by: "ada".to_owned(),
        reason: "it went wrong".to_owned(),
        subject: Some("checkpoint_001".to_owned()),
        lost: Vec::new(),
    };
    again.dispatch(restore.clone()).unwrap();
    let mut sleeper = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let identity = ProcessIdentity::from_pid(sleeper.id());
    again.inputs().observe("builder.started", || identity.clone()).unwrap();
    again.close().unwrap();
    let deleted = directory.path().join("sessions").join(format!(".deleted-{}", session.id()));
    fs::create_dir(&deleted).unwrap();
    let found = detect(&session).unwrap();
    let [IncompleteWrite::Restore { subject, .. }, IncompleteWrite::Leftover { file }] =
        &found.incomplete_writes[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!((subject.as_str(), file), ("checkpoint_001", &deleted));
    let [OrphanedResource::Process { name, process }] = &found.orphaned_resources[..] else {
        panic!("{found:?}")
    };
    assert_eq!((name.as_str(), Some(process)), ("builder.started", identity.as_ref()));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    fs::remove_dir(&deleted).unwrap();
    let again = store.open_session(session.id(), &types()).unwrap();
    again.dispatch(RecoveryAction { action: RecoveryAction::RESTORED.to_owned(), ..restore }).unwrap();
    again.close().unwrap();
    assert_eq!(detect(&session), None, "all of it is over");
    let manager = manager.with_source(|state| {
        state.incomplete_writes.push(IncompleteWrite::Other { what: "a temporary file".to_owned() });
        Ok(())
    });
    assert_eq!(manager.detect_crash_state(now!()).unwrap().unwrap().incomplete_writes.len(), 1);
}

/// The child's part: holds a session open until it is killed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_holds_a_session() {
    let Some(argument) = child::argument() else { return };
    let (path, id) = argument.split_once(' ').unwrap();
    let session = Store::open(path).unwrap().open_session(id.parse().unwrap(), &types()).unwrap();
    create(&session, task("d")).unwrap();
    child::tell("holding", id);
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A process that ends with the test, whatever its result.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A forked process shares its parent's lock, and still holds it after the parent was killed.
#[test]
fn the_lock_of_a_killed_writer_that_a_process_still_holds_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = session_in(&store);
    session.clone().close().unwrap();
    let manager = CrashRecoveryManager::new(store.clone(), session.id());
    let argument = format!("{} {}", directory.path().display(), session.id());
    let mut writer = child::start("recovery::part_of_a_child_that_holds_a_session", &argument);
    writer.hear("holding").unwrap();
    let running = manager.detect_crash_state(now!()).unwrap_err();
    assert!(matches!(running, Error::Engine(foldlog::Error::Locked { .. })), "{running}");
    let pid = writer.id();
    writer.kill();

    let locks = child::lock_sessions(directory.path());
    let (out, err) = (Stdio::null(), Stdio::null());
    let forked = Command::new("sleep").arg("600").stdin(locks).stdout(out).stderr(err).spawn();
    let forked = Ended(forked.unwrap());
    let found = manager.detect_crash_state(now!()).unwrap().unwrap();
    let [lock @ OrphanedResource::Lock { holder }] = &found.orphaned_resources[..] else {
        panic!("{found:?}")
    };
    assert!(holder.contains(&format!("{pid}")), "{holder}");
    assert_eq!(lock.to_string(), format!("the writer's lock is left over: {holder}"));
    assert!(holder.ends_with("has ended: a process that it forked still holds the lock"), "{holder}");
    assert!(matches!(found.incomplete_writes[..], [IncompleteWrite::NotClosed { .. }]), "{found:?}");

    drop(forked);
    let found = manager.detect_crash_state(now!()).unwrap().unwrap();
    assert_eq!(found.orphaned_resources, [], "the lock ended with its holder");
    assert!(matches!(found.incomplete_writes[..], [IncompleteWrite::NotClosed { .. }]), "{found:?}");
}

#[test]
fn each_strategy_brings_back_what_it_said_and_telling_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = session_in(&store);
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let manager = CrashRecoveryManager::new(store.clone(), id);
    let before = files(directory.path());
    let outlooks = manager.plan_all().unwrap();
    assert_eq!(files(directory.path()), before, "telling writes nothing");
    let told: Vec<_> = outlooks
        .iter()
        .map(|one| {
            (one.strategy.to_string(), one.tasks, one.completed_tasks, one.lost_updates, one.new_session)
        })
        .collect();
    let of = |name: &str, tasks, completed, lost, new| (name.to_owned(), tasks, completed, lost, new);
    assert_eq!(
        told,
        [
            of("latest", 2, 0, 2, false),
            of("checkpoint:1", 1, 0, 4, false),
            of("checkpoint:2", 2, 0, 2, false),
            of("updates", 3, 1, 0, true),
            of("partial", 3, 1, 0, true),
        ]
    );
    assert!(outlooks.iter().all(|one| one.impossible.is_none()));
    for outlook in outlooks {
        // Each strategy starts from the remains of the crash.
        let root = directory.path().join(format!("of-{}", outlook.strategy));
        copy(&dir, &root.join("sessions").join(id.to_string()));
        let store = Store::open(&root).unwrap();
        let manager = CrashRecoveryManager::new(store.clone(), id);
        let recovered = manager.recover(outlook.strategy, &store, "ada", "the machine died").unwrap();
        assert_eq!(recovered.outlook, manager_outlook(&outlook, &recovered.outlook.lost));
        assert_eq!(recovered.session == id, !outlook.new_session);
        assert!(recovered.differences.is_empty(), "{recovered:?}");
        let (session, _) = open_without_host(&store, recovered.session).unwrap();
        let tree = TaskTreeState::from_session(&session).unwrap();
        assert_eq!(
            (tree.tasks.len() as u64, tree.count(Completed)),
            (outlook.tasks, outlook.completed_tasks)
        );
        let last = session.log().slice::<RecoveryActions>().unwrap().tail(1).unwrap().remove(0);
        assert_eq!((last.by.as_str(), last.reason.as_str()), ("ada", "the machine died"));
        let end = session.log().position().unwrap();
        session.close().unwrap();
        let log = foldlog::inspect::LogReader::open(store.session_dir(recovered.session)).unwrap();
        let state = SessionState::at(&log, end, &WorkspaceStores::none()).unwrap();
        let is_partial = outlook.strategy == RecoveryStrategy::PartialRecovery;
        assert_eq!(state.configuration.requires_validation, is_partial);
    }
    let missing = RecoveryStrategy::SpecificCheckpoint(CheckpointId(7));
    let outlook = manager.plan(missing).unwrap();
    assert!(outlook.impossible.unwrap().contains("no checkpoint_007"));
    let error = manager.recover(missing, &store, "ada", "x").unwrap_err();
    assert!(matches!(error, Error::Impossible { .. }), "{error}");
    assert_eq!(
        files(&dir),
        before.into_iter().filter(|(path, _)| path.starts_with(dir.to_str().unwrap())).collect()
    );
}

fn manager_outlook(told: &foldlog_tasks::RecoveryOutlook, lost: &[String]) -> foldlog_tasks::RecoveryOutlook {
    foldlog_tasks::RecoveryOutlook { lost: lost.to_vec(), ..told.clone() }
}

#[test]
fn a_wrong_byte_in_any_segment_is_found_and_what_partial_recovery_loses_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let store = small(&directory.path().join("whole"));
    let session = session_in(&store);
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let frames = frames(&dir);
    let segments: std::collections::BTreeSet<_> = frames.iter().map(|(file, ..)| file.clone()).collect();
    assert!(segments.len() > 2, "{segments:?}");
    let whole = foldlog::inspect::LogReader::open(&dir).unwrap();
    let end = whole.records_len() - 1;
    let all = TaskTreeState::at(&whole, end).unwrap();
    let (mut partial, mut lost) = (0, 0);
    for segment in segments {
        let of_segment: Vec<_> = frames.iter().filter(|(file, ..)| *file == segment).collect();
        // Damage to the first, a middle and the last frame.
        for at in [0, of_segment.len() / 2, of_segment.len() - 1] {
            let (_, begin, frame_end) = of_segment[at];
            let root = directory.path().join("damaged");
            let _ = fs::remove_dir_all(&root);
            let damaged = root.join("sessions").join(id.to_string());
            copy(&dir, &damaged);
            let file = damaged.join(segment.file_name().unwrap());
            let mut bytes = fs::read(&file).unwrap();
            bytes[usize::try_from(begin + (frame_end - begin) / 2).unwrap()] ^= 0x10;
            fs::write(&file, &bytes).unwrap();
            let before = files(&damaged);
            let store = Store::open(&root).unwrap();
            let manager = CrashRecoveryManager::new(store.clone(), id);
            let state = manager.detect_crash_state(now!()).unwrap().expect("a wrong byte is found");
            let to = Store::open(root.join("to")).unwrap();
            let outlook = manager.plan(RecoveryStrategy::PartialRecovery).unwrap();
            if let Some(reason) = outlook.impossible {
                assert!(!reason.is_empty());
                continue;
            }
            let recovered =
                manager.recover(RecoveryStrategy::PartialRecovery, &to, "ada", "a bad disk").unwrap();
            assert_eq!(recovered.lost, outlook.lost.iter().map(|one| one.to_owned()).collect::<Vec<_>>());
            let (session, _) = open_without_host(&to, recovered.session).unwrap();
            let tree = TaskTreeState::from_session(&session).unwrap();
            assert_eq!(tree.tasks.len() as u64, outlook.tasks);
            // All tasks are recovered, or the missing ones are listed.
            if tree.tasks != all.tasks {
                assert!(!recovered.lost.is_empty(), "{segment:?} {at}: {state:?}");
                lost += 1;
            }
            session.close().unwrap();
            let log = foldlog::inspect::LogReader::open(to.session_dir(recovered.session)).unwrap();
            let configuration = SessionState::at(&log, log.records_len() - 1, &WorkspaceStores::none())
                .unwrap()
                .configuration;
            assert!(configuration.requires_validation && configuration.validation_reason.is_some());
            if !state.corrupted_files.is_empty() {
                for strategy in
                    [RecoveryStrategy::LatestCheckpoint, RecoveryStrategy::IncrementalReconstruction]
                {
                    assert!(manager.plan(strategy).unwrap().impossible.is_some(), "{strategy}");
                }
            }
            assert_eq!(files(&damaged), before, "the damaged session is read only");
            partial += 1;
        }
    }
    assert!(partial > 4 && lost > 1, "{partial} {lost}");
}

#[test]
fn a_conversation_is_made_again_of_updates_and_a_checkpoint_brings_a_workspace_back() {
    let directory = tempfile::tempdir().unwrap();
    let (id, dir) = {
        let agent = Agent::begin(directory.path());
        let manager =
            CheckpointManager::new(agent.session.clone()).with_resources(agent.runner().state().clone());
        agent.start("a");
        agent.converse("talk", "one.txt");
        manager.create(None).unwrap();
        agent.write("one.txt", Some("spoiled"), false);
        agent.finish("a");
        let found = (agent.session.id(), agent.session.dir().to_owned());
        agent.session.clone().close().unwrap();
        found
    };
    let (store, _) = agent::open_store(directory.path());
    let files = foldlog::filesystem::HostFilesystem::open(
        directory.path().join("workspace"),
        dir.join("files"),
        foldlog::filesystem::HostFilesystemOptions::default(),
    )
    .unwrap();
    let resources =
        foldlog::ResourceRegistry::builder().filesystem(std::sync::Arc::new(files)).build().unwrap();
    let manager =
        CrashRecoveryManager::new(store.clone(), id).with_resources(resources).with_types(agent::types());
    let updates = manager.plan(RecoveryStrategy::IncrementalReconstruction).unwrap();
    let again =
        manager.recover(RecoveryStrategy::IncrementalReconstruction, &store, "ada", "to compare").unwrap();
    assert!(again.differences.is_empty(), "{again:?}");
    assert!(
        again.lost.len() == 2 && again.lost.iter().all(|one| one.contains("change of `one.txt`")),
        "{again:?}"
    );
    let log = foldlog::inspect::LogReader::open(store.session_dir(again.session)).unwrap();
    let state = SessionState::at(&log, log.records_len() - 1, &WorkspaceStores::none()).unwrap();
    assert_eq!(state.claude_context.conversation_history.messages_len(), updates.messages);
    assert!(updates.messages > 3 && updates.lost_updates == 2, "{updates:?}");

    let latest = manager.plan(RecoveryStrategy::LatestCheckpoint).unwrap();
    assert_eq!((latest.tasks, latest.files, latest.lost_updates), (1, 1, 2));
    manager.recover(RecoveryStrategy::LatestCheckpoint, &store, "ada", "it was spoiled").unwrap();
    let text = fs::read_to_string(directory.path().join("workspace/one.txt")).unwrap();
    assert_eq!(text, "by the model");
}

#[test]
fn damage_and_leftovers_of_a_tree_of_files_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let session = session_in(&store);
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let log = foldlog::inspect::LogReader::open(&dir).unwrap();
    let state = SessionState::at(&log, log.records_len() - 1, &WorkspaceStores::none()).unwrap();
    let root = directory.path().join("workspace");
    fs::create_dir(&root).unwrap();
    let manager = CrashRecoveryManager::new(store, id).with_tree(&root);
    assert_eq!(manager.detect_crash_state(now!()).unwrap(), None, "no tree is no damage");
    export_tree(&TreeContents::new(&state), &root, &StateCompression::default()).unwrap();
    assert_eq!(manager.detect_crash_state(now!()).unwrap(), None);

    let tree = root.join(".aca/sessions").join(id.to_string());
    let tasks = tree.join("state/task_tree.json");
    let sound = fs::read(&tasks).unwrap();
    let mut wrong = sound.clone();
    wrong[10] ^= 1;
    fs::write(&tasks, wrong).unwrap();
    let leftover = tree.join("state/task_tree.json.new");
    fs::write(&leftover, "half").unwrap();
    let found = manager.detect_crash_state(now!()).unwrap().unwrap();
    assert_eq!(found.incomplete_writes, [IncompleteWrite::Leftover { file: leftover.clone() }]);
    let [damaged] = &found.corrupted_files[..] else { panic!("{found:?}") };
    assert_eq!(damaged.file, tasks);
    fs::write(&tasks, sound).unwrap();
    fs::remove_file(leftover).unwrap();
    assert_eq!(manager.detect_crash_state(now!()).unwrap(), None);
}

/// Copies the session's directory while it runs, as a kill would leave it.
struct Copied {
    from: PathBuf,
    to: PathBuf,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

impl Tool for Copied {
    const NAME: &'static str = "copied";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        create(context.session(), task("within"))?;
        context.session().sync()?;
        copy(&self.from, &self.to);
        Ok(ToolResult::ok("done", ()))
    }
}

/// Returns a session that was killed while a tool worked on its workspace, in a store below the
/// directory.
fn killed_within_a_call(directory: &Path) -> (Store, uuid::Uuid) {
    let agent = Agent::begin(directory);
    agent.start("a");
    agent.write("one", Some("1"), false);
    let (id, root) = (agent.session.id(), directory.join("killed"));
    let to = root.join("sessions").join(id.to_string());
    let copied = Copied { from: agent.session.dir().to_owned(), to };
    let runner = ToolRunner::new(agent.runner().state().clone(), ToolRegistry::new().with(copied));
    assert!(runner.execute(&ToolCall::new("copied", "{}"), &ExecuteOptions::default()).unwrap().success);
    agent.session.clone().close().unwrap();
    (Store::open(root).unwrap(), id)
}

/// If the intact part ended within a call, partial recovery failed with a mismatch of snapshots. It
/// left its new session behind: interrupted, and without any message about validation.
#[test]
fn a_log_whose_sound_part_ends_within_a_call_is_recovered_with_the_call_ended() {
    let directory = tempfile::tempdir().unwrap();
    let (store, id) = killed_within_a_call(directory.path());
    let to = Store::open(directory.path().join("to")).unwrap();
    let manager = CrashRecoveryManager::new(store, id);
    let outlook = manager.plan(RecoveryStrategy::PartialRecovery).unwrap();
    assert_eq!((outlook.tasks, outlook.impossible.as_deref()), (1, None), "what the call did is taken back");
    let recovered = manager.recover(RecoveryStrategy::PartialRecovery, &to, "ada", "it was killed").unwrap();
    assert_eq!(recovered.outlook, outlook);
    let lost = recovered.lost.join("\n");
    assert!(lost.contains("(`copied`) did: it was open"), "{lost}");
    assert!(lost.contains("what `workspace` was before the open call: it stays as the call"), "{lost}");
    assert_eq!(to.session_ids().unwrap(), [recovered.session]);
    let (session, _) = open_without_host(&to, recovered.session).unwrap();
    assert!(!session.calls().is_interrupted());
    assert_eq!(TaskTreeState::from_session(&session).unwrap().tasks.len(), 1);
    let action = session.log().slice::<RecoveryActions>().unwrap().tail(1).unwrap().remove(0);
    assert_eq!(action.lost, recovered.lost);
    session.close().unwrap();
    let log = to.read_log(recovered.session).unwrap();
    let state = SessionState::at(&log, log.last_position(), &WorkspaceStores::none()).unwrap();
    assert!(state.configuration.requires_validation);
}

/// A recovery that failed after the salvage left the salvaged session without reporting it.
#[test]
fn a_partial_recovery_that_fails_leaves_no_session() {
    let directory = tempfile::tempdir().unwrap();
    let (store, id) = killed_within_a_call(directory.path());
    let to = Store::open(directory.path().join("to")).unwrap();
    // The host's types contradict the log about a slice.
    let types =
        SessionTypes::builder().slice_with::<Tasks>(foldlog::Policy::Log).seeded::<Tasks>().build().unwrap();
    let manager = CrashRecoveryManager::new(store, id).with_types(types);
    manager.recover(RecoveryStrategy::PartialRecovery, &to, "ada", "it was killed").unwrap_err();
    assert!(to.session_ids().unwrap().is_empty());
}

/// A restore whose resources were refused left its start record without an end. Every later check
/// of the session reported a killed restore.
#[test]
fn a_restore_that_is_refused_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    agent.write("one", Some("1"), false);
    let checkpoint = agent.manager().create(None).unwrap();
    let nothing = foldlog::ResourceRegistry::builder().build().unwrap();
    let run = foldlog::ExecutionState::new(agent.session.clone(), nothing);
    let manager = CheckpointManager::new(agent.session.clone()).with_resources(run);
    let options = RestoreOptions { with_resources: true, ..RestoreOptions::default() };
    let error = manager.restore_from_checkpoint(checkpoint.id, &options).unwrap_err();
    assert!(matches!(error, Error::Engine(foldlog::Error::SnapshotMismatch(_))), "{error}");
    let actions = agent.session.log().slice::<RecoveryActions>().unwrap().tail(2).unwrap();
    let told: Vec<_> = actions.iter().map(|one| one.action.as_str()).collect();
    assert_eq!(told, [RecoveryAction::RESTORE, RecoveryAction::RESTORE_FAILED]);
    assert_eq!(actions[1].lost, [error.to_string()]);
    let session = agent.session.clone();
    agent.session.clone().close().unwrap();
    assert_eq!(detect(&session), None);
}

/// The report of all strategies opened, folded and walked the log several times for each
/// checkpoint.
#[test]
fn strategies_are_told_by_one_walk_however_many_checkpoints_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let opened = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&opened);
    let disk = Watched::new(FileStorage::new(), move |op, _| {
        counter.fetch_add(u64::from(op == Op::Open), Ordering::Relaxed);
    });
    let options = StoreOptions { storage: Arc::new(disk), ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let opens = |checkpoints: u64| {
        let session = store.create(&types()).unwrap();
        let manager = CheckpointManager::new(session.clone());
        for number in 0..checkpoints {
            create(&session, task(&format!("t{number}"))).unwrap();
            manager.create(None).unwrap();
        }
        session.clone().close().unwrap();
        let before = opened.load(Ordering::Relaxed);
        let told = CrashRecoveryManager::new(store.clone(), session.id()).plan_all().unwrap();
        assert_eq!(told.len() as u64, checkpoints + 3);
        assert!(told.iter().all(|one| one.impossible.is_none()));
        let tasks: Vec<u64> = told[1..].iter().map(|one| one.tasks).collect();
        assert_eq!(tasks[..tasks.len() - 2], (1..=checkpoints).collect::<Vec<_>>());
        opened.load(Ordering::Relaxed) - before
    };
    let (few, many) = (opens(4), opens(24));
    // A checkpoint's hash covers the records after the one before: this takes one reading of the
    // log for each, and no more.
    assert!(many - few < 2 * 20, "{few} {many}");
}
