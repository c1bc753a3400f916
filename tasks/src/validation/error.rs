//! Validation errors, with their facts.

use chrono::{DateTime, Utc};
use foldlog::conversation::TokenUsage;
use foldlog::filesystem::ChangeKind;
use foldlog::{SequenceNumber, escape};
use serde::Serialize;

use crate::{StateComponent, TaskId, TaskStatus};

/// Describes a defect of a state. Its [`Display`](std::fmt::Display) form is escaped.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "error")]
#[non_exhaustive]
pub enum ValidationError {
    /// An item is not stored under its own name.
    #[error("the item in {component} under `{}` is named `{}`", escape::text(key), escape::text(name))]
    KeyDiffers {
        /// Part of the state.
        component: StateComponent,
        /// Name under which it is stored.
        key: String,
        /// Its own name.
        name: String,
        /// Whether another item is stored under that name, or has the same one.
        is_taken: bool,
    },
    /// The parent of a task is missing.
    #[error("the parent `{parent}` of task `{task}` is missing")]
    OrphanedTask {
        /// Task.
        task: TaskId,
        /// Parent that it names.
        parent: TaskId,
    },
    /// Tasks are parts of themselves.
    #[error("tasks are parts of each other: {}", format_cycle(cycle))]
    ParentCycle {
        /// Tasks of the cycle, each followed by its parent, the oldest one first.
        cycle: Vec<TaskId>,
    },
    /// The target of a dependency is missing.
    #[error("task `{task}` depends on `{dependency}`, which is missing")]
    MissingDependency {
        /// Task that depends on it.
        task: TaskId,
        /// Task that is missing.
        dependency: TaskId,
    },
    /// A dependency is repeated.
    #[error("task `{task}` depends on `{dependency}` {times} times")]
    DependencyRepeated {
        /// Task that has the dependency.
        task: TaskId,
        /// Task that it depends on.
        dependency: TaskId,
        /// Number of times.
        times: usize,
    },
    /// Tasks depend on themselves.
    #[error(
        "tasks depend on each other: {}{}",
        format_cycle(cycle),
        if *tasks > cycle.len() { format!(", one cycle of {tasks} entangled tasks") } else { String::new() }
    )]
    DependencyCycle {
        /// Shortest cycle through the oldest task, each task followed by one that it depends on.
        cycle: Vec<TaskId>,
        /// Number of tasks that depend on each other, including those outside this cycle.
        tasks: usize,
    },
    /// A task and its parent disagree: the task names a parent whose parts do not list it, or is
    /// listed by a task that it does not name.
    #[error("task `{child}` and task `{parent}` disagree on whether the first is a part of the second")]
    InconsistentParentChild {
        /// Parent.
        parent: TaskId,
        /// Task.
        child: TaskId,
    },
    /// The list of roots differs from the one derived from the tasks.
    #[error("the list of roots differs from the tasks: {}", describe_difference(missing, unknown))]
    RootsDiffer {
        /// Tasks without a parent that are not listed.
        missing: Vec<TaskId>,
        /// Listed ones that are no tasks, have a parent, or are repeated.
        unknown: Vec<TaskId>,
    },
    /// The active task is not the one that was started last.
    #[error("the active task is {}, and should be {}", or_none(found), or_none(expected))]
    ActiveTaskWrong {
        /// Active task in the state.
        found: Option<TaskId>,
        /// Active task by the tasks' states.
        expected: Option<TaskId>,
    },
    /// The number of created tasks is wrong.
    #[error("the counter of created tasks is {found}, but their numbers require {expected}")]
    CounterWrong {
        /// Number in the state.
        found: u64,
        /// Number of the tasks.
        expected: u64,
    },
    /// Tasks are not numbered from 0 without gaps. If numbers are missing, tasks may have been
    /// lost.
    #[error(
        "tasks are not numbered consecutively: repeated: {repeated}; missing from {} on: {missing}",
        first.map(|first| first.to_string()).unwrap_or_default()
    )]
    NumbersDiffer {
        /// Number of tasks that repeat the number of another one: all tasks, less the number of
        /// distinct numbers.
        repeated: u64,
        /// Number of unused numbers below the greatest one.
        missing: u64,
        /// First of these.
        first: Option<u64>,
    },
    /// The graph of dependencies differs from the one derived from the tasks.
    #[error("the dependency graph differs from the tasks at {}", list(tasks))]
    GraphDiffers {
        /// Tasks that differ.
        tasks: Vec<TaskId>,
    },
    /// The schedule differs from the one derived from the tasks.
    #[error("the schedule differs from the tasks in {}", queues.join(", "))]
    ScheduleDiffers {
        /// Names of the queues that differ.
        queues: Vec<&'static str>,
    },
    /// A task is in a state that it cannot have reached yet.
    #[error(
        "task `{task}` is {status}, but these required tasks are neither completed nor skipped: {}",
        list(required)
    )]
    StatusImpossible {
        /// Task.
        task: TaskId,
        /// Its state.
        status: TaskStatus,
        /// Required tasks that are neither completed nor skipped.
        required: Vec<TaskId>,
    },
    /// The numbers of starts and failures of a task contradict its state.
    #[error("task `{task}` is {status}, but has {attempts} starts and {failures} failures")]
    AttemptsImpossible {
        /// Task.
        task: TaskId,
        /// Its state.
        status: TaskStatus,
        /// Number of starts.
        attempts: u32,
        /// Number of failures.
        failures: u32,
    },
    /// Two times are in the wrong order.
    #[error("{subject}: {later} ({later_at}) is before {earlier} ({earlier_at})")]
    TimesDisordered {
        /// Owner of the times.
        subject: String,
        /// Name of the time that should be earlier.
        earlier: &'static str,
        /// That time.
        earlier_at: DateTime<Utc>,
        /// Name of the time that should be later.
        later: &'static str,
        /// That time.
        later_at: DateTime<Utc>,
    },
    /// The sums of tokens differ from the totals of the requests.
    #[error(
        "the tokens of model `{}` are {} in and {} out in total, but {} in and {} out by its requests",
        escape::text(model), found.input, found.output, expected.input, expected.output
    )]
    UsageDiffers {
        /// Model.
        model: String,
        /// Its sum.
        found: TokenUsage,
        /// Total of its requests.
        expected: TokenUsage,
    },
    /// The messages to be sent violate the rules that all providers have for calls and results.
    #[error("conversation `{}`: {}", escape::text(evaluation_id), violations.join("; "))]
    ConversationUnpaired {
        /// Id of the evaluation.
        evaluation_id: String,
        /// The violations with their places, escaped.
        violations: Vec<String>,
    },
    /// A change of a file does not start from the content that the previous change left.
    #[error(
        "record {sequence} changes `{}` of `{}` from a different content than record {previous} left",
        escape::text(path),
        escape::text(workspace)
    )]
    FileChainBroken {
        /// Name of the workspace.
        workspace: String,
        /// Path of the file.
        path: String,
        /// Record that changes it.
        sequence: SequenceNumber,
        /// Record of the previous change.
        previous: SequenceNumber,
    },
    /// The content before and after a change contradicts its kind.
    #[error(
        "record {sequence} lists `{}` of `{}` as {kind}, which its content before and after contradicts",
        escape::text(path),
        escape::text(workspace)
    )]
    ChangeImpossible {
        /// Name of the workspace.
        workspace: String,
        /// Path of the file.
        path: String,
        /// Record that changes it.
        sequence: SequenceNumber,
        /// Kind of change.
        kind: ChangeKind,
    },
    /// A reference names a task that is missing.
    #[error("{} names task `{task}`, which does not exist", escape::text(by))]
    UnknownTask {
        /// Task.
        task: TaskId,
        /// Source of the reference.
        by: String,
    },
    /// Entries of a log are not in the order of their records.
    #[error("the log of {part} has record {sequence} after a later one")]
    LogDisordered {
        /// Name of the log.
        part: String,
        /// Record of the misplaced entry.
        sequence: SequenceNumber,
    },
    /// There are more failures than attempts.
    #[error("more failures than {what}: {failed} of {all}")]
    CountsImpossible {
        /// Name of the count.
        what: &'static str,
        /// Number of failures.
        failed: u64,
        /// Number of attempts.
        all: u64,
    },
    /// A recovery could not restore everything, and the state has not been declared valid since.
    #[error("the state must be validated: {}", reason.as_deref().map_or("no reason was given".into(), escape::text))]
    ValidationRequired {
        /// Reason.
        reason: Option<String>,
    },
    /// A digest differs from the recorded one.
    #[error("{} has a different digest than recorded: {}", escape::text(what), escape::text(facts))]
    DigestWrong {
        /// Object with the digest.
        what: String,
        /// Both digests, or the engine's error.
        facts: String,
    },
    /// Updates are not numbered from 1 without gaps, or not in the order of their records.
    #[error("update {found} of record {position} is in place {expected}")]
    UpdatesDisordered {
        /// Number of the update.
        found: u64,
        /// Expected number.
        expected: u64,
        /// Record of the update.
        position: SequenceNumber,
    },
    /// A host's own rule is violated.
    #[error("{}", escape::text(message))]
    Other {
        /// Description.
        message: String,
    },
}

