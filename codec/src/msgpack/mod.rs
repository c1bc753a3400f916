//! MessagePack: tokens, a bounded pre-scan, values and their JSON forms.
//!
//! Bytes that come from disk are never handed to a typed decoder before [`scan`] has walked them: it bounds
//! depth, item count and declared lengths without recursion and without allocating, so that a hostile file
//! can neither nest without end nor ask for memory that it does not fill. What it cannot bound is a host's
//! type that contains itself without a field or element in between (`struct W(Option<Box<W>>)`): a decoder
//! goes round in it without reading a byte.

mod json;
mod read;
mod streamed;
mod value;
mod write;

pub use json::from_json;
pub use read::{Limits, Reader, Token, scan};
pub(crate) use streamed::Hex;
pub use streamed::Streamed;
pub use value::Value;
pub use write::Writer;

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::body::{OBJECT_BYTES_MAX, payload_fits};

/// The MessagePack of a host's value, with field names.
///
/// # Errors
///
/// [`Error::Value`] where the type's `Serialize` fails, [`Error::Limit`] where the value is over
/// [`Limits::of_payload`] or over [`OBJECT_BYTES_MAX`], and as [`scan`] where the type's `Serialize` wrote more or fewer values than it
/// announced: it is better told now than when the log is opened again.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    // Room for most events, which would otherwise grow from nothing in five steps.
    let mut bytes = Vec::with_capacity(256);
    append(value, &mut bytes)?;
    Ok(bytes)
}

/// Appends the MessagePack of a host's value to `out`, as [`to_vec`] makes it, so that one buffer serves for
/// value after value.
///
/// # Errors
///
/// As [`to_vec`]; nothing is appended then.
pub fn append<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    let mut bounded = Bounded { out: std::mem::take(out), start, over: false };
    let written = rmp_serde::encode::write_named(&mut bounded, value);
    *out = bounded.out;
    let written = match bounded.over {
        true => Err(Error::Limit { offset: 0, limit: "payload length", max: OBJECT_BYTES_MAX }),
        false => written.map_err(|error| Error::Value(error.to_string())),
    };
    let appended = written
        // No cheaper test stands in for the walk: rmp-serde writes down whatever length a type announces, and a
        // record whose payload has no end would be no record when the log is read.
        .and_then(|()| check_payload(out.get(start..).unwrap_or_default()));
    if appended.is_err() {
        out.truncate(start);
    }
    appended
}

/// Refuses what would make a payload too large before it is copied. Looks only where the buffer has to grow, so that
/// small values pay nothing; what had room all the same is found once the payload is whole.
struct Bounded {
    out: Vec<u8>,
    /// Where the payload begins.
    start: usize,
    over: bool,
}

impl io::Write for Bounded {
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

/// A host's value from MessagePack, after the pre-scan.
///
/// # Errors
///
/// As [`scan`], or [`Error::Value`] where the bytes are not what the type wants.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    check(bytes)?;
    from_scanned(bytes)
}

/// A host's value from MessagePack that has passed the pre-scan already: its second walk is spared.
///
/// Whoever calls this vouches for the bytes. They are a [`Payload`](crate::body::Payload) as a body's `decode`
/// handed it out, or what [`to_vec`] or [`append`] wrote, or [`check`] was asked. An object's bytes are no
/// payload's: its name says that they are what was written, not that this was MessagePack. Bytes that nobody
/// vouches for can neither do harm to memory's safety nor be taken for a value that they are not, but they can
/// nest until the stack ends, and claim lengths that ask for memory.
///
/// # Errors
///
/// [`Error::Value`] where the bytes are not what the type wants.
#[inline]
pub fn from_scanned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(bytes).map_err(|error| Error::Value(error.to_string()))
}

/// Checks that the bytes are exactly one MessagePack value within the default limits.
///
/// # Errors
///
/// As [`scan`]; [`Error::Malformed`] where bytes follow the value.
pub fn check(bytes: &[u8]) -> Result<(), Error> {
    check_within(bytes, Limits::default())
}

/// Checks that the bytes are a value as [`to_vec`] makes them: one, within [`Limits::of_payload`] and not over
/// [`OBJECT_BYTES_MAX`].
///
/// # Errors
///
/// As [`to_vec`].
pub fn check_payload(bytes: &[u8]) -> Result<(), Error> {
    if !payload_fits(bytes.len()) {
        return Err(Error::Limit { offset: 0, limit: "payload length", max: OBJECT_BYTES_MAX });
    }
    check_within(bytes, Limits::of_payload())
}

fn check_within(bytes: &[u8], limits: Limits) -> Result<(), Error> {
    let end = scan(bytes, limits)?;
    if end == bytes.len() {
        Ok(())
    } else {
        Err(Error::Malformed { offset: end, reason: "bytes follow the value" })
    }
}
