//! Compares the bodies of two records of one kind.

use std::collections::BTreeMap;

use foldlog_codec::body::{
    Action, AddedItems, BuiltIn, Dispatch, Effect, ItemId, Lane, ObjectId, Payload, RemovedItems,
};
use foldlog_codec::msgpack::{Value, ValueLimits};
use foldlog_codec::{Record, RecordKind, SequenceNumber, record};

use super::Difference;
use super::left_out::LeaveOut;
use super::walk::{Contents, DifferenceFlow, ValueComparer};
use crate::fold::record_kinds::{RecordRules, action_name};
use crate::names::DeclaredNames;

/// Fields of a record's JSON form that are not part of its body.
const OF_RECORD: [&str; 4] = ["sequence", "time", "kind", "bytes"];

/// Compares the bodies of a recorded and a produced record of one kind and log.
pub(crate) struct BodyComparison<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) names: &'a DeclaredNames,
    pub(crate) leave_out: &'a LeaveOut,
    pub(crate) contents: &'a Contents<'a>,
}

impl<'a> BodyComparison<'a> {
    /// Returns the first difference; `None` if no compared value differs. The module's docs list
    /// the compared values.
    pub(crate) fn difference(&self, recorded: &[u8], produced: &[u8]) -> Option<Difference> {
        if recorded == produced {
            return None;
        }
        match self.values(recorded, produced) {
            (Some(difference), _) => Some(difference),
            // Only values that are not compared differ, and the bytes may differ for that reason.
            (None, true) => None,
            (None, false) => Some(raw(recorded, produced)),
        }
    }

    /// Compares the decoded values. Returns the first difference, and whether there is one that is
    /// not compared.
    pub(crate) fn values(&self, recorded: &[u8], produced: &[u8]) -> (Option<Difference>, bool) {
        let mut walk = ValueComparer::with_rules(RecordRules::of(self.kind));
        walk.contents = self.contents;
        let found = match self.kind {
            RecordKind::Dispatch => self.dispatches(&mut walk, recorded, produced),
            _ => self.others(&mut walk, recorded, produced),
        };
        (found.break_value(), walk.skipped)
    }

    fn others(&self, walk: &mut ValueComparer<'_>, old: &[u8], new: &[u8]) -> DifferenceFlow {
        walk.left_out.extend(excluded(RecordRules::of(self.kind), old, new));
        match (form(self.kind, old, self.names), form(self.kind, new, self.names)) {
            (Some(old), Some(new)) => walk.values(&old, &new),
            _ => DifferenceFlow::Continue(()),
        }
    }

    fn dispatches(&self, walk: &mut ValueComparer<'a>, old_body: &[u8], new_body: &[u8]) -> DifferenceFlow {
        let (Ok(mut old), Ok(mut new)) = (Dispatch::decode(old_body), Dispatch::decode(new_body)) else {
            return DifferenceFlow::Continue(());
        };
        if let Action::Event { event, .. } = old.action {
            let left_out = self.leave_out.paths_of(&self.names.event_name(event));
            walk.left_out.extend(left_out.iter().map(String::as_str));
        }
        self.actions(walk, &old.action, &new.action)?;
        lanes(walk, old_body, new_body)?;
        for dispatch in [&mut old, &mut new] {
            dispatch.effects = Some(resolve_effects(dispatch, self.names));
        }
        self.effects(walk, &old, &new)
    }

    fn actions(&self, walk: &mut ValueComparer<'_>, old: &Action<'_>, new: &Action<'_>) -> DifferenceFlow {
        let names = self.names;
        match (old, new) {
            (Action::Event { event: old, data: old_data }, Action::Event { event: new, data: new_data }) => {
                let (old_name, new_name) = (names.event_name(*old), names.event_name(*new));
                walk.at(".name", |walk| walk.values(&Value::from(old_name), &Value::from(new_name)))?;
                let version =
                    |event: u32| Value::from(names.event(event).map_or(0, |event| u64::from(event.version)));
                walk.at(".version", |walk| walk.values(&version(*old), &version(*new)))?;
                walk.at(".event", |walk| payloads(walk, *old_data, *new_data))
            }
            (Action::Tag { key: old, value: old_value }, Action::Tag { key: new, value: new_value }) => {
                walk.at(".key", |walk| walk.values(&Value::from(old.as_str()), &Value::from(new.as_str())))?;
                let value = |value: &Option<String>| value.as_deref().map(Value::from);
                walk.at(".value", |walk| walk.options(value(old_value), value(new_value)))
            }
            (old, new) => {
                let name = |action: &Action<'_>| Value::from(action_name(action, names));
                let is_event = |action: &Action<'_>| matches!(action, Action::Event { .. });
                let step = if is_event(old) && is_event(new) { ".name" } else { ".operation" };
                walk.at(step, |walk| walk.values(&name(old), &name(new)))
            }
        }
    }

