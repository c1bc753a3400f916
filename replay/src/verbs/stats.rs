//! `foldlog stats`: what a session's log is made of.
//!
//! With `--json` one object, whose fields are those of [`Stats`]; a field whose name ends in `_bytes`, or is
//! `bytes`, counts bytes, every other number counts what it is called. Of a log that holds:
//!
//! 1. `used_bytes` is the sum of the segments' `used_bytes`, and also that of `segment_header_bytes` and of
//!    `bytes` over all `kinds`;
//! 2. `records` is `live_records` and `abandoned_records` together, and the sum of the segments' `records`,
//!    and that of `frames` over those `kinds` that are no `envelope`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::Path;

use foldlog::audit::{FrameInfo, LogReader, SegmentInfo, StateReader};
use foldlog::{Error, Kind, Record, SequenceNumber};
use foldlog_codec::body::{
    Action, Added, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Import, ObjectId, Payload, ToolEnd,
};
use foldlog_codec::escape;
use foldlog_codec::segment::HEADER_LEN;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::{counted, last_position, open_session};

/// What a session's log is made of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// The session.
    pub session: Uuid,
    /// How many records there are.
    pub records: u64,
    /// How many of them no rollback has abandoned.
    pub live_records: u64,
    /// How many of them a rollback has abandoned.
    pub abandoned_records: u64,
    /// How many snapshots there are, abandoned ones included.
    pub snapshots: u64,
    /// How many rollbacks there are, abandoned ones included.
    pub rollbacks: u64,
    /// Bytes of the segments that belong to the log.
    pub used_bytes: u64,
    /// Length of the segments' files, space allocated ahead included.
    pub allocated_bytes: u64,
    /// Length of the segments' headers.
    pub segment_header_bytes: u64,
    /// Bytes behind the log's end that nobody was told are durable and that were left out.
    pub torn_bytes: u64,
    /// The segments, oldest first.
    pub segments: Vec<SegmentStats>,
    /// The frames by kind, in the kinds' order.
    pub kinds: Vec<KindStats>,
    /// The events by name.
    pub events: Vec<EventStats>,
    /// The slices by name.
    pub slices: Vec<SliceStats>,
    /// The object folder.
    pub objects: ObjectStats,
    /// The files of the image folder, by name.
    pub images: Vec<ImageStats>,
}

/// A segment.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentStats {
    /// Its ordinal.
    pub ordinal: u32,
    /// The session that wrote it: in a fork, an ancestor for what the two share.
    pub session: Uuid,
    /// The sequence number of its first record.
    pub first_sequence: SequenceNumber,
    /// How many of its records belong to the log.
    pub records: u64,
    /// Bytes of it that belong to the log: header, frames and seal.
    pub used_bytes: u64,
    /// Length of its file.
    pub allocated_bytes: u64,
    /// Whether it is sealed.
    pub sealed: bool,
}

/// The frames of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct KindStats {
    /// The kind's name.
    pub kind: String,
    /// Whether its frames are envelope frames, which are no records of the session.
    pub envelope: bool,
    /// How many frames there are.
    pub frames: u64,
    /// Their bytes, frame headers included.
    pub bytes: u64,
}

/// The dispatches of one event.
#[derive(Clone, Debug, Serialize)]
pub struct EventStats {
    /// The event's name.
    pub event: String,
    /// How many records there are.
    pub records: u64,
    /// Bytes of their payloads, those that stand in the object folder included, each time that they are named.
    pub payload_bytes: u64,
}

/// The items of one slice.
#[derive(Clone, Debug, Serialize)]
pub struct SliceStats {
    /// The slice's name.
    pub slice: String,
    /// Its policy.
    pub policy: &'static str,
    /// How many items it holds at the log's end.
    pub live_items: u64,
    /// Bytes of their payloads.
    pub live_bytes: u64,
    /// How many items were ever put into it, on abandoned paths too.
    pub ever_items: u64,
    /// Bytes of their payloads.
    pub ever_bytes: u64,
}

/// The object folder.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ObjectStats {
    /// How many objects stand there.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many different ones the records name.
    pub named_count: u64,
    /// Their bytes.
    pub named_bytes: u64,
}

