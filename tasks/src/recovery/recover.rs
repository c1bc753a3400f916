//! Recovers a session by a given strategy.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::tools::{ExecuteOptions, ToolRegistry, ToolRunner};
use foldlog::{
    ExecutionState, ResourceRegistry, SalvageReport, Session, SessionOptions, SessionTypes, Store,
};
use uuid::Uuid;

use super::from_tree::session_of;
use super::rebuild::{Rebuilt, rebuild};
use super::{CrashState, LeftAlone, RecoveryOutlook, RecoveryStrategy};
use crate::error::{Error, Result};
use crate::files::give_up;
use crate::{
    CheckpointManager, Configurations, PartialTree, RecoveryAction, RestoreOptions, SessionConfiguration,
    SessionConfigured, StateUpdate, TreeLimits, WorkspaceStores,
};

/// Adds findings after a crash to a state.
pub(super) type CrashDetector = Arc<dyn Fn(&mut CrashState) -> Result<()> + Send + Sync>;

/// Detects the state of a session after a crash, previews the result of each
/// [strategy](RecoveryStrategy), and recovers the session by a given one. The session must not be
/// open during this.
#[must_use]
#[derive(Clone)]
pub struct CrashRecoveryManager {
    pub(super) store: Store,
    pub(super) session: Uuid,
    /// Whether there is a log, and not only a tree of files.
    pub(super) has_log: bool,
    types: Option<SessionTypes>,
    pub(super) stores: WorkspaceStores,
    resources: Option<ResourceRegistry>,
    pub(super) tree: Option<PathBuf>,
    pub(super) limits: TreeLimits,
    pub(super) sources: Vec<CrashDetector>,
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

/// Reports the results of a recovery.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredSession {
    /// Session that continues: the recovered one, or a new one.
    pub session: Uuid,
    /// Expected result of the strategy.
    pub outlook: RecoveryOutlook,
    /// Losses and steps that failed, as the [`RecoveryAction`] lists them.
    pub lost: Vec<String>,
    /// Differences between a session created from updates and the source of the updates. Empty if
    /// there are none.
    pub differences: Vec<String>,
}

impl CrashRecoveryManager {
    /// Returns a manager for a session of a store.
    pub fn new(store: Store, session: Uuid) -> CrashRecoveryManager {
        let stores = WorkspaceStores::from_session_dir(&store.session_dir(session));
        let (types, resources, tree) = (None, None, None);
        let (has_log, sources, limits) = (true, Vec::new(), TreeLimits::default());
        CrashRecoveryManager { store, session, has_log, types, stores, resources, tree, limits, sources }
    }

    /// Returns a manager for a [tree of files](CrashRecoveryManager::with_tree) whose log is lost.
    /// The only strategy is [`PartialRecovery`](RecoveryStrategy::PartialRecovery), which creates a
    /// new session from the tree's intact files.
    pub fn of_tree(store: Store, dir: impl Into<PathBuf>) -> CrashRecoveryManager {
        let manager = CrashRecoveryManager::new(store, Uuid::nil()).with_stores(WorkspaceStores::none());
        CrashRecoveryManager { has_log: false, ..manager.with_tree(dir) }
    }

    /// Sets the maximum length of the tree's files.
    pub fn with_limits(self, limits: TreeLimits) -> CrashRecoveryManager {
        CrashRecoveryManager { limits, ..self }
    }

    /// Sets the types of the session's host. Without them, events of the host's own types are
    /// unchanged.
    pub fn with_types(self, types: SessionTypes) -> CrashRecoveryManager {
        CrashRecoveryManager { types: Some(types), ..self }
    }

    /// Sets the location of the captures of workspaces. The default is the directory `files` in the
    /// session's directory.
    pub fn with_stores(self, stores: WorkspaceStores) -> CrashRecoveryManager {
        CrashRecoveryManager { stores, ..self }
    }

