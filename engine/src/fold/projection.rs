//! The projection: what all records so far amount to.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::{
    Added, BuiltIn, Declare, Dispatch, Effect, Import, ItemId, Operation, Payload, Policy, Removed,
};
use foldlog_codec::{Kind, Record};

use super::names::Names;
use super::rows::{Row, Rows};
use crate::error::{Error, Result};
use crate::types::{AnyValue, SessionTypes};

/// Where large payloads are to be had.
pub(crate) trait PayloadSource {
    /// The payload's own bytes.
    fn resolve(&self, payload: Payload<'_>) -> Result<Arc<[u8]>>;
}

impl PayloadSource for crate::log::objects::Objects {
    fn resolve(&self, payload: Payload<'_>) -> Result<Arc<[u8]>> {
        crate::log::objects::Objects::resolve(self, payload)
    }
}

/// The slices that a rollback or a snapshot is about, as they were at one position.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    slices: Vec<(Policy, Rows)>,
}

/// What the fold needs beside the record.
pub(crate) struct Folding<'a> {
    pub(crate) payloads: &'a dyn PayloadSource,
    /// The host's types; without them items stay undecoded.
    pub(crate) types: Option<&'a SessionTypes>,
    /// Values that the caller has at hand, so that what was just encoded need not be decoded: by slice and
    /// ordinal.
    pub(crate) at_hand: &'a dyn Fn(u32, u32) -> Option<AnyValue>,
    /// STATE at the target of a rollback record.
    pub(crate) frozen: &'a dyn Fn(u64) -> Option<Arc<Frozen>>,
}

#[derive(Clone, Debug)]
struct SliceState {
    policy: Policy,
    rows: Rows,
}

/// What all records so far amount to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Projection {
    pub(crate) names: Names,
    slices: Vec<SliceState>,
    pub(crate) tags: BTreeMap<String, String>,
    /// Records of kinds that this version cannot fold: the first one's sequence number and kind.
    pub(crate) unsupported: Option<(u64, Kind)>,
    next_sequence: u64,
}

/// A record's change of one slice, checked and with its items at hand.
struct Change {
    slice: usize,
    removed: Removed,
    added: Vec<Row>,
    before: Option<ItemId>,
}

impl Projection {
    /// The sequence number of the next record.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The items of a slice.
    pub(crate) fn rows(&self, slice: u32) -> Option<(Policy, &Rows)> {
        self.slices.get(slice as usize).map(|slice| (slice.policy, &slice.rows))
    }

    /// The items of a slice of that name.
    pub(crate) fn rows_named(&self, name: &str) -> Option<(Policy, &Rows)> {
        self.rows(self.names.slice_named(name)?.id)
    }

    /// The slices as they are, for coming back to.
    pub(crate) fn freeze(&self) -> Frozen {
        Frozen { slices: self.slices.iter().map(|slice| (slice.policy, slice.rows.clone())).collect() }
    }

    /// Decodes the items of a slice that are not decoded yet.
    pub(crate) fn decode_rows(
        &mut self,
        slice: u32,
        decode: &dyn Fn(&Row) -> Result<AnyValue>,
    ) -> Result<()> {
        let Some(state) = self.slices.get_mut(slice as usize) else { return Ok(()) };
        if state.rows.iter().all(|row| row.typed.is_some()) {
            return Ok(());
        }
        state.rows = state.rows.map(|row| {
            let typed = match &row.typed {
                Some(typed) => Arc::clone(typed),
                None => decode(row)?,
            };
            Ok(Row { typed: Some(typed), ..row.clone() })
        })?;
        Ok(())
    }

