//! Recovers a session by the strategy that somebody names.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::audit::LogReader;
use foldlog::storage::Storage;
use foldlog::tools::{ExecuteOptions, ToolRegistry, ToolRunner};
use foldlog::{
    ExecutionState, ResourceRegistry, SalvageReport, Session, SessionOptions, SessionTypes, Store,
};
use uuid::Uuid;

use super::rebuilding::{Rebuilt, rebuild};
use super::{CrashState, RecoveryOutlook, RecoveryStrategy};
use crate::persistence::error::{Error, Result};
use crate::persistence::{
    CheckpointManager, Configurations, RecoveryAction, RestoreOptions, SessionConfiguration,
    SessionConfigured, StateUpdate, WorkspaceStores,
};

/// Looks for what a crash left.
pub(super) type Source = Arc<dyn Fn(&mut CrashState) -> Result<()> + Send + Sync>;

/// Finds what a crash left of a session, says what each [strategy](RecoveryStrategy) would bring back, and recovers the
/// session by the one that somebody names. The session is not open meanwhile.
#[derive(Clone)]
pub struct CrashRecoveryManager {
    pub(super) store: Store,
    pub(super) session: Uuid,
    types: Option<SessionTypes>,
    storage: Option<Arc<dyn Storage>>,
    pub(super) stores: WorkspaceStores,
    resources: Option<ResourceRegistry>,
    pub(super) tree: Option<PathBuf>,
    pub(super) sources: Vec<Source>,
}

impl fmt::Debug for CrashRecoveryManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashRecoveryManager { session, stores, .. } = self;
        f.debug_struct("CrashRecoveryManager")
            .field("session", session)
            .field("stores", stores)
            .finish_non_exhaustive()
    }
}

/// Says what a recovery did.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredSession {
    /// Session that goes on: the one that was recovered, or a new one.
    pub session: Uuid,
    /// What the strategy was to bring back.
    pub outlook: RecoveryOutlook,
    /// What was lost or could not be done, as the [`RecoveryAction`] lists it.
    pub lost: Vec<String>,
    /// In what a session made of updates differs from the one that they were read from. Empty if in nothing.
    pub differences: Vec<String>,
}

impl CrashRecoveryManager {
    /// Makes a manager for a session of a store.
    pub fn new(store: Store, session: Uuid) -> CrashRecoveryManager {
        let stores = WorkspaceStores::beside(&store.session_dir(session));
        let (types, storage, resources, tree) = (None, None, None, None);
        let sources = Vec::new();
        CrashRecoveryManager { store, session, types, storage, stores, resources, tree, sources }
    }

    /// Gives the types of the session's host. Without them, events of the host's own stay as they are.
    #[must_use]
    pub fn with_types(self, types: SessionTypes) -> CrashRecoveryManager {
        CrashRecoveryManager { types: Some(types), ..self }
    }

    /// Gives the storage of the store, if it is not the file system. Partial recovery is planned in the file system only.
    #[must_use]
    pub fn with_storage(self, storage: Arc<dyn Storage>) -> CrashRecoveryManager {
        CrashRecoveryManager { storage: Some(storage), ..self }
    }

    /// Says where the captures of workspaces are; the folder `files` of the session's folder by default.
    #[must_use]
    pub fn with_stores(self, stores: WorkspaceStores) -> CrashRecoveryManager {
        CrashRecoveryManager { stores, ..self }
    }

    /// Gives the resources that tools worked on, so that runs of tools that were left open can be rolled back, and that a
    /// checkpoint's are restored.
    #[must_use]
    pub fn with_resources(self, resources: ResourceRegistry) -> CrashRecoveryManager {
        CrashRecoveryManager { resources: Some(resources), ..self }
    }

    /// Looks for damage and leftovers in the tree of files of a session too: a session's folder of an `.aca`, or a folder with
    /// an `.aca` that holds one session.
    #[must_use]
    pub fn with_tree(self, dir: impl Into<PathBuf>) -> CrashRecoveryManager {
        CrashRecoveryManager { tree: Some(dir.into()), ..self }
    }

