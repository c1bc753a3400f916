//! Compares two sessions of a store side by side.

use foldlog::conversation::ConversationMessage;
use foldlog::inspect::ConversationBeside;
use foldlog::{Error, SequenceNumber};
use foldlog_codec::msgpack::{JsonStream, ValueLimits};
use serde_json::{Value as Json, json};

use super::answers::{cut, line_json, text};
use super::session::{OpenedLog, Session};
use super::workspaces::{self, CaptureHistory};
use crate::Result;
use crate::first_difference::{self, DifferingValue, FirstDifference};
use crate::positions::position_of;
use crate::{document, walk};
use foldlog_replay::differences::between_states;

/// Maximum number of rows of one conversation in an answer.
const ROWS_MAX: usize = 400;

/// Maximum size of an answer's messages in bytes.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// Compares two sessions at two positions: the first position from which they differ, and their
/// differences. `None` is a session's last position.
///
/// # Errors
///
/// [`Error::Usage`](crate::Error::Usage) if a position does not exist; the engine's errors, for
/// example if a position was compacted.
pub(crate) fn compare(
    here: &OpenedLog,
    at: Option<u64>,
    there: &OpenedLog,
    other_at: Option<u64>,
) -> Result<String> {
    let at = position_of(here.reader.last_position(), at.map(SequenceNumber::new))?;
    let other_at = position_of(there.reader.last_position(), other_at.map(SequenceNumber::new))?;
    let parting = here.reader.find_divergence(&there.reader)?;
    let parted = first_difference::read_difference(&parting, &here.reader, &there.reader);
    let parted = parted.map(|FirstDifference { path, sides: [here, there] }| -> Result<_> {
        Ok(document! { values: [value(&here)?, value(&there)?], path })
    });
    let parted = parted.transpose()?;
    let mut refused = None;
    let (differences, more) = cut(|take| {
        let states = || -> Result<_> {
            Ok((here.reader.state_reader_at(at)?, there.reader.state_reader_at(other_at)?))
        };
        let compared = states().and_then(|(before, after)| between_states(&before, &after, take));
        unless_refused(compared, &mut refused).map(Option::unwrap_or_default)
    })?;
    let mut bytes = 0;
    let beside = here.reader.conversations_between(at, &there.reader, other_at);
    let beside = unless_refused(beside.map_err(crate::Error::from), &mut refused)?.unwrap_or_default();
    let conversations = beside.iter().map(|conversation| rows(conversation, &mut bytes));
    let conversations = conversations.collect::<Result<Vec<_>>>()?;
    let files = workspaces::compare_files(
        &mut CaptureHistory::read(&here.reader)?,
        at,
        &mut CaptureHistory::read(&there.reader)?,
        other_at,
    );
    let side = |log: &OpenedLog, at: SequenceNumber| {
        let reader = &log.reader;
        let (session, damaged) = (reader.opening_record().session, reader.sound_end().is_some());
        document! { session, at, last: reader.last_position(), damaged }
    };
    text(&document! {
        here: side(here, at),
        there: side(there, other_at),
        parting,
        // The values at which the sessions diverge, and their path, which may lead into the contents of
        // objects; absent if the divergence has none.
        #[serde(flatten)] parted,
        // Each as the text that `diff --json` prints, without those of conversations.
        differences,
        more,
        // Reason why slices or conversations could not be compared; absent if they were.
        #[serde(flatten)] refused: refused.map(|refused| document! { refused }),
        conversations,
        files,
    })
}

/// Returns the result of a comparison. If it exceeds the memory limit or an object cannot be read,
/// sets `refused` to the reason and returns `None`, so that the rest is still shown.
pub(super) fn unless_refused<T>(compared: Result<T>, refused: &mut Option<String>) -> Result<Option<T>> {
    match compared {
        Err(failure)
            if failure.is_over_budget() || matches!(failure, crate::Error::Engine(Error::Object { .. })) =>
        {
            *refused = Some(failure.with_next());
            Ok(None)
        }
        compared => compared.map(Some),
    }
}

/// Returns the JSON form of a value at which two logs diverge, as in a step, with the object that
/// contains it.
fn value(side: &Option<DifferingValue>) -> Result<Json> {
    let Some(side) = side else { return Ok(Json::Null) };
    let read = side.bytes_at_path().map_err(str::to_owned);
    let told = read.and_then(|bytes| match JsonStream::new(bytes, ValueLimits::of_payload()) {
        Ok(value) => Ok(walk::value_line(&value, bytes, Session::payloads()).map(|line| line_json(&line))),
        Err(error) => Err(error.to_string()),
    });
    let mut told = match told {
        Ok(told) => told?,
        Err(reason) => json!({ "error": reason }),
    };
    if let Some(object) = side.object {
        told["object"] = json!({ "name": object.file_name(), "bytes": object.len });
    }
    Ok(told)
}

/// Returns the rows of a conversation: both sides' messages in the form of a step. Rows before the
/// first difference are only counted.
fn rows(conversation: &ConversationBeside, bytes: &mut usize) -> Result<Json> {
    let message = |list: &[ConversationMessage], at: Option<usize>, bytes: &mut usize| -> Result<Json> {
        let Some(message) = at.and_then(|at| list.get(at)) else { return Ok(Json::Null) };
        let line = walk::message_line(message, Session::payloads())?;
        *bytes += line.len();
        Ok(line_json(&line))
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
