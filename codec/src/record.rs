//! Represents one record in memory, and builds its JSON form.

mod compaction;
mod conversation;
mod operation;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, SecondsFormat};
use serde::{Serialize, Serializer};

use crate::body::{
    Action, AdapterState, AddedItems, AnswerBody, Base, Compacted, Declare, Dispatch, Dropped, Effect,
    Import, Input, ItemId, Lane, ObjectId, Observed, Parent, Payload, PromptAccepted, RemovedItems,
    Replicated, Request, Resumed, Rollback, Seal, SessionOpening, Settle, Shortened, SnapshotBody, ToolBegin,
    ToolEnd, Turn,
};
use crate::msgpack::{Hex, JsonStream, LeftOut, MSGPACK, OBJECT, Value, ValueLimits, serialize_tagged};
use crate::{Error, RecordKind, SequenceNumber};

/// Contains one record, or one envelope frame, without its framing.
///
/// ```
/// use foldlog_codec::body::{Policy, SnapshotBody};
/// use foldlog_codec::record::RecordNames;
/// use foldlog_codec::{RecordKind, Record};
///
/// let body = SnapshotBody { tag: Some("before".to_owned()), policies: vec![Policy::State], resources: vec![] }.encode();
/// let record = Record { sequence: 7.into(), kind: RecordKind::Snapshot, time_us: 0, body: &body };
/// let json = serde_json::to_value(record.to_json(&RecordNames::default())?).unwrap();
/// assert_eq!(json["sequence"], 7);
/// assert_eq!(json["kind"], "snapshot");
/// assert_eq!(json["time"], "1970-01-01T00:00:00.000000+00:00");
/// assert_eq!(json["tag"], "before");
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Sequence number of the record; in an envelope frame, of the next record.
    pub sequence: SequenceNumber,
    /// Kind of the record or envelope frame.
    pub kind: RecordKind,
    /// Time of the record in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// Bytes of the body. For most kinds they are one MessagePack map, see [`body`](crate::body).
    pub body: &'a [u8],
}

/// Maps the ids of events and slices in records to their names, as far as the log has declared
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordNames {
    /// Names and versions of events, by event id.
    pub events: BTreeMap<u32, (String, u32)>,
    /// Names of slices, by slice id.
    pub slices: BTreeMap<u32, String>,
}

impl RecordNames {
    /// Adds the names that a declaration binds. A later declaration of an id replaces an earlier
    /// one.
    pub fn learn(&mut self, declare: &Declare) {
        for event in &declare.events {
            self.events.insert(event.id, (event.name.clone(), event.version));
        }
        for slice in &declare.slices {
            self.slices.insert(slice.id, slice.name.clone());
        }
    }

    fn slice(&self, id: u32) -> Cow<'_, str> {
        self.slices.get(&id).map_or_else(|| fallback_name(id), Cow::from)
    }
}

/// Returns a substitute for the name of a slice that the log has not declared.
fn fallback_name(id: u32) -> Cow<'static, str> {
    Cow::from(format!("slice-{id}"))
}

/// Bounds the memory of the names in a JSON form, and of the objects that start with one.
///
/// One byte of a hostile body can cause such an object, and a copy of a name that is as long as a
/// record. Without a budget, a record of 200 kB took gigabytes.
struct Budget {
    left: usize,
    max: usize,
}

impl Budget {
    /// Returns the budget of a body: three quarters of the 64 bytes of memory that each byte of a
    /// body may take. The decoded body itself takes the rest.
    fn for_body(body: &[u8]) -> Budget {
        let max = ((640 << 10) + 48 * body.len()).min(NAMES_BYTES_MAX);
        Budget { left: max, max }
    }

