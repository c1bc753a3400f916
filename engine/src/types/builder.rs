use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use foldlog_codec::body::{BuiltIn, Policy};
use foldlog_codec::msgpack::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smol_str::SmolStr;

use super::dynamic::Dynamic;
use super::reducer::{Reduce, ReduceError, Reducer, downcast, resolve_upsert};
use super::registry::{EventTypes, ItemType, SessionTypes, SliceTypes, TAIL_ITEMS, TypeDeclarations};
use super::values::decode_strict;
use super::{
    Decoder, Event, EventSlice, ItemCoding, ReducerContext, Slice, SliceEffect, SliceOp, ToolInvocations,
    View, default_policy, encode,
};
use crate::error::{Error, Result};
use crate::items::index::{KeyFn, Keys};
use crate::items::runs;

/// Collects declarations. [`build`](SessionTypesBuilder::build) checks them.
#[derive(Default)]
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

fn undeclared_error(slice: &'static str) -> Error {
    Error::NoSuchSlice { slice: slice.to_owned(), reason: "it is bound to an event before it is declared" }
}
