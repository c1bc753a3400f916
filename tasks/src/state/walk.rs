//! One walk along a log, which finds data that is in no slice: updates, files that tools changed,
//! and the history of events.
//!
//! # Rules
//!
//! 1. A record counts if it is on the live path of the position. Only such records become updates;
//!    logs contain the others too.
//! 2. A rollback also resets the tasks in progress and the latest captures of workspaces.
//! 3. Two successive captures of one workspace are compared. A difference at a call's end is the
//!    tool's. A difference at a call's start was made outside of the session.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use foldlog::conversation::{Conversation, ConversationMessage};
use foldlog::filesystem::{FilesystemSnapshot, SnapshotReader};
use foldlog::inspect::{
    DecodedRecord, LogReader, RecordedBegin, RecordedCaptures, RecordedContent, RecordedEnd, RecordedEvent,
    captures_dir,
};
use foldlog::{Result, SequenceNumber, Session};

use super::SessionStateBuilder;
use super::execution_logs::{ErrorEntry, ExecutionEvent, ExecutionLogged, LogEntry, LogLevel};
use super::file_system::{FileModification, NotCompared, WorkspaceSnapshot};
use super::import::StateImported;
use crate::{TaskId, TaskStatus, TaskStatusChanged, UpdateOperation};
use foldlog_agent::events::PromptExecuted;

/// Locates the stores of workspaces' captures, with which two captures can be compared.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceStores {
    of_all: Option<PathBuf>,
    of_each: BTreeMap<String, PathBuf>,
}

impl WorkspaceStores {
    /// Uses no store: no captures are compared, and each missing comparison is
    /// [named](NotCompared).
    pub fn none() -> WorkspaceStores {
        WorkspaceStores::default()
    }

    /// Uses the [directory of captures](captures_dir) in a session's own directory as the store of
    /// all its workspaces.
    pub fn from_session_dir(session: &Path) -> WorkspaceStores {
        WorkspaceStores { of_all: Some(captures_dir(session)), of_each: BTreeMap::new() }
    }

    /// Sets the store of one workspace, by the name of its resource.
    #[must_use]
    pub fn with(mut self, workspace: impl Into<String>, store: impl Into<PathBuf>) -> WorkspaceStores {
        self.of_each.insert(workspace.into(), store.into());
        self
    }

    fn store_for(&self, workspace: &str) -> Option<&Path> {
        self.of_each.get(workspace).or(self.of_all.as_ref()).map(PathBuf::as_path)
    }
}

/// Caches one reader for each store of captures.
pub(crate) struct StoreReaders<'a> {
    stores: &'a WorkspaceStores,
    open: BTreeMap<String, SnapshotReader>,
}

impl<'a> StoreReaders<'a> {
    pub(crate) fn new(stores: &'a WorkspaceStores) -> StoreReaders<'a> {
        StoreReaders { stores, open: BTreeMap::new() }
    }

    /// Returns the reader of a workspace's store; `None` if its location is unknown.
    pub(crate) fn reader_for(&mut self, workspace: &str) -> Option<&mut SnapshotReader> {
        if !self.open.contains_key(workspace) {
            let store = self.stores.store_for(workspace)?;
            self.open.insert(workspace.to_owned(), SnapshotReader::open(store));
        }
        self.open.get_mut(workspace)
    }
}

/// Describes the position of a walk.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) sequence: SequenceNumber,
    pub(crate) time: DateTime<Utc>,
    pub(crate) is_live: bool,
    pub(crate) record: &'a DecodedRecord<'a>,
}

/// State that a rollback resets.
#[derive(Clone, Default)]
struct Context {
    /// Tasks in progress, in the order in which they were started.
    in_progress: Vec<TaskId>,
    captured: BTreeMap<String, Arc<FilesystemSnapshot>>,
}