    /// Sets the resources of the tools, so that open runs of tools can be rolled back, and the
    /// resources of a checkpoint restored.
    pub fn with_resources(self, resources: ResourceRegistry) -> CrashRecoveryManager {
        CrashRecoveryManager { resources: Some(resources), ..self }
    }

    /// Also examines the tree of files of a session: a session's directory of an `.aca`, or a
    /// directory with an `.aca` that contains one session. If no part of the log is intact,
    /// [`PartialRecovery`](RecoveryStrategy::PartialRecovery) uses the tree's intact files.
    pub fn with_tree(self, dir: impl Into<PathBuf>) -> CrashRecoveryManager {
        CrashRecoveryManager { tree: Some(dir.into()), ..self }
    }

    /// Adds a source of findings, such as the host's own files.
    pub fn with_source(
        mut self,
        source: impl Fn(&mut CrashState) -> Result<()> + Send + Sync + 'static,
    ) -> CrashRecoveryManager {
        self.sources.push(Arc::new(source));
        self
    }

    pub(super) fn open_log(&self) -> foldlog::Result<LogReader> {
        self.store.read_log(self.session)
    }

    /// Returns the types of the session's host, or those of long-running work.
    pub(super) fn types(&self) -> Result<SessionTypes> {
        match &self.types {
            Some(types) => Ok(types.clone()),
            None => Ok(foldlog_agent::events::declare(crate::declare(SessionTypes::builder())).build()?),
        }
    }

