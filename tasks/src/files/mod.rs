//! A session's state as a tree of JSON files, which any program can read, and from which the state
//! can be imported.
//!
//! The log is the only source of truth; a tree is an export of one position. It is in
//! `.aca/sessions/SESSION/` of the workspace's root or of any other directory, so that sessions do
//! not share files:
//!
//! | file | contains |
//! |---|---|
//! | `meta/session.json` | identity, [configuration](super::SessionConfiguration), [usage](super::ResourceUsageState) |
//! | `meta/checkpoint_manifest.json` | [`TreeManifest`]: session, position, length and BLAKE3 of each other file |
//! | `meta/recovery_info.json` | for people: instructions for the directory |
//! | `state/{task_tree,scheduling_state,dependency_graph}.json` | [tasks](super::TaskTreeState) |
//! | `claude/session_config.json` | the provider's session, and the model |
//! | `claude/conversation/messages_NNN.json`, `current.json` | full chunks of messages; all conversations, and the messages after their last full chunk |
//! | `claude/context_windows/window_NNN.json` | for each conversation, the messages that the provider would be sent |
//! | `claude/rate_limit/{usage_history,current_limits}.json` | tokens and limits |
//! | `filesystem/workspace_snapshot.json` | captures of workspaces, and dependencies |
//! | `filesystem/modifications/changes_NNN.json` | [updates](StateUpdate) in their order, including modifications of files |
//! | `filesystem/build_artifacts/{compilation,test}_results.json` | results of builds and tests |
//! | `filesystem/git_state.json` | the user's repository |
//! | `logs/execution/task_TASK.json`, `system_events.json` | the history of each task, and events without a task |
//! | `logs/claude_interactions/{requests,responses}_NNN.json` | requests to providers and their replies, with their [contents](#contents-of-requests-and-replies) |
//! | `logs/errors/error_NNN.json`, `recovery_actions.json` | failures with the full text of the log, such as a stack trace from a tool or a host; and the actions after them |
//! | `checkpoints/checkpoint_NNN/{state_snapshot,manifest}.json` | [checkpoints](#checkpoints), as the exporting program provides them |
//!
//! | module | contains |
//! |---|---|
//! | `layout` | names of files, and the part to which each belongs |
//! | `contents` | types of the files' contents |
//! | `render`, `parse` | from state to files and back |
//! | `partial` | [`PartialTree`]: the intact parts of a damaged tree |
//! | `manifest` | the manifest |
//! | `directory` | directories, beneath a handle |
//! | `tree` | reading |
//! | `tree_writer` | writing |
//! | `session` | [`export_session`], [`import_session`]: from a log, and to a log |
//! | `exporter` | [`TreeExporter`]: one session repeatedly |
//! | `atomic` | [`AtomicPersistence`]: parts one by one |
//! | `lazy` | [`LazyStateManager`]: parts on demand |
//!
//! # Invariants
//!
//! 1. The manifest defines the tree. A file that differs, is missing, or is not listed makes the
//!    tree damaged, and is reported by name. The manifest has a digest of itself.
//! 2. Whenever a writer is killed, or the power fails, a reader finds the tree before or the tree
//!    after.
//! 3. A writer holds an exclusive lock (`flock`) on the session's directory; readers share it. A
//!    lock ends with its process. Trees of two sessions are independent.
//! 4. A file that already has its content, by the manifest and on disk, is not written.
//! 5. No path in a manifest leads out of the tree, and no link is followed beneath the directory
//!    that the caller names. Only regular files are read.
//! 6. No length in a file causes an allocation: lengths are compared with those on disk, and
//!    [`TreeLimits`] bound the output of decompression.
//! 7. Equal contents have equal files, byte for byte.
//!
//! # How a tree is written, and the result of a kill
//!
//! | step | a kill from here on leaves | the next reader reads | the next writer |
//! |---|---|---|---|
//! | 1. changed files are written as `NAME.new` and synced, and their directories | files named `.new` | the old tree | removes them |
//! | 2. the new manifest is written as `checkpoint_manifest.json.new`, synced, renamed to `checkpoint_manifest.json.next`, and `meta/` synced | the manifest `.next` | the new tree: each file as `NAME.new`, or as `NAME` if there is none | continues with step 3 |
//! | 3. each `NAME.new` is renamed to `NAME`, files that no longer belong are removed, directories synced | some names | the new tree | continues |
//! | 4. `checkpoint_manifest.json.next` is renamed to `checkpoint_manifest.json`, and `meta/` synced | the new tree | the new tree | - |
//!
//! From step 3 until step 4, a reader that does not know `.next` finds a tree that does not match
//! its manifest. More than 32 changed files are synced by one sync of the file system.
//!
//! # Importing a tree as a session
//!
//! [`export_session`] adds the engine's [export](foldlog::Export) of the session as the snapshot of
//! a last checkpoint. [`import_session`] creates a session from it, including the host's own
//! slices, so that its conversations can continue. The rest of the state is recorded as one
//! [`StateImported`](super::StateImported), on which the new session's state builds. Three things
//! differ: the session's id; shortened parts of a conversation, which have their full length again;
//! and messages after the last turn. [`ImportedSession::differing`] names each part of the state
//! that differs.
//!
//! # Checkpoints
//!
//! [`export_session`] writes a directory for each existing checkpoint, in the order of their times,
//! and one more for the engine's export. `manifest.json` is the [`Checkpoint`](super::Checkpoint),
//! with its id, its counts and its validation hash. `state_snapshot.json` is the engine's export at
//! its position; it is streamed from the log, one checkpoint after the other.
//!
//! For each checkpoint, a tree costs reading the log once, and space for the state.
//! [`RetentionPolicy`](super::RetentionPolicy) bounds their number; [`TreeExporter`] does not read
//! those again that it has written. If the log does not have the state, because the checkpoint
//! belongs to another log, the file only names log and position. A log from which a compaction has
//! dropped records can no longer be exported as a tree, since the updates are read from all
//! records.
//!
//! The manifest lists the [history](TreeManifest::history): all checkpoints, including those that
//! were removed since. For the new session of an import they are history: they name positions of
//! another log, cannot be restored, and are exported again without their states, before the
//! session's own.
//!
//! # Contents of requests and replies
//!
//! A reply has its message. A request has the messages that were sent for the first time with it,
//! and the number of the conversation's earlier messages, which were sent again: repeating them
//! each time would take quadratic space. Messages that a rollback has abandoned, or that were
//! imported without the ids of their replies, are missing. The contents are for people: an import
//! reads messages from the conversation.
//!
//! # Reading a damaged tree
//!
//! [`PartialTree::read`] reads each file that matches the manifest. A file that does not match is
//! never used, and the losses with it are listed.
//!
//! | damaged | result |
//! |---|---|
//! | the manifest | nothing: no file can be verified. The files are JSON, which a person can read |
//! | the engine's export, in the last checkpoint's directory | tasks, messages, configuration and results from the other files; the host's own slices are lost |
//! | tasks, configuration, results, repository, recovery actions | all of it from the engine's export, if that is intact; else that part is empty |
//! | a chunk of a conversation | all messages from the engine's export, if that is intact; else the conversation up to the chunk |
//! | a chunk of changes | changes of files up to the chunk |
//! | a log | the other logs |
//! | schedule and graph of dependencies | all of it: they are derived from the tasks |
//!
//! # Limits
//!
//! An export does not preserve older trees. Each read takes the lock, so frequent readers delay
//! writers.

