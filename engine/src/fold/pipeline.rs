//! Folds a log while it is read.
//!
//! For a long log, a second thread reads the records and checks their frames, in order and in
//! batches. It also decodes items while the folding thread lags. The caller folds: memory that
//! lives as long as the session is best allocated by the thread that will use it. For each page of
//! a new thread, an allocator may make more system calls than the page is worth.
//!
//! # Invariants
//!
//! 1. Records are folded in the order in which they were read, each once.
//! 2. The result is the same with one thread and with two, including failures.
//! 3. Memory is bounded: the reading thread waits while [`WAITING_MAX`] batches or
//!    [`WAITING_BYTES_MAX`] wait.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic;
use std::thread;

use foldlog_codec::body::{BuiltIn, Dispatch, Payload};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::{Condvar, Mutex};

use super::live::{FoldSources, LiveState};
use super::projection::AppliedEvent;
use super::record_kinds::RecordBody;
use crate::error::Result;
use crate::items::AnyValue;
use crate::names::DeclaredNames;
use crate::types::{Decoder, RecordedBytes, SessionTypes};

/// Bytes of records that one thread passes to the other at a time. Waiting batches stay in the
/// process's memory, so this is small compared with a session.
const BATCH_BYTES: usize = 32 << 10;

const WAITING_MAX: usize = 16;

/// Maximum bytes of waiting records, unless a single record is longer: a body may be 16 MiB long.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Minimum bytes of a log that a second thread reads.
const HELPED_BYTES_MIN: u64 = 2 << 20;

/// Minimum number of waiting batches at which the reading thread also decodes.
const BEHIND: usize = 6;

pub(crate) struct Fold<'a> {
    pub(crate) folded: LiveState,
    pub(crate) sources: FoldSources<'a>,
    /// Whether a record could not be folded. Nothing is folded after it.
    pub(crate) failed: bool,
}

impl Fold<'_> {
    /// Folds the next record, unless an earlier one could not be folded.
    pub(crate) fn fold(&mut self, record: &Record<'_>) {
        if !self.failed {
            self.failed = self.folded.apply_record(record, self.sources).is_err();
        }
    }

    /// Returns the folded state, or an empty one if a record could not be folded, which frees the
    /// memory for another fold.
    pub(crate) fn finish(self) -> LiveState {
        if self.failed { LiveState::default() } else { self.folded }
    }

    fn fold_event(&mut self, sequence: SequenceNumber, event: AppliedEvent<'_, AnyValue>, len: usize) {
        if !self.failed {
            self.failed = self.folded.apply_event_record(sequence, event, len, self.sources).is_err();
        }
    }

    fn fold_batch(&mut self, batch: &mut RecordBatch) {
        let RecordBatch { bytes, entries } = batch;
        for entry in entries.drain(..) {
            match entry {
                BatchEntry::Value { sequence, event, value, len } => {
                    let event = AppliedEvent { event, data: Payload::new(&[]), value: Some(value) };
                    self.fold_event(sequence, event, len);
                }
                BatchEntry::Event { sequence, event, at } => {
                    let data = Payload::new(bytes.get(at).unwrap_or_default());
                    let event = AppliedEvent { event, data, value: None };
                    self.fold_event(sequence, event, data.bytes().len());
                }
                BatchEntry::Record { sequence, kind, time_us, at } => {
                    let body = bytes.get(at).unwrap_or_default();
                    self.fold(&Record { sequence, kind, time_us, body });
                }
            }
        }
        bytes.clear();
    }
}

#[derive(Default)]
struct RecordBatch {
    bytes: Vec<u8>,
    entries: Vec<BatchEntry>,
}

/// Bytes that are allocated for a batch. Allocators take pieces of this size from the system one by
/// one and return each when it is freed; smaller ones would stay in the process. Only the filled
/// part takes memory.
const ROOM_BYTES: usize = 256 << 10;

impl RecordBatch {
    fn roomy() -> RecordBatch {
        RecordBatch { bytes: Vec::with_capacity(ROOM_BYTES), entries: Vec::new() }
    }

    fn take_in(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}

enum BatchEntry {
    /// A plain event with its decoded value, from a body of `len` bytes.
    Value { sequence: SequenceNumber, event: u32, value: AnyValue, len: usize },
    /// A plain event. Its payload, which has passed the pre-scan, is in the batch.
    Event { sequence: SequenceNumber, event: u32, at: Range<usize> },
    /// Any record. Its body is in the batch.
    Record { sequence: SequenceNumber, kind: RecordKind, time_us: i64, at: Range<usize> },
}

/// Passes batches from the reading thread to the folding one, and empty ones back.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<RecordBatch>,
    bytes: usize,
    /// Folded batches, to be reused for their memory.
    spare: Vec<RecordBatch>,
    ended: bool,
}