struct StateWalk<'a> {
    found: &'a mut SessionStateBuilder,
    readers: StoreReaders<'a>,
    /// Records that count, in ascending ranges, without those that the walk has passed.
    live: std::iter::Peekable<std::vec::IntoIter<RangeInclusive<SequenceNumber>>>,
    rollbacks: BTreeMap<SequenceNumber, SequenceNumber>,
    /// The context after each record that changed it, including rollbacks.
    contexts: Vec<(SequenceNumber, Arc<Context>)>,
    /// Open tool runs, with the task that was in progress when they began.
    begun: BTreeMap<SequenceNumber, Option<TaskId>>,
    messages: MessagesByRecord,
}

/// Walks along a log up to a position.
pub(crate) fn walk(
    log: &LogReader,
    position: SequenceNumber,
    stores: &WorkspaceStores,
    conversations: &[Conversation],
    found: &mut SessionStateBuilder,
) -> Result<()> {
    let messages = messages_by_record(conversations);
    let live = log.live_path().live_at(position).into_iter().peekable();
    let (readers, rollbacks) = (StoreReaders::new(stores), log.rollbacks().collect());
    let (contexts, begun) = (Vec::new(), BTreeMap::new());
    let mut walk = StateWalk { found, readers, live, rollbacks, contexts, begun, messages };
    log.contents(SequenceNumber::MIN, position, |record| walk.take(&record))
}

/// Walks along records of a session that a rollback abandoned: `ranges`, all records of which
/// counted until then. `captured` contains the latest captures of workspaces before them, and
/// `in_progress` the tasks in progress.
pub(crate) fn walk_abandoned(
    session: &Session,
    ranges: Vec<RangeInclusive<SequenceNumber>>,
    captured: &BTreeMap<String, FilesystemSnapshot>,
    in_progress: Vec<TaskId>,
    stores: &WorkspaceStores,
) -> Result<SessionStateBuilder> {
    let mut found = SessionStateBuilder { updates: Some(Vec::new()), ..SessionStateBuilder::default() };
    let Some(last) = ranges.last().map(|range| *range.end()) else { return Ok(found) };
    let captured = captured.iter().map(|(name, snapshot)| (name.clone(), Arc::new(snapshot.clone())));
    let context = Context { in_progress, captured: captured.collect() };
    let mut walk = StateWalk {
        found: &mut found,
        readers: StoreReaders::new(stores),
        live: ranges.clone().into_iter().peekable(),
        rollbacks: BTreeMap::new(),
        contexts: vec![(SequenceNumber::MIN, Arc::new(context))],
        begun: BTreeMap::new(),
        messages: messages_by_record(&conversations_in(session, last)?),
    };
    for range in ranges {
        session.log().contents(*range.start(), *range.end(), |record| walk.take(&record))?;
    }
    Ok(found)
}

/// Reads the conversations of a session at a position.
pub(crate) fn conversations_in(session: &Session, position: SequenceNumber) -> Result<Vec<Conversation>> {
    let evaluations = session.conversation().evaluations_at(position);
    evaluations.iter().filter_map(|id| session.conversation().read_at(id, position).transpose()).collect()
}

/// Messages of conversations by their records, together for each evaluation.
type MessagesByRecord = BTreeMap<SequenceNumber, Vec<(String, Vec<ConversationMessage>)>>;

fn messages_by_record(conversations: &[Conversation]) -> MessagesByRecord {
    let mut messages = MessagesByRecord::new();
    for conversation in conversations {
        for (sequence, message) in conversation.recorded_messages() {
            let (id, of_record) = (conversation.evaluation_id(), messages.entry(sequence).or_default());
            match of_record.last_mut().filter(|(other, _)| other == id) {
                Some((_, messages)) => messages.push(message),
                None => of_record.push((id.to_owned(), vec![message])),
            }
        }
    }
    messages
}

