//! `foldlog completions`: a script by which a shell completes verbs and options.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::{HOLDS, Result};
use crate::output::Output;

/// Holds what the command line asks of `foldlog completions`.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// The shell.
    pub shell: Shell,
}

/// Prints the script for a shell, made of all verbs and options of `command`.
///
/// # Errors
///
/// [`Failure::Output`](crate::Failure::Output) if the script cannot be printed.
pub fn run(arguments: &Arguments, command: &mut Command, output: &mut Output<'_>) -> Result<u8> {
    // Built in memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "foldlog", &mut script);
    output.stdout.write_all(&script)?;
    Ok(HOLDS)
}
