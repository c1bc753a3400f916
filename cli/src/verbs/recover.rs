//! `foldlog recover`: restores the workspaces of an interrupted session and ends its open calls,
//! without its host.

mod strategies;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::captures_dir;
use foldlog::tools::{ExecuteOptions, ToolRegistry, ToolRunner};
use foldlog::{ExecutionState, NotUndone, OperationId, ReplacedContent, ResourceRegistry, Session, SmolStr};
use foldlog_claude::end_programs;
use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

use crate::command::{Access, Argument, Command, Group};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::in_store;
use crate::workspaces::{RestoreTarget, WorkspaceArgs, named_part, places};

/// Describes a recovery, and the fields of `recover --json`.
const RECOVER_JSON: &str = "\
The present files are captured first, so that nothing is lost. Files that cannot be captured are
moved to the directory .foldlog-aside of the workspace. If neither is possible, nothing is changed.
No tool is run: the host runs calls again if that is safe, and `foldlog settle` decides about the
others.

With --json one object:
  session
  ended         calls that were open: operation, tool, call_id
  workspaces    name, root, snapshots;
                rebound: whether root replaces the directory on which the call worked;
                overwritten: whether files were removed from root;
                removed_mark: text of the mark that --force removed
  marks         if no call has a workspace to restore, the directories given with --force: root,
                removed_mark
  not_undone    changes of the call that were not undone, and files that could not be captured:
                resource, path, reason
  replaced      what was replaced or removed, even if another program had changed it: resource,
                changed, removed, more (paths that are not listed); `foldlog rewind SESSION --undo`
                brings it back
  unsettled     calls that the host runs again or a person settles: operation, tool, call_id

With --strategies and --json one object:
  crash         effects of a crash: incomplete_writes, corrupted_files, orphaned_resources,
                detected_at; null if there are none
  strategies    strategy, impossible, new_session, position, tasks, completed_tasks, messages,
                files, lost_updates, lost
With --strategy and --json one object:
  session       id of the session that continues; strategy, tasks, messages, lost_updates, lost
  differences   what differs in a session rebuilt from updates from the recorded session
  workspaces    restored: name, root of each restored workspace; left: names of unchanged resources";

/// Restore directories after a crash, and end open calls.
///
/// Works without the host's code and runs no tool.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = RECOVER_JSON)]
pub struct Args {
    /// Directory of the session
    pub session: PathBuf,
    /// Directories, and whether a replicated session is written.
    #[command(flatten)]
    pub directories: WorkspaceArgs,
    /// Remove files from a --rebind directory that the capture does not contain
    #[arg(long, requires = "rebind")]
    pub overwrite: bool,
    /// Continue even if present files can neither be captured nor moved aside
    ///
    /// These files are then lost. The cause can be a full disk, for example.
    #[arg(long)]
    pub without_capture: bool,
    /// Remove another session's mark from the given directories, even if no call is open
    ///
    /// Use this only if the other session does not work in these directories.
    #[arg(long)]
    pub force: bool,
    /// Print the effects of a crash and what each strategy would recover, without writing
    #[arg(long, conflicts_with_all = ["strategy", "workspaces", "snapshots", "rebind", "force"])]
    pub strategies: bool,
    /// Recover by a strategy: latest, checkpoint:ID, updates or partial
    ///
    /// `updates` creates a new session from the updates of tasks and messages, `partial` one from
    /// the intact data. `latest` and `checkpoint:ID` also restore the given workspaces; other
    /// workspaces remain unchanged.
    #[arg(long, value_name = "STRATEGY", conflicts_with = "force")]
    pub strategy: Option<String>,
    /// The session's tree of files, written by `foldlog export --format aca`
    ///
    /// It is checked too. `partial` uses its intact files if no part of the log is intact.
    #[arg(long, value_name = "DIR", conflicts_with = "force")]
    pub tree: Option<PathBuf>,
    /// Store for a new session [default: the session's own]
    #[arg(long, value_name = "DIR", requires = "strategy")]
    pub to: Option<PathBuf>,
    /// Name of the person who recovers the session by a strategy
    #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank, requires = "strategy")]
    pub by: Option<String>,
    /// Reason for the recovery
    #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank, requires = "strategy")]
    pub reason: Option<String>,
}

impl Command for Args {
    const GROUP: Group = Group::Decide;
    const ACCESS: Access = Access::ChangesUnless("--strategies");
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog recover SESSION --workspace DIR";