/// A file of the image folder.
#[derive(Clone, Debug, Serialize)]
pub struct ImageStats {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// Shows what a session's log is made of.
///
/// # Errors
///
/// Where the session cannot be read or is damaged.
pub fn run(session: &Path, output: &mut Output<'_>) -> Result<u8> {
    let reader = open_session(session, output)?;
    let stats = stats(&reader)?;
    if output.json() {
        output.value(&stats)?;
    } else {
        print(&stats, output)?;
    }
    Ok(HOLDS)
}

/// Counts what a log is made of.
///
/// # Errors
///
/// Where the log, its object folder or its image folder cannot be read.
pub fn stats(reader: &LogReader) -> Result<Stats> {
    let segments = reader.segments()?;
    let state = reader.state_reader()?;
    let mut counts = Counts { state: Some(&state), ..Counts::default() };
    reader.frames(|frame| counts.frame(frame))?;
    let seals = segments.iter().filter(|segment| segment.seal_bytes > 0);
    seals.for_each(|segment| counts.add(Kind::SEAL, segment.seal_bytes));
    let records = reader.records_len();
    let live = reader.live_path().live_at(last_position(reader));
    let live_records = live.iter().map(|range| *range.end() - *range.start() + 1).sum::<u64>().min(records);
    let of_kind = |kind| counts.kinds.get(&kind).map_or(0, |(frames, _)| *frames);
    Ok(Stats {
        session: reader.opened().session,
        records,
        live_records,
        abandoned_records: records - live_records,
        snapshots: of_kind(Kind::SNAPSHOT),
        rollbacks: of_kind(Kind::ROLLBACK),
        used_bytes: segments.iter().map(|segment| segment.used_bytes).sum(),
        allocated_bytes: segments.iter().map(|segment| segment.allocated_bytes).sum(),
        segment_header_bytes: HEADER_LEN as u64 * segments.len() as u64,
        torn_bytes: reader.report().torn.as_ref().map_or(0, |torn| torn.bytes),
        segments: segments.iter().map(segment_stats).collect(),
        kinds: counts.kinds(),
        events: counts.events(),
        slices: slices(&state, &counts),
        objects: objects(reader.dir(), &counts)?,
        images: images(reader.dir())?,
    })
}

fn segment_stats(segment: &SegmentInfo) -> SegmentStats {
    SegmentStats {
        ordinal: segment.ordinal,
        session: segment.session,
        first_sequence: segment.first_sequence,
        records: segment.records,
        used_bytes: segment.used_bytes,
        allocated_bytes: segment.allocated_bytes,
        sealed: segment.seal_bytes > 0,
    }
}

/// A number of things, and their bytes.
type Sum = (u64, u64);

fn count(sum: &mut Sum, bytes: u64) {
    // An object's length is a claim of the record's, and sums of claims may be anything.
    *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
}

/// What is counted while the frames pass.
#[derive(Default)]
struct Counts<'a> {
    /// The slices at the log's end.
    state: Option<&'a StateReader>,
    /// Bytes of the items that they hold.
    live_bytes: BTreeMap<u32, u64>,
    kinds: BTreeMap<Kind, Sum>,
    declared: BTreeMap<u32, EventDeclaration>,
    events: BTreeMap<u32, Sum>,
    slices: BTreeMap<u32, Sum>,
    objects: BTreeSet<ObjectId>,
}