    /// Adds somewhere to look for what a crash left, such as the host's own files.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Fn(&mut CrashState) -> Result<()> + Send + Sync + 'static,
    ) -> CrashRecoveryManager {
        self.sources.push(Arc::new(source));
        self
    }

    pub(super) fn open_log(&self) -> foldlog::Result<LogReader> {
        match &self.storage {
            Some(storage) => LogReader::open_on(Arc::clone(storage), self.dir()),
            None => LogReader::open(self.dir()),
        }
    }

    /// Recovers the session by a strategy. New sessions are made in `to`, which may be the session's own store.
    ///
    /// Runs of tools that were left open are ended first, as
    /// [`ToolRunner::recover`](foldlog::tools::ToolRunner::recover) does: nothing is run again. What is done is recorded as
    /// [`RecoveryAction`]s of the session that goes on, which is closed when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Impossible`] if the strategy cannot be followed, with what [`plan`](CrashRecoveryManager::plan) says: nothing
    /// was done then. Else those of opening a session, of
    /// [`restore_from_checkpoint`](CheckpointManager::restore_from_checkpoint), of [`Store::salvage`] and of dispatching.
    pub fn recover(
        &self,
        strategy: RecoveryStrategy,
        to: &Store,
        by: &str,
        reason: &str,
    ) -> Result<RecoveredSession> {
        let outlook = self.plan(strategy)?;
        if let Some(reason) = outlook.impossible {
            return Err(Error::Impossible { strategy, reason });
        }
        let action = |subject: String, lost: &[String]| RecoveryAction {
            action: match strategy {
                RecoveryStrategy::LatestCheckpoint => "latest_checkpoint",
                RecoveryStrategy::SpecificCheckpoint(_) => "specific_checkpoint",
                RecoveryStrategy::IncrementalReconstruction => "incremental_reconstruction",
                RecoveryStrategy::PartialRecovery => "partial_recovery",
            }
            .to_owned(),
            by: by.to_owned(),
            reason: reason.to_owned(),
            subject: Some(subject),
            lost: lost.to_vec(),
        };
        let recovered =
            |session, outlook, lost| RecoveredSession { session, outlook, lost, differences: Vec::new() };
        match strategy {
            RecoveryStrategy::LatestCheckpoint | RecoveryStrategy::SpecificCheckpoint(_) => {
                let (session, run) = self.open(&self.store, self.session)?;
                let restored = self.go_back(&session, run, strategy, (by, reason), &action);
                let closed = session.close();
                let lost = restored?;
                closed?;
                Ok(recovered(self.session, outlook, lost))
            }
            RecoveryStrategy::IncrementalReconstruction => {
                let log = self.open_log()?;
                let updates = StateUpdate::list(&log, log.last_position(), &self.stores)?;
                let types = match &self.types {
                    Some(types) => types.clone(),
                    None => crate::persistence::declare(SessionTypes::builder()).build()?,
                };
                let options = SessionOptions::default().tag("reconstructed_from", self.session.to_string());
                let session = to.create_with(&types, options)?;
                let Rebuilt { lost, differences } = rebuild(&log, &updates, &session)?;
                session.dispatch(action(self.session.to_string(), &lost))?;
                let id = session.id();
                session.close()?;
                Ok(RecoveredSession { differences, ..recovered(id, outlook, lost) })
            }
            RecoveryStrategy::PartialRecovery => {
                let salvaged = to.salvage(self.dir(), SessionOptions::default())?;
                let lost = lost_by(&salvaged);
                let (session, _) = self.open(to, salvaged.session)?;
                require_validation(&session, &salvaged, &lost)?;
                session.dispatch(action(self.session.to_string(), &lost))?;
                session.close()?;
                Ok(recovered(salvaged.session, outlook, lost))
            }
        }
    }

    /// Goes back to a checkpoint, and returns what was lost.
    fn go_back(
        &self,
        session: &Session,
        run: ExecutionState,
        strategy: RecoveryStrategy,
        (by, reason): (&str, &str),
        action: &dyn Fn(String, &[String]) -> RecoveryAction,
    ) -> Result<Vec<String>> {
        let manager = CheckpointManager::new(session.clone()).with_stores(self.stores.clone());
        let manager = if self.resources.is_some() { manager.with_resources(run) } else { manager };
        let checkpoint = match strategy {
            RecoveryStrategy::SpecificCheckpoint(id) => manager.get(id)?,
            _ => manager.latest()?.ok_or(Error::NoCheckpoint)?,
        };
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let with_resources = self.resources.is_some() && checkpoint.resources.is_some();
        let options = RestoreOptions { by, reason, apply_later_updates: false, with_resources };
        let report = manager.restore_from_checkpoint(checkpoint.id, &options)?;
        let lost: Vec<String> = report
            .rolled_back
            .outside
            .iter()
            .map(|call| {
                let tool = foldlog::escape::text(&call.tool);
                format!(
                    "operation {} (`{tool}`) may have had effects that no rollback undoes",
                    call.operation
                )
            })
            .collect();
        session.dispatch(action(checkpoint.id.to_string(), &lost))?;
        Ok(lost)
    }

    /// Opens a session for writing, and ends runs of tools that were left open.
    fn open(&self, store: &Store, session: Uuid) -> Result<(Session, ExecutionState)> {
        let session = match &self.types {
            Some(types) => store.open_session(session, types)?,
            None => super::open_without_host(store, session)?.0,
        };
        let resources = match &self.resources {
            Some(resources) => resources.clone(),
            None => ResourceRegistry::builder().build()?,
        };
        let run = ExecutionState::new(session.clone(), resources);
        if session.is_interrupted() {
            ToolRunner::new(run.clone(), ToolRegistry::new()).recover(&ExecuteOptions::default())?;
        }
        Ok((session, run))
    }
}

/// Lists what a salvage left behind.
pub(super) fn lost_by(salvaged: &SalvageReport) -> Vec<String> {
    let skipped = salvaged.left.iter().map(|left| {
        let (segment, more) = (foldlog::escape::path(&left.segment), if left.more { " or more" } else { "" });
        let (bytes, offset, records, reason) = (left.bytes, left.offset, left.records, &left.reason);
        format!("{bytes} bytes of {segment} from {offset} on, with {records} sound records{more}: {reason}")
    });
    let objects = salvaged.missing_objects.iter().map(|missing| {
        let path = foldlog::escape::path(&missing.path);
        format!("the object {path}, which record {} names: {}", missing.sequence, missing.reason)
    });
    let open = salvaged.open.iter().map(|open| {
        format!(
            "what operation {} (`{}`) did: it was open",
            open.operation,
            foldlog::escape::text(&open.tool)
        )
    });
    skipped.chain(objects).chain(open).collect()
}

/// Says that somebody has to look at what was salvaged.
fn require_validation(session: &Session, salvaged: &SalvageReport, lost: &[String]) -> Result<()> {
    let known = session.latest::<Configurations>()?.map(|one| one.configuration.clone());
    let damage = salvaged.damage.as_ref().map(|damage| format!(": {damage}")).unwrap_or_default();
    let lost = lost.len();
    let reason = format!(
        "{} records of session {} were salvaged, {lost} losses are listed{damage}",
        salvaged.records, salvaged.from
    );
    let configuration = SessionConfiguration {
        requires_validation: true,
        validation_reason: Some(reason),
        ..known.unwrap_or_default()
    };
    session.dispatch(SessionConfigured { configuration })?;
    Ok(())
}
