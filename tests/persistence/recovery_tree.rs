//! Recovery from a damaged tree of files, without the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::Store;
use foldlog::conversation::{NewAnswer, NewInput, Role};
use foldlog_tasks::{
    CheckpointManager, CompressionAlgorithm, CrashRecoveryManager, Error, FileDamage, PartialTree,
    RecoveredSession, RecoveryAction, RecoveryStrategy::*, SessionState, StateComponent, TreeLimits,
    WorkspaceStores, export_session, import_tree,
};

use crate::agent::Agent;
use crate::checkpoints::kills::copy;
use crate::files::{all, by, tree_of};
use crate::state::day;
use crate::{create, id, store, task, types};

/// The last file of the checkpoints, which contains the engine's export.
const SNAPSHOT: &str = "checkpoints/checkpoint_002/state_snapshot.json";

/// Returns a day's tree, with a checkpoint, and its state.
fn exported(directory: &Path) -> (PathBuf, SessionState) {
    let agent = Agent::begin(directory);
    day(&agent);
    CheckpointManager::new(agent.session.clone()).create(Some("evening")).unwrap();
    let (log, stores, compression) = (agent.log(), agent.stores(), by(CompressionAlgorithm::None));
    export_session(&log, agent.position(), &stores, directory, &compression).unwrap();
    let state = agent.read();
    agent.session.clone().close().unwrap();
    (tree_of(directory, state.session_id), state)
}

fn damage(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

/// Recovers the valid parts of a tree, and checks that the result is as announced.
fn recovered(tree: &Path) -> (RecoveredSession, SessionState) {
    let (store, _) = store(false);
    let before = all(tree);
    let manager = CrashRecoveryManager::of_tree(store.clone(), tree).with_types(crate::agent::types());
    let outlook = manager.plan(PartialRecovery).unwrap();
    assert!(store.session_ids().unwrap().is_empty(), "telling makes no session");
    let recovered = manager.recover(PartialRecovery, &store, "ada", "the disk died").unwrap();
    assert_eq!((&recovered.outlook, &recovered.lost), (&outlook, &outlook.lost));
    assert_eq!(all(tree), before, "the tree is only read");
    let log = store.read_log(recovered.session).unwrap();
    let state = SessionState::at(&log, log.last_position(), &WorkspaceStores::none()).unwrap();
    let told = (outlook.tasks, outlook.messages);
    let history = &state.claude_context.conversation_history;
    assert_eq!((state.task_tree.tasks.len() as u64, history.messages_len()), told);
    assert!(state.configuration.requires_validation);
    assert!(state.configuration.validation_reason.is_some());
    let action = state.execution_logs.recovery_actions.last().unwrap();
    assert_eq!((action.action.as_str(), &action.lost), ("partial_recovery", &recovered.lost));
    (recovered, state)
}

/// Returns a state without the recovery's own additions.
fn before_recovery(state: &SessionState, was: &SessionState) -> SessionState {
    let mut state = SessionState { session_id: was.session_id, ..state.clone() };
    state.configuration.requires_validation = false;
    state.configuration.validation_reason = None;
    state.execution_logs.recovery_actions.pop();
    state
}

fn parts(state: &SessionState) -> BTreeMap<StateComponent, serde_json::Value> {
    let mut json = serde_json::to_value(state).unwrap();
    let mut take = |name: &str| json[name].take();
    let session = ["session_id", "created_at", "last_checkpoint"].map(&mut take);
    let of_session = (StateComponent::Session, serde_json::to_value(session).unwrap());
    let named = StateComponent::ALL.into_iter().skip(1).map(|part| (part, take(&part.to_string())));
    std::iter::once(of_session).chain(named).collect()
}

/// A damaged `.aca` could not be used at all: an import named the damage and ignored the intact
/// files.
#[test]
fn a_damaged_file_of_a_tree_costs_what_is_listed_of_its_part_and_nothing_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, was) = exported(directory.path());
    let (_, state) = recovered(&dir);
    assert_eq!(before_recovery(&state, &was), was, "a sound tree yields all");
    let files = all(&dir);
    let mut costly = 0;
    for path in files.keys().filter(|path| !path.ends_with("checkpoint_manifest.json")) {
        let tree = directory.path().join("damaged");
        let _ = fs::remove_dir_all(&tree);
        copy(&dir, &tree);
        damage(&tree.join(path));
        assert!(matches!(import_tree(&tree, TreeLimits::default()), Err(Error::Damaged { .. })));
        let (recovered, state) = recovered(&tree);
        let read = PartialTree::read(&tree, TreeLimits::default()).unwrap();
        let [lost] = &read.lost[..] else { panic!("{path}: {read:?}") };
        assert_eq!((&lost.file.path, recovered.lost[0].as_str()), (path, lost.to_string().as_str()));
        assert!(matches!(lost.file.damage, FileDamage::Differs { .. }), "{lost}");
        let (is, was) = (parts(&before_recovery(&state, &was)), parts(&was));
        let differing: Vec<_> = is.keys().filter(|part| is[part] != was[part]).collect();
        costly += usize::from(!differing.is_empty());
        if lost.lost.starts_with("nothing") {
            assert!(differing.is_empty(), "{lost}: {differing:?}");
        }
        // One file has three parts.
        let may_differ = |part: &StateComponent| {
            lost.part == Some(*part)
                || (lost.part == Some(StateComponent::Session) && *part == StateComponent::ResourceUsage)
        };
        // Without the engine's export, the other files have everything except the turns of
        // conversations.
        let without_export =
            |part: &StateComponent| path == SNAPSHOT && *part == StateComponent::ClaudeContext;
        assert!(
            differing.iter().all(|part| may_differ(part) || without_export(part)),
            "{lost}: {differing:?}"
        );
    }
    assert!(costly > 8, "{costly}");
}

