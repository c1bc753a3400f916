//! Limits of a record's body.

use foldlog_codec::Error as CodecError;
use foldlog_codec::frame::BODY_LEN_MAX;
use foldlog_codec::msgpack::{self, ValueLimits};

use crate::error::{Error, Result};

/// Checks that readers accept a record with this body: its length, and the number of its values.
/// Each value takes at least a byte, so only bodies longer than the limit on values are walked. The
/// depth of nesting needs no check: payloads are bounded so that the structure around them fits.
#[inline]
pub(super) fn check_body<'b>(len: usize, body: impl FnOnce() -> &'b [u8]) -> Result<()> {
    if len as u64 <= ValueLimits::default().items_max {
        return Ok(());
    }
    check_body_len(len)?;
    match msgpack::scan(body(), ValueLimits::default()) {
        Err(CodecError::Limit { limit, max, .. }) => {
            Err(Error::TooLarge { what: limit, found: max + 1, max })
        }
        _ => Ok(()),
    }
}

/// Checks that a body is not longer than a frame allows.
pub(crate) fn check_body_len(len: usize) -> Result<()> {
    if len <= BODY_LEN_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { what: "record body", found: len as u64, max: BODY_LEN_MAX as u64 })
}
