//! logdb. An append is "in memory only" when it returns (its `docs/en/usage/durability.md`), so a
//! kill loses the records in the ring. For a commit log whose application has its own commit
//! points, the same page names `DurabilityMode::Async` and an explicit `flush`, "the durability
//! barrier". That is used here for a record that survives a power cut.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use logdb::{Config, DurabilityMode, LogDb};

use super::{ContestantReader, ContestantWriter, Survives};
use crate::measure::Result;

const LONGEST: Duration = Duration::from_secs(60);

/// Exceeds the number of any record.
const LAST: u64 = 1 << 40;

struct LogdbWriter {
    log: Arc<LogDb>,
    sync: bool,
}

impl ContestantWriter for LogdbWriter {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        self.log.append(payload).map_err(text)?;
        if self.sync { self.settle() } else { Ok(()) }
    }

    fn settle(&mut self) -> Result<()> {
        Ok(self.log.flush().map_err(text)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.log.drain(LONGEST).map_err(text)?;
        Ok(())
    }
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

fn opened(dir: &Path, survives: Survives) -> Result<Arc<LogDb>> {
    let durability_mode = match survives {
        Survives::PowerCut => DurabilityMode::Async,
        Survives::Kill | Survives::KillOnceSettled => Config::default().durability_mode,
    };
    let mut config = Config { data_dir: dir.to_owned(), durability_mode, ..Config::default() };
    if survives == Survives::KillOnceSettled {
        // If a log of two segments is reopened, it returns only the first one's records: 849,478 of
        // 1,000,000.
        config.segment_size = 1 << 30;
    }
    Ok(Arc::new(LogDb::open(config).map_err(text)?))
}

pub fn create(dir: &Path, survives: Survives, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let log = opened(dir, survives)?;
    let writer = |_| {
        Box::new(LogdbWriter { log: Arc::clone(&log), sync: survives == Survives::PowerCut })
            as Box<dyn ContestantWriter>
    };
    Ok((0..writers).map(writer).collect())
}

struct LogdbReader(Arc<LogDb>);

impl ContestantReader for LogdbReader {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        // Not up to the durable cursor, which is 0 after a kill that left an empty next segment.
        for record in self.0.scan(0, LAST).map_err(text)? {
            visit(&record.map_err(text)?.content)?;
        }
        Ok(())
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(LogdbReader(opened(dir, Survives::Kill)?)))
}
