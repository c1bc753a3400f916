//! The law of validation: for any damage to tasks, the validator finds the same as a naive check,
//! which shares no code with it. Its plan repairs the damage, or explains why not, and drops no
//! task.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::{Event, SessionTypes, SliceOp};
use foldlog_tasks::{
    BlockedTask, Dependency, DependencyType, RepairPlan, RepairStep, SessionState, StateValidator, Task,
    TaskId, TaskStatus, TaskTreeState, Tasks, ValidationSeverity, Waits, declare, simulate,
};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{id, store};

use DependencyType::{Prefers, Requires};
use TaskStatus::{Blocked, Cancelled, Completed, Failed, InProgress, Pending, Skipped};

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Returns a time in seconds after the start.
pub(super) fn at<T: DeserializeOwned>(seconds: i64) -> T {
    serde_json::from_value(format!("2026-01-02T03:00:{seconds:02}Z").into()).unwrap()
}

/// Returns a task without dependencies, whose times and counts fit its state.
pub(super) fn sound(name: &str, number: u64, status: TaskStatus) -> Task {
    let attempts = u32::from(matches!(status, InProgress | Completed | Failed));
    Task {
        id: id(name),
        number,
        parent: None,
        title: format!("The task {name}"),
        description: String::new(),
        status,
        reason: None,
        status_at: at(number as i64 * 3 % 7),
        priority: 0,
        dependencies: Vec::new(),
        attempts,
        failures: u32::from(status == Failed),
        created_at: at(0),
        updated_at: at(10),
        fields: BTreeMap::new(),
    }
}

pub(super) fn state_of(task_tree: TaskTreeState) -> SessionState {
    SessionState { task_tree, last_checkpoint: at(20), ..SessionState::empty(Uuid::nil(), at(0)) }
}

/// Returns tasks as a session may create them.
fn valid_tasks(dice: &mut Dice) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    for number in 0..dice.below(11) {
        let mut task = sound(&format!("t{}", (number * 7) % 11), number as u64, Pending);
        if number > 0 && dice.one_in(2) {
            task.parent = Some(tasks[dice.below(number)].id.clone());
        }
        let mut named = BTreeSet::new();
        for _ in 0..dice.below(3).min(number) {
            let on = dice.below(number);
            if named.insert(on) {
                let kind = if dice.one_in(3) { Prefers } else { Requires };
                task.dependencies.push(Dependency { on: tasks[on].id.clone(), kind });
            }
        }
        let is_done = |on: &TaskId| {
            tasks.iter().any(|other| other.id == *on && matches!(other.status, Completed | Skipped))
        };
        let may_start = task.dependencies.iter().all(|one| one.kind == Prefers || is_done(&one.on));
        let status = match dice.below(8) {
            0 => Blocked,
            1 => Skipped,
            2 => Cancelled,
            3 if may_start => InProgress,
            4 | 5 if may_start => Completed,
            6 if may_start => Failed,
            _ => Pending,
        };
        let shape = sound("x", number as u64, status);
        (task.status, task.attempts, task.failures) = (status, shape.attempts, shape.failures);
        task.priority = dice.below(3) as i64;
        tasks.push(task);
    }
    tasks
}

/// Breaks tasks in one way.
fn break_tasks(tasks: &mut [Task], dice: &mut Dice) {
    let count = tasks.len();
    if count == 0 {
        return;
    }
    let one = dice.below(count);
    let length = 1 + dice.below(count);
    let ring: Vec<usize> = (0..length).map(|place| (one + place) % count).collect();
    let next: Vec<TaskId> = ring.iter().map(|place| tasks[*place].id.clone()).collect();
    match dice.below(8) {
        0 => tasks[one].parent = Some(id("gone")),
        1 => {
            for (place, at) in ring.iter().enumerate() {
                tasks[*at].parent = Some(next[(place + 1) % length].clone());
            }
        }
        2 => {
            let kind = if dice.one_in(2) { Prefers } else { Requires };
            tasks[one].dependencies.push(Dependency { on: id("gone"), kind });
        }
        3 => {
            let again = tasks[one].dependencies.first().map(|one| one.on.clone());
            let on = again.unwrap_or_else(|| tasks[dice.below(count)].id.clone());
            for kind in [Prefers, Requires] {
                tasks[one].dependencies.push(Dependency { on: on.clone(), kind });
            }
        }
        4 | 5 => {
            for (place, at) in ring.iter().enumerate() {
                let kind = if dice.one_in(3) { Prefers } else { Requires };
                tasks[*at].dependencies.push(Dependency { on: next[(place + 1) % length].clone(), kind });
            }
        }
        6 => tasks[one].number = dice.below(2 * count) as u64,
        _ => {
            tasks[one].status = InProgress;
            tasks[one].attempts = 1 + tasks[one].failures;
        }
    }
}

