//! Changes without an event: seeds, clears, resets and tags.

use foldlog_codec::body::{
    Action, AddedItems, Declare, Dispatch, Effect, Policy, RemovedItems, SliceDeclaration,
};
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::MutexGuard;

use super::dispatch::ready;
use super::event_plan::slice_declaration;
use super::replay::Attempt;
use super::schedule::WriteScope;
use super::write::PendingRecord;
use super::{Session, SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::fold::projection::DecodedValues;
use crate::fold::record_kinds::RecordBody;
use crate::items::SliceItems;
use crate::items::rows::Rows;
use crate::types::{Clear, ItemCoding, Slice, SliceEffect, SliceOp, new_items, resolve_op};

/// A slice that is changed without an event.
pub(super) struct ChangedSlice<'a> {
    pub(super) name: &'a str,
    /// Version of new items of a slice that the host does not declare.
    pub(super) version: u32,
    /// Loads the items into memory in the form that the change requires.
    pub(super) ready: fn(&SessionInner, &mut WriterState) -> Result<()>,
}

impl Session {
    /// Replaces all items of a slice. A LOG slice must be empty. May [wait](Session#who-waits).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if the host did not declare the slice, [`Error::LogOnlyGrows`] if it
    /// is a LOG slice with items; otherwise the errors of [`dispatch`](Session::dispatch).
    pub fn seed<S: Slice>(&self, items: Vec<S::Item>) -> Result<SequenceNumber> {
        let items = new_items(S::NAME, items)?;
        self.change::<S>(Action::Seed, "seed", |rows, version| Ok(SliceEffect::seed(rows, items, version)))
    }

    /// Removes all items of a slice. May [wait](Session#who-waits).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] if the host did not declare the slice, [`Error::LogOnlyGrows`] if it
    /// is a LOG slice; otherwise the errors of [`dispatch`](Session::dispatch).
    pub fn clear<S: Slice>(&self) -> Result<SequenceNumber> {
        self.clear_with::<S>(Clear::All)
    }

    /// Removes the items of a slice for which the predicate returns `true`. May
    /// [wait](Session#who-waits).
    pub fn clear_where<S: Slice>(
        &self,
        predicate: impl Fn(&S::Item) -> bool + 'static,
    ) -> Result<SequenceNumber> {
        self.clear_with::<S>(Clear::Where(Box::new(predicate)))
    }

    fn clear_with<S: Slice>(&self, clear: Clear<S::Item>) -> Result<SequenceNumber> {
        self.change::<S>(Action::Clear, "clear", |rows, version| {
            resolve_op(rows, SliceOp::Clear(clear), version, &ItemCoding::for_slice::<S>())
        })
    }

    /// Removes all items of all STATE and CACHE slices. LOG slices are unchanged. May
    /// [wait](Session#who-waits).
    ///
    /// # Errors
    ///
    /// The errors of [`dispatch`](Session::dispatch) that do not concern events.
    pub fn reset(&self) -> Result<SequenceNumber> {
        let state = self.writable(WriteScope::State)?;
        let slices = state.live.projection.names.slices().iter();
        let effects: Vec<Effect<'_>> = slices
            .filter(|slice| slice.policy != Policy::Log)
            .filter(|slice| state.live.projection.items(slice.id).is_some_and(|(_, items)| !items.is_empty()))
            .map(|slice| Effect {
                slice: slice.id,
                removed: RemovedItems::All,
                added: AddedItems::Items { items: Vec::new(), version: 1 },
                before: None,
            })
            .collect();
        self.write_dispatch(state, Dispatch { action: Action::Reset, effects: Some(effects) })
    }

    /// Sets a tag of the session. Tags describe the session; a rollback does not change them.
    ///
    /// # Errors
    ///
    /// The errors of [`dispatch`](Session::dispatch) that do not concern events.
    pub fn set_tag(&self, key: impl Into<String>, value: impl Into<String>) -> Result<SequenceNumber> {
        self.tag(key.into(), Some(value.into()))
    }

    /// Removes a tag. The removal is recorded even if the session has no such tag.
    ///
    /// # Errors
    ///
    /// The errors of [`dispatch`](Session::dispatch) that do not concern events.
    pub fn remove_tag(&self, key: impl Into<String>) -> Result<SequenceNumber> {
        self.tag(key.into(), None)
    }

