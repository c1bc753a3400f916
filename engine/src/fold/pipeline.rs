//! Fold a log while it is read.
//!
//! To read a log and check its frames is one thing, to decode its items and fold them another. Of a long log
//! a second thread does the second, batch by batch and in order. Since it has more to do, the reading thread
//! decodes items itself where the other one is behind.
//!
//! # Invariants
//!
//! 1. Records are folded in the order in which they were read, each once.
//! 2. What comes out is the same with one thread and with two, failures included.
//! 3. Memory is bounded: the reading thread waits where [`WAITING_MAX`] batches wait.

use std::collections::VecDeque;
use std::panic;
use std::thread::{self, ScopedJoinHandle};

use foldlog_codec::body::{BuiltIn, Dispatch, Operation};
use foldlog_codec::{Kind, Record};
use parking_lot::{Condvar, Mutex};

use super::content::Content;
use super::history::Folded;
use super::names::Names;
use crate::error::Result;
use crate::log::objects::Objects;
use crate::types::{AnyValue, DecodeItem, Recorded, SessionTypes};

/// How many bytes of records one thread hands to the other at a time. What waits stays in the process's memory, so
/// it is kept small beside a session.
const BATCH_BYTES: usize = 32 << 10;

/// How many batches wait at most.
const WAITING_MAX: usize = 4;

/// A log of fewer bytes of records is folded by the thread that reads it.
const HELPED_BYTES_MIN: usize = 4 << 20;

/// Where so many wait, the reading thread decodes.
const BEHIND: usize = 2;

/// A fold that is going on.
pub(crate) struct Fold<'a> {
    pub(crate) folded: Folded,
    pub(crate) objects: &'a Objects,
    pub(crate) types: Option<&'a SessionTypes>,
    /// Whether some record could not be folded; nothing is folded after it.
    pub(crate) failed: bool,
}

impl Fold<'_> {
    fn fold(&mut self, batch: &mut Batch) {
        let Batch { bytes, entries } = batch;
        for entry in entries.drain(..) {
            if self.failed {
                continue;
            }
            let done = match entry {
                Entry::Record { sequence, kind, time_us, at } => {
                    let body = bytes.get(at.0..at.1).unwrap_or_default();
                    let record = Record { sequence, kind, time_us, body };
                    self.folded.apply(&record, self.objects, self.types)
                }
                Entry::Event { sequence, event, value } => {
                    self.folded.apply_event(sequence, (event, value), self.objects, self.types)
                }
            };
            self.failed = done.is_err();
        }
        bytes.clear();
    }
}

/// Records that were read.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// Allocators get pieces from here on from the system one by one, and give each back when it is let go of; smaller
/// ones would stay in the process. Only what is filled of it takes memory.
const ROOM_BYTES: usize = 256 << 10;

impl Batch {
    fn roomy() -> Batch {
        Batch { bytes: Vec::with_capacity(ROOM_BYTES), entries: Vec::new() }
    }
}

enum Entry {
    /// One whose body stands in the batch, from and to these bytes.
    Record { sequence: u64, kind: Kind, time_us: i64, at: (usize, usize) },
    /// An event that does as declared, whose value is decoded.
    Event { sequence: u64, event: u32, value: AnyValue },
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Batch>,
    /// Batches that were folded, for their memory.
    spare: Vec<Batch>,
    /// Set by whichever thread is gone.
    ended: bool,
}

/// Says at its end, however that comes, that one thread is gone.
struct Part<'a>(&'a Queue);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    /// Hands a batch over, and takes an empty one for it. Also says whether the folding thread is behind.
    fn put(&self, batch: Batch) -> (Batch, bool) {
        let mut state = self.state.lock();
        while state.waiting.len() >= WAITING_MAX && !state.ended {
            self.changed.wait(&mut state);
        }
        state.waiting.push_back(batch);
        self.changed.notify_all();
        (state.spare.pop().unwrap_or_else(Batch::roomy), state.waiting.len() >= BEHIND)
    }

    fn take(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.waiting.pop_front() {
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
            fold.fold(&mut batch);
            self.state.lock().spare.push(batch);
        }
    }
}

/// How events are decoded ahead of their turn.
struct Decoding<'a> {
    types: &'a SessionTypes,
    names: Names,
    /// The event asked for last: its id, its version, and how its item is decoded, where that can be done ahead.
    latest: Option<(u32, u32, Option<DecodeItem>)>,
}