mod atomic;
mod contents;
mod directory;
mod exporter;
mod layout;
mod lazy;
mod manifest;
mod parse;
mod partial;
mod render;
mod session;
mod tree;
mod tree_writer;

use std::path::Path;

use foldlog::SequenceNumber;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::contents::SessionFile;
use self::exporter::LastExport;
use self::render::MessageIndex;
use self::session::EngineSnapshot;
use self::tree_writer::{TreeWriter, WrittenTree};
use super::{
    Error, FileDamage, FileModification, Result, SessionState, StateComponent, StateCompression, StateUpdate,
    UpdateOperation,
};

pub use atomic::AtomicPersistence;
pub use contents::SessionIdentity;
pub use exporter::TreeExporter;
pub(crate) use layout::is_manifest;
pub use lazy::{AccessPattern, LazyStateManager};
pub use manifest::{ContentDigest, ListedCheckpoint, ManifestFile, TreeManifest};
pub use partial::{LostFile, PartialTree};
pub use session::{IMPORTED_FROM, ImportedSession, export_session, import_session, unfinished_imports};
pub(crate) use session::{give_up, unfinished_import};
pub use tree::{SessionTree, TreeLimits};
pub use tree_writer::ExportReport;

/// Contains the two files of a checkpoint: JSON texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFiles {
    manifest: Vec<u8>,
    state_snapshot: Vec<u8>,
}

impl CheckpointFiles {
    /// Creates the files from two values.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if a value has no JSON form.
    pub fn new(manifest: &impl Serialize, state_snapshot: &impl Serialize) -> Result<CheckpointFiles> {
        Ok(CheckpointFiles {
            manifest: json("manifest of a checkpoint", manifest)?,
            state_snapshot: json("snapshot of a checkpoint", state_snapshot)?,
        })
    }

