//! `foldlog recover --strategies` and `--strategy`: lists the recovery strategies with their
//! results, or applies one.

use foldlog::Store;
use foldlog_codec::escape;
use foldlog_tasks::{
    CheckpointHistory, CrashRecoveryManager, CrashState, Error, RecoveredSession, RecoveryOutlook,
    RecoveryStrategy,
};
use foldlog_view::clock::now;
use foldlog_view::document;
use uuid::Uuid;

use super::Args;
use crate::checkpoint_text::print_outlook;
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::in_store;
use crate::workspaces::{self, CheckpointWorkspaces, Workspaces};

/// Reports the result of each strategy, or recovers the session by the given one.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the session is in no store, if the strategy
///   does not exist or cannot be applied, or if no author is given.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if another process has the session open for
///   writing, or it cannot be read.
pub(super) fn run(asked: &Args, output: &mut Output<'_>) -> Result<u8> {
    let (root, id) = in_store(&asked.session)?;
    let store = asked.directories.writing.open(&root, output)?;
    let manager = CrashRecoveryManager::new(store.clone(), id);
    let manager = match &asked.tree {
        Some(tree) => manager.with_tree(tree),
        None => manager,
    };
    let Some(strategy) = &asked.strategy else { return tell(&manager, output) };
    let list = "`foldlog recover SESSION --strategies` lists the strategies, and what each would recover";
    let strategy: RecoveryStrategy =
        strategy.parse().map_err(|error: String| CommandError::usage(error, list))?;
    let (Some(by), Some(reason)) = (&asked.by, &asked.reason) else {
        return Err(CommandError::usage("a strategy needs --by and --reason", "add --by WHO --reason WHY"));
    };
    let outlook = manager.plan(strategy)?;
    if !output.json() {
        print_outlook(&outlook, output)?;
    }
    let given = match outlook.impossible {
        Some(reason) => return Err(Error::Impossible { strategy, reason }.into()),
        None => open_workspaces(&store, id, asked, strategy)?,
    };
    let manager = match given.resources {
        Some(resources) => manager.with_resources(resources),
        None => manager,
    };
    let to =
        asked.to.as_ref().map_or_else(|| Ok(store), |to| Store::open_with(to, output.store_options()))?;
    let RecoveredSession { session, outlook, lost, differences } =
        manager.recover(strategy, &to, by, reason)?;
    let RecoveryOutlook { tasks, messages, lost_updates, .. } = outlook;
    if output.json() {
        output.value(&document! {
            session, strategy: strategy.to_string(), tasks, messages, lost_updates, lost, differences,
            workspaces: given.report,
        })?;
        return Ok(HOLDS);
    }
    output.line(format_args!("recovered: {}", escape::path(&to.session_dir(session))))?;
    for difference in differences {
        output.line(format_args!("    differs from the recorded session: {difference}"))?;
    }
    workspaces::print(&given.report, output)?;
    Ok(HOLDS)
}

/// Opens the directories of the workspaces that are restored with the session. A new session has
/// none.
fn open_workspaces(
    store: &Store,
    id: Uuid,
    asked: &Args,
    strategy: RecoveryStrategy,
) -> Result<CheckpointWorkspaces> {
    let is_new =
        matches!(strategy, RecoveryStrategy::IncrementalReconstruction | RecoveryStrategy::PartialRecovery);
    if is_new {
        if !asked.directories.workspaces.is_empty() || !asked.directories.rebind.is_empty() {
            let what = format!("`{strategy}` creates a new session, and does not change workspaces");
            return Err(CommandError::usage(what, "leave out --workspace and --rebind"));
        }
        return Ok(CheckpointWorkspaces { resources: None, report: Workspaces::default() });
    }
    let log = store.read_log(id)?;
    let history = CheckpointHistory::read(&log)?;
    let checkpoint = match strategy {
        RecoveryStrategy::SpecificCheckpoint(id) => Some(history.get(id)?),
        _ => history.latest_on(log.live_path(), log.last_position()),
    };
    let (dir, directories) = (asked.session.as_path(), &asked.directories);
    workspaces::open_given(store, id, dir, checkpoint, directories, asked.overwrite, true)
}

fn tell(manager: &CrashRecoveryManager, output: &mut Output<'_>) -> Result<u8> {
    let crash = manager.detect_crash_state(now())?;
    let outlooks = manager.plan_all()?;
    if output.json() {
        output.value(&document! { crash, strategies: outlooks })?;
        return Ok(HOLDS);
    }
    match crash {
        None => output.line("no effects of a crash were found")?,
        Some(crash) => print_crash(&crash, output)?,
    }
    output.line("if the log is intact, no strategy is needed: `foldlog recover` ends open calls, and the host continues")?;
    outlooks.iter().try_for_each(|outlook| print_outlook(outlook, output))?;
    Ok(HOLDS)
}

fn print_crash(crash: &CrashState, output: &mut Output<'_>) -> Result<()> {
    for write in &crash.incomplete_writes {
        output.line(format_args!("incomplete: {write}"))?;
    }
    for file in &crash.corrupted_files {
        output.line(format_args!("damaged: {}: {}", escape::path(&file.file), escape::text(&file.reason)))?;
    }
    for orphan in &crash.orphaned_resources {
        output.line(format_args!("orphaned: {orphan}"))?;
    }
    Ok(())
}
