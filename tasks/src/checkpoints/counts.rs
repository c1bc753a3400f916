//! Counts a session's contents at a position, from an earlier checkpoint and the records since.
//!
//! A slice of counts, folded by the events of tasks, would make each of these records larger and
//! each change of a task slower, even without checkpoints. The records since the last checkpoint
//! have the same information, and are read once, when the next one is created.
//!
//! 1. Counts continue from the latest checkpoint on the live path of the position. A record that
//!    counts at a live checkpoint counts at every later position of that path.
//! 2. Without such a checkpoint, they start at the log's first record.
//! 3. Tasks are counted from their slice after a record that may change them otherwise than by
//!    their four events (a seed, a clear, a reset, an import), or whose body a compaction has
//!    dropped.

use std::collections::BTreeMap;

use foldlog::conversation::{Conversation, EntryContent};
use foldlog::filesystem::FilesystemSnapshot;
use foldlog::inspect::{DecodedRecord, RecordedCaptures, RecordedContent, RecordedEvent};
use foldlog::{Outcome, RecordKind, Result, SequenceNumber, Session, SessionTypes, State};

use super::{Checkpoint, CheckpointManifest};
use crate::state::walk::StoreReaders;
use crate::{
    DependenciesResolved, Resolutions, TaskCreated, TaskStatus, TaskStatusChanged, Tasks, WorkspaceStores,
    declare,
};

/// Counts a session's contents at `position`, starting from the latest of these checkpoints that is
/// before it and counts there. Returns the counts, in which the size of the log remains 0, and the
/// latest capture of each workspace.
pub(super) fn count_at(
    session: &Session,
    created: &[Checkpoint],
    position: SequenceNumber,
    stores: &WorkspaceStores,
) -> Result<(CheckpointManifest, BTreeMap<String, FilesystemSnapshot>)> {
    let path = session.log().live_path();
    let before = created.iter().rev().filter(|one| one.position < position);
    let base = before.into_iter().find(|one| path.is_live(one.position, position));
    let (manifest, workspaces) =
        base.map(|base| (base.manifest.clone(), base.workspaces.clone())).unwrap_or_default();
    let readers = StoreReaders::new(stores);
    let mut counting = CheckpointCounter { manifest, workspaces, readers, is_by_events: true };
    for range in path.live_at(position) {
        let from = base.map_or(*range.start(), |base| (*range.start()).max(base.position + 1));
        if from <= *range.end() {
            session.log().contents_left(from, *range.end(), |record| counting.take(&record))?;
        }
    }
    let CheckpointCounter { mut manifest, workspaces, is_by_events, .. } = counting;
    if !is_by_events {
        count_tasks(&session.dynamic().state_at(position)?, &mut manifest)?;
    }
    let since = base.map(|base| messages_behind(session, base.position, position)).transpose()?.flatten();
    manifest.conversation_messages_count = match since {
        Some(since) => manifest.conversation_messages_count + since,
        None => messages_at(session, position)?,
    };
    manifest.storage_size_bytes = 0;
    Ok((manifest, workspaces))
}

/// Counts the messages of all conversations at a position.
fn messages_at(session: &Session, position: SequenceNumber) -> Result<u64> {
    session.conversation().evaluations().iter().try_fold(0, |sum, id| {
        let conversation = session.conversation().read_at(id, position)?;
        Ok(sum + conversation.map_or(0, |one| one.recorded_messages().len() as u64))
    })
}

/// Counts the messages of all conversations that were recorded after `after` and count at
/// `position`. Returns `None` if earlier messages may no longer count.
fn messages_behind(
    session: &Session,
    after: SequenceNumber,
    position: SequenceNumber,
) -> Result<Option<u64>> {
    let mut sum = 0;
    for id in session.conversation().evaluations() {
        match session.conversation().read_behind(&id, after, position)? {
            Some(conversation) => sum += messages_of(&conversation),
            None => return Ok(None),
        }
    }
    Ok(Some(sum))
}

