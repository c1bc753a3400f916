//! The tasks of a session at a position, as in `foldlog task list`: each with its state, the
//! condition that it waits for, and its record.

use std::collections::BTreeMap;
use std::io::Write;

use foldlog::SequenceNumber;
use foldlog::Slice;
use foldlog::inspect::StateReader;
use foldlog_tasks::{TaskId, TaskStatus, TaskTreeState, Tasks};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::Payloads;
use crate::Result;
use crate::blocks::{Blocks, LineBlocks};
use crate::documents::tasks::waits_text;
use crate::lists::ListHistory;
use crate::numbered::Numbered;
use crate::walk::{ListPlaces, line};

/// A task as a page shows it. Numbers are those of the tasks' creation.
#[derive(Debug, Serialize)]
pub(crate) struct TaskRow {
    number: u64,
    /// Number of the parent task.
    parent: Option<u64>,
    id: Json,
    title: Json,
    status: TaskStatus,
    /// Condition that the task waits for, or the reason for its state.
    why: Json,
    /// Place among the tasks that may start now, from 1; `None` if it may not.
    next: Option<usize>,
    active: bool,
    priority: i64,
    attempts: u32,
    failures: u32,
    created_at: String,
    status_at: String,
    /// Record of the task's last change.
    record: Option<SequenceNumber>,
}

/// Returns the tasks at a position, in the order of their creation. Returns none if the session has
/// no tasks, or if slices with these names have other contents.
pub(crate) fn rows(state: &StateReader, payloads: Payloads) -> Vec<TaskRow> {
    let Some(slice) = state.slice(Tasks::NAME).filter(|slice| slice.item() == Tasks::ITEM_NAME) else {
        return Vec::new();
    };
    // A host's own slice may have the same name.
    let Ok(tree) = TaskTreeState::of_state(state) else { return Vec::new() };
    let records = records(&slice);
    let schedule = &tree.scheduling_state;
    let waits: BTreeMap<&TaskId, String> =
        schedule.blocked.iter().map(|blocked| (&blocked.task, waits_text(&blocked.waits))).collect();
    let next: BTreeMap<&TaskId, usize> = schedule.ready.iter().zip(1..).collect();
    let text = |text: &str| text_of(text, payloads);
    let mut rows: Vec<TaskRow> = tree
        .tasks
        .values()
        .map(|task| TaskRow {
            number: task.number,
            parent: task.parent.as_ref().and_then(|id| tree.tasks.get(id)).map(|parent| parent.number),
            id: text(task.id.as_str()),
            title: text(&task.title),
            status: task.status,
            why: waits.get(&task.id).or(task.reason.as_ref()).map_or(Json::Null, |why| text(why)),
            next: next.get(&task.id).copied(),
            active: tree.active_task.as_ref() == Some(&task.id),
            priority: task.priority,
            attempts: task.attempts,
            failures: task.failures,
            created_at: task.created_at.to_rfc3339(),
            status_at: task.status_at.to_rfc3339(),
            record: records.get(task.id.as_str()).copied(),
        })
        .collect();
    rows.sort_by_key(|row| row.number);
    rows
}

/// Returns the record that wrote each task, by the task's id.
fn records(slice: &foldlog::inspect::SliceReader<'_>) -> BTreeMap<String, SequenceNumber> {
    #[derive(serde::Deserialize)]
    struct TaskIdField {
        id: TaskId,
    }
    let mut records = BTreeMap::new();
    let read = slice.read(|name, bytes| {
        if let Ok(TaskIdField { id }) = foldlog_codec::msgpack::from_slice(bytes) {
            records.insert(id.as_str().to_owned(), name.sequence);
        }
        Ok(std::ops::ControlFlow::Continue(()))
    });
    if read.is_ok() { records } else { BTreeMap::new() }
}

/// Returns a text of a host, or a placeholder if values are left out or the text is too long.
pub(crate) fn text_of(text: &str, payloads: Payloads) -> Json {
    if payloads.are_asked_for() && text.len() as u64 <= payloads.bytes_max() {
        return Json::from(text);
    }
    json!({ "$left_out": "text", "bytes": text.len() })
}

/// Collects the tasks at every position for a report.
#[derive(Debug, Default)]
pub(crate) struct TaskLists {
    history: ListHistory<u64>,
    /// Current tasks: by their numbers, each with the number of its row.
    now: BTreeMap<u64, u32>,
    /// All rows so far, and the position at which each was added.
    lines: Numbered<Vec<u8>>,
    positions: Vec<SequenceNumber>,
}

impl TaskLists {
    /// Notes the tasks at a position.
    ///
    /// # Errors
    ///
    /// The error of a row's JSON.
    pub(crate) fn note(&mut self, position: SequenceNumber, rows: &[TaskRow]) -> Result<()> {
        let mut now = BTreeMap::new();
        for row in rows {
            now.insert(row.number, self.lines.number(line(b'=', row)?));
            self.positions.resize(self.lines.values.len(), position);
        }
        let differs = |one: &BTreeMap<u64, u32>, other: &BTreeMap<u64, u32>| -> Vec<(u64, u32)> {
            let unlike = one.iter().filter(|(place, number)| other.get(place) != Some(number));
            unlike.map(|(place, number)| (*place, *number)).collect()
        };
        let removed: Vec<u64> = differs(&self.now, &now).into_iter().map(|(place, _)| place).collect();
        let added = differs(&now, &self.now);
        if !removed.is_empty() || !added.is_empty() {
            self.history.change(position, &removed, &added);
            self.now = now;
        }
        Ok(())
    }

    /// Writes the lists and returns their places; `None` if there never was a task.
    pub(crate) fn write<W: Write>(self, blocks: &mut Blocks<W>) -> Result<Option<ListPlaces>> {
        if self.positions.is_empty() {
            return Ok(None);
        }
        let mut lines = LineBlocks::default();
        self.lines.values.iter().try_for_each(|line| lines.push(line, blocks))?;
        let names = self.positions.iter().map(|position| (*position, 0, 0));
        ListPlaces::write(self.history, names, lines, blocks).map(Some)
    }
}
