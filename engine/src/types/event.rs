use foldlog_codec::SequenceNumber;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, Payload};
use foldlog_codec::msgpack::{self, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::values::ValueDecoder;
use super::{EventSlice, Slice};
use crate::error::{Error, Result};
use crate::items::AnyValue;
use crate::items::rows::Rows;
use crate::items::runs::VALUE_BYTES_MAX;

/// Describes something that happened, in the host's own type.
///
/// `NAME` is the host's stable name, such as `"plan.step_added"`. It is written into logs and must
/// never name another event. Raise `VERSION` when the fields change in a way that serde cannot
/// read. Convert older recordings in [`upcast`](Event::upcast), which never changes the stored
/// bytes.
///
/// The type must deserialize from its own serialization: a field that serde skips is lost when a
/// session is opened again.
///
/// ```
/// use foldlog::Event;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct StepAdded {
///     title: String,
/// }
///
/// impl Event for StepAdded {
///     const NAME: &'static str = "plan.step_added";
/// }
/// ```
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Name of the event in logs.
    const NAME: &'static str;
    /// Version of the form that [`Serialize`] writes; 1 or more.
    const VERSION: u32 = 1;
    /// Paths of values that a [replay](crate::replay) does not compare, such as durations:
    /// `$.event.took_ms`. See [`LeaveOut`](crate::LeaveOut).
    const NOT_COMPARED: &'static [&'static str] = &[];

    /// Converts a value that was recorded at `version` to the present form. `version` is below
    /// `VERSION`.
    ///
    /// # Errors
    ///
    /// Fails if the value cannot be converted; the default implementation always fails. Reading the
    /// item then fails with [`Error::Decode`].
    fn upcast(version: u32, value: Value) -> Result<Value, UpcastError> {
        let _ = value;
        Err(UpcastError::new(format!("there is no upcast from version {version} to {}", Self::VERSION)))
    }
}

/// Reports why an older recording could not be converted to the present form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UpcastError {
    reason: String,
}

impl UpcastError {
    /// Creates an error with this reason.
    pub fn new(reason: impl Into<String>) -> UpcastError {
        UpcastError { reason: reason.into() }
    }
}

struct VersionedType {
    name: &'static str,
    version: u32,
    upcast: fn(u32, Value) -> Result<Value, UpcastError>,
}

impl VersionedType {
    #[cold]
    fn bad(&self, sequence: SequenceNumber, reason: String) -> Box<Error> {
        Box::new(Error::Decode { name: self.name.to_owned(), sequence, reason })
    }
}

/// Bytes of a recorded value, distinguished by their source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecordedBytes<'a> {
    /// Bytes of a record's body; these have passed the bounded pre-scan.
    InBody(&'a [u8]),
    /// Bytes from any other place, such as the object directory; not scanned yet.
    Elsewhere(&'a [u8]),
}

impl<'a> RecordedBytes<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        let (RecordedBytes::InBody(bytes) | RecordedBytes::Elsewhere(bytes)) = self;
        bytes
    }
}

