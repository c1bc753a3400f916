//! Reads a session's slices, typed and untyped, and its records.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, Policy};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, Record, SequenceNumber};

use super::log_view::{LogView, ViewedSlice};
use super::{DynamicSession, Session, SessionInner, SessionLog, WriterState};
use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::live_path::LivePath;
use crate::fold::log_source::{EncodedItem, LogSource};
use crate::fold::projection::{LogSlices, Projection};
use crate::items::SliceItems;
use crate::types::{
    Decoder, Item, RecordedBytes, SessionTypes, Slice, SliceTypes, ToolInvocations, View, decode_item,
    default_policy,
};

/// A slice without its type: the items as recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceState {
    /// Policy of the slice, which determines the effect of a rollback on it.
    pub policy: Policy,
    /// Name of the items' type.
    pub item: String,
    /// Items in the slice's order.
    pub items: Vec<StoredItem>,
}

/// An item as it was recorded. Upcasting never changes it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// Sequence number of the record that inserted the item.
    pub sequence: SequenceNumber,
    /// Place of the item within the record's insertions into the slice, from 0.
    pub ordinal: u32,
    /// Recorded version of the item.
    pub version: u32,
    /// MessagePack of the item.
    pub bytes: Arc<[u8]>,
}

impl std::fmt::Debug for StoredItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.value().ok().and_then(|value| serde_json::to_string(&value).ok());
        write!(f, "{}.{} {}", self.sequence, self.ordinal, value.unwrap_or_default())
    }
}

impl StoredItem {
    /// Decodes the item as a value of any shape.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the bytes are no MessagePack, or exceed its limits.
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
    /// Position: the sequence number of the last record that was folded. `None` before the first.
    pub position: Option<SequenceNumber>,
    /// Tags of the session.
    pub tags: BTreeMap<String, String>,
    /// Operations that were open at the position: the slices may contain half of their changes.
    /// Empty if only the records of a live path were folded.
    pub open_operations: Vec<OperationId>,
    /// Slices by name, empty ones included.
    pub slices: BTreeMap<String, SliceState>,
}

impl State {
    /// Decodes the items of a slice as the host's type, in the slice's order. Items of an older
    /// version are upgraded. A slice that the log does not know has no items.
    ///
    /// ```
    /// # use foldlog::{Event, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// let hello = session.dispatch(Said("hello".to_owned()))?;
    /// session.dispatch(Said("bye".to_owned()))?;
    /// let said = session.dynamic().state_at(hello)?.items::<Chat>(&types)?;
    /// assert_eq!(*said[0], Said("hello".to_owned()));
    /// assert_eq!(said.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if `types` do not declare the slice, [`Error::Decode`] or
    /// [`Error::NewerVersion`] if an item cannot be read.
    pub fn items<S: Slice>(&self, types: &SessionTypes) -> Result<Vec<Arc<S::Item>>> {
        let refused = |reason| Error::no_slice(S::NAME, reason);
        let types = types.slice(S::NAME).ok_or_else(|| refused("the types do not declare it"))?;
        let stored = self.slices.get(S::NAME).into_iter().flat_map(|slice| &slice.items);
        let read = stored.map(|item| {
            let value =
                types.decoder.alone(item.version, item.sequence, RecordedBytes::Elsewhere(&item.bytes))?;
            value.downcast().map_err(|_| refused("its items are of another type"))
        });
        read.collect()
    }

    /// Converts a session's projection, reading its items from the log.
    pub(crate) fn read(projection: &Projection, source: &LogSource) -> Result<State> {
        let recorded = source.find_recorded_items(projection)?;
        let mut slices = BTreeMap::new();
        for slice in projection.names.slices() {
            let Some((policy, items)) = projection.items(slice.id) else { continue };
            let mut stored = Vec::new();
            match items {
                SliceItems::Held(rows) => {
                    for row in rows.iter() {
                        let (ItemId { sequence, ordinal }, version) = (row.id, row.version);
                        let bytes = Arc::clone(recorded.bytes(slice.id, row)?);
                        stored.push(StoredItem { sequence, ordinal, version, bytes });
                    }
                }
                SliceItems::InLog(items) => source.read(slice.id, items, 0, None, &mut |_, item| {
                    let EncodedItem { id, version, bytes, .. } = item;
                    stored.push(StoredItem { sequence: id.sequence, ordinal: id.ordinal, version, bytes });
                    Ok(ControlFlow::Continue(()))
                })?,
            }
            let state = SliceState { policy, item: slice.item.clone(), items: stored };
            slices.insert(slice.name.clone(), state);
        }
        Ok(State {
            position: projection.next_sequence().checked_sub(1),
            tags: (*projection.tags).clone(),
            open_operations: projection.operations.open().map(|open| open.operation).collect(),
            slices,
        })
    }