    /// Charges for a name that is the first field of an object of `fields` fields, and returns the
    /// name as a value.
    fn name(&mut self, name: &str, fields: usize) -> Result<Value, Error> {
        let cost = size_of::<Part<'_>>() * (1 + 2 * fields) + TEXTS + name.len();
        self.left = self.left.checked_sub(cost).ok_or(Error::Limit {
            offset: 0,
            limit: "size of the JSON form",
            max: self.max as u64,
        })?;
        Ok(Value::from(name))
    }
}

/// Number of bytes that a [`Budget`] allows at most, regardless of the length of the body.
const NAMES_BYTES_MAX: usize = 48 << 20;

/// Approximate number of bytes of the other texts in an object that starts with a name.
const TEXTS: usize = 24;

/// Formats a time, in microseconds since 1970-01-01 UTC, as ISO 8601 with microseconds and offset.
/// A time that no calendar date can express is formatted as the number itself.
pub fn time_text(time_us: i64) -> String {
    DateTime::from_timestamp_micros(time_us)
        .map_or_else(|| time_us.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Micros, false))
}

impl<'a> Record<'a> {
    /// Returns the ids of the objects that the record's payloads refer to; none if its body does
    /// not decode.
    pub fn objects(&self) -> BTreeSet<ObjectId> {
        let mut objects = BTreeSet::new();
        match self.kind {
            RecordKind::Dispatch => {
                let Ok(dispatch) = Dispatch::decode(self.body) else { return objects };
                if let Action::Event { data, .. } = &dispatch.action {
                    objects.extend(data.object());
                }
                objects.extend(dispatch.effects.iter().flatten().flat_map(objects_of));
            }
            RecordKind::Import => {
                let Ok(import) = Import::decode(self.body) else { return objects };
                let items = import.slices.iter().flat_map(|slice| &slice.items);
                objects.extend(items.filter_map(|(item, _)| item.object()));
            }
            RecordKind::Snapshot => {
                let Ok(snapshot) = SnapshotBody::decode(self.body) else { return objects };
                let captures = snapshot.resources.iter().filter_map(|resource| resource.snapshot);
                objects.extend(captures.filter_map(|payload| payload.object()));
            }
            RecordKind::ToolBegin => {
                let Ok(begin) = ToolBegin::decode(self.body) else { return objects };
                let snapshots = begin.resources.iter().filter_map(|resource| resource.snapshot);
                let shown = begin.closed.iter().map(|closed| closed.shown);
                let payloads = [begin.arguments].into_iter().chain(shown).chain(snapshots);
                objects.extend(payloads.filter_map(|it| it.object()));
            }
            RecordKind::ToolEnd => {
                let Ok(end) = ToolEnd::decode(self.body) else { return objects };
                let snapshots = end.resources.iter().filter_map(|resource| resource.snapshot);
                let own = [end.result, end.shown, end.overrides].into_iter().flatten();
                objects.extend(own.chain(snapshots).filter_map(|payload| payload.object()));
            }
            RecordKind::Observed => {
                let Ok(observed) = Observed::decode(self.body) else { return objects };
                objects.extend(observed.data.object());
            }
            RecordKind::Settle => {
                let Ok(settle) = Settle::decode(self.body) else { return objects };
                objects.extend(
                    [settle.result, settle.shown]
                        .into_iter()
                        .flatten()
                        .filter_map(|payload| payload.object()),
                );
            }
            _ => objects = conversation::objects(self.kind, self.body),
        }
        objects
    }

    /// Returns the fields of the record's JSON form as a value: `sequence`, `time`, `kind`, `bytes`
    /// and the fields of its body under their full names. Payloads are as they were recorded, so
    /// that two records can be compared value by value; [`to_json`](Record::to_json) writes them in
    /// their JSON form.
    ///
    /// The body of an unknown kind becomes the field `body`: its value, or hexadecimal digits if it
    /// is not a value within [`ValueLimits::of_payload`]. A payload over these limits becomes
    /// `{"$msgpack": "hex"}`, so that the JSON never nests deeper than readers of JSON accept.
    /// Regardless of the length of the names, the function takes at most 64 times the memory of the
    /// body and a mebibyte.
    ///
    /// # Errors
    ///
    /// - [`Error::Body`] if the body of a known kind does not decode as that kind.
    /// - [`Error::Malformed`] if a payload contains text that is not UTF-8.
    /// - [`Error::Limit`] if the names in the JSON form would take too much memory.
    pub fn to_value(&self, names: &RecordNames) -> Result<Value, Error> {
        self.to_json(names).map(|json| Part::Map(json.pairs).into_value())
    }

