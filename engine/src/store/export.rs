//! Snapshot JSON: a session's slices for other tools, and back into a new session.
//!
//! ```json
//! {
//!   "version": "1",
//!   "created_at": "2026-01-02T03:04:05.000006+00:00",
//!   "parent_id": null,
//!   "children_ids": [],
//!   "tags": {"task_id": "7"},
//!   "policies": {"plan": "state", "tool_invoked": "log"},
//!   "slices": [{"slice_type": "plan", "item_type": "plan.step_added", "items": [{"title": "read"}]}]
//! }
//! ```
//!
//! Slices stand in the order of their names; empty ones are left out; times are ISO 8601 with offset. A slice
//! whose items were not all recorded at version 1 also holds `item_versions`, one for each item. An export that was
//! taken within tools' calls also holds `open_operations`, their names, and begins no session. What stands beside these
//! fields is passed over on reading.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, SecondsFormat};
use foldlog_codec::body::{Declare, Import, ImportedSlice, Payload, Policy, SliceDeclaration};
use foldlog_codec::escape;
use foldlog_codec::msgpack::Value;
use foldlog_codec::{Kind, OperationId, SequenceNumber};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{SessionOptions, Store};
use crate::audit::LogReader;
use crate::error::{Error, Result};
use crate::fold::names::Names;
use crate::session::{Session, Snapshot, State};
use crate::types::{Recorded, SessionTypes, Slice, ToolInvocations, check_payload, default_policy};

/// Items as they are recorded, each with its version.
type RecordedItems = Vec<(Vec<u8>, u32)>;

/// The version of the JSON form.
const VERSION: &str = "1";

/// A session's slices in a form that other tools read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Export {
    version: String,
    created_at: String,
    /// The session that it was forked from or begun for.
    pub parent_id: Option<Uuid>,
    /// The sessions that were forked from it or begun for it.
    #[serde(default)]
    pub children_ids: Vec<Uuid>,
    /// Its tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// The policy of each slice: `state`, `log` or `cache`.
    #[serde(default)]
    pub policies: BTreeMap<String, String>,
    /// The operations that were open when it was taken, so that half of what they did is in it: no session begins with
    /// such an export. Left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_operations: Vec<OperationId>,
    /// The slices in the order of their names, empty ones left out.
    pub slices: Vec<ExportedSlice>,
}

/// All of an export but its slices, for whoever writes these one by one.
pub(crate) struct ExportHead {
    export: Export,
}

impl ExportHead {
    pub(crate) fn new(
        created_at_us: i64,
        (parent_id, children_ids): (Option<Uuid>, Vec<Uuid>),
        tags: BTreeMap<String, String>,
        policies: BTreeMap<String, String>,
    ) -> Result<ExportHead> {
        let export = Export {
            version: VERSION.to_owned(),
            created_at: iso_8601(created_at_us)?,
            parent_id,
            children_ids,
            tags,
            policies,
            open_operations: Vec::new(),
            slices: Vec::new(),
        };
        Ok(ExportHead { export })
    }

    /// Of a moment at which these operations were open.
    pub(crate) fn within(mut self, open_operations: Vec<OperationId>) -> ExportHead {
        self.export.open_operations = open_operations;
        self
    }

    /// Writes the fields that stand before the slices, in the order in which [`Export`] has them.
    pub(crate) fn serialize_into<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Export { version, created_at, parent_id, children_ids, tags, policies, open_operations, .. } =
            &self.export;
        map.serialize_entry("version", version)?;
        map.serialize_entry("created_at", created_at)?;
        map.serialize_entry("parent_id", parent_id)?;
        map.serialize_entry("children_ids", children_ids)?;
        map.serialize_entry("tags", tags)?;
        map.serialize_entry("policies", policies)?;
        if !open_operations.is_empty() {
            map.serialize_entry("open_operations", open_operations)?;
        }
        Ok(())
    }
}

/// The versions of a slice's items; none where all are 1.
pub(crate) fn item_versions<I: Iterator<Item = u32>>(versions: impl Fn() -> I) -> Vec<u32> {
    if versions().all(|version| version == 1) { Vec::new() } else { versions().collect() }
}

