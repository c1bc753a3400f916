use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{AddedItems, BuiltIn, Effect, ItemId, Payload, RemovedItems};
use serde::Serialize;

use super::{Event, Slice, encode};
use crate::error::{Error, Result, panic_message};
use crate::generator::Generator;
use crate::items::index::KeyFn;
use crate::items::row::{ItemRef, RowRef};
use crate::items::rows::Rows;
use crate::items::runs::{self, ValueRun};
use crate::items::{AnyValue, SliceItems};

/// An immutable view of the items of a slice at one moment. It does not change while the session
/// continues.
pub struct View<T> {
    rows: Rows,
    len: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        View { rows: self.rows.clone(), len: self.len, of: PhantomData }
    }
}

impl<T> fmt::Debug for View<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("len", &self.len).finish()
    }
}

impl<T: Send + Sync + 'static> View<T> {
    /// Creates a view of rows. All values must be of type `T`.
    pub(crate) fn new(rows: Rows) -> View<T> {
        let len = rows.len() as u64;
        View { rows, len, of: PhantomData }
    }

    /// Creates the view for a LOG slice's reducer: the slice's length and its last items.
    pub(crate) fn tail(rows: Rows, len: u64) -> View<T> {
        View { rows, len, of: PhantomData }
    }

    /// Returns the number of items in the slice. For the reducer of a LOG slice,
    /// [`iter`](View::iter) yields fewer.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the slice has no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the items, in the slice's order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.rows.iter().filter_map(downcast_row)
    }

    /// Returns handles of the items, in the slice's order. A handle outlives the view and can be
    /// used in [`SliceOp::Replace`].
    pub fn items(&self) -> impl DoubleEndedIterator<Item = Item<T>> {
        self.rows.iter().filter_map(handle)
    }

    /// Returns the last item.
    pub fn latest(&self) -> Option<&T> {
        self.rows.last().and_then(downcast_row)
    }

    /// Returns the item with this key, the last one if there are several; `None` if there is none.
    /// The slice must be declared with [`keyed_by`](super::SessionTypesBuilder::keyed_by) or
    /// [`upsert_by`](super::SessionTypesBuilder::upsert_by), with keys of type `K`. Takes
    /// logarithmic time in the slice's length.
    ///
    /// # Errors
    ///
    /// [`Error::NotKeyed`] if the slice has no keys of this type, or its key function panicked.
    pub fn find<K: 'static>(&self, key: &K) -> Result<Option<&T>> {
        let id = self.rows.with_key(key).ok_or(Error::NotKeyed { key: std::any::type_name::<K>() })?;
        Ok(id.and_then(|id| downcast_row(self.rows.indexed_row(id)?)))
    }

    /// Returns the item at `place`, counted from 0. For the reducer of a LOG slice, counts from the
    /// first item that it sees. Takes logarithmic time in the slice's length.
    pub fn get(&self, place: usize) -> Option<&T> {
        self.rows.nth(place).and_then(downcast_row)
    }
}

pub(super) fn downcast_row<T: 'static>(row: RowRef<'_>) -> Option<&T> {
    row.typed_value()?.downcast_ref()
}

fn handle<T: Send + Sync + 'static>(row: RowRef<'_>) -> Option<Item<T>> {
    let value = match row.item {
        ItemRef::Bytes(_) => return None,
        ItemRef::Typed(value) => Handle::Alone(Arc::clone(value).downcast().ok()?),
        ItemRef::InRun(run, at) => Handle::InRun(runs::of_type(run)?, at),
    };
    Some(Item { id: Some(row.id), value })
}

/// A handle of an item of a slice, or a new item created with [`From`].
///
/// A handle of a small item may keep in memory up to 64 items that were dispatched consecutively.
pub struct Item<T> {
    id: Option<ItemId>,
    value: Handle<T>,
}