/// Breaks data derived from tasks in one way.
fn break_derived(tree: &mut TaskTreeState, dice: &mut Dice) {
    let some = tree.tasks.keys().nth(dice.below(tree.tasks.len())).cloned().unwrap_or_else(|| id("gone"));
    match dice.below(11) {
        0 => tree.root_tasks.push(some),
        1 => drop(tree.root_tasks.pop()),
        2 => tree.root_tasks.reverse(),
        3 => tree.active_task = if dice.one_in(2) { None } else { Some(some) },
        4 => tree.task_counter = dice.below(12) as u64,
        5 => drop(tree.dependency_graph.pop_first()),
        6 => drop(tree.dependency_graph.insert(some, Vec::new())),
        7 => drop(tree.children.pop_first()),
        8 => drop(tree.children.entry(some.clone()).or_default().insert(some)),
        9 => {
            let schedule = &mut tree.scheduling_state;
            match dice.below(4) {
                0 => schedule.ready.push(some),
                1 => drop(schedule.in_progress.pop()),
                2 => schedule.failed.push(some),
                _ => drop(schedule.blocked.pop()),
            }
        }
        _ => {
            if let Some(task) = tree.tasks.remove(&some) {
                let key = if dice.one_in(2) { id("other") } else { some };
                let name = tree.tasks.keys().nth(dice.below(tree.tasks.len())).cloned();
                let id = if dice.one_in(3) { name.unwrap_or(task.id.clone()) } else { task.id.clone() };
                tree.tasks.insert(key, Task { id, ..task });
            }
        }
    }
}

/// Returns the rules that a tree breaks, except those of warnings. Slow, simple and independent.
fn naive(tree: &TaskTreeState) -> BTreeSet<&'static str> {
    let mut broken = BTreeSet::new();
    let mut breaks = |is_broken: bool, rule| {
        if is_broken {
            broken.insert(rule);
        }
    };
    let tasks: Vec<(&TaskId, &Task)> = tree.tasks.iter().collect();
    let count = tasks.len();
    let place = |id: &TaskId| tasks.iter().position(|(key, _)| *key == id);
    let keyed = tasks.iter().all(|(key, task)| **key == task.id);
    breaks(!keyed, "task-keys");
    for (_, task) in &tasks {
        breaks(task.parent.as_ref().is_some_and(|parent| place(parent).is_none()), "parents-exist");
        for (at, one) in task.dependencies.iter().enumerate() {
            breaks(place(&one.on).is_none(), "dependencies-exist");
            breaks(task.dependencies[..at].iter().any(|other| other.on == one.on), "dependencies-distinct");
            let open = place(&one.on).is_some_and(|on| !matches!(tasks[on].1.status, Completed | Skipped));
            breaks(task.status == InProgress && one.kind == Requires && open, "statuses");
        }
    }
    for start in 0..count {
        let mut at = Some(start);
        for _ in 0..count {
            at = at.and_then(|at| tasks[at].1.parent.as_ref().and_then(place));
            breaks(at == Some(start), "parents-acyclic");
        }
    }
    let reach = reach(&tasks);
    breaks((0..count).any(|at| reach[at][at]), "dependencies-acyclic");
    let mut numbers: Vec<u64> = tasks.iter().map(|(_, task)| task.number).collect();
    numbers.sort_unstable();
    breaks(tree.task_counter != numbers.last().map_or(0, |last| last + 1), "task-counter");
    breaks(numbers != (0..count as u64).collect::<Vec<_>>(), "task-numbers");
    let parent = |id: &TaskId| place(id).and_then(|at| tasks[at].1.parent.as_ref());
    if keyed {
        let lists = |parent: &TaskId, child: &TaskId| {
            tree.children.get(parent).is_some_and(|parts| parts.contains(child))
        };
        let unlisted = |(_, task): &(&TaskId, &Task)| {
            task.parent.as_ref().is_some_and(|of| place(of).is_some() && !lists(of, &task.id))
        };
        breaks(tasks.iter().any(unlisted), "parent-child");
        let unnamed =
            |(of, parts): (&TaskId, &BTreeSet<TaskId>)| parts.iter().any(|part| parent(part) != Some(of));
        breaks(tree.children.iter().any(unnamed), "parent-child");
        let mut in_order: Vec<&Task> = tasks.iter().map(|(_, task)| *task).collect();
        in_order.sort_by_key(|task| (task.number, task.id.clone()));
        let ids = |of: &dyn Fn(&Task) -> bool| -> Vec<TaskId> {
            in_order.iter().filter(|task| of(task)).map(|task| task.id.clone()).collect()
        };
        breaks(tree.root_tasks != ids(&|task| task.parent.is_none()), "roots");
        // If times and numbers are equal, the greater id counts.
        let started = in_order.iter().filter(|task| task.status == InProgress);
        let active = started.max_by_key(|task| (task.status_at, task.number, task.id.clone()));
        breaks(tree.active_task != active.map(|task| task.id.clone()), "active-task");
        let mut graph = tree.dependency_graph.clone();
        let same = in_order.iter().all(|task| {
            graph.remove(&task.id).unwrap_or_default() == task.dependencies
                && tree.dependency_graph.contains_key(&task.id) != task.dependencies.is_empty()
        });
        breaks(!same || !graph.is_empty(), "dependency-graph");
        breaks(!is_scheduled(tree, &in_order), "schedule");
    }
    broken
}

