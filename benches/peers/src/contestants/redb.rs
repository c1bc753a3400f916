//! redb, whose docs say of `Durability::None`: "will not be persisted to disk unless followed by a
//! commit with `Durability::Immediate`". Its design says of such commits: "in the event of a crash,
//! the database will simply rollback". So records that survive a kill need `Immediate`, which is
//! durable too.

use std::path::Path;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::gathered::{self, Commit};
use super::{ContestantReader, ContestantWriter, Survives};
use crate::measure::Result;

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

const FILE: &str = "log.redb";

/// Number of records of a transaction if a log is only filled.
const FILLED_AT_ONCE: usize = 10_000;

struct RedbLog {
    database: Database,
    durability: Durability,
}

impl Commit for RedbLog {
    fn commit(&mut self, batch: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        {
            let mut table = transaction.open_table(LOG)?;
            for (number, payload) in batch {
                table.insert(number, payload)?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn close(self) -> Result<()> {
        drop(self.database);
        Ok(())
    }
}

struct RedbBulkWriter {
    log: RedbLog,
    batch: Vec<(u64, Vec<u8>)>,
}

impl ContestantWriter for RedbBulkWriter {
    fn append(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        self.batch.push((number, payload.to_vec()));
        if self.batch.len() == FILLED_AT_ONCE { self.settle() } else { Ok(()) }
    }

    fn settle(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.log.commit(&mut batch.iter().map(|(number, payload)| (*number, &**payload)))
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.settle()?;
        self.log.close()
    }
}

pub fn create(dir: &Path, survives: Survives, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let log = RedbLog { database: Database::create(dir.join(FILE))?, durability: Durability::Immediate };
    if survives == Survives::KillOnceSettled {
        return Ok(vec![Box::new(RedbBulkWriter { log, batch: Vec::new() })]);
    }
    Ok(gathered::share(log, writers))
}

pub fn create_unsynced(dir: &Path) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let mut log = RedbLog { database: Database::create(dir.join(FILE))?, durability: Durability::Immediate };
    // The table itself exists after a kill.
    log.commit(&mut std::iter::empty())?;
    log.durability = Durability::None;
    Ok(gathered::share(log, 1))
}

impl ContestantReader for RedbLog {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let transaction = self.database.begin_read()?;
        let table = transaction.open_table(LOG)?;
        for entry in table.iter()? {
            visit(entry?.1.value())?;
        }
        Ok(())
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(RedbLog { database: Database::create(dir.join(FILE))?, durability: Durability::Immediate }))
}
