//! The projection: what all records so far amount to.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::{
    Action, Added, Binding, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Import, ItemId, Payload,
    Policy, Removed, Rollback, ToolEnd,
};
use foldlog_codec::image::Image;
use foldlog_codec::{Kind, Record, SequenceNumber};

use super::names::Names;
use super::operations::Operations;
use super::record_body::RecordBody;
use super::unread;
use crate::error::{Error, Result};
use crate::items::AnyValue;
use crate::items::Items;
use crate::items::log_items::LogItems;
use crate::items::row::{ItemRef, Row, RowItem, RowRef};
use crate::items::rows::{NewValue, Rows};
use crate::log::objects::Objects;
use crate::types::{
    Decoder, Recorded, SessionTypes, Slice, SliceTypes, TAIL_ITEMS, ToolInvocations, ToolInvoked,
};

/// The version of the items that tools' ends make.
pub(super) const INVOKED_VERSION: u32 = ToolInvocations::ITEM_VERSION;

/// What is held in memory of the items of LOG slices, and of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogSlices {
    /// All are held, as an audit wants them that compares slices position by position.
    #[default]
    Held,
    /// The last ones are held; a session reads the others from its log.
    InLog,
    /// No item of any slice is held but by its name: see [`super::unread`].
    Unread,
    /// No items at all, so that what contradicts them is not noticed: names, tags and operations alone.
    Outline,
}

/// A projection as it was at one position.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    projection: Projection,
    /// Whether STATE alone is what it was, as an image tells it.
    state_alone: bool,
}

impl Frozen {
    pub(crate) fn projection(&self) -> &Projection {
        &self.projection
    }

    /// Whether everything is what it was.
    pub(crate) fn is_whole(&self) -> bool {
        !self.state_alone
    }
}

/// Values that the caller has at hand, so that what was just encoded need not be decoded.
pub(crate) enum DecodedValues<'a> {
    Nothing,
    /// The event's own value.
    Event(AnyValue),
    /// By slice and ordinal, in ascending order of them.
    Items(&'a [((u32, u32), AnyValue)]),
}

impl DecodedValues<'_> {
    fn get(&self, slice: u32, ordinal: u32) -> Option<AnyValue> {
        match self {
            DecodedValues::Nothing => None,
            DecodedValues::Event(value) => Some(Arc::clone(value)),
            DecodedValues::Items(items) => {
                let at = items.binary_search_by_key(&(slice, ordinal), |(place, _)| *place).ok()?;
                items.get(at).map(|(_, value)| Arc::clone(value))
            }
        }
    }
}

/// What the fold needs beside the record.
pub(crate) struct Folding<'a> {
    /// Where large payloads are to be had.
    pub(crate) objects: &'a Objects,
    /// The host's types; without them items stay undecoded.
    pub(crate) types: Option<&'a SessionTypes>,
    /// STATE at the target of a rollback record.
    pub(crate) frozen: &'a dyn Fn(SequenceNumber) -> Option<Arc<Frozen>>,
}

/// One slice.
#[derive(Clone, Debug)]
pub(super) struct SliceState {
    pub(super) policy: Policy,
    pub(super) items: Items,
    /// How the host reads an item, where it knows the slice.
    pub(super) decoder: Option<Decoder>,
    /// Whether nothing is held of an item but its name.
    pub(super) unread: bool,
}

/// What all records so far amount to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Projection {
    pub(crate) names: Arc<Names>,
    slices: Vec<SliceState>,
    pub(crate) tags: Arc<BTreeMap<String, String>>,
    /// Records of kinds that this version cannot fold: the first one's sequence number and kind.
    pub(crate) unsupported: Option<(SequenceNumber, Kind)>,
    pub(crate) operations: Arc<Operations>,
    next_sequence: SequenceNumber,
    log_slices: LogSlices,
}

/// A record's change of one slice, checked and with its items at hand.
struct SliceChange {
    slice: usize,
    removed: Removed,
    added: Vec<Row>,
    before: Option<ItemId>,
}

