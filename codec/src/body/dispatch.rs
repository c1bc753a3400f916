//! Encodes and decodes dispatches: an event, or an action of the engine, and its effects on slices.

use std::borrow::Cow;

use super::fields::{
    Place, ReadField, WriteField, bad, list, require_field, store, walk, walk_map, walk_part,
};
use super::json::{NameBudget, Object, Part, array, id_value, payload};
use super::{Body, Lane, Payload, SLICES_MAX};
use crate::msgpack::{MsgpackReader, MsgpackToken, MsgpackWriter, ValueLimits, scan};
use crate::{Error, SequenceNumber};

const KIND: &str = "dispatch";

/// Identifies an item of a slice by the record that inserted it. An id never changes, unlike the
/// item's index in the slice, which no record contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId {
    /// Sequence number of the record that inserted the item.
    pub sequence: SequenceNumber,
    /// Index of the item among those that the record inserted into the slice, counted from 0.
    pub ordinal: u32,
}

/// Records an event, or an action of the engine, with its effects on slices.
///
/// ```
/// use foldlog_codec::body::{Action, Dispatch, Effect, Payload};
/// use foldlog_codec::msgpack;
///
/// let data = msgpack::to_vec("ship it")?;
/// let action = Action::Event { event: 3, data: Payload::new(&data) };
/// // The event is appended to slice 0 and replaces all items of slice 1.
/// let effects = Some(vec![Effect::append(0), Effect::replace(1)]);
/// let dispatch = Dispatch { action, effects };
///
/// let body = dispatch.encode();
/// assert_eq!(Dispatch::decode(&body)?, dispatch);
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch<'a> {
    /// Event or action that was dispatched.
    pub action: Action<'a>,
    /// Effects on slices, at most one for each; `None` if each declared binding had its built-in
    /// effect.
    pub effects: Option<Vec<Effect<'a>>>,
}

/// Describes the dispatched event of the host or action of the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    /// An event of the host.
    Event {
        /// Id of the event, as declared.
        event: u32,
        /// Payload of the event.
        data: Payload<'a>,
    },
    /// The engine filled slices with their first items.
    Seed,
    /// The engine removed items from a slice.
    Clear,
    /// The engine emptied all STATE and CACHE slices.
    Reset,
    /// The engine set or removed a tag of the session.
    Tag {
        /// Key of the tag.
        key: String,
        /// Value of the tag; `None` removes the tag.
        value: Option<String>,
    },
}

/// Describes the change of one slice by a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect<'a> {
    /// Id of the slice.
    pub slice: u32,
    /// Items that the record removed.
    pub removed: RemovedItems,
    /// Items that the record added.
    pub added: AddedItems<'a>,
    /// Item before which the added ones are inserted; `None` inserts them at the end.
    pub before: Option<ItemId>,
}

/// Names the items that an effect removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovedItems {
    /// The effect removed no item.
    None,
    /// The effect removed all items of the slice.
    All,
    /// The effect removed the items with these ids.
    Items(Vec<ItemId>),
}

/// Contains the items that an effect added.
#[derive(Clone, Debug, PartialEq)]
pub enum AddedItems<'a> {
    /// The effect added the dispatched event itself.
    Event,
    /// The effect added its own items.
    Items {
        /// Added items, in their order.
        items: Vec<Payload<'a>>,
        /// Version of the slice's item type at which all of them are recorded.
        version: u32,
    },
}

impl<'a> Effect<'a> {
    /// Creates the effect that appends the event to a slice.
    pub fn append(slice: u32) -> Effect<'a> {
        Effect { slice, removed: RemovedItems::None, added: AddedItems::Event, before: None }
    }

    /// Creates the effect that replaces all items of a slice with the event.
    pub fn replace(slice: u32) -> Effect<'a> {
        Effect { removed: RemovedItems::All, ..Effect::append(slice) }
    }
}

impl<'a> ReadField<'a> for Effect<'a> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Effect<'a>, Error> {
        let mut ahead = *reader;
        if let MsgpackToken::Unsigned(code) = ahead.token()? {
            *reader = ahead;
            let slice = u32::try_from(code / 2).map_err(|_| bad(KIND, "a slice id exceeds 32 bits"))?;
            return Ok(if code % 2 == 0 { Effect::append(slice) } else { Effect::replace(slice) });
        }
        let (mut effect, mut added, mut version) = (Effect::append(0), None, 1);
        walk_part(place, &["s"], reader, |place, value| match place.field {
            "s" => value.read_into(place, &mut effect.slice),
            "r" => store(&mut effect.removed, read_removed(value)),
            "a" => store(&mut added, list(value, Payload::read_element)),
            "b" => store(&mut effect.before, read_anchor(value)),
            "ver" => value.read_into(place, &mut version),
            _ => Ok(()),
        })?;
        effect.added = added.map_or(AddedItems::Event, |items| AddedItems::Items { items, version });
        Ok(effect)
    }
}