/// A value, or its place in a run.
enum Handle<T> {
    Alone(Arc<T>),
    InRun(triomphe::Arc<ValueRun<T>>, usize),
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        match self {
            Handle::Alone(value) => Handle::Alone(Arc::clone(value)),
            Handle::InRun(run, at) => Handle::InRun(triomphe::Arc::clone(run), *at),
        }
    }
}

impl<T> Item<T> {
    /// Creates a handle of an existing item of the slice.
    pub(crate) fn from_value(id: ItemId, value: Arc<T>) -> Item<T> {
        Item { id: Some(id), value: Handle::Alone(value) }
    }

    /// Returns the sequence number of the record that inserted the item, and the item's place among
    /// the items of this record. Returns `None` for a new item.
    pub fn position(&self) -> Option<(SequenceNumber, u32)> {
        self.id.map(|id| (id.sequence, id.ordinal))
    }
}

impl<T> Clone for Item<T> {
    fn clone(&self) -> Self {
        Item { id: self.id, value: self.value.clone() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Item<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl<T> Deref for Item<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Handle::Alone(value) => value,
            Handle::InRun(run, at) => run.value(*at),
        }
    }
}

impl<T> From<T> for Item<T> {
    fn from(value: T) -> Item<T> {
        Item { id: None, value: Handle::Alone(Arc::new(value)) }
    }
}

/// Describes a reducer's change to its slice.
pub enum SliceOp<T> {
    /// Appends one item.
    Append(T),
    /// Appends items. An empty list leaves the slice unchanged.
    Extend(Vec<T>),
    /// Replaces all items by these, in this order. An item counts as present if it is a handle of
    /// the view or has an equal recording. Present items at the head and the tail are retained;
    /// only the change between them is recorded.
    Replace(Vec<Item<T>>),
    /// Removes the items with an equal key, and appends this one. The slice must be declared with
    /// [`keyed_by`](super::SessionTypesBuilder::keyed_by) or
    /// [`upsert_by`](super::SessionTypesBuilder::upsert_by).
    Upsert(T),
    /// Removes items.
    Clear(Clear<T>),
}

impl<T> SliceOp<T> {
    /// Leaves the slice unchanged.
    pub fn nothing() -> SliceOp<T> {
        SliceOp::Extend(Vec::new())
    }
}

impl<T> fmt::Debug for SliceOp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SliceOp::Append(_) => "Append",
            SliceOp::Extend(_) => "Extend",
            SliceOp::Replace(_) => "Replace",
            SliceOp::Upsert(_) => "Upsert",
            SliceOp::Clear(_) => "Clear",
        })
    }
}

/// Selects the items to remove.
pub enum Clear<T> {
    /// All items.
    All,
    /// The items for which the predicate returns `true`. It is called when the event is dispatched,
    /// and never again: the record contains its results.
    Where(Box<dyn Fn(&T) -> bool>),
}

/// Gives a reducer its inputs other than its slice and the event.
#[derive(Debug)]
pub struct ReducerContext {
    pub(crate) seed: u64,
    pub(crate) sequence: SequenceNumber,
    pub(crate) time_us: i64,
}

impl ReducerContext {
    /// Returns the time of the record, in microseconds since 1970-01-01 UTC.
    pub fn time_us(&self) -> i64 {
        self.time_us
    }

    /// Returns the sequence number that the record will have.
    pub fn sequence(&self) -> SequenceNumber {
        self.sequence
    }

    /// Returns a random generator. It depends only on the session's seed and the record's sequence
    /// number, so a replay draws the same numbers.
    pub fn generator(&self) -> Generator {
        Generator::for_record(self.seed, self.sequence)
    }
}

pub(crate) struct ReduceCall<'a> {
    pub(crate) items: &'a SliceItems,
    pub(crate) tail_items: usize,
    pub(crate) item_version: u32,
    pub(crate) event: &'a AnyValue,
    pub(crate) context: &'a ReducerContext,
}