impl StateWalk<'_> {
    fn take(&mut self, record: &DecodedRecord<'_>) -> Result<()> {
        let (sequence, time) = (record.sequence, record.time);
        while self.live.next_if(|range| *range.end() < sequence).is_some() {}
        let is_live = self.live.peek().is_some_and(|range| range.contains(&sequence));
        let at = At { sequence, time, is_live, record };
        self.found.count_record(at);
        match &record.content {
            RecordedContent::Event(event) => self.event(at, event)?,
            RecordedContent::CallBegun(begin) => self.begin(at, begin)?,
            RecordedContent::CallEnded(end) => self.end(at, end)?,
            _ => {}
        }
        if let Some(to) = self.rollbacks.get(&sequence) {
            // Abandoned contexts remain in the list: a later rollback may return to them.
            let context = self.context_at(*to);
            self.contexts.push((sequence, context));
        }
        for (evaluation_id, messages) in self.messages.remove(&sequence).into_iter().flatten() {
            self.found.update(at, UpdateOperation::ConversationExtended { evaluation_id, messages });
        }
        Ok(())
    }

    fn context(&self) -> Arc<Context> {
        self.contexts.last().map(|(_, context)| Arc::clone(context)).unwrap_or_default()
    }

    /// Returns the context after a record.
    fn context_at(&self, position: SequenceNumber) -> Arc<Context> {
        let before = self.contexts.partition_point(|(changed, _)| *changed <= position);
        let last = before.checked_sub(1).and_then(|last| self.contexts.get(last));
        last.map(|(_, context)| Arc::clone(context)).unwrap_or_default()
    }

    fn change(&mut self, sequence: SequenceNumber, change: impl FnOnce(&mut Context)) {
        let mut context = self.context();
        change(Arc::make_mut(&mut context));
        self.contexts.push((sequence, context));
    }

    fn emit_event(&mut self, at: At<'_>, task: Option<&TaskId>, what: ExecutionEvent) {
        let logs = &mut self.found.state.execution_logs;
        let entries = match task {
            Some(task) => logs.tasks.entry(task.clone()).or_default(),
            None => &mut logs.system_events,
        };
        entries.push(LogEntry { sequence: at.sequence, at: at.time, is_live: at.is_live, what });
    }

    fn event(&mut self, at: At<'_>, event: &RecordedEvent) -> Result<()> {
        let Some(operation) = UpdateOperation::of_event(event)? else { return self.other_event(at, event) };
        match &operation {
            UpdateOperation::TaskCreated(event) => {
                self.emit_event(at, Some(&event.task.id), ExecutionEvent::Created);
            }
            UpdateOperation::TaskStatusChanged(event) => self.status_changed(at, event),
            _ => {}
        }
        if at.is_live {
            self.found.update(at, operation);
        }
        Ok(())
    }

    fn status_changed(&mut self, at: At<'_>, event: &TaskStatusChanged) {
        let TaskStatusChanged { task_id, old_status, new_status, reason } = event.clone();
        self.change(at.sequence, |context| {
            context.in_progress.retain(|other| *other != task_id);
            if new_status == TaskStatus::InProgress {
                context.in_progress.push(task_id.clone());
            }
        });
        self.emit_event(at, Some(&task_id), ExecutionEvent::StatusChanged { old_status, new_status, reason });
    }

    fn other_event(&mut self, at: At<'_>, event: &RecordedEvent) -> Result<()> {
        if let Some(ExecutionLogged { task, level, message }) = event.read()? {
            if level == LogLevel::Error {
                let (sequence, at, task, message) = (at.sequence, at.time, task.clone(), message.clone());
                let error = ErrorEntry { sequence, at, task, message, ..ErrorEntry::default() };
                self.found.state.execution_logs.errors.push(error);
            }
            self.emit_event(at, task.as_ref(), ExecutionEvent::Message { level, message });
        } else if let Some(executed) = event.read::<PromptExecuted>()? {
            self.found.state.resource_usage.cost_micros += executed.cost_micros.unwrap_or_default();
        } else if at.is_live
            && let Some(what) = event.read::<StateImported>()?
        {
            self.found.continue_import(at, what);
        }
        Ok(())
    }

    fn begin(&mut self, at: At<'_>, begin: &RecordedBegin) -> Result<()> {
        let task = self.context().in_progress.last().cloned();
        self.begun.insert(at.sequence, task);
        self.captures(at, &begin.before, None)
    }

    fn end(&mut self, at: At<'_>, end: &RecordedEnd) -> Result<()> {
        let task = self.begun.remove(&end.begin).flatten();
        let (tool, operation, outcome) = (end.tool.clone(), end.operation, end.outcome);
        if !end.is_kept() {
            let message = end.shown.clone().unwrap_or_else(|| format!("the call was {}", outcome.name()));
            let cause = end.cause.map(|cause| cause.name().to_owned());
            let (sequence, at, task, tool) = (at.sequence, at.time, task.clone(), Some(tool.clone()));
            let error = ErrorEntry { sequence, at, task, tool, cause, message };
            self.found.state.execution_logs.errors.push(error);
        }
        let (usage, elapsed_us) = (&mut self.found.state.resource_usage, end.elapsed_us);
        usage.tool_runs += 1;
        usage.tool_time_us += elapsed_us;
        usage.failed_tool_runs += u64::from(!end.is_kept());
        self.emit_event(
            at,
            task.as_ref(),
            ExecutionEvent::ToolEnded { tool, operation, outcome, elapsed_us },
        );
        match end.is_kept() && !end.rolled_back {
            true => self.captures(at, &end.after, Some((end, task))),
            // The resources of any other call are restored to their state before it.
            false => Ok(()),
        }
    }

    /// Compares each capture with the previous one of the same workspace.
    fn captures(
        &mut self,
        at: At<'_>,
        captures: &RecordedCaptures,
        by: Option<(&RecordedEnd, Option<TaskId>)>,
    ) -> Result<()> {
        for workspace in captures.resources() {
            // Resources of other kinds have captures of other forms.
            let Ok(Some(snapshot)) = captures.get::<FilesystemSnapshot>(workspace) else { continue };
            let before = self.context().captured.get(workspace).cloned();
            if at.is_live {
                if let Some(before) = before.as_deref().filter(|before| before.commit != snapshot.commit) {
                    self.compare(at, workspace, before, &snapshot, by.as_ref());
                }
                let snapshot = snapshot.clone();
                let capture = WorkspaceSnapshot { snapshot, sequence: at.sequence, at: at.time };
                let captures = &mut self.found.state.file_system.workspace_snapshot;
                captures.insert(workspace.to_owned(), capture);
            }
            if before.is_none_or(|before| *before != snapshot) {
                let snapshot = Arc::new(snapshot);
                self.change(at.sequence, |context| {
                    context.captured.insert(workspace.to_owned(), snapshot);
                });
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        at: At<'_>,
        workspace: &str,
        before: &FilesystemSnapshot,
        after: &FilesystemSnapshot,
        by: Option<&(&RecordedEnd, Option<TaskId>)>,
    ) {
        let sequence = at.sequence;
        let changes = match self.readers.reader_for(workspace) {
            Some(reader) => reader.changes(Some(before), after).map_err(|error| error.to_string()),
            None => Err("nobody said where the captures of this workspace are".to_owned()),
        };
        let changes = match changes {
            Ok(changes) => changes,
            Err(reason) => {
                let workspace = workspace.to_owned();
                let not_compared = &mut self.found.state.file_system.not_compared;
                return not_compared.push(NotCompared { sequence, workspace, reason });
            }
        };
        for change in changes {
            let modification = FileModification {
                sequence,
                at: at.time,
                workspace: workspace.to_owned(),
                path: change.path,
                kind: change.kind,
                before: change.before,
                after: change.after,
                tool: by.map(|(end, _)| end.tool.clone()),
                operation: by.map(|(end, _)| end.operation),
                task: by.and_then(|(_, task)| task.clone()),
            };
            self.found.update(at, UpdateOperation::FileModified { modification });
        }
    }
}
