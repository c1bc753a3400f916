//! A session's state as a tree of JSON files, which anybody can read, and from which the state can be read back.
//!
//! The log is the only truth; a tree is an export of one position. It lies in `.aca/sessions/SESSION/` of the workspace's root
//! or of any other directory, so that sessions do not meet:
//!
//! | file | holds |
//! |---|---|
//! | `meta/session.json` | identity, [configuration](super::SessionConfiguration), [usage](super::ResourceUsageState) |
//! | `meta/checkpoint_manifest.json` | [`TreeManifest`]: session, position, length and BLAKE3 of each other file |
//! | `meta/recovery_info.json` | for people: what to do with the directory |
//! | `state/{task_tree,scheduling_state,dependency_graph}.json` | [tasks](super::TaskTreeState) |
//! | `claude/session_config.json` | the provider's session, and the model |
//! | `claude/conversation/messages_NNN.json`, `current.json` | full chunks of messages; all conversations, and the messages after their last full chunk |
//! | `claude/context_windows/window_NNN.json` | what the provider would be sent of each conversation |
//! | `claude/rate_limit/{usage_history,current_limits}.json` | tokens and limits |
//! | `filesystem/workspace_snapshot.json` | captures of workspaces, and dependencies |
//! | `filesystem/modifications/changes_NNN.json` | [updates](StateUpdate) in their order, files' modifications among them |
//! | `filesystem/build_artifacts/{compilation,test}_results.json` | what was built and tested |
//! | `filesystem/git_state.json` | the user's repository |
//! | `logs/execution/task_TASK.json`, `system_events.json` | what happened to each task, and to none |
//! | `logs/claude_interactions/{requests,responses}_NNN.json` | requests to providers and their replies, with their [contents](#contents-of-requests-and-replies) |
//! | `logs/errors/error_NNN.json`, `recovery_actions.json` | what went wrong, with the whole text that the log has of it, such as a stack trace that a tool or a host wrote; and what was done about it |
//! | `checkpoints/checkpoint_NNN/{state_snapshot,manifest}.json` | [checkpoints](#checkpoints), as whoever exports gives them |
//!
//! | module | holds |
//! |---|---|
//! | `layout` | names of files, and which part each belongs to |
//! | `contents` | what the files hold |
//! | `render`, `parse` | from state to files and back |
//! | `partial` | [`PartialTree`]: what a damaged tree still vouches for |
//! | `manifest` | the manifest |
//! | `directory` | directories, beneath a handle |
//! | `tree` | reading |
//! | `tree_writer` | writing |
//! | `session` | [`export_session`], [`import_session`]: from a log, and to a log |
//! | `exporter` | [`TreeExporter`]: one session again and again |
//! | `atomic` | [`AtomicPersistence`]: parts one by one |
//! | `lazy` | [`LazyStateManager`]: parts once they are asked for |
//!
//! # Invariants
//!
//! 1. A tree is what its manifest says: a file that differs, is missing, or is not named makes the tree damaged, and is named.
//!    The manifest has a digest of itself.
//! 2. Whenever a writer is killed, or the power fails, a reader finds the tree before or the tree after.
//! 3. Who writes holds the session's directory locked (`flock`) for itself, who reads shares the lock. A lock ends with its
//!    process. Trees of two sessions share nothing.
//! 4. A file that holds what it is to hold, by the manifest and on disk, is not written.
//! 5. No path in a manifest leads out of the tree, and no link is followed beneath the directory that the caller names. What is
//!    no regular file is not read.
//! 6. Nothing is allocated because a file says so: lengths are compared with those on disk, and [`TreeLimits`] bound what
//!    decompression yields.
//! 7. Equal contents have equal files, byte for byte.
//!
//! # How a tree is written, and what a kill leaves
//!
//! | step | a kill from here on leaves | the next reader takes | the next writer |
//! |---|---|---|---|
//! | 1. files that change are written as `NAME.new` and synced, and their directories | files named `.new` | the old tree | removes them |
//! | 2. the new manifest is written as `checkpoint_manifest.json.new`, synced, renamed to `checkpoint_manifest.json.next`, and `meta/` synced | the manifest `.next` | the new tree: each file as `NAME.new`, or as `NAME` where there is none | goes on with step 3 |
//! | 3. each `NAME.new` is renamed to `NAME`, files that no longer belong are removed, directories synced | some names | the new tree | goes on |
//! | 4. `checkpoint_manifest.json.next` is renamed to `checkpoint_manifest.json`, and `meta/` synced | the new tree | the new tree | - |
//!
//! A reader that does not know `.next` finds, from step 3 until step 4, a tree that its manifest does not accept.
//! Over 32 changed files are synced by one sync of the file system.
//!
//! # What an import as a session brings back
//!
//! [`export_session`] adds what the engine [exports](foldlog::Export) of the session as the snapshot of a last checkpoint.
//! [`import_session`] makes a session of it, host's own slices included, so that its conversations can be gone on with; and
//! records what else the state holds as one [`StateImported`](super::StateImported), on which the new session's state goes
//! on. What cannot be equal: the session's id; parts of a conversation that were shortened, which are whole again; and what
//! was said after the last turn. [`ImportedSession::differing`] names each part of the state that differs.
//!
//! # Checkpoints
//!
//! [`export_session`] writes a directory for each checkpoint that is kept, in the order of their times, and one more for what the
//! engine exports. `manifest.json` is the [`Checkpoint`](super::Checkpoint), with its id, its counts and its validation hash;
//! `state_snapshot.json` is what the engine exports at its position, read from the log one checkpoint after the other and held nowhere. A
//! tree costs the length of the log, and the size of the state, for each checkpoint that is kept, which
//! [`RetentionPolicy`](super::RetentionPolicy) bounds; [`TreeExporter`] reads none again that it has written. Where the log does not have
//! the state, because the checkpoint is one of another log, the file only names log and position. A log from which a compaction has
//! dropped records has no tree any more: the updates are read from all of them.
//! The manifest lists the [history](TreeManifest::history): all checkpoints, those that were removed since among them. For the new
//! session of an import they are history: they name positions of another log, cannot be restored, and are exported again without their
//! states, in front of the session's own.
//!
//! # Contents of requests and replies
//!
//! A reply has the message that it brought. A request has the messages that were sent with it for the first time, and the number of those
//! of its conversation before them, which were sent once more: all of them each time would cost the square of the conversation. Messages
//! that a rollback has abandoned, or that were imported without the ids of their replies, are not there. The contents are for people: an
//! import takes messages from the conversation.
//!
//! # What a damaged tree yields
//!
//! [`PartialTree::read`] takes each file that is what the manifest says. Whatever else happened, a file that is not is never
//! taken, and what is lost with it is listed.
//!
//! | damaged | yields |
//! |---|---|
//! | the manifest | nothing: no file is vouched for. The files are JSON, which a person can read |
//! | what the engine exported, in the last checkpoint's directory | tasks, messages, configuration and results from the other files; slices of the host's own are lost |
//! | tasks, configuration, results, repository, recovery actions | all of it from what the engine exported, if that is sound; else that part is empty |
//! | a chunk of a conversation | all messages from what the engine exported, if that is sound; else the conversation up to the chunk |
//! | a chunk of changes | changes of files up to the chunk |
//! | a log | the other logs |
//! | schedule and graph of dependencies | all of it: they follow from the tasks |
//!
//! # What it does not do
//!
//! An export keeps no older trees. Each reading takes the lock, so that who reads often holds up writers often.

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

