//! Reads and writes MessagePack: tokens, a bounded pre-scan, values and their JSON forms.
//!
//! The *pre-scan* is [`scan`]. No bytes from disk reach a typed decoder before the pre-scan has
//! walked them. It bounds depth, number of values and declared lengths, without recursion and
//! without allocation. So a hostile file can neither nest without end nor claim memory that it does
//! not fill. The pre-scan cannot bound a host's type that contains itself without a field or
//! element in between (`struct W(Option<Box<W>>)`): a decoder of such a type recurses without
//! reading a byte.
//!
//! # JSON forms
//!
//! A record, a state and an export are JSON documents in which each value of a host is written in
//! its *JSON form* ([`Value::json_form`]; [`JsonStream`] writes it without decoding the value). The
//! form is exact: [`Value::into_exact`] returns the value that was written, to the bit.
//!
//! | MessagePack | JSON form |
//! |---|---|
//! | nil, bool, text, arrays | themselves |
//! | integers | themselves, all their digits; readers that represent numbers as doubles misread those beyond 2^53 |
//! | floating-point numbers of 64 bits | the shortest decimal that parses back to the number |
//! | infinities and NaN of 64 bits | `{"$f64": "Infinity"}`, `"-Infinity"`, `"NaN"`; a NaN of other bits `"0x7ff8000000000001"` |
//! | floating-point numbers of 32 bits | `{"$f32": "1.5"}`, with the texts of `$f64` for those that are not finite |
//! | bytes, such as those of a `Uuid` or a `u128` beyond 64 bits | `{"$bytes": "hex"}` |
//! | extensions | `{"$ext": [type, "hex"]}` |
//! | maps | objects, keys in their order; a key that is not text as `$key:` and its JSON form, such as `$key:7` |
//! | maps within keys | `{"$msgpack": "hex"}`, their MessagePack |
//! | text keys that are `$bytes`, `$f32`, `$f64`, `$ext`, `$msgpack` or `$object`, or start with `$key:` | as `$key:"$bytes"` |
//!
//! `{"$object": "name", "bytes": 7}` in a record's JSON is a reference to an object, and
//! `{"$msgpack": "hex"}` a payload over [`ValueLimits::of_payload`]. JSON that a host or a provider
//! wrote is not a JSON form: [`from_json`] reads it unchanged, and [`Value`] serializes to the same
//! JSON again. For values that JSON lacks, `Value`'s own JSON is an approximation for display:
//! bytes are an array of integers, infinities and NaN `null`, keys their JSON text.

mod convert;
mod json;
mod json_form;
mod left_out;
mod reader;
mod to_json;
mod value;
mod write;

pub use convert::NotJson;
pub use json::from_json;
pub use json_form::JsonForm;
pub(crate) use json_form::{Hex, MSGPACK, OBJECT, serialize_tagged};
pub use left_out::{LeftOut, left_out_digest};
pub use reader::{MsgpackReader, MsgpackToken, ValueLimits, scan};
pub use to_json::JsonStream;
pub use value::Value;
pub use write::MsgpackWriter;

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Size in bytes of the largest payload, in a body or in the object directory: 1 GiB. A larger one
/// is neither written nor read.
pub const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// Returns whether a payload of this many bytes is within [`OBJECT_BYTES_MAX`]. A writer calls this
/// before it writes one.
#[inline]
pub fn payload_fits(bytes: usize) -> bool {
    bytes as u64 <= OBJECT_BYTES_MAX
}

/// Serializes a host's value to MessagePack, structs as maps with field names, and checks that a
/// reader will accept it.
///
/// # Errors
///
/// - [`Error::Value`] if the type's `Serialize` fails.
/// - [`Error::Limit`] if the value is over [`ValueLimits::of_payload`] or over
///   [`OBJECT_BYTES_MAX`].
/// - [`Error::Truncated`] or [`Error::Malformed`] if the type's `Serialize` wrote fewer or more
///   values than it announced. The host gets this error now rather than when the log is opened
///   again.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    // Enough for most events, which would otherwise grow the vector five times.
    let mut bytes = Vec::with_capacity(256);
    append(value, &mut bytes)?;
    Ok(bytes)
}

