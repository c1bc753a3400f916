//! Writes events.

use std::cell::OnceCell;
use std::sync::Arc;

use foldlog_codec::body::{BuiltIn, Declare, Dispatch, Lane, Payload, Policy};
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;

use super::event_plan::{EncodeBuffer, EventPlan, FastPath, PlannedReducer};
use super::replay::Attempt;
use super::schedule::WriteScope;
use super::sync::promises_sync;
use super::write::{AppendedRecord, PendingEvent, PendingRecord};
use super::{Session, SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::fold::projection::{AppliedEvent, DecodedValues};
use crate::fold::record_kinds::RecordBody;
use crate::items::rows::{NewValue, OwnedValue};
use crate::items::{AnyValue, SliceItems, runs};
use crate::types::{
    Event, NewItem, NewItems, ReduceCall, ReducerContext, SessionTypes, SliceEffect, SliceTypes,
    default_policy,
};

impl Session {
    /// Records an event, and applies its reducers to their slices. Returns the sequence number of
    /// the record.
    ///
    /// An undeclared event is appended to an implicit slice named `E::NAME`, with the [default
    /// policy](crate::default_policy) of that name: mostly STATE. Read it as
    /// [`EventSlice<E>`](crate::EventSlice). If a later version of the host binds the event to
    /// another slice, existing items stay in the implicit one.
    ///
    /// With [`Durability::Every`](crate::Durability::Every) the record is durable when this
    /// returns, and otherwise after the next sync. An event that changes STATE or CACHE may
    /// [wait](Session#who-waits).
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
    /// let sequence = session.dispatch(Said("hello".to_owned()))?;
    /// assert_eq!(session.log().position(), Some(sequence));
    /// assert_eq!(session.view::<Chat>()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// These errors leave log and slices unchanged:
    ///
    /// - [`Error::Refused`] or [`Error::ReducerPanicked`] if a reducer returns an error or panics
    /// - [`Error::Encode`] if the event cannot be encoded
    /// - [`Error::UndeclaredEvent`] if the host does not declare the event and the store's
    ///   [options](crate::StoreOptions::undeclared_events) refuse that
    /// - [`Error::TooLarge`] if the record exceeds a limit
    /// - [`Error::LogOnlyGrows`] if a reducer removes items of a LOG slice
    /// - [`Error::Full`] if the disk has no space
    /// - [`Error::Untyped`], [`Error::ReadOnly`], [`Error::Closed`] or [`Error::Forked`] if the
    ///   session cannot be written here
    /// - [`Error::Interrupted`] if it must be recovered first
    /// - [`Error::Revoked`], [`Error::DeadlineExceeded`], [`Error::ReadsOnly`] or
    ///   [`Error::InsideOperation`] if an operation's handle, or its thread, must not write
    /// - [`Error::WaitedTooLong`] if an operation does not end within the time that this call [may
    ///   wait](Session#who-waits)
    /// - [`Error::Stuck`] if an operation that should have stopped still runs
    ///
    /// [`Error::DurabilityUnknown`] if the sync fails, and [`Error::Io`] if the write fails: the
    /// record may or may not exist after reopening. From then on the session fails with
    /// [`Error::Poisoned`] until it is opened again.
    pub fn dispatch<E: Event>(&self, event: E) -> Result<SequenceNumber> {
        let mut buffer = EncodeBuffer::take();
        buffer.encode(&event)?;
        let inner = &self.inner;
        let mut event = HostEvent::new(event);
        let attempt = Attempt {
            brings: &|recorded, names| recorded.is_event(E::NAME, buffer.payload(), names),
            refused: &mut |state| inner.try_reducers(state, SessionInner::plan::<E>, &event.share()),
            left_out: Some((E::NAME, E::NOT_COMPARED)),
        };
        let change = || types_change(inner.types.as_ref(), E::NAME);
        let state = self.turn_to_write(inner.writable()?, change, Some(attempt))?;
        self.dispatch_now(state, event, buffer)
    }

    /// Dispatches an event with its encoded payload in `buffer`. It must be its turn.
    #[inline(always)]
    pub(super) fn dispatch_now<E: Event>(
        &self,
        state: MutexGuard<'_, WriterState>,
        mut event: HostEvent<E>,
        buffer: Box<EncodeBuffer>,
    ) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let time_us = inner.now_us();
        let large = inner.is_large(buffer.payload());
        let alone = buffer.payload().len() > runs::VALUE_BYTES_MAX || inner.subscribers.listen();
        let lane = self.own_lane();
        let fast_path = state.plans.fast_path::<E>();
        match fast_path.filter(|_| !large) {
            Some(fast_path) if !alone && event.own.is_some() => {
                let name = || SmolStr::new_static(E::NAME);
                let event = PlainEvent { name, value: OwnedValue(&mut event.own), announced: None };
                inner.write_fast(state, time_us, fast_path, event, buffer, lane.as_ref())
            }
            fast_path => {
                let event = DispatchedEvent { value: event.share(), is_held: true };
                let event = NamedEvent { event, name: E::NAME, plan: SessionInner::plan::<E> };
                inner.write_shared(state, time_us, fast_path, event, buffer, lane)
            }
        }
    }

    /// Dispatches an event by name. Its encoded payload is in `buffer`.
    pub(super) fn dispatch_named(
        &self,
        name: &str,
        event: DispatchedEvent,
        buffer: Box<EncodeBuffer>,
    ) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let plan = |inner: &SessionInner, state: &mut WriterState| inner.plan_named(state, name);
        let attempt = Attempt {
            brings: &|recorded, names| recorded.is_event(name, buffer.payload(), names),
            refused: &mut |state| inner.try_reducers(state, plan, &event.value),
            left_out: None,
        };
        let change = || types_change(inner.types.as_ref(), name);
        let state = self.turn_to_write(inner.writable()?, change, Some(attempt))?;
        self.dispatch_named_now(state, name, event, buffer)
    }

    /// Dispatches an event by name. Its encoded payload is in `buffer`. It must be its turn.
    pub(super) fn dispatch_named_now(
        &self,
        state: MutexGuard<'_, WriterState>,
        name: &str,
        event: DispatchedEvent,
        buffer: Box<EncodeBuffer>,
    ) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let plan = |inner: &SessionInner, state: &mut WriterState| inner.plan_named(state, name);
        let fast_path = state.plans.fast_path_named(name);
        let fast_path = fast_path.filter(|_| !inner.is_large(buffer.payload()));
        let event = NamedEvent { event, name, plan };
        inner.write_shared(state, inner.now_us(), fast_path, event, buffer, self.own_lane())
    }
}

