//! Events, seeds, clears, resets and tags.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldlog_codec::Kind;
use foldlog_codec::body::{
    Added, Binding, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Operation, Payload, Policy,
    Removed, SLICES_MAX, SliceDeclaration,
};

use super::subscribers::panic_message;
use super::writing::{Draft, DraftEvent};
use super::{Inner, Session, WriterState};
use crate::error::{Error, Result};
use crate::fold::names::Names;
use crate::fold::rows::Rows;
use crate::types::{
    AnyValue, Clear, Event, NewItem, NewItems, ReduceCall, ReduceError, ReducerContext, Resolved,
    SessionTypes, Slice, SliceOp, encode, new_items, resolve_op,
};

/// A payload as it stands in a record: its own bytes, or a reference to the object that holds them.
struct Recorded {
    bytes: Arc<[u8]>,
}

/// An effect whose bytes are owned, so that a record can be built from it.
struct OwnedEffect {
    slice: u32,
    removed: Removed,
    before: Option<foldlog_codec::body::ItemId>,
    items: Option<(Vec<Recorded>, u32)>,
}

impl OwnedEffect {
    fn borrow(&self) -> Effect<'_> {
        let added = match &self.items {
            None => Added::Event,
            Some((items, version)) => Added::Items {
                items: items.iter().map(|item| Payload::new(&item.bytes)).collect(),
                version: *version,
            },
        };
        Effect { slice: self.slice, removed: self.removed.clone(), added, before: self.before }
    }
}

impl Session {
    /// Records an event and lets its reducers change their slices. Returns the record's sequence number.
    ///
    /// An event that the host never declared is appended to a STATE slice of its own, which bears its name:
    /// read it as [`Of<E>`](crate::Of).
    ///
    /// Durable when this returns at [`Level::Every`](crate::Level::Every); at the other levels after the next
    /// sync.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] or [`Error::ReducerPanicked`] where a reducer says no, [`Error::Encode`] where the
    /// event cannot be written: nothing is recorded and nothing changes. [`Error::Full`] where there is no
    /// space: likewise. [`Error::Unknown`] where the sync fails. [`Error::Io`] where the write fails; then,
    /// and after every failed sync, [`Error::Poisoned`] until the session is opened again.
    pub fn dispatch<E: Event>(&self, event: E) -> Result<u64> {
        let bytes: Arc<[u8]> = Arc::from(encode(E::NAME, &event)?);
        let value: AnyValue = Arc::new(event);
        let inner = &self.inner;
        let state = inner.writable()?;
        let types = inner.types()?;
        let time_us = inner.now_us();
        let mut drafts = Vec::new();
        let mut names = std::borrow::Cow::Borrowed(&state.projection.names);
        if let Some(declare) = declaration::<E>(types, &names)? {
            names.to_mut().learn(declare.clone());
            drafts.push(Draft::new(Kind::DECLARE, declare.encode()));
        }
        let context = ReducerContext {
            seed: state.seed(),
            sequence: state.log.next_sequence() + drafts.len() as u64,
            time_us,
        };
        let draft = event_draft::<E>(inner, &state, &names, &bytes, value, &context)?;
        drafts.push(draft);
        drop(names);
        inner.write(state, time_us, drafts)
    }

    /// Gives a slice its first items, in place of any that it has. A LOG slice is only seeded while it is
    /// empty.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSlice`] where the host did not declare it, [`Error::LogOnlyGrows`] for a LOG slice that
    /// has items; else as [`dispatch`](Session::dispatch).
    pub fn seed<S: Slice>(&self, items: Vec<S::Item>) -> Result<u64> {
        let items = new_items(S::NAME, items)?;
        self.change::<S>(Operation::Seed, "seed", |rows, version| {
            let removed = if rows.is_empty() { Removed::None } else { Removed::All };
            Ok(Resolved { removed, ..Resolved::items(items, version) })
        })
    }

    /// Takes all items out of a slice.
    ///
    /// # Errors
    ///
    /// [`Error::LogOnlyGrows`] for a LOG slice; else as [`seed`](Session::seed).
    pub fn clear<S: Slice>(&self) -> Result<u64> {
        self.clear_with::<S>(Clear::All)
    }

