//! commitlog, with its defaults. Each append is a `write` into the segment, and an entry in the
//! mapped index. After a kill both are in the kernel. It has no call that makes a record durable.

use std::path::Path;

use commitlog::message::MessageSet;
use commitlog::{CommitLog, LogOptions, ReadLimit};

use super::{ContestantReader, ContestantWriter};
use crate::measure::Result;

const READ_BYTES: usize = 1 << 20;

struct CommitlogLog(CommitLog);

impl ContestantWriter for CommitlogLog {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        self.0.append_msg(payload)?;
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

pub fn create(dir: &Path) -> Result<Vec<Box<dyn ContestantWriter>>> {
    Ok(vec![Box::new(CommitlogLog(CommitLog::new(LogOptions::new(dir))?))])
}

impl ContestantReader for CommitlogLog {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut next, end) = (0, self.0.next_offset());
        while next < end {
            let messages = self.0.read(next, ReadLimit::max_bytes(READ_BYTES))?;
            if messages.is_empty() {
                break;
            }
            for message in messages.iter() {
                visit(message.payload())?;
                next = message.offset() + 1;
            }
        }
        Ok(())
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(CommitlogLog(CommitLog::new(LogOptions::new(dir))?)))
}
