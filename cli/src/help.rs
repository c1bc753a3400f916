//! The help of the binary: its commands, grouped by what people do with them.

use std::fmt::Write as _;

use clap::Command;

use crate::command::{Dispatch, Group};
use crate::verbs::Verb;

/// Help of the binary. `{after-help}` lists the commands.
const HELP_TEMPLATE: &str = "\
{about-with-newline}{usage-heading} {usage}{after-help}
Options:
{options}
`foldlog help COMMAND` explains a command. SESSION is STORE/sessions/ID, or URL/sessions/ID.
A position is a record's number, or a tag. Exit codes: 0 success; 1 damaged data; 2 wrong usage.
";

/// Gives a command line a help that lists its commands in groups.
pub(crate) fn with_groups(command: Command) -> Command {
    let mut listed = Vec::new();
    Verb::list(&command, String::new(), &mut listed);
    let mut groups = String::new();
    for group in Group::SHOWN {
        let _ = writeln!(groups, "{}:", group.heading());
        for one in listed.iter().filter(|one| one.metadata.group == group) {
            let _ = writeln!(groups, "  {:<16} {}", one.name, one.about);
        }
    }
    command.help_template(HELP_TEMPLATE).after_help(groups.trim_end().to_owned())
}
