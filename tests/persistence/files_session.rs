//! From a session's log to a tree, and from the tree to a session that goes on.

use std::collections::BTreeSet;
use std::path::Path;

use foldlog::audit::LogReader;
use foldlog::{Policy, SessionOptions, Store};
use foldlog_agent::persistence::{
    CheckpointManager, CompressionAlgorithm, Error, ImportedSession, SessionState, TaskTreeState,
    TreeContents, TreeLimits, WorkspaceStores, export_session, export_tree, import_session,
};

use super::agent::{Agent, types};
use super::files::{by, import};
use super::state::day;
use super::*;

fn export(agent: &Agent, to: &Path) {
    let (log, stores) = (agent.log(), agent.stores());
    let compression = by(CompressionAlgorithm::Zstd);
    export_session(&log, agent.position(), &stores, to, &compression).unwrap();
}

fn imported(tree: &Path, store: &Store) -> ImportedSession {
    import_session(tree, store, &types(), SessionOptions::default(), TreeLimits::default()).unwrap()
}

fn state(session: &Session) -> SessionState {
    let log = LogReader::open(session.dir()).unwrap();
    SessionState::at(&log, session.position().unwrap(), &WorkspaceStores::none()).unwrap()
}

/// Protects: an import is exact. The new session's state is the exported one but for its id; it goes on, is rolled back and
/// exported again as any other.
#[test]
fn a_session_that_is_made_of_a_tree_has_the_same_state_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::begin(folder.path());
    day(&agent);
    CheckpointManager::new(agent.session.clone()).create(Some("evening")).unwrap();
    export(&agent, folder.path());
    let store = Store::open(folder.path().join("other")).unwrap();
    let ImportedSession { session, exported, differing } = imported(folder.path(), &store);
    assert_eq!(differing, []);
    assert_eq!(exported, agent.read());
    let read = state(&session);
    let same_id = SessionState { session_id: exported.session_id, ..read.clone() };
    assert_eq!(same_id, exported);

    // Checkpoints are positions of the log that they were made in; the new one begins its own.
    let checkpoints = CheckpointManager::new(session.clone());
    assert_eq!(checkpoints.list().unwrap(), []);

    // What is recorded from now on comes after what was.
    change(&session, "a", (TaskStatus::InProgress, TaskStatus::Completed)).unwrap();
    let after = state(&session);
    assert_eq!(after.task_tree.tasks[&id("a")].status, TaskStatus::Completed);
    let (before, entries) = (&exported.execution_logs.tasks[&id("a")], &after.execution_logs.tasks[&id("a")]);
    assert_eq!((&entries[..before.len()], entries.len()), (&before[..], before.len() + 1));
    assert!(after.resource_usage.records > exported.resource_usage.records);
    assert!(after.last_checkpoint > exported.last_checkpoint);
    assert_eq!(after.claude_context, exported.claude_context);
    assert_eq!(TaskTreeState::of(&session).unwrap(), after.task_tree);

    // Once more around.
    let log = LogReader::open(session.dir()).unwrap();
    let again = folder.path().join("again");
    std::fs::create_dir(&again).unwrap();
    let position = session.position().unwrap();
    let compression = by(CompressionAlgorithm::None);
    export_session(&log, position, &WorkspaceStores::none(), &again, &compression).unwrap();
    let twice = imported(&again, &store);
    assert_eq!((twice.differing, twice.exported), (Vec::new(), after));
    let slices = twice.session.export_at(twice.session.position().unwrap(), &BTreeSet::from([Policy::Log]));
    let slices = slices.unwrap().slices;
    let states = slices.iter().find(|slice| slice.slice_type == "imported_states").unwrap();
    assert_eq!(states.items.len(), 1, "a state is not carried along with each import");
}

/// Protects: a tree that is damaged, or holds no session, makes none.
#[test]
fn nothing_is_made_of_a_tree_that_is_damaged_or_of_a_state_alone() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::begin(folder.path());
    agent.start("a");
    let store = Store::open(folder.path().join("other")).unwrap();
    let refused = |to: &Path| {
        let options = SessionOptions::default();
        import_session(to, &store, &types(), options, TreeLimits::default()).unwrap_err()
    };
    let alone = folder.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    export_tree(&TreeContents::new(&agent.read()), &alone, &by(CompressionAlgorithm::None)).unwrap();
    assert!(matches!(refused(&alone), Error::NoTree { .. }));
    export(&agent, folder.path());
    let dir = import(folder.path()).unwrap().state.session_id.to_string();
    let file =
        folder.path().join(".aca/sessions").join(dir).join("checkpoints/checkpoint_001/state_snapshot.json");
    std::fs::write(file, "").unwrap();
    assert!(matches!(refused(folder.path()), Error::Damaged { .. }));
    assert!(store.session_ids().unwrap().is_empty());
}
