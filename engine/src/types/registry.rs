use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{BuiltIn, Policy};
use foldlog_codec::msgpack::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smol_str::SmolStr;

use super::dynamic::Dynamic;
use super::reducer::{Reduce, ReduceError, Reducer, downcast, resolve_upsert};
use super::values::{EncodeAny, ValueDecoder, ValuePath, check_kept, decode_strict, encode_value};
use super::{
    Decoder, Event, EventSlice, ItemCoding, RecordedBytes, ReducerContext, Slice, SliceEffect, SliceOp,
    ToolInvocations, View, default_policy, encode,
};
use crate::error::{Error, Result};
use crate::items::AnyValue;
use crate::items::index::{KeyFn, KeyIndex, Keys};
use crate::items::rows::Rows;
use crate::items::runs;
use crate::names::{DeclaredNames, UnregisteredEvent};

/// Default number of a LOG slice's last items that its reducers see.
pub(crate) const TAIL_ITEMS: usize = 1;

/// Contains all declarations of a host: its slices, its events, and the reducers that bind them.
///
/// Cheap to clone. Needed by [`Store::create`](crate::Store::create),
/// [`open_session`](crate::Store::open_session), [`fork`](crate::Store::fork) and
/// [`import`](crate::Store::import).
///
/// ```
/// use foldlog::{Event, Policy, SessionTypes, Slice, SliceOp};
///
/// #[derive(Clone, serde::Serialize, serde::Deserialize)]
/// struct Said(String);
///
/// impl Event for Said {
///     const NAME: &'static str = "chat.said";
/// }
///
/// struct Chat;
///
/// impl Slice for Chat {
///     const NAME: &'static str = "chat";
///     type Item = Said;
/// }
///
/// struct Plan;
///
/// impl Slice for Plan {
///     const NAME: &'static str = "plan";
///     type Item = String;
/// }
///
/// let types = SessionTypes::builder()
///     .slice_with::<Chat>(Policy::Log)
///     .append_all::<Chat>()
///     .slice::<Plan>()
///     .reducer::<Plan, Said>(|plan, said, _| match said.0.as_str() {
///         "" => Err("an empty message says nothing".to_owned()),
///         "start over" => Ok(SliceOp::Replace(plan.items().take(1).collect())),
///         text => Ok(SliceOp::Append(text.to_owned())),
///     })
///     .build()?;
/// # Ok::<(), foldlog::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct SessionTypes {
    inner: Arc<TypeDeclarations>,
}

#[derive(Clone, Default)]
pub(super) struct TypeDeclarations {
    pub(super) slices: BTreeMap<SmolStr, SliceTypes>,
    pub(super) events: BTreeMap<SmolStr, EventTypes>,
    retired: Vec<(String, String)>,
}

#[derive(Clone)]
pub(crate) struct SliceTypes {
    pub(crate) name: SmolStr,
    pub(crate) policy: Policy,
    pub(crate) item_name: SmolStr,
    pub(crate) item_version: u32,
    pub(crate) item_type: ItemType,
    pub(crate) tail_items: usize,
    pub(crate) decoder: Decoder,
    /// Creates the key index of `upsert_by` and `keyed_by`.
    pub(crate) make_index: Option<Arc<MakeIndex>>,
    /// Path to the key, for a slice that is declared at run time.
    pub(super) key_path: Option<ValuePath>,
    /// Encodes an item from another program's export, as the host itself would. The item must have
    /// the present version.
    pub(super) recode: fn(&str, &Value) -> Result<Vec<u8>>,
    pub(super) encode: EncodeAny,
}

/// The in-memory type of a slice's items, or of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemType {
    pub(crate) id: TypeId,
    /// Name of the Rust type. `None` for a run-time declaration, whose only type is [`Value`].
    pub(crate) rust: Option<&'static str>,
}

impl ItemType {
    pub(crate) fn of<T: 'static>() -> ItemType {
        ItemType { id: TypeId::of::<T>(), rust: Some(std::any::type_name::<T>()) }
    }

    /// Returns the type of run-time declarations.
    pub(crate) fn dynamic() -> ItemType {
        ItemType { id: TypeId::of::<Value>(), rust: None }
    }

    pub(crate) fn is_dynamic(&self) -> bool {
        self.rust.is_none()
    }
}

