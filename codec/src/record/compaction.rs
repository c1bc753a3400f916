//! Builds the JSON forms of the records that a compaction writes.

use super::{Budget, Object, Part, RecordNames, hex};
use crate::Error;
use crate::body::{Base, Compacted, Dropped};
use crate::msgpack::Value;

pub(super) fn set_dropped_body(object: &mut Object<'_>, dropped: Dropped) {
    object.set("of", Value::from(dropped.kind.to_string()));
    object.set("len", Value::from(dropped.len));
    object.set("hash", Value::from(hex(&dropped.hash)));
}

pub(super) fn set_compaction(object: &mut Object<'_>, compacted: Compacted) {
    object.set("through", Value::from(compacted.through));
    object.set("end", Value::from(compacted.end));
    object.set("replaced_end", Value::from(compacted.replaced_end));
    object.set("replaced_crc", Value::from(u64::from(compacted.replaced_crc)));
}

/// Sets the number of items of each slice; the ids of the items are in the frame.
pub(super) fn base<'a>(
    object: &mut Object<'a>,
    base: Base,
    names: &RecordNames,
    budget: &mut Budget,
) -> Result<(), Error> {
    object.set("position", Value::from(base.position));
    let mut slices = Vec::with_capacity(base.slices.len());
    for slice in base.slices {
        let count = slice.items.iter().map(|run| u64::from(run.count)).fold(0, u64::saturating_add);
        let name = budget.name(&names.slice(slice.slice), 2)?;
        slices
            .push(Part::Map(vec![("slice", Part::Value(name)), ("items", Part::Value(Value::from(count)))]));
    }
    object.set("slices", Part::Array(slices));
    if base.goes_on {
        object.set("goes_on", Value::from(true));
    }
    Ok(())
}
