//! The state after a crash.

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

/// Describes the state of a session after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashState {
    /// Writes and operations that were started and did not end.
    pub incomplete_writes: Vec<IncompleteWrite>,
    /// Damage.
    pub corrupted_files: Vec<CorruptedFile>,
    /// Resources that still exist but are no longer needed.
    pub orphaned_resources: Vec<OrphanedResource>,
    /// Time of the detection.
    pub detected_at: DateTime<Utc>,
}

/// Describes a write or an operation that was started and did not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum IncompleteWrite {
    /// The log was not closed: its last writer ended before it could.
    #[error(
        "the log was not closed; number of records at its end that are not confirmed as durable, and kept: {unattested}"
    )]
    NotClosed {
        /// Records at the end that are not attested as durable. They are kept.
        unattested: u64,
    },
    /// Incomplete bytes at the end of the log that were never acknowledged as durable.
    #[error("{bytes} bytes of {} from {offset} on are not a complete record", escape::path(file))]
    TornTail {
        /// Segment file.
        file: PathBuf,
        /// End of the intact part.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// A file without any record of the log.
    #[error("{} contains no records", escape::path(file))]
    Leftover {
        /// The file or directory.
        file: PathBuf,
    },
    /// A tool's run that has not ended.
    #[error(
        "operation {operation} (`{}`) has not ended: its host, or `foldlog recover`, ends it",
        escape::text(tool)
    )]
    Operation {
        /// Its operation.
        operation: OperationId,
        /// Name of the tool.
        tool: String,
    },
    /// A restore that has not ended.
    #[error(
        "the restore to {} that record {begun} started has not ended: restore again",
        escape::text(subject)
    )]
    Restore {
        /// Checkpoint of the restore, as the record names it.
        subject: String,
        /// Record of its start.
        begun: SequenceNumber,
    },
    /// An import of a tree of files that has not ended: the session has no history. It was never
    /// returned to a caller; delete it, and import again.
    #[error(
        "the import of session {} has not ended: delete the session, and import again",
        escape::text(from)
    )]
    Import {
        /// Id of the tree's session.
        from: String,
    },
    /// A finding of one of the host's sources.
    #[error("{}", escape::text(what))]
    Other {
        /// Description.
        what: String,
    },
}

/// Describes damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorruptedFile {
    /// The file, or the directory if the file is unknown.
    pub file: PathBuf,
    /// The damage.
    pub reason: String,
}

/// Describes a resource that still exists but is no longer needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum OrphanedResource {
    /// A running process that the session recorded.
    #[error("process {}, which `{}` recorded, still runs", process.pid, escape::text(name))]
    Process {
        /// Name of the observation that recorded it.
        name: String,
        /// The process.
        process: ProcessIdentity,
    },
    /// The lock of a writer that has ended; a process that it forked still holds the lock.
    #[error("the writer's lock is left over: {}", escape::text(holder))]
    Lock {
        /// Owner of the lock.
        holder: String,
    },
    /// A finding of one of the host's sources.
    #[error("{}", escape::text(what))]
    Other {
        /// Description.
        what: String,
    },
}

impl CrashState {
    /// Returns whether there are no findings.
    pub(super) fn is_clean(&self) -> bool {
        self.incomplete_writes.is_empty()
            && self.corrupted_files.is_empty()
            && self.orphaned_resources.is_empty()
    }
}

impl CrashRecoveryManager {
    /// Detects the state after a crash. Examines the log and the report of opening it, restores
    /// that were started, processes that were recorded as observations of a [`ProcessIdentity`],
    /// directories of sessions that were being created or deleted, the writer's lock, the
    /// [tree](CrashRecoveryManager::with_tree) of files, and the host's
    /// [sources](CrashRecoveryManager::with_source). Returns `None` if there are no findings.
    /// Writes nothing.
    ///
    /// # Errors
    ///
    /// [`Locked`](foldlog::Error::Locked) if the session is open for writing in a running process,
    /// since the state cannot be determined then; the errors of reading a log that are no damage;
    /// the error of a source.
    pub fn detect_crash_state(&self, now: DateTime<Utc>) -> Result<Option<CrashState>> {
        let mut state = CrashState { detected_at: now, ..CrashState::default() };
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

    /// Returns whether an error means that the log is damaged, or that it is missing and a tree of
    /// files may exist.
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

    /// Examines the owner of the writer's lock, and the images, which readers of logs do not use.
    fn look_at_lock(&self, state: &mut CrashState) -> Result<()> {
        match self.store.open_to_recover(self.session) {
            Ok(session) => {
                let dropped = session.log().recovery().dropped_images.iter();
                let dropped = dropped.map(|file| CorruptedFile {
                    file: file.clone(),
                    reason: "the image is damaged or belongs to another log: it is created again".to_owned(),
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

/// Examines a tree of files: files that do not match its manifest, and those of a killed writer.
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
        let what = format!("the tree in {dir} is complete, but some of its files still have temporary names");
        state.incomplete_writes.push(IncompleteWrite::Other { what });
    }
    let leftovers = tree.leftovers()?.into_iter();
    let leftovers = leftovers.map(|path| IncompleteWrite::Leftover { file: tree.dir().join(path) });
    state.incomplete_writes.extend(leftovers);
    let damage = tree.damage()?.into_iter();
    state.corrupted_files.extend(damage.map(|file| corrupted(tree.dir(), file)));
    Ok(())
}

/// Examines the report of opening the log, and its records.
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

/// Returns the restore that was started last, if it has not ended.
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
