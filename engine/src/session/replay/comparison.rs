//! Compares the records that a replayed host produces with the recorded ones: the next record and
//! later ones.
//!
//! If the host's types have a later version of a recorded event or of the items that it added, the
//! recorded ones are upgraded first, as for any reader. An event without a slice of the host has no
//! such types.

use std::collections::BTreeMap;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{Action, AddedItems, Dispatch, Effect, Lane, ObjectId, Payload};

use super::recorded_log::ReplayRecord;
use crate::divergence::{BodyComparison, Difference, LeaveOut, OtherRecord, resolve_effects, shown_name};
use crate::error::Error;
use crate::fold::record_kinds::RecordRules;
use crate::log::objects::Objects;
use crate::names::DeclaredNames;
use crate::types::{RecordedBytes, SessionTypes};

/// Compares records with one that the host has produced.
pub(super) struct RecordComparison<'a> {
    pub(super) kind: RecordKind,
    pub(super) produced: &'a [u8],
    /// Declared names of the log, and new declarations of the host for the record.
    pub(super) names: &'a DeclaredNames,
    pub(super) left_out: &'a LeaveOut,
    /// The host's types; `None` to skip upgrades.
    pub(super) types: Option<&'a SessionTypes>,
    pub(super) objects: &'a Objects,
    /// Contents of the objects that the produced record names. A replay does not write them.
    pub(super) produced_objects: &'a BTreeMap<ObjectId, Vec<u8>>,
}

/// Recorded items, upgraded to the host's version.
struct UpToDate {
    items: Vec<Vec<u8>>,
    version: u32,
}

impl RecordComparison<'_> {
    /// Returns whether a recorded record has the kind of the produced one, and its name if the kind is
    /// one of named records.
    pub(super) fn is_alike(&self, recorded: &ReplayRecord) -> bool {
        let RecordRules { subject, subject_identifies, .. } = RecordRules::of(self.kind);
        self.kind == recorded.kind
            && (!subject_identifies
                || subject(&recorded.body, self.names) == subject(self.produced, self.names))
    }

    pub(super) fn describe_record(&self, recorded: &ReplayRecord) -> OtherRecord {
        let record = shown_name(recorded.kind, &recorded.body, self.names);
        OtherRecord { sequence: recorded.sequence, record }
    }

    /// Returns the first difference to a recorded record of the same kind and name; `None` if no
    /// compared value differs.
    pub(super) fn difference(&self, recorded: &ReplayRecord) -> Option<Difference> {
        let contents = |object: &ObjectId| {
            self.produced_objects.get(object).cloned().or_else(|| self.objects.get(object).ok())
        };
        let RecordComparison { kind, produced, names, left_out: leave_out, .. } = *self;
        let bodies = BodyComparison { kind, names, leave_out, contents: &contents };
        match self.up_to_date(recorded) {
            Ok(None) => bodies.difference(&recorded.body, produced),
            Ok(Some(body)) => bodies.values(&body, produced).0,
            Err(difference) => Some(*difference),
        }
    }

    /// Returns the body of a recorded dispatch with everything of an older version upgraded to the
    /// host's; `None` if the record needs no upgrade.
    fn up_to_date(&self, recorded: &ReplayRecord) -> Result<Option<Vec<u8>>, Box<Difference>> {
        let Some(types) = self.types.filter(|_| self.kind == RecordKind::Dispatch) else { return Ok(None) };
        let (Ok(old), Ok(new)) = (Dispatch::decode(&recorded.body), Dispatch::decode(self.produced)) else {
            return Ok(None);
        };
        let effects = resolve_effects(&old, self.names);
        let event = self.event_up_to_date(recorded, &old, types)?;
        let mut items = Vec::new();
        for effect in &effects {
            items.push(self.items_up_to_date(recorded, effect, types)?);
        }
        if event.is_none() && items.iter().all(Option::is_none) {
            return Ok(None);
        }
        let action = match (&event, new.action) {
            (Some(data), Action::Event { event, .. }) => Action::Event { event, data: Payload::new(data) },
            _ => old.action,
        };
        let effects = effects.into_iter().zip(&items).map(|(effect, items)| match items {
            Some(UpToDate { items, version }) => {
                let items = items.iter().map(|item| Payload::new(item)).collect();
                Effect { added: AddedItems::Items { items, version: *version }, ..effect }
            }
            None => effect,
        });
        let mut body = Dispatch { action, effects: Some(effects.collect()) }.encode();
        Lane::decode(self.kind, &recorded.body).unwrap_or_default().add_to(&mut body, 0);
        Ok(Some(body))
    }

    /// Returns the bytes of a recorded event, upgraded; `None` if it has the host's version.
    fn event_up_to_date(
        &self,
        recorded: &ReplayRecord,
        dispatch: &Dispatch<'_>,
        types: &SessionTypes,
    ) -> Result<Option<Vec<u8>>, Box<Difference>> {
        let Action::Event { event, data } = dispatch.action else { return Ok(None) };
        let Some(declared) = self.names.event(event) else { return Ok(None) };
        let Some(types) = types.event(&declared.name).filter(|types| types.version > declared.version) else {
            return Ok(None);
        };
        let bytes = self.objects.resolve(data).and_then(|bytes| {
            let value =
                types.decoder.alone(declared.version, recorded.sequence, RecordedBytes::Elsewhere(&bytes))?;
            types.encode(value.as_ref())
        });
        bytes.map(Some).map_err(|error| unread("$.event", data, &error))
    }

    /// Returns the items that a recorded dispatch added to a slice, upgraded; `None` if they have
    /// the host's version.
    fn items_up_to_date(
        &self,
        recorded: &ReplayRecord,
        effect: &Effect<'_>,
        types: &SessionTypes,
    ) -> Result<Option<UpToDate>, Box<Difference>> {
        let AddedItems::Items { items, version: old } = &effect.added else { return Ok(None) };
        let name = self.names.slice_name(effect.slice);
        let Some(types) = types.slice(&name).filter(|types| types.item_version > *old) else {
            return Ok(None);
        };
        let mut found = Vec::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let bytes = self.objects.resolve(*item);
            let bytes = bytes.and_then(|bytes| types.up_to_date(*old, recorded.sequence, &bytes));
            found.push(bytes.map_err(|error| {
                let difference = unread(&format!("$.added[{place}]"), *item, &error);
                Box::new(Difference { slice: Some(name.clone()), ..*difference })
            })?);
        }
        Ok(Some(UpToDate { items: found, version: types.item_version }))
    }

    /// Returns whether no compared value differs from a recorded record.
    pub(super) fn is_same(&self, recorded: &ReplayRecord) -> bool {
        recorded.is(self.kind, self.produced)
            || self.is_alike(recorded) && self.difference(recorded).is_none()
    }
}

fn unread(path: &str, recorded: Payload<'_>, error: &Error) -> Box<Difference> {
    Box::new(Difference::unread(
        path,
        recorded,
        format!("it cannot be converted to the present version: {error}"),
    ))
}
