use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Payload, ResourceSnapshot};
use foldlog_codec::msgpack::{self, Limits, Value};
use foldlog_filesystem::Unrestored;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use uuid::Uuid;

use crate::error::panic_message;
use crate::error::{Error, Result};
use crate::operation::NotUndone;
use crate::session::Snapshot;
use crate::tools::resources::{
    AnyResource, AnySnapshot, BudgetTracker, CaptureOptions, ResourceRegistry, Snapshotable,
};

/// When a composite snapshot was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before a tool ran.
    PreTool,
    /// After a tool had ended.
    PostTool,
    /// By whoever keeps checkpoints.
    Checkpoint,
    /// Because the host asked for it.
    #[default]
    Manual,
}

/// Why a composite snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMetadata {
    /// What the host calls it.
    pub tag: Option<String>,
    /// The provider's name for the call that it stands beside.
    pub tool_call_id: Option<SmolStr>,
    /// The tool of that call.
    pub tool_name: Option<SmolStr>,
    /// When.
    pub phase: Phase,
}

/// What one resource was. Cheap to clone.
#[derive(Clone)]
struct Captured {
    /// The resource's name.
    name: Cow<'static, str>,
    /// `None` where it came from outside this process.
    snapshot: Option<AnySnapshot>,
    /// One MessagePack value; `None` where the resource does not outlive its process.
    recorded: Option<Arc<[u8]>>,
}

impl Captured {
    /// Whether the resource says that it is so still.
    fn is_unchanged(&self, resource: &dyn AnyResource) -> bool {
        self.snapshot.as_ref().is_some_and(|since| resource.is_unchanged(since))
    }
}

/// What the resources were, in ascending order of their names. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Captures {
    of_each: Arc<Vec<Captured>>,
}

impl FromIterator<Captured> for Captures {
    fn from_iter<T: IntoIterator<Item = Captured>>(captured: T) -> Captures {
        Captures { of_each: Arc::new(captured.into_iter().collect()) }
    }
}

/// What each of so many resources may record, so that the one record that holds them all can be read.
fn limits_of_each(resources: usize) -> Limits {
    let Limits { depth_max, items_max } = Limits::of_payload();
    let resources = u64::try_from(resources.max(1)).unwrap_or(u64::MAX);
    Limits { depth_max, items_max: items_max / resources }
}

