//! What each strategy would bring back, told without writing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::audit::LogReader;
use foldlog::{SequenceNumber, SessionOptions, Store, escape};
use serde::{Deserialize, Serialize};

use super::recovering::CrashRecoveryManager;
use crate::persistence::error::{Error, Result};
use crate::persistence::{
    CheckpointHistory, CheckpointId, SessionState, StateUpdate, TaskStatus, UpdateOperation,
};

/// Names a way to go on after a crash. The [table](super#strategies) says what each needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryStrategy {
    /// Goes back to the latest checkpoint on the live path.
    LatestCheckpoint,
    /// Goes back to this checkpoint.
    SpecificCheckpoint(CheckpointId),
    /// Makes a new session of the updates alone.
    IncrementalReconstruction,
    /// Makes a new session of what is sound.
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

    /// Reads `latest`, `checkpoint:ID`, `updates` or `partial`.
    fn from_str(text: &str) -> Result<RecoveryStrategy, String> {
        match (text, text.strip_prefix("checkpoint:")) {
            ("latest", _) => Ok(RecoveryStrategy::LatestCheckpoint),
            ("updates", _) => Ok(RecoveryStrategy::IncrementalReconstruction),
            ("partial", _) => Ok(RecoveryStrategy::PartialRecovery),
            (_, Some(id)) => {
                let id = id.parse::<CheckpointId>().map_err(|error| error.to_string())?;
                Ok(RecoveryStrategy::SpecificCheckpoint(id))
            }
            _ => Err(format!("`{}` is none of latest, checkpoint:ID, updates, partial", escape::text(text))),
        }
    }
}

/// Says what a strategy would bring back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryOutlook {
    /// The strategy.
    pub strategy: RecoveryStrategy,
    /// Why it cannot be followed; `None` if it can. All numbers are 0 then.
    pub impossible: Option<String>,
    /// Whether it makes a new session. The present one is only read then.
    pub new_session: bool,
    /// Position that the session would be at; of a new session made of updates, the one that was read.
    pub position: Option<SequenceNumber>,
    /// Number of tasks.
    pub tasks: u64,
    /// Number of tasks that were completed.
    pub completed_tasks: u64,
    /// Number of messages of all conversations.
    pub messages: u64,
    /// Number of files in the captures of all workspaces.
    pub files: u64,
    /// Number of updates that count now, as far as they can be read, and would not.
    pub lost_updates: u64,
    /// What else would be lost, or cannot be told, one entry each.
    pub lost: Vec<String>,
}

impl RecoveryOutlook {
    fn of(strategy: RecoveryStrategy, state: &SessionState, position: SequenceNumber) -> RecoveryOutlook {
        let captures = state.file_system.workspace_snapshot.values();
        RecoveryOutlook {
            impossible: None,
            new_session: false,
            position: Some(position),
            tasks: state.task_tree.tasks.len() as u64,
            completed_tasks: state.task_tree.count(TaskStatus::Completed),
            messages: state.claude_context.conversation_history.messages_len(),
            files: captures.map(|capture| capture.snapshot.files).sum(),
            ..RecoveryOutlook::none(strategy)
        }
    }

    fn none(strategy: RecoveryStrategy) -> RecoveryOutlook {
        RecoveryOutlook {
            strategy,
            impossible: None,
            new_session: false,
            position: None,
            tasks: 0,
            completed_tasks: 0,
            messages: 0,
            files: 0,
            lost_updates: 0,
            lost: Vec::new(),
        }
    }
}

impl CrashRecoveryManager {
    /// Says what a strategy would bring back, without writing into any store.
    ///
    /// # Errors
    ///
    /// The errors of reading a log that are no damage; damage makes a strategy impossible.
    pub fn plan(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        let planned = match strategy {
            RecoveryStrategy::LatestCheckpoint => self.plan_checkpoint(strategy, None),
            RecoveryStrategy::SpecificCheckpoint(id) => self.plan_checkpoint(strategy, Some(id)),
            RecoveryStrategy::IncrementalReconstruction => self.plan_updates(strategy),
            RecoveryStrategy::PartialRecovery => self.plan_partial(strategy),
        };
        let impossible = match planned {
            Ok(outlook) => return Ok(outlook),
            Err(Error::Engine(error)) if !error.is_damage() => return Err(error.into()),
            Err(error) => Some(error.to_string()),
        };
        Ok(RecoveryOutlook { impossible, ..RecoveryOutlook::none(strategy) })
    }

