//! Scenarios of hosts with sessions of long-running work: first as intended, and then with faults.
//!
//! Each scenario consists of actions and the expected view of the sessions. [`scenario`] also
//! checks that view from another process while the session is open, after a kill at the end, and
//! after the end of the host. It cuts the log after many of its records, and damages it in several
//! places.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use foldlog::inspect::LogReader;
use foldlog::{Session, Store};
use foldlog_tasks::TaskStatus::{Completed, InProgress, Pending};
use foldlog_tasks::{
    AtomicPersistence, Checkpoint, CheckpointHistory, CheckpointId, CheckpointManager, CheckpointPolicy,
    CrashRecoveryManager, Error, Occasion, RecoveryStrategy, RestoreOptions, RetentionPolicy,
    SessionConfiguration, SessionConfigured, SessionState, StateComponent, StateCompression, StateValidator,
    TaskCreated, TaskTreeState, TreeContents, TreeLimits, WorkspaceStores, export_session, import_tree,
    open_without_host,
};
use foldlog_test_support::child;
use serde::{Deserialize, Serialize};

use crate::agent::{self, Agent};
use crate::checkpoints::kills::{copy, frames};
use crate::{BEGIN_US, change, create, id, quick_directory, task};

/// The time of the check.
macro_rules! now {
    () => {
        serde_json::from_str("\"2026-01-02T03:00:00Z\"").unwrap()
    };
}

/// The outside view of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    state: SessionState,
    checkpoints: Vec<Checkpoint>,
}

impl Seen {
    fn of(log: &LogReader, stores: &WorkspaceStores) -> Seen {
        let state = SessionState::at(log, log.records_len() - 1, stores).unwrap();
        let history = CheckpointHistory::read(log).unwrap();
        let checkpoints: Vec<Checkpoint> = history.list().into_iter().cloned().collect();
        checkpoints.iter().for_each(|one| history.verify(log, one.id).unwrap());
        Seen { state, checkpoints }
    }

    fn ids(&self) -> Vec<u64> {
        self.checkpoints.iter().map(|one| one.id.0).collect()
    }

    fn tasks(&self) -> Vec<&str> {
        self.state.task_tree.tasks.keys().map(|id| id.as_str()).collect()
    }
}

/// Reads all sessions below a directory, in the order of their creation.
fn look(root: &Path) -> Vec<Seen> {
    let (store, _) = agent::open_store(root);
    let mut sessions = store.session_ids().unwrap();
    sessions.sort_by_key(|id| store.summary(*id).unwrap().created_at_us);
    let seen = sessions.into_iter().map(|id| {
        let dir = store.session_dir(id);
        Seen::of(&LogReader::open(&dir).unwrap(), &WorkspaceStores::from_session_dir(&dir))
    });
    seen.collect()
}

