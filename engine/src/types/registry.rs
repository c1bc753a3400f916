use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::Value;
use smol_str::SmolStr;

use super::builder::SessionTypesBuilder;
use super::reducer::Reduce;
use super::values::{EncodeAny, ValueDecoder, ValuePath, check_kept, encode_value};
use super::{Decoder, RecordedBytes};
use crate::error::Result;
use crate::items::AnyValue;
use crate::items::index::KeyIndex;
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
    pub(super) inner: Arc<TypeDeclarations>,
}

#[derive(Clone, Default)]
pub(super) struct TypeDeclarations {
    pub(super) slices: BTreeMap<SmolStr, SliceTypes>,
    pub(super) events: BTreeMap<SmolStr, EventTypes>,
    pub(super) retired: Vec<(String, String)>,
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
        SessionTypesBuilder::default()
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

const COMPARED_CHARS: usize = 128;

fn edits_between(one: &str, other: &str) -> usize {
    let compared = |name: &str| name.chars().take(COMPARED_CHARS).collect::<String>();
    strsim::levenshtein(&compared(one), &compared(other))
}
