//! One item of a slice, owned ([`SliceRow`]) or borrowed from its collection ([`RowRef`]).

use std::sync::Arc;

use foldlog_codec::body::ItemId;

use super::runs::{AnyRun, Value};
use crate::items::AnyValue;

#[derive(Clone)]
pub(crate) struct SliceRow {
    pub(crate) id: ItemId,
    /// Version at which the item was recorded.
    pub(crate) version: u32,
    pub(crate) item: RowItem,
}

#[derive(Clone)]
pub(crate) enum RowItem {
    /// MessagePack of an item whose type is not known.
    Bytes(Arc<[u8]>),
    /// The host's value. If its MessagePack is needed, which is rare, it is read from the log.
    Typed(AnyValue),
    /// The host's value, at this place of a run.
    InRun(Arc<dyn AnyRun>, usize),
}

impl SliceRow {
    pub(crate) fn borrow(&self) -> RowRef<'_> {
        let item = match &self.item {
            RowItem::Bytes(bytes) => ItemRef::Bytes(bytes),
            RowItem::Typed(value) => ItemRef::Typed(value),
            RowItem::InRun(run, at) => ItemRef::InRun(run.as_ref(), *at),
        };
        RowRef { id: self.id, version: self.version, item }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) id: ItemId,
    /// Version at which the item was recorded.
    pub(crate) version: u32,
    pub(crate) item: ItemRef<'a>,
}

/// Borrows the content of an item; see [`RowItem`].
#[derive(Clone, Copy)]
pub(crate) enum ItemRef<'a> {
    Bytes(&'a Arc<[u8]>),
    Typed(&'a AnyValue),
    InRun(&'a dyn AnyRun, usize),
}

impl<'a> RowRef<'a> {
    pub(crate) fn bytes(&self) -> Option<&'a Arc<[u8]>> {
        match self.item {
            ItemRef::Bytes(bytes) => Some(bytes),
            ItemRef::Typed(_) | ItemRef::InRun(..) => None,
        }
    }

    pub(crate) fn typed_value(&self) -> Option<&'a Value> {
        match self.item {
            ItemRef::Bytes(_) => None,
            ItemRef::Typed(value) => Some(value.as_ref()),
            ItemRef::InRun(run, at) => Some(run.value(at)),
        }
    }

    pub(crate) fn to_row(self) -> SliceRow {
        let item = match self.item {
            ItemRef::Bytes(bytes) => RowItem::Bytes(Arc::clone(bytes)),
            ItemRef::Typed(value) => RowItem::Typed(Arc::clone(value)),
            ItemRef::InRun(run, at) => RowItem::InRun(Arc::from(run.boxed_clone()), at),
        };
        SliceRow { id: self.id, version: self.version, item }
    }
}

impl std::fmt::Debug for SliceRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.borrow().fmt(f)
    }
}

impl std::fmt::Debug for RowRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id.sequence, self.id.ordinal)
    }
}
