//! `foldlog hook event`: the command that a hook runs.

use std::io;

use super::Agent;
use crate::command::{Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;

/// Handle one event of an agent, described on standard input.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Agent that reports the event
    pub agent: Agent,
}

impl Command for Args {
    const GROUP: Group = Group::Internal;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook event claude";

    fn run(self, _: &mut Output<'_>) -> Result<u8> {
        io::copy(&mut io::stdin().lock(), &mut io::sink())?;
        Ok(HOLDS)
    }
}
