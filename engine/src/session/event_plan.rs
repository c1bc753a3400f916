//! State that a session caches between dispatches of an event, so that each costs little more than
//! its encoding.

use std::cell::Cell;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Action, BuiltIn, Dispatch, Lane, Payload};
use foldlog_codec::frame::HEADER_LEN;
use smol_str::SmolStr;

use crate::error::{Error, Result};
use crate::log::writer::AppendBody;
use crate::names::DeclaredNames;
use crate::types::{Event, ItemType, Reduce, SessionTypes, encode_into};

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
