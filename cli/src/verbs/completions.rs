//! `foldlog completions`: a script by which a shell completes verbs, options, and the sessions and tags that there are.
//!
//! The scripts for bash, zsh and fish are those that `clap_complete` makes, with functions behind them that ask
//! [`foldlog candidates`](super::candidates) while somebody types. Whatever a store holds is data to these functions: no candidate is
//! evaluated, and each is quoted as the shell quotes it.

use std::collections::BTreeSet;

use clap::Command;
use clap_complete::Shell;

use crate::failure::{HOLDS, Result};
use crate::output::Output;

const BASH: &str = include_str!("completions/live.bash");
const ZSH: &str = include_str!("completions/live.zsh");
const FISH: &str = include_str!("completions/live.fish");

/// Holds what the command line asks of `foldlog completions`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The shell.
    pub shell: Shell,
}

/// Prints the script for a shell, made of all verbs and options of `command`.
///
/// # Errors
///
/// [`CommandError::Output`](crate::CommandError::Output) if the script cannot be printed.
pub fn run(arguments: &Args, command: &mut Command, output: &mut Output<'_>) -> Result<u8> {
    // Built in memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "foldlog", &mut script);
    let script = String::from_utf8_lossy(&script);
    let (sessions, valued) = (taking_sessions(command), value_options(command));
    let spaced = |words: &BTreeSet<String>| words.iter().fold(" ".to_owned(), |all, word| all + word + " ");
    let script = match arguments.shell {
        Shell::Bash => {
            let lists = format!(
                "\n_foldlog_sessions='{}'\n_foldlog_valued='{}'\n",
                spaced(&sessions),
                spaced(&valued)
            );
            format!("{script}{lists}{BASH}")
        }
        Shell::Fish => {
            let lists = format!(
                "\nset -g __foldlog_sessions{}\nset -g __foldlog_valued{}\n",
                spaced(&sessions).trim_end(),
                spaced(&valued).trim_end()
            );
            format!("{script}{lists}{FISH}")
        }
        Shell::Zsh => zsh(&script, &spaced(&valued)),
        _ => script.into_owned(),
    };
    output.stdout.write_all(script.as_bytes())?;
    Ok(HOLDS)
}

/// Returns the verbs whose first argument is a session's directory.
fn taking_sessions(command: &Command) -> BTreeSet<String> {
    let takes = |verb: &&Command| {
        let first = verb.get_positionals().next().map(|first| first.get_id().as_str());
        !verb.is_hide_set() && matches!(first, Some("session" | "path" | "paths" | "from"))
    };
    command.get_subcommands().filter(takes).map(|verb| verb.get_name().to_owned()).collect()
}

/// Returns the options that take a value, of all verbs.
fn value_options(command: &Command) -> BTreeSet<String> {
    let options = command.get_opts().flat_map(|option| {
        let long = option.get_long().map(|long| format!("--{long}"));
        long.into_iter().chain(option.get_short().map(|short| format!("-{short}")))
    });
    options.chain(command.get_subcommands().flat_map(value_options)).collect()
}

/// Lets the script for zsh ask for sessions and tags where it would offer files or nothing.
fn zsh(script: &str, valued: &str) -> String {
    const END: &str = "if [ \"$funcstack[1]\" = \"_foldlog\" ]; then\n";
    let live = |line: &str| {
        let is_session =
            ["':session -- ", "':path -- ", "'*::paths -- "].iter().any(|it| line.starts_with(it));
        let is_position = ["':before -- ", "':after -- ", "'::to -- "].iter().any(|it| line.starts_with(it));
        match () {
            () if is_session => line.replace(":_files'", ":_foldlog_sessions_now'"),
            () if is_position => line.replace(":_default'", ":_foldlog_tags_now'"),
            () if line.contains("--at=[") => {
                line.replace(":POSITION:_default'", ":POSITION:_foldlog_tags_now'")
            }
            () if line.contains("--tag=[") => line.replace(":TAG:_default'", ":TAG:_foldlog_tags_now'"),
            () => line.to_owned(),
        }
    };
    let script: String = script.lines().map(|line| live(line) + "\n").collect();
    script.replace(END, &format!("_foldlog_valued='{valued}'\n{ZSH}{END}"))
}
