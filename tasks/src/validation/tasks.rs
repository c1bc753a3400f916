//! Rules of the task tree.

use super::parts::{TimeField, disordered};
use std::collections::{BTreeMap, BTreeSet};

use super::cycles::{dependency_cycles, parent_cycles};
use super::index::ValidationIndex;
use super::{Repair, RepairStep, RuleViolation, ValidationError};
use crate::tasks::tree::{active_task, children, dependency_graph, in_order, root_tasks, task_counter};
use crate::{
    DependencyRemoved, DependencyType, SchedulingState, StateComponent, Task, TaskChanges, TaskId,
    TaskModified, TaskRenumbered, TaskStatus, TaskStatusChanged,
};

/// Reason in the events of repairs.
const REASON: &str = "repair";

fn derived(error: ValidationError) -> RuleViolation {
    RuleViolation::derived(error, StateComponent::TaskTree)
}

/// Makes a task a root.
fn uproot(task: &TaskId) -> Option<Repair> {
    let changes = TaskChanges { parent: Some(None), ..TaskChanges::default() };
    Some(Repair::from_step(RepairStep::TaskModified(TaskModified { task_id: task.clone(), changes })))
}

fn remove(from: &TaskId, to: &TaskId, dep_type: DependencyType, why: &str) -> RepairStep {
    let reason = Some(format!("{REASON}: {why}"));
    RepairStep::DependencyRemoved(DependencyRemoved { from: from.clone(), to: to.clone(), dep_type, reason })
}

pub(super) fn keys(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    if checked.is_keyed {
        return Vec::new();
    }
    let mut times: BTreeMap<&TaskId, u64> = BTreeMap::new();
    tree.tasks.values().for_each(|task| *times.entry(&task.id).or_default() += 1);
    let is_ambiguous = times.values().any(|times| *times > 1);
    let differing = tree.tasks.iter().filter(|(key, task)| **key != task.id);
    let found = differing.map(|(key, task)| {
        let (component, key, name) = (StateComponent::TaskTree, key.to_string(), task.id.to_string());
        let is_taken = times.get(&task.id).is_some_and(|times| *times > 1);
        let violation = derived(ValidationError::KeyDiffers { component, key, name, is_taken });
        RuleViolation { repair: violation.repair.filter(|_| !is_ambiguous), ..violation }
    });
    found.collect()
}

pub(super) fn parents_exist(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (place, task) in checked.tasks.iter().enumerate() {
        if let (Some(parent), None) = (&task.parent, checked.parents[place]) {
            let (key, parent) = (checked.keys[place], parent.clone());
            let error = ValidationError::OrphanedTask { task: key.clone(), parent };
            found.push(RuleViolation { error, repair: uproot(key) });
        }
    }
    found
}

pub(super) fn parents_acyclic(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let cycles = parent_cycles(checked).into_iter();
    let found = cycles.map(|cycle| {
        let repair = cycle.first().and_then(uproot);
        RuleViolation { error: ValidationError::ParentCycle { cycle }, repair }
    });
    found.collect()
}

pub(super) fn dependencies_exist(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (place, key) in checked.keys.iter().enumerate() {
        for (missing, _) in checked.dependencies_of(place).filter(|(_, on)| on.is_none()) {
            let step = remove(key, &missing.on, missing.kind, "the task is missing");
            let (task, dependency) = ((*key).clone(), missing.on.clone());
            let error = ValidationError::MissingDependency { task, dependency };
            found.push(RuleViolation { error, repair: Some(Repair::from_step(step)) });
        }
    }
    found
}

pub(super) fn dependencies_distinct(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (key, task) in &checked.state.task_tree.tasks {
        let mut named: Vec<&TaskId> = task.dependencies.iter().map(|one| &one.on).collect();
        named.sort_unstable();
        if named.windows(2).all(|two| two[0] != two[1]) {
            continue;
        }
        let mut kinds: BTreeMap<&TaskId, Vec<DependencyType>> = BTreeMap::new();
        for dependency in &task.dependencies {
            kinds.entry(&dependency.on).or_default().push(dependency.kind);
        }
        for (on, mut kinds) in kinds.into_iter().filter(|(_, kinds)| kinds.len() > 1) {
            // `Requires` comes first, and is the one that remains.
            kinds.sort();
            let others = kinds.iter().skip(1).rev();
            let steps = others.map(|kind| remove(key, on, *kind, "it is named several times")).collect();
            let (task, dependency, times) = (key.clone(), on.clone(), kinds.len());
            let error = ValidationError::DependencyRepeated { task, dependency, times };
            found.push(RuleViolation { error, repair: Some(Repair { steps }) });
        }
    }
    found
}

