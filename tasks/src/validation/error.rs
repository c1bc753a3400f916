//! What is found broken, with its facts.

use chrono::{DateTime, Utc};
use foldlog::conversation::TokenUsage;
use foldlog::filesystem::ChangeKind;
use foldlog::{SequenceNumber, escape};
use serde::Serialize;

use crate::{StateComponent, TaskId, TaskStatus};

/// Says what of a state does not hold. Its [`Display`](std::fmt::Display) form is escaped.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "error")]
#[non_exhaustive]
pub enum ValidationError {
    /// Something stands under another name than its own.
    #[error("what stands in {} under `{}` is named `{}`", component.name(), escape::text(key), escape::text(name))]
    KeyDiffers {
        /// Part of the state.
        component: StateComponent,
        /// Name under which it stands.
        key: String,
        /// Name that it has.
        name: String,
        /// Whether another one stands under that name, or has the same.
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
    /// A task that another one depends on is missing.
    #[error("task `{task}` depends on `{dependency}`, which is missing")]
    MissingDependency {
        /// Task that depends on it.
        task: TaskId,
        /// Task that is missing.
        dependency: TaskId,
    },
    /// A task depends on another one several times.
    #[error("task `{task}` depends on `{dependency}` {times} times")]
    DependencyRepeated {
        /// Task that depends on it.
        task: TaskId,
        /// Task that it depends on.
        dependency: TaskId,
        /// How often.
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
        /// Number of tasks that depend on each other, those outside this cycle included.
        tasks: usize,
    },
    /// A task and its parent disagree: the task names a parent whose parts do not list it, or is listed by a task that it does
    /// not name.
    #[error("task `{child}` and the parts of task `{parent}` disagree on whether it is one of them")]
    InconsistentParentChild {
        /// Parent.
        parent: TaskId,
        /// Task.
        child: TaskId,
    },
    /// The list of roots is not what the tasks make it.
    #[error("the roots differ from what the tasks say: {}", describe_difference(missing, unknown))]
    RootsDiffer {
        /// Tasks without a parent that are not listed.
        missing: Vec<TaskId>,
        /// Listed ones that are no tasks, have a parent, or are listed again.
        unknown: Vec<TaskId>,
    },
    /// The active task is not the one that was started last.
    #[error("the active task is {}, and should be {}", or_none(found), or_none(expected))]
    ActiveTaskWrong {
        /// Task that is said to be active.
        found: Option<TaskId>,
        /// Task that is.
        expected: Option<TaskId>,
    },
    /// The number of created tasks is wrong.
    #[error("the counter says that {found} tasks were created; by their numbers it were {expected}")]
    CounterWrong {
        /// What the counter says.
        found: u64,
        /// What the tasks say.
        expected: u64,
    },
    /// Tasks are not numbered from 0 on without gaps. Where numbers are missing, tasks may have been lost.
    #[error(
        "tasks are not numbered without gaps: {repeated} numbers are repeated; missing from {} on: {missing}",
        first.map(|first| first.to_string()).unwrap_or_default()
    )]
    NumbersDiffer {
        /// How many tasks have the number of another one.
        repeated: u64,
        /// How many numbers below the greatest one no task has.
        missing: u64,
        /// First of these.
        first: Option<u64>,
    },
    /// The graph of dependencies is not what the tasks make it.
    #[error("the dependency graph differs from the tasks at {}", list(tasks))]
    GraphDiffers {
        /// Tasks at which it does.
        tasks: Vec<TaskId>,
    },
    /// The schedule is not what the tasks make it.
    #[error("the schedule differs from the tasks in {}", queues.join(", "))]
    ScheduleDiffers {
        /// Names of the queues that do.
        queues: Vec<&'static str>,
    },
    /// A task is in a state that it cannot be in yet.
    #[error("task `{task}` is {status}, and requires {}, which has not ended well", list(required))]
    StatusImpossible {
        /// Task.
        task: TaskId,
        /// Its state.
        status: TaskStatus,
        /// Tasks that it requires, and that are neither completed nor skipped.
        required: Vec<TaskId>,
    },
    /// A task cannot have been started and have failed as often as it says.
    #[error("task `{task}` is {status}, and was started {attempts} times and failed {failures} times")]
    AttemptsImpossible {
        /// Task.
        task: TaskId,
        /// Its state.
        status: TaskStatus,
        /// How often it was started.
        attempts: u32,
        /// How often it failed.
        failures: u32,
    },
    /// What came first is later than what came after it.
    #[error("{subject}: {later} ({later_at}) is before {earlier} ({earlier_at})")]
    TimesDisordered {
        /// What the times are of.
        subject: String,
        /// Name of the time that comes first.
        earlier: &'static str,
        /// That time.
        earlier_at: DateTime<Utc>,
        /// Name of the time that comes later.
        later: &'static str,
        /// That time.
        later_at: DateTime<Utc>,
    },
    /// The sums of tokens are not those of the requests.
    #[error(
        "model `{}` has used {} and {} tokens by its sum, and {} and {} by its requests",
        escape::text(model), found.input, found.output, expected.input, expected.output
    )]
    UsageDiffers {
        /// Model.
        model: String,
        /// Its sum.
        found: TokenUsage,
        /// Sum of its requests.
        expected: TokenUsage,
    },
    /// Messages that would be sent break the rules that all providers have for calls and results.
    #[error("conversation `{}`: {}", escape::text(evaluation_id), violations.join("; "))]
    ConversationUnpaired {
        /// Id of the evaluation.
        evaluation_id: String,
        /// What is broken where, escaped.
        violations: Vec<String>,
    },
    /// A file was changed from something else than it had been left as.
    #[error(
        "record {sequence} changes `{}` of `{}` from something else than record {previous} left",
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
        /// Record that changed it before.
        previous: SequenceNumber,
    },
    /// A change is none of its kind.
    #[error(
        "record {sequence} says `{}` of `{}` was {kind}, which what it was and is contradict",
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
    /// Something names a task that is missing.
    #[error("{} names task `{task}`, which is missing", escape::text(by))]
    UnknownTask {
        /// Task.
        task: TaskId,
        /// What names it.
        by: String,
    },
    /// Entries of a log do not stand in the order of their records.
    #[error("the log of {part} has record {sequence} behind a later one")]
    LogDisordered {
        /// Which log.
        part: String,
        /// Record that stands too late.
        sequence: SequenceNumber,
    },
    /// More failed than there were.
    #[error("{failed} of {all} {what} failed")]
    CountsImpossible {
        /// What is counted.
        what: &'static str,
        /// How many failed.
        failed: u64,
        /// How many there were.
        all: u64,
    },
    /// A recovery could not bring back everything, and nobody has said since that the state holds.
    #[error("the state has to be looked at: {}", reason.as_deref().map_or("nobody said why".into(), escape::text))]
    ValidationRequired {
        /// Why.
        reason: Option<String>,
    },
    /// Something does not have the digest that was recorded of it.
    #[error("{} has another digest than was recorded: {}", escape::text(what), escape::text(facts))]
    DigestWrong {
        /// What it is.
        what: String,
        /// Both digests, or what the engine says.
        facts: String,
    },
    /// Updates are not numbered from 1 on without gaps, or not in the order of their records.
    #[error("update {found} of record {position} stands in place {expected}")]
    UpdatesDisordered {
        /// Number that it has.
        found: u64,
        /// Number that it should have.
        expected: u64,
        /// Record that holds it.
        position: SequenceNumber,
    },
    /// A host's own rule is broken.
    #[error("{}", escape::text(message))]
    Other {
        /// What is wrong.
        message: String,
    },
}

