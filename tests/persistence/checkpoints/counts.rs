//! Counts and hashes of checkpoints, compared with counting everything.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::storage::MemoryStorage;
use foldlog::{Session, SessionOptions, Store};
use foldlog_tasks::{
    Checkpoint, CheckpointManager, DependenciesResolved, DependencyResolution, ResolvedDependency,
    SessionState, TaskStatus, Tasks, WorkspaceStores,
};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::agent::Agent;
use crate::{change, create, store_on, task, types};

/// Counts everything at a checkpoint, and computes its hash of all records since the one before, as
/// the specification states.
pub(super) fn assert_counted(log: &LogReader, created: &[Checkpoint], stores: &WorkspaceStores) {
    let mut previous: Option<&Checkpoint> = None;
    for checkpoint in created {
        let state = SessionState::at(log, checkpoint.position, stores).unwrap();
        let manifest = &checkpoint.manifest;
        let tree = &state.task_tree;
        assert_eq!(manifest.total_tasks, tree.tasks.len() as u64, "{checkpoint:?}");
        assert_eq!(manifest.completed_tasks, tree.count(TaskStatus::Completed), "{checkpoint:?}");
        let mut active = tree.scheduling_state.in_progress.clone();
        active.sort();
        assert_eq!(manifest.active_tasks, active, "{checkpoint:?}");
        assert_eq!(
            manifest.file_modifications_count,
            state.file_system.file_modifications.len() as u64,
            "{checkpoint:?}"
        );
        let messages = state.claude_context.conversation_history.messages_len();
        assert_eq!(manifest.conversation_messages_count, messages, "{checkpoint:?}");
        let resolved = state.file_system.dependency_resolution.dependencies;
        let resolved = resolved.iter().map(|(name, one)| format!("{name} {}", one.version));
        assert_eq!(manifest.dependencies, resolved.collect::<Vec<_>>());

        let mut bytes = match previous {
            Some(previous) => blake3::Hash::from_hex(&previous.validation_hash).unwrap().as_bytes().to_vec(),
            None => {
                let begin = [b"foldlog.checkpoint.1".as_slice(), checkpoint.session_id.as_bytes()].concat();
                blake3::hash(&begin).as_bytes().to_vec()
            }
        };
        let from = previous.map_or(0, |previous| previous.position.get() + 1);
        log.contents(from, checkpoint.position, |record| {
            bytes.extend(record.digest());
            Ok(())
        })
        .unwrap();
        let mut stored = 0;
        log.records(0, checkpoint.position, |record| {
            stored += record.body.len() as u64;
            Ok(())
        })
        .unwrap();
        assert_eq!(manifest.storage_size_bytes, stored, "{checkpoint:?}");
        assert_eq!(checkpoint.validation_hash, blake3::hash(&bytes).to_hex().to_string());
        previous = Some(checkpoint);
    }
}

#[derive(Clone, Debug)]
enum Action {
    Create,
    Advance(Index, u8),
    Resolve(u8),
    Checkpoint,
    Clear,
    Tag,
    RollBack(Index),
    Fork(Index),
    Reopen,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        6 => Just(Action::Create),
        10 => (any::<Index>(), 0..7_u8).prop_map(|(task, to)| Action::Advance(task, to)),
        1 => any::<u8>().prop_map(Action::Resolve),
        6 => Just(Action::Checkpoint),
        1 => Just(Action::Clear),
        1 => Just(Action::Tag),
        3 => any::<Index>().prop_map(Action::RollBack),
        1 => any::<Index>().prop_map(Action::Fork),
        1 => Just(Action::Reopen),
    ];
    prop::collection::vec(action, 1..60)
}

struct World {
    disk: MemoryStorage,
    store: Store,
    manager: CheckpointManager,
    created: Vec<Checkpoint>,
    names: u32,
}

impl World {
    fn session(&self) -> &Session {
        self.manager.session()
    }

