//! The projection: the slices, names, tags and operations after all records so far.
//!
//! A *plain event* is a dispatch that changes each of its slices according to its event's
//! declaration, so its record lists no effects.
//!
//! # Invariants
//!
//! 1. For a record, only [`Projection::apply`] and its fast path [`Projection::apply_event`] change
//!    a projection. An error leaves the projection unchanged.
//! 2. Records are applied in the order of their sequence numbers, without a gap.
//! 3. Clones share everything that has not changed, so a retained position costs little.

mod compacted_range;
mod effects;
mod invocation;
mod rollback;
mod slice_state;

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::{
    Action, BuiltIn, Declare, Dispatch, EventDeclaration, Import, ItemId, Outcome, Payload, Policy,
    Replicated, SuspensionForm,
};
use foldlog_codec::image::Image;
use foldlog_codec::{Record, RecordKind, SequenceNumber};

pub(crate) use rollback::FrozenProjection;
pub(super) use slice_state::SliceState;

use compacted_range::CompactedRangeFold;
use effects::SliceChange;
use slice_state::{bound_slice, new_item, put, put_value};

use super::conversations::Conversations;
use super::operations::Operations;
use super::record_kinds::RecordBody;
use super::unread;
use crate::error::{Error, Result};
use crate::items::AnyValue;
use crate::items::SliceItems;
use crate::items::log_items::LogItems;
use crate::items::row::{ItemRef, RowItem, RowRef, SliceRow};
use crate::items::rows::NewValue;
use crate::log::objects::Objects;
use crate::names::DeclaredNames;
use crate::types::{RecordedBytes, SessionTypes, Slice, SliceTypes, TAIL_ITEMS, ToolInvocations};

/// Version of the items that end records of tool calls add.
pub(super) const INVOKED_VERSION: u32 = ToolInvocations::ITEM_VERSION;

/// The part of the items that a projection contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogSlices {
    /// All items of all slices.
    #[default]
    Held,
    /// The last items of LOG slices, and all items of the others; a session reads the rest from its
    /// log.
    InLog,
    /// The last items of LOG slices, and the names of all items of the others.
    StateUnread,
    /// Only the names of all items; see [`super::unread`].
    Unread,
    /// No items: only names, tags and operations. Records that contradict items are not detected.
    Outline,
}

/// Values that the caller has in memory, so that they need not be decoded.
pub(crate) enum DecodedValues<'a> {
    Nothing,
    /// The value of the dispatched event.
    Event(AnyValue),
    /// Values by slice id and ordinal, in ascending order.
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

/// The inputs of applying a record, other than the record.
pub(crate) struct FoldContext<'a> {
    pub(crate) objects: &'a Objects,
    /// Types of the host. Without them items stay undecoded.
    pub(crate) types: Option<&'a SessionTypes>,
    /// Returns the slices at the target of a rollback record.
    pub(crate) frozen: &'a dyn Fn(SequenceNumber) -> Option<Arc<FrozenProjection>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Projection {
    pub(crate) names: Arc<DeclaredNames>,
    slices: Vec<SliceState>,
    pub(crate) tags: Arc<BTreeMap<String, String>>,
    /// Latest record that the session is replicated; `None` if it is not.
    pub(crate) replicated: Option<Arc<Replicated>>,
    /// Sequence number and kind of the first record that this version cannot fold.
    pub(crate) unsupported: Option<(SequenceNumber, RecordKind)>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) conversations: Conversations,
    next_sequence: SequenceNumber,
    log_slices: LogSlices,
    /// Compacted ranges that were not passed yet; `None` in nearly every log.
    gathering: Option<Box<CompactedRangeFold>>,
}

pub(crate) struct AppliedEvent<'a, V> {
    pub(crate) event: u32,
    /// Ignored if there is a value.
    pub(crate) data: Payload<'a>,
    pub(crate) value: Option<V>,
}

impl Projection {
    pub(crate) fn new(log_slices: LogSlices) -> Projection {
        Projection { log_slices, ..Projection::default() }
    }

