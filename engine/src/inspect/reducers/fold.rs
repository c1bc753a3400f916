//! Folds the effects that reducers produce, next to the recorded ones.
//!
//! Three folds advance in parallel: the produced effects with the host's types, for the reducers;
//! and the produced and the recorded ones without types, whose items are stored bytes and can be
//! compared. A rollback applies to all of them.

use std::collections::{BTreeMap, BTreeSet};

use foldlog_codec::body::{Dispatch, Effect, Policy, RemovedItems};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{Record, SequenceNumber};

use super::SliceDiffers;
use super::run::{Edits, ReducerInput, decode_event, live_state, run_reducers};
use crate::divergence;
use crate::error::Result;
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::projection::{DecodedValues, Projection};
use crate::fold::record_kinds::RecordBody;
use crate::items::SliceItems;
use crate::items::row::RowRef;
use crate::names::DeclaredNames;
use crate::types::SliceEffect;

pub(super) struct ProducedFold<'a> {
    edits: Edits<'a>,
    /// Produced effects, with the host's types.
    typed: LiveState,
    /// Produced effects, as stored bytes.
    produced: LiveState,
    /// Recorded effects, as stored bytes.
    recorded: LiveState,
    /// Slices that differ now, each with the record from which on they differ.
    differ: BTreeMap<u32, SequenceNumber>,
    /// Slices that differed at some record, to which a rollback may return.
    differed: BTreeSet<u32>,
    /// Slices into which only today's reducers write, each with the first record.
    undeclared: BTreeMap<String, SequenceNumber>,
    stopped: Option<String>,
}

impl<'a> ProducedFold<'a> {
    pub(super) fn new(edits: Edits<'a>) -> ProducedFold<'a> {
        let reader = edits.reader;
        ProducedFold {
            edits,
            typed: live_state(reader),
            produced: live_state(reader),
            recorded: live_state(reader),
            differ: BTreeMap::new(),
            differed: BTreeSet::new(),
            undeclared: BTreeMap::new(),
            stopped: None,
        }
    }

    /// Folds an event whose reducers are run again.
    pub(super) fn event(
        &mut self,
        record: &Record<'_>,
        dispatch: &Dispatch<'_>,
        reducing: &ReducerInput<'_>,
        names: &DeclaredNames,
    ) {
        self.unless_stopped(record, |fold| fold.try_event(record, dispatch, reducing, names));
    }

    /// Folds a record without reducers.
    pub(super) fn fold_other(&mut self, record: &Record<'_>) {
        self.unless_stopped(record, |fold| fold.try_other(record));
    }

    fn unless_stopped(&mut self, record: &Record<'_>, fold: impl FnOnce(&mut Self) -> Result<()>) {
        if self.stopped.is_none()
            && let Err(error) = fold(self)
        {
            self.stopped = Some(format!("record {}: {error}", record.sequence));
        }
    }

    fn try_event(
        &mut self,
        record: &Record<'_>,
        dispatch: &Dispatch<'_>,
        reducing: &ReducerInput<'_>,
        names: &DeclaredNames,
    ) -> Result<()> {
        let recorded = divergence::resolve_effects(dispatch, names);
        let value = decode_event(self.edits.reader, reducing)?;
        let mut produced: Vec<(u32, SliceEffect)> = Vec::new();
        let mut changed_slices = Vec::new();
        for (slice, effect) in run_reducers(reducing, &value, self.edits.types, &self.typed.projection) {
            let effect = effect?;
            let Some(id) = names.slice_named(slice).map(|slice| slice.id) else {
                if effect.is_some() {
                    self.undeclared.entry(slice.to_owned()).or_insert(record.sequence);
                }
                continue;
            };
            let of_slice = recorded.iter().find(|effect| effect.slice == id);
            // An edit that is the same today is folded in its recorded form, whatever its version.
            if self.edits.compare(slice, Some(id), of_slice, effect.as_ref(), reducing)?.is_some() {
                changed_slices.push(id);
                produced.extend(effect.map(|effect| (id, effect)));
            }
        }
        let mut effects: Vec<Effect<'_>> =
            produced.iter().map(|(slice, effect)| effect.to_record(*slice)).collect();
        // The same applies to slices that the host no longer reduces.
        effects.extend(recorded.iter().filter(|effect| !changed_slices.contains(&effect.slice)).cloned());
        let changed: Vec<u32> = recorded.iter().chain(&effects).map(|effect| effect.slice).collect();
        let unlike = |slice: u32| {
            let is = |effect: &&Effect<'_>| effect.slice == slice;
            recorded.iter().find(is) != effects.iter().find(is)
        };
        let touched: Vec<u32> =
            changed.into_iter().filter(|slice| self.differ.contains_key(slice) || unlike(*slice)).collect();
        let dispatch = |effects| Dispatch { action: dispatch.action.clone(), effects: Some(effects) };
        self.fold(record, |_| RecordBody::Dispatch(dispatch(effects.clone())))?;
        self.compare(record.sequence, &touched);
        Ok(())
    }

    fn try_other(&mut self, record: &Record<'_>) -> Result<()> {
        let body = RecordBody::decode(record)?;
        let mut touched = Vec::new();
        if body.rollback().is_some() {
            touched.extend(&self.differed);
        }
        let RecordBody::Dispatch(dispatch) = body else {
            self.fold(record, |_| body)?;
            self.compare(record.sequence, &touched);
            return Ok(());
        };
        touched.extend(dispatch.effects.iter().flatten().map(|effect| effect.slice));
        touched.retain(|slice| self.differ.contains_key(slice));
        self.fold(record, |projection| RecordBody::Dispatch(possible(dispatch, projection)))?;
        self.compare(record.sequence, &touched);
        Ok(())
    }

    /// Applies a record to all folds. The recorded fold gets the original record.
    fn fold<'r>(
        &mut self,
        record: &Record<'r>,
        body: impl FnOnce(&Projection) -> RecordBody<'r>,
    ) -> Result<()> {
        let objects = &self.edits.reader.objects;
        let untyped = FoldSources { objects, types: None };
        let sequence = record.sequence;
        self.recorded.apply_record(record, untyped)?;
        let body = body(&self.produced.projection);
        let nothing = || DecodedValues::Nothing;
        match body {
            RecordBody::Dispatch(dispatch) => {
                let body = |dispatch| RecordBody::Dispatch(dispatch);
                self.produced.apply(sequence, body(dispatch.clone()), nothing(), untyped)?;
                let typed = FoldSources { objects, types: Some(self.edits.types) };
                self.typed.apply(sequence, body(dispatch), nothing(), typed)
            }
            body => {
                self.produced.apply(sequence, body, nothing(), untyped)?;
                self.typed.apply_record(record, FoldSources { objects, types: Some(self.edits.types) })
            }
        }
    }

