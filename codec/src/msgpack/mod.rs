//! MessagePack: tokens, a bounded pre-scan, values and their JSON forms.
//!
//! Bytes that come from disk are never handed to a typed decoder before [`scan`] has walked them: it bounds
//! depth, item count and declared lengths without recursion and without allocating, so that a hostile file
//! can neither overflow the stack nor ask for memory that it does not fill.

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
/// [`Error::Value`] where the type's `Serialize` fails, [`Error::Limit`] or [`Error::Malformed`] where what
/// it wrote would be refused on reading: it is better told now than when the log is opened again.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let bytes = rmp_serde::to_vec_named(value).map_err(|error| Error::Value(error.to_string()))?;
    check(&bytes)?;
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
    let end = scan(bytes, Limits::default())?;
    if end == bytes.len() {
        Ok(())
    } else {
        Err(Error::Malformed { offset: end, reason: "bytes follow the value" })
    }
}