#[test]
#[ignore = "a part of other tests, which run it in a process of its own"]
fn part_of_a_child_that_looks_and_wants_to_write() {
    let Some(root) = child::argument() else { return };
    let root = Path::new(&root);
    child::tell("seen", serde_json::to_string(&look(root)).unwrap());
    let (store, _) = agent::open_store(root);
    for id in store.session_ids().unwrap() {
        let may_write = match store.open_session(id, &agent::types()) {
            Ok(_) => true,
            Err(foldlog::Error::Locked { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        child::tell("may-write", may_write);
    }
}

/// Runs a scenario: an agent's actions, and a check of its sessions afterwards.
fn scenario(act: impl FnOnce(&Agent), check: impl Fn(&[Seen])) {
    let directory = quick_directory();
    let root = directory.path().join("first");
    fs::create_dir(&root).unwrap();
    let agent = Agent::begin(&root);
    act(&agent);
    let seen = look(&root);
    check(&seen);
    // Another process has the same view, and cannot write while this one may.
    let part = "scenarios::part_of_a_child_that_looks_and_wants_to_write";
    let mut other = child::start(part, root.to_str().unwrap());
    assert_eq!(serde_json::from_str::<Vec<Seen>>(&other.hear("seen").unwrap()).unwrap(), seen);
    let refused = change(&agent.session, "no-such-task", Pending, InProgress).unwrap_err();
    let is_open = matches!(refused, foldlog::Error::Refused { .. });
    let may_write: Vec<String> = seen.iter().map(|_| other.hear("may-write").unwrap()).collect();
    assert_eq!(may_write.iter().any(|one| one == "false"), is_open, "{may_write:?}");
    assert!(other.passed());
    // After a kill of the host all data remains, and the next process can write.
    let killed = directory.path().join("killed");
    copy(&root, &killed);
    let dir = killed.join("store/sessions").join(agent.session.id().to_string());
    let (cut, wrong) = (cut_behind_records(&dir, directory.path()), wrong_bytes(&dir, directory.path()));
    assert!(cut > 0 && wrong > 0, "{cut} {wrong}");
    check(&look(&killed));
    let (store, _) = agent::open_store(&killed);
    let again = store.open_session(agent.session.id(), &agent::types()).unwrap();
    create(&again, task("after-the-kill")).unwrap();
    CheckpointManager::new(again.clone()).create(None).unwrap();
    again.close().unwrap();
    // The host ends, and leaves nothing to recover.
    if is_open {
        agent.session.clone().close().unwrap();
    }
    check(&look(&root));
    let recovery = CrashRecoveryManager::new(agent.store.clone(), agent.session.id());
    assert_eq!(recovery.detect_crash_state(now!()).unwrap(), None);
}

/// Cuts a log after some of its records, as a kill of its host would: the remains equal the state
/// at that time, and the next process can write. Returns the number of cuts.
fn cut_behind_records(dir: &Path, directory: &Path) -> usize {
    let whole = LogReader::open(dir).unwrap();
    let (frames, mut cuts) = (frames(dir), 0);
    let stores = WorkspaceStores::from_session_dir(dir);
    for (file, _, end) in frames.iter().skip(frames.len() / 3).step_by(frames.len() / 3 + 1) {
        let root = directory.join("cut");
        let _ = fs::remove_dir_all(&root);
        let cut = root.join("store/sessions").join(dir.file_name().unwrap());
        copy(dir, &cut);
        let file = cut.join(file.file_name().unwrap());
        let mut bytes = fs::read(&file).unwrap();
        bytes[usize::try_from(*end).unwrap()..].fill(0);
        fs::write(&file, bytes).unwrap();
        let log = match LogReader::open(&cut) {
            Ok(log) => log,
            // The session did not exist yet.
            Err(foldlog::Error::NotASession { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let last = log.records_len() - 1;
        let was = SessionState::at(&whole, last, &stores).unwrap();
        assert_eq!(SessionState::at(&log, last, &stores).unwrap(), was, "behind record {last}");
        let (store, _) = agent::open_store(&root);
        let (session, _) = open_without_host(&store, log.opening_record().session).unwrap();
        assert_eq!(TaskTreeState::from_session(&session).unwrap(), was.task_tree);
        session.close().unwrap();
        cuts += 1;
    }
    cuts
}

/// Damages a log in several places: each is found, and partial recovery returns the state before
/// the damage, or explains why it returns nothing. Returns the number of places.
fn wrong_bytes(dir: &Path, directory: &Path) -> usize {
    let whole = LogReader::open(dir).unwrap();
    let (frames, mut places) = (frames(dir), 0);
    for (file, begin, end) in &frames[frames.len() / 2..=frames.len() / 2] {
        let root = directory.join("wrong");
        let _ = fs::remove_dir_all(&root);
        let wrong = root.join("store/sessions").join(dir.file_name().unwrap());
        copy(dir, &wrong);
        let file = wrong.join(file.file_name().unwrap());
        let mut bytes = fs::read(&file).unwrap();
        bytes[usize::try_from(begin + (end - begin) / 2).unwrap()] ^= 0x20;
        fs::write(&file, bytes).unwrap();
        copy(&dir.ancestors().nth(3).unwrap().join("workspace"), &root.join("workspace"));
        let (store, _) = agent::open_store(&root);
        let manager = CrashRecoveryManager::new(store.clone(), whole.opening_record().session)
            .with_resources(agent::resources(&root.join("workspace"), &wrong.join("files"), true));
        let found = manager.detect_crash_state(now!()).unwrap().expect("a wrong byte is found");
        assert!(found.corrupted_files.iter().any(|one| one.file == file), "{found:?}");
        places += 1;
        let strategy = RecoveryStrategy::PartialRecovery;
        let to = Store::open(root.join("to")).unwrap();
        let recovered = match manager.recover(strategy, &to, "ada", "a wrong byte") {
            Ok(recovered) => recovered,
            Err(Error::Impossible { reason, .. }) => {
                assert!(reason.contains("is damaged at byte"), "{reason}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let log = LogReader::open(to.session_dir(recovered.session)).unwrap();
        let state = SessionState::at(&log, log.records_len() - 1, &WorkspaceStores::none()).unwrap();
        assert!(state.configuration.requires_validation);
        let (last, before) = (whole.records_len() - 1, recovered.outlook.position.unwrap());
        assert!(before.get() >= last || !recovered.lost.is_empty(), "what is lost is listed: {recovered:?}");
        let was = TaskTreeState::at(&whole, before.min(last.into())).unwrap();
        assert_eq!(state.task_tree, was, "{recovered:?}");
    }
    places
}

fn by_somebody() -> RestoreOptions {
    let (by, reason) = ("ada".to_owned(), "it went wrong".to_owned());
    RestoreOptions { by, reason, ..RestoreOptions::default() }
}

fn configure(session: &Session, name: &str) {
    let configuration = SessionConfiguration { name: name.to_owned(), ..SessionConfiguration::default() };
    session.dispatch(SessionConfigured { configuration }).unwrap();
}

#[test]
fn s01_a_new_session_has_an_id_a_time_and_the_name_that_its_host_gives_it() {
    scenario(
        |agent| configure(&agent.session, "four days"),
        |seen| {
            let [Seen { state, checkpoints }] = seen else { panic!("{seen:?}") };
            assert_eq!(state.created_at.timestamp_micros(), BEGIN_US);
            assert_eq!((state.last_checkpoint, checkpoints.len()), (state.created_at, 0));
            assert_eq!(state.configuration.name, "four days");
            assert!(state.task_tree.tasks.is_empty() && !state.session_id.is_nil());
        },
    );
}

#[test]
fn s02_the_books_of_checkpoints_follow_each_update() {
    scenario(
        |agent| {
            agent.clock.advance_us(5_000_000);
            agent.start("a");
            agent.manager().create(None).unwrap();
            agent.clock.advance_us(5_000_000);
            agent.finish("a");
            agent.manager().create(None).unwrap();
        },
        |seen| {
            let [Seen { state, checkpoints }] = seen else { panic!("{seen:?}") };
            assert_eq!(state.last_checkpoint.timestamp_micros(), BEGIN_US + 10_000_000);
            let counts = checkpoints.iter().map(|one| &one.manifest);
            let counts: Vec<_> = counts.map(|one| (one.completed_tasks, one.active_tasks.len())).collect();
            assert_eq!(counts, [(0, 1), (1, 0)]);
            assert_eq!(checkpoints[1].created_at, state.last_checkpoint);
        },
    );
}

#[test]
fn s03_a_manager_of_a_new_session_creates_nothing_by_itself() {
    scenario(
        |agent| {
            let manager = agent.manager();
            assert!(manager.latest().unwrap().is_none() && manager.auto_save());
            for name in ["a", "b", "c", "d", "e"] {
                manager.dispatch(TaskCreated { task: task(name) }).unwrap();
            }
            let missing = manager.restore_from_checkpoint(CheckpointId(1), &by_somebody());
            assert!(matches!(missing, Err(Error::NoSuchCheckpoint { known: 0, .. })));
        },
        |seen| assert_eq!((seen[0].ids(), seen[0].tasks().len()), (vec![], 5)),
    );
}

/// The directory of the session's tree in these scenarios: next to its log, so that a copy contains
/// both.
fn tree_of(agent: &Agent) -> PathBuf {
    agent.session.dir().parent().unwrap().parent().unwrap().to_owned()
}

#[test]
fn s04_a_state_that_is_saved_is_loaded_part_for_part_and_a_damaged_one_is_not() {
    scenario(
        |agent| {
            agent.start("a");
            agent.write("one.txt", Some("1"), false);
            agent.converse("talk", "two.txt");
            let (to, state) = (tree_of(agent), agent.read());
            let saved = AtomicPersistence::new(&to, state.session_id, StateCompression::default());
            saved.persist_state(StateComponent::TaskTree, &state.task_tree).unwrap();
            let missing = saved.load_state::<SessionConfiguration>(StateComponent::Configuration);
            assert!(matches!(missing, Err(Error::ComponentNotFound(StateComponent::Configuration))));
            foldlog_tasks::export_tree(&TreeContents::new(&state), &to, &StateCompression::default())
                .unwrap();
            assert_eq!(import_tree(&to, TreeLimits::default()).unwrap().state, state);
            let file =
                to.join(format!(".aca/sessions/{}/claude/conversation/current.json", state.session_id));
            let sound = fs::read(&file).unwrap();
            let mut wrong = sound.clone();
            wrong[sound.len() / 2] ^= 1;
            fs::write(&file, wrong).unwrap();
            let damaged = import_tree(&to, TreeLimits::default()).unwrap_err();
            let Error::Damaged { files, .. } = &damaged else { panic!("{damaged}") };
            assert_eq!((files.len(), files[0].path.as_str()), (1, "claude/conversation/current.json"));
            fs::write(&file, sound).unwrap();
            let loaded: TaskTreeState = saved.load_state(StateComponent::TaskTree).unwrap();
            assert_eq!(loaded, state.task_tree);
        },
        |seen| {
            assert_eq!(seen[0].state.claude_context.conversation_history.messages_len(), 5);
            assert_eq!(seen[0].state.file_system.file_modifications.len(), 2);
        },
    );
}

#[test]
fn s05_a_checkpoint_says_what_the_session_holds_and_is_hashed() {
    scenario(
        |agent| {
            agent.start("a");
            agent.write("one.txt", Some("1"), false);
            agent.converse("talk", "two.txt");
            let created = agent.manager().create(Some("halfway")).unwrap();
            assert_eq!(agent.manager().get(created.id).unwrap(), created);
        },
        |seen| {
            let [checkpoint] = &seen[0].checkpoints[..] else { panic!("{seen:?}") };
            let manifest = &checkpoint.manifest;
            assert_eq!((manifest.total_tasks, &manifest.active_tasks[..]), (1, &[id("a")][..]));
            assert_eq!((manifest.file_modifications_count, manifest.conversation_messages_count), (2, 5));
            assert_eq!(
                (checkpoint.name.as_deref(), &checkpoint.occasion),
                (Some("halfway"), &Occasion::Manual)
            );
            assert!(checkpoint.validation_hash.len() == 64 && checkpoint.resources.is_some());
        },
    );
}

#[test]
fn s06_checkpoints_are_listed_by_their_times() {
    scenario(
        |agent| {
            for name in ["a", "b", "c"] {
                create(&agent.session, task(name)).unwrap();
                agent.clock.advance_us(1_000_000);
                agent.manager().create(Some(name)).unwrap();
            }
        },
        |seen| {
            let listed = seen[0].checkpoints.iter();
            let names: Vec<_> = listed.clone().map(|one| one.name.as_deref().unwrap()).collect();
            assert_eq!(names, ["a", "b", "c"]);
            assert!(listed.is_sorted_by_key(|one| one.created_at));
            let totals: Vec<_> = seen[0].checkpoints.iter().map(|one| one.manifest.total_tasks).collect();
            assert_eq!(totals, [1, 2, 3]);
        },
    );
}

#[test]
fn s07_a_restore_brings_back_tasks_conversations_and_files() {
    scenario(
        |agent| {
            agent.start("a");
            agent.write("one.txt", Some("1"), false);
            let manager = agent.manager();
            let before = manager.create(None).unwrap();
            agent.finish("a");
            agent.converse("talk", "one.txt");
            agent.write("two.txt", Some("2"), false);
            let options = RestoreOptions { with_resources: true, ..by_somebody() };
            let report = manager.restore_from_checkpoint(before.id, &options).unwrap();
            assert_eq!(report.refused, []);
            assert_eq!(fs::read_to_string(agent.workspace().join("one.txt")).unwrap(), "1");
            assert!(!agent.workspace().join("two.txt").exists());
        },
        |seen| {
            let state = &seen[0].state;
            assert_eq!(state.task_tree.active_task, Some(id("a")));
            assert_eq!(state.claude_context.conversation_history.messages_len(), 0);
            assert_eq!(state.file_system.file_modifications.len(), 1);
            let did: Vec<_> =
                state.execution_logs.recovery_actions.iter().map(|one| one.action.as_str()).collect();
            assert_eq!((did, seen[0].ids()), (vec!["restore", "restored"], vec![1, 2]));
        },
    );
}

#[test]
fn s08_a_session_that_is_used_as_it_is_meant_is_valid() {
    scenario(
        |agent| {
            agent.start("a");
            agent.write("one.txt", Some("1"), false);
            agent.write("two.txt", Some("2"), true);
            agent.converse("talk", "two.txt");
            agent.finish("a");
            let result = StateValidator::new().validate_log(&agent.log(), agent.position(), &agent.stores());
            assert!(result.unwrap().is_valid);
        },
        |seen| {
            let result = StateValidator::new().validate(&seen[0].state);
            assert!(result.is_valid && result.issues.is_empty(), "{result:?}");
            let mut changed = seen[0].state.clone();
            changed.task_tree.root_tasks.clear();
            assert!(!StateValidator::new().validate(&changed).is_valid, "what was changed by hand is not");
        },
    );
}

#[test]
fn s09_a_session_is_recovered_from_its_latest_checkpoint() {
    scenario(
        |agent| {
            agent.start("a");
            CheckpointManager::new(agent.session.clone()).create(None).unwrap();
            agent.finish("a");
            create(&agent.session, task("b")).unwrap();
            agent.session.clone().close().unwrap();
            let recovery = CrashRecoveryManager::new(agent.store.clone(), agent.session.id());
            let recovery = recovery.with_types(agent::types());
            let outlook = recovery.plan(RecoveryStrategy::LatestCheckpoint).unwrap();
            assert_eq!((outlook.tasks, outlook.completed_tasks, outlook.lost_updates), (1, 0, 2));
            let recovered = recovery.recover(outlook.strategy, &agent.store, "ada", "a crash").unwrap();
            assert_eq!(recovered.session, agent.session.id());
        },
        |seen| {
            assert_eq!(seen[0].tasks(), ["a"]);
            assert_eq!(seen[0].state.task_tree.active_task, Some(id("a")));
            let did = &seen[0].state.execution_logs.recovery_actions;
            assert_eq!((did.last().unwrap().action.as_str(), did.len()), ("latest_checkpoint", 3));
        },
    );
}

#[test]
fn s10_checkpoints_that_are_created_by_a_policy_are_switched_off_and_on() {
    scenario(
        |agent| {
            let policy = CheckpointPolicy { every_updates: Some(2), ..CheckpointPolicy::default() };
            let manager = agent.manager().with_policy(policy);
            let create = |name: &str| manager.dispatch(TaskCreated { task: task(name) }).unwrap();
            for name in ["a", "b", "c"] {
                create(name);
            }
            manager.set_auto_save(false);
            for name in ["d", "e", "f"] {
                create(name);
            }
            manager.set_auto_save(true);
            create("g");
        },
        |seen| {
            let created = seen[0].checkpoints.iter();
            let created: Vec<_> = created.map(|one| (one.manifest.total_tasks, &one.occasion)).collect();
            let periodic = &Occasion::PeriodicByUpdates;
            assert_eq!(created, [(2, periodic), (7, periodic)]);
        },
    );
}

#[test]
fn s11_statistics_say_what_was_done_and_what_it_took() {
    scenario(
        |agent| {
            agent.start("a");
            agent.write("one.txt", Some("1"), false);
            agent.clock.advance_us(90_000_000);
            agent.write("two.txt", Some("2"), true);
            agent.converse("talk", "three.txt");
            agent.finish("a");
        },
        |seen| {
            let state = &seen[0].state;
            let usage = &state.resource_usage;
            assert_eq!((usage.tool_runs, usage.failed_tool_runs, usage.requests), (3, 1, 2));
            assert_eq!((usage.elapsed_us, usage.failed_requests), (90_000_000, 0));
            assert_eq!(state.task_tree.count(Completed), 1);
            assert_eq!((state.execution_logs.errors.len(), state.execution_logs.interactions.len()), (1, 4));
            // Task `a` created, started and finished; three tools.
            assert_eq!(state.execution_logs.tasks[&id("a")].len(), 6);
        },
    );
}

#[test]
fn s12_a_host_that_ends_leaves_a_checkpoint_that_says_so_and_a_closed_log() {
    scenario(
        |agent| {
            agent.start("a");
            agent.manager().create_for(Occasion::Shutdown, None).unwrap();
            agent.session.clone().close().unwrap();
            assert!(LogReader::open(agent.session.dir()).unwrap().report().closed);
        },
        |seen| {
            let last = seen[0].checkpoints.last().unwrap();
            assert_eq!(
                (&last.occasion, &last.manifest.active_tasks[..]),
                (&Occasion::Shutdown, &[id("a")][..])
            );
        },
    );
}

/// Creates another session in the store of an agent, a second later, and closes it.
fn another(agent: &Agent, name: &str) -> Session {
    agent.clock.advance_us(1_000_000);
    let session = agent.store.create(&agent::types()).unwrap();
    configure(&session, name);
    create(&session, task(name)).unwrap();
    session
}

#[test]
fn s13_all_sessions_of_a_workspace_are_listed_with_their_checkpoints() {
    scenario(
        |agent| {
            agent.start("a");
            agent.manager().create(None).unwrap();
            for name in ["b", "c"] {
                let session = another(agent, name);
                CheckpointManager::new(session.clone()).create(Some(name)).unwrap();
                session.close().unwrap();
            }
        },
        |seen| {
            let all: Vec<_> = seen.iter().map(|one| (one.tasks(), one.ids())).collect();
            assert_eq!(all, [(vec!["a"], vec![1]), (vec!["b"], vec![1]), (vec!["c"], vec![1])]);
            for one in seen {
                assert!(
                    one.checkpoints.iter().all(|checkpoint| checkpoint.session_id == one.state.session_id)
                );
            }
        },
    );
}

#[test]
fn s14_a_checkpoint_is_created_in_the_latest_session_by_whoever_comes() {
    scenario(
        |agent| {
            agent.start("a");
            another(agent, "b").close().unwrap();
            let ids = agent.store.session_ids().unwrap();
            let latest = ids.into_iter().max_by_key(|id| agent.store.summary(*id).unwrap().created_at_us);
            let (session, _) = open_without_host(&agent.store, latest.unwrap()).unwrap();
            CheckpointManager::new(session.clone()).create(Some("by hand")).unwrap();
            session.close().unwrap();
        },
        |seen| {
            assert_eq!((seen[0].ids(), seen[1].ids()), (vec![], vec![1]));
            assert_eq!(seen[1].checkpoints[0].name.as_deref(), Some("by hand"));
        },
    );
}

#[test]
fn s15_checkpoints_by_hand_are_seen_by_every_manager_and_kept_by_retention() {
    scenario(
        |agent| {
            let retention = RetentionPolicy { count: Some(2), ..RetentionPolicy::default() };
            let (one, other) = (agent.manager().with_retention(retention), agent.manager());
            assert_eq!(other.list().unwrap().len(), 0);
            one.create(Some("by hand")).unwrap();
            assert_eq!(other.latest().unwrap().unwrap().name.as_deref(), Some("by hand"));
            for _ in 0..3 {
                one.create_for(Occasion::PeriodicByTime, None).unwrap();
            }
            other.create(None).unwrap();
            assert!(matches!(other.get(CheckpointId(2)), Err(Error::CheckpointRemoved { .. })));
        },
        |seen| {
            assert_eq!(seen[0].ids(), [1, 3, 4, 5]);
            assert_eq!(seen[0].checkpoints[0].name.as_deref(), Some("by hand"));
        },
    );
}

#[test]
fn s16_sessions_of_one_workspace_do_not_meet() {
    scenario(
        |agent| {
            let other = another(agent, "b");
            agent.start("a");
            // One is exported, rolled back and damaged; the other remains unchanged.
            let (compression, to) = (StateCompression::default(), tree_of(agent));
            let position = other.log().position().unwrap();
            let log = LogReader::open(other.dir()).unwrap();
            export_session(&log, position, &WorkspaceStores::none(), &to, &compression).unwrap();
            export_session(&agent.log(), agent.position(), &agent.stores(), &to, &compression).unwrap();
            let manager = CheckpointManager::new(other.clone());
            let first = manager.create(None).unwrap();
            change(&other, "b", Pending, InProgress).unwrap();
            manager.restore_from_checkpoint(first.id, &by_somebody()).unwrap();
            let trees = to.join(".aca/sessions");
            fs::write(trees.join(other.id().to_string()).join("state/task_tree.json"), "x").unwrap();
            let tree = |session: &Session| {
                let dir = trees.join(session.id().to_string());
                import_tree(&dir, TreeLimits::default())
            };
            assert!(matches!(tree(&other), Err(Error::Damaged { .. })));
            assert_eq!(tree(&agent.session).unwrap().state, agent.read());
            other.close().unwrap();
        },
        |seen| {
            assert_eq!((seen[0].tasks(), seen[1].tasks()), (vec!["a"], vec!["b"]));
            assert_eq!((seen[0].ids(), seen[1].ids()), (vec![], vec![1, 2]));
            assert_eq!(seen[0].state.execution_logs.recovery_actions, []);
        },
    );
}

#[test]
fn s17_checkpoints_that_are_kept_no_longer_are_removed_and_their_removal_is_told() {
    scenario(
        |agent| {
            let age = Some(Duration::from_secs(25));
            let manager =
                agent.manager().with_retention(RetentionPolicy { age, ..RetentionPolicy::default() });
            for name in ["a", "b", "c", "d", "e"] {
                create(&agent.session, task(name)).unwrap();
                manager.create(None).unwrap();
                agent.clock.advance_us(10_000_000);
            }
            let gone = manager.restore_from_checkpoint(CheckpointId(2), &by_somebody()).unwrap_err();
            assert!(gone.to_string().contains("was removed"), "{gone}");
        },
        |seen| assert_eq!((seen[0].ids(), seen[0].tasks().len()), (vec![3, 4, 5], 5)),
    );
}

#[test]
fn s18_work_goes_on_after_a_failure_with_what_is_still_to_be_done() {
    scenario(
        |agent| {
            agent.start("a");
            agent.finish("a");
            let manager = agent.manager();
            let first = manager.create(None).unwrap();
            create(&agent.session, task("b").requires(id("a"))).unwrap();
            create(&agent.session, task("c").requires(id("b"))).unwrap();
            let options = RestoreOptions { apply_later_updates: true, ..by_somebody() };
            let report = manager.restore_from_checkpoint(first.id, &options).unwrap();
            assert_eq!((report.applied.len(), report.refused.len()), (2, 0));
        },
        |seen| {
            let schedule = &seen[0].state.task_tree.scheduling_state;
            assert_eq!(schedule.ready, [id("b")]);
            assert_eq!(schedule.blocked[0].task, id("c"));
        },
    );
}
