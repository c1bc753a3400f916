//! Events, seeds, clears, resets and tags.

use std::any::TypeId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldlog_codec::body::{
    Action, Added, Binding, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Payload, Policy, Removed,
    SliceDeclaration,
};
use foldlog_codec::{Kind, SequenceNumber};

use super::event_plan::{EncodeBuffer, EventPlan, FastPath, PlannedReducer};
use super::schedule::WriteScope;
use super::writing::{PendingEvent, PendingRecord, promises_sync};
use super::{Inner, Session, WriterState};
use crate::error::panic_message;
use crate::error::{Error, Result};
use crate::fold::names::Names;
use crate::fold::projection::DecodedValues;
use crate::fold::record_body::RecordBody;
use crate::items::AnyValue;
use crate::items::Items;
use crate::items::rows::{NewValue, OwnedValue, Rows};
use crate::items::runs;
use crate::types::{
    Clear, Event, NewItem, NewItems, ReduceCall, ReduceError, ReducerContext, Resolved, SessionTypes, Slice,
    SliceOp, new_items, resolve_op,
};
use parking_lot::MutexGuard;

/// An effect whose bytes are owned, so that a record can be built from it.
struct OwnedEffect {
    slice: u32,
    removed: Removed,
    before: Option<foldlog_codec::body::ItemId>,
    /// The items as they stand in the record: their own bytes, or references to objects.
    items: Option<(Vec<Arc<[u8]>>, u32)>,
}

impl OwnedEffect {
    fn borrow(&self) -> Effect<'_> {
        let added = match &self.items {
            None => Added::Event,
            Some((items, version)) => Added::Items {
                items: items.iter().map(|item| Payload::new(item)).collect(),
                version: *version,
            },
        };
        Effect { slice: self.slice, removed: self.removed.clone(), added, before: self.before }
    }
}

impl Session {
    /// Records an event and lets its reducers change their slices. Returns the record's sequence number.
    ///
    /// An event that the host never declared is appended to a STATE slice of its own, which bears its name:
    /// read it as [`Of<E>`](crate::EventSlice).
    ///
    /// Durable when this returns at [`Durability::Every`](crate::Durability::Every); at the other levels after the next
    /// sync.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] or [`Error::ReducerPanicked`] where a reducer says no, [`Error::Encode`] where the
    /// event cannot be written: nothing is recorded and nothing changes. [`Error::Full`] where there is no
    /// space: likewise. [`Error::DurabilityUnknown`] where the sync fails. [`Error::Io`] where the write fails; then,
    /// and after every failed sync, [`Error::Poisoned`] until the session is opened again.
    pub fn dispatch<E: Event>(&self, event: E) -> Result<SequenceNumber> {
        let mut buffer = EncodeBuffer::take();
        buffer.encode(&event)?;
        let inner = &self.inner;
        let state = inner.writable()?;
        let mut state = self.turn(state, || types_change::<E>(inner.types.as_ref()))?;
        let time_us = inner.now_us();
        let large = inner.is_large(buffer.payload());
        let alone = buffer.payload().len() > runs::VALUE_BYTES_MAX || inner.subscribers.listen();
        let fast_path = state.plans.get(&TypeId::of::<E>()).and_then(|plan| plan.fast_path);
        match fast_path.filter(|_| !large) {
            Some(fast_path) if !alone => {
                let mut event = Some(event);
                inner.write_fast(state, time_us, fast_path, (OwnedValue(&mut event), None), buffer)
            }
            Some(fast_path) => {
                let value: AnyValue = Arc::new(event);
                let told = inner.subscribers.listen().then(|| Arc::clone(&value));
                inner.write_fast(state, time_us, fast_path, (value, told), buffer)
            }
            None => {
                let value: AnyValue = Arc::new(event);
                let (plan, declare) = inner.plan::<E>(&mut state)?;
                let written = inner.write_reduced(state, time_us, (declare, &plan), &value, buffer.payload());
                buffer.put_back();
                written
            }
        }
    }

