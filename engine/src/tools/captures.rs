//! Captures of all resources of a run, and their restore.
//!
//! A [`CaptureSet`] contains the state of each resource at one moment. [`CompositeSnapshot`] adds
//! the position of the session at that moment, and has a JSON form from which another process can
//! restore both.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::{Payload, ResourceSnapshot};
use foldlog_codec::msgpack::{self, Value, ValueLimits};
use foldlog_codec::{OperationId, SequenceNumber};
use foldlog_filesystem::{ChangeKind, FileRewound, FileUnknown, KeptFile, UnrestoredPath};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use uuid::Uuid;

use crate::error::{Error, Result, catch_panic};
use crate::operation::{NotUndone, PutBack, ReplacedContent};
use crate::session::Snapshot;
use crate::session::operation_records::RecordedCaptures;
use crate::tools::resources::{
    AnyResource, AnySnapshot, BudgetTracker, CaptureOptions, ResourceRegistry, RestoreReport, RewindRequest,
    Rewound, Snapshotable,
};

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

/// Capture of one resource. Clones are cheap.
#[derive(Clone)]
struct ResourceCapture {
    name: Cow<'static, str>,
    /// Capture as the resource created it; `None` if only its recorded form was read.
    snapshot: Option<AnySnapshot>,
    /// Recorded form, one MessagePack value; `None` if the capture does not outlive its process.
    recorded: Option<Arc<[u8]>>,
}

impl ResourceCapture {
    fn capture(
        name: Cow<'static, str>,
        resource: &dyn AnyResource,
        options: &CaptureOptions<'_>,
        limits: ValueLimits,
    ) -> Result<ResourceCapture> {
        let snapshot = resource.snapshot(options)?;
        let recorded = resource.record(&snapshot)?;
        if let Some(recorded) = &recorded {
            check_recorded(&name, recorded, limits)?;
        }
        let recorded = recorded.map(Arc::from);
        Ok(ResourceCapture { name, snapshot: Some(snapshot), recorded })
    }

    /// Returns whether the resource reports that it has not changed since the capture.
    fn is_unchanged(&self, resource: &dyn AnyResource) -> bool {
        self.snapshot.as_ref().is_some_and(|since| resource.is_unchanged(since))
    }
}

/// Captures of all resources at one moment. Clones are cheap.
#[derive(Clone, Default)]
pub(crate) struct CaptureSet {
    /// Captures in ascending order of the resources' names.
    of_each: Arc<Vec<ResourceCapture>>,
    /// Operation that a restore of these captures undoes; `None` if it undoes no call.
    undoes: Option<OperationId>,
}

impl FromIterator<ResourceCapture> for CaptureSet {
    fn from_iter<T: IntoIterator<Item = ResourceCapture>>(captured: T) -> CaptureSet {
        CaptureSet { of_each: Arc::new(captured.into_iter().collect()), undoes: None }
    }
}

/// Returns the limits of one resource's recorded form, so that a record with the captures of all
/// `resources` can be read.
fn limits_of_each(resources: usize) -> ValueLimits {
    let ValueLimits { depth_max, items_max } = ValueLimits::of_payload();
    let resources = u64::try_from(resources.max(1)).unwrap_or(u64::MAX);
    ValueLimits { depth_max, items_max: items_max / resources }
}