/// Signals to the other thread that this one has finished, including by an error or a panic.
struct EndSignal<'a>(&'a Queue);

impl Drop for EndSignal<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    /// Passes a batch on. Returns an empty one, and whether the folding thread lags. If that thread
    /// has finished, the batch is dropped.
    fn put(&self, batch: RecordBatch) -> (RecordBatch, bool) {
        let mut state = self.state.lock();
        while !state.ended
            && (state.waiting.len() >= WAITING_MAX
                || (!state.waiting.is_empty() && state.bytes + batch.bytes.len() > WAITING_BYTES_MAX))
        {
            self.changed.wait(&mut state);
        }
        if state.ended {
            return (RecordBatch::default(), false);
        }
        state.bytes += batch.bytes.len();
        state.waiting.push_back(batch);
        self.changed.notify_all();
        (state.spare.pop().unwrap_or_else(RecordBatch::roomy), state.waiting.len() >= BEHIND)
    }

    fn take(&self) -> Option<RecordBatch> {
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.waiting.pop_front() {
                state.bytes = state.bytes.saturating_sub(batch.bytes.len());
                self.changed.notify_all();
                return Some(batch);
            }
            if state.ended {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn fold_all(&self, fold: &mut Fold<'_>) {
        while let Some(mut batch) = self.take() {
            fold.fold_batch(&mut batch);
            // The memory of a batch with a long record is freed.
            if batch.bytes.capacity() <= 2 * ROOM_BYTES {
                self.state.lock().spare.push(batch);
            }
        }
    }
}

/// Decodes events before they are folded.
struct EventDecoder<'a> {
    types: &'a SessionTypes,
    names: DeclaredNames,
    /// The event that was decoded last: its id, its version, and its item's decoder if it can be
    /// decoded ahead.
    latest: Option<(u32, u32, Option<Decoder>)>,
}

impl EventDecoder<'_> {
    /// Reads a declaration before the batch with its record is folded.
    fn learn(&mut self, record: &Record<'_>) {
        if let Ok(RecordBody::Declare(declare)) = RecordBody::decode(record)
            && self.names.check(record.sequence, &declare).is_ok()
        {
            self.names.learn(declare);
            self.latest = None;
        }
    }

    fn decode_item(&self, event: u32) -> Option<(u32, Option<Decoder>)> {
        let declared = self.names.event(event)?;
        let [binding] = declared.bindings.as_slice() else { return Some((declared.version, None)) };
        let slice = self.names.slice(binding.slice).filter(|_| binding.built_in != BuiltIn::Explicit);
        let decode = slice.and_then(|slice| self.types.slice(&slice.name)).map(|types| types.decoder.clone());
        Some((declared.version, decode))
    }

    /// Returns the event's value, if the record has nothing else to be folded.
    fn decode_event(&mut self, sequence: SequenceNumber, event: u32, data: Payload<'_>) -> Option<AnyValue> {
        if self.latest.as_ref().is_none_or(|(latest, ..)| *latest != event) {
            let (version, decode) = self.decode_item(event)?;
            self.latest = Some((event, version, decode));
        }
        let (_, version, Some(decoder)) = self.latest.as_ref()? else { return None };
        if data.object().is_some() {
            return None;
        }
        decoder.alone(*version, sequence, RecordedBytes::InBody(data.bytes())).ok()
    }
}

struct BatchReader<'a> {
    queue: &'a Queue,
    decoding: Option<EventDecoder<'a>>,
    batch: RecordBatch,
    batch_bytes: usize,
    /// Whether the folding thread lags, so that this one decodes.
    behind: bool,
}

