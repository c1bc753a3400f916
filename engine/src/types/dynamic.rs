//! Run-time declarations: slices and events declared by name, with items and values of any shape.
//!
//! A run-time declaration records the same bytes as a Rust type of the same name, version and
//! reducers. A log therefore does not depend on the kind of host that wrote it, and either kind can
//! open it.
//!
//! # Invariants
//!
//! 1. A slice and an event have one form in memory each: their Rust type if the host declares one,
//!    else [`Value`].
//! 2. Two declarations of one name must agree. Otherwise [`build`](SessionTypesBuilder::build)
//!    fails and shows both.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foldlog_codec::body::{BuiltIn, Policy};
use foldlog_codec::escape;
use foldlog_codec::msgpack::Value;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::event::Decoder;
use super::reducer::{Reduce, ReduceCall, ReduceError, Reducer, downcast_row, removed_items};
use super::registry::{EventTypes, ItemType, SliceTypes, TAIL_ITEMS, TypeDeclarations};
use super::values::{UpcastValue, ValueDecoder, ValuePath, encode_any_value, encode_value, read_value};
use super::{
    Clear, ItemCoding, ReducerContext, SessionTypesBuilder, SliceEffect, SliceOp, UpcastError, View,
};
use crate::error::{Error, Result};
use crate::items::index::Keys;
use crate::items::row::RowRef;

/// Declares a slice at run time. Wherever this type is expected, a name is enough.
#[must_use]
#[derive(Clone)]
pub struct DynamicSlice {
    name: SmolStr,
    item: Option<(SmolStr, u32)>,
    key: Option<SmolStr>,
    tail_items: Option<usize>,
    upcast: Option<UpcastValue>,
}

impl fmt::Debug for DynamicSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DynamicSlice { name, item, key, .. } = self;
        f.debug_struct("DynamicSlice").field("name", name).field("item", item).field("key", key).finish()
    }
}

impl<N: Into<SmolStr>> From<N> for DynamicSlice {
    fn from(name: N) -> DynamicSlice {
        DynamicSlice::new(name)
    }
}

impl DynamicSlice {
    /// Declares a slice with this name.
    pub fn new(name: impl Into<SmolStr>) -> DynamicSlice {
        DynamicSlice { name: name.into(), item: None, key: None, tail_items: None, upcast: None }
    }

    /// Sets the name of the items' type in exports, and the version at which items are recorded.
    /// Applies only to items that are not events. The defaults are the slice's name and 1.
    pub fn items(mut self, name: impl Into<SmolStr>, version: u32) -> DynamicSlice {
        self.item = Some((name.into(), version));
        self
    }

    /// Sets the conversion of items that were recorded at an earlier version. Not called for items
    /// that are events.
    pub fn upcast(
        mut self,
        upcast: impl Fn(u32, Value) -> Result<Value, UpcastError> + Send + Sync + 'static,
    ) -> DynamicSlice {
        self.upcast = Some(Arc::new(upcast));
        self
    }

    /// Indexes the items by their value at a path, such as `card.id`, for reducers of the host.
    /// These find an item with [`View::find_value`], and change it with [`SliceOp::Upsert`]. All
    /// items without a value at the path share one key.
    pub fn keyed_by(mut self, path: impl Into<SmolStr>) -> DynamicSlice {
        self.key = Some(path.into());
        self
    }

    /// Sets how many of a LOG slice's last items its reducers see. The default is 1.
    pub fn tail_items(mut self, count: usize) -> DynamicSlice {
        self.tail_items = Some(count);
        self
    }
}

/// Names a built-in change that an event makes to a slice. As data, it is `"append"`, `"replace"`,
/// `{"upsert": "card.id"}`, `{"remove": "card.id"}` or `"clear"`.
///
/// A path names fields and indices, such as `card.id` or `ids[0]`; `$` is the value itself. Two
/// values at a path are equal if their encodings are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BuiltInReducer {
    /// Appends the event, like [`append_all`](SessionTypesBuilder::append_all).
    Append,
    /// Replaces all items by the event, like
    /// [`replace_latest`](SessionTypesBuilder::replace_latest).
    Replace,
    /// Removes the items with the event's value at the path, and appends the event, like
    /// [`upsert_by`](SessionTypesBuilder::upsert_by). An event without a value at the path is
    /// refused.
    Upsert(String),
    /// Removes the items with the event's value at the path. An event without a value at the path
    /// is refused.
    Remove(String),
    /// Removes all items.
    Clear,
}