/// Checks that a resource's recorded form is one MessagePack value within the limits. Other bytes
/// would make the log unreadable from their record on.
fn check_recorded(name: &str, recorded: &[u8], limits: ValueLimits) -> Result<()> {
    let refused = |reason: String| {
        let reason = format!("its recorded form cannot be written to a log: {reason}");
        Err(Error::Resource { resource: name.to_owned(), reason })
    };
    match msgpack::scan(recorded, limits) {
        Ok(end) if end != recorded.len() => refused(format!("extra bytes after the value at byte {end}")),
        Ok(_) if Payload::new(recorded).object().is_some() => {
            refused("extension type 1 is kept for references to objects".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => refused(error.to_string()),
    }
}

impl CaptureSet {
    /// Captures every resource. A resource that reports no change since `latest` keeps that
    /// capture.
    pub(super) fn capture_all(
        resources: &ResourceRegistry,
        options: &CaptureOptions<'_>,
        latest: &CaptureSet,
    ) -> Result<CaptureSet> {
        let limits = limits_of_each(resources.captured_resources().len());
        let captured = resources.captured_resources().iter().map(|(name, resource)| {
            if let Some(unchanged) = latest.find_unchanged(name, resource.as_ref()) {
                return Ok(unchanged.clone());
            }
            ResourceCapture::capture(name.clone(), resource.as_ref(), options, limits)
        });
        captured.collect()
    }

    /// Captures the resources that are not rolled back with a failed tool.
    pub(super) fn of_kept(resources: &ResourceRegistry) -> Result<CaptureSet> {
        let limits = limits_of_each(resources.captured_resources().len());
        let kept = resources.captured_resources().iter().filter(|(_, resource)| !resource.rolls_back());
        let captured = kept.map(|(name, resource)| {
            catch_panic(name, || {
                ResourceCapture::capture(name.clone(), resource.as_ref(), &CaptureOptions::default(), limits)
            })
        });
        captured.collect()
    }

    /// Returns whether every resource reports that it has not changed since its capture.
    pub(super) fn are_all(&self, resources: &ResourceRegistry) -> bool {
        // Both are in ascending order of the names.
        let mut pairs = self.of_each.iter().zip(resources.captured_resources());
        self.of_each.len() == resources.captured_resources().len()
            && pairs.all(|(captured, (name, resource))| {
                captured.name == *name && captured.is_unchanged(resource.as_ref())
            })
    }

    /// Returns the capture of a resource, if the resource reports that it has not changed since.
    fn find_unchanged(&self, name: &str, resource: &dyn AnyResource) -> Option<&ResourceCapture> {
        self.get(name).filter(|captured| captured.is_unchanged(resource))
    }

    /// Creates a set from a record's captures, by resource name, in their recorded form.
    pub(crate) fn from_recorded(snapshots: RecordedCaptures) -> CaptureSet {
        let captured = |(name, recorded): (String, Option<Vec<u8>>)| ResourceCapture {
            name: Cow::Owned(name),
            snapshot: None,
            recorded: recorded.map(Arc::from),
        };
        snapshots.into_iter().map(captured).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of_each.is_empty()
    }

    fn get(&self, name: &str) -> Option<&ResourceCapture> {
        self.of_each.iter().find(|captured| captured.name == name)
    }

    /// Converts the captures to their form in a record.
    pub(crate) fn to_record(&self) -> Vec<ResourceSnapshot<'_>> {
        let of_each = self.of_each.iter();
        of_each
            .map(|captured| ResourceSnapshot {
                resource: Cow::Borrowed(&captured.name),
                snapshot: captured.recorded.as_deref().map(Payload::new),
            })
            .collect()
    }

    /// Converts the captures that outlive their process to their form in the record of a snapshot.
    pub(super) fn to_snapshot_record(&self) -> Vec<ResourceSnapshot<'_>> {
        self.to_record().into_iter().filter(|resource| resource.snapshot.is_some()).collect()
    }

    /// Decodes the captures of which only the recorded form is known, so that all can be restored.
    ///
    /// With `lenient`, for the rollback of a tool, the result leaves out the resources that are not
    /// rolled back with a tool, and those whose captures did not outlive their process. Without it,
    /// such a capture is an [`Error::SnapshotMismatch`]. A resource that this run lacks is that
    /// error too, unless the result leaves the resource out.
    pub(crate) fn decode_recorded(&self, resources: &ResourceRegistry, lenient: bool) -> Result<CaptureSet> {
        let mut recalled = Vec::new();
        for captured in self.of_each.iter() {
            let name = &captured.name;
            let mismatch =
                |reason: &str| Err(Error::SnapshotMismatch(format!("resource `{name}`: {reason}")));
            let Some(resource) = resources.captured_resources().get(name) else {
                // A record does not state which resources are rolled back. Of those with a recorded
                // form, only the engine's own budget is known not to be.
                if lenient && (captured.recorded.is_none() || name == BudgetTracker::NAME) {
                    continue;
                }
                return mismatch("this run has no resource of that name");
            };
            if lenient && !resource.rolls_back() {
                continue;
            }
            let snapshot = match (&captured.snapshot, &captured.recorded) {
                (Some(snapshot), _) => Arc::clone(snapshot),
                (None, Some(recorded)) => resource.recall(recorded)?,
                (None, None) if lenient => continue,
                (None, None) => {
                    return mismatch(
                        "its capture was only in memory: it was lost with its process, or omitted from the JSON",
                    );
                }
            };
            let recorded = captured.recorded.clone();
            recalled.push(ResourceCapture { name: name.clone(), snapshot: Some(snapshot), recorded });
        }
        Ok(recalled.into_iter().collect())
    }

    /// Marks these captures as taken before `operation`, which a restore undoes.
    pub(super) fn with_undone(&self, operation: OperationId) -> CaptureSet {
        CaptureSet { undoes: Some(operation), ..self.clone() }
    }

    /// Restores the resources to these captures: all of them with `all`, otherwise only resources
    /// that are rolled back with a failed tool. If some cannot be restored, the rest are, and the
    /// error lists both. Returns the changes that the restore could not undo, and the contents that
    /// it replaced. With `durable`, the changes are durable when this returns.
    pub(crate) fn restore(&self, resources: &ResourceRegistry, all: bool, durable: bool) -> Result<PutBack> {
        self.each(resources, all, |resource, snapshot| {
            let told = resource.restore(snapshot, self.undoes)?;
            if durable {
                resource.sync_restored()?;
            }
            Ok(told)
        })
    }

    /// Lets the resources set aside content that a restore to these captures will replace: all
    /// resources with `all`, otherwise only resources that are rolled back with a failed tool. If
    /// one fails, content that is already set aside remains there.
    pub(super) fn set_aside(&self, resources: &ResourceRegistry, all: bool) -> Result<()> {
        let Some(operation) = self.undoes else { return Ok(()) };
        let set_aside = |resource: &dyn AnyResource, snapshot: &_| {
            resource.set_aside(snapshot, operation).map(|()| RestoreReport::default())
        };
        self.each(resources, all, set_aside).map(drop)
    }

    /// Returns the recorded captures of the resources that others than this run may change, if they
    /// differ from `before`.
    pub(super) fn shared_beside<'a>(
        &'a self,
        before: &'a CaptureSet,
        resources: &'a ResourceRegistry,
    ) -> impl Iterator<Item = (String, &'a [u8])> {
        let shared = resources.captured_resources().iter().filter(|(_, resource)| resource.is_shared());
        shared.filter_map(move |(name, resource)| {
            let found = self.get(name)?.recorded.as_deref()?;
            let before = before.get(name).and_then(|before| before.snapshot.as_ref());
            // The whole restorable content counts, and not only the part that `is_same` compares.
            let before = before.and_then(|before| resource.record(before).ok().flatten());
            Some((name.clone().into_owned(), Some(found).filter(|found| before.as_deref() != Some(found))?))
        })
    }

    /// Returns the captures for another attempt to restore these. `earlier` contains the captures
    /// from before the first attempt. Content that was changed since then, and not by an attempt,
    /// stays as in `present`. Adds to `told` the content that is kept, and the content that all
    /// attempts together replace. A resource that cannot determine such changes is restored whole.
    pub(super) fn beside_changes(
        &self,
        resources: &ResourceRegistry,
        earlier: &RecordedCaptures,
        present: &CaptureSet,
        told: &mut PutBack,
    ) -> CaptureSet {
        let captured = self.of_each.iter().map(|captured| {
            let beside = || {
                let resource = resources.captured_resources().get(&captured.name)?;
                let target = captured.snapshot.as_ref()?;
                let last = resource.recall(earlier.get(&*captured.name)?.as_deref()?).ok()?;
                let present = present.get(&captured.name)?.snapshot.as_ref()?;
                // Content that is missing in another directory was not removed by anyone.
                if !resource.is_of_place_of(&last, present) {
                    return None;
                }
                let asked = RewindRequest {
                    target,
                    last: &last,
                    last_is_here: false,
                    present,
                    overwrite: false,
                    unless_changed: false,
                    after_restore: true,
                };
                let Rewound { to, kept, .. } = resource.rewind(&asked).ok()?;
                // The content from before the first attempt that all attempts together replace.
                let whole = RewindRequest { target: &to, present: &last, overwrite: true, ..asked };
                let Rewound { files, .. } = resource.rewind(&whole).ok()?;
                Some((to, kept, files))
            };
            // A host's resource may panic; then it is restored whole.
            let Ok(Some((to, kept, files))) = catch_panic(&captured.name, || Ok(beside())) else {
                return captured.clone();
            };
            let name = &captured.name;
            let reason =
                "somebody changed it after the programs of the call had ended: it stays as it is now";
            let kept = kept.into_iter().map(|file| UnrestoredPath::new(file.path, reason)).collect();
            told.not_undone.extend(NotUndone::of_resource(name, kept));
            let of = |kind: ChangeKind| {
                let files = files.iter().filter(move |file| file.change == kind);
                files.map(|file| file.path.clone()).collect()
            };
            let replaced =
                ReplacedContent::of_resource(name, of(ChangeKind::Modified), of(ChangeKind::Removed));
            told.replaced.extend(replaced);
            ResourceCapture { name: name.clone(), snapshot: Some(to), recorded: None }
        });
        CaptureSet { of_each: Arc::new(captured.collect()), undoes: self.undoes }
    }

    /// Checks, without any change, that all resources that are rolled back with a failed tool could
    /// be restored.
    pub(crate) fn check(&self, resources: &ResourceRegistry) -> Result<()> {
        let check = |resource: &dyn AnyResource, snapshot: &_| {
            resource.check(snapshot).map(|()| RestoreReport::default())
        };
        self.each(resources, false, check).map(drop)
    }

    /// Checks that none of the captures was collected.
    pub(super) fn check_kept(&self, resources: &ResourceRegistry) -> Result<()> {
        for captured in self.of_each.iter() {
            let resource = resources.captured_resources().get(&captured.name);
            let Some((resource, snapshot)) = resource.zip(captured.snapshot.as_ref()) else { continue };
            // Other obstacles are reported by the restore.
            if let Err(error @ Error::Collected { .. }) =
                catch_panic(&captured.name, || resource.check(snapshot))
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Updates the resources that are not rolled back with a tool to these captures. A capture that
    /// cannot be decoded is skipped.
    pub(super) fn carry_over(resources: &ResourceRegistry, recorded: &RecordedCaptures) {
        for (name, resource) in
            resources.captured_resources().iter().filter(|(_, resource)| !resource.rolls_back())
        {
            let Some(Some(recorded)) = recorded.get(&**name) else { continue };
            // A host's resource may panic; the run starts nevertheless.
            let _ = catch_panic(name, || {
                resource.carry_over(&resource.recall(recorded)?);
                Ok(())
            });
        }
    }

    /// Lets each resource report differences from the captures of another process: `left` by the
    /// last call, and `found` by the recovery of that call. Captures that cannot be decoded are
    /// skipped. So are captures of a call of a fork's parent if the resource is in the same place.
    pub(super) fn tell_of_changes(
        &self,
        resources: &ResourceRegistry,
        left: &RecordedCaptures,
        found: &RecordedCaptures,
        is_own: bool,
    ) {
        for captured in self.of_each.iter() {
            let Some(resource) = resources.captured_resources().get(&captured.name) else { continue };
            let recalled = |recorded: &RecordedCaptures| {
                let recorded = recorded.get(&*captured.name)?.as_ref()?;
                catch_panic(&captured.name, || resource.recall(recorded)).ok()
            };
            let Some((left, now)) = recalled(left).zip(captured.snapshot.as_ref()) else { continue };
            // A host's resource may panic; the call continues nevertheless.
            let _ = catch_panic(&captured.name, || {
                if is_own || !resource.is_of_place_of(&left, now) {
                    resource.tell_of_changes(&left, recalled(found).as_ref(), now);
                }
                Ok(())
            });
        }
    }

    /// Calls `act` for each resource and its capture: for all resources, or only for resources that
    /// are rolled back with a failed tool. An error or a panic of one resource does not affect the
    /// rest.
    fn each(
        &self,
        resources: &ResourceRegistry,
        all: bool,
        act: impl Fn(&dyn AnyResource, &AnySnapshot) -> Result<RestoreReport>,
    ) -> Result<PutBack> {
        let (mut restored, mut failed, mut put_back) = (Vec::new(), Vec::new(), PutBack::default());
        for captured in self.of_each.iter() {
            let name = &captured.name;
            let Some(resource) = resources.captured_resources().get(name) else { continue };
            let Some(snapshot) = captured.snapshot.as_ref().filter(|_| all || resource.rolls_back()) else {
                continue;
            };
            // A host's resource may panic; the rest are restored nevertheless.
            match catch_panic(name, || act(resource.as_ref(), snapshot)) {
                Ok(RestoreReport { inexact, changed, removed }) => {
                    restored.push(name.clone().into_owned());
                    put_back.not_undone.extend(NotUndone::of_resource(name, inexact));
                    put_back.replaced.extend(ReplacedContent::of_resource(name, changed, removed));
                }
                Err(error) => failed.push((name.clone().into_owned(), Arc::new(error))),
            }
        }
        if failed.is_empty() { Ok(put_back) } else { Err(Error::RestoreFailed { restored, failed }) }
    }

    /// Lists the parts that differ from these captures, by resource name, for resources that are
    /// rolled back with a failed tool.
    pub(super) fn differences(&self, resources: &ResourceRegistry) -> Result<BTreeMap<String, Vec<String>>> {
        let mut differing = BTreeMap::new();
        for captured in self.of_each.iter() {
            let Some(resource) = resources.captured_resources().get(&captured.name) else { continue };
            let Some(snapshot) = captured.snapshot.as_ref().filter(|_| resource.rolls_back()) else {
                continue;
            };
            let differ = catch_panic(&captured.name, || resource.differences(snapshot))?;
            if !differ.is_empty() {
                differing.insert(captured.name.clone().into_owned(), differ);
            }
        }
        Ok(differing)
    }

    /// Checks that these copies cannot reach the originals that they replace.
    pub(super) fn check_apart(&self, copies: &ResourceRegistry) -> Result<()> {
        for captured in self.of_each.iter() {
            let Some(copy) = copies.captured_resources().get(&captured.name).filter(|copy| copy.rolls_back())
            else {
                continue;
            };
            if let Some(snapshot) = &captured.snapshot {
                catch_panic(&captured.name, || copy.check_apart(snapshot))?;
            }
        }
        Ok(())
    }

    /// Returns whether both contain the same state of each resource that is rolled back with a
    /// failed tool.
    fn is_same(&self, other: &CaptureSet, resources: &ResourceRegistry) -> bool {
        resources.captured_resources().iter().filter(|(_, resource)| resource.rolls_back()).all(
            |(name, resource)| {
                let snapshot = |captures: &CaptureSet| captures.get(name)?.snapshot.clone();
                match (snapshot(self), snapshot(other)) {
                    (Some(one), Some(other)) => resource.is_same(&one, &other),
                    (one, other) => one.is_none() && other.is_none(),
                }
            },
        )
    }
}

/// Effects of a rewind on a resource: the changed files, the kept files, the files with unknown
/// changes, and the number of files left out.
pub(super) type RewindFileReport = (Vec<FileRewound>, Vec<KeptFile>, Vec<FileUnknown>, u64);

/// Treatment of changes by hand in a rewind.
#[derive(Clone, Copy)]
pub(super) struct RewindPolicy {
    /// Whether the rewind overwrites them.
    pub(super) overwrite: bool,
    /// Whether the restore is refused if the resource has changed since its present capture.
    pub(super) unless_changed: bool,
}

/// Rewind of one resource, by captures in their recorded form.
pub(super) struct RecordedRewind<'a> {
    pub(super) target: &'a [u8],
    /// Capture after the last call.
    pub(super) last: &'a [u8],
    /// Whether a rewind brought the resource to the last capture in its present place.
    pub(super) last_is_here: bool,
    pub(super) policy: RewindPolicy,
}

