//! Plans of events: what a session caches between dispatches of an event, so that each costs little
//! more than its encoding. Declares events with their reducers, and slices, before a record names
//! them.

use std::any::TypeId;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{
    Action, Binding, BuiltIn, Declare, Dispatch, EventDeclaration, Lane, Payload, SliceDeclaration,
};
use foldlog_codec::frame::HEADER_LEN;
use smol_str::SmolStr;

use super::{SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::log::writer::AppendBody;
use crate::names::DeclaredNames;
use crate::options::UndeclaredEvents;
use crate::types::{Event, ItemType, Reduce, SessionTypes, default_policy, encode_into};

/// Plans of the events dispatched so far.
#[derive(Default)]
pub(super) struct EventPlans {
    typed: BTreeMap<TypeId, Arc<EventPlan>>,
    /// Plans of events that are dispatched by name.
    named: BTreeMap<SmolStr, Arc<EventPlan>>,
}

impl EventPlans {
    #[inline]
    pub(super) fn fast_path<E: Event>(&self) -> Option<FastPath> {
        self.typed.get(&TypeId::of::<E>()).and_then(|plan| plan.fast_path)
    }

    pub(super) fn fast_path_named(&self, name: &str) -> Option<FastPath> {
        self.named.get(name).and_then(|plan| plan.fast_path)
    }
}

/// Identifies a dispatched event: by its Rust type, or only by name.
pub(super) struct EventFacts {
    pub(super) name: SmolStr,
    pub(super) version: u32,
    /// `None` for an event that is dispatched by name.
    pub(super) event_type: Option<ItemType>,
}

impl EventFacts {
    pub(super) fn for_event<E: Event>() -> EventFacts {
        let (name, event_type) = (SmolStr::new_static(E::NAME), Some(ItemType::of::<E>()));
        EventFacts { name, version: E::VERSION, event_type }
    }
}

/// Cached facts about a declared event, so that dispatching it needs no lookup by name.
pub(super) struct EventPlan {
    event: u32,
    pub(super) version: u32,
    pub(super) name: SmolStr,
    /// Fast path for plain events, if each binding changes its slice as declared.
    pub(super) fast_path: Option<FastPath>,
    /// Reducers in the order of the bindings. Empty if each binding changes its slice as declared.
    pub(super) reducers: Vec<PlannedReducer>,
}

/// Encoding of a plain event. Its record contains only the event.
#[derive(Clone, Copy)]
pub(super) struct FastPath {
    pub(super) event: u32,
    pub(super) version: u32,
    /// Bytes of the record's body before the payload: the last ones of this integer.
    prefix: u128,
    prefix_len: usize,
}

/// Maximum bytes of the prefix: a map's head, two keys of one letter, and an integer of at most 32
/// bits.
const PREFIX_BYTES_MAX: usize = 16;

/// Bytes before the payload of a plain event: its frame's header and its body's prefix.
const ROOM_BYTES: usize = HEADER_LEN + PREFIX_BYTES_MAX;

impl FastPath {
    fn new(event: u32, version: u32) -> Option<FastPath> {
        let nil = Payload::new(&NIL);
        let alone = Dispatch { action: Action::Event { event, data: nil }, effects: None }.encode();
        let found = alone.get(..alone.len() - NIL.len())?;
        let mut prefix = [0; PREFIX_BYTES_MAX];
        prefix.get_mut(PREFIX_BYTES_MAX.checked_sub(found.len())?..)?.copy_from_slice(found);
        let prefix = u128::from_le_bytes(prefix);
        Some(FastPath { event, version, prefix, prefix_len: found.len() })
    }
}

pub(super) struct PlannedReducer {
    pub(super) slice: u32,
    pub(super) name: SmolStr,
    pub(super) built_in: BuiltIn,
    pub(super) tail_items: usize,
    pub(super) item_version: u32,
    /// `None` for a binding that the log has declared and the host has retired.
    pub(super) reduce: Option<Reduce>,
}

impl EventPlan {
    pub(super) fn new(event: &EventFacts, types: &SessionTypes, names: &DeclaredNames) -> Result<EventPlan> {
        let EventFacts { name: event_name, version, .. } = event;
        let declared = names.event_named(event_name).ok_or_else(|| Error::Inconsistent {
            sequence: SequenceNumber::MIN,
            reason: format!("event `{event_name}` was not declared"),
        })?;
        let reducers = types.event(event_name).map(|event| event.reducers.as_slice()).unwrap_or_default();
        let reducers = declared.bindings.iter().enumerate().filter_map(|(place, binding)| {
            let (slice, built_in) = (binding.slice, binding.built_in);
            let Some((name, reduce)) = reducers.get(place) else {
                let (name, reduce) = (event_name.clone(), None);
                return Some(PlannedReducer {
                    slice,
                    name,
                    built_in,
                    tail_items: 0,
                    item_version: 1,
                    reduce,
                });
            };
            let types = types.slice(name)?;
            let (tail_items, item_version) = (types.tail_items, types.item_version);
            let (name, reduce) = (types.name.clone(), Some(reduce.clone()));
            Some(PlannedReducer { slice, name, built_in, tail_items, item_version, reduce })
        });
        let mut reducers: Vec<PlannedReducer> = reducers.collect();
        if reducers.iter().all(|reducer| reducer.built_in != BuiltIn::Explicit) {
            reducers.clear();
        }
        let (event, version, name) = (declared.id, *version, event_name.clone());
        let fast_path = if reducers.is_empty() { FastPath::new(event, version) } else { None };
        Ok(EventPlan { event, version, name, fast_path, reducers })
    }

    pub(super) fn action<'a>(&self, data: &'a [u8]) -> Action<'a> {
        Action::Event { event: self.event, data: Payload::new(data) }
    }
}

