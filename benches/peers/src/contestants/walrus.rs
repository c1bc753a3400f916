//! walrus. The variable `WALRUS_DATA_DIR` names its directory. The caller sets it, and
//! `WALRUS_QUIET`.
//!
//! Its docs: `FsyncSchedule::NoFsync` is "maximum throughput, no durability guarantees", which
//! refers to a power cut. An append is a `pwrite`, or a copy into a mapping, and either one is in
//! the kernel after a kill. The default backend is `pwrite` (`enable_fd_backend`). The other one is
//! measured too, since the documentation prefers neither for single appends.

use walrus_rust::{FsyncSchedule, ReadConsistency, Walrus, disable_fd_backend, enable_fd_backend};

use super::{ContestantReader, ContestantWriter};
use crate::measure::Result;

const TOPIC: &str = "log";

/// Most bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

struct Topic(Walrus);

impl ContestantWriter for Topic {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        Ok(self.0.append_for_topic(TOPIC, payload)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn walrus(mapped: bool) -> Result<Walrus> {
    if mapped {
        disable_fd_backend()
    } else {
        enable_fd_backend()
    }
    // Nothing reads while the log is written, so the way of counting reads does not affect it.
    let consistency = ReadConsistency::AtLeastOnce { persist_every: u32::MAX };
    Ok(Walrus::with_consistency_and_schedule_for_key(TOPIC, consistency, FsyncSchedule::NoFsync)?)
}

pub fn create(mapped: bool) -> Result<Vec<Box<dyn ContestantWriter>>> {
    Ok(vec![Box::new(Topic(walrus(mapped)?))])
}

struct WalrusReader(Walrus);

impl ContestantReader for WalrusReader {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        loop {
            let entries = self.0.batch_read_for_topic(TOPIC, READ_BYTES, true)?;
            if entries.is_empty() {
                return Ok(());
            }
            entries.iter().try_for_each(|entry| visit(&entry.data))?;
        }
    }
}

pub fn open(mapped: bool) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(WalrusReader(walrus(mapped)?)))
}
