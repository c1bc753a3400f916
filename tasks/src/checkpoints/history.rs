//! The checkpoints of a log: those that were created, and those that were removed since.

use std::collections::BTreeMap;

use foldlog::inspect::{LogReader, StateReader};
use foldlog::{LivePath, SequenceNumber, Session, SessionTypes};

use super::hash::VisitRecords;
use super::{Checkpoint, CheckpointEntry, CheckpointId, Checkpoints, RemovalReason, hash};
use crate::error::{Error, Result};

/// Contains the checkpoints of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHistory {
    /// All that were created, in this order.
    pub(super) created: Vec<Checkpoint>,
    /// Those that were removed, each with the limit that it exceeded.
    pub(super) removed: BTreeMap<CheckpointId, RemovalReason>,
}

impl CheckpointHistory {
    /// Reads the checkpoints of a session.
    pub fn from_session(session: &Session) -> Result<CheckpointHistory> {
        let mut history = CheckpointHistory::default();
        for entry in session.log().slice::<Checkpoints>()?.iter() {
            let entry = entry?;
            history.add(CheckpointEntry::clone(&entry));
        }
        Ok(history)
    }

    /// Reads the checkpoints of a log. The result may be empty.
    ///
    /// # Errors
    ///
    /// [`Decode`](foldlog::Error::Decode) if one cannot be read, and the errors of reading a log.
    pub fn read(log: &LogReader) -> Result<CheckpointHistory> {
        CheckpointHistory::in_slices(&log.state_reader()?)
    }

    /// Reads the checkpoints of a log at a position.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](CheckpointHistory::read), and
    /// [`NoSuchPosition`](foldlog::Error::NoSuchPosition) if the log has no such record.
    pub fn at(log: &LogReader, position: impl Into<SequenceNumber>) -> Result<CheckpointHistory> {
        CheckpointHistory::in_slices(&log.state_reader_at(position)?)
    }

    fn in_slices(slices: &StateReader) -> Result<CheckpointHistory> {
        let types = super::declare(SessionTypes::builder()).build()?;
        let mut history = CheckpointHistory::default();
        for entry in slices.items::<Checkpoints>(&types)? {
            history.add(CheckpointEntry::clone(&entry));
        }
        Ok(history)
    }

    pub(super) fn add(&mut self, entry: CheckpointEntry) {
        match entry {
            CheckpointEntry::Created(checkpoint) => self.created.push(*checkpoint),
            CheckpointEntry::Removed(removed) => {
                let with_reason = removed.ids.iter().map(|id| (*id, removed.reason));
                self.removed.extend(with_reason);
            }
        }
    }

    /// Returns the existing checkpoints, in the order of their times, and of their ids if the times
    /// are equal.
    pub fn list(&self) -> Vec<&Checkpoint> {
        let mut kept: Vec<&Checkpoint> = self.kept_checkpoints().collect();
        kept.sort_by_key(|one| (one.created_at, one.id));
        kept
    }

    /// Returns the removed checkpoints, each with the limit that it exceeded.
    pub fn removed_checkpoints(&self) -> impl Iterator<Item = (&Checkpoint, RemovalReason)> {
        self.created.iter().filter_map(|one| Some((one, *self.removed.get(&one.id)?)))
    }

    /// Returns the existing checkpoints, in the order of their creation.
    pub(super) fn kept_checkpoints(&self) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.created.iter().filter(|one| !self.removed.contains_key(&one.id))
    }

    /// Returns the most recently created checkpoint that exists and whose position counts at the
    /// position `at` of this path. A checkpoint on a branch that a rollback has abandoned is never
    /// chosen automatically.
    pub fn latest_on(&self, path: &LivePath, at: SequenceNumber) -> Option<&Checkpoint> {
        self.kept_checkpoints().rev().find(|one| path.is_live(one.position, at))
    }

    /// Finds an existing checkpoint.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchCheckpoint`] or [`Error::CheckpointRemoved`].
    pub fn get(&self, id: CheckpointId) -> Result<&Checkpoint> {
        if let Some(reason) = self.removed.get(&id).copied() {
            return Err(Error::CheckpointRemoved { id, reason });
        }
        let missing = || Error::NoSuchCheckpoint { id, known: self.kept_checkpoints().count() };
        self.created.iter().find(|one| one.id == id).ok_or_else(missing)
    }

    /// Verifies the hashes of a log's checkpoints through `id`, in the order of their creation.
    ///
    /// # Errors
    ///
    /// [`Error::CheckpointMismatch`] for the first one whose hash does not match the records, and
    /// the errors of reading a log.
    pub fn verify(&self, log: &LogReader, id: CheckpointId) -> Result<()> {
        self.verify_in(&|from, through, visit| log.contents_left(from, through, visit), id)
    }

    pub(super) fn verify_in(&self, visit: VisitRecords<'_>, id: CheckpointId) -> Result<()> {
        let through = self.created.partition_point(|one| one.id <= id);
        let mismatches = hash::mismatches(visit, self.created.get(..through).unwrap_or_default())?;
        mismatches.into_iter().next().map_or(Ok(()), Err)
    }

    /// Verifies the hashes of all checkpoints that were created at or before `position`, and
    /// returns an [`Error::CheckpointMismatch`] for each mismatch.
    pub fn mismatches(&self, log: &LogReader, position: SequenceNumber) -> Result<Vec<Error>> {
        let through = self.created.partition_point(|one| one.position <= position);
        let visit: VisitRecords<'_> = &|from, through, visit| log.contents_left(from, through, visit);
        hash::mismatches(visit, self.created.get(..through).unwrap_or_default())
    }
}