impl Decoding<'_> {
    /// What a declaration says is known before the batch that holds it is folded.
    fn learn(&mut self, record: &Record<'_>) {
        if let Ok(Content::Declare(declare)) = Content::of(record)
            && self.names.check(record.sequence, &declare).is_ok()
        {
            self.names.learn(declare);
            self.latest = None;
        }
    }

    fn decode_item(&self, event: u32) -> Option<(u32, Option<DecodeItem>)> {
        let declared = self.names.event(event)?;
        let [binding] = declared.bindings.as_slice() else { return Some((declared.version, None)) };
        let slice = self.names.slice(binding.slice).filter(|_| binding.built_in != BuiltIn::Explicit);
        let decode = slice.and_then(|slice| self.types.slice(&slice.name)).map(|types| types.decode);
        Some((declared.version, decode))
    }

    /// The event's id and value, where that is all there is to fold.
    fn decoded(&mut self, record: &Record<'_>) -> Option<(u32, AnyValue)> {
        if record.kind != Kind::DISPATCH {
            return None;
        }
        let Dispatch { operation: Operation::Event { event, data }, effects: None } =
            Dispatch::decode(record.body).ok()?
        else {
            return None;
        };
        if self.latest.is_none_or(|(latest, ..)| latest != event) {
            let (version, decode) = self.decode_item(event)?;
            self.latest = Some((event, version, decode));
        }
        let (_, version, Some(decode)) = self.latest? else { return None };
        if data.object().is_some() {
            return None;
        }
        let value = decode(version, record.sequence, Recorded::InBody(data.bytes())).ok()?;
        Some((event, value))
    }
}

/// The reading thread's side.
struct Reader<'s, 'e, 'a> {
    scope: &'s thread::Scope<'s, 'e>,
    queue: &'e Queue,
    /// The fold, until somebody begins with it.
    fold: &'e Mutex<Option<Fold<'a>>>,
    decoding: Option<Decoding<'a>>,
    batch: Batch,
    /// How much was read for it.
    batch_bytes: usize,
    /// How much was read before it.
    bytes: usize,
    /// Whether the folding thread is behind, so that this one decodes.
    behind: bool,
    helper: Option<ScopedJoinHandle<'s, Option<Fold<'a>>>>,
}