/// Appends the MessagePack of a host's value to `out`, so that one buffer serves many values. The
/// bytes are those of [`to_vec`].
///
/// # Errors
///
/// Nothing is appended in any of these cases.
///
/// - [`Error::Value`] if the type's `Serialize` fails.
/// - [`Error::Limit`] if the value is over [`ValueLimits::of_payload`] or over
///   [`OBJECT_BYTES_MAX`].
/// - [`Error::Truncated`] or [`Error::Malformed`] if the type's `Serialize` wrote fewer or more
///   values than it announced.
pub fn append<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    let mut bounded = BoundedBuffer { out: std::mem::take(out), start, over: false };
    let written = rmp_serde::encode::write_named(&mut bounded, value);
    *out = bounded.out;
    let written = match bounded.over {
        true => Err(Error::Limit { offset: 0, limit: "payload length", max: OBJECT_BYTES_MAX }),
        false => written.map_err(|error| Error::Value(error.to_string())),
    };
    let appended = written
        // No cheaper check can replace the walk: rmp-serde writes any length that a type announces,
        // and a reader would reject a record whose payload does not end.
        .and_then(|()| check_payload(out.get(start..).unwrap_or_default()));
    if appended.is_err() {
        out.truncate(start);
    }
    appended
}

/// Collects a payload, and rejects bytes that would make it too large before they are copied.
///
/// `BoundedBuffer` checks only when the buffer has to grow, so that small values cost nothing
/// extra. If the buffer already had the capacity, the check of the whole payload finds that it is
/// too large.
struct BoundedBuffer {
    out: Vec<u8>,
    /// Offset, in bytes, of the start of the payload in `out`.
    start: usize,
    over: bool,
}

impl io::Write for BoundedBuffer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = self.out.len().saturating_add(bytes.len());
        if len > self.out.capacity() && !payload_fits(len.saturating_sub(self.start)) {
            self.over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Deserializes a host's value from MessagePack, after the pre-scan.
///
/// ```
/// use foldlog_codec::msgpack;
///
/// let bytes = msgpack::to_vec(&("ship it", 3))?;
/// assert_eq!(msgpack::from_slice::<(String, u32)>(&bytes)?, ("ship it".to_owned(), 3));
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
///
/// # Errors
///
/// - [`Error::Truncated`] if the value ends early.
/// - [`Error::Malformed`] if the bytes are not exactly one MessagePack value.
/// - [`Error::Limit`] if it is over the default [`ValueLimits`].
/// - [`Error::Value`] if it is not a value of the type.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    check(bytes)?;
    from_scanned(bytes)
}

/// Deserializes a host's value from MessagePack that has already passed the pre-scan, without a
/// second walk.
///
/// The caller vouches for the bytes: a body's `decode` returned them as a
/// [`Payload`](crate::body::Payload), [`to_vec`] or [`append`] wrote them, or [`check`] accepted
/// them. The bytes of an object do not qualify: its name proves that they are unchanged, not that
/// they are MessagePack. Other bytes can neither violate memory safety nor decode as a value that
/// they do not contain. But they can nest until the stack overflows, and claim lengths for which
/// memory is allocated.
///
/// # Errors
///
/// [`Error::Value`] if the bytes are not a value of the type.
#[inline]
pub fn from_scanned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(bytes).map_err(|error| Error::Value(error.to_string()))
}

/// Checks that the bytes are exactly one MessagePack value within the default [`ValueLimits`].
///
/// # Errors
///
/// - [`Error::Truncated`] if the value ends early.
/// - [`Error::Malformed`] if the bytes are not MessagePack or continue after the value.
/// - [`Error::Limit`] if the value is over the limits.
pub fn check(bytes: &[u8]) -> Result<(), Error> {
    check_within(bytes, ValueLimits::default())
}

/// Checks that the bytes are exactly one MessagePack value within [`ValueLimits::of_payload`] and
/// [`OBJECT_BYTES_MAX`], as every payload is.
///
/// # Errors
///
/// - [`Error::Truncated`] if the value ends early.
/// - [`Error::Malformed`] if the bytes are not MessagePack or continue after the value.
/// - [`Error::Limit`] if the value is over the limits.
pub fn check_payload(bytes: &[u8]) -> Result<(), Error> {
    if !payload_fits(bytes.len()) {
        return Err(Error::Limit { offset: 0, limit: "payload length", max: OBJECT_BYTES_MAX });
    }
    check_within(bytes, ValueLimits::of_payload())
}

fn check_within(bytes: &[u8], limits: ValueLimits) -> Result<(), Error> {
    let end = scan(bytes, limits)?;
    if end == bytes.len() {
        Ok(())
    } else {
        Err(Error::Malformed { offset: end, reason: "extra bytes after the value" })
    }
}
