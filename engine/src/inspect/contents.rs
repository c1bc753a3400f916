//! Reads the events and calls of a log in order, to be decoded as a host's types.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use foldlog_codec::body::{
    Action, CallOrigin, Cause, Dispatch, Dropped, Observed, Outcome, Payload, ResourceSnapshot, ToolBegin,
    ToolEnd,
};
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::msgpack::{self, Value};
use foldlog_codec::record::RecordNames;
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};
use serde::de::DeserializeOwned;

use super::LogReader;
use crate::error::{Error, Result};
use crate::fold::log_source::LogSource;
use crate::log::dropped_ranges::Compaction;
use crate::log::objects::Objects;
use crate::session::SessionLog;
use crate::types::{Event, read_event};

/// A record as [`LogReader::contents`] passes it on.
#[derive(Debug)]
pub struct DecodedRecord<'a> {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub time: DateTime<Utc>,
    /// Content of the record.
    pub content: RecordedContent,
    record: &'a Record<'a>,
}

/// Content of a record, for readers of events and calls.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordedContent {
    /// An event was dispatched.
    Event(RecordedEvent),
    /// A run of a tool began.
    CallBegun(RecordedBegin),
    /// A run of a tool ended.
    CallEnded(RecordedEnd),
    /// A value from outside was recorded.
    Observed(RecordedObservation),
    /// An event was dispatched, or slices were changed otherwise, and a compaction has dropped the
    /// body of the record. Only [`contents_left`](LogReader::contents_left) returns such a record.
    Dropped,
    /// Any other record.
    Other(RecordKind),
}

/// An event that was dispatched.
#[derive(Debug)]
pub struct RecordedEvent {
    /// Name of the event.
    pub name: String,
    /// Version at which it was recorded.
    pub version: u32,
    sequence: SequenceNumber,
    bytes: Arc<[u8]>,
}

/// A value from outside.
#[derive(Debug)]
pub struct RecordedObservation {
    /// Name of the observation.
    pub name: String,
    sequence: SequenceNumber,
    bytes: Arc<[u8]>,
}

/// The start record of a tool's run.
#[derive(Debug)]
pub struct RecordedBegin {
    /// Operation: the sequence number of its first start record.
    pub operation: OperationId,
    /// Operation within which it runs.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: String,
    /// Id that the provider gave the call.
    pub call_id: Option<String>,
    /// Answer that requested the call.
    pub origin: Option<CallOrigin>,
    /// Whether the tool only reads.
    pub reads_only: bool,
    /// Capture of each resource before the run.
    pub before: RecordedCaptures,
}

/// The end record of a tool's run.
#[derive(Debug)]
pub struct RecordedEnd {
    /// Sequence number of the start record.
    pub begin: SequenceNumber,
    /// Operation: the sequence number of its first start record.
    pub operation: OperationId,
    /// Name of the tool.
    pub tool: String,
    /// Id that the provider gave the call.
    pub call_id: Option<String>,
    /// Outcome of the run.
    pub outcome: Outcome,
    /// Cause of the failure.
    pub cause: Option<Cause>,
    /// Exit code of the command that the tool ran, if it is known.
    pub exit_code: Option<i32>,
    /// Whether its changes were rolled back.
    pub rolled_back: bool,
    /// Text for the model.
    pub shown: Option<String>,
    /// Duration of the run in microseconds.
    pub elapsed_us: u64,
    /// Capture of each resource after the run, before any rollback of its changes, if the record
    /// contains it.
    pub after: RecordedCaptures,
}

/// Captures of resources in their recorded form.
#[derive(Debug, Default)]
pub struct RecordedCaptures {
    sequence: SequenceNumber,
    of_each: BTreeMap<String, Arc<[u8]>>,
}

impl RecordedEnd {
    /// Returns whether the changes of the run stay: it committed, or waits for its result. The
    /// changes of any other run were rolled back.
    pub fn is_kept(&self) -> bool {
        matches!(self.outcome, Outcome::Committed | Outcome::Suspended)
    }
}

impl RecordedCaptures {
    /// Returns the names of the resources, in ascending order. Resources whose captures end with
    /// their process are left out.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.of_each.keys().map(String::as_str)
    }

    /// Reads the capture of a resource; `None` if the record has none.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the capture is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, resource: &str) -> Result<Option<T>> {
        let Some(bytes) = self.of_each.get(resource) else { return Ok(None) };
        read(resource, self.sequence, bytes).map(Some)
    }
}

