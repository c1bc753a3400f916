use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{BuiltIn, Policy};
use foldlog_codec::msgpack::Value;

use super::reducer::{downcast, resolve_op, resolve_upsert};
use super::{
    Decoded, Event, Recorded, ReducerContext, Slice, SliceEffect, SliceOp, ToolInvocations, View,
    append_event, append_item, decode_event, decode_item, default_policy, encode,
};
use crate::error::{Error, Result};
use crate::items::AnyValue;
use crate::items::Items;
use crate::items::index::{KeyIndex, KeyOf, Keys};
use crate::items::rows::Rows;

/// How many of a LOG slice's last items its reducers see, where the host does not say.
pub(crate) const TAIL_ITEMS: usize = 1;

/// Reads an item of a slice: its version, the record that inserted it, its bytes.
pub(crate) type DecodeItem = fn(u32, SequenceNumber, Recorded<'_>) -> Decoded;

/// How a slice's items are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder {
    /// As a value of its own.
    pub(crate) alone: DecodeItem,
    /// As the last item of a slice, and the first of its record.
    pub(crate) behind: AppendItem,
}

type AppendItem = fn(&mut Rows, u32, SequenceNumber, Recorded<'_>) -> std::result::Result<(), Box<Error>>;

/// Everything that a host declares, once: its slices, and which events change them how.
///
/// Cheap to clone. [`Store::create`](crate::Store::create), [`open`](crate::Store::open_session),
/// [`fork`](crate::Store::fork) and [`import`](crate::Store::import) take it.
#[derive(Clone, Default)]
pub struct SessionTypes {
    inner: Arc<Registered>,
}

#[derive(Clone, Default)]
struct Registered {
    slices: BTreeMap<&'static str, SliceTypes>,
    events: BTreeMap<&'static str, EventTypes>,
    retired: Vec<(String, String)>,
}

/// What is known of a slice's type.
#[derive(Clone)]
pub(crate) struct SliceTypes {
    pub(crate) name: &'static str,
    pub(crate) policy: Policy,
    pub(crate) item_name: &'static str,
    pub(crate) item_version: u32,
    pub(crate) item_type: TypeId,
    pub(crate) tail_items: usize,
    pub(crate) decoder: Decoder,
    /// Makes the index of an `upsert_by`.
    pub(crate) make_index: Option<Arc<MakeIndex>>,
    /// Records an item of an export, of the present version, as the host itself would.
    pub(crate) recode: fn(&Value) -> Result<Vec<u8>>,
}

type MakeIndex = dyn Fn() -> Box<dyn KeyIndex> + Send + Sync;

impl SliceTypes {
    /// A new index over the slice's items, where an `upsert_by` asks for one.
    pub(crate) fn index(&self) -> Option<Box<dyn KeyIndex>> {
        self.make_index.as_ref().map(|make| make())
    }
}

/// What is known of an event's type.
#[derive(Clone)]
pub(crate) struct EventTypes {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) event_type: TypeId,
    /// By the slice's name, in the order of declaration.
    pub(crate) reducers: Vec<(&'static str, Reduce)>,
}

/// The parts of a call that a reducer needs.
pub(crate) struct ReduceCall<'a> {
    pub(crate) items: &'a Items,
    pub(crate) tail_items: usize,
    pub(crate) item_version: u32,
    pub(crate) event: &'a AnyValue,
    pub(crate) context: &'a ReducerContext,
}

type Reducer = dyn Fn(&ReduceCall<'_>) -> Result<SliceEffect, ReduceError> + Send + Sync;

/// Why a reducer gave no result.
pub(crate) enum ReduceError {
    /// The reducer said no.
    Refused(String),
    /// The engine could not carry out what it wants.
    Engine(Error),
}

/// One reducer, its types erased.
#[derive(Clone)]
pub(crate) struct Reduce {
    pub(crate) built_in: BuiltIn,
    pub(crate) run: Arc<Reducer>,
}

impl fmt::Debug for SessionTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: BTreeMap<_, Vec<_>> = self
            .inner
            .events
            .values()
            .map(|event| (event.name, event.reducers.iter().map(|(slice, _)| *slice).collect()))
            .collect();
        let slices: BTreeMap<_, _> =
            self.inner.slices.values().map(|slice| (slice.name, slice.policy.name())).collect();
        f.debug_struct("SessionTypes").field("slices", &slices).field("events", &events).finish()
    }
}

impl SessionTypes {
    /// Begins a declaration.
    pub fn builder() -> SessionTypesBuilder {
        SessionTypesBuilder { registered: Registered::default(), error: None }
    }

    /// Whether this is the same declaration, made once.
    pub(crate) fn is_same(&self, other: &SessionTypes) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn slice(&self, name: &str) -> Option<&SliceTypes> {
        self.inner.slices.get(name)
    }

