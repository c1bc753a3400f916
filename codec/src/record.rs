//! One record in memory, and its JSON form.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat};

use crate::body::{
    Added, Declare, Dispatch, Effect, Import, ItemId, Opened, Operation, Parent, Removed, Resumed, Rollback,
    Seal, Snapshot,
};
use crate::msgpack::Value;
use crate::{Error, Kind};

/// A record: what a frame holds, without the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Sequence number; of the next record where the kind is an envelope's.
    pub sequence: u64,
    /// Kind.
    pub kind: Kind,
    /// Microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// The body's bytes.
    pub body: &'a [u8],
}

/// What the names in records stand for, as far as the log has declared them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Events by id: name and version.
    pub events: BTreeMap<u32, (String, u32)>,
    /// Slices by id.
    pub slices: BTreeMap<u32, String>,
}

impl Names {
    /// Takes in what a declaration says.
    pub fn learn(&mut self, declare: &Declare) {
        for event in &declare.events {
            self.events.insert(event.id, (event.name.clone(), event.version));
        }
        for slice in &declare.slices {
            self.slices.insert(slice.id, slice.name.clone());
        }
    }

    fn slice(&self, id: u32) -> Value {
        self.slices
            .get(&id)
            .map_or_else(|| Value::from(format!("slice-{id}")), |name| Value::from(name.as_str()))
    }
}

/// A time as ISO 8601 with offset, microseconds included; the number itself where no calendar holds it.
pub fn time_text(time_us: i64) -> String {
    DateTime::from_timestamp_micros(time_us)
        .map_or_else(|| time_us.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Micros, false))
}

impl Record<'_> {
    /// The record's JSON form: `sequence`, `time`, `kind`, `bytes` and the fields of its body under their full
    /// names. A body of a kind that this version does not know is shown as the value it holds, or as
    /// hexadecimal digits where it holds none.
    ///
    /// # Errors
    ///
    /// [`Error::Body`] where a known kind's body is not what the kind says.
    pub fn to_value(&self, names: &Names) -> Result<Value, Error> {
        let mut object = Object::default();
        if !self.kind.is_envelope() {
            object.set("sequence", Value::from(self.sequence));
        }
        object.set("time", Value::from(time_text(self.time_us)));
        object.set("kind", Value::from(self.kind.to_string()));
        object.set("bytes", Value::from(self.body.len() as u64));
        match self.kind {
            Kind::OPENED => opened(&mut object, Opened::decode(self.body)?),
            Kind::DECLARE | Kind::DECLARED => declare(&mut object, Declare::decode(self.body)?, names),
            Kind::DISPATCH => dispatch(&mut object, Dispatch::decode(self.body)?, names)?,
            Kind::SNAPSHOT => {
                let snapshot = Snapshot::decode(self.body)?;
                object.set("tag", snapshot.tag.map_or(Value::Nil, Value::from));
                let policies = snapshot.policies.iter().map(|policy| Value::from(policy.name()));
                object.set("policies", Value::Array(policies.collect()));
            }
            Kind::ROLLBACK => {
                let rollback = Rollback::decode(self.body)?;
                object.set("to", Value::from(rollback.to));
                object.set("preserve_logs", Value::from(rollback.preserve_logs));
            }
            Kind::IMPORT => import(&mut object, Import::decode(self.body)?, names)?,
            Kind::RESUMED => {
                let resumed = Resumed::decode(self.body)?;
                object.set("epoch", Value::from(resumed.epoch));
                object.set("boot_id", resumed.boot_id.map_or(Value::Nil, |id| Value::from(id.to_string())));
                object.set("clock", Value::from(time_text(resumed.clock_us)));
            }
            Kind::SEAL => {
                let seal = Seal::decode(self.body)?;
                object.set("next", Value::from(u64::from(seal.next)));
                object.set("records", Value::from(seal.records));
                object.set("hash", Value::from(hex(&seal.hash)));
            }
            Kind::SYNCED => {}
            _ => {
                let body = Value::decode(self.body).unwrap_or_else(|_| Value::from(hex(self.body)));
                object.set("body", body);
            }
        }
        Ok(object.into_value())
    }
}

#[derive(Default)]
struct Object {
    pairs: Vec<(Value, Value)>,
}

impl Object {
    fn set(&mut self, key: &str, value: Value) {
        self.pairs.push((Value::from(key), value));
    }