    pub(super) fn from_image(
        names: Arc<DeclaredNames>,
        slices: Vec<SliceState>,
        image: &Image<'_>,
        log_slices: LogSlices,
    ) -> Projection {
        Projection {
            names,
            slices,
            tags: Arc::new(image.tags.clone()),
            replicated: image.replicated.clone().map(Arc::new),
            unsupported: image.unsupported,
            operations: Arc::new(Operations::from_image(image)),
            conversations: Conversations::from_image(&image.conversations),
            next_sequence: image.next_sequence,
            log_slices,
            gathering: None,
        }
    }

    /// Returns the items of all slices, in the order of their ids.
    pub(super) fn slices(&self) -> impl Iterator<Item = &SliceItems> {
        self.slices.iter().map(|slice| &slice.items)
    }

    /// Returns the items of those slices with more than names in memory.
    pub(super) fn read_slices(&self) -> impl Iterator<Item = &SliceItems> {
        self.slices.iter().filter(|slice| !slice.unread).map(|slice| &slice.items)
    }

    pub(crate) fn log_slices(&self) -> LogSlices {
        self.log_slices
    }

    pub(crate) fn next_sequence(&self) -> SequenceNumber {
        self.next_sequence
    }

    pub(crate) fn items(&self, slice: u32) -> Option<(Policy, &SliceItems)> {
        self.slices.get(slice as usize).map(|slice| (slice.policy, &slice.items))
    }

    pub(crate) fn items_named(&self, name: &str) -> Option<(Policy, &SliceItems)> {
        self.items(self.names.slice_named(name)?.id)
    }

