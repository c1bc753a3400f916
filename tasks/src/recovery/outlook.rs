//! Previews the result of each strategy, without writing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use foldlog::inspect::LogReader;
use foldlog::{Durability, SequenceNumber, SessionOptions, Store, StoreOptions, escape};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::from_tree::session_of;
use super::recover::{CrashRecoveryManager, lost_by};
use crate::error::{Error, Result};
use crate::{
    Checkpoint, CheckpointHistory, CheckpointId, PartialTree, RecoveryAction, SessionState, StateUpdate,
    TaskStatus, TaskTreeState, UpdateOperation, WorkspaceStores,
};

/// Names a way to continue after a crash. The [table](super#strategies) lists the requirements of
/// each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum RecoveryStrategy {
    /// Returns to the latest checkpoint on the live path.
    #[default]
    LatestCheckpoint,
    /// Returns to this checkpoint.
    SpecificCheckpoint(CheckpointId),
    /// Creates a new session from the updates only.
    IncrementalReconstruction,
    /// Creates a new session from the intact data.
    PartialRecovery,
}

impl fmt::Display for RecoveryStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryStrategy::LatestCheckpoint => f.write_str("latest"),
            RecoveryStrategy::SpecificCheckpoint(id) => write!(f, "checkpoint:{}", id.0),
            RecoveryStrategy::IncrementalReconstruction => f.write_str("updates"),
            RecoveryStrategy::PartialRecovery => f.write_str("partial"),
        }
    }
}

impl FromStr for RecoveryStrategy {
    type Err = String;

    /// Parses `latest`, `checkpoint:ID`, `updates` or `partial`.
    fn from_str(text: &str) -> Result<RecoveryStrategy, String> {
        match (text, text.strip_prefix("checkpoint:")) {
            ("latest", _) => Ok(RecoveryStrategy::LatestCheckpoint),
            ("updates", _) => Ok(RecoveryStrategy::IncrementalReconstruction),
            ("partial", _) => Ok(RecoveryStrategy::PartialRecovery),
            (_, Some(id)) => {
                let id = id.parse::<CheckpointId>().map_err(|error| error.to_string())?;
                Ok(RecoveryStrategy::SpecificCheckpoint(id))
            }
            _ => Err(format!(
                "unknown strategy `{}`: use latest, checkpoint:ID, updates or partial",
                escape::text(text)
            )),
        }
    }
}

impl TryFrom<String> for RecoveryStrategy {
    type Error = String;

    fn try_from(text: String) -> Result<RecoveryStrategy, String> {
        text.parse()
    }
}

impl From<RecoveryStrategy> for String {
    fn from(strategy: RecoveryStrategy) -> String {
        strategy.to_string()
    }
}

/// Describes the expected result of a strategy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryOutlook {
    /// The strategy.
    pub strategy: RecoveryStrategy,
    /// Why it cannot be followed; `None` if it can. If set, all numbers are 0.
    pub impossible: Option<String>,
    /// Whether it creates a new session. If so, the current one is only read.
    pub new_session: bool,
    /// Resulting position of the session. For a new session created from updates or from a tree of
    /// files, the position that was read.
    pub position: Option<SequenceNumber>,
    /// Number of tasks.
    pub tasks: u64,
    /// Number of completed tasks.
    pub completed_tasks: u64,
    /// Number of messages in all conversations.
    pub messages: u64,
    /// Number of files in the captures of all workspaces.
    pub files: u64,
    /// Number of updates that count now, as far as they can be read, but would not count in the
    /// result. For a tree of files, the number of unreadable ones.
    pub lost_updates: u64,
    /// Other losses, or facts that cannot be determined, one entry each.
    pub lost: Vec<String>,
}

impl RecoveryOutlook {
    fn from_state(
        strategy: RecoveryStrategy,
        state: &SessionState,
        position: SequenceNumber,
    ) -> RecoveryOutlook {
        let captures = state.file_system.workspace_snapshot.values();
        RecoveryOutlook {
            strategy,
            position: Some(position),
            tasks: state.task_tree.tasks.len() as u64,
            completed_tasks: state.task_tree.count(TaskStatus::Completed),
            messages: state.claude_context.conversation_history.messages_len(),
            files: captures.map(|capture| capture.snapshot.files).sum(),
            ..RecoveryOutlook::default()
        }
    }
}