    fn into_value(self) -> Value {
        Value::Map(self.pairs)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tags(tags: BTreeMap<String, String>) -> Value {
    Value::Map(tags.into_iter().map(|(key, value)| (Value::from(key), Value::from(value))).collect())
}

fn opened(object: &mut Object, opened: Opened) {
    object.set("session", Value::from(opened.session.to_string()));
    object.set("seed", Value::from(opened.seed));
    object.set("tags", tags(opened.tags));
    let parent = opened.parent.map_or(Value::Nil, |parent| {
        let mut object = Object::default();
        object.set("session", Value::from(parent.session().to_string()));
        match parent {
            Parent::Fork { position, chain, .. } => {
                object.set("how", Value::from("fork"));
                object.set("position", Value::from(position));
                object.set("chain", Value::from(u64::from(chain)));
            }
            Parent::Child { .. } => object.set("how", Value::from("child")),
        }
        object.into_value()
    });
    object.set("parent", parent);
}

fn declare(object: &mut Object, declare: Declare, names: &Names) {
    // A declaration names its own slices; those of its bindings may have been declared before.
    let mut known = names.clone();
    known.learn(&declare);
    let events = declare.events.into_iter().map(|event| {
        let mut object = Object::default();
        object.set("id", Value::from(u64::from(event.id)));
        object.set("name", Value::from(event.name));
        object.set("version", Value::from(u64::from(event.version)));
        let bindings = event.bindings.iter().map(|binding| {
            let mut object = Object::default();
            object.set("slice", known.slice(binding.slice));
            object.set("effect", Value::from(binding.built_in.name()));
            object.into_value()
        });
        object.set("bindings", Value::Array(bindings.collect()));
        object.set("implicit", Value::from(event.implicit));
        object.into_value()
    });
    let events = Value::Array(events.collect());
    let slices = declare.slices.into_iter().map(|slice| {
        let mut object = Object::default();
        object.set("id", Value::from(u64::from(slice.id)));
        object.set("name", Value::from(slice.name));
        object.set("policy", Value::from(slice.policy.name()));
        object.set("item", Value::from(slice.item));
        object.into_value()
    });
    object.set("events", events);
    object.set("slices", Value::Array(slices.collect()));
}

fn dispatch(object: &mut Object, dispatch: Dispatch<'_>, names: &Names) -> Result<(), Error> {
    match dispatch.operation {
        Operation::Event { event, data } => {
            let (name, version) =
                names.events.get(&event).cloned().unwrap_or_else(|| (format!("event-{event}"), 0));
            object.set("event", Value::from(name));
            object.set("version", Value::from(u64::from(version)));
            object.set("data", payload(data)?);
        }
        Operation::Seed => object.set("operation", Value::from("seed")),
        Operation::Clear => object.set("operation", Value::from("clear")),
        Operation::Reset => object.set("operation", Value::from("reset")),
        Operation::Tag { key, value } => {
            object.set("operation", Value::from("tag"));
            object.set("key", Value::from(key));
            object.set("value", value.map_or(Value::Nil, Value::from));
        }
    }
    if let Some(effects) = dispatch.effects {
        let effects: Result<Vec<Value>, Error> =
            effects.into_iter().map(|effect| effect_value(effect, names)).collect();
        object.set("effects", Value::Array(effects?));
    }
    Ok(())
}

fn payload(payload: crate::body::Payload<'_>) -> Result<Value, Error> {
    match payload.object() {
        None => Value::decode(payload.bytes()),
        Some(object) => {
            let mut value = Object::default();
            value.set("$object", Value::from(object.file_name()));
            value.set("bytes", Value::from(object.len));
            Ok(value.into_value())
        }
    }
}

fn id_value(id: ItemId) -> Value {
    Value::Array(vec![Value::from(id.sequence), Value::from(u64::from(id.ordinal))])
}

fn effect_value(effect: Effect<'_>, names: &Names) -> Result<Value, Error> {
    let mut object = Object::default();
    object.set("slice", names.slice(effect.slice));
    match effect.removed {
        Removed::None => {}
        Removed::All => object.set("removed", Value::from("all")),
        Removed::Items(ids) => {
            object.set("removed", Value::Array(ids.into_iter().map(id_value).collect()));
        }
    }
    match effect.added {
        Added::Event => object.set("added", Value::from("event")),
        Added::Items { items, version } => {
            let items: Result<Vec<Value>, Error> = items.into_iter().map(payload).collect();
            object.set("added", Value::Array(items?));
            object.set("version", Value::from(u64::from(version)));
        }
    }
    if let Some(before) = effect.before {
        object.set("before", id_value(before));
    }
    Ok(object.into_value())
}

fn import(object: &mut Object, import: Import<'_>, names: &Names) -> Result<(), Error> {
    object.set("from", import.from.map_or(Value::Nil, |id| Value::from(id.to_string())));
    object.set("exported_at", import.exported_at_us.map_or(Value::Nil, |time| Value::from(time_text(time))));
    object.set("tags", tags(import.tags));
    let slices: Result<Vec<Value>, Error> = import
        .slices
        .into_iter()
        .map(|slice| {
            let mut object = Object::default();
            object.set("slice", names.slice(slice.slice));
            let items: Result<Vec<Value>, Error> =
                slice.items.iter().map(|(item, _)| payload(*item)).collect();
            object.set("items", Value::Array(items?));
            Ok(object.into_value())
        })
        .collect();
    object.set("slices", Value::Array(slices?));
    Ok(())
}