/// Returns which task leads to which along dependencies.
fn reach(tasks: &[(&TaskId, &Task)]) -> Vec<Vec<bool>> {
    let count = tasks.len();
    let mut reach: Vec<Vec<bool>> = tasks
        .iter()
        .map(|(_, task)| {
            tasks.iter().map(|(key, _)| task.dependencies.iter().any(|one| one.on == **key)).collect()
        })
        .collect();
    for through in 0..count {
        for from in 0..count {
            for to in 0..count {
                reach[from][to] |= reach[from][through] && reach[through][to];
            }
        }
    }
    reach
}

/// Returns the parts of each task that have not ended and do not lead back to it along the
/// dependencies of pending tasks.
fn parts_to_wait_for(in_order: &[&Task], open: &dyn Fn(&Task) -> Vec<TaskId>) -> Vec<Vec<TaskId>> {
    let count = in_order.len();
    let is_part = |part: usize, of: usize| {
        in_order[part].parent.as_ref() == Some(&in_order[of].id)
            && !matches!(in_order[part].status, Completed | Skipped | Cancelled)
    };
    let mut leads: Vec<Vec<bool>> = vec![vec![false; count]; count];
    for from in (0..count).filter(|from| in_order[*from].status == Pending) {
        let open = open(in_order[from]);
        (0..count).for_each(|to| leads[from][to] = is_part(to, from) || open.contains(&in_order[to].id));
    }
    for through in 0..count {
        for from in 0..count {
            for to in 0..count {
                leads[from][to] |= leads[from][through] && leads[through][to];
            }
        }
    }
    let id = |part: usize| in_order[part].id.clone();
    let parts_of =
        |of: usize| (0..count).filter(|part| is_part(*part, of) && !leads[*part][of]).map(id).collect();
    (0..count).map(parts_of).collect()
}