    /// Takes those items out of a slice for which the predicate holds.
    ///
    /// # Errors
    ///
    /// As [`clear`](Session::clear).
    pub fn clear_where<S: Slice>(&self, predicate: impl Fn(&S::Item) -> bool + 'static) -> Result<u64> {
        self.clear_with::<S>(Clear::Where(Box::new(predicate)))
    }

    fn clear_with<S: Slice>(&self, clear: Clear<S::Item>) -> Result<u64> {
        self.change::<S>(Operation::Clear, "clear", |rows, version| {
            resolve_op::<S>(rows, SliceOp::Clear(clear), version)
        })
    }

    /// Empties all STATE and CACHE slices. LOG slices stay.
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn reset(&self) -> Result<u64> {
        let inner = &self.inner;
        let state = inner.writable()?;
        let time_us = inner.now_us();
        let slices = state.projection.names.slices().iter();
        let effects: Vec<Effect<'_>> = slices
            .filter(|slice| slice.policy != Policy::Log)
            .filter(|slice| state.projection.rows(slice.id).is_some_and(|(_, rows)| !rows.is_empty()))
            .map(|slice| Effect {
                slice: slice.id,
                removed: Removed::All,
                added: Added::Items { items: Vec::new(), version: 1 },
                before: None,
            })
            .collect();
        let body = Dispatch { operation: Operation::Reset, effects: Some(effects) }.encode();
        inner.write(state, time_us, vec![Draft::new(Kind::DISPATCH, body)])
    }

    /// Sets a tag of the session. Tags say what a session is; a rollback leaves them.
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn set_tag(&self, key: impl Into<String>, value: impl Into<String>) -> Result<u64> {
        self.tag(key.into(), Some(value.into()))
    }

    /// Takes a tag away; one that is not there is no error.
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn remove_tag(&self, key: impl Into<String>) -> Result<u64> {
        self.tag(key.into(), None)
    }

    fn tag(&self, key: String, value: Option<String>) -> Result<u64> {
        let inner = &self.inner;
        let state = inner.writable()?;
        let time_us = inner.now_us();
        let body = Dispatch { operation: Operation::Tag { key, value }, effects: None }.encode();
        inner.write(state, time_us, vec![Draft::new(Kind::DISPATCH, body)])
    }

    /// An operation of the engine's own on one slice.
    fn change<S: Slice>(
        &self,
        operation: Operation<'_>,
        name: &'static str,
        resolve: impl FnOnce(&Rows, u32) -> Result<Resolved>,
    ) -> Result<u64> {
        let inner = &self.inner;
        let mut state = inner.writable()?;
        let types = inner.types()?;
        let time_us = inner.now_us();
        inner.decode_slice::<S>(&mut state)?;
        let slice = S::NAME.to_owned();
        let declared = state.projection.names.slice_named(S::NAME).cloned();
        let (declare, declared) = match declared {
            Some(declared) => (None, declared),
            None => {
                let declared = slice_declaration(types, S::NAME, state.projection.names.slices().len())?
                    .ok_or(Error::NoSuchSlice { slice, reason: "it was never declared" })?;
                (Some(Declare { events: Vec::new(), slices: vec![declared.clone()] }), declared)
            }
        };
        let empty = Rows::default();
        let rows = state.projection.rows(declared.id).map_or(&empty, |(_, rows)| rows);
        if declared.policy == Policy::Log && !(name == "seed" && rows.is_empty()) {
            return Err(Error::LogOnlyGrows { slice: declared.name, operation: name });
        }
        let version = types.slice(S::NAME).map_or(S::ITEM_VERSION, |slice| slice.item_version);
        let resolved = resolve(rows, version)?;
        let mut at_hand = Vec::new();
        let effect = own(inner, &state, declared.id, resolved, &mut at_hand)?;
        let body = Dispatch { operation, effects: Some(vec![effect.borrow()]) }.encode();
        let mut drafts: Vec<Draft> =
            declare.into_iter().map(|declare| Draft::new(Kind::DECLARE, declare.encode())).collect();
        drafts.push(Draft { at_hand, ..Draft::new(Kind::DISPATCH, body) });
        inner.write(state, time_us, drafts)
    }
}

