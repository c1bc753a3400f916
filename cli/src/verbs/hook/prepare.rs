//! `foldlog hook prepare`: background work at the start of an agent's session.

use std::path::PathBuf;

use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::timelines::hook;

/// Capture a directory for the first time, for the first call in it to be fast, and remove the
/// earliest captures if they take too much space.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of an agent's project
    pub directory: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Internal;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook prepare DIR";

    fn run(self, _: &mut Output<'_>) -> Result<u8> {
        hook::prepare(&self.directory)?;
        Ok(HOLDS)
    }
}
