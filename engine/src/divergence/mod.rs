//! Locates the difference between two runs of one log: the record, the slice, and the path of the
//! value.
//!
//! A replay produces records again and compares each with the recorded one. If they differ, it
//! reports a [`Divergence`]. All replays do: of the reducers alone, of a host, and in the binary.
//!
//! | module | contents |
//! |---|---|
//! | `compare` | the comparison of two bodies of one kind |
//! | `walk` | the first difference of two values, and its path |
//! | `left_out` | the values that are not compared |
//!
//! # Paths
//!
//! A path begins with `$`. It denotes the record's body or, if a slice is named, the record's
//! effect on that slice. Fields of the body have the names of the record's JSON form, except that
//! an event's payload is `event` and its name is `name`. Fields of an effect are `removed`,
//! `added`, `before` and `version`. `.name` or `["any key"]` selects a value of a map, `[3]` an
//! element of an array, counted from 0. If a whole slice is compared, `items` are its items. A
//! difference that only bytes show has the path `$[byte 17]`.
//!
//! # Compared values
//!
//! Two bodies of equal bytes are the same. Otherwise their fields are compared one by one: integers
//! by value, floats bit by bit and with their width, maps with the order of their keys. Strings and
//! byte strings are distinct.
//!
//! Payloads that are objects are equal if their references, which are hashes, are equal. Otherwise
//! the objects of dispatches are compared by content, like smaller payloads, and those of other
//! records are different. Text that is JSON, such as a call's arguments, is compared as JSON first,
//! and then as text.
//!
//! # Values shown but not compared
//!
//! | record | values |
//! |---|---|
//! | tool_begin | `resources`: the captures, which a replay does not make; `shown`: why a call was closed without running |
//! | tool_end | `elapsed_us`; `not_undone[*].reason`; `shown` of an operation that was neither committed nor suspended, which is the error's text |
//! | snapshot | `resources`: the captures |
//! | request | `failure.message` |
//! | input | `content` if both sides contain an error's text (`is_error`) |
//! | observed | `data` of the engine's own record of a call's programs: process ids and the like |
//! | dispatch | the paths that a [`LeaveOut`] names for the event |
//! | all | in texts: addresses, that is `0x` and 8 to 16 hexadecimal digits |
//!
//! If the host has raised the version of an event or its items, the recorded ones are upgraded
//! before the comparison, and versions are not compared.
//!
//! Times of records and envelope frames are not compared either, since no body contains them. If
//! two bodies differ in an excluded value, differences that only bytes show, such as an integer
//! that is longer than necessary, are not searched for.
//!
//! # Invariants
//!
//! 1. Two bodies that differ give a difference, unless they differ only in values that are not
//!    compared.
//! 2. No body, however hostile, makes a comparison panic. A comparison takes at most 64 times the
//!    memory of the bodies and of the objects that they name, plus a mebibyte. It takes none if
//!    they are equal.

mod compare;
mod left_out;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;

use foldlog_codec::body::{Lane, Payload};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{RecordKind, SequenceNumber, escape};
use serde::Serialize;

use crate::fold::record_kinds::RecordRules;
use crate::names::DeclaredNames;

pub use left_out::LeaveOut;

pub(crate) use compare::{
    BodyComparison, ReducedEvent, between_logs, compare_effects, effect_value, first_difference,
    resolve_effects,
};

/// Number of characters of a value that [`Divergence`] displays.
const VALUE_CHARS_MAX: usize = 200;

/// Number of characters of a value in which [`Divergence`] searches for the part to display.
const VALUE_CHARS_SOUGHT: usize = 1 << 16;

/// Number of characters before the first difference of two long values that [`Divergence`]
/// displays.
const VALUE_CHARS_BEFORE: usize = 40;

/// Describes how a produced record differs from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DivergenceKind {
    /// The recorded record was produced, but differently.
    Changed,
    /// The recorded record was not produced.
    Missing,
    /// A record was produced that is not recorded.
    Extra,
}

/// Identifies the lane of a record: the host's handle through which it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LaneName {
    /// Start record of the tool run through whose handle the record was written; `None` if it was
    /// written from outside.
    pub within: Option<SequenceNumber>,
    /// Name that the host gave the lane; `None` for the handle without one.
    pub name: Option<String>,
}

