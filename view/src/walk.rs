//! One forward walk over a log: the columns and documents of its records, and the contents of each
//! slice at every position.

use std::collections::BTreeMap;
use std::io::Write;

use foldlog::conversation::ConversationMessage;
use foldlog::inspect::{
    CompactedRange, ItemName, ItemPlace, LogReader, MessageHistory, RecordedMessage, SliceReader, StateReader,
};
use foldlog::{Error, Policy, Record, RecordKind, SequenceNumber, Slice};
use foldlog_codec::escape;
use foldlog_codec::msgpack::{JsonStream, LeftOut, ValueLimits, left_out_digest};
use foldlog_codec::record::RecordJson;
use foldlog_tasks::Tasks;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::Result;
use crate::blocks::{Blocks, LineBlocks};
use crate::documents::timeline::Timeline;
use crate::lists::ListHistory;
use crate::numbered::Numbered;
use crate::records::{Columns, Density};
use crate::spend::{Accounts, SpendReader, Spent};
use crate::summaries;
use crate::tasks::{self, TaskLists};
use crate::visits::FirstFailure;
use crate::{Payloads, RecordRange, document};

/// Number of characters that remain of a value that exceeds the limit.
const BEGINNING_CHARS: usize = 2000;

/// Tells a page where to find a list: its versions and its items.
#[derive(Debug, Serialize)]
pub(crate) struct ListPlaces {
    /// Block of the versions.
    pub(crate) versions: u32,
    /// Block of the items' names: for each its record, its ordinal and its version, as integers of
    /// 32 bits, little-endian.
    pub(crate) names: u32,
    /// Number of items that were ever in the list.
    pub(crate) count: u64,
    /// Number of the first item of each block of items, and the block.
    pub(crate) items: Vec<(u64, u32)>,
}

impl ListPlaces {
    /// Writes a list: its versions, the names of its items (each a record, an ordinal and a
    /// version) and the lines that remain of the items.
    pub(crate) fn write<P: Ord + Copy, W: Write>(
        history: ListHistory<P>,
        names: impl Iterator<Item = (SequenceNumber, u32, u32)>,
        lines: LineBlocks,
        blocks: &mut Blocks<W>,
    ) -> Result<ListPlaces> {
        let versions = blocks.add(&history.encode())?;
        let (mut words, mut count) = (Vec::new(), 0);
        for (sequence, ordinal, version) in names {
            words.extend([sequence.get() as u32, ordinal, version].into_iter().flat_map(u32::to_le_bytes));
            count += 1;
        }
        Ok(ListPlaces { versions, names: blocks.add(&words)?, count, items: lines.finish(blocks)? })
    }
}

/// Sum that an evaluation has spent through one record, whose own report is the last summand.
#[derive(Debug, Serialize)]
pub(crate) struct UsageRow {
    pub(crate) sequence: SequenceNumber,
    pub(crate) evaluation_id: String,
    #[serde(flatten)]
    spent: Spent,
}

/// Sums up the spending of each evaluation, including abandoned records.
#[derive(Debug, Default)]
pub(crate) struct UsageLog {
    accounts: Accounts,
    pub(crate) rows: Vec<UsageRow>,
}

impl UsageLog {
    pub(crate) fn take(&mut self, record: &Record<'_>, sources: &mut SpendReader<'_>) {
        let Some(told) = sources.read_event(record) else { return };
        let sequence = record.sequence;
        let rows = self.accounts.take(&told).into_iter();
        self.rows.extend(rows.map(|(evaluation_id, spent)| UsageRow { sequence, evaluation_id, spent }));
    }
}

/// History of one slice.
struct SliceList {
    name: String,
    policy: Policy,
    item: String,
    history: ListHistory<ItemPlace>,
    /// Items that were ever in the slice.
    items: Numbered<ItemName>,
}

impl SliceList {
    fn from_slice(slice: &SliceReader<'_>) -> SliceList {
        SliceList {
            name: slice.name().to_owned(),
            policy: slice.policy(),
            item: slice.item().to_owned(),
            history: ListHistory::default(),
            items: Numbered::default(),
        }
    }
}

