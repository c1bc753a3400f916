//! The order of tasks, and the reasons why tasks wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use serde::{Deserialize, Serialize};

use super::tree::in_order;
use super::{DependencyType, Task, TaskId, TaskStatus};

/// Lists the tasks that may start, in order, and the others with the reasons why they wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulingState {
    /// Tasks that may start. Tasks come first if none of their preferred tasks is itself ready,
    /// then those with higher priorities, then older ones.
    pub ready: Vec<TaskId>,
    /// Tasks that may not start, in the order of their creation.
    pub blocked: Vec<BlockedTask>,
    /// Tasks in progress, in the order in which they were started.
    pub in_progress: Vec<TaskId>,
    /// Failed tasks, which may be tried again, in the order of their creation.
    pub failed: Vec<TaskId>,
}

/// Describes a task that may not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedTask {
    /// Id of the task.
    pub task: TaskId,
    /// Why it waits.
    pub waits: Waits,
}

/// Describes why a task waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// For these tasks to be completed or skipped.
    ForTasks(Vec<TaskId>),
    /// For required tasks that were cancelled, and so will never be completed.
    ForCancelled(Vec<TaskId>),
    /// For these parts to be completed, skipped or cancelled.
    ForParts(Vec<TaskId>),
    /// For another reason: it was [blocked](TaskStatus::Blocked) for this reason.
    ForReason(Option<String>),
}

impl SchedulingState {
    pub(crate) fn from_tasks(tasks: &BTreeMap<TaskId, Task>) -> SchedulingState {
        let mut schedule = SchedulingState::default();
        let waiting = TaskWaitGraph::from_tasks(tasks);
        let mut ready: Vec<&Task> = Vec::new();
        let mut in_progress: Vec<&Task> = Vec::new();
        for (place, task) in waiting.tasks.iter().copied().enumerate() {
            let id = || task.id.clone();
            match task.status {
                TaskStatus::InProgress => in_progress.push(task),
                TaskStatus::Failed => schedule.failed.push(id()),
                TaskStatus::Blocked => {
                    let waits = Waits::ForReason(task.reason.clone());
                    schedule.blocked.push(BlockedTask { task: id(), waits });
                }
                TaskStatus::Pending => match waiting.waits_of(place) {
                    Some(waits) => schedule.blocked.push(BlockedTask { task: id(), waits }),
                    None => ready.push(task),
                },
                TaskStatus::Completed | TaskStatus::Skipped | TaskStatus::Cancelled => {}
            }
        }
        in_progress.sort_by_key(|task| (task.status_at, task.number));
        schedule.in_progress = in_progress.into_iter().map(|task| task.id.clone()).collect();
        let could_start: HashSet<&TaskId> = ready.iter().map(|task| &task.id).collect();
        let waits_for_preferred = |task: &Task| {
            let mut preferred =
                task.dependencies.iter().filter(|dependency| dependency.kind == DependencyType::Prefers);
            preferred.any(|dependency| could_start.contains(&dependency.on))
        };
        ready.sort_by_cached_key(|task| (waits_for_preferred(task), Reverse(task.priority), task.number));
        schedule.ready = ready.into_iter().map(|task| task.id.clone()).collect();
        schedule
    }
}

/// Finds the reasons why pending tasks wait. Tasks are identified by their places in the order of
/// creation.
struct TaskWaitGraph<'a> {
    tasks: Vec<&'a Task>,
    /// Only used for lookups, never iterated: its order does not matter.
    places: HashMap<&'a TaskId, usize>,
    /// For each pending task, the parts on which it depends.
    parts: Vec<Vec<usize>>,
}

impl<'a> TaskWaitGraph<'a> {
    fn from_tasks(tasks: &'a BTreeMap<TaskId, Task>) -> TaskWaitGraph<'a> {
        let tasks = in_order(tasks);
        let places: HashMap<&TaskId, usize> =
            (0..).zip(&tasks).map(|(place, task)| (&task.id, place)).collect();
        let mut parts = vec![Vec::new(); tasks.len()];
        for (place, task) in tasks.iter().enumerate().filter(|(_, task)| !task.status.is_final()) {
            let parent = task.parent.as_ref().and_then(|parent| places.get(parent));
            if let Some(parent) = parent.filter(|parent| tasks[**parent].status == TaskStatus::Pending) {
                parts[*parent].push(place);
            }
        }
        let mut waiting = TaskWaitGraph { tasks, places, parts };
        waiting.leave_out_waiting_parts();
        waiting
    }

    /// Returns the required tasks that have not ended well, each with its place if it exists.
    fn open_requirements(&self, place: usize) -> impl Iterator<Item = (&'a TaskId, Option<usize>)> {
        let required =
            self.tasks[place].dependencies.iter().filter(|one| one.kind == DependencyType::Requires);
        let placed = required.map(|one| (&one.on, self.places.get(&one.on).copied()));
        placed.filter(|(_, other)| !other.is_some_and(|other| self.tasks[other].status.satisfies()))
    }

    /// Leaves out the parts that wait for their own task: otherwise both would wait for ever.
    fn leave_out_waiting_parts(&mut self) {
        let is_pending = |place: &usize| self.tasks[*place].status == TaskStatus::Pending;
        if self.parts.iter().all(Vec::is_empty) {
            return;
        }
        let mut waits: Vec<(u32, u32)> = Vec::new();
        for place in (0..self.tasks.len()).filter(is_pending) {
            let required = self.open_requirements(place).filter_map(|(_, other)| other);
            let others = required.chain(self.parts[place].iter().copied()).filter(is_pending);
            waits.extend(others.map(|other| (place as u32, other as u32)));
        }
        let mut together: Vec<Option<usize>> = vec![None; self.tasks.len()];
        // Tarjan's algorithm recurses as deep as the longest path.
        let components = kosaraju_scc(&DiGraph::<(), ()>::from_edges(waits));
        for (number, component) in components.iter().enumerate().filter(|(_, component)| component.len() > 1)
        {
            component.iter().for_each(|task| together[task.index()] = Some(number));
        }
        for (place, parts) in self.parts.iter_mut().enumerate() {
            let waits_for_it = |part: usize| together[part].is_some() && together[part] == together[place];
            parts.retain(|part| *part != place && !waits_for_it(*part));
        }
    }

    /// Returns why a pending task waits; `None` if it may start.
    fn waits_of(&self, place: usize) -> Option<Waits> {
        let open: Vec<(&TaskId, Option<usize>)> = self.open_requirements(place).collect();
        let is_cancelled = |other: Option<usize>| {
            other.is_some_and(|other| self.tasks[other].status == TaskStatus::Cancelled)
        };
        let cancelled = open.iter().filter(|(_, other)| is_cancelled(*other));
        let cancelled: Vec<TaskId> = cancelled.map(|(on, _)| (*on).clone()).collect();
        let parts = &self.parts[place];
        match (cancelled.is_empty(), open.is_empty(), parts.is_empty()) {
            (false, _, _) => Some(Waits::ForCancelled(cancelled)),
            (_, false, _) => Some(Waits::ForTasks(open.into_iter().map(|(on, _)| on.clone()).collect())),
            (_, _, false) => {
                Some(Waits::ForParts(parts.iter().map(|part| self.tasks[*part].id.clone()).collect()))
            }
            (true, true, true) => None,
        }
    }
}