impl LaneName {
    /// Returns whether this is the main lane.
    pub fn is_main(&self) -> bool {
        self.within.is_none() && self.name.is_none()
    }
}

impl From<Lane<'_>> for LaneName {
    fn from(lane: Lane<'_>) -> LaneName {
        LaneName { within: lane.within, name: lane.name.map(std::borrow::Cow::into_owned) }
    }
}

impl fmt::Display for LaneName {
    /// Displays the lane in words: ``lane `mailbox` ``, `lane of the run begun at 12`, or `main
    /// lane`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.within, &self.name) {
            (None, None) => f.write_str("main lane"),
            (Some(begin), None) => write!(f, "lane of the run begun at {begin}"),
            (None, Some(name)) => write!(f, "lane `{}`", escape::text(name)),
            (Some(begin), Some(name)) => {
                write!(f, "lane `{}` of the run begun at {begin}", escape::text(name))
            }
        }
    }
}

/// Describes the place where a replay differs from its log.
///
/// Displays as one line, with external text escaped and values shortened. Serializes as one object
/// with the full values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Sequence number of the recorded record. For an [`Extra`](DivergenceKind::Extra) one: the
    /// number that the record was produced with.
    pub sequence: SequenceNumber,
    /// Lane of the record.
    pub lane: LaneName,
    /// Kind of the difference.
    pub divergence: DivergenceKind,
    /// Kind of the record, optionally followed by a space and a name, such as `dispatch chat.said`.
    /// The name is that of an event, action, observation or tool, or the evaluation id of an input
    /// or request.
    pub record: String,
    /// Related recorded record; absent if there is none. For a [`Missing`](DivergenceKind::Missing)
    /// record it is the one with which the host continued instead; for an
    /// [`Extra`](DivergenceKind::Extra) record it is the one recorded in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<OtherRecord>,
    /// Name of the slice with the difference; `None` if the difference is in no slice.
    pub slice: Option<String>,
    /// Path of the value that differs; `$` if the whole record does.
    pub path: String,
    /// Recorded value; absent if none is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// Produced value; absent if none was produced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produced: Option<Value>,
    /// Nature of the difference if the values do not show it, such as `order of keys`; absent
    /// otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Identifies a recorded record next to one that is missing or extra.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtherRecord {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Kind and name of the record, as in [`Divergence::record`].
    pub record: String,
}

/// The first difference of two bodies of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    pub(crate) slice: Option<String>,
    pub(crate) path: String,
    pub(crate) recorded: Option<Value>,
    pub(crate) produced: Option<Value>,
    /// Nature of the difference if the values do not show it.
    pub(crate) note: Option<String>,
}

impl Difference {
    /// Returns the difference of a recorded value that the host's types cannot read now, for this
    /// reason.
    pub(crate) fn unread(path: &str, recorded: Payload<'_>, reason: String) -> Difference {
        let recorded = Some(compare::payload_value(recorded));
        Difference { slice: None, path: path.to_owned(), recorded, produced: None, note: Some(reason) }
    }

    /// Returns the difference of an end record whose tool left a resource in another state, at
    /// these paths.
    pub(crate) fn left_otherwise(resource: &str, paths: Vec<String>) -> Difference {
        Difference {
            slice: None,
            path: format!("$.resources{}", Value::Str(resource.to_owned()).path_step()),
            recorded: Some(Value::Array(Vec::new())),
            produced: Some(Value::Array(paths.into_iter().map(Value::Str).collect())),
            note: Some("paths at which the tool left it otherwise".to_owned()),
        }
    }
}

impl Divergence {
    /// Returns the divergence of a record that was produced differently. `record` comes from
    /// [`shown_name`].
    pub(crate) fn changed(
        sequence: SequenceNumber,
        lane: LaneName,
        record: String,
        difference: Difference,
    ) -> Divergence {
        let Difference { slice, path, recorded, produced, note } = difference;
        let divergence = DivergenceKind::Changed;
        Divergence { sequence, lane, divergence, record, other: None, slice, path, recorded, produced, note }
    }

    /// Returns the divergence of a recorded record that was not produced, from its body.
    pub(crate) fn missing(
        sequence: SequenceNumber,
        lane: LaneName,
        kind: RecordKind,
        body: &[u8],
        names: &DeclaredNames,
    ) -> Divergence {
        let extra = Divergence::extra(sequence, lane, kind, body, names);
        Divergence { divergence: DivergenceKind::Missing, recorded: extra.produced, produced: None, ..extra }
    }

