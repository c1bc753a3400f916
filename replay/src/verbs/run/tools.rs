//! The names of the program's own tools that a run may allow.

use foldlog_codec::escape;

use crate::failure::{Failure, Result};

/// Name that stands for no tool at all.
pub(super) const NONE: &str = "none";

/// Names of the program's own tools, as version 2.1.100 tells them; it calls `Task` `Agent` too. A name that it does not know it
/// passes over without a word.
const KNOWN: [&str; 23] = [
    "Agent",
    "AskUserQuestion",
    "Bash",
    "CronCreate",
    "CronDelete",
    "CronList",
    "Edit",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitPlanMode",
    "ExitWorktree",
    "Glob",
    "Grep",
    "NotebookEdit",
    "Read",
    "Skill",
    "Task",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "WebFetch",
    "WebSearch",
    "Write",
];

/// Names of those that change nothing in the workspace: their calls capture none of it.
const READING: [&str; 6] = ["Glob", "Grep", "Read", "TodoWrite", "WebFetch", "WebSearch"];

/// Returns the tools that the option `--tool` names.
pub(super) fn named(given: &[String]) -> Result<Vec<String>> {
    let names: Vec<&str> = given.iter().map(|name| name.trim()).collect();
    if names == [NONE] {
        return Ok(Vec::new());
    }
    match names.iter().find(|name| !KNOWN.contains(name)) {
        Some(name) => Err(unknown(name)),
        None => Ok(names.into_iter().map(str::to_owned).collect()),
    }
}

/// Returns whether a call of one of `tools` may capture the workspace.
pub(super) fn may_change(tools: &[String]) -> bool {
    tools.iter().any(|tool| !READING.contains(&tool.as_str()))
}

fn unknown(name: &str) -> Failure {
    let known = KNOWN.join(", ");
    let shown = escape::text(name);
    if name.is_empty() {
        let what = "--tool names no tool";
        return Failure::usage(what, format!("give `{NONE}`, which allows no tool, or names of {known}"));
    }
    if name == NONE {
        let what = format!("--tool names `{NONE}` beside other tools");
        return Failure::usage(what, format!("give `{NONE}` alone, or leave it out"));
    }
    if name.starts_with("mcp__") {
        let what = format!(
            "no tool `{shown}`: a run gives the program no MCP servers, so that it has none of their tools"
        );
        return Failure::usage(what, format!("name tools of the program's own: {known}"));
    }
    if name.contains(['(', ')']) {
        let what = format!("--tool takes names alone, and `{shown}` is a part of a rule");
        return Failure::usage(what, "give the name before the bracket, which allows all calls of that tool");
    }
    let what = format!("the program has no tool `{shown}`");
    let meant = KNOWN.iter().find(|known| known.eq_ignore_ascii_case(name));
    let next = match meant {
        Some(meant) => format!("write it `{meant}`"),
        None => format!("name tools of {known}"),
    };
    Failure::usage(what, next)
}
