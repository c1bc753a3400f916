//! Inputs from outside, which a replay reads from the log.

use foldlog_codec::body::{Observed, Payload};
use foldlog_codec::{RecordKind, SequenceNumber, msgpack};
use serde::de::DeserializeOwned;

use crate::divergence::{Difference, Divergence};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::types::encode;

impl Session {
    /// Returns the recorded value of the next observation in a replay.
    pub(in crate::session) fn observe_again<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let recorded = match self.next_recorded(&[RecordKind::Observed])? {
            Some((sequence, _, body)) => self.observed_as(name, &body)?.map(|data| (sequence, data)),
            None => None,
        };
        if let Some((sequence, data)) = recorded {
            let value = self.read_again(sequence, name, &data);
            self.write_observation(name, &data)?;
            return value;
        }
        // It is recorded later, after records that are missing, or not at all.
        let sequence = self.write_observation(name, &encode(name, &())?)?;
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = None;
        source.places.read(&source.storage, sequence, sequence, &mut |record| {
            if record.kind == RecordKind::Observed {
                found = self.observed_as(name, record.body)?;
            }
            Ok(())
        })?;
        match found {
            Some(data) => self.read_again(sequence, name, &data),
            None => Err(self.as_replay()?.divergence_error()),
        }
    }

    /// Decodes a recorded value as the type that the host requests now. If that fails, the
    /// observation has changed.
    fn read_again<T: DeserializeOwned>(
        &self,
        sequence: SequenceNumber,
        name: &str,
        data: &[u8],
    ) -> Result<T> {
        msgpack::from_slice(data).map_err(|error| {
            let reason = format!("it cannot be read as `{}`: {error}", std::any::type_name::<T>());
            self.observed_otherwise(sequence, name, Difference::unread("$.data", Payload::new(data), reason))
        })
    }

    /// Returns the data of a recorded observation; `None` if the name differs.
    fn observed_as(&self, name: &str, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok(observed) = Observed::decode(body) else { return Ok(None) };
        if observed.name != name {
            return Ok(None);
        }
        let source = self.inner.log_source(&self.inner.state.lock());
        Ok(Some(source.objects.resolve(observed.data)?.into_owned()))
    }

    /// Notes that an observation of this handle's lane has changed, and returns the error that
    /// reports it.
    fn observed_otherwise(&self, sequence: SequenceNumber, name: &str, difference: Difference) -> Error {
        let record = format!("{} {name}", RecordKind::Observed);
        let divergence = Divergence::changed(sequence, self.lane_name(), record, difference);
        let replay = match self.as_replay() {
            Ok(replay) => replay,
            Err(error) => return error,
        };
        // Waiting threads have to notice if the replay stops here.
        let _state = self.inner.state.lock();
        replay.with(|recording| recording.note(divergence));
        self.inner.schedule.notify_all();
        replay.divergence_error()
    }
}
