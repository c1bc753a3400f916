//! Events and slices by their names, as values of any shape: for hosts without types at compile
//! time.

use std::any::TypeId;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Action, Policy};
use foldlog_codec::msgpack::Value;

use super::changes::ChangedSlice;
use super::dispatch::DispatchedEvent;
use super::event_plan::EncodeBuffer;
use super::log_view::LogView;
use super::{DynamicSession, SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::items::row::{RowItem, SliceRow};
use crate::items::rows::Rows;
use crate::items::{AnyValue, SliceItems};
use crate::types::{
    Clear, Decoder, EventTypes, Item, ItemCoding, NewItem, RecordedBytes, SliceEffect, SliceOp, SliceTypes,
    ValueDecoder, View, default_policy, encode_value, read_value, resolve_op,
};

impl DynamicSession<'_> {
    /// Records an event by name, and applies its reducers to their slices. Returns the sequence
    /// number of the record.
    ///
    /// | declaration of the event | recorded |
    /// |---|---|
    /// | [at run time](crate::SessionTypesBuilder::dynamic_event) | the value, its maps in the order of their pairs |
    /// | with a Rust type | the event decoded from the value, as by [`Session::dispatch`](crate::Session::dispatch) |
    /// | none | nothing, with [`UndeclaredEvents::Refuse`](crate::UndeclaredEvents::Refuse); otherwise the value, at the version of the event in the log, by default 1. The value is appended to an implicit STATE slice of the event's name |
    ///
    /// In all other respects this works like [`Session::dispatch`](crate::Session::dispatch).
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said { text: String }
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
    /// session.dynamic().dispatch("chat.said", serde_json::json!({"text": "hello"}))?;
    /// assert_eq!(session.view::<Chat>()?.latest(), Some(&Said { text: "hello".to_owned() }));
    /// assert!(session.dynamic().dispatch("chat.said", serde_json::json!({"words": "hello"})).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Session::dispatch`](crate::Session::dispatch); [`Error::Encode`] also if the event's Rust type cannot
    /// be read from the value, or lacks a field of the value, so that data would be lost.
    /// [`Error::UndeclaredEvent`] if the host does not declare the event and the store's
    /// [options](crate::StoreOptions::undeclared_events) refuse such names.
    pub fn dispatch(&self, event: &str, value: impl Into<Value>) -> Result<SequenceNumber> {
        let (dispatched, buffer) = self.event_of_value(event, value.into())?;
        self.session.dispatch_named(event, dispatched, buffer)
    }

    /// Returns an event in the form for a dispatch by name, and its encoded payload.
    pub(super) fn event_of_value(
        &self,
        event: &str,
        value: Value,
    ) -> Result<(DispatchedEvent, Box<EncodeBuffer>)> {
        let (dispatched, bytes) = match self.session.inner.types()?.event(event) {
            Some(types) => {
                let (value, bytes) = types.check_value(value)?;
                (DispatchedEvent { value, is_held: !types.reducers.is_empty() }, bytes)
            }
            None => {
                self.session.inner.check_declared(event)?;
                let bytes = encode_value(event, &value)?;
                (DispatchedEvent { value: Arc::new(value), is_held: false }, bytes)
            }
        };
        let mut buffer = EncodeBuffer::take();
        buffer.hold(&bytes);
        Ok((dispatched, buffer))
    }

    /// Returns the present items of a STATE or CACHE slice as values. The view does not change
    /// while the session continues.
    ///
    /// A slice that is declared at run time is stored as values, and the view costs as much as a
    /// [typed one](crate::Session::view). The items of any other slice are converted to the values that
    /// would be recorded now, in time proportional to their number.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if neither the host nor the log declares the slice, or if it is LOG;
    /// [`Error::Decode`] if a recorded item cannot be read; [`Error::Io`] or [`Error::Object`] if
    /// the items of an undeclared slice cannot be read from the log.
    pub fn view(&self, slice: &str) -> Result<View<Value>> {
        match self.read_named(slice)? {
            (Policy::Log, _) => {
                Err(Error::no_slice(slice, "it is a LOG slice: read it with `DynamicSession::log`"))
            }
            (_, Some(items)) => Ok(View::new(self.value_rows(slice, items.rows_in_memory())?)),
            (_, None) => Ok(View::new(SliceTypes::no_rows(self.dynamic_slice(slice)))),
        }
    }

    /// Returns the present items of a LOG slice as values, which the view reads from the log.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if neither the host nor the log declares the slice, or if it is not
    /// LOG.
    pub fn log(&self, slice: &str) -> Result<LogView<Value>> {
        let (read, inner) = (self.read_named(slice)?, &self.session.inner);
        let types = inner.slice_types(slice);
        let decoder = || types.map_or_else(|| untyped_decoder(slice), SliceTypes::value_decoder);
        let viewed = inner.viewed_slice(&inner.state.lock(), slice, read, decoder);
        viewed.ok_or_else(|| {
            Error::no_slice(slice, "it is not a LOG slice: read it with `DynamicSession::view`")
        })
    }

    /// Returns the last item of a slice of any policy as a value.
    ///
    /// # Errors
    ///
    /// The errors of [`view`](crate::DynamicSession::view), except for LOG slices.
    pub fn latest(&self, slice: &str) -> Result<Option<Item<Value>>> {
        let (_, Some(items)) = self.read_named(slice)? else { return Ok(None) };
        let last = View::new(self.value_rows(slice, &items.rows_in_memory().tail(1))?);
        Ok(last.items().next_back())
    }

    /// Replaces all items of a slice by these values. A LOG slice must be empty. May
    /// [wait](crate::Session#who-waits).
    ///
    /// # Errors
    ///
    /// The errors of [`Session::seed`](crate::Session::seed); [`Error::Decode`] if the slice has a Rust type that cannot
    /// be read from a value.
    pub fn seed(&self, slice: &str, items: Vec<Value>) -> Result<SequenceNumber> {
        let types = self.session.inner.types()?.slice(slice);
        let items: Result<Vec<NewItem>> =
            items.into_iter().map(|item| new_item(slice, types, item)).collect();
        let items = items?;
        self.session.change_named(&self.changed_slice(slice), Action::Seed, "seed", |rows, version| {
            Ok(SliceEffect::seed(rows, items, version))
        })
    }

    /// Removes all items of a slice, named at run time. May [wait](crate::Session#who-waits).
    pub fn clear(&self, slice: &str) -> Result<SequenceNumber> {
        let coding = ItemCoding { name: slice, encode: encode_value };
        self.session.change_named(&self.changed_slice(slice), Action::Clear, "clear", |rows, version| {
            resolve_op(rows, SliceOp::Clear(Clear::All), version, &coding)
        })
    }

    /// Removes the items of a slice for whose values the predicate returns `true`. May
    /// [wait](crate::Session#who-waits).
    ///
    /// # Errors
    ///
    /// The errors of [`Session::clear`](crate::Session::clear); [`Error::NoSuchSlice`] also if the host does not declare
    /// the slice.
    pub fn clear_where(
        &self,
        slice: &str,
        predicate: impl Fn(&Value) -> bool + 'static,
    ) -> Result<SequenceNumber> {
        let types = self.session.inner.types()?.slice(slice);
        let reason = "the host does not declare it, so its items cannot be read as values";
        let types = types.ok_or_else(|| Error::no_slice(slice, reason))?;
        self.session.change_named(&self.changed_slice(slice), Action::Clear, "clear", |rows, version| {
            let values = values_of(types, rows)?;
            let coding = ItemCoding { name: slice, encode: encode_value };
            resolve_op(&values, SliceOp::Clear(Clear::Where(Box::new(predicate))), version, &coding)
        })
    }

    /// Returns the policy and the items of a slice. The items are `None` if the log has not
    /// declared it yet.
    fn read_named(&self, slice: &str) -> Result<(Policy, Option<SliceItems>)> {
        let state = self.session.inner.state.lock();
        if let Some((policy, items)) = state.live.projection.items_named(slice) {
            return Ok((policy, Some(items.clone())));
        }
        match self.session.inner.slice_types(slice) {
            Some(types) => Ok((types.policy, None)),
            // The implicit slice of an event is created with the first such event.
            None if self.implicit_event(slice).is_some() => Ok((default_policy(slice), None)),
            None => Err(Error::no_slice(slice, "it was never declared")),
        }
    }

    /// Describes a slice that is changed by name. New items of the implicit slice of an event are
    /// recorded at the event's version.
    fn changed_slice<'a>(&self, name: &'a str) -> ChangedSlice<'a> {
        let declared = self.implicit_event(name).map(|event| event.version);
        let recorded = || {
            let state = self.session.inner.state.lock();
            state.live.projection.names.event_named(name).map(|event| event.version)
        };
        let version = declared.or_else(recorded).unwrap_or(1);
        ChangedSlice { name, version, ready: |_: &SessionInner, _: &mut WriterState| Ok(()) }
    }

    /// Returns the event of this name that is declared without a slice, so that it has an implicit
    /// one.
    fn implicit_event(&self, name: &str) -> Option<&EventTypes> {
        self.session.inner.types.as_ref()?.event(name).filter(|event| event.reducers.is_empty())
    }

    fn dynamic_slice(&self, slice: &str) -> Option<&SliceTypes> {
        self.session.inner.slice_types(slice).filter(|types| types.item_type.id == TypeId::of::<Value>())
    }

    fn value_rows(&self, slice: &str, rows: &Rows) -> Result<Rows> {
        if let Some(types) = self.session.inner.slice_types(slice) {
            return values_of(types, rows);
        }
        // Some items may have a type that was known only where their events were dispatched.
        let (source, id) = {
            let state = self.session.inner.state.lock();
            (self.session.inner.log_source(&state), state.slice_id(slice))
        };
        let recorded = source.recorded_of(id, &rows.iter().collect::<Vec<_>>())?;
        let event = self.implicit_event(slice);
        let decoder = event.map_or_else(|| untyped_decoder(slice), |event| event.decoder.clone());
        rows.remade(|row| {
            let bytes = RecordedBytes::Elsewhere(recorded.bytes(id, row)?);
            let value = decoder.alone(row.version, row.id.sequence, bytes)?;
            Ok(SliceRow { item: RowItem::Typed(value), ..row.to_row() })
        })
    }
}