pub(super) fn dependencies_acyclic(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let cycles = dependency_cycles(checked).into_iter();
    let found = cycles.map(|found| {
        let steps = found.cut.iter().map(|(from, to, kind)| remove(from, to, *kind, "it closes a cycle"));
        let repair = Some(Repair { steps: steps.collect() });
        let error = ValidationError::DependencyCycle { cycle: found.cycle, tasks: found.tasks };
        RuleViolation { error, repair }
    });
    found.collect()
}

pub(super) fn parents_and_children(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    let expected = children(&tree.tasks);
    if !checked.is_keyed || expected == tree.children {
        return Vec::new();
    }
    let pairs = |children: &'_ BTreeMap<TaskId, BTreeSet<TaskId>>| -> BTreeSet<(TaskId, TaskId)> {
        let of_parent = |(parent, parts): (&TaskId, &BTreeSet<TaskId>)| {
            parts.iter().map(|part| (parent.clone(), part.clone())).collect::<Vec<_>>()
        };
        children.iter().flat_map(of_parent).collect()
    };
    let (named, listed) = (pairs(&expected), pairs(&tree.children));
    let unlike = named.symmetric_difference(&listed).cloned();
    unlike
        .map(|(parent, child)| derived(ValidationError::InconsistentParentChild { parent, child }))
        .collect()
}

pub(super) fn roots(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    let expected = root_tasks(&tree.tasks);
    if !checked.is_keyed || tree.root_tasks == expected {
        return Vec::new();
    }
    let mut left: BTreeSet<&TaskId> = expected.iter().collect();
    let unknown = tree.root_tasks.iter().filter(|id| !left.remove(id)).cloned().collect();
    let missing = left.into_iter().cloned().collect();
    vec![derived(ValidationError::RootsDiffer { missing, unknown })]
}

pub(super) fn active(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    let expected = active_task(&tree.tasks);
    if !checked.is_keyed || tree.active_task == expected {
        return Vec::new();
    }
    let found = tree.active_task.clone();
    vec![derived(ValidationError::ActiveTaskWrong { found, expected })]
}

pub(super) fn counter(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    let (found, expected) = (tree.task_counter, task_counter(&tree.tasks));
    if found == expected {
        return Vec::new();
    }
    vec![derived(ValidationError::CounterWrong { found, expected })]
}

pub(super) fn numbers(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tasks = &checked.state.task_tree.tasks;
    let mut is_there = vec![false; tasks.len()];
    let places = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    for task in tasks.values() {
        is_there.get_mut(places(task.number)).into_iter().for_each(|is_there| *is_there = true);
    }
    if !is_there.contains(&false) {
        return Vec::new();
    }
    let numbers: BTreeSet<u64> = tasks.values().map(|task| task.number).collect();
    let (distinct, counter) = (numbers.len() as u64, task_counter(tasks));
    let repeated = tasks.len() as u64 - distinct;
    let missing = counter.saturating_sub(distinct);
    let first = (0..).zip(&numbers).find(|(place, number)| place != *number).map(|(place, _)| place);
    let error = ValidationError::NumbersDiffer { repeated, missing, first };
    // Events name tasks by their ids. Tasks are renumbered only if each is stored under its own id.
    let repair = checked.is_keyed.then(|| Repair { steps: renumber(tasks) });
    vec![RuleViolation { error, repair }]
}

