//! Reads the intact parts of a damaged tree, file by file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use foldlog::conversation::ConversationMessage;
use foldlog::{Export, SequenceNumber, Slice};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::contents::{
    ArtifactsFile, ChangeItem, ChangesFile, ClaudeConfigFile, CurrentFile, ErrorsFile, InteractionsFile,
    LogFile, MessagesFile, SessionFile, TaskTreeFile, WorkspacesFile,
};
use super::session::{EngineExport, engine_export};
use super::{SessionTree, TreeLimits, layout};
use crate::{
    Checkpoint, ClaudeContextState, ConversationHistory, DamagedFile, Error, ExecutionLogState, FileDamage,
    FileSystemState, RecordedConversation, Result, SessionState, StateComponent, TaskTreeState, Tasks,
};

/// Names a file of a tree that does not match the manifest, and the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostFile {
    /// The file, and its damage.
    pub file: DamagedFile,
    /// Part of the state to which it belongs. `None` for files of checkpoints, files for people,
    /// and files that do not belong to the tree.
    pub part: Option<StateComponent>,
    /// Data that is lost with it.
    pub lost: String,
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostFile { file, part, lost } = self;
        match part {
            Some(part) => write!(f, "{part}: {lost}: {file}"),
            None => write!(f, "{lost}: {file}"),
        }
    }
}

/// Contains the data in the files of a tree that match its manifest. A part whose files are damaged
/// is empty; conversations and changes of files end at their first damaged chunk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartialTree {
    /// Directory of the session.
    pub dir: PathBuf,
    /// The session's state, as far as it is intact.
    pub state: SessionState,
    /// Position of the tree.
    pub position: Option<SequenceNumber>,
    /// Number of updates in the tree by its manifest, and number of those that cannot be read.
    pub updates: (u64, u64),
    /// Checkpoints of the session.
    pub checkpoints: Vec<Checkpoint>,
    /// Files that do not match the manifest, and the loss of each.
    pub lost: Vec<LostFile>,
    /// The engine's export, if it is intact.
    pub(crate) export: Option<Export>,
    /// Whether the session's times are known.
    pub(crate) has_times: bool,
}

impl PartialTree {
    /// Reads the intact parts of a tree. `dir` is a session's directory, or a directory with an
    /// `.aca` that contains one session. An undamaged tree is read completely. Writes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if the manifest itself is damaged, so that no file can be verified; or
    /// the errors of [`SessionTree::open`].
    pub fn read(dir: &Path, limits: TreeLimits) -> Result<PartialTree> {
        let tree = SessionTree::open_sound(dir, limits)?;
        let damaged = tree.damage()?.into_iter().map(|file| (file.path, file.damage)).collect();
        PartialTreeReader { tree: &tree, damaged }.all()
    }
}

/// Reads a tree, and collects the damage of its files.
struct PartialTreeReader<'a> {
    tree: &'a SessionTree,
    damaged: BTreeMap<String, FileDamage>,
}

