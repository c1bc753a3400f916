//! The ten calls of a session.

use std::path::Path;

use serde_json::{Value, json};

use crate::manifest::Change::{self, Changed, Created, Removed};
use crate::model::Model;
use crate::project::ASKED;

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its tool ran to the end, with success or without.
    Ran,
    /// The user refused it.
    Denied,
    /// The user interrupted it once this file existed.
    Interrupted(&'static str),
    /// The program was killed once this file existed. Its shell lived on, and wrote a second line.
    Killed(&'static str),
}

/// A prompt with one call. A file is read before it is edited, and a sub-agent makes a call of its
/// own.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) title: &'static str,
    /// Returns the tools of the main agent with their arguments, in a project's directory.
    tools: fn(&Path) -> Vec<(&'static str, Value)>,
    /// The command of the sub-agent.
    agent: Option<&'static str>,
    pub(crate) ending: Ending,
    /// The events of the main agent up to the last one of the tool, without the prompt.
    pub(crate) events: &'static [&'static str],
    /// The events of the sub-agent.
    pub(crate) agent_events: &'static [&'static str],
    /// The paths that the call changes, by name.
    pub(crate) changes: &'static [(&'static str, Change)],
}

/// Returns a `Bash` with a command.
pub(crate) fn bash(command: &str) -> Vec<(&'static str, Value)> {
    vec![("Bash", json!({"command": command, "description": "d"}))]
}

/// The prompt of the sub-agent.
const AGENT_PROMPT: &str = "Work for the main agent.";

const BASH: &[&str] = &["PreToolUse Bash", "PostToolUse Bash"];

pub(crate) const CALLS: [Call; 10] = [
    Call {
        title: "Write creates a file",
        tools: |root| vec![("Write", json!({"file_path": root.join("notes.txt"), "content": "one\n"}))],
        agent: None,
        ending: Ending::Ran,
        events: &["PreToolUse Write", "PostToolUse Write"],
        agent_events: &[],
        changes: &[("notes.txt", Created)],
    },
    Call {
        title: "Edit changes a file",
        tools: |root| {
            let file = root.join("src/main.txt");
            let edit = json!({"file_path": file, "old_string": "first", "new_string": "1st"});
            vec![("Read", json!({"file_path": file})), ("Edit", edit)]
        },
        agent: None,
        ending: Ending::Ran,
        events: &["PreToolUse Read", "PostToolUse Read", "PreToolUse Edit", "PostToolUse Edit"],
        agent_events: &[],
        changes: &[("src/main.txt", Changed)],
    },
    Call {
        title: "Bash creates files, directories and links",
        tools: |_| {
            bash(
                "mkdir -p built/empty && echo a > built/a && echo '#!/bin/sh' > built/run \
                 && chmod 755 built/run && ln -s a built/link && ln built/a built/hard",
            )
        },
        agent: None,
        ending: Ending::Ran,
        events: BASH,
        agent_events: &[],
        changes: &[
            ("built", Created),
            ("built/a", Created),
            ("built/empty", Created),
            ("built/hard", Created),
            ("built/link", Created),
            ("built/run", Created),
        ],
    },
    Call {
        title: "Bash changes bytes, modes, links, names and kinds",
        tools: |_| {
            bash(
                "echo more >> notes.txt && chmod 600 run.sh && ln -sfn src/new.txt link \
                 && mv src/old.txt src/new.txt && rm built/a && mkdir built/a && echo x >> ignored/cache",
            )
        },
        agent: None,
        ending: Ending::Ran,
        events: BASH,
        agent_events: &[],
        changes: &[
            ("built/a", Changed),
            ("built/hard", Changed),
            ("ignored/cache", Changed),
            ("link", Changed),
            ("notes.txt", Changed),
            ("run.sh", Changed),
            ("src/new.txt", Created),
            ("src/old.txt", Removed),
        ],
    },
    Call {
        title: "Bash removes files and directories",
        tools: |_| bash("rm -r built README.md untracked.txt link"),
        agent: None,
        ending: Ending::Ran,
        events: BASH,
        agent_events: &[],
        changes: &[
            ("README.md", Removed),
            ("built", Removed),
            ("built/a", Removed),
            ("built/empty", Removed),
            ("built/hard", Removed),
            ("built/link", Removed),
            ("built/run", Removed),
            ("link", Removed),
            ("untracked.txt", Removed),
        ],
    },
    Call {
        title: "Bash fails after it wrote",
        tools: |_| bash("echo partial | tee partial.txt; echo wrong >&2; exit 3"),
        agent: None,
        ending: Ending::Ran,
        events: &["PreToolUse Bash", "PostToolUseFailure Bash"],
        agent_events: &[],
        changes: &[("partial.txt", Created)],
    },
    Call {
        title: "a sub-agent's Bash creates a file",
        tools: |_| {
            let agent = "general-purpose";
            vec![("Agent", json!({"description": "d", "prompt": AGENT_PROMPT, "subagent_type": agent}))]
        },
        agent: Some("echo sub > by-agent.txt"),
        ending: Ending::Ran,
        events: &["PreToolUse Agent", "PostToolUse Agent"],
        agent_events: &["SubagentStart", "PreToolUse Bash", "PostToolUse Bash", "SubagentStop"],
        changes: &[("by-agent.txt", Created)],
    },
    Call {
        title: "the user refuses a Bash",
        tools: |_| bash(ASKED),
        agent: None,
        ending: Ending::Denied,
        events: &["PreToolUse Bash", "PermissionRequest Bash"],
        agent_events: &[],
        changes: &[],
    },
    Call {
        title: "the user interrupts a Bash that wrote",
        tools: |_| bash("echo begun > interrupted.txt; sleep 60; echo late >> interrupted.txt"),
        agent: None,
        ending: Ending::Interrupted("interrupted.txt"),
        events: &["PreToolUse Bash"],
        agent_events: &[],
        changes: &[("interrupted.txt", Created)],
    },
    Call {
        title: "the program is killed while a Bash writes",
        tools: |_| bash("echo begun > killed.txt; sleep 2; echo late >> killed.txt"),
        agent: None,
        ending: Ending::Killed("killed.txt"),
        events: &["PreToolUse Bash"],
        agent_events: &[],
        changes: &[("killed.txt", Created)],
    },
];

/// Teaches the model the ten calls in a project's directory.
pub(crate) fn teach(model: &Model, root: &Path) {
    for (place, call) in CALLS.iter().enumerate() {
        model.teach(&prompt(place + 1), (call.tools)(root));
        if let Some(command) = call.agent {
            model.teach(AGENT_PROMPT, bash(command));
        }
    }
}

/// Returns the prompt for a call, counted from 1.
pub(crate) fn prompt(number: usize) -> String {
    format!("Make call {number}.")
}