/// Follows the changes from record to record.
#[derive(Default)]
struct Follow {
    before: Option<StateReader>,
    slices: BTreeMap<u32, SliceList>,
    tags: Vec<(SequenceNumber, BTreeMap<String, String>)>,
    tasks: TaskLists,
}

impl Follow {
    /// Notes the slices at a position, and returns the ids of those that changed.
    fn at(&mut self, position: SequenceNumber, now: StateReader, payloads: Payloads) -> Result<Vec<u32>> {
        for slice in now.slices() {
            self.slices
                .entry(slice.id())
                .or_insert_with(|| SliceList::from_slice(&slice))
                .history
                .begin(position);
        }
        let mut changed = Vec::new();
        for changes in now.changes_since(self.before.as_ref()) {
            let Some(list) = self.slices.get_mut(&changes.slice) else { continue };
            let removed: Vec<ItemPlace> = changes.removed.iter().map(|(place, _)| *place).collect();
            let added = changes.added.into_iter().map(|(place, name)| (place, list.items.number(name)));
            let added: Vec<(ItemPlace, u32)> = added.collect();
            list.history.change(position, &removed, &added);
            changed.push(changes.slice);
        }
        if self.tags.last().is_none_or(|(_, tags)| tags != now.tags()) {
            self.tags.push((position, now.tags().clone()));
        }
        let of_tasks = now.slice(Tasks::NAME).map(|slice| slice.id());
        if of_tasks.is_some_and(|id| changed.contains(&id)) {
            self.tasks.note(position, &tasks::rows(&now, payloads))?;
        }
        self.before = Some(now);
        Ok(changed)
    }
}

/// Returns the ranges of positions at which the slices are unknown.
pub(crate) fn unknown(compacted: &[CompactedRange]) -> Vec<(SequenceNumber, SequenceNumber)> {
    let mut unknown = Vec::new();
    for range in compacted {
        let mut next = range.from;
        for known in range.known.iter().copied().chain([range.through]) {
            if next < known {
                unknown.push((next, known.saturating_sub(1)));
            }
            next = next.max(known + 1);
        }
    }
    unknown
}

/// Walks a log through the last record of `range`, and writes the data that a page needs.
///
/// # Errors
///
/// The engine's error if the log cannot be read or exceeds the memory limit, or that of the writer.
pub(crate) fn walk<W: Write>(
    reader: &LogReader,
    range: &RecordRange,
    payloads: Payloads,
    blocks: &mut Blocks<W>,
) -> Result<impl Serialize + use<W>> {
    let timeline = Timeline::from_reader(reader);
    let unknown = unknown(&reader.compacted_ranges());
    let mut columns = Columns::new(reader, &timeline, payloads.are_asked_for());
    let mut rollbacks = Vec::new();
    let (mut follow, mut documents, mut records) = (Follow::default(), LineBlocks::default(), Vec::new());
    let (mut usage, mut sources) = (UsageLog::default(), SpendReader::new(reader));
    let mut failure = FirstFailure::default();
    let walked = reader.fold(|record, state| {
        let sequence = record.sequence;
        let is_listed = range.contains(sequence);
        usage.take(record, &mut sources);
        let is_known = !unknown.iter().any(|(first, last)| (*first..=*last).contains(&sequence));
        let mut written = || -> Result<()> {
            let is_shown = is_known && is_listed;
            let changed = if is_shown { follow.at(sequence, state(), payloads)? } else { Vec::new() };
            if let Some(chunk) = columns.push(record, changed, is_listed) {
                records.push(blocks.add_json(&chunk)?);
            }
            if is_listed {
                rollbacks.extend((record.kind == RecordKind::Rollback).then_some(sequence));
                documents.push(&document(&timeline, record, payloads)?, blocks)?;
            }
            Ok(())
        };
        failure.note(written())
    });
    let last = failure.end(walked)?;
    let (chunk, gathered) = columns.finish();
    let live = reader.live_path().live_at(reader.last_position());
    let density = Density::new(range, &live, &gathered.failures, &rollbacks);
    if chunk.len() > 0 {
        records.push(blocks.add_json(&chunk)?);
    }
    let documents = documents.finish(blocks)?;
    let slices = slices(&last, follow.slices, payloads, blocks)?;
    let conversations = conversations(reader, range, payloads, blocks)?;
    let tasks = follow.tasks.write(blocks)?;
    let usage = blocks.add_json(&usage.rows)?;
    Ok(document! {
        // Block of each chunk of columns.
        records,
        // Number of the first record of each block, counted from the first listed record, and the block.
        documents,
        #[serde(flatten)] gathered,
        density,
        slices,
        conversations,
        // Block of the evaluations' spending, record by record.
        usage,
        // Tags of the session, each with the position at which they were set.
        tags: follow.tags,
        // The tasks, if there ever were any.
        tasks,
        // Ranges of positions at which the slices are unknown: first and last.
        unknown,
    })
}

