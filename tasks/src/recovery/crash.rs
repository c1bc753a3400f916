//! What a crash left.

use std::fmt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use foldlog::inspect::{LogReader, RecordedContent};
use foldlog::process::ProcessIdentity;
use foldlog::{OperationId, SequenceNumber, SessionTypes, escape};
use serde::{Deserialize, Serialize};

use super::recover::CrashRecoveryManager;
use crate::error::{DamagedFile, Error, Result};
use crate::files::unfinished_import;
use crate::{RecoveryAction, RecoveryActions, SessionTree, TreeLimits};

/// Holds what a crash left of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashState {
    /// What was begun and not ended.
    pub incomplete_writes: Vec<IncompleteWrite>,
    /// What is damaged.
    pub corrupted_files: Vec<CorruptedFile>,
    /// What still is there although nobody needs it.
    pub orphaned_resources: Vec<OrphanedResource>,
    /// Time at which somebody looked.
    pub detected_at: DateTime<Utc>,
}

/// Names something that was begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum IncompleteWrite {
    /// The log was not closed: its last writer ended before it could.
    NotClosed {
        /// Records at the end that are not attested as durable. They are kept.
        unattested: u64,
    },
    /// Bytes at the end of the log that nobody was told are durable, and that are not whole.
    TornTail {
        /// Segment file.
        file: PathBuf,
        /// Where the sound part ends.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// A file without any record of the log.
    Leftover {
        /// The file or directory.
        file: PathBuf,
    },
    /// A tool's run that has not ended.
    Operation {
        /// Its operation.
        operation: OperationId,
        /// Name of the tool.
        tool: String,
    },
    /// A restore that has not ended.
    Restore {
        /// Checkpoint that was to be restored, as the record names it.
        subject: String,
        /// Record that says that it was begun.
        begun: SequenceNumber,
    },
    /// An import of a tree of files that has not ended: the session has no past. Nobody was told of it; delete it, and import
    /// again.
    Import {
        /// Id of the session whose tree it was.
        from: String,
    },
    /// Something of a source that the host named.
    Other {
        /// What it is.
        what: String,
    },
}

impl fmt::Display for IncompleteWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IncompleteWrite::NotClosed { unattested } => write!(
                f,
                "the log was not closed; {unattested} records at its end are not attested as durable, and kept"
            ),
            IncompleteWrite::TornTail { file, offset, bytes } => {
                write!(f, "{bytes} bytes of {} from {offset} on are no whole record", escape::path(file))
            }
            IncompleteWrite::Leftover { file } => write!(f, "{} holds no record", escape::path(file)),
            IncompleteWrite::Operation { operation, tool } => write!(
                f,
                "operation {operation} (`{}`) has not ended: its host, or `foldlog recover`, ends it",
                escape::text(tool)
            ),
            IncompleteWrite::Restore { subject, begun } => write!(
                f,
                "the restore to {} that record {begun} began has no end: another restore ends it",
                escape::text(subject)
            ),
            IncompleteWrite::Import { from } => write!(
                f,
                "the import of session {} has not ended: delete the session, and import again",
                escape::text(from)
            ),
            IncompleteWrite::Other { what } => f.write_str(&escape::text(what)),
        }
    }
}

/// Names something that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorruptedFile {
    /// The file, or the directory where no file can be named.
    pub file: PathBuf,
    /// What is wrong.
    pub reason: String,
}

/// Names something that still is there although nobody needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum OrphanedResource {
    /// A process that the session recorded, and that runs.
    Process {
        /// Name of the observation that recorded it.
        name: String,
        /// The process.
        process: ProcessIdentity,
    },
    /// The lock of a writer that has ended, which a process holds that it forked.
    Lock {
        /// Who took the lock.
        holder: String,
    },
    /// Something of a source that the host named.
    Other {
        /// What it is.
        what: String,
    },
}

