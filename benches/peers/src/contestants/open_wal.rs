//! open-wal. `commit` is durable when it returns. It has a single writer. For several, its book
//! says: "put a queue in front of the single writer thread", and "drain whatever events are
//! available, append them all, commit once".

use std::path::Path;

use open_wal::{Lsn, Wal, WalConfig};

use super::gathered::{self, Commit};
use super::{ContestantReader, ContestantWriter};
use crate::measure::Result;

struct OpenWalLog(Wal);

impl Commit for OpenWalLog {
    fn commit(&mut self, batch: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()> {
        for (_, payload) in batch {
            self.0.append(payload)?;
        }
        self.0.commit()?;
        Ok(())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

pub fn create(dir: &Path, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let (wal, _) = Wal::open(dir, WalConfig::default())?;
    Ok(gathered::share(OpenWalLog(wal), writers))
}

impl ContestantReader for OpenWalLog {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut reader = self.0.reader_from(Lsn(0))?;
        while let Some(record) = reader.next() {
            visit(record?.1)?;
        }
        Ok(())
    }
}

pub fn open(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(OpenWalLog(Wal::open(dir, WalConfig::default())?.0)))
}