    /// Returns the record's JSON form for serialization: the same fields as
    /// [`to_value`](Record::to_value), each payload in its [JSON form](crate::msgpack). Payloads
    /// stay MessagePack in the body until they are serialized, token by token. The form takes at
    /// most 48 MiB in addition to the decoded body.
    ///
    /// # Errors
    ///
    /// - [`Error::Body`] if the body of a known kind does not decode as that kind.
    /// - [`Error::Malformed`] if a payload contains text that is not UTF-8.
    /// - [`Error::Limit`] if the names in the JSON form would take too much memory.
    pub fn to_json(&self, names: &RecordNames) -> Result<RecordJson<'a>, Error> {
        let mut object = Object::default();
        let mut budget = Budget::for_body(self.body);
        if !self.kind.is_envelope() {
            object.set("sequence", Value::from(self.sequence));
        }
        object.set("time", Value::from(time_text(self.time_us)));
        object.set("kind", Value::from(self.kind.to_string()));
        object.set("bytes", Value::from(self.body.len() as u64));
        match self.kind {
            RecordKind::Opened => set_opening(&mut object, SessionOpening::decode(self.body)?),
            RecordKind::Declare | RecordKind::Declared => {
                declare(&mut object, Declare::decode(self.body)?, names, &mut budget)?;
            }
            RecordKind::Dispatch => dispatch(&mut object, Dispatch::decode(self.body)?, names, &mut budget)?,
            RecordKind::Snapshot => {
                let snapshot = SnapshotBody::decode(self.body)?;
                object.set("tag", snapshot.tag.map_or(Value::Nil, Value::from));
                let policies = snapshot.policies.iter().map(|policy| Value::from(policy.name()));
                object.set("policies", Value::Array(policies.collect()));
                if !snapshot.resources.is_empty() {
                    object.set("resources", operation::resources(snapshot.resources)?);
                }
            }
            RecordKind::Rollback => {
                let rollback = Rollback::decode(self.body)?;
                object.set("to", Value::from(rollback.to));
                object.set("preserve_logs", Value::from(rollback.preserve_logs));
            }
            RecordKind::Import => import(&mut object, Import::decode(self.body)?, names, &mut budget)?,
            RecordKind::Replicated => {
                let Replicated { at, by, epoch } = Replicated::decode(self.body)?;
                object.set("at", Value::from(at));
                object.set("by", Value::from(by));
                object.set("epoch", Value::from(epoch));
            }
            RecordKind::ToolBegin => operation::tool_begin(&mut object, ToolBegin::decode(self.body)?)?,
            RecordKind::ToolEnd => {
                operation::tool_end(&mut object, ToolEnd::decode(self.body)?, names, &mut budget)?;
            }
            RecordKind::Observed => {
                let observed = Observed::decode(self.body)?;
                object.set("name", Value::from(observed.name));
                object.set("data", payload(observed.data)?);
            }
            RecordKind::Settle => operation::settle(&mut object, Settle::decode(self.body)?)?,
            RecordKind::Input => conversation::input(&mut object, Input::decode(self.body)?)?,
            RecordKind::Request => conversation::request(&mut object, Request::decode(self.body)?)?,
            RecordKind::Answer => conversation::answer(&mut object, AnswerBody::decode(self.body)?)?,
            RecordKind::Turn => conversation::turn(&mut object, Turn::decode(self.body)?),
            RecordKind::Shortened => {
                conversation::set_shortening(&mut object, Shortened::decode(self.body)?)?;
            }
            RecordKind::PromptAccepted => {
                conversation::prompt_accepted(&mut object, PromptAccepted::decode(self.body)?);
            }
            RecordKind::AdapterState => {
                conversation::adapter_state(&mut object, AdapterState::decode(self.body)?)?;
            }
            RecordKind::Resumed => {
                let resumed = Resumed::decode(self.body)?;
                object.set("epoch", Value::from(resumed.epoch));
                object.set("boot_id", resumed.boot_id.map_or(Value::Nil, |id| Value::from(id.to_string())));
                object.set("clock", Value::from(time_text(resumed.clock_us)));
                if let Some(recovered) = resumed.recovered {
                    object.set("recovered", Value::from(recovered));
                }
                if !resumed.began.is_empty() {
                    object.set("began", Value::Array(resumed.began.into_iter().map(Value::from).collect()));
                }
            }
            RecordKind::Seal => {
                let seal = Seal::decode(self.body)?;
                object.set("next", Value::from(u64::from(seal.next)));
                object.set("records", Value::from(seal.records));
                object.set("hash", Value::from(hex(&seal.hash)));
            }
            RecordKind::Synced | RecordKind::Closed => {}
            RecordKind::Dropped => compaction::set_dropped_body(&mut object, Dropped::decode(self.body)?),
            RecordKind::Compacted => compaction::set_compaction(&mut object, Compacted::decode(self.body)?),
            RecordKind::Base => compaction::base(&mut object, Base::decode(self.body)?, names, &mut budget)?,
            _ => {
                let body = JsonStream::new(self.body, ValueLimits::of_payload());
                object.set("body", body.map_or(Part::Hex(self.body), Part::Payload));
            }
        }
        // Records of a conversation set their lane with their own fields.
        if matches!(
            self.kind,
            RecordKind::Dispatch
                | RecordKind::Snapshot
                | RecordKind::Rollback
                | RecordKind::ToolBegin
                | RecordKind::Observed
                | RecordKind::Settle
        ) {
            lane(&mut object, Lane::decode(self.kind, self.body)?);
        }
        Ok(RecordJson { pairs: object.pairs })
    }
}