    /// Parses the manifest.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if it does not have the form of `T`.
    pub fn manifest<T: DeserializeOwned>(&self) -> Result<T> {
        read("manifest of a checkpoint", &self.manifest)
    }

    /// Parses the snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if it does not have the form of `T`.
    pub fn state_snapshot<T: DeserializeOwned>(&self) -> Result<T> {
        read("snapshot of a checkpoint", &self.state_snapshot)
    }
}

fn json(what: &str, value: &impl Serialize) -> Result<Vec<u8>> {
    let json = foldlog::escape::to_json(value).map(String::into_bytes);
    json.map_err(|source| Error::Json { what: what.to_owned(), source })
}

fn read<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|source| Error::Json { what: what.to_owned(), source })
}

/// Contains the inputs of a tree.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct TreeContents<'a> {
    /// State of the session.
    pub state: &'a SessionState,
    /// Position of the state.
    pub position: Option<SequenceNumber>,
    /// Updates that led to it.
    pub updates: &'a [StateUpdate],
    /// Checkpoints in their order.
    pub checkpoints: &'a [CheckpointFiles],
    /// State of each checkpoint in the log, if the log has it; replaces the one in the files.
    states: &'a [Option<EngineSnapshot<'a>>],
    /// All checkpoints that were created.
    history: &'a [ListedCheckpoint],
    /// The engine's export, as one more checkpoint.
    engine: Option<EngineSnapshot<'a>>,
}