impl Projection {
    /// Of no records.
    pub(crate) fn new(log_slices: LogSlices) -> Projection {
        Projection { log_slices, ..Projection::default() }
    }

    /// Of the records that an image covers.
    pub(super) fn restored(names: Arc<Names>, slices: Vec<SliceState>, image: &Image<'_>) -> Projection {
        Projection {
            names,
            slices,
            tags: Arc::new(image.tags.clone()),
            unsupported: image.unsupported,
            operations: Arc::new(Operations::restored(image)),
            next_sequence: image.next_sequence,
            log_slices: LogSlices::InLog,
        }
    }

    /// The items of all slices, by id.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Items> {
        self.slices.iter().map(|slice| &slice.items)
    }

    /// What is held of the items.
    pub(super) fn log_slices(&self) -> LogSlices {
        self.log_slices
    }

    /// The sequence number of the next record.
    pub(crate) fn next_sequence(&self) -> SequenceNumber {
        self.next_sequence
    }

    /// The items of a slice.
    pub(crate) fn items(&self, slice: u32) -> Option<(Policy, &Items)> {
        self.slices.get(slice as usize).map(|slice| (slice.policy, &slice.items))
    }

    /// The items of a slice of that name.
    pub(crate) fn items_named(&self, name: &str) -> Option<(Policy, &Items)> {
        self.items(self.names.slice_named(name)?.id)
    }

    /// Everything as it is, for coming back to. Shared, so it costs little.
    pub(crate) fn freeze(&self) -> Frozen {
        Frozen { projection: self.clone(), state_alone: false }
    }

    /// An earlier position of which STATE is known, by slice; a slice that is not named was empty.
    pub(super) fn state_alone(&self, mut slices: BTreeMap<u32, Rows>) -> Frozen {
        let mut projection = self.clone();
        for (id, slice) in (0..).zip(&mut projection.slices) {
            if let (Policy::State, Items::Held(rows)) = (slice.policy, &mut slice.items) {
                *rows = slices.remove(&id).unwrap_or_else(|| rows.emptied());
            }
        }
        Frozen { projection, state_alone: true }
    }

    /// Decodes the items of a slice that are not decoded yet.
    pub(crate) fn decode_rows(
        &mut self,
        slice: u32,
        decode: &dyn Fn(RowRef<'_>) -> Result<AnyValue>,
    ) -> Result<()> {
        let Some(SliceState { items: Items::Held(rows), .. }) = self.slices.get_mut(slice as usize) else {
            return Ok(());
        };
        if rows.iter().all(|row| row.typed().is_some()) {
            return Ok(());
        }
        *rows = rows.map(|row| {
            let item = match row.item {
                ItemRef::Bytes(_) => RowItem::Typed(decode(row)?),
                ItemRef::Typed(_) | ItemRef::InRun(..) => return Ok(row.to_row()),
            };
            Ok::<Row, Error>(Row { id: row.id, version: row.version, item })
        })?;
        Ok(())
    }

    /// Applies a record, whose content is decoded: the only code that changes a projection, with its short way
    /// [`apply_event`](Projection::apply_event).
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] where the record contradicts those before it, [`Error::Decode`] or
    /// [`Error::NewerVersion`] where an item is not what the host's type wants, [`Error::Object`] where a
    /// large payload is missing. Nothing has changed then.
    pub(crate) fn apply(
        &mut self,
        sequence: SequenceNumber,
        content: RecordBody<'_>,
        at_hand: DecodedValues<'_>,
        folding: &Folding<'_>,
    ) -> Result<()> {
        self.check_next(sequence)?;
        match self.without_items(content) {
            // A fork inherits its parent's tags and sets its own over them.
            RecordBody::Opened(opened) => Arc::make_mut(&mut self.tags).extend(opened.tags),
            RecordBody::Declare(declare) => self.declare(sequence, declare, folding.types)?,
            RecordBody::Dispatch(dispatch) => self.dispatch(sequence, dispatch, at_hand, folding)?,
            RecordBody::Import(import) => self.import(sequence, import, folding)?,
            RecordBody::Rollback(rollback) => self.rollback(sequence, &rollback, folding)?,
            RecordBody::Snapshot | RecordBody::Observed => {}
            RecordBody::ToolBegin(begin) => Arc::make_mut(&mut self.operations).begin(sequence, &begin)?,
            RecordBody::ToolEnd(end) => self.tool_end(sequence, &end, folding)?,
            RecordBody::Settle(settle) => Arc::make_mut(&mut self.operations).settle(sequence, &settle)?,
            RecordBody::Unsupported(kind) => {
                self.unsupported.get_or_insert((sequence, kind));
            }
        }
        self.next_sequence += 1;
        Ok(())
    }

    /// As [`apply`](Projection::apply), of a dispatch that holds no more than an event which does as declared: nearly
    /// every record, so nothing is made here that is moved afterwards. `data` is not looked at where the value is at
    /// hand.
    #[inline]
    pub(crate) fn apply_event<V: NewValue>(
        &mut self,
        sequence: SequenceNumber,
        (event, data, value): (u32, Payload<'_>, Option<V>),
        folding: &Folding<'_>,
    ) -> Result<()> {
        self.check_next(sequence)?;
        self.as_declared(sequence, (event, data, value), folding)?;
        self.next_sequence += 1;
        Ok(())
    }

    /// An event does to each slice what its declaration says.
    #[inline]
    fn as_declared<V: NewValue>(
        &mut self,
        sequence: SequenceNumber,
        (event, data, value): (u32, Payload<'_>, Option<V>),
        folding: &Folding<'_>,
    ) -> Result<()> {
        let declared = declared(&self.names, sequence, event)?;
        let (id, version) = (ItemId { sequence, ordinal: 0 }, declared.version);
        let [binding] = declared.bindings.as_slice() else {
            let value = value.and_then(NewValue::shared);
            return as_declared_many(&mut self.slices, (sequence, declared), (data, value), folding);
        };
        // Nearly every event has one binding, and needs no list of rows.
        let Some(slice) = bound_slice(&mut self.slices, sequence, binding)? else { return Ok(()) };
        match (value, slice.decoder) {
            (Some(value), _) => put_value(slice, binding, id, version, value),
            (None, Some(decoder)) if data.object().is_none() => {
                let recorded = Recorded::InBody(data.bytes());
                match &mut slice.items {
                    Items::Held(rows) if binding.built_in != BuiltIn::Replace => {
                        (decoder.behind)(rows, version, sequence, recorded)?;
                    }
                    _ => {
                        let item = RowItem::Typed((decoder.alone)(version, sequence, recorded)?);
                        put(slice, binding, Row { id, version, item });
                    }
                }
            }
            (None, _) => {
                let item = new_item(slice, sequence, (data, version), None, folding)?;
                put(slice, binding, Row { id, version, item });
            }
        }
        Ok(())
    }

    /// What is left of a content for a projection that holds no items.
    fn without_items<'a>(&self, content: RecordBody<'a>) -> RecordBody<'a> {
        if self.log_slices != LogSlices::Outline {
            return content;
        }
        match content {
            RecordBody::Dispatch(Dispatch { action: action @ Action::Tag { .. }, .. }) => {
                RecordBody::Dispatch(Dispatch { action, effects: None })
            }
            RecordBody::Dispatch(_) | RecordBody::Rollback(_) => RecordBody::Observed,
            RecordBody::Import(import) => RecordBody::Import(Import { slices: Vec::new(), ..import }),
            content => content,
        }
    }

    /// Passes over an event, for a projection that holds no items.
    ///
    /// # Errors
    ///
    /// As [`apply`](Projection::apply).
    pub(super) fn pass_over_event(&mut self, sequence: SequenceNumber) -> Result<()> {
        self.check_next(sequence)?;
        self.next_sequence += 1;
        Ok(())
    }

    fn check_next(&self, sequence: SequenceNumber) -> Result<()> {
        if sequence == self.next_sequence {
            return Ok(());
        }
        let reason = format!("{} was next", self.next_sequence);
        Err(Error::Inconsistent { sequence, reason })
    }

    /// Passes over a record that is not on the path being folded. What it declares is never undone.
    ///
    /// # Errors
    ///
    /// As [`apply`](Projection::apply).
    pub(crate) fn pass_over(&mut self, record: &Record<'_>) -> Result<()> {
        if record.kind == Kind::DECLARE
            && let RecordBody::Declare(declare) = RecordBody::of(record)?
        {
            self.declare(record.sequence, declare, None)?;
        }
        self.next_sequence = record.sequence + 1;
        Ok(())
    }

    fn declare(
        &mut self,
        sequence: SequenceNumber,
        declare: Declare,
        types: Option<&SessionTypes>,
    ) -> Result<()> {
        self.names.check(sequence, &declare)?;
        let known = self.slices.len();
        for slice in declare.slices.iter().filter(|slice| slice.id as usize >= known) {
            let types = types.and_then(|types| types.slice(&slice.name));
            let items = match (slice.policy, self.log_slices) {
                (Policy::Log, LogSlices::InLog) => {
                    Items::InLog(LogItems::new(types.map_or(TAIL_ITEMS, |types| types.tail_items)))
                }
                _ => Items::Held(Rows::indexed(types.and_then(SliceTypes::index))),
            };
            let unread = self.log_slices == LogSlices::Unread;
            let decoder = if unread { Some(unread::DECODER) } else { types.map(|types| types.decoder) };
            self.slices.push(SliceState { policy: slice.policy, items, decoder, unread });
        }
        Arc::make_mut(&mut self.names).learn(declare);
        Ok(())
    }

    fn dispatch(
        &mut self,
        sequence: SequenceNumber,
        dispatch: Dispatch<'_>,
        at_hand: DecodedValues<'_>,
        folding: &Folding<'_>,
    ) -> Result<()> {
        let mut event_row = None;
        let effects = match (&dispatch.action, dispatch.effects) {
            (Action::Tag { key, value }, _) => {
                let tags = Arc::make_mut(&mut self.tags);
                match value {
                    Some(value) => tags.insert(key.clone(), value.clone()),
                    None => tags.remove(key),
                };
                return Ok(());
            }
            (Action::Event { event, data }, effects) => {
                let Some(effects) = effects else {
                    let value = if let DecodedValues::Event(value) = at_hand { Some(value) } else { None };
                    return self.as_declared(sequence, (*event, *data, value), folding);
                };
                event_row = Some((*data, declared(&self.names, sequence, *event)?.version));
                effects
            }
            (_, effects) => effects.unwrap_or_default(),
        };
        let changes: Result<Vec<SliceChange>> = effects
            .into_iter()
            .map(|effect| self.check_effect(sequence, effect, event_row, &at_hand, folding))
            .collect();
        self.carry_out(changes?);
        Ok(())
    }

    fn check_effect(
        &self,
        sequence: SequenceNumber,
        effect: Effect<'_>,
        event: Option<(Payload<'_>, u32)>,
        at_hand: &DecodedValues<'_>,
        folding: &Folding<'_>,
    ) -> Result<SliceChange> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let slice = self
            .slices
            .get(effect.slice as usize)
            .ok_or_else(|| bad(format!("slice {} was never declared", effect.slice)))?;
        let name = || self.names.slice_name(effect.slice);
        if slice.policy == Policy::Log && (effect.removed != Removed::None || effect.before.is_some()) {
            return Err(bad(format!("LOG slice `{}` only grows", name())));
        }
        let rows = slice.items.held();
        if let Removed::Items(ids) = &effect.removed {
            let mut seen = std::collections::BTreeSet::new();
            if let Some(id) = ids.iter().find(|id| !rows.contains(**id) || !seen.insert(**id)) {
                let (at, ordinal) = (id.sequence, id.ordinal);
                return Err(bad(format!("`{}` has no item {at}.{ordinal} to remove", name())));
            }
        }
        let gone = |id: &ItemId| match &effect.removed {
            Removed::None => false,
            Removed::All => true,
            Removed::Items(ids) => ids.contains(id),
        };
        if let Some(id) = effect.before.filter(|id| !rows.contains(*id) || gone(id)) {
            let (at, ordinal) = (id.sequence, id.ordinal);
            return Err(bad(format!("`{}` has no item {at}.{ordinal} to insert before", name())));
        }
        let place = (effect.slice, sequence);
        let added = match effect.added {
            Added::Event => new_rows(slice, place, event, at_hand, folding)?,
            Added::Items { items, version } => {
                new_rows(slice, place, items.into_iter().map(|item| (item, version)), at_hand, folding)?
            }
        };
        Ok(SliceChange {
            slice: effect.slice as usize,
            removed: effect.removed,
            added,
            before: effect.before,
        })
    }

    fn carry_out(&mut self, changes: Vec<SliceChange>) {
        for change in changes {
            let Some(slice) = self.slices.get_mut(change.slice) else { continue };
            let Items::Held(rows) = &mut slice.items else {
                // A LOG slice only grows, as was checked.
                change.added.into_iter().for_each(|row| slice.items.push(row));
                continue;
            };
            match change.removed {
                Removed::None => {}
                Removed::All => rows.clear(),
                Removed::Items(ids) => ids.into_iter().for_each(|id| rows.remove(id)),
            }
            match change.before {
                Some(anchor) => rows.insert_before(anchor, change.added),
                None => change.added.into_iter().for_each(|row| rows.push(row)),
            }
        }
    }

    fn import(&mut self, sequence: SequenceNumber, import: Import<'_>, folding: &Folding<'_>) -> Result<()> {
        let mut changes = Vec::new();
        for imported in import.slices {
            let Some(slice) = self.slices.get(imported.slice as usize) else {
                let reason = format!("slice {} was never declared", imported.slice);
                return Err(Error::Inconsistent { sequence, reason });
            };
            let added = new_rows(
                slice,
                (imported.slice, sequence),
                imported.items,
                &DecodedValues::Nothing,
                folding,
            )?;
            let slice = imported.slice as usize;
            changes.push(SliceChange { slice, removed: Removed::None, added, before: None });
        }
        Arc::make_mut(&mut self.tags).extend(import.tags);
        self.carry_out(changes);
        Ok(())
    }

    /// A tool's end takes back what the tool did, where it failed, and adds to LOG what is to be known of it.
    fn tool_end(&mut self, sequence: SequenceNumber, end: &ToolEnd<'_>, folding: &Folding<'_>) -> Result<()> {
        self.operations.check_end(end).map_err(|(operation, reason)| Error::Inconsistent {
            sequence,
            reason: format!("operation {operation}: {reason}"),
        })?;
        if self.log_slices != LogSlices::Outline {
            let row = self.invoked(sequence, end, folding)?;
            if let Some(to) = end.rolled_back_to() {
                self.rollback(sequence, &Rollback { to, preserve_logs: true }, folding)?;
            }
            self.push_invoked(end, row);
        }
        Arc::make_mut(&mut self.operations).end(end);
        Ok(())
    }

    /// As [`apply`](Projection::apply), of a tool's end on a path that is folded by itself: what it takes back is not on
    /// that path, and operations are none of the path's.
    pub(crate) fn apply_end_along(
        &mut self,
        sequence: SequenceNumber,
        end: &ToolEnd<'_>,
        folding: &Folding<'_>,
    ) -> Result<()> {
        self.check_next(sequence)?;
        let row = self.invoked(sequence, end, folding)?;
        self.push_invoked(end, row);
        self.next_sequence += 1;
        Ok(())
    }

    fn push_invoked(&mut self, end: &ToolEnd<'_>, row: Row) {
        if let Some(slice) = self.slices.get_mut(end.slice as usize) {
            slice.items.push(row);
        }
    }

    /// The item that a tool's end adds to its LOG slice.
    fn invoked(&self, sequence: SequenceNumber, end: &ToolEnd<'_>, folding: &Folding<'_>) -> Result<Row> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let slice = self.slices.get(end.slice as usize).filter(|slice| slice.policy == Policy::Log);
        let Some(slice) = slice else { return Err(bad(format!("slice {} is no LOG slice", end.slice))) };
        let (id, version) = (ItemId { sequence, ordinal: 0 }, INVOKED_VERSION);
        // A host that knows the slice knows it as this, and need not read what would be written.
        let name = self.names.slice(end.slice).map(|declared| declared.name.as_str());
        let is_known = slice.decoder.is_some() && !slice.unread && name == Some(ToolInvocations::NAME);
        let item = match is_known {
            true => RowItem::Typed(Arc::new(ToolInvoked::of(end))),
            false => new_item(slice, sequence, (Payload::new(&end.invoked()), version), None, folding)?,
        };
        Ok(Row { id, version, item })
    }

    /// Shows STATE as it was when the first operation that is still open began: what was done since is taken back
    /// once the session is recovered. Not recorded, so it is for a session's own projection that takes no record
    /// until then.
    pub(crate) fn set_back_to(&mut self, begin: SequenceNumber, frozen: &Frozen) {
        self.go_back(self.next_sequence, &Rollback { to: begin, preserve_logs: true }, frozen);
    }

    fn rollback(
        &mut self,
        sequence: SequenceNumber,
        rollback: &Rollback,
        folding: &Folding<'_>,
    ) -> Result<()> {
        let to = rollback.to;
        if to >= sequence {
            let reason = format!("it goes back to {to}, which is not before it");
            return Err(Error::Inconsistent { sequence, reason });
        }
        let known = (folding.frozen)(to).filter(|frozen| rollback.preserve_logs || frozen.is_whole());
        let frozen = known.ok_or_else(|| Error::Inconsistent {
            sequence,
            reason: format!("nothing is known of position {to}"),
        })?;
        self.go_back(sequence, rollback, &frozen);
        Ok(())
    }

    /// STATE goes back to what it was, CACHE is emptied; `sequence` is the record that says so.
    fn go_back(&mut self, sequence: SequenceNumber, rollback: &Rollback, frozen: &Frozen) {
        let to = rollback.to;
        for (index, slice) in self.slices.iter_mut().enumerate() {
            let then = frozen.projection.slices.get(index).map(|then| &then.items);
            match (&mut slice.items, then) {
                (Items::Held(rows), _) if slice.policy == Policy::Cache => rows.clear(),
                _ if slice.policy == Policy::Log && rollback.preserve_logs => {}
                (Items::Held(rows), Some(Items::Held(then))) => *rows = then.clone(),
                // A slice that was declared later was empty then.
                (Items::Held(rows), _) => rows.clear(),
                (Items::InLog(items), Some(Items::InLog(then))) => items.go_back(then, to, sequence),
                (Items::InLog(items), _) => {
                    let then = LogItems::new(items.tail_max());
                    items.go_back(&then, to, sequence);
                }
            }
        }
    }
}

