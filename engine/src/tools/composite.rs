//! A position of the session together with a capture of each resource at that moment, and its JSON
//! form, from which another process can restore both.

use std::collections::BTreeMap;

use foldlog_codec::SequenceNumber;
use foldlog_codec::msgpack::Value;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use uuid::Uuid;

use super::captures::{CaptureSet, ResourceCapture};
use crate::error::{Error, Result};
use crate::session::Snapshot;
use crate::tools::resources::ResourceRegistry;

/// Names the moment of a composite snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotPhase {
    /// Before a tool ran.
    PreTool,
    /// After a tool ended.
    PostTool,
    /// For a host's checkpoint, such as one of tasks.
    Checkpoint,
    /// At the request of the host.
    #[default]
    Manual,
}

/// Describes the reason of a composite snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMetadata {
    /// Name that the host chose for the snapshot; for a snapshot of a [store of
    /// checkpoints](crate::tools::CheckpointStore), `pre:` or `post:` and the call's id.
    pub tag: Option<String>,
    /// Provider's id of the call that the snapshot relates to.
    pub tool_call_id: Option<SmolStr>,
    /// Name of that call's tool.
    pub tool_name: Option<SmolStr>,
    /// Moment of the snapshot.
    pub phase: SnapshotPhase,
}

/// Contains a position of the session, and a capture of each resource at that position.
///
/// [`ExecutionState::snapshot`](crate::ExecutionState::snapshot) creates one, and
/// [`ExecutionState::restore`](crate::ExecutionState::restore) restores the session and the
/// resources to it.
#[derive(Clone)]
pub struct CompositeSnapshot {
    /// Id of the snapshot: a hash of its session, position, phase and recorded captures.
    pub id: Uuid,
    /// Time of the snapshot, in microseconds since 1970-01-01 UTC.
    pub created_at_us: i64,
    /// Position of the session.
    pub session: Snapshot,
    /// Reason of the snapshot.
    pub metadata: SnapshotMetadata,
    resources: CaptureSet,
}

impl std::fmt::Debug for CompositeSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompositeSnapshot")
            .field("session", &self.session)
            .field("resources", &self.resource_names())
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// JSON form of a composite snapshot.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: String,
    snapshot_id: Uuid,
    created_at: String,
    session: Position,
    /// Recorded form of each resource's capture; null if the capture does not outlive its process.
    resources: BTreeMap<String, Option<Value>>,
    /// Names of the resources whose captures are not included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
    metadata: SnapshotMetadata,
}

/// JSON form of the session's part of a composite snapshot.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    session_id: Uuid,
    position: SequenceNumber,
    created_at: String,
    tag: Option<String>,
    policies: Vec<String>,
}

/// Version of the JSON form.
const VERSION: &str = "1";

impl CompositeSnapshot {
    pub(super) fn new(
        session: Snapshot,
        created_at_us: i64,
        resources: CaptureSet,
        metadata: SnapshotMetadata,
    ) -> CompositeSnapshot {
        let id = Self::name_of(&session, &resources, metadata.phase)
            .as_bytes()
            .first_chunk()
            .map_or(Uuid::nil(), |bytes| uuid::Builder::from_custom_bytes(*bytes).into_uuid());
        CompositeSnapshot { id, created_at_us, session, metadata, resources }
    }