/// Numbers tasks in their order. Tasks whose numbers increase come first, the last one first, then
/// those whose numbers decrease. So tasks with different numbers never share one in between.
fn renumber(tasks: &BTreeMap<TaskId, Task>) -> Vec<RepairStep> {
    let step = |(new_number, task): (u64, &Task)| {
        RepairStep::TaskRenumbered(TaskRenumbered {
            task_id: task.id.clone(),
            old_number: task.number,
            new_number,
            reason: Some(REASON.to_owned()),
        })
    };
    let places: Vec<(u64, &Task)> = (0..).zip(in_order(tasks)).collect();
    let up = places.iter().rev().filter(|(new, task)| task.number < *new);
    let down = places.iter().filter(|(new, task)| task.number > *new);
    up.chain(down).copied().map(step).collect()
}

pub(super) fn graph(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    let dependent = checked.tasks.iter().filter(|task| !task.dependencies.is_empty());
    let is_same = dependent.map(|task| (&task.id, &task.dependencies)).eq(&tree.dependency_graph);
    if !checked.is_keyed || is_same {
        return Vec::new();
    }
    let expected = dependency_graph(&tree.tasks);
    let named: BTreeSet<&TaskId> = expected.keys().chain(tree.dependency_graph.keys()).collect();
    let differs = |id: &&TaskId| expected.get(*id) != tree.dependency_graph.get(*id);
    let tasks = named.into_iter().filter(differs).cloned().collect();
    vec![derived(ValidationError::GraphDiffers { tasks })]
}

pub(super) fn schedule(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tree = &checked.state.task_tree;
    if !checked.is_keyed {
        return Vec::new();
    }
    let (found, expected) = (&tree.scheduling_state, SchedulingState::from_tasks(&tree.tasks));
    let compared = [
        ("ready", found.ready == expected.ready),
        ("blocked", found.blocked == expected.blocked),
        ("in_progress", found.in_progress == expected.in_progress),
        ("failed", found.failed == expected.failed),
    ];
    let queues: Vec<&str> = compared.iter().filter(|(_, equal)| !equal).map(|(name, _)| *name).collect();
    if queues.is_empty() {
        return Vec::new();
    }
    vec![derived(ValidationError::ScheduleDiffers { queues })]
}

pub(super) fn statuses(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let tasks = &checked.state.task_tree.tasks;
    let mut found = Vec::new();
    for (key, task) in tasks.iter().filter(|(_, task)| task.status == TaskStatus::InProgress) {
        let required = task.dependencies.iter().filter(|one| one.kind == DependencyType::Requires);
        let is_open = |on: &&TaskId| tasks.get(*on).is_some_and(|other| !other.status.satisfies());
        let required: Vec<TaskId> = required.map(|one| &one.on).filter(is_open).cloned().collect();
        if required.is_empty() {
            continue;
        }
        let (old_status, new_status) = (TaskStatus::InProgress, TaskStatus::Pending);
        let reason = Some(format!("{REASON}: it was started before what it requires had ended well"));
        let step = TaskStatusChanged { task_id: key.clone(), old_status, new_status, reason };
        let error = ValidationError::StatusImpossible { task: key.clone(), status: old_status, required };
        let repair = Some(Repair::from_step(RepairStep::TaskStatusChanged(step)));
        found.push(RuleViolation { error, repair });
    }
    found
}

pub(super) fn attempts(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let is_impossible = |task: &Task| match task.status {
        TaskStatus::InProgress | TaskStatus::Completed => task.attempts <= task.failures,
        TaskStatus::Failed => task.failures == 0 || task.attempts < task.failures,
        _ => task.attempts < task.failures,
    };
    let impossible = checked.state.task_tree.tasks.iter().filter(|(_, task)| is_impossible(task));
    let found = impossible.map(|(key, task)| {
        let Task { status, attempts, failures, .. } = *task;
        let error = ValidationError::AttemptsImpossible { task: key.clone(), status, attempts, failures };
        RuleViolation { error, repair: None }
    });
    found.collect()
}

pub(super) fn times(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (key, task) in &checked.state.task_tree.tasks {
        let created = TimeField { name: "created_at", at: task.created_at };
        let status = TimeField { name: "status_at", at: task.status_at };
        let updated = TimeField { name: "updated_at", at: task.updated_at };
        for (earlier, later) in [(created, status), (status, updated)] {
            found.extend(disordered(format!("task `{key}`"), earlier, later));
        }
    }
    found
}
