//! Counts the contents of a session's log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use foldlog::inspect::{self, FrameInfo, LogReader, SegmentInfo, StateReader};
use foldlog::{Error, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::{
    Action, AddedItems, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Import, ObjectId, Payload,
    ToolEnd,
};
use foldlog_codec::segment::HEADER_LEN;
use serde::Serialize;
use uuid::Uuid;

use crate::Result;
use crate::spend::SpendReader;

mod spent;

pub use spent::{ModelStats, SpentAt, ToolStats};

/// Statistics of a session's log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records.
    pub records: u64,
    /// Number of records that no rollback has abandoned.
    pub live_records: u64,
    /// Number of records that a rollback has abandoned.
    pub abandoned_records: u64,
    /// Number of snapshot records, including abandoned ones.
    pub snapshots: u64,
    /// Number of rollback records, including abandoned ones. The end record of a rolled-back call
    /// has another kind and is not counted.
    pub rollbacks: u64,
    /// Bytes of the segments that belong to the log.
    pub used_bytes: u64,
    /// Length of the segments' files in bytes, including preallocated space.
    pub allocated_bytes: u64,
    /// Length of the segments' headers in bytes.
    pub segment_header_bytes: u64,
    /// Bytes of the torn tail, which were never acknowledged as durable and do not belong to the
    /// log.
    pub torn_bytes: u64,
    /// Segments, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// Frames by kind, in the order of the kinds' numbers.
    pub kinds: Vec<KindStats>,
    /// Events, in the order of their names.
    pub events: Vec<EventStats>,
    /// Slices, in the order of their names.
    pub slices: Vec<SliceStats>,
    /// Objects in the session's directory `objects`, and objects that records name.
    pub objects: ObjectStats,
    /// Files in the session's directory `snapshots`, which contains images, in the order of their
    /// names.
    pub images: Vec<ImageStats>,
    /// Models that received requests, in the order of their names.
    pub models: Vec<ModelStats>,
    /// Tools that were called, in the order of their names.
    pub tools: Vec<ToolStats>,
    /// Sums spent at some records, in their order; empty if no record reports any.
    pub spent: Vec<SpentAt>,
}

/// Counts the frames of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct KindStats {
    /// Name of the kind.
    pub kind: String,
    /// Whether the frames are the log's own notes (envelope frames), not records of the session.
    pub envelope: bool,
    /// Number of frames.
    pub frames: u64,
    /// Bytes of the frames, including frame headers.
    pub bytes: u64,
}

/// Counts the dispatches of one event.
#[derive(Clone, Debug, Serialize)]
pub struct EventStats {
    /// Name of the event.
    pub event: String,
    /// Number of records.
    pub records: u64,
    /// Bytes of the records' payloads. A payload in the object directory counts once for each
    /// record that names it.
    pub payload_bytes: u64,
}

/// Counts the items of one slice.
#[derive(Clone, Debug, Serialize)]
pub struct SliceStats {
    /// Name of the slice.
    pub slice: String,
    /// Policy of the slice: `state`, `log` or `cache`.
    pub policy: &'static str,
    /// Number of items in the slice at the log's end.
    pub live_items: u64,
    /// Bytes of the payloads of these items.
    pub live_bytes: u64,
    /// Number of items that were ever added to the slice, including those of abandoned records.
    pub ever_items: u64,
    /// Bytes of the payloads of all items ever added.
    pub ever_bytes: u64,
}

/// Counts objects.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ObjectStats {
    /// Number of objects in the directory.
    pub count: u64,
    /// Bytes of the objects in the directory.
    pub bytes: u64,
    /// Number of different objects that records name.
    pub named_count: u64,
    /// Bytes of the different objects that records name, according to the records.
    pub named_bytes: u64,
}

