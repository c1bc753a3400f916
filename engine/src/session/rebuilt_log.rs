//! A log that was made of what a replicator holds, read back before anybody claims the session or gives the log its name.
//!
//! # Invariants
//!
//! 1. What is not sound is found here: a frame that does not check, a record that contradicts those before it or that the host's types cannot
//!    read, an object that is missing. No claim was made by then, and the session's writer goes on.
//! 2. Each frame is read once, and each record folded once: what comes later is read behind that ([`MadeLog::read_on`]), and the
//!    session is opened with the state that was folded.
//! 3. A seal is of the records that were read back, not of those that were written.

use std::path::Path;

use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::{Record, SequenceNumber};

use super::fetch::Fetch;
use super::open::{LoadedSession, ReadGround, check_declared, open_read, open_read_once};
use crate::error::{Corruption, Error, Result};
use crate::fold::projection::LogSlices;
use crate::log::chain::Segment;
use crate::log::scan;
use crate::log::seal_check::check_compacted;
use crate::types::SessionTypes;

/// Holds the digests of a log's segments, each with its segment's ordinal, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct Digests(Vec<(u32, SegmentDigest)>);

impl Digests {
    /// Adds the next record, which stands in `segment`.
    pub(super) fn add(&mut self, segment: &Segment, record: &Record<'_>) {
        let ordinal = segment.header.ordinal;
        if self.0.last().is_none_or(|(last, _)| *last != ordinal) {
            self.0.push((ordinal, SegmentDigest::new()));
        }
        if let Some((_, digest)) = self.0.last_mut() {
            digest.update(record.sequence, record.kind, record.time_us, record.body);
        }
    }
}

/// Holds what was read back of a log that was made of what is held.
pub(crate) struct MadeLog {
    read: LoadedSession,
    log_slices: LogSlices,
}

impl MadeLog {
    /// Reads back all of the log that `fetch` has settled in the directory `dir`, with the host's types or without, and seals its finished
    /// segments. With the names of items alone, as `log_slices` says, it takes little memory, and no session can be opened with it.
    ///
    /// # Errors
    ///
    /// Those of [`LogReader::open`](crate::inspect::LogReader::open) and of checking the host's types.
    pub(crate) fn read(
        ground: ReadGround<'_>,
        dir: &Path,
        types: Option<&SessionTypes>,
        log_slices: LogSlices,
        fetch: &mut Fetch<'_>,
    ) -> Result<MadeLog> {
        let (read, Digests(digests)) = scan::whole(|| {
            let mut digests = Some(Digests::default());
            let read = open_read_once(ground, dir, types, log_slices, &mut digests)?;
            Ok((read, digests.unwrap_or_default()))
        })?;
        for segment in read.scan.segments.iter().filter(|segment| segment.compacted.is_some()) {
            check_compacted(ground.storage.as_ref(), segment)?;
        }
        fetch.seal(&digests)?;
        let made = MadeLog { read, log_slices };
        made.check(types)?;
        Ok(made)
    }

    /// Reads what was appended to the log since, in the directory `dir`, which may have got another name meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`read`](MadeLog::read).
    pub(super) fn read_on(
        self,
        ground: ReadGround<'_>,
        dir: &Path,
        types: Option<&SessionTypes>,
    ) -> Result<LoadedSession> {
        let log_slices = self.log_slices;
        match self.read.read_new_records(ground.storage, dir, types)? {
            Some(read) => Ok(read),
            None => open_read(ground, dir, types, log_slices),
        }
    }

    /// Reads what was appended to the log since, and checks it as [`read`](MadeLog::read) does.
    ///
    /// # Errors
    ///
    /// Those of [`read`](MadeLog::read).
    pub(crate) fn goes_on(
        self,
        ground: ReadGround<'_>,
        dir: &Path,
        types: Option<&SessionTypes>,
    ) -> Result<MadeLog> {
        let log_slices = self.log_slices;
        let made = MadeLog { read: self.read_on(ground, dir, types)?, log_slices };
        made.check(types)?;
        Ok(made)
    }

    fn check(&self, types: Option<&SessionTypes>) -> Result<()> {
        types.map_or(Ok(()), |types| check_declared(types, &self.read.folded.projection.names))
    }

    /// Checks that the log holds all records below `next`.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`].
    pub(crate) fn check_end(&self, next: SequenceNumber) -> Result<()> {
        let scan = &self.read.scan;
        if scan.next_sequence == next {
            return Ok(());
        }
        Err(Error::Corrupt(Box::new(Corruption {
            session: Some(scan.session),
            segment: scan.segments.last().map(|segment| segment.path.clone()).unwrap_or_default(),
            offset: scan.end,
            sequence: scan.next_sequence,
            expected_crc: None,
            found_crc: None,
            reason: format!("the log ends here, and {next} records were written"),
        })))
    }
}