impl fmt::Display for OrphanedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrphanedResource::Process { name, process } => {
                write!(f, "process {} runs, which `{}` recorded", process.pid, escape::text(name))
            }
            OrphanedResource::Lock { holder } => {
                write!(f, "the writer's lock is left of {}", escape::text(holder))
            }
            OrphanedResource::Other { what } => f.write_str(&escape::text(what)),
        }
    }
}

impl CrashState {
    /// Returns a state in which nothing was found.
    pub(super) fn none(detected_at: DateTime<Utc>) -> CrashState {
        let (incomplete_writes, corrupted_files) = (Vec::new(), Vec::new());
        CrashState { incomplete_writes, corrupted_files, orphaned_resources: Vec::new(), detected_at }
    }

    /// Returns whether nothing was found.
    pub(super) fn is_clean(&self) -> bool {
        self.incomplete_writes.is_empty()
            && self.corrupted_files.is_empty()
            && self.orphaned_resources.is_empty()
    }
}

impl CrashRecoveryManager {
    /// Looks for what a crash left: in the log and in the report of opening it, among restores that were begun, processes
    /// that were recorded as observations of a [`ProcessIdentity`], directories of sessions that were about to be made or deleted,
    /// the writer's lock, the [tree](CrashRecoveryManager::with_tree) of files, and what the host's [sources](CrashRecoveryManager::with_source) find. Returns `None` if there is
    /// nothing. Writes nothing.
    ///
    /// # Errors
    ///
    /// [`Locked`](foldlog::Error::Locked) if the session is open for writing in a process that runs, so that nobody can say
    /// what is left; the errors of reading a log that are no damage; the error of a source.
    pub fn detect_crash_state(&self, now: DateTime<Utc>) -> Result<Option<CrashState>> {
        let mut state = CrashState::none(now);
        if self.has_log {
            self.look_at_session(&mut state)?;
        }
        if let Some(tree) = &self.tree {
            look_at_tree(tree, self.limits, &mut state)?;
        }
        for source in &self.sources {
            source(&mut state)?;
        }
        Ok(Some(state).filter(|state| !state.is_clean()))
    }

    fn look_at_session(&self, state: &mut CrashState) -> Result<()> {
        self.look_at_lock(state)?;
        match self.open_log() {
            Ok(log) => look_at_log(&log, state)?,
            Err(error) if self.is_lost(&error) => state.corrupted_files.push(self.corrupted_file(&error)),
            Err(error) => return Err(error.into()),
        }
        let sessions = self.store.path().join("sessions");
        for name in [format!(".new-{}", self.session), format!(".deleted-{}", self.session)] {
            let file = sessions.join(name);
            if file.symlink_metadata().is_ok() {
                state.incomplete_writes.push(IncompleteWrite::Leftover { file });
            }
        }
        Ok(())
    }

    /// Returns whether an error says that the log is damaged, or is gone where a tree of files may be left of it.
    pub(super) fn is_lost(&self, error: &foldlog::Error) -> bool {
        let is_gone =
            matches!(error, foldlog::Error::NoSuchSession { .. } | foldlog::Error::NotASession { .. });
        error.is_damage() || (is_gone && self.tree.is_some())
    }

    fn corrupted_file(&self, error: &foldlog::Error) -> CorruptedFile {
        let file = match error {
            foldlog::Error::Corrupt(corruption) => corruption.segment.clone(),
            _ => self.store.session_dir(self.session),
        };
        CorruptedFile { file, reason: error.to_string() }
    }