/// Contains the JSON form of a record, in which payloads are still MessagePack.
#[derive(Debug, Default)]
pub struct RecordJson<'a> {
    pairs: Vec<(&'static str, Part<'a>)>,
}

impl RecordJson<'_> {
    /// Sets a field: in its place if the form has it, otherwise at the end.
    pub fn set(&mut self, key: &'static str, value: Value) {
        match self.pairs.iter_mut().find(|(other, _)| *other == key) {
            Some((_, part)) => *part = Part::Value(value),
            None => self.pairs.push((key, Part::Value(value))),
        }
    }

    /// Replaces texts and values of hosts, tools and models by their [type, length and
    /// digest](LeftOut): payloads, and the messages of failures. Names, numbers, tags, reasons of
    /// decisions and references to objects are unchanged.
    pub fn leave_out_payloads(&mut self) {
        self.pairs.iter_mut().for_each(|(key, part)| part.leave_out(key));
    }
}

impl Serialize for RecordJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.pairs.iter().map(|(key, part)| (key, part)))
    }
}

#[derive(Debug)]
enum Part<'a> {
    Value(Value),
    /// A payload of a host, still MessagePack.
    Payload(JsonStream<'a>),
    /// Bytes that become hexadecimal digits.
    Hex(&'a [u8]),
    /// A payload over the limits of JSON, which becomes the hexadecimal digits of its MessagePack.
    MessagePack(&'a [u8]),
    /// Ids of items, which become pairs of sequence number and ordinal.
    Ids(Vec<ItemId>),
    /// Names with their texts, which become the fields of an object.
    Texts(Vec<(Cow<'a, str>, Cow<'a, str>)>),
    /// An omitted payload, as its MessagePack.
    LeftOut(&'a [u8]),
    Array(Vec<Part<'a>>),
    Map(Vec<(&'static str, Part<'a>)>),
}

impl From<Value> for Part<'_> {
    fn from(value: Value) -> Self {
        Part::Value(value)
    }
}

impl Part<'_> {
    /// Replaces the payloads in the field `key` by their type, length and digest.
    fn leave_out(&mut self, key: &str) {
        match self {
            Part::Payload(payload) => *self = Part::LeftOut(payload.bytes()),
            Part::Hex(bytes) | Part::MessagePack(bytes) => *self = Part::LeftOut(bytes),
            Part::Texts(texts) => *texts = Vec::new(),
            Part::Value(value @ Value::Str(_)) if key == "message" => *value = Value::Nil,
            Part::Array(parts) => parts.iter_mut().for_each(|part| part.leave_out("")),
            Part::Map(pairs) => pairs.iter_mut().for_each(|(key, part)| part.leave_out(key)),
            Part::Value(_) | Part::Ids(_) | Part::LeftOut(_) => {}
        }
    }

    fn into_value(self) -> Value {
        match self {
            Part::Value(value) => value,
            Part::LeftOut(bytes) => Value::from(LeftOut(bytes).type_name()),
            Part::Payload(payload) => payload.to_value(),
            Part::Hex(bytes) => Value::from(Hex(bytes).to_string()),
            Part::MessagePack(bytes) => {
                Value::Map(vec![(Value::from(MSGPACK), Value::from(Hex(bytes).to_string()))])
            }
            Part::Ids(ids) => Value::Array(ids.into_iter().map(id_value).collect()),
            Part::Texts(texts) => {
                let mut values = Vec::with_capacity(texts.len());
                let value = |text: Cow<'_, str>| Value::from(text.into_owned());
                values.extend(texts.into_iter().map(|(name, text)| (value(name), value(text))));
                Value::Map(values)
            }
            Part::Array(parts) => {
                // Exact capacity: a body may contain many arrays, and spare capacity in each adds
                // up.
                let mut values = Vec::with_capacity(parts.len());
                values.extend(parts.into_iter().map(Part::into_value));
                Value::Array(values)
            }
            Part::Map(pairs) => {
                let mut values = Vec::with_capacity(pairs.len());
                values.extend(pairs.into_iter().map(|(key, part)| (Value::from(key), part.into_value())));
                Value::Map(values)
            }
        }
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Part::Value(value) => value.serialize(serializer),
            Part::Payload(payload) => payload.serialize(serializer),
            Part::Hex(bytes) => Hex(bytes).serialize(serializer),
            Part::MessagePack(bytes) => serialize_tagged(serializer, MSGPACK, &Hex(bytes)),
            Part::LeftOut(bytes) => LeftOut(bytes).serialize(serializer),
            Part::Ids(ids) => serializer.collect_seq(ids.iter().map(|id| (id.sequence, id.ordinal))),
            Part::Texts(texts) => serializer.collect_map(texts.iter().map(|(name, text)| (name, text))),
            Part::Array(parts) => serializer.collect_seq(parts),
            Part::Map(pairs) => serializer.collect_map(pairs.iter().map(|(key, part)| (key, part))),
        }
    }
}

#[derive(Default)]
struct Object<'a> {
    pairs: Vec<(&'static str, Part<'a>)>,
}