/// Holds the two files of a checkpoint: JSON texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFiles {
    manifest: Vec<u8>,
    state_snapshot: Vec<u8>,
}

impl CheckpointFiles {
    /// Makes the files of two values.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if a value has no JSON form.
    pub fn new(manifest: &impl Serialize, state_snapshot: &impl Serialize) -> Result<CheckpointFiles> {
        let json = |what: &str, written: serde_json::Result<String>| {
            written.map(String::into_bytes).map_err(|source| Error::Json { what: what.to_owned(), source })
        };
        Ok(CheckpointFiles {
            manifest: json("manifest of a checkpoint", foldlog::escape::to_json(manifest))?,
            state_snapshot: json("snapshot of a checkpoint", foldlog::escape::to_json(state_snapshot))?,
        })
    }

    /// Reads the manifest.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if it is no such value.
    pub fn manifest<T: DeserializeOwned>(&self) -> Result<T> {
        read("manifest of a checkpoint", &self.manifest)
    }

    /// Reads the snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if it is no such value.
    pub fn state_snapshot<T: DeserializeOwned>(&self) -> Result<T> {
        read("snapshot of a checkpoint", &self.state_snapshot)
    }
}

fn read<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|source| Error::Json { what: what.to_owned(), source })
}

/// Holds what a tree is made of.
#[derive(Clone, Copy, Debug)]
pub struct TreeContents<'a> {
    /// State of the session.
    pub state: &'a SessionState,
    /// Position that it is of.
    pub position: Option<SequenceNumber>,
    /// Updates that led to it.
    pub updates: &'a [StateUpdate],
    /// Checkpoints in their order.
    pub checkpoints: &'a [CheckpointFiles],
    /// Where the log has the state of each of these, in place of what the files say of it.
    states: &'a [Option<EngineSnapshot<'a>>],
    /// All checkpoints that were created.
    history: &'a [ListedCheckpoint],
    /// What the engine exports, as one more checkpoint.
    engine: Option<EngineSnapshot<'a>>,
}