/// One slice of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedSlice {
    /// The slice's name.
    pub slice_type: String,
    /// The name of its items' type.
    pub item_type: String,
    /// The items.
    pub items: Vec<Value>,
    /// The version that each item was recorded at; empty where all are 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub item_versions: Vec<u32>,
}

/// How an export is taken in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The new session.
    pub session: SessionOptions,
    /// Whether slices that the host did not declare are kept without types. Otherwise they are an error that
    /// names them all. Items of a slice `tool_invoked` that are not the engine's own
    /// [`ToolInvoked`](crate::ToolInvoked) are kept so too, in a slice `tool_invoked.imported`.
    pub keep_unknown: bool,
}

impl Export {
    fn of(state: &State, created_at_us: i64, policies: &BTreeSet<Policy>) -> Result<Export> {
        let ExportHead { mut export } =
            ExportHead::new(created_at_us, (None, Vec::new()), state.tags.clone(), BTreeMap::new())?
                .within(state.open_operations.clone());
        let wanted = |policy: Policy| policies.contains(&policy);
        for (name, slice) in state.slices.iter().filter(|(_, slice)| wanted(slice.policy)) {
            if slice.items.is_empty() {
                continue;
            }
            let items: Result<Vec<Value>> = slice.items.iter().map(|item| item.value()).collect();
            export.policies.insert(name.clone(), slice.policy.name().to_owned());
            export.slices.push(ExportedSlice {
                slice_type: name.clone(),
                item_type: slice.item.clone(),
                items: items?,
                item_versions: item_versions(|| slice.items.iter().map(|item| item.version)),
            });
        }
        Ok(export)
    }

    /// When it was taken, in microseconds since 1970-01-01 UTC.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] where that is no time of ISO 8601 with offset.
    pub fn created_at_us(&self) -> Result<i64> {
        DateTime::parse_from_rfc3339(&self.created_at)
            .map(|time| time.timestamp_micros())
            .map_err(|error| Error::Export(format!("created_at {:?}: {error}", self.created_at)))
    }

    /// The JSON text, on many lines, control characters and bidirectional marks [escaped](foldlog_codec::escape).
    ///
    /// # Errors
    ///
    /// [`Error::Export`] where a value has no JSON form.
    pub fn to_json(&self) -> Result<String> {
        let mut json = Vec::new();
        escape::write_json_pretty(&mut json, self).map_err(|error| Error::Export(error.to_string()))?;
        String::from_utf8(json).map_err(|error| Error::Export(error.to_string()))
    }

    /// An export from its JSON text.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] where the text is no export of version 1, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Export> {
        let bad = |reason: String| Err(Error::Export(reason));
        let export: Export = serde_json::from_str(text).map_err(|error| Error::Export(error.to_string()))?;
        if export.version != VERSION {
            return bad(format!("version {:?} is not {VERSION:?}", export.version));
        }
        export.created_at_us()?;
        let mut seen = BTreeSet::new();
        for slice in &export.slices {
            if !seen.insert(&slice.slice_type) {
                return bad(format!("slice `{}` stands twice", slice.slice_type));
            }
            if !slice.item_versions.is_empty() && slice.item_versions.len() != slice.items.len() {
                return bad(format!("slice `{}` has not as many versions as items", slice.slice_type));
            }
        }
        for (slice, policy) in &export.policies {
            if Policy::from_name(policy).is_none() {
                return bad(format!("slice `{slice}` has policy {policy:?}"));
            }
        }
        Ok(export)
    }
}

fn iso_8601(time_us: i64) -> Result<String> {
    DateTime::from_timestamp_micros(time_us)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::Micros, false))
        .ok_or_else(|| Error::Export(format!("{time_us} microseconds are in no calendar")))
}

