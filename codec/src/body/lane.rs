//! Encodes and decodes the lane of a record: the handle of the host through which it was written.
//!
//! If a host runs again, it writes the records of one lane in the same order, regardless of the
//! timing of its threads. So a reader that compares two runs compares them lane by lane.
//!
//! # Invariants
//!
//! 1. The main lane, which all handles without their own lane share, takes no bytes.
//! 2. In every kind that a host's calls write, the fields have the same names: `in` and `lane`. A
//!    `tool_begin` has only `lane`, since its `in` names the parent operation. A `tool_end` belongs
//!    to the lane of its `tool_begin`.
//! 3. No lane changes the effect of a record.

use std::borrow::Cow;

use super::fields::{FieldWriter, MapFields, Place, map_fields, walk};
use super::lane_fields;
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, RecordKind, SequenceNumber};

/// Identifies the handle of the host through which a record was written.
///
/// ```
/// use foldlog_codec::RecordKind;
/// use foldlog_codec::body::{Lane, Rollback};
///
/// let rollback = Rollback { to: 7.into(), preserve_logs: true };
/// let mut body = rollback.encode();
/// assert!(Lane::decode(RecordKind::Rollback, &body)?.is_main());
///
/// let lane = Lane { within: None, name: Some("mailbox".into()) };
/// lane.add_to(&mut body, 0);
/// assert_eq!(Lane::decode(RecordKind::Rollback, &body)?, lane);
/// assert_eq!(Rollback::decode(&body)?, rollback);
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane<'a> {
    /// Start record of the tool run through whose handle the record was written. `None` if it was
    /// written from outside of a tool, and for a `tool_begin`, which names its parent operation
    /// instead.
    pub within: Option<SequenceNumber>,
    /// The host's name for the lane; `None` for the handle without one.
    pub name: Option<Cow<'a, str>>,
}

/// Names the fields of a kind of record that state its lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneFields {
    /// None: no host's call writes the record, or it belongs to the lane of another record.
    None,
    /// `lane`.
    NameOnly,
    /// `in` and `lane`, which the body's type does not contain.
    Separate,
    /// `in` and `lane`, which the body's type contains with its scope.
    InScope,
}

map_fields! { impl<'a> Lane<'a> {
    "in" => within,
    "lane" => name,
}}

impl<'a> Lane<'a> {
    /// Returns whether this is the main lane, which takes no bytes.
    #[inline]
    pub fn is_main(&self) -> bool {
        self.within.is_none() && self.name.is_none()
    }

    /// Decodes the lane of a record of any kind from its body. A record that is not written by a
    /// host's call belongs to the main lane. So does a `tool_end`: look at its `tool_begin`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the body is not one MessagePack map within the default limits, if
    /// its version is unsupported, or if a field of the lane is malformed. A body that decodes as
    /// one of its kind has no malformed lane.
    pub fn decode(kind: RecordKind, body: &'a [u8]) -> Result<Lane<'a>, Error> {
        let mut lane = Lane::default();
        let fields = lane_fields(kind);
        // An event has two fields of its own, and nearly all events have no others.
        let is_plain_event = kind == RecordKind::Dispatch && body.starts_with(b"\x82\xa1e");
        if fields != LaneFields::None && !is_plain_event {
            walk(kind.name(), &[], body, |place, value| lane.read_field(place, value))?;
        }
        if fields == LaneFields::NameOnly {
            lane.within = None;
        }
        Ok(lane)
    }

    /// Adds the fields of the lane to an encoded body, which extends from `start` to the end of the
    /// buffer. Leaves the buffer unchanged for the main lane, and if there is no map at `start`.
    pub fn add_to(&self, buffer: &mut Vec<u8>, start: usize) {
        if self.is_main() {
            return;
        }
        let mut body = MsgpackReader::new(buffer.get(start..).unwrap_or_default());
        let Ok(others) = body.map() else { return };
        let head = start..start + body.offset();
        let mut writer = MsgpackWriter::append_to(std::mem::take(buffer));
        let mut fields = FieldWriter { count: others as usize, writer: &mut writer };
        self.write_fields(&mut fields);
        let count = fields.count;
        writer.set_map_len(head, count);
        *buffer = writer.finish();
    }

    /// Checks a field that a body's own decoder does not know: rejects a malformed lane, and skips
    /// any other field.
    pub(super) fn check(place: Place<'_>, value: &mut MsgpackReader<'a>) -> Result<(), Error> {
        Lane::default().read_field(place, value)
    }

    /// Checks that exactly `fields` fields of a lane follow. Returns `None` if there is anything
    /// else.
    pub(super) fn ends(fields: u32, bytes: &'a [u8]) -> Option<()> {
        let mut reader = MsgpackReader::new(bytes);
        for _ in 0..fields {
            match reader.str().ok()? {
                "in" => drop(reader.unsigned().ok()?),
                "lane" => drop(reader.str().ok()?),
                _ => return None,
            }
        }
        reader.is_done().then_some(())
    }
}