    /// Decodes those items of a slice that are not decoded yet.
    pub(crate) fn decode_rows(
        &mut self,
        slice: u32,
        decode: &dyn Fn(RowRef<'_>) -> Result<AnyValue>,
    ) -> Result<()> {
        let Some(SliceState { items: SliceItems::Held(rows), .. }) = self.slices.get_mut(slice as usize)
        else {
            return Ok(());
        };
        if rows.iter().all(|row| row.typed_value().is_some()) {
            return Ok(());
        }
        *rows = rows.map(|row| {
            let item = match row.item {
                ItemRef::Bytes(_) => RowItem::Typed(decode(row)?),
                ItemRef::Typed(_) | ItemRef::InRun(..) => return Ok(row.to_row()),
            };
            Ok::<SliceRow, Error>(SliceRow { id: row.id, version: row.version, item })
        })?;
        Ok(())
    }

    /// Applies a decoded record.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if the record contradicts earlier ones, [`Error::Decode`] or
    /// [`Error::NewerVersion`] if an item cannot be read as the host's type, [`Error::Object`] if a
    /// large payload is missing or damaged. The projection is then unchanged.
    pub(crate) fn apply(
        &mut self,
        sequence: SequenceNumber,
        content: RecordBody<'_>,
        decoded_values: DecodedValues<'_>,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        self.begin(sequence)?;
        let mut content = content;
        let conversation = self.conversations.change(&mut content, &self.operations);
        match self.without_items(content) {
            // A fork inherits its parent's tags and sets its own over them. A replica of the parent
            // does not contain the fork.
            RecordBody::Opened(opened) => {
                Arc::make_mut(&mut self.tags).extend(opened.tags);
                self.replicated = None;
            }
            RecordBody::Replicated(replicated) => self.replicated = Some(Arc::new(replicated)),
            RecordBody::Declare(declare) => self.declare(sequence, declare, folding.types)?,
            RecordBody::Dispatch(dispatch) => self.dispatch(sequence, dispatch, decoded_values, folding)?,
            RecordBody::Import(import) => self.import(sequence, import, folding)?,
            RecordBody::Rollback(rollback) => self.rollback(sequence, &rollback, folding)?,
            RecordBody::Snapshot | RecordBody::NoEffect | RecordBody::Conversation(_) => {}
            RecordBody::Dropped if self.gathers() || self.log_slices == LogSlices::Outline => {}
            RecordBody::Dropped => {
                let reason = "its body was dropped, and no base contains its effect".to_owned();
                return Err(Error::Inconsistent { sequence, reason });
            }
            RecordBody::ToolBegin(begin) => Arc::make_mut(&mut self.operations).begin(sequence, &begin)?,
            RecordBody::ToolEnd(end) => {
                self.tool_end(sequence, &end, folding)?;
                // Only a later version knows whether such a call may run again.
                let form = end.suspension.map(|suspension| suspension.form);
                if matches!(end.outcome, Outcome::Other(_)) || matches!(form, Some(SuspensionForm::Other(_)))
                {
                    self.unsupported.get_or_insert((sequence, RecordKind::ToolEnd));
                }
            }
            RecordBody::Settle(settle) => Arc::make_mut(&mut self.operations).settle(sequence, &settle)?,
            RecordBody::Unsupported(kind) => {
                self.unsupported.get_or_insert((sequence, kind));
            }
        }
        if let Some(change) = conversation {
            self.conversations.carry_out(sequence, change, &self.operations);
        }
        self.next_sequence += 1;
        self.end_gathering(sequence)
    }

    /// Applies a plain event, the kind of nearly every record. No value is created here and moved
    /// afterwards.
    #[inline]
    pub(crate) fn apply_event<V: NewValue>(
        &mut self,
        sequence: SequenceNumber,
        event: AppliedEvent<'_, V>,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        self.begin(sequence)?;
        self.as_declared(sequence, event, folding)?;
        self.next_sequence += 1;
        self.end_gathering(sequence)
    }

    /// Checks that a record is the next one.
    #[inline]
    fn begin(&mut self, sequence: SequenceNumber) -> Result<()> {
        self.check_next(sequence)?;
        if self.gathering.is_some() {
            self.begin_gathering(sequence);
        }
        Ok(())
    }

    /// Changes each slice of a plain event according to the event's declaration.
    #[inline]
    fn as_declared<V: NewValue>(
        &mut self,
        sequence: SequenceNumber,
        event: AppliedEvent<'_, V>,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        let AppliedEvent { event, data, value } = event;
        let gathers = self.gathers();
        let declared = find_declaration(&self.names, sequence, event)?;
        let (id, version) = (ItemId { sequence, ordinal: 0 }, declared.version);
        let [binding] = declared.bindings.as_slice() else {
            let value = value.and_then(NewValue::shared);
            return as_declared_many(&mut self.slices, sequence, declared, data, value, folding, gathers);
        };
        // Nearly every event has one binding, and needs no list of rows.
        let Some(slice) = bound_slice(&mut self.slices, sequence, binding)? else { return Ok(()) };
        match (value, slice.decoder.as_ref()) {
            (Some(value), _) => put_value(slice, binding, gathers, id, version, value),
            (None, Some(decoder)) if data.object().is_none() => {
                let recorded = RecordedBytes::InBody(data.bytes());
                match &mut slice.items {
                    SliceItems::Held(rows) if binding.built_in != BuiltIn::Replace => {
                        decoder.append_decoded(rows, version, sequence, recorded)?;
                    }
                    _ => {
                        let item = RowItem::Typed(decoder.alone(version, sequence, recorded)?);
                        put(slice, binding, gathers, SliceRow { id, version, item });
                    }
                }
            }
            (None, _) => {
                let item = new_item(slice, sequence, data, version, None, folding)?;
                put(slice, binding, gathers, SliceRow { id, version, item });
            }
        }
        Ok(())
    }

    /// Removes from a record the parts that a projection without items does not need.
    fn without_items<'a>(&self, content: RecordBody<'a>) -> RecordBody<'a> {
        if self.log_slices != LogSlices::Outline {
            return content;
        }
        match content {
            RecordBody::Dispatch(Dispatch { action: action @ Action::Tag { .. }, .. }) => {
                RecordBody::Dispatch(Dispatch { action, effects: None })
            }
            RecordBody::Dispatch(_) | RecordBody::Rollback(_) => RecordBody::NoEffect,
            RecordBody::Import(import) => RecordBody::Import(Import { slices: Vec::new(), ..import }),
            content => content,
        }
    }

    /// Skips an event, for a projection without items.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if `sequence` is not the next sequence number.
    pub(super) fn pass_over_event(&mut self, sequence: SequenceNumber) -> Result<()> {
        self.begin(sequence)?;
        self.next_sequence += 1;
        self.end_gathering(sequence)
    }

    fn check_next(&self, sequence: SequenceNumber) -> Result<()> {
        if sequence == self.next_sequence {
            return Ok(());
        }
        let reason = format!("sequence number {} is expected", self.next_sequence);
        Err(Error::Inconsistent { sequence, reason })
    }

    /// Skips a record that is not on the path being folded, except for its declarations, which are
    /// never rolled back.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if a declaration contradicts earlier ones.
    pub(crate) fn pass_over(&mut self, record: &Record<'_>) -> Result<()> {
        if record.kind == RecordKind::Declare
            && let RecordBody::Declare(declare) = RecordBody::decode(record)?
        {
            self.declare(record.sequence, declare, None)?;
        }
        self.next_sequence = record.sequence + 1;
        Ok(())
    }

    /// Skips a record that is on the path being folded and changes nothing along it.
    ///
    /// # Errors
    ///
    /// The errors of [`pass_over`](Projection::pass_over), and those of a base after the record.
    pub(crate) fn pass_on_path(&mut self, record: &Record<'_>) -> Result<()> {
        self.begin(record.sequence)?;
        self.pass_over(record)?;
        self.end_gathering(record.sequence)
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
            let is_log = slice.policy == Policy::Log;
            let unread = match self.log_slices {
                LogSlices::Unread => true,
                LogSlices::StateUnread => !is_log,
                _ => false,
            };
            let types = types.filter(|_| !unread).and_then(|types| types.slice(&slice.name));
            let items = match self.log_slices {
                LogSlices::InLog | LogSlices::StateUnread if is_log => {
                    SliceItems::InLog(LogItems::new(types.map_or(TAIL_ITEMS, |types| types.tail_items)))
                }
                _ => SliceItems::Held(SliceTypes::no_rows(types)),
            };
            let decoder =
                if unread { Some(unread::DECODER) } else { types.map(|types| types.decoder.clone()) };
            self.slices.push(SliceState { policy: slice.policy, items, decoder, unread });
        }
        Arc::make_mut(&mut self.names).learn(declare);
        Ok(())
    }

    fn dispatch(
        &mut self,
        sequence: SequenceNumber,
        dispatch: Dispatch<'_>,
        decoded_values: DecodedValues<'_>,
        folding: &FoldContext<'_>,
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
                    let value =
                        if let DecodedValues::Event(value) = decoded_values { Some(value) } else { None };
                    let event = AppliedEvent { event: *event, data: *data, value };
                    return self.as_declared(sequence, event, folding);
                };
                event_row = Some((*data, find_declaration(&self.names, sequence, *event)?.version));
                effects
            }
            (_, effects) => effects.unwrap_or_default(),
        };
        let changes: Result<Vec<SliceChange>> = effects
            .into_iter()
            .map(|effect| self.check_effect(sequence, effect, event_row, &decoded_values, folding))
            .collect();
        self.carry_out(changes?);
        Ok(())
    }
}