/// Describes a file in the directory of images.
#[derive(Clone, Debug, Serialize)]
pub struct ImageStats {
    /// Name of the file.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Collects the statistics of a log.
///
/// # Errors
///
/// [`crate::Error::Engine`] if the log is corrupt or cannot be read, [`crate::Error::File`] if its
/// directory of objects or images cannot be read.
pub fn stats(reader: &LogReader) -> Result<Stats> {
    let segments = reader.segments()?;
    let state = reader.state_reader()?;
    let mut counts = FrameCounts { state: Some(&state), ..FrameCounts::default() };
    let (mut spending, mut sources) = (spent::SpendTally::default(), SpendReader::new(reader));
    reader.frames(|frame| {
        spending.take(&frame.record, &mut sources);
        counts.frame(frame)
    })?;
    let (models, tools) = spending.models_and_tools();
    let seals = segments.iter().filter(|segment| segment.seal_bytes > 0);
    seals.for_each(|segment| counts.add(RecordKind::Seal, segment.seal_bytes));
    let records = reader.records_len();
    let live = reader.live_path().live_at(reader.last_position());
    let live_records = live.iter().map(|range| *range.end() - *range.start() + 1).sum::<u64>().min(records);
    let of_kind = |kind| counts.kinds.get(&kind).map_or(0, |frames| frames.count);
    Ok(Stats {
        session: reader.opening_record().session,
        records,
        live_records,
        abandoned_records: records - live_records,
        snapshots: of_kind(RecordKind::Snapshot),
        rollbacks: of_kind(RecordKind::Rollback),
        used_bytes: segments.iter().map(|segment| segment.used_bytes).sum(),
        allocated_bytes: segments.iter().map(|segment| segment.allocated_bytes).sum(),
        segment_header_bytes: HEADER_LEN as u64 * segments.len() as u64,
        torn_bytes: reader.report().torn.as_ref().map_or(0, |torn| torn.bytes),
        segments,
        kinds: counts.kinds(),
        events: counts.events(),
        slices: slices(&state, &counts),
        objects: objects(reader.dir(), &counts)?,
        images: images(reader.dir())?,
        models,
        tools,
        spent: spending.points(),
    })
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.count += other.count;
        // The lengths come from records, so a sum may overflow.
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn add_one(&mut self, bytes: u64) {
        self.add(Sum { count: 1, bytes });
    }
}

/// Counters that are updated as the frames are read.
#[derive(Default)]
struct FrameCounts<'a> {
    /// Slices at the log's end.
    state: Option<&'a StateReader>,
    /// Bytes of the items in each slice at the log's end.
    live_bytes: BTreeMap<u32, u64>,
    kinds: BTreeMap<RecordKind, Sum>,
    declared: BTreeMap<u32, EventDeclaration>,
    events: BTreeMap<u32, Sum>,
    slices: BTreeMap<u32, Sum>,
    objects: BTreeSet<ObjectId>,
}

