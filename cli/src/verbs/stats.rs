//! `foldlog stats`: counts what a session's log is made of.
//!
//! `--json` prints one object with the fields of [`Stats`]. Fields named `bytes` or ending in `_bytes` are bytes; every other
//! number counts what its name says. Of a log that holds:
//!
//! 1. `used_bytes` is the sum of the segments' `used_bytes`, and also the sum of `segment_header_bytes` and the `bytes` of all
//!    `kinds`.
//! 2. `records` is the sum of `live_records` and `abandoned_records`, also the sum of the segments' `records`, and also the
//!    sum of the `frames` of those `kinds` that are not an `envelope`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::inspect::{self, FrameInfo, LogReader, SegmentInfo, StateReader};
use foldlog::{Compression, Error, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::{
    Action, AddedItems, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Import, ObjectId, Payload,
    ToolEnd,
};
use foldlog_codec::escape;
use foldlog_codec::segment::HEADER_LEN;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::readers::{code_of, counted, open_sound};
use crate::spend::{SpendReader, Spent};

mod spent;

pub use spent::{ModelStats, SpentAt, ToolStats};

/// Describes the fields of `stats --json`; [`Stats`] describes them one by one.
const STATS_JSON: &str = "\
`rollbacks` counts records of that kind. The end of a call that was rolled back is a `tool_end`.

With --json one object. `bytes` and fields that end in `_bytes` are bytes, other numbers count things:
  session, records, live_records, abandoned_records, snapshots, rollbacks,
  used_bytes, allocated_bytes, segment_header_bytes, torn_bytes,
  segments  ordinal, session, first_sequence, records, used_bytes, allocated_bytes, compression,
            sealed
  kinds     kind, envelope, frames, bytes
  events    event, records, payload_bytes
  slices    slice, policy, live_items, live_bytes, ever_items, ever_bytes
  objects   count, bytes (in the folder), named_count, named_bytes (by records)
  images    name, bytes
  models    model (null where no record names it), requests (of which the provider said what they used), input_tokens,
            output_tokens, cache_read_tokens, cache_write_tokens, cost_micros
  tools     tool, calls, failed_calls, argument_bytes, result_bytes, elapsed_us, and where something was spent within the calls
            the tokens and the cost of that, calls within them included
  spent     sequence, time, and the tokens and the cost of all until then; at most 200 records, the last one among them
Tokens of the cache are not among input_tokens. cost_micros is in millionths of the host's currency, and left out where nobody
has said it. What a rollback abandoned was spent too.";

/// Holds what the command line asks of `foldlog stats`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = STATS_JSON)]
pub struct Args {
    /// The session's folder, or URL/sessions/ID of one that a place holds.
    pub session: PathBuf,
}

impl Args {
    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// Those of [`run`].
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        run(&self.session, output)
    }
}

/// Reports what a session's log is made of.
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
    /// Number of snapshot records, abandoned ones included.
    pub snapshots: u64,
    /// Number of rollback records, abandoned ones included. The end of a call that was rolled back is of another kind, and is
    /// not counted here.
    pub rollbacks: u64,
    /// Bytes of the segments that belong to the log.
    pub used_bytes: u64,
    /// Length of the segments' files in bytes, space allocated ahead included.
    pub allocated_bytes: u64,
    /// Length of the segments' headers in bytes.
    pub segment_header_bytes: u64,
    /// Bytes of the torn tail, which were never acknowledged as durable and do not belong to the log.
    pub torn_bytes: u64,
    /// Segments, oldest first.
    pub segments: Vec<SegmentStats>,
    /// Frames by kind, in the order of the kinds' numbers.
    pub kinds: Vec<KindStats>,
    /// Events, in the order of their names.
    pub events: Vec<EventStats>,
    /// Slices, in the order of their names.
    pub slices: Vec<SliceStats>,
    /// Objects: in the session's folder `objects`, and named by records.
    pub objects: ObjectStats,
    /// Files of the session's folder `snapshots`, which holds images, in the order of their names.
    pub images: Vec<ImageStats>,
    /// Models that were asked, in the order of their names.
    pub models: Vec<ModelStats>,
    /// Tools that were called, in the order of their names.
    pub tools: Vec<ToolStats>,
    /// What had been spent at some records, in their order; empty if nobody has said anything.
    pub spent: Vec<SpentAt>,
}

/// Describes one segment.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentStats {
    /// Ordinal of the segment, from 0.
    pub ordinal: u32,
    /// Id of the session that wrote the segment: in a fork, an ancestor's for segments that the two share.
    pub session: Uuid,
    /// Sequence number of the segment's first record.
    pub first_sequence: SequenceNumber,
    /// Number of the segment's records that belong to the log.
    pub records: u64,
    /// Bytes of the segment that belong to the log: header, frames and seal. Those of the plain segment, if it is compressed.
    pub used_bytes: u64,
    /// Length of the segment's file in bytes.
    pub allocated_bytes: u64,
    /// How the file is compressed.
    pub compression: Compression,
    /// Whether the segment is sealed.
    pub sealed: bool,
}