    /// Returns the BLAKE3 digest of the names, policies and stored items of all slices that are not
    /// empty.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (name, slice) in self.slices.iter().filter(|(_, slice)| !slice.items.is_empty()) {
            State::begin_slice(&mut hasher, name, slice.policy, slice.items.len());
            slice.items.iter().for_each(|item| State::digest_item(&mut hasher, item.version, &item.bytes));
        }
        *hasher.finalize().as_bytes()
    }

    pub(crate) fn begin_slice(hasher: &mut blake3::Hasher, name: &str, policy: Policy, items: usize) {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(policy.name().as_bytes());
        hasher.update(&(items as u64).to_le_bytes());
    }

    pub(crate) fn digest_item(hasher: &mut blake3::Hasher, version: u32, bytes: &[u8]) {
        hasher.update(&version.to_le_bytes());
        hasher.update(blake3::hash(bytes).as_bytes());
    }
}

impl Session {
    /// Returns the present items of a STATE or CACHE slice. The view does not change while the
    /// session continues.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// session.dispatch(Said("hello".to_owned()))?;
    /// let before = session.view::<Chat>()?;
    /// session.dispatch(Said("bye".to_owned()))?;
    /// assert_eq!(before.len(), 1); // a view keeps what it saw
    /// assert_eq!(session.view::<Chat>()?.latest().map(|said| said.0.as_str()), Some("bye"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if neither the host nor the log declares the slice, if it is LOG, or
    /// if its items have a different type; [`Error::Decode`] if a recorded item cannot be read as
    /// `S::Item`.
    pub fn view<S: Slice>(&self) -> Result<View<S::Item>> {
        match self.read::<S>()? {
            (Policy::Log, _) => {
                Err(Error::no_slice(S::NAME, "it is a LOG slice: read it with `SessionLog::slice`"))
            }
            (_, Some(items)) => Ok(View::new(items.rows_in_memory().clone())),
            (_, None) => Ok(View::new(SliceTypes::no_rows(self.inner.slice_types(S::NAME)))),
        }
    }

    /// Returns the policy and the items of a slice. The items are `None` if the log has not
    /// declared it yet.
    fn read<S: Slice>(&self) -> Result<(Policy, Option<SliceItems>)> {
        self.inner.read::<S>(&mut self.inner.state.lock())
    }

    /// Returns whether the session was [opened for previews](crate::Store::open_to_preview) of
    /// rewinds.
    pub(crate) fn is_for_previews(&self) -> bool {
        self.inner.state.lock().live.projection.log_slices() == LogSlices::StateUnread
    }

    /// Returns the log as it is now, for reading records without a lock.
    pub(crate) fn log_source(&self) -> LogSource {
        self.inner.log_source(&self.inner.state.lock())
    }

    /// Reads one record; `None` if the log does not contain it.
    pub(super) fn read_record<T>(
        &self,
        at: SequenceNumber,
        read: impl Fn(&Record<'_>, &LogSource) -> Result<T>,
    ) -> Result<Option<T>> {
        let (source, mut found) = (self.log_source(), None);
        source.places.read(&source.storage, at, at, &mut |record| {
            found = Some(read(&record, &source)?);
            Ok(())
        })?;
        Ok(found)
    }
}

impl SessionLog<'_> {
    /// Returns the present items of a LOG slice, which the view reads from the log.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if neither the host nor the log declares the slice, if it is not LOG,
    /// or if its items have a different type.
    pub fn slice<S: Slice>(&self) -> Result<LogView<S::Item>> {
        self.session.inner.log::<S>(&mut self.session.inner.state.lock())
    }

    /// Returns the last item of a slice of any policy.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if neither the host nor the log declares the slice, or if its items
    /// have a different type; [`Error::Decode`] if a recorded item cannot be read as `S::Item`.
    pub fn latest<S: Slice>(&self) -> Result<Option<Item<S::Item>>> {
        let (_, items) = self.session.read::<S>()?;
        Ok(items.and_then(|items| View::new(items.rows_in_memory().clone()).items().next_back()))
    }

    /// Passes the records from `from` through `through` to `visit`, in order. The session is locked
    /// meanwhile, so `visit` must not call into it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read; the error of `visit`.
    pub fn records(
        &self,
        from: impl Into<SequenceNumber>,
        through: impl Into<SequenceNumber>,
        mut visit: impl FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let (from, through) = (from.into(), through.into());
        let state = self.session.inner.state.lock();
        state.log.places.read(self.session.storage(), from, through, &mut |record| visit(&record))
    }

    /// Returns the live records as of now. The cost is proportional to the number of rollbacks.
    pub fn live_path(&self) -> LivePath {
        self.session.inner.state.lock().live.path.clone()
    }
}

impl DynamicSession<'_> {
    /// Returns all present slices, without types. LOG slices are read from the log, so the result
    /// has all of their items in memory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged.
    pub fn state(&self) -> Result<State> {
        let (projection, source) = {
            let state = self.session.inner.state.lock();
            (state.live.projection.clone(), self.session.inner.log_source(&state))
        };
        State::read(&projection, &source)
    }

    /// Returns the slices at `position`, folding the log up to there. STATE contains the changes of
    /// the records that were live then.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// let hello = session.dispatch(Said("hello".to_owned()))?;
    /// session.dispatch(Said("bye".to_owned()))?;
    /// assert_eq!(session.dynamic().state_at(hello)?.slices["chat"].items.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`, [`Error::Io`] if the log
    /// cannot be read, [`Error::Object`] if an object is missing or damaged.
    pub fn state_at(&self, position: impl Into<SequenceNumber>) -> Result<State> {
        let position = position.into();
        let state = self.session.inner.state.lock();
        state.log.places.check_position(position)?;
        let history = self.session.inner.history(&state);
        let folded = history.fold(position + 1, None, LogSlices::Held, &mut |_, _| Ok(()))?;
        State::read(&folded.projection, &self.session.inner.log_source(&state))
    }
}

