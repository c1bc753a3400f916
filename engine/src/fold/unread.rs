//! Unread items: their bodies stay in the log.
//!
//! An audit needs the set of a slice's items far more often than their content, and a log may be
//! larger than memory. An [unread](super::projection::LogSlices::Unread) projection therefore
//! contains only the name and the version of each item: eight bytes for items that are added one by
//! one. The content is read from the item's record on demand, and passed on at once
//! ([`item_reading`](super::item_reading)).
//!
//! # Invariants
//!
//! 1. Two folds of one log with the same names have the same items.

use foldlog_codec::SequenceNumber;
use std::sync::{Arc, LazyLock};

use crate::error::Error;
use crate::items::AnyValue;
use crate::items::rows::Rows;
use crate::types::{Decoded, Decoder, RecordedBytes};

struct Unread;

static UNREAD: LazyLock<AnyValue> = LazyLock::new(|| Arc::new(Unread));

/// Returns the placeholder for an unread item.
pub(super) fn value() -> AnyValue {
    Arc::clone(&UNREAD)
}

/// Decodes every item to the placeholder.
pub(super) const DECODER: Decoder = Decoder::Typed { decode: decode_unread, append: append_unread };

fn decode_unread(_: u32, _: SequenceNumber, _: RecordedBytes<'_>) -> Decoded {
    Ok(value())
}

fn append_unread(
    rows: &mut Rows,
    version: u32,
    sequence: SequenceNumber,
    _: RecordedBytes<'_>,
) -> std::result::Result<(), Box<Error>> {
    rows.push_value(sequence, version, &mut Some(Unread));
    Ok(())
}