    /// Says what all strategies would bring back: the latest checkpoint, each that is kept, the updates, and what is sound.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](CrashRecoveryManager::plan).
    pub fn plan_all(&self) -> Result<Vec<RecoveryOutlook>> {
        let history = self.open_log().map_err(Error::from).and_then(|log| CheckpointHistory::read(&log));
        let history = history.unwrap_or_default();
        let each = history.list().into_iter().map(|one| RecoveryStrategy::SpecificCheckpoint(one.id));
        let rest = [RecoveryStrategy::IncrementalReconstruction, RecoveryStrategy::PartialRecovery];
        let all = std::iter::once(RecoveryStrategy::LatestCheckpoint).chain(each).chain(rest);
        all.map(|strategy| self.plan(strategy)).collect()
    }

    fn plan_checkpoint(
        &self,
        strategy: RecoveryStrategy,
        id: Option<CheckpointId>,
    ) -> Result<RecoveryOutlook> {
        let log = self.open_log()?;
        let history = CheckpointHistory::read(&log)?;
        let end = log.last_position();
        let checkpoint = match id {
            Some(id) => history.get(id)?,
            None => history.latest_on(log.live_path(), end).ok_or(Error::NoCheckpoint)?,
        };
        history.verify(&log, checkpoint.id)?;
        let position = checkpoint.position;
        let (state, kept) = SessionState::with_updates(&log, position, &self.stores)?;
        let kept = records_of(&kept);
        let updates = StateUpdate::list(&log, end, &self.stores)?;
        let lost_updates = records_of(&updates).iter().filter(|one| !kept.contains(one)).count();
        let outlook = RecoveryOutlook::of(strategy, &state, position);
        Ok(RecoveryOutlook { lost_updates: lost_updates as u64, ..outlook })
    }

    fn plan_updates(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        let log = self.open_log()?;
        let end = log.last_position();
        let (state, updates) = SessionState::with_updates(&log, end, &self.stores)?;
        let views =
            updates.iter().filter(|one| matches!(one.operation, UpdateOperation::FileModified { .. }));
        Ok(RecoveryOutlook {
            new_session: true,
            files: 0,
            lost_updates: views.count() as u64,
            lost: vec![
                "captures of workspaces, ends of tools, what was logged and what was used: no update holds them"
                    .to_owned(),
                "times: tasks and messages get those of the reconstruction".to_owned(),
            ],
            ..RecoveryOutlook::of(strategy, &state, end)
        })
    }

    /// Salvages into a temporary folder, and reads what came of it.
    fn plan_partial(&self, strategy: RecoveryStrategy) -> Result<RecoveryOutlook> {
        let temporary = Temporary::new(self.session);
        let salvaged = Store::open(&temporary.0)?.salvage(self.dir(), SessionOptions::default())?;
        let log = LogReader::open(&salvaged.dir)?;
        let end = salvaged.records.saturating_sub(1).into();
        let state = SessionState::at(&log, end, &self.stores)?;
        Ok(RecoveryOutlook {
            new_session: true,
            lost: super::recovering::lost_by(&salvaged),
            ..RecoveryOutlook::of(strategy, &state, end)
        })
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.store.session_dir(self.session)
    }
}

/// Returns the records of updates, each with its number among those of its record.
fn records_of(updates: &[StateUpdate]) -> BTreeSet<(SequenceNumber, u64)> {
    let (mut records, mut last) = (BTreeSet::new(), None);
    let mut ordinal = 0;
    for update in updates {
        ordinal = if last == Some(update.position) { ordinal + 1 } else { 0 };
        last = Some(update.position);
        records.insert((update.position, ordinal));
    }
    records
}

/// A folder of the system's temporary ones, removed when this is dropped.
struct Temporary(PathBuf);

/// Number of temporary folders that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

impl Temporary {
    fn new(session: uuid::Uuid) -> Temporary {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("foldlog-outlook-{session}-{}-{number}", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl AsRef<Path> for Temporary {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed is a copy in a folder that the system clears.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
