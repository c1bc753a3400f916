//! `foldlog task checkpoints`: the retained checkpoints of a session.

use std::path::PathBuf;

use foldlog_codec::escape;
use foldlog_tasks::CheckpointHistory;
use foldlog_view::document;

use crate::checkpoint_text::describe_checkpoint;
use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result};
use crate::output::Output;
use crate::readers::open_session;

/// Describes the fields of `task checkpoints --json`.
const CHECKPOINTS_JSON: &str = "\
With --json one object:
  latest       id of the last checkpoint on the live path, to which the strategy `latest` returns
  mismatch     reason why a hash does not match the records; null if all match
  checkpoints  id, created_at, session_id, position, name, occasion, manifest, workspaces,
               resources, snapshot, validation_hash;
               manifest: total_tasks, completed_tasks, active_tasks, file_modifications_count,
               conversation_messages_count, storage_size_bytes, dependencies";

/// List the checkpoints, and check their hashes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = CHECKPOINTS_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Tasks;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog task checkpoints SESSION";

    /// Lists the retained checkpoints in the order of their times, and checks all hashes.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the session has no checkpoints.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    ///   read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let log = open_session(&self.session, output)?;
        let history = CheckpointHistory::read(&log)?;
        let checkpoints = history.list();
        let latest = history.latest_on(log.live_path(), log.last_position()).map(|one| one.id);
        let last = checkpoints.iter().map(|one| one.id).max();
        let mismatch = last.and_then(|last| history.verify(&log, last).err());
        let code = if mismatch.is_some() { DOES_NOT_HOLD } else { HOLDS };
        if output.json() {
            let mismatch = mismatch.map(|error| error.to_string());
            output.value(&document! { latest, mismatch, checkpoints })?;
            return Ok(code);
        }
        if checkpoints.is_empty() {
            let next =
                "the host of a session creates them; those of an exported session remain in its original log";
            return Err(CommandError::usage("the session has no checkpoints", next));
        }
        for checkpoint in checkpoints {
            let name = checkpoint.name.as_deref().map(|name| format!("  \"{}\"", escape::text(name)));
            let mark = if latest == Some(checkpoint.id) { "  <- latest" } else { "" };
            output.line(format_args!(
                "{}  {}  position {}  {}{}{mark}",
                checkpoint.id,
                checkpoint.created_at.format("%Y-%m-%dT%H:%M:%SZ"),
                checkpoint.position,
                checkpoint.occasion,
                name.unwrap_or_default(),
            ))?;
            output.line(format_args!("    {}", describe_checkpoint(checkpoint)))?;
        }
        if let Some(mismatch) = mismatch {
            output.error(mismatch);
        }
        Ok(code)
    }
}