    /// Restores the workspaces of an interrupted session from its captures, and ends its open calls
    /// as interrupted. No tool is run.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the session is in no store, or no
    ///   directory is given for a workspace.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if another process has the session open for
    ///   writing, if a workspace cannot be restored, or if another session has worked on it since.
    ///   Also if the call worked on a resource that is not a directory, which only the host
    ///   restores.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        if self.strategies || self.strategy.is_some() || self.tree.is_some() {
            return strategies::run(&self, output);
        }
        let (root, id) = in_store(&self.session)?;
        let session = self.directories.writing.open(&root, output)?.open_to_recover(id)?;
        let recovered = recover(&session, &self);
        let closed = session.close();
        let document = recovered?;
        closed?;
        output.print(&document, |output| print(&document, output))?;
        Ok(HOLDS)
    }
}

/// Time after which the recovery stops waiting for the holder of a workspace's lease.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Document {
    session: Uuid,
    ended: Vec<RecoverOperationRow>,
    workspaces: Vec<Workspace>,
    /// Directories given with `--force` while no call has a workspace to restore.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<DirectoryMark>,
    /// Note on options that changed nothing.
    #[serde(skip)]
    idle: Option<&'static str>,
    not_undone: Vec<NotUndone>,
    replaced: Vec<ReplacedContent>,
    unsettled: Vec<RecoverOperationRow>,
}

#[derive(Serialize)]
struct RecoverOperationRow {
    operation: OperationId,
    tool: String,
    call_id: Option<String>,
}

#[derive(Serialize)]
struct Workspace {
    name: String,
    #[serde(serialize_with = "escape::serialize_path")]
    root: PathBuf,
    #[serde(serialize_with = "escape::serialize_path")]
    snapshots: PathBuf,
    /// Whether this directory replaced the one on which the call worked.
    rebound: bool,
    /// Whether files of this directory that are not in the capture were removed.
    overwritten: bool,
    /// Text of the mark that was removed.
    removed_mark: Option<String>,
}

/// A directory that no open call works on, with its mark.
#[derive(Serialize)]
struct DirectoryMark {
    #[serde(serialize_with = "escape::serialize_path")]
    root: PathBuf,
    /// Text of the mark that was removed; `None` if the directory had none.
    removed_mark: Option<String>,
}

impl RecoverOperationRow {
    fn new(operation: OperationId, tool: &SmolStr, call_id: Option<&SmolStr>) -> RecoverOperationRow {
        RecoverOperationRow { operation, tool: tool.to_string(), call_id: call_id.map(ToString::to_string) }
    }
}

fn recover(session: &Session, asked: &Args) -> Result<Document> {
    let open = session.calls().open_operations();
    let mut workspaces = Vec::new();
    let mut resources = ResourceRegistry::builder();
    let places = places(session.calls().open_captures()?, &asked.session, &asked.directories)?;
    let (marks, idle) = match places.is_empty() {
        true => (unmark(asked)?, idle(asked)),
        false => (Vec::new(), None),
    };
    for place in places {
        let files = Arc::new(place.open(asked.overwrite)?);
        let RestoreTarget { name, rebound, snapshots, taken, .. } = place;
        let removed_mark = match asked.force {
            true => {
                // A directory that this call never worked on may have a valid mark, which must
                // remain.
                files.check_directory(&taken)?;
                files.remove_mark(Instant::now() + WAIT_MAX)?
            }
            false => None,
        };
        let overwritten = rebound && asked.overwrite;
        resources = resources.named(name.clone(), Arc::clone(&files));
        let root = files.root().to_owned();
        workspaces.push(Workspace { name, root, snapshots, rebound, overwritten, removed_mark });
    }
    let state = ExecutionState::builder(session.clone(), resources.build()?);
    let state = state.without_capture(asked.without_capture).build();
    let runner = ToolRunner::new(state, ToolRegistry::new());
    // A command of `foldlog run` may have outlived it, and would continue to change the workspace.
    end_programs(session)
        .map_err(|error| CommandError::usage(error.to_string(), "end it, and recover again"))?;
    let recovered =
        runner.recover(&ExecuteOptions { deadline: Some(WAIT_MAX), ..ExecuteOptions::default() })?;
    let (mut not_undone, mut replaced) = (Vec::new(), Vec::new());
    for recovered in recovered {
        not_undone.extend(recovered.not_undone);
        replaced.extend(recovered.replaced);
    }
    let unsettled = session.calls().unsettled_operations();
    Ok(Document {
        session: session.id(),
        ended: open
            .iter()
            .map(|open| RecoverOperationRow::new(open.operation, &open.tool, open.call_id.as_ref()))
            .collect(),
        workspaces,
        marks,
        idle,
        not_undone,
        replaced,
        unsettled: unsettled
            .iter()
            .map(|one| RecoverOperationRow::new(one.operation, &one.tool, one.call_id.as_ref()))
            .collect(),
    })
}