impl PartialTreeReader<'_> {
    fn all(mut self) -> Result<PartialTree> {
        let manifest = self.tree.manifest();
        let (checkpoints, export) = self.checkpoints()?;
        let file: SessionFile = self.take(layout::SESSION)?.unwrap_or_default();
        let has_times = file.session.is_some();
        let mut state = SessionState::empty(manifest.session_id, chrono::DateTime::UNIX_EPOCH);
        if let Some(identity) = file.session {
            (state.created_at, state.last_checkpoint) = (identity.created_at, identity.last_checkpoint);
        }
        state.configuration = file.configuration.unwrap_or_default();
        state.resource_usage = file.resource_usage.unwrap_or_default();
        state.task_tree = self.task_tree(export.as_ref())?;
        state.claude_context = self.claude_context()?;
        let unread = self.file_system(&mut state.file_system)?;
        state.execution_logs = self.execution_logs()?;
        let (has_export, last) = (export.is_some(), manifest.checkpoints);
        let lost = self.damaged.into_iter().map(|(path, damage)| LostFile {
            part: part_of(&path),
            lost: lost_with(&path, has_export, last),
            file: DamagedFile { path, damage },
        });
        Ok(PartialTree {
            dir: self.tree.dir().to_owned(),
            state,
            position: manifest.position,
            updates: (manifest.updates, unread),
            checkpoints,
            lost: lost.collect(),
            export,
            has_times,
        })
    }

    /// Reads a file; returns `None` if it does not match the manifest.
    fn take<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>> {
        let damage = match self.damaged.contains_key(path) {
            true => return Ok(None),
            false => self.tree.parse(path),
        };
        match damage {
            Ok(value) => Ok(Some(value)),
            Err(Error::Damaged { files, .. }) => {
                self.damaged.extend(files.into_iter().map(|file| (file.path, file.damage)));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a file, or returns the default if it is damaged.
    fn or_default<T: DeserializeOwned + Default>(&mut self, path: &str) -> Result<T> {
        Ok(self.take(path)?.unwrap_or_default())
    }

    /// Lists the numbers of the files of a kind in the manifest, in ascending order.
    fn numbers(&self, stem: &str) -> Vec<u64> {
        let directory = stem.split('/').next().unwrap_or_default();
        let numbers = self.tree.paths_in(directory).filter_map(|path| layout::number_of(path, stem));
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }

    /// Reads all intact files of a kind.
    fn each<T: DeserializeOwned>(&mut self, stem: &str) -> Result<Vec<T>> {
        let mut read = Vec::new();
        for number in self.numbers(stem) {
            read.extend(self.take(&layout::numbered_path(stem, number))?);
        }
        Ok(read)
    }

    /// Reads the files of a kind before the first damaged one.
    fn in_front<T: DeserializeOwned>(&mut self, stem: &str) -> Result<Vec<T>> {
        let mut read = Vec::new();
        for (expected, number) in (1..).zip(self.numbers(stem)) {
            match self.take(&layout::numbered_path(stem, number))? {
                Some(file) if number == expected => read.push(file),
                _ => break,
            }
        }
        Ok(read)
    }

    /// Lists the checkpoints before `last` of which the manifest has files, and the first of which
    /// it has none. So the number in the manifest cannot make this examine more checkpoints than
    /// the manifest has files.
    fn checkpoints_before(&self, last: u64) -> Vec<u64> {
        let of_files = self.tree.paths_in("checkpoints").filter_map(layout::checkpoint_of);
        let numbers = of_files.map(|(number, _)| number).filter(|number| (1..last).contains(number));
        let mut numbers: BTreeSet<u64> = numbers.collect();
        let missing = (1..last).find(|number| !numbers.contains(number));
        numbers.extend(missing);
        numbers.into_iter().collect()
    }

    /// Reads the checkpoints of the session, and the engine's export, which is in the last
    /// directory.
    fn checkpoints(&mut self) -> Result<(Vec<Checkpoint>, Option<Export>)> {
        let (mut had, last) = (Vec::new(), self.tree.manifest().checkpoints);
        for number in self.checkpoints_before(last) {
            had.extend(self.take(&format!("{}/manifest.json", layout::checkpoint(number)))?);
        }
        // If its manifest is damaged, the snapshot identifies itself.
        let manifest = format!("{}/manifest.json", layout::checkpoint(last));
        let engines = match last {
            0 => return Ok((had, None)),
            // Not as values, which take more memory than their text.
            _ => self.take::<Box<RawValue>>(&manifest)?,
        };
        if let Some(manifest) = engines {
            let engines = serde_json::from_str::<EngineExport>(manifest.get());
            if !engines.is_ok_and(|engines| engines.is_of(self.tree.manifest().position)) {
                return Ok((had, None));
            }
        }
        let path = format!("{}/state_snapshot.json", layout::checkpoint(last));
        if self.damaged.contains_key(&path) {
            return Ok((had, None));
        }
        let unusable = match self.tree.read(&path)?.map(|snapshot| engine_export(&snapshot)) {
            Some(Ok(export))
                if !export.open_operations.is_empty() || !export.suspended_operations.is_empty() =>
            {
                "it was taken while calls were open or waited for somebody".to_owned()
            }
            Some(Ok(export)) => return Ok((had, Some(export))),
            Some(Err(error)) => error.to_string(),
            None => return Ok((had, None)),
        };
        self.damaged.insert(path, FileDamage::Unreadable(unusable));
        Ok((had, None))
    }

    /// Reads the tasks, from the engine's export if their file is damaged. The rest is derived from
    /// them.
    fn task_tree(&mut self, export: Option<&Export>) -> Result<TaskTreeState> {
        let tree: Option<TaskTreeFile<'static>> = self.take(layout::TASK_TREE)?;
        Ok(match tree {
            Some(tree) => TaskTreeState::of_map(tree.tasks.into_owned()),
            None => TaskTreeState::from_tasks(export.map(items::<Tasks>).unwrap_or_default()),
        })
    }

    fn claude_context(&mut self) -> Result<ClaudeContextState> {
        let config: Option<ClaudeConfigFile<'static>> = self.take(layout::CLAUDE_CONFIG)?;
        let (session_id, model_configuration) = config
            .map(|config| (config.session_id.into_owned(), config.model_configuration.into_owned()))
            .unwrap_or_default();
        Ok(ClaudeContextState {
            session_id,
            conversation_history: ConversationHistory { conversations: self.conversations()? },
            context_windows: self.each(layout::WINDOWS)?,
            rate_limit_state: self.or_default(layout::LIMITS)?,
            model_configuration,
            usage_tracking: self.or_default(layout::USAGE)?,
        })
    }

    /// Reads each conversation up to its first damaged chunk.
    fn conversations(&mut self) -> Result<Vec<RecordedConversation>> {
        let Some(current) = self.take::<CurrentFile<'static>>(layout::CURRENT)? else {
            return self.conversations_in_chunks();
        };
        let mut conversations = Vec::new();
        for conversation in current.conversations {
            let (mut messages, mut is_whole) = (Vec::<ConversationMessage>::new(), true);
            for number in conversation.chunks {
                match self.take::<MessagesFile>(&layout::numbered_path(layout::MESSAGES, number))? {
                    Some(chunk) if is_whole && chunk.evaluation_id == conversation.evaluation_id => {
                        messages.extend(chunk.messages);
                    }
                    _ => is_whole = false,
                }
            }
            if is_whole {
                messages.extend(conversation.messages.into_owned());
            }
            conversations.push(RecordedConversation {
                evaluation_id: conversation.evaluation_id.into_owned(),
                prompt: conversation.prompt.into_owned(),
                messages,
                turns: conversation.turns,
                is_complete: is_whole && conversation.is_complete,
            });
        }
        Ok(conversations)
    }

    /// Reads conversations without the file that lists their chunks. The conversation of a damaged
    /// chunk is unknown, so all chunks after it are skipped.
    fn conversations_in_chunks(&mut self) -> Result<Vec<RecordedConversation>> {
        let mut conversations: Vec<RecordedConversation> = Vec::new();
        for chunk in self.in_front::<MessagesFile>(layout::MESSAGES)? {
            match conversations.last_mut().filter(|last| last.evaluation_id == chunk.evaluation_id) {
                Some(last) => last.messages.extend(chunk.messages),
                None => conversations.push(RecordedConversation {
                    evaluation_id: chunk.evaluation_id,
                    prompt: None,
                    messages: chunk.messages,
                    turns: 0,
                    is_complete: false,
                }),
            }
        }
        Ok(conversations)
    }

    /// Reads the part of files, and returns the number of updates that cannot be read.
    fn file_system(&mut self, state: &mut FileSystemState) -> Result<u64> {
        let workspaces: Option<WorkspacesFile<'static>> = self.take(layout::WORKSPACES)?;
        if let Some(workspaces) = workspaces {
            state.workspace_snapshot = workspaces.workspaces.into_owned();
            state.not_compared = workspaces.not_compared.into_owned();
            state.dependency_resolution = workspaces.dependency_resolution.into_owned();
        }
        let changes: Vec<ChangeItem<'static>> = self
            .in_front::<ChangesFile>(layout::CHANGES)?
            .into_iter()
            .flat_map(|file| file.changes)
            .collect();
        state.file_modifications =
            changes.iter().filter_map(ChangeItem::file_modification).cloned().collect();
        let updates = changes.iter().filter(|change| change.update.is_some()).count() as u64;
        for path in [layout::COMPILATIONS, layout::TEST_RUNS] {
            let artifacts: Option<ArtifactsFile<'static>> = self.take(path)?;
            let artifacts = artifacts.into_iter().flat_map(|file| file.results);
            state.build_artifacts.extend(artifacts.map(|(name, one)| (name.into_owned(), one.into_owned())));
        }
        state.git_state = self.or_default(layout::GIT)?;
        Ok(self.tree.manifest().updates.saturating_sub(updates))
    }

    /// Reads logs: every intact file, since entries are independent.
    fn execution_logs(&mut self) -> Result<ExecutionLogState> {
        let mut state = ExecutionLogState::default();
        let tasks: Vec<_> = self.tree.paths_in("logs").filter_map(layout::task_of).collect();
        for task in tasks {
            let log: Option<LogFile<'static>> = self.take(&layout::task_log(&task))?;
            state.tasks.extend(log.map(|log| (task, log.entries.into_owned())));
        }
        let log: Option<LogFile<'static>> = self.take(layout::SYSTEM_EVENTS)?;
        state.system_events = log.map(|log| log.entries.into_owned()).unwrap_or_default();
        let mut placed = Vec::new();
        for stem in [layout::REQUESTS, layout::RESPONSES] {
            placed
                .extend(self.each::<InteractionsFile>(stem)?.into_iter().flat_map(|file| file.interactions));
        }
        placed.sort_by_key(|one| one.place);
        state.interactions = placed.into_iter().map(|one| one.interaction.into_owned()).collect();
        let errors = self.each::<ErrorsFile>(layout::ERRORS)?;
        state.errors = errors.into_iter().flat_map(|file| file.errors).collect();
        state.recovery_actions = self.or_default(layout::RECOVERY_ACTIONS)?;
        Ok(state)
    }
}

/// Reads the items of an exported slice that have its type.
fn items<S: Slice>(export: &Export) -> Vec<S::Item> {
    let exported = export.slices.iter().filter(|slice| slice.slice_type == S::NAME);
    let values = exported.flat_map(|slice| &slice.items);
    values.filter_map(|item| serde_json::from_value(serde_json::to_value(item).ok()?).ok()).collect()
}

/// Returns the part of the state to which a file belongs.
fn part_of(path: &str) -> Option<StateComponent> {
    if path == layout::RECOVERY_INFO || !layout::is_file(path) {
        return None;
    }
    let directory = path.split('/').next()?;
    StateComponent::ALL.into_iter().find(|part| layout::directory_of(*part) == directory)
}

/// Describes the loss with a file, which depends on whether the engine's export is intact. The
/// export is in the directory of checkpoint `last`.
fn lost_with(path: &str, has_export: bool, last: u64) -> String {
    let is_of = |stem| layout::number_of(path, stem).is_some();
    let in_export = |what: &str| match has_export {
        true => format!("nothing, the snapshot of the last checkpoint holds {what}"),
        false => what.to_owned(),
    };
    let messages = |what: &str| match has_export {
        true => {
            "ids and times of messages; the snapshot of the last checkpoint holds the messages".to_owned()
        }
        false => what.to_owned(),
    };
    let words = match path {
        layout::SESSION if has_export => "times of the session, and what it had used",
        layout::SESSION => "times and configuration of the session, and what it had used",
        layout::RECOVERY_INFO => "nothing but words for people",
        layout::TASK_TREE => return in_export("the tasks"),
        layout::SCHEDULING | layout::DEPENDENCIES => "nothing, it follows from the tasks",
        layout::CLAUDE_CONFIG => "the provider's session, and which model was asked",
        layout::CURRENT => {
            return messages("prompts of conversations, and messages behind their full chunks");
        }
        layout::USAGE => "which tokens were used when",
        layout::LIMITS => "what the provider said of its limits",
        layout::WORKSPACES if has_export => "captures of workspaces",
        layout::WORKSPACES => "captures of workspaces, and resolved dependencies",
        layout::COMPILATIONS => return in_export("results of compilations"),
        layout::TEST_RUNS => return in_export("results of tests"),
        layout::GIT => return in_export("what the user's repository was at"),
        layout::SYSTEM_EVENTS => "what happened while no task was worked on",
        layout::RECOVERY_ACTIONS => return in_export("what was done after failures"),
        _ if is_of(layout::MESSAGES) => return messages("messages of a conversation from this chunk on"),
        _ if is_of(layout::WINDOWS) => "how many tokens a conversation's last request had",
        _ if is_of(layout::CHANGES) => "updates and changes of files from this chunk on",
        _ if is_of(layout::REQUESTS) || is_of(layout::RESPONSES) => "requests to providers, or their replies",
        _ if is_of(layout::ERRORS) => "errors",
        _ => match (layout::task_of(path), layout::checkpoint_of(path)) {
            (Some(task), _) => return format!("what happened to task {task}"),
            (None, Some((number, "manifest.json"))) if number == last && has_export => {
                "nothing, the snapshot beside it says what it is"
            }
            (None, Some((number, _))) if number == last => {
                "the snapshot of the session: turns of conversations, and slices of the host's own"
            }
            (None, Some((number, "manifest.json"))) => {
                return format!("what the session held at checkpoint {number} of the tree");
            }
            (None, Some((number, _))) => return format!("the snapshot of checkpoint {number} of the tree"),
            (None, None) => "nothing, the tree does not vouch for it",
        },
    };
    words.to_owned()
}
