//! Exports one session again and again, and remembers what it has written.

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

/// Exports one session again and again into one directory, as [`export_tree`](super::export_tree) does, and ends with the same
/// trees.
///
/// What was written last is remembered. A file that it wrote or found sound is not read again as long as the system says that
/// it is the same file of the same length, which nobody has written, renamed or replaced since; and what is the same as last
/// time is not even rendered: the log of a task, conversations, requests and their replies, and dependencies. What a disk
/// loses without being written to is found by [`SessionTree::damage`](super::SessionTree::damage), and by a new exporter.
#[derive(Debug)]
pub struct TreeExporter {
    to: PathBuf,
    compression: StateCompression,
    known: LastExport,
}

/// What is known of a tree that was written.
#[derive(Debug, Default)]
pub(super) struct LastExport {
    /// What was in each file, and what the system said of the file then.
    pub(super) files: KnownFiles,
    /// What the manifest said of each file when it was written.
    pub(super) written: BTreeMap<String, ManifestFile>,
    /// What was rendered last.
    pub(super) logs: BTreeMap<TaskId, Vec<LogEntry>>,
    pub(super) interactions: Vec<Interaction>,
    pub(super) claude: ClaudeContextState,
    pub(super) dependencies: BTreeMap<TaskId, Vec<Dependency>>,
}

impl LastExport {
    /// Keeps what was rendered. What is the same is not copied again.
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
    /// Makes an exporter into the directory `to`, which knows nothing yet of what is there.
    pub fn new(to: impl Into<PathBuf>, compression: StateCompression) -> TreeExporter {
        TreeExporter { to: to.into(), compression, known: LastExport::default() }
    }

    /// Returns the directory in which the trees are.
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
        let WrittenTree { report, files, manifest } =
            write_tree(contents, &self.to, &self.compression, Some(&known))?;
        self.known = LastExport { files, written: manifest, ..known };
        self.known.keep(contents.state);
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
