//! The first difference of two values, and the path that leads to it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::ops::ControlFlow;

use foldlog_codec::body::ObjectId;
use foldlog_codec::msgpack::{Value, from_json};

use super::Difference;
use super::left_out::{covers, same_text};
use crate::fold::record_kinds::RecordRules;

/// Ends a walk at the first difference.
pub(super) type DifferenceFlow = ControlFlow<Difference>;

/// Returns the content of an object; `None` if it is not available.
pub(crate) type Contents<'a> = dyn Fn(&ObjectId) -> Option<Vec<u8>> + 'a;

fn no_contents(_: &ObjectId) -> Option<Vec<u8>> {
    None
}

/// Walks two values in parallel. Decoding has bounded their depth.
pub(super) struct ValueComparer<'a> {
    /// Path of the values that are compared.
    path: String,
    /// Slice at which the path begins.
    pub(super) slice: Option<String>,
    /// Paths that are not compared.
    pub(super) left_out: Vec<&'a str>,
    /// Paths of texts that contain JSON.
    pub(super) json_texts: &'a [&'static str],
    /// Whether addresses in texts are compared.
    pub(super) addresses: bool,
    /// Contents of the objects that payloads refer to.
    pub(super) contents: &'a Contents<'a>,
    /// Whether there was a difference that is not compared.
    pub(super) skipped: bool,
}

impl<'a> ValueComparer<'a> {
    /// Starts at the whole record, compares everything, and treats no text as JSON.
    pub(super) fn new() -> ValueComparer<'a> {
        ValueComparer {
            path: "$".to_owned(),
            slice: None,
            left_out: Vec::new(),
            json_texts: &[],
            addresses: true,
            contents: &no_contents,
            skipped: false,
        }
    }

    /// Creates a comparer of two records of a kind.
    pub(super) fn with_rules(rules: &'static RecordRules) -> ValueComparer<'a> {
        let (json_texts, left_out) = (rules.json_texts, rules.not_compared.to_vec());
        ValueComparer { json_texts, left_out, addresses: false, ..ValueComparer::new() }
    }

    /// Compares the values one step further, such as `.name` or `[3]`.
    pub(super) fn at(
        &mut self,
        step: impl Display,
        compare: impl FnOnce(&mut Self) -> DifferenceFlow,
    ) -> DifferenceFlow {
        use std::fmt::Write as _;
        let len = self.path.len();
        // Writing into a `String` never fails.
        let _ = write!(self.path, "{step}");
        let found = compare(self);
        self.path.truncate(len);
        found
    }

    /// Reports a difference at the path, unless the path is excluded.
    pub(super) fn differ(
        &mut self,
        recorded: Option<Value>,
        produced: Option<Value>,
        note: Option<String>,
    ) -> DifferenceFlow {
        if self.left_out.iter().any(|pattern| covers(pattern, &self.path)) {
            self.skipped = true;
            return DifferenceFlow::Continue(());
        }
        let (slice, path) = (self.slice.clone(), self.path.clone());
        DifferenceFlow::Break(Difference { slice, path, recorded, produced, note })
    }

    /// Compares two values, one of which may be absent.
    pub(super) fn options(&mut self, old: Option<Value>, new: Option<Value>) -> DifferenceFlow {
        match (old, new) {
            (Some(old), Some(new)) => self.values(&old, &new),
            (None, None) => DifferenceFlow::Continue(()),
            (old, new) => self.differ(old, new, None),
        }
    }

    pub(super) fn values(&mut self, old: &Value, new: &Value) -> DifferenceFlow {
        match (old, new) {
            (Value::Map(old_pairs), Value::Map(new_pairs)) => {
                if is_reference(old_pairs) || is_reference(new_pairs) {
                    if identical(old, new) {
                        return DifferenceFlow::Continue(());
                    }
                    return self.differ(Some(old.clone()), Some(new.clone()), None);
                }
                self.maps(old_pairs, new_pairs)
            }
            (Value::Array(old), Value::Array(new)) => self.arrays(old, new),
            (Value::Str(old_text), Value::Str(new_text)) => {
                if old_text == new_text {
                    return DifferenceFlow::Continue(());
                }
                if !self.addresses && same_text(old_text, new_text) {
                    self.skipped = true;
                    return DifferenceFlow::Continue(());
                }
                self.json(old_text, new_text)?;
                self.differ(Some(old.clone()), Some(new.clone()), None)
            }
            (old, new) if identical(old, new) => DifferenceFlow::Continue(()),
            (old, new) => self.differ(Some(old.clone()), Some(new.clone()), note(old, new)),
        }
    }

    /// Compares two texts as JSON, if they are JSON.
    fn json(&mut self, old: &str, new: &str) -> DifferenceFlow {
        if !self.json_texts.iter().any(|pattern| covers(pattern, &self.path)) {
            return DifferenceFlow::Continue(());
        }
        let (Ok(old), Ok(new)) = (from_json(old), from_json(new)) else {
            return DifferenceFlow::Continue(());
        };
        // Strings inside a JSON text are not parsed as JSON again.
        let json_texts = std::mem::take(&mut self.json_texts);
        let found = self.values(&old, &new);
        self.json_texts = json_texts;
        found
    }

    fn arrays(&mut self, old: &[Value], new: &[Value]) -> DifferenceFlow {
        for (place, (old, new)) in old.iter().zip(new).enumerate() {
            self.at(format_args!("[{place}]"), |walk| walk.values(old, new))?;
        }
        for (place, old) in old.iter().enumerate().skip(new.len()) {
            self.at(format_args!("[{place}]"), |walk| walk.differ(Some(old.clone()), None, None))?;
        }
        for (place, new) in new.iter().enumerate().skip(old.len()) {
            self.at(format_args!("[{place}]"), |walk| walk.differ(None, Some(new.clone()), None))?;
        }
        DifferenceFlow::Continue(())
    }

    fn maps(&mut self, old: &[(Value, Value)], new: &[(Value, Value)]) -> DifferenceFlow {
        let same_keys =
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| identical(&old.0, &new.0));
        if same_keys {
            for ((key, old), (_, new)) in old.iter().zip(new) {
                self.at(key.path_step(), |walk| walk.values(old, new))?;
            }
            return DifferenceFlow::Continue(());
        }
        // A map of a hostile log may contain a key more than once: the n-th of each are paired.
        let mut places: BTreeMap<Vec<u8>, VecDeque<usize>> = BTreeMap::new();
        for (place, (key, _)) in new.iter().enumerate() {
            places.entry(key.encode()).or_default().push_back(place);
        }
        let mut common = Vec::new();
        for (key, old) in old {
            let place = places.get_mut(&key.encode()).and_then(VecDeque::pop_front);
            match place.and_then(|place| Some((place, new.get(place)?))) {
                None => self.at(key.path_step(), |walk| walk.differ(Some(old.clone()), None, None))?,
                Some((place, (_, new))) => {
                    common.push(place);
                    self.at(key.path_step(), |walk| walk.values(old, new))?;
                }
            }
        }
        for (_, (key, new)) in new
            .iter()
            .enumerate()
            .filter(|(place, (key, _))| places.get(&key.encode()).is_some_and(|left| left.contains(place)))
        {
            self.at(key.path_step(), |walk| walk.differ(None, Some(new.clone()), None))?;
        }
        if common.is_sorted() {
            return DifferenceFlow::Continue(());
        }
        let keys =
            |pairs: &[(Value, Value)]| Value::Array(pairs.iter().map(|(key, _)| key.clone()).collect());
        self.differ(Some(keys(old)), Some(keys(new)), Some("order of keys".to_owned()))
    }
}

