//! Repairs as events, plans of repairs, and a simulation of their results.

use std::collections::BTreeSet;
use std::fmt;

use foldlog::Event;
use serde::Serialize;

use super::{RepairObstacle, ValidationIssue};
use crate::tasks::TaskChange;
use crate::{
    DependencyAdded, DependencyRemoved, SessionConfigured, SessionState, StateComponent, TaskCreated, TaskId,
    TaskModified, TaskRenumbered, TaskStatusChanged, TaskTreeState,
};

/// Contains the repair of one issue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// Steps in their order.
    pub steps: Vec<RepairStep>,
}

impl Repair {
    /// Returns a repair of one step.
    pub fn from_step(step: RepairStep) -> Repair {
        Repair { steps: vec![step] }
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.steps.iter().enumerate() {
            let between = if place == 0 { "" } else { "; " };
            write!(f, "{between}{step}")?;
        }
        Ok(())
    }
}

/// Describes one event that repairs an issue. Its [`Display`](fmt::Display) form is escaped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "step")]
#[non_exhaustive]
pub enum RepairStep {
    /// Creates a task.
    TaskCreated(TaskCreated),
    /// Changes the state of a task.
    TaskStatusChanged(TaskStatusChanged),
    /// Changes a task otherwise.
    TaskModified(TaskModified),
    /// Adds a dependency.
    DependencyAdded(DependencyAdded),
    /// Removes a dependency.
    DependencyRemoved(DependencyRemoved),
    /// Changes the number of a task.
    TaskRenumbered(TaskRenumbered),
    /// Configures the session.
    SessionConfigured(SessionConfigured),
    /// Derives the data of a part again. This is no event: a session always does it, and an
    /// exported state when it is repaired.
    Derive {
        /// The part.
        component: StateComponent,
    },
}

impl RepairStep {
    /// Returns the name of the event that the step dispatches; `None` if it dispatches none.
    pub fn event_name(&self) -> Option<&'static str> {
        match self {
            RepairStep::TaskCreated(_) => Some(TaskCreated::NAME),
            RepairStep::TaskStatusChanged(_) => Some(TaskStatusChanged::NAME),
            RepairStep::TaskModified(_) => Some(TaskModified::NAME),
            RepairStep::DependencyAdded(_) => Some(DependencyAdded::NAME),
            RepairStep::DependencyRemoved(_) => Some(DependencyRemoved::NAME),
            RepairStep::TaskRenumbered(_) => Some(TaskRenumbered::NAME),
            RepairStep::SessionConfigured(_) => Some(SessionConfigured::NAME),
            RepairStep::Derive { .. } => None,
        }
    }

    /// Describes the loss by the step; `None` if there is none.
    pub fn loses(&self) -> Option<String> {
        match self {
            RepairStep::DependencyRemoved(event) => {
                Some(format!("`{}` {} `{}`", event.from, event.dep_type, event.to))
            }
            _ => None,
        }
    }
}

impl fmt::Display for RepairStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepairStep::TaskCreated(event) => write!(f, "create task `{}`", event.task.id),
            RepairStep::TaskStatusChanged(event) => {
                write!(f, "bring task `{}` from {} to {}", event.task_id, event.old_status, event.new_status)
            }
            RepairStep::TaskModified(event) => match &event.changes.parent {
                Some(None) => write!(f, "make task `{}` a root", event.task_id),
                Some(Some(parent)) => write!(f, "make task `{}` a part of `{parent}`", event.task_id),
                None => write!(f, "change task `{}`", event.task_id),
            },
            RepairStep::DependencyAdded(event) => {
                write!(f, "let task `{}` depend on `{}`", event.from, event.to)
            }
            RepairStep::DependencyRemoved(event) => {
                let DependencyRemoved { from, to, dep_type, .. } = event;
                write!(f, "let task `{from}` depend on `{to}` no longer ({dep_type})")
            }
            RepairStep::TaskRenumbered(event) => {
                write!(
                    f,
                    "number task `{}` {}, which was {}",
                    event.task_id, event.new_number, event.old_number
                )
            }
            RepairStep::SessionConfigured(event) => match event.configuration.requires_validation {
                false => f.write_str("say that the session was validated"),
                true => f.write_str("configure the session"),
            },
            RepairStep::Derive { component } => write!(f, "derive {component} once more"),
        }
    }
}

