//! SQLite, with a write-ahead log (`journal_mode = WAL`).
//!
//! Its documentation of `PRAGMA synchronous`: with `OFF`, "if the application running SQLite
//! crashes, the data will be safe"; in WAL mode only `FULL` makes a transaction durable against a
//! power cut. Checkpoints are its default, every 1,000 pages.

use std::path::Path;

use rusqlite::{Connection, params};

use super::gathered::{self, Commit};
use super::{ContestantReader, ContestantWriter, Survives};
use crate::measure::Result;

const FILE: &str = "log.sqlite";

/// Number of rows of a transaction if a log is only filled.
const FILLED_AT_ONCE: u64 = 10_000;

const INSERT: &str = "INSERT INTO log (number, payload) VALUES (?1, ?2)";

struct SqliteLog {
    connection: Connection,
}

/// Opens the database with the level of `synchronous` that promises the requested durability.
pub fn connect(path: &Path, survives: Survives) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = if survives == Survives::PowerCut { "FULL" } else { "OFF" };
    connection.pragma_update(None, "synchronous", synchronous)?;
    Ok(connection)
}

impl Commit for SqliteLog {
    fn commit(&mut self, batch: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()> {
        let mut batch = batch.peekable();
        let Some((number, payload)) = batch.next() else { return Ok(()) };
        let mut insert = self.connection.prepare_cached(INSERT)?;
        if batch.peek().is_none() {
            // A single statement is a transaction.
            insert.execute(params![number, payload])?;
            return Ok(());
        }
        drop(insert);
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            insert.execute(params![number, payload])?;
            for (number, payload) in batch {
                insert.execute(params![number, payload])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn close(self) -> Result<()> {
        self.connection.close().map_err(|(_, error)| error.into())
    }
}

/// Fills the table in large transactions.
struct SqliteBulkWriter {
    connection: Connection,
    open: u64,
}

impl ContestantWriter for SqliteBulkWriter {
    fn append(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        if self.open == 0 {
            self.connection.execute_batch("BEGIN")?;
        }
        self.connection.prepare_cached(INSERT)?.execute(params![number, payload])?;
        self.open += 1;
        if self.open == FILLED_AT_ONCE { self.settle() } else { Ok(()) }
    }

    fn settle(&mut self) -> Result<()> {
        if self.open > 0 {
            self.connection.execute_batch("COMMIT")?;
            self.open = 0;
        }
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.settle()?;
        self.connection.close().map_err(|(_, error)| error.into())
    }
}

pub fn create(dir: &Path, survives: Survives, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let connection = connect(&dir.join(FILE), survives)?;
    connection.execute_batch("CREATE TABLE log (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)")?;
    if survives == Survives::KillOnceSettled {
        return Ok(vec![Box::new(SqliteBulkWriter { connection, open: 0 })]);
    }
    Ok(gathered::share(SqliteLog { connection }, writers))
}

impl ContestantReader for SqliteLog {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut select = self.connection.prepare("SELECT payload FROM log ORDER BY number")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            visit(row.get_ref(0)?.as_blob()?)?;
        }
        Ok(())
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(SqliteLog { connection: connect(&dir.join(FILE), Survives::Kill)? }))
}