/// Says why no event repairs an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairObstacle {
    /// Two tasks claim one id; keeping both needs somebody who knows which one is meant.
    Ambiguous,
    /// It is told by records, which never change.
    Recorded,
    /// What was there before is not known.
    Unknown,
    /// Bytes are damaged; `foldlog verify` and `foldlog salvage` say and do more.
    Damaged,
    /// Something else is left that nothing repairs.
    OthersLeft,
    /// Its rule suggests no repair.
    NoRepair,
    /// The suggested repair does not repair it.
    StillThere,
}

impl RepairObstacle {
    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            RepairObstacle::Ambiguous => {
                "two tasks claim one id, and only somebody who knows them can tell which one is meant"
            }
            RepairObstacle::Recorded => "records tell it, and they never change",
            RepairObstacle::Unknown => "nobody knows what was there before",
            RepairObstacle::Damaged => "bytes are damaged; see `foldlog verify` and `foldlog salvage`",
            RepairObstacle::OthersLeft => "something else is left that nothing repairs",
            RepairObstacle::NoRepair => "its rule suggests no repair",
            RepairObstacle::StillThere => "the suggested repair does not repair it",
        }
    }
}

impl ValidationError {
    /// Says why no event repairs it, if there is no suggestion.
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

/// Writes a cycle whole: `a -> b -> a`.
fn format_cycle(cycle: &[TaskId]) -> String {
    cycle.iter().chain(cycle.first()).map(TaskId::as_str).collect::<Vec<&str>>().join(" -> ")
}

fn describe_difference(missing: &[TaskId], unknown: &[TaskId]) -> String {
    match (missing.is_empty(), unknown.is_empty()) {
        (true, true) => "they stand in another order".to_owned(),
        (false, true) => format!("{} not listed", list(missing)),
        (true, false) => format!("{} listed for nothing", list(unknown)),
        (false, false) => format!("{} not listed, {} listed for nothing", list(missing), list(unknown)),
    }
}

fn or_none(task: &Option<TaskId>) -> &str {
    task.as_ref().map_or("none", TaskId::as_str)
}
