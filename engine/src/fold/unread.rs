//! Unread items, whose bodies stay in the log.
//!
//! An audit asks which items a slice holds far more often than for their content, and a log may be larger
//! than memory. So an [unread](super::projection::LogSlices::Unread) projection holds only the name and the
//! version of each item: eight bytes for items that come one by one. The content is read from the item's
//! record when it is asked for, and handed on at once ([`item_reading`](super::item_reading)).
//!
//! # Invariants
//!
//! 1. Two folds of one log that hold the same names hold the same items.

use foldlog_codec::SequenceNumber;
use std::sync::{Arc, LazyLock};

use crate::error::Error;
use crate::items::AnyValue;
use crate::items::rows::Rows;
use crate::types::{Decoded, Decoder, RecordedBytes};

/// Stands for the content of an unread item.
struct Unread;

static UNREAD: LazyLock<AnyValue> = LazyLock::new(|| Arc::new(Unread));

/// Returns the value that stands for an unread item.
pub(super) fn value() -> AnyValue {
    Arc::clone(&UNREAD)
}

/// Decodes every item to a value that stands for an unread one.
pub(super) const DECODER: Decoder = Decoder::Typed { alone, behind: append_unread };

fn alone(_: u32, _: SequenceNumber, _: RecordedBytes<'_>) -> Decoded {
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