impl<'a> TreeContents<'a> {
    /// Makes a tree of a state alone.
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

    /// Says which position the state is of, and adds the updates that led to it.
    #[must_use]
    pub fn at(self, position: impl Into<SequenceNumber>, updates: &'a [StateUpdate]) -> TreeContents<'a> {
        TreeContents { position: Some(position.into()), updates, ..self }
    }

    /// Adds checkpoints.
    #[must_use]
    pub fn with_checkpoints(self, checkpoints: &'a [CheckpointFiles]) -> TreeContents<'a> {
        TreeContents { checkpoints, ..self }
    }

    /// Adds what the engine exports of a log, behind the other checkpoints.
    fn with_engine(self, engine: EngineSnapshot<'a>) -> TreeContents<'a> {
        TreeContents { engine: Some(engine), ..self }
    }

    /// Adds what a log has of the checkpoints: the state of each, and their history.
    fn with_history(
        self,
        states: &'a [Option<EngineSnapshot<'a>>],
        history: &'a [ListedCheckpoint],
    ) -> TreeContents<'a> {
        TreeContents { states, history, ..self }
    }

    /// Returns the number of checkpoints.
    fn checkpoints_len(&self) -> u64 {
        self.checkpoints.len() as u64 + u64::from(self.engine.is_some())
    }
}

/// Writes a session's tree into `.aca/sessions/SESSION/` of the directory `to`, which exists. Over an older tree, only what differs
/// is written. Waits while somebody else writes or reads this tree.
///
/// # Errors
///
/// [`Error::OtherUpdates`] if the updates tell of other modifications than the last ones of the state, [`Error::OtherKind`] if a link or a file
/// stands where a directory is to be, [`Error::Io`], [`Error::Compress`]. Unless the new tree was complete by then, the old one
/// is what readers find.
pub fn export_tree(
    contents: &TreeContents<'_>,
    to: &Path,
    compression: &StateCompression,
) -> Result<ExportReport> {
    write_tree(contents, to, compression, None).map(|written| written.report)
}

/// Writes a tree, and returns what is known of its files by then.
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
        return Err(Error::OtherUpdates("they tell of other modifications of files"));
    }
    let mut writer = TreeWriter::open(to, state.session_id, *compression)?;
    if let Some(known) = known {
        writer = writer.trust_known_files(&known.files);
    }
    let after = writer.after();
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
    writer.commit_knowing()
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

/// Holds what was read from a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedTree {
    /// State of the session.
    pub state: SessionState,
    /// Position that it is of, where whoever exported said so.
    pub position: Option<SequenceNumber>,
    /// Updates that led to it.
    pub updates: Vec<StateUpdate>,
    /// Checkpoints in their order.
    pub checkpoints: Vec<CheckpointFiles>,
}

/// Reads a tree: `dir` is a session's directory, or a directory with an `.aca` that holds one session. Writes nothing.
///
/// # Errors
///
/// [`Error::Damaged`] with all files that are not what the manifest says, [`Error::ComponentNotFound`] if a tree that was
/// written part by part lacks one, else those of [`SessionTree::open`].
pub fn import_tree(dir: &Path, limits: TreeLimits) -> Result<ImportedTree> {
    let tree = SessionTree::open_whole(dir, limits)?;
    let state = tree.state()?;
    let updates = tree.updates(&MessageIndex::from_context(&state.claude_context))?;
    Ok(ImportedTree { position: tree.manifest().position, updates, checkpoints: tree.checkpoints()?, state })
}