fn is_scheduled(tree: &TaskTreeState, in_order: &[&Task]) -> bool {
    let status = |on: &TaskId| in_order.iter().find(|task| task.id == *on).map(|task| task.status);
    let open = |task: &Task| -> Vec<TaskId> {
        let required = task.dependencies.iter().filter(|one| one.kind == Requires).map(|one| &one.on);
        required.filter(|on| !matches!(status(on), Some(Completed | Skipped))).cloned().collect()
    };
    let parts = parts_to_wait_for(in_order, &open);
    let could: Vec<&TaskId> = in_order
        .iter()
        .enumerate()
        .filter(|(at, task)| task.status == Pending && open(task).is_empty() && parts[*at].is_empty())
        .map(|(_, task)| &task.id)
        .collect();
    let prefers =
        |task: &Task| task.dependencies.iter().any(|one| one.kind == Prefers && could.contains(&&one.on));
    let mut ready: Vec<&&Task> = in_order.iter().filter(|task| could.contains(&&task.id)).collect();
    ready.sort_by_key(|task| (prefers(task), -task.priority));
    let mut in_progress: Vec<&&Task> = in_order.iter().filter(|task| task.status == InProgress).collect();
    in_progress.sort_by_key(|task| task.status_at);
    let failed: Vec<&&Task> = in_order.iter().filter(|task| task.status == Failed).collect();
    let mut blocked = Vec::new();
    for (task, parts) in in_order.iter().zip(parts) {
        let open = open(task);
        let cancelled: Vec<TaskId> =
            open.iter().filter(|on| status(on) == Some(Cancelled)).cloned().collect();
        let waits = match task.status {
            Blocked => Waits::ForReason(task.reason.clone()),
            Pending if !cancelled.is_empty() => Waits::ForCancelled(cancelled),
            Pending if !open.is_empty() => Waits::ForTasks(open),
            Pending if !parts.is_empty() => Waits::ForParts(parts),
            _ => continue,
        };
        blocked.push(BlockedTask { task: task.id.clone(), waits });
    }
    let are = |found: &[TaskId], tasks: &[&&Task]| found.iter().eq(tasks.iter().map(|task| &task.id));
    let schedule = &tree.scheduling_state;
    are(&schedule.ready, &ready)
        && are(&schedule.in_progress, &in_progress)
        && are(&schedule.failed, &failed)
        && schedule.blocked == blocked
}

/// Returns ids and titles of all tasks, including duplicates.
fn census(tree: &TaskTreeState) -> Vec<(TaskId, String)> {
    let mut all: Vec<_> = tree.tasks.values().map(|task| (task.id.clone(), task.title.clone())).collect();
    all.sort();
    all
}

/// Checks that a plan removes only dependencies on missing tasks, repeated ones, and those on a
/// cycle.
fn assert_needed(plan: &RepairPlan, tree: &TaskTreeState) {
    let tasks: Vec<(&TaskId, &Task)> = tree.tasks.iter().collect();
    let reach = reach(&tasks);
    let place = |id: &TaskId| tasks.iter().position(|(key, _)| *key == id);
    for planned in &plan.steps {
        if let RepairStep::DependencyRemoved(removed) = &planned.step {
            let dependencies = &tasks[place(&removed.from).unwrap()].1.dependencies;
            let times = dependencies.iter().filter(|one| one.on == removed.to).count();
            let is_needed = match place(&removed.to) {
                None => planned.rule == "dependencies-exist",
                Some(_) if planned.rule == "dependencies-distinct" => times > 1,
                Some(to) => reach[to][place(&removed.from).unwrap()],
            };
            assert!(is_needed, "{planned:?}");
        }
    }
}

/// Sets a task to this value, valid or not.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Forged(pub(super) Task);

impl Event for Forged {
    const NAME: &'static str = "forged";
}

/// The types of a host that writes tasks unchecked, like an import.
pub(super) fn forging() -> SessionTypes {
    let types = declare(SessionTypes::builder());
    types.reducer::<Tasks, Forged>(|_, event, _| Ok(SliceOp::Upsert(event.0.clone()))).build().unwrap()
}

