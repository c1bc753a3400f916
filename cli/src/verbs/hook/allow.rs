//! `foldlog hook allow`: records a directory that is only recorded if the user wants it.

use std::path::PathBuf;

use foldlog_timeline::TimelinePlace;

use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::timelines::{UserDirs, allow};

/// Allow hooks to record a home directory, or one with many files.
///
/// Hooks record all other directories without being asked to.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of an agent's project
    pub directory: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Internal;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook allow DIR";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let place = TimelinePlace::of_root(&UserDirs::from_variables().timelines()?, &self.directory)?;
        allow(&place)?;
        output.line(format_args!("hooks record {} from now on", foldlog_codec::escape::path(&place.root)))?;
        Ok(HOLDS)
    }
}
