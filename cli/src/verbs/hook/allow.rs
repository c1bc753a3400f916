//! `foldlog hook allow`: records a directory that is only recorded if the user wants it.

use std::path::PathBuf;

use foldlog_codec::escape;
use foldlog_timeline::TimelinePlace;
use foldlog_view::document;

use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::timelines::{UserDirs, allow, disallow};

/// Allow hooks to record a home directory, or one with many files.
///
/// Hooks record all other directories without being asked to.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "With --json one object: directory, recorded.")]
pub struct Args {
    /// Directory of an agent's project
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Take the permission back
    #[arg(long)]
    pub remove: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook allow DIR";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let dirs = UserDirs::from_variables();
        let place = TimelinePlace::of_root(&dirs.timelines()?, &self.directory)?;
        let root = escape::path(&place.root);
        if self.remove {
            disallow(&place)?;
        } else {
            allow(&place)?;
        }
        let refused = dirs.needs_consent(&place);
        let document = document! { directory: &root, recorded: refused.is_none() };
        let text = match &refused {
            Some(reason) => format!("hooks do not record {root} from now on: {reason}"),
            None if !self.remove => format!("hooks record {root} from now on"),
            None if place.exists() => {
                format!("hooks record {root} as long as {} exists", escape::path(&place.dir))
            }
            None => format!("hooks record {root}: it needs no permission"),
        };
        output.print(&document, |output| output.line(text))?;
        Ok(HOLDS)
    }
}
