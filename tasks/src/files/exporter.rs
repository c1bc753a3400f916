//! Exports one session repeatedly, and remembers the files that it has written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog::SequenceNumber;
use foldlog::inspect::LogReader;

use super::manifest::ManifestFile;
use super::tree_writer::{KnownFiles, WrittenTree};
use super::{ExportReport, TreeContents, session, write_tree};
use crate::{
    ClaudeContextState, Dependency, Interaction, LogEntry, Result, SessionState, StateCompression, TaskId,
    WorkspaceStores,
};

/// Exports one session repeatedly into one directory. The resulting trees equal those of
/// [`export_tree`](super::export_tree).
///
/// The exporter remembers its last export. It does not read a file again that it wrote or verified,
/// as long as the system reports the same file of the same length, not written, renamed or replaced
/// since. Unchanged contents are not even rendered: logs of tasks, conversations, requests and
/// their replies, and dependencies. Damage that a disk causes without a write is found by
/// [`SessionTree::damage`](super::SessionTree::damage), and by a new exporter.
#[derive(Debug)]
pub struct TreeExporter {
    to: PathBuf,
    compression: StateCompression,
    known: LastExport,
}

/// Cached knowledge about a tree that was written.
#[derive(Debug, Default)]
pub(super) struct LastExport {
    /// Content of each file, with its trace.
    pub(super) files: KnownFiles,
    /// The manifest's entry of each file when it was written.
    pub(super) written: BTreeMap<String, ManifestFile>,
    /// Contents that were rendered last.
    pub(super) logs: BTreeMap<TaskId, Vec<LogEntry>>,
    pub(super) interactions: Vec<Interaction>,
    pub(super) claude: ClaudeContextState,
    pub(super) dependencies: BTreeMap<TaskId, Vec<Dependency>>,
}

impl LastExport {
    /// Remembers the rendered contents. Unchanged contents are not copied again.
    fn keep(&mut self, state: &SessionState) {
        let (logs, now) = (&mut self.logs, &state.execution_logs);
        logs.retain(|task, _| now.tasks.contains_key(task));
        for (task, entries) in &now.tasks {
            if logs.get(task) != Some(entries) {
                logs.insert(task.clone(), entries.clone());
            }
        }
        keep(&mut self.interactions, &now.interactions);
        keep(&mut self.claude, &state.claude_context);
        keep(&mut self.dependencies, &state.task_tree.dependency_graph);
    }
}

fn keep<T: Clone + PartialEq>(kept: &mut T, now: &T) {
    if *kept != *now {
        kept.clone_from(now);
    }
}

impl TreeExporter {
    /// Returns an exporter into the directory `to`. Its cache is empty.
    pub fn new(to: impl Into<PathBuf>, compression: StateCompression) -> TreeExporter {
        TreeExporter { to: to.into(), compression, known: LastExport::default() }
    }

    /// Returns the directory of the trees.
    pub fn to(&self) -> &Path {
        &self.to
    }

    /// Writes a session's tree, as [`export_tree`](super::export_tree) does.
    pub fn export(&mut self, contents: &TreeContents<'_>) -> Result<ExportReport> {
        // After any failure, the cache is empty.
        let known = std::mem::take(&mut self.known);
        let WrittenTree { report, files, manifest } =
            write_tree(contents, &self.to, &self.compression, Some(&known))?;
        self.known = LastExport { files, written: manifest, ..known };
        self.known.keep(contents.state);
        Ok(report)
    }

    /// Writes the tree of a session at a position, as [`export_session`](super::export_session)
    /// does.
    pub fn export_session(
        &mut self,
        log: &LogReader,
        position: impl Into<SequenceNumber>,
        stores: &WorkspaceStores,
    ) -> Result<ExportReport> {
        session::with_contents(log, position.into(), stores, |contents| self.export(contents))
    }
}
