//! fjall, whose README says: "By default, any operation will flush to OS buffers, but not to disk."
//! For records that survive a power cut, `Database::persist` follows each insert, with
//! `PersistMode::SyncData`. Keys are big-endian numbers, as the README advises for series.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::gathered::{self, Commit};
use super::{ContestantReader, ContestantWriter, Survives};
use crate::measure::Result;

struct FjallLog {
    database: Database,
    log: Keyspace,
    sync: bool,
}

impl Commit for FjallLog {
    fn commit(&mut self, batch: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()> {
        for (number, payload) in batch {
            self.log.insert(number.to_be_bytes(), payload)?;
        }
        if self.sync {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn close(self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}

fn opened(dir: &Path, survives: Survives) -> Result<FjallLog> {
    let database = Database::builder(dir).open()?;
    let log = database.keyspace("log", KeyspaceCreateOptions::default)?;
    Ok(FjallLog { database, log, sync: survives == Survives::PowerCut })
}

pub fn create(dir: &Path, survives: Survives, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    Ok(gathered::share(opened(dir, survives)?, writers))
}

impl ContestantReader for FjallLog {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.log.iter().try_for_each(|entry| visit(&entry.value()?))
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(opened(dir, Survives::Kill)?))
}