impl fmt::Display for ItemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rust {
            Some(rust) => write!(f, "Rust type `{rust}`"),
            None => f.write_str("a declaration at run time"),
        }
    }
}

pub(super) type MakeIndex = dyn Fn() -> Box<dyn KeyIndex> + Send + Sync;

impl SliceTypes {
    /// Converts an item to the host's present version. The record `sequence` inserted it at
    /// `version`.
    pub(crate) fn up_to_date(&self, version: u32, sequence: SequenceNumber, bytes: &[u8]) -> Result<Vec<u8>> {
        let item = self.decoder.alone(version, sequence, RecordedBytes::Elsewhere(bytes))?;
        self.encode(item.as_ref())
    }

    /// Encodes an item from an export, as the host itself would. The item must have the present
    /// version.
    pub(crate) fn recode(&self, item: &Value) -> Result<Vec<u8>> {
        (self.recode)(&self.name, item)
    }

    /// Encodes a decoded item at the present version.
    pub(crate) fn encode(&self, item: &runs::Value) -> Result<Vec<u8>> {
        (self.encode)(&self.name, item)
    }

    /// Returns a decoder of items to values in the form in which they would be recorded now.
    pub(crate) fn value_decoder(&self) -> Decoder {
        match &self.decoder {
            Decoder::Values(values) => Decoder::Values(Arc::clone(values)),
            typed => Decoder::Values(Arc::new(ValueDecoder {
                name: self.name.clone(),
                version: self.item_version,
                upcast: None,
                by_way_of: Some((typed.clone(), self.encode)),
            })),
        }
    }

    /// Creates the rows of a slice without items, with an index if the host declares one.
    pub(crate) fn no_rows(types: Option<&SliceTypes>) -> Rows {
        Rows::with_index(types.and_then(|types| types.make_index.as_ref()).map(|make| make()))
    }
}

#[derive(Clone)]
pub(crate) struct EventTypes {
    pub(crate) name: SmolStr,
    pub(crate) version: u32,
    pub(crate) event_type: ItemType,
    pub(crate) decoder: Decoder,
    pub(super) encode: EncodeAny,
    /// Reads the encoding of a value that a host dispatches by the event's name.
    pub(super) known: fn(&str, &[u8]) -> Result<AnyValue>,
    /// Paths of values that a replay does not compare.
    pub(super) not_compared: Vec<SmolStr>,
    /// Reducers of the event with the names of their slices, in the order of declaration. Empty
    /// only for an event that was declared at run time; such an event is folded like an undeclared
    /// one.
    pub(crate) reducers: Vec<(SmolStr, Reduce)>,
}

impl EventTypes {
    pub(crate) fn encode(&self, event: &runs::Value) -> Result<Vec<u8>> {
        (self.encode)(&self.name, event)
    }

    /// Checks a value that a host dispatches by the event's name. Returns the event and its
    /// recorded bytes.
    pub(crate) fn check_value(&self, value: Value) -> Result<(AnyValue, Vec<u8>)> {
        let bytes = encode_value(&self.name, &value)?;
        if self.event_type.is_dynamic() {
            return Ok((Arc::new(value), bytes));
        }
        let event = (self.known)(&self.name, &bytes)?;
        let kept = self.encode(event.as_ref())?;
        if kept != bytes {
            let keeps = |other: &Value| {
                let encoded = encode_value(&self.name, other).ok()?;
                let event = (self.known)(&self.name, &encoded).ok()?;
                self.encode(event.as_ref()).ok()
            };
            check_kept(&self.name, &value, &kept, &keeps)?;
        }
        Ok((event, kept))
    }
}

