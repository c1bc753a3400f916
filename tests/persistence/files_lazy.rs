//! Parts of a state that are read on demand.

use foldlog::Clock;
use foldlog_tasks::{
    AccessPattern, AtomicPersistence, ClaudeContextState, Error, LazyStateManager, SessionConfiguration,
    SessionState, StateComponent, StateCompression, TaskTreeState,
};

use super::agent::Agent;
use super::files::two_days;
use super::state::day;
use super::*;

use StateComponent::{ClaudeContext, Configuration, TaskTree};

fn at(seconds: i64) -> i64 {
    BEGIN_US + seconds * 1_000_000
}

/// A part is read once and shared. It is read again after a change, or on request.
#[test]
fn a_part_of_a_tree_is_read_once_until_its_files_change() {
    let (before, after) = two_days();
    let directory = tempfile::tempdir().unwrap();
    before.export(directory.path(), &StateCompression::default());
    let tree = AtomicPersistence::new(directory.path(), before.state.session_id, StateCompression::default());
    let clock = Arc::new(FixedClock::new(at(0)));
    let lazy = LazyStateManager::over_tree(tree.clone(), Arc::clone(&clock) as Arc<dyn Clock>);
    let tasks = || lazy.get::<TaskTreeState>(TaskTree).unwrap();
    let context = || lazy.get::<ClaudeContextState>(ClaudeContext).unwrap();
    let pattern = |component| {
        let AccessPattern { reads, loads, last_access } = lazy.access_pattern(component);
        (reads, loads, last_access.map(|at| at.timestamp_micros()))
    };
    assert_eq!(pattern(TaskTree), (0, 0, None), "nothing is read before somebody asks");
    let first = tasks();
    assert_eq!(*first, before.state.task_tree);
    clock.set_us(at(5));
    assert!(Arc::ptr_eq(&first, &tasks()), "it is shared");
    assert_eq!(pattern(TaskTree), (2, 1, Some(at(5))));
    let conversation = context();

    // Another part changes: this one is not read again.
    tree.persist_state(Configuration, &after.state.configuration).unwrap();
    assert!(Arc::ptr_eq(&first, &tasks()));
    tree.persist_state(TaskTree, &after.state.task_tree).unwrap();
    assert_eq!(*tasks(), after.state.task_tree);
    assert_eq!(*first, before.state.task_tree, "whoever has it keeps what they have");
    assert_eq!(pattern(TaskTree).1, 2);
    assert!(Arc::ptr_eq(&conversation, &context()), "this part did not change");
    lazy.invalidate(ClaudeContext);
    assert!(!Arc::ptr_eq(&conversation, &context()));
    assert_eq!(pattern(ClaudeContext).1, 2);

    // As another type, and as a wrong one.
    assert_eq!(lazy.get::<serde_json::Value>(TaskTree).unwrap()["task_counter"], 3);
    assert!(matches!(lazy.get::<Vec<u8>>(TaskTree), Err(Error::NotAComponent { .. })));
    assert_eq!(pattern(TaskTree).0, 5, "what was not got is not counted");
}

#[test]
fn a_part_that_nobody_persisted_is_missing_until_somebody_does() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    let tree = AtomicPersistence::new(directory.path(), told.state.session_id, StateCompression::default());
    let lazy = LazyStateManager::over_tree(tree.clone(), Arc::new(FixedClock::new(0)));
    let get = || lazy.get::<SessionConfiguration>(Configuration);
    assert!(matches!(get(), Err(Error::ComponentNotFound(Configuration))));
    tree.persist_state(Configuration, &told.state.configuration).unwrap();
    assert_eq!(*get().unwrap(), told.state.configuration);
    std::fs::remove_dir_all(directory.path().join(".aca")).unwrap();
    assert!(matches!(get(), Err(Error::ComponentNotFound(Configuration))));
}

/// Parts are read by one walk at most.
#[test]
fn parts_of_a_log_are_those_of_its_position() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    let (state, position) = (agent.read(), agent.position());
    agent.finish("a");
    let log = Arc::new(agent.log());
    let lazy = LazyStateManager::over_log(log, position, agent.stores(), Arc::new(FixedClock::new(0)));
    let tasks = lazy.get::<TaskTreeState>(TaskTree).unwrap();
    assert_eq!(*tasks, state.task_tree);
    assert_eq!(*lazy.get::<ClaudeContextState>(ClaudeContext).unwrap(), state.claude_context);
    let whole = StateComponent::ALL.map(|component| lazy.get::<serde_json::Value>(component).unwrap());
    let json = serde_json::to_value(&state).unwrap();
    let names =
        ["configuration", "task_tree", "claude_context", "file_system", "execution_logs", "resource_usage"];
    for (part, name) in whole[1..].iter().zip(names) {
        assert_eq!(**part, json[name]);
    }
    assert_eq!(whole[0]["session_id"], json["session_id"]);
    assert!(Arc::ptr_eq(&tasks, &lazy.get::<TaskTreeState>(TaskTree).unwrap()));
    lazy.move_to(agent.position());
    let now = SessionState::at(&agent.log(), agent.position(), &agent.stores()).unwrap();
    assert_eq!(*lazy.get::<TaskTreeState>(TaskTree).unwrap(), now.task_tree);
}
