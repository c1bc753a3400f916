//! Converts a projection to an image and back.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{OPEN_OPERATIONS_MAX, Policy};
use foldlog_codec::image::{BegunImage, BegunSlice, Image, ItemImage, SliceImage};

use super::log_source::LogSource;
use super::projection::{FrozenProjection, LogSlices, Projection, SliceState};
use crate::error::{Error, Result};
use crate::items::SliceItems;
use crate::items::log_items::{ItemMark, LogItems};
use crate::items::row::{RowItem, RowRef, SliceRow};
use crate::items::rows::Rows;
use crate::names::DeclaredNames;
use crate::types::{RecordedBytes, SessionTypes, SliceTypes, TAIL_ITEMS};

/// Returns the slices of a projection for an image, with the number of their items but without the
/// items.
pub(crate) fn slices(projection: &Projection) -> Vec<SliceImage<'static>> {
    let slice = |items: &SliceItems| match items {
        SliceItems::Held(rows) => SliceImage::Held { len: rows.len() as u64, items: Vec::new() },
        SliceItems::InLog(items) => SliceImage::InLog {
            len: items.len(),
            marks: items.marks.iter().map(|mark| (mark.place, mark.sequence)).collect(),
            undone: items.rolled_back.to_vec(),
        },
    };
    projection.slices().map(slice).collect()
}

/// Returns STATE at the start records of open operations, for an image of `projection`. Its items
/// are those that [`items_apart`] returns.
pub(crate) fn begun_images(
    projection: &Projection,
    begun: &[(SequenceNumber, Arc<FrozenProjection>)],
) -> Vec<BegunImage<'static>> {
    let slice = |id: u32, then: &FrozenProjection| {
        let (now, then) = (state_rows(projection, id)?, state_rows(&then.projection, id)?);
        let kept = now.iter().zip(then.iter()).take_while(|(now, then)| now.id == then.id).count();
        let len = then.len() - kept;
        (!then.is_empty()).then(|| BegunSlice {
            slice: id,
            kept: kept as u64,
            len: len as u64,
            items: Vec::new(),
        })
    };
    let ids = |then: &FrozenProjection| 0..then.projection.names.slices().len() as u32;
    begun
        .iter()
        .map(|(begin, then)| BegunImage {
            begin: *begin,
            slices: ids(then).filter_map(|id| slice(id, then)).collect(),
        })
        .collect()
}

fn state_rows(projection: &Projection, slice: u32) -> Option<&Rows> {
    match projection.items(slice) {
        Some((Policy::State, SliceItems::Held(rows))) => Some(rows),
        _ => None,
    }
}

