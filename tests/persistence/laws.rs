//! The law of tasks: after any history the fold equals a naive model, which shares no code with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::storage::MemoryStorage;
use foldlog::{Session, SessionOptions, Store};
use foldlog_tasks::{
    Dependency, DependencyAdded, DependencyType, NewTask, TaskChanges, TaskCreated, TaskModified, TaskStatus,
    TaskStatusChanged, TaskTreeState,
};
use foldlog_test_support::host::assert_reduced_again;
use proptest::prelude::*;
use proptest::sample::Index;

use super::{id, store_on, types};

/// An action of a host. Few numbers name the tasks, so that events concern the same ones.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Create {
        task: u8,
        parent: Option<u8>,
        after: Vec<(u8, bool)>,
        priority: i8,
    },
    /// The event names the task's actual state, or this one.
    Change {
        task: u8,
        to: u8,
        from: Option<u8>,
    },
    Reparent {
        task: u8,
        parent: Option<u8>,
    },
    Prioritize {
        task: u8,
        priority: i8,
    },
    Depend {
        from: u8,
        to: u8,
        requires: bool,
    },
    RollBack(Index),
    Fork(Index),
    Reopen,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(action(), 1..160)
}

pub(super) fn action() -> impl Strategy<Value = Action> {
    let task = || 0..6_u8;
    prop_oneof![
        6 => (task(), prop::option::of(task()), prop::collection::vec((task(), any::<bool>()), 0..3), any::<i8>())
            .prop_map(|(task, parent, after, priority)| Action::Create { task, parent, after, priority }),
        10 => (task(), 0..7_u8, prop::option::weighted(0.1, 0..7_u8))
            .prop_map(|(task, to, from)| Action::Change { task, to, from }),
        2 => (task(), prop::option::of(task())).prop_map(|(task, parent)| Action::Reparent { task, parent }),
        2 => (task(), any::<i8>()).prop_map(|(task, priority)| Action::Prioritize { task, priority }),
        9 => (task(), task(), any::<bool>()).prop_map(|(from, to, requires)| Action::Depend { from, to, requires }),
        1 => any::<Index>().prop_map(Action::RollBack),
        1 => any::<Index>().prop_map(Action::Fork),
        1 => Just(Action::Reopen),
    ]
}

/// A task of the model, in plain numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    parent: Option<u8>,
    /// The index in the list of all states.
    pub(super) status: u8,
    priority: i64,
    after: Vec<(u8, bool)>,
    attempts: u32,
    failures: u32,
}

/// All tasks in the order of their creation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Model {
    tasks: Vec<(u8, Entry)>,
}

/// The allowed next states: pending 0, blocked 1, in progress 2, completed 3, failed 4, skipped 5,
/// cancelled 6.
const FOLLOWS: [&[u8]; 7] = [&[1, 2, 5, 6], &[0, 5, 6], &[0, 1, 3, 4, 6], &[], &[0, 5, 6], &[], &[]];

impl Model {
    pub(super) fn get(&self, task: u8) -> Option<&Entry> {
        self.tasks.iter().find(|(name, _)| *name == task).map(|(_, entry)| entry)
    }

    fn get_mut(&mut self, task: u8) -> Option<&mut Entry> {
        self.tasks.iter_mut().find(|(name, _)| *name == task).map(|(_, entry)| entry)
    }

    /// Returns all tasks that can be reached along dependencies, including the task itself.
    fn reaches(&self, task: u8) -> BTreeSet<u8> {
        let mut all = BTreeSet::from([task]);
        loop {
            let more: BTreeSet<u8> = all
                .iter()
                .filter_map(|task| self.get(*task))
                .flat_map(|entry| entry.after.iter().map(|(on, _)| *on))
                .collect();
            if more.is_subset(&all) {
                return all;
            }
            all.extend(more);
        }
    }

    fn above(&self, task: u8) -> BTreeSet<u8> {
        let mut all = BTreeSet::from([task]);
        let mut at = self.get(task).and_then(|entry| entry.parent);
        while let Some(parent) = at {
            all.insert(parent);
            at = self.get(parent).and_then(|entry| entry.parent);
        }
        all
    }