impl Counts<'_> {
    fn add(&mut self, kind: Kind, bytes: u64) {
        count(self.kinds.entry(kind).or_default(), bytes);
    }

    fn frame(&mut self, frame: &FrameInfo<'_>) -> Result<(), Error> {
        self.add(frame.record.kind, frame.bytes);
        let sequence = frame.record.sequence;
        self.record(&frame.record)
            .map_err(|error| Error::Inconsistent { sequence, reason: error.to_string() })
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), foldlog_codec::Error> {
        match record.kind {
            Kind::DECLARE => {
                let declare = Declare::decode(record.body)?;
                self.declared.extend(declare.events.into_iter().map(|event| (event.id, event)));
            }
            Kind::DISPATCH => self.dispatch(record.sequence, Dispatch::decode(record.body)?),
            Kind::IMPORT => {
                for slice in Import::decode(record.body)?.slices {
                    let items = slice.items.iter().map(|(item, _)| *item);
                    self.items((slice.slice, record.sequence), items);
                }
            }
            Kind::TOOL_END => {
                let end = ToolEnd::decode(record.body)?;
                self.items((end.slice, record.sequence), [Payload::new(&end.invoked())]);
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
            count(self.events.entry(event).or_default(), payload_bytes(data));
            event_data = Some(data);
            let bindings = self.declared.get(&event).map(|event| event.bindings.as_slice());
            let built_in = bindings.unwrap_or_default().iter().filter(|b| b.built_in != BuiltIn::Explicit);
            bound.extend(built_in.map(|binding| Effect::append(binding.slice)));
        }
        // Whether the items before went makes no difference to those that came.
        for effect in dispatch.effects.unwrap_or(bound) {
            match effect.added {
                Added::Event => self.items((effect.slice, sequence), event_data),
                Added::Items { items, .. } => self.items((effect.slice, sequence), items),
            }
        }
    }

    /// Counts the items that a record put into a slice.
    fn items<'p>(
        &mut self,
        (slice, sequence): (u32, SequenceNumber),
        items: impl IntoIterator<Item = Payload<'p>>,
    ) {
        let live = self.state.and_then(|state| state.slice_of(slice));
        for (ordinal, payload) in (0..).zip(items) {
            let bytes = payload_bytes(payload);
            count(self.slices.entry(slice).or_default(), bytes);
            if live.is_some_and(|live| live.contains(sequence, ordinal)) {
                let live_bytes = self.live_bytes.entry(slice).or_default();
                *live_bytes = live_bytes.saturating_add(bytes);
            }
        }
    }

    fn kinds(&self) -> Vec<KindStats> {
        let kinds = self.kinds.iter().map(|(kind, (frames, bytes))| KindStats {
            kind: kind.to_string(),
            envelope: kind.is_envelope(),
            frames: *frames,
            bytes: *bytes,
        });
        kinds.collect()
    }

    /// An event's versions are declared each by itself; to a reader they are one event.
    fn events(&self) -> Vec<EventStats> {
        let mut by_name: BTreeMap<&str, Sum> = BTreeMap::new();
        for (id, event) in &self.declared {
            let (records, bytes) = self.events.get(id).copied().unwrap_or_default();
            let sum = by_name.entry(event.name.as_str()).or_default();
            *sum = (sum.0 + records, sum.1.saturating_add(bytes));
        }
        let events = by_name.into_iter().map(|(event, (records, payload_bytes))| EventStats {
            event: event.to_owned(),
            records,
            payload_bytes,
        });
        events.collect()
    }
}

fn payload_bytes(payload: Payload<'_>) -> u64 {
    payload.object().map_or(payload.bytes().len() as u64, |object| object.len)
}

fn slices(state: &StateReader, counts: &Counts<'_>) -> Vec<SliceStats> {
    let slices = state.slices().map(|slice| {
        let ever = counts.slices.get(&slice.id()).copied().unwrap_or_default();
        SliceStats {
            slice: slice.name().to_owned(),
            policy: slice.policy().name(),
            live_items: slice.len() as u64,
            live_bytes: counts.live_bytes.get(&slice.id()).copied().unwrap_or_default(),
            ever_items: ever.0,
            ever_bytes: ever.1,
        }
    });
    slices.collect()
}

fn objects(session: &Path, counts: &Counts<'_>) -> Result<ObjectStats> {
    let mut stats = ObjectStats {
        named_count: counts.objects.len() as u64,
        named_bytes: counts.objects.iter().fold(0, |sum, object| sum.saturating_add(object.len)),
        ..ObjectStats::default()
    };
    for (name, bytes) in files(&session.join("objects"))? {
        // What a crash left half-written bears another name.
        if ObjectId::from_file_name(&name, bytes).is_some() {
            stats.count += 1;
            stats.bytes = stats.bytes.saturating_add(bytes);
        }
    }
    Ok(stats)
}