    /// Looks who holds the writer's lock, and at the images, which no reader of logs uses.
    fn look_at_lock(&self, state: &mut CrashState) -> Result<()> {
        match self.store.open_to_recover(self.session) {
            Ok(session) => {
                let dropped = session.recovery().dropped_images.iter();
                let dropped = dropped.map(|file| CorruptedFile {
                    file: file.clone(),
                    reason: "the image is damaged or not of this log: it is made again".to_owned(),
                });
                state.corrupted_files.extend(dropped);
                Ok(())
            }
            Err(foldlog::Error::Locked { holder, .. }) if holder.ended => {
                state.orphaned_resources.push(OrphanedResource::Lock { holder: holder.to_string() });
                Ok(())
            }
            Err(error) if self.is_lost(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Looks at a tree of files: which are not what its manifest says, and what a killed writer left.
fn look_at_tree(dir: &Path, limits: TreeLimits, state: &mut CrashState) -> Result<()> {
    let corrupted = |dir: &Path, file: DamagedFile| CorruptedFile {
        file: dir.join(&file.path),
        reason: file.to_string(),
    };
    let tree = match SessionTree::open(dir, limits) {
        Ok(tree) => tree,
        Err(Error::NoTree { .. }) => return Ok(()),
        Err(Error::Damaged { dir, files }) => {
            state.corrupted_files.extend(files.into_iter().map(|file| corrupted(&dir, file)));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if tree.is_unfinished() {
        let dir = foldlog::escape::path(tree.dir());
        let what = format!("the tree in {dir} is whole, but not all of its files have their names yet");
        state.incomplete_writes.push(IncompleteWrite::Other { what });
    }
    let leftovers = tree.leftovers()?.into_iter();
    let leftovers = leftovers.map(|path| IncompleteWrite::Leftover { file: tree.dir().join(path) });
    state.incomplete_writes.extend(leftovers);
    let damage = tree.damage()?.into_iter();
    state.corrupted_files.extend(damage.map(|file| corrupted(tree.dir(), file)));
    Ok(())
}

/// Looks at what opening the log reported, and at what its records say.
fn look_at_log(log: &LogReader, state: &mut CrashState) -> Result<()> {
    let report = log.report();
    let writes = &mut state.incomplete_writes;
    if !report.closed {
        writes.push(IncompleteWrite::NotClosed { unattested: report.unattested });
    }
    writes.extend(report.torn.iter().map(|torn| IncompleteWrite::TornTail {
        file: torn.segment.clone(),
        offset: torn.offset,
        bytes: torn.bytes,
    }));
    writes.extend(report.leftovers.iter().map(|file| IncompleteWrite::Leftover { file: file.clone() }));
    writes.extend(
        report.interrupted.iter().map(|open| IncompleteWrite::Operation {
            operation: open.operation,
            tool: open.tool.to_string(),
        }),
    );
    writes.extend(open_restore(log)?);
    writes.extend(unfinished_import(log)?.map(|from| IncompleteWrite::Import { from }));
    let Some(last) = log.records_len().checked_sub(1) else { return Ok(()) };
    let orphans = &mut state.orphaned_resources;
    log.contents(SequenceNumber::MIN, last, |record| {
        if let RecordedContent::Observed(observed) = &record.content
            && let Ok(Some(process)) = observed.read::<Option<ProcessIdentity>>()
            && process.is_alive()
        {
            orphans.push(OrphanedResource::Process { name: observed.name.clone(), process });
        }
        Ok(())
    })?;
    Ok(())
}

/// Returns the restore that was begun last, if it has not ended.
fn open_restore(log: &LogReader) -> Result<Option<IncompleteWrite>> {
    let types = crate::declare(SessionTypes::builder()).build()?;
    let actions = log.state_reader()?.items::<RecoveryActions>(&types)?;
    let is_one = |one: &&std::sync::Arc<RecoveryAction>| {
        let kinds = [RecoveryAction::RESTORE, RecoveryAction::RESTORED, RecoveryAction::RESTORE_FAILED];
        kinds.contains(&one.action.as_str())
    };
    let last = actions.iter().rev().find(is_one).filter(|one| one.action == RecoveryAction::RESTORE);
    let Some(last) = last else { return Ok(None) };
    let mut begun = SequenceNumber::MIN;
    log.contents(SequenceNumber::MIN, log.last_position(), |record| {
        if let RecordedContent::Event(event) = &record.content
            && event.read::<RecoveryAction>()?.is_some_and(|one| one.action == RecoveryAction::RESTORE)
        {
            begun = record.sequence;
        }
        Ok(())
    })?;
    let subject = last.subject.clone().unwrap_or_default();
    Ok(Some(IncompleteWrite::Restore { subject, begun }))
}
