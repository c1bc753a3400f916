//! Snapshot JSON: the slices of a session in a form for other tools, which a new session can
//! import.
//!
//! ```json
//! {
//!   "version": "1",
//!   "created_at": "2026-01-02T03:04:05.000006+00:00",
//!   "values": "exact",
//!   "parent_id": null,
//!   "children_ids": [],
//!   "tags": {"task_id": "7"},
//!   "policies": {"plan": "state", "tool_invoked": "log"},
//!   "slices": [{"slice_type": "plan", "item_type": "plan.step_added", "items": [{"title": "read"}]}]
//! }
//! ```
//!
//! With `"values": "exact"`, which every export has, each item is in its [JSON
//! form](foldlog_codec::msgpack#json-forms): an import reads exactly the recorded value. Documents
//! of other programs may lack the field. Their items are plain JSON, read as serde reads JSON: a
//! `Uuid` is text, and so is a map's integer key.
//!
//! Slices are sorted by name, without empty ones. Times are ISO 8601 with offset. If some items of
//! a slice were not recorded at version 1, the slice also has `item_versions`, one for each item.
//! An export taken within tool calls also has `open_operations`, their operation ids, and cannot be
//! imported. The same applies to one taken while calls were suspended, with `suspended_operations`.
//! Reading ignores all other fields.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, SecondsFormat};
use foldlog_codec::OperationId;
use foldlog_codec::body::Policy;
use foldlog_codec::escape;
use foldlog_codec::msgpack::Value;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};

/// Version of the JSON form.
const VERSION: &str = "1";

/// Content of the field `values` if each item is in its JSON form.
const EXACT: &str = "exact";

/// Contains the slices of a session, as in snapshot JSON.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Export {
    pub(crate) version: String,
    pub(crate) created_at: String,
    /// [`EXACT`]; `None` if the items are plain JSON of another program, which has no values beyond
    /// JSON's.
    #[serde(default)]
    pub(crate) values: Option<String>,
    /// Session that the exported one was forked from or created for.
    pub parent_id: Option<Uuid>,
    /// Sessions that were forked from the exported one or created for it.
    #[serde(default)]
    pub children_ids: Vec<Uuid>,
    /// Tags of the session.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Policy of each slice by the slice's name: `state`, `log` or `cache`.
    #[serde(default)]
    pub policies: BTreeMap<String, String>,
    /// Operations that were open when the export was taken. The slices may contain half of their
    /// changes, so an export with open operations cannot be imported. Left out of the JSON if
    /// empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_operations: Vec<OperationId>,
    /// Operations that were suspended when the export was taken. Their answers would find no call
    /// in another session, so such an export cannot be imported. Left out of the JSON if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended_operations: Vec<OperationId>,
    /// Slices in the order of their names, without the empty ones.
    pub slices: Vec<ExportedSlice>,
}

/// Returns the versions of a slice's items; empty if all are 1.
pub(crate) fn item_versions<I: Iterator<Item = u32>>(versions: impl Fn() -> I) -> Vec<u32> {
    if versions().all(|version| version == 1) { Vec::new() } else { versions().collect() }
}

/// Serializes a slice of an export.
#[derive(Serialize)]
pub(crate) struct WrittenSlice<'a, I> {
    pub(crate) slice_type: &'a str,
    pub(crate) item_type: &'a str,
    pub(crate) items: I,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub(crate) item_versions: Cow<'a, [u32]>,
}

impl Serialize for Export {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.serialize_head(&mut map)?;
        let plain = |slice| ExportedSlice::written(slice, &slice.items);
        match self.is_exact() {
            true => map.serialize_entry(
                "slices",
                &self.slices.iter().map(ExportedSlice::exact).collect::<Vec<_>>(),
            )?,
            false => map.serialize_entry("slices", &self.slices.iter().map(plain).collect::<Vec<_>>())?,
        }
        map.end()
    }
}

/// Contains one slice of an export.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExportedSlice {
    /// Name of the slice.
    pub slice_type: String,
    /// Name of the type of its items.
    pub item_type: String,
    /// Items in the slice's order: the recorded values, or plain JSON of another program.
    pub items: Vec<Value>,
    /// Version that each item was recorded at. Empty if all are 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub item_versions: Vec<u32>,
}

