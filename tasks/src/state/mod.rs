//! The whole state of a session at a position, in nine parts.
//!
//! The log is the only place where these parts are stored. Parts that a host reports are slices,
//! folded from its events. The others are read from the records of conversations, calls and
//! captures. So every reader gets the same parts at a position, and a rollback removes its records
//! from them.
//!
//! | part | source |
//! |---|---|
//! | `session_id`, `created_at` | the log's first record; for an imported session, [`StateImported`] |
//! | `last_checkpoint` | the latest [update](crate::StateUpdate) that counts |
//! | [`SessionConfiguration`] | [`SessionConfigured`] |
//! | [`TaskTreeState`] | the six events of tasks |
//! | [`ClaudeContextState`] | records of conversations and adapter states |
//! | [`FileSystemState`] | captures of workspaces; [`ArtifactBuilt`], [`DependenciesResolved`], [`GitObserved`] |
//! | [`ExecutionLogState`] | [`ExecutionLogged`], [`RecoveryAction`], changes of tasks, ends of calls, requests and replies |
//! | [`ResourceUsageState`] | answers, ends of calls, [`PromptExecuted`](foldlog_agent::events::PromptExecuted) |
//!
//! An imported session continues from the history in [`StateImported`], which comes before all that
//! follows.
//!
//! # Invariants
//!
//! 1. Equal logs have equal states, byte for byte in JSON: every map is ordered.
//! 2. Reading a state writes nothing and takes no lock.

mod claude_context;
mod configuration;
mod execution_logs;
mod file_system;
mod git;
mod import;
mod resource_usage;
pub(super) mod walk;

use chrono::{DateTime, Utc};
use foldlog::conversation::{Conversation, EntryContent};
use foldlog::inspect::LogReader;
use foldlog::{Result, SequenceNumber, SessionTypes, SessionTypesBuilder};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{StateUpdate, TaskTreeState, UpdateOperation};
use walk::{At, walk};

pub use claude_context::{
    ClaudeContextState, ContextWindow, ConversationHistory, ModelConfiguration, RateLimitState,
    RecordedConversation, RefusedRequest, UsageTracking, UsedTokens,
};
pub use configuration::{Configurations, SessionConfiguration, SessionConfigured};
pub use execution_logs::{
    ErrorEntry, ExecutionEvent, ExecutionLog, ExecutionLogState, ExecutionLogged, Interaction,
    InteractionKind, LogEntry, LogLevel, RecoveryAction, RecoveryActions,
};
pub use file_system::{
    ArtifactBuilt, ArtifactKind, Artifacts, BuildArtifact, DependenciesResolved, DependencyResolution,
    FileModification, FileSystemState, GitObserved, GitStates, NotCompared, Resolutions, ResolvedDependency,
    WorkspaceSnapshot,
};
pub use git::{GitOperation, GitState};
pub use import::{ImportedStates, StateImported};
pub use resource_usage::ResourceUsageState;
pub use walk::WorkspaceStores;

/// Contains the whole state of a session at a position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionState {
    /// Id of the session.
    pub session_id: Uuid,
    /// Time of its first record.
    pub created_at: DateTime<Utc>,
    /// Time of the latest update that counts; of the first record if there is none.
    pub last_checkpoint: DateTime<Utc>,
    /// The host's description.
    pub configuration: SessionConfiguration,
    /// Its tasks.
    pub task_tree: TaskTreeState,
    /// Its conversations.
    pub claude_context: ClaudeContextState,
    /// Its files.
    pub file_system: FileSystemState,
    /// Its history.
    pub execution_logs: ExecutionLogState,
    /// Its costs.
    pub resource_usage: ResourceUsageState,
}

/// Names the parts of a [`SessionState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateComponent {
    /// Id and times.
    Session,
    /// [`SessionConfiguration`].
    Configuration,
    /// [`TaskTreeState`].
    TaskTree,
    /// [`ClaudeContextState`].
    ClaudeContext,
    /// [`FileSystemState`].
    FileSystem,
    /// [`ExecutionLogState`].
    ExecutionLogs,
    /// [`ResourceUsageState`].
    ResourceUsage,
}

impl StateComponent {
    /// All parts.
    pub const ALL: [StateComponent; 7] = [
        StateComponent::Session,
        StateComponent::Configuration,
        StateComponent::TaskTree,
        StateComponent::ClaudeContext,
        StateComponent::FileSystem,
        StateComponent::ExecutionLogs,
        StateComponent::ResourceUsage,
    ];
}