    /// Gives a slice its first items, in place of any that it has. A LOG slice is only seeded while it is
    /// empty.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] where the host did not declare it, [`Error::LogOnlyGrows`] for a LOG slice that
    /// has items; else as [`dispatch`](Session::dispatch).
    pub fn seed<S: Slice>(&self, items: Vec<S::Item>) -> Result<SequenceNumber> {
        let items = new_items(S::NAME, items)?;
        self.change::<S>(Action::Seed, "seed", |rows, version| {
            let removed = if rows.is_empty() { Removed::None } else { Removed::All };
            Ok(Resolved { removed, ..Resolved::items(items, version) })
        })
    }

    /// Takes all items out of a slice.
    ///
    /// # Errors
    ///
    /// [`Error::LogOnlyGrows`] for a LOG slice; else as [`seed`](Session::seed).
    pub fn clear<S: Slice>(&self) -> Result<SequenceNumber> {
        self.clear_with::<S>(Clear::All)
    }

    /// Takes those items out of a slice for which the predicate holds.
    ///
    /// # Errors
    ///
    /// As [`clear`](Session::clear).
    pub fn clear_where<S: Slice>(
        &self,
        predicate: impl Fn(&S::Item) -> bool + 'static,
    ) -> Result<SequenceNumber> {
        self.clear_with::<S>(Clear::Where(Box::new(predicate)))
    }

    fn clear_with<S: Slice>(&self, clear: Clear<S::Item>) -> Result<SequenceNumber> {
        self.change::<S>(Action::Clear, "clear", |rows, version| {
            resolve_op::<S>(rows, SliceOp::Clear(clear), version)
        })
    }

    /// Empties all STATE and CACHE slices. LOG slices stay.
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn reset(&self) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let state = self.writable(WriteScope::State)?;
        let time_us = inner.now_us();
        let slices = state.live.projection.names.slices().iter();
        let effects: Vec<Effect<'_>> = slices
            .filter(|slice| slice.policy != Policy::Log)
            .filter(|slice| state.live.projection.items(slice.id).is_some_and(|(_, items)| !items.is_empty()))
            .map(|slice| Effect {
                slice: slice.id,
                removed: Removed::All,
                added: Added::Items { items: Vec::new(), version: 1 },
                before: None,
            })
            .collect();
        let dispatch = Dispatch { action: Action::Reset, effects: Some(effects) };
        let body = dispatch.encode();
        inner.write(
            state,
            time_us,
            [PendingRecord::new(Kind::DISPATCH, &body, RecordBody::Dispatch(dispatch))],
        )
    }

    /// Sets a tag of the session. Tags say what a session is; a rollback leaves them.
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn set_tag(&self, key: impl Into<String>, value: impl Into<String>) -> Result<SequenceNumber> {
        self.tag(key.into(), Some(value.into()))
    }

    /// Takes a tag away; one that is not there is no error.
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn remove_tag(&self, key: impl Into<String>) -> Result<SequenceNumber> {
        self.tag(key.into(), None)
    }

    fn tag(&self, key: String, value: Option<String>) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let state = self.writable(WriteScope::Log)?;
        let time_us = inner.now_us();
        let dispatch = Dispatch { action: Action::Tag { key, value }, effects: None };
        let body = dispatch.encode();
        inner.write(
            state,
            time_us,
            [PendingRecord::new(Kind::DISPATCH, &body, RecordBody::Dispatch(dispatch))],
        )
    }

    /// An operation of the engine's own on one slice.
    fn change<S: Slice>(
        &self,
        action: Action<'_>,
        name: &'static str,
        resolve: impl FnOnce(&Rows, u32) -> Result<Resolved>,
    ) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let types = inner.types()?;
        let log = types.slice(S::NAME).is_some_and(|slice| slice.policy == Policy::Log);
        let mut state = self.writable(if log { WriteScope::Log } else { WriteScope::State })?;
        let time_us = inner.now_us();
        inner.decode_slice::<S>(&mut state)?;
        let slice = S::NAME.to_owned();
        let declared = state.live.projection.names.slice_named(S::NAME).cloned();
        let (declare, declared) = match declared {
            Some(declared) => (None, declared),
            None => {
                let declared = slice_declaration(types, S::NAME, state.live.projection.names.slices().len())
                    .ok_or(Error::NoSuchSlice { slice, reason: "it was never declared" })?;
                let declare = Declare { events: Vec::new(), slices: vec![declared.clone()] };
                state.live.projection.names.check_len(&declare)?;
                (Some(declare), declared)
            }
        };
        let empty = Rows::default();
        let items = state.live.projection.items(declared.id).map(|(_, items)| items);
        if declared.policy == Policy::Log && !(name == "seed" && items.is_none_or(Items::is_empty)) {
            return Err(Error::LogOnlyGrows { slice: declared.name, operation: name });
        }
        let version = types.slice(S::NAME).map_or(S::ITEM_VERSION, |slice| slice.item_version);
        let resolved = resolve(items.map_or(&empty, Items::held), version)?;
        let mut at_hand = Vec::new();
        let effect = own(inner, &state, declared.id, resolved, &mut at_hand)?;
        let dispatch = Dispatch { action, effects: Some(vec![effect.borrow()]) };
        let body = dispatch.encode();
        let draft = PendingRecord::new(Kind::DISPATCH, &body, RecordBody::Dispatch(dispatch));
        let draft = PendingRecord { at_hand: DecodedValues::Items(&at_hand), ..draft };
        match declare {
            None => inner.write(state, time_us, [draft]),
            Some(declare) => {
                let body = declare.encode();
                inner.write(state, time_us, [PendingRecord::declare(declare, &body), draft])
            }
        }
    }
}