impl Inner {
    pub(super) fn types(&self) -> Result<&SessionTypes> {
        self.types.as_ref().ok_or(Error::Untyped { session: self.id })
    }

    /// The bytes as they stand in a record: themselves, or a reference where they are large.
    fn recorded(&self, state: &WriterState, bytes: &Arc<[u8]>) -> Result<Recorded> {
        if bytes.len() as u64 <= self.store.options.object_bytes_min {
            return Ok(Recorded { bytes: Arc::clone(bytes) });
        }
        let object = state.log.objects.put(bytes)?;
        Ok(Recorded { bytes: Arc::from(object.reference()) })
    }
}

/// What has to be declared before the event can be recorded.
fn declaration<E: Event>(types: &SessionTypes, names: &Names) -> Result<Option<Declare>> {
    let mut declare = Declare::default();
    let mut slice_id = |name: &str, implicit: bool| -> Result<u32> {
        if let Some(slice) = names.slice_named(name) {
            return Ok(slice.id);
        }
        if let Some(slice) = declare.slices.iter().find(|slice| slice.name == name) {
            return Ok(slice.id);
        }
        let id = names.slices().len() + declare.slices.len();
        let slice = match slice_declaration(types, name, id)? {
            Some(slice) => slice,
            None if implicit => {
                check_slices_len(id)?;
                let name = name.to_owned();
                SliceDeclaration { id: id as u32, item: name.clone(), name, policy: Policy::State }
            }
            None => {
                let reason = "it is bound to an event but was never declared";
                return Err(Error::NoSuchSlice { slice: name.to_owned(), reason });
            }
        };
        let id = slice.id;
        declare.slices.push(slice);
        Ok(id)
    };
    let (bindings, implicit) = match types.event(E::NAME) {
        Some(event) if event.event_type != std::any::TypeId::of::<E>() => {
            let name = E::NAME.to_owned();
            return Err(Error::DeclaredTwice { name, reason: "as two Rust types" });
        }
        Some(event) => {
            let bindings: Result<Vec<Binding>> = event
                .reducers
                .iter()
                .map(|(slice, reduce)| {
                    Ok(Binding { slice: slice_id(slice, false)?, built_in: reduce.built_in })
                })
                .collect();
            (bindings?, false)
        }
        None => {
            check_implicit::<E>(types, names)?;
            (vec![Binding { slice: slice_id(E::NAME, true)?, built_in: BuiltIn::Append }], true)
        }
    };
    let event = EventDeclaration {
        id: names.next_event_id(),
        name: E::NAME.to_owned(),
        version: E::VERSION,
        bindings,
        implicit,
    };
    match names.event_named(E::NAME) {
        Some(before) if same_but_id(before, &event) => {}
        _ => declare.events.push(event),
    }
    Ok((declare != Declare::default()).then_some(declare))
}

/// An event that nobody declared needs a slice of its own name, which must not be another's.
fn check_implicit<E: Event>(types: &SessionTypes, names: &Names) -> Result<()> {
    let taken = |reason| Err(Error::NoSuchSlice { slice: E::NAME.to_owned(), reason });
    match types.slice(E::NAME) {
        Some(slice) if slice.item_type != std::any::TypeId::of::<E>() => {
            return taken("an event without reducers bears its name, but its items are of another type");
        }
        Some(slice) if slice.policy != Policy::State => {
            return taken("an event without reducers bears its name, but it is no STATE slice");
        }
        _ => {}
    }
    match names.slice_named(E::NAME) {
        Some(slice) if slice.item != E::NAME || slice.policy != Policy::State => {
            taken("an event without reducers bears its name, but the log holds other items in it")
        }
        _ => Ok(()),
    }
}

fn same_but_id(before: &EventDeclaration, now: &EventDeclaration) -> bool {
    EventDeclaration { id: now.id, ..before.clone() } == *now
}

/// A declaration beyond the limit would be written but never read again.
fn check_slices_len(id: usize) -> Result<()> {
    if id < SLICES_MAX {
        return Ok(());
    }
    let (found, max) = (id as u64 + 1, SLICES_MAX as u64);
    Err(Error::TooLarge { what: "number of slices", found, max })
}