impl BatchReader<'_> {
    fn record(&mut self, record: &Record<'_>) {
        let Record { sequence, kind, time_us, body } = *record;
        if kind == RecordKind::Declare
            && let Some(decoding) = &mut self.decoding
        {
            decoding.learn(record);
        }
        let event = if kind == RecordKind::Dispatch { Dispatch::plain_event(body) } else { None };
        // Each entry is created in place: moving it there would wait for its stores.
        match event {
            Some((event, data)) => {
                let decoding = self.decoding.as_mut().filter(|_| self.behind);
                match decoding.and_then(|decoding| decoding.decode_event(sequence, event, data)) {
                    Some(value) => {
                        self.batch.entries.push(BatchEntry::Value {
                            sequence,
                            event,
                            value,
                            len: body.len(),
                        });
                    }
                    None => {
                        let at = self.batch.take_in(data.bytes());
                        self.batch.entries.push(BatchEntry::Event { sequence, event, at });
                    }
                }
            }
            None => {
                let at = self.batch.take_in(body);
                self.batch.entries.push(BatchEntry::Record { sequence, kind, time_us, at });
            }
        }
        self.batch_bytes += body.len();
        if self.batch_bytes >= BATCH_BYTES {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.batch_bytes = 0;
        (self.batch, self.behind) = self.queue.put(std::mem::take(&mut self.batch));
    }
}

