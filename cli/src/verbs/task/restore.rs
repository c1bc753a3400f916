//! `foldlog task restore`: restores a session to a checkpoint, without its host.

use std::path::PathBuf;

use foldlog::ExecutionState;
use foldlog_codec::escape;
use foldlog_tasks::{
    CheckpointHistory, CheckpointId, CheckpointManager, NotCompared, RestoreOptions, RestoreReport,
    open_without_host,
};
use foldlog_view::document;
use foldlog_view::text::count_text;

use crate::checkpoint_text::describe_checkpoint;
use crate::command::{Access, Argument, Command, Group};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::{in_store, open_session};
use crate::workspaces::{self, CheckpointWorkspaces, WorkspaceArgs, Workspaces};

/// Describes the fields of `task restore --json`.
const RESTORE_JSON: &str = "\
With --json one object:
  checkpoint, position  checkpoint to which the session was restored
  undo                  checkpoint of the state before the restore
  rolled_back           record of the rollback
  applied               later updates that were applied again: their old and new records
  refused               later updates that were refused: sequence, reason
  not_compared          later captures whose changes are unknown: sequence, workspace, reason
  workspaces            restored: name, root of each restored workspace; left: names of unchanged
                        resources";

/// Restore a session to a checkpoint.
///
/// Works without the host's code. The state before the restore is kept as a checkpoint, so the
/// restore can be undone. Workspaces change only if their directories are given.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = RESTORE_JSON)]
pub struct Args {
    /// Directory of the session
    pub session: PathBuf,
    /// Checkpoint, as `foldlog task checkpoints` lists it, or `latest`
    pub checkpoint: String,
    /// Name of the person who restores the session
    #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank)]
    pub by: String,
    /// Reason for the restore
    #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank)]
    pub reason: String,
    /// Apply later events of tasks again, in order, if they are still legal
    ///
    /// All other later updates are only listed.
    #[arg(long)]
    pub apply_later: bool,
    /// Directories, and whether a replicated session is written.
    #[command(flatten)]
    pub directories: WorkspaceArgs,
    /// Remove files from a --rebind directory that the checkpoint does not contain
    #[arg(long, requires = "rebind")]
    pub overwrite: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Tasks;
    const ACCESS: Access = Access::Changes;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog task restore SESSION checkpoint_002 --by NAME --reason TEXT";

    /// Restores the session to a checkpoint, and the workspaces whose directories are given.
    /// Workspaces without a directory are not changed but listed.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the session is in no store, or has no such
    ///   checkpoint, or directories are given for only some of its workspaces.
    /// - [`Error::DoesNotHold`](foldlog_view::Error::DoesNotHold) if the records do not match the
    ///   checkpoint's hash.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if another process has the session open for
    ///   writing, if it must be recovered first, or if it is corrupt.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let dir = self.session.as_path();
        let (root, id) = in_store(dir)?;
        let log = open_session(dir, output)?;
        let history = CheckpointHistory::read(&log)?;
        let end = log.last_position();
        let checkpoint = match self.checkpoint.as_str() {
            "latest" => history.latest_on(log.live_path(), end).ok_or(foldlog_tasks::Error::NoCheckpoint)?,
            text => {
                let id: CheckpointId =
                    text.parse().map_err(|error: foldlog_tasks::InvalidCheckpointId| {
                        CommandError::usage(
                            error.to_string(),
                            "`foldlog task checkpoints SESSION` lists the checkpoints",
                        )
                    })?;
                history.get(id)?
            }
        };
        let store = self.directories.writing.open(&root, output)?;
        let CheckpointWorkspaces { resources, report: given } = workspaces::open_given(
            &store,
            id,
            dir,
            Some(checkpoint),
            &self.directories,
            self.overwrite,
            false,
        )?;
        let (session, _) = open_without_host(&store, id)?;
        if !output.json() {
            let position = checkpoint.position;
            output.line(format_args!(
                "restoring from position {end} to {}, position {position}",
                checkpoint.id
            ))?;
            output.line(format_args!("    state there: {}", describe_checkpoint(checkpoint)))?;
            // Flushed before a possible error is printed to the other stream.
            output.stdout.flush()?;
        }
        let options = RestoreOptions {
            by: self.by,
            reason: self.reason,
            apply_later_updates: self.apply_later,
            with_resources: resources.is_some(),
        };
        let manager = CheckpointManager::new(session.clone());
        let manager = match resources {
            Some(resources) => manager.with_resources(ExecutionState::new(session.clone(), resources)),
            None => manager,
        };
        let restored = manager.restore_from_checkpoint(checkpoint.id, &options);
        drop(manager);
        let closed = session.close();
        let report = restored?;
        closed?;
        print(report, given, output)?;
        Ok(HOLDS)
    }
}

fn print(report: RestoreReport, workspaces: Workspaces, output: &mut Output<'_>) -> Result<()> {
    let RestoreReport { checkpoint, undo, rolled_back, applied, refused, not_compared } = report;
    let (id, position, rolled_back) = (checkpoint.id, checkpoint.position, rolled_back.sequence);
    if output.json() {
        let refused = refused.iter().map(|one| document! { sequence: one.sequence, reason: &one.reason });
        return output.value(&document! {
            checkpoint: id, position, undo, rolled_back, applied, refused: refused.collect::<Vec<_>>(),
            not_compared, workspaces,
        });
    }
    output.line(format_args!("restored to {id} by record {rolled_back}; restoring {undo} undoes this"))?;
    if !applied.is_empty() || !refused.is_empty() {
        output.line(format_args!("{} applied again", count_text(applied.len() as u64, "later update")))?;
    }
    for one in refused {
        output.line(format_args!("update {} was refused: {}", one.sequence, escape::text(&one.reason)))?;
    }
    for NotCompared { sequence, workspace, reason } in not_compared {
        let (workspace, reason) = (escape::text(&workspace), escape::text(&reason));
        output.line(format_args!("changes of {workspace} up to record {sequence} are unknown: {reason}"))?;
    }
    workspaces::print(&workspaces, output)
}