impl<'a> TreeContents<'a> {
    /// Describes a tree with only a state.
    pub fn new(state: &'a SessionState) -> TreeContents<'a> {
        TreeContents {
            state,
            position: None,
            updates: &[],
            checkpoints: &[],
            states: &[],
            history: &[],
            engine: None,
        }
    }

    /// Sets the position of the state, and adds the updates that led to it.
    pub fn at(self, position: impl Into<SequenceNumber>, updates: &'a [StateUpdate]) -> TreeContents<'a> {
        TreeContents { position: Some(position.into()), updates, ..self }
    }

    /// Adds checkpoints.
    pub fn with_checkpoints(self, checkpoints: &'a [CheckpointFiles]) -> TreeContents<'a> {
        TreeContents { checkpoints, ..self }
    }

    /// Adds the engine's export of a log, after the other checkpoints.
    fn with_engine(self, engine: EngineSnapshot<'a>) -> TreeContents<'a> {
        TreeContents { engine: Some(engine), ..self }
    }

    /// Adds the log's data about the checkpoints: the state of each, and their history.
    fn with_history(
        self,
        states: &'a [Option<EngineSnapshot<'a>>],
        history: &'a [ListedCheckpoint],
    ) -> TreeContents<'a> {
        TreeContents { states, history, ..self }
    }

    fn checkpoints_len(&self) -> u64 {
        self.checkpoints.len() as u64 + u64::from(self.engine.is_some())
    }
}

/// Writes a session's tree into `.aca/sessions/SESSION/` of the existing directory `to`. Over an
/// older tree, only differences are written. Blocks while another process or thread reads or writes
/// this tree, for at most a minute.
///
/// # Errors
///
/// [`Error::OtherUpdates`] if the modifications in the updates are not the last ones of the state,
/// [`Error::InUse`] if the tree is used by others for a minute, [`Error::OtherKind`] if there is a
/// link or a file in place of a directory, [`Error::Io`], [`Error::Compress`]. After an error,
/// readers find the old tree, unless the new one was already complete.
pub fn export_tree(
    contents: &TreeContents<'_>,
    to: &Path,
    compression: &StateCompression,
) -> Result<ExportReport> {
    write_tree(contents, to, compression, None).map(|written| written.report)
}

/// Writes a tree, and returns cacheable knowledge about its files.
fn write_tree(
    contents: &TreeContents<'_>,
    to: &Path,
    compression: &StateCompression,
    known: Option<&LastExport>,
) -> Result<WrittenTree> {
    let TreeContents { state, position, updates, .. } = *contents;
    let told = updates.iter().filter_map(|update| match &update.operation {
        UpdateOperation::FileModified { modification } => Some(modification),
        _ => None,
    });
    let told: Vec<&FileModification> = told.collect();
    let all = &state.file_system.file_modifications;
    let since = all.len().checked_sub(told.len()).and_then(|before| all.get(before..));
    if !since.is_some_and(|since| since.iter().eq(told)) {
        return Err(Error::OtherUpdates("they list other modifications of files"));
    }
    let files = known.map(|known| &known.files);
    let mut writer = TreeWriter::open(to, state.session_id, *compression, files)?;
    let after = &mut writer.after;
    after.position = position;
    after.updates = updates.len() as u64;
    after.checkpoints = contents.checkpoints_len();
    after.history = contents.history.to_vec();
    for (task, entries) in &state.execution_logs.tasks {
        let path = layout::task_log(task);
        let is_same = known.is_some_and(|known| known.logs.get(task) == Some(entries));
        if !is_same || !writer.keep_known(&path) {
            render::task_log(&path, entries, &mut |path, content| writer.put(path, content))?;
        }
    }
    let (tree, logs) = (&state.task_tree, &state.execution_logs);
    let mut is_kept = |directory: &str, is_same: &dyn Fn(&LastExport) -> bool| {
        known.is_some_and(|known| is_same(known) && writer.keep_directory(directory, &known.written))
    };
    let is_claude_kept = is_kept(layout::CLAUDE, &|known| known.claude == state.claude_context);
    let are_interactions_kept =
        is_claude_kept && is_kept(layout::INTERACTIONS, &|known| known.interactions == logs.interactions);
    let has_dependencies = known.is_some_and(|known| known.dependencies == tree.dependency_graph);
    let are_dependencies_kept = has_dependencies && writer.keep_known(layout::DEPENDENCIES);
    let mut sink = |path: &str, content: &[u8]| writer.put(path, content);
    let file = SessionFile {
        session: Some(SessionIdentity::from_state(state)),
        configuration: Some(state.configuration.clone()),
        resource_usage: Some(state.resource_usage),
    };
    render::session(&file, &mut sink)?;
    render::tasks(tree, &mut sink)?;
    if !are_dependencies_kept {
        render::dependencies(tree, &mut sink)?;
    }
    if !is_claude_kept {
        render::claude_context(&state.claude_context, &mut sink)?;
    }
    let messages = match updates {
        [] => MessageIndex::default(),
        _ => MessageIndex::from_context(&state.claude_context),
    };
    let changes = render::changes(&state.file_system, updates, &messages);
    render::file_system(&state.file_system, &changes, &mut sink)?;
    if !are_interactions_kept {
        let conversations = &state.claude_context.conversation_history.conversations;
        render::interactions(&logs.interactions, conversations, &mut sink)?;
    }
    render::other_logs(logs, &mut sink)?;
    put_checkpoints(contents, known, &mut writer)?;
    writer.commit()
}

fn put_checkpoints(
    contents: &TreeContents<'_>,
    known: Option<&LastExport>,
    writer: &mut TreeWriter<'_>,
) -> Result<()> {
    for (number, checkpoint) in (1..).zip(contents.checkpoints) {
        let directory = layout::checkpoint(number);
        let (snapshot, manifest) =
            (format!("{directory}/state_snapshot.json"), format!("{directory}/manifest.json"));
        let state = (number as usize).checked_sub(1).and_then(|place| contents.states.get(place)?.as_ref());
        let is_same = |known: &LastExport| {
            known.written.get(&manifest).is_some_and(|file| file.is_of(&checkpoint.manifest))
        };
        // A checkpoint names one position of one log, whose state never changes.
        let is_kept = state.is_some() && known.is_some_and(is_same) && writer.keep_known(&snapshot);
        if !is_kept {
            match state {
                Some(state) => writer.put_streamed(&snapshot, &|out| state.write(out))?,
                None => writer.put(&snapshot, &checkpoint.state_snapshot)?,
            }
        }
        writer.put(&manifest, &checkpoint.manifest)?;
    }
    let Some(engine) = &contents.engine else { return Ok(()) };
    let directory = layout::checkpoint(contents.checkpoints_len());
    writer.put_streamed(&format!("{directory}/state_snapshot.json"), &|out| engine.write(out))?;
    writer.put(&format!("{directory}/manifest.json"), &engine.manifest()?)
}

/// Contains the data that was read from a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedTree {
    /// State of the session.
    pub state: SessionState,
    /// Position of the state, if the exporting program recorded it.
    pub position: Option<SequenceNumber>,
    /// Updates that led to it.
    pub updates: Vec<StateUpdate>,
    /// Checkpoints in their order.
    pub checkpoints: Vec<CheckpointFiles>,
}

/// Reads a tree. `dir` is a session's directory, or a directory with an `.aca` that contains one
/// session. Writes nothing.
///
/// # Errors
///
/// [`Error::Damaged`] with all files that do not match the manifest, [`Error::ComponentNotFound`]
/// if a tree that was written part by part lacks one, or the errors of [`SessionTree::open`].
pub fn import_tree(dir: &Path, limits: TreeLimits) -> Result<ImportedTree> {
    let tree = SessionTree::open_whole(dir, limits)?;
    let state = tree.state()?;
    let updates = tree.parts().updates(&MessageIndex::from_context(&state.claude_context))?;
    Ok(ImportedTree { position: tree.manifest().position, updates, checkpoints: tree.checkpoints()?, state })
}

impl SessionTree {
    /// Opens a tree; damage of any file is an error.
    fn open_whole(dir: &Path, limits: TreeLimits) -> Result<SessionTree> {
        let tree = SessionTree::open(dir, limits)?;
        let files = tree.damage()?;
        if files.is_empty() { Ok(tree) } else { Err(Error::Damaged { dir: tree.dir().to_owned(), files }) }
    }

