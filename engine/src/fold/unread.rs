//! Items whose bodies stay in the log.
//!
//! An audit asks which items a slice holds far more often than what they say, and a log may be longer than memory. So an
//! [unread](super::projection::LogSlices::Unread) projection holds the name and the version of each item and nothing else:
//! eight bytes where items come one by one. What an item says is read from its record when it is asked for, and handed on
//! at once ([`item_reading`](super::item_reading)).
//!
//! # Invariants
//!
//! 1. Two folds of one log that hold the same names hold the same items.

use foldlog_codec::SequenceNumber;
use std::sync::{Arc, LazyLock};

use crate::error::Error;
use crate::items::AnyValue;
use crate::items::rows::Rows;
use crate::types::{Decoded, Decoder, Recorded};

/// Stands for what an item says.
struct Unread;

static UNREAD: LazyLock<AnyValue> = LazyLock::new(|| Arc::new(Unread));

/// What stands for an item that was not read.
pub(super) fn value() -> AnyValue {
    Arc::clone(&UNREAD)
}

/// Reads nothing.
pub(super) const DECODER: Decoder = Decoder { alone, behind };

fn alone(_: u32, _: SequenceNumber, _: Recorded<'_>) -> Decoded {
    Ok(value())
}

fn behind(
    rows: &mut Rows,
    version: u32,
    sequence: SequenceNumber,
    _: Recorded<'_>,
) -> std::result::Result<(), Box<Error>> {
    rows.push_value(sequence, version, &mut Some(Unread));
    Ok(())
}
