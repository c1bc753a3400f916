//! One walk along a log, which finds what no slice holds: updates, files that tools changed, and what happened when.
//!
//! # Rules
//!
//! 1. A record counts if it is on the live path of the position. Only those make updates; logs keep the others too.
//! 2. Which task is being worked on, and what a workspace was captured as last, goes back with each rollback.
//! 3. Two captures in a row of one workspace are compared: at a call's end the difference is the tool's; at a begin it is
//!    nobody's, or somebody's beside the session.

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

use super::execution_logs::{ErrorEntry, ExecutionEvent, ExecutionLogged, LogEntry, LogLevel};
use super::file_system::{FileModification, NotCompared, WorkspaceSnapshot};
use super::import::StateImported;
use crate::{TaskId, TaskStatus, TaskStatusChanged, UpdateOperation};
use foldlog_agent::events::PromptExecuted;

/// Says where the stores of workspaces' captures are, by which two captures can be compared.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceStores {
    of_all: Option<PathBuf>,
    of_each: BTreeMap<String, PathBuf>,
}

impl WorkspaceStores {
    /// Knows no store: no captures are compared, and each that would be is [named](NotCompared).
    pub fn none() -> WorkspaceStores {
        WorkspaceStores::default()
    }

    /// Takes the [directory of captures](captures_dir) in a session's own directory for the store of all its workspaces.
    pub fn from_session_dir(session: &Path) -> WorkspaceStores {
        WorkspaceStores { of_all: Some(captures_dir(session)), of_each: BTreeMap::new() }
    }

    /// Names the store of one workspace, by the name of its resource.
    #[must_use]
    pub fn with(mut self, workspace: impl Into<String>, store: impl Into<PathBuf>) -> WorkspaceStores {
        self.of_each.insert(workspace.into(), store.into());
        self
    }

    fn store_for(&self, workspace: &str) -> Option<&Path> {
        self.of_each.get(workspace).or(self.of_all.as_ref()).map(PathBuf::as_path)
    }
}

/// Reads the stores of workspaces' captures, each by one reader.
pub(crate) struct StoreReaders<'a> {
    stores: &'a WorkspaceStores,
    open: BTreeMap<String, SnapshotReader>,
}

impl<'a> StoreReaders<'a> {
    pub(crate) fn new(stores: &'a WorkspaceStores) -> StoreReaders<'a> {
        StoreReaders { stores, open: BTreeMap::new() }
    }

    /// Returns the reader of a workspace's store; `None` if nobody said where that is.
    pub(crate) fn reader_for(&mut self, workspace: &str) -> Option<&mut SnapshotReader> {
        if !self.open.contains_key(workspace) {
            let store = self.stores.store_for(workspace)?;
            self.open.insert(workspace.to_owned(), SnapshotReader::open(store));
        }
        self.open.get_mut(workspace)
    }
}

/// Says where a walk is.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) sequence: SequenceNumber,
    pub(crate) time: DateTime<Utc>,
    pub(crate) is_live: bool,
    pub(crate) record: &'a DecodedRecord<'a>,
}

