//! From a session's log to a tree, and from a tree to a new session.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use foldlog::inspect::LogReader;
use foldlog::{
    Export, ImportOptions, Policy, SequenceNumber, Session, SessionOptions, SessionTypes, Slice, Store,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    CheckpointFiles, ExportReport, ListedCheckpoint, SessionIdentity, SessionTree, TreeContents, TreeLimits,
    export_tree, json,
};
use crate::{
    Checkpoint, CheckpointHistory, Checkpoints, Error, ImportedStates, Result, SessionState, StateComponent,
    StateCompression, StateImported, WorkspaceStores,
};

/// Tag of a session that was created from a tree: the id of the tree's session. The import is
/// complete once a [`StateImported`] is recorded; without one, the importing process was killed.
pub const IMPORTED_FROM: &str = "imported_from";

/// Manifest of the checkpoint that contains the engine's export.
#[derive(Serialize, Deserialize)]
pub(super) struct EngineExport {
    /// Kind of the snapshot: [`SNAPSHOT_JSON`].
    snapshot: String,
    position: SequenceNumber,
}

const SNAPSHOT_JSON: &str = "snapshot-json";

impl EngineExport {
    /// Returns whether the snapshot is the engine's export at the position of a tree.
    pub(super) fn is_of(&self, position: Option<SequenceNumber>) -> bool {
        self.snapshot == SNAPSHOT_JSON && Some(self.position) == position
    }
}

/// Parses the engine's export.
pub(super) fn engine_export(state_snapshot: &[u8]) -> foldlog::Result<Export> {
    Export::from_json(&String::from_utf8_lossy(state_snapshot))
}

/// The engine's export of a log, which is read from the log when it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineSnapshot<'a> {
    log: &'a LogReader,
    position: SequenceNumber,
    /// Slices that are left out.
    left_out: &'static [&'static str],
}

impl EngineSnapshot<'_> {
    /// Writes the snapshot, item by item.
    pub(super) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let policies = BTreeSet::from([Policy::State, Policy::Log]);
        Ok(self.log.write_export_without(self.position, &policies, self.left_out, out)?)
    }

    /// Returns the manifest of the checkpoint that contains it.
    pub(super) fn manifest(&self) -> Result<Vec<u8>> {
        let manifest = EngineExport { snapshot: SNAPSHOT_JSON.to_owned(), position: self.position };
        json("manifest of a checkpoint", &manifest)
    }
}

/// Names the location of a checkpoint's state, which is not copied.
#[derive(Serialize)]
struct StateInLog {
    /// `log`: the log of this session has the state, at this position.
    state: &'static str,
    session_id: Uuid,
    position: SequenceNumber,
}

/// The checkpoints of a session in a tree.
struct SessionCheckpoints<'a> {
    files: Vec<CheckpointFiles>,
    states: Vec<Option<EngineSnapshot<'a>>>,
    history: Vec<ListedCheckpoint>,
}

/// Collects the checkpoints from before the session's import, and its own.
fn checkpoints(log: &LogReader, position: SequenceNumber) -> Result<SessionCheckpoints<'_>> {
    let types = crate::declare(SessionTypes::builder()).build()?;
    let imported = log.state_reader_at(position)?.items::<ImportedStates>(&types)?;
    let own = CheckpointHistory::at(log, position)?;
    let before: Vec<&Checkpoint> =
        imported.last().into_iter().flat_map(|imported| &imported.checkpoints).collect();
    let mut all = SessionCheckpoints { files: Vec::new(), states: Vec::new(), history: Vec::new() };
    let own_state = |position| EngineSnapshot { log, position, left_out: &[Checkpoints::NAME] };
    let of_another = before.iter().map(|checkpoint| (*checkpoint, None));
    let kept = own.list().into_iter().map(|checkpoint| (checkpoint, Some(own_state(checkpoint.position))));
    for (number, (checkpoint, state)) in (1..).zip(of_another.chain(kept)) {
        let &Checkpoint { session_id, position, .. } = checkpoint;
        let in_log = StateInLog { state: "log", session_id, position };
        all.files.push(CheckpointFiles::new(checkpoint, &in_log)?);
        all.states.push(state);
        all.history.push(ListedCheckpoint::from_checkpoint(checkpoint, Some(number), None));
    }
    let removed = own
        .removed_checkpoints()
        .map(|(checkpoint, why)| ListedCheckpoint::from_checkpoint(checkpoint, None, Some(why)));
    all.history.extend(removed);
    // Checkpoints of another log come first.
    all.history[before.len()..].sort_by_key(|one| (one.created_at, one.id));
    Ok(all)
}

/// Writes the tree of a session at a position, as [`export_tree`] does: its state, its updates, and
/// the data for an [import](import_session) as a session.
///
/// # Errors
///
/// The errors of [`SessionState::at`], of [`LogReader::write_export_without`] and of
/// [`export_tree`].
pub fn export_session(
    log: &LogReader,
    position: impl Into<SequenceNumber>,
    stores: &WorkspaceStores,
    to: &Path,
    compression: &StateCompression,
) -> Result<ExportReport> {
    with_contents(log, position.into(), stores, |contents| export_tree(contents, to, compression))
}