/// Collects the captures that a rewind restores.
#[derive(Default)]
pub(super) struct RewoundCaptures {
    captured: Vec<ResourceCapture>,
}

impl CaptureSet {
    pub(super) fn recorded_of(&self, name: &str) -> Option<Vec<u8>> {
        self.get(name).and_then(|captured| captured.recorded.as_deref()).map(<[u8]>::to_vec)
    }

    /// Returns whether the recorded capture of a resource is known to be of a different place than
    /// the capture in this set.
    pub(super) fn is_elsewhere(&self, resources: &ResourceRegistry, name: &str, recorded: &[u8]) -> bool {
        let present = self.get(name).and_then(|captured| captured.snapshot.as_ref());
        let resource = resources.captured_resources().get(name).zip(present);
        resource.is_some_and(|(resource, present)| {
            resource.recall(recorded).is_ok_and(|recorded| !resource.is_of_place_of(&recorded, present))
        })
    }
}

impl RewoundCaptures {
    /// Lets a resource determine the capture to restore. Returns `None` if `present` lacks the
    /// resource.
    pub(super) fn add(
        &mut self,
        name: &str,
        resource: &dyn AnyResource,
        present: &CaptureSet,
        rewind: &RecordedRewind<'_>,
    ) -> Result<Option<RewindFileReport>> {
        let present = present.get(name).and_then(|captured| captured.snapshot.clone());
        let Some(present) = present else { return Ok(None) };
        let (target, last) = (resource.recall(rewind.target)?, resource.recall(rewind.last)?);
        let request = RewindRequest {
            target: &target,
            last: &last,
            last_is_here: rewind.last_is_here,
            present: &present,
            overwrite: rewind.policy.overwrite,
            unless_changed: rewind.policy.unless_changed,
            after_restore: false,
        };
        let Rewound { to, files, kept, unknown, left_out } = resource.rewind(&request)?;
        let name = Cow::Owned(name.to_owned());
        self.captured.push(ResourceCapture { name, snapshot: Some(to), recorded: None });
        Ok(Some((files, kept, unknown, left_out)))
    }

    /// Returns the captures to restore.
    pub(super) fn into_captures(self) -> CaptureSet {
        self.captured.into_iter().collect()
    }
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