    /// Applies a record: the only code that changes a projection.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] where the record contradicts those before it, [`Error::Decode`] or
    /// [`Error::NewerVersion`] where an item is not what the host's type wants, [`Error::Object`] where a
    /// large payload is missing. Nothing has changed then.
    pub(crate) fn apply(&mut self, record: &Record<'_>, folding: &Folding<'_>) -> Result<()> {
        let sequence = record.sequence;
        if sequence != self.next_sequence {
            let reason = format!("{} was next", self.next_sequence);
            return Err(Error::Inconsistent { sequence, reason });
        }
        let body = |error: foldlog_codec::Error| Error::Inconsistent { sequence, reason: error.to_string() };
        match record.kind {
            Kind::OPENED => {
                let opened = foldlog_codec::body::Opened::decode(record.body).map_err(body)?;
                // A fork inherits its parent's tags and sets its own over them.
                self.tags.extend(opened.tags);
            }
            Kind::DECLARE => {
                self.declare(sequence, Declare::decode(record.body).map_err(body)?, folding.types)?;
            }
            Kind::DISPATCH => {
                self.dispatch(sequence, Dispatch::decode(record.body).map_err(body)?, folding)?;
            }
            Kind::IMPORT => self.import(sequence, Import::decode(record.body).map_err(body)?, folding)?,
            Kind::ROLLBACK => {
                let rollback = foldlog_codec::body::Rollback::decode(record.body).map_err(body)?;
                self.rollback(sequence, rollback, folding)?;
            }
            Kind::SNAPSHOT => {}
            kind => {
                self.unsupported.get_or_insert((sequence, kind));
            }
        }
        self.next_sequence += 1;
        Ok(())
    }

    /// Passes over a record that is not on the path being folded. What it declares is never undone.
    ///
    /// # Errors
    ///
    /// As [`apply`](Projection::apply).
    pub(crate) fn pass_over(&mut self, record: &Record<'_>) -> Result<()> {
        let sequence = record.sequence;
        if record.kind == Kind::DECLARE {
            let declare = Declare::decode(record.body)
                .map_err(|error| Error::Inconsistent { sequence, reason: error.to_string() })?;
            self.declare(sequence, declare, None)?;
        }
        self.next_sequence = sequence + 1;
        Ok(())
    }

    fn declare(&mut self, sequence: u64, declare: Declare, types: Option<&SessionTypes>) -> Result<()> {
        self.names.check(sequence, &declare)?;
        let known = self.slices.len();
        for slice in declare.slices.iter().filter(|slice| slice.id as usize >= known) {
            let index = types.and_then(|types| types.slice(&slice.name)).and_then(|slice| slice.index());
            self.slices.push(SliceState { policy: slice.policy, rows: Rows::indexed(index) });
        }
        self.names.learn(declare);
        Ok(())
    }

