//! Two sessions of a store beside each other.

use foldlog::SequenceNumber;
use foldlog::audit::{ConversationBeside, Parting};
use foldlog::conversation::ConversationMessage;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::super::walk;
use super::answers::{cut, shown, text};
use super::session::{Opened, Session};
use crate::diff::states_beside;
use crate::failure::Result;
use crate::reading::position_of;

/// Number of rows of one conversation that an answer holds.
const ROWS_MAX: usize = 400;

/// Bytes of messages that an answer holds.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// Says from where on two sessions differ, and in what.
#[derive(Debug, Serialize)]
struct Compared {
    /// Session of the page: which one is compared, at which position, and its last one.
    here: Side,
    /// The other session.
    there: Side,
    parting: Parting,
    /// Each the text that `diff --json` prints, those of conversations left out.
    differences: Vec<String>,
    /// Whether there are more differences than these.
    more: bool,
    conversations: Vec<Json>,
}

#[derive(Debug, Serialize)]
struct Side {
    session: uuid::Uuid,
    at: SequenceNumber,
    last: SequenceNumber,
    damaged: bool,
}

impl Side {
    fn of(log: &Opened, asked: Option<u64>) -> Result<Side> {
        let last = log.reader.last_position();
        let at = position_of(last, asked.map(SequenceNumber::new))?;
        let damaged = log.reader.sound_end().is_some();
        Ok(Side { session: log.reader.opened().session, at, last, damaged })
    }
}

/// Compares two sessions at two positions, their last ones where none is asked for.
///
/// # Errors
///
/// [`Failure::Usage`](crate::Failure::Usage) if there is no such position; the engine's errors, such as that a position was compacted.
pub(crate) fn compare(
    (here, at): (&Opened, Option<u64>),
    (there, other_at): (&Opened, Option<u64>),
) -> Result<String> {
    let (one, other) = (Side::of(here, at)?, Side::of(there, other_at)?);
    let parting = here.reader.parting(&there.reader)?;
    let (differences, more) = cut(|take| {
        let (before, after) = (here.reader.state_reader_at(one.at)?, there.reader.state_reader_at(other.at)?);
        states_beside(&before, &after, take)
    })?;
    let mut bytes = 0;
    let conversations = here.reader.conversations_beside(one.at, &there.reader, other.at)?;
    let conversations = conversations.iter().map(|conversation| rows(conversation, &mut bytes));
    let conversations = conversations.collect::<Result<_>>()?;
    text(&Compared { here: one, there: other, parting, differences, more, conversations })
}

/// Returns the rows of a conversation: what each side says, as messages of a step are told. Rows before the first that differs are
/// only counted.
fn rows(conversation: &ConversationBeside, bytes: &mut usize) -> Result<Json> {
    let message = |list: &[ConversationMessage], at: Option<usize>, bytes: &mut usize| -> Result<Json> {
        let Some(message) = at.and_then(|at| list.get(at)) else { return Ok(Json::Null) };
        let line = walk::message_line(message, Session::payloads())?;
        *bytes += line.len();
        Ok(shown(&line))
    };
    let alike = conversation.rows.iter().take_while(|row| row.alike).count();
    let (mut rows, mut left) = (Vec::new(), conversation.rows.len() - alike);
    for row in conversation.rows.iter().skip(alike).take(ROWS_MAX) {
        let (here, there) =
            (message(&conversation.here, row.here, bytes)?, message(&conversation.there, row.there, bytes)?);
        rows.push(
            json!({ "here": here, "there": there, "alike": row.alike, "places": [row.here, row.there] }),
        );
        left -= 1;
        if rows.len() == ROWS_MAX || *bytes > MESSAGES_BYTES_MAX {
            break;
        }
    }
    Ok(json!({ "evaluation_id": conversation.evaluation_id, "alike": alike, "rows": rows, "left_out": left }))
}
