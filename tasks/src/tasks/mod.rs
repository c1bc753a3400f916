//! Tasks: one keyed slice over six events, read at any position.
//!
//! Tasks are items of the slice [`Tasks`], folded from six events, so that they survive a kill, are rolled back with the
//! rest, and can be read at any position without the host.
//!
//! | module | holds |
//! |---|---|
//! | `id` | [`TaskId`] |
//! | `task` | [`Task`], its status and its dependencies |
//! | `updates` | the events, and when they are refused |
//! | `tree` | [`TaskTreeState`]: all tasks of a position, as a tree and as a graph |
//! | `schedule` | [`SchedulingState`]: which task is next, and what the others wait for |
//!
//! # Events
//!
//! | event | changes | is refused if |
//! |---|---|---|
//! | [`TaskCreated`] | adds a task, which is pending | its id is taken; its parent or a task that it depends on is missing, or itself; it depends on one task twice; its parent has ended |
//! | [`TaskStatusChanged`] | the status of a task | there is no such task, its status is another one than `old_status`, the table below has no such transition, or it would start before a task that it requires has ended well |
//! | [`TaskModified`] | title, description, priority, parent or fields of a task | there is no such task, its new parent is missing or stands below it |
//! | [`DependencyAdded`] | what a task depends on | a task is missing, depends on the other one already, or is in progress and would require one that has not ended well; or the dependency would close a cycle |
//! | [`DependencyRemoved`] | what a task depends on | there is no such task, or it has no such dependency |
//! | [`TaskRenumbered`] | the place of a task in the order of creation; for repairs | there is no such task, its number is another one than `old_number`, or the new one is not below the number of tasks |
//!
//! A refusal names what contradicts the event, and records nothing.
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
//! [`SchedulingState`] lists each task that has not ended once:
//!
//! | a task that is | is |
//! |---|---|
//! | pending, and requires one that was cancelled | blocked, for that one |
//! | pending, and requires one that was neither completed nor skipped | blocked, for that one |
//! | pending, with parts that are not completed, skipped or cancelled | blocked, for these parts |
//! | pending otherwise | ready |
//! | blocked | blocked, for its reason |
//! | in progress, failed | in progress, failed |
//!
//! The first row that fits counts. So the parts of a task come first, and the task itself, which sums them up, comes last. A
//! part that itself waits for the task, as it requires it or something that waits for it, is not waited for. The schedule is
//! advice: [`TaskStatusChanged`] is refused for what a task requires, not for its parts, so that a host may start a task and
//! then its parts.
//!
//! # Invariants
//!
//! 1. Parents, and the tasks that a task depends on, exist.
//! 2. Parents make no cycle, and neither do dependencies.
//! 3. Tasks are numbered without gaps in the order of their creation.
//! 4. A task that is in progress requires only tasks that have ended well: one that turns out to need more goes back to pending or
//!    blocked first.
//! 5. The same events make the same bytes.

mod id;
mod schedule;
mod task;
pub(super) mod tree;
mod updates;

pub use id::{InvalidTaskId, TASK_ID_BYTES_MAX, TaskId};
pub use schedule::{BlockedTask, SchedulingState, Waits};
pub use task::{Dependency, DependencyType, Task, TaskStatus};
pub use tree::TaskTreeState;
pub(super) use updates::declare;
pub use updates::{
    DependencyAdded, DependencyRemoved, NewTask, TaskChanges, TaskCreated, TaskModified, TaskRenumbered,
    TaskStatusChanged, Tasks,
};