/// Returns a record's document: `=` and the JSON that `show --json` prints. If payloads are
/// disabled or too long, returns `-` and that JSON without payloads.
pub(crate) fn document(timeline: &Timeline, record: &Record<'_>, payloads: Payloads) -> Result<Vec<u8>> {
    document_line(timeline.value(record), record.body.len() as u64, payloads)
}

/// Returns the document of a record with a body of `bytes` bytes. Omits its payloads if they are
/// disabled or too long.
pub(crate) fn document_line(mut document: RecordJson<'_>, bytes: u64, payloads: Payloads) -> Result<Vec<u8>> {
    if bytes <= payloads.bytes_max() {
        return line(b'=', &document);
    }
    document.leave_out_payloads();
    line(b'-', &document)
}

/// Returns a line of a block: the mark, and a value's JSON.
pub(crate) fn line(mark: u8, value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>> {
    let mut line = vec![mark];
    escape::write_json(&mut line, value).map_err(std::io::Error::from)?;
    Ok(line)
}

/// Returns an item's line: `=` and the JSON that `state --json` prints, or `-` and a placeholder.
pub(crate) fn item_line(slice: &str, name: ItemName, bytes: &[u8], payloads: Payloads) -> Result<Vec<u8>> {
    let value = JsonStream::new(bytes, ValueLimits::default()).map_err(|error| {
        let (name, sequence) = (slice.to_owned(), name.sequence);
        Error::Decode { name, sequence, reason: error.to_string() }
    })?;
    value_line(&value, bytes, payloads)
}

/// Returns the line of a value with the encoded form `bytes`: `=` and its JSON, or `-` and a
/// placeholder.
pub(crate) fn value_line(value: &JsonStream<'_>, bytes: &[u8], payloads: Payloads) -> Result<Vec<u8>> {
    if bytes.len() as u64 <= payloads.bytes_max() {
        return line(b'=', value);
    }
    let mut stands = serde_json::to_value(LeftOut(bytes)).map_err(std::io::Error::from)?;
    if payloads.are_asked_for() {
        let beginning: String =
            escape::json_beginning(value, BEGINNING_CHARS).chars().take(BEGINNING_CHARS).collect();
        stands["beginning"] = Json::from(beginning);
    }
    line(b'-', &stands)
}

fn slices<W: Write>(
    last: &StateReader,
    lists: BTreeMap<u32, SliceList>,
    payloads: Payloads,
    blocks: &mut Blocks<W>,
) -> Result<Vec<impl Serialize + use<W>>> {
    let mut documents = Vec::new();
    let mut lists: Vec<_> = lists.into_iter().collect();
    lists.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    for (id, list) in lists {
        let SliceList { name, policy, item, history, items } = list;
        let mut lines = LineBlocks::default();
        if let Some(slice) = last.slice_of(id) {
            let mut failure = FirstFailure::default();
            let read = slice.read_these(items.values.iter().copied(), |item, bytes| {
                let line = item_line(&name, item, bytes, payloads);
                Ok(failure.flow(line.and_then(|line| Ok(lines.push(&line, blocks)?))))
            });
            failure.end(read)?;
        }
        let names = items.values.iter().map(|name| (name.sequence, name.ordinal, name.version));
        let list = ListPlaces::write(history, names, lines, blocks)?;
        documents.push(document! { id, name, policy: policy.name(), item, list });
    }
    Ok(documents)
}

fn conversations<W: Write>(
    reader: &LogReader,
    range: &RecordRange,
    payloads: Payloads,
    blocks: &mut Blocks<W>,
) -> Result<Vec<impl Serialize + use<W>>> {
    let mut documents = Vec::new();
    for evaluation in reader.evaluations_through(range.last) {
        let mut lines = LineBlocks::default();
        let history = history(reader, &evaluation, |message| match message.sequence <= range.last {
            true => Ok(lines.push(&message_line(&message.message, payloads)?, blocks)?),
            false => Ok(()),
        })?;
        let Some(history) = history else { continue };
        let names = history.sequences().filter(|at| *at <= range.last).map(|sequence| (sequence, 0, 0));
        let list = ListPlaces::write(versions(&history, range.last), names, lines, blocks)?;
        let summaries = summaries::summaries(reader, &evaluation, payloads)?;
        let summaries = if summaries.is_empty() { None } else { Some(blocks.add_json(&summaries)?) };
        documents.push(document! { evaluation_id: evaluation, list, summaries });
    }
    Ok(documents)
}

/// Passes the messages of a conversation to `visit` in order, and returns the positions at which
/// they count; `None` if there is no such conversation.
///
/// # Errors
///
/// The engine's error if the log cannot be read, or the error of `visit`.
pub(crate) fn history<'a>(
    reader: &'a LogReader,
    evaluation: &str,
    mut visit: impl FnMut(RecordedMessage) -> Result<()>,
) -> Result<Option<MessageHistory<'a>>> {
    let mut failure = FirstFailure::default();
    let read = reader.message_history(evaluation, |message| failure.note(visit(message)));
    failure.end(read)
}