/// Decodes an item of a slice. Arguments are the item's version, the sequence number of the record
/// that inserted it, and its bytes.
pub(crate) type DecodeItem = fn(u32, SequenceNumber, RecordedBytes<'_>) -> Decoded;

/// Decodes an item and appends it to the items of a slice, as the first item of its record.
pub(crate) type AppendItem =
    fn(&mut Rows, u32, SequenceNumber, RecordedBytes<'_>) -> std::result::Result<(), Box<Error>>;

#[derive(Clone, Debug)]
pub(crate) enum Decoder {
    /// Decodes to values of a Rust type.
    Typed { decode: DecodeItem, append: AppendItem },
    /// Decodes to values of any shape.
    Values(Arc<ValueDecoder>),
}

impl Decoder {
    pub(crate) fn of_slice<S: Slice>() -> Decoder {
        Decoder::Typed { decode: decode_item::<S>, append: append_item::<S> }
    }

    #[inline]
    pub(crate) fn alone(
        &self,
        version: u32,
        sequence: SequenceNumber,
        recorded: RecordedBytes<'_>,
    ) -> Decoded {
        match self {
            Decoder::Typed { decode, .. } => decode(version, sequence, recorded),
            Decoder::Values(values) => values.decode(version, sequence, recorded),
        }
    }

    /// Appends the decoded value to the items of a slice, as the first item of its record.
    #[inline]
    pub(crate) fn append_decoded(
        &self,
        rows: &mut Rows,
        version: u32,
        sequence: SequenceNumber,
        recorded: RecordedBytes<'_>,
    ) -> std::result::Result<(), Box<Error>> {
        match self {
            Decoder::Typed { append, .. } => append(rows, version, sequence, recorded),
            Decoder::Values(values) => {
                let value = values.value(version, sequence, recorded)?;
                push(rows, version, sequence, value, recorded.bytes().len());
                Ok(())
            }
        }
    }
}

/// Appends a value to the items of a slice. Its recording has `len` bytes.
#[inline]
fn push<T: Send + Sync + 'static>(
    rows: &mut Rows,
    version: u32,
    sequence: SequenceNumber,
    value: T,
    len: usize,
) {
    if len > VALUE_BYTES_MAX {
        rows.push_shared(ItemId { sequence, ordinal: 0 }, version, Arc::new(value));
    } else {
        rows.push_value(sequence, version, &mut Some(value));
    }
}

/// Result of decoding an item. The error is boxed, so that a value is returned in registers.
pub(crate) type Decoded = std::result::Result<AnyValue, Box<Error>>;

/// Decodes recorded bytes to a host's value. Session, replay and audit all use this function.
#[inline]
fn decode<T: DeserializeOwned>(
    kind: &VersionedType,
    version: u32,
    sequence: SequenceNumber,
    recorded: RecordedBytes<'_>,
) -> std::result::Result<T, Box<Error>> {
    if version != kind.version {
        return decode_other::<T>(kind, version, sequence, recorded.bytes());
    }
    let value = match recorded {
        RecordedBytes::InBody(bytes) => msgpack::from_scanned::<T>(bytes),
        RecordedBytes::Elsewhere(bytes) => msgpack::from_slice::<T>(bytes),
    };
    value.map_err(|error| kind.bad(sequence, error.to_string()))
}

/// Decodes a value that was recorded at a version other than the present one.
#[cold]
fn decode_other<T: DeserializeOwned>(
    kind: &VersionedType,
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

impl VersionedType {
    fn of<S: Slice>() -> VersionedType {
        VersionedType { name: S::NAME, version: S::ITEM_VERSION, upcast: S::upcast_item }
    }
}

/// Decodes an event as the host's type, from bytes that were not scanned yet.
pub(crate) fn read_event<E: Event>(version: u32, sequence: SequenceNumber, bytes: &[u8]) -> Result<E> {
    decode::<E>(&VersionedType::of::<EventSlice<E>>(), version, sequence, RecordedBytes::Elsewhere(bytes))
        .map_err(|error| *error)
}

/// Decodes an item of a slice whose items are not events.
pub(crate) fn decode_item<S: Slice>(
    version: u32,
    sequence: SequenceNumber,
    recorded: RecordedBytes<'_>,
) -> Decoded {
    Ok(Arc::new(decode::<S::Item>(&VersionedType::of::<S>(), version, sequence, recorded)?))
}

/// Decodes an item that is not an event, and appends it to the items of a slice, as the first item
/// of its record.
pub(crate) fn append_item<S: Slice>(
    rows: &mut Rows,
    version: u32,
    sequence: SequenceNumber,
    recorded: RecordedBytes<'_>,
) -> std::result::Result<(), Box<Error>> {
    let value = decode::<S::Item>(&VersionedType::of::<S>(), version, sequence, recorded)?;
    push(rows, version, sequence, value, recorded.bytes().len());
    Ok(())
}

/// Encodes a host's value to its recorded form.
pub(crate) fn encode<T: Serialize>(name: &str, value: &T) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    encode_into(name, value, &mut bytes)?;
    Ok(bytes)
}

/// Encodes a host's value to its recorded form, and appends the bytes to `bytes`.
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

/// Checks that a record can contain these bytes, which were not encoded by a host's type.
pub(crate) fn check_payload(name: &str, bytes: &[u8]) -> Result<()> {
    let bad = |reason: String| Error::Encode { name: name.to_owned(), reason };
    msgpack::check_payload(bytes).map_err(|error| bad(error.to_string()))?;
    check_no_reference(bytes).map_err(bad)
}