impl TypeDeclarations {
    /// Fails if a slice with a Rust type is not bound to any event and is not in `seeded`.
    fn check_bound(&self, seeded: &BTreeSet<&'static str>) -> Result<()> {
        let reducers = self.events.values().flat_map(|event| &event.reducers);
        let bound = reducers.map(|(slice, _)| slice.as_str());
        let retired = self.retired.iter().map(|(_, slice)| slice.as_str());
        let changed: BTreeSet<&str> = bound.chain(retired).chain(seeded.iter().copied()).collect();
        let is_unbound =
            |slice: &&SliceTypes| !slice.item_type.is_dynamic() && !changed.contains(slice.name.as_str());
        match self.slices.values().find(is_unbound) {
            Some(slice) => Err(Error::SliceUnbound { slice: slice.name.to_string() }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for SessionTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: BTreeMap<_, Vec<_>> = self
            .inner
            .events
            .values()
            .map(|event| {
                (event.name.as_str(), event.reducers.iter().map(|(slice, _)| slice.as_str()).collect())
            })
            .collect();
        let slices: BTreeMap<_, _> =
            self.inner.slices.values().map(|slice| (slice.name.as_str(), slice.policy.name())).collect();
        f.debug_struct("SessionTypes").field("slices", &slices).field("events", &events).finish()
    }
}

impl SessionTypes {
    /// Starts a declaration.
    pub fn builder() -> SessionTypesBuilder {
        SessionTypesBuilder {
            registered: TypeDeclarations::default(),
            dynamic: Dynamic::default(),
            seeded: BTreeSet::new(),
            error: None,
        }
    }

    /// Returns whether both are clones of one declaration.
    pub(crate) fn is_same(&self, other: &SessionTypes) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the paths of values that a replay does not compare, each with the name of its event.
    pub(crate) fn not_compared(&self) -> impl Iterator<Item = (&str, &str)> {
        let events = self.inner.events.values();
        events.flat_map(|event| event.not_compared.iter().map(|path| (event.name.as_str(), path.as_str())))
    }

    pub(crate) fn slice(&self, name: &str) -> Option<&SliceTypes> {
        self.inner.slices.get(name)
    }

    pub(crate) fn event(&self, name: &str) -> Option<&EventTypes> {
        self.inner.events.get(name)
    }

    /// Returns the declared event whose name is most similar to this one; `None` if no event is
    /// declared.
    pub(crate) fn nearest_event(&self, name: &str) -> Option<&str> {
        let names = self.inner.events.keys().map(AsRef::as_ref);
        names.min_by_key(|declared| (edits_between(declared, name), *declared))
    }

    pub(crate) fn is_retired(&self, event: &str, slice: &str) -> bool {
        self.inner.retired.iter().any(|(e, s)| e == event && s == slice)
    }

    /// Returns the bindings in a log that this host has neither a reducer nor a retirement for, by
    /// event.
    pub(crate) fn unregistered_events(&self, names: &DeclaredNames) -> Vec<UnregisteredEvent> {
        let events = names.events().filter(|event| !event.implicit).map(|event| {
            let host = self.event(&event.name);
            let slices = event.bindings.iter().map(|binding| names.slice_name(binding.slice));
            let missing = slices.filter(|slice| !self.is_retired(&event.name, slice)).filter(|slice| {
                !host.is_some_and(|host| host.reducers.iter().any(|(name, _)| name == slice))
            });
            UnregisteredEvent { event: event.name.clone(), slices: missing.collect() }
        });
        events.filter(|event| !event.slices.is_empty()).collect()
    }

    /// Returns the names and policies of all declared slices.
    pub fn slices(&self) -> impl Iterator<Item = (&str, Policy)> {
        self.inner.slices.values().map(|slice| (slice.name.as_str(), slice.policy))
    }
}

/// Collects declarations. [`build`](SessionTypesBuilder::build) checks them.
#[must_use]
pub struct SessionTypesBuilder {
    registered: TypeDeclarations,
    /// Declarations without Rust types; `build` joins them to the others.
    pub(super) dynamic: Dynamic,
    /// Slices that may be unbound.
    seeded: BTreeSet<&'static str>,
    error: Option<Error>,
}

impl fmt::Debug for SessionTypesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SessionTypes { inner: Arc::new(self.registered.clone()) }.fmt(f)
    }
}