    fn tag(&self, key: String, value: Option<String>) -> Result<SequenceNumber> {
        let state = self.writable(WriteScope::Log)?;
        self.write_dispatch(state, Dispatch { action: Action::Tag { key, value }, effects: None })
    }

    fn write_dispatch(
        &self,
        state: MutexGuard<'_, WriterState>,
        dispatch: Dispatch<'_>,
    ) -> Result<SequenceNumber> {
        let body = self.in_lane(dispatch.encode());
        self.inner.write_now(state, RecordKind::Dispatch, &body, RecordBody::Dispatch(dispatch))
    }

    fn change<S: Slice>(
        &self,
        action: Action<'_>,
        operation: &'static str,
        resolve: impl FnOnce(&Rows, u32) -> Result<SliceEffect>,
    ) -> Result<SequenceNumber> {
        let slice =
            ChangedSlice { name: S::NAME, version: S::ITEM_VERSION, ready: SessionInner::decode_slice::<S> };
        self.change_named(&slice, action, operation, resolve)
    }

    /// Records a change of one slice by the engine, without an event.
    pub(super) fn change_named(
        &self,
        slice: &ChangedSlice<'_>,
        action: Action<'_>,
        operation: &'static str,
        resolve: impl FnOnce(&Rows, u32) -> Result<SliceEffect>,
    ) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let types = inner.types()?.slice(slice.name);
        let log = types.is_some_and(|types| types.policy == Policy::Log);
        let scope = if log { WriteScope::Log } else { WriteScope::State };
        let changes_same = |of: &Action<'_>| std::mem::discriminant(of) == std::mem::discriminant(&action);
        let attempt = Attempt {
            brings: &|recorded, _| {
                let dispatch = Dispatch::decode(&recorded.body);
                recorded.kind == RecordKind::Dispatch
                    && dispatch.is_ok_and(|dispatch| changes_same(&dispatch.action))
            },
            refused: &mut |state| inner.changeable(state, slice, operation).map(drop),
            left_out: None,
        };
        let mut state = self.turn_to_write(inner.writable()?, || scope, Some(attempt))?;
        let time_us = inner.now_us();
        let (declare, declared) = inner.changeable(&mut state, slice, operation)?;
        let empty = Rows::default();
        let items = state.live.projection.items(declared.id).map(|(_, items)| items);
        let version = types.map_or(slice.version, |types| types.item_version);
        let mut effect = resolve(items.map_or(&empty, SliceItems::rows_in_memory), version)?;
        let mut decoded = Vec::new();
        ready(inner, &state, declared.id, &mut effect, &mut decoded)?;
        let dispatch = Dispatch { action, effects: Some(vec![effect.to_record(declared.id)]) };
        let body = self.in_lane(dispatch.encode());
        let pending = PendingRecord::new(RecordKind::Dispatch, &body, RecordBody::Dispatch(dispatch));
        let pending = PendingRecord { decoded_values: DecodedValues::Items(&decoded), ..pending };
        inner.write_declared(state, time_us, declare, pending)
    }
}

impl SessionInner {
    /// Returns the declaration of a slice to change without an event, and the declarations required
    /// before.
    fn changeable(
        &self,
        state: &mut WriterState,
        slice: &ChangedSlice<'_>,
        operation: &'static str,
    ) -> Result<(Option<Declare>, SliceDeclaration)> {
        let types = self.types()?;
        (slice.ready)(self, state)?;
        let declared = state.live.projection.names.slice_named(slice.name).cloned();
        let (declare, declared) = match declared {
            Some(declared) => (None, declared),
            None => {
                let names = &state.live.projection.names;
                let declared = slice_declaration(types, slice.name, names.slices().len());
                let declared =
                    declared.ok_or_else(|| Error::no_slice(slice.name, "it was never declared"))?;
                let declare = Declare { events: Vec::new(), slices: vec![declared.clone()] };
                names.check_len(&declare)?;
                (Some(declare), declared)
            }
        };
        let items = state.live.projection.items(declared.id).map(|(_, items)| items);
        if declared.policy == Policy::Log && !(operation == "seed" && items.is_none_or(SliceItems::is_empty))
        {
            return Err(Error::LogOnlyGrows { slice: declared.name, operation });
        }
        Ok((declare, declared))
    }
}