impl<'s, 'e, 'a: 'e> Reader<'s, 'e, 'a> {
    fn record(&mut self, record: &Record<'_>) {
        if record.kind == Kind::DECLARE
            && let Some(decoding) = &mut self.decoding
        {
            decoding.learn(record);
        }
        let Record { sequence, kind, time_us, body } = *record;
        self.batch_bytes += body.len();
        let decoded = match &mut self.decoding {
            Some(decoding) if self.behind => decoding.decoded(record),
            _ => None,
        };
        let entry = match decoded {
            Some((event, value)) => Entry::Event { sequence, event, value },
            None => {
                let start = self.batch.bytes.len();
                self.batch.bytes.extend_from_slice(body);
                Entry::Record { sequence, kind, time_us, at: (start, self.batch.bytes.len()) }
            }
        };
        self.batch.entries.push(entry);
        if self.batch_bytes >= BATCH_BYTES {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.bytes += std::mem::take(&mut self.batch_bytes);
        if self.helper.is_none() && self.bytes >= HELPED_BYTES_MIN {
            let (queue, fold) = (self.queue, self.fold);
            let help = move || {
                let _part = Part(queue);
                let mut folding = fold.lock().take()?;
                queue.fold_all(&mut folding);
                Some(folding)
            };
            let thread = thread::Builder::new().name("foldlog-fold".to_owned());
            self.helper = thread.spawn_scoped(self.scope, help).ok();
        }
        if self.helper.is_none() {
            // It is no long log yet, or the system gives no thread.
            self.fold_here();
            return;
        }
        (self.batch, self.behind) = self.queue.put(std::mem::take(&mut self.batch));
    }

    fn fold_here(&mut self) {
        if let Some(folding) = &mut *self.fold.lock() {
            folding.fold(&mut self.batch);
        }
    }

    /// Everything was read: waits until it is folded.
    fn finish(mut self, part: Part<'_>) -> Option<Fold<'a>> {
        let Some(helper) = self.helper.take() else {
            self.fold_here();
            return self.fold.lock().take();
        };
        self.queue.put(std::mem::take(&mut self.batch));
        drop(part);
        helper.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

/// Goes on with a fold by what `read` hands over.
///
/// # Errors
///
/// Those of `read`. What could not be folded is no error; the fold says that it failed.
pub(crate) fn fold_while_reading<'a, T>(
    folding: Fold<'a>,
    read: impl FnOnce(&mut dyn FnMut(&Record<'_>)) -> Result<T>,
) -> Result<(T, Option<Fold<'a>>)> {
    let names = Names::clone(&folding.folded.projection.names);
    let decoding = folding.types.map(|types| Decoding { types, names, latest: None });
    let (queue, fold) = (Queue::default(), Mutex::new(Some(folding)));
    thread::scope(|scope| {
        // Where reading fails or panics, the other thread has to know.
        let part = Part(&queue);
        let mut reader = Reader {
            scope,
            queue: &queue,
            fold: &fold,
            decoding,
            batch: Batch::default(),
            batch_bytes: 0,
            bytes: 0,
            behind: false,
            helper: None,
        };
        let read = read(&mut |record| reader.record(record))?;
        Ok((read, reader.finish(part)))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foldlog_codec::body::{
        Binding, Declare, Effect, EventDeclaration, Payload, Policy, Rollback, SliceDeclaration,
    };
    use foldlog_codec::msgpack;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::error::Error;
    use crate::fold::positions::Positions;
    use crate::fold::projection::{Items, LogSlices};
    use crate::log::storage::MemoryStorage;
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

    /// The first records declare as they go: one event that does as declared, one of which each record says what it
    /// does, and one that nobody knows.
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
        let operation = Operation::Event { event, data: Payload::new(&data) };
        Dispatch { operation, effects }.encode()
    }

    fn records() -> Vec<(Kind, Vec<u8>)> {
        let mut records: Vec<(Kind, Vec<u8>)> = (0..3).map(|id| (Kind::DECLARE, declare(id))).collect();
        for number in 0..30_000_u32 {
            let text = format!("word {number}");
            records.push((Kind::DISPATCH, dispatch(number % 3, &text, None)));
            if number % 8_000 == 7_999 {
                let to = u64::from(number) / 2 + 3;
                records.push((Kind::ROLLBACK, Rollback { to, preserve_logs: true }.encode()));
            }
        }
        records
    }

    fn targets(records: &[(Kind, Vec<u8>)]) -> Positions {
        let rollbacks = records.iter().filter(|(kind, _)| *kind == Kind::ROLLBACK);
        Positions::for_targets(rollbacks.map(|(_, body)| Rollback::decode(body).unwrap().to))
    }

    /// What the records come to: the words by the records they are of, whether the others were decoded, and how far
    /// all were folded.
    fn folded(folded: &Folded) -> (Vec<(u64, String)>, Vec<bool>, u64) {
        let rows = |name: &str| match folded.projection.items_named(name) {
            Some((_, Items::Held(rows))) => rows.clone(),
            other => panic!("{other:?}"),
        };
        let text = |value: &AnyValue| value.downcast_ref::<Word>().unwrap().text.clone();
        let words = rows("words").iter().map(|row| (row.id.sequence, text(row.typed().unwrap()))).collect();
        let others = rows("others").iter().map(|row| row.typed().is_some()).collect();
        (words, others, folded.projection.next_sequence())
    }

    fn as_record((sequence, (kind, body)): (u64, &(Kind, Vec<u8>))) -> Record<'_> {
        Record { sequence, kind: *kind, time_us: 0, body }
    }

    #[test]
    fn two_threads_fold_what_one_does() {
        let types = SessionTypes::builder().slice::<Words>().append_all::<Words>().build().unwrap();
        let objects = Objects::new(Arc::new(MemoryStorage::new()), "/objects".as_ref());
        let records = records();
        let mut alone = Folded::new(LogSlices::Held, targets(&records));
        for record in (0..).zip(&records).map(as_record) {
            alone.apply(&record, &objects, Some(&types)).unwrap();
        }
        assert!(folded(&alone).0.len() > 300);
        // The thread that does nothing but hand over is soon ahead, and begins to decode.
        let start = Folded::new(LogSlices::Held, targets(&records));
        let folding = Fold { folded: start, objects: &objects, types: Some(&types), failed: false };
        let (read, together) = fold_while_reading(folding, |take| {
            (0..).zip(&records).map(as_record).for_each(|record| take(&record));
            Ok(records.len())
        })
        .unwrap();
        let together = together.unwrap();
        assert!(!together.failed && read == records.len());
        assert_eq!(folded(&together.folded), folded(&alone));
    }

    #[test]
    fn a_record_that_contradicts_those_before_it_ends_the_fold_and_not_the_reading() {
        let objects = Objects::new(Arc::new(MemoryStorage::new()), "/objects".as_ref());
        let mut records = records();
        records.insert(25_000, (Kind::DISPATCH, dispatch(77, "never declared", None)));
        let start = Folded::new(LogSlices::Held, targets(&records));
        let folding = Fold { folded: start, objects: &objects, types: None, failed: false };
        let (read, together) = fold_while_reading(folding, |take| {
            (0..).zip(&records).map(as_record).for_each(|record| take(&record));
            Ok(records.len())
        })
        .unwrap();
        let together = together.unwrap();
        assert!(together.failed && read == records.len());
        assert_eq!(together.folded.projection.next_sequence(), 25_000);
    }

    #[test]
    fn a_reading_that_fails_says_so_and_waits_for_nobody() {
        let objects = Objects::new(Arc::new(MemoryStorage::new()), "/objects".as_ref());
        let records = records();
        let start = Folded::new(LogSlices::Held, targets(&records));
        let folding = Fold { folded: start, objects: &objects, types: None, failed: false };
        let answer = fold_while_reading(folding, |take| {
            (0..).zip(&records).map(as_record).for_each(|record| take(&record));
            Err::<(), _>(Error::Export("no further".to_owned()))
        });
        assert!(matches!(answer.map(drop), Err(Error::Export(_))));
    }
}