    /// Compares the resolved effects of two dispatches on each slice.
    fn effects(
        &self,
        walk: &mut ValueComparer<'_>,
        old: &Dispatch<'_>,
        new: &Dispatch<'_>,
    ) -> DifferenceFlow {
        let (known, produced) = (effects_by_slice(old), effects_by_slice(new));
        for effect in old.effects.iter().flatten() {
            walk.slice = Some(self.names.slice_name(effect.slice));
            match produced.get(&effect.slice) {
                Some(other) => {
                    slice_effects(walk, self.in_dispatch(old, effect), self.in_dispatch(new, other))?;
                }
                None => walk.differ(Some(effect_value(effect)), None, None)?,
            }
        }
        for effect in new.effects.iter().flatten().filter(|effect| !known.contains_key(&effect.slice)) {
            walk.slice = Some(self.names.slice_name(effect.slice));
            walk.differ(None, Some(effect_value(effect)), None)?;
        }
        walk.slice = None;
        let order = |dispatch: &Dispatch<'_>| {
            let slices = dispatch.effects.iter().flatten().map(|effect| self.names.slice_name(effect.slice));
            Value::Array(slices.map(Value::from).collect())
        };
        let (old, new) = (order(old), order(new));
        if old == new {
            return DifferenceFlow::Continue(());
        }
        walk.at(".effects", |walk| walk.differ(Some(old), Some(new), Some("order of slices".to_owned())))
    }

    fn in_dispatch<'e, 'b>(
        &self,
        dispatch: &Dispatch<'e>,
        effect: &'b Effect<'e>,
    ) -> EffectInDispatch<'e, 'b> {
        let Action::Event { event, data } = dispatch.action else {
            return EffectInDispatch { effect, event: None, version: 1 };
        };
        let version = self.names.event(event).map_or(1, |event| event.version);
        EffectInDispatch { effect, event: Some(data), version }
    }
}

/// Compares two bodies of one kind from two logs, each with the names of its log. Returns the first
/// difference. Values that each run generates are not compared: a provider's ids, captures, times.
pub(crate) fn between_logs(
    kind: RecordKind,
    one: &[u8],
    one_names: &DeclaredNames,
    two: &[u8],
    two_names: &DeclaredNames,
) -> Option<Difference> {
    let rules = RecordRules::of(kind);
    let mut walk = ValueComparer::with_rules(rules);
    walk.left_out.extend(rules.generated);
    walk.left_out.extend(excluded(rules, one, two));
    let form = |body: &[u8], names: &DeclaredNames| {
        let mut form = named_form(kind, body, names);
        if let Value::Map(pairs) = &mut form
            && kind == RecordKind::Dispatch
        {
            // Renames the fields to those of a divergence's paths.
            let renamed = |from: &str, to: &str, pairs: &mut Vec<(Value, Value)>| {
                let found = pairs.iter_mut().find(|(key, _)| key.as_str() == Some(from));
                found.into_iter().for_each(|(key, _)| *key = Value::from(to));
            };
            renamed("event", "name", pairs);
            renamed("data", "event", pairs);
        }
        form
    };
    walk.values(&form(one, one_names), &form(two, two_names)).break_value()
}

/// Returns the JSON form of a record's body with the names of its fields, or its bytes in
/// hexadecimal if it does not decode.
pub(super) fn named_form(kind: RecordKind, body: &[u8], names: &DeclaredNames) -> Value {
    form(kind, body, names).unwrap_or_else(|| digits(body))
}

fn form(kind: RecordKind, body: &[u8], names: &DeclaredNames) -> Option<Value> {
    let mut known = record::RecordNames::default();
    known.learn(&names.all());
    let record = Record { sequence: SequenceNumber::MIN, kind, time_us: 0, body };
    let mut value = record.to_value(&known).ok()?;
    if let Value::Map(pairs) = &mut value {
        // A conversation's record has its own fields with these names after them.
        let own =
            pairs.iter().take_while(|(key, _)| key.as_str().is_some_and(|key| OF_RECORD.contains(&key)));
        pairs.drain(..own.count());
    }
    Some(value)
}

