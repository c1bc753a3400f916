//! All tasks of a position, as a tree and as a graph.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::inspect::{LogReader, StateReader};
use foldlog::{Result, SequenceNumber, Session, SessionTypes};
use serde::{Deserialize, Serialize};

use super::{Dependency, SchedulingState, Task, TaskId, TaskStatus, Tasks, declare};

/// Contains all tasks, and values derived from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTreeState {
    /// Tasks by their ids.
    pub tasks: BTreeMap<TaskId, Task>,
    /// Tasks without a parent, in the order of their creation.
    pub root_tasks: Vec<TaskId>,
    /// Parts of each task that has parts.
    pub children: BTreeMap<TaskId, BTreeSet<TaskId>>,
    /// Task that was started last, and is in progress.
    pub active_task: Option<TaskId>,
    /// Number of tasks that were created.
    pub task_counter: u64,
    /// Dependencies of each task that has dependencies.
    pub dependency_graph: BTreeMap<TaskId, Vec<Dependency>>,
    /// Order of the tasks.
    pub scheduling_state: SchedulingState,
}

impl TaskTreeState {
    /// Reads the current tasks of a session.
    ///
    /// # Errors
    ///
    /// [`NoSuchSlice`](foldlog::Error::NoSuchSlice) if neither the session's types nor its log
    /// declare [`Tasks`], [`Decode`](foldlog::Error::Decode) if a task cannot be read.
    pub fn from_session(session: &Session) -> Result<TaskTreeState> {
        Ok(TaskTreeState::from_tasks(session.view::<Tasks>()?.iter().cloned()))
    }

    /// Reads the tasks of a log at a position. A log without tasks has an empty tree.
    ///
    /// # Errors
    ///
    /// [`NoSuchPosition`](foldlog::Error::NoSuchPosition) if the log has no such record,
    /// [`Decode`](foldlog::Error::Decode) if a task cannot be read, and the errors of reading a
    /// log.
    pub fn at(log: &LogReader, position: impl Into<SequenceNumber>) -> Result<TaskTreeState> {
        TaskTreeState::of_state(&log.state_reader_at(position)?)
    }

    /// Reads the tasks from the slices of one position of a log. Slices without tasks have an empty
    /// tree.
    ///
    /// # Errors
    ///
    /// [`Decode`](foldlog::Error::Decode) if a task cannot be read, and the errors of reading a
    /// log.
    pub fn of_state(state: &StateReader) -> Result<TaskTreeState> {
        TaskTreeState::of_slices(state, &declare(SessionTypes::builder()).build()?)
    }

    pub(crate) fn of_slices(slices: &StateReader, types: &SessionTypes) -> Result<TaskTreeState> {
        let tasks = slices.items::<Tasks>(types)?;
        Ok(TaskTreeState::from_tasks(tasks.iter().map(|task| Task::clone(task))))
    }

    /// Builds the tree of tasks.
    pub fn from_tasks(tasks: impl IntoIterator<Item = Task>) -> TaskTreeState {
        TaskTreeState::of_map(tasks.into_iter().map(|task| (task.id.clone(), task)).collect())
    }

    /// Builds the tree from a map of tasks by their ids.
    pub(crate) fn of_map(tasks: BTreeMap<TaskId, Task>) -> TaskTreeState {
        TaskTreeState {
            root_tasks: root_tasks(&tasks),
            children: children(&tasks),
            active_task: active_task(&tasks),
            task_counter: task_counter(&tasks),
            dependency_graph: dependency_graph(&tasks),
            scheduling_state: SchedulingState::from_tasks(&tasks),
            tasks,
        }
    }

    /// Returns the parts of each task, in the order of their creation.
    pub fn children(&self) -> BTreeMap<&TaskId, Vec<&Task>> {
        let mut children: BTreeMap<&TaskId, Vec<&Task>> = BTreeMap::new();
        for task in in_order(&self.tasks) {
            if let Some(parent) = &task.parent {
                children.entry(parent).or_default().push(task);
            }
        }
        children
    }

    /// Returns the number of tasks in a state.
    pub fn count(&self, status: TaskStatus) -> u64 {
        self.tasks.values().filter(|task| task.status == status).count() as u64
    }
}

pub(crate) fn in_order(tasks: &BTreeMap<TaskId, Task>) -> Vec<&Task> {
    let mut in_order: Vec<&Task> = tasks.values().collect();
    in_order.sort_by(|one, other| (one.number, &one.id).cmp(&(other.number, &other.id)));
    in_order
}

/// Returns the tasks without a parent, in the order of their creation.
pub(crate) fn root_tasks(tasks: &BTreeMap<TaskId, Task>) -> Vec<TaskId> {
    let in_order = in_order(tasks).into_iter();
    in_order.filter(|task| task.parent.is_none()).map(|task| task.id.clone()).collect()
}

/// Returns the parts of each task that has parts. A part whose task is missing is left out.
pub(crate) fn children(tasks: &BTreeMap<TaskId, Task>) -> BTreeMap<TaskId, BTreeSet<TaskId>> {
    let mut children: BTreeMap<TaskId, BTreeSet<TaskId>> = BTreeMap::new();
    for task in tasks.values() {
        if let Some(parent) = task.parent.as_ref().filter(|parent| tasks.contains_key(*parent)) {
            children.entry(parent.clone()).or_default().insert(task.id.clone());
        }
    }
    children
}

/// Returns the task in progress that was started last.
pub(crate) fn active_task(tasks: &BTreeMap<TaskId, Task>) -> Option<TaskId> {
    let in_progress = tasks.values().filter(|task| task.status == TaskStatus::InProgress);
    in_progress.max_by_key(|task| (task.status_at, task.number)).map(|task| task.id.clone())
}

/// Returns the number of tasks that were created, computed from the tasks' numbers.
pub(crate) fn task_counter(tasks: &BTreeMap<TaskId, Task>) -> u64 {
    tasks.values().map(|task| task.number.saturating_add(1)).max().unwrap_or_default()
}

pub(crate) fn dependency_graph(tasks: &BTreeMap<TaskId, Task>) -> BTreeMap<TaskId, Vec<Dependency>> {
    let dependent = tasks.values().filter(|task| !task.dependencies.is_empty());
    dependent.map(|task| (task.id.clone(), task.dependencies.clone())).collect()
}