    /// Applies an event; returns whether it was accepted.
    pub(super) fn take(&mut self, action: &Action) -> bool {
        match action {
            Action::Create { task, parent, after, priority } => {
                let named: BTreeSet<u8> = after.iter().map(|(on, _)| *on).collect();
                let fits = self.get(*task).is_none()
                    && parent.is_none_or(|parent| {
                        self.get(parent).is_some_and(|entry| ![3, 5, 6].contains(&entry.status))
                    })
                    && named.len() == after.len()
                    && named.iter().all(|on| self.get(*on).is_some());
                if fits {
                    let (parent, priority, after) = (*parent, (*priority).into(), after.clone());
                    let (status, attempts, failures) = (0, 0, 0);
                    let entry = Entry { parent, status, priority, after, attempts, failures };
                    self.tasks.push((*task, entry));
                }
                fits
            }
            Action::Change { task, to, from } => {
                let Some(entry) = self.get(*task) else { return false };
                let satisfied = |(on, requires): &(u8, bool)| {
                    !requires || self.get(*on).is_some_and(|entry| [3, 5].contains(&entry.status))
                };
                let fits = from.is_none_or(|from| from == entry.status)
                    && FOLLOWS[usize::from(entry.status)].contains(to)
                    && (*to != 2 || entry.after.iter().all(satisfied));
                if let Some(entry) = self.get_mut(*task).filter(|_| fits) {
                    entry.status = *to;
                    entry.attempts += u32::from(*to == 2);
                    entry.failures += u32::from(*to == 4);
                }
                fits
            }
            Action::Reparent { task, parent } => {
                let fits = self.get(*task).is_some()
                    && parent.is_none_or(|parent| {
                        self.get(parent).is_some() && !self.above(parent).contains(task)
                    });
                if let Some(entry) = self.get_mut(*task).filter(|_| fits) {
                    entry.parent = *parent;
                }
                fits
            }
            Action::Prioritize { task, priority } => {
                let entry = self.get_mut(*task);
                let fits = entry.is_some();
                entry.into_iter().for_each(|entry| entry.priority = (*priority).into());
                fits
            }
            Action::Depend { from, to, requires } => {
                let is_open = |entry: &Entry| ![3, 5].contains(&entry.status);
                let may_wait =
                    |entry: &Entry| entry.status != 2 || !requires || !self.get(*to).is_some_and(is_open);
                let fits = self.get(*to).is_some()
                    && self
                        .get(*from)
                        .is_some_and(|entry| entry.after.iter().all(|(on, _)| on != to) && may_wait(entry))
                    && !self.reaches(*to).contains(from);
                if let Some(entry) = self.get_mut(*from).filter(|_| fits) {
                    entry.after.push((*to, *requires));
                }
                fits
            }
            Action::RollBack(_) | Action::Fork(_) | Action::Reopen => true,
        }
    }

    /// Returns the parts of a task that have not ended.
    fn open_parts(&self, task: u8) -> Vec<u8> {
        let parts = self.tasks.iter().filter(|(_, entry)| entry.parent == Some(task));
        parts.filter(|(_, entry)| ![3, 5, 6].contains(&entry.status)).map(|(part, _)| *part).collect()
    }

    /// Returns whether a task waits for another one, directly or indirectly.
    fn leads(&self, from: u8, to: u8) -> bool {
        let (mut seen, mut next) = (Vec::new(), vec![from]);
        while let Some(task) = next.pop() {
            let Some(entry) = self.get(task).filter(|entry| entry.status == 0) else { continue };
            let required = entry.after.iter().filter(|(_, requires)| *requires).map(|(on, _)| *on);
            let waits = required.chain(self.open_parts(task));
            for on in waits.filter(|on| self.get(*on).is_some_and(|entry| ![3, 5].contains(&entry.status))) {
                if on == to {
                    return true;
                }
                if !seen.contains(&on) {
                    seen.push(on);
                    next.push(on);
                }
            }
        }
        false
    }

    /// Returns the tasks that may start, in their order.
    fn ready(&self) -> Vec<u8> {
        let is_done = |on: u8| self.get(on).is_some_and(|entry| [3, 5].contains(&entry.status));
        let may_start = |task: u8, entry: &Entry| {
            entry.status == 0
                && entry.after.iter().all(|(on, requires)| !requires || is_done(*on))
                && self.open_parts(task).iter().all(|part| self.leads(*part, task))
        };
        let could = self.tasks.iter().filter(|(task, entry)| may_start(*task, entry));
        let could: Vec<u8> = could.map(|(task, _)| *task).collect();
        let later = |task: &u8| {
            let entry = self.get(*task).unwrap();
            entry.after.iter().any(|(on, requires)| !requires && could.contains(on))
        };
        let mut in_order = could.clone();
        // A stable sort keeps the order of creation.
        in_order.sort_by_key(|task| std::cmp::Reverse(self.get(*task).unwrap().priority));
        let (last, first): (Vec<u8>, Vec<u8>) = in_order.into_iter().partition(later);
        [first, last].concat()
    }
}

fn name(task: u8) -> foldlog_tasks::TaskId {
    id(&format!("t{task}"))
}

fn number(task: &foldlog_tasks::TaskId) -> u8 {
    task.as_str()[1..].parse().unwrap()
}

fn kind(requires: bool) -> DependencyType {
    if requires { DependencyType::Requires } else { DependencyType::Prefers }
}

fn status(place: u8) -> TaskStatus {
    TaskStatus::ALL[usize::from(place)]
}

/// A session and its model, with the model at each position.
pub(super) struct World {
    pub(super) disk: MemoryStorage,
    store: Store,
    session: Option<Session>,
    pub(super) model: Model,
    pub(super) past: BTreeMap<u64, Model>,
}

