//! One item: as it is held, and as it is looked at wherever it stands.

use std::sync::Arc;

use foldlog_codec::body::ItemId;

use super::runs::{AnyRun, Value};
use crate::items::AnyValue;

/// One item.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) id: ItemId,
    /// The version that the bytes were recorded at.
    pub(crate) version: u32,
    pub(crate) item: RowItem,
}

/// What is held of an item.
#[derive(Clone)]
pub(crate) enum RowItem {
    /// Its own MessagePack, where its type is not known.
    Bytes(Arc<[u8]>),
    /// The host's value. Its MessagePack is read from the log when it is asked for, which is seldom.
    Typed(AnyValue),
    /// The same, at a place of a run.
    InRun(Arc<dyn AnyRun>, usize),
}

impl Row {
    pub(crate) fn borrow(&self) -> RowRef<'_> {
        let item = match &self.item {
            RowItem::Bytes(bytes) => ItemRef::Bytes(bytes),
            RowItem::Typed(value) => ItemRef::Typed(value),
            RowItem::InRun(run, at) => ItemRef::InRun(run.as_ref(), *at),
        };
        RowRef { id: self.id, version: self.version, item }
    }
}

/// One item, wherever it stands.
#[derive(Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) id: ItemId,
    /// The version that the bytes were recorded at.
    pub(crate) version: u32,
    pub(crate) item: ItemRef<'a>,
}

/// What is held of an item; see [`RowItem`].
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

    pub(crate) fn typed(&self) -> Option<&'a Value> {
        match self.item {
            ItemRef::Bytes(_) => None,
            ItemRef::Typed(value) => Some(value.as_ref()),
            ItemRef::InRun(run, at) => Some(run.value(at)),
        }
    }

    pub(crate) fn to_row(self) -> Row {
        let item = match self.item {
            ItemRef::Bytes(bytes) => RowItem::Bytes(Arc::clone(bytes)),
            ItemRef::Typed(value) => RowItem::Typed(Arc::clone(value)),
            ItemRef::InRun(run, at) => RowItem::InRun(Arc::from(run.again()), at),
        };
        Row { id: self.id, version: self.version, item }
    }
}

impl std::fmt::Debug for RowRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id.sequence, self.id.ordinal)
    }
}
