//! `dispatch`: an event, or an action of the engine, with its effects.

use std::borrow::Cow;

use foldlog_codec::Record;
use foldlog_codec::body::{Action, AddedItems, BuiltIn, Dispatch, Payload};
use foldlog_codec::record::RecordNames;

use super::{Author, RecordBody, RecordRules};
use crate::error::{Error, Result};
use crate::fold::log_source::AddedItem;
use crate::names::DeclaredNames;

pub(super) const RULES: RecordRules = RecordRules {
    added_items,
    subject: |body, names| Some(action_name(&Dispatch::decode(body).ok()?.action, names)),
    subject_identifies: true,
    title: |body, names| Dispatch::decode(body).ok().map(|dispatch| title(&dispatch, names)),
    payloads: |body| match Dispatch::decode(body).ok()?.action {
        Action::Event { data, .. } => Some(vec![("data", data)]),
        _ => None,
    },
    ..RecordRules::unsynced(Author::Host, |record| Dispatch::decode(record.body).map(RecordBody::Dispatch))
};

fn added_items<'a>(record: &Record<'a>, slice: u32, names: &DeclaredNames) -> Result<Vec<AddedItem<'a>>> {
    let sequence = record.sequence;
    let dispatch = Dispatch::decode(record.body).map_err(Error::unread(sequence))?;
    let event = match dispatch.action {
        Action::Event { event, data } => {
            let undeclared =
                || Error::Inconsistent { sequence, reason: format!("event {event} was never declared") };
            Some((names.event(event).ok_or_else(undeclared)?, data))
        }
        _ => None,
    };
    Ok(match (dispatch.effects, event) {
        (None, Some((declared, data))) => {
            let appended = declared
                .bindings
                .iter()
                .any(|binding| binding.slice == slice && binding.built_in != BuiltIn::Explicit);
            if appended { vec![(0, Cow::from(data.bytes()), declared.version)] } else { Vec::new() }
        }
        (None, None) => Vec::new(),
        (Some(effects), event) => effects
            .into_iter()
            .filter(|effect| effect.slice == slice)
            .flat_map(|effect| items_of(effect.added, event.map(|(e, data)| (data, e.version))))
            .collect(),
    })
}

/// Returns the items that an effect adds. `event` is the record's event, if it has one.
fn items_of<'a>(added: AddedItems<'a>, event: Option<(Payload<'a>, u32)>) -> Vec<AddedItem<'a>> {
    let item = |ordinal, payload: Payload<'a>, version| (ordinal, Cow::from(payload.bytes()), version);
    match added {
        AddedItems::Event => event.map(|(data, version)| item(0, data, version)).into_iter().collect(),
        AddedItems::Items { items, version } => {
            (0..).zip(items).map(|(ordinal, payload)| item(ordinal, payload, version)).collect()
        }
    }
}

/// Returns the name of the event, or of another action.
pub(crate) fn action_name(action: &Action<'_>, names: &DeclaredNames) -> String {
    match action {
        Action::Event { event, .. } => names.event_name(*event),
        Action::Seed => "seed".to_owned(),
        Action::Clear => "clear".to_owned(),
        Action::Reset => "reset".to_owned(),
        Action::Tag { .. } => "tag".to_owned(),
    }
}

fn title(dispatch: &Dispatch<'_>, names: &RecordNames) -> String {
    let operation = match &dispatch.action {
        Action::Event { event, .. } => {
            return names
                .events
                .get(event)
                .map_or_else(|| format!("event-{event}"), |(name, _)| name.clone());
        }
        Action::Tag { key, .. } => return format!("tag {key}"),
        Action::Seed => "seed",
        Action::Clear => "clear",
        Action::Reset => "reset",
    };
    let slices = dispatch.effects.iter().flatten().map(|effect| {
        names.slices.get(&effect.slice).cloned().unwrap_or_else(|| format!("slice-{}", effect.slice))
    });
    std::iter::once(operation.to_owned()).chain(slices).collect::<Vec<_>>().join(" ")
}