impl Inner {
    pub(super) fn types(&self) -> Result<&SessionTypes> {
        self.types.as_ref().ok_or(Error::Untyped { session: self.id })
    }

    fn is_large(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 > self.store.options.object_bytes_min
    }

    /// The references that stand in a record for those of its payloads that are large, in their order.
    pub(super) fn references<'p, 'a: 'p>(
        &self,
        state: &WriterState,
        payloads: impl Iterator<Item = &'p mut Payload<'a>>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut references = Vec::new();
        // Nearly always there is none, and a result for each would be moved about for nothing.
        for payload in payloads.filter(|payload| self.is_large(payload.bytes())) {
            references.extend(self.recorded(state, payload.bytes())?);
        }
        Ok(references)
    }

    /// Puts references in the place of the payloads for which they were made.
    pub(super) fn refer<'p, 'a: 'p>(
        &self,
        payloads: impl Iterator<Item = &'p mut Payload<'a>>,
        references: &'a [Vec<u8>],
    ) {
        let large = payloads.filter(|payload| self.is_large(payload.bytes()));
        large.zip(references).for_each(|(payload, reference)| *payload = Payload::new(reference));
    }

    /// The reference that stands in a record for bytes that are large; they are kept in the object folder.
    pub(super) fn recorded(&self, state: &WriterState, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.is_large(bytes) {
            return Ok(None);
        }
        let put = state.log.put_object(bytes).map_err(|error| self.failed(error));
        Ok(Some(put?.reference()))
    }
}

/// What an event of that type changes: LOG alone where all its slices are LOG slices.
fn types_change<E: Event>(types: Option<&SessionTypes>) -> WriteScope {
    let all_log = types.is_some_and(|types| {
        let reducers = types.event(E::NAME).map(|event| event.reducers.as_slice()).unwrap_or_default();
        let is_log = |slice: &str| types.slice(slice).is_some_and(|slice| slice.policy == Policy::Log);
        !reducers.is_empty() && reducers.iter().all(|(slice, _)| is_log(slice))
    });
    if all_log { WriteScope::Log } else { WriteScope::State }
}

/// What has to be declared before the event can be recorded.
fn declaration<E: Event>(types: &SessionTypes, names: &Names) -> Result<Option<Declare>> {
    let mut declare = Declare::default();
    let mut slice_id = |name: &str, implicit: bool| -> Result<u32> {
        if let Some(slice) = names.slice_named(name) {
            return Ok(slice.id);
        }
        if let Some(slice) = declare.slices.iter().find(|slice| slice.name == name) {
            return Ok(slice.id);
        }
        let id = names.slices().len() + declare.slices.len();
        let slice = match slice_declaration(types, name, id) {
            Some(slice) => slice,
            None if implicit => {
                let name = name.to_owned();
                SliceDeclaration { id: id as u32, item: name.clone(), name, policy: Policy::State }
            }
            None => {
                let reason = "it is bound to an event but was never declared";
                return Err(Error::NoSuchSlice { slice: name.to_owned(), reason });
            }
        };
        let id = slice.id;
        declare.slices.push(slice);
        Ok(id)
    };
    let (bindings, implicit) = match types.event(E::NAME) {
        Some(event) if event.event_type != TypeId::of::<E>() => {
            let name = E::NAME.to_owned();
            return Err(Error::DeclaredTwice { name, reason: "as two Rust types" });
        }
        Some(event) => {
            let bindings: Result<Vec<Binding>> = event
                .reducers
                .iter()
                .map(|(slice, reduce)| {
                    Ok(Binding { slice: slice_id(slice, false)?, built_in: reduce.built_in })
                })
                .collect();
            (bindings?, false)
        }
        None => {
            check_implicit::<E>(types, names)?;
            (vec![Binding { slice: slice_id(E::NAME, true)?, built_in: BuiltIn::Append }], true)
        }
    };
    let event = EventDeclaration {
        id: names.next_event_id()?,
        name: E::NAME.to_owned(),
        version: E::VERSION,
        bindings,
        implicit,
    };
    match names.event_named(E::NAME) {
        Some(before) if same_but_id(before, &event) => {}
        _ => declare.events.push(event),
    }
    Ok((declare != Declare::default()).then_some(declare))
}

