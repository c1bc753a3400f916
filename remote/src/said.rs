//! Follows what a session's records say of bodies that compactions have dropped.

use foldlog_codec::body::{DROPPED_BODIES, Dropped, DroppedBodies, ObjectId, Observed};
use foldlog_codec::{Kind, Record, SequenceNumber};

use crate::error::{Error, Result};

/// Follows what a session's records say of dropped bodies.
#[derive(Debug, Default)]
pub(crate) struct Said {
    newest: Option<(SequenceNumber, Data)>,
    /// Chunks in which a record says where the slices are known, and the first such record of each. In a database each record is a chunk.
    pub(crate) known_in: Vec<(u64, SequenceNumber)>,
}

/// Holds the data of an observation, or names the payload that has it.
#[derive(Debug)]
enum Data {
    Here(Vec<u8>),
    Payload(ObjectId),
}

impl Said {
    /// Takes in what the next record says, which stands in the chunk with this number.
    pub(crate) fn see(&mut self, chunk: u64, record: &Record<'_>) {
        if record.kind == Kind::OBSERVED
            && let Ok(observed) = Observed::decode(record.body)
            && observed.name == DROPPED_BODIES
        {
            let here = || Data::Here(observed.data.bytes().to_vec());
            let data = observed.data.object().map_or_else(here, Data::Payload);
            self.newest = Some((record.sequence, data));
        } else if record.kind == Kind::DROPPED
            && self.known_in.last().is_none_or(|(number, _)| *number != chunk)
            && Dropped::known(record.body).is_ok_and(|known| known.is_some())
        {
            self.known_in.push((chunk, record.sequence));
        }
    }

    /// Returns whether a record says that bodies were dropped.
    pub(crate) fn is_anything(&self) -> bool {
        self.newest.is_some()
    }

    /// Returns which bodies were dropped, as the newest record says, and its sequence number; `None` if no record says anything. `read` reads
    /// a payload.
    ///
    /// # Errors
    ///
    /// [`Error::Payload`] if the payload is missing, [`Error::NotContent`] if nothing of foldlog's wrote it, and those of `read`.
    pub(crate) async fn dropped(
        &self,
        read: impl AsyncFnOnce(ObjectId) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<(SequenceNumber, DroppedBodies)>> {
        let Some((sequence, data)) = &self.newest else { return Ok(None) };
        let payload = match data {
            Data::Here(_) => None,
            Data::Payload(object) => {
                let missing = || Error::Payload { object: object.file_name() };
                Some(read(*object).await?.ok_or_else(missing)?)
            }
        };
        let bytes = match (data, &payload) {
            (Data::Here(bytes), _) => bytes,
            (_, Some(bytes)) => bytes,
            _ => return Ok(None),
        };
        let dropped = DroppedBodies::decode(bytes).map_err(|_| Error::NotContent { sequence: *sequence })?;
        Ok(Some((*sequence, dropped)))
    }
}