#[inline]
fn declared(names: &Names, sequence: SequenceNumber, event: u32) -> Result<&EventDeclaration> {
    let reason = || format!("event {event} was never declared");
    names.event(event).ok_or_else(|| Error::Inconsistent { sequence, reason: reason() })
}

/// An event of several bindings, or of none, does to each slice what its declaration says.
fn as_declared_many(
    slices: &mut [SliceState],
    (sequence, declared): (SequenceNumber, &EventDeclaration),
    (data, value): (Payload<'_>, Option<AnyValue>),
    folding: &Folding<'_>,
) -> Result<()> {
    let (id, version) = (ItemId { sequence, ordinal: 0 }, declared.version);
    let at_hand = value.map_or(DecodedValues::Nothing, DecodedValues::Event);
    let mut items = Vec::new();
    for binding in &declared.bindings {
        if let Some(slice) = bound_slice(slices, sequence, binding)? {
            let at_hand = at_hand.get(binding.slice, 0);
            items.push((binding, new_item(slice, sequence, (data, version), at_hand, folding)?));
        }
    }
    for (binding, item) in items {
        if let Some(slice) = slices.get_mut(binding.slice as usize) {
            put(slice, binding, Row { id, version, item });
        }
    }
    Ok(())
}

/// The slice of a binding that happens as declared; `None` for one of which the record would say what it did.
#[inline]
fn bound_slice<'a>(
    slices: &'a mut [SliceState],
    sequence: SequenceNumber,
    binding: &Binding,
) -> Result<Option<&'a mut SliceState>> {
    let bad = |reason: String| Err(Error::Inconsistent { sequence, reason });
    let Some(slice) = slices.get_mut(binding.slice as usize) else {
        return bad(format!("slice {} was never declared", binding.slice));
    };
    if binding.built_in == BuiltIn::Replace && slice.policy == Policy::Log {
        return bad(format!("LOG slice {} only grows", binding.slice));
    }
    Ok((binding.built_in != BuiltIn::Explicit).then_some(slice))
}

