//! Positions as a person names them, by number or by a snapshot's tag, resolved in a log.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::str::FromStr;

use foldlog::SequenceNumber;
use foldlog::inspect::LogReader;
use foldlog_codec::escape;

use crate::{Error, Result};

/// Names a position by its number or by the tag of a snapshot. `tag:NAME` is always a tag, even if
/// NAME is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Sequence number.
    At(SequenceNumber),
    /// Tag of a snapshot; the latest snapshot with this tag counts.
    Tagged(String),
}

impl FromStr for Position {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Position, Infallible> {
        let number = || text.parse().ok().map(Position::At);
        let tagged = || Position::Tagged(text.strip_prefix("tag:").unwrap_or(text).to_owned());
        Ok(number().unwrap_or_else(tagged))
    }
}

/// Resolves a position. `None` is the last position.
///
/// # Errors
///
/// - [`Error::Usage`] if the position is beyond the log's end, or no snapshot has the tag.
/// - [`Error::Engine`] if the log cannot be read.
pub fn position(reader: &LogReader, asked: Option<Position>) -> Result<SequenceNumber> {
    let tag = match asked {
        None => return Ok(reader.last_position()),
        Some(Position::At(at)) => return position_at(reader, Some(at)),
        Some(Position::Tagged(tag)) => tag,
    };
    let snapshots = reader.snapshots()?;
    if let Some(found) = snapshots.iter().rfind(|snapshot| snapshot.tag.as_deref() == Some(&*tag)) {
        return Ok(found.position);
    }
    let tags: BTreeSet<&str> = snapshots.iter().filter_map(|snapshot| snapshot.tag.as_deref()).collect();
    let last = reader.last_position();
    let next = match tags.is_empty() {
        true => format!("no snapshot has a tag: give a position from 0 to {last}"),
        false => {
            let tags: Vec<_> = tags.into_iter().map(|tag| format!("`{}`", escape::text(tag))).collect();
            format!("the tags are {}; or give a position from 0 to {last}", tags.join(", "))
        }
    };
    Err(Error::usage(format!("no snapshot has the tag `{}`", escape::text(&tag)), next))
}

/// Resolves the sequence number of a record, which may be missing or damaged. Returns `None` for
/// `None`.
///
/// # Errors
///
/// Those of [`position`] that concern a tag.
pub fn record_at(reader: &LogReader, asked: Option<&Position>) -> Result<Option<SequenceNumber>> {
    match asked {
        None => Ok(None),
        Some(Position::At(at)) => Ok(Some(*at)),
        Some(tagged) => position(reader, Some(tagged.clone())).map(Some),
    }
}

/// Checks a position by its sequence number. `None` is the last position.
///
/// # Errors
///
/// [`Error::Usage`] if the position is beyond the log's end, [`Error::Engine`] with the damage if
/// it is beyond the end of the intact part.
pub fn position_at(reader: &LogReader, asked: Option<SequenceNumber>) -> Result<SequenceNumber> {
    match (reader.sound_end(), asked) {
        (Some(end), Some(asked)) if asked >= end.sequence => Err(end.damage.clone().into()),
        _ => position_of(reader.last_position(), asked),
    }
}

/// Checks that a position is not after `last`. `None` is `last`.
///
/// # Errors
///
/// [`Error::Usage`] if the position is after `last`.
pub fn position_of(last: SequenceNumber, asked: Option<SequenceNumber>) -> Result<SequenceNumber> {
    match asked {
        Some(asked) if asked > last => {
            let what = format!("there is no position {asked}: the last one is {last}");
            Err(Error::usage(what, format!("give a position from 0 to {last}")))
        }
        asked => Ok(asked.unwrap_or(last)),
    }
}