impl ReduceCall<'_> {
    /// Calls a reducer with a view of the slice, and resolves the returned change.
    pub(super) fn resolve<T: Send + Sync + 'static>(
        &self,
        coding: &ItemCoding<'_, T>,
        reducer: impl FnOnce(&View<T>) -> Result<SliceOp<T>, String>,
    ) -> Result<SliceEffect, ReduceError> {
        let (rows, view) = match self.items {
            SliceItems::Held(rows) => (rows, View::new(rows.clone())),
            SliceItems::InLog(items) => {
                let tail = items.tail.tail(self.tail_items);
                (&items.tail, View::tail(tail, items.len()))
            }
        };
        let log = matches!(self.items, SliceItems::InLog(_));
        let op = reducer(&view).map_err(ReduceError::Refused)?;
        let refused = |operation| {
            Err(ReduceError::Engine(Error::LogOnlyGrows { slice: coding.name.to_owned(), operation }))
        };
        match &op {
            SliceOp::Replace(_) if log => return refused("Replace"),
            SliceOp::Upsert(_) if log => return refused("Upsert"),
            SliceOp::Clear(_) if log => return refused("Clear"),
            _ => {}
        }
        resolve_op(rows, op, self.item_version, coding).map_err(ReduceError::Engine)
    }
}

/// Runs a reducer and resolves its result, with types erased.
pub(super) type Reducer = dyn Fn(&ReduceCall<'_>) -> Result<SliceEffect, ReduceError> + Send + Sync;

/// Reports why a reducer returned no result.
pub(crate) enum ReduceError {
    /// The reducer refused the event, with this reason.
    Refused(String),
    /// The engine could not resolve the reducer's [`SliceOp`](crate::SliceOp).
    Engine(Error),
}

#[derive(Clone)]
pub(crate) struct Reduce {
    pub(crate) built_in: BuiltIn,
    /// Name of the reducer's kind; two declarations are compared by it.
    pub(super) form: &'static str,
    pub(crate) run: Arc<Reducer>,
}

impl Reduce {
    /// Calls the reducer of `event` and `slice`, and resolves its result. A panic becomes an error.
    pub(crate) fn call(&self, event: &str, slice: &str, call: &ReduceCall<'_>) -> Result<SliceEffect> {
        let names = || (event.to_owned(), slice.to_owned());
        match catch_unwind(AssertUnwindSafe(|| (self.run)(call))) {
            Ok(Ok(resolved)) => Ok(resolved),
            Ok(Err(ReduceError::Refused(reason))) => {
                let (event, slice) = names();
                Err(Error::Refused { slice, event, reason })
            }
            Ok(Err(ReduceError::Engine(error))) => Err(error),
            Err(panic) => {
                let (event, slice) = names();
                Err(Error::ReducerPanicked { slice, event, message: panic_message(&*panic) })
            }
        }
    }
}

#[derive(Clone)]
pub(crate) struct NewItem {
    pub(crate) bytes: Vec<u8>,
    pub(crate) typed: Option<AnyValue>,
}

/// The items that an effect adds, before they have ids.
#[derive(Clone)]
pub(crate) enum NewItems {
    Event,
    Items { items: Vec<NewItem>, version: u32 },
}

/// The effect of an event on one slice, resolved against the slice's present items. Nothing is
/// changed yet.
#[derive(Clone)]
pub(crate) struct SliceEffect {
    pub(crate) removed: RemovedItems,
    pub(crate) added: NewItems,
    pub(crate) before: Option<ItemId>,
}

impl SliceEffect {
    pub(crate) fn append() -> SliceEffect {
        SliceEffect { removed: RemovedItems::None, added: NewItems::Event, before: None }
    }

    pub(crate) fn replace() -> SliceEffect {
        SliceEffect { removed: RemovedItems::All, ..SliceEffect::append() }
    }

    pub(crate) fn items(items: Vec<NewItem>, version: u32) -> SliceEffect {
        SliceEffect { added: NewItems::Items { items, version }, ..SliceEffect::append() }
    }

    /// Returns the effect that replaces all present items by these.
    pub(crate) fn seed(present: &Rows, items: Vec<NewItem>, version: u32) -> SliceEffect {
        let removed = if present.is_empty() { RemovedItems::None } else { RemovedItems::All };
        SliceEffect { removed, ..SliceEffect::items(items, version) }
    }

    /// Returns the effect in its recorded form. `slice` is the id of the slice.
    pub(crate) fn to_record(&self, slice: u32) -> Effect<'_> {
        let added = match &self.added {
            NewItems::Event => AddedItems::Event,
            NewItems::Items { items, version } => AddedItems::Items {
                items: items.iter().map(|item| Payload::new(&item.bytes)).collect(),
                version: *version,
            },
        };
        Effect { slice, removed: self.removed.clone(), added, before: self.before }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.removed == RemovedItems::None
            && matches!(&self.added, NewItems::Items { items, .. } if items.is_empty())
    }
}