    /// Returns a hash of the session, the position, the phase and the recorded captures, from which
    /// the id is derived. Runs of one seed therefore give equal ids, while other resources or
    /// phases give different ids.
    fn name_of(session: &Snapshot, resources: &CaptureSet, phase: SnapshotPhase) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut whole = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        whole(session.session.as_bytes());
        whole(&session.position.to_le_bytes());
        whole(match phase {
            SnapshotPhase::PreTool => b"pre",
            SnapshotPhase::PostTool => b"post",
            SnapshotPhase::Checkpoint => b"checkpoint",
            SnapshotPhase::Manual => b"manual",
        });
        for captured in resources.of_each.iter() {
            whole(captured.name.as_bytes());
            // A value has at least one byte, so zero bytes represent a missing value.
            whole(captured.recorded.as_deref().unwrap_or_default());
        }
        hasher.finalize()
    }

    /// Returns the names of the captured resources, in ascending order.
    pub fn resource_names(&self) -> Vec<&str> {
        self.resources.of_each.iter().map(|captured| captured.name.as_ref()).collect()
    }

    /// Returns the captures by resource name, in the form that the resources recorded. A capture is
    /// `None` if it was lost with its process.
    pub fn recorded_captures(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let recorded = |captured: &ResourceCapture| captured.recorded.as_deref().map(<[u8]>::to_vec);
        self.resources.of_each.iter().map(|one| (one.name.clone().into_owned(), recorded(one))).collect()
    }

    /// Returns the captures, ready to be restored. Fails if this run lacks one of the resources, or
    /// if a capture was lost with its process.
    pub(super) fn captures(&self, resources: &ResourceRegistry) -> Result<CaptureSet> {
        self.resources.decode_recorded(resources, false)
    }

    /// Returns whether both snapshots contain the same state of each resource in `resources` that
    /// is rolled back with a failed tool.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] if `resources` lacks a resource of either snapshot, or if a
    /// capture was lost with its process. The resource's error, such as [`Error::Resource`], if
    /// decoding a capture fails.
    pub fn has_same_resources(
        &self,
        other: &CompositeSnapshot,
        resources: &ResourceRegistry,
    ) -> Result<bool> {
        Ok(self.captures(resources)?.is_same(&other.captures(resources)?, resources))
    }

    /// Returns the names of the resources whose captures are only in memory, such as those of an
    /// [`InMemoryFilesystem`](foldlog_filesystem::InMemoryFilesystem). The snapshot can be restored
    /// in this process, but not from its JSON.
    pub fn left_out(&self) -> Vec<&str> {
        let left_out = self.resources.of_each.iter().filter(|captured| captured.recorded.is_none());
        left_out.map(|captured| captured.name.as_ref()).collect()
    }

    /// Returns the snapshot as JSON. [`from_json`](CompositeSnapshot::from_json) reads it as a
    /// snapshot that another process can restore, if the captures of all its resources outlive
    /// their process.
    ///
    /// The JSON contains the session's id and position, whose items are in the log, and the
    /// captures in their recorded form. It lists the captures that it [leaves
    /// out](CompositeSnapshot::left_out).
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if the recorded form of a capture has no JSON form.
    pub fn to_json(&self) -> Result<String> {
        let bad = |error: &dyn std::fmt::Display| Error::Export(error.to_string());
        let mut resources = BTreeMap::new();
        for captured in self.resources.of_each.iter() {
            let value = captured.recorded.as_deref().map(Value::decode).transpose();
            resources.insert(captured.name.clone().into_owned(), value.map_err(|error| bad(&error))?);
        }
        let time = foldlog_codec::record::time_text;
        let document = Document {
            version: VERSION.to_owned(),
            snapshot_id: self.id,
            created_at: time(self.created_at_us),
            session: Position {
                session_id: self.session.session,
                position: self.session.position,
                created_at: time(self.session.time_us),
                tag: self.session.tag.clone(),
                policies: self.session.policies.iter().map(|policy| policy.name().to_owned()).collect(),
            },
            resources,
            left_out: self.left_out().into_iter().map(str::to_owned).collect(),
            metadata: self.metadata.clone(),
        };
        serde_json::to_string(&document).map_err(|error| bad(&error))
    }

    /// Reads a snapshot from the JSON of [`to_json`](CompositeSnapshot::to_json).
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if the text is not such JSON, is of another version, names an unknown
    /// policy, or contains a capture that it lists as left out.
    pub fn from_json(json: &str) -> Result<CompositeSnapshot> {
        let bad = |reason: String| Error::Export(reason);
        let document: Document = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
        if document.version != VERSION {
            return Err(bad(format!("the version is {}, not {VERSION}", document.version)));
        }
        let contained = |name: &&String| document.resources.get(*name).is_none_or(Option::is_some);
        if let Some(name) = document.left_out.iter().find(contained) {
            return Err(bad(format!("`left_out` names resource `{name}`, whose capture is not null")));
        }
        let time = |text: &str| {
            let time = chrono::DateTime::parse_from_rfc3339(text);
            time.map(|time| time.timestamp_micros()).map_err(|error| bad(format!("{text}: {error}")))
        };
        let policy = |name: &String| {
            crate::Policy::from_name(name).ok_or_else(|| bad(format!("unknown policy `{name}`")))
        };
        let Position { session_id, position, created_at, tag, policies } = &document.session;
        let session = Snapshot {
            session: *session_id,
            position: *position,
            time_us: time(created_at)?,
            tag: tag.clone(),
            policies: policies.iter().map(policy).collect::<Result<_>>()?,
        };
        let resources = document.resources.into_iter();
        let resources = resources.map(|(name, value)| (name, value.map(|value| value.encode()))).collect();
        Ok(CompositeSnapshot {
            id: document.snapshot_id,
            created_at_us: time(&document.created_at)?,
            session,
            metadata: document.metadata,
            resources: CaptureSet::from_recorded(resources),
        })
    }
}