impl<'a> Object<'a> {
    /// Creates an object with capacity for exactly `fields` fields: a body may contain many
    /// objects, and spare capacity in each adds up.
    fn with_capacity(fields: usize) -> Object<'a> {
        Object { pairs: Vec::with_capacity(fields) }
    }

    fn set(&mut self, key: &'static str, part: impl Into<Part<'a>>) {
        self.pairs.push((key, part.into()));
    }

    fn into_part(self) -> Part<'a> {
        Part::Map(self.pairs)
    }
}

fn array<'a, T>(
    items: impl ExactSizeIterator<Item = T>,
    part: impl FnMut(T) -> Result<Part<'a>, Error>,
) -> Result<Part<'a>, Error> {
    let mut parts = Vec::with_capacity(items.len());
    for item in items.map(part) {
        parts.push(item?);
    }
    Ok(Part::Array(parts))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tags(tags: BTreeMap<String, String>) -> Value {
    Value::Map(tags.into_iter().map(|(key, value)| (Value::from(key), Value::from(value))).collect())
}

fn set_opening(object: &mut Object<'_>, opened: SessionOpening) {
    object.set("session", Value::from(opened.session.to_string()));
    // Any number of 64 bits. As a JSON number, most would be misread by readers that represent
    // numbers as doubles.
    object.set("seed", Value::from(opened.seed.to_string()));
    object.set("tags", tags(opened.tags));
    let parent = opened.parent.map_or(Part::Value(Value::Nil), |parent| {
        let mut object = Object::default();
        object.set("session", Value::from(parent.session().to_string()));
        match parent {
            Parent::Fork { position, chain, .. } => {
                object.set("how", Value::from("fork"));
                object.set("position", Value::from(position));
                object.set("chain", Value::from(u64::from(chain)));
            }
            Parent::Child { operation, .. } => {
                object.set("how", Value::from("child"));
                if let Some(operation) = operation {
                    object.set("operation", Value::from(operation));
                }
            }
        }
        object.into_part()
    });
    object.set("parent", parent);
}