    fn dispatch(&mut self, sequence: u64, dispatch: Dispatch<'_>, folding: &Folding<'_>) -> Result<()> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let mut event_row = None;
        let effects = match (&dispatch.operation, dispatch.effects) {
            (Operation::Tag { key, value }, _) => {
                match value {
                    Some(value) => self.tags.insert(key.clone(), value.clone()),
                    None => self.tags.remove(key),
                };
                return Ok(());
            }
            (Operation::Event { event, data }, effects) => {
                let declared = self
                    .names
                    .event(*event)
                    .ok_or_else(|| bad(format!("event {event} was never declared")))?;
                event_row = Some((folding.payloads.resolve(*data)?, declared.version));
                match effects {
                    Some(effects) => effects,
                    None => declared
                        .bindings
                        .iter()
                        .filter_map(|binding| match binding.built_in {
                            BuiltIn::Append => Some(Effect::append(binding.slice)),
                            BuiltIn::Replace => Some(Effect::replace(binding.slice)),
                            BuiltIn::Explicit => None,
                        })
                        .collect(),
                }
            }
            (_, effects) => effects.unwrap_or_default(),
        };
        let changes: Result<Vec<Change>> = effects
            .into_iter()
            .map(|effect| self.check_effect(sequence, effect, event_row.as_ref(), folding))
            .collect();
        self.carry_out(changes?);
        Ok(())
    }

    fn check_effect(
        &self,
        sequence: u64,
        effect: Effect<'_>,
        event: Option<&(Arc<[u8]>, u32)>,
        folding: &Folding<'_>,
    ) -> Result<Change> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let slice = self
            .slices
            .get(effect.slice as usize)
            .ok_or_else(|| bad(format!("slice {} was never declared", effect.slice)))?;
        let name = || self.names.slice_name(effect.slice);
        if slice.policy == Policy::Log && (effect.removed != Removed::None || effect.before.is_some()) {
            return Err(bad(format!("LOG slice `{}` only grows", name())));
        }
        if let Removed::Items(ids) = &effect.removed {
            let mut seen = std::collections::BTreeSet::new();
            if let Some(id) = ids.iter().find(|id| !slice.rows.contains(**id) || !seen.insert(**id)) {
                let (at, ordinal) = (id.sequence, id.ordinal);
                return Err(bad(format!("`{}` has no item {at}.{ordinal} to remove", name())));
            }
        }
        let gone = |id: &ItemId| match &effect.removed {
            Removed::None => false,
            Removed::All => true,
            Removed::Items(ids) => ids.contains(id),
        };
        if let Some(id) = effect.before.filter(|id| !slice.rows.contains(*id) || gone(id)) {
            let (at, ordinal) = (id.sequence, id.ordinal);
            return Err(bad(format!("`{}` has no item {at}.{ordinal} to insert before", name())));
        }
        let items: Vec<(Arc<[u8]>, u32)> = match effect.added {
            Added::Event => event.cloned().into_iter().collect(),
            Added::Items { items, version } => {
                let items: Result<Vec<_>> = items
                    .into_iter()
                    .map(|item| folding.payloads.resolve(item).map(|bytes| (bytes, version)))
                    .collect();
                items?
            }
        };
        let added = self.new_rows(sequence, effect.slice, items, folding)?;
        Ok(Change { slice: effect.slice as usize, removed: effect.removed, added, before: effect.before })
    }

    /// Names new items, and decodes them where the host's types are there.
    fn new_rows(
        &self,
        sequence: u64,
        slice: u32,
        items: Vec<(Arc<[u8]>, u32)>,
        folding: &Folding<'_>,
    ) -> Result<Vec<Row>> {
        let known = folding.types.zip(self.names.slice(slice)).and_then(|(types, s)| types.slice(&s.name));
        (0..)
            .zip(items)
            .map(|(ordinal, (bytes, version))| {
                let typed = match (folding.at_hand)(slice, ordinal) {
                    Some(typed) => Some(typed),
                    None => known.map(|slice| (slice.decode)(version, sequence, &bytes)).transpose()?,
                };
                Ok(Row { id: ItemId { sequence, ordinal }, version, bytes, typed })
            })
            .collect()
    }

    fn carry_out(&mut self, changes: Vec<Change>) {
        for change in changes {
            let Some(slice) = self.slices.get_mut(change.slice) else { continue };
            match change.removed {
                Removed::None => {}
                Removed::All => slice.rows.clear(),
                Removed::Items(ids) => ids.into_iter().for_each(|id| slice.rows.remove(id)),
            }
            match change.before {
                Some(anchor) => slice.rows.insert_before(anchor, change.added),
                None => change.added.into_iter().for_each(|row| slice.rows.push(row)),
            }
        }
    }

    fn import(&mut self, sequence: u64, import: Import<'_>, folding: &Folding<'_>) -> Result<()> {
        let mut changes = Vec::new();
        for slice in import.slices {
            if self.slices.get(slice.slice as usize).is_none() {
                let reason = format!("slice {} was never declared", slice.slice);
                return Err(Error::Inconsistent { sequence, reason });
            }
            let items: Result<Vec<_>> = slice
                .items
                .into_iter()
                .map(|(item, version)| folding.payloads.resolve(item).map(|bytes| (bytes, version)))
                .collect();
            let added = self.new_rows(sequence, slice.slice, items?, folding)?;
            let slice = slice.slice as usize;
            changes.push(Change { slice, removed: Removed::None, added, before: None });
        }
        self.tags.extend(import.tags);
        self.carry_out(changes);
        Ok(())
    }

    fn rollback(
        &mut self,
        sequence: u64,
        rollback: foldlog_codec::body::Rollback,
        folding: &Folding<'_>,
    ) -> Result<()> {
        let to = rollback.to;
        if to >= sequence {
            let reason = format!("it goes back to {to}, which is not before it");
            return Err(Error::Inconsistent { sequence, reason });
        }
        let frozen = (folding.frozen)(to).ok_or_else(|| Error::Inconsistent {
            sequence,
            reason: format!("nothing is known of position {to}"),
        })?;
        for (index, slice) in self.slices.iter_mut().enumerate() {
            // A slice that was declared later was empty then.
            let then =
                frozen.slices.get(index).map_or_else(|| slice.rows.emptied(), |(_, rows)| rows.clone());
            match slice.policy {
                Policy::State => slice.rows = then,
                Policy::Cache => slice.rows.clear(),
                Policy::Log if !rollback.preserve_logs => slice.rows = then,
                Policy::Log => {}
            }
        }
        Ok(())
    }
}
