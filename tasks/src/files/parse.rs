//! Parses the files of a tree into a state.

use std::borrow::Cow;

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
    ClaudeContextState, ConversationHistory, ExecutionLogState, FileDamage, FileSystemState,
    RecordedConversation, Result, StateUpdate, TaskTreeState, UpdateOperation,
};

impl SessionTree {
    /// Parses a file that is required if the tree has its part.
    pub(super) fn parse<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let bytes = self.read(path)?.ok_or_else(|| self.damage_error(path, FileDamage::Missing))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| self.damage_error(path, FileDamage::Unreadable(error.to_string())))
    }

    /// Parses numbered files in their order.
    fn parse_list<T: DeserializeOwned>(&self, stem: &str) -> Result<Vec<T>> {
        let directory = stem.split('/').next().unwrap_or_default();
        let numbers = self.paths_in(directory).filter_map(|path| layout::number_of(path, stem));
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        for (expected, number) in (1..).zip(&numbers) {
            if expected != *number {
                return Err(self.damage_error(&layout::numbered_path(stem, expected), FileDamage::Missing));
            }
        }
        numbers.into_iter().map(|number| self.parse(&layout::numbered_path(stem, number))).collect()
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

    pub(super) fn claude_context(&self) -> Result<ClaudeContextState> {
        let config: ClaudeConfigFile<'static> = self.parse(layout::CLAUDE_CONFIG)?;
        let current: CurrentFile<'static> = self.parse(layout::CURRENT)?;
        let mut history = ConversationHistory::default();
        for conversation in current.conversations {
            let mut messages: Vec<ConversationMessage> = Vec::new();
            for number in conversation.chunks {
                let path = layout::numbered_path(layout::MESSAGES, number);
                let chunk: MessagesFile = self.parse(&path)?;
                if chunk.evaluation_id != conversation.evaluation_id {
                    let reason = format!("it belongs to conversation {}", chunk.evaluation_id);
                    return Err(self.damage_error(&path, FileDamage::Unreadable(reason)));
                }
                messages.extend(chunk.messages);
            }
            messages.extend(conversation.messages.into_owned());
            history.conversations.push(RecordedConversation {
                evaluation_id: conversation.evaluation_id.into_owned(),
                prompt: conversation.prompt.into_owned(),
                messages,
                turns: conversation.turns,
                is_complete: conversation.is_complete,
            });
        }
        Ok(ClaudeContextState {
            session_id: config.session_id.into_owned(),
            conversation_history: history,
            context_windows: self.parse_list(layout::WINDOWS)?,
            rate_limit_state: self.parse(layout::LIMITS)?,
            model_configuration: config.model_configuration.into_owned(),
            usage_tracking: self.parse(layout::USAGE)?,
        })
    }

    /// Reads changes as they are stored.
    pub(super) fn stored_changes(&self) -> Result<Vec<ChangeItem<'static>>> {
        let files: Vec<ChangesFile> = self.parse_list(layout::CHANGES)?;
        Ok(files.into_iter().flat_map(|file| file.changes).collect())
    }

    /// Reads the updates, and inserts the messages that they omit from `messages`.
    pub(super) fn updates(&self, messages: &MessageIndex<'_>) -> Result<Vec<StateUpdate>> {
        let mut updates = Vec::new();
        for change in self.stored_changes()? {
            let Some(mut update) = change.update.map(Cow::into_owned) else { continue };
            if let UpdateOperation::ConversationExtended { evaluation_id, messages: left_out } =
                &mut update.operation
            {
                for id in change.message_ids {
                    let message = messages.get(evaluation_id, id).ok_or_else(|| {
                        let reason =
                            format!("the message {id} of update {} is missing", update.sequence_number);
                        self.damage_error(layout::CURRENT, FileDamage::Unreadable(reason))
                    })?;
                    left_out.push(message.clone());
                }
            }
            updates.push(update);
        }
        Ok(updates)
    }

    /// Reads the part of files. Modifications come from updates and from items without one.
    pub(super) fn file_system(&self) -> Result<FileSystemState> {
        let workspaces: WorkspacesFile<'static> = self.parse(layout::WORKSPACES)?;
        let changes = self.stored_changes()?;
        let modifications = changes.iter().filter_map(ChangeItem::file_modification).cloned();
        let mut state = FileSystemState {
            workspace_snapshot: workspaces.workspaces.into_owned(),
            file_modifications: modifications.collect(),
            not_compared: workspaces.not_compared.into_owned(),
            dependency_resolution: workspaces.dependency_resolution.into_owned(),
            git_state: self.parse(layout::GIT)?,
            ..FileSystemState::default()
        };
        for path in [layout::COMPILATIONS, layout::TEST_RUNS] {
            let artifacts: ArtifactsFile<'static> = self.parse(path)?;
            let artifacts = artifacts.results.into_iter();
            state.build_artifacts.extend(artifacts.map(|(name, one)| (name.into_owned(), one.into_owned())));
        }
        Ok(state)
    }

    pub(super) fn execution_logs(&self) -> Result<ExecutionLogState> {
        let mut state = ExecutionLogState::default();
        for task in self.paths_in("logs").filter_map(layout::task_of) {
            let log: LogFile<'static> = self.parse(&layout::task_log(&task))?;
            state.tasks.insert(task, log.entries.into_owned());
        }
        let log: LogFile<'static> = self.parse(layout::SYSTEM_EVENTS)?;
        state.system_events = log.entries.into_owned();
        let mut placed = Vec::new();
        for stem in [layout::REQUESTS, layout::RESPONSES] {
            let files: Vec<InteractionsFile> = self.parse_list(stem)?;
            placed.extend(files.into_iter().flat_map(|file| file.interactions));
        }
        placed.sort_by_key(|one| one.place);
        state.interactions = placed.into_iter().map(|one| one.interaction.into_owned()).collect();
        let files: Vec<ErrorsFile> = self.parse_list(layout::ERRORS)?;
        state.errors = files.into_iter().flat_map(|file| file.errors).collect();
        state.recovery_actions = self.parse(layout::RECOVERY_ACTIONS)?;
        Ok(state)
    }
}
