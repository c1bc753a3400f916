//! When checkpoints are created automatically, and how long they are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use foldlog::inspect::{DecodedRecord, RecordedContent};
use foldlog::{RecordKind, SequenceNumber};

use super::{
    Checkpoint, CheckpointCreated, CheckpointHistory, CheckpointId, CheckpointsRemoved, Occasion,
    RemovalReason,
};
use crate::UpdateOperation;

/// Configures when a [`CheckpointManager`](super::CheckpointManager) creates checkpoints
/// automatically. By default it creates none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// Once this time has passed since the last one, by the times of the records.
    pub every: Option<Duration>,
    /// Once this number of records since the last one contain an update: an event of tasks, a
    /// message or an answer, the end of a tool's run.
    pub every_updates: Option<u64>,
    /// Once the records since the last one have this number of bytes.
    pub every_bytes: Option<u64>,
    /// Before a task is started.
    pub before_tasks: bool,
    /// After a task in progress was completed, failed, skipped or cancelled.
    pub after_tasks: bool,
}

/// Configures how long checkpoints are kept. By default all are kept.
///
/// These are always kept: the one that was created last, and the last one on the live path; those
/// with names; the one to which each fork can return; the one of the last restore, and the one that
/// undoes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Number of latest checkpoints that are kept. Always-kept checkpoints among them count too;
    /// earlier ones are kept in addition, and do not count. 0 keeps as many as 1.
    pub count: Option<u64>,
    /// Maximum age, relative to the latest one.
    pub age: Option<Duration>,
    /// Maximum size of the records between one of them and the latest, in bytes.
    pub bytes: Option<u64>,
}

impl RetentionPolicy {
    pub(super) fn keeps_all(&self) -> bool {
        *self == RetentionPolicy::default()
    }

    /// Returns the checkpoints that exceed a limit, each with the first limit that it exceeds. The
    /// latest one exceeds none.
    pub(super) fn find_removable(
        &self,
        history: &CheckpointHistory,
    ) -> BTreeMap<CheckpointId, RemovalReason> {
        let kept: Vec<_> = history.kept_checkpoints().collect();
        let Some((latest, earlier)) = kept.split_last() else { return BTreeMap::new() };
        let first_of_count = self.count.map_or(0, |count| (kept.len() as u64).saturating_sub(count));
        let mut passed = BTreeMap::new();
        for (at, one) in (0_u64..).zip(earlier) {
            let grown = latest.manifest.storage_size_bytes.saturating_sub(one.manifest.storage_size_bytes);
            let reason = if at < first_of_count {
                RemovalReason::Count
            } else if self.age.is_some_and(|age| has_passed(one.created_at, latest.created_at, age)) {
                RemovalReason::Age
            } else if self.bytes.is_some_and(|bytes| grown > bytes) {
                RemovalReason::Bytes
            } else {
                continue;
            };
            passed.insert(one.id, reason);
        }
        passed
    }
}

/// Returns the events that remove checkpoints, one for each limit.
pub(super) fn removals(
    passed: &BTreeMap<CheckpointId, RemovalReason>,
    needed: &BTreeSet<CheckpointId>,
    latest: CheckpointId,
) -> Vec<CheckpointsRemoved> {
    let mut of_each: BTreeMap<RemovalReason, Vec<CheckpointId>> = BTreeMap::new();
    for (id, reason) in passed.iter().filter(|(id, _)| !needed.contains(id)) {
        of_each.entry(*reason).or_default().push(*id);
    }
    of_each.into_iter().map(|(reason, ids)| CheckpointsRemoved { ids, reason, latest }).collect()
}

/// Returns whether the time between `from` and `to` is longer than `span`.
fn has_passed(from: DateTime<Utc>, to: DateTime<Utc>, span: Duration) -> bool {
    TimeDelta::from_std(span).is_ok_and(|span| to.signed_duration_since(from) > span)
}

/// Counts the records since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SinceLast {
    /// Last record that was counted.
    pub(super) through: Option<SequenceNumber>,
    /// Time of that record.
    pub(super) time: DateTime<Utc>,
    /// Time of the last checkpoint, or of the first record.
    pub(super) begin: Option<DateTime<Utc>>,
    /// Length of the records since then, in bytes.
    pub(super) bytes: u64,
    /// Number of records with updates.
    pub(super) updates: u64,
}

impl SinceLast {
    pub(super) fn take(&mut self, record: &DecodedRecord<'_>) -> foldlog::Result<()> {
        (self.through, self.time) = (Some(record.sequence), record.time);
        self.begin.get_or_insert(record.time);
        self.bytes = self.bytes.saturating_add(record.len());
        match &record.content {
            RecordedContent::Event(event) => {
                if let Some(CheckpointCreated { checkpoint }) = event.read()? {
                    let through = self.through;
                    *self = SinceLast { through, ..SinceLast::from_checkpoint(&checkpoint) };
                }
                self.updates += u64::from(UpdateOperation::of_event(event)?.is_some());
            }
            RecordedContent::CallEnded(_)
            | RecordedContent::Other(RecordKind::Input | RecordKind::Answer) => {
                self.updates += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts after a checkpoint.
    pub(super) fn from_checkpoint(checkpoint: &Checkpoint) -> SinceLast {
        SinceLast {
            through: Some(checkpoint.position),
            time: checkpoint.created_at,
            begin: Some(checkpoint.created_at),
            bytes: 0,
            updates: 0,
        }
    }

    /// Returns why a checkpoint is due; `None` if none is.
    pub(super) fn due(&self, policy: &CheckpointPolicy) -> Option<Occasion> {
        let passed = |every: Duration| {
            let every = TimeDelta::from_std(every).unwrap_or(TimeDelta::MAX);
            self.begin.is_some_and(|begin| self.time.signed_duration_since(begin) >= every)
        };
        if policy.every.is_some_and(passed) {
            Some(Occasion::PeriodicByTime)
        } else if policy.every_updates.is_some_and(|every| self.updates >= every.max(1)) {
            Some(Occasion::PeriodicByUpdates)
        } else if policy.every_bytes.is_some_and(|every| self.bytes >= every.max(1)) {
            Some(Occasion::PeriodicByBytes)
        } else {
            None
        }
    }
}
