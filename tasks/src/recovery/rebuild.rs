//! Creates a session from the updates of an existing one.

use std::collections::BTreeMap;

use chrono::DateTime;
use foldlog::conversation::{ConversationMessage, NewAnswer, NewInput, Role};
use foldlog::inspect::LogReader;
use foldlog::{Result, Session};

use crate::checkpoints::dispatch_update;
use crate::{StateUpdate, Task, TaskId, TaskTreeState, UpdateOperation};

/// The result of creating a session from updates.
pub(super) struct Rebuilt {
    /// Data that is in no update, and updates that were refused.
    pub(super) lost: Vec<String>,
    /// Differences between the session and the source of the updates.
    pub(super) differences: Vec<String>,
}

/// Applies updates to a new session, in order, and compares it with the source of the updates.
pub(super) fn rebuild(log: &LogReader, updates: &[StateUpdate], session: &Session) -> Result<Rebuilt> {
    let mut lost = Vec::new();
    let mut said: BTreeMap<&str, Vec<&ConversationMessage>> = BTreeMap::new();
    for update in updates {
        match &update.operation {
            UpdateOperation::ConversationExtended { evaluation_id, messages } => {
                messages.iter().try_for_each(|message| record(session, evaluation_id, message))?;
                said.entry(evaluation_id).or_default().extend(messages);
            }
            operation => match dispatch_update(session, operation) {
                Ok(_) => {}
                Err(foldlog::Error::Refused { reason, .. }) => {
                    lost.push(format!("update {}: {reason}", update.sequence_number));
                }
                Err(error) => return Err(error),
            },
        }
    }
    let mut differences = Vec::new();
    let was = TaskTreeState::at(log, log.last_position())?;
    let is = TaskTreeState::from_session(session)?;
    for (id, task) in &was.tasks {
        if is.tasks.get(id).map(timeless) != Some(timeless(task)) {
            differences.push(format!("task {id}"));
        }
    }
    differences.extend(
        is.tasks.keys().filter(|id| !was.tasks.contains_key(*id)).map(|id: &TaskId| format!("task {id}")),
    );
    for (evaluation_id, messages) in said {
        let again = session.conversation().read(evaluation_id)?.map(|one| one.messages()).unwrap_or_default();
        let is_same = again.len() == messages.len()
            && again.iter().zip(messages).all(|(again, message)| content(again) == content(message));
        if !is_same {
            differences.push(format!("conversation {}", foldlog::escape::text(evaluation_id)));
        }
    }
    Ok(Rebuilt { lost, differences })
}

/// Returns a task without its times, which are those of the records.
fn timeless(task: &Task) -> Task {
    let epoch = DateTime::UNIX_EPOCH;
    Task { status_at: epoch, created_at: epoch, updated_at: epoch, ..task.clone() }
}

/// Returns a message without its time and its id, which are those of the record.
fn content(message: &ConversationMessage) -> ConversationMessage {
    let (created_at, message_id) = (DateTime::UNIX_EPOCH, uuid::Uuid::nil());
    ConversationMessage { created_at, message_id, ..message.clone() }
}

pub(super) fn record(session: &Session, evaluation_id: &str, message: &ConversationMessage) -> Result<()> {
    let ConversationMessage { role, content, tool_calls, tool_call_id, name, blocks, is_error, .. } =
        message.clone();
    if role == Role::Assistant {
        let evaluation_id = evaluation_id.to_owned();
        let answer = NewAnswer { evaluation_id, content, calls: tool_calls, blocks, ..NewAnswer::default() };
        return session.conversation().record_answer(&answer).map(drop);
    }
    let input = NewInput {
        content,
        blocks,
        name,
        call_id: tool_call_id,
        is_error,
        ..NewInput::new(evaluation_id, role, "")
    };
    session.conversation().record_input(&input).map(drop)
}