/// Passes the inputs of a session's tree to `take`.
pub(super) fn with_contents<T>(
    log: &LogReader,
    position: SequenceNumber,
    stores: &WorkspaceStores,
    take: impl FnOnce(&TreeContents<'_>) -> Result<T>,
) -> Result<T> {
    let (state, updates) = SessionState::with_updates(log, position, stores)?;
    let SessionCheckpoints { files, states, history } = checkpoints(log, position)?;
    let contents = TreeContents::new(&state).at(position, &updates).with_checkpoints(&files);
    // The state already contains the imported history. Checkpoints are positions of a log that the
    // new session does not have, and are exported as history.
    let left_out = &[ImportedStates::NAME, Checkpoints::NAME];
    take(&contents.with_history(&states, &history).with_engine(EngineSnapshot { log, position, left_out }))
}

/// Contains a session that was created from a tree.
#[derive(Debug)]
pub struct ImportedSession {
    /// The session.
    pub session: Session,
    /// State in the tree.
    pub exported: SessionState,
    /// Parts of the session's state that differ from it, without its id.
    pub differing: Vec<StateComponent>,
}

/// Creates a session from a tree that [`export_session`] wrote. `dir` is a session's directory, or
/// a directory with an `.aca` that contains one session. `types` include those of
/// [`declare`](crate::declare); slices that they lack are stored without types. The session has the
/// tag [`IMPORTED_FROM`].
///
/// # Errors
///
/// [`Error::NoTree`] if the tree has no export of the engine, or the errors of
/// [`import_tree`](super::import_tree) and of [`Store::import`]. After an error no session is left,
/// unless the process is killed: [`unfinished_imports`] lists such a session, and
/// [`detect_crash_state`](crate::CrashRecoveryManager::detect_crash_state) reports it.
pub fn import_session(
    dir: &Path,
    store: &Store,
    types: &SessionTypes,
    options: SessionOptions,
    limits: TreeLimits,
) -> Result<ImportedSession> {
    let tree = SessionTree::open_whole(dir, limits)?;
    let position = tree.manifest().position;
    let (mut had, mut export) = (Vec::new(), None);
    // The states of checkpoints may be many, and none of them is needed.
    for number in 1..=tree.manifest().checkpoints {
        let manifest = tree.checkpoint_file(number, "manifest.json")?;
        had.extend(serde_json::from_slice::<Checkpoint>(&manifest).ok());
        let engines = serde_json::from_slice::<EngineExport>(&manifest);
        if engines.is_ok_and(|engines| engines.is_of(position)) {
            export = Some(number);
        }
    }
    let export = export.ok_or_else(|| Error::NoTree {
        path: dir.to_owned(),
        reason: "it was not exported from a session's log".to_owned(),
    })?;
    let export = engine_export(&tree.checkpoint_file(export, "state_snapshot.json")?)?;
    let state = tree.state()?;
    let options = options.tag(IMPORTED_FROM, state.session_id.to_string());
    let options = ImportOptions { session: options, keep_unknown: true };
    let session = store.import(&export, types, options)?;
    match finish_import(store, &session, &state, position, had) {
        Ok(differing) => Ok(ImportedSession { session, exported: state, differing }),
        Err(error) => Err(give_up(store, session, error)),
    }
}

/// Deletes a session that could not be finished, and returns the cause.
pub(crate) fn give_up(store: &Store, session: Session, error: Error) -> Error {
    let id = session.id();
    // If it cannot be deleted, it is listed as an unfinished import.
    let _ = session.close().and_then(|()| store.delete(id));
    error
}

/// Records the rest of the state, and compares.
fn finish_import(
    store: &Store,
    session: &Session,
    exported: &SessionState,
    position: Option<SequenceNumber>,
    had: Vec<Checkpoint>,
) -> Result<Vec<StateComponent>> {
    session.dispatch(StateImported { checkpoints: had, ..StateImported::from_state(exported, position) })?;
    session.sync()?;
    let log = store.read_log(session.id())?;
    let position = session.log().position().unwrap_or(SequenceNumber::MIN);
    let state = SessionState::at(&log, position, &WorkspaceStores::none())?;
    let identity = SessionIdentity { session_id: exported.session_id, ..SessionIdentity::from_state(&state) };
    let differs = |component: &StateComponent| match component {
        StateComponent::Session => identity != SessionIdentity::from_state(exported),
        StateComponent::Configuration => state.configuration != exported.configuration,
        StateComponent::TaskTree => state.task_tree != exported.task_tree,
        StateComponent::ClaudeContext => state.claude_context != exported.claude_context,
        StateComponent::FileSystem => state.file_system != exported.file_system,
        StateComponent::ExecutionLogs => state.execution_logs != exported.execution_logs,
        StateComponent::ResourceUsage => state.resource_usage != exported.resource_usage,
    };
    Ok(StateComponent::ALL.into_iter().filter(differs).collect())
}

/// Returns the id of the tree's session if the process that imported it into this log was killed
/// before the import was complete.
pub(crate) fn unfinished_import(log: &LogReader) -> Result<Option<String>> {
    let Some(from) = log.tags().get(IMPORTED_FROM) else { return Ok(None) };
    let types = crate::declare(SessionTypes::builder()).build()?;
    let is_finished = !log.state_reader()?.items::<ImportedStates>(&types)?.is_empty();
    Ok((!is_finished).then(|| from.clone()))
}

/// Lists the unfinished imports in a store, each with the id of the tree's session. Their processes
/// were killed before the import was recorded, and the sessions were never returned to a caller;
/// [`Store::delete`] removes one. Sessions that are open or whose logs cannot be read are left out.
///
/// # Errors
///
/// [`foldlog::Error::Io`] if the store's directory cannot be read.
pub fn unfinished_imports(store: &Store) -> Result<Vec<(Uuid, String)>> {
    let mut unfinished = Vec::new();
    for id in store.session_ids()? {
        let is_imported = store.summary(id).is_ok_and(|summary| summary.tags.contains_key(IMPORTED_FROM));
        // An open session may be about to be finished.
        if !is_imported || store.open_to_recover(id).is_err() {
            continue;
        }
        let from = store.read_log(id).map_err(Error::from).and_then(|log| unfinished_import(&log));
        unfinished.extend(from.ok().flatten().map(|from| (id, from)));
    }
    Ok(unfinished)
}
