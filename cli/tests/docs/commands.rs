//! The page of commands, which is generated from the binary's help.

use std::fmt::Write;

use clap::{Arg, Command};
use foldlog_cli::command::{Access, CommandMetadata, ListedCommand, Target, Urls};

use super::project;

/// This variable lets the test write the page.
const UPDATE: &str = "FOLDLOG_BLESS";

#[test]
fn the_page_of_commands_is_that_of_the_binary() {
    let page = project().join("docs/reference/commands.md");
    let mut command = foldlog_cli::cli::command();
    command.build();
    let made = page_of(&command);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&page, &made).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let line = made.lines().zip(written.lines()).find(|(made, written)| made != written);
    assert!(made == written, "docs/reference/commands.md is old (set {UPDATE}=1 to write it): {line:?}");
}

#[test]
fn the_help_fits_on_a_screen_and_lists_each_command_once() {
    let mut command = foldlog_cli::cli::command();
    let help = command.render_help().to_string();
    assert!(help.lines().count() <= 60, "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    for ListedCommand { name, .. } in foldlog_cli::commands() {
        assert_eq!(help.matches(&format!("\n  {name:<16} ")).count(), 1, "{name} in\n{help}");
    }
}

fn page_of(command: &Command) -> String {
    let mut page = String::from(
        "# Commands\n\n\
         All commands of the binary `foldlog`, with their options. This page is made from\n\
         `foldlog help COMMAND`. [Output](output.md) describes what all commands share: exit codes, JSON,\n\
         terminals and memory.\n\n\
         ## Overview\n\n\
         `target` is the argument that names sessions. A URL is that of a bucket or database, or of a\n\
         session in one.\n\n\
         | command | sessions | target | URL | pager |\n|---|---|---|---|---|\n",
    );
    foldlog_cli::commands().iter().for_each(|listed| overview(listed, &mut page));
    for verb in shown_commands(command) {
        section(verb, &format!("foldlog {}", verb.get_name()), &mut page);
    }
    page.push_str("\n## Options of all commands\n\n");
    command.get_arguments().filter(|argument| argument.is_global_set()).for_each(|it| option(it, &mut page));
    page
}

fn overview(listed: &ListedCommand, page: &mut String) {
    let CommandMetadata { access, target, urls, is_paged, .. } = listed.metadata;
    let access = match access {
        Access::Reads if target == Target::Nothing => String::new(),
        Access::Reads => "reads".to_owned(),
        Access::Creates => "makes new ones".to_owned(),
        Access::Changes => "changes".to_owned(),
        Access::ChangesWith(option) => format!("changes with `{option}`"),
        Access::ChangesUnless(option) => format!("changes, except with `{option}`"),
    };
    let target = match target {
        Target::Nothing => "",
        Target::Session => "session",
        Target::Store => "store",
        Target::SessionOrStore => "session or store",
    };
    let urls = match urls {
        Urls::Refused => "",
        Urls::Copied | Urls::Read => "as target",
        Urls::Separate => "besides the target",
    };
    let (name, pager) = (&listed.name, if is_paged { "yes" } else { "" });
    let anchor = name.replace(' ', "-");
    let _ = writeln!(page, "| [`{name}`](#foldlog-{anchor}) | {access} | {target} | {urls} | {pager} |");
}

fn shown_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

fn about(command: &Command) -> String {
    command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default()
}

fn section(command: &Command, name: &str, page: &mut String) {
    let about = about(command);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = write!(page, "\n## {name}\n\n{}\n\n```text\n{usage}\n```\n\n", about.trim());
    let own = |argument: &&Arg| {
        !argument.is_hide_set() && !argument.is_global_set() && argument.get_id().as_str() != "help"
    };
    command.get_arguments().filter(own).for_each(|argument| option(argument, page));
    for inner in shown_commands(command) {
        section(inner, &format!("{name} {}", inner.get_name()), page);
    }
}

fn option(argument: &Arg, page: &mut String) {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(page, "- `{argument}`: {help}");
}
