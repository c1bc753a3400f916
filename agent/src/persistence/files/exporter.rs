//! Exports one session again and again, and remembers what it has written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog::SequenceNumber;
use foldlog::audit::LogReader;

use super::writing::KnownFiles;
use super::{ExportReport, TreeContents, session, write_tree};
use crate::persistence::{LogEntry, Result, StateCompression, TaskId, WorkspaceStores};

/// Exports one session again and again into one folder, as [`export_tree`](super::export_tree) does, and ends with the same
/// trees.
///
/// What was written last is remembered. A file that it wrote or found sound is not read again as long as the system says that
/// it is the same file of the same length, which nobody has written, renamed or replaced since; and a task's log that is the
/// same as last time is not even rendered. What a disk loses without being written to is found by
/// [`Tree::damage`](super::Tree::damage), and by a new exporter.
#[derive(Debug)]
pub struct TreeExporter {
    to: PathBuf,
    compression: StateCompression,
    known: Known,
}

/// What is known of a tree that was written.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// What was in each file, and what the system said of the file then.
    pub(super) files: KnownFiles,
    /// Logs of tasks as they were rendered last.
    pub(super) logs: BTreeMap<TaskId, Vec<LogEntry>>,
}

impl TreeExporter {
    /// Makes an exporter into the folder `to`, which knows nothing yet of what is there.
    pub fn new(to: impl Into<PathBuf>, compression: StateCompression) -> TreeExporter {
        TreeExporter { to: to.into(), compression, known: Known::default() }
    }

    /// Returns the folder in which the trees are.
    pub fn to(&self) -> &Path {
        &self.to
    }

    /// Writes a session's tree, as [`export_tree`](super::export_tree) does.
    ///
    /// # Errors
    ///
    /// Those of [`export_tree`](super::export_tree).
    pub fn export(&mut self, contents: &TreeContents<'_>) -> Result<ExportReport> {
        // Whatever fails, nothing is known afterwards.
        let known = std::mem::take(&mut self.known);
        let (report, files) = write_tree(contents, &self.to, &self.compression, Some(&known))?;
        let mut logs = known.logs;
        let now = &contents.state.execution_logs.tasks;
        logs.retain(|task, _| now.contains_key(task));
        for (task, entries) in now {
            if logs.get(task) != Some(entries) {
                logs.insert(task.clone(), entries.clone());
            }
        }
        self.known = Known { files, logs };
        Ok(report)
    }

    /// Writes the tree of a session at a position, as [`export_session`](super::export_session) does.
    ///
    /// # Errors
    ///
    /// Those of [`export_session`](super::export_session).
    pub fn export_session(
        &mut self,
        log: &LogReader,
        position: impl Into<SequenceNumber>,
        stores: &WorkspaceStores,
    ) -> Result<ExportReport> {
        session::with_contents(log, position.into(), stores, |contents| self.export(contents))
    }
}
