//! The events of tasks, and when they are refused.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use foldlog::{Policy, ReducerContext, SessionTypesBuilder, Slice, SliceOp, View, escape};
use serde::{Deserialize, Serialize};

use super::{Dependency, DependencyType, Task, TaskId, TaskStatus};

/// Marks the STATE slice of all tasks, `tasks`, keyed by their ids.
#[derive(Debug)]
pub struct Tasks;

impl Slice for Tasks {
    const NAME: &'static str = "tasks";
    type Item = Task;
    const ITEM_NAME: &'static str = "task";
}

/// Describes a task to create. Its record determines number, state and times.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTask {
    /// Id of the task.
    pub id: TaskId,
    /// Task that it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TaskId>,
    /// Purpose, in one line.
    pub title: String,
    /// Purpose, in full.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Priority: tasks with higher ones come first.
    #[serde(default)]
    pub priority: i64,
    /// Tasks that come before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// Fields of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

impl NewTask {
    /// Describes a task without parent and dependencies.
    pub fn new(id: TaskId, title: impl Into<String>) -> NewTask {
        NewTask {
            id,
            parent: None,
            title: title.into(),
            description: String::new(),
            priority: 0,
            dependencies: Vec::new(),
            fields: BTreeMap::new(),
        }
    }

    /// Makes the task a part of `parent`.
    pub fn with_parent(self, parent: TaskId) -> NewTask {
        NewTask { parent: Some(parent), ..self }
    }

    /// Adds a task that has to be completed or skipped before this one starts.
    pub fn requires(self, on: TaskId) -> NewTask {
        self.depends(on, DependencyType::Requires)
    }

    /// Adds a task that comes before this one if both could start.
    pub fn prefers(self, on: TaskId) -> NewTask {
        self.depends(on, DependencyType::Prefers)
    }

    fn depends(mut self, on: TaskId, kind: DependencyType) -> NewTask {
        self.dependencies.push(Dependency { on, kind });
        self
    }
}

/// Records that a task was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCreated {
    /// The task.
    pub task: NewTask,
}

/// Records that a task changed its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatusChanged {
    /// Id of the task.
    pub task_id: TaskId,
    /// Current state of the task.
    pub old_status: TaskStatus,
    /// New state.
    pub new_status: TaskStatus,
    /// Reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Records a change of a task other than of its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskModified {
    /// Id of the task.
    pub task_id: TaskId,
    /// The change.
    pub changes: TaskChanges,
}

/// Contains new values of a task. Values that are `None` are unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskChanges {
    /// New title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// New description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// New priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// New parent: `Some(None)` makes the task a root.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "changed_parent")]
    pub parent: Option<Option<TaskId>>,
    /// New values of fields; `None` removes one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, Option<String>>,
}

/// Serializes a changed parent as its id, or as the empty text for no parent. So no parent differs
/// from an unchanged one.
mod changed_parent {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::TaskId;

    pub(super) fn serialize<S: Serializer>(
        parent: &Option<Option<TaskId>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let parent = parent.as_ref().and_then(Option::as_ref);
        serializer.serialize_str(parent.map(TaskId::as_str).unwrap_or_default())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<TaskId>>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Some(None));
        }
        TaskId::new(text).map(|id| Some(Some(id))).map_err(D::Error::custom)
    }
}

/// Records a new dependency between two tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependencyAdded {
    /// Task that comes later.
    pub from: TaskId,
    /// Task that comes first.
    pub to: TaskId,
    /// Kind of the dependency.
    #[serde(default)]
    pub dep_type: DependencyType,
}

/// Records that a dependency was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependencyRemoved {
    /// Task that came later.
    pub from: TaskId,
    /// Task that came first; it may be missing.
    pub to: TaskId,
    /// Kind of the dependency. If there are several of this kind, the last one is removed.
    #[serde(default)]
    pub dep_type: DependencyType,
    /// Reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Records a new place of a task in the order of creation. Only repairs use it, since creation
/// numbers a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRenumbered {
    /// Id of the task.
    pub task_id: TaskId,
    /// Current number.
    pub old_number: u64,
    /// New number.
    pub new_number: u64,
    /// Reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

events! {
    TaskCreated = "task_created",
    TaskStatusChanged = "task_status_changed",
    TaskModified = "task_modified",
    DependencyAdded = "dependency_added",
    DependencyRemoved = "dependency_removed",
    TaskRenumbered = "task_renumbered",
}

impl NewTask {
    pub(crate) fn into_task(self, number: u64, now: DateTime<Utc>) -> Task {
        let NewTask { id, parent, title, description, priority, dependencies, fields } = self;
        Task {
            id,
            number,
            parent,
            title,
            description,
            status: TaskStatus::Pending,
            reason: None,
            status_at: now,
            priority,
            dependencies,
            attempts: 0,
            failures: 0,
            created_at: now,
            updated_at: now,
            fields,
        }
    }
}