    /// Determines which of the touched slices differ after a record.
    fn compare(&mut self, sequence: SequenceNumber, touched: &[u32]) {
        for slice in touched {
            if same(&self.recorded.projection, &self.produced.projection, *slice) {
                self.differ.remove(slice);
            } else {
                self.differ.entry(*slice).or_insert(sequence);
                self.differed.insert(*slice);
            }
        }
    }

    /// Returns the slices that differ at the end, and why the fold ended before the log did.
    pub(super) fn finish(self) -> (Vec<SliceDiffers>, Option<String>) {
        let (recorded, produced) = (&self.recorded.projection, &self.produced.projection);
        let declared = self.differ.iter().map(|(slice, since)| differs(recorded, produced, *slice, *since));
        let undeclared = self.undeclared.iter().map(|(slice, since)| SliceDiffers {
            slice: slice.clone(),
            since: *since,
            is_new: true,
            path: "$".to_owned(),
            ..SliceDiffers::default()
        });
        (declared.chain(undeclared).collect(), self.stopped)
    }
}

/// Returns the applicable part of a change that no reducer made, for slices whose items differ from
/// the recorded ones.
fn possible<'a>(dispatch: Dispatch<'a>, projection: &Projection) -> Dispatch<'a> {
    let mut dispatch = dispatch;
    for effect in dispatch.effects.iter_mut().flatten() {
        let Some((_, items)) = projection.items(effect.slice) else { continue };
        if let RemovedItems::Items(ids) = &mut effect.removed {
            ids.retain(|id| items.rows_in_memory().contains(*id));
        }
        effect.before = effect.before.filter(|id| items.rows_in_memory().contains(*id));
    }
    dispatch
}

/// Returns whether two folds have the same items of a slice. LOG slices only grow, so a LOG slice
/// that differed once differs from then on.
fn same(recorded: &Projection, produced: &Projection, slice: u32) -> bool {
    match (recorded.items(slice), produced.items(slice)) {
        (Some((Policy::Log, _)), _) => false,
        (Some((_, old)), Some((_, new))) => {
            let item = |row: RowRef<'_>| (row.version, row.bytes().cloned());
            let (old, new) = (old.rows_in_memory(), new.rows_in_memory());
            old.len() == new.len() && old.iter().map(item).eq(new.iter().map(item))
        }
        (old, new) => old.is_none() && new.is_none(),
    }
}

fn differs(recorded: &Projection, produced: &Projection, slice: u32, since: SequenceNumber) -> SliceDiffers {
    let items = |projection: &Projection| projection.items(slice).map(|(_, items)| items.clone());
    let (old, new) = (items(recorded), items(produced));
    let len = |items: &Option<SliceItems>| match items {
        Some(SliceItems::Held(rows)) => rows.len() as u64,
        Some(SliceItems::InLog(items)) => items.len(),
        None => 0,
    };
    let mut found = SliceDiffers {
        slice: recorded.names.slice_name(slice),
        since,
        recorded_items: len(&old),
        produced_items: len(&new),
        path: "$".to_owned(),
        ..SliceDiffers::default()
    };
    let (Some(SliceItems::Held(old)), Some(SliceItems::Held(new))) = (old, new) else {
        found.note = Some("a LOG slice; see its divergences".to_owned());
        return found;
    };
    let (mut old, mut new) = (old.iter(), new.iter());
    for place in 0_usize.. {
        let (old, new) = (old.next(), new.next());
        if old.is_none() && new.is_none() {
            break;
        }
        let value = |row: RowRef<'_>| row.bytes().and_then(|bytes| Value::decode(bytes).ok());
        let (old, new) = (old.map(|row| (row.version, value(row))), new.map(|row| (row.version, value(row))));
        let at = format!(".items[{place}]");
        let difference = match (old, new) {
            (Some((_, Some(old))), Some((_, Some(new)))) => divergence::first_difference(&at, &old, &new),
            (old, new) => {
                (found.recorded, found.produced) = (old.and_then(|old| old.1), new.and_then(|new| new.1));
                found.path = format!("${at}");
                break;
            }
        };
        if let Some(difference) = difference {
            (found.path, found.note) = (difference.path, difference.note);
            (found.recorded, found.produced) = (difference.recorded, difference.produced);
            break;
        }
    }
    found
}
