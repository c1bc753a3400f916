//! A dispatch: the event and its effect.
//!
//! Effects (`x`) are an array with one entry a slice. Where the field is missing, each of the event's declared
//! bindings happened as declared, which is how the built-in reducers cost nothing. An entry is one of
//!
//! | entry | meaning |
//! |---|---|
//! | integer `2 * slice` | the event was appended |
//! | integer `2 * slice + 1` | the event replaced all items |
//! | map | `s` slice, `r` removed (`true` for all, or `[sequence, ordinal, ...]`), `a` added items (the event where missing), `b` `[sequence, ordinal]` of the item that the added ones stand before (behind all where missing), `ver` version of the added items (1 where missing) |

use super::fields::{bad, list, required, walk, walk_map};
use super::{Payload, SLICES_MAX};
use crate::msgpack::{Limits, Reader, Token, Writer, scan};
use crate::{Error, SequenceNumber};

const KIND: &str = "dispatch";

/// The name of an item: where it was inserted. No rank in a slice is ever written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId {
    /// The sequence number of the record that inserted it.
    pub sequence: SequenceNumber,
    /// Its place among the items that the record inserted into the slice.
    pub ordinal: u32,
}

/// An event, or an action of the engine's own, with what it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch<'a> {
    /// What was dispatched.
    pub action: Action<'a>,
    /// What it did; `None` where each declared binding happened as declared.
    pub effects: Option<Vec<Effect<'a>>>,
}

/// What was dispatched.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    /// A host's event.
    Event {
        /// The event's id.
        event: u32,
        /// Its payload.
        data: Payload<'a>,
    },
    /// Slices were given their first items.
    Seed,
    /// Items were taken out of a slice.
    Clear,
    /// All STATE and CACHE slices were emptied.
    Reset,
    /// A tag of the session was set, or taken away.
    Tag {
        /// The tag's key.
        key: String,
        /// Its value; `None` takes it away.
        value: Option<String>,
    },
}

/// What a record did to one slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect<'a> {
    /// The slice's id.
    pub slice: u32,
    /// What went.
    pub removed: Removed,
    /// What came.
    pub added: Added<'a>,
    /// The item that the added ones stand before; behind all where `None`.
    pub before: Option<ItemId>,
}

/// The items that an effect removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// None.
    None,
    /// All.
    All,
    /// These.
    Items(Vec<ItemId>),
}

/// The items that an effect added.
#[derive(Clone, Debug, PartialEq)]
pub enum Added<'a> {
    /// The event itself.
    Event,
    /// These, each recorded at this version of the slice's item type.
    Items {
        /// The items.
        items: Vec<Payload<'a>>,
        /// Their version.
        version: u32,
    },
}

impl<'a> Effect<'a> {
    /// The event is appended.
    pub fn append(slice: u32) -> Effect<'a> {
        Effect { slice, removed: Removed::None, added: Added::Event, before: None }
    }

    /// The event replaces all items.
    pub fn replace(slice: u32) -> Effect<'a> {
        Effect { removed: Removed::All, ..Effect::append(slice) }
    }

    fn write(&self, writer: &mut Writer) {
        let event_behind_all = self.added == Added::Event && self.before.is_none();
        match &self.removed {
            Removed::None if event_behind_all => {
                writer.unsigned(2 * u64::from(self.slice));
                return;
            }
            Removed::All if event_behind_all => {
                writer.unsigned(2 * u64::from(self.slice) + 1);
                return;
            }
            _ => {}
        }
        let version = match &self.added {
            Added::Items { version, .. } if *version != 1 => Some(*version),
            _ => None,
        };
        let fields = 1
            + usize::from(self.removed != Removed::None)
            + usize::from(self.added != Added::Event)
            + usize::from(self.before.is_some())
            + usize::from(version.is_some());
        writer.map(fields).str("s").unsigned(u64::from(self.slice));
        match &self.removed {
            Removed::None => {}
            Removed::All => {
                writer.str("r").bool(true);
            }
            Removed::Items(ids) => {
                writer.str("r").array(2 * ids.len());
                ids.iter().for_each(|id| write_id(writer, *id));
            }
        }
        if let Added::Items { items, .. } = &self.added {
            writer.str("a").array(items.len());
            items.iter().for_each(|item| item.write(writer));
        }
        if let Some(id) = self.before {
            writer.str("b").array(2);
            write_id(writer, id);
        }
        if let Some(version) = version {
            writer.str("ver").unsigned(u64::from(version));
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Effect<'a>, Error> {
        let mut ahead = *reader;
        if let Token::Unsigned(code) = ahead.token()? {
            *reader = ahead;
            let slice = u32::try_from(code / 2).map_err(|_| bad(KIND, "a slice id is over 32 bits"))?;
            return Ok(if code % 2 == 0 { Effect::append(slice) } else { Effect::replace(slice) });
        }
        let (mut slice, mut removed, mut added, mut before, mut version) =
            (None, Removed::None, None, None, 1);
        walk_map(reader, |name, value| {
            match name {
                "s" => slice = Some(value.unsigned32()?),
                "r" => removed = read_removed(value)?,
                "a" => added = Some(list(value, Payload::read)?),
                "b" => before = Some(read_anchor(value)?),
                "ver" => version = value.unsigned32()?,
                _ => {}
            }
            Ok(())
        })?;
        let added = added.map_or(Added::Event, |items| Added::Items { items, version });
        Ok(Effect { slice: required(KIND, "x.s", slice)?, removed, added, before })
    }
}