pub(super) struct DispatchedEvent {
    pub(super) value: AnyValue,
    /// Whether the slices of the event store such values. Otherwise their items are decoded from
    /// the recorded bytes.
    pub(super) is_held: bool,
}

/// An event of the host. Reducers and subscribers share it; the record of a plain event needs only
/// its encoding.
pub(super) struct HostEvent<E> {
    /// `None` once it is shared, or part of a slice.
    own: Option<E>,
    shared: Option<AnyValue>,
}

impl<E: Event> HostEvent<E> {
    pub(super) fn new(event: E) -> HostEvent<E> {
        HostEvent { own: Some(event), shared: None }
    }

    fn share(&mut self) -> AnyValue {
        if let Some(event) = self.own.take() {
            self.shared = Some(Arc::new(event));
        }
        self.shared.clone().unwrap_or_else(|| Arc::new(()))
    }
}

/// An event to dispatch, with its name and the lookup of its plan.
struct NamedEvent<'a, P> {
    event: DispatchedEvent,
    name: &'a str,
    plan: P,
}

/// A plain event, which is added to a slice unchanged.
struct PlainEvent<N, V> {
    name: N,
    value: V,
    /// Value for the subscribers, if there are any.
    announced: Option<AnyValue>,
}

/// An event to dispatch, with its encoded payload and its lane.
struct EncodedEvent<'a> {
    event: &'a DispatchedEvent,
    payload: &'a [u8],
    lane: Lane<'a>,
}

/// Returns the plan of an event, and the declarations required before it can be recorded.
trait PlanLookup: Fn(&SessionInner, &mut WriterState) -> Result<(Arc<EventPlan>, Option<Declare>)> {}

impl<F: Fn(&SessionInner, &mut WriterState) -> Result<(Arc<EventPlan>, Option<Declare>)>> PlanLookup for F {}

