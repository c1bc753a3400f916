//! Names of the events and slices that a log has declared.

use std::collections::BTreeMap;
use std::fmt;

use foldlog_codec::body::{Declare, EventDeclaration, SliceDeclaration};
use foldlog_codec::escape;
use serde::Serialize;

/// Describes an event that a log binds to slices without a declared reducer of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnregisteredEvent {
    /// Name of the event.
    pub event: String,
    /// Names of the slices, in the order of the log's declarations.
    pub slices: Vec<String>,
}

impl fmt::Display for UnregisteredEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (event, slices) = (escape::text(&self.event), list(&self.slices));
        write!(f, "event `{event}` reduces into {slices} in this log, but the host declares no such reducer")
    }
}

/// Formats names as a list, each in backticks.
pub(crate) fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", escape::text(name))).collect::<Vec<_>>().join(", ")
}

/// Declared events and slices. They are never rolled back.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeclaredNames {
    events: BTreeMap<u32, EventDeclaration>,
    slices: Vec<SliceDeclaration>,
    event_ids: BTreeMap<String, u32>,
    slice_ids: BTreeMap<String, u32>,
    /// Upper bound of the bytes for repeating all declarations in a segment's head.
    bytes: usize,
}

impl DeclaredNames {
    /// Returns an upper bound of the bytes for repeating all declarations and this one in a
    /// segment's head.
    pub(crate) fn bytes_with(&self, declare: &Declare) -> usize {
        let events = declare.events.iter().filter(|event| !self.events.contains_key(&event.id));
        let slices = declare.slices.iter().filter(|slice| slice.id as usize >= self.slices.len());
        let lens = events.map(EventDeclaration::len_max).chain(slices.map(SliceDeclaration::len_max));
        lens.fold(self.bytes, usize::saturating_add)
    }

    /// Adds a declaration that was validated before.
    pub(crate) fn learn(&mut self, declare: Declare) {
        self.bytes = self.bytes_with(&declare);
        for slice in declare.slices {
            if slice.id as usize == self.slices.len() {
                self.slice_ids.insert(slice.name.clone(), slice.id);
                self.slices.push(slice);
            }
        }
        for event in declare.events {
            self.event_ids.insert(event.name.clone(), event.id);
            self.events.insert(event.id, event);
        }
    }

    pub(crate) fn event(&self, id: u32) -> Option<&EventDeclaration> {
        self.events.get(&id)
    }

    /// Returns the latest declaration of an event.
    pub(crate) fn event_named(&self, name: &str) -> Option<&EventDeclaration> {
        self.event_ids.get(name).and_then(|id| self.events.get(id))
    }

    /// Returns the latest declaration of each event.
    pub(crate) fn events(&self) -> impl Iterator<Item = &EventDeclaration> {
        self.event_ids.values().filter_map(|id| self.events.get(id))
    }

    pub(crate) fn slice(&self, id: u32) -> Option<&SliceDeclaration> {
        self.slices.get(id as usize)
    }

    pub(crate) fn slice_named(&self, name: &str) -> Option<&SliceDeclaration> {
        self.slice_ids.get(name).and_then(|id| self.slice(*id))
    }

    pub(crate) fn slices(&self) -> &[SliceDeclaration] {
        &self.slices
    }

    pub(crate) fn last_event_id(&self) -> Option<u32> {
        self.events.keys().next_back().copied()
    }

    /// Returns all declarations, for a segment's head.
    pub(crate) fn all(&self) -> Declare {
        Declare { events: self.events.values().cloned().collect(), slices: self.slices.clone() }
    }

    /// Returns the name of an event, or a substitute if the log has not declared it.
    pub(crate) fn event_name(&self, id: u32) -> String {
        self.event(id).map_or_else(|| format!("event-{id}"), |event| event.name.clone())
    }

    pub(crate) fn slice_name(&self, id: u32) -> String {
        self.slice(id).map_or_else(|| format!("slice-{id}"), |slice| slice.name.clone())
    }
}
