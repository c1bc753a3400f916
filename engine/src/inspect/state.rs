//! Slices at one position, read item by item.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, Policy};
use foldlog_codec::{OperationId, SequenceNumber};

use crate::error::{Error, Result};
use crate::fold::log_source::LogSource;
use crate::fold::projection::Projection;
use crate::items::row::RowRef;
use crate::items::rows::Rows;
use crate::session::{SliceState, State, StoredItem};
use crate::types::{RecordedBytes, SessionTypes, Slice};

/// Reads the slices at one position. The items' bytes stay in the log until they are read, so a
/// reader needs only a few bytes for each item, regardless of its size. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct StateReader {
    pub(crate) projection: Projection,
    pub(crate) source: LogSource,
    /// Directory of the log, and the memory limit of readers, in bytes.
    pub(crate) limit: Option<(Arc<Path>, u64)>,
}

/// Names an item by the record that inserted it. The name is unique within one log and slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemName {
    /// Sequence number of the record that inserted the item.
    pub sequence: SequenceNumber,
    /// Index of the item among the items that the record inserted into the slice, from 0.
    pub ordinal: u32,
    /// Version at which the item was recorded.
    pub version: u32,
}

impl ItemName {
    pub(super) fn from_row(row: &RowRef<'_>) -> ItemName {
        ItemName { sequence: row.id.sequence, ordinal: row.id.ordinal, version: row.version }
    }

    fn id(self) -> ItemId {
        ItemId { sequence: self.sequence, ordinal: self.ordinal }
    }
}

/// Reads one slice of a [`StateReader`].
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
    pub(super) fn limit(&self) -> Option<(&Path, u64)> {
        self.limit.as_ref().map(|(dir, budget)| (&**dir, *budget))
    }

    /// Returns the position: the sequence number of the last record that was folded. `None` before
    /// the first.
    pub fn position(&self) -> Option<SequenceNumber> {
        self.projection.next_sequence().checked_sub(1)
    }

    /// Returns the session's tags at the position.
    pub fn tags(&self) -> &BTreeMap<String, String> {
        &self.projection.tags
    }

    /// Returns the operations that were open at the position; see [`State::open_operations`].
    pub fn open_operations(&self) -> Vec<OperationId> {
        self.projection.operations.open().map(|open| open.operation).collect()
    }

    /// Returns the slices in the order of their names, including empty ones.
    pub fn slices(&self) -> impl Iterator<Item = SliceReader<'_>> {
        let names = &self.projection.names;
        let by_name: BTreeMap<&str, u32> =
            names.slices().iter().map(|slice| (slice.name.as_str(), slice.id)).collect();
        by_name.into_values().filter_map(|id| self.slice_of(id))
    }

    /// Returns the slice named `name`.
    pub fn slice(&self, name: &str) -> Option<SliceReader<'_>> {
        self.slice_of(self.projection.names.slice_named(name)?.id)
    }

    /// Returns the slice that the log declared with this id.
    pub fn slice_of(&self, id: u32) -> Option<SliceReader<'_>> {
        let declared = self.projection.names.slice(id)?;
        let (policy, items) = self.projection.items(id)?;
        let (name, item) = (declared.name.as_str(), declared.item.as_str());
        Some(SliceReader { name, policy, item, id, rows: items.rows_in_memory(), source: &self.source })
    }

    /// Reads the items of a slice as the host's type, in the slice's order. Items of an older
    /// version are upgraded. A slice that the log does not know has no items.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if `types` do not declare the slice, [`Error::Decode`] if an item
    /// cannot be read, [`Error::Io`] if a segment can no longer be read, [`Error::Object`] if an
    /// object is missing or damaged.
    pub fn items<S: Slice>(&self, types: &SessionTypes) -> Result<Vec<Arc<S::Item>>> {
        let refused = |reason| Error::NoSuchSlice { slice: S::NAME.to_owned(), reason };
        let types = types.slice(S::NAME).ok_or_else(|| refused("the types do not declare it"))?;
        let Some(slice) = self.slice(S::NAME) else { return Ok(Vec::new()) };
        let mut items = Vec::with_capacity(slice.len());
        slice.read(|name, bytes| {
            let item = types.decoder.alone(name.version, name.sequence, RecordedBytes::Elsewhere(bytes))?;
            items.push(item.downcast().map_err(|_| refused("its items are of another type"))?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(items)
    }

    /// Reads all slices with all their items into memory. Items that name one object share its
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if a segment can no longer be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged.
    pub fn to_state(&self) -> Result<State> {
        let mut slices = BTreeMap::new();
        for slice in self.slices() {
            let mut items = Vec::with_capacity(slice.len());
            let mut names = slice.names();
            slice.read_shared(slice.names(), |bytes| {
                if let Some(ItemName { sequence, ordinal, version }) = names.next() {
                    items.push(StoredItem { sequence, ordinal, version, bytes });
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

    /// Computes the same digest as [`State::digest`], with one item in memory at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if a segment can no longer be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged.
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
    /// Returns the name of the slice.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the id with which the log declared the slice.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the slice's policy, which determines the effect of a rollback on it.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the name of the items' type.
    pub fn item(&self) -> &'a str {
        self.item
    }

    /// Returns the number of items in the slice.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether the slice has no items.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the names of the items in the slice's order.
    pub fn names(&self) -> impl Iterator<Item = ItemName> + use<'a> {
        self.rows.iter().map(|row| ItemName::from_row(&row))
    }

    /// Returns whether the slice contains the item number `ordinal` that the record `sequence`
    /// inserted.
    pub fn contains(&self, sequence: impl Into<SequenceNumber>, ordinal: u32) -> bool {
        let sequence = sequence.into();
        self.rows.contains(ItemId { sequence, ordinal })
    }

    /// Passes the shared MessagePack bytes of each named item to `visit`, in the order of `names`,
    /// until it breaks.
    pub(super) fn read_shared(
        &self,
        names: impl Iterator<Item = ItemName>,
        mut visit: impl FnMut(Arc<[u8]>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let names = names.map(|name| (name.id(), name.version));
        self.source.read_shared_items(self.id, names, &mut visit)
    }

    /// Passes the name and the MessagePack of each item to `visit`, in order, until it breaks.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if a segment can no longer be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged; the error of
    /// `visit`.
    pub fn read(&self, visit: impl FnMut(ItemName, &[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        self.read_these(self.names(), visit)
    }

    /// Passes the name and the MessagePack of each named item to `visit`, in the order of `names`,
    /// until it breaks.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`](crate::Error::Inconsistent) if a record does not contain a named
    /// item, [`Error::Io`](crate::Error::Io) if a segment can no longer be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged; the error of
    /// `visit`.
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
