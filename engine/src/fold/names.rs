//! What the log has declared.

use std::collections::BTreeMap;

use foldlog_codec::body::{Declare, EventDeclaration, SLICES_MAX, SliceDeclaration};

use crate::error::{Error, Result};

/// Declared events and slices. Never rolled back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    events: BTreeMap<u32, EventDeclaration>,
    slices: Vec<SliceDeclaration>,
    event_ids: BTreeMap<String, u32>,
    slice_ids: BTreeMap<String, u32>,
}

impl Names {
    /// Checks a declaration against those before it.
    pub(crate) fn check(&self, sequence: u64, declare: &Declare) -> Result<()> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let mut known = self.slices.len();
        for slice in &declare.slices {
            match self.slices.get(slice.id as usize) {
                Some(before) if before == slice => {}
                Some(before) => return Err(bad(format!("slice {} was `{}`", slice.id, before.name))),
                None if slice.id as usize == known && known < SLICES_MAX => known += 1,
                None => return Err(bad(format!("slice id {} is out of turn", slice.id))),
            }
        }
        for event in &declare.events {
            if self.events.get(&event.id).is_some_and(|before| before != event) {
                return Err(bad(format!("event {} is declared twice", event.id)));
            }
            if let Some(binding) = event.bindings.iter().find(|binding| binding.slice as usize >= known) {
                return Err(bad(format!("`{}` is bound to unknown slice {}", event.name, binding.slice)));
            }
        }
        Ok(())
    }

    /// Takes in a declaration that was checked.
    pub(crate) fn learn(&mut self, declare: Declare) {
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

    /// The latest declaration of an event.
    pub(crate) fn event_named(&self, name: &str) -> Option<&EventDeclaration> {
        self.event_ids.get(name).and_then(|id| self.events.get(id))
    }

    /// The latest declaration of each event.
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

    pub(crate) fn next_event_id(&self) -> u32 {
        self.events.keys().next_back().map_or(0, |id| id + 1)
    }

    /// Everything, for a segment's head.
    pub(crate) fn all(&self) -> Declare {
        Declare { events: self.events.values().cloned().collect(), slices: self.slices.clone() }
    }

    pub(crate) fn slice_name(&self, id: u32) -> String {
        self.slice(id).map_or_else(|| format!("slice-{id}"), |slice| slice.name.clone())
    }
}