/// A change of one task by an event.
pub(crate) trait TaskChange {
    fn task_id(&self) -> &TaskId;
    /// Returns whether the task is in the state that the event names as the old one.
    fn fits(&self, _: &Task) -> bool {
        true
    }
    /// Returns the reason if the event is refused.
    fn check(&self, task: &Task, tasks: &TaskLookup<'_>) -> Result<(), String>;
    fn change(&self, task: &mut Task, now: DateTime<Utc>);
}

impl TaskChange for TaskStatusChanged {
    fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    fn fits(&self, task: &Task) -> bool {
        task.status == self.old_status
    }

    fn check(&self, task: &Task, tasks: &TaskLookup<'_>) -> Result<(), String> {
        let (id, is, next) = (&task.id, task.status, self.new_status);
        if is != self.old_status {
            return Err(format!("task `{id}` is {is}, not {}", self.old_status));
        }
        if !is.may_become(next) {
            return Err(format!("task `{id}` cannot go from {is} to {next}"));
        }
        if next == TaskStatus::InProgress {
            for dependency in task.dependencies.iter().filter(|one| one.kind == DependencyType::Requires) {
                let required = tasks.task(&dependency.on)?;
                if !required.status.satisfies() {
                    return Err(format!(
                        "task `{id}` requires `{}`, which is {}",
                        required.id, required.status
                    ));
                }
            }
        }
        Ok(())
    }

    fn change(&self, task: &mut Task, now: DateTime<Utc>) {
        let next = self.new_status;
        task.status = next;
        task.reason.clone_from(&self.reason);
        (task.status_at, task.updated_at) = (now, now);
        task.attempts = task.attempts.saturating_add((next == TaskStatus::InProgress).into());
        task.failures = task.failures.saturating_add((next == TaskStatus::Failed).into());
    }
}

impl TaskChange for TaskModified {
    fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    fn check(&self, task: &Task, tasks: &TaskLookup<'_>) -> Result<(), String> {
        let Some(Some(parent)) = &self.changes.parent else { return Ok(()) };
        // The parents in a log that another program wrote may form a cycle.
        let mut passed = BTreeSet::new();
        let mut above = Some(parent);
        while let Some(id) = above {
            if *id == task.id {
                return Err(format!("task `{}` cannot be a part of itself or of what is below it", task.id));
            }
            if !passed.insert(id) {
                return Err(format!("the parents of `{parent}` make a cycle at `{id}`"));
            }
            above = tasks.task(id)?.parent.as_ref();
        }
        Ok(())
    }

    fn change(&self, task: &mut Task, now: DateTime<Utc>) {
        let TaskChanges { title, description, priority, parent, fields } = self.changes.clone();
        task.parent = parent.unwrap_or_else(|| task.parent.take());
        task.title = title.unwrap_or_else(|| std::mem::take(&mut task.title));
        task.description = description.unwrap_or_else(|| std::mem::take(&mut task.description));
        task.priority = priority.unwrap_or(task.priority);
        for (name, value) in fields {
            match value {
                Some(value) => task.fields.insert(name, value),
                None => task.fields.remove(&name),
            };
        }
        task.updated_at = now;
    }
}

impl TaskChange for DependencyAdded {
    fn task_id(&self) -> &TaskId {
        &self.from
    }

    fn check(&self, task: &Task, tasks: &TaskLookup<'_>) -> Result<(), String> {
        let DependencyAdded { from, to, .. } = self;
        if task.dependencies.iter().any(|dependency| dependency.on == *to) {
            return Err(format!("task `{from}` depends on `{to}` already"));
        }
        let required = tasks.task(to)?;
        let is_required = self.dep_type == DependencyType::Requires && !required.status.satisfies();
        if is_required && task.status == TaskStatus::InProgress {
            return Err(format!(
                "task `{from}` is {}, and `{to}`, which it would require, is {}",
                task.status, required.status
            ));
        }
        match tasks.way(to, from)? {
            Some(way) => {
                let way: Vec<&str> = std::iter::once(from).chain(&way).map(TaskId::as_str).collect();
                Err(format!("the dependency would close a cycle: {}", abbreviate_path(&way)))
            }
            None => Ok(()),
        }
    }

    fn change(&self, task: &mut Task, now: DateTime<Utc>) {
        task.dependencies.push(Dependency { on: self.to.clone(), kind: self.dep_type });
        task.updated_at = now;
    }
}

impl DependencyRemoved {
    fn place_in(&self, task: &Task) -> Option<usize> {
        task.dependencies.iter().rposition(|one| one.on == self.to && one.kind == self.dep_type)
    }
}

impl TaskChange for DependencyRemoved {
    fn task_id(&self) -> &TaskId {
        &self.from
    }

    fn check(&self, task: &Task, _: &TaskLookup<'_>) -> Result<(), String> {
        let missing = || format!("task `{}` {} no `{}`", self.from, self.dep_type, self.to);
        self.place_in(task).map(drop).ok_or_else(missing)
    }

    fn change(&self, task: &mut Task, now: DateTime<Utc>) {
        if let Some(place) = self.place_in(task) {
            task.dependencies.remove(place);
            task.updated_at = now;
        }
    }
}

impl TaskChange for TaskRenumbered {
    fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    fn fits(&self, task: &Task) -> bool {
        task.number == self.old_number
    }

