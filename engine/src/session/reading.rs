//! Reading a session.

use std::any::TypeId;
use std::collections::BTreeMap;

use foldlog_codec::Record;
use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::Value;

use super::{Inner, Session, WriterState};
use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::projection::Projection;
use crate::fold::rows::Rows;
use crate::types::{AnyValue, Item, Slice, View, decode_item};

/// A LOG slice, which is read by position: it may be far longer than anyone wants to hold.
pub struct LogView<T> {
    view: View<T>,
}

impl<T> Clone for LogView<T> {
    fn clone(&self) -> Self {
        LogView { view: self.view.clone() }
    }
}

impl<T> std::fmt::Debug for LogView<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view.fmt(f)
    }
}

impl<T: Send + Sync + 'static> LogView<T> {
    /// How many items there are.
    pub fn len(&self) -> u64 {
        self.view.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The item at a place, counted from 0.
    ///
    /// # Errors
    ///
    /// Where the log cannot be read there.
    pub fn get(&self, place: u64) -> Result<Option<Item<T>>> {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        Ok(self.view.items().nth(place))
    }

    /// The last `count` items, in order.
    ///
    /// # Errors
    ///
    /// Where the log cannot be read there.
    pub fn tail(&self, count: usize) -> Result<Vec<Item<T>>> {
        let mut items: Vec<Item<T>> = self.view.items().rev().take(count).collect();
        items.reverse();
        Ok(items)
    }

    /// The items in order, each of which may fail to be read.
    pub fn iter(&self) -> impl Iterator<Item = Result<Item<T>>> {
        self.view.items().map(Ok)
    }
}

/// One slice without its type: items as they were recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceState {
    /// What becomes of it on rollback.
    pub policy: Policy,
    /// The name of its items' type.
    pub item: String,
    /// The items in order.
    pub items: Vec<StoredItem>,
}

/// An item as it was recorded. Upcasting never changes it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// The sequence number of the record that inserted it.
    pub sequence: u64,
    /// Its place among the items that the record inserted into the slice.
    pub ordinal: u32,
    /// The version that it was recorded at.
    pub version: u32,
    /// Its MessagePack.
    pub bytes: std::sync::Arc<[u8]>,
}

impl std::fmt::Debug for StoredItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.value().ok().and_then(|value| serde_json::to_string(&value).ok());
        write!(f, "{}.{} {}", self.sequence, self.ordinal, value.unwrap_or_default())
    }
}

impl StoredItem {
    /// The item as a value of any shape.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] where the bytes are no MessagePack within the limits.
    pub fn value(&self) -> Result<Value> {
        Value::decode(&self.bytes).map_err(|error| Error::Decode {
            name: "item".to_owned(),
            sequence: self.sequence,
            reason: error.to_string(),
        })
    }
}

/// All slices at one position, without types.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The position: the sequence number of the last record that counts; `None` before the first.
    pub position: Option<u64>,
    /// The session's tags.
    pub tags: BTreeMap<String, String>,
    /// The slices by name, empty ones included.
    pub slices: BTreeMap<String, SliceState>,
}

impl State {
    pub(crate) fn of(projection: &Projection) -> State {
        let slices = projection.names.slices().iter().filter_map(|slice| {
            let (policy, rows) = projection.rows(slice.id)?;
            let items = rows.iter().map(|row| StoredItem {
                sequence: row.id.sequence,
                ordinal: row.id.ordinal,
                version: row.version,
                bytes: row.bytes.clone(),
            });
            let state = SliceState { policy, item: slice.item.clone(), items: items.collect() };
            Some((slice.name.clone(), state))
        });
        State {
            position: projection.next_sequence().checked_sub(1),
            tags: projection.tags.clone(),
            slices: slices.collect(),
        }
    }

    /// A digest over the names, policies and stored items of all slices that are not empty; BLAKE3.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (name, slice) in self.slices.iter().filter(|(_, slice)| !slice.items.is_empty()) {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(slice.policy.name().as_bytes());
            hasher.update(&(slice.items.len() as u64).to_le_bytes());
            for item in &slice.items {
                hasher.update(&item.version.to_le_bytes());
                hasher.update(blake3::hash(&item.bytes).as_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }
}

impl Session {
    /// The items of a STATE or CACHE slice as they are now. The view stays as it is while the session goes
    /// on.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] for a slice that neither the host nor the log knows, for a LOG slice, and where
    /// the items are of another type; [`Error::Decode`] where a recorded item cannot be read as `S::Item`.
    pub fn view<S: Slice>(&self) -> Result<View<S::Item>> {
        match self.rows::<S>()? {
            (Policy::Log, _) => Err(Error::NoSuchSlice {
                slice: S::NAME.to_owned(),
                reason: "it is a LOG slice: read it by `log`",
            }),
            (_, rows) => Ok(View::new(rows)),
        }
    }

