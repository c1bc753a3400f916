//! Lines about checkpoints, and about what a recovery by a strategy keeps.

use foldlog_codec::escape;
use foldlog_tasks::{Checkpoint, RecoveryOutlook};
use foldlog_view::text::count_text;

use crate::failure::Result;
use crate::output::Output;

/// Describes the contents of a session at a checkpoint.
pub(crate) fn describe_checkpoint(checkpoint: &Checkpoint) -> String {
    let manifest = &checkpoint.manifest;
    let active: Vec<&str> = manifest.active_tasks.iter().map(|task| task.as_str()).collect();
    let active = if active.is_empty() { String::new() } else { format!(", active: {}", active.join(", ")) };
    format!(
        "{}, {} completed{active}; {}; {}",
        count_text(manifest.total_tasks, "task"),
        manifest.completed_tasks,
        count_text(manifest.conversation_messages_count, "message"),
        count_text(manifest.file_modifications_count, "change") + " of files",
    )
}

/// Prints the result that a recovery by a strategy would have.
pub(crate) fn print_outlook(outlook: &RecoveryOutlook, output: &mut Output<'_>) -> Result<()> {
    let strategy = outlook.strategy;
    if let Some(reason) = &outlook.impossible {
        return output.line(format_args!("{strategy}: impossible: {}", escape::text(reason)));
    }
    let RecoveryOutlook { tasks, completed_tasks, messages, files, lost_updates, .. } = outlook;
    let place = if outlook.new_session { "a new session" } else { "this session" };
    let position = outlook.position.map(|position| format!(" at position {position}")).unwrap_or_default();
    output.line(format_args!(
        "{strategy}: {place}{position}: {}, {completed_tasks} completed; {}; {}; {} lost",
        count_text(*tasks, "task"),
        count_text(*messages, "message"),
        count_text(*files, "file"),
        count_text(*lost_updates, "update"),
    ))?;
    outlook.lost.iter().try_for_each(|lost| output.line(format_args!("    lost: {}", escape::text(lost))))
}