impl CrashRecoveryManager {
    /// Previews the result of a strategy, without writing into any store.
    ///
    /// # Errors
    ///
    /// The errors of reading a log that are no damage; damage makes a strategy impossible.
    pub fn plan(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        self.plan_by(strategy, None)
    }

    /// Previews the results of all strategies: the latest checkpoint, each existing one, the
    /// updates, and the intact data. A manager for a tree of files alone has one strategy,
    /// [`PartialRecovery`](RecoveryStrategy::PartialRecovery).
    pub fn plan_all(&self) -> Result<Vec<RecoveryOutlook>> {
        if !self.has_log {
            return Ok(vec![self.plan(RecoveryStrategy::PartialRecovery)?]);
        }
        // If the log cannot be read completely, each strategy that needs it is impossible, for its
        // own reason.
        let walked = self.walk().ok();
        let kept = walked.iter().flat_map(|walked| walked.history.list());
        let each = kept.map(|one| RecoveryStrategy::SpecificCheckpoint(one.id));
        let rest = [RecoveryStrategy::IncrementalReconstruction, RecoveryStrategy::PartialRecovery];
        let all = std::iter::once(RecoveryStrategy::LatestCheckpoint).chain(each).chain(rest);
        all.map(|strategy| self.plan_by(strategy, walked.as_ref())).collect()
    }

    fn plan_by(
        &self,
        strategy: RecoveryStrategy,
        walked: Option<&RecoverySurvey>,
    ) -> Result<RecoveryOutlook> {
        let planned = match strategy {
            RecoveryStrategy::PartialRecovery => self.plan_partial(strategy),
            _ if !self.has_log => Err(Error::Impossible {
                strategy,
                reason: "there is only a tree of files, and no log".to_owned(),
            }),
            _ => match walked {
                Some(walked) => walked.plan(strategy),
                None => self.walk().and_then(|walked| walked.plan(strategy)),
            },
        };
        let impossible = match planned {
            Ok(outlook) => return Ok(outlook),
            Err(Error::Engine(error)) if !self.is_lost(&error) => return Err(error.into()),
            Err(Error::Impossible { reason, .. }) => Some(reason),
            Err(error) => Some(error.to_string()),
        };
        Ok(RecoveryOutlook { strategy, impossible, ..RecoveryOutlook::default() })
    }

    fn walk(&self) -> Result<RecoverySurvey> {
        let log = self.open_log()?;
        let history = CheckpointHistory::read(&log)?;
        let mismatch = history.mismatches(&log, log.last_position())?.into_iter().next();
        let (state, updates) = SessionState::with_updates(&log, log.last_position(), &self.stores)?;
        Ok(RecoverySurvey { log, history, mismatch, state, updates })
    }

    /// Salvages the log into a temporary directory, and reads the result. If no part of the log is
    /// intact, previews the result from the tree of files.
    fn plan_partial(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        let Some(dir) = self.tree.as_deref() else { return self.plan_salvage(strategy) };
        if self.has_log {
            match self.plan_salvage(strategy) {
                Err(Error::Engine(error)) if self.is_lost(&error) => {}
                planned => return planned,
            }
        }
        self.plan_tree(strategy, dir)
    }

    fn plan_salvage(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        let (_directory, store) = temporary_store()?;
        let salvaged = store.salvage(self.dir(), SessionOptions::default())?;
        let log = store.read_log(salvaged.session)?;
        let end = salvaged.records.saturating_sub(1).into();
        let mut state = SessionState::at(&log, end, &self.stores)?;
        // Changes of STATE by open calls are rolled back when these are ended.
        if let Some(begin) = salvaged.open.iter().map(|open| open.begin).min()
            && let Some(before) = begin.checked_sub(1)
        {
            state.task_tree = TaskTreeState::at(&log, before)?;
        }
        let mut lost = lost_by(&salvaged);
        lost.extend(self.left_alone(&store.open_to_recover(salvaged.session)?)?);
        Ok(RecoveryOutlook { new_session: true, lost, ..RecoveryOutlook::from_state(strategy, &state, end) })
    }