impl RecordedEvent {
    /// Reads the event as the host's type, upgraded to its current version; `None` if it is another
    /// event.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the event cannot be read or upgraded, [`Error::NewerVersion`] if a
    /// later version of the host recorded it.
    pub fn read<E: Event>(&self) -> Result<Option<E>> {
        if self.name != E::NAME {
            return Ok(None);
        }
        read_event(self.version, self.sequence, &self.bytes).map(Some)
    }

    /// Returns the event as a value, in the form of the version at which it was recorded. For hosts
    /// that know its name only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if it is not a value.
    pub fn value(&self) -> Result<Value> {
        Value::decode(&self.bytes).map_err(undecoded(&self.name, self.sequence))
    }
}

impl RecordedObservation {
    /// Reads the value as the host's type.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the value is not a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        read(&self.name, self.sequence, &self.bytes)
    }
}

impl<'a> DecodedRecord<'a> {
    fn new(record: &'a Record<'a>, content: RecordedContent) -> DecodedRecord<'a> {
        let time = DateTime::from_timestamp_micros(record.time_us).unwrap_or_default();
        DecodedRecord { sequence: record.sequence, time, content, record }
    }
}

impl DecodedRecord<'_> {
    /// Returns the length of the record's body in bytes, or the original length if the body was
    /// dropped. Objects that it names are not counted.
    pub fn len(&self) -> u64 {
        let dropped = matches!(self.content, RecordedContent::Dropped);
        let dropped = dropped.then(|| Dropped::decode(self.record.body).ok()).flatten();
        dropped.map_or(self.record.body.len() as u64, |dropped| dropped.len)
    }

    /// Returns whether the record has an empty body.
    pub fn is_empty(&self) -> bool {
        self.record.body.is_empty()
    }

    /// Returns the BLAKE3 hash of the record's number, kind, time and body, as a
    /// [seal](crate::inspect) covers them. For a dropped body, it is the hash of the original.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = SegmentDigest::new();
        digest.update(self.record);
        digest.finish()
    }
}

fn read<T: DeserializeOwned>(name: &str, sequence: SequenceNumber, bytes: &[u8]) -> Result<T> {
    msgpack::from_slice(bytes).map_err(undecoded(name, sequence))
}

fn undecoded(name: &str, sequence: SequenceNumber) -> impl Fn(foldlog_codec::Error) -> Error {
    move |error| Error::Decode { name: name.to_owned(), sequence, reason: error.to_string() }
}

impl LogReader {
    /// Passes each record from `from` through `through` to `visit`, in order, with its event, its
    /// call, or its observation. That includes abandoned records:
    /// [`live_path`](LogReader::live_path) distinguishes them.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] for a record whose body a compaction has dropped,
    /// [`Error::Inconsistent`] if the body of a record cannot be read, [`Error::Object`] if an
    /// object is missing or damaged, [`Error::Io`] if the log can no longer be read; the error of
    /// `visit`.
    pub fn contents(
        &self,
        from: impl Into<SequenceNumber>,
        through: impl Into<SequenceNumber>,
        mut visit: impl FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        let source = self.log_source(&self.outline);
        each_content(&source, from.into()..=through.into(), false, &mut visit)
    }

    /// Passes each record on as [`contents`](LogReader::contents) does, but records whose bodies a
    /// compaction has dropped as [`RecordedContent::Dropped`]. Their digests and lengths are the
    /// original ones.
    ///
    /// # Errors
    ///
    /// The errors of [`contents`](LogReader::contents), except [`Error::Compacted`].
    pub fn contents_left(
        &self,
        from: impl Into<SequenceNumber>,
        through: impl Into<SequenceNumber>,
        mut visit: impl FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        let source = self.log_source(&self.outline);
        each_content(&source, from.into()..=through.into(), true, &mut visit)
    }
}

impl SessionLog<'_> {
    /// Passes each record from `from` through `through` to `visit`, as [`LogReader::contents`]
    /// does. The session is not locked in the meantime.
    pub fn contents(
        &self,
        from: impl Into<SequenceNumber>,
        through: impl Into<SequenceNumber>,
        mut visit: impl FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        each_content(&self.session.log_source(), from.into()..=through.into(), false, &mut visit)
    }

    /// Passes each record on as [`LogReader::contents_left`] does. The session is not locked in the
    /// meantime.
    pub fn contents_left(
        &self,
        from: impl Into<SequenceNumber>,
        through: impl Into<SequenceNumber>,
        mut visit: impl FnMut(DecodedRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        each_content(&self.session.log_source(), from.into()..=through.into(), true, &mut visit)
    }
}

