//! Parses the files of a tree into a state.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog::conversation::ConversationMessage;
use serde::de::DeserializeOwned;

use super::contents::{
    ArtifactsFile, ChangeItem, ChangesFile, ClaudeConfigFile, CurrentFile, ErrorsFile, InteractionsFile,
    LogFile, MessagesFile, SessionFile, TaskTreeFile, WorkspacesFile,
};
use super::layout;
use super::render::MessageIndex;
use super::tree::SessionTree;
use crate::tasks::tree::children;
use crate::{
    ClaudeContextState, ConversationHistory, Error, ExecutionLogState, FileDamage, FileSystemState,
    RecordedConversation, Result, StateUpdate, TaskTreeState, UpdateOperation,
};

impl SessionTree {
    /// Parses a file that is required if the tree has its part.
    pub(super) fn parse<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let bytes = self.read(path)?.ok_or_else(|| self.damage_error(path, FileDamage::Missing))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| self.damage_error(path, FileDamage::Unreadable(error.to_string())))
    }

    /// Returns whether the tree has files in a directory of its root.
    pub(super) fn has(&self, directory: &str) -> bool {
        self.paths_in(directory).next().is_some()
    }

    pub(super) fn session_file(&self) -> Result<SessionFile> {
        match self.has(layout::META) {
            true => self.parse(layout::SESSION),
            false => Ok(SessionFile::default()),
        }
    }

    pub(super) fn task_tree(&self) -> Result<TaskTreeState> {
        let tree: TaskTreeFile<'static> = self.parse(layout::TASK_TREE)?;
        let children = tree.children.map_or_else(|| children(&tree.tasks), Cow::into_owned);
        Ok(TaskTreeState {
            children,
            tasks: tree.tasks.into_owned(),
            root_tasks: tree.root_tasks.into_owned(),
            active_task: tree.active_task.into_owned(),
            task_counter: tree.task_counter,
            dependency_graph: self.parse(layout::DEPENDENCIES)?,
            scheduling_state: self.parse(layout::SCHEDULING)?,
        })
    }

    /// Returns a reader for which damage is an error.
    pub(super) fn parts(&self) -> PartReader<'_> {
        PartReader { tree: self, damaged: None }
    }
}

/// Reads the parts of a state from the files of a tree.
pub(super) struct PartReader<'a> {
    pub(super) tree: &'a SessionTree,
    /// Collects the damage of the files that are skipped. `None` if damage is an error.
    pub(super) damaged: Option<BTreeMap<String, FileDamage>>,
}