impl World {
    pub(super) fn new(images: bool) -> World {
        let disk = MemoryStorage::new();
        let (store, _) = store_on(&disk, images);
        let session = store.create(&types()).unwrap();
        let (model, past) = (Model::default(), BTreeMap::new());
        let mut world = World { disk, store, session: Some(session), model, past };
        world.note();
        world
    }

    pub(super) fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    pub(super) fn note(&mut self) {
        let position = self.session().log().position().unwrap();
        self.past.insert(position.get(), self.model.clone());
    }

    pub(super) fn position(&self, index: Index) -> u64 {
        *self.past.keys().nth(index.index(self.past.len())).unwrap()
    }

    fn dispatch(&self, action: &Action) -> foldlog::Result<()> {
        let session = self.session();
        let now = |task: u8| self.model.get(task).map_or(0, |entry| entry.status);
        let modify = |task: u8, changes| TaskModified { task_id: name(task), changes };
        let dispatched = match action.clone() {
            Action::Create { task, parent, after, priority } => {
                let dependencies =
                    after.into_iter().map(|(on, requires)| Dependency { on: name(on), kind: kind(requires) });
                let (parent, dependencies) = (parent.map(name), dependencies.collect());
                let new = NewTask::new(name(task), "t");
                let new = NewTask { parent, priority: priority.into(), dependencies, ..new };
                session.dispatch(TaskCreated { task: new })
            }
            Action::Change { task, to, from } => session.dispatch(TaskStatusChanged {
                task_id: name(task),
                old_status: status(from.unwrap_or_else(|| now(task))),
                new_status: status(to),
                reason: None,
            }),
            Action::Reparent { task, parent } => {
                let parent = Some(parent.map(name));
                session.dispatch(modify(task, TaskChanges { parent, ..TaskChanges::default() }))
            }
            Action::Prioritize { task, priority } => {
                let priority = Some(priority.into());
                session.dispatch(modify(task, TaskChanges { priority, ..TaskChanges::default() }))
            }
            Action::Depend { from, to, requires } => {
                session.dispatch(DependencyAdded { from: name(from), to: name(to), dep_type: kind(requires) })
            }
            Action::RollBack(_) | Action::Fork(_) | Action::Reopen => unreachable!("these are no events"),
        };
        dispatched.map(drop)
    }

    pub(super) fn act(&mut self, action: &Action) {
        match action {
            Action::RollBack(index) => {
                let to = self.position(*index);
                self.session().rollback_to(to).unwrap();
                self.model = self.past[&to].clone();
            }
            Action::Fork(index) => {
                let at = self.position(*index);
                let parent = self.session().id();
                let fork = self.store.fork(parent, at, &types(), SessionOptions::default()).unwrap();
                self.session = Some(fork);
                self.model = self.past[&at].clone();
                self.past.retain(|position, _| *position <= at);
            }
            Action::Reopen => {
                let session = self.session.take().unwrap();
                let id = session.id();
                session.close().unwrap();
                self.session = Some(self.store.open_session(id, &types()).unwrap());
            }
            event => {
                let before = self.session().log().position();
                let taken = self.model.clone().take(event);
                let dispatched = self.dispatch(event);
                assert_eq!(dispatched.is_ok(), taken, "{event:?}: {dispatched:?}");
                if taken {
                    self.model.take(event);
                } else {
                    assert_eq!(self.session().log().position(), before, "what is refused is not recorded");
                    return;
                }
            }
        }
        self.note();
        self.check();
    }

    fn check(&self) {
        assert_is(&TaskTreeState::from_session(self.session()).unwrap(), &self.model);
    }
}

pub(super) fn assert_is(tree: &TaskTreeState, model: &Model) {
    let mut tasks: Vec<_> = tree.tasks.values().collect();
    tasks.sort_by_key(|task| task.number);
    let numbers: Vec<u64> = tasks.iter().map(|task| task.number).collect();
    assert_eq!(numbers, (0..model.tasks.len() as u64).collect::<Vec<_>>(), "numbers have no gaps");
    let found = tasks.iter().map(|task| {
        let after = task.dependencies.iter();
        let after = after.map(|one| (number(&one.on), one.kind == DependencyType::Requires));
        let entry = Entry {
            parent: task.parent.as_ref().map(number),
            status: TaskStatus::ALL.iter().position(|one| *one == task.status).unwrap() as u8,
            priority: task.priority,
            after: after.collect(),
            attempts: task.attempts,
            failures: task.failures,
        };
        (number(&task.id), entry)
    });
    assert_eq!(Model { tasks: found.collect() }, *model);
    let ready: Vec<u8> = tree.scheduling_state.ready.iter().map(number).collect();
    assert_eq!(ready, model.ready());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(512), ..ProptestConfig::default() })]

    #[test]
    fn tasks_are_after_any_history_what_a_naive_model_says(actions in actions(), images in any::<bool>()) {
        let mut world = World::new(images);
        for action in &actions {
            world.act(action);
        }
        world.act(&Action::Reopen);
        let reader = LogReader::open_on(Arc::new(world.disk.clone()), world.session().dir()).unwrap();
        assert_reduced_again(&reader, &types());
    }
}