/// Passes the content of each record to `visit`. Records whose bodies were dropped are passed only
/// if `keeps_dropped`, and are an error otherwise.
fn each_content(
    source: &LogSource,
    range: RangeInclusive<SequenceNumber>,
    keeps_dropped: bool,
    visit: &mut dyn FnMut(DecodedRecord<'_>) -> Result<()>,
) -> Result<()> {
    let mut names = RecordNames::default();
    names.learn(&source.names.all());
    let compaction = source.places.compaction.as_deref();
    let reading = ContentReading { names: &names, objects: &source.objects, compaction };
    source.places.read(&source.storage, *range.start(), *range.end(), &mut |record| match record.kind {
        RecordKind::Dropped if keeps_dropped => visit(DecodedRecord::new(&record, RecordedContent::Dropped)),
        _ => visit(reading.decode_record(&record)?),
    })
}

pub(super) struct ContentReading<'a> {
    pub(super) names: &'a RecordNames,
    pub(super) objects: &'a Objects,
    pub(super) compaction: Option<&'a Compaction>,
}

impl ContentReading<'_> {
    pub(super) fn decode_record<'a>(&self, record: &'a Record<'a>) -> Result<DecodedRecord<'a>> {
        Ok(DecodedRecord::new(record, self.content_of(record)?))
    }

    fn payload(&self, payload: Payload<'_>) -> Result<Arc<[u8]>> {
        self.objects.resolve(payload).map(Arc::from)
    }

    fn content_of(&self, record: &Record<'_>) -> Result<RecordedContent> {
        let sequence = record.sequence;
        let bad = Error::unread(sequence);
        let content = match record.kind {
            RecordKind::Dispatch => match Dispatch::decode(record.body).map_err(bad)?.action {
                Action::Event { event, data } => {
                    let declared = self.names.events.get(&event).cloned();
                    let (name, version) = declared.unwrap_or_else(|| (format!("#{event}"), 0));
                    let bytes = self.payload(data)?;
                    RecordedContent::Event(RecordedEvent { name, version, sequence, bytes })
                }
                _ => RecordedContent::Other(record.kind),
            },
            RecordKind::Observed => {
                let Observed { name, data, .. } = Observed::decode(record.body).map_err(bad)?;
                let bytes = self.payload(data)?;
                RecordedContent::Observed(RecordedObservation { name, sequence, bytes })
            }
            RecordKind::ToolBegin => {
                let begin = ToolBegin::decode(record.body).map_err(bad)?;
                RecordedContent::CallBegun(RecordedBegin {
                    operation: begin.again.unwrap_or(OperationId::from(sequence)),
                    parent: begin.parent,
                    tool: begin.tool.into_owned(),
                    call_id: begin.call_id.map(|id| id.into_owned()),
                    origin: begin.origin,
                    reads_only: begin.reads_only,
                    before: self.captures(sequence, begin.resources)?,
                })
            }
            RecordKind::ToolEnd => {
                let end = ToolEnd::decode(record.body).map_err(bad)?;
                let text = |shown| read("shown", sequence, &self.payload(shown)?);
                let shown = end.shown.map(text).transpose()?;
                RecordedContent::CallEnded(RecordedEnd {
                    begin: end.begin,
                    operation: end.operation(),
                    tool: end.tool.into_owned(),
                    call_id: end.call_id.map(|id| id.into_owned()),
                    outcome: end.outcome,
                    cause: end.cause,
                    exit_code: end.exit_code,
                    rolled_back: end.rolls_back,
                    shown,
                    elapsed_us: end.elapsed_us,
                    after: self.captures(sequence, end.resources)?,
                })
            }
            RecordKind::Dropped => {
                let nothing = Error::Compacted { position: sequence, earliest: sequence };
                return Err(self.compaction.map_or(nothing, |compaction| compaction.unknown(sequence)));
            }
            kind => RecordedContent::Other(kind),
        };
        Ok(content)
    }

    fn captures(
        &self,
        sequence: SequenceNumber,
        resources: Vec<ResourceSnapshot<'_>>,
    ) -> Result<RecordedCaptures> {
        let mut of_each = BTreeMap::new();
        for ResourceSnapshot { resource, snapshot } in resources {
            if let Some(snapshot) = snapshot {
                of_each.insert(resource.into_owned(), self.payload(snapshot)?);
            }
        }
        Ok(RecordedCaptures { sequence, of_each })
    }
}
