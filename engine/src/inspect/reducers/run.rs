//! Runs the reducers of one log, record by record.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use foldlog_codec::body::{
    Action, AddedItems, Binding, BuiltIn, Dispatch, Effect, Lane, ObjectId, Payload, SessionOpening,
};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use smol_str::SmolStr;

use super::fold::ProducedFold;
use super::{LogReader, ReducersReplayed, ReplayReducers};
use crate::divergence::{self, Difference, Divergence, LeaveOut, ReducedEvent, shown_name};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::projection::{LogSlices, Projection};
use crate::items::{AnyValue, SliceItems};
use crate::names::DeclaredNames;
use crate::types::{
    EventTypes, RecordedBytes, ReduceCall, ReducerContext, SessionTypes, SliceEffect, SliceTypes,
};

#[derive(Clone, Copy)]
pub(super) struct ReducerInput<'a> {
    pub(super) sequence: SequenceNumber,
    pub(super) time_us: i64,
    pub(super) seed: u64,
    /// Payload of the event in its record.
    pub(super) data: Payload<'a>,
    pub(super) version: u32,
    pub(super) types: &'a EventTypes,
}

pub(super) fn replay(
    reader: &LogReader,
    types: &SessionTypes,
    options: &ReplayReducers,
) -> Result<ReducersReplayed> {
    let edits = Edits { reader, types, leave_out: &options.leave_out };
    let mut replay = Replay {
        edits,
        options,
        seed: 0,
        as_declared: BTreeMap::new(),
        produced: options.fold_produced.then(|| ProducedFold::new(edits)),
        report: ReducersReplayed {
            session: reader.opened.session,
            records: reader.records_len(),
            not_registered: types.unregistered_events(&reader.outline.names),
            ..ReducersReplayed::default()
        },
    };
    let mut live = live_state(reader);
    let sources = FoldSources { objects: &reader.objects, types: Some(types) };
    if let Some(last) = reader.places.next_sequence.checked_sub(1) {
        reader.places.read(&reader.storage, SequenceNumber::MIN, last, &mut |record| {
            replay.record(&record, &live.projection)?;
            live.apply_record(&record, sources)
        })?;
    }
    let Replay { produced, mut report, .. } = replay;
    if let Some(produced) = produced {
        (report.slices, report.stopped) = produced.finish();
    }
    Ok(report)
}

/// Creates the state before the first record, for a fold of the whole log.
pub(super) fn live_state(reader: &LogReader) -> LiveState {
    let projection = Projection::new(LogSlices::InLog).over(reader.places.compaction.as_ref());
    let mut live = LiveState { projection, ..LiveState::default() };
    reader.rollbacks.values().for_each(|rollback| live.positions.expect_target(rollback.to));
    live
}

struct Replay<'a> {
    edits: Edits<'a>,
    options: &'a ReplayReducers,
    /// Seed of the session in which the next record was first written.
    seed: u64,
    /// For each event id, whether log and host have the same built-in reducers for it.
    as_declared: BTreeMap<u32, bool>,
    produced: Option<ProducedFold<'a>>,
    report: ReducersReplayed,
}

impl<'a> Replay<'a> {
    /// Compares one record, and folds its produced effects on request. `before` is the projection
    /// of the records before it.
    fn record(&mut self, record: &Record<'_>, before: &Projection) -> Result<()> {
        if record.kind == RecordKind::Opened {
            self.seed = SessionOpening::decode(record.body).map_err(Error::unread(record.sequence))?.seed;
        }
        let compaction = self.edits.reader.places.compaction.as_ref();
        if compaction.is_some_and(|compaction| compaction.covers(record.sequence)) {
            self.report.compacted +=
                u64::from(matches!(record.kind, RecordKind::Dispatch | RecordKind::Dropped));
        } else if record.kind == RecordKind::Dispatch {
            let dispatch = Dispatch::decode(record.body).map_err(Error::unread(record.sequence))?;
            if let Action::Event { event, data } = dispatch.action
                && let Some((reducing, names)) = self.reducer_input(record, event, data, before)
            {
                self.check(record, &dispatch, &reducing, before)?;
                if let Some(produced) = &mut self.produced {
                    produced.event(record, &dispatch, &reducing, names);
                    return Ok(());
                }
            }
        }
        if let Some(produced) = &mut self.produced {
            produced.fold_other(record);
        }
        Ok(())
    }