/// Contains repairs in the order in which a session applies them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RepairPlan {
    /// Steps in their order.
    pub steps: Vec<PlannedStep>,
    /// Remaining issues, with reasons.
    pub unrepairable: Vec<Unrepairable>,
}

/// Contains one step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedStep {
    /// Name of the violated rule.
    pub rule: String,
    /// The repair step.
    #[serde(flatten)]
    pub step: RepairStep,
}

/// Contains an issue that a plan does not repair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unrepairable {
    /// The issue.
    pub issue: ValidationIssue,
    /// Why it remains.
    pub why: RepairObstacle,
}

/// Returns the state that a plan would produce. Changed items get the time of the last update, or
/// of the task's own last change if that is later.
pub fn simulate(state: &SessionState, plan: &RepairPlan) -> SessionState {
    let mut after = state.clone();
    take_all(&mut after, &plan.steps);
    after
}

/// Applies steps, and derives the dependent data.
pub(super) fn take_all(state: &mut SessionState, steps: &[PlannedStep]) {
    for planned in steps {
        take(state, &planned.step);
    }
    let of_tasks = |planned: &PlannedStep| {
        !matches!(planned.step, RepairStep::SessionConfigured(_) | RepairStep::Derive { .. })
    };
    let changes_tasks = steps.iter().any(of_tasks);
    if changes_tasks {
        derive(state, StateComponent::TaskTree);
    }
}

fn derive(state: &mut SessionState, component: StateComponent) {
    match component {
        StateComponent::TaskTree => state.task_tree = derive_tree(std::mem::take(&mut state.task_tree)),
        StateComponent::ClaudeContext => {
            let usage = &mut state.claude_context.usage_tracking;
            usage.by_model = usage.sums();
        }
        // The other parts have no derived data.
        _ => {}
    }
}

/// Applies a step, if the session would accept its event.
fn take(state: &mut SessionState, step: &RepairStep) {
    let (tasks, last_update) = (&mut state.task_tree.tasks, state.last_checkpoint);
    let event: &dyn TaskChange = match step {
        RepairStep::TaskCreated(event) => {
            let (new, count) = (event.task.clone(), tasks.len() as u64);
            tasks.entry(new.id.clone()).or_insert_with(|| new.into_task(count, last_update));
            return;
        }
        RepairStep::TaskStatusChanged(event) => event,
        RepairStep::TaskModified(event) => event,
        RepairStep::DependencyAdded(event) => event,
        RepairStep::DependencyRemoved(event) => event,
        RepairStep::TaskRenumbered(event) => event,
        RepairStep::SessionConfigured(event) => return state.configuration = event.configuration.clone(),
        // Later steps use the ids under which tasks are stored from here on.
        RepairStep::Derive { component } => return derive(state, *component),
    };
    if let Some(task) = tasks.get_mut(event.task_id()).filter(|task| event.fits(task)) {
        event.change(task, last_update.max(task.updated_at));
    }
}

/// Derives data from tasks. Tasks with the same id remain under their current keys: none is
/// dropped.
fn derive_tree(tree: TaskTreeState) -> TaskTreeState {
    let ids: BTreeSet<&TaskId> = tree.tasks.values().map(|task| &task.id).collect();
    match ids.len() == tree.tasks.len() {
        true => TaskTreeState::from_tasks(tree.tasks.into_values()),
        false => TaskTreeState::of_map(tree.tasks),
    }
}