impl ExportedSlice {
    /// Returns the slice for serialization, each item in its JSON form.
    pub(crate) fn exact(&self) -> impl Serialize + '_ {
        self.written(self.items.iter().map(Value::json_form).collect::<Vec<_>>())
    }

    fn written<I>(&self, items: I) -> WrittenSlice<'_, I> {
        let ExportedSlice { slice_type, item_type, item_versions, .. } = self;
        WrittenSlice { slice_type, item_type, items, item_versions: item_versions.into() }
    }

    /// Replaces the JSON form of each item by its value.
    fn read_exact(&mut self) -> Result<()> {
        for (place, item) in self.items.iter_mut().enumerate() {
            *item = std::mem::take(item).into_exact().map_err(|error| {
                Error::Export(format!("item {place} of slice `{}`: {error}", self.slice_type))
            })?;
        }
        Ok(())
    }
}

impl Export {
    /// Creates an export without slices.
    pub(crate) fn new(created_at_us: i64) -> Result<Export> {
        Ok(Export {
            version: VERSION.to_owned(),
            created_at: iso_8601(created_at_us)?,
            values: Some(EXACT.to_owned()),
            ..Export::default()
        })
    }

    /// Returns whether the items are the recorded values, rather than plain JSON of another
    /// program.
    pub(crate) fn is_exact(&self) -> bool {
        self.values.is_some()
    }

    pub(crate) fn serialize_head<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("version", &self.version)?;
        map.serialize_entry("created_at", &self.created_at)?;
        if let Some(values) = &self.values {
            map.serialize_entry("values", values)?;
        }
        map.serialize_entry("parent_id", &self.parent_id)?;
        map.serialize_entry("children_ids", &self.children_ids)?;
        map.serialize_entry("tags", &self.tags)?;
        map.serialize_entry("policies", &self.policies)?;
        if !self.open_operations.is_empty() {
            map.serialize_entry("open_operations", &self.open_operations)?;
        }
        if !self.suspended_operations.is_empty() {
            map.serialize_entry("suspended_operations", &self.suspended_operations)?;
        }
        Ok(())
    }

    /// Returns the time of the export, in microseconds since 1970-01-01 UTC.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if `created_at` is not an ISO 8601 time with offset.
    pub fn created_at_us(&self) -> Result<i64> {
        DateTime::parse_from_rfc3339(&self.created_at)
            .map(|time| time.timestamp_micros())
            .map_err(|error| Error::Export(format!("created_at {:?}: {error}", self.created_at)))
    }

    /// Writes the export as indented JSON text, with control characters and bidirectional marks
    /// [escaped](foldlog_codec::escape).
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if a value has no JSON form.
    pub fn to_json(&self) -> Result<String> {
        let mut json = Vec::new();
        escape::write_json_pretty(&mut json, self).map_err(|error| Error::Export(error.to_string()))?;
        String::from_utf8(json).map_err(|error| Error::Export(error.to_string()))
    }

    /// Reads an export from JSON text.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if the text is not JSON of this form, its version is not 1, `created_at`
    /// is not a time, a slice occurs twice, the numbers of a slice's items and versions differ, a
    /// policy is unknown, or, with `"values": "exact"`, an item is not the JSON form of a value.
    pub fn from_json(text: &str) -> Result<Export> {
        let bad = |reason: String| Err(Error::Export(reason));
        let mut export: Export =
            serde_json::from_str(text).map_err(|error| Error::Export(error.to_string()))?;
        if export.version != VERSION {
            return bad(format!("the version is {:?}, not {VERSION:?}", export.version));
        }
        export.created_at_us()?;
        let mut seen = BTreeSet::new();
        for slice in &export.slices {
            if !seen.insert(&slice.slice_type) {
                return bad(format!("slice `{}` occurs twice", slice.slice_type));
            }
            if !slice.item_versions.is_empty() && slice.item_versions.len() != slice.items.len() {
                return bad(format!(
                    "slice `{}` has {} items, but {} versions",
                    slice.slice_type,
                    slice.items.len(),
                    slice.item_versions.len()
                ));
            }
        }
        for (slice, policy) in &export.policies {
            if Policy::from_name(policy).is_none() {
                return bad(format!("slice `{slice}` has the unknown policy {policy:?}"));
            }
        }
        match export.values.as_deref() {
            None => {}
            Some(EXACT) => export.slices.iter_mut().try_for_each(ExportedSlice::read_exact)?,
            Some(other) => return bad(format!("`values` is {other:?}, not {EXACT:?}")),
        }
        Ok(export)
    }
}

fn iso_8601(time_us: i64) -> Result<String> {
    DateTime::from_timestamp_micros(time_us)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::Micros, false))
        .ok_or_else(|| Error::Export(format!("{time_us} microseconds since 1970 are not a valid date")))
}