    pub(crate) fn event(&self, name: &str) -> Option<&EventTypes> {
        self.inner.events.get(name)
    }

    pub(crate) fn is_retired(&self, event: &str, slice: &str) -> bool {
        self.inner.retired.iter().any(|(e, s)| e == event && s == slice)
    }

    /// The names of all declared slices with their policies.
    pub fn slices(&self) -> impl Iterator<Item = (&'static str, Policy)> {
        self.inner.slices.values().map(|slice| (slice.name, slice.policy))
    }
}

/// Collects declarations; [`build`](SessionTypesBuilder::build) checks them.
#[must_use]
pub struct SessionTypesBuilder {
    registered: Registered,
    error: Option<Error>,
}

impl fmt::Debug for SessionTypesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SessionTypes { inner: Arc::new(self.registered.clone()) }.fmt(f)
    }
}

impl SessionTypesBuilder {
    /// Declares a slice under its [default policy](default_policy).
    pub fn slice<S: Slice>(self) -> Self {
        let policy = default_policy(S::NAME);
        self.slice_with::<S>(policy)
    }

    /// Declares a slice with a policy.
    pub fn slice_with<S: Slice>(mut self, policy: Policy) -> Self {
        let slice = SliceTypes {
            name: S::NAME,
            policy,
            item_name: S::ITEM_NAME,
            item_version: S::ITEM_VERSION,
            item_type: TypeId::of::<S::Item>(),
            tail_items: TAIL_ITEMS,
            decoder: Decoder { alone: decode_item::<S>, behind: append_item::<S> },
            make_index: None,
            recode: recode::<S>,
        };
        match self.registered.slices.get(S::NAME) {
            Some(before) if before.policy != policy => {
                let recorded = before.policy;
                self.fail(Error::PolicyMismatch { slice: S::NAME.to_owned(), declared: policy, recorded });
            }
            Some(before) if before.item_type != slice.item_type => {
                self.fail(Error::DeclaredTwice {
                    name: S::NAME.to_owned(),
                    reason: "with items of two types",
                });
            }
            Some(_) => {}
            None => {
                self.registered.slices.insert(S::NAME, slice);
            }
        }
        self
    }

    /// Says how many of a LOG slice's last items its reducers see; 1 where nothing is said.
    pub fn tail_items<S: Slice>(mut self, count: usize) -> Self {
        match self.registered.slices.get_mut(S::NAME) {
            Some(slice) => slice.tail_items = count,
            None => self.fail(undeclared(S::NAME)),
        }
        self
    }

    /// Binds the slice's items, which are events: each one dispatched is appended.
    pub fn append_all<S: Slice<Item: Event>>(self) -> Self {
        let run: Arc<Reducer> = Arc::new(|_| Ok(SliceEffect::append()));
        self.bind_event::<S>(Reduce { built_in: BuiltIn::Append, run })
    }

    /// Binds the slice's items, which are events: each one dispatched replaces all before.
    pub fn replace_latest<S: Slice<Item: Event>>(self) -> Self {
        let run: Arc<Reducer> = Arc::new(|_| Ok(SliceEffect::replace()));
        self.bind_event::<S>(Reduce { built_in: BuiltIn::Replace, run })
    }