/// An event that nobody declared needs a slice of its own name, which must not be another's.
fn check_implicit<E: Event>(types: &SessionTypes, names: &Names) -> Result<()> {
    let taken = |reason| Err(Error::NoSuchSlice { slice: E::NAME.to_owned(), reason });
    match types.slice(E::NAME) {
        Some(slice) if slice.item_type != TypeId::of::<E>() => {
            return taken("an event without reducers bears its name, but its items are of another type");
        }
        Some(slice) if slice.policy != Policy::State => {
            return taken("an event without reducers bears its name, but it is no STATE slice");
        }
        _ => {}
    }
    match names.slice_named(E::NAME) {
        Some(slice) if slice.item != E::NAME || slice.policy != Policy::State => {
            taken("an event without reducers bears its name, but the log holds other items in it")
        }
        _ => Ok(()),
    }
}

fn same_but_id(before: &EventDeclaration, now: &EventDeclaration) -> bool {
    EventDeclaration { id: now.id, ..before.clone() } == *now
}

pub(super) fn slice_declaration(types: &SessionTypes, name: &str, id: usize) -> Option<SliceDeclaration> {
    let slice = types.slice(name)?;
    Some(SliceDeclaration {
        id: id as u32,
        name: slice.name.to_owned(),
        policy: slice.policy,
        item: slice.item_name.to_owned(),
    })
}