/// Returns all items of an image, slice by slice, in their order after its map: the items of the
/// projection, then those of the start records in `heads`.
pub(crate) fn items_apart<'a>(
    projection: &'a Projection,
    begun: &'a [(SequenceNumber, Arc<FrozenProjection>)],
    heads: &'a [BegunImage<'_>],
) -> impl Iterator<Item = (u32, Box<dyn Iterator<Item = RowRef<'a>> + 'a>)> {
    type Stream<'a> = (u32, Box<dyn Iterator<Item = RowRef<'a>> + 'a>);
    let held = (0..).zip(projection.slices()).filter_map(|(slice, items)| match items {
        SliceItems::Held(rows) => {
            Some((slice, Box::new(rows.iter()) as Box<dyn Iterator<Item = RowRef<'a>>>))
        }
        SliceItems::InLog(_) => None,
    });
    let begun = begun.iter().zip(heads).flat_map(|((_, then), head)| {
        head.slices.iter().filter_map(|slice| -> Option<Stream<'a>> {
            let rows = state_rows(&then.projection, slice.slice)?;
            Some((slice.slice, Box::new(rows.iter().skip(slice.kept as usize))))
        })
    });
    held.chain(begun)
}

pub(crate) struct LoadedImage {
    pub(crate) projection: Projection,
    /// STATE at the start records of open operations that may change something.
    pub(crate) begun: Vec<(SequenceNumber, Arc<FrozenProjection>)>,
}

/// Creates a session's projection from an image, and STATE at the start records of open operations.
///
/// # Errors
///
/// [`Error::Inconsistent`] if the image contradicts itself, [`Error::Decode`] or
/// [`Error::NewerVersion`] if an item cannot be read as the host's type, [`Error::Io`] or
/// [`Error::Object`] if the last items of a LOG slice cannot be read.
pub(crate) fn projection(
    image: &Image<'_>,
    types: Option<&SessionTypes>,
    ground: LogSource,
) -> Result<LoadedImage> {
    let bad = |reason: &str| Error::Inconsistent { sequence: image.next_sequence, reason: reason.to_owned() };
    let names = declared_names(image)?;
    if names.slices().len() != image.slices.len() {
        return Err(bad("the image contains slices other than the declared ones"));
    }
    if image.open.len() > OPEN_OPERATIONS_MAX {
        return Err(bad("the image contains more open operations than a log may"));
    }
    let source = LogSource { names: Arc::clone(&names), ..ground };
    let mut slices = Vec::new();
    for (declared, slice) in names.slices().iter().zip(&image.slices) {
        let types = types.and_then(|types| types.slice(&declared.name));
        let items = match slice {
            SliceImage::Held { items, .. } if declared.policy != Policy::Log => {
                SliceItems::Held(rows(items, types)?)
            }
            SliceImage::InLog { len, marks, undone } if declared.policy == Policy::Log => {
                let marks =
                    marks.iter().map(|(place, sequence)| ItemMark { place: *place, sequence: *sequence });
                let tail_max = types.map_or(TAIL_ITEMS, |types| types.tail_items);
                let items = LogItems::from_marks(*len, marks.collect(), undone.clone(), tail_max);
                SliceItems::InLog(with_tail(items, declared.id, &source, types)?)
            }
            _ => return Err(bad("a slice is stored in a form that does not match its policy")),
        };
        slices.push(SliceState {
            policy: declared.policy,
            items,
            decoder: types.map(|types| types.decoder.clone()),
            unread: false,
        });
    }
    let projection = Projection::from_image(names, slices, image, LogSlices::InLog);
    let begun = begun_states(image, &projection, types)?;
    let begins = projection.operations.open().filter(|open| !open.reads_only).map(|open| open.begin);
    if !begins.eq(begun.iter().map(|(begin, _)| *begin)) {
        return Err(bad("the image lacks STATE at the start of its open operations"));
    }
    Ok(LoadedImage { projection, begun })
}

/// Creates a session's outline from an image: names, tags and operations, without items.
///
/// # Errors
///
/// [`Error::Inconsistent`] if the declarations in the image contradict each other.
pub(crate) fn outline(image: &Image<'_>) -> Result<Projection> {
    let names = declared_names(image)?;
    let slices = names.slices().iter().map(|declared| SliceState {
        policy: declared.policy,
        items: SliceItems::Held(SliceTypes::no_rows(None)),
        decoder: None,
        unread: false,
    });
    let slices = slices.collect();
    Ok(Projection::from_image(names, slices, image, LogSlices::Outline))
}

fn declared_names(image: &Image<'_>) -> Result<Arc<DeclaredNames>> {
    let mut names = DeclaredNames::default();
    names.check(image.next_sequence, &image.declared)?;
    names.learn(image.declared.clone());
    Ok(Arc::new(names))
}

fn begun_states(
    image: &Image<'_>,
    projection: &Projection,
    types: Option<&SessionTypes>,
) -> Result<Vec<(SequenceNumber, Arc<FrozenProjection>)>> {
    let bad = || Error::Inconsistent {
        sequence: image.next_sequence,
        reason: "the image names an item at the start of an operation that its slice does not contain"
            .to_owned(),
    };
    let mut states = Vec::new();
    for begun in &image.begun {
        let mut slices = BTreeMap::new();
        for BegunSlice { slice, kept, items, .. } in &begun.slices {
            let declared = projection.names.slice(*slice).filter(|slice| slice.policy == Policy::State);
            let present = match image.slices.get(*slice as usize) {
                Some(SliceImage::Held { items, .. }) => items,
                _ => return Err(bad()),
            };
            let name = &declared.ok_or_else(bad)?.name;
            let types = types.and_then(|types| types.slice(name));
            let kept = usize::try_from(*kept).ok().and_then(|kept| present.get(..kept)).ok_or_else(bad)?;
            let all: Vec<ItemImage<'_>> = kept.iter().chain(items).copied().collect();
            slices.insert(*slice, rows(&all, types)?);
        }
        states.push((begun.begin, Arc::new(projection.state_alone(slices))));
    }
    Ok(states)
}

/// Creates the items of a slice, in their order. Items that a reducer inserted before older ones
/// get their keys again from the items that they precede.
fn rows(items: &[ItemImage<'_>], types: Option<&SliceTypes>) -> Result<Rows> {
    let append = |rows: &mut Rows, item: &ItemImage<'_>| match types {
        Some(types) if item.id.ordinal == 0 => {
            let recorded = RecordedBytes::Elsewhere(item.bytes);
            Ok(types.decoder.append_decoded(rows, item.version, item.id.sequence, recorded)?)
        }
        _ => row(item, types).map(|row| rows.push(row)),
    };
    SliceTypes::no_rows(types).with_unordered(items, |item| item.id, append, |item| row(item, types))
}

fn row(item: &ItemImage<'_>, types: Option<&SliceTypes>) -> Result<SliceRow> {
    let ItemImage { id, version, bytes } = *item;
    let recorded = RecordedBytes::Elsewhere(bytes);
    let item = match types {
        Some(types) => RowItem::Typed(types.decoder.alone(version, id.sequence, recorded)?),
        None => RowItem::Bytes(Arc::from(bytes)),
    };
    Ok(SliceRow { id, version, item })
}

/// Reads the last items of a LOG slice, which its reducers see.
fn with_tail(
    mut items: LogItems,
    slice: u32,
    source: &LogSource,
    types: Option<&SliceTypes>,
) -> Result<LogItems> {
    let mut tail = Rows::default();
    let from = items.len().saturating_sub(items.tail_max as u64);
    source.read(slice, &items, from, None, &mut |_, stored| {
        tail.push(row(&ItemImage { id: stored.id, version: stored.version, bytes: &stored.bytes }, types)?);
        Ok(ControlFlow::Continue(()))
    })?;
    if tail.len() as u64 != items.len() - from {
        let reason = "the log does not contain the items that the image counts".to_owned();
        return Err(Error::Inconsistent { sequence: source.places.next_sequence, reason });
    }
    items.tail = tail;
    Ok(items)
}

#[cfg(test)]
mod tests {
    use foldlog_codec::body::ItemId;

    use super::*;

    #[test]
    fn items_come_back_in_their_order_and_can_be_gone_on_with() {
        let row = |sequence: u64| SliceRow {
            id: ItemId { sequence: sequence.into(), ordinal: 0 },
            version: 1,
            item: RowItem::Bytes(Arc::from([sequence as u8])),
        };
        let anchor = |sequence: u64| ItemId { sequence: sequence.into(), ordinal: 0 };
        let mut before = Rows::default();
        (1..=5).for_each(|sequence| before.push(row(sequence)));
        before.insert_before(anchor(1), vec![row(6), row(7)]);
        before.insert_before(anchor(5), vec![row(8)]);
        before.insert_before(anchor(8), vec![row(9)]);
        before.remove(anchor(1));
        before.remove(anchor(2));
        before.push(row(10));
        before.insert_before(anchor(10), vec![row(11)]);
        let bytes: Vec<(ItemId, u32, Arc<[u8]>)> =
            before.iter().map(|row| (row.id, row.version, Arc::clone(row.bytes().unwrap()))).collect();
        let image = |(id, version, bytes)| ItemImage { id, version, bytes };
        let images: Vec<ItemImage<'_>> =
            bytes.iter().map(|(id, version, bytes)| image((*id, *version, bytes))).collect();
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
