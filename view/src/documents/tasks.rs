//! Texts about the tasks of a session.

use foldlog_codec::escape;
use foldlog_tasks::{TaskId, Waits};

/// Describes the condition for which a task waits.
pub fn waits_text(waits: &Waits) -> String {
    let list = |ids: &[TaskId]| ids.iter().map(TaskId::as_str).collect::<Vec<&str>>().join(", ");
    match waits {
        Waits::ForTasks(tasks) => format!("waits for {}", list(tasks)),
        Waits::ForCancelled(tasks) => format!("requires {}, which was cancelled", list(tasks)),
        // The parts are printed directly below the task.
        Waits::ForParts(_) => "waits for its parts".to_owned(),
        Waits::ForReason(Some(reason)) => format!("blocked: {}", escape::text(reason)),
        Waits::ForReason(None) => "blocked".to_owned(),
    }
}
