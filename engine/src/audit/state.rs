//! Slices at one position, read item by item.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use foldlog_codec::body::{ItemId, Policy};
use foldlog_codec::{OperationId, SequenceNumber};

use crate::error::Result;
use crate::fold::log_source::LogSource;
use crate::fold::projection::Projection;
use crate::items::row::RowRef;
use crate::items::rows::Rows;
use crate::session::{SliceState, State, StoredItem};

/// All slices at one position. What the items say stays in the log until it is read, so that this takes a few bytes for
/// each item, however large it is. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StateReader {
    projection: Projection,
    source: LogSource,
}

/// An item, by the record that inserted it. In one log, two items of one name are the same item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemName {
    /// The sequence number of the record that inserted it.
    pub sequence: SequenceNumber,
    /// Its place among the items that the record inserted into the slice.
    pub ordinal: u32,
    /// The version that it was recorded at.
    pub version: u32,
}

impl ItemName {
    fn of(row: &RowRef<'_>) -> ItemName {
        ItemName { sequence: row.id.sequence, ordinal: row.id.ordinal, version: row.version }
    }

    fn id(self) -> ItemId {
        ItemId { sequence: self.sequence, ordinal: self.ordinal }
    }
}

/// One slice of a [`StateReader`].
#[derive(Clone, Copy, Debug)]
pub struct SliceReader<'a> {
    name: &'a str,
    policy: Policy,
    item: &'a str,
    id: u32,
    rows: &'a Rows,
    source: &'a LogSource,
}

impl StateReader {
    pub(super) fn new(projection: Projection, source: LogSource) -> StateReader {
        StateReader { projection, source }
    }

    pub(super) fn projection(&self) -> &Projection {
        &self.projection
    }

    /// The position: the sequence number of the last record that counts; `None` before the first.
    pub fn position(&self) -> Option<SequenceNumber> {
        self.projection.next_sequence().checked_sub(1)
    }

    /// The session's tags.
    pub fn tags(&self) -> &BTreeMap<String, String> {
        &self.projection.tags
    }

    /// The operations that were open there: see [`State::open_operations`].
    pub fn open_operations(&self) -> Vec<OperationId> {
        self.projection.operations.open().map(|open| open.operation).collect()
    }

    /// The slices in the order of their names, empty ones included.
    pub fn slices(&self) -> impl Iterator<Item = SliceReader<'_>> {
        let names = &self.projection.names;
        let by_name: BTreeMap<&str, u32> =
            names.slices().iter().map(|slice| (slice.name.as_str(), slice.id)).collect();
        by_name.into_values().filter_map(|id| self.slice_of(id))
    }

    /// The slice of that name.
    pub fn slice(&self, name: &str) -> Option<SliceReader<'_>> {
        self.slice_of(self.projection.names.slice_named(name)?.id)
    }

    /// The slice that the log declared under that number.
    pub fn slice_of(&self, id: u32) -> Option<SliceReader<'_>> {
        let declared = self.projection.names.slice(id)?;
        let (policy, items) = self.projection.items(id)?;
        let (name, item) = (declared.name.as_str(), declared.item.as_str());
        Some(SliceReader { name, policy, item, id, rows: items.held(), source: &self.source })
    }

    /// All slices with all that their items say, in memory. Items that name one object share it.
    ///
    /// # Errors
    ///
    /// What reading says.
    pub fn to_state(&self) -> Result<State> {
        self.to_state_of(|_, _| true)
    }

    /// Returns the slices with the bytes of those items for which `wanted` holds; the other items are there without bytes.
    ///
    /// # Errors
    ///
    /// What reading says.
    pub fn to_state_of(&self, wanted: impl Fn(&SliceReader<'_>, ItemName) -> bool) -> Result<State> {
        let mut slices = BTreeMap::new();
        for slice in self.slices() {
            let item = |name: ItemName, bytes| StoredItem {
                sequence: name.sequence,
                ordinal: name.ordinal,
                version: name.version,
                bytes,
            };
            let nothing = std::sync::Arc::from([]);
            let names = || slice.names().enumerate().filter(|(_, name)| wanted(&slice, *name));
            let mut items: Vec<StoredItem> =
                slice.names().map(|name| item(name, std::sync::Arc::clone(&nothing))).collect();
            let mut places = names().map(|(place, _)| place);
            let read = names().map(|(_, name)| (name.id(), name.version));
            self.source.read_shared_items(slice.id, read, &mut |bytes| {
                if let Some(item) = places.next().and_then(|place| items.get_mut(place)) {
                    item.bytes = bytes;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            let state = SliceState { policy: slice.policy, item: slice.item.to_owned(), items };
            slices.insert(slice.name.to_owned(), state);
        }
        Ok(State {
            position: self.position(),
            tags: self.tags().clone(),
            open_operations: self.open_operations(),
            slices,
        })
    }

    /// Computes the digest that [`State::digest`] computes, with one item in memory at a time.
    ///
    /// # Errors
    ///
    /// What reading says.
    pub fn digest(&self) -> Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        for slice in self.slices().filter(|slice| !slice.is_empty()) {
            State::begin_slice(&mut hasher, slice.name, slice.policy, slice.len());
            slice.read(|name, bytes| {
                State::digest_item(&mut hasher, name.version, bytes);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

impl<'a> SliceReader<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The number under which the log declared it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What becomes of it on rollback.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The name of its items' type.
    pub fn item(&self) -> &'a str {
        self.item
    }

    /// How many items it holds.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The names of its items, in their order.
    pub fn names(&self) -> impl Iterator<Item = ItemName> + use<'a> {
        self.rows.iter().map(|row| ItemName::of(&row))
    }

    /// Whether it holds the item that the record `sequence` inserted in that place.
    pub fn contains(&self, sequence: impl Into<SequenceNumber>, ordinal: u32) -> bool {
        let sequence = sequence.into();
        self.rows.contains(ItemId { sequence, ordinal })
    }

    /// Hands each item's name and MessagePack to `visit`, in order, for as long as it wants more.
    ///
    /// # Errors
    ///
    /// What reading says, or what `visit` says.
    pub fn read(&self, visit: impl FnMut(ItemName, &[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        self.read_these(self.names(), visit)
    }

    /// Reads the named items as [`read`](SliceReader::read) reads all.
    ///
    /// # Errors
    ///
    /// As [`read`](SliceReader::read); [`Error::Inconsistent`](crate::Error::Inconsistent) where there is no such item.
    pub fn read_these(
        &self,
        names: impl Iterator<Item = ItemName>,
        mut visit: impl FnMut(ItemName, &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let names = names.map(|name| (name.id(), name.version));
        self.source.read_items(self.id, names, &mut |id, version, bytes| {
            visit(ItemName { sequence: id.sequence, ordinal: id.ordinal, version }, bytes)
        })
    }
}