impl Session {
    /// The session's slices as they are now, in a form that other tools read. CACHE slices are left out:
    /// they can be computed again.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] where a recorded item is no MessagePack, [`Error::Io`] where the store cannot be
    /// searched for children.
    pub fn export(&self) -> Result<Export> {
        let policies = BTreeSet::from([Policy::State, Policy::Log]);
        self.export_state(&self.state()?, self.now_us(), &policies)
    }

    /// The slices that a snapshot stands for, as they were when it was taken.
    ///
    /// # Errors
    ///
    /// As [`export`](Session::export); [`Error::NoSuchPosition`] where the log has no such snapshot.
    pub fn export_snapshot(&self, snapshot: &Snapshot) -> Result<Export> {
        let state = self.state_at(snapshot.position)?;
        self.export_state(&state, snapshot.time_us, &snapshot.policies)
    }

    /// The slices of these policies as they were at a position.
    ///
    /// # Errors
    ///
    /// As [`export`](Session::export); [`Error::NoSuchPosition`].
    pub fn export_at(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
    ) -> Result<Export> {
        let position = position.into();
        let mut time_us = 0;
        self.records(position, position, |record| {
            time_us = record.time_us;
            Ok(())
        })?;
        self.export_state(&self.state_at(position)?, time_us, policies)
    }

    fn export_state(&self, state: &State, time_us: i64, policies: &BTreeSet<Policy>) -> Result<Export> {
        let mut export = Export::of(state, time_us, policies)?;
        export.parent_id = self.parent().map(|parent| parent.session());
        export.children_ids = self.store().children(self.id())?;
        Ok(export)
    }
}

impl LogReader {
    /// The slices of these policies as they were at a position. A log may stand outside any store, so no
    /// children are named; who knows the store adds them.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`], [`Error::Decode`] where a recorded item is no MessagePack, or what reading
    /// says.
    pub fn export_at(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
    ) -> Result<Export> {
        let position = position.into();
        let state = self.state_at(position)?;
        let mut time_us = 0;
        self.records(position, position, |record| {
            time_us = record.time_us;
            Ok(())
        })?;
        let mut export = Export::of(&state, time_us, policies)?;
        export.parent_id = self.opened().parent.map(|parent| parent.session());
        Ok(export)
    }
}

impl Store {
    /// Begins a session with the slices of an export, LOG included. The tags of the export come first, those
    /// of the options over them.
    ///
    /// # Errors
    ///
    /// [`Error::SlicesNotRegistered`] naming all slices that the host did not declare, unless they are to be
    /// kept; [`Error::Export`] where operations were open when it was taken; [`Error::PolicyMismatch`],
    /// [`Error::Export`], [`Error::Decode`] or [`Error::NewerVersion`] where the host's types do not fit; else as
    /// [`create`](Store::create). No session is left behind.
    pub fn import(&self, export: &Export, types: &SessionTypes, options: ImportOptions) -> Result<Session> {
        if !export.open_operations.is_empty() {
            let open: Vec<String> = export.open_operations.iter().map(OperationId::to_string).collect();
            return Err(Error::Export(format!(
                "it was taken while operations {} were open",
                open.join(", ")
            )));
        }
        if options.keep_unknown
            && let Some(renamed) = with_foreign_calls_renamed(export, types)?
        {
            return self.import(&renamed, types, options);
        }
        let unknown: Vec<String> = export
            .slices
            .iter()
            .filter(|slice| types.slice(&slice.slice_type).is_none())
            .map(|slice| slice.slice_type.clone())
            .collect();
        if !unknown.is_empty() && !options.keep_unknown {
            return Err(Error::SlicesNotRegistered(unknown));
        }
        let mut declare = Declare::default();
        let mut recorded: Vec<(u32, RecordedItems)> = Vec::new();
        for (id, slice) in (0..).zip(&export.slices) {
            let name = slice.slice_type.clone();
            let stated = export.policies.get(&name).and_then(|policy| Policy::from_name(policy));
            let (policy, item) = match types.slice(&name) {
                Some(known) => {
                    if let Some(recorded) = stated.filter(|stated| *stated != known.policy) {
                        let declared = known.policy;
                        return Err(Error::PolicyMismatch { slice: name, declared, recorded });
                    }
                    (known.policy, known.item_name.to_owned())
                }
                None => (stated.unwrap_or_else(|| default_policy(&name)), slice.item_type.clone()),
            };
            recorded.push((id, import_items(types, slice)?));
            declare.slices.push(SliceDeclaration { id, name, policy, item });
        }
        Names::default().check_len(&declare)?;
        let references = self.import_large(&mut recorded);
        // The session's first record sets the tags of the options, and this one comes after it.
        let own = &options.session.tags;
        let tags = export.tags.iter().filter(|(key, _)| !own.contains_key(*key));
        let import = Import {
            from: export.parent_id,
            exported_at_us: Some(export.created_at_us()?),
            tags: tags.map(|(key, value)| (key.clone(), value.clone())).collect(),
            slices: recorded
                .iter()
                .map(|(slice, items)| ImportedSlice {
                    slice: *slice,
                    items: items.iter().map(|(bytes, version)| (Payload::new(bytes), *version)).collect(),
                })
                .collect(),
        };
        let body = import.encode();
        let rest = vec![(Kind::DECLARE, declare.encode()), (Kind::IMPORT, body)];
        self.begin(types, options.session, None, rest, &references)
    }