#[inline]
fn find_declaration(
    names: &DeclaredNames,
    sequence: SequenceNumber,
    event: u32,
) -> Result<&EventDeclaration> {
    let reason = || format!("event {event} was never declared");
    names.event(event).ok_or_else(|| Error::Inconsistent { sequence, reason: reason() })
}

/// Changes each slice of a plain event according to the event's declaration, if it has several
/// bindings or none.
fn as_declared_many(
    slices: &mut [SliceState],
    sequence: SequenceNumber,
    declared: &EventDeclaration,
    data: Payload<'_>,
    value: Option<AnyValue>,
    folding: &FoldContext<'_>,
    gathers: bool,
) -> Result<()> {
    let (id, version) = (ItemId { sequence, ordinal: 0 }, declared.version);
    let decoded_values = value.map_or(DecodedValues::Nothing, DecodedValues::Event);
    let mut items = Vec::new();
    for binding in &declared.bindings {
        if let Some(slice) = bound_slice(slices, sequence, binding)? {
            let decoded_values = decoded_values.get(binding.slice, 0);
            items.push((binding, new_item(slice, sequence, data, version, decoded_values, folding)?));
        }
    }
    for (binding, item) in items {
        if let Some(slice) = slices.get_mut(binding.slice as usize) {
            put(slice, binding, gathers, SliceRow { id, version, item });
        }
    }
    Ok(())
}
