//! `foldlog hook capture`: the process that captures a directory for the first time.

use std::path::PathBuf;

use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::timelines::hook;

/// Capture a directory, for the first call in it to be fast.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of an agent's project
    pub directory: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Internal;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook capture DIR";

    fn run(self, _: &mut Output<'_>) -> Result<u8> {
        hook::capture(&self.directory)?;
        Ok(HOLDS)
    }
}