/// Returns the scope of changes by events of this name: only LOG if all their slices are LOG
/// slices.
pub(super) fn types_change(types: Option<&SessionTypes>, event: &str) -> WriteScope {
    let all_log = types.is_some_and(|types| {
        let reducers = types.event(event).map(|event| event.reducers.as_slice()).unwrap_or_default();
        let is_log = |slice: &str| types.slice(slice).is_some_and(|slice| slice.policy == Policy::Log);
        match reducers {
            [] => default_policy(event) == Policy::Log,
            reducers => reducers.iter().all(|(slice, _)| is_log(slice)),
        }
    });
    if all_log { WriteScope::Log } else { WriteScope::State }
}

impl SessionInner {
    pub(super) fn types(&self) -> Result<&SessionTypes> {
        self.types.as_ref().ok_or(Error::Untyped { session: self.id })
    }

    /// Writes an event, encoded in `buffer`, and returns the buffer to its thread.
    fn write_shared(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        fast_path: Option<FastPath>,
        event: NamedEvent<'_, impl PlanLookup>,
        buffer: Box<EncodeBuffer>,
        lane: Option<Lane<'_>>,
    ) -> Result<SequenceNumber> {
        let NamedEvent { event, name, plan } = event;
        if let Some(fast_path) = fast_path.filter(|_| event.is_held) {
            let announced = self.subscribers.listen().then(|| Arc::clone(&event.value));
            let name = || SmolStr::new(name);
            let event = PlainEvent { name, value: Arc::clone(&event.value), announced };
            return self.write_fast(state, time_us, fast_path, event, buffer, lane.as_ref());
        }
        let (plan, declare) = plan(self, &mut state)?;
        let lane = lane.unwrap_or_default();
        let encoded = EncodedEvent { event: &event, payload: buffer.payload(), lane };
        let written = self.write_reduced(state, time_us, declare, &plan, encoded);
        buffer.put_back();
        written
    }

    /// Writes a plain event, encoded in `buffer`, and returns the buffer to its thread. `lane` is
    /// `None` for the main lane.
    fn write_fast(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        fast_path: FastPath,
        event: PlainEvent<impl FnOnce() -> SmolStr, impl NewValue>,
        mut buffer: Box<EncodeBuffer>,
        lane: Option<&Lane<'_>>,
    ) -> Result<SequenceNumber> {
        let kind = RecordKind::Dispatch;
        let PlainEvent { name, value, announced } = event;
        let FastPath { event, version, .. } = fast_path;
        let body = buffer.body(&fast_path, lane);
        let applied = self.append(&mut state, time_us, kind, body, |live, sequence, sources| {
            let event = AppliedEvent { event, data: Payload::new(&[]), value: Some(value) };
            live.apply_event(sequence, event, sources)
        });
        let AppendedRecord { sequence, is_news } = applied?;
        buffer.put_back();
        let promised = promises_sync(self.durability, kind);
        if is_news {
            self.notify(sequence, time_us, kind, promised, || {
                Some(PendingEvent { name: name(), version, value: announced })
            });
        }
        self.finish_write(state, sequence, promised)
    }

    /// Fails if the reducers of an event refuse it now.
    fn try_reducers(&self, state: &mut WriterState, plan: impl PlanLookup, value: &AnyValue) -> Result<()> {
        let (plan, declare) = plan(self, state)?;
        self.run_reducers(state, self.now_us(), declare.is_some(), &plan, value).map(drop)
    }

    /// Runs the reducers of an event. With `is_declared`, the record of its declaration precedes
    /// it.
    fn run_reducers(
        &self,
        state: &WriterState,
        time_us: i64,
        is_declared: bool,
        plan: &EventPlan,
        value: &AnyValue,
    ) -> Result<ReducerOutput> {
        let sequence = state.log.next_sequence() + u64::from(is_declared);
        let context = ReducerContext { seed: state.seed(), sequence, time_us };
        let mut decoded = Vec::new();
        let mut effects = Vec::new();
        let mut as_declared = true;
        for reducer in &plan.reducers {
            let mut effect = reduce(state, self.types.as_ref(), &plan.name, reducer, value, &context)?;
            if effect.is_nothing() {
                continue;
            }
            as_declared &= reducer.built_in != BuiltIn::Explicit;
            if matches!(effect.added, NewItems::Event) {
                decoded.push(((reducer.slice, 0), Arc::clone(value)));
            }
            ready(self, state, reducer.slice, &mut effect, &mut decoded)?;
            effects.push((reducer.slice, effect));
        }
        decoded.sort_by_key(|(place, _)| *place);
        Ok(ReducerOutput { decoded, effects, as_declared })
    }

