//! One slice of a projection, and the decoding and insertion of a record's new items.

use std::borrow::Cow;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Binding, BuiltIn, ItemId, Payload, Policy};

use super::{DecodedValues, FoldContext};
use crate::error::{Error, Result};
use crate::fold::unread;
use crate::items::row::{RowItem, SliceRow};
use crate::items::rows::NewValue;
use crate::items::{AnyValue, SliceItems};
use crate::types::{Decoder, RecordedBytes};

#[derive(Clone, Debug)]
pub(in crate::fold) struct SliceState {
    pub(in crate::fold) policy: Policy,
    pub(in crate::fold) items: SliceItems,
    /// Decodes an item, if the host declares the slice.
    pub(in crate::fold) decoder: Option<Decoder>,
    /// Whether only the names of items are in memory.
    pub(in crate::fold) unread: bool,
}

/// Returns the slice of a binding that changes it as declared. Returns `None` if records of the
/// event list their effects on the slice.
#[inline]
pub(super) fn bound_slice<'a>(
    slices: &'a mut [SliceState],
    sequence: SequenceNumber,
    binding: &Binding,
) -> Result<Option<&'a mut SliceState>> {
    let bad = |reason: String| Err(Error::Inconsistent { sequence, reason });
    let Some(slice) = slices.get_mut(binding.slice as usize) else {
        return bad(format!("slice {} was never declared", binding.slice));
    };
    if binding.built_in == BuiltIn::Replace && slice.policy == Policy::Log {
        return bad(format!("LOG slice {} only grows", binding.slice));
    }
    Ok((binding.built_in != BuiltIn::Explicit).then_some(slice))
}

/// Adds an item to a slice, according to its binding's declaration. Replaces nothing if `gathers`
/// is set.
pub(super) fn put(slice: &mut SliceState, binding: &Binding, gathers: bool, row: SliceRow) {
    match &mut slice.items {
        SliceItems::Held(rows) => {
            if binding.built_in == BuiltIn::Replace && !gathers {
                rows.clear();
            }
            rows.push(row);
        }
        SliceItems::InLog(items) => items.push(row),
    }
}

/// Adds a value to a slice, according to its binding's declaration.
#[inline]
pub(super) fn put_value<V: NewValue>(
    slice: &mut SliceState,
    binding: &Binding,
    gathers: bool,
    id: ItemId,
    version: u32,
    value: V,
) {
    match &mut slice.items {
        SliceItems::Held(rows) if binding.built_in != BuiltIn::Replace => value.push(rows, id, version),
        _ => {
            if let Some(value) = value.shared() {
                put(slice, binding, gathers, SliceRow { id, version, item: RowItem::Typed(value) });
            }
        }
    }
}

/// Assigns ids to new items, and decodes them if the host's types are known.
pub(super) fn new_rows<'a>(
    slice: &SliceState,
    id: u32,
    sequence: SequenceNumber,
    items: impl IntoIterator<Item = (Payload<'a>, u32)>,
    decoded_values: &DecodedValues<'_>,
    folding: &FoldContext<'_>,
) -> Result<Vec<SliceRow>> {
    (0..)
        .zip(items)
        .map(|(ordinal, (payload, version))| {
            let item = new_item(slice, sequence, payload, version, decoded_values.get(id, ordinal), folding)?;
            Ok(SliceRow { id: ItemId { sequence, ordinal }, version, item })
        })
        .collect()
}

pub(super) fn new_item(
    slice: &SliceState,
    sequence: SequenceNumber,
    payload: Payload<'_>,
    version: u32,
    decoded_values: Option<AnyValue>,
    folding: &FoldContext<'_>,
) -> Result<RowItem> {
    if let Some(value) = decoded_values {
        return Ok(RowItem::Typed(value));
    }
    if slice.unread {
        folding.objects.check(payload)?;
        return Ok(RowItem::Typed(unread::value()));
    }
    let Some(decoder) = &slice.decoder else { return Ok(RowItem::Bytes(folding.objects.shared(payload)?)) };
    let bytes = folding.objects.resolve(payload)?;
    let recorded = match &bytes {
        Cow::Borrowed(bytes) => RecordedBytes::InBody(bytes),
        Cow::Owned(bytes) => RecordedBytes::Elsewhere(bytes),
    };
    Ok(RowItem::Typed(decoder.alone(version, sequence, recorded)?))
}