impl BuiltInReducer {
    fn form(&self) -> &'static str {
        match self {
            BuiltInReducer::Append => "append",
            BuiltInReducer::Replace => "replace",
            BuiltInReducer::Upsert(_) => "upsert",
            BuiltInReducer::Remove(_) => "remove",
            BuiltInReducer::Clear => "clear",
        }
    }

    fn path(&self, slice: &str) -> Result<Option<ValuePath>> {
        match self {
            BuiltInReducer::Upsert(path) | BuiltInReducer::Remove(path) => read_path(slice, path).map(Some),
            _ => Ok(None),
        }
    }
}

fn read_path(slice: &str, path: &str) -> Result<ValuePath> {
    ValuePath::read(path).ok_or_else(|| Error::NotAPath { slice: slice.to_owned(), path: path.to_owned() })
}

type ValueReducer =
    dyn Fn(&View<Value>, &Value, &ReducerContext) -> Result<SliceOp<Value>, String> + Send + Sync;

#[derive(Clone)]
enum Binding {
    BuiltIn(BuiltInReducer),
    Reducer(Arc<ValueReducer>),
}

impl Binding {
    fn form(&self) -> &'static str {
        match self {
            Binding::BuiltIn(built_in) => built_in.form(),
            Binding::Reducer(_) => "reducer",
        }
    }

    fn path(&self) -> Option<&str> {
        match self {
            Binding::BuiltIn(BuiltInReducer::Upsert(path) | BuiltInReducer::Remove(path)) => Some(path),
            _ => None,
        }
    }
}

/// Declares an event at run time: its name, its version, and its changes to slices. Wherever this
/// type is expected, a name is enough. An event that changes no declared slice is appended to an
/// implicit slice of its name, like an undeclared event.
#[must_use]
#[derive(Clone)]
pub struct DynamicEvent {
    name: SmolStr,
    version: u32,
    upcast: Option<UpcastValue>,
    not_compared: Vec<SmolStr>,
    bindings: Vec<(SmolStr, Binding)>,
}

impl fmt::Debug for DynamicEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DynamicEvent").field(&self.name).field(&self.facts()).finish()
    }
}

impl<N: Into<SmolStr>> From<N> for DynamicEvent {
    fn from(name: N) -> DynamicEvent {
        DynamicEvent::new(name)
    }
}

impl DynamicEvent {
    /// Declares an event with this name, at version 1.
    pub fn new(name: impl Into<SmolStr>) -> DynamicEvent {
        let (not_compared, bindings) = (Vec::new(), Vec::new());
        DynamicEvent { name: name.into(), version: 1, upcast: None, not_compared, bindings }
    }

    /// Sets the version at which the event is recorded; 1 or more.
    pub fn version(mut self, version: u32) -> DynamicEvent {
        self.version = version;
        self
    }

    /// Sets the conversion of values that were recorded at an earlier version. It never changes the
    /// stored bytes.
    pub fn upcast(
        mut self,
        upcast: impl Fn(u32, Value) -> Result<Value, UpcastError> + Send + Sync + 'static,
    ) -> DynamicEvent {
        self.upcast = Some(Arc::new(upcast));
        self
    }

    /// Excludes a path of the value from comparison by a [replay](crate::replay), such as
    /// `$.event.took_ms`. See [`LeaveOut`](crate::LeaveOut).
    pub fn not_compared(mut self, path: impl Into<SmolStr>) -> DynamicEvent {
        self.not_compared.push(path.into());
        self
    }

    /// Binds the event to a slice with a built-in reducer.
    pub fn bind(mut self, slice: impl Into<SmolStr>, reducer: BuiltInReducer) -> DynamicEvent {
        self.bindings.push((slice.into(), Binding::BuiltIn(reducer)));
        self
    }

    /// Appends the event to a slice.
    pub fn append(self, slice: impl Into<SmolStr>) -> DynamicEvent {
        self.bind(slice, BuiltInReducer::Append)
    }

