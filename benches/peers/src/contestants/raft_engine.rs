//! raft-engine, whose README says: "Both synchronous and non-sync writes are supported. When one
//! write in a batch is marked synchronous, the batch leader will call fdatasync() after writing." A
//! write that is not synchronous is in the kernel when it returns. All other settings are its
//! defaults, as in TiKV. Writers are raft groups of one engine, which groups their writes.

use std::path::Path;
use std::sync::Arc;

use protobuf::well_known_types::BytesValue;
use raft_engine::internals::LogQueue;
use raft_engine::{Config, Engine, LogBatch, MessageExt};

use super::{ContestantReader, ContestantWriter, Survives};
use crate::measure::Result;

/// Length of the index before each payload: an entry of raft contains its index too.
const INDEX_BYTES: usize = 8;

/// Number of entries that are fetched at a time.
const FETCHED: u64 = 1_000;

struct Entries;

impl MessageExt for Entries {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        let index = entry.value.first_chunk::<INDEX_BYTES>();
        index.map_or(0, |index| u64::from_le_bytes(*index))
    }
}

struct OfGroup {
    engine: Arc<Engine>,
    batch: LogBatch,
    entry: BytesValue,
    group: u64,
    index: u64,
    sync: bool,
}

impl ContestantWriter for OfGroup {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        self.index += 1;
        let value = &mut self.entry.value;
        value.clear();
        value.extend_from_slice(&self.index.to_le_bytes());
        value.extend_from_slice(payload);
        self.batch.add_entries::<Entries>(self.group, std::slice::from_ref(&self.entry))?;
        self.engine.write(&mut self.batch, self.sync)?;
        Ok(())
    }

    fn file(&self) -> u64 {
        self.engine.file_span(LogQueue::Append).1
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.engine.sync()?)
    }
}

fn engine(dir: &Path) -> Result<Arc<Engine>> {
    let dir = dir.to_str().ok_or("the directory's name is not UTF-8")?.to_owned();
    Ok(Arc::new(Engine::open(Config { dir, ..Config::default() })?))
}

pub fn create(dir: &Path, survives: Survives, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let engine = engine(dir)?;
    let writer = |group| {
        let (batch, entry, sync) = (LogBatch::default(), BytesValue::new(), survives == Survives::PowerCut);
        Box::new(OfGroup { engine: Arc::clone(&engine), batch, entry, group, index: 0, sync })
            as Box<dyn ContestantWriter>
    };
    Ok((1..=writers as u64).map(writer).collect())
}

struct RaftEngineReader(Arc<Engine>);

impl RaftEngineReader {
    /// Fetches all entries by the thousand. The CRC of each block is checked.
    fn fetch(&self, visit: &mut dyn FnMut(&mut Vec<BytesValue>) -> Result<()>) -> Result<()> {
        let (Some(first), Some(last)) = (self.0.first_index(1), self.0.last_index(1)) else { return Ok(()) };
        let mut entries = Vec::new();
        for begin in (first..=last).step_by(FETCHED as usize) {
            let end = (begin + FETCHED).min(last + 1);
            self.0.fetch_entries_to::<Entries>(1, begin, end, None, &mut entries)?;
            visit(&mut entries)?;
        }
        Ok(())
    }
}

impl ContestantReader for RaftEngineReader {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.fetch(&mut |entries| {
            entries.drain(..).try_for_each(|entry| visit(entry.value.get(INDEX_BYTES..).unwrap_or_default()))
        })
    }

    fn load(&mut self) -> Result<u64> {
        let mut values: Vec<BytesValue> = Vec::new();
        self.fetch(&mut |entries| {
            values.append(entries);
            Ok(())
        })?;
        let len = std::hint::black_box(&values).len() as u64;
        std::mem::forget(values);
        Ok(len)
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(RaftEngineReader(engine(dir)?)))
}