    /// Runs the reducers of an event and writes their effects, after its declaration if one is
    /// needed.
    fn write_reduced(
        self: &Arc<Self>,
        state: MutexGuard<'_, WriterState>,
        time_us: i64,
        declare: Option<Declare>,
        plan: &EventPlan,
        encoded: EncodedEvent<'_>,
    ) -> Result<SequenceNumber> {
        let EncodedEvent { event, payload, lane } = encoded;
        let ReducerOutput { decoded, effects, as_declared } =
            self.run_reducers(&state, time_us, declare.is_some(), plan, &event.value)?;
        let data = self.store_if_large(&state, payload)?;
        let data: &[u8] = data.as_deref().unwrap_or(payload);
        let effects =
            (!as_declared).then(|| effects.iter().map(|(slice, effect)| effect.to_record(*slice)).collect());
        let dispatch = Dispatch { action: plan.action(data), effects };
        let mut body = dispatch.encode();
        lane.add_to(&mut body, 0);
        let announced = self.subscribers.listen().then(|| Arc::clone(&event.value));
        let decoded_values = match (event.is_held, as_declared) {
            (true, true) => DecodedValues::Event(Arc::clone(&event.value)),
            (true, false) => DecodedValues::Items(&decoded),
            (false, _) => DecodedValues::Nothing,
        };
        let event = Some(PendingEvent { name: plan.name.clone(), version: plan.version, value: announced });
        let (kind, content) = (RecordKind::Dispatch, RecordBody::Dispatch(dispatch));
        let pending = PendingRecord { kind, body: &body, content, decoded_values, event };
        self.write_declared(state, time_us, declare, pending)
    }
}

/// Resolved effects of an event's reducers.
struct ReducerOutput {
    /// Values of the added items, each with its slice and place.
    decoded: Vec<((u32, u32), AnyValue)>,
    effects: Vec<(u32, SliceEffect)>,
    /// Whether the effects match the event's declaration, so that the record can omit them.
    as_declared: bool,
}

/// Runs one reducer and resolves the effect of the event on its slice.
fn reduce(
    state: &WriterState,
    types: Option<&SessionTypes>,
    event: &str,
    reducer: &PlannedReducer,
    value: &AnyValue,
    context: &ReducerContext,
) -> Result<SliceEffect> {
    let Some(reduce) = &reducer.reduce else { return Ok(SliceEffect::append()) };
    // Before its declaration, which is written together with this event, a slice has no items.
    let none = OnceCell::new();
    let no_items = || {
        let types = types.and_then(|types| types.slice(&reducer.name));
        none.get_or_init(|| SliceItems::Held(SliceTypes::no_rows(types)))
    };
    let items = state.live.projection.items(reducer.slice).map_or_else(no_items, |(_, items)| items);
    let call = ReduceCall {
        items,
        tail_items: reducer.tail_items,
        item_version: reducer.item_version,
        event: value,
        context,
    };
    reduce.call(event, &reducer.name, &call)
}

/// Prepares an effect for its record: replaces large items by references to objects, and adds the
/// values of the items to `decoded`.
pub(super) fn ready(
    inner: &SessionInner,
    state: &WriterState,
    slice: u32,
    effect: &mut SliceEffect,
    decoded: &mut Vec<((u32, u32), AnyValue)>,
) -> Result<()> {
    let NewItems::Items { items, .. } = &mut effect.added else { return Ok(()) };
    for (ordinal, NewItem { bytes, typed }) in (0..).zip(items) {
        if let Some(reference) = inner.store_if_large(state, bytes)? {
            *bytes = reference;
        }
        if let Some(typed) = typed.take() {
            decoded.push(((slice, ordinal), typed));
        }
    }
    Ok(())
}
