//! The files of a tree, and the part of the state to which each belongs.

use crate::{StateComponent, TaskId};

/// Directory of all trees, within the workspace's root.
pub(super) const TREES: [&str; 2] = [".aca", "sessions"];

/// Directory and name of the manifest.
pub(super) const META: &str = "meta";
pub(super) const MANIFEST: &str = "checkpoint_manifest.json";
/// Name of the manifest of a complete tree in which some files are not renamed yet.
pub(super) const NEXT: &str = "checkpoint_manifest.json.next";
/// Suffix of the name of a file that is not yet a part of the tree.
pub(super) const STAGED: &str = ".new";

/// Directories of conversations, and of requests and their replies.
pub(super) const CLAUDE: &str = "claude";
pub(super) const INTERACTIONS: &str = "logs/claude_interactions";

pub(super) const SESSION: &str = "meta/session.json";
pub(super) const RECOVERY_INFO: &str = "meta/recovery_info.json";
pub(super) const TASK_TREE: &str = "state/task_tree.json";
pub(super) const SCHEDULING: &str = "state/scheduling_state.json";
pub(super) const DEPENDENCIES: &str = "state/dependency_graph.json";
pub(super) const CLAUDE_CONFIG: &str = "claude/session_config.json";
pub(super) const CURRENT: &str = "claude/conversation/current.json";
pub(super) const MESSAGES: &str = "claude/conversation/messages";
pub(super) const WINDOWS: &str = "claude/context_windows/window";
pub(super) const USAGE: &str = "claude/rate_limit/usage_history.json";
pub(super) const LIMITS: &str = "claude/rate_limit/current_limits.json";
pub(super) const WORKSPACES: &str = "filesystem/workspace_snapshot.json";
pub(super) const CHANGES: &str = "filesystem/modifications/changes";
pub(super) const COMPILATIONS: &str = "filesystem/build_artifacts/compilation_results.json";
pub(super) const TEST_RUNS: &str = "filesystem/build_artifacts/test_results.json";
pub(super) const GIT: &str = "filesystem/git_state.json";
pub(super) const TASK_LOGS: &str = "logs/execution/task_";
pub(super) const SYSTEM_EVENTS: &str = "logs/execution/system_events.json";
pub(super) const REQUESTS: &str = "logs/claude_interactions/requests";
pub(super) const RESPONSES: &str = "logs/claude_interactions/responses";
pub(super) const ERRORS: &str = "logs/errors/error";
pub(super) const RECOVERY_ACTIONS: &str = "logs/errors/recovery_actions.json";
pub(super) const CHECKPOINTS: &str = "checkpoints/checkpoint";

/// Files with fixed names.
const NAMED: [&str; 15] = [
    SESSION,
    RECOVERY_INFO,
    TASK_TREE,
    SCHEDULING,
    DEPENDENCIES,
    CLAUDE_CONFIG,
    CURRENT,
    USAGE,
    LIMITS,
    WORKSPACES,
    COMPILATIONS,
    TEST_RUNS,
    GIT,
    SYSTEM_EVENTS,
    RECOVERY_ACTIONS,
];

/// Files that are numbered.
const NUMBERED: [&str; 6] = [MESSAGES, WINDOWS, CHANGES, REQUESTS, RESPONSES, ERRORS];

/// Returns the path of a numbered file.
pub(super) fn numbered_path(stem: &str, number: u64) -> String {
    format!("{stem}_{number:03}.json")
}

/// Returns the number in the path of a numbered file.
pub(super) fn number_of(path: &str, stem: &str) -> Option<u64> {
    number(path.strip_prefix(stem)?.strip_prefix('_')?.strip_suffix(".json")?)
}

/// Parses a number in the form that [`numbered_path`] writes.
fn number(digits: &str) -> Option<u64> {
    let number = digits.parse().ok().filter(|number| *number > 0)?;
    (format!("{number:03}") == digits).then_some(number)
}

/// Returns the path of a task's log.
pub(super) fn task_log(task: &TaskId) -> String {
    format!("{TASK_LOGS}{task}.json")
}

/// Returns the task of a log file.
pub(super) fn task_of(path: &str) -> Option<TaskId> {
    TaskId::new(path.strip_prefix(TASK_LOGS)?.strip_suffix(".json")?).ok()
}

/// Returns the number and the name of a checkpoint's file.
pub(super) fn checkpoint_of(path: &str) -> Option<(u64, &str)> {
    let (digits, name) = path.strip_prefix(CHECKPOINTS)?.strip_prefix('_')?.split_once('/')?;
    Some((number(digits)?, name)).filter(|(_, name)| matches!(*name, "state_snapshot.json" | "manifest.json"))
}

/// Returns whether a path is that of the tree's manifest.
pub(crate) fn is_manifest(path: &str) -> bool {
    split(path) == (META, MANIFEST)
}

/// Returns whether a tree may have a file of this path, except its manifest. Such a path never
/// leads out of the tree.
pub(super) fn is_file(path: &str) -> bool {
    NAMED.contains(&path)
        || NUMBERED.iter().any(|stem| number_of(path, stem).is_some())
        || task_of(path).is_some()
        || checkpoint_of(path).is_some()
}

/// Returns whether a tree may have a directory of this path.
pub(super) fn is_directory(path: &str) -> bool {
    let is_above = |file: &&str| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    let is_checkpoint =
        || path.strip_prefix(CHECKPOINTS).and_then(|rest| number(rest.strip_prefix('_')?)).is_some();
    NAMED.iter().chain(&NUMBERED).chain(&[CHECKPOINTS]).any(is_above) || is_checkpoint()
}

/// Splits a path into its directory and its name.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns the directory of a part's files. Three parts share one.
pub(super) fn directory_of(component: StateComponent) -> &'static str {
    match component {
        StateComponent::Session | StateComponent::Configuration | StateComponent::ResourceUsage => META,
        StateComponent::TaskTree => "state",
        StateComponent::ClaudeContext => "claude",
        StateComponent::FileSystem => "filesystem",
        StateComponent::ExecutionLogs => "logs",
    }
}

/// Returns whether a file is in a directory of the tree's root.
pub(super) fn is_within(path: &str, directory: &str) -> bool {
    path.split_once('/').is_some_and(|(first, _)| first == directory)
}

/// Returns the path of a checkpoint's directory.
pub(super) fn checkpoint(number: u64) -> String {
    format!("{CHECKPOINTS}_{number:03}")
}