impl WriteField for Effect<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        if self.added == AddedItems::Event && self.before.is_none() {
            let code = match &self.removed {
                RemovedItems::None => Some(2 * u64::from(self.slice)),
                RemovedItems::All => Some(2 * u64::from(self.slice) + 1),
                RemovedItems::Items(_) => None,
            };
            if let Some(code) = code {
                writer.unsigned(code);
                return;
            }
        }
        writer.fields(|fields| {
            fields.set("s", &self.slice);
            match &self.removed {
                RemovedItems::None => {}
                RemovedItems::All => fields.set("r", &true),
                RemovedItems::Items(ids) => write_ids(fields.field("r"), ids),
            }
            if let AddedItems::Items { items, .. } = &self.added {
                fields.set("a", items);
            }
            if let Some(id) = self.before {
                write_ids(fields.field("b"), &[id]);
            }
            if let AddedItems::Items { version: version @ (0 | 2..), .. } = self.added {
                fields.set("ver", &version);
            }
        });
    }
}

fn write_ids(writer: &mut MsgpackWriter, ids: &[ItemId]) {
    writer.array(2 * ids.len());
    for id in ids {
        writer.unsigned(id.sequence.get()).unsigned(u64::from(id.ordinal));
    }
}

fn read_id(reader: &mut MsgpackReader<'_>) -> Result<ItemId, Error> {
    Ok(ItemId { sequence: reader.unsigned()?.into(), ordinal: reader.unsigned32()? })
}

fn read_anchor(reader: &mut MsgpackReader<'_>) -> Result<ItemId, Error> {
    match reader.array()? {
        2 => read_id(reader),
        _ => Err(bad(KIND, "an item id is not a pair of sequence number and ordinal")),
    }
}

fn read_effects<'a>(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Vec<Effect<'a>>, Error> {
    let mut ahead = *reader;
    let len = ahead.array()? as usize;
    if len > SLICES_MAX {
        return Err(bad(KIND, format!("{len} effects exceed the limit of {SLICES_MAX} slices")));
    }
    Vec::read(place, reader)
}

fn read_removed(reader: &mut MsgpackReader<'_>) -> Result<RemovedItems, Error> {
    let mut ahead = *reader;
    let len = match ahead.token()? {
        MsgpackToken::Bool(true) => return Ok(RemovedItems::All),
        MsgpackToken::Array(len) if len % 2 == 0 => len / 2,
        _ => {
            return Err(bad(
                KIND,
                "removed items are neither `true` nor pairs of sequence number and ordinal",
            ));
        }
    };
    let mut ids = Vec::new();
    for _ in 0..len {
        ids.push(read_id(&mut ahead)?);
    }
    Ok(RemovedItems::Items(ids))
}