impl SessionInner {
    /// Returns the log as it is now, for reading items later.
    pub(super) fn log_source(&self, state: &WriterState) -> LogSource {
        LogSource {
            storage: Arc::clone(&self.store.options.storage),
            places: state.log.places.clone(),
            objects: Arc::clone(&state.log.objects),
            names: Arc::clone(&state.live.projection.names),
        }
    }

    pub(super) fn history<'a>(&'a self, state: &'a WriterState) -> History<'a> {
        History {
            storage: &self.store.options.storage,
            places: &state.log.places,
            objects: &state.log.objects,
            rollbacks: &state.live.rollbacks,
            limit: (&self.dir, self.store.options.memory),
        }
    }

    /// Reads a LOG slice for [`SessionLog::slice`](crate::SessionLog::slice).
    pub(super) fn log<S: Slice>(&self, state: &mut WriterState) -> Result<LogView<S::Item>> {
        let read = self.read::<S>(state)?;
        let decoder = || match self.slice_types(S::NAME) {
            Some(slice) => slice.decoder.clone(),
            None => Decoder::of_slice::<S>(),
        };
        let viewed = self.viewed_slice(state, S::NAME, read, decoder);
        viewed.ok_or_else(|| Error::no_slice(S::NAME, "it is not a LOG slice: read it with `Session::view`"))
    }

    /// Views a LOG slice, as it was read; `None` if it is not LOG.
    pub(super) fn viewed_slice<T: Send + Sync + 'static>(
        &self,
        state: &WriterState,
        slice: &str,
        read: (Policy, Option<SliceItems>),
        decoder: impl FnOnce() -> Decoder,
    ) -> Option<LogView<T>> {
        let viewed = match read {
            (Policy::Log, Some(SliceItems::InLog(items))) => {
                let (id, source) = (state.slice_id(slice), self.log_source(state));
                Some(ViewedSlice { id, items, source, decoder: decoder() })
            }
            (Policy::Log, _) => None,
            _ => return None,
        };
        Some(LogView::new(viewed))
    }

    /// Returns what the host declares about a slice.
    pub(super) fn slice_types(&self, slice: &str) -> Option<&SliceTypes> {
        self.types.as_ref()?.slice(slice)
    }

    fn read<S: Slice>(&self, state: &mut WriterState) -> Result<(Policy, Option<SliceItems>)> {
        self.decode_slice::<S>(state)?;
        if let Some((policy, items)) = state.live.projection.items_named(S::NAME) {
            return Ok((policy, Some(items.clone())));
        }
        match self.slice_types(S::NAME) {
            Some(slice) => Ok((slice.policy, None)),
            // The slice of an undeclared event is created with the first such event.
            None if S::OF_EVENT => Ok((default_policy(S::NAME), None)),
            // The slice of calls is created with the first call.
            None if S::NAME == ToolInvocations::NAME => Ok((Policy::Log, None)),
            None => Err(Error::no_slice(S::NAME, "it was never declared")),
        }
    }

    /// Decodes the items of an undeclared event's slice. Their type is known only here. Items of
    /// declared slices are decoded when they are folded. Fails if the items are not of type
    /// `S::Item`.
    pub(super) fn decode_slice<S: Slice>(&self, state: &mut WriterState) -> Result<()> {
        let other = || Error::no_slice(S::NAME, "its items are of another type");
        let projection = &state.live.projection;
        if projection.log_slices() == LogSlices::StateUnread
            && projection.items_named(S::NAME).is_some_and(|(policy, _)| policy != Policy::Log)
        {
            let reason = "the session was opened for previews, without the items of STATE";
            return Err(Error::no_slice(S::NAME, reason));
        }
        if let Some(slice) = self.slice_types(S::NAME) {
            return if slice.item_type.id == TypeId::of::<S::Item>() { Ok(()) } else { Err(other()) };
        }
        let Some(id) = state.live.projection.names.slice_named(S::NAME).map(|slice| slice.id) else {
            return Ok(());
        };
        state.live.projection.decode_rows(id, &|row| {
            let recorded = RecordedBytes::Elsewhere(row.bytes().map_or(&[][..], |bytes| bytes));
            Ok(decode_item::<S>(row.version, row.id.sequence, recorded)?)
        })?;
        let all = state.live.projection.items(id).is_none_or(|(_, items)| match items {
            SliceItems::Held(rows) => {
                rows.iter().all(|row| row.typed_value().is_some_and(|typed| typed.is::<S::Item>()))
            }
            // These are decoded as the requested type when they are read.
            SliceItems::InLog(_) => true,
        });
        if all { Ok(()) } else { Err(other()) }
    }
}