fn declare(
    object: &mut Object<'_>,
    declare: Declare,
    names: &RecordNames,
    budget: &mut Budget,
) -> Result<(), Error> {
    // A declaration names its own slices; those of its bindings may have been declared earlier.
    let own: BTreeMap<u32, &str> =
        declare.slices.iter().map(|slice| (slice.id, slice.name.as_str())).collect();
    let events = array(declare.events.into_iter(), |event| {
        let mut object = Object::with_capacity(5);
        object.set("id", Value::from(u64::from(event.id)));
        object.set("name", Value::from(event.name));
        object.set("version", Value::from(u64::from(event.version)));
        let bindings = array(event.bindings.iter(), |binding| {
            let mut object = Object::with_capacity(2);
            let name =
                own.get(&binding.slice).map_or_else(|| names.slice(binding.slice), |name| (*name).into());
            object.set("slice", budget.name(&name, 2)?);
            object.set("effect", Value::from(binding.built_in.name()));
            Ok(object.into_part())
        });
        object.set("bindings", bindings?);
        object.set("implicit", Value::from(event.implicit));
        Ok(object.into_part())
    })?;
    let slices = declare.slices.into_iter().map(|slice| {
        let mut object = Object::default();
        object.set("id", Value::from(u64::from(slice.id)));
        object.set("name", Value::from(slice.name));
        object.set("policy", Value::from(slice.policy.name()));
        object.set("item", Value::from(slice.item));
        object.into_part()
    });
    object.set("events", events);
    object.set("slices", Part::Array(slices.collect()));
    Ok(())
}

fn dispatch<'a>(
    object: &mut Object<'a>,
    dispatch: Dispatch<'a>,
    names: &RecordNames,
    budget: &mut Budget,
) -> Result<(), Error> {
    match dispatch.action {
        Action::Event { event, data } => {
            let (name, version) = match names.events.get(&event) {
                Some((name, version)) => (Cow::from(name), *version),
                None => (Cow::from(format!("event-{event}")), 0),
            };
            object.set("event", budget.name(&name, 0)?);
            object.set("version", Value::from(u64::from(version)));
            object.set("data", payload(data)?);
        }
        Action::Seed => object.set("operation", Value::from("seed")),
        Action::Clear => object.set("operation", Value::from("clear")),
        Action::Reset => object.set("operation", Value::from("reset")),
        Action::Tag { key, value } => {
            object.set("operation", Value::from("tag"));
            object.set("key", Value::from(key));
            object.set("value", value.map_or(Value::Nil, Value::from));
        }
    }
    if let Some(effects) = dispatch.effects {
        object.set("effects", array(effects.into_iter(), |effect| effect_part(effect, names, budget))?);
    }
    Ok(())
}