/// The recording of a slice's items: the name in errors, and the encoding.
pub(crate) struct ItemCoding<'a, T> {
    pub(crate) name: &'a str,
    pub(crate) encode: fn(&str, &T) -> Result<Vec<u8>>,
}

impl<T: Serialize> ItemCoding<'static, T> {
    pub(crate) fn for_slice<S: Slice<Item = T>>() -> ItemCoding<'static, T> {
        ItemCoding { name: S::NAME, encode: encode::<T> }
    }
}

impl<T: Send + Sync + 'static> ItemCoding<'_, T> {
    fn bytes(&self, item: &T) -> Result<Vec<u8>> {
        (self.encode)(self.name, item)
    }

    fn new_item(&self, item: &Item<T>) -> Result<NewItem> {
        let bytes = self.bytes(item)?;
        let typed = match &item.value {
            Handle::Alone(value) => Some(Arc::clone(value) as AnyValue),
            // An item of a run cannot be in two slots, so it is decoded again.
            Handle::InRun(..) => None,
        };
        Ok(NewItem { bytes, typed })
    }
}

/// Resolves a reducer's [`SliceOp`] against the slice's present items.
pub(crate) fn resolve_op<T: Send + Sync + 'static>(
    rows: &Rows,
    op: SliceOp<T>,
    version: u32,
    coding: &ItemCoding<'_, T>,
) -> Result<SliceEffect> {
    let none = |removed: RemovedItems| SliceEffect { removed, ..SliceEffect::items(Vec::new(), version) };
    Ok(match op {
        SliceOp::Append(item) => SliceEffect::items(vec![coding.new_item(&Item::from(item))?], version),
        SliceOp::Extend(items) => {
            let items: Result<Vec<NewItem>> =
                items.into_iter().map(|item| coding.new_item(&Item::from(item))).collect();
            SliceEffect::items(items?, version)
        }
        SliceOp::Upsert(item) => {
            let bytes = coding.bytes(&item)?;
            let typed: AnyValue = Arc::new(item);
            let ids = rows.alike(&typed).ok_or_else(|| Error::NoSuchSlice {
                slice: coding.name.to_owned(),
                reason: "it has no keys to upsert by: declare it with `keyed_by`",
            })?;
            let item = NewItem { bytes, typed: Some(typed) };
            SliceEffect { removed: removed_items(ids), ..SliceEffect::items(vec![item], version) }
        }
        SliceOp::Clear(Clear::All) if rows.is_empty() => none(RemovedItems::None),
        SliceOp::Clear(Clear::All) => none(RemovedItems::All),
        SliceOp::Clear(Clear::Where(predicate)) => {
            let ids: Vec<ItemId> = rows
                .iter()
                .filter(|row| downcast_row::<T>(*row).is_some_and(&predicate))
                .map(|row| row.id)
                .collect();
            none(removed_items(ids))
        }
        SliceOp::Replace(items) => replace(rows, items, version, coding)?,
    })
}