/// Bytes that are no single value would make the log unreadable from the record on that holds them.
fn check_recorded(name: &str, recorded: &[u8], limits: Limits) -> Result<()> {
    let refused = |reason: String| {
        let reason = format!("what it recorded cannot stand in a log: {reason}");
        Err(Error::Resource { resource: name.to_owned(), reason })
    };
    match msgpack::scan(recorded, limits) {
        Ok(end) if end != recorded.len() => refused(format!("bytes follow the value at {end}")),
        Ok(_) if Payload::new(recorded).object().is_some() => {
            refused("extension type 1 is kept for references to objects".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => refused(error.to_string()),
    }
}

impl Captures {
    /// Captures every resource as it is. What says that it is as it was when `latest` was captured is not captured anew.
    pub(super) fn of(
        resources: &ResourceRegistry,
        options: &CaptureOptions<'_>,
        latest: &Captures,
    ) -> Result<Captures> {
        let limits = limits_of_each(resources.captured().len());
        let captured = resources.captured().iter().map(|(name, resource)| {
            if let Some(unchanged) = latest.unchanged(name, resource.as_ref()) {
                return Ok(unchanged.clone());
            }
            let snapshot = resource.snapshot(options)?;
            let recorded = resource.record(&snapshot)?;
            if let Some(recorded) = &recorded {
                check_recorded(name, recorded, limits)?;
            }
            let recorded = recorded.map(Arc::from);
            Ok(Captured { name: name.clone(), snapshot: Some(snapshot), recorded })
        });
        captured.collect()
    }

    /// Whether every resource says that it is as it was when this was captured.
    pub(super) fn are_all(&self, resources: &ResourceRegistry) -> bool {
        // Both in ascending order of the names.
        let mut pairs = self.of_each.iter().zip(resources.captured());
        self.of_each.len() == resources.captured().len()
            && pairs.all(|(captured, (name, resource))| {
                captured.name == *name && captured.is_unchanged(resource.as_ref())
            })
    }

    /// What was captured of a resource, where that says that it is so still.
    fn unchanged(&self, name: &str, resource: &dyn AnyResource) -> Option<&Captured> {
        self.get(name).filter(|captured| captured.is_unchanged(resource))
    }

    /// What a record says of the resources.
    pub(crate) fn recorded(snapshots: BTreeMap<String, Option<Vec<u8>>>) -> Captures {
        let captured = |(name, recorded): (String, Option<Vec<u8>>)| Captured {
            name: Cow::Owned(name),
            snapshot: None,
            recorded: recorded.map(Arc::from),
        };
        snapshots.into_iter().map(captured).collect()
    }

    fn get(&self, name: &str) -> Option<&Captured> {
        self.of_each.iter().find(|captured| captured.name == name)
    }

    /// As a record says it.
    pub(crate) fn to_record(&self) -> Vec<ResourceSnapshot<'_>> {
        let of_each = self.of_each.iter();
        of_each
            .map(|captured| ResourceSnapshot {
                resource: Cow::Borrowed(&captured.name),
                snapshot: captured.recorded.as_deref().map(Payload::new),
            })
            .collect()
    }

    /// The same with what only a record says of a resource read back. Where `lenient`, this is for taking back what tools
    /// did: resources that do not go back with them are left out, and so are those whose captures do not outlive their
    /// process. Else these are an error, where there is nothing to restore.
    pub(crate) fn recalled(&self, resources: &ResourceRegistry, lenient: bool) -> Result<Captures> {
        let mut recalled = Vec::new();
        for captured in self.of_each.iter() {
            let name = &captured.name;
            let mismatch =
                |reason: &str| Err(Error::SnapshotMismatch(format!("resource `{name}`: {reason}")));
            let Some(resource) = resources.captured().get(name) else {
                // A record does not say which resources go back. Of those whose captures outlive their process the
                // engine's own budget alone is known not to.
                if lenient && (captured.recorded.is_none() || name == BudgetTracker::NAME) {
                    continue;
                }
                return mismatch("this run has none of that name");
            };
            if lenient && !resource.rolls_back() {
                continue;
            }
            let snapshot = match (&captured.snapshot, &captured.recorded) {
                (Some(snapshot), _) => Arc::clone(snapshot),
                (None, Some(recorded)) => resource.recall(recorded)?,
                (None, None) if lenient => continue,
                (None, None) => return mismatch("what it was did not outlive its process"),
            };
            let recorded = captured.recorded.clone();
            recalled.push(Captured { name: name.clone(), snapshot: Some(snapshot), recorded });
        }
        Ok(recalled.into_iter().collect())
    }

    /// Brings the resources back to this: all of them, or those alone that a failed tool takes back with it. Where one
    /// cannot be brought back the others are. Tells what of them is not as it was all the same.
    /// With `durable` what that changed is synced.
    pub(crate) fn restore(
        &self,
        resources: &ResourceRegistry,
        all: bool,
        durable: bool,
    ) -> Result<Vec<NotUndone>> {
        self.each(resources, all, |resource, snapshot| {
            let told = resource.restore(snapshot)?;
            if durable {
                resource.sync_restored()?;
            }
            Ok(told)
        })
    }

    /// Whether the resources that a failed tool takes back with it would all be restored, as far as that is known without
    /// changing any.
    pub(crate) fn check(&self, resources: &ResourceRegistry) -> Result<()> {
        let check = |resource: &dyn AnyResource, snapshot: &_| resource.check(snapshot).map(|()| Vec::new());
        self.each(resources, false, check).map(drop)
    }

    fn each(
        &self,
        resources: &ResourceRegistry,
        all: bool,
        act: impl Fn(&dyn AnyResource, &AnySnapshot) -> Result<Vec<Unrestored>>,
    ) -> Result<Vec<NotUndone>> {
        let (mut restored, mut failed, mut not_undone) = (Vec::new(), Vec::new(), Vec::new());
        for captured in self.of_each.iter() {
            let name = &captured.name;
            let Some(resource) = resources.captured().get(name) else { continue };
            let Some(snapshot) = captured.snapshot.as_ref().filter(|_| all || resource.rolls_back()) else {
                continue;
            };
            // A host's resource may panic; the others are restored all the same.
            let restored_one = catch_unwind(AssertUnwindSafe(|| act(resource.as_ref(), snapshot)));
            let restored_one = restored_one.unwrap_or_else(|panic| {
                let reason = format!("panicked: {}", panic_message(&*panic));
                Err(Error::Resource { resource: name.clone().into_owned(), reason })
            });
            match restored_one {
                Ok(told) => {
                    restored.push(name.clone().into_owned());
                    not_undone.extend(NotUndone::of_resource(name, told));
                }
                Err(error) => failed.push((name.clone().into_owned(), Arc::new(error))),
            }
        }
        if failed.is_empty() { Ok(not_undone) } else { Err(Error::RestoreFailed { restored, failed }) }
    }

    /// Whether the resources that roll back were the same both times.
    fn is_same(&self, other: &Captures, resources: &ResourceRegistry) -> bool {
        resources.captured().iter().filter(|(_, resource)| resource.rolls_back()).all(|(name, resource)| {
            let snapshot = |captures: &Captures| captures.get(name)?.snapshot.clone();
            match (snapshot(self), snapshot(other)) {
                (Some(one), Some(other)) => resource.is_same(&one, &other),
                (one, other) => one.is_none() && other.is_none(),
            }
        })
    }
}

/// A position of the session, and what each resource was then.
#[derive(Clone)]
pub struct CompositeSnapshot {
    /// Its name.
    pub id: Uuid,
    /// When it was taken, in microseconds since 1970-01-01 UTC.
    pub created_at_us: i64,
    /// The position of the session.
    pub session: Snapshot,
    /// Why it was taken.
    pub metadata: SnapshotMetadata,
    resources: Captures,
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

/// The JSON form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: String,
    snapshot_id: Uuid,
    created_at: String,
    session: Position,
    /// What each resource recorded of itself; null where it does not outlive its process.
    resources: BTreeMap<String, Option<Value>>,
    metadata: SnapshotMetadata,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    session_id: Uuid,
    position: SequenceNumber,
    created_at: String,
    tag: Option<String>,
    policies: Vec<String>,
}

const VERSION: &str = "1";

impl CompositeSnapshot {
    pub(super) fn new(
        session: Snapshot,
        created_at_us: i64,
        resources: Captures,
        metadata: SnapshotMetadata,
    ) -> CompositeSnapshot {
        let id = Self::name_of(&session, &resources, metadata.phase)
            .as_bytes()
            .first_chunk()
            .map_or(Uuid::nil(), |bytes| uuid::Builder::from_custom_bytes(*bytes).into_uuid());
        CompositeSnapshot { id, created_at_us, session, metadata, resources }
    }

    /// A hash of what it is of, so that one seed gives one name, and other resources or another side of a call another.
    fn name_of(session: &Snapshot, resources: &Captures, phase: Phase) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut whole = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        whole(session.session.as_bytes());
        whole(&session.position.to_le_bytes());
        whole(match phase {
            Phase::PreTool => b"pre",
            Phase::PostTool => b"post",
            Phase::Checkpoint => b"checkpoint",
            Phase::Manual => b"manual",
        });
        for captured in resources.of_each.iter() {
            whole(captured.name.as_bytes());
            // No value is of no bytes.
            whole(captured.recorded.as_deref().unwrap_or_default());
        }
        hasher.finalize()
    }

    /// The names of the resources that it holds, in ascending order.
    pub fn resource_names(&self) -> Vec<&str> {
        self.resources.of_each.iter().map(|captured| captured.name.as_ref()).collect()
    }

    /// What the resources were, all of which this run must have and be able to have back.
    pub(super) fn captures(&self, resources: &ResourceRegistry) -> Result<Captures> {
        self.resources.recalled(resources, false)
    }

    /// Whether the resources that roll back were the same in both snapshots.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] where one of them does not fit the run.
    pub fn has_same_resources(
        &self,
        other: &CompositeSnapshot,
        resources: &ResourceRegistry,
    ) -> Result<bool> {
        Ok(self.captures(resources)?.is_same(&other.captures(resources)?, resources))
    }

    /// The JSON form, from which [`from_json`](CompositeSnapshot::from_json) makes a snapshot that another process can
    /// restore, for all resources that outlive their process.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] where what a resource recorded has no JSON form.
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
            metadata: self.metadata.clone(),
        };
        serde_json::to_string(&document).map_err(|error| bad(&error))
    }

    /// A snapshot from its JSON form.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] where it is none.
    pub fn from_json(json: &str) -> Result<CompositeSnapshot> {
        let bad = |reason: String| Error::Export(reason);
        let document: Document = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
        if document.version != VERSION {
            return Err(bad(format!("version {} is not {VERSION}", document.version)));
        }
        let time = |text: &str| {
            let time = chrono::DateTime::parse_from_rfc3339(text);
            time.map(|time| time.timestamp_micros()).map_err(|error| bad(format!("{text}: {error}")))
        };
        let policy = |name: &String| {
            crate::Policy::from_name(name).ok_or_else(|| bad(format!("policy `{name}` is not known")))
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
            resources: Captures::recorded(resources),
        })
    }
}
