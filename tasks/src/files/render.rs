//! Renders a state as the files of a tree.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use foldlog::conversation::ConversationMessage;
use foldlog::{SequenceNumber, escape};
use serde::Serialize;
use uuid::Uuid;

use super::contents::{
    ArtifactsFile, ChangeItem, ClaudeConfigFile, CurrentConversation, CurrentFile, LogFile,
    PlacedInteraction, RecoveryInfo, SessionFile, TaskTreeFile, WorkspacesFile,
};
use super::layout;
use crate::{
    ArtifactKind, ClaudeContextState, Error, ExecutionLogState, FileSystemState, Interaction,
    InteractionKind, LogEntry, RecordedConversation, Result, StateUpdate, TaskTreeState, UpdateOperation,
};

/// Maximum number of items of a numbered file.
pub(super) const CHUNK_ITEMS_MAX: usize = 256;
/// Length of a numbered file, in bytes, from which on no item is added.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Receives files one by one: path and content.
pub(super) type FileSink<'a> = &'a mut dyn FnMut(&str, &[u8]) -> Result<()>;

const INSTRUCTIONS: &[&str] = &[
    "This directory is an export. The session's log is authoritative: if it is intact, continue with the log, \
     and export again.",
    "`foldlog import aca DIRECTORY --store STORE` creates a session from this directory.",
    "The import lists each file that differs from meta/checkpoint_manifest.json; with --partial it takes the other files.",
];

fn json(path: &str, value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    escape::write_json_pretty(&mut bytes, value)
        .map_err(|source| Error::Json { what: path.to_owned(), source })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn put(path: &str, value: &impl Serialize, sink: FileSink<'_>) -> Result<()> {
    sink(path, &json(path, value)?)
}

/// Fills a numbered file with items, one per line.
struct NumberedFile {
    bytes: Vec<u8>,
    items: usize,
}

impl NumberedFile {
    /// Starts a file whose object has the list `field`, after the text in `head`.
    fn new(head: &str, field: &str) -> NumberedFile {
        NumberedFile { bytes: format!("{{{head}\"{field}\":[").into_bytes(), items: 0 }
    }

    fn add(&mut self, path: &str, item: &impl Serialize) -> Result<()> {
        self.bytes.extend_from_slice(if self.items == 0 { b"\n" } else { b",\n" });
        self.items += 1;
        escape::write_json(&mut self.bytes, item)
            .map_err(|source| Error::Json { what: path.to_owned(), source })
    }

    fn is_full(&self) -> bool {
        self.items >= CHUNK_ITEMS_MAX || self.bytes.len() >= CHUNK_BYTES_MAX
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"\n]}\n");
        self.bytes
    }
}

/// Writes a list in numbered files, at least one.
fn put_list<T: Serialize>(
    stem: &str,
    field: &str,
    items: impl IntoIterator<Item = T>,
    sink: FileSink<'_>,
) -> Result<()> {
    let mut number = 1;
    let mut chunk = NumberedFile::new("", field);
    for item in items {
        if chunk.is_full() {
            let full = std::mem::replace(&mut chunk, NumberedFile::new("", field));
            sink(&layout::numbered_path(stem, number), &full.finish())?;
            number += 1;
        }
        chunk.add(stem, &item)?;
    }
    sink(&layout::numbered_path(stem, number), &chunk.finish())
}

/// Writes identity, configuration and usage, and instructions for a recovery.
pub(super) fn session(file: &SessionFile, sink: FileSink<'_>) -> Result<()> {
    put(layout::SESSION, file, sink)?;
    let configuration = file.configuration.as_ref();
    let info = RecoveryInfo {
        session: file.session,
        requires_validation: configuration.is_some_and(|one| one.requires_validation),
        validation_reason: configuration.and_then(|one| one.validation_reason.as_deref()),
        instructions: INSTRUCTIONS,
    };
    put(layout::RECOVERY_INFO, &info, sink)
}

/// Writes tasks and the data derived from them.
pub(super) fn task_tree(state: &TaskTreeState, sink: FileSink<'_>) -> Result<()> {
    tasks(state, sink)?;
    dependencies(state, sink)
}

pub(super) fn dependencies(state: &TaskTreeState, sink: FileSink<'_>) -> Result<()> {
    put(layout::DEPENDENCIES, &state.dependency_graph, sink)
}

pub(super) fn tasks(state: &TaskTreeState, sink: FileSink<'_>) -> Result<()> {
    let TaskTreeState { tasks, root_tasks, children, active_task, task_counter, scheduling_state, .. } =
        state;
    let tree = TaskTreeFile {
        tasks: Cow::Borrowed(tasks),
        root_tasks: Cow::Borrowed(root_tasks),
        children: Some(Cow::Borrowed(children)),
        active_task: Cow::Borrowed(active_task),
        task_counter: *task_counter,
    };
    put(layout::TASK_TREE, &tree, sink)?;
    put(layout::SCHEDULING, scheduling_state, sink)
}

