//! okaywal. A commit is durable when it returns, and commits of several threads share syncs. Its
//! docs say that preallocated bytes "should be large enough to allow batching multiple entries into
//! one checkpointing operation". Here they are so large that no round reaches a checkpoint, which
//! empties the log and requires the records to be stored elsewhere.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use okaywal::{Configuration, Entry, EntryId, LogManager, SegmentReader, WriteAheadLog};

use super::{ContestantReader, ContestantWriter};
use crate::measure::Result;

const PREALLOCATED: u32 = 64 << 20;

const CHECKPOINT_AFTER: u64 = 60 << 20;

/// Keeps the records of a log when it is opened.
#[derive(Debug, Clone, Default)]
struct OkaywalRecovery(Arc<Mutex<Vec<Vec<u8>>>>);

impl LogManager for OkaywalRecovery {
    fn recover(&mut self, entry: &mut Entry<'_>) -> io::Result<()> {
        if let (Some(chunks), Ok(mut recovered)) = (entry.read_all_chunks()?, self.0.lock()) {
            recovered.extend(chunks);
        }
        Ok(())
    }

    fn checkpoint_to(&mut self, _: EntryId, _: &mut SegmentReader, _: &WriteAheadLog) -> io::Result<()> {
        Ok(())
    }
}

struct OkaywalWriter(WriteAheadLog);

impl ContestantWriter for OkaywalWriter {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        let mut entry = self.0.begin_entry()?;
        entry.write_chunk(payload)?;
        entry.commit()?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn opened(dir: &Path, recovered: OkaywalRecovery) -> Result<WriteAheadLog> {
    let configuration = Configuration::default_for(dir)
        .preallocate_bytes(PREALLOCATED)
        .checkpoint_after_bytes(CHECKPOINT_AFTER);
    Ok(configuration.open(recovered)?)
}

pub fn create(dir: &Path, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let log = opened(dir, OkaywalRecovery::default())?;
    Ok((0..writers).map(|_| Box::new(OkaywalWriter(log.clone())) as Box<dyn ContestantWriter>).collect())
}

struct OkaywalReader(Vec<Vec<u8>>);

impl ContestantReader for OkaywalReader {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.iter().try_for_each(|payload| visit(payload))
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    let recovered = OkaywalRecovery::default();
    let log = opened(dir, recovered.clone())?;
    let payloads = recovered.0.lock().map_err(|_| "the manager panicked")?.clone();
    drop(log);
    Ok(Box::new(OkaywalReader(payloads)))
}