/// Returns whether a map is the JSON form of a reference to an object.
fn is_reference(pairs: &[(Value, Value)]) -> bool {
    matches!(pairs, [(Value::Str(object), Value::Str(_)), (Value::Str(bytes), Value::Unsigned(_))]
        if object == "$object" && bytes == "bytes")
}

/// Returns whether two values are the same, floats bit by bit.
fn identical(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::F32(old), Value::F32(new)) => old.to_bits() == new.to_bits(),
        (Value::F64(old), Value::F64(new)) => old.to_bits() == new.to_bits(),
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| identical(old, new))
        }
        (Value::Map(old), Value::Map(new)) => {
            old.len() == new.len()
                && old
                    .iter()
                    .zip(new)
                    .all(|(old, new)| identical(&old.0, &new.0) && identical(&old.1, &new.1))
        }
        (old, new) => old == new,
    }
}

/// Returns the difference between two values that are not texts, if their JSON does not show it.
fn note(old: &Value, new: &Value) -> Option<String> {
    match (old, new) {
        (Value::F32(old), Value::F32(new)) if old.is_nan() && new.is_nan() => {
            Some(format!("no numbers, with the bits {:08x} and {:08x}", old.to_bits(), new.to_bits()))
        }
        (Value::F64(old), Value::F64(new)) if old.is_nan() && new.is_nan() => {
            Some(format!("no numbers, with the bits {:016x} and {:016x}", old.to_bits(), new.to_bits()))
        }
        _ => {
            let (old, new) = (form(old), form(new));
            (old != new).then(|| format!("{old} and {new}"))
        }
    }
}

fn form(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Bool(_) => "boolean",
        Value::Unsigned(_) | Value::Signed(_) => "integer",
        Value::F32(_) => "32-bit float",
        Value::F64(_) => "64-bit float",
        Value::Str(_) => "text",
        Value::Bin(_) => "byte string",
        Value::Ext(..) => "extension",
        Value::Array(_) => "array",
        Value::Map(_) => "map",
    }
}
