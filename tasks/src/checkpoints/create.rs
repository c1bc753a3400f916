//! Creates checkpoints, and removes those that retention no longer keeps.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::DateTime;
use foldlog::tools::{SnapshotMetadata, SnapshotPhase};
use foldlog::{Event, ExecutionState, Parent, SequenceNumber, Session, Snapshot, SnapshotOptions};
use uuid::Uuid;

use super::hash::VisitRecords;
use super::policy::{SinceLast, removals};
use super::{
    Checkpoint, CheckpointCreated, CheckpointEntry, CheckpointHistory, CheckpointId, CheckpointPolicy,
    Checkpoints, CompressedSnapshot, Occasion, RetentionPolicy, counts, hash,
};
use crate::error::{Error, Result};
use crate::{StateCompression, TaskStatus, TaskStatusChanged, Tasks, WorkspaceStores};

/// Name of the observation of the positions at which sessions were forked from this one.
const FORKS: &str = "checkpoints.forks";

/// Manages the checkpoints of a session: creates them, keeps as many as its policies require, and
/// restores the session to one.
///
/// ```
/// use foldlog::{SessionTypes, Store};
/// use foldlog_tasks::{CheckpointManager, CheckpointPolicy, NewTask, TaskCreated, TaskId, declare};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let types = declare(SessionTypes::builder()).build()?;
/// let session = Store::open(directory.path())?.create(&types)?;
/// let policy = CheckpointPolicy { every_updates: Some(2), ..CheckpointPolicy::default() };
/// let manager = CheckpointManager::new(session).with_policy(policy);
/// manager.dispatch(TaskCreated { task: NewTask::new(TaskId::new("design")?, "Design it") })?;
/// manager.dispatch(TaskCreated { task: NewTask::new(TaskId::new("build")?, "Build it") })?;
/// let latest = manager.latest()?.ok_or("two updates were dispatched")?;
/// assert_eq!(latest.manifest.total_tasks, 2);
/// # Ok(())
/// # }
/// ```
#[must_use]
#[derive(Debug)]
pub struct CheckpointManager {
    pub(super) session: Session,
    pub(super) run: Option<ExecutionState>,
    pub(super) stores: WorkspaceStores,
    policy: CheckpointPolicy,
    retention: RetentionPolicy,
    compression: Option<StateCompression>,
    /// Not locked during a write: a write waits for others, and notifies subscribers, which may
    /// call the manager.
    known: Mutex<CheckpointCache>,
}

/// Maximum number of retries of a creation if another thread or manager creates a checkpoint first.
const TRIES_MAX: usize = 16;

/// The history read so far.
#[derive(Debug)]
struct CheckpointCache {
    history: Arc<CheckpointHistory>,
    /// Last record whose entries are in the history.
    through: Option<SequenceNumber>,
    since: Option<SinceLast>,
    auto_save: bool,
    /// Sessions of the store whose parents are known, with the position at which each was forked
    /// from this one.
    forks: BTreeMap<Uuid, Option<SequenceNumber>>,
}

impl CheckpointManager {
    /// Returns a manager of a session's checkpoints. It captures no resources, creates no
    /// checkpoints automatically, and keeps all.
    pub fn new(session: Session) -> CheckpointManager {
        let (history, forks) = (Arc::default(), BTreeMap::new());
        let known = CheckpointCache { history, through: None, since: None, auto_save: true, forks };
        let stores = WorkspaceStores::from_session_dir(session.dir());
        let (policy, retention) = (CheckpointPolicy::default(), RetentionPolicy::default());
        CheckpointManager {
            session,
            run: None,
            stores,
            policy,
            retention,
            compression: None,
            known: Mutex::new(known),
        }
    }

    /// Captures the resources of a run with each checkpoint, so that they can be restored as well.
    /// The run must be of this session.
    pub fn with_resources(self, run: ExecutionState) -> CheckpointManager {
        CheckpointManager { run: Some(run), ..self }
    }

    /// Sets the location of the captures of workspaces, with which changes of files are counted.
    /// The default is the directory `files` in the session's directory.
    pub fn with_stores(self, stores: WorkspaceStores) -> CheckpointManager {
        CheckpointManager { stores, ..self }
    }

    /// Sets when checkpoints are created automatically.
    pub fn with_policy(self, policy: CheckpointPolicy) -> CheckpointManager {
        CheckpointManager { policy, ..self }
    }

    /// Sets how long checkpoints are kept.
    pub fn with_retention(self, retention: RetentionPolicy) -> CheckpointManager {
        CheckpointManager { retention, ..self }
    }

