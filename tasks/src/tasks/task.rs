use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::TaskId;

/// Lists the states of a task. The [table](super#transitions) has the transitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Waits for its turn.
    #[default]
    Pending,
    /// Cannot continue, for a reason other than a task.
    Blocked,
    /// Is in progress.
    InProgress,
    /// Was completed.
    Completed,
    /// Was tried and did not succeed.
    Failed,
    /// Was found not to be necessary. Tasks that require it may start.
    Skipped,
    /// Was given up.
    Cancelled,
}

impl TaskStatus {
    /// All states.
    pub const ALL: [TaskStatus; 7] = [
        TaskStatus::Pending,
        TaskStatus::Blocked,
        TaskStatus::InProgress,
        TaskStatus::Completed,
        TaskStatus::Failed,
        TaskStatus::Skipped,
        TaskStatus::Cancelled,
    ];

    /// Returns whether a task may change from this state to `next`.
    pub fn may_become(self, next: TaskStatus) -> bool {
        use TaskStatus::{Blocked, Cancelled, Completed, Failed, InProgress, Pending, Skipped};
        match self {
            Pending => matches!(next, InProgress | Blocked | Skipped | Cancelled),
            Blocked => matches!(next, Pending | Skipped | Cancelled),
            InProgress => matches!(next, Completed | Failed | Blocked | Pending | Cancelled),
            Failed => matches!(next, Pending | Skipped | Cancelled),
            Completed | Skipped | Cancelled => false,
        }
    }

    /// Returns whether a task never leaves this state.
    pub fn is_final(self) -> bool {
        matches!(self, TaskStatus::Completed | TaskStatus::Skipped | TaskStatus::Cancelled)
    }

    /// Returns whether tasks that require a task in this state may start.
    pub fn satisfies(self) -> bool {
        matches!(self, TaskStatus::Completed | TaskStatus::Skipped)
    }
}

display_json_names!(TaskStatus, DependencyType);

/// Lists the kinds of dependencies between tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DependencyType {
    /// The other task has to be completed or skipped before this one starts.
    #[default]
    Requires,
    /// The other task comes first if both could start.
    Prefers,
}

/// Names the target of a dependency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Dependency {
    /// Task that comes first.
    pub on: TaskId,
    /// Kind of the dependency.
    #[serde(default)]
    pub kind: DependencyType,
}

/// Describes a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// Number of tasks that were created before it.
    pub number: u64,
    /// Task that it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TaskId>,
    /// Purpose, in one line.
    pub title: String,
    /// Purpose, in full.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// State of the task.
    pub status: TaskStatus,
    /// Reason for that state, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time since which it is in that state.
    pub status_at: DateTime<Utc>,
    /// Priority: tasks with higher ones come first.
    #[serde(default)]
    pub priority: i64,
    /// Tasks that come before it, in the order in which they were named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// Number of times that it was started.
    #[serde(default)]
    pub attempts: u32,
    /// Number of times that it failed.
    #[serde(default)]
    pub failures: u32,
    /// Time of its creation.
    pub created_at: DateTime<Utc>,
    /// Time of its last change.
    pub updated_at: DateTime<Utc>,
    /// Fields of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

impl Task {
    /// Returns the number of times that it was started again.
    pub fn retries(&self) -> u32 {
        self.attempts.saturating_sub(1)
    }
}