    /// Returns the event to reduce again; `None` if the host has no reducers for it, or they
    /// resolve nothing.
    fn reducer_input<'r>(
        &mut self,
        record: &Record<'r>,
        event: u32,
        data: Payload<'r>,
        before: &'r Projection,
    ) -> Option<(ReducerInput<'r>, &'r DeclaredNames)>
    where
        'a: 'r,
    {
        let names = &*before.names;
        let declared = names.event(event)?;
        let types = self.edits.types.event(&declared.name)?;
        let as_declared = *self.as_declared.entry(event).or_insert_with(|| {
            let same = |(binding, (slice, reduce)): (&Binding, &(SmolStr, crate::types::Reduce))| {
                binding.built_in == reduce.built_in
                    && binding.built_in != BuiltIn::Explicit
                    && names.slice(binding.slice).is_some_and(|declared| declared.name == *slice)
            };
            declared.bindings.len() == types.reducers.len()
                && declared.bindings.iter().zip(&types.reducers).all(same)
        });
        // Records of such an event may still contain effects, and these are compared.
        if as_declared && Dispatch::plain_event(record.body).is_some() {
            return None;
        }
        let Record { sequence, time_us, .. } = *record;
        let (seed, version) = (self.seed, declared.version);
        Some((ReducerInput { sequence, time_us, seed, data, version, types }, names))
    }

    fn check(
        &mut self,
        record: &Record<'_>,
        dispatch: &Dispatch<'_>,
        reducing: &ReducerInput<'_>,
        before: &Projection,
    ) -> Result<()> {
        self.report.events += 1;
        let names = &*before.names;
        let event = match decode_event(self.edits.reader, reducing) {
            Ok(event) => event,
            Err(error) => {
                let note = Some(error.to_string());
                let (slice, path) = (None, "$.event".to_owned());
                let difference = Difference { slice, path, recorded: None, produced: None, note };
                self.report_divergence(record, difference, names);
                return Ok(());
            }
        };
        let recorded = divergence::resolve_effects(dispatch, names);
        for (slice, produced) in run_reducers(reducing, &event, self.edits.types, before) {
            self.report.compared += 1;
            let id = names.slice_named(slice).map(|slice| slice.id);
            let of_slice = recorded.iter().find(|effect| Some(effect.slice) == id);
            let difference = match &produced {
                Ok(produced) => self.edits.compare(slice, id, of_slice, produced.as_ref(), reducing)?,
                Err(error) => Some(Difference {
                    slice: Some(slice.to_owned()),
                    path: "$".to_owned(),
                    recorded: of_slice.map(divergence::effect_value),
                    produced: None,
                    note: Some(error.to_string()),
                }),
            };
            let Some(mut difference) = difference else { continue };
            if self.options.changed_slices.contains(slice) {
                self.report.accepted += 1;
                continue;
            }
            if of_slice.is_none() && difference.note.is_none() {
                difference.note = Self::new_to(names, &reducing.types.name, id).map(str::to_owned);
            }
            self.report_divergence(record, difference, names);
        }
        Ok(())
    }

    /// Returns which part of a reducer is new to a log with these names: its slice, or the binding
    /// of the event to it.
    fn new_to(names: &DeclaredNames, event: &str, slice: Option<u32>) -> Option<&'static str> {
        let Some(slice) = slice else { return Some("the slice is new: the log does not declare it") };
        let bound = names
            .event_named(event)
            .is_some_and(|event| event.bindings.iter().any(|binding| binding.slice == slice));
        (!bound).then_some("the reducer is new: the log binds the event to no such slice")
    }

    fn report_divergence(&mut self, record: &Record<'_>, difference: Difference, names: &DeclaredNames) {
        self.report.diverged += 1;
        if self.report.divergences.len() < self.options.divergences_max {
            let lane = Lane::decode(record.kind, record.body).unwrap_or_default().into();
            let name = shown_name(record.kind, record.body, names);
            self.report.divergences.push(Divergence::changed(record.sequence, lane, name, difference));
        }
    }
}

