use foldlog_codec::SequenceNumber;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, Payload};
use foldlog_codec::msgpack::{self, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Slice;
use crate::error::{Error, Result};
use crate::items::AnyValue;
use crate::items::rows::Rows;
use crate::items::runs::VALUE_BYTES_MAX;

/// Something that happened, as the host records it.
///
/// `NAME` is the host's own stable name, such as `"plan.step_added"`; it is written into logs and must never
/// be used for another event. `VERSION` is raised when the fields change in a way that serde cannot read;
/// [`upcast`](Event::upcast) then brings older recordings up to date. Stored bytes are never changed by it.
///
/// The type must read back from what it writes: a field that serde skips is lost when a session is opened
/// again.
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The event's name in logs.
    const NAME: &'static str;
    /// The version that [`Serialize`] writes; 1 or more.
    const VERSION: u32 = 1;

    /// Brings a value recorded at `version`, which is below `VERSION`, to the present form.
    ///
    /// # Errors
    ///
    /// Where there is no way; the default has none.
    fn upcast(version: u32, value: Value) -> Result<Value, UpcastError> {
        let _ = value;
        Err(UpcastError::new(format!("there is no way from version {version} to {}", Self::VERSION)))
    }
}

/// Why an older recording could not be brought up to date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UpcastError {
    reason: String,
}

impl UpcastError {
    /// An error with a reason.
    pub fn new(reason: impl Into<String>) -> UpcastError {
        UpcastError { reason: reason.into() }
    }
}

/// What a value's type says about its recordings.
struct Versioned {
    name: &'static str,
    version: u32,
    upcast: fn(u32, Value) -> Result<Value, UpcastError>,
}

impl Versioned {
    #[cold]
    fn bad(&self, sequence: SequenceNumber, reason: String) -> Box<Error> {
        Box::new(Error::Decode { name: self.name.to_owned(), sequence, reason })
    }
}

/// A recorded value's bytes, and where they come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recorded<'a> {
    /// A record's body, whose pre-scan they have passed when it was decoded.
    InBody(&'a [u8]),
    /// Anywhere else, such as the object folder: nobody has looked at them.
    Elsewhere(&'a [u8]),
}

/// What a decoder makes. Its error is boxed, so that a value is handed on in registers.
pub(crate) type Decoded = std::result::Result<AnyValue, Box<Error>>;

/// The one path from recorded bytes to a host's value: session, replay and audit all take it.
#[inline]
fn decode<T: DeserializeOwned>(
    kind: &Versioned,
    version: u32,
    sequence: SequenceNumber,
    recorded: Recorded<'_>,
) -> std::result::Result<T, Box<Error>> {
    let (Recorded::InBody(bytes) | Recorded::Elsewhere(bytes)) = recorded;
    if version != kind.version {
        return decode_other::<T>(kind, version, sequence, bytes);
    }
    let value = match recorded {
        Recorded::InBody(bytes) => msgpack::from_scanned::<T>(bytes),
        Recorded::Elsewhere(bytes) => msgpack::from_slice::<T>(bytes),
    };
    value.map_err(|error| kind.bad(sequence, error.to_string()))
}

/// A value that was recorded at another version than the present one.
#[cold]
fn decode_other<T: DeserializeOwned>(
    kind: &Versioned,
    version: u32,
    sequence: SequenceNumber,
    bytes: &[u8],
) -> std::result::Result<T, Box<Error>> {
    let bad = |reason: String| kind.bad(sequence, reason);
    if version > kind.version {
        let (name, stored, supported) = (kind.name.to_owned(), version, kind.version);
        return Err(Box::new(Error::NewerVersion { name, stored, supported }));
    }
    let value = Value::decode(bytes).map_err(|error| bad(error.to_string()))?;
    let value = (kind.upcast)(version, value)
        .map_err(|error| bad(format!("upcasting from version {version}: {error}")))?;
    msgpack::from_slice::<T>(&value.encode()).map_err(|error| bad(format!("after upcasting: {error}")))
}

/// Puts a value that was decoded behind the items of a slice.
#[inline]
fn append<T: DeserializeOwned + Send + Sync + 'static>(
    rows: &mut Rows,
    kind: &Versioned,
    version: u32,
    sequence: SequenceNumber,
    recorded: Recorded<'_>,
) -> std::result::Result<(), Box<Error>> {
    let (Recorded::InBody(bytes) | Recorded::Elsewhere(bytes)) = recorded;
    let value = decode::<T>(kind, version, sequence, recorded)?;
    if bytes.len() > VALUE_BYTES_MAX {
        rows.push_shared(ItemId { sequence, ordinal: 0 }, version, Arc::new(value));
    } else {
        rows.push_value(sequence, version, &mut Some(value));
    }
    Ok(())
}

