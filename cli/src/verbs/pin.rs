//! `foldlog pin`: the calls of agents whose captures are kept for longer than others.

use foldlog_view::document;

use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::timelines::RootArgs;

/// Describes pinned calls, and the fields of `pin --json`.
const PIN_JSON: &str = "\
The captures of a directory take at most 5 GB, or a tenth of the free space if that is less. If they
take more when a session of an agent starts, those of the oldest calls are removed, and these calls
cannot be undone any more. Calls of the last 24 hours lose their captures after older ones, and pinned
calls after all others.

With --json one object: number, pinned.";

/// Keep a call of an agent undoable for longer than others.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = PIN_JSON)]
pub struct Args {
    /// Call to pin
    #[arg(value_name = "N")]
    pub call: u64,
    /// Remove the pin
    #[arg(long)]
    pub remove: bool,
    /// Directory of the calls.
    #[command(flatten)]
    pub root: RootArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::Changes;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog pin 4";

    /// Pins a call, or removes its pin.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`](foldlog_view::Error::Usage) if there is no such call, or if its captures are
    /// missing.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        if let Some(path) = self.root.removed_root()? {
            return Err(foldlog_timeline::Error::RootRemoved { path }.into());
        }
        let (number, pinned) = (self.call, !self.remove);
        self.root.open()?.set_pinned(number, pinned)?;
        output.print(&document! { number, pinned }, |output| {
            output.line(format_args!("call {number} is {}", if pinned { "pinned" } else { "not pinned" }))
        })?;
        Ok(HOLDS)
    }
}