    /// Recovers the session by a strategy. New sessions are created in `to`, which may be the
    /// session's own store.
    ///
    /// Open runs of tools are ended first, as
    /// [`ToolRunner::recover`](foldlog::tools::ToolRunner::recover) does: nothing is run again.
    /// Actions are recorded as [`RecoveryAction`]s of the session that continues, which is closed
    /// when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Impossible`] if the strategy cannot be followed, with the reason that
    /// [`plan`](CrashRecoveryManager::plan) gives; nothing was changed then. Else those of opening
    /// a session, of [`restore_from_checkpoint`](CheckpointManager::restore_from_checkpoint), of
    /// [`Store::salvage`] and of dispatching.
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
                let resources =
                    self.resources.clone().map_or_else(|| ResourceRegistry::builder().build(), Ok)?;
                let (session, run) = self.open_with(&self.store, self.session, |_| Ok(resources))?;
                let restored = self.go_back(&session, run, strategy, by, reason, &action);
                let closed = session.close();
                let lost = restored?;
                closed?;
                Ok(recovered(self.session, outlook, lost))
            }
            RecoveryStrategy::IncrementalReconstruction => {
                let log = self.open_log()?;
                let updates = StateUpdate::list(&log, log.last_position(), &self.stores)?;
                let options = SessionOptions::default().tag("reconstructed_from", self.session.to_string());
                let session = to.create_with(&self.types()?, options)?;
                let rebuilt = rebuild(&log, &updates, &session).and_then(|rebuilt| {
                    session.dispatch(action(self.session.to_string(), &rebuilt.lost))?;
                    Ok(rebuilt)
                });
                let Rebuilt { lost, differences } = match rebuilt {
                    Ok(rebuilt) => rebuilt,
                    Err(error) => return Err(give_up(to, session, error.into())),
                };
                let id = session.id();
                session.close()?;
                Ok(RecoveredSession { differences, ..recovered(id, outlook, lost) })
            }
            RecoveryStrategy::PartialRecovery => {
                let session = self.partial(to, &action)?;
                let (id, lost) = (session.id(), outlook.lost.clone());
                session.close()?;
                Ok(recovered(id, outlook, lost))
            }
        }
    }

    /// Creates a session from the intact data: of the log, or of the tree of files if no part of
    /// the log is intact.
    fn partial(&self, to: &Store, action: &dyn Fn(String, &[String]) -> RecoveryAction) -> Result<Session> {
        if self.has_log {
            match to.salvage(self.dir(), SessionOptions::default()) {
                Ok(salvaged) => return self.continue_salvaged(to, &salvaged, action),
                Err(error) if self.tree.is_some() && self.is_lost(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let missing = || Error::NoTree { path: self.dir(), reason: "no tree was given".to_owned() };
        let tree = PartialTree::read(self.tree.as_deref().ok_or_else(missing)?, self.limits)?;
        let lost: Vec<String> = tree.lost.iter().map(ToString::to_string).collect();
        let action = action(foldlog::escape::path(&tree.dir), &lost);
        session_of(&tree, to, &self.types()?, action)
    }

    /// Continues with a salvaged session. If that fails, the session is deleted.
    fn continue_salvaged(
        &self,
        to: &Store,
        salvaged: &SalvageReport,
        action: &dyn Fn(String, &[String]) -> RecoveryAction,
    ) -> Result<Session> {
        let opened = self.open_alone(to, salvaged.session);
        let (session, left_alone) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The session was not returned to a caller, so nothing of it may remain. If it
                // cannot be deleted, it is still a valid salvaged session.
                let _ = to.delete(salvaged.session);
                return Err(error);
            }
        };
        let mut lost = lost_by(salvaged);
        lost.extend(left_alone);
        let told = require_validation(&session, salvaged, &lost)
            .and_then(|()| Ok(session.dispatch(action(self.session.to_string(), &lost))?));
        match told {
            Ok(_) => Ok(session),
            Err(error) => Err(give_up(to, session, error)),
        }
    }

    /// Returns to a checkpoint, and lists the losses.
    fn go_back(
        &self,
        session: &Session,
        run: ExecutionState,
        strategy: RecoveryStrategy,
        by: &str,
        reason: &str,
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

    /// Opens a salvaged session for writing, and ends open runs of tools without their resources,
    /// which belong to the damaged session. Reports each.
    fn open_alone(&self, store: &Store, session: Uuid) -> Result<(Session, Vec<String>)> {
        let mut left_alone = Vec::new();
        let (session, _) = self.open_with(store, session, |session| {
            left_alone = self.left_alone(session)?;
            let captured = session.calls().open_captures()?.into_keys();
            let stand_in = Arc::new(LeftAlone);
            let resources = captured.fold(ResourceRegistry::builder(), |resources, name| {
                resources.named(name, Arc::clone(&stand_in))
            });
            Ok(resources.build()?)
        })?;
        Ok((session, left_alone))
    }

    /// Lists the resources that remain as an open call of a salvaged session left them.
    pub(super) fn left_alone(&self, session: &Session) -> Result<Vec<String>> {
        let captured =
            session.calls().open_captures()?.into_iter().filter(|(_, recorded)| recorded.is_some());
        let damaged = self.session;
        let left = captured.map(|(name, _)| {
            let name = foldlog::escape::text(&name);
            format!(
                "what `{name}` was before the open call: it stays as the call of session {damaged} left it"
            )
        });
        Ok(left.collect())
    }

    /// Opens a session for writing, and ends open runs of tools.
    fn open_with(
        &self,
        store: &Store,
        session: Uuid,
        resources: impl FnOnce(&Session) -> Result<ResourceRegistry>,
    ) -> Result<(Session, ExecutionState)> {
        let session = match &self.types {
            Some(types) => store.open_session(session, types)?,
            None => super::open_without_host(store, session)?.0,
        };
        let ended = resources(&session).and_then(|resources| {
            let run = ExecutionState::new(session.clone(), resources);
            if session.calls().is_interrupted() {
                ToolRunner::new(run.clone(), ToolRegistry::new()).recover(&ExecuteOptions::default())?;
            }
            Ok(run)
        });
        match ended {
            Ok(run) => Ok((session, run)),
            Err(error) => {
                // The first error is the cause.
                let _ = session.close();
                Err(error)
            }
        }
    }
}

/// Lists the losses of a salvage.
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

/// Records that a person has to check the salvaged session.
fn require_validation(session: &Session, salvaged: &SalvageReport, lost: &[String]) -> Result<()> {
    let known = session.log().latest::<Configurations>()?.map(|one| one.configuration.clone());
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