    /// Replaces all items of a slice by the event.
    pub fn replace(self, slice: impl Into<SmolStr>) -> DynamicEvent {
        self.bind(slice, BuiltInReducer::Replace)
    }

    /// Removes the items of a slice with the event's value at `path`, and appends the event. The
    /// items are indexed, so a long slice costs little more than a short one.
    pub fn upsert(self, slice: impl Into<SmolStr>, path: impl Into<String>) -> DynamicEvent {
        self.bind(slice, BuiltInReducer::Upsert(path.into()))
    }

    /// Removes the items of a slice with the event's value at `path`. Costs little if the slice is
    /// upserted or keyed by that path.
    pub fn remove(self, slice: impl Into<SmolStr>, path: impl Into<String>) -> DynamicEvent {
        self.bind(slice, BuiltInReducer::Remove(path.into()))
    }

    /// Removes all items of a slice.
    pub fn clear(self, slice: impl Into<SmolStr>) -> DynamicEvent {
        self.bind(slice, BuiltInReducer::Clear)
    }

    /// Binds the event to a slice with a reducer of the host. The rules are those for the reducer
    /// of a [Rust type](SessionTypesBuilder::reducer).
    pub fn reduce(
        mut self,
        slice: impl Into<SmolStr>,
        reducer: impl Fn(&View<Value>, &Value, &ReducerContext) -> Result<SliceOp<Value>, String>
        + Send
        + Sync
        + 'static,
    ) -> DynamicEvent {
        self.bindings.push((slice.into(), Binding::Reducer(Arc::new(reducer))));
        self
    }

    /// Returns the paths of the bindings, in the order of the bindings.
    fn paths(&self) -> Vec<&str> {
        self.bindings.iter().filter_map(|(_, binding)| binding.path()).collect()
    }

    fn facts(&self) -> String {
        facts(self.version, self.bindings.iter().map(|(slice, binding)| (slice, binding.form())))
    }
}

/// Formats a declaration of an event for comparisons and errors.
fn facts<'a>(version: u32, bindings: impl Iterator<Item = (&'a SmolStr, &'static str)>) -> String {
    let bindings: Vec<String> =
        bindings.map(|(slice, form)| format!("{form} `{}`", escape::text(slice))).collect();
    match bindings.is_empty() {
        true => format!("version {version}"),
        false => format!("version {version}: {}", bindings.join(", ")),
    }
}

impl SessionTypesBuilder {
    /// Declares a slice at run time, with a policy. Its items are [`Value`]s; read them with
    /// [`DynamicSession::view`](crate::DynamicSession::view).
    ///
    /// ```
    /// use foldlog::{DynamicEvent, Policy, SessionTypes, Store, Value};
    /// use serde_json::json;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let types = SessionTypes::builder()
    ///     .dynamic_slice("plan", Policy::State)
    ///     .dynamic_event(DynamicEvent::new("plan.added").append("plan"))
    ///     .build()?;
    /// let session = Store::open(directory.path())?.create(&types)?;
    /// session.dynamic().dispatch("plan.added", json!({"title": "read the issue"}))?;
    /// let plan = session.dynamic().view("plan")?;
    /// assert_eq!(plan.latest().and_then(|step| step.get("title")), Some(&Value::from("read the issue")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the host also declares a slice of that name with a Rust type, both declarations must
    /// agree, and the items are stored as that type.
    pub fn dynamic_slice(mut self, slice: impl Into<DynamicSlice>, policy: Policy) -> Self {
        self.dynamic.slices.push((slice.into(), policy));
        self
    }

    /// Declares an event at run time. Its value is a [`Value`]; dispatch it with
    /// [`DynamicSession::dispatch`](crate::DynamicSession::dispatch).
    ///
    /// If the host also declares an event of that name with a Rust type, both declarations must
    /// agree, and a dispatched value must be valid for that type.
    pub fn dynamic_event(mut self, event: impl Into<DynamicEvent>) -> Self {
        self.dynamic.events.push(event.into());
        self
    }
}

#[derive(Clone, Default)]
pub(super) struct Dynamic {
    slices: Vec<(DynamicSlice, Policy)>,
    events: Vec<DynamicEvent>,
}

fn twice<T>(name: &str, reason: String) -> Result<T> {
    Err(Error::DeclaredTwice { name: name.to_owned(), reason })
}

