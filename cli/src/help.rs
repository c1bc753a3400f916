//! The help of the binary: its commands, grouped by what people do with them.

use clap::Command;

/// The commands by what people do with them, as `foldlog --help` lists them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Start", &["demo", "run", "import"]),
    (
        "See what happened",
        &["sessions", "show", "tail", "state", "diff", "transcript", "ledger", "stats", "report", "view"],
    ),
    ("Decide, recover, undo", &["pending", "settle", "recover", "rewind"]),
    ("Check, copy, clean up", &["verify", "replay", "salvage", "backup", "export", "compact", "gc"]),
    ("Long-running work", &["tasks", "checkpoints", "restore", "validate"]),
    ("Several machines", &["pull", "push", "takeover"]),
    ("Shell", &["man", "completions"]),
];

/// Help of the binary. `{after-help}` lists the commands.
const HELP_TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}{after-help}

Options:
{options}

`foldlog help COMMAND` explains a command. STORE is a directory of sessions. SESSION is one of them:
STORE/sessions/ID, or URL/sessions/ID in a bucket or database. A position is a record's number,
counted from 0, or a snapshot's tag. Exit codes: 0 success; 1 damaged, diverged or invalid data;
2 wrong usage, unreadable input, or a run without an answer.
";

/// Gives a command line a help that lists its commands in groups.
pub(crate) fn with_groups(command: Command) -> Command {
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        groups.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            groups
                .push_str(&format!("  {name:<12} {}\n", about.map(ToString::to_string).unwrap_or_default()));
        }
    }
    command.help_template(HELP_TEMPLATE).after_help(groups.trim_end().to_owned())
}
