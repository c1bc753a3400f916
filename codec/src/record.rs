//! Represents one record in memory, and builds its JSON form.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, SecondsFormat};
use serde::{Serialize, Serializer};

use crate::body::json::{NameBudget, Object, Part};
use crate::body::{self, Declare, ObjectId, Rollback, ToolEnd};
use crate::msgpack::Value;
use crate::{Error, RecordKind, SequenceNumber};

/// Contains one record, or one envelope frame, without its framing.
///
/// ```
/// use foldlog_codec::body::{Policy, SnapshotBody};
/// use foldlog_codec::record::RecordNames;
/// use foldlog_codec::{RecordKind, Record};
///
/// let body = SnapshotBody { tag: Some("before".to_owned()), policies: vec![Policy::State], resources: vec![] }.encode();
/// let record = Record { sequence: 7.into(), kind: RecordKind::Snapshot, time_us: 0, body: &body };
/// let json = serde_json::to_value(record.to_json(&RecordNames::default())?).unwrap();
/// assert_eq!(json["sequence"], 7);
/// assert_eq!(json["kind"], "snapshot");
/// assert_eq!(json["time"], "1970-01-01T00:00:00.000000+00:00");
/// assert_eq!(json["tag"], "before");
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Sequence number of the record; in an envelope frame, of the next record.
    pub sequence: SequenceNumber,
    /// Kind of the record or envelope frame.
    pub kind: RecordKind,
    /// Time of the record in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// Bytes of the body. For most kinds they are one MessagePack map, see [`body`].
    pub body: &'a [u8],
}

/// Maps the ids of events and slices in records to their names, as far as the log has declared
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordNames {
    /// Names and versions of events, by event id.
    pub events: BTreeMap<u32, (String, u32)>,
    /// Names of slices, by slice id.
    pub slices: BTreeMap<u32, String>,
}

impl RecordNames {
    /// Adds the names that a declaration binds. A later declaration of an id replaces an earlier
    /// one.
    pub fn learn(&mut self, declare: &Declare) {
        for event in &declare.events {
            self.events.insert(event.id, (event.name.clone(), event.version));
        }
        for slice in &declare.slices {
            self.slices.insert(slice.id, slice.name.clone());
        }
    }

    pub(crate) fn slice(&self, id: u32) -> Cow<'_, str> {
        self.slices.get(&id).map_or_else(|| fallback_name(id), Cow::from)
    }
}

/// Returns a substitute for the name of a slice that the log has not declared.
fn fallback_name(id: u32) -> Cow<'static, str> {
    Cow::from(format!("slice-{id}"))
}

/// Formats a time, in microseconds since 1970-01-01 UTC, as ISO 8601 with microseconds and offset.
/// A time that no calendar date can express is formatted as the number itself.
pub fn time_text(time_us: i64) -> String {
    DateTime::from_timestamp_micros(time_us)
        .map_or_else(|| time_us.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Micros, false))
}

impl<'a> Record<'a> {
    /// Returns the ids of the objects that the record's payloads refer to; none if its body does
    /// not decode.
    pub fn objects(&self) -> BTreeSet<ObjectId> {
        body::objects(self.kind, self.body)
    }

    /// Returns the rollback if the record is one or includes one: the end of a call that was not
    /// committed rolls STATE back to the start of the call.
    ///
    /// # Errors
    ///
    /// [`Error::Body`] if the body of such a record does not decode.
    pub fn rollback(&self) -> Result<Option<Rollback>, Error> {
        match self.kind {
            RecordKind::Rollback => Rollback::decode(self.body).map(Some),
            RecordKind::ToolEnd => Ok(ToolEnd::decode(self.body)?.rollback()),
            _ => Ok(None),
        }
    }

    /// Returns the fields of the record's JSON form as a value: `sequence`, `time`, `kind`, `bytes`
    /// and the fields of its body under their full names. Payloads are as they were recorded, so
    /// that two records can be compared value by value; [`to_json`](Record::to_json) writes them in
    /// their JSON form.
    ///
    /// The body of an unknown kind becomes the field `body`: its value, or hexadecimal digits if it
    /// is not a value within
    /// [`ValueLimits::of_payload`](crate::msgpack::ValueLimits::of_payload). A payload over these
    /// limits becomes `{"$msgpack": "hex"}`, so that the JSON never nests deeper than readers of
    /// JSON accept. Regardless of the length of the names, the function takes at most 64 times the
    /// memory of the body and a mebibyte.
    ///
    /// # Errors
    ///
    /// - [`Error::Body`] if the body of a known kind does not decode as that kind.
    /// - [`Error::Malformed`] if a payload contains text that is not UTF-8.
    /// - [`Error::Limit`] if the names in the JSON form would take too much memory.
    pub fn to_value(&self, names: &RecordNames) -> Result<Value, Error> {
        self.to_json(names).map(|json| Part::Map(json.pairs).into_value())
    }

    /// Returns the record's JSON form for serialization: the same fields as
    /// [`to_value`](Record::to_value), each payload in its [JSON form](crate::msgpack). Payloads
    /// stay MessagePack in the body until they are serialized, token by token. The form takes at
    /// most 48 MiB in addition to the decoded body.
    ///
    /// # Errors
    ///
    /// - [`Error::Body`] if the body of a known kind does not decode as that kind.
    /// - [`Error::Malformed`] if a payload contains text that is not UTF-8.
    /// - [`Error::Limit`] if the names in the JSON form would take too much memory.
    pub fn to_json(&self, names: &RecordNames) -> Result<RecordJson<'a>, Error> {
        let mut object = Object::default();
        let mut names = NameBudget::for_body(self.body, names);
        if !self.kind.is_envelope() {
            object.set("sequence", Value::from(self.sequence));
        }
        object.set("time", Value::from(time_text(self.time_us)));
        object.set("kind", Value::from(self.kind.to_string()));
        object.set("bytes", Value::from(self.body.len() as u64));
        body::set_json(self.kind, self.body, &mut object, &mut names)?;
        Ok(RecordJson { pairs: object.pairs })
    }
}

/// Contains the JSON form of a record, in which payloads are still MessagePack.
#[derive(Debug, Default)]
pub struct RecordJson<'a> {
    pairs: Vec<(&'static str, Part<'a>)>,
}

impl RecordJson<'_> {
    /// Sets a field: in its place if the form has it, otherwise at the end.
    pub fn set(&mut self, key: &'static str, value: Value) {
        match self.pairs.iter_mut().find(|(other, _)| *other == key) {
            Some((_, part)) => *part = Part::Value(value),
            None => self.pairs.push((key, Part::Value(value))),
        }
    }

    /// Replaces texts and values of hosts, tools and models by their [type, length and
    /// digest](crate::msgpack::LeftOut): payloads, and the messages of failures. Names, numbers,
    /// tags, reasons of decisions and references to objects are unchanged.
    pub fn leave_out_payloads(&mut self) {
        self.pairs.iter_mut().for_each(|(key, part)| part.leave_out(key));
    }
}

impl Serialize for RecordJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.pairs.iter().map(|(key, part)| (key, part)))
    }
}