impl Dynamic {
    /// Adds the declarations to those of Rust types. Fails if two declarations of one name
    /// disagree.
    pub(super) fn join_to(self, registered: &mut TypeDeclarations) -> Result<()> {
        for (slice, policy) in &self.slices {
            join_slice(slice, *policy, registered)?;
        }
        let mut events = Vec::new();
        for event in self.events {
            if event.is_new(registered, &events)? {
                events.push(event);
            }
        }
        // All keys must be known before the reducers that find items by key are built.
        let mut items = BTreeMap::new();
        for event in &events {
            for (slice, binding) in &event.bindings {
                event.bind_slice(slice, binding, registered, &mut items)?;
            }
        }
        for event in events {
            let types = event.into_types(registered)?;
            registered.events.insert(types.name.clone(), types);
        }
        Ok(())
    }
}

fn join_slice(slice: &DynamicSlice, policy: Policy, registered: &mut TypeDeclarations) -> Result<()> {
    let name = &slice.name;
    let key = slice.key.as_ref().map(|path| read_path(name, path)).transpose()?;
    let Some(before) = registered.slices.get_mut(name) else {
        let (item_name, item_version) = slice.item.clone().unwrap_or_else(|| (name.clone(), 1));
        let mut types = SliceTypes {
            name: name.clone(),
            policy,
            item_type: ItemType::dynamic(),
            tail_items: slice.tail_items.unwrap_or(TAIL_ITEMS),
            decoder: values(name, item_version, slice.upcast.as_ref()),
            item_name,
            item_version,
            make_index: None,
            key_path: None,
            recode: encode_value,
            encode: encode_any_value,
        };
        key.map_or(Ok(()), |key| key_by(&mut types, key, "keyed_by"))?;
        registered.slices.insert(name.clone(), types);
        return Ok(());
    };
    if before.policy != policy {
        return Err(Error::PolicyMismatch {
            slice: name.to_string(),
            declared: policy,
            recorded: before.policy,
        });
    }
    if let Some((item, version)) = &slice.item
        && (*item != before.item_name || *version != before.item_version)
    {
        let (first, first_version) = (escape::text(&before.item_name), before.item_version);
        let item = escape::text(item);
        return twice(
            name,
            format!(
                "by {} with items `{first}` of version {first_version}, and at run time with items `{item}` of version {version}",
                before.item_type,
            ),
        );
    }
    if let Some(count) = slice.tail_items.filter(|count| *count != before.tail_items) {
        let seen = before.tail_items;
        return twice(name, format!("with {seen} last items for its reducers, and with {count}"));
    }
    same_upcast(name, upcast_of(&before.decoder), slice.upcast.as_ref())?;
    match (key, &before.make_index) {
        (Some(key), None) if !before.item_type.is_dynamic() => {
            twice(name, format!("by {} without keys, and at run time with keys at `{key}`", before.item_type))
        }
        (Some(key), _) if before.item_type.is_dynamic() => key_by(before, key, "keyed_by"),
        _ => Ok(()),
    }
}

/// Checks that a second declaration has no upcast, or the same closure as the first.
fn same_upcast(name: &str, first: Option<&UpcastValue>, second: Option<&UpcastValue>) -> Result<()> {
    match second.is_none_or(|second| first.is_some_and(|first| Arc::ptr_eq(first, second))) {
        true => Ok(()),
        false => {
            twice(name, "the second time with an upcast, which cannot be compared with the first".to_owned())
        }
    }
}

fn upcast_of(decoder: &Decoder) -> Option<&UpcastValue> {
    match decoder {
        Decoder::Values(values) => values.upcast.as_ref(),
        Decoder::Typed { .. } => None,
    }
}

fn values(name: &SmolStr, version: u32, upcast: Option<&UpcastValue>) -> Decoder {
    let upcast = upcast.cloned();
    Decoder::Values(Arc::new(ValueDecoder { name: name.clone(), version, upcast, by_way_of: None }))
}