/// Decodes the event as today's type.
pub(super) fn decode_event(reader: &LogReader, reducing: &ReducerInput<'_>) -> Result<AnyValue> {
    let bytes = reader.objects.resolve(reducing.data)?;
    Ok(reducing.types.decoder.alone(reducing.version, reducing.sequence, RecordedBytes::Elsewhere(&bytes))?)
}

/// Runs the reducers of an event. Returns the effect of the event on each slice, if there is any.
pub(super) fn run_reducers<'r>(
    reducing: &'r ReducerInput<'r>,
    event: &'r AnyValue,
    types: &'r SessionTypes,
    before: &'r Projection,
) -> impl Iterator<Item = (&'r str, Result<Option<SliceEffect>>)> + 'r {
    let ReducerInput { sequence, time_us, seed, types: event_types, .. } = *reducing;
    let context = ReducerContext { seed, sequence, time_us };
    event_types.reducers.iter().map(move |(slice, reduce)| {
        let of_slice = types.slice(slice);
        let none = OnceCell::new();
        let no_items = || none.get_or_init(|| SliceItems::Held(SliceTypes::no_rows(of_slice)));
        let call = ReduceCall {
            items: before.items_named(slice).map_or_else(no_items, |(_, items)| items),
            tail_items: of_slice.map_or(0, |types| types.tail_items),
            item_version: of_slice.map_or(1, |types| types.item_version),
            event,
            context: &context,
        };
        let produced = reduce.call(&event_types.name, slice, &call);
        (slice.as_str(), produced.map(|effect| (!effect.is_nothing()).then_some(effect)))
    })
}

/// Compares recorded edits of slices with the edits of today's reducers.
#[derive(Clone, Copy)]
pub(super) struct Edits<'a> {
    pub(super) reader: &'a LogReader,
    pub(super) types: &'a SessionTypes,
    pub(super) leave_out: &'a LeaveOut,
}

impl Edits<'_> {
    pub(super) fn compare(
        &self,
        slice: &str,
        id: Option<u32>,
        recorded: Option<&Effect<'_>>,
        produced: Option<&SliceEffect>,
        reducing: &ReducerInput<'_>,
    ) -> Result<Option<Difference>> {
        let produced = produced.map(|produced| produced.to_record(id.unwrap_or_default()));
        if recorded == produced.as_ref() {
            return Ok(None);
        }
        let items = recorded.map(|recorded| self.items(slice, recorded, reducing)).transpose()?.flatten();
        let readable = recorded.map(|recorded| match &items {
            None => recorded.clone(),
            Some((items, version)) => {
                let items = items.iter().map(|item| Payload::new(item)).collect();
                Effect { added: AddedItems::Items { items, version: *version }, ..recorded.clone() }
            }
        });
        let ReducerInput { data, version, types, .. } = *reducing;
        let event = ReducedEvent { name: &types.name, data, version };
        let contents = |object: &ObjectId| self.reader.objects.get(object).ok();
        Ok(divergence::compare_effects(
            slice,
            readable.as_ref(),
            produced.as_ref(),
            event,
            self.leave_out,
            &contents,
        ))
    }

    /// Returns recorded items as today's host would write them: with the bytes of objects, and
    /// upgraded from older versions. `None` if the effect added the event.
    fn items(
        &self,
        slice: &str,
        recorded: &Effect<'_>,
        reducing: &ReducerInput<'_>,
    ) -> Result<Option<(Vec<Vec<u8>>, u32)>> {
        let AddedItems::Items { items, version } = &recorded.added else { return Ok(None) };
        let types = self.types.slice(slice).filter(|types| types.item_version > *version);
        let mut readable = Vec::with_capacity(items.len());
        for item in items {
            let bytes = self.reader.objects.resolve(*item)?;
            readable.push(match types {
                None => bytes.into_owned(),
                Some(types) => types.up_to_date(*version, reducing.sequence, &bytes)?,
            });
        }
        Ok(Some((readable, types.map_or(*version, |types| types.item_version))))
    }
}