/// Explains why no event repairs an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairObstacle {
    /// Two tasks claim one id. Keeping both requires a person who knows which one is meant.
    Ambiguous,
    /// It is in records, which never change.
    Recorded,
    /// The previous content is unknown.
    Unknown,
    /// Bytes are damaged; `foldlog verify` and `foldlog salvage` give details and help further.
    Damaged,
    /// Another issue without a repair is left.
    OthersLeft,
    /// Its rule suggests no repair.
    NoRepair,
    /// The suggested repair does not fix it.
    StillThere,
}

impl RepairObstacle {
    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            RepairObstacle::Ambiguous => {
                "two tasks have the same id: a person has to decide which one is meant"
            }
            RepairObstacle::Recorded => "it is in records, which never change",
            RepairObstacle::Unknown => "the previous content is unknown",
            RepairObstacle::Damaged => "bytes are damaged: run `foldlog verify`, then `foldlog salvage`",
            RepairObstacle::OthersLeft => "another issue remains that has no repair",
            RepairObstacle::NoRepair => "its rule suggests no repair",
            RepairObstacle::StillThere => "the suggested repair does not fix it",
        }
    }
}

impl ValidationError {
    /// Returns why no event repairs it, if there is no suggestion.
    pub(super) fn repair_obstacle(&self) -> RepairObstacle {
        match self {
            ValidationError::KeyDiffers { component: StateComponent::TaskTree, .. } => {
                RepairObstacle::Ambiguous
            }
            ValidationError::ConversationUnpaired { .. }
            | ValidationError::TimesDisordered { .. }
            | ValidationError::LogDisordered { .. }
            | ValidationError::UnknownTask { .. }
            | ValidationError::CountsImpossible { .. } => RepairObstacle::Recorded,
            ValidationError::AttemptsImpossible { .. }
            | ValidationError::FileChainBroken { .. }
            | ValidationError::ChangeImpossible { .. } => RepairObstacle::Unknown,
            ValidationError::DigestWrong { .. } | ValidationError::UpdatesDisordered { .. } => {
                RepairObstacle::Damaged
            }
            _ => RepairObstacle::NoRepair,
        }
    }
}

/// Number of tasks that a list shows.
const SHOWN_MAX: usize = 20;

fn list(tasks: &[TaskId]) -> String {
    let more = match tasks.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown: Vec<&str> = tasks.iter().take(SHOWN_MAX).map(TaskId::as_str).collect();
    shown.join(", ") + &more
}

/// Formats a cycle completely: `a -> b -> a`.
fn format_cycle(cycle: &[TaskId]) -> String {
    cycle.iter().chain(cycle.first()).map(TaskId::as_str).collect::<Vec<&str>>().join(" -> ")
}

fn describe_difference(missing: &[TaskId], unknown: &[TaskId]) -> String {
    match (missing.is_empty(), unknown.is_empty()) {
        (true, true) => "their order differs".to_owned(),
        (false, true) => format!("{} not listed", list(missing)),
        (true, false) => format!("{} listed wrongly", list(unknown)),
        (false, false) => format!("{} not listed, {} listed wrongly", list(missing), list(unknown)),
    }
}

fn or_none(task: &Option<TaskId>) -> &str {
    task.as_ref().map_or("none", TaskId::as_str)
}
