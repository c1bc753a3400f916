//! Declares events with their reducers, and slices, before a record names them.

use std::any::TypeId;
use std::sync::Arc;

use foldlog_codec::body::{Binding, BuiltIn, Declare, EventDeclaration, Policy, SliceDeclaration};

use super::event_plan::EventPlan;
use super::{Inner, WriterState};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::types::{Event, SessionTypes};

impl Inner {
    /// Returns the plan of an event, and what has to be declared before it can be recorded.
    pub(super) fn plan<E: Event>(
        &self,
        state: &mut WriterState,
    ) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        if let Some(plan) = state.plans.get(&TypeId::of::<E>()) {
            return Ok((Arc::clone(plan), None));
        }
        let types = self.types()?;
        let names = &state.live.projection.names;
        match declaration::<E>(types, names)? {
            None => {
                let plan = Arc::new(EventPlan::of::<E>(types, names)?);
                state.plans.insert(TypeId::of::<E>(), Arc::clone(&plan));
                Ok((plan, None))
            }
            Some(declare) => {
                names.check_len(&declare)?;
                let mut names = Names::clone(names);
                names.learn(declare.clone());
                Ok((Arc::new(EventPlan::of::<E>(types, &names)?), Some(declare)))
            }
        }
    }
}

/// Returns what has to be declared before an event can be recorded.
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
        let slice = match slice_declaration(types, name, id) {
            Some(slice) => slice,
            None if implicit => {
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
        Some(event) if event.event_type != TypeId::of::<E>() => {
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
        id: names.next_event_id()?,
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

/// Checks that the implicit slice of an undeclared event, which has the event's name, is not another one's.
fn check_implicit<E: Event>(types: &SessionTypes, names: &Names) -> Result<()> {
    let taken = |reason| Err(Error::NoSuchSlice { slice: E::NAME.to_owned(), reason });
    match types.slice(E::NAME) {
        Some(slice) if slice.item_type != TypeId::of::<E>() => {
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

pub(super) fn slice_declaration(types: &SessionTypes, name: &str, id: usize) -> Option<SliceDeclaration> {
    let slice = types.slice(name)?;
    Some(SliceDeclaration {
        id: id as u32,
        name: slice.name.to_owned(),
        policy: slice.policy,
        item: slice.item_name.to_owned(),
    })
}
