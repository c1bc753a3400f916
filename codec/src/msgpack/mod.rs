//! MessagePack: tokens, a bounded pre-scan, values and their JSON forms.
//!
//! Bytes that come from disk are never handed to a typed decoder before [`scan`] has walked them: it bounds
//! depth, item count and declared lengths without recursion and without allocating, so that a hostile file
//! can neither nest without end nor ask for memory that it does not fill. What it cannot bound is a host's
//! type that contains itself without a field or element in between (`struct W(Option<Box<W>>)`): a decoder
//! goes round in it without reading a byte.

mod json;
mod read;
mod value;
mod write;

pub use json::from_json;
pub use read::{Limits, Reader, Token, scan};
pub use value::Value;
pub use write::Writer;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// The MessagePack of a host's value, with field names.
///
/// # Errors
///
/// [`Error::Value`] where the type's `Serialize` fails, [`Error::Limit`] where it is over
/// [`Limits::of_payload`]: it is better told now than when the log is opened again.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let bytes = rmp_serde::to_vec_named(value).map_err(|error| Error::Value(error.to_string()))?;
    check_within(&bytes, Limits::of_payload())?;
    Ok(bytes)
}

/// A host's value from MessagePack, after the pre-scan.
///
/// # Errors
///
/// As [`scan`], or [`Error::Value`] where the bytes are not what the type wants.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    check(bytes)?;
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

fn check_within(bytes: &[u8], limits: Limits) -> Result<(), Error> {
    let end = scan(bytes, limits)?;
    if end == bytes.len() {
        Ok(())
    } else {
        Err(Error::Malformed { offset: end, reason: "bytes follow the value" })
    }
}