/// MessagePack's nil, one byte.
const NIL: [u8; 1] = [0xc0];

/// Buffer for encoding, which each thread reuses across its dispatches.
#[derive(Default)]
pub(super) struct EncodeBuffer {
    /// Room for a frame's header and for the prefix, then the payload. The payload is known first.
    bytes: Vec<u8>,
}

/// Maximum capacity of a retained buffer, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// Boxed, so that a single word moves in and out. Otherwise each dispatch would wait for the
    /// stores of the previous one.
    static KEPT: Cell<Option<Box<EncodeBuffer>>> = const { Cell::new(None) };
}

impl EncodeBuffer {
    /// Takes this thread's buffer. A dispatch within a dispatch finds none and allocates.
    #[inline]
    pub(super) fn take() -> Box<EncodeBuffer> {
        let mut buffer = KEPT.take().unwrap_or_default();
        buffer.bytes.clear();
        buffer.bytes.extend_from_slice(&[0; ROOM_BYTES]);
        buffer
    }

    #[inline]
    pub(super) fn put_back(self: Box<Self>) {
        if self.bytes.capacity() <= KEPT_BYTES_MAX {
            KEPT.set(Some(self));
        }
    }

    pub(super) fn encode<E: Event>(&mut self, event: &E) -> Result<()> {
        encode_into(E::NAME, event, &mut self.bytes)
    }

    /// Copies bytes that are already encoded, as the payload.
    pub(super) fn hold(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.bytes.get(ROOM_BYTES..).unwrap_or_default()
    }

    /// Returns the body of a plain event's record, after the room for its frame's header. `lane` is
    /// `None` for the main lane.
    #[inline(always)]
    pub(super) fn body(&mut self, fast_path: &FastPath, lane: Option<&Lane<'_>>) -> AppendBody<'_> {
        if let Some(room) = self.bytes.get_mut(HEADER_LEN..).and_then(<[u8]>::first_chunk_mut) {
            *room = fast_path.prefix.to_le_bytes();
        }
        let start = PREFIX_BYTES_MAX.saturating_sub(fast_path.prefix_len);
        if let Some(lane) = lane {
            lane.add_to(&mut self.bytes, HEADER_LEN + start);
        }
        AppendBody::Roomy(self.bytes.get_mut(start..).unwrap_or_default())
    }
}

impl SessionInner {
    /// Returns the plan of an event, and the declarations required before it can be recorded.
    pub(super) fn plan<E: Event>(
        &self,
        state: &mut WriterState,
    ) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        if let Some(plan) = state.plans.typed.get(&TypeId::of::<E>()) {
            return Ok((Arc::clone(plan), None));
        }
        self.check_declared(E::NAME)?;
        let (plan, declare) = self.new_plan(state, &EventFacts::for_event::<E>())?;
        match declare {
            None => drop(state.plans.typed.insert(TypeId::of::<E>(), Arc::clone(&plan))),
            // A plan by name is for the version that the log has known so far.
            Some(_) => drop(state.plans.named.remove(E::NAME)),
        }
        Ok((plan, declare))
    }