/// Continues a fold with the records that `read` passes on, about `bytes` bytes of them. Calls
/// `read` once.
///
/// # Errors
///
/// The error of `read`. A record that cannot be folded is not an error, but sets [`Fold::failed`].
pub(crate) fn fold_while_reading<'a, T: Send>(
    mut folding: Fold<'a>,
    bytes: u64,
    read: impl Fn(&mut dyn FnMut(&Record<'_>)) -> Result<T> + Sync,
) -> Result<(T, Fold<'a>)> {
    let helped = if bytes < HELPED_BYTES_MIN { None } else { fold_beside(&mut folding, &read) };
    let done = helped.unwrap_or_else(|| read(&mut |record| folding.fold(record)))?;
    Ok((done, folding))
}

/// Folds while another thread reads. Returns `None`, without reading, if the system cannot start a
/// thread.
fn fold_beside<T: Send>(
    folding: &mut Fold<'_>,
    read: &(impl Fn(&mut dyn FnMut(&Record<'_>)) -> Result<T> + Sync),
) -> Option<Result<T>> {
    let names = DeclaredNames::clone(&folding.folded.projection.names);
    let decoding = folding.sources.types.map(|types| EventDecoder { types, names, latest: None });
    let queue = &Queue::default();
    thread::scope(|scope| {
        // If reading fails or panics, the folding thread must be notified, and vice versa.
        let signal = EndSignal(queue);
        let reading = move || {
            let _signal = signal;
            let mut reader =
                BatchReader { queue, decoding, batch: RecordBatch::roomy(), batch_bytes: 0, behind: false };
            let done = read(&mut |record| reader.record(record));
            reader.hand_over();
            done
        };
        let thread = thread::Builder::new().name("foldlog-read".to_owned());
        let helper = thread.spawn_scoped(scope, reading).ok()?;
        let _signal = EndSignal(queue);
        queue.fold_all(folding);
        Some(helper.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foldlog_codec::body::{
        Action, Binding, Declare, Effect, EventDeclaration, Policy, Rollback, SliceDeclaration,
    };
    use foldlog_codec::msgpack;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::error::Error;
    use crate::fold::projection::LogSlices;
    use crate::items::SliceItems;
    use crate::items::runs::Value;
    use crate::log::objects::Objects;
    use crate::storage::MemoryStorage;
    use crate::types::{Event, Slice};

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Word {
        text: String,
    }

    impl Event for Word {
        const NAME: &'static str = "word";
    }

    struct Words;

    impl Slice for Words {
        const NAME: &'static str = "words";
        type Item = Word;
    }

    /// The first records declare a plain event, an event whose records list their effects, and an
    /// unknown one.
    fn declare(id: u32) -> Vec<u8> {
        let built_in = if id == 1 { BuiltIn::Explicit } else { BuiltIn::Append };
        let slice = SliceDeclaration {
            id: id.min(1),
            name: if id == 0 { "words".to_owned() } else { "others".to_owned() },
            policy: Policy::State,
            item: "word".to_owned(),
        };
        let bindings = vec![Binding { slice: id / 2, built_in }];
        let (name, implicit) = (format!("event {id}"), false);
        let event = EventDeclaration { id, name, version: 1, bindings, implicit };
        Declare { events: vec![event], slices: vec![slice] }.encode()
    }

    fn dispatch(event: u32, text: &str, effects: Option<Vec<Effect<'_>>>) -> Vec<u8> {
        let mut data = Vec::new();
        msgpack::append(&Word { text: text.repeat(40) }, &mut data).unwrap();
        let action = Action::Event { event, data: Payload::new(&data) };
        Dispatch { action, effects }.encode()
    }

    fn records() -> Vec<(RecordKind, Vec<u8>)> {
        let mut records: Vec<(RecordKind, Vec<u8>)> =
            (0..3).map(|id| (RecordKind::Declare, declare(id))).collect();
        for number in 0..30_000_u32 {
            let text = format!("word {number}");
            records.push((RecordKind::Dispatch, dispatch(number % 3, &text, None)));
            if number % 8_000 == 7_999 {
                let to = u64::from(number) / 2 + 3;
                records
                    .push((RecordKind::Rollback, Rollback { to: to.into(), preserve_logs: true }.encode()));
            }
        }
        records
    }

    fn targets(records: &[(RecordKind, Vec<u8>)]) -> LiveState {
        let rollbacks = records.iter().filter(|(kind, _)| *kind == RecordKind::Rollback);
        let mut live = LiveState::new(LogSlices::Held);
        rollbacks.for_each(|(_, body)| live.positions.expect_target(Rollback::decode(body).unwrap().to));
        live
    }

    fn bytes(records: &[(RecordKind, Vec<u8>)]) -> u64 {
        let bytes = records.iter().map(|(_, body)| body.len() as u64).sum();
        assert!(bytes > HELPED_BYTES_MIN);
        bytes
    }

    /// Returns the result of the fold: the words by their records, whether the others were decoded,
    /// and the next sequence number.
    fn folded(folded: &LiveState) -> (Vec<(SequenceNumber, String)>, Vec<bool>, SequenceNumber) {
        let rows = |name: &str| match folded.projection.items_named(name) {
            Some((_, SliceItems::Held(rows))) => rows.clone(),
            other => panic!("{other:?}"),
        };
        let text = |value: &Value| value.downcast_ref::<Word>().unwrap().text.clone();
        let words =
            rows("words").iter().map(|row| (row.id.sequence, text(row.typed_value().unwrap()))).collect();
        let others = rows("others").iter().map(|row| row.typed_value().is_some()).collect();
        (words, others, folded.projection.next_sequence())
    }

    fn numbered(records: &[(RecordKind, Vec<u8>)]) -> impl Iterator<Item = Record<'_>> {
        (0_u64..).zip(records).map(|(sequence, (kind, body))| Record {
            sequence: sequence.into(),
            kind: *kind,
            time_us: 0,
            body,
        })
    }

    #[test]
    fn two_threads_fold_what_one_does() {
        let types = SessionTypes::builder().slice::<Words>().append_all::<Words>().build().unwrap();
        let objects = Objects::new(Arc::new(MemoryStorage::new()), "/objects".as_ref());
        let records = records();
        let sources = FoldSources { objects: &objects, types: Some(&types) };
        let mut alone = targets(&records);
        for record in numbered(&records) {
            alone.apply_record(&record, sources).unwrap();
        }
        assert!(folded(&alone).0.len() > 300);
        // The thread that only passes records on is soon ahead, and starts to decode.
        let start = targets(&records);
        let folding = Fold { folded: start, sources, failed: false };
        let (read, together) = fold_while_reading(folding, bytes(&records), |take| {
            numbered(&records).for_each(|record| take(&record));
            Ok(records.len())
        })
        .unwrap();
        assert!(!together.failed && read == records.len());
        assert_eq!(folded(&together.folded), folded(&alone));
    }

    #[test]
    fn a_record_that_contradicts_those_before_it_ends_the_fold_and_not_the_reading() {
        let objects = Objects::new(Arc::new(MemoryStorage::new()), "/objects".as_ref());
        let mut records = records();
        records.insert(25_000, (RecordKind::Dispatch, dispatch(77, "never declared", None)));
        let start = targets(&records);
        let folding =
            Fold { folded: start, sources: FoldSources { objects: &objects, types: None }, failed: false };
        let (read, together) = fold_while_reading(folding, bytes(&records), |take| {
            numbered(&records).for_each(|record| take(&record));
            Ok(records.len())
        })
        .unwrap();
        assert!(together.failed && read == records.len());
        assert_eq!(together.folded.projection.next_sequence(), 25_000);
    }

    #[test]
    fn a_reading_that_fails_says_so_and_waits_for_nobody() {
        let objects = Objects::new(Arc::new(MemoryStorage::new()), "/objects".as_ref());
        let records = records();
        let start = targets(&records);
        let folding =
            Fold { folded: start, sources: FoldSources { objects: &objects, types: None }, failed: false };
        let answer = fold_while_reading(folding, bytes(&records), |take| {
            numbered(&records).for_each(|record| take(&record));
            Err::<(), _>(Error::Export("no further".to_owned()))
        });
        assert!(matches!(answer.map(drop), Err(Error::Export(_))));
    }
}
