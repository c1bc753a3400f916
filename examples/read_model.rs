//! Updates an SQLite table with the events of a session that another process writes. The rows and
//! the position through which they are current are written in one transaction. A kill at any moment
//! therefore neither repeats nor loses an event.
//!
//! `cargo run --bin read_model`

use std::path::Path;
use std::process::{Command, abort};
use std::time::Duration;
use std::{env, error::Error};

use foldlog::inspect::{EventFeed, Fed};
use foldlog::{Durability, Event, EventSlice, SessionOptions, SessionTypes, Store};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Said(String);

impl Event for Said {
    const NAME: &'static str = "said";
}

const TABLES: &str =
    "CREATE TABLE IF NOT EXISTS said (sequence INTEGER PRIMARY KEY, text TEXT NOT NULL, counts);
    CREATE TABLE IF NOT EXISTS taken (row INTEGER PRIMARY KEY, next INTEGER NOT NULL);";

/// Applies the session's events until no more arrive, or until this process dies at the record
/// `dies_at`.
fn follow(session: &Path, table: &Path, dies_at: Option<u64>) -> Result<(), Box<dyn Error>> {
    let mut table = Connection::open(table)?;
    table.execute_batch(TABLES)?;
    let mut next = table.query_row("SELECT coalesce(max(next), 0) FROM taken", [], |row| row.get(0))?;
    let mut events = EventFeed::open(session, next)?; // which goes on behind what the table has
    while let Some(fed) = events.next_within(Duration::from_millis(10))? {
        let transaction = table.transaction()?;
        let more = std::iter::from_fn(|| events.try_next().transpose());
        for fed in std::iter::once(Ok(fed)).chain(more).take(16) {
            let fed = fed?;
            next = fed.sequence().get() + 1;
            if let Fed::Event(event) = &fed
                && let Some(Said(text)) = event.event.read()?
            {
                transaction.execute("INSERT INTO said VALUES (?1, ?2, 1)", (event.sequence.get(), text))?;
            } else if let Fed::RolledBack { abandoned, restored, .. } = fed {
                let marked =
                    abandoned.iter().map(|range| (range, 0)).chain(restored.iter().map(|range| (range, 1)));
                for (range, counts) in marked {
                    let of = (counts, range.start().get(), range.end().get());
                    transaction
                        .execute("UPDATE said SET counts = ?1 WHERE sequence BETWEEN ?2 AND ?3", of)?;
                }
            }
            if dies_at.is_some_and(|at| next > at) {
                abort();
            }
        }
        transaction.execute("INSERT OR REPLACE INTO taken VALUES (1, ?1)", [next])?;
        transaction.commit()?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let [session, table, dies_at] = env::args().skip(1).collect::<Vec<_>>().as_slice() {
        return follow(Path::new(session), Path::new(table), dies_at.parse().ok());
    }
    let directory = tempfile::tempdir()?;
    // With this durability, a reader never sees an event that a later power cut could remove.
    let options = SessionOptions { durability: Some(Durability::Every), ..SessionOptions::default() };
    let store = Store::open(directory.path().join("store"))?;
    let session = store.create_with(&SessionTypes::builder().build()?, options)?;
    let table = directory.path().join("table.sqlite");
    for dies_at in ["20", "52"] {
        (0..30).try_for_each(|n| session.dispatch(Said(format!("{dies_at}, {n}"))).map(drop))?;
        session.rollback_to(session.log().position().unwrap_or_default() - 5)?;
        let paths = [session.dir().as_os_str(), table.as_os_str(), dies_at.as_ref()];
        let ended = Command::new(env::current_exe()?).args(paths).status()?;
        println!("the read model ended by itself: {}", ended.success());
    }
    follow(session.dir(), &table, None)?;

    let table = Connection::open(table)?;
    let mut rows = table.prepare("SELECT text FROM said WHERE counts ORDER BY sequence")?;
    let rows = rows.query_map([], |row| row.get(0).map(Said))?.collect::<Result<Vec<_>, _>>()?;
    assert!(session.view::<EventSlice<Said>>()?.iter().eq(rows.iter()));
    println!("{} rows, as the session has them", rows.len());
    Ok(())
}