    /// Creates the session in a temporary directory, and reads the result.
    fn plan_tree(&self, strategy: RecoveryStrategy, dir: &Path) -> Result<RecoveryOutlook> {
        let tree = PartialTree::read(dir, self.limits)?;
        let (_directory, store) = temporary_store()?;
        let session = session_of(&tree, &store, &self.types()?, RecoveryAction::default())?;
        let log = store.read_log(session.id())?;
        let state = SessionState::at(&log, log.last_position(), &WorkspaceStores::none())?;
        session.close()?;
        let outlook = RecoveryOutlook::from_state(strategy, &state, log.last_position());
        let (position, lost_updates) = (tree.position, tree.updates.1);
        let lost = tree.lost.iter().map(ToString::to_string).collect();
        Ok(RecoveryOutlook { new_session: true, position, lost_updates, lost, ..outlook })
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.store.session_dir(self.session)
    }
}

/// The findings of one walk along a log, for all strategies that need the whole log.
struct RecoverySurvey {
    log: LogReader,
    history: CheckpointHistory,
    /// The first checkpoint whose hash does not match.
    mismatch: Option<Error>,
    /// State at the end.
    state: SessionState,
    /// Updates that count at the end.
    updates: Vec<StateUpdate>,
}

impl RecoverySurvey {
    fn plan(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        match strategy {
            RecoveryStrategy::SpecificCheckpoint(id) => self.checkpoint(strategy, self.history.get(id)?),
            RecoveryStrategy::IncrementalReconstruction => Ok(self.reconstruction(strategy)),
            _ => {
                let latest = self.history.latest_on(self.log.live_path(), self.log.last_position());
                self.checkpoint(strategy, latest.ok_or(Error::NoCheckpoint)?)
            }
        }
    }

    /// Previews a return to a checkpoint, from the counts in its manifest.
    fn checkpoint(&self, strategy: RecoveryStrategy, checkpoint: &Checkpoint) -> Result<RecoveryOutlook> {
        // Each hash is computed from the previous one.
        if let Some(mismatch @ Error::CheckpointMismatch { id, .. }) = &self.mismatch
            && *id <= checkpoint.id
        {
            return Err(Error::Impossible { strategy, reason: mismatch.to_string() });
        }
        let Checkpoint { position, manifest, workspaces, .. } = checkpoint;
        let live = self.log.live_path().live_at(*position);
        let is_live = |update: &&StateUpdate| {
            let range = live.get(live.partition_point(|range| *range.end() < update.position));
            range.is_some_and(|range| range.contains(&update.position))
        };
        Ok(RecoveryOutlook {
            strategy,
            position: Some(*position),
            tasks: manifest.total_tasks,
            completed_tasks: manifest.completed_tasks,
            messages: manifest.conversation_messages_count,
            files: workspaces.values().map(|capture| capture.files).sum(),
            lost_updates: self.updates.iter().filter(|update| !is_live(update)).count() as u64,
            ..RecoveryOutlook::default()
        })
    }

    fn reconstruction(&self, strategy: RecoveryStrategy) -> RecoveryOutlook {
        let is_view = |one: &&StateUpdate| matches!(one.operation, UpdateOperation::FileModified { .. });
        RecoveryOutlook {
            new_session: true,
            files: 0,
            lost_updates: self.updates.iter().filter(is_view).count() as u64,
            lost: vec![
                "captures of workspaces, ends of tools, logs and usage: updates do not contain them"
                    .to_owned(),
                "times: tasks and messages get the times of the reconstruction".to_owned(),
            ],
            ..RecoveryOutlook::from_state(strategy, &self.state, self.log.last_position())
        }
    }
}

/// Creates a store in a temporary directory, which is removed when the first value is dropped.
fn temporary_store() -> Result<(TempDir, Store)> {
    let path = std::env::temp_dir();
    let directory = tempfile::Builder::new().prefix("foldlog-outlook-").tempdir_in(&path);
    let directory = directory.map_err(|source| Error::Io { op: "written", path, source })?;
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    let store = Store::open_with(&directory, options)?;
    Ok((directory, store))
}