pub(super) fn removed_items(ids: Vec<ItemId>) -> RemovedItems {
    if ids.is_empty() { RemovedItems::None } else { RemovedItems::Items(ids) }
}

/// Resolves a replacement. It retains the common head and tail, so that a change of one item in a
/// long slice is a short record.
fn replace<T: Send + Sync + 'static>(
    rows: &Rows,
    wanted: Vec<Item<T>>,
    version: u32,
    coding: &ItemCoding<'_, T>,
) -> Result<SliceEffect> {
    let mut encoded: Vec<Option<NewItem>> = vec![None; wanted.len()];
    let mut same = |place: usize, row: RowRef<'_>| -> Result<bool> {
        let (Some(item), Some(slot)) = (wanted.get(place), encoded.get_mut(place)) else { return Ok(false) };
        if item.id == Some(row.id) {
            return Ok(true);
        }
        if slot.is_none() {
            *slot = Some(coding.new_item(item)?);
        }
        let Some(slot) = slot else { return Ok(false) };
        match (row.bytes().filter(|_| row.version == version), downcast_row::<T>(row)) {
            (Some(bytes), _) => Ok(**bytes == *slot.bytes),
            // An item of an older version is compared in its present form.
            (None, Some(value)) => Ok(*coding.bytes(value)? == *slot.bytes),
            (None, None) => Ok(false),
        }
    };
    let (old_len, new_len) = (rows.len(), wanted.len());
    let mut head = 0;
    for row in rows.iter().take(new_len) {
        if !same(head, row)? {
            break;
        }
        head += 1;
    }
    let mut tail = 0;
    let mut anchor = None;
    for row in rows.iter().rev().take((old_len - head).min(new_len - head)) {
        if !same(new_len - 1 - tail, row)? {
            break;
        }
        tail += 1;
        anchor = Some(row.id);
    }
    let removed: Vec<ItemId> = rows.iter().skip(head).take(old_len - head - tail).map(|row| row.id).collect();
    let mut items = Vec::new();
    let between = wanted.into_iter().zip(encoded).skip(head).take(new_len - head - tail);
    for (item, encoded) in between {
        items.push(match encoded {
            Some(encoded) => encoded,
            None => coding.new_item(&item)?,
        });
    }
    let removed = match removed.len() {
        0 => RemovedItems::None,
        len if len == old_len => RemovedItems::All,
        _ => RemovedItems::Items(removed),
    };
    let before = anchor.filter(|_| !items.is_empty());
    Ok(SliceEffect { removed, before, ..SliceEffect::items(items, version) })
}

/// Resolves an `upsert_by`: removes the items with an equal key, and appends the event.
pub(crate) fn resolve_upsert<E: Event, K: PartialEq>(
    rows: &Rows,
    event: &AnyValue,
    key_of: &KeyFn<E, K>,
) -> Result<SliceEffect> {
    let ids = match rows.alike(event) {
        Some(ids) => ids,
        None => {
            let wanted = key_of(downcast::<E>(event)?);
            let alike = |row: &RowRef<'_>| downcast_row::<E>(*row).is_some_and(|item| key_of(item) == wanted);
            rows.iter().filter(alike).map(|row| row.id).collect()
        }
    };
    Ok(SliceEffect { removed: removed_items(ids), ..SliceEffect::append() })
}

pub(crate) fn downcast<E: Event>(event: &AnyValue) -> Result<&E> {
    event.downcast_ref().ok_or_else(|| Error::NoSuchSlice {
        slice: E::NAME.to_owned(),
        reason: "two Rust types claim this event's name",
    })
}

/// Encodes the items of a seed, which may be of any serializable type.
pub(crate) fn new_items<T: Serialize + Send + Sync + 'static>(
    name: &str,
    items: Vec<T>,
) -> Result<Vec<NewItem>> {
    items
        .into_iter()
        .map(|item| {
            let bytes = encode(name, &item)?;
            Ok(NewItem { bytes, typed: Some(Arc::new(item)) })
        })
        .collect()
}