/// Writes conversations, with their usage, limits and model.
pub(super) fn claude_context(state: &ClaudeContextState, sink: FileSink<'_>) -> Result<()> {
    let config = ClaudeConfigFile {
        session_id: Cow::Borrowed(&state.session_id),
        model_configuration: Cow::Borrowed(&state.model_configuration),
    };
    put(layout::CLAUDE_CONFIG, &config, sink)?;
    let mut number = 0;
    let mut current = CurrentFile { conversations: Vec::new() };
    for conversation in &state.conversation_history.conversations {
        let evaluation_id = conversation.evaluation_id.as_str();
        let head = || {
            let id = escape::to_json(evaluation_id);
            id.map_err(|source| Error::Json { what: layout::MESSAGES.to_owned(), source })
                .map(|id| format!("\"evaluation_id\":{id},"))
        };
        let (mut chunks, mut rest) = (Vec::new(), conversation.messages.as_slice());
        let mut chunk = NumberedFile::new(&head()?, "messages");
        for (place, message) in (1..).zip(&conversation.messages) {
            chunk.add(layout::MESSAGES, message)?;
            if chunk.is_full() {
                number += 1;
                let full = std::mem::replace(&mut chunk, NumberedFile::new(&head()?, "messages"));
                sink(&layout::numbered_path(layout::MESSAGES, number), &full.finish())?;
                chunks.push(number);
                rest = &conversation.messages[place..];
            }
        }
        current.conversations.push(CurrentConversation {
            evaluation_id: Cow::Borrowed(evaluation_id),
            prompt: Cow::Borrowed(&conversation.prompt),
            turns: conversation.turns,
            is_complete: conversation.is_complete,
            chunks,
            messages: Cow::Borrowed(rest),
        });
    }
    put(layout::CURRENT, &current, sink)?;
    for (number, window) in (1..).zip(&state.context_windows) {
        put(&layout::numbered_path(layout::WINDOWS, number), window, sink)?;
    }
    put(layout::USAGE, &state.usage_tracking, sink)?;
    put(layout::LIMITS, &state.rate_limit_state, sink)
}

/// Lists the changes of a state: the updates, and the modifications that are in no update.
pub(super) fn changes<'a>(
    state: &'a FileSystemState,
    updates: &'a [StateUpdate],
    messages: &MessageIndex<'_>,
) -> Vec<ChangeItem<'a>> {
    let is_told = |one: &&StateUpdate| matches!(one.operation, UpdateOperation::FileModified { .. });
    let told = updates.iter().filter(is_told).count();
    let modifications = &state.file_modifications;
    // Modifications before an import have no updates.
    let untold = modifications.iter().take(modifications.len().saturating_sub(told));
    let updates = updates.iter().map(|update| messages.left_out_of(update));
    untold.map(ChangeItem::of_modification).chain(updates).collect()
}