display_json_names!(StateComponent);

/// Declares the slices and events of all parts except tasks.
pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    import::declare(execution_logs::declare(file_system::declare(configuration::declare(types))))
}

/// Reads the conversations of a log at a position, in the order of their first records.
/// Conversations without a record that counts are included.
fn conversations(log: &LogReader, position: SequenceNumber) -> Result<Vec<Conversation>> {
    let evaluations = log.evaluations_through(position);
    let read = |id: &foldlog::SmolStr| log.conversation_at(id, position).transpose();
    evaluations.iter().filter_map(read).collect()
}

impl SessionState {
    /// Returns the empty state of a session.
    pub fn empty(session_id: Uuid, created_at: DateTime<Utc>) -> SessionState {
        SessionState { session_id, created_at, last_checkpoint: created_at, ..SessionState::default() }
    }

    /// Reads the state of a log at a position.
    ///
    /// # Errors
    ///
    /// [`NoSuchPosition`](foldlog::Error::NoSuchPosition) if the log has no such record,
    /// [`Decode`](foldlog::Error::Decode) if an item or an event cannot be read, and the errors of
    /// reading a log.
    pub fn at(
        log: &LogReader,
        position: impl Into<SequenceNumber>,
        stores: &WorkspaceStores,
    ) -> Result<SessionState> {
        SessionStateBuilder::read(log, position.into(), stores, false)?.build(log)
    }

    /// Reads the state of a log at a position, and the updates that led to it, in one walk.
    pub(super) fn with_updates(
        log: &LogReader,
        position: SequenceNumber,
        stores: &WorkspaceStores,
    ) -> Result<(SessionState, Vec<StateUpdate>)> {
        let mut found = SessionStateBuilder::read(log, position, stores, true)?;
        let updates = found.updates.take().unwrap_or_default();
        Ok((found.build(log)?, updates))
    }
}

/// Collects the findings of a walk along the log.
#[derive(Default)]
pub(super) struct SessionStateBuilder {
    position: SequenceNumber,
    conversations: Vec<Conversation>,
    first: Option<DateTime<Utc>>,
    last_update: Option<DateTime<Utc>>,
    /// Updates that count, if requested.
    pub(super) updates: Option<Vec<StateUpdate>>,
    /// The parts that the walk finds. The others are empty until the end.
    pub(super) state: SessionState,
    /// Time between the records of the imported session, in microseconds.
    elapsed_before_us: u64,
    /// The import, and its record.
    imported: Option<(SequenceNumber, StateImported)>,
}

impl SessionStateBuilder {
    /// Walks along a log up to a position. Lists the updates if `lists_updates`.
    pub(super) fn read(
        log: &LogReader,
        position: SequenceNumber,
        stores: &WorkspaceStores,
        lists_updates: bool,
    ) -> Result<SessionStateBuilder> {
        let conversations = conversations(log, position)?;
        let updates = lists_updates.then(Vec::new);
        let mut found = SessionStateBuilder { position, updates, ..SessionStateBuilder::default() };
        walk(log, position, stores, &conversations, &mut found)?;
        Ok(SessionStateBuilder { conversations, ..found })
    }

    /// Adds the contents of slices and conversations.
    fn build(self, log: &LogReader) -> Result<SessionState> {
        let SessionStateBuilder { mut state, position, ref conversations, .. } = self;
        let types = super::declare(SessionTypes::builder()).build()?;
        let slices = log.state_reader_at(position)?;
        state.session_id = log.opening_record().session;
        state.created_at = self.first.unwrap_or_default();
        state.last_checkpoint = self.last_update.unwrap_or(state.created_at);
        let configured = slices.items::<Configurations>(&types)?;
        state.configuration = configured.last().map(|one| one.configuration.clone()).unwrap_or_default();
        state.task_tree = TaskTreeState::of_slices(&slices, &types)?;
        state.claude_context =
            ClaudeContextState::from_conversations(conversations, &log.adapter_states_at(position)?);
        for built in slices.items::<Artifacts>(&types)? {
            state.file_system.build_artifacts.insert(built.artifact.name.clone(), built.artifact.clone());
        }
        let resolved = slices.items::<Resolutions>(&types)?;
        let resolved = resolved.last().map(|one| one.resolution.clone());
        state.file_system.dependency_resolution = resolved.unwrap_or_default();
        state.file_system.git_state = slices.items::<GitStates>(&types)?.last().map(|one| one.git.clone());
        state.execution_logs.add_interactions(conversations);
        if let Some((end, before)) = &self.imported {
            state.created_at = before.created_at;
            state.claude_context.follow(&before.claude_context, *end);
            state.execution_logs.follow(&before.execution_logs, *end);
        }
        let actions = slices.items::<RecoveryActions>(&types)?;
        state.execution_logs.recovery_actions = actions.iter().map(|one| (**one).clone()).collect();
        state.resource_usage.add_requests(conversations);
        Ok(state)
    }

