//! Waits for a run and for signals that request its end, and shows its progress.

use std::time::Duration;

use foldlog::Session;
use foldlog::conversation::EntryContent;
use foldlog_agent::provider::CancelToken;
use foldlog_codec::escape;
use foldlog_view::text::count_text;

use super::EVALUATION;
use super::run_session::executions;
use crate::failure::Result;
use crate::output::Output;

/// Time between two checks of the run.
const LOOK: Duration = Duration::from_millis(50);

/// Number of checks after which the status is read again.
const LOOKS_A_STATUS: u32 = 4;

/// Runs `run` on its own thread and waits for it. The first signal that requests the process to end
/// cancels the run, which then ends within seconds. A second signal ends the process. The text of
/// `warning` is noted once.
pub(super) fn watch<T: Send>(
    session: &Session,
    output: &mut Output<'_>,
    warning: impl Fn() -> Option<String>,
    run: impl FnOnce(CancelToken) -> T + Send,
) -> Result<T> {
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let of_run = cancel.clone();
        let running = scope.spawn(move || run(of_run));
        let mut status = output.status();
        let mut looks = 0_u32;
        let mut waited = Ok(true);
        let mut is_warned = false;
        while !running.is_finished() {
            if let Some(warning) = warning().filter(|_| !is_warned) {
                is_warned = true;
                drop(status);
                output.note(warning);
                status = output.status();
            }
            if status.is_wanted() && looks.is_multiple_of(LOOKS_A_STATUS) {
                // An unreadable status is not shown.
                status.show(|| text(session).unwrap_or_default());
            }
            looks = looks.wrapping_add(1);
            match waited {
                Ok(true) => waited = (output.pause)(LOOK),
                _ => {
                    cancel.cancel();
                    std::thread::sleep(LOOK);
                }
            }
        }
        drop(status);
        if let Some(warning) = warning().filter(|_| !is_warned) {
            output.note(warning);
        }
        match running.join() {
            Ok(done) => {
                waited?;
                Ok(done)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the progress of a run.
fn text(session: &Session) -> Result<String> {
    let (mut calls, mut tokens) = (0_u64, 0_u64);
    let conversation = session.conversation().read(EVALUATION)?;
    for entry in conversation.iter().flat_map(|conversation| conversation.entries()) {
        if let EntryContent::Answer { message, usage, .. } = &entry.content {
            calls += message.tool_calls.len() as u64;
            tokens = usage.iter().map(|usage| usage.input + usage.output).fold(tokens, u64::saturating_add);
        }
    }
    let running: Vec<String> =
        session.calls().open_operations().iter().map(|open| escape::text(&open.tool).into_owned()).collect();
    let running = if running.is_empty() { String::new() } else { format!(" ({})", running.join(", ")) };
    let cost: u64 = executions(session)?.iter().filter_map(|run| run.cost_micros).sum();
    let cost = if cost == 0 { String::new() } else { format!(", ${:.4} before", cost as f64 / 1e6) };
    Ok(format!("{}{running}, {tokens} tokens{cost}", count_text(calls, "tool call")))
}
