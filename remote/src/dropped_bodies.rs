//! Tracks the records of a session about bodies that compactions have dropped.

use std::borrow::Cow;
use std::collections::BTreeSet;

use foldlog_codec::body::{Dropped, DroppedBodies, ObjectId, Rollback};
use foldlog_codec::{Record, RecordKind, SequenceNumber};

use crate::error::{Error, Result};

/// Tracks a session's records about dropped bodies.
#[derive(Debug, Default)]
pub(crate) struct DroppedBodiesTracker {
    newest: Option<(SequenceNumber, Data)>,
    /// Positions to which the session was rolled back after that record.
    went_back_to: BTreeSet<SequenceNumber>,
    /// Chunks in which a record names an object with known positions, and the first such record of
    /// each. In a database each record is a chunk.
    pub(crate) known_in: Vec<(u64, SequenceNumber)>,
}

/// The data of an observation, or the name of its payload.
#[derive(Debug)]
enum Data {
    Here(Vec<u8>),
    Payload(ObjectId),
}

impl DroppedBodiesTracker {
    /// Processes the next record, which is in the chunk with this number.
    pub(crate) fn see(&mut self, chunk: u64, record: &Record<'_>) {
        if record.kind == RecordKind::Opened {
            // Records about a fork's parent do not apply to the fork.
            (self.newest, self.went_back_to) = (None, BTreeSet::new());
        } else if record.kind == RecordKind::Rollback
            && self.newest.is_some()
            && let Ok(rollback) = Rollback::decode(record.body)
        {
            self.went_back_to.insert(rollback.to);
        } else if let Some(data) = DroppedBodies::observed_in(record) {
            let here = || Data::Here(data.bytes().to_vec());
            let data = data.object().map_or_else(here, Data::Payload);
            (self.newest, self.went_back_to) = (Some((record.sequence, data)), BTreeSet::new());
        } else if record.kind == RecordKind::Dropped
            && self.known_in.last().is_none_or(|(number, _)| *number != chunk)
            && Dropped::decode_known(record.body).is_ok_and(|known| known.is_some())
        {
            self.known_in.push((chunk, record.sequence));
        }
    }

    /// Returns whether a record states that bodies were dropped.
    pub(crate) fn is_anything(&self) -> bool {
        self.newest.is_some()
    }

    /// Returns the dropped bodies as the newest record lists them, and that record's sequence
    /// number. Returns `None` if there is no such record, or if the session was rolled back after
    /// it to a position that needs such bodies: no writer does that, and needed bodies are not
    /// dropped. `read` reads a payload.
    ///
    /// # Errors
    ///
    /// [`Error::MissingPayload`], [`Error::NotContent`] if foldlog did not write it, and the errors
    /// of `read`.
    pub(crate) async fn read_dropped(
        &self,
        read: impl AsyncFnOnce(ObjectId) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<(SequenceNumber, DroppedBodies)>> {
        let Some((sequence, data)) = &self.newest else { return Ok(None) };
        let bytes = match data {
            Data::Here(bytes) => Cow::Borrowed(bytes),
            Data::Payload(object) => {
                let missing = || Error::MissingPayload { object: object.file_name() };
                Cow::Owned(read(*object).await?.ok_or_else(missing)?)
            }
        };
        let dropped = DroppedBodies::decode(&bytes).map_err(|_| Error::NotContent { sequence: *sequence })?;
        let is_needed = self.went_back_to.iter().any(|to| dropped.hides(*to));
        Ok((!is_needed).then_some((*sequence, dropped)))
    }
}

#[cfg(test)]
mod tests {
    use foldlog_codec::body::{Base, DROPPED_BODIES, KnownPositions, Observed, Payload};

    use super::*;

    fn record(kind: RecordKind, sequence: u64, body: &[u8]) -> Record<'_> {
        Record { kind, sequence: sequence.into(), time_us: 0, body }
    }

    /// Bodies 2 to 9 were dropped, and position 5 is known.
    fn observed() -> Vec<u8> {
        let bases = vec![Base { position: 5.into(), goes_on: false, slices: Vec::new() }];
        let known = KnownPositions { ends: vec![9.into()], bases };
        let data = DroppedBodies { known, runs: vec![(2.into(), 8)] }.encode();
        Observed { name: DROPPED_BODIES.to_owned(), data: Payload::new(&data) }.encode()
    }

    fn dropped(said: &DroppedBodiesTracker) -> bool {
        let nothing = async |_| Ok(None);
        futures_lite::future::block_on(said.read_dropped(nothing)).unwrap().is_some()
    }

    /// A rollback after the record made a session unreadable once the bodies that it needed were
    /// dropped.
    #[test]
    fn nothing_is_dropped_that_a_rollback_behind_the_record_needs() {
        let rollback = |to: u64| Rollback { to: to.into(), preserve_logs: true }.encode();
        for (before, behind, is_dropped) in [
            (None, None, true),
            (Some(3), None, true),
            (None, Some(3), false),
            (None, Some(5), true),
            (Some(3), Some(10), true),
        ] {
            let mut said = DroppedBodiesTracker::default();
            before.iter().for_each(|to| said.see(0, &record(RecordKind::Rollback, 10, &rollback(*to))));
            said.see(0, &record(RecordKind::Observed, 11, &observed()));
            behind.iter().for_each(|to| said.see(0, &record(RecordKind::Rollback, 12, &rollback(*to))));
            assert_eq!(dropped(&said), is_dropped, "{before:?}, {behind:?}");
        }
    }

    #[test]
    fn what_was_said_of_a_parent_is_not_said_of_its_fork() {
        let mut said = DroppedBodiesTracker::default();
        said.see(0, &record(RecordKind::Observed, 11, &observed()));
        assert!(dropped(&said));
        said.see(0, &record(RecordKind::Opened, 12, &[]));
        assert!(!dropped(&said) && !said.is_anything());
    }
}