    /// Compresses the snapshot of each checkpoint, and records its [size](Checkpoint::snapshot) and
    /// the level. The compressed copy is discarded, since the log contains the state. Each
    /// checkpoint then takes time in proportion to the contents of the session.
    pub fn with_compression(self, compression: StateCompression) -> CheckpointManager {
        CheckpointManager { compression: Some(compression), ..self }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Enables or disables the creation of checkpoints by the [policy](CheckpointPolicy).
    pub fn set_auto_save(&self, on: bool) {
        self.lock_cache().auto_save = on;
    }

    /// Returns whether checkpoints are created by the [policy](CheckpointPolicy).
    pub fn auto_save(&self) -> bool {
        self.lock_cache().auto_save
    }

    /// Creates a checkpoint on request, and then removes those that retention no longer keeps.
    ///
    /// Takes time in proportion to the records since the last checkpoint, the tasks in progress and
    /// the dependencies, but not to the contents of the session. After a rollback, all
    /// conversations are read again. The checkpoint is as durable as a snapshot of the session.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::snapshot`], or of [`ExecutionState::snapshot_with`] with resources,
    /// and of [`Session::dispatch`].
    pub fn create(&self, name: Option<&str>) -> Result<Checkpoint> {
        self.create_for(Occasion::Manual, name)
    }

    /// Creates a checkpoint for an occasion, as [`create`](CheckpointManager::create) does.
    pub fn create_for(&self, occasion: Occasion, name: Option<&str>) -> Result<Checkpoint> {
        let mut tries = 1;
        loop {
            let history = self.history_now()?;
            let known = history.created.len();
            match self.create_next(history, &occasion, name) {
                // Another thread or manager has created the next one in the meantime.
                Err(Error::Engine(foldlog::Error::Refused { .. }))
                    if tries < TRIES_MAX && self.history_now()?.created.len() > known =>
                {
                    tries += 1;
                }
                created => return created,
            }
        }
    }

    /// Creates the checkpoint after the last one of `history`.
    fn create_next(
        &self,
        history: Arc<CheckpointHistory>,
        occasion: &Occasion,
        name: Option<&str>,
    ) -> Result<Checkpoint> {
        let previous = history.created.last();
        let id = previous.map_or(CheckpointId(1), |previous| previous.id.next());
        let (snapshot, resources) = match &self.run {
            Some(run) => {
                let tag = Some(id.to_string());
                let metadata =
                    SnapshotMetadata { tag, phase: SnapshotPhase::Checkpoint, ..SnapshotMetadata::default() };
                let composite = run.snapshot_with(metadata)?;
                let resources = (!composite.resource_names().is_empty()).then(|| composite.to_json());
                (composite.session, resources.transpose()?)
            }
            None => (self.session.snapshot(SnapshotOptions::with_tag(id.to_string()))?, None),
        };
        let (position, session_id) = (snapshot.position, self.session.id());
        let (mut manifest, workspaces) =
            counts::count_at(&self.session, &history.created, position, &self.stores)?;
        let log = self.session.log();
        let visit: VisitRecords<'_> = &|from, through, visit| log.contents_left(from, through, visit);
        let (validation_hash, log_bytes) = hash::hash_at(visit, session_id, previous, position)?;
        manifest.storage_size_bytes = log_bytes;
        let compressed = self.compression.map(|compression| self.compressed(&snapshot, compression));
        let checkpoint = Checkpoint {
            id,
            created_at: DateTime::from_timestamp_micros(snapshot.time_us).unwrap_or_default(),
            session_id,
            position,
            name: name.map(str::to_owned),
            occasion: occasion.clone(),
            manifest,
            workspaces,
            resources,
            snapshot: compressed.transpose()?,
            validation_hash,
        };
        // Otherwise the next read would copy it.
        drop(history);
        self.session.dispatch(CheckpointCreated { checkpoint: checkpoint.clone() })?;
        // Returned as recorded: a replay captures no resources, and takes them from the record.
        let recorded = self.history_now()?.created.iter().rev().find(|one| one.id == id).cloned();
        self.apply_retention()?;
        Ok(recorded.unwrap_or(checkpoint))
    }

    fn compressed(&self, snapshot: &Snapshot, compression: StateCompression) -> Result<CompressedSnapshot> {
        let json = self.session.log().export_snapshot(snapshot)?.to_json()?;
        let compressed = compression.compress(json.as_bytes())?;
        let StateCompression { algorithm, level, .. } = compression;
        let (bytes, compressed_bytes) = (json.len() as u64, compressed.len() as u64);
        Ok(CompressedSnapshot { algorithm, level, bytes, compressed_bytes })
    }

    /// Dispatches an event to the session, and creates the checkpoints that the
    /// [policy](CheckpointPolicy) requires around it: before and after tasks, and those that are
    /// due by then.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::dispatch`] and of [`create`](CheckpointManager::create). If a
    /// checkpoint before a task cannot be created, the event is not dispatched. If a checkpoint
    /// after the event cannot be created, the event is still recorded, and
    /// [`after_dispatch`](CheckpointManager::after_dispatch) creates the checkpoint later.
    pub fn dispatch<E: Event>(&self, event: E) -> Result<SequenceNumber> {
        let changed = (&event as &dyn Any).downcast_ref::<TaskStatusChanged>().cloned();
        let changed = changed.filter(|_| self.auto_save());
        if let Some(changed) = changed.as_ref().filter(|one| self.policy.before_tasks && self.starts(one)) {
            self.create_for(Occasion::BeforeTask(changed.task_id.clone()), None)?;
        }
        let sequence = self.session.dispatch(event)?;
        // A task that returns to pending or blocked will be tried again: it has no result yet.
        let is_over = |one: &TaskStatusChanged| {
            one.old_status == TaskStatus::InProgress
                && !matches!(one.new_status, TaskStatus::Pending | TaskStatus::Blocked)
        };
        match changed.filter(|one| self.policy.after_tasks && is_over(one)) {
            Some(changed) => self.create_for(Occasion::AfterTask(changed.task_id), None).map(drop)?,
            None => self.after_dispatch().map(drop)?,
        }
        Ok(sequence)
    }

    /// Returns whether an event is about to start a task, as far as that is known before
    /// dispatching it.
    fn starts(&self, event: &TaskStatusChanged) -> bool {
        event.new_status == TaskStatus::InProgress
            && self.session.view::<Tasks>().is_ok_and(|tasks| event.is_legal(&tasks))
    }

    /// Creates a checkpoint if one is due by time, updates or bytes. Returns `None` if none is due,
    /// or while tools run.
    ///
    /// A host that writes to the session otherwise than by
    /// [`dispatch`](CheckpointManager::dispatch), such as by tools and conversations, calls this in
    /// between. The changes since the last checkpoint are read from the log, regardless of their
    /// writer.
    pub fn after_dispatch(&self) -> Result<Option<Checkpoint>> {
        let CheckpointPolicy { every, every_updates, every_bytes, .. } = &self.policy;
        if every.is_none() && every_updates.is_none() && every_bytes.is_none() {
            return Ok(None);
        }
        let due = {
            let mut known = self.known_now()?;
            if !known.auto_save || !self.session.calls().open_operations().is_empty() {
                return Ok(None);
            }
            let begin = || known.history.created.last().map(SinceLast::from_checkpoint).unwrap_or_default();
            let mut since = known.since.unwrap_or_else(begin);
            if let Some(position) = self.session.log().position() {
                let from = since.through.map_or(SequenceNumber::MIN, |through| through + 1);
                if from <= position {
                    self.session.log().contents_left(from, position, |record| since.take(&record))?;
                }
            }
            known.since = Some(since);
            since.due(&self.policy)
        };
        due.map(|occasion| self.create_for(occasion, None)).transpose()
    }

    /// Returns the existing checkpoints, in the order of their times.
    pub fn list(&self) -> Result<Vec<Checkpoint>> {
        Ok(self.history_now()?.list().into_iter().cloned().collect())
    }

    /// Returns the most recently created checkpoint on the live path.
    pub fn latest(&self) -> Result<Option<Checkpoint>> {
        Ok(self.latest_of(&*self.history_now()?).cloned())
    }

    pub(super) fn latest_of<'a>(&self, history: &'a CheckpointHistory) -> Option<&'a Checkpoint> {
        history.latest_on(&self.session.log().live_path(), self.session.log().position()?)
    }

    /// Returns an existing checkpoint.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchCheckpoint`], [`Error::CheckpointRemoved`], and the errors of reading the
    /// log.
    pub fn get(&self, id: CheckpointId) -> Result<Checkpoint> {
        self.history_now()?.get(id).cloned()
    }

    /// Verifies the hashes of the checkpoints through `id`, in the order of their creation.
    ///
    /// # Errors
    ///
    /// [`Error::CheckpointMismatch`] for the first one whose hash does not match the records, and
    /// the errors of reading the log.
    pub fn verify(&self, id: CheckpointId) -> Result<()> {
        let log = self.session.log();
        self.history_now()?.verify_in(&|from, through, visit| log.contents_left(from, through, visit), id)
    }

    /// Removes the checkpoints that exceed a limit of the [policy](RetentionPolicy) and are not
    /// needed. Also removes those that a kill left after the last creation.
    fn apply_retention(&self) -> Result<()> {
        if self.retention.keeps_all() {
            return Ok(());
        }
        let history = self.history_now()?;
        let passed = self.retention.find_removable(&history);
        let Some(latest) = history.created.last().map(|one| one.id).filter(|_| !passed.is_empty()) else {
            return Ok(());
        };
        let mut needed = self.needed_checkpoints(&history);
        if passed.keys().all(|id| needed.contains(id)) {
            return Ok(());
        }
        let forked = self.forked_at()?;
        let path = self.session.log().live_path();
        let of_forks = forked.iter().filter_map(|at| history.latest_on(&path, *at));
        needed.extend(of_forks.map(|one| one.id));
        for removal in removals(&passed, &needed, latest) {
            match self.session.dispatch(removal) {
                // Another manager created one in the meantime, and removes the expired ones itself.
                Err(foldlog::Error::Refused { .. }) => return Ok(()),
                removed => removed.map(drop)?,
            }
        }
        Ok(())
    }

    /// Returns the checkpoints that are kept regardless of the limits, without those of forks.
    fn needed_checkpoints(&self, history: &CheckpointHistory) -> BTreeSet<CheckpointId> {
        let named = history.kept_checkpoints().filter(|one| one.name.is_some()).map(|one| one.id);
        let mut needed: BTreeSet<CheckpointId> = named.collect();
        needed.extend(self.latest_of(history).map(|one| one.id));
        // The last restore, which may be about to start: its undo checkpoint, and its target.
        let restores = history.kept_checkpoints().rev().filter_map(|one| match one.occasion {
            Occasion::BeforeRestore(to) => Some([one.id, to]),
            _ => None,
        });
        needed.extend(restores.take(1).flatten());
        needed
    }

    /// Returns the positions at which sessions of the store were forked from this one. Other
    /// processes create and delete forks, so this is an external input: it is recorded, and a
    /// replay removes the same checkpoints.
    fn forked_at(&self) -> Result<BTreeSet<SequenceNumber>> {
        if !self.session.replays() {
            self.learn_forks()?;
        }
        let forks: BTreeSet<SequenceNumber> = self.lock_cache().forks.values().flatten().copied().collect();
        Ok(self.session.inputs().observe(FORKS, || forks)?)
    }

    /// Finds the positions at which sessions of the store were forked from this one. Reads each
    /// session's log once.
    fn learn_forks(&self) -> Result<()> {
        let store = self.session.store();
        for id in store.session_ids()? {
            if id == self.session.id() || self.lock_cache().forks.contains_key(&id) {
                continue;
            }
            // A session whose log cannot be read has unknown needs; it is read again the next time.
            let Ok(summary) = store.summary(id) else { continue };
            let position = match summary.parent {
                Some(Parent::Fork { session, position, .. }) if session == self.session.id() => {
                    Some(position)
                }
                _ => None,
            };
            self.lock_cache().forks.insert(id, position);
        }
        Ok(())
    }

    fn lock_cache(&self) -> MutexGuard<'_, CheckpointCache> {
        // Every update adds whole entries, so a poisoned cache is still valid.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cache, brought up to date.
    fn known_now(&self) -> Result<MutexGuard<'_, CheckpointCache>> {
        let mut known = self.lock_cache();
        self.update(&mut known)?;
        Ok(known)
    }

    /// Returns the current checkpoints.
    fn history_now(&self) -> Result<Arc<CheckpointHistory>> {
        Ok(Arc::clone(&self.known_now()?.history))
    }

    fn update(&self, known: &mut CheckpointCache) -> Result<()> {
        let log = self.session.log().slice::<Checkpoints>()?;
        // Entries in the cache are not read again.
        for entry in log.items_after(known.through.unwrap_or(SequenceNumber::MIN)) {
            let entry = entry?;
            known.through = entry.position().map(|(sequence, _)| sequence);
            Arc::make_mut(&mut known.history).add(CheckpointEntry::clone(&entry));
        }
        Ok(())
    }
}