/// Returns the decoder for the items of a slice that the host does not declare.
fn untyped_decoder(slice: &str) -> Decoder {
    let (name, version) = (slice.into(), u32::MAX);
    let upcast = |_, value| Ok(value);
    Decoder::Values(Arc::new(ValueDecoder { name, version, upcast: Some(Arc::new(upcast)), by_way_of: None }))
}

fn new_item(slice: &str, types: Option<&SliceTypes>, value: Value) -> Result<NewItem> {
    let bytes = encode_value(slice, &value)?;
    let Some(types) = types else { return Ok(NewItem { bytes, typed: None }) };
    if types.item_type.is_dynamic() {
        return Ok(NewItem { bytes, typed: Some(Arc::new(value)) });
    }
    let recorded = RecordedBytes::Elsewhere(&bytes);
    let typed: AnyValue = types.decoder.alone(types.item_version, SequenceNumber::MIN, recorded)?;
    Ok(NewItem { bytes: types.encode(typed.as_ref())?, typed: Some(typed) })
}

/// Returns the items of a declared slice as values, with the same names.
fn values_of(types: &SliceTypes, rows: &Rows) -> Result<Rows> {
    if types.item_type.id == TypeId::of::<Value>() {
        return Ok(rows.clone());
    }
    rows.remade(|row| {
        let bytes = row.typed_value().map(|typed| types.encode(typed)).transpose()?;
        let value = bytes.map(|bytes| read_value(&types.name, &bytes)).transpose()?;
        Ok(SliceRow { item: RowItem::Typed(Arc::new(value.unwrap_or_default())), ..row.to_row() })
    })
}
