//! Declares events with their reducers, and slices, before a record names them.

use std::any::TypeId;
use std::sync::Arc;

use foldlog_codec::body::{Binding, BuiltIn, Declare, EventDeclaration, SliceDeclaration};
use smol_str::SmolStr;

use super::event_plan::{EventFacts, EventPlan};
use super::{SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::names::DeclaredNames;
use crate::options::UndeclaredEvents;
use crate::types::{Event, ItemType, SessionTypes, default_policy};

impl SessionInner {
    /// Returns the plan of an event, and the declarations required before it can be recorded.
    pub(super) fn plan<E: Event>(
        &self,
        state: &mut WriterState,
    ) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        if let Some(plan) = state.plans.get(&TypeId::of::<E>()) {
            return Ok((Arc::clone(plan), None));
        }
        self.check_declared(E::NAME)?;
        let (plan, declare) = self.new_plan(state, &EventFacts::for_event::<E>())?;
        match declare {
            None => drop(state.plans.insert(TypeId::of::<E>(), Arc::clone(&plan))),
            // A plan by name is for the version that the log has known so far.
            Some(_) => drop(state.named_plans.remove(E::NAME)),
        }
        Ok((plan, declare))
    }

    /// Fails if the host does not declare an event, and the store's options refuse such events.
    pub(super) fn check_declared(&self, event: &str) -> Result<()> {
        let types = self.types()?;
        if self.store.options.undeclared_events == UndeclaredEvents::Append || types.event(event).is_some() {
            return Ok(());
        }
        let nearest = types.nearest_event(event).map(str::to_owned);
        Err(Error::UndeclaredEvent { event: event.to_owned(), nearest })
    }

    /// Returns the plan of an event that is dispatched by name, and the declarations required
    /// before it can be recorded.
    pub(super) fn plan_named(
        &self,
        state: &mut WriterState,
        name: &str,
    ) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        if let Some(plan) = state.named_plans.get(name) {
            return Ok((Arc::clone(plan), None));
        }
        // An event that the host does not declare retains its version in the log.
        let declared = self.types()?.event(name).map(|event| event.version);
        let recorded = || state.live.projection.names.event_named(name).map(|event| event.version);
        let version = declared.or_else(recorded).unwrap_or(1);
        let event = EventFacts { name: SmolStr::new(name), version, event_type: None };
        let (plan, declare) = self.new_plan(state, &event)?;
        if declare.is_none() {
            state.named_plans.insert(event.name, Arc::clone(&plan));
        }
        Ok((plan, declare))
    }

    fn new_plan(&self, state: &WriterState, event: &EventFacts) -> Result<(Arc<EventPlan>, Option<Declare>)> {
        let types = self.types()?;
        let names = &state.live.projection.names;
        match declaration(event, types, names)? {
            None => Ok((Arc::new(EventPlan::new(event, types, names)?), None)),
            Some(declare) => {
                names.check_len(&declare)?;
                let mut names = DeclaredNames::clone(names);
                names.learn(declare.clone());
                Ok((Arc::new(EventPlan::new(event, types, &names)?), Some(declare)))
            }
        }
    }
}

/// Returns the declarations required before an event can be recorded.
fn declaration(event: &EventFacts, types: &SessionTypes, names: &DeclaredNames) -> Result<Option<Declare>> {
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
                let policy = default_policy(&name);
                SliceDeclaration { id: id as u32, item: name.clone(), name, policy }
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
    let EventFacts { name, version, event_type } = event;
    let declared = types.event(name);
    if let (Some(declared), Some(dispatched)) = (declared, event_type)
        && declared.event_type != *dispatched
    {
        let reason = format!("by {}, and dispatched as {dispatched}", declared.event_type);
        return Err(Error::DeclaredTwice { name: name.to_string(), reason });
    }
    let (bindings, implicit) = match declared.filter(|event| !event.reducers.is_empty()) {
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
            check_implicit(event, types, names)?;
            (vec![Binding { slice: slice_id(name, true)?, built_in: BuiltIn::Append }], true)
        }
    };
    let event = EventDeclaration {
        id: names.next_event_id()?,
        name: name.to_string(),
        version: *version,
        bindings,
        implicit,
    };
    match names.event_named(name) {
        Some(before) if same_but_id(before, &event) => {}
        _ => declare.events.push(event),
    }
    Ok((declare != Declare::default()).then_some(declare))
}

/// Checks that no other slice has the name of an undeclared event, which its implicit slice needs.
fn check_implicit(event: &EventFacts, types: &SessionTypes, names: &DeclaredNames) -> Result<()> {
    let name = event.name.as_str();
    let taken = |reason| Err(Error::NoSuchSlice { slice: name.to_owned(), reason });
    let is_other = |slice: ItemType| match event.event_type {
        Some(event_type) => slice != event_type,
        None => !slice.is_dynamic(),
    };
    match types.slice(name) {
        Some(slice) if is_other(slice.item_type) => {
            return taken(
                "an event without reducers has its name, but the items of the slice have another type",
            );
        }
        Some(slice) if slice.policy != default_policy(name) => {
            return taken("an event without reducers has its name, but the slice has another policy");
        }
        _ => {}
    }
    match names.slice_named(name) {
        Some(slice) if slice.item != name || slice.policy != default_policy(name) => {
            taken("an event without reducers has its name, but the log contains other items in the slice")
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
        name: slice.name.to_string(),
        policy: slice.policy,
        item: slice.item_name.to_string(),
    })
}