impl SessionTypesBuilder {
    /// Declares a slice with its [default policy](default_policy).
    pub fn slice<S: Slice>(self) -> Self {
        let policy = default_policy(S::NAME);
        self.slice_with::<S>(policy)
    }

    /// Declares that a slice is not changed by any event: its items come only from
    /// [`Session::seed`](crate::Session::seed). Otherwise `build` refuses a slice without a bound
    /// or [`retired`](SessionTypesBuilder::retired) event.
    pub fn seeded<S: Slice>(mut self) -> Self {
        self.seeded.insert(S::NAME);
        self
    }

    /// Declares a slice with a policy.
    pub fn slice_with<S: Slice>(mut self, policy: Policy) -> Self {
        let slice = SliceTypes {
            name: SmolStr::new_static(S::NAME),
            policy,
            item_name: SmolStr::new_static(S::ITEM_NAME),
            item_version: S::ITEM_VERSION,
            item_type: ItemType::of::<S::Item>(),
            tail_items: TAIL_ITEMS,
            decoder: Decoder::of_slice::<S>(),
            make_index: None,
            key_path: None,
            recode: recode::<S::Item>,
            encode: encode_any::<S::Item>,
        };
        // An event without reducers is appended to the slice of its own name.
        if S::OF_EVENT {
            self.seeded.insert(S::NAME);
        }
        match self.registered.slices.get(S::NAME) {
            Some(before) if before.policy != policy => {
                let recorded = before.policy;
                self.fail(Error::PolicyMismatch { slice: S::NAME.to_owned(), declared: policy, recorded });
            }
            Some(before) if before.item_type != slice.item_type => {
                let reason = format!("with items of {} and of {}", before.item_type, slice.item_type);
                self.fail(Error::DeclaredTwice { name: S::NAME.to_owned(), reason });
            }
            Some(_) => {}
            None => {
                self.registered.slices.insert(slice.name.clone(), slice);
            }
        }
        self
    }

    /// Sets how many of a LOG slice's last items its reducers see. The default is 1.
    pub fn tail_items<S: Slice>(mut self, count: usize) -> Self {
        match self.registered.slices.get_mut(S::NAME) {
            Some(slice) => slice.tail_items = count,
            None => self.fail(undeclared_error(S::NAME)),
        }
        self
    }

    /// Binds the slice to the event type of its items. Each dispatched event is appended.
    pub fn append_all<S: Slice<Item: Event>>(self) -> Self {
        let run: Arc<Reducer> = Arc::new(|_| Ok(SliceEffect::append()));
        self.bind_event::<S>(Reduce { built_in: BuiltIn::Append, form: "append", run })
    }

    /// Binds the slice to the event type of its items. Each dispatched event replaces all items.
    pub fn replace_latest<S: Slice<Item: Event>>(self) -> Self {
        let run: Arc<Reducer> = Arc::new(|_| Ok(SliceEffect::replace()));
        self.bind_event::<S>(Reduce { built_in: BuiltIn::Replace, form: "replace", run })
    }