/// Removes the marks of the directories given with `--force` while there is no workspace to
/// restore.
fn unmark(asked: &Args) -> Result<Vec<DirectoryMark>> {
    let forced = if asked.force { asked.directories.workspaces.as_slice() } else { &[] };
    let mark = |given: &String| {
        // Without an open call no workspace has a name, so any `NAME=` is accepted.
        let directory = match given.split_once('=') {
            Some((_, directory)) if !Path::new(given).is_dir() => directory,
            _ => given.as_str(),
        };
        let captures = captures_dir(&asked.session);
        let files = HostFilesystem::open(directory, captures, HostFilesystemOptions::default())?;
        let removed_mark = files.remove_mark(Instant::now() + WAIT_MAX)?;
        Ok(DirectoryMark { root: files.root().to_owned(), removed_mark })
    };
    forced.iter().map(mark).collect()
}

/// Returns the note on options that change nothing while there is no workspace to restore.
fn idle(asked: &Args) -> Option<&'static str> {
    let WorkspaceArgs { workspaces, rebind, .. } = &asked.directories;
    match (asked.force, workspaces.is_empty(), rebind.is_empty()) {
        (true, true, _) => {
            Some("no mark was removed: --force removes the mark of a directory given by --workspace DIR")
        }
        (true, false, true) | (false, true, true) => None,
        (true, false, false) => Some("--rebind changed nothing: no call has a workspace to restore"),
        (false, ..) => Some(
            "nothing was changed: no call has a workspace to restore; to remove another session's mark from a directory, \
             give --workspace DIR --force",
        ),
    }
}

fn print(document: &Document, output: &mut Output<'_>) -> Result<()> {
    let Document { session, ended, workspaces, marks, idle, not_undone, replaced, unsettled } = document;
    let restored = workspaces.iter().map(|workspace| (&workspace.root, &workspace.removed_mark));
    for (root, removed_mark) in restored.chain(marks.iter().map(|mark| (&mark.root, &mark.removed_mark))) {
        if let Some(said) = removed_mark {
            output.note(format_args!(
                "note: removed the mark `user.foldlog.work` of {}, which said: {said}",
                escape::path(root)
            ));
        }
    }
    for DirectoryMark { root, .. } in marks.iter().filter(|mark| mark.removed_mark.is_none()) {
        output.note(format_args!("note: {} has no mark", escape::path(root)));
    }
    if let Some(idle) = idle {
        output.note(format_args!("note: {idle}"));
    }
    for left in not_undone {
        output.note(format_args!("note: not undone: {}{}", named_part(left), left.reason));
    }
    if ended.is_empty() {
        output.line(format_args!("session {session} has no open calls"))?;
    } else {
        for Workspace { name, root, rebound, overwritten, .. } in workspaces {
            if *rebound {
                let removed = match overwritten {
                    true => "; files in it that the capture does not contain were removed",
                    false => "",
                };
                output.line(format_args!(
                    "workspace `{name}`: {} replaces the call's directory{removed}",
                    escape::path(root)
                ))?;
            }
            output.line(format_args!(
                "workspace `{name}` is as it was before the call: {}",
                escape::path(root)
            ))?;
        }
    }
    for ReplacedContent { resource, changed, removed, more } in replaced {
        let resource = escape::text(resource);
        for (path, what) in of_each(changed, "replaced").chain(of_each(removed, "removed")) {
            output.line(format_args!("  {what} in `{resource}`: {}", escape::text(path)))?;
        }
        if *more > 0 {
            output.line(format_args!("  and {more} more"))?;
        }
    }
    if !replaced.is_empty() && !not_undone.iter().any(NotUndone::is_uncaptured) {
        // The session has not committed anything in a replacement directory yet.
        let directory = match workspaces.iter().any(|workspace| workspace.rebound) {
            true => "--rebind NAME=DIR",
            false => "--workspace NAME=DIR",
        };
        let command = format!("`foldlog rewind SESSION --undo --by WHO --reason WHY {directory}`");
        output.line(format_args!("{} brings these files back", output.places.put_into(&command)))?;
    }
    for RecoverOperationRow { operation, tool, .. } in ended {
        output.line(format_args!("operation {operation} (`{tool}`) was ended as interrupted"))?;
    }
    for RecoverOperationRow { operation, tool, .. } in unsettled {
        let commands = output.places.put_into(&format!("`foldlog ledger SESSION {operation}`"));
        output.line(format_args!(
            "operation {operation} (`{tool}`) waits: its host runs it again if that is safe (`foldlog run --resume` settles it as failed); otherwise a person \
             decides: {commands} prints the commands"
        ))?;
    }
    Ok(())
}

/// Pairs each path with a description of its change.
fn of_each<'a>(paths: &'a [String], what: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    paths.iter().map(move |path| (path.as_str(), what))
}