/// Takes what a walk finds.
pub(crate) trait Visitor {
    /// Takes each record, before anything that it holds.
    fn record(&mut self, _at: At<'_>) {}
    /// Takes an update that counts.
    fn update(&mut self, _at: At<'_>, _operation: UpdateOperation) {}
    /// Takes a capture of a workspace that counts.
    fn visit_capture(&mut self, _workspace: &str, _snapshot: WorkspaceSnapshot) {}
    /// Takes two captures that could not be compared.
    fn not_compared(&mut self, _what: NotCompared) {}
    /// Takes what happened to a task, or to none.
    fn visit_entry(&mut self, _task: Option<&TaskId>, _entry: LogEntry) {}
    /// Takes what went wrong.
    fn error(&mut self, _entry: ErrorEntry) {}
    /// Takes the end of a tool's run.
    fn tool_ended(&mut self, _end: &RecordedEnd) {}
    /// Takes what an evaluation has cost, in millionths of the host's currency.
    fn cost(&mut self, _micros: u64) {}
    /// Takes what an imported session had been through, if that counts.
    fn visit_import(&mut self, _at: At<'_>, _what: StateImported) {}
}

/// What goes back with a rollback.
#[derive(Clone, Default)]
struct Context {
    /// Tasks that are being worked on, in the order in which they were started.
    in_progress: Vec<TaskId>,
    /// Latest capture of each workspace.
    captured: BTreeMap<String, Arc<FilesystemSnapshot>>,
}

/// A tool's run that has begun.
struct OpenToolRun {
    task: Option<TaskId>,
}

struct StateWalk<'a, V> {
    visitor: &'a mut V,
    readers: StoreReaders<'a>,
    /// Records that count, in ascending ranges, those that are behind the walk left out.
    live: std::iter::Peekable<std::vec::IntoIter<RangeInclusive<SequenceNumber>>>,
    rollbacks: BTreeMap<SequenceNumber, SequenceNumber>,
    /// The context, as it was after each record that changed it, rollbacks among them.
    contexts: Vec<(SequenceNumber, Arc<Context>)>,
    begun: BTreeMap<SequenceNumber, OpenToolRun>,
    messages: MessagesByRecord,
}

/// Walks along a log up to a position.
///
/// # Errors
///
/// Those of [`LogReader::contents`], and [`NoSuchPosition`](foldlog::Error::NoSuchPosition).
pub(crate) fn walk(
    log: &LogReader,
    position: SequenceNumber,
    stores: &WorkspaceStores,
    conversations: &[Conversation],
    visitor: &mut impl Visitor,
) -> Result<()> {
    let messages = messages_by_record(conversations);
    let live = log.live_path().live_at(position).into_iter().peekable();
    let (readers, rollbacks) = (StoreReaders::new(stores), log.rollbacks().collect());
    let (contexts, begun) = (Vec::new(), BTreeMap::new());
    let mut walk = StateWalk { visitor, readers, live, rollbacks, contexts, begun, messages };
    log.contents(SequenceNumber::MIN, position, |record| walk.take(&record))
}

/// Walks along records of a session that a rollback abandoned: `ranges`, of which all records counted until then. `captured` are
/// the latest captures of workspaces before them, and `in_progress` the tasks that were being worked on.
///
/// # Errors
///
/// Those of [`Session::contents`] and [`Session::conversation_at`].
pub(crate) fn walk_abandoned(
    session: &Session,
    ranges: Vec<RangeInclusive<SequenceNumber>>,
    captured: &BTreeMap<String, FilesystemSnapshot>,
    in_progress: Vec<TaskId>,
    stores: &WorkspaceStores,
    visitor: &mut impl Visitor,
) -> Result<()> {
    let Some(last) = ranges.last().map(|range| *range.end()) else { return Ok(()) };
    let captured = captured.iter().map(|(name, snapshot)| (name.clone(), Arc::new(snapshot.clone())));
    let context = Context { in_progress, captured: captured.collect() };
    let mut walk = StateWalk {
        visitor,
        readers: StoreReaders::new(stores),
        live: ranges.clone().into_iter().peekable(),
        rollbacks: BTreeMap::new(),
        contexts: vec![(SequenceNumber::MIN, Arc::new(context))],
        begun: BTreeMap::new(),
        messages: messages_by_record(&conversations_in(session, last)?),
    };
    let mut ranges = ranges.into_iter();
    ranges.try_for_each(|range| session.contents(*range.start(), *range.end(), |record| walk.take(&record)))
}

/// Reads the conversations of a session as they were at a position.
pub(crate) fn conversations_in(session: &Session, position: SequenceNumber) -> Result<Vec<Conversation>> {
    let evaluations = session.evaluations_at(position);
    evaluations.iter().filter_map(|id| session.conversation_at(id, position).transpose()).collect()
}

/// Messages of conversations by their records, each with its evaluation.
type MessagesByRecord = BTreeMap<SequenceNumber, Vec<(String, ConversationMessage)>>;

fn messages_by_record(conversations: &[Conversation]) -> MessagesByRecord {
    let mut messages = MessagesByRecord::new();
    for conversation in conversations {
        for (sequence, message) in conversation.recorded_messages() {
            let of_record = messages.entry(sequence).or_default();
            of_record.push((conversation.evaluation_id().to_owned(), message));
        }
    }
    messages
}

impl<V: Visitor> StateWalk<'_, V> {
    fn take(&mut self, record: &DecodedRecord<'_>) -> Result<()> {
        let (sequence, time) = (record.sequence, record.time);
        while self.live.next_if(|range| *range.end() < sequence).is_some() {}
        let is_live = self.live.peek().is_some_and(|range| range.contains(&sequence));
        let at = At { sequence, time, is_live, record };
        self.visitor.record(at);
        match &record.content {
            RecordedContent::Event(event) => self.event(at, event)?,
            RecordedContent::CallBegun(begin) => self.begin(at, begin)?,
            RecordedContent::CallEnded(end) => self.end(at, end)?,
            _ => {}
        }
        if let Some(to) = self.rollbacks.get(&sequence) {
            // What a rollback abandons stays in the list: a later one may go back to it.
            let context = self.context_at(*to);
            self.contexts.push((sequence, context));
        }
        let mut of_each: Vec<(String, Vec<ConversationMessage>)> = Vec::new();
        for (evaluation, message) in self.messages.remove(&sequence).into_iter().flatten() {
            match of_each.last_mut().filter(|(other, _)| *other == evaluation) {
                Some((_, messages)) => messages.push(message),
                None => of_each.push((evaluation, vec![message])),
            }
        }
        for (evaluation_id, messages) in of_each {
            self.visitor.update(at, UpdateOperation::ConversationExtended { evaluation_id, messages });
        }
        Ok(())
    }

    fn context(&self) -> Arc<Context> {
        self.contexts.last().map(|(_, context)| Arc::clone(context)).unwrap_or_default()
    }

    /// Returns the context as it was behind a record.
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
        let (sequence, is_live) = (at.sequence, at.is_live);
        self.visitor.visit_entry(task, LogEntry { sequence, at: at.time, is_live, what });
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
            self.visitor.update(at, operation);
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
                let (task, message) = (task.clone(), message.clone());
                let (sequence, at) = (at.sequence, at.time);
                self.visitor.error(ErrorEntry { sequence, at, task, tool: None, cause: None, message });
            }
            self.emit_event(at, task.as_ref(), ExecutionEvent::Message { level, message });
        } else if let Some(executed) = event.read::<PromptExecuted>()? {
            self.visitor.cost(executed.cost_micros.unwrap_or_default());
        } else if at.is_live
            && let Some(what) = event.read::<StateImported>()?
        {
            self.visitor.visit_import(at, what);
        }
        Ok(())
    }

    fn begin(&mut self, at: At<'_>, begin: &RecordedBegin) -> Result<()> {
        let task = self.context().in_progress.last().cloned();
        self.begun.insert(at.sequence, OpenToolRun { task });
        self.captures(at, &begin.before, None)
    }

    fn end(&mut self, at: At<'_>, end: &RecordedEnd) -> Result<()> {
        let task = self.begun.remove(&end.begin).and_then(|begun| begun.task);
        let (tool, operation, outcome) = (end.tool.clone(), end.operation, end.outcome);
        if !end.is_kept() {
            let message = end.shown.clone().unwrap_or_else(|| format!("the call was {}", outcome.name()));
            let cause = ErrorEntry::cause_of(end.cause);
            let (task, tool) = (task.clone(), Some(tool.clone()));
            self.visitor.error(ErrorEntry { sequence: at.sequence, at: at.time, task, tool, cause, message });
        }
        self.visitor.tool_ended(end);
        let elapsed_us = end.elapsed_us;
        self.emit_event(
            at,
            task.as_ref(),
            ExecutionEvent::ToolEnded { tool, operation, outcome, elapsed_us },
        );
        match end.is_kept() && !end.rolled_back {
            true => self.captures(at, &end.after, Some((end, task))),
            // What a recovery found is restored to what was there before.
            false => Ok(()),
        }
    }

    /// Compares each capture with the one before it of the same workspace.
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
                let (snapshot, sequence) = (snapshot.clone(), at.sequence);
                self.visitor.visit_capture(workspace, WorkspaceSnapshot { snapshot, sequence, at: at.time });
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
                return self.visitor.not_compared(NotCompared { sequence, workspace, reason });
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
            self.visitor.update(at, UpdateOperation::FileModified { modification });
        }
    }
}