    /// Binds the slice to the event type of its items. Each dispatched event removes the items with
    /// an equal key and is appended. The items are indexed by key, so a long slice costs little
    /// more than a short one.
    pub fn upsert_by<S, K>(mut self, key_of: impl Fn(&S::Item) -> K + Send + Sync + 'static) -> Self
    where
        S: Slice<Item: Event>,
        K: Ord + Clone + Send + Sync + 'static,
    {
        let key_of: KeyFn<S::Item, K> = Arc::new(key_of);
        self.index_by::<S, K>("upsert_by", Arc::clone(&key_of));
        let run: Arc<Reducer> = Arc::new(move |call| {
            resolve_upsert::<S::Item, K>(call.items.rows_in_memory(), call.event, &key_of)
                .map_err(ReduceError::Engine)
        });
        self.bind_event::<S>(Reduce { built_in: BuiltIn::Explicit, form: "upsert", run })
    }

    /// Indexes the items of a slice by a key, for reducers of the host. These find an item with
    /// [`View::find`], and change it with [`SliceOp::Upsert`]. Both cost little more in a long
    /// slice than in a short one.
    ///
    /// ```
    /// use foldlog::{Event, SessionTypes, Slice, SliceOp};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Clone, Serialize, Deserialize)]
    /// struct Account {
    ///     owner: String,
    ///     balance: i64,
    /// }
    ///
    /// struct Accounts;
    ///
    /// impl Slice for Accounts {
    ///     const NAME: &'static str = "accounts";
    ///     type Item = Account;
    /// }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Paid {
    ///     owner: String,
    ///     amount: i64,
    /// }
    ///
    /// impl Event for Paid {
    ///     const NAME: &'static str = "paid";
    /// }
    ///
    /// let types = SessionTypes::builder()
    ///     .slice::<Accounts>()
    ///     .keyed_by::<Accounts, String>(|account| account.owner.clone())
    ///     .reducer::<Accounts, Paid>(|accounts, paid, _| {
    ///         let before = accounts.find(&paid.owner).map_err(|error| error.to_string())?;
    ///         let balance = before.map_or(0, |account| account.balance) + paid.amount;
    ///         Ok(SliceOp::Upsert(Account { owner: paid.owner.clone(), balance }))
    ///     })
    ///     .build()?;
    /// # let _ = types;
    /// # Ok::<(), foldlog::Error>(())
    /// ```
    pub fn keyed_by<S, K>(mut self, key_of: impl Fn(&S::Item) -> K + Send + Sync + 'static) -> Self
    where
        S: Slice,
        K: Ord + Clone + Send + Sync + 'static,
    {
        self.index_by::<S, K>("keyed_by", Arc::new(key_of));
        self
    }

    fn index_by<S, K>(&mut self, operation: &'static str, key_of: KeyFn<S::Item, K>)
    where
        S: Slice,
        K: Ord + Clone + Send + Sync + 'static,
    {
        match self.registered.slices.get_mut(S::NAME) {
            Some(slice) if slice.policy == Policy::Log => {
                self.fail(Error::LogOnlyGrows { slice: S::NAME.to_owned(), operation });
            }
            Some(slice) => {
                slice.make_index = Some(Arc::new(move || Box::new(Keys::new(Arc::clone(&key_of)))));
            }
            None => self.fail(undeclared_error(S::NAME)),
        }
    }

    /// Binds an event to a slice with a reducer of the host.
    ///
    /// A reducer is pure: its result depends only on its arguments, and it has no side effects. The
    /// engine calls it while the session is locked, so it must not call into the session. If it
    /// returns an error or panics, the whole dispatch fails: no record is written and no slice
    /// changes.
    pub fn reducer<S, E>(
        self,
        reducer: impl Fn(&View<S::Item>, &E, &ReducerContext) -> Result<SliceOp<S::Item>, String>
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        S: Slice,
        E: Event,
    {
        let run: Arc<Reducer> = Arc::new(move |call| {
            let event = downcast::<E>(call.event).map_err(ReduceError::Engine)?;
            call.resolve(&ItemCoding::for_slice::<S>(), |view| reducer(view, event, call.context))
        });
        self.bind::<S, E>(Reduce { built_in: BuiltIn::Explicit, form: "reducer", run })
    }

    /// Accepts logs with a binding of `event` to `slice` that this host no longer declares. Without
    /// it, opening such a log fails with [`Error::NotRegistered`].
    pub fn retired(mut self, event: impl Into<String>, slice: impl Into<String>) -> Self {
        self.registered.retired.push((event.into(), slice.into()));
        self
    }

    /// Checks the declarations and builds the types.
    ///
    /// # Errors
    ///
    /// Returns the error of the first declaration that contradicts another:
    ///
    /// - [`Error::PolicyMismatch`] for a slice with two policies.
    /// - [`Error::DeclaredTwice`] for a slice with two item types, an event with two versions or
    ///   Rust types, or an event bound twice to one slice.
    /// - [`Error::NoSuchSlice`] for an event bound to an undeclared slice.
    /// - [`Error::LogOnlyGrows`] for `replace_latest`, `upsert_by` or `keyed_by` of a LOG slice.
    ///
    /// [`ToolInvocations`] counts as declared, so no other slice may be named `tool_invoked`.
    ///
    /// Returns [`Error::SliceUnbound`] for a slice with a Rust type that is not bound to any event,
    /// unless it is [`seeded`](SessionTypesBuilder::seeded).
    pub fn build(self) -> Result<SessionTypes> {
        // Every session has this slice, so that a tool can run in any of them.
        let own = self.slice::<ToolInvocations>().seeded::<ToolInvocations>();
        let SessionTypesBuilder { mut registered, dynamic, seeded, error } = own;
        match error {
            Some(error) => Err(error),
            None => {
                dynamic.join_to(&mut registered)?;
                registered.check_bound(&seeded)?;
                Ok(SessionTypes { inner: Arc::new(registered) })
            }
        }
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Binds a slice to the event type of its items. From then on its items are decoded as that
    /// event.
    fn bind_event<S: Slice<Item: Event>>(mut self, reduce: Reduce) -> Self {
        if let Some(slice) = self.registered.slices.get_mut(S::NAME) {
            slice.item_name = SmolStr::new_static(<S::Item as Event>::NAME);
            slice.item_version = <S::Item as Event>::VERSION;
            slice.decoder = Decoder::of_slice::<EventSlice<S::Item>>();
        }
        self.bind::<S, S::Item>(reduce)
    }

    fn bind<S: Slice, E: Event>(mut self, reduce: Reduce) -> Self {
        let Some(slice) = self.registered.slices.get(S::NAME) else {
            self.fail(undeclared_error(S::NAME));
            return self;
        };
        if slice.policy == Policy::Log && reduce.built_in == BuiltIn::Replace {
            let operation = "replace_latest";
            self.fail(Error::LogOnlyGrows { slice: S::NAME.to_owned(), operation });
            return self;
        }
        let name = SmolStr::new_static(E::NAME);
        let event = self.registered.events.entry(name).or_insert_with(|| EventTypes {
            name: SmolStr::new_static(E::NAME),
            version: E::VERSION,
            event_type: ItemType::of::<E>(),
            decoder: Decoder::of_slice::<EventSlice<E>>(),
            encode: encode_any::<E>,
            known: |name, bytes| Ok(Arc::new(decode_strict::<E>(name, bytes)?)),
            not_compared: E::NOT_COMPARED.iter().copied().map(SmolStr::new_static).collect(),
            reducers: Vec::new(),
        });
        let twice = if event.event_type != ItemType::of::<E>() {
            Some(format!("as {} and as {}", event.event_type, ItemType::of::<E>()))
        } else if event.reducers.iter().any(|(slice, _)| *slice == S::NAME) {
            Some(format!("for one slice, `{}`", S::NAME))
        } else {
            None
        };
        match twice {
            Some(reason) => self.fail(Error::DeclaredTwice { name: E::NAME.to_owned(), reason }),
            None => event.reducers.push((SmolStr::new_static(S::NAME), reduce)),
        }
        self
    }
}

/// Converts through JSON text, the format of another program's export. serde's JSON knows that a
/// map's integer keys were text there.
fn recode<T: Serialize + DeserializeOwned>(name: &str, item: &Value) -> Result<Vec<u8>> {
    let bad = |error: serde_json::Error| Error::Export(format!("an item of `{name}`: {error}"));
    let text = serde_json::to_string(item).map_err(bad)?;
    let item: T = serde_json::from_str(&text).map_err(bad)?;
    encode(name, &item)
}

fn encode_any<T: Serialize + 'static>(name: &str, value: &runs::Value) -> Result<Vec<u8>> {
    let other = || Error::NoSuchSlice { slice: name.to_owned(), reason: "it is of another type" };
    encode(name, value.downcast_ref::<T>().ok_or_else(other)?)
}

const COMPARED_CHARS: usize = 128;

fn edits_between(one: &str, other: &str) -> usize {
    let compared = |name: &str| name.chars().take(COMPARED_CHARS).collect::<String>();
    strsim::levenshtein(&compared(one), &compared(other))
}

fn undeclared_error(slice: &'static str) -> Error {
    Error::NoSuchSlice { slice: slice.to_owned(), reason: "it is bound to an event before it is declared" }
}