impl Inner {
    /// What is known of an event, and what has to be declared before it can be recorded.
    fn plan<E: Event>(&self, state: &mut WriterState) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        if let Some(plan) = state.plans.get(&TypeId::of::<E>()) {
            return Ok((Arc::clone(plan), None));
        }
        let types = self.types()?;
        let names = &state.live.projection.names;
        match declaration::<E>(types, names)? {
            None => {
                let plan = Arc::new(EventPlan::of::<E>(types, names)?);
                state.plans.insert(TypeId::of::<E>(), Arc::clone(&plan));
                Ok((plan, None))
            }
            Some(declare) => {
                names.check_len(&declare)?;
                let mut names = Names::clone(names);
                names.learn(declare.clone());
                Ok((Arc::new(EventPlan::of::<E>(types, &names)?), Some(declare)))
            }
        }
    }

    /// Writes an event that does to its slices what its declaration says; its payload, encoded, is in `buffer`, which is
    /// put back. `told` is the value once more, where anyone listens.
    fn write_fast(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        fast_path: FastPath,
        (value, told): (impl NewValue, Option<AnyValue>),
        mut buffer: Box<EncodeBuffer>,
    ) -> Result<SequenceNumber> {
        let kind = Kind::DISPATCH;
        let FastPath { event, version, name, .. } = fast_path;
        let body = (kind, buffer.body(&fast_path));
        let sequence = self.append(&mut state, time_us, body, |live, sequence, sources| {
            live.apply_event(sequence, (event, Payload::new(&[]), Some(value)), sources)
        })?;
        buffer.put_back();
        let promised = promises_sync(self.durability, kind);
        self.notify((sequence, time_us, kind), promised, || {
            Some(PendingEvent { name, version, value: told })
        });
        self.finish_write(state, sequence, promised)
    }

    /// Runs the reducers of an event and writes what they resolve, behind its declaration where one is due.
    fn write_reduced(
        self: &Arc<Self>,
        state: MutexGuard<'_, WriterState>,
        time_us: i64,
        (declare, plan): (Option<Declare>, &EventPlan),
        value: &AnyValue,
        payload: &[u8],
    ) -> Result<SequenceNumber> {
        let sequence = state.log.next_sequence() + u64::from(declare.is_some());
        let context = ReducerContext { seed: state.seed(), sequence, time_us };
        let mut at_hand = Vec::new();
        let mut effects = Vec::new();
        let mut as_declared = true;
        for reducer in &plan.reducers {
            let resolved = reduce(&state, plan.name, reducer, value, &context)?;
            if resolved.is_nothing() {
                continue;
            }
            as_declared &= reducer.built_in != BuiltIn::Explicit;
            if matches!(resolved.added, NewItems::Event) {
                at_hand.push(((reducer.slice, 0), Arc::clone(value)));
            }
            effects.push(own(self, &state, reducer.slice, resolved, &mut at_hand)?);
        }
        at_hand.sort_by_key(|(place, _)| *place);
        let data = self.recorded(&state, payload)?;
        let data: &[u8] = data.as_deref().unwrap_or(payload);
        let effects = (!as_declared).then(|| effects.iter().map(OwnedEffect::borrow).collect());
        let dispatch = Dispatch { action: plan.action(data), effects };
        let body = dispatch.encode();
        let told = self.subscribers.listen().then(|| Arc::clone(value));
        let event = Some(PendingEvent { name: plan.name, version: plan.version, value: told });
        let at_hand = if as_declared {
            DecodedValues::Event(Arc::clone(value))
        } else {
            DecodedValues::Items(&at_hand)
        };
        let (kind, content) = (Kind::DISPATCH, RecordBody::Dispatch(dispatch));
        let draft = PendingRecord { kind, body: &body, content, at_hand, event };
        match declare {
            None => self.write(state, time_us, [draft]),
            Some(declare) => {
                let body = declare.encode();
                self.write(state, time_us, [PendingRecord::declare(declare, &body), draft])
            }
        }
    }
}

/// Asks one reducer what the event does to its slice.
fn reduce(
    state: &WriterState,
    event: &'static str,
    reducer: &PlannedReducer,
    value: &AnyValue,
    context: &ReducerContext,
) -> Result<Resolved> {
    let Some(reduce) = &reducer.reduce else { return Ok(Resolved::append()) };
    let empty = Items::Held(Rows::default());
    let call = ReduceCall {
        items: state.live.projection.items(reducer.slice).map_or(&empty, |(_, items)| items),
        tail_items: reducer.tail_items,
        item_version: reducer.item_version,
        event: value,
        context,
    };
    run_reducer(event, reducer.name, || (reduce.run)(&call))
}

/// Calls a reducer; a panic is a refusal.
fn run_reducer(
    event: &'static str,
    slice: &'static str,
    run: impl FnOnce() -> Result<Resolved, ReduceError>,
) -> Result<Resolved> {
    let (event, slice) = (event.to_owned(), slice.to_owned());
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(resolved)) => Ok(resolved),
        Ok(Err(ReduceError::Refused(reason))) => Err(Error::Refused { slice, event, reason }),
        Ok(Err(ReduceError::Engine(error))) => Err(error),
        Err(panic) => Err(Error::ReducerPanicked { slice, event, message: panic_message(&*panic) }),
    }
}

/// Gives an effect bytes of its own, and remembers the values behind them.
fn own(
    inner: &Inner,
    state: &WriterState,
    slice: u32,
    resolved: Resolved,
    at_hand: &mut Vec<((u32, u32), AnyValue)>,
) -> Result<OwnedEffect> {
    let items = match resolved.added {
        NewItems::Event => None,
        NewItems::Items { items, version } => {
            let mut recorded = Vec::new();
            for (ordinal, NewItem { bytes, typed }) in (0..).zip(items) {
                recorded.push(inner.recorded(state, &bytes)?.map_or(bytes, Arc::from));
                if let Some(typed) = typed {
                    at_hand.push(((slice, ordinal), typed));
                }
            }
            Some((recorded, version))
        }
    };
    Ok(OwnedEffect { slice, removed: resolved.removed, before: resolved.before, items })
}