    fn count_record(&mut self, at: At<'_>) {
        let first = *self.first.get_or_insert(at.time);
        let usage = &mut self.state.resource_usage;
        usage.records += 1;
        usage.log_bytes += at.record.len();
        let elapsed = at.time.signed_duration_since(first).num_microseconds().unwrap_or_default();
        let elapsed = self.elapsed_before_us.saturating_add(u64::try_from(elapsed).unwrap_or_default());
        usage.elapsed_us = usage.elapsed_us.max(elapsed);
    }

    /// Adds an update that counts.
    fn update(&mut self, at: At<'_>, operation: UpdateOperation) {
        self.last_update = Some(at.time);
        if let UpdateOperation::FileModified { modification } = &operation {
            self.state.file_system.file_modifications.push(modification.clone());
        }
        if let Some(updates) = &mut self.updates {
            updates.push(StateUpdate {
                timestamp: at.time,
                component: operation.component(),
                operation,
                sequence_number: updates.len() as u64 + 1,
                position: at.sequence,
                checksum: blake3::Hash::from_bytes(at.record.digest()).to_hex().to_string(),
            });
        }
    }

    /// Continues from an import, whose records are before this one.
    fn continue_import(&mut self, at: At<'_>, what: StateImported) {
        self.first = Some(at.time);
        self.elapsed_before_us = what.resource_usage.elapsed_us;
        self.last_update = Some(what.last_checkpoint);
        let files = &mut self.state.file_system;
        files.workspace_snapshot.clone_from(&what.workspace_snapshot);
        files.file_modifications.clone_from(&what.file_modifications);
        files.not_compared.clone_from(&what.not_compared);
        self.state.execution_logs = ExecutionLogState::default();
        self.state.resource_usage = what.resource_usage;
        self.imported = Some((at.sequence, what));
    }
}

impl ExecutionLogState {
    /// Adds the requests of conversations, and their replies.
    fn add_interactions(&mut self, conversations: &[Conversation]) {
        for conversation in conversations {
            let evaluation_id = conversation.evaluation_id();
            for entry in conversation.entries().iter().chain(conversation.abandoned_entries()) {
                let (sequence, at, id) = (entry.sequence, entry.time, evaluation_id.to_owned());
                let interaction = match entry.content.clone() {
                    EntryContent::Request { model, parameters, .. } => {
                        Interaction { model, parameters, ..Interaction::default() }
                    }
                    EntryContent::Answer { message, request, stop, model, request_id, .. } => Interaction {
                        kind: InteractionKind::Answer,
                        request,
                        model,
                        request_id,
                        outcome: stop,
                        message_id: Some(message.message_id),
                        ..Interaction::default()
                    },
                    EntryContent::RequestFailed { request, cause, message, arrived, .. } => {
                        let (request, outcome) = (Some(request), Some(format!("{cause}: {message}")));
                        let cause = Some(cause);
                        self.errors.push(ErrorEntry {
                            sequence,
                            at,
                            cause,
                            message,
                            ..ErrorEntry::default()
                        });
                        let kind = InteractionKind::Failure;
                        Interaction { kind, request, outcome, arrived, ..Interaction::default() }
                    }
                    _ => continue,
                };
                self.interactions.push(Interaction { sequence, at, evaluation_id: id, ..interaction });
            }
        }
        self.interactions.sort_by_key(|one| one.sequence);
        self.errors.sort_by_key(|one| one.sequence);
    }
}

impl ResourceUsageState {
    fn add_requests(&mut self, conversations: &[Conversation]) {
        for conversation in conversations {
            self.tokens = self.tokens.plus(conversation.usage());
            for entry in conversation.entries().iter().chain(conversation.abandoned_entries()) {
                match entry.content {
                    EntryContent::Request { .. } => self.requests += 1,
                    EntryContent::RequestFailed { .. } => self.failed_requests += 1,
                    _ => {}
                }
            }
        }
    }
}