    fn act(&mut self, action: &Action) {
        let position = |index: &Index, session: &Session| {
            index.index(session.log().position().unwrap().get() as usize + 1) as u64
        };
        match action {
            Action::Create => {
                self.names += 1;
                create(self.session(), task(&format!("t{}", self.names))).unwrap();
            }
            Action::Advance(index, to) => {
                let tasks: Vec<_> = self.session().view::<Tasks>().unwrap().iter().cloned().collect();
                if let Some(task) = tasks.get(index.index(tasks.len().max(1))) {
                    // A refused change has no effect.
                    let _ = change(
                        self.session(),
                        task.id.as_str(),
                        task.status,
                        TaskStatus::ALL[usize::from(*to)],
                    );
                }
            }
            Action::Resolve(version) => {
                let version = version.to_string();
                let dependency = ResolvedDependency { version, source: None, digest: None };
                let dependencies = BTreeMap::from([("serde".to_owned(), dependency)]);
                let resolution = DependencyResolution { dependencies };
                self.session().dispatch(DependenciesResolved { resolution }).unwrap();
            }
            Action::Checkpoint => self.created.push(self.manager.create(None).unwrap()),
            Action::Clear => {
                self.session().clear_where::<Tasks>(|task| task.number % 2 == 0).unwrap();
            }
            Action::Tag => drop(self.session().set_tag("a", "b").unwrap()),
            Action::RollBack(index) => {
                let to = position(index, self.session());
                self.session().rollback_to(to).unwrap();
            }
            Action::Fork(index) => {
                let at = position(index, self.session());
                let parent = self.session().id();
                let fork = self.store.fork(parent, at, &types(), SessionOptions::default()).unwrap();
                self.manager = CheckpointManager::new(fork);
                // A checkpoint exists from its own record on, which comes after its position.
                let shared = self.manager.list().unwrap();
                self.created.retain(|one| shared.contains(one));
                assert_eq!(self.created, shared);
            }
            Action::Reopen => {
                let id = self.session().id();
                let empty = CheckpointManager::new(self.store.open_read_only(id, &types()).unwrap());
                std::mem::replace(&mut self.manager, empty).session().clone().close().unwrap();
                self.manager = CheckpointManager::new(self.store.open_session(id, &types()).unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(192), ..ProptestConfig::default() })]

    #[test]
    fn counts_and_hashes_are_those_of_counting_everything_whatever_was_rolled_back(
        actions in actions(), images in any::<bool>()
    ) {
        let disk = MemoryStorage::new();
        let (store, _) = store_on(&disk, images);
        let manager = CheckpointManager::new(store.create(&types()).unwrap());
        let mut world = World { disk, store, manager, created: Vec::new(), names: 0 };
        actions.iter().for_each(|action| world.act(action));
        world.act(&Action::Checkpoint);
        let log = LogReader::open_on(Arc::new(world.disk.clone()), world.session().dir()).unwrap();
        assert_counted(&log, &world.created, &WorkspaceStores::none());
        assert_eq!(world.manager.list().unwrap(), world.created);
        for checkpoint in &world.created {
            world.manager.verify(checkpoint.id).unwrap();
        }
    }
}

/// After a rollback to records that an earlier one had abandoned, the session's state compared a
/// capture with an abandoned one: it lost the last capture of the workspace, and counted changes
/// twice.
#[test]
fn files_and_messages_are_counted_through_failures_and_rollbacks() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    let manager = CheckpointManager::new(agent.session.clone());
    let mut created = vec![manager.create(None).unwrap()];
    agent.start("a");
    agent.write("one.txt", Some("1"), false);
    created.push(manager.create(None).unwrap());
    agent.write("two.txt", Some("2"), false);
    agent.write("broken.txt", Some("x"), true);
    agent.converse("talk", "three.txt");
    created.push(manager.create(None).unwrap());
    std::fs::write(agent.workspace().join("beside.txt"), "beside").unwrap();
    agent.write("one.txt", None, false);
    agent.converse("talk again", "four.txt");
    agent.finish("a");
    created.push(manager.create(None).unwrap());
    assert_eq!(created[3].manifest.conversation_messages_count, 10);
    // After a rollback, which abandons messages, files and two checkpoints.
    agent.session.rollback_to(created[1].position).unwrap();
    created.push(manager.create(None).unwrap());
    agent.write("five.txt", Some("5"), false);
    agent.converse("and again", "six.txt");
    created.push(manager.create(None).unwrap());
    // Back to the records that this rollback has abandoned.
    agent.session.rollback_to(created[2].position).unwrap();
    agent.write("seven.txt", Some("7"), false);
    created.push(manager.create(None).unwrap());
    agent.session.sync().unwrap();
    assert_counted(&agent.log(), &created, &agent.stores());
    assert!(created.iter().any(|one| one.manifest.file_modifications_count > 2));
}