fn write_id(writer: &mut Writer, id: ItemId) {
    writer.unsigned(id.sequence.get()).unsigned(u64::from(id.ordinal));
}

fn read_id(reader: &mut Reader<'_>) -> Result<ItemId, Error> {
    Ok(ItemId { sequence: reader.unsigned()?.into(), ordinal: reader.unsigned32()? })
}

fn read_anchor(reader: &mut Reader<'_>) -> Result<ItemId, Error> {
    match reader.array()? {
        2 => read_id(reader),
        _ => Err(bad(KIND, "an item is named by sequence and ordinal")),
    }
}

fn write_effects(writer: &mut Writer, effects: &[Effect<'_>]) {
    writer.array(effects.len());
    effects.iter().for_each(|effect| effect.write(writer));
}

fn read_effects<'a>(reader: &mut Reader<'a>) -> Result<Vec<Effect<'a>>, Error> {
    let mut ahead = *reader;
    let len = ahead.array()? as usize;
    if len > SLICES_MAX {
        return Err(bad(KIND, format!("{len} effects are more than there can be slices")));
    }
    list(reader, Effect::read)
}

fn read_removed(reader: &mut Reader<'_>) -> Result<Removed, Error> {
    let mut ahead = *reader;
    let len = match ahead.token()? {
        Token::Bool(true) => return Ok(Removed::All),
        Token::Array(len) if len % 2 == 0 => len / 2,
        _ => return Err(bad(KIND, "removed items are `true` or pairs of sequence and ordinal")),
    };
    let mut ids = Vec::new();
    for _ in 0..len {
        ids.push(read_id(&mut ahead)?);
    }
    Ok(Removed::Items(ids))
}

impl<'a> Dispatch<'a> {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.write(&mut writer);
        writer.finish()
    }

    /// Appends the body's bytes to a writer.
    pub fn write(&self, writer: &mut Writer) {
        let fields = match &self.action {
            Action::Event { .. } => 2,
            Action::Tag { value: Some(_), .. } => 3,
            Action::Tag { value: None, .. } => 2,
            Action::Seed | Action::Clear | Action::Reset => 1,
        };
        writer.map(fields + usize::from(self.effects.is_some()));
        match &self.action {
            Action::Event { event, data } => {
                writer.str("e").unsigned(u64::from(*event)).str("d");
                data.write(writer);
            }
            Action::Seed => {
                writer.str("o").str("seed");
            }
            Action::Clear => {
                writer.str("o").str("clear");
            }
            Action::Reset => {
                writer.str("o").str("reset");
            }
            Action::Tag { key, value } => {
                writer.str("o").str("tag").str("key").str(key);
                if let Some(value) = value {
                    writer.str("value").str(value);
                }
            }
        }
        if let Some(effects) = &self.effects {
            writer.str("x");
            write_effects(writer, effects);
        }
    }

    /// The event's id and payload, of a body that holds nothing else and is written the way that
    /// [`encode`](Dispatch::encode) writes it: nearly every record is, so it is read without asking each field for
    /// its name. What is not just so is `None`, and [`decode`](Dispatch::decode) says whether anything is wrong with
    /// it. The payload has passed the pre-scan.
    pub fn plain_event(bytes: &'a [u8]) -> Option<(u32, Payload<'a>)> {
        let rest = bytes.strip_prefix(b"\x82\xa1e")?;
        let mut reader = Reader::new(rest);
        let event = reader.unsigned32().ok()?;
        let data = reader.rest().strip_prefix(b"\xa1d")?;
        let end = scan(data, Limits::default()).ok()?;
        (end == data.len()).then(|| (event, Payload::new(data)))
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &'a [u8]) -> Result<Dispatch<'a>, Error> {
        if let Some((event, data)) = Dispatch::plain_event(bytes) {
            return Ok(Dispatch { action: Action::Event { event, data }, effects: None });
        }
        let (mut event, mut data, mut own, mut key, mut tag, mut effects) =
            (None, None, None, None, None, None);
        walk(KIND, bytes, |name, value| {
            match name {
                "e" => event = Some(value.unsigned32()?),
                "d" => data = Some(Payload::new(value.rest())),
                "o" => own = Some(value.str()?.to_owned()),
                "key" => key = Some(value.str()?.to_owned()),
                "value" => tag = Some(value.str()?.to_owned()),
                "x" => effects = Some(read_effects(value)?),
                _ => {}
            }
            Ok(())
        })?;
        let action = match (event, own.as_deref()) {
            (Some(event), None) => Action::Event { event, data: required(KIND, "d", data)? },
            (None, Some("seed")) => Action::Seed,
            (None, Some("clear")) => Action::Clear,
            (None, Some("reset")) => Action::Reset,
            (None, Some("tag")) => Action::Tag { key: required(KIND, "key", key)?, value: tag },
            (_, other) => {
                return Err(bad(KIND, format!("neither an event nor a known action: {other:?}")));
            }
        };
        let adds_event = effects.iter().flatten().any(|effect: &Effect<'_>| effect.added == Added::Event);
        if adds_event && !matches!(action, Action::Event { .. }) {
            return Err(bad(KIND, "an effect adds the event, but there is none"));
        }
        Ok(Dispatch { action, effects })
    }
}