impl PartReader<'_> {
    fn is_strict(&self) -> bool {
        self.damaged.is_none()
    }

    /// Reads a file; returns `None` if it is skipped.
    pub(super) fn take<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>> {
        if self.damaged.as_ref().is_some_and(|damaged| damaged.contains_key(path)) {
            return Ok(None);
        }
        match (self.tree.parse(path), &mut self.damaged) {
            (Err(Error::Damaged { files, .. }), Some(damaged)) => {
                damaged.extend(files.into_iter().map(|file| (file.path, file.damage)));
                Ok(None)
            }
            (read, _) => read.map(Some),
        }
    }

    /// Reads a file, or returns the default if it is skipped.
    fn or_default<T: DeserializeOwned + Default>(&mut self, path: &str) -> Result<T> {
        Ok(self.take(path)?.unwrap_or_default())
    }

    /// Lists the numbers of the files of a kind in the manifest, in ascending order.
    fn numbers(&self, stem: &str) -> Result<Vec<u64>> {
        let directory = stem.split('/').next().unwrap_or_default();
        let numbers = self.tree.paths_in(directory).filter_map(|path| layout::number_of(path, stem));
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        match (1..).zip(&numbers).find(|(expected, number)| expected != *number) {
            Some((missing, _)) if self.is_strict() => {
                Err(self.tree.damage_error(&layout::numbered_path(stem, missing), FileDamage::Missing))
            }
            _ => Ok(numbers),
        }
    }

    /// Reads all intact files of a kind.
    fn each<T: DeserializeOwned>(&mut self, stem: &str) -> Result<Vec<T>> {
        let mut read = Vec::new();
        for number in self.numbers(stem)? {
            read.extend(self.take(&layout::numbered_path(stem, number))?);
        }
        Ok(read)
    }

    /// Reads the files of a kind before the first damaged one.
    fn in_front<T: DeserializeOwned>(&mut self, stem: &str) -> Result<Vec<T>> {
        let mut read = Vec::new();
        for (expected, number) in (1..).zip(self.numbers(stem)?) {
            match self.take(&layout::numbered_path(stem, number))? {
                Some(file) if number == expected => read.push(file),
                _ => break,
            }
        }
        Ok(read)
    }

    pub(super) fn claude_context(&mut self) -> Result<ClaudeContextState> {
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
                let path = layout::numbered_path(layout::MESSAGES, number);
                match self.take::<MessagesFile>(&path)? {
                    Some(chunk) if self.is_strict() && chunk.evaluation_id != conversation.evaluation_id => {
                        let reason = format!("it belongs to conversation {}", chunk.evaluation_id);
                        return Err(self.tree.damage_error(&path, FileDamage::Unreadable(reason)));
                    }
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

    /// Reads changes as they are stored.
    pub(super) fn changes(&mut self) -> Result<Vec<ChangeItem<'static>>> {
        let files: Vec<ChangesFile> = self.in_front(layout::CHANGES)?;
        Ok(files.into_iter().flat_map(|file| file.changes).collect())
    }

    /// Reads the updates, and inserts the messages that they omit from `messages`.
    pub(super) fn updates(&mut self, messages: &MessageIndex<'_>) -> Result<Vec<StateUpdate>> {
        let mut updates = Vec::new();
        for change in self.changes()? {
            let Some(mut update) = change.update.map(Cow::into_owned) else { continue };
            if let UpdateOperation::ConversationExtended { evaluation_id, messages: left_out } =
                &mut update.operation
            {
                for id in change.message_ids {
                    let message = messages.get(evaluation_id, id).ok_or_else(|| {
                        let reason =
                            format!("the message {id} of update {} is missing", update.sequence_number);
                        self.tree.damage_error(layout::CURRENT, FileDamage::Unreadable(reason))
                    })?;
                    left_out.push(message.clone());
                }
            }
            updates.push(update);
        }
        Ok(updates)
    }

    /// Reads the part of files, and the number of updates among the changes. Modifications come
    /// from updates and from items without one.
    pub(super) fn file_system(&mut self) -> Result<(FileSystemState, u64)> {
        let mut state = FileSystemState::default();
        let workspaces: Option<WorkspacesFile<'static>> = self.take(layout::WORKSPACES)?;
        if let Some(workspaces) = workspaces {
            state.workspace_snapshot = workspaces.workspaces.into_owned();
            state.not_compared = workspaces.not_compared.into_owned();
            state.dependency_resolution = workspaces.dependency_resolution.into_owned();
        }
        let changes = self.changes()?;
        state.file_modifications =
            changes.iter().filter_map(ChangeItem::file_modification).cloned().collect();
        for path in [layout::COMPILATIONS, layout::TEST_RUNS] {
            let artifacts: Option<ArtifactsFile<'static>> = self.take(path)?;
            let artifacts = artifacts.into_iter().flat_map(|file| file.results);
            state.build_artifacts.extend(artifacts.map(|(name, one)| (name.into_owned(), one.into_owned())));
        }
        state.git_state = self.or_default(layout::GIT)?;
        Ok((state, changes.iter().filter(|change| change.update.is_some()).count() as u64))
    }

    /// Reads logs: every intact file, since entries are independent.
    pub(super) fn execution_logs(&mut self) -> Result<ExecutionLogState> {
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