    fn checkpoint_file(&self, number: u64, name: &str) -> Result<Vec<u8>> {
        let path = format!("{}/{name}", layout::checkpoint(number));
        self.read(&path)?.ok_or_else(|| self.damage_error(&path, FileDamage::Missing))
    }

    /// Reads the whole state.
    ///
    /// # Errors
    ///
    /// [`Error::ComponentNotFound`] if the tree lacks a part, [`Error::Damaged`] if a file does not
    /// match the manifest.
    pub fn state(&self) -> Result<SessionState> {
        let identity: SessionIdentity = self.load(StateComponent::Session)?;
        let mut state = SessionState::empty(identity.session_id, identity.created_at);
        state.last_checkpoint = identity.last_checkpoint;
        state.configuration = self.load(StateComponent::Configuration)?;
        state.resource_usage = self.load(StateComponent::ResourceUsage)?;
        self.check_part(StateComponent::TaskTree)?;
        state.task_tree = self.task_tree()?;
        self.check_part(StateComponent::ClaudeContext)?;
        state.claude_context = self.parts().claude_context()?;
        self.check_part(StateComponent::FileSystem)?;
        state.file_system = self.parts().file_system()?.0;
        self.check_part(StateComponent::ExecutionLogs)?;
        state.execution_logs = self.parts().execution_logs()?;
        Ok(state)
    }

    /// Reads the checkpoints.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if a file is missing or does not match the manifest.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let files = (1..=self.manifest().checkpoints).map(|number| {
            let manifest = self.checkpoint_file(number, "manifest.json")?;
            let state_snapshot = self.checkpoint_file(number, "state_snapshot.json")?;
            Ok(CheckpointFiles { manifest, state_snapshot })
        });
        files.collect()
    }

    /// Reads a part of the state as any type of its JSON form: [`SessionIdentity`],
    /// [`SessionConfiguration`](crate::SessionConfiguration),
    /// [`TaskTreeState`](super::TaskTreeState) and so on, or a host's own.
    ///
    /// # Errors
    ///
    /// [`Error::ComponentNotFound`] if the tree has no such part, [`Error::Damaged`] if one of its
    /// files does not match the manifest, [`Error::NotAComponent`] if the part does not have that
    /// form.
    pub fn load<T: DeserializeOwned>(&self, component: StateComponent) -> Result<T> {
        self.check_part(component)?;
        match component {
            StateComponent::Session => convert_part(component, self.session_file()?.session),
            StateComponent::Configuration => convert_part(component, self.session_file()?.configuration),
            StateComponent::ResourceUsage => convert_part(component, self.session_file()?.resource_usage),
            StateComponent::TaskTree => convert_part(component, Some(self.task_tree()?)),
            StateComponent::ClaudeContext => convert_part(component, Some(self.parts().claude_context()?)),
            StateComponent::FileSystem => convert_part(component, Some(self.parts().file_system()?.0)),
            StateComponent::ExecutionLogs => convert_part(component, Some(self.parts().execution_logs()?)),
        }
    }

    fn check_part(&self, component: StateComponent) -> Result<()> {
        match self.has(layout::directory_of(component)) {
            true => Ok(()),
            false => Err(Error::ComponentNotFound(component)),
        }
    }
}

/// Reads a part as a `T`; an error if the tree lacks it.
fn convert_part<T: DeserializeOwned>(component: StateComponent, part: Option<impl Serialize>) -> Result<T> {
    let part = part.ok_or(Error::ComponentNotFound(component))?;
    let value = serde_json::to_value(part).and_then(serde_json::from_value);
    value.map_err(|error| Error::NotAComponent { component, reason: error.to_string() })
}
