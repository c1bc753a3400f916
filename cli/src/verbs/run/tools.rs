//! The names of the program's own tools that a run may allow.

use std::collections::BTreeSet;

use foldlog_claude::{ClaudeAgentSDKAdapter, Init};
use foldlog_codec::escape;

use crate::failure::{CommandError, Result};

/// Name that selects no tool.
pub(super) const NONE: &str = "none";

/// Names of the program's own tools that each tested version offers, so that the program need not
/// be started to list them.
const OFFERED: [&str; 16] = [
    "Agent",
    "Bash",
    "CronCreate",
    "CronDelete",
    "CronList",
    "Edit",
    "EnterWorktree",
    "ExitWorktree",
    "Glob",
    "Grep",
    "NotebookEdit",
    "Read",
    "Skill",
    "WebFetch",
    "WebSearch",
    "Write",
];

/// Name for the tools that the program offers by default.
const UNASKED: &str = "default";

/// Prefix of the names of servers' tools.
const OF_SERVERS: &str = "mcp__";

/// Names of the tools that change nothing in the workspace, so their calls do not capture it.
const READING: [&str; 6] = ["Glob", "Grep", "Read", "TodoWrite", "WebFetch", "WebSearch"];

/// Parses the tools of the option `--tool`. `Task` is another name of `Agent`.
pub(super) fn parse_tools(given: &[String], has_servers: bool) -> Result<Vec<String>> {
    let names: Vec<&str> = given.iter().map(|name| name.trim()).collect();
    if names == [NONE] {
        return Ok(Vec::new());
    }
    if let Some(wrong) = names.iter().find_map(|name| wrong(name, has_servers)) {
        return Err(wrong);
    }
    Ok(names.into_iter().map(|name| canonical(name).to_owned()).collect())
}

/// Returns the program's own name of a tool.
fn canonical(name: &str) -> &str {
    if name == "Task" { "Agent" } else { name }
}

/// Checks that the installed program offers all of `tools`. It is started only if one of them is
/// not in every version.
pub(super) fn check_offered(tools: &[String], adapter: &ClaudeAgentSDKAdapter) -> Result<()> {
    let is_certain = |tool: &String| OFFERED.contains(&tool.as_str()) || tool.starts_with(OF_SERVERS);
    if tools.iter().all(is_certain) {
        return Ok(());
    }
    let asked = inspect(adapter, tools)?;
    let is_offered = |tool: &&String| asked.tools.iter().any(|offered| canonical(offered) == tool.as_str());
    let missing: Vec<&String> = tools.iter().filter(|tool| !is_certain(tool) && !is_offered(tool)).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let mut offered: BTreeSet<String> = inspect(adapter, &[UNASKED.to_owned()])?.tools.into_iter().collect();
    offered.extend(OFFERED.iter().chain(["Task"].iter()).map(|name| (*name).to_owned()));
    offered.remove("Task");
    let version = asked.version.map(|version| format!(" {}", escape::text(&version))).unwrap_or_default();
    let names: Vec<String> = missing.iter().map(|name| format!("`{}`", escape::text(name))).collect();
    let what = format!("Claude Code{version} offers no tool {}", names.join(", "));
    let list: Vec<_> = offered.iter().map(|name| escape::text(name)).collect();
    let next = match offered.iter().find(|known| known.eq_ignore_ascii_case(first)) {
        Some(meant) => format!("write it `{}`", escape::text(meant)),
        None => format!("choose from {}", list.join(", ")),
    };
    Err(CommandError::usage(what, next))
}

fn inspect(adapter: &ClaudeAgentSDKAdapter, tools: &[String]) -> Result<Init> {
    adapter.inspect(tools).map_err(|error| {
        let next =
            "check whether the program starts: `claude --version`, or give another one: --program PATH";
        CommandError::usage(
            format!("the program does not report its tools: {}", escape::display(error)),
            next,
        )
    })
}

/// Returns whether a call of one of `tools` may capture the workspace.
pub(super) fn may_change(tools: &[String]) -> bool {
    tools.iter().any(|tool| !READING.contains(&tool.as_str()))
}

/// Returns the error for a name that no tool can have; `None` if it is possible.
fn wrong(name: &str, has_servers: bool) -> Option<CommandError> {
    let shown = escape::text(name);
    let (what, next) = if name.is_empty() {
        let next = format!("give `{NONE}`, which allows no tool, or names such as {}", OFFERED.join(", "));
        ("--tool contains an empty name".to_owned(), next)
    } else if name == NONE {
        (
            format!("--tool names `{NONE}` together with other tools"),
            format!("give `{NONE}` alone, or leave it out"),
        )
    } else if name == UNASKED {
        (
            format!("--tool names `{UNASKED}`, which is not a tool"),
            "name each tool, or leave --tool out".to_owned(),
        )
    } else if name.starts_with(OF_SERVERS) && !has_servers {
        let what = format!("the tool `{shown}` is not available: a run starts no MCP servers");
        (what, "start those of the workspace's .mcp.json: --project-servers".to_owned())
    } else if name.contains(['(', ')']) {
        let next =
            "give only the name before the parenthesis, which allows all calls of that tool".to_owned();
        (format!("--tool accepts only names of tools, and `{shown}` is part of a rule"), next)
    } else {
        return None;
    };
    Some(CommandError::usage(what, next))
}
