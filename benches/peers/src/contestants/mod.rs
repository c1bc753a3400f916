//! The contestants, each with the same two traits, and configured as its own documentation advises
//! for the requested durability.
//!
//! | module | contestant |
//! |---|---|
//! | `foldlog` | a session, and the log alone |
//! | `raft_engine`, `walrus`, `commitlog`, `logdb`, `okaywal`, `open_wal` | logs |
//! | `sqlite`, `fjall`, `redb` | stores |
//! | `group_commit` | a thread that groups the requests of several writers, for contestants that commit for one writer at a time |

mod commitlog;
mod fjall;
mod foldlog;
mod group_commit;
mod logdb;
mod okaywal;
mod open_wal;
mod raft_engine;
mod redb;
mod sqlite;
mod walrus;

use std::path::Path;

use ::foldlog::Policy;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::measure::Result;

pub use self::foldlog::{PayloadEvent, session_types};
pub use self::sqlite::connect;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
pub enum Contestant {
    /// A session whose events are items of LOG, in the log.
    Foldlog,
    /// A session whose events are folded into STATE, in memory too.
    FoldlogState,
    /// The log without a session. Its files are no session's, so the sessions show what survives.
    FoldlogLog,
    RaftEngine,
    WalrusFd,
    WalrusMmap,
    CommitLog,
    Sqlite,
    Fjall,
    Redb,
    /// `Durability::None`, which is included to show its records after a kill.
    RedbUnsynced,
    LogDb,
    OkayWal,
    OpenWal,
}

impl Contestant {
    pub fn name(self) -> &'static str {
        match self {
            Contestant::Foldlog => "foldlog, a session",
            Contestant::FoldlogState => "foldlog, a session with STATE",
            Contestant::FoldlogLog => "foldlog, the log",
            Contestant::RaftEngine => "raft-engine",
            Contestant::WalrusFd => "walrus (pwrite)",
            Contestant::WalrusMmap => "walrus (mmap)",
            Contestant::CommitLog => "commitlog",
            Contestant::Sqlite => "SQLite WAL",
            Contestant::Fjall => "fjall",
            Contestant::Redb => "redb",
            Contestant::RedbUnsynced => "redb, `Durability::None`",
            Contestant::LogDb => "logdb",
            Contestant::OkayWal => "okaywal",
            Contestant::OpenWal => "open-wal",
        }
    }
}

/// Names the failure that a record has to survive once an append has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Survives {
    /// A kill of the process, by the documentation of each contestant that has such a promise.
    Kill,
    /// A power cut: each record is synced before its append returns.
    PowerCut,
    /// A kill after [`ContestantWriter::settle`]: for a log that is only filled to be read, as
    /// quickly as the contestant can.
    KillOnceSettled,
}

/// Appends records.
pub trait ContestantWriter: Send {
    /// Appends one record. When this returns, the record survives the failure for which the writer
    /// was opened.
    fn append(&mut self, number: u64, payload: &[u8]) -> Result<()>;

    /// Makes all appended records survive a kill.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns a number that changes with the current file; 0 if the contestant does not report it.
    fn file(&self) -> u64 {
        0
    }

    /// Closes the log as its documentation advises.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Reads a reopened log.
pub trait ContestantReader {
    /// Passes all payloads to `visit`, in the order of their appends.
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// Reads all records, and returns the number of those of this size. Contestants with checksums
    /// check them.
    fn check(&mut self, size: usize) -> Result<u64> {
        let mut found = 0;
        self.scan(&mut |payload| {
            found += u64::from(std::hint::black_box(payload).len() == size);
            Ok(())
        })?;
        Ok(found)
    }

    /// Loads all values into memory and returns their number.
    fn load(&mut self) -> Result<u64> {
        let mut values: Vec<Box<[u8]>> = Vec::new();
        self.scan(&mut |payload| {
            values.push(payload.into());
            Ok(())
        })?;
        let len = std::hint::black_box(&values).len() as u64;
        // An open session keeps its values: freeing them is no part of opening.
        std::mem::forget(values);
        Ok(len)
    }
}

/// Opens a new log in the directory `dir` for this many writers.
pub fn create(
    contestant: Contestant,
    dir: &Path,
    survives: Survives,
    writers: usize,
) -> Result<Vec<Box<dyn ContestantWriter>>> {
    match contestant {
        Contestant::Foldlog => foldlog::sessions(dir, survives, writers, Policy::Log),
        Contestant::FoldlogState => foldlog::sessions(dir, survives, writers, Policy::State),
        Contestant::FoldlogLog => foldlog::logs(dir, survives, writers),
        Contestant::RaftEngine => raft_engine::create(dir, survives, writers),
        Contestant::WalrusFd => walrus::create(false),
        Contestant::WalrusMmap => walrus::create(true),
        Contestant::CommitLog => commitlog::create(dir),
        Contestant::Sqlite => sqlite::create(dir, survives, writers),
        Contestant::Fjall => fjall::create(dir, survives, writers),
        Contestant::Redb => redb::create(dir, survives, writers),
        Contestant::RedbUnsynced => redb::create_unsynced(dir),
        Contestant::LogDb => logdb::create(dir, survives, writers),
        Contestant::OkayWal => okaywal::create(dir, writers),
        Contestant::OpenWal => open_wal::create(dir, writers),
    }
}

/// Reopens the log of one writer.
pub fn open(contestant: Contestant, dir: &Path) -> Result<Box<dyn ContestantReader>> {
    match contestant {
        Contestant::Foldlog => foldlog::open_log(dir),
        Contestant::FoldlogState => foldlog::open_state(dir),
        Contestant::FoldlogLog => Err("a log without a session is not opened again".into()),
        Contestant::RaftEngine => raft_engine::open(dir),
        Contestant::WalrusFd => walrus::open(false),
        Contestant::WalrusMmap => walrus::open(true),
        Contestant::CommitLog => commitlog::open(dir),
        Contestant::Sqlite => sqlite::open(dir),
        Contestant::Fjall => fjall::open(dir),
        Contestant::Redb | Contestant::RedbUnsynced => redb::open(dir),
        Contestant::LogDb => logdb::open(dir),
        Contestant::OkayWal => okaywal::open(dir),
        Contestant::OpenWal => open_wal::open(dir),
    }
}

/// Returns the numbers of the first records in each further file, once the log is closed. Empty if
/// the contestant reports its files while it writes, by [`ContestantWriter::file`].
pub fn rollovers(contestant: Contestant, dir: &Path) -> Result<Vec<u64>> {
    if contestant == Contestant::Foldlog { foldlog::rollovers(dir) } else { Ok(Vec::new()) }
}