    /// Binds the slice's items, which are events: each one dispatched drops the items of an equal key and
    /// comes last. The items are indexed by their keys, so a long slice costs little more than a short one.
    pub fn upsert_by<S, K>(mut self, key_of: impl Fn(&S::Item) -> K + Send + Sync + 'static) -> Self
    where
        S: Slice<Item: Event>,
        K: Ord + Clone + Send + Sync + 'static,
    {
        let key_of: KeyOf<S::Item, K> = Arc::new(key_of);
        let of_index = Arc::clone(&key_of);
        match self.registered.slices.get_mut(S::NAME) {
            Some(slice) if slice.policy == Policy::Log => {
                self.fail(Error::LogOnlyGrows { slice: S::NAME.to_owned(), operation: "upsert_by" });
            }
            Some(slice) => {
                slice.make_index = Some(Arc::new(move || Box::new(Keys::new(Arc::clone(&of_index)))));
            }
            None => {}
        }
        let run: Arc<Reducer> = Arc::new(move |call| {
            resolve_upsert::<S::Item, K>(call.items.held(), call.event, &key_of).map_err(ReduceError::Engine)
        });
        self.bind_event::<S>(Reduce { built_in: BuiltIn::Explicit, run })
    }

    /// Another name for [`upsert_by`](SessionTypesBuilder::upsert_by).
    pub fn replace_latest_by<S, K>(self, key_of: impl Fn(&S::Item) -> K + Send + Sync + 'static) -> Self
    where
        S: Slice<Item: Event>,
        K: Ord + Clone + Send + Sync + 'static,
    {
        self.upsert_by::<S, K>(key_of)
    }

    /// Binds an event to a slice by a reducer of the host's own.
    ///
    /// A reducer is pure: it depends on its arguments alone and changes nothing. It is called while the
    /// session is locked, so it must not call into the session. What it refuses, or where it panics, the
    /// whole dispatch is refused: nothing is recorded and nothing changes.
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
            let (rows, view) = match call.items {
                Items::Held(rows) => (rows, View::new(rows.clone())),
                Items::InLog(items) => {
                    let tail = items.tail().tail(call.tail_items);
                    (items.tail(), View::tail(tail, items.len()))
                }
            };
            let log = matches!(call.items, Items::InLog(_));
            let op = reducer(&view, event, call.context).map_err(ReduceError::Refused)?;
            let refused = |operation| {
                Err(ReduceError::Engine(Error::LogOnlyGrows { slice: S::NAME.to_owned(), operation }))
            };
            match &op {
                SliceOp::Replace(_) if log => return refused("Replace"),
                SliceOp::Clear(_) if log => return refused("Clear"),
                _ => {}
            }
            resolve_op::<S>(rows, op, call.item_version).map_err(ReduceError::Engine)
        });
        self.bind::<S, E>(Reduce { built_in: BuiltIn::Explicit, run })
    }

    /// Says that logs may hold a binding that this host gave up on purpose, so that opening them is no
    /// [`Error::NotRegistered`].
    pub fn retired(mut self, event: impl Into<String>, slice: impl Into<String>) -> Self {
        self.registered.retired.push((event.into(), slice.into()));
        self
    }

    /// Checks the declarations.
    ///
    /// # Errors
    ///
    /// The first declaration that contradicts another: a slice with two policies or item types, an event with
    /// two versions or Rust types, an event bound twice to one slice, a reducer of a slice that was not
    /// declared, a LOG slice that is not only appended to. [`ToolInvocations`] counts as declared: its name,
    /// `tool_invoked`, is no other slice's.
    pub fn build(self) -> Result<SessionTypes> {
        // Every session has it, so that a tool can be run in any.
        let all = self.slice::<ToolInvocations>();
        match all.error {
            Some(error) => Err(error),
            None => Ok(SessionTypes { inner: Arc::new(all.registered) }),
        }
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Binds a slice to the event that its items are; from here on its items are read as that event.
    fn bind_event<S: Slice<Item: Event>>(mut self, reduce: Reduce) -> Self {
        if let Some(slice) = self.registered.slices.get_mut(S::NAME) {
            slice.item_name = <S::Item as Event>::NAME;
            slice.item_version = <S::Item as Event>::VERSION;
            slice.decoder = Decoder { alone: decode_event::<S::Item>, behind: append_event::<S::Item> };
        }
        self.bind::<S, S::Item>(reduce)
    }

    fn bind<S: Slice, E: Event>(mut self, reduce: Reduce) -> Self {
        let Some(slice) = self.registered.slices.get(S::NAME) else {
            self.fail(undeclared(S::NAME));
            return self;
        };
        if slice.policy == Policy::Log && reduce.built_in == BuiltIn::Replace {
            let operation = "replace_latest";
            self.fail(Error::LogOnlyGrows { slice: S::NAME.to_owned(), operation });
            return self;
        }
        let event = self.registered.events.entry(E::NAME).or_insert_with(|| EventTypes {
            name: E::NAME,
            version: E::VERSION,
            event_type: TypeId::of::<E>(),
            reducers: Vec::new(),
        });
        let twice = if event.event_type != TypeId::of::<E>() {
            Some("as two Rust types")
        } else if event.reducers.iter().any(|(slice, _)| *slice == S::NAME) {
            Some("for one slice")
        } else {
            None
        };
        match twice {
            Some(reason) => self.fail(Error::DeclaredTwice { name: E::NAME.to_owned(), reason }),
            None => event.reducers.push((S::NAME, reduce)),
        }
        self
    }
}

/// By way of JSON text, since that is what an export holds: serde's JSON knows, for one, that a map's integer
/// keys were text there.
fn recode<S: Slice>(item: &Value) -> Result<Vec<u8>> {
    let bad = |error: serde_json::Error| Error::Export(format!("an item of `{}`: {error}", S::NAME));
    let text = serde_json::to_string(item).map_err(bad)?;
    let item: S::Item = serde_json::from_str(&text).map_err(bad)?;
    encode(S::NAME, &item)
}

fn undeclared(slice: &'static str) -> Error {
    Error::NoSuchSlice { slice: slice.to_owned(), reason: "it is bound to an event before it is declared" }
}