    /// Puts references in place of large items, and hands over the items.
    fn import_large(&self, recorded: &mut [(u32, RecordedItems)]) -> Vec<Vec<u8>> {
        let mut large = Vec::new();
        for (bytes, _) in recorded.iter_mut().flat_map(|(_, items)| items) {
            if bytes.len() as u64 > self.inner.options.object_bytes_min {
                let reference = foldlog_codec::body::ObjectId::of(bytes).reference();
                large.push(std::mem::replace(bytes, reference));
            }
        }
        large
    }
}

/// Where another program's slice of calls goes, whose name the engine's own has.
const FOREIGN_CALLS: &str = "tool_invoked.imported";

/// The export with its slice of calls under another name, where the items are not the engine's own.
fn with_foreign_calls_renamed(export: &Export, types: &SessionTypes) -> Result<Option<Export>> {
    let is_foreign = |slice: &&ExportedSlice| {
        slice.slice_type == ToolInvocations::NAME && import_items(types, slice).is_err()
    };
    if !export.slices.iter().any(|slice| is_foreign(&slice)) {
        return Ok(None);
    }
    let mut renamed = export.clone();
    for slice in &mut renamed.slices {
        if slice.slice_type == FOREIGN_CALLS {
            return Err(Error::Export(format!(
                "slice `{FOREIGN_CALLS}` stands beside calls that would be in it"
            )));
        }
        if slice.slice_type == ToolInvocations::NAME {
            FOREIGN_CALLS.clone_into(&mut slice.slice_type);
        }
    }
    let policy = renamed.policies.remove(ToolInvocations::NAME);
    let policy = policy.unwrap_or_else(|| default_policy(ToolInvocations::NAME).name().to_owned());
    renamed.policies.insert(FOREIGN_CALLS.to_owned(), policy);
    Ok(Some(renamed))
}

/// The items of a slice as they are recorded: through the host's type where it is known, so that they are
/// what the host itself would have written.
fn import_items(types: &SessionTypes, slice: &ExportedSlice) -> Result<RecordedItems> {
    let known = types.slice(&slice.slice_type);
    let version_at = |place: usize| slice.item_versions.get(place).copied().unwrap_or(1);
    slice
        .items
        .iter()
        .enumerate()
        .map(|(place, item)| {
            let (bytes, version) = (item.encode(), version_at(place));
            let Some(known) = known else {
                check_payload(&slice.slice_type, &bytes)?;
                return Ok((bytes, version));
            };
            // An item of an older version stays as it was recorded; reading it brings it up to date.
            if version != known.item_version {
                check_payload(&slice.slice_type, &bytes)?;
                (known.decoder.alone)(version, SequenceNumber::MIN, Recorded::Elsewhere(&bytes))?;
                return Ok((bytes, version));
            }
            Ok(((known.recode)(item)?, version))
        })
        .collect()
}