fn key_by(slice: &mut SliceTypes, path: ValuePath, operation: &'static str) -> Result<()> {
    if slice.policy == Policy::Log {
        return Err(Error::LogOnlyGrows { slice: slice.name.to_string(), operation });
    }
    if let Some(before) = slice.key_path.as_ref().filter(|before| **before != path) {
        return twice(&slice.name, format!("with keys at `{before}`, and with keys at `{path}`"));
    }
    let key = path.clone();
    let key_of = Arc::new(move |value: &Value| key.key(value));
    slice.make_index = Some(Arc::new(move || Box::new(Keys::new(Arc::clone(&key_of) as _))));
    slice.key_path = Some(path);
    Ok(())
}

impl DynamicEvent {
    /// Returns whether this is the first declaration of the event. Fails if an earlier one
    /// disagrees.
    fn is_new(&self, registered: &TypeDeclarations, events: &[DynamicEvent]) -> Result<bool> {
        let (by, said, upcast, left_out) = match registered.events.get(&self.name) {
            Some(typed) => {
                let forms = typed.reducers.iter().map(|(slice, reduce)| (slice, reduce.form));
                let said = facts(typed.version, forms);
                (typed.event_type.to_string(), said, upcast_of(&typed.decoder), &typed.not_compared)
            }
            None => match events.iter().find(|before| before.name == self.name) {
                Some(before) if before.facts() == self.facts() && before.paths() != self.paths() => {
                    let shown = |of: &DynamicEvent| escape::text(&of.paths().join(", ")).to_string();
                    let (first, second) = (shown(before), shown(self));
                    return twice(&self.name, format!("at run time, by `{first}` and by `{second}`"));
                }
                Some(before) => {
                    let by = ItemType::dynamic().to_string();
                    (by, before.facts(), before.upcast.as_ref(), &before.not_compared)
                }
                None => return Ok(true),
            },
        };
        same_upcast(&self.name, upcast, self.upcast.as_ref())?;
        if let Some(more) = self.not_compared.iter().find(|path| !left_out.contains(path)) {
            return twice(&self.name, format!("the second time without comparing `{}`", escape::text(more)));
        }
        let says = self.facts();
        let compares = self.bindings.iter().all(|(_, binding)| matches!(binding, Binding::BuiltIn(_)));
        let version_alone = self.bindings.is_empty() && said.split(':').next() == Some(says.as_str());
        match version_alone || compares && said == says {
            true => Ok(false),
            false => twice(&self.name, format!("by {by}, {said}; and at run time, {says}")),
        }
    }

    /// Checks that the event may change the slice in this way. If events of this type become the
    /// slice's items, sets the slice's item type to them.
    fn bind_slice(
        &self,
        name: &SmolStr,
        binding: &Binding,
        registered: &mut TypeDeclarations,
        items: &mut BTreeMap<SmolStr, SmolStr>,
    ) -> Result<()> {
        let Some(slice) = registered.slices.get_mut(name) else {
            let reason = "it is bound to an event but was never declared";
            return Err(Error::NoSuchSlice { slice: name.to_string(), reason });
        };
        if !slice.item_type.is_dynamic() {
            let (event, by) = (escape::text(&self.name), slice.item_type);
            return twice(name, format!("by {by}, and for the event `{event}`, which has no Rust type"));
        }
        let Binding::BuiltIn(built_in) = binding else { return Ok(()) };
        if slice.policy == Policy::Log && *built_in != BuiltInReducer::Append {
            return Err(Error::LogOnlyGrows { slice: name.to_string(), operation: built_in.form() });
        }
        if matches!(built_in, BuiltInReducer::Remove(_) | BuiltInReducer::Clear) {
            return built_in.path(name).map(drop);
        }
        let other = items.insert(name.clone(), self.name.clone()).filter(|other| *other != self.name);
        if let Some(other) = other {
            let (other, event) = (escape::text(&other), escape::text(&self.name));
            return twice(name, format!("with events `{other}` as its items, and with events `{event}`"));
        }
        (slice.item_name, slice.item_version) = (self.name.clone(), self.version);
        slice.decoder = values(&self.name, self.version, self.upcast.as_ref());
        match built_in.path(name)? {
            Some(path) => key_by(slice, path, "upsert"),
            None => Ok(()),
        }
    }

