//! Captures of all resources of a run, and their restore.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use foldlog_codec::OperationId;
use foldlog_codec::body::{Payload, ResourceSnapshot};
use foldlog_codec::msgpack::{self, ValueLimits};
use foldlog_filesystem::{ChangeKind, UnrestoredPath};

use crate::error::{Error, Result, catch_panic};
use crate::operation::{NotUndone, PutBack, ReplacedContent};
use crate::session::Session;
use crate::session::operation_records::RecordedCaptures;
use crate::tools::resources::{
    AnyResource, AnySnapshot, BudgetTracker, CaptureOptions, ResourceRegistry, RestoreReport, RewindRequest,
    Rewound, Snapshotable,
};

/// Capture of one resource. Clones are cheap.
#[derive(Clone)]
pub(super) struct ResourceCapture {
    pub(super) name: Cow<'static, str>,
    /// Capture as the resource created it; `None` if only its recorded form was read.
    snapshot: Option<AnySnapshot>,
    /// Recorded form, one MessagePack value; `None` if the capture does not outlive its process.
    pub(super) recorded: Option<Arc<[u8]>>,
}

impl ResourceCapture {
    fn capture(
        name: Cow<'static, str>,
        resource: &dyn AnyResource,
        options: &CaptureOptions,
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

    /// Describes a capture that is not recorded.
    pub(super) fn in_memory(name: Cow<'static, str>, snapshot: AnySnapshot) -> ResourceCapture {
        ResourceCapture { name, snapshot: Some(snapshot), recorded: None }
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
    pub(super) of_each: Arc<Vec<ResourceCapture>>,
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
        options: &CaptureOptions,
        latest: &CaptureSet,
    ) -> Result<CaptureSet> {
        let limits = limits_of_each(resources.captured_resources().len());
        let captured = resources.captured_resources().iter().map(|(name, resource)| {
            match latest.get(name).filter(|captured| captured.is_unchanged(resource.as_ref())) {
                Some(unchanged) => Ok(unchanged.clone()),
                None => ResourceCapture::capture(name.clone(), resource.as_ref(), options, limits),
            }
        });
        captured.collect()
    }

    /// Captures the resources that are not rolled back with a failed tool; `None` if there are
    /// none, or they cannot be captured.
    pub(super) fn of_kept(resources: &ResourceRegistry) -> Option<CaptureSet> {
        let limits = limits_of_each(resources.captured_resources().len());
        let kept = resources.captured_resources().iter().filter(|(_, resource)| !resource.rolls_back());
        let captured = kept.map(|(name, resource)| {
            catch_panic(name, || {
                ResourceCapture::capture(name.clone(), resource.as_ref(), &CaptureOptions::default(), limits)
            })
        });
        captured.collect::<Result<CaptureSet>>().ok().filter(|captures| !captures.is_empty())
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

    /// Returns the capture of a resource as the resource created it.
    pub(super) fn snapshot_of(&self, name: &str) -> Option<&AnySnapshot> {
        self.get(name)?.snapshot.as_ref()
    }

    pub(super) fn recorded_of(&self, name: &str) -> Option<&[u8]> {
        self.get(name)?.recorded.as_deref()
    }

    /// Lists the resources with their captures: all of them, or only resources that are rolled back
    /// with a failed tool.
    fn pairs<'a>(
        &'a self,
        resources: &'a ResourceRegistry,
        all: bool,
    ) -> impl Iterator<Item = (&'a Cow<'static, str>, &'a dyn AnyResource, &'a AnySnapshot)> {
        self.of_each.iter().filter_map(move |ResourceCapture { name, snapshot, .. }| {
            let resource = resources.captured_resources().get(name)?;
            Some((name, resource.as_ref(), snapshot.as_ref().filter(|_| all || resource.rolls_back())?))
        })
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
            let found = self.recorded_of(name)?;
            // The whole restorable content counts, and not only the part that `is_same` compares.
            let before = before.snapshot_of(name).and_then(|before| resource.record(before).ok().flatten());
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
                let present = present.snapshot_of(&captured.name)?;
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
            ResourceCapture::in_memory(name.clone(), to)
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
        self.pairs(resources, true).try_for_each(|(name, resource, snapshot)| {
            match catch_panic(name, || resource.check(snapshot)) {
                Err(error @ Error::Collected { .. }) => Err(error),
                // Other obstacles are reported by the restore.
                _ => Ok(()),
            }
        })
    }

    /// Updates the resources that are not rolled back with a tool to the captures of the session's
    /// last call, so that amounts that another process spent remain spent. A capture that cannot be
    /// decoded is skipped.
    pub(super) fn carry_over(resources: &ResourceRegistry, session: &Session) {
        let mut kept = resources.captured_resources().iter().filter(|(_, resource)| !resource.rolls_back());
        let Some(first) = kept.next() else { return };
        let Ok(Some((left, found, true))) = session.calls().captures_of_last_call() else { return };
        for (name, resource) in iter::once(first).chain(kept) {
            for recorded in [&left, &found].into_iter().filter_map(|all| all.get(&**name)?.as_ref()) {
                // A host's resource may panic; the run starts nevertheless.
                let _ = catch_panic(name, || {
                    resource.carry_over(&resource.recall(recorded)?);
                    Ok(())
                });
            }
        }
    }

    /// Lets each resource report differences from its state after the session's last call to the
    /// host. These differences are new to the host if that call's process was killed, or was on
    /// another machine. In a fork without calls, only a different place than its parent's is
    /// reported. Captures that cannot be read are skipped.
    pub(super) fn tell_of_changes(&self, resources: &ResourceRegistry, session: &Session) {
        let Ok(Some((left, found, is_own))) = session.calls().captures_of_last_call() else { return };
        for (name, resource, now) in self.pairs(resources, true) {
            let recalled = |recorded: &RecordedCaptures| {
                let recorded = recorded.get(&**name)?.as_ref()?;
                catch_panic(name, || resource.recall(recorded)).ok()
            };
            let Some(left) = recalled(&left) else { continue };
            // A host's resource may panic; the call continues nevertheless.
            let _ = catch_panic(name, || {
                if is_own || !resource.is_of_place_of(&left, now) {
                    resource.tell_of_changes(&left, recalled(&found).as_ref(), now);
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
        for (name, resource, snapshot) in self.pairs(resources, all) {
            // A host's resource may panic; the rest are restored nevertheless.
            match catch_panic(name, || act(resource, snapshot)) {
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
        for (name, resource, snapshot) in self.pairs(resources, false) {
            let differ = catch_panic(name, || resource.differences(snapshot))?;
            if !differ.is_empty() {
                differing.insert(name.clone().into_owned(), differ);
            }
        }
        Ok(differing)
    }

    /// Checks that these copies cannot reach the originals that they replace.
    pub(super) fn check_apart(&self, copies: &ResourceRegistry) -> Result<()> {
        let mut pairs = self.pairs(copies, false);
        pairs.try_for_each(|(name, copy, snapshot)| catch_panic(name, || copy.check_apart(snapshot)))
    }

    /// Returns whether both contain the same state of each resource that is rolled back with a
    /// failed tool.
    pub(super) fn is_same(&self, other: &CaptureSet, resources: &ResourceRegistry) -> bool {
        let mut rolled_back =
            resources.captured_resources().iter().filter(|(_, resource)| resource.rolls_back());
        rolled_back.all(|(name, resource)| match (self.snapshot_of(name), other.snapshot_of(name)) {
            (Some(one), Some(other)) => resource.is_same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        })
    }

    /// Returns whether the recorded capture of a resource is known to be of a different place than
    /// the capture in this set.
    pub(super) fn is_elsewhere(&self, resources: &ResourceRegistry, name: &str, recorded: &[u8]) -> bool {
        let resource = resources.captured_resources().get(name).zip(self.snapshot_of(name));
        resource.is_some_and(|(resource, present)| {
            resource.recall(recorded).is_ok_and(|recorded| !resource.is_of_place_of(&recorded, present))
        })
    }
}