#[test]
fn whatever_is_broken_is_found_and_repaired_or_said_why_not_and_no_task_is_dropped() {
    let validator = StateValidator::new();
    let (store, _) = store(false);
    let (mut valid, mut ambiguous, mut in_sessions) = (0, 0, 0);
    let mut met = BTreeMap::<&str, u32>::new();
    for seed in 0..10_000_u64 {
        let dice = &mut Dice(seed);
        let mut tasks = valid_tasks(dice);
        for _ in 0..[0, 1, 1, 2, 3][dice.below(5)] {
            break_tasks(&mut tasks, dice);
        }
        let mut tree = TaskTreeState::from_tasks(tasks.clone());
        for _ in 0..[0, 0, 0, 1, 2][dice.below(5)] {
            break_derived(&mut tree, dice);
        }
        let state = state_of(tree);
        let expected = naive(&state.task_tree);
        let result = validator.validate(&state);
        let worse = |severity: ValidationSeverity| severity > ValidationSeverity::Warning;
        let broken = result.issues.iter().filter(|issue| worse(issue.rule.severity));
        let found: BTreeSet<&str> = broken.map(|issue| &*issue.rule.name).collect();
        assert_eq!(found, expected, "seed {seed}: {:#?}", result.issues);
        let critical =
            |issue: &&foldlog_tasks::ValidationIssue| issue.rule.severity == ValidationSeverity::Critical;
        assert_eq!(result.is_valid, !result.issues.iter().any(|issue| critical(&issue)), "seed {seed}");
        expected.iter().for_each(|rule| *met.entry(rule).or_default() += 1);
        valid += u32::from(expected.is_empty());

        let plan = &result.repair_plan;
        assert_eq!(
            *plan,
            validator.repair_plan(&state.clone()),
            "seed {seed}: equal states have equal plans"
        );
        if !expected.contains("task-keys") {
            assert_needed(plan, &state.task_tree);
        }
        let after = simulate(&state, plan);
        assert_eq!(census(&after.task_tree), census(&state.task_tree), "seed {seed}: {plan:#?}");
        let left = plan.unrepairable.iter().filter(|one| worse(one.issue.rule.severity));
        let left: BTreeSet<&str> = left.map(|one| &*one.issue.rule.name).collect();
        assert_eq!(left, naive(&after.task_tree), "seed {seed}: {plan:#?}");
        if !left.is_empty() {
            let mut ids: Vec<&TaskId> = state.task_tree.tasks.values().map(|task| &task.id).collect();
            ids.sort();
            ids.dedup();
            assert!(
                ids.len() < state.task_tree.tasks.len(),
                "seed {seed}: only two tasks of one id are left so"
            );
            ambiguous += 1;
        }

        // The same tasks in a session: it accepts each step, and ends as planned.
        if seed % 20 == 0 {
            let session = store.create(&forging()).unwrap();
            for task in &tasks {
                session.dispatch(Forged(task.clone())).unwrap();
            }
            let read = || Ok(state_of(TaskTreeState::from_session(&session)?));
            let broken = read().unwrap();
            let plan = validator.repair_plan(&broken);
            let report = validator.apply(&session, &plan, "ada", "a test", read).unwrap();
            assert_eq!(report.refused, None, "seed {seed}: {plan:#?}");
            assert_eq!(report.done.len(), plan.steps.len());
            let now = TaskTreeState::from_session(&session).unwrap();
            assert_eq!(naive(&now), BTreeSet::new(), "seed {seed}");
            assert_eq!(census(&now), census(&broken.task_tree), "seed {seed}");
            assert_eq!(untimed(now), untimed(simulate(&broken, &plan).task_tree), "seed {seed}");
            in_sessions += u32::from(!plan.steps.is_empty());
        }
    }
    // Every rule was violated often, and valid trees occurred often.
    assert!(met.len() == 14 && met.values().all(|times| *times > 40), "{met:?}");
    assert!(valid > 1_000 && ambiguous > 20 && in_sessions > 200, "{valid} {ambiguous} {in_sessions}");
}

/// Returns a tree without times, since a session's repairs have the times of its records.
fn untimed(tree: TaskTreeState) -> TaskTreeState {
    let tasks = tree.tasks.into_values();
    TaskTreeState::from_tasks(tasks.map(|task| Task {
        status_at: at(0),
        updated_at: at(0),
        reason: None,
        ..task
    }))
}

/// Chains that would exhaust the stack, and a cycle of as many tasks: none of the checks is
/// recursive.
#[test]
fn chains_of_many_tasks_are_checked_and_opened_where_they_close() {
    let count = 20_000;
    let name = |number: usize| format!("t{number:05}");
    let mut tasks: Vec<Task> =
        (0..count).map(|number| sound(&name(number), number as u64, Pending)).collect();
    for (number, task) in tasks.iter_mut().enumerate().skip(1) {
        task.parent = Some(id(&name(number - 1)));
        task.dependencies.push(Dependency { on: id(&name(number - 1)), kind: Requires });
    }
    let validator = StateValidator::new();
    assert_eq!(validator.validate(&state_of(TaskTreeState::from_tasks(tasks.clone()))).issues, []);
    tasks[0].parent = Some(id(&name(count - 1)));
    tasks[0].dependencies.push(Dependency { on: id(&name(count - 1)), kind: Prefers });
    let state = state_of(TaskTreeState::from_tasks(tasks));
    let result = validator.validate(&state);
    assert_eq!(result.issues.len(), 2);
    assert_eq!(result.repair_plan.steps.len(), 2, "{:?}", result.repair_plan.steps);
    assert!(validator.validate(&simulate(&state, &result.repair_plan)).issues.is_empty());
}