/// Returns the numbers of the messages that count at each position through `last`.
pub(crate) fn versions(history: &MessageHistory<'_>, last: SequenceNumber) -> ListHistory<u32> {
    let mut versions = ListHistory::<u32>::default();
    let mut counting: Vec<u32> = Vec::new();
    history.changes(|position, change| {
        let (now, removed, added) = apply_change(std::mem::take(&mut counting), change);
        counting = now;
        if position <= last {
            versions.change(position, &removed, &added);
        }
    });
    versions
}

/// Returns the numbers of the messages that count after a change, of those that were removed, and
/// of those that were added.
fn apply_change(
    mut counting: Vec<u32>,
    change: foldlog::inspect::MessagesChange<'_>,
) -> (Vec<u32>, Vec<u32>, Vec<(u32, u32)>) {
    use foldlog::inspect::MessagesChange;
    match change {
        MessagesChange::Appended(number) => {
            let number = number as u32;
            counting.push(number);
            (counting, Vec::new(), vec![(number, number)])
        }
        MessagesChange::Now(numbers) => {
            let now: Vec<u32> = numbers.iter().map(|number| *number as u32).collect();
            let without = |these: &[u32], others: &[u32]| -> Vec<u32> {
                these.iter().filter(|one| others.binary_search(one).is_err()).copied().collect()
            };
            let (removed, added) = (without(&counting, &now), without(&now, &counting));
            (now, removed, added.into_iter().map(|number| (number, number)).collect())
        }
    }
}

/// Returns a message's line: `=` and the JSON that `transcript --as-recorded --json` prints, or `-`
/// and that JSON without its texts.
pub(crate) fn message_line(message: &ConversationMessage, payloads: Payloads) -> Result<Vec<u8>> {
    let texts = message.content.iter().map(String::len);
    let blocks = message.blocks.iter().map(|blocks| blocks.json.len());
    let calls = message.tool_calls.iter().map(|call| call.arguments.len());
    let bytes: usize = texts.chain(blocks).chain(calls).sum();
    if bytes as u64 <= payloads.bytes_max() {
        return line(b'=', message);
    }
    let mut stands = serde_json::to_value(message).map_err(std::io::Error::from)?;
    let left_out = |text: &str| {
        let mut stands = json!({ "$left_out": "text", "bytes": text.len() });
        if let Some(digest) = left_out_digest(text.as_bytes()) {
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            stands["blake3"] = Json::from(digits);
        }
        stands
    };
    if let Some(content) = &message.content {
        stands["content"] = left_out(content);
    }
    if let Some(blocks) = &message.blocks {
        stands["blocks"] = left_out(&blocks.json);
    }
    for (place, call) in message.tool_calls.iter().enumerate() {
        stands["tool_calls"][place]["arguments"] = left_out(&call.arguments);
    }
    line(b'-', &stands)
}