/// Counts the frames of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct KindStats {
    /// Name of the kind.
    pub kind: String,
    /// Whether the frames are the log's own notes (envelope frames), and not records of the session.
    pub envelope: bool,
    /// Number of frames.
    pub frames: u64,
    /// Bytes of the frames, frame headers included.
    pub bytes: u64,
}

/// Counts the dispatches of one event.
#[derive(Clone, Debug, Serialize)]
pub struct EventStats {
    /// Name of the event.
    pub event: String,
    /// Number of records.
    pub records: u64,
    /// Bytes of the records' payloads. A payload in the object folder counts each time that a record names it.
    pub payload_bytes: u64,
}

/// Counts the items of one slice.
#[derive(Clone, Debug, Serialize)]
pub struct SliceStats {
    /// Name of the slice.
    pub slice: String,
    /// Policy of the slice: `state`, `log` or `cache`.
    pub policy: &'static str,
    /// Number of items that the slice holds at the log's end.
    pub live_items: u64,
    /// Bytes of the payloads of these items.
    pub live_bytes: u64,
    /// Number of items that records ever added to the slice, abandoned records included.
    pub ever_items: u64,
    /// Bytes of the payloads of all items ever added.
    pub ever_bytes: u64,
}

/// Counts objects.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ObjectStats {
    /// Number of objects in the folder.
    pub count: u64,
    /// Bytes of the objects in the folder.
    pub bytes: u64,
    /// Number of different objects that records name.
    pub named_count: u64,
    /// Bytes of the different objects that records name, as the records say.
    pub named_bytes: u64,
}