/// Counts the messages at the end of a conversation: user messages, answers, and results of calls.
/// The answers with these calls may be before it.
fn messages_of(end: &Conversation) -> u64 {
    let is_message = |content: &EntryContent| match content {
        EntryContent::Input { .. } | EntryContent::Answer { .. } => true,
        EntryContent::CallEnded { outcome, .. } => {
            !matches!(outcome, Outcome::Interrupted | Outcome::Suspended)
        }
        EntryContent::CallSettled { committed, .. } => committed.is_some(),
        _ => false,
    };
    end.entries().iter().filter(|entry| is_message(&entry.content)).count() as u64
}

/// Counts tasks and dependencies from their slices.
fn count_tasks(state: &State, manifest: &mut CheckpointManifest) -> Result<()> {
    let types = declare(SessionTypes::builder()).build()?;
    let tasks = state.items::<Tasks>(&types)?;
    let count = |status| tasks.iter().filter(|one| one.status == status).count() as u64;
    manifest.total_tasks = tasks.len() as u64;
    manifest.completed_tasks = count(TaskStatus::Completed);
    let active = tasks.iter().filter(|one| one.status == TaskStatus::InProgress);
    manifest.active_tasks = active.map(|task| task.id.clone()).collect();
    manifest.active_tasks.sort();
    let resolved = state.items::<Resolutions>(&types)?;
    manifest.dependencies = resolved.last().map(|resolved| dependencies(resolved)).unwrap_or_default();
    Ok(())
}

fn dependencies(resolved: &DependenciesResolved) -> Vec<String> {
    let dependencies = resolved.resolution.dependencies.iter();
    dependencies.map(|(name, dependency)| format!("{name} {}", dependency.version)).collect()
}

/// Counts along the records that count.
struct CheckpointCounter<'a> {
    manifest: CheckpointManifest,
    workspaces: BTreeMap<String, FilesystemSnapshot>,
    readers: StoreReaders<'a>,
    /// Whether tasks and dependencies changed by their events alone.
    is_by_events: bool,
}

impl CheckpointCounter<'_> {
    fn take(&mut self, record: &DecodedRecord<'_>) -> Result<()> {
        match &record.content {
            RecordedContent::Event(event) => self.event(event),
            RecordedContent::CallBegun(begin) => self.captures(&begin.before),
            // After any other end, resources are in their state before the call.
            RecordedContent::CallEnded(end) if end.is_kept() => self.captures(&end.after),
            RecordedContent::Dropped | RecordedContent::Other(RecordKind::Dispatch | RecordKind::Import) => {
                self.is_by_events = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn event(&mut self, event: &RecordedEvent) -> Result<()> {
        let manifest = &mut self.manifest;
        if event.read::<TaskCreated>()?.is_some() {
            manifest.total_tasks += 1;
        } else if let Some(TaskStatusChanged { task_id, new_status, .. }) = event.read()? {
            manifest.active_tasks.retain(|other| *other != task_id);
            match new_status {
                TaskStatus::InProgress => {
                    let place = manifest.active_tasks.partition_point(|other| *other < task_id);
                    manifest.active_tasks.insert(place, task_id);
                }
                // No task leaves this state.
                TaskStatus::Completed => manifest.completed_tasks += 1,
                _ => {}
            }
        } else if let Some(resolved) = event.read::<DependenciesResolved>()? {
            manifest.dependencies = dependencies(&resolved);
        }
        Ok(())
    }

    /// Counts the differences between each capture and the previous one of the same workspace.
    fn captures(&mut self, captures: &RecordedCaptures) -> Result<()> {
        for workspace in captures.resources() {
            // Resources of other kinds have captures of other forms.
            let Ok(Some(after)) = captures.get::<FilesystemSnapshot>(workspace) else { continue };
            let before = self.workspaces.insert(workspace.to_owned(), after.clone());
            let Some(before) = before.filter(|before| before.commit != after.commit) else { continue };
            let Some(reader) = self.readers.reader_for(workspace) else { continue };
            // The session's state names captures that cannot be compared.
            if let Ok(changes) = reader.changes(Some(&before), &after) {
                self.manifest.file_modifications_count += changes.len() as u64;
            }
        }
        Ok(())
    }
}
