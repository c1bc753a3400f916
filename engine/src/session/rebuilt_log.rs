//! A log that was rebuilt from a replicator. It is read back before the session is claimed and
//! before the log gets its name.
//!
//! # Invariants
//!
//! 1. Damage is found here: a frame with a wrong checksum, a record that contradicts earlier ones
//!    or that the host's types cannot read, a missing object. The session is not claimed yet, so
//!    its writer continues.
//! 2. Each frame is read once, and each record folded once: later records are read separately
//!    ([`MadeLog::read_on`]), and the session is opened with the folded state.
//! 3. A seal covers the records as read back, not as written.

use std::path::Path;

use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::{Record, SequenceNumber};

use super::fetch::Fetch;
use super::load::{LoadedSession, ReadGround, open_read, open_read_once};
use super::open::check_declared;
use crate::error::Result;
use crate::fold::projection::LogSlices;
use crate::log::chain::{Segment, corrupt};
use crate::log::scan;
use crate::log::seal_check::check_compacted;
use crate::types::SessionTypes;

/// Digests of a log's segments, each with its segment's ordinal, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct Digests(Vec<(u32, SegmentDigest)>);

impl Digests {
    /// Adds the next record, which is in `segment`.
    pub(super) fn add(&mut self, segment: &Segment, record: &Record<'_>) {
        let ordinal = segment.header.ordinal;
        if self.0.last().is_none_or(|(last, _)| *last != ordinal) {
            self.0.push((ordinal, SegmentDigest::new()));
        }
        if let Some((_, digest)) = self.0.last_mut() {
            digest.update(record);
        }
    }
}

/// A rebuilt log, as it was read back.
pub(crate) struct MadeLog {
    read: LoadedSession,
    log_slices: LogSlices,
}

impl MadeLog {
    /// Reads back the whole log that `fetch` has settled in the directory `dir`, with the host's
    /// types or without, and seals its finished segments. If `log_slices` requests only the names
    /// of items, this needs little memory, but no session can be opened with the result.
    ///
    /// # Errors
    ///
    /// The errors of [`LogReader::open`](crate::inspect::LogReader::open) and of checking the
    /// host's types.
    pub(crate) fn read(
        ground: ReadGround<'_>,
        dir: &Path,
        types: Option<&SessionTypes>,
        log_slices: LogSlices,
        fetch: &mut Fetch<'_>,
    ) -> Result<MadeLog> {
        let (read, Digests(digests)) = scan::retry_if_replaced(|| {
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

    /// Reads the records that were appended to the log since, in the directory `dir`, which may
    /// have been renamed.
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

    /// Reads the records that were appended to the log since, and checks them as
    /// [`read`](MadeLog::read) does.
    pub(crate) fn read_appended(
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

    /// Checks that the log contains all records below `next`.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`].
    pub(crate) fn check_end(&self, next: SequenceNumber) -> Result<()> {
        let scan = &self.read.scan;
        if scan.next_sequence == next {
            return Ok(());
        }
        let segment = scan.segments.last().map(|segment| segment.path.clone()).unwrap_or_default();
        let reason = format!("the log ends here, but {next} records were written");
        Err(corrupt(Some(scan.session), &segment, scan.end, scan.next_sequence, reason))
    }
}
