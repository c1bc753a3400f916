//! Which task is next, and what the others wait for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::tree::in_order;
use super::{DependencyType, Task, TaskId, TaskStatus};

/// Says which tasks may start, in which order, and what the others wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulingState {
    /// Tasks that may start: those whose preferred tasks are done with come first, then higher priorities, then older ones.
    pub ready: Vec<TaskId>,
    /// Tasks that may not, in the order of their creation.
    pub blocked: Vec<BlockedTask>,
    /// Tasks that are being worked on, those first that were started first.
    pub in_progress: Vec<TaskId>,
    /// Tasks that failed, which may be tried again, in the order of their creation.
    pub failed: Vec<TaskId>,
}

/// Holds a task that may not start, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedTask {
    /// Id of the task.
    pub task: TaskId,
    /// What it waits for.
    pub waits: Waits,
}

/// Says what a task waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// For these tasks to be completed or skipped.
    ForTasks(Vec<TaskId>),
    /// For a task that it requires and that never will be: it was cancelled.
    ForCancelled(Vec<TaskId>),
    /// For something else: it was [blocked](TaskStatus::Blocked) for this reason.
    ForReason(Option<String>),
}

impl SchedulingState {
    /// Finds the order of tasks.
    pub(in crate::persistence) fn of(tasks: &BTreeMap<TaskId, Task>) -> SchedulingState {
        let mut schedule = SchedulingState::default();
        // Only looked into, never walked: its order does not matter.
        let known: HashMap<&TaskId, &Task> = tasks.iter().collect();
        let mut ready: Vec<&Task> = Vec::new();
        let mut in_progress: Vec<&Task> = Vec::new();
        for task in in_order(tasks) {
            let id = || task.id.clone();
            match task.status {
                TaskStatus::InProgress => in_progress.push(task),
                TaskStatus::Failed => schedule.failed.push(id()),
                TaskStatus::Blocked => {
                    let waits = Waits::ForReason(task.reason.clone());
                    schedule.blocked.push(BlockedTask { task: id(), waits });
                }
                TaskStatus::Pending => match waits_for(task, &known) {
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

/// Returns what a pending task waits for; `None` if it may start.
fn waits_for(task: &Task, tasks: &HashMap<&TaskId, &Task>) -> Option<Waits> {
    let required = task.dependencies.iter().filter(|one| one.kind == DependencyType::Requires);
    let open: Vec<&TaskId> = required
        .map(|dependency| &dependency.on)
        .filter(|on| !tasks.get(on).is_some_and(|other| other.status.satisfies()))
        .collect();
    let is_cancelled =
        |on: &&&TaskId| tasks.get(**on).is_some_and(|other| other.status == TaskStatus::Cancelled);
    let cancelled: Vec<TaskId> = open.iter().filter(is_cancelled).map(|on| (*on).clone()).collect();
    match (open.is_empty(), cancelled.is_empty()) {
        (true, _) => None,
        (_, false) => Some(Waits::ForCancelled(cancelled)),
        (_, true) => Some(Waits::ForTasks(open.into_iter().cloned().collect())),
    }
}