    fn into_types(self, registered: &TypeDeclarations) -> Result<EventTypes> {
        let mut reducers: Vec<(SmolStr, Reduce)> = Vec::new();
        for (slice, binding) in &self.bindings {
            if reducers.iter().any(|(before, _)| before == slice) {
                return twice(&self.name, format!("for one slice, `{}`", escape::text(slice)));
            }
            let key = registered.slices.get(slice).and_then(|types| types.key_path.as_ref());
            reducers.push((slice.clone(), reduce(slice, binding, key)?));
        }
        Ok(EventTypes {
            version: self.version,
            event_type: ItemType::dynamic(),
            decoder: values(&self.name, self.version, self.upcast.as_ref()),
            name: self.name,
            encode: encode_any_value,
            known: |name, bytes| Ok(Arc::new(read_value(name, bytes)?)),
            not_compared: self.not_compared,
            reducers,
        })
    }
}

/// Builds the reducer of a binding to a slice. `key` is the path by which the slice's items are
/// indexed.
fn reduce(slice: &SmolStr, binding: &Binding, key: Option<&ValuePath>) -> Result<Reduce> {
    let (form, name) = (binding.form(), slice.clone());
    let (built_in, run): (BuiltIn, Arc<Reducer>) = match binding {
        Binding::BuiltIn(BuiltInReducer::Append) => {
            (BuiltIn::Append, Arc::new(|_: &ReduceCall<'_>| Ok(SliceEffect::append())))
        }
        Binding::BuiltIn(BuiltInReducer::Replace) => {
            (BuiltIn::Replace, Arc::new(|_: &ReduceCall<'_>| Ok(SliceEffect::replace())))
        }
        Binding::BuiltIn(BuiltInReducer::Clear) => {
            let run = move |call: &ReduceCall<'_>| {
                call.resolve(&values_in(&name), |_| Ok(SliceOp::Clear(Clear::All)))
            };
            (BuiltIn::Explicit, Arc::new(run))
        }
        Binding::BuiltIn(built_in @ (BuiltInReducer::Upsert(path) | BuiltInReducer::Remove(path))) => {
            let path = read_path(slice, path)?;
            let indexed = key == Some(&path);
            let upserts = matches!(built_in, BuiltInReducer::Upsert(_));
            let run = move |call: &ReduceCall<'_>| by_path(call, &name, &path, indexed, upserts);
            (BuiltIn::Explicit, Arc::new(run))
        }
        Binding::Reducer(reducer) => {
            let reducer = Arc::clone(reducer);
            let run = move |call: &ReduceCall<'_>| {
                let event = event_of(call, &name)?;
                call.resolve(&values_in(&name), |view| reducer(view, event, call.context))
            };
            (BuiltIn::Explicit, Arc::new(run))
        }
    };
    Ok(Reduce { built_in, form, run })
}

fn values_in(slice: &str) -> ItemCoding<'_, Value> {
    ItemCoding { name: slice, encode: encode_value }
}

fn event_of<'a>(call: &ReduceCall<'a>, slice: &str) -> Result<&'a Value, ReduceError> {
    let reason = "the event has a Rust type, and the reducer takes values";
    let other = || ReduceError::Engine(Error::NoSuchSlice { slice: slice.to_owned(), reason });
    call.event.downcast_ref().ok_or_else(other)
}

/// Removes the items with the event's value at `path`, and appends the event if `upserts` is set.
fn by_path(
    call: &ReduceCall<'_>,
    slice: &str,
    path: &ValuePath,
    indexed: bool,
    upserts: bool,
) -> Result<SliceEffect, ReduceError> {
    let event = event_of(call, slice)?;
    let Some(wanted) = path.find(event) else {
        return Err(ReduceError::Refused(format!("the event contains no value at `{path}`")));
    };
    let rows = call.items.rows_in_memory();
    let ids = match rows.alike(call.event).filter(|_| indexed) {
        Some(ids) => ids,
        None => {
            let wanted = wanted.encode();
            let at_path = |row: &RowRef<'_>| path.find(downcast_row::<Value>(*row)?).map(Value::encode);
            let alike = |row: &RowRef<'_>| at_path(row).is_some_and(|key| key == wanted);
            rows.iter().filter(alike).map(|row| row.id).collect()
        }
    };
    let removed = removed_items(ids);
    Ok(match upserts {
        true => SliceEffect { removed, ..SliceEffect::append() },
        false => SliceEffect { removed, ..SliceEffect::items(Vec::new(), call.item_version) },
    })
}