impl<'a> Dispatch<'a> {
    /// Encodes the body of a dispatch as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::with_capacity(self.size_hint());
        self.write(&mut writer);
        writer.finish()
    }

    /// Estimates the length of the body in bytes, so that its buffer need not grow.
    fn size_hint(&self) -> usize {
        /// More than most bodies need in addition to payloads: keys, ids, and one removed item for
        /// each effect.
        const REST_BYTES: usize = 48;
        let data = if let Action::Event { data, .. } = &self.action { data.bytes().len() } else { 0 };
        let added = |effect: &Effect<'_>| match &effect.added {
            AddedItems::Event => 0,
            AddedItems::Items { items, .. } => items.iter().map(|item| item.bytes().len()).sum(),
        };
        let effects = self.effects.iter().flatten();
        REST_BYTES + data + effects.map(|effect| REST_BYTES + added(effect)).sum::<usize>()
    }

    /// Appends the encoded body of a dispatch to a writer.
    pub fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            match &self.action {
                Action::Event { event, data } => {
                    fields.set("e", event);
                    fields.set("d", data);
                }
                Action::Seed => fields.set("o", "seed"),
                Action::Clear => fields.set("o", "clear"),
                Action::Reset => fields.set("o", "reset"),
                Action::Tag { key, value } => {
                    fields.set("o", "tag");
                    fields.set("key", key);
                    fields.some("value", value);
                }
            }
            fields.some("x", &self.effects);
        });
    }

    /// Decodes the most frequent body on a fast path: an event's id and payload, encoded exactly as
    /// by [`encode`](Dispatch::encode), optionally followed by a [lane](Lane::add_to). The payload
    /// has passed the pre-scan.
    ///
    /// Returns `None` for any other body, valid or not; [`decode`](Dispatch::decode) distinguishes
    /// these.
    pub fn plain_event(bytes: &'a [u8]) -> Option<(u32, Payload<'a>)> {
        let (fields @ 0x82..=0x84, rest) = bytes.split_first()? else { return None };
        let mut reader = MsgpackReader::new(rest.strip_prefix(b"\xa1e")?);
        let event = reader.unsigned32().ok()?;
        let data = reader.rest().strip_prefix(b"\xa1d")?;
        let end = scan(data, ValueLimits::default()).ok()?;
        let (data, lane) = data.split_at_checked(end)?;
        if !lane.is_empty() || *fields != 0x82 {
            Lane::ends(u32::from(fields - 0x82), lane)?;
        }
        Some((event, Payload::new(data)))
    }

    pub(super) fn listed_items(bytes: &[u8]) -> Result<u64, Error> {
        let mut listed = 0;
        walk(KIND, &[], bytes, |place, effects| {
            let len = if place.field == "x" { effects.array()? } else { 0 };
            for _ in 0..len {
                let mut effect = effects.part()?;
                // Effects that list no items are numbers.
                let mut ahead = effect;
                if !matches!(ahead.token()?, MsgpackToken::Map(_)) {
                    continue;
                }
                walk_map(&mut effect, |name, value| {
                    if let ("a" | "r", MsgpackToken::Array(len)) = (name, value.token()?) {
                        listed += u64::from(len);
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        Ok(listed)
    }

    /// Decodes the body of a dispatch.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, if a field is missing or malformed, if it contains neither an
    /// event nor a known action, if it has more than [`SLICES_MAX`] effects, or if an effect adds
    /// the event although there is none.
    pub fn decode(bytes: &'a [u8]) -> Result<Dispatch<'a>, Error> {
        if let Some((event, data)) = Dispatch::plain_event(bytes) {
            return Ok(Dispatch { action: Action::Event { event, data }, effects: None });
        }
        let (mut event, mut data, mut own, mut key, mut tag, mut effects) =
            (None, None, None::<&str>, None, None, None);
        walk(KIND, &[], bytes, |place, value| match place.field {
            "e" => value.read_into(place, &mut event),
            "d" => value.read_into(place, &mut data),
            "o" => value.read_into(place, &mut own),
            "key" => value.read_into(place, &mut key),
            "value" => value.read_into(place, &mut tag),
            "x" => store(&mut effects, read_effects(place, value)),
            _ => Lane::check(place, value),
        })?;
        let action = match (event, own) {
            (Some(event), None) => Action::Event { event, data: require_field(KIND, "d", data)? },
            (None, Some("seed")) => Action::Seed,
            (None, Some("clear")) => Action::Clear,
            (None, Some("reset")) => Action::Reset,
            (None, Some("tag")) => Action::Tag { key: require_field(KIND, "key", key)?, value: tag },
            (None, None) => return Err(bad(KIND, "it contains neither an event nor an action")),
            (Some(_), Some(_)) => return Err(bad(KIND, "it contains both an event and an action")),
            (None, Some(other)) => return Err(bad(KIND, format!("unknown action {other:?}"))),
        };
        let adds_event =
            effects.iter().flatten().any(|effect: &Effect<'_>| effect.added == AddedItems::Event);
        if adds_event && !matches!(action, Action::Event { .. }) {
            return Err(bad(KIND, "an effect adds the event, but the record contains no event"));
        }
        Ok(Dispatch { action, effects })
    }
}

impl<'a> Body<'a> for Dispatch<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        let data = match self.action {
            Action::Event { data, .. } => Some(data),
            _ => None,
        };
        let added = self.effects.iter().flatten().flat_map(|effect| match &effect.added {
            AddedItems::Event => &[],
            AddedItems::Items { items, .. } => items.as_slice(),
        });
        data.into_iter().chain(added.copied())
    }

    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        match self.action {
            Action::Event { event, data } => {
                let (name, version) = match names.known().events.get(&event) {
                    Some((name, version)) => (Cow::from(name), *version),
                    None => (Cow::from(format!("event-{event}")), 0),
                };
                object.set("event", names.name(&name, 0)?);
                object.set("version", version);
                object.set("data", payload(data)?);
            }
            Action::Seed => object.set("operation", "seed"),
            Action::Clear => object.set("operation", "clear"),
            Action::Reset => object.set("operation", "reset"),
            Action::Tag { key, value } => {
                object.set("operation", "tag");
                object.set("key", key);
                object.set("value", value);
            }
        }
        if let Some(effects) = self.effects {
            object.set("effects", array(effects.into_iter(), |effect| effect_part(effect, names))?);
        }
        Ok(())
    }
}

fn effect_part<'a>(effect: Effect<'a>, names: &mut NameBudget<'_>) -> Result<Part<'a>, Error> {
    let fields = 2
        + usize::from(effect.removed != RemovedItems::None)
        + usize::from(effect.added != AddedItems::Event)
        + usize::from(effect.before.is_some());
    let mut object = Object::with_capacity(fields);
    object.set("slice", names.slice(effect.slice, fields)?);
    match effect.removed {
        RemovedItems::None => {}
        RemovedItems::All => object.set("removed", "all"),
        RemovedItems::Items(ids) => {
            object.set("removed", Part::Ids(ids));
        }
    }
    match effect.added {
        AddedItems::Event => object.set("added", "event"),
        AddedItems::Items { items, version } => {
            object.set("added", array(items.into_iter(), payload)?);
            object.set("version", version);
        }
    }
    if let Some(before) = effect.before {
        object.set("before", id_value(before));
    }
    Ok(object.into_part())
}