fn images(session: &Path) -> Result<Vec<ImageStats>> {
    let files = files(&session.join("snapshots"))?;
    Ok(files.into_iter().map(|(name, bytes)| ImageStats { name, bytes }).collect())
}

/// The regular files of a folder that need not be there, each with its length, by name.
fn files(dir: &Path) -> Result<BTreeMap<String, u64>> {
    let failed = |source| Failure::File { path: dir.to_owned(), source };
    let mut found = BTreeMap::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let metadata = match entry.metadata() {
            // A writer may rename or drop what it was still making.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            metadata => metadata.map_err(failed)?,
        };
        if metadata.is_file() {
            found.insert(entry.file_name().to_string_lossy().into_owned(), metadata.len());
        }
    }
    Ok(found)
}

fn print(stats: &Stats, output: &mut Output<'_>) -> Result<()> {
    let (records, live, abandoned) = (stats.records, stats.live_records, stats.abandoned_records);
    let (snapshots, rollbacks) = (counted(stats.snapshots, "snapshot"), counted(stats.rollbacks, "rollback"));
    output.line(format_args!("session {}", stats.session))?;
    output.line(format_args!(
        "{}: {live} live, {abandoned} abandoned; {snapshots}, {rollbacks}",
        counted(records, "record")
    ))?;
    let segments = counted(stats.segments.len() as u64, "segment");
    let (used, allocated) = (stats.used_bytes, stats.allocated_bytes);
    output.line(format_args!("{segments}: {used} bytes used of {allocated} allocated"))?;

    print_tables(stats, output)
}

fn print_tables(stats: &Stats, output: &mut Output<'_>) -> Result<()> {
    heading(output, "segment", &["first", "records", "used_bytes", "allocated", "sealed"])?;
    for segment in &stats.segments {
        let SegmentStats { first_sequence, records, used_bytes, allocated_bytes, .. } = segment;
        let sealed = if segment.sealed { "yes" } else { "no" };
        row(output, segment.ordinal, &[first_sequence, records, used_bytes, allocated_bytes, &sealed])?;
    }
    heading(output, "kind", &["frames", "bytes"])?;
    for kind in &stats.kinds {
        row(output, &kind.kind, &[&kind.frames, &kind.bytes])?;
    }
    row(output, "(segment headers)", &[&stats.segments.len(), &stats.segment_header_bytes])?;
    heading(output, "event", &["records", "payload"])?;
    for event in &stats.events {
        row(output, &event.event, &[&event.records, &event.payload_bytes])?;
    }
    heading(output, "slice", &["items", "bytes", "items_ever", "bytes_ever"])?;
    for slice in &stats.slices {
        let SliceStats { live_items, live_bytes, ever_items, ever_bytes, .. } = slice;
        let name = format!("{} ({})", slice.slice, slice.policy);
        row(output, name, &[live_items, live_bytes, ever_items, ever_bytes])?;
    }
    let objects = stats.objects;
    heading(output, "object", &["count", "bytes"])?;
    row(output, "in the folder", &[&objects.count, &objects.bytes])?;
    row(output, "named by records", &[&objects.named_count, &objects.named_bytes])?;
    heading(output, "image", &["bytes"])?;
    if stats.images.is_empty() {
        output.line("(none)")?;
    }
    stats.images.iter().try_for_each(|image| row(output, &image.name, &[&image.bytes]))
}

/// The headings of a table, behind an empty line.
fn heading(output: &mut Output<'_>, name: &str, columns: &[&str]) -> Result<()> {
    let columns: Vec<&dyn Display> = columns.iter().map(|column| column as &dyn Display).collect();
    output.line("")?;
    row(output, name, &columns)
}

/// A line of a table: what it is about, and its numbers.
fn row(output: &mut Output<'_>, name: impl Display, cells: &[&dyn Display]) -> Result<()> {
    let cells: String = cells.iter().map(|cell| format!("  {:>10}", cell.to_string())).collect();
    output.line(format_args!("{:<28}{cells}", escape::shown(name).to_string()))
}