    /// Fails if the host does not declare an event, and the store's options refuse such events.
    pub(super) fn check_declared(&self, event: &str) -> Result<()> {
        let types = self.types()?;
        if self.store.options.undeclared_events == UndeclaredEvents::Append || types.event(event).is_some() {
            return Ok(());
        }
        let nearest = types.nearest_event(event).map(str::to_owned);
        Err(Error::UndeclaredEvent { event: event.to_owned(), nearest })
    }

    /// Returns the plan of an event that is dispatched by name, and the declarations required
    /// before it can be recorded.
    pub(super) fn plan_named(
        &self,
        state: &mut WriterState,
        name: &str,
    ) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        if let Some(plan) = state.plans.named.get(name) {
            return Ok((Arc::clone(plan), None));
        }
        // An event that the host does not declare retains its version in the log.
        let declared = self.types()?.event(name).map(|event| event.version);
        let recorded = || state.live.projection.names.event_named(name).map(|event| event.version);
        let version = declared.or_else(recorded).unwrap_or(1);
        let event = EventFacts { name: SmolStr::new(name), version, event_type: None };
        let (plan, declare) = self.new_plan(state, &event)?;
        if declare.is_none() {
            state.plans.named.insert(event.name, Arc::clone(&plan));
        }
        Ok((plan, declare))
    }

    fn new_plan(&self, state: &WriterState, event: &EventFacts) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        let types = self.types()?;
        let names = &state.live.projection.names;
        match declaration(event, types, names)? {
            None => Ok((Arc::new(EventPlan::new(event, types, names)?), None)),
            Some(declare) => {
                names.check_len(&declare)?;
                let mut names = DeclaredNames::clone(names);
                names.learn(declare.clone());
                Ok((Arc::new(EventPlan::new(event, types, &names)?), Some(declare)))
            }
        }
    }
}

/// Returns the declarations required before an event can be recorded.
fn declaration(event: &EventFacts, types: &SessionTypes, names: &DeclaredNames) -> Result<Option<Declare>> {
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
                let policy = default_policy(&name);
                SliceDeclaration { id: id as u32, item: name.clone(), name, policy }
            }
            None => {
                let reason = "it is bound to an event but was never declared";
                return Err(Error::no_slice(name, reason));
            }
        };
        let id = slice.id;
        declare.slices.push(slice);
        Ok(id)
    };
    let EventFacts { name, version, event_type } = event;
    let declared = types.event(name);
    if let (Some(declared), Some(dispatched)) = (declared, event_type)
        && declared.event_type != *dispatched
    {
        let reason = format!("by {}, and dispatched as {dispatched}", declared.event_type);
        return Err(Error::DeclaredTwice { name: name.to_string(), reason });
    }
    let (bindings, implicit) = match declared.filter(|event| !event.reducers.is_empty()) {
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
            check_implicit(event, types, names)?;
            (vec![Binding { slice: slice_id(name, true)?, built_in: BuiltIn::Append }], true)
        }
    };
    let event = EventDeclaration {
        id: names.next_event_id()?,
        name: name.to_string(),
        version: *version,
        bindings,
        implicit,
    };
    match names.event_named(name) {
        Some(before) if EventDeclaration { id: event.id, ..before.clone() } == event => {}
        _ => declare.events.push(event),
    }
    Ok((declare != Declare::default()).then_some(declare))
}

/// Checks that no other slice has the name of an undeclared event, which its implicit slice needs.
fn check_implicit(event: &EventFacts, types: &SessionTypes, names: &DeclaredNames) -> Result<()> {
    let name = event.name.as_str();
    let taken = |reason| Err(Error::no_slice(name, reason));
    let is_other = |slice: ItemType| match event.event_type {
        Some(event_type) => slice != event_type,
        None => !slice.is_dynamic(),
    };
    match types.slice(name) {
        Some(slice) if is_other(slice.item_type) => {
            return taken(
                "an event without reducers has its name, but the items of the slice have another type",
            );
        }
        Some(slice) if slice.policy != default_policy(name) => {
            return taken("an event without reducers has its name, but the slice has another policy");
        }
        _ => {}
    }
    match names.slice_named(name) {
        Some(slice) if slice.item != name || slice.policy != default_policy(name) => {
            taken("an event without reducers has its name, but the log contains other items in the slice")
        }
        _ => Ok(()),
    }
}

pub(super) fn slice_declaration(types: &SessionTypes, name: &str, id: usize) -> Option<SliceDeclaration> {
    let slice = types.slice(name)?;
    Some(SliceDeclaration {
        id: id as u32,
        name: slice.name.to_string(),
        policy: slice.policy,
        item: slice.item_name.to_string(),
    })
}