fn slice_declaration(types: &SessionTypes, name: &str, id: usize) -> Result<Option<SliceDeclaration>> {
    let Some(slice) = types.slice(name) else { return Ok(None) };
    check_slices_len(id)?;
    Ok(Some(SliceDeclaration {
        id: id as u32,
        name: slice.name.to_owned(),
        policy: slice.policy,
        item: slice.item_name.to_owned(),
    }))
}

/// Runs the reducers and builds the record.
fn event_draft<E: Event>(
    inner: &Inner,
    state: &WriterState,
    names: &Names,
    bytes: &Arc<[u8]>,
    value: AnyValue,
    context: &ReducerContext,
) -> Result<Draft> {
    let types = inner.types()?;
    let declared = names.event_named(E::NAME).ok_or_else(|| Error::Inconsistent {
        sequence: context.sequence,
        reason: format!("event `{}` was not declared", E::NAME),
    })?;
    let mut at_hand = Vec::new();
    let mut effects = Vec::new();
    let mut as_declared = true;
    let reducers = types.event(E::NAME).map(|event| event.reducers.as_slice()).unwrap_or_default();
    for (place, binding) in declared.bindings.iter().enumerate() {
        let resolved = match reducers.get(place) {
            None => Resolved::append(),
            Some((slice, reduce)) => {
                let empty = Rows::default();
                let rows = state.projection.rows(binding.slice).map_or(&empty, |(_, rows)| rows);
                let Some(slice) = types.slice(slice) else { continue };
                let call = ReduceCall {
                    rows,
                    policy: slice.policy,
                    tail_items: slice.tail_items,
                    item_version: slice.item_version,
                    event: &value,
                    context,
                };
                run_reducer(E::NAME, slice.name, || (reduce.run)(&call))?
            }
        };
        if resolved.is_nothing() {
            continue;
        }
        as_declared &= binding.built_in != BuiltIn::Explicit;
        if matches!(resolved.added, NewItems::Event) {
            at_hand.push(((binding.slice, 0), Arc::clone(&value)));
        }
        effects.push(own(inner, state, binding.slice, resolved, &mut at_hand)?);
    }
    let data = inner.recorded(state, bytes)?;
    let effects = (!as_declared).then(|| effects.iter().map(OwnedEffect::borrow).collect());
    let operation = Operation::Event { event: declared.id, data: Payload::new(&data.bytes) };
    let body = Dispatch { operation, effects }.encode();
    let event = DraftEvent { name: E::NAME.to_owned(), version: E::VERSION, value };
    Ok(Draft { at_hand, event: Some(event), ..Draft::new(Kind::DISPATCH, body) })
}

/// Calls a reducer; a panic is a refusal.
fn run_reducer(
    event: &'static str,
    slice: &'static str,
    run: impl FnOnce() -> Result<Resolved, ReduceError>,
) -> Result<Resolved> {
    let (event, slice) = (event.to_owned(), slice.to_owned());
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(resolved)) => Ok(resolved),
        Ok(Err(ReduceError::Refused(reason))) => Err(Error::Refused { slice, event, reason }),
        Ok(Err(ReduceError::Engine(error))) => Err(error),
        Err(panic) => Err(Error::ReducerPanicked { slice, event, message: panic_message(&*panic) }),
    }
}

/// Gives an effect bytes of its own, and remembers the values behind them.
fn own(
    inner: &Inner,
    state: &WriterState,
    slice: u32,
    resolved: Resolved,
    at_hand: &mut Vec<((u32, u32), AnyValue)>,
) -> Result<OwnedEffect> {
    let items = match resolved.added {
        NewItems::Event => None,
        NewItems::Items { items, version } => {
            let mut recorded = Vec::new();
            for (ordinal, NewItem { bytes, typed }) in (0..).zip(items) {
                recorded.push(inner.recorded(state, &bytes)?);
                if let Some(typed) = typed {
                    at_hand.push(((slice, ordinal), typed));
                }
            }
            Some((recorded, version))
        }
    };
    Ok(OwnedEffect { slice, removed: resolved.removed, before: resolved.before, items })
}