fn put(slice: &mut SliceState, binding: &Binding, row: Row) {
    match &mut slice.items {
        Items::Held(rows) => {
            if binding.built_in == BuiltIn::Replace {
                rows.clear();
            }
            rows.push(row);
        }
        Items::InLog(items) => items.push(row),
    }
}

/// As [`put`], of a value.
#[inline]
fn put_value<V: NewValue>(slice: &mut SliceState, binding: &Binding, id: ItemId, version: u32, value: V) {
    match &mut slice.items {
        Items::Held(rows) if binding.built_in != BuiltIn::Replace => value.push(rows, id, version),
        _ => {
            if let Some(value) = value.shared() {
                put(slice, binding, Row { id, version, item: RowItem::Typed(value) });
            }
        }
    }
}

/// Names new items, and decodes them where the host's types are there.
fn new_rows<'a>(
    slice: &SliceState,
    (id, sequence): (u32, SequenceNumber),
    items: impl IntoIterator<Item = (Payload<'a>, u32)>,
    at_hand: &DecodedValues<'_>,
    folding: &Folding<'_>,
) -> Result<Vec<Row>> {
    (0..)
        .zip(items)
        .map(|(ordinal, (payload, version))| {
            let item = new_item(slice, sequence, (payload, version), at_hand.get(id, ordinal), folding)?;
            Ok(Row { id: ItemId { sequence, ordinal }, version, item })
        })
        .collect()
}

fn new_item(
    slice: &SliceState,
    sequence: SequenceNumber,
    (payload, version): (Payload<'_>, u32),
    at_hand: Option<AnyValue>,
    folding: &Folding<'_>,
) -> Result<RowItem> {
    if let Some(value) = at_hand {
        return Ok(RowItem::Typed(value));
    }
    if slice.unread {
        folding.objects.check(payload)?;
        return Ok(RowItem::Typed(unread::value()));
    }
    let Some(decoder) = slice.decoder else { return Ok(RowItem::Bytes(folding.objects.shared(payload)?)) };
    let bytes = folding.objects.resolve(payload)?;
    let recorded = match &bytes {
        Cow::Borrowed(bytes) => Recorded::InBody(bytes),
        Cow::Owned(bytes) => Recorded::Elsewhere(bytes),
    };
    Ok(RowItem::Typed((decoder.alone)(version, sequence, recorded)?))
}
