//! Names: the events and slices that a log has declared.

use std::collections::BTreeMap;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Declare, EventDeclaration, SLICES_MAX, SliceDeclaration};
use foldlog_codec::frame::BODY_LEN_MAX;

use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};

/// Holds declared events and slices. They are never rolled back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    events: BTreeMap<u32, EventDeclaration>,
    slices: Vec<SliceDeclaration>,
    event_ids: BTreeMap<String, u32>,
    slice_ids: BTreeMap<String, u32>,
    /// Upper bound of the bytes that a segment's head takes to repeat all declarations.
    bytes: usize,
}

impl Names {
    /// Checks a declaration against those before it.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if the declaration contradicts an earlier one or itself, or passes a limit.
    pub(crate) fn check(&self, sequence: SequenceNumber, declare: &Declare) -> Result<()> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        self.check_len(declare).map_err(|error| bad(error.to_string()))?;
        let mut known = self.slices.len();
        for slice in &declare.slices {
            match self.slices.get(slice.id as usize) {
                Some(before) if before == slice => {}
                Some(before) => {
                    return Err(bad(format!("slice {} was declared as `{}` before", slice.id, before.name)));
                }
                None if slice.id as usize == known => known += 1,
                None => return Err(bad(format!("slice id {} is not the next one", slice.id))),
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

    /// Checks that the head of a segment, which is one frame, can repeat this declaration too, and that the
    /// number of slices is within its limit. Called before a declaration is written, and again when it is
    /// read.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the declarations pass one of the limits.
    pub(crate) fn check_len(&self, declare: &Declare) -> Result<()> {
        let slices = declare.slices.last().map_or(0, |last| last.id as usize + 1);
        if slices > SLICES_MAX {
            let (found, max) = (slices as u64, SLICES_MAX as u64);
            return Err(Error::TooLarge { what: "number of slices", found, max });
        }
        let bytes = self.bytes.saturating_add(self.new_bytes(declare));
        if bytes > BODY_LEN_MAX && !sabotage::is(Breakage::DeclaredOverLimit) {
            let (found, max) = (bytes as u64, BODY_LEN_MAX as u64);
            return Err(Error::TooLarge { what: "bytes of all declarations", found, max });
        }
        Ok(())
    }

    /// Returns how many bytes a declaration adds.
    fn new_bytes(&self, declare: &Declare) -> usize {
        let events = declare.events.iter().filter(|event| !self.events.contains_key(&event.id));
        let slices = declare.slices.iter().filter(|slice| slice.id as usize >= self.slices.len());
        let lens = events.map(EventDeclaration::len_max).chain(slices.map(SliceDeclaration::len_max));
        lens.fold(0, usize::saturating_add)
    }

    /// Adds a declaration that was checked.
    pub(crate) fn learn(&mut self, declare: Declare) {
        self.bytes = self.bytes.saturating_add(self.new_bytes(&declare));
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

    pub(crate) fn next_event_id(&self) -> Result<u32> {
        let Some(last) = self.events.keys().next_back() else { return Ok(0) };
        let (found, max) = (u64::from(*last) + 1, u64::from(u32::MAX));
        last.checked_add(1).ok_or(Error::TooLarge { what: "event id", found, max })
    }

    /// Returns all declarations, for a segment's head.
    pub(crate) fn all(&self) -> Declare {
        Declare { events: self.events.values().cloned().collect(), slices: self.slices.clone() }
    }

    pub(crate) fn slice_name(&self, id: u32) -> String {
        self.slice(id).map_or_else(|| format!("slice-{id}"), |slice| slice.name.clone())
    }
}