/// Describes a file in the folder of images.
#[derive(Clone, Debug, Serialize)]
pub struct ImageStats {
    /// Name of the file.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Prints what a session's log is made of: of a damaged one, what its sound part is made of.
///
/// # Errors
///
/// [`CommandError::Engine`] if the session is corrupt or cannot be read, [`CommandError::File`] if its folder of objects or images cannot
/// be read.
pub fn run(session: &Path, output: &mut Output<'_>) -> Result<u8> {
    let reader = open_sound(session, output)?;
    let stats = stats(&reader)?;
    if output.json() {
        output.value(&stats)?;
    } else {
        print(&stats, output)?;
    }
    Ok(code_of(&reader, output))
}

/// Counts what a log is made of.
///
/// # Errors
///
/// [`CommandError::Engine`] if the log is corrupt or cannot be read, [`CommandError::File`] if its folder of objects or images cannot be
/// read.
pub fn stats(reader: &LogReader) -> Result<Stats> {
    let segments = reader.segments()?;
    let state = reader.state_reader()?;
    let mut counts = FrameCounts { state: Some(&state), ..FrameCounts::default() };
    let (mut spending, mut sources) = (spent::SpendTally::default(), SpendReader::of(reader));
    reader.frames(|frame| {
        spending.take(&frame.record, &mut sources);
        counts.frame(frame)
    })?;
    let (models, tools) = spending.models_and_tools();
    let seals = segments.iter().filter(|segment| segment.seal_bytes > 0);
    seals.for_each(|segment| counts.add(RecordKind::SEAL, segment.seal_bytes));
    let records = reader.records_len();
    let live = reader.live_path().live_at(reader.last_position());
    let live_records = live.iter().map(|range| *range.end() - *range.start() + 1).sum::<u64>().min(records);
    let of_kind = |kind| counts.kinds.get(&kind).map_or(0, |frames| frames.count);
    Ok(Stats {
        session: reader.opened().session,
        records,
        live_records,
        abandoned_records: records - live_records,
        snapshots: of_kind(RecordKind::SNAPSHOT),
        rollbacks: of_kind(RecordKind::ROLLBACK),
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
        models,
        tools,
        spent: spending.points(),
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
        compression: segment.compression,
        sealed: segment.seal_bytes > 0,
    }
}

/// A number of things, and their bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.count += other.count;
        // A record claims an object's length, and sums of claims may overflow.
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Counts one more thing.
    fn add_one(&mut self, bytes: u64) {
        self.add(Sum { count: 1, bytes });
    }
}

/// Holds what is counted as the frames are read.
#[derive(Default)]
struct FrameCounts<'a> {
    /// Slices at the log's end.
    state: Option<&'a StateReader>,
    /// Bytes of the items that each slice holds at the log's end.
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
            RecordKind::DECLARE => {
                let declare = Declare::decode(record.body)?;
                self.declared.extend(declare.events.into_iter().map(|event| (event.id, event)));
            }
            RecordKind::DISPATCH => self.dispatch(record.sequence, Dispatch::decode(record.body)?),
            RecordKind::IMPORT => {
                for slice in Import::decode(record.body)?.slices {
                    let items = slice.items.iter().map(|(item, _)| *item);
                    self.items(slice.slice, record.sequence, items);
                }
            }
            RecordKind::TOOL_END => {
                let end = ToolEnd::decode(record.body)?;
                self.items(end.slice, record.sequence, [Payload::new(&end.invoked())]);
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
        // Removed items make no difference to the number of added ones.
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

    /// Sums up the events by name: each version of an event is declared by itself, but to a reader they are one event.
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

fn images(session: &Path) -> Result<Vec<ImageStats>> {
    let files = files(&session.join("snapshots"))?;
    Ok(files.into_iter().map(|(name, bytes)| ImageStats { name, bytes }).collect())
}

/// Returns the regular files of a folder by name, each with its length in bytes; none if there is no folder.
fn files(dir: &Path) -> Result<BTreeMap<String, u64>> {
    let failed = |source| CommandError::File { path: dir.to_owned(), source };
    let mut found = BTreeMap::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let metadata = match entry.metadata() {
            // A writer may rename or remove a file that it was still making.
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
    heading(output, "segment", &["first", "records", "used_bytes", "allocated", "codec", "sealed"])?;
    for segment in &stats.segments {
        let SegmentStats { first_sequence, records, used_bytes, allocated_bytes, compression, .. } = segment;
        let sealed = if segment.sealed { "yes" } else { "no" };
        row(
            output,
            segment.ordinal,
            &[first_sequence, records, used_bytes, allocated_bytes, compression, &sealed],
        )?;
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
    stats.images.iter().try_for_each(|image| row(output, &image.name, &[&image.bytes]))?;
    print_spending(stats, output)
}

/// Number of records of which a person is told what had been spent.
const SPENT_ROWS_MAX: usize = 10;

/// Prints what models and tools took, as far as the log says anything of it.
fn print_spending(stats: &Stats, output: &mut Output<'_>) -> Result<()> {
    let all = stats.spent.last().map(|last| last.spent).unwrap_or_default();
    let columns = |names: &[&'static str]| -> Vec<&'static str> {
        let cost = all.cost_micros.map(|_| "cost");
        names
            .iter()
            .copied()
            .chain(all.has_tokens().then_some(["sent", "answered"]).into_iter().flatten())
            .chain(cost)
            .collect()
    };
    // What nobody has said is no zero.
    let said = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let spent_row = |output: &mut Output<'_>, name: &dyn Display, numbers: &[u64], spent: Option<Spent>| {
        let mut cells: Vec<String> = numbers.iter().map(u64::to_string).collect();
        if all.has_tokens() {
            let tokens = spent.filter(Spent::has_tokens);
            cells.push(said(tokens.map(|spent| spent.sent_tokens().to_string())));
            cells.push(said(tokens.map(|spent| spent.output_tokens.to_string())));
        }
        if all.cost_micros.is_some() {
            cells.push(said(spent.and_then(|spent| spent.cost_micros).map(money)));
        }
        let cells: Vec<&dyn Display> = cells.iter().map(|cell| cell as &dyn Display).collect();
        row(output, name, &cells)
    };
    if !stats.models.is_empty() {
        heading(output, "model", &columns(&["requests"]))?;
        for model in &stats.models {
            let name = model.model.as_deref().unwrap_or("(not named)");
            spent_row(output, &name, &[model.requests], Some(model.spent))?;
        }
    }
    if !stats.tools.is_empty() {
        heading(output, "tool", &columns(&["calls", "failed", "arguments", "results", "elapsed_us"]))?;
        for tool in &stats.tools {
            let ToolStats { calls, failed_calls, argument_bytes, result_bytes, elapsed_us, .. } = tool;
            let numbers = [*calls, *failed_calls, *argument_bytes, *result_bytes, *elapsed_us];
            spent_row(output, &tool.tool, &numbers, tool.spent)?;
        }
    }
    if !stats.spent.is_empty() {
        heading(output, "spent through record", &columns(&[]))?;
        let every = stats.spent.len().div_ceil(SPENT_ROWS_MAX);
        for at in stats.spent.iter().rev().step_by(every).rev() {
            let second = at.time.get(..TIME_CHARS).unwrap_or(&at.time);
            spent_row(output, &format_args!("{:<8}{second}", at.sequence), &[], Some(at.spent))?;
        }
    }
    Ok(())
}

/// Number of characters of a time through its seconds.
const TIME_CHARS: usize = 19;

/// Returns an amount of the host's currency.
fn money(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Writes the headings of a table, after an empty line.
fn heading(output: &mut Output<'_>, name: &str, columns: &[&str]) -> Result<()> {
    let columns: Vec<&dyn Display> = columns.iter().map(|column| column as &dyn Display).collect();
    output.line("")?;
    row(output, name, &columns)
}

/// Writes a line of a table: its name and its numbers.
fn row(output: &mut Output<'_>, name: impl Display, cells: &[&dyn Display]) -> Result<()> {
    let cells: String = cells.iter().map(|cell| format!("  {:>10}", cell.to_string())).collect();
    output.line(format_args!("{:<28}{cells}", escape::shown(name).to_string()))
}