impl Versioned {
    fn event<E: Event>() -> Versioned {
        Versioned { name: E::NAME, version: E::VERSION, upcast: E::upcast }
    }

    fn item<S: Slice>() -> Versioned {
        Versioned { name: S::NAME, version: S::ITEM_VERSION, upcast: S::upcast_item }
    }
}

/// An event from its recording.
pub(crate) fn decode_event<E: Event>(
    version: u32,
    sequence: SequenceNumber,
    recorded: Recorded<'_>,
) -> Decoded {
    Ok(Arc::new(decode::<E>(&Versioned::event::<E>(), version, sequence, recorded)?))
}

/// As [`decode_event`], put behind the items of a slice as the first of its record.
pub(crate) fn append_event<E: Event>(
    rows: &mut Rows,
    version: u32,
    sequence: SequenceNumber,
    recorded: Recorded<'_>,
) -> std::result::Result<(), Box<Error>> {
    append::<E>(rows, &Versioned::event::<E>(), version, sequence, recorded)
}

/// An item of a slice whose items are no events.
pub(crate) fn decode_item<S: Slice>(
    version: u32,
    sequence: SequenceNumber,
    recorded: Recorded<'_>,
) -> Decoded {
    Ok(Arc::new(decode::<S::Item>(&Versioned::item::<S>(), version, sequence, recorded)?))
}

/// As [`decode_item`], put behind the items of a slice as the first of its record.
pub(crate) fn append_item<S: Slice>(
    rows: &mut Rows,
    version: u32,
    sequence: SequenceNumber,
    recorded: Recorded<'_>,
) -> std::result::Result<(), Box<Error>> {
    append::<S::Item>(rows, &Versioned::item::<S>(), version, sequence, recorded)
}

/// A host's value as it is recorded.
pub(crate) fn encode<T: Serialize>(name: &str, value: &T) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    encode_into(name, value, &mut bytes)?;
    Ok(bytes)
}

/// As [`encode`], behind what the buffer holds.
pub(crate) fn encode_into<T: Serialize>(name: &str, value: &T, bytes: &mut Vec<u8>) -> Result<()> {
    let bad = |reason: String| Error::Encode { name: name.to_owned(), reason };
    let start = bytes.len();
    msgpack::append(value, bytes).map_err(|error| bad(error.to_string()))?;
    check_no_reference(bytes.get(start..).unwrap_or_default()).map_err(bad)
}

fn check_no_reference(bytes: &[u8]) -> std::result::Result<(), String> {
    match Payload::new(bytes).object() {
        Some(_) => Err("extension type 1 is kept for references to objects".to_owned()),
        None => Ok(()),
    }
}

/// Checks that bytes which no type has encoded can stand in a record as a value of a host's.
pub(crate) fn check_payload(name: &str, bytes: &[u8]) -> Result<()> {
    let bad = |reason: String| Error::Encode { name: name.to_owned(), reason };
    msgpack::check_payload(bytes).map_err(|error| bad(error.to_string()))?;
    check_no_reference(bytes).map_err(bad)
}