impl FrameCounts<'_> {
    fn add(&mut self, kind: RecordKind, bytes: u64) {
        self.kinds.entry(kind).or_default().add_one(bytes);
    }

    fn frame(&mut self, frame: &FrameInfo<'_>) -> Result<(), Error> {
        self.add(frame.record.kind, frame.bytes);
        let sequence = frame.record.sequence;
        self.record(&frame.record)
            .map_err(|error| Error::Inconsistent { sequence, reason: error.to_string() })
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), foldlog_codec::Error> {
        match record.kind {
            RecordKind::Declare => {
                let declare = Declare::decode(record.body)?;
                self.declared.extend(declare.events.into_iter().map(|event| (event.id, event)));
            }
            RecordKind::Dispatch => self.dispatch(record.sequence, Dispatch::decode(record.body)?),
            RecordKind::Import => {
                for slice in Import::decode(record.body)?.slices {
                    let items = slice.items.iter().map(|(item, _)| *item);
                    self.items(slice.slice, record.sequence, items);
                }
            }
            RecordKind::ToolEnd => {
                let end = ToolEnd::decode(record.body)?;
                self.items(end.slice, record.sequence, [Payload::new(&end.encode_invocation())]);
            }
            _ => {}
        }
        self.objects.extend(record.objects());
        Ok(())
    }

    fn dispatch(&mut self, sequence: SequenceNumber, dispatch: Dispatch<'_>) {
        let mut event_data = None;
        let mut bound = Vec::new();
        if let Action::Event { event, data } = dispatch.action {
            self.events.entry(event).or_default().add_one(payload_bytes(data));
            event_data = Some(data);
            let bindings = self.declared.get(&event).map(|event| event.bindings.as_slice());
            let built_in = bindings.unwrap_or_default().iter().filter(|b| b.built_in != BuiltIn::Explicit);
            bound.extend(built_in.map(|binding| Effect::append(binding.slice)));
        }
        // The number of added items does not depend on removed ones.
        for effect in dispatch.effects.unwrap_or(bound) {
            match effect.added {
                AddedItems::Event => self.items(effect.slice, sequence, event_data),
                AddedItems::Items { items, .. } => self.items(effect.slice, sequence, items),
            }
        }
    }

    /// Counts the items that a record added to a slice.
    fn items<'p>(
        &mut self,
        slice: u32,
        sequence: SequenceNumber,
        items: impl IntoIterator<Item = Payload<'p>>,
    ) {
        let live = self.state.and_then(|state| state.slice_of(slice));
        for (ordinal, payload) in (0..).zip(items) {
            let bytes = payload_bytes(payload);
            self.slices.entry(slice).or_default().add_one(bytes);
            if live.is_some_and(|live| live.contains(sequence, ordinal)) {
                let live_bytes = self.live_bytes.entry(slice).or_default();
                *live_bytes = live_bytes.saturating_add(bytes);
            }
        }
    }

    fn kinds(&self) -> Vec<KindStats> {
        let kinds = self.kinds.iter().map(|(kind, frames)| KindStats {
            kind: kind.to_string(),
            envelope: kind.is_envelope(),
            frames: frames.count,
            bytes: frames.bytes,
        });
        kinds.collect()
    }

    /// Sums up the events by name. Each version of an event has its own declaration, but a reader
    /// sees one event.
    fn events(&self) -> Vec<EventStats> {
        let mut by_name: BTreeMap<&str, Sum> = BTreeMap::new();
        for (id, event) in &self.declared {
            let sum = self.events.get(id).copied().unwrap_or_default();
            by_name.entry(event.name.as_str()).or_default().add(sum);
        }
        let events = by_name.into_iter().map(|(event, sum)| EventStats {
            event: event.to_owned(),
            records: sum.count,
            payload_bytes: sum.bytes,
        });
        events.collect()
    }
}

fn payload_bytes(payload: Payload<'_>) -> u64 {
    payload.object().map_or(payload.bytes().len() as u64, |object| object.len)
}

fn slices(state: &StateReader, counts: &FrameCounts<'_>) -> Vec<SliceStats> {
    let slices = state.slices().map(|slice| {
        let ever = counts.slices.get(&slice.id()).copied().unwrap_or_default();
        SliceStats {
            slice: slice.name().to_owned(),
            policy: slice.policy().name(),
            live_items: slice.len() as u64,
            live_bytes: counts.live_bytes.get(&slice.id()).copied().unwrap_or_default(),
            ever_items: ever.count,
            ever_bytes: ever.bytes,
        }
    });
    slices.collect()
}

fn objects(session: &Path, counts: &FrameCounts<'_>) -> Result<ObjectStats> {
    let (count, bytes) = inspect::kept_objects(session)?;
    Ok(ObjectStats {
        named_count: counts.objects.len() as u64,
        named_bytes: counts.objects.iter().fold(0, |sum, object| sum.saturating_add(object.len)),
        count,
        bytes,
    })
}

/// Returns the regular files in the directory of images, with their lengths in bytes; none if the
/// directory is missing.
fn images(session: &Path) -> Result<Vec<ImageStats>> {
    let dir = session.join("snapshots");
    let failed = |source| crate::Error::File { path: dir.clone(), source };
    let mut found = Vec::new();
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let metadata = match entry.metadata() {
            // A writer may rename or remove a temporary file meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            metadata => metadata.map_err(failed)?,
        };
        if metadata.is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push(ImageStats { name, bytes: metadata.len() });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}