fn payload(payload: Payload<'_>) -> Result<Part<'_>, Error> {
    match payload.object() {
        // No host can have passed in a value over these limits, and many readers of JSON accept 128
        // levels in all.
        None => match JsonStream::new(payload.bytes(), ValueLimits::of_payload()) {
            Err(Error::Limit { .. }) => Ok(Part::MessagePack(payload.bytes())),
            streamed => streamed.map(Part::Payload),
        },
        Some(object) => {
            let mut value = Object::default();
            value.set(OBJECT, Value::from(object.file_name()));
            value.set("bytes", Value::from(object.len));
            Ok(value.into_part())
        }
    }
}

fn optional(value: Option<Payload<'_>>) -> Result<Part<'_>, Error> {
    value.map_or(Ok(Part::Value(Value::Nil)), payload)
}

fn objects_of<'a>(effect: &Effect<'a>) -> Vec<ObjectId> {
    match &effect.added {
        AddedItems::Event => Vec::new(),
        AddedItems::Items { items, .. } => items.iter().filter_map(|item| item.object()).collect(),
    }
}

fn lane(object: &mut Object<'_>, lane: Lane<'_>) {
    if let Some(within) = lane.within {
        object.set("within", Value::from(within));
    }
    if let Some(name) = lane.name {
        object.set("lane", Value::from(name.into_owned()));
    }
}

fn id_value(id: ItemId) -> Value {
    Value::Array(vec![Value::from(id.sequence), Value::from(u64::from(id.ordinal))])
}

fn effect_part<'a>(effect: Effect<'a>, names: &RecordNames, budget: &mut Budget) -> Result<Part<'a>, Error> {
    let fields = 2
        + usize::from(effect.removed != RemovedItems::None)
        + usize::from(effect.added != AddedItems::Event)
        + usize::from(effect.before.is_some());
    let mut object = Object::with_capacity(fields);
    object.set("slice", budget.name(&names.slice(effect.slice), fields)?);
    match effect.removed {
        RemovedItems::None => {}
        RemovedItems::All => object.set("removed", Value::from("all")),
        RemovedItems::Items(ids) => {
            object.set("removed", Part::Ids(ids));
        }
    }
    match effect.added {
        AddedItems::Event => object.set("added", Value::from("event")),
        AddedItems::Items { items, version } => {
            object.set("added", array(items.into_iter(), payload)?);
            object.set("version", Value::from(u64::from(version)));
        }
    }
    if let Some(before) = effect.before {
        object.set("before", id_value(before));
    }
    Ok(object.into_part())
}

fn import<'a>(
    object: &mut Object<'a>,
    import: Import<'a>,
    names: &RecordNames,
    budget: &mut Budget,
) -> Result<(), Error> {
    object.set("from", import.from.map_or(Value::Nil, |id| Value::from(id.to_string())));
    object.set("exported_at", import.exported_at_us.map_or(Value::Nil, |time| Value::from(time_text(time))));
    object.set("tags", tags(import.tags));
    let slices = array(import.slices.into_iter(), |slice| {
        let mut object = Object::with_capacity(2);
        object.set("slice", budget.name(&names.slice(slice.slice), 2)?);
        object.set("items", array(slice.items.iter(), |(item, _)| payload(*item))?);
        Ok(object.into_part())
    });
    object.set("slices", slices?);
    Ok(())
}