/// Without the engine's export, each part comes from its own files.
#[test]
fn tasks_and_messages_come_from_their_own_files_where_the_snapshot_is_damaged_too() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, was) = exported(directory.path());
    damage(&dir.join(SNAPSHOT));
    let (_, state) = recovered(&dir);
    assert_eq!(state.task_tree, was.task_tree);
    assert_eq!(state.file_system, was.file_system);
    assert_eq!(state.configuration.name, "a day");
    let messages =
        |state: &SessionState| state.claude_context.conversation_history.conversations[0].messages.clone();
    assert_eq!(messages(&state), messages(&was), "ids and times included");
    assert_eq!(state.execution_logs.errors, was.execution_logs.errors);
    damage(&dir.join("state/task_tree.json"));
    let (recovered, state) = recovered(&dir);
    assert!(state.task_tree.tasks.is_empty() && messages(&state) == messages(&was));
    assert!(recovered.lost.iter().any(|lost| lost.starts_with("task_tree: the tasks: state/task_tree.json")));
}

#[test]
fn conversations_and_changes_go_as_far_as_their_sound_chunks() {
    let (store, _) = store(false);
    let session = store.create(&types()).unwrap();
    create(&session, task("a")).unwrap();
    for number in 0..600 {
        let text = format!("message {number}");
        session.conversation().record_input(&NewInput::new("long", Role::User, text)).unwrap();
    }
    session.conversation().record_input(&NewInput::new("short", Role::User, "hello")).unwrap();
    for evaluation in ["long", "short"] {
        let (evaluation_id, content) = (evaluation.to_owned(), Some("I see.".to_owned()));
        session
            .conversation()
            .record_answer(&NewAnswer { evaluation_id, content, ..NewAnswer::default() })
            .unwrap();
        session.conversation().record_turn(evaluation, true).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let (log, position) = (store.read_log(session.id()).unwrap(), session.log().position().unwrap());
    let compression = by(CompressionAlgorithm::None);
    export_session(&log, position, &WorkspaceStores::none(), directory.path(), &compression).unwrap();
    let dir = tree_of(directory.path(), session.id());
    let said = |tree: &Path| -> Vec<(String, usize)> {
        let (_, state) = recovered(tree);
        let conversations = state.claude_context.conversation_history.conversations.into_iter();
        conversations.map(|one| (one.evaluation_id, one.messages.len())).collect()
    };
    let of = |long, short: Option<usize>| {
        let long = std::iter::once(("long".to_owned(), long));
        long.chain(short.map(|short| ("short".to_owned(), short))).collect::<Vec<_>>()
    };
    // The engine's export has all messages, whatever the state of the chunks.
    damage(&dir.join("claude/conversation/messages_002.json"));
    assert_eq!(said(&dir), of(601, Some(2)));
    damage(&dir.join("checkpoints/checkpoint_001/state_snapshot.json"));
    assert_eq!(said(&dir), of(256, Some(2)));
    fs::remove_file(dir.join("claude/conversation/current.json")).unwrap();
    assert_eq!(said(&dir), of(256, None));
    let (recovered, _) = recovered(&dir);
    let lost = recovered.lost.join("\n");
    assert!(lost.contains("messages_002.json has the digest"), "{lost}");
    assert!(lost.contains("current.json is missing"), "{lost}");
    assert_eq!(recovered.outlook.lost_updates, 0, "{lost}");
    damage(&dir.join("filesystem/modifications/changes_002.json"));
    assert_eq!(self::recovered(&dir).0.outlook.lost_updates, 604 - 256);
}

#[test]
fn nothing_is_guessed_where_the_manifest_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, _) = exported(directory.path());
    damage(&dir.join("meta/checkpoint_manifest.json"));
    let (store, _) = store(false);
    let manager = CrashRecoveryManager::of_tree(store.clone(), &dir);
    let reason = manager.plan(PartialRecovery).unwrap().impossible.unwrap();
    assert!(reason.contains("meta/checkpoint_manifest.json"), "{reason}");
    let error = manager.recover(PartialRecovery, &store, "ada", "x").unwrap_err();
    assert!(matches!(error, Error::Impossible { .. }), "{error}");
    for strategy in [LatestCheckpoint, IncrementalReconstruction] {
        assert!(manager.plan(strategy).unwrap().impossible.unwrap().contains("no log"));
    }
    assert!(store.session_ids().unwrap().is_empty());
}

