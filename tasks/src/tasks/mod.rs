//! Tasks: one keyed slice over six events, readable at any position.
//!
//! Tasks are items of the slice [`Tasks`], folded from six events. So they survive a kill, are
//! rolled back with the rest, and can be read at any position without the host.
//!
//! | module | contains |
//! |---|---|
//! | `id` | [`TaskId`] |
//! | `task` | [`Task`], its status and its dependencies |
//! | `updates` | the events, and when they are refused |
//! | `tree` | [`TaskTreeState`]: all tasks of a position, as a tree and as a graph |
//! | `schedule` | [`SchedulingState`]: the next task, and the reasons why others wait |
//!
//! # Events
//!
//! | event | changes | is refused if |
//! |---|---|---|
//! | [`TaskCreated`] | adds a pending task | its id is in use; its parent or a dependency is missing, or is the task itself; it depends on one task twice; its parent has ended |
//! | [`TaskStatusChanged`] | the status of a task | the task is missing, its status is not `old_status`, the table below has no such transition, or it would start before a required task has ended well |
//! | [`TaskModified`] | title, description, priority, parent or fields of a task | the task is missing, its new parent is missing or is below it |
//! | [`DependencyAdded`] | the dependencies of a task | a task is missing, already depends on the other one, or is in progress and would require one that has not ended well; or the dependency would close a cycle |
//! | [`DependencyRemoved`] | the dependencies of a task | the task is missing, or has no such dependency |
//! | [`TaskRenumbered`] | the place of a task in the order of creation; for repairs | the task is missing, its number is not `old_number`, or the new one is not below the number of tasks |
//!
//! A refusal names the contradiction, and records nothing.
//!
//! # Transitions
//!
//! | from | to |
//! |---|---|
//! | pending | in progress, blocked, skipped, cancelled |
//! | blocked | pending, skipped, cancelled |
//! | in progress | completed, failed, blocked, pending, cancelled |
//! | failed | pending, skipped, cancelled |
//! | completed, skipped, cancelled | - |
//!
//! # Schedule
//!
//! Each task that has not ended appears exactly once in [`SchedulingState`]:
//!
//! | state of the task | place in the schedule |
//! |---|---|
//! | pending, and requires a cancelled task | blocked, for that task |
//! | pending, and requires a task that was neither completed nor skipped | blocked, for that task |
//! | pending, with parts that are not completed, skipped or cancelled | blocked, for these parts |
//! | pending otherwise | ready |
//! | blocked | blocked, for its reason |
//! | in progress, failed | in progress, failed |
//!
//! The first matching row applies. So the parts of a task come first, and the task itself, which
//! sums them up, comes last. A task does not wait for a part that itself waits for the task,
//! directly or through its requirements. The schedule is advice: [`TaskStatusChanged`] is refused
//! because of required tasks, but not because of parts. So a host may start a task and then its
//! parts.
//!
//! # Invariants
//!
//! 1. Parents, and the tasks that a task depends on, exist.
//! 2. Parents form no cycle, and neither do dependencies.
//! 3. Tasks are numbered without gaps in the order of their creation.
//! 4. A task in progress requires only tasks that have ended well. If it turns out to need more, it
//!    returns to pending or blocked first.
//! 5. The same events give the same bytes.

mod id;
mod schedule;
mod task;
pub(super) mod tree;
mod updates;

pub use id::{InvalidTaskId, TASK_ID_BYTES_MAX, TaskId};
pub use schedule::{BlockedTask, SchedulingState, Waits};
pub use task::{Dependency, DependencyType, Task, TaskStatus};
pub use tree::TaskTreeState;
pub use updates::{
    DependencyAdded, DependencyRemoved, NewTask, TaskChanges, TaskCreated, TaskModified, TaskRenumbered,
    TaskStatusChanged, Tasks,
};
pub(super) use updates::{TaskChange, declare};
