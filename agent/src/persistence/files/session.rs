//! From a session's log to a tree, and from a tree to a session of its own.

use std::collections::BTreeSet;
use std::path::Path;

use foldlog::audit::LogReader;
use foldlog::{
    Export, ImportOptions, Policy, SequenceNumber, Session, SessionOptions, SessionTypes, Slice, Store,
};
use serde::{Deserialize, Serialize};

use super::{
    CheckpointFiles, ExportReport, SessionIdentity, TreeContents, TreeLimits, export_tree, import_tree,
};
use crate::persistence::{
    Checkpoints, Error, ImportedStates, Result, SessionState, StateComponent, StateCompression,
    StateImported, WorkspaceStores,
};

/// Manifest of the checkpoint that holds what the engine exports.
#[derive(Serialize, Deserialize)]
struct EngineExport {
    /// What the snapshot is: [`SNAPSHOT_JSON`].
    snapshot: String,
    position: SequenceNumber,
}

const SNAPSHOT_JSON: &str = "snapshot-json";

/// Writes the tree of a session at a position, as [`export_tree`] does: its state, its updates, and what an
/// [import](import_session) needs to make a session of it.
///
/// # Errors
///
/// Those of [`SessionState::at`], of [`LogReader::export_at`] and of [`export_tree`].
pub fn export_session(
    log: &LogReader,
    position: impl Into<SequenceNumber>,
    stores: &WorkspaceStores,
    to: &Path,
    compression: &StateCompression,
) -> Result<ExportReport> {
    with_contents(log, position.into(), stores, |contents| export_tree(contents, to, compression))
}

/// Hands on what a session's tree is made of.
pub(super) fn with_contents<T>(
    log: &LogReader,
    position: SequenceNumber,
    stores: &WorkspaceStores,
    take: impl FnOnce(&TreeContents<'_>) -> Result<T>,
) -> Result<T> {
    let (state, updates) = SessionState::with_updates(log, position, stores)?;
    let mut export = log.export_at(position, &BTreeSet::from([Policy::State, Policy::Log]))?;
    // The state has an imported past already; checkpoints are positions of a log that the new session does not have.
    for left in [ImportedStates::NAME, Checkpoints::NAME] {
        export.slices.retain(|slice| slice.slice_type != left);
        export.policies.remove(left);
    }
    let manifest = EngineExport { snapshot: SNAPSHOT_JSON.to_owned(), position };
    let checkpoints = [CheckpointFiles::new(&manifest, &export)?];
    take(&TreeContents::new(&state).at(position, &updates).with_checkpoints(&checkpoints))
}

/// Holds a session that was made of a tree.
#[derive(Debug)]
pub struct ImportedSession {
    /// The session.
    pub session: Session,
    /// State that the tree holds.
    pub exported: SessionState,
    /// Parts of the session's state that differ from it, its id left out.
    pub differing: Vec<StateComponent>,
}

/// Makes a session of a tree that [`export_session`] wrote: `dir` is a session's folder, or a folder with an `.aca` that holds
/// one session. `types` include those of [`declare`](crate::persistence::declare); slices that they lack are kept without
/// types.
///
/// # Errors
///
/// [`Error::NoTree`] if the tree holds nothing that the engine exported, else those of [`import_tree`] and of
/// [`Store::import`]. No session is left behind, unless the process is killed.
pub fn import_session(
    dir: &Path,
    store: &Store,
    types: &SessionTypes,
    options: SessionOptions,
    limits: TreeLimits,
) -> Result<ImportedSession> {
    let tree = import_tree(dir, limits)?;
    let is_engines = |files: &&CheckpointFiles| {
        files.manifest::<EngineExport>().is_ok_and(|manifest| {
            manifest.snapshot == SNAPSHOT_JSON && Some(manifest.position) == tree.position
        })
    };
    let files = tree.checkpoints.iter().rev().find(is_engines).ok_or_else(|| Error::NoTree {
        path: dir.to_owned(),
        reason: "it was not exported from a session's log".to_owned(),
    })?;
    let export = Export::from_json(&String::from_utf8_lossy(&files.state_snapshot))?;
    let session = store.import(&export, types, ImportOptions { session: options, keep_unknown: true })?;
    match go_on(&session, &tree.state, tree.position) {
        Ok(differing) => Ok(ImportedSession { session, exported: tree.state, differing }),
        Err(error) => {
            let id = session.id();
            session.close()?;
            store.delete(id)?;
            Err(error)
        }
    }
}

/// Records what else the state holds, and compares.
fn go_on(
    session: &Session,
    exported: &SessionState,
    position: Option<SequenceNumber>,
) -> Result<Vec<StateComponent>> {
    session.dispatch(StateImported::of(exported, position))?;
    session.sync()?;
    let log = LogReader::open(session.dir())?;
    let position = session.position().unwrap_or(SequenceNumber::MIN);
    let state = SessionState::at(&log, position, &WorkspaceStores::none())?;
    let identity = SessionIdentity { session_id: exported.session_id, ..SessionIdentity::of(&state) };
    let differs = |component: &StateComponent| match component {
        StateComponent::Session => identity != SessionIdentity::of(exported),
        StateComponent::Configuration => state.configuration != exported.configuration,
        StateComponent::TaskTree => state.task_tree != exported.task_tree,
        StateComponent::ClaudeContext => state.claude_context != exported.claude_context,
        StateComponent::FileSystem => state.file_system != exported.file_system,
        StateComponent::ExecutionLogs => state.execution_logs != exported.execution_logs,
        StateComponent::ResourceUsage => state.resource_usage != exported.resource_usage,
    };
    Ok(StateComponent::ALL.into_iter().filter(differs).collect())
}
