//! Recorded inputs from outside: the time, random numbers, and other data that a host reads.
//!
//! Each input is a record. A replay of the host returns the recorded values instead of reading.
//! Data that a host reads without these calls may cause false divergences.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use foldlog_codec::body::{Lane, Observed, Payload};
use foldlog_codec::msgpack;
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::schedule::WriteScope;
use super::write::PendingRecord;
use super::{SessionInner, SessionInputs, WriterState};
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::fold::record_kinds::RecordBody;
use crate::generator::Generator;
use crate::types::encode;

/// Prefix of the names of observations by the engine.
const RESERVED: &str = "foldlog.";
/// Name of a reading of the clock, in microseconds since 1970-01-01 UTC.
const NOW: &str = "foldlog.now";
/// Name of a random number.
const DRAW: &str = "foldlog.draw";

impl SessionInputs<'_> {
    /// Reads an input from outside with `read`, such as a mailbox, an environment variable or a
    /// flag. Records it under `name`, and returns the recorded value. A replay returns the recorded
    /// value and does not call `read`.
    ///
    /// `read` is called without any lock. The record changes no slice, and running tool calls do
    /// not delay it. Its durability is that of [`dispatch`](crate::Session::dispatch).
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// let home: Option<String> = session.inputs().observe("env.home", || std::env::var("HOME").ok())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Encode`] if `name` begins with `foldlog.`, which is reserved for the engine, or
    ///   if the value cannot be encoded, or not be decoded again as a `T`
    /// - the errors of [`dispatch`](crate::Session::dispatch) that do not concern events
    /// - in a replay [`Error::Diverged`] if the next record of the lane differs and the replay
    ///   stops there, or if the recorded value cannot be decoded as a `T`
    /// - in a replay [`Error::ReplayEnded`] after the process's last record
    pub fn observe<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        read: impl FnOnce() -> T,
    ) -> Result<T> {
        if name.starts_with(RESERVED) {
            let reason = format!("names that begin with `{RESERVED}` are reserved for the engine");
            return Err(Error::Encode { name: name.to_owned(), reason });
        }
        // Checked before it is recorded: a value that cannot be decoded would end every replay
        // there.
        let decoded = |bytes: &[u8]| {
            msgpack::from_slice(bytes).map_err(|error| Error::Encode {
                name: name.to_owned(),
                reason: format!("its encoded form cannot be decoded: {error}"),
            })
        };
        if let Some(replay) = self.session.inner.replay() {
            return self.session.observe_again(replay, name);
        }
        let bytes = encode(name, &read())?;
        let value = decoded(&bytes)?;
        self.write_observation(name, &bytes)?;
        Ok(value)
    }

    /// Reads the session's clock and records the time. A replay returns the recorded time.
    pub fn now(&self) -> Result<DateTime<Utc>> {
        let state = self.session.writable(WriteScope::Log)?;
        let (inner, lane) = (&self.session.inner, self.session.record_lane());
        let now_us = inner.now_us();
        inner.write_observed(state, now_us, NOW, &encode(NOW, &now_us)?, &lane)?;
        Ok(conversation_reading::time(now_us))
    }

    /// Draws a random number of 64 bits and records it. It depends only on the session's seed and
    /// the record's sequence number, so a replay draws the same number.
    pub fn draw(&self) -> Result<u64> {
        let state = self.session.writable(WriteScope::Log)?;
        let drawn = Generator::for_record(state.seed(), state.log.next_sequence()).next_u64();
        let (inner, lane) = (&self.session.inner, self.session.record_lane());
        inner.write_observed(state, inner.now_us(), DRAW, &encode(DRAW, &drawn)?, &lane)?;
        Ok(drawn)
    }

    /// Reads all earlier observations named `name`, by any process of the session or of the one
    /// that it was forked from, and passes each value to `visit` in the order of the records.
    /// Rolled-back observations are included. The whole log is read.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// session.inputs().observe("letter", || "first".to_owned())?;
    /// session.inputs().observe("letter", || "second".to_owned())?;
    /// let mut letters = Vec::new();
    /// session.inputs().observations("letter", &mut |_, letter: String| {
    ///     letters.push(letter);
    ///     Ok(())
    /// })?;
    /// assert_eq!(letters, ["first", "second"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if a value cannot be read as a `T`; [`Error::Io`] if the log cannot
    /// be read; [`Error::Object`] if an object is missing or damaged; the error of `visit`, which
    /// ends the reading.
    pub fn observations<T: DeserializeOwned>(
        &self,
        name: &str,
        visit: &mut dyn FnMut(SequenceNumber, T) -> Result<()>,
    ) -> Result<()> {
        self.observations_from(name, SequenceNumber::from(0), visit)
    }

    /// Reads the observations named `name` as [`observations`](crate::SessionInputs::observations)
    /// does, from record `from` on. Only that part of the log is read.
    pub fn observations_from<T: DeserializeOwned>(
        &self,
        name: &str,
        from: SequenceNumber,
        visit: &mut dyn FnMut(SequenceNumber, T) -> Result<()>,
    ) -> Result<()> {
        self.visit_observed(name, from, SequenceNumber::MAX, visit)
    }

    /// Passes the observations named `name`, in a range of records, to `visit`.
    pub(crate) fn visit_observed<T: DeserializeOwned>(
        &self,
        name: &str,
        from: SequenceNumber,
        through: SequenceNumber,
        visit: &mut dyn FnMut(SequenceNumber, T) -> Result<()>,
    ) -> Result<()> {
        let source = self.session.inner.log_source(&self.session.inner.state.lock());
        source.places.read(&source.storage, from, through, &mut |record| {
            if record.kind == RecordKind::Observed {
                let bad = Error::unread(record.sequence);
                let observed = Observed::decode(record.body).map_err(bad)?;
                if observed.name == name {
                    let data = source.objects.resolve(observed.data)?;
                    visit(record.sequence, msgpack::from_slice(&data).map_err(bad)?)?;
                }
            }
            Ok(())
        })
    }

    /// Writes an observation with MessagePack data.
    pub(super) fn write_observation(&self, name: &str, data: &[u8]) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        let (inner, lane) = (&self.session.inner, self.session.record_lane());
        inner.write_observed(state, inner.now_us(), name, data, &lane)
    }
}

impl SessionInner {
    pub(super) fn write_observed(
        self: &Arc<Self>,
        state: MutexGuard<'_, WriterState>,
        time_us: i64,
        name: &str,
        data: &[u8],
        lane: &Lane<'_>,
    ) -> Result<SequenceNumber> {
        let reference = self.store_if_large(&state, data)?;
        let data = Payload::new(reference.as_deref().unwrap_or(data));
        let mut body = Observed { name: name.to_owned(), data }.encode();
        lane.add_to(&mut body, 0);
        self.write(state, time_us, [PendingRecord::new(RecordKind::Observed, &body, RecordBody::NoEffect)])
    }
}
