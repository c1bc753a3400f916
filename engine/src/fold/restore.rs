//! From a projection to an image and back.

use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, Policy};
use foldlog_codec::image::{Image, ItemImage, SliceImage};

use super::log_items::{LogItems, LogSource, Mark, RecordedItems};
use super::names::Names;
use super::projection::{Items, Projection, SliceState};
use super::row::{Row, RowItem, RowRef};
use super::rows::Rows;
use crate::error::{Error, Result};
use crate::log::objects::Objects;
use crate::log::reader::Places;
use crate::log::storage::Storage;
use crate::types::{Recorded, SessionTypes, SliceTypes, TAIL_ITEMS};

/// The slices of a projection, for an image.
///
/// # Errors
///
/// [`Error::Inconsistent`] where the log did not hold an item.
pub(crate) fn slices<'a>(
    projection: &'a Projection,
    recorded: &'a RecordedItems,
) -> Result<Vec<SliceImage<'a>>> {
    (0..).zip(projection.slices()).map(|(slice, items)| slice_image(slice, items, recorded)).collect()
}

fn slice_image<'a>(slice: u32, items: &'a Items, recorded: &'a RecordedItems) -> Result<SliceImage<'a>> {
    Ok(match items {
        Items::Held(rows) => {
            let item = |row: RowRef<'a>| -> Result<ItemImage<'a>> {
                Ok(ItemImage { id: row.id, version: row.version, bytes: recorded.bytes(slice, row)? })
            };
            SliceImage::Held(rows.iter().map(item).collect::<Result<_>>()?)
        }
        Items::InLog(items) => SliceImage::InLog {
            len: items.len(),
            marks: items.marks().iter().map(|mark| (mark.place, mark.sequence)).collect(),
            undone: items.undone().to_vec(),
        },
    })
}

/// Where the projection's LOG slices are to be read.
pub(crate) struct Ground<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) places: Places,
    pub(crate) objects: &'a Arc<Objects>,
}

/// The projection of a session that an image holds.
///
/// # Errors
///
/// [`Error::Inconsistent`] where the image contradicts itself, [`Error::Decode`] or [`Error::NewerVersion`] where
/// an item is not what the host's type wants, and what reading the last items of LOG slices says.
pub(crate) fn projection(
    image: &Image<'_>,
    types: Option<&SessionTypes>,
    ground: Ground<'_>,
) -> Result<Projection> {
    let bad = |reason: &str| Error::Inconsistent { sequence: image.next_sequence, reason: reason.to_owned() };
    let mut names = Names::default();
    names.check(image.next_sequence, &image.declared)?;
    names.learn(image.declared.clone());
    if names.slices().len() != image.slices.len() {
        return Err(bad("the image holds other slices than were declared"));
    }
    let names = Arc::new(names);
    let source = LogSource {
        storage: Arc::clone(ground.storage),
        places: ground.places,
        objects: Arc::clone(ground.objects),
        names: Arc::clone(&names),
    };
    let mut slices = Vec::new();
    for (declared, slice) in names.slices().iter().zip(&image.slices) {
        let types = types.and_then(|types| types.slice(&declared.name));
        let items = match slice {
            SliceImage::Held(items) if declared.policy != Policy::Log => Items::Held(rows(items, types)?),
            SliceImage::InLog { len, marks, undone } if declared.policy == Policy::Log => {
                let marks = marks.iter().map(|(place, sequence)| Mark { place: *place, sequence: *sequence });
                let tail_max = types.map_or(TAIL_ITEMS, |types| types.tail_items);
                let items = LogItems::restored(*len, marks.collect(), undone.clone(), tail_max);
                Items::InLog(with_tail(items, declared.id, &source, types)?)
            }
            _ => return Err(bad("a slice is held otherwise than its policy asks for")),
        };
        slices.push(SliceState { policy: declared.policy, items, decoder: types.map(|types| types.decoder) });
    }
    Ok(Projection::restored(names, slices, image))
}