#[test]
fn a_tree_takes_the_place_of_a_log_of_which_nothing_is_sound() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, was) = exported(directory.path());
    let store = Store::open(directory.path().join("store")).unwrap();
    let manager =
        || CrashRecoveryManager::new(store.clone(), was.session_id).with_types(crate::agent::types());
    let to = Store::open(directory.path().join("to")).unwrap();
    let log = store.session_dir(was.session_id);
    for file in fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "seg") {
            fs::write(file, "nothing of it").unwrap();
        }
    }
    assert!(
        manager().plan(PartialRecovery).is_err()
            || manager().plan(PartialRecovery).unwrap().impossible.is_some()
    );
    let manager = manager().with_tree(&dir);
    let now = serde_json::from_str("\"2026-01-02T03:00:00Z\"").unwrap();
    let crash = manager.detect_crash_state(now).unwrap().unwrap();
    assert_eq!(crash.corrupted_files.len(), 1, "the tree is sound: {crash:?}");
    let recovered = manager.recover(PartialRecovery, &to, "ada", "the disk died").unwrap();
    assert_eq!((recovered.outlook.tasks, recovered.lost.len()), (2, 0));
    let log = to.read_log(recovered.session).unwrap();
    let state = SessionState::at(&log, log.last_position(), &WorkspaceStores::none()).unwrap();
    assert_eq!(before_recovery(&state, &was), was);
    let action: &RecoveryAction = state.execution_logs.recovery_actions.last().unwrap();
    assert_eq!(action.by, "ada");
    assert!(state.task_tree.tasks.contains_key(&id("a")));
}
