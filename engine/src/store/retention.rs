//! Compaction of all sessions of a store, by the store's own policy.
//!
//! A policy contains the [`CompactOptions`] for every session. Compaction never starts by itself: a
//! host calls [`Store::compact_old`] when it has time, since it reads all logs, as opening them
//! would.

use uuid::Uuid;

use super::{CompactReport, Store};
use crate::error::{Error, Result};
use crate::options::CompactOptions;

/// Reports the results of a compaction, or of a dry run, over a whole store.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct StoreCompactReport {
    /// Reports of the sessions that were changed.
    pub compacted: Vec<CompactReport>,
    /// Number of sessions without anything worth dropping.
    pub unchanged: u64,
    /// Sessions that are open for writing, in this process or another. They are unchanged.
    pub open: Vec<Uuid>,
    /// Sessions that could not be compacted, each with its error.
    pub failed: Vec<(Uuid, Error)>,
}

impl StoreCompactReport {
    /// Returns the number of bytes by which the sessions became smaller.
    pub fn bytes(&self) -> u64 {
        self.compacted.iter().map(|report| report.bytes).sum()
    }
}

impl Store {
    /// Compacts each session that is not open for writing and has something worth dropping, by
    /// [`StoreOptions::retention`](crate::StoreOptions::retention). Without a policy nothing is
    /// compacted. If one session cannot be compacted, the others still are.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use foldlog::{CompactOptions, Store, StoreOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let month = Duration::from_secs(30 * 24 * 60 * 60);
    /// let retention = CompactOptions { younger_than: Some(month), ..CompactOptions::default() };
    /// let options = StoreOptions { retention: Some(retention), ..StoreOptions::default() };
    /// let store = Store::open_with(directory.path(), options)?;
    /// let report = store.compact_old()?;
    /// println!("{} bytes less, {} failed", report.bytes(), report.failed.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the store cannot be listed. Errors of sessions are in the report.
    pub fn compact_old(&self) -> Result<StoreCompactReport> {
        match &self.inner.options.retention {
            Some(retention) => self.compact_all(retention),
            None => Ok(StoreCompactReport::default()),
        }
    }

    /// Compacts each session as [`compact_old`](Store::compact_old) does, with the given options.
    /// Positions in the options apply to every session.
    pub fn compact_all(&self, options: &CompactOptions) -> Result<StoreCompactReport> {
        let mut report = StoreCompactReport::default();
        for session in self.session_ids()? {
            match self.compact(session, options) {
                Ok(compacted) if compacted.changed_anything() => report.compacted.push(compacted),
                Ok(_) => report.unchanged += 1,
                // The session was deleted after the store was listed, perhaps while it was read.
                Err(_) if matches!(self.find_session_dir(session), Err(Error::NoSuchSession { .. })) => {}
                Err(Error::Locked { .. }) => report.open.push(session),
                Err(error) => report.failed.push((session, error)),
            }
        }
        Ok(report)
    }
}