    fn check(&self, task: &Task, tasks: &TaskLookup<'_>) -> Result<(), String> {
        let (id, count) = (&task.id, tasks.0.len());
        if task.number != self.old_number {
            return Err(format!("task `{id}` has the number {}, not {}", task.number, self.old_number));
        }
        if self.new_number >= count {
            return Err(format!("there is no place {} among {count} tasks", self.new_number));
        }
        Ok(())
    }

    fn change(&self, task: &mut Task, now: DateTime<Utc>) {
        (task.number, task.updated_at) = (self.new_number, now);
    }
}

/// Declares tasks: the slice [`Tasks`] and its events.
pub(crate) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types
        .slice_with::<Tasks>(Policy::State)
        .keyed_by::<Tasks, TaskId>(|task| task.id.clone())
        .reducer::<Tasks, TaskCreated>(reduce_created)
        .reducer::<Tasks, TaskStatusChanged>(reduce_change)
        .reducer::<Tasks, TaskModified>(reduce_change)
        .reducer::<Tasks, DependencyAdded>(reduce_change)
        .reducer::<Tasks, DependencyRemoved>(reduce_change)
        .reducer::<Tasks, TaskRenumbered>(reduce_change)
}

type TaskReduction = Result<SliceOp<Task>, String>;

pub(crate) struct TaskLookup<'a>(&'a View<Task>);

impl<'a> TaskLookup<'a> {
    fn find(&self, id: &TaskId) -> Result<Option<&'a Task>, String> {
        self.0.find(id).map_err(|error| error.to_string())
    }

    fn task(&self, id: &TaskId) -> Result<&'a Task, String> {
        self.find(id)?.ok_or_else(|| format!("there is no task `{id}`"))
    }

    /// Returns the tasks on the shortest path between two tasks along dependencies, both included.
    /// Returns `None` if there is no path.
    fn way(&self, from: &TaskId, to: &TaskId) -> Result<Option<Vec<TaskId>>, String> {
        let mut came_from: BTreeMap<TaskId, Option<TaskId>> = BTreeMap::from([(from.clone(), None)]);
        let mut next = std::collections::VecDeque::from([from.clone()]);
        while let Some(id) = next.pop_front() {
            if id == *to {
                let mut way = vec![id];
                while let Some(Some(before)) = way.last().and_then(|id| came_from.get(id)) {
                    way.push(before.clone());
                }
                way.reverse();
                return Ok(Some(way));
            }
            for dependency in &self.task(&id)?.dependencies {
                if !came_from.contains_key(&dependency.on) {
                    came_from.insert(dependency.on.clone(), Some(id.clone()));
                    next.push_back(dependency.on.clone());
                }
            }
        }
        Ok(None)
    }
}

fn time(context: &ReducerContext) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(context.time_us()).unwrap_or_default()
}

fn reduce_created(tasks: &View<Task>, event: &TaskCreated, context: &ReducerContext) -> TaskReduction {
    let (new, tasks) = (&event.task, TaskLookup(tasks));
    if let Some(there) = tasks.find(&new.id)? {
        return Err(format!("there is a task `{}` already: \"{}\"", new.id, escape::text(&there.title)));
    }
    if let Some(parent) = &new.parent {
        let parent = tasks.task(parent)?;
        if parent.status.is_final() {
            return Err(format!("its parent `{}` is {}", parent.id, parent.status));
        }
    }
    let mut named = BTreeSet::new();
    for Dependency { on, .. } in &new.dependencies {
        tasks.task(on)?;
        if !named.insert(on) {
            return Err(format!("it depends on `{on}` twice"));
        }
    }
    Ok(SliceOp::Upsert(new.clone().into_task(tasks.0.len(), time(context))))
}

fn reduce_change<E: TaskChange>(tasks: &View<Task>, event: &E, context: &ReducerContext) -> TaskReduction {
    let tasks = TaskLookup(tasks);
    let mut task = tasks.task(event.task_id())?.clone();
    event.check(&task, &tasks)?;
    event.change(&mut task, time(context));
    Ok(SliceOp::Upsert(task))
}

impl TaskStatusChanged {
    /// Returns whether the event would be accepted with these tasks.
    pub(crate) fn is_legal(&self, tasks: &View<Task>) -> bool {
        let tasks = TaskLookup(tasks);
        tasks.task(&self.task_id).and_then(|task| self.check(task, &tasks)).is_ok()
    }
}

/// Formats the tasks of a path; the middle of a long one is given as a number.
fn abbreviate_path(way: &[&str]) -> String {
    const SHOWN_MAX: usize = 12;
    match way {
        [first @ .., _, _] if way.len() > SHOWN_MAX => {
            let (first, last) = (&first[..SHOWN_MAX / 2], &way[way.len() - 2..]);
            let more = way.len() - first.len() - last.len();
            format!("{} -> ({more} more) -> {}", first.join(" -> "), last.join(" -> "))
        }
        way => way.join(" -> "),
    }
}