pub(super) fn put_changes(changes: &[ChangeItem<'_>], sink: FileSink<'_>) -> Result<()> {
    put_list(layout::CHANGES, "changes", changes, sink)
}

/// Writes the part of files, and changes.
pub(super) fn file_system(
    state: &FileSystemState,
    changes: &[ChangeItem<'_>],
    sink: FileSink<'_>,
) -> Result<()> {
    let workspaces = WorkspacesFile {
        workspaces: Cow::Borrowed(&state.workspace_snapshot),
        not_compared: Cow::Borrowed(&state.not_compared),
        dependency_resolution: Cow::Borrowed(&state.dependency_resolution),
    };
    put(layout::WORKSPACES, &workspaces, sink)?;
    put_changes(changes, sink)?;
    for (path, kind) in
        [(layout::COMPILATIONS, ArtifactKind::Compilation), (layout::TEST_RUNS, ArtifactKind::Test)]
    {
        let of_kind = state.build_artifacts.iter().filter(|(_, artifact)| artifact.kind == kind);
        let results: BTreeMap<_, _> =
            of_kind.map(|(name, artifact)| (Cow::Borrowed(name.as_str()), Cow::Borrowed(artifact))).collect();
        put(path, &ArtifactsFile { results }, sink)?;
    }
    put(layout::GIT, &state.git_state, sink)
}

pub(super) fn execution_logs(state: &ExecutionLogState, sink: FileSink<'_>) -> Result<()> {
    state.tasks.iter().try_for_each(|(task, entries)| task_log(&layout::task_log(task), entries, sink))?;
    interactions(&state.interactions, &[], sink)?;
    other_logs(state, sink)
}

pub(super) fn task_log(path: &str, entries: &[LogEntry], sink: FileSink<'_>) -> Result<()> {
    put(path, &LogFile { entries: Cow::Borrowed(entries) }, sink)
}

/// Writes requests and their replies, with their messages as far as the conversations have them.
pub(super) fn interactions(
    interactions: &[Interaction],
    conversations: &[RecordedConversation],
    sink: FileSink<'_>,
) -> Result<()> {
    let sent = sent_messages(interactions, conversations);
    for (stem, of_requests) in [(layout::REQUESTS, true), (layout::RESPONSES, false)] {
        let placed = (0..).zip(interactions).zip(&sent);
        let placed = placed.filter(|((_, one), _)| (one.kind == InteractionKind::Request) == of_requests);
        let placed = placed.map(|((place, interaction), &(messages_before, messages))| PlacedInteraction {
            place,
            interaction: Cow::Borrowed(interaction),
            messages_before: messages_before.filter(|_| of_requests),
            messages,
        });
        put_list(stem, "interactions", placed, sink)?;
    }
    Ok(())
}

/// Returns, for each interaction, the messages that it sent or received for the first time, and the
/// number of messages before them.
fn sent_messages<'a>(
    interactions: &[Interaction],
    conversations: &'a [RecordedConversation],
) -> Vec<(Option<usize>, &'a [ConversationMessage])> {
    let by_id: HashMap<&str, &'a RecordedConversation> =
        conversations.iter().map(|one| (one.evaluation_id.as_str(), one)).collect();
    let places: HashMap<Uuid, usize> = conversations
        .iter()
        .flat_map(|one| one.messages.iter().map(|message| message.message_id).zip(0..))
        .collect();
    let answered: HashMap<SequenceNumber, usize> =
        interactions.iter().filter_map(|one| Some((one.request?, *places.get(&one.message_id?)?))).collect();
    // Place after the last answer of each conversation.
    let mut behind: HashMap<&str, usize> = HashMap::new();
    let of_one = |interaction: &Interaction| {
        let Some(&conversation) = by_id.get(interaction.evaluation_id.as_str()) else {
            return (None, &[][..]);
        };
        let behind = behind.entry(conversation.evaluation_id.as_str()).or_default();
        let messages = &conversation.messages;
        match interaction.kind {
            InteractionKind::Failure => (None, &[][..]),
            InteractionKind::Answer => {
                let Some(&place) = interaction.message_id.and_then(|id| places.get(&id)) else {
                    return (None, &[][..]);
                };
                *behind = place + 1;
                (None, messages.get(place..=place).unwrap_or_default())
            }
            InteractionKind::Request => {
                let is_later = |message: &ConversationMessage| message.created_at > interaction.at;
                let rest = messages.get(*behind..).unwrap_or_default();
                // A request without an answer is placed by its time.
                let later = rest.iter().position(is_later).unwrap_or(rest.len());
                let end =
                    answered.get(&interaction.sequence).map_or(later, |place| place.saturating_sub(*behind));
                (Some(*behind), rest.get(..end).unwrap_or_default())
            }
        }
    };
    interactions.iter().map(of_one).collect()
}

/// Writes logs, except those of tasks and of requests.
pub(super) fn other_logs(state: &ExecutionLogState, sink: FileSink<'_>) -> Result<()> {
    put(layout::SYSTEM_EVENTS, &LogFile { entries: Cow::Borrowed(&state.system_events) }, sink)?;
    put_list(layout::ERRORS, "errors", &state.errors, sink)?;
    put(layout::RECOVERY_ACTIONS, &state.recovery_actions, sink)
}

/// Finds the messages of conversations by their ids.
#[derive(Default)]
pub(super) struct MessageIndex<'a>(HashMap<(&'a str, Uuid), &'a ConversationMessage>);

impl<'a> MessageIndex<'a> {
    pub(super) fn from_context(state: &'a ClaudeContextState) -> MessageIndex<'a> {
        let conversations = state.conversation_history.conversations.iter();
        let messages = conversations.flat_map(|conversation| {
            let id = conversation.evaluation_id.as_str();
            conversation.messages.iter().map(move |message| ((id, message.message_id), message))
        });
        MessageIndex(messages.collect())
    }

    pub(super) fn get(&self, evaluation: &str, id: Uuid) -> Option<&'a ConversationMessage> {
        self.0.get(&(evaluation, id)).copied()
    }

    /// Omits the messages from an update that the conversation contains.
    pub(super) fn left_out_of<'u>(&self, update: &'u StateUpdate) -> ChangeItem<'u> {
        let whole = |update| ChangeItem { update: Some(update), message_ids: Vec::new(), modification: None };
        let UpdateOperation::ConversationExtended { evaluation_id, messages } = &update.operation else {
            return whole(Cow::Borrowed(update));
        };
        let is_there =
            |message: &ConversationMessage| self.get(evaluation_id, message.message_id) == Some(message);
        if messages.is_empty() || !messages.iter().all(is_there) {
            return whole(Cow::Borrowed(update));
        }
        let operation = UpdateOperation::ConversationExtended {
            evaluation_id: evaluation_id.clone(),
            messages: Vec::new(),
        };
        let StateUpdate { timestamp, component, sequence_number, position, .. } = *update;
        let checksum = update.checksum.clone();
        let update = StateUpdate { timestamp, component, operation, sequence_number, position, checksum };
        let message_ids = messages.iter().map(|message| message.message_id).collect();
        ChangeItem { message_ids, ..whole(Cow::Owned(update)) }
    }
}