/// Returns the path of the value that is not compared, since both records have one there.
fn excluded(rules: &RecordRules, one: &[u8], two: &[u8]) -> Option<&'static str> {
    (rules.excluded_in_both)(one).filter(|_| (rules.excluded_in_both)(two).is_some())
}

fn lanes(walk: &mut ValueComparer<'_>, old: &[u8], new: &[u8]) -> DifferenceFlow {
    let (Ok(old), Ok(new)) =
        (Lane::decode(RecordKind::Dispatch, old), Lane::decode(RecordKind::Dispatch, new))
    else {
        return DifferenceFlow::Continue(());
    };
    walk.at(".within", |walk| walk.options(old.within.map(Value::from), new.within.map(Value::from)))?;
    let name = |lane: &Lane<'_>| lane.name.as_deref().map(Value::from);
    walk.at(".lane", |walk| walk.options(name(&old), name(&new)))
}

/// Returns the effects of a dispatch; if the record contains none, those that its event was
/// declared with.
pub(crate) fn resolve_effects<'a>(dispatch: &Dispatch<'a>, names: &DeclaredNames) -> Vec<Effect<'a>> {
    if let Some(effects) = &dispatch.effects {
        return effects.clone();
    }
    let Action::Event { event, .. } = dispatch.action else { return Vec::new() };
    let bindings = names.event(event).map(|event| event.bindings.as_slice()).unwrap_or_default();
    let effect = |(slice, built_in)| match built_in {
        BuiltIn::Append => Some(Effect::append(slice)),
        BuiltIn::Replace => Some(Effect::replace(slice)),
        BuiltIn::Explicit => None,
    };
    bindings.iter().filter_map(|binding| effect((binding.slice, binding.built_in))).collect()
}

fn effects_by_slice<'e, 'b>(dispatch: &'b Dispatch<'e>) -> BTreeMap<u32, &'b Effect<'e>> {
    dispatch.effects.iter().flatten().map(|effect| (effect.slice, effect)).collect()
}

#[derive(Clone, Copy)]
pub(crate) struct ReducedEvent<'a> {
    pub(crate) name: &'a str,
    pub(crate) data: Payload<'a>,
    pub(crate) version: u32,
}

/// Compares the recorded and the produced effects of an event on one slice. `None` means no change.
pub(crate) fn compare_effects(
    slice: &str,
    recorded: Option<&Effect<'_>>,
    produced: Option<&Effect<'_>>,
    event: ReducedEvent<'_>,
    leave_out: &LeaveOut,
    contents: &Contents<'_>,
) -> Option<Difference> {
    let mut walk = ValueComparer::new();
    walk.contents = contents;
    walk.slice = Some(slice.to_owned());
    walk.addresses = false;
    walk.left_out.extend(leave_out.paths_of(event.name).iter().map(String::as_str));
    let found = match (recorded, produced) {
        (None, None) => DifferenceFlow::Continue(()),
        (Some(old), Some(new)) => {
            let ReducedEvent { data, version, .. } = event;
            let in_dispatch = |effect| EffectInDispatch { effect, event: Some(data), version };
            slice_effects(&mut walk, in_dispatch(old), in_dispatch(new))
        }
        (old, new) => walk.differ(old.map(effect_value), new.map(effect_value), None),
    };
    found.break_value()
}

/// Returns the first difference of two values below `path`.
pub(crate) fn first_difference(path: &str, old: &Value, new: &Value) -> Option<Difference> {
    let mut walk = ValueComparer::new();
    walk.at(path, |walk| walk.values(old, new)).break_value()
}

/// An effect with the payload and version of its event, for appended events.
struct EffectInDispatch<'a, 'b> {
    effect: &'b Effect<'a>,
    event: Option<Payload<'a>>,
    version: u32,
}