    /// Returns the divergence of a record that was produced and is not recorded, from its body.
    pub(crate) fn extra(
        sequence: SequenceNumber,
        lane: LaneName,
        kind: RecordKind,
        body: &[u8],
        names: &DeclaredNames,
    ) -> Divergence {
        Divergence {
            sequence,
            lane,
            divergence: DivergenceKind::Extra,
            record: shown_name(kind, body, names),
            other: None,
            slice: None,
            path: "$".to_owned(),
            recorded: None,
            produced: Some(compare::named_form(kind, body, names)),
            note: None,
        }
    }
}

/// Returns the kind and name of a record in the form of [`Divergence::record`].
pub(crate) fn shown_name(kind: RecordKind, body: &[u8], names: &DeclaredNames) -> String {
    match (RecordRules::of(kind).subject)(body, names) {
        Some(subject) => format!("{kind} {subject}"),
        None => kind.to_string(),
    }
}

struct RecordLabel<'a>(&'a str);

impl fmt::Display for RecordLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once(' ') {
            Some((kind, name)) => write!(f, "{} `{}`", escape::text(kind), escape::text(name)),
            None => write!(f, "{}", escape::text(self.0)),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = RecordLabel(&self.record);
        let lane = if self.lane.is_main() { String::new() } else { format!(", {}", self.lane) };
        let sequence = self.sequence;
        match (self.divergence, &self.other) {
            (DivergenceKind::Missing, None) => {
                return write!(f, "record {sequence} ({record}{lane}) was not produced");
            }
            (DivergenceKind::Missing, Some(next)) => {
                let (after, next) = (next.sequence, RecordLabel(&next.record));
                write!(f, "record {sequence} ({record}{lane}) was not produced")?;
                return write!(f, ": the host went on with record {after} ({next})");
            }
            (DivergenceKind::Extra, None) => {
                return write!(f, "record {sequence} ({record}{lane}) was produced and is not recorded");
            }
            (DivergenceKind::Extra, Some(there)) => {
                let (sequence, recorded) = (there.sequence, RecordLabel(&there.record));
                let lane = if self.lane.is_main() { String::new() } else { format!(" ({})", self.lane) };
                write!(f, "the host wrote {record}{lane} where ")?;
                return write!(f, "record {sequence} ({recorded}) is recorded");
            }
            (DivergenceKind::Changed, _) => {}
        }
        write!(f, "record {sequence} ({record}{lane}) differs ")?;
        if let Some(slice) = &self.slice {
            write!(f, "in slice `{}` ", escape::text(slice))?;
        }
        write!(f, "at {}", escape::text(&self.path))?;
        if let Some(note) = &self.note {
            write!(f, " ({})", escape::text(note))?;
        }
        let (recorded, produced) = shortened(self.recorded.as_ref(), self.produced.as_ref());
        write!(f, ": recorded {recorded}, produced {produced}")
    }
}

/// Returns the escaped JSON of two values, or `nothing`. Of long values, returns the part around
/// their first difference.
pub(crate) fn shortened(recorded: Option<&Value>, produced: Option<&Value>) -> (String, String) {
    let json = |value: Option<&Value>| match value {
        Some(value) => escape::json_beginning(value, VALUE_CHARS_SOUGHT),
        None => "nothing".to_owned(),
    };
    let (recorded, produced) = (json(recorded), json(produced));
    let alike = recorded.chars().zip(produced.chars()).take_while(|(old, new)| old == new).count();
    let from = alike.saturating_sub(VALUE_CHARS_BEFORE);
    let cut = |text: &str| {
        let len = text.chars().count();
        if len <= VALUE_CHARS_MAX {
            return text.to_owned();
        }
        // The beginning alone would show no difference.
        let from = if alike < VALUE_CHARS_MAX { 0 } else { from };
        let (before, after) =
            (if from > 0 { "…" } else { "" }, if len - from > VALUE_CHARS_MAX { "…" } else { "" });
        let part: String = text.chars().skip(from).take(VALUE_CHARS_MAX).collect();
        format!("{before}{part}{after}")
    };
    (cut(&recorded), cut(&produced))
}