impl SessionTree {
    /// Opens a tree of which no file is damaged.
    fn open_whole(dir: &Path, limits: TreeLimits) -> Result<SessionTree> {
        let tree = SessionTree::open(dir, limits)?;
        let files = tree.damage()?;
        if files.is_empty() { Ok(tree) } else { Err(Error::Damaged { dir: tree.dir().to_owned(), files }) }
    }

    /// Reads a file of a checkpoint.
    fn checkpoint_file(&self, number: u64, name: &str) -> Result<Vec<u8>> {
        let path = format!("{}/{name}", layout::checkpoint(number));
        self.read(&path)?.ok_or_else(|| self.damage_error(&path, FileDamage::Missing))
    }

    /// Reads the whole state.
    ///
    /// # Errors
    ///
    /// [`Error::ComponentNotFound`] if the tree lacks a part, [`Error::Damaged`] if a file is not what the manifest says.
    pub fn state(&self) -> Result<SessionState> {
        let identity: SessionIdentity = self.load(StateComponent::Session)?;
        let mut state = SessionState::empty(identity.session_id, identity.created_at);
        state.last_checkpoint = identity.last_checkpoint;
        state.configuration = self.load(StateComponent::Configuration)?;
        state.resource_usage = self.load(StateComponent::ResourceUsage)?;
        state.task_tree = self.read_component(StateComponent::TaskTree, SessionTree::task_tree)?;
        state.claude_context =
            self.read_component(StateComponent::ClaudeContext, SessionTree::claude_context)?;
        state.file_system = self.read_component(StateComponent::FileSystem, SessionTree::file_system)?;
        state.execution_logs =
            self.read_component(StateComponent::ExecutionLogs, SessionTree::execution_logs)?;
        Ok(state)
    }

    /// Reads the checkpoints.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if a file is missing or not what the manifest says.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let files = (1..=self.manifest().checkpoints).map(|number| {
            let manifest = self.checkpoint_file(number, "manifest.json")?;
            Ok(CheckpointFiles {
                manifest,
                state_snapshot: self.checkpoint_file(number, "state_snapshot.json")?,
            })
        });
        files.collect()
    }

    /// Reads a part of the state as any type of its JSON form: [`SessionIdentity`], [`SessionConfiguration`](crate::SessionConfiguration)
    /// (super::SessionConfiguration), [`TaskTreeState`](super::TaskTreeState) and so on, or a host's own.
    ///
    /// # Errors
    ///
    /// [`Error::ComponentNotFound`] if the tree has no such part, [`Error::Damaged`] if a file of it is not what the manifest
    /// says, [`Error::NotAComponent`] if the part has no such form.
    pub fn load<T: DeserializeOwned>(&self, component: StateComponent) -> Result<T> {
        let missing = || Error::ComponentNotFound(component);
        match component {
            StateComponent::Session => {
                convert_part(component, &self.session_file()?.session.ok_or_else(missing)?)
            }
            StateComponent::Configuration => {
                convert_part(component, &self.session_file()?.configuration.ok_or_else(missing)?)
            }
            StateComponent::ResourceUsage => {
                convert_part(component, &self.session_file()?.resource_usage.ok_or_else(missing)?)
            }
            StateComponent::TaskTree => {
                convert_part(component, &self.read_component(component, SessionTree::task_tree)?)
            }
            StateComponent::ClaudeContext => {
                convert_part(component, &self.read_component(component, SessionTree::claude_context)?)
            }
            StateComponent::FileSystem => {
                convert_part(component, &self.read_component(component, SessionTree::file_system)?)
            }
            StateComponent::ExecutionLogs => {
                convert_part(component, &self.read_component(component, SessionTree::execution_logs)?)
            }
        }
    }

    fn read_component<T>(
        &self,
        component: StateComponent,
        read: impl Fn(&SessionTree) -> Result<T>,
    ) -> Result<T> {
        match self.has(layout::directory_of(component)) {
            true => read(self),
            false => Err(Error::ComponentNotFound(component)),
        }
    }
}

/// Brings a part of the state to another type of the same JSON form.
fn convert_part<T: DeserializeOwned>(component: StateComponent, part: &impl Serialize) -> Result<T> {
    let value = serde_json::to_value(part).and_then(serde_json::from_value);
    value.map_err(|error| Error::NotAComponent { component, reason: error.to_string() })
}
