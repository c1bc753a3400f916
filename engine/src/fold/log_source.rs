//! Reads the items of slices from their records.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, Payload};
use foldlog_codec::{Record, SequenceNumber};

use super::projection::Projection;
use super::record_kinds::RecordRules;
use crate::error::{Error, Result};
use crate::items::SliceItems;
use crate::items::log_items::{ItemMark, LogItems};
use crate::items::row::RowRef;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::names::DeclaredNames;
use crate::storage::Storage;

/// An item in its recorded form.
#[derive(Clone, Debug)]
pub(crate) struct EncodedItem {
    pub(crate) place: u64,
    pub(crate) id: ItemId,
    pub(crate) version: u32,
    pub(crate) bytes: Arc<[u8]>,
}

/// Distance in records below which two wanted records are read in one walk.
pub(super) const NEAR_RECORDS: u64 = 512;

/// The bytes of items, found in the log, that a projection does not contain.
#[derive(Debug, Default)]
pub(crate) struct RecordedItems {
    found: BTreeMap<(u32, ItemId), Arc<[u8]>>,
}

impl RecordedItems {
    /// Returns the bytes of a slice's item.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if the log's record does not contain the item.
    pub(crate) fn bytes<'a>(&'a self, slice: u32, row: RowRef<'a>) -> Result<&'a Arc<[u8]>> {
        let found = row.bytes().or_else(|| self.found.get(&(slice, row.id)));
        found.ok_or_else(|| Error::Inconsistent {
            sequence: row.id.sequence,
            reason: format!("the record does not contain item {} of slice {slice}", row.id.ordinal),
        })
    }
}

/// Reads items from a log as it was at one moment. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LogSource {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) places: RecordLocator,
    pub(crate) objects: Arc<Objects>,
    pub(crate) names: Arc<DeclaredNames>,
}

impl LogSource {
    /// Passes the items of `slice`, starting at place `from`, to `visit`, until it breaks or the
    /// slice ends. `near` is a mark that is known to be before `from`.
    pub(crate) fn read(
        &self,
        slice: u32,
        items: &LogItems,
        from: u64,
        near: Option<ItemMark>,
        visit: &mut dyn FnMut(ItemMark, EncodedItem) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        if from >= items.len() {
            return Ok(());
        }
        let known = items.mark(from);
        let start =
            near.filter(|near| near.place <= from && known.is_none_or(|mark| mark.place <= near.place));
        let Some(mut at) = start.or(known) else { return Ok(()) };
        self.places.read_until(&self.storage, at.sequence, SequenceNumber::MAX, &mut |record| {
            if items.rolled_back.iter().any(|range| range.contains(&record.sequence)) {
                return Ok(ControlFlow::Continue(()));
            }
            at.sequence = record.sequence;
            let mut place = at.place;
            for (ordinal, payload, version) in self.items_in(&record, slice)? {
                if place >= items.len() {
                    return Ok(ControlFlow::Break(()));
                }
                if place >= from {
                    let id = ItemId { sequence: record.sequence, ordinal };
                    let bytes = Arc::from(self.objects.resolve(Payload::new(&payload))?);
                    if visit(at, EncodedItem { place, id, version, bytes })?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                place += 1;
            }
            at.place = place;
            Ok(if place >= items.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    }

    /// Returns the bytes of those items that a projection contains only as the host's values.
    pub(crate) fn find_recorded_items(&self, projection: &Projection) -> Result<RecordedItems> {
        let mut wanted = Vec::new();
        for (slice, items) in (0..).zip(projection.slices()) {
            if let SliceItems::Held(rows) = items {
                let unknown = rows.iter().filter(|row| row.bytes().is_none());
                wanted.extend(unknown.map(|row| (row.id, slice)));
            }
        }
        self.recorded(wanted)
    }

    /// Returns the bytes of those of `rows` that exist only as the host's values. All rows belong
    /// to one slice.
    pub(crate) fn recorded_of(&self, slice: u32, rows: &[RowRef<'_>]) -> Result<RecordedItems> {
        let unknown = rows.iter().filter(|row| row.bytes().is_none());
        self.recorded(unknown.map(|row| (row.id, slice)).collect())
    }

    fn recorded(&self, wanted: Vec<(ItemId, u32)>) -> Result<RecordedItems> {
        let mut recorded = RecordedItems::default();
        self.find(wanted, &mut |slice, id, payload| {
            recorded.found.insert((slice, id), Arc::from(self.objects.resolve(payload)?));
            Ok(())
        })?;
        Ok(recorded)
    }

    /// Returns the total recorded length of these items in bytes, without reading the ones that are
    /// objects.
    pub(crate) fn len_of(&self, wanted: Vec<(ItemId, u32)>) -> Result<u64> {
        let mut bytes = 0;
        self.find(wanted, &mut |_, _, payload| {
            bytes += payload.object().map_or(payload.bytes().len() as u64, |object| object.len);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Passes the payloads of items to `visit`, in the order of their records.
    fn find(
        &self,
        mut wanted: Vec<(ItemId, u32)>,
        visit: &mut dyn FnMut(u32, ItemId, Payload<'_>) -> Result<()>,
    ) -> Result<()> {
        wanted.sort_unstable_by_key(|(id, slice)| (id.sequence, *slice, id.ordinal));
        let near =
            |one: &(ItemId, u32), next: &(ItemId, u32)| next.0.sequence - one.0.sequence < NEAR_RECORDS;
        for run in wanted.chunk_by(near) {
            let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
            let mut rest = run;
            self.places.read(&self.storage, first.sequence, last.sequence, &mut |record| {
                if rest.first().is_none_or(|(id, _)| id.sequence > record.sequence) {
                    return Ok(());
                }
                let of_record = rest.partition_point(|(id, _)| id.sequence <= record.sequence);
                let (now, later) = rest.split_at(of_record.min(rest.len()));
                rest = later;
                for items in now.chunk_by(|one, next| one.1 == next.1) {
                    let Some((_, slice)) = items.first() else { continue };
                    for (ordinal, payload, _) in self.items_in(&record, *slice)? {
                        let id = ItemId { sequence: record.sequence, ordinal };
                        if items.binary_search_by_key(&ordinal, |(id, _)| id.ordinal).is_ok() {
                            visit(*slice, id, Payload::new(&payload))?;
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the items that a record added to a slice.
    pub(super) fn items_in<'a>(&self, record: &Record<'a>, slice: u32) -> Result<Vec<AddedItem<'a>>> {
        (RecordRules::of(record.kind).added_items)(record, slice, &self.names)
    }
}

/// An item that a record adds: its ordinal, its payload's bytes, its version.
pub(super) type AddedItem<'a> = (u32, Cow<'a, [u8]>, u32);