fn slice_effects(
    walk: &mut ValueComparer<'_>,
    old: EffectInDispatch<'_, '_>,
    new: EffectInDispatch<'_, '_>,
) -> DifferenceFlow {
    let (old_effect, new_effect) = (old.effect, new.effect);
    if old_effect.removed != new_effect.removed {
        let removed = |effect: &Effect<'_>| removed_value(&effect.removed);
        walk.at(".removed", |walk| walk.options(removed(old_effect), removed(new_effect)))?;
    }
    if old_effect.added != AddedItems::Event || new_effect.added != AddedItems::Event {
        let ((old, old_version), (new, new_version)) = (added_items(old), added_items(new));
        if !old.is_empty() && !new.is_empty() {
            let version = |version| Value::from(u64::from(version));
            walk.at(".version", |walk| walk.values(&version(old_version), &version(new_version)))?;
        }
        for place in 0..old.len().max(new.len()) {
            let (old, new) = (old.get(place).copied(), new.get(place).copied());
            walk.at(format_args!(".added[{place}]"), |walk| match (old, new) {
                (Some(old), Some(new)) => payloads(walk, old, new),
                (old, new) => walk.differ(old.map(payload_value), new.map(payload_value), None),
            })?;
        }
    }
    let before = |effect: &Effect<'_>| effect.before.map(id_value);
    walk.at(".before", |walk| walk.options(before(old_effect), before(new_effect)))
}

fn added_items<'a>(effect: EffectInDispatch<'a, '_>) -> (Vec<Payload<'a>>, u32) {
    let EffectInDispatch { effect, event, version } = effect;
    match &effect.added {
        AddedItems::Event => (event.into_iter().collect(), version),
        AddedItems::Items { items, version } => (items.clone(), *version),
    }
}

fn payloads(walk: &mut ValueComparer<'_>, old: Payload<'_>, new: Payload<'_>) -> DifferenceFlow {
    if old.bytes() == new.bytes() {
        return DifferenceFlow::Continue(());
    }
    let object =
        |payload: Payload<'_>| payload.object().unwrap_or_else(|| ObjectId::from_content(payload.bytes()));
    if (old.object().is_some() || new.object().is_some()) && object(old) == object(new) {
        return DifferenceFlow::Continue(());
    }
    let content = |payload: Payload<'_>| {
        let bytes = payload.object().and_then(|object| (walk.contents)(&object));
        let value = bytes.and_then(|bytes| Value::decode_within(&bytes, ValueLimits::of_payload()).ok());
        value.unwrap_or_else(|| payload_value(payload))
    };
    let (old, new) = (content(old), content(new));
    walk.values(&old, &new)
}

/// Returns the value of a payload. For an object it is the reference; for bytes over the limits it
/// is their hexadecimal digits.
pub(super) fn payload_value(payload: Payload<'_>) -> Value {
    match payload.object() {
        Some(object) => Value::Map(vec![
            (Value::from("$object"), Value::from(object.file_name())),
            (Value::from("bytes"), Value::from(object.len)),
        ]),
        None => Value::decode_within(payload.bytes(), ValueLimits::of_payload())
            .unwrap_or_else(|_| digits(payload.bytes())),
    }
}

fn digits(bytes: &[u8]) -> Value {
    Value::Str(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn removed_value(removed: &RemovedItems) -> Option<Value> {
    match removed {
        RemovedItems::None => None,
        RemovedItems::All => Some(Value::from("all")),
        RemovedItems::Items(ids) => Some(Value::Array(ids.iter().copied().map(id_value).collect())),
    }
}

fn id_value(id: ItemId) -> Value {
    Value::Array(vec![Value::from(id.sequence), Value::from(u64::from(id.ordinal))])
}

pub(crate) fn effect_value(effect: &Effect<'_>) -> Value {
    let added = match &effect.added {
        AddedItems::Event => Value::from("event"),
        AddedItems::Items { items, .. } => Value::Array(items.iter().copied().map(payload_value).collect()),
    };
    let removed = removed_value(&effect.removed).map(|removed| (Value::from("removed"), removed));
    let before = effect.before.map(|before| (Value::from("before"), id_value(before)));
    Value::Map(removed.into_iter().chain([(Value::from("added"), added)]).chain(before).collect())
}

/// Returns the first difference of two bodies with equal decoded values: a field that no decoder
/// knows, or else the first byte.
fn raw(recorded: &[u8], produced: &[u8]) -> Difference {
    if let (Ok(old), Ok(new)) = (Value::decode(recorded), Value::decode(produced))
        && let DifferenceFlow::Break(difference) = ValueComparer::new().values(&old, &new)
    {
        let note = difference.note.or_else(|| Some("in a field as it is recorded".to_owned()));
        return Difference { note, ..difference };
    }
    let alike = recorded.iter().zip(produced).take_while(|(old, new)| old == new).count();
    let byte = |body: &[u8]| body.get(alike).map(|byte| Value::from(u64::from(*byte)));
    Difference {
        slice: None,
        path: format!("$[byte {alike}]"),
        recorded: byte(recorded),
        produced: byte(produced),
        note: None,
    }
}