/// The items of a slice, in their order. Those that a reducer once put before older ones get their places from
/// the items that they stand before, as they did then.
fn rows(items: &[ItemImage<'_>], types: Option<&SliceTypes>) -> Result<Rows> {
    let mut rows = Rows::indexed(types.and_then(SliceTypes::index));
    // From the end: an item stands in order of insertion if all behind it came later.
    let mut least: Option<ItemId> = None;
    let mut in_order: Vec<bool> = items
        .iter()
        .rev()
        .map(|item| {
            let in_order = least.is_none_or(|least| item.id < least);
            least = Some(least.map_or(item.id, |least| least.min(item.id)));
            in_order
        })
        .collect();
    in_order.reverse();
    for (item, _) in items.iter().zip(&in_order).filter(|(_, in_order)| **in_order) {
        match types {
            Some(types) if item.id.ordinal == 0 => {
                let (version, sequence) = (item.version, item.id.sequence);
                (types.decoder.behind)(&mut rows, version, sequence, Recorded::Elsewhere(item.bytes))?;
            }
            _ => rows.push(row(item, types)?),
        }
    }
    let mut before = Vec::new();
    for (item, in_order) in items.iter().zip(in_order) {
        if in_order {
            if !before.is_empty() {
                rows.insert_before(item.id, std::mem::take(&mut before));
            }
        } else {
            before.push(row(item, types)?);
        }
    }
    Ok(rows)
}

fn row(item: &ItemImage<'_>, types: Option<&SliceTypes>) -> Result<Row> {
    let ItemImage { id, version, bytes } = *item;
    let recorded = Recorded::Elsewhere(bytes);
    let item = match types {
        Some(types) => RowItem::Typed((types.decoder.alone)(version, id.sequence, recorded)?),
        None => RowItem::Bytes(Arc::from(bytes)),
    };
    Ok(Row { id, version, item })
}

/// Reads the last items of a LOG slice, which its reducers are to see.
fn with_tail(
    mut items: LogItems,
    slice: u32,
    source: &LogSource,
    types: Option<&SliceTypes>,
) -> Result<LogItems> {
    let mut tail = Rows::default();
    let from = items.len().saturating_sub(items.tail_max() as u64);
    source.read(slice, &items, from, None, &mut |_, stored| {
        tail.push(row(&ItemImage { id: stored.id, version: stored.version, bytes: &stored.bytes }, types)?);
        Ok(ControlFlow::Continue(()))
    })?;
    if tail.len() as u64 != items.len() - from {
        let reason = "the log does not hold the items that the image counts".to_owned();
        return Err(Error::Inconsistent { sequence: source.places.next_sequence, reason });
    }
    items.set_tail(tail);
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_in_their_order_and_can_be_gone_on_with() {
        let row = |sequence| Row {
            id: ItemId { sequence, ordinal: 0 },
            version: 1,
            item: RowItem::Bytes(Arc::from([sequence as u8])),
        };
        let anchor = |sequence| ItemId { sequence, ordinal: 0 };
        let mut before = Rows::default();
        (1..=5).for_each(|sequence| before.push(row(sequence)));
        before.insert_before(anchor(1), vec![row(6), row(7)]);
        before.insert_before(anchor(5), vec![row(8)]);
        before.insert_before(anchor(8), vec![row(9)]);
        before.remove(anchor(1));
        before.remove(anchor(2));
        before.push(row(10));
        before.insert_before(anchor(10), vec![row(11)]);
        let items = Items::Held(before.clone());
        let found = RecordedItems::default();
        let SliceImage::Held(images) = slice_image(0, &items, &found).unwrap() else { panic!("it is held") };
        let mut after = rows(&images, None).unwrap();
        let ids = |rows: &Rows| rows.iter().map(|row| row.id.sequence).collect::<Vec<_>>();
        assert_eq!(ids(&before), [6, 7, 3, 4, 9, 8, 5, 11, 10]);
        assert_eq!(ids(&after), ids(&before));
        for rows in [&mut before, &mut after] {
            rows.insert_before(anchor(3), vec![row(12)]);
            rows.insert_before(anchor(8), vec![row(13)]);
            rows.remove(anchor(6));
            rows.push(row(14));
        }
        assert_eq!(ids(&after), ids(&before));
    }
}