    /// The items of a LOG slice as they are now.
    ///
    /// # Errors
    ///
    /// As [`view`](Session::view), the policies exchanged.
    pub fn log<S: Slice>(&self) -> Result<LogView<S::Item>> {
        match self.rows::<S>()? {
            (Policy::Log, rows) => Ok(LogView { view: View::new(rows) }),
            _ => Err(Error::NoSuchSlice {
                slice: S::NAME.to_owned(),
                reason: "it is no LOG slice: read it by `view`",
            }),
        }
    }

    /// The last item of a slice of any policy.
    ///
    /// # Errors
    ///
    /// As [`view`](Session::view), LOG slices allowed.
    pub fn latest<S: Slice>(&self) -> Result<Option<Item<S::Item>>> {
        let (_, rows) = self.rows::<S>()?;
        Ok(View::new(rows).items().next_back())
    }

    fn rows<S: Slice>(&self) -> Result<(Policy, Rows)> {
        let mut state = self.inner.state.lock();
        self.inner.decode_slice::<S>(&mut state)?;
        if let Some((policy, rows)) = state.projection.rows_named(S::NAME) {
            return Ok((policy, rows.clone()));
        }
        match self.inner.types.as_ref().and_then(|types| types.slice(S::NAME)) {
            Some(slice) => Ok((slice.policy, Rows::default())),
            // The slice of an event that nobody declared comes into being with the first such event.
            None if S::OF_EVENT => Ok((Policy::State, Rows::default())),
            None => Err(Error::NoSuchSlice { slice: S::NAME.to_owned(), reason: "it was never declared" }),
        }
    }

    /// All slices as they are now, without types.
    pub fn state(&self) -> State {
        State::of(&self.inner.state.lock().projection)
    }

    /// All slices as they were when the record at `position` had been written: STATE along the path that was
    /// live then. Folds the log up to there.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`], or what reading the log says.
    pub fn state_at(&self, position: u64) -> Result<State> {
        let state = self.inner.state.lock();
        let next = state.log.next_sequence();
        if position >= next {
            return Err(Error::NoSuchPosition { position, last: next.checked_sub(1) });
        }
        let folded = self.history(&state).fold(position + 1, None, &mut |_, _| Ok(()))?;
        Ok(State::of(&folded.projection))
    }

    /// Hands the records from `from` through `through` to `visit`, in order. The session is locked meanwhile,
    /// so `visit` must not call into it.
    ///
    /// # Errors
    ///
    /// What reading the log says, or what `visit` says.
    pub fn records(
        &self,
        from: u64,
        through: u64,
        mut visit: impl FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let state = self.inner.state.lock();
        state.log.places.read(self.storage(), from, through, &mut |record| visit(&record))
    }

    pub(super) fn history<'a>(&'a self, state: &'a WriterState) -> History<'a> {
        History {
            storage: self.storage(),
            places: &state.log.places,
            objects: &state.log.objects,
            rollbacks: &state.rollbacks,
        }
    }
}

impl Inner {
    /// Sees to it that the items of a slice are there as the host's type. Those of declared slices are decoded
    /// as they are folded; those of an event that nobody declared only here, where its type is known.
    pub(super) fn decode_slice<S: Slice>(&self, state: &mut WriterState) -> Result<()> {
        let other =
            || Error::NoSuchSlice { slice: S::NAME.to_owned(), reason: "its items are of another type" };
        if let Some(slice) = self.types.as_ref().and_then(|types| types.slice(S::NAME)) {
            return if slice.item_type == TypeId::of::<S::Item>() { Ok(()) } else { Err(other()) };
        }
        let Some(id) = state.projection.names.slice_named(S::NAME).map(|slice| slice.id) else {
            return Ok(());
        };
        state.projection.decode_rows(id, &|row| {
            let item = decode_item::<S>(row.version, row.id.sequence, &row.bytes)?;
            Ok(std::sync::Arc::new(item) as AnyValue)
        })?;
        let all = state.projection.rows(id).is_none_or(|(_, rows)| {
            rows.iter().all(|row| row.typed.as_ref().is_some_and(|typed| typed.is::<S::Item>()))
        });
        if all { Ok(()) } else { Err(other()) }
    }
}
