//! Reads the intact parts of a damaged tree, file by file.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use foldlog::{Export, SequenceNumber, Slice};
use serde_json::value::RawValue;

use super::contents::{SessionFile, TaskTreeFile};
use super::parse::PartReader;
use super::session::{EngineExport, engine_export};
use super::{SessionTree, TreeLimits, layout};
use crate::{
    Checkpoint, DamagedFile, FileDamage, Result, SessionState, StateComponent, TaskTreeState, Tasks,
};

/// Names a file of a tree that does not match the manifest, and the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostFile {
    /// The file, and its damage.
    pub file: DamagedFile,
    /// Part of the state to which it belongs. `None` for files of checkpoints, files for people,
    /// and files that do not belong to the tree.
    pub part: Option<StateComponent>,
    /// Data that is lost with it.
    pub lost: String,
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostFile { file, part, lost } = self;
        match part {
            Some(part) => write!(f, "{part}: {lost}: {file}"),
            None => write!(f, "{lost}: {file}"),
        }
    }
}

/// Contains the data in the files of a tree that match its manifest. A part whose files are damaged
/// is empty; conversations and changes of files end at their first damaged chunk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartialTree {
    /// Directory of the session.
    pub dir: PathBuf,
    /// The session's state, as far as it is intact.
    pub state: SessionState,
    /// Position of the tree.
    pub position: Option<SequenceNumber>,
    /// Number of updates in the tree by its manifest, and number of those that cannot be read.
    pub updates: (u64, u64),
    /// Checkpoints of the session.
    pub checkpoints: Vec<Checkpoint>,
    /// Files that do not match the manifest, and the loss of each.
    pub lost: Vec<LostFile>,
    /// The engine's export, if it is intact.
    pub(crate) export: Option<Export>,
    /// Whether the session's times are known.
    pub(crate) has_times: bool,
}

impl PartialTree {
    /// Reads the intact parts of a tree. `dir` is a session's directory, or a directory with an
    /// `.aca` that contains one session. An undamaged tree is read completely. Writes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`](crate::Error::Damaged) if the manifest itself is damaged, so that no file
    /// can be verified; or the errors of [`SessionTree::open`].
    pub fn read(dir: &Path, limits: TreeLimits) -> Result<PartialTree> {
        let tree = SessionTree::open_sound(dir, limits)?;
        let damaged = tree.damage()?.into_iter().map(|file| (file.path, file.damage)).collect();
        PartReader { tree: &tree, damaged: Some(damaged) }.all()
    }
}

impl PartReader<'_> {
    fn all(mut self) -> Result<PartialTree> {
        let manifest = self.tree.manifest();
        let (checkpoints, export) = self.checkpoints()?;
        let file: SessionFile = self.take(layout::SESSION)?.unwrap_or_default();
        let has_times = file.session.is_some();
        let mut state = SessionState::empty(manifest.session_id, chrono::DateTime::UNIX_EPOCH);
        if let Some(identity) = file.session {
            (state.created_at, state.last_checkpoint) = (identity.created_at, identity.last_checkpoint);
        }
        state.configuration = file.configuration.unwrap_or_default();
        state.resource_usage = file.resource_usage.unwrap_or_default();
        state.task_tree = self.task_tree_or(export.as_ref())?;
        state.claude_context = self.claude_context()?;
        let (file_system, updates) = self.file_system()?;
        state.file_system = file_system;
        state.execution_logs = self.execution_logs()?;
        let (has_export, last) = (export.is_some(), manifest.checkpoints);
        let lost = self.damaged.unwrap_or_default().into_iter().map(|(path, damage)| LostFile {
            part: part_of(&path),
            lost: lost_with(&path, has_export, last),
            file: DamagedFile { path, damage },
        });
        Ok(PartialTree {
            dir: self.tree.dir().to_owned(),
            state,
            position: manifest.position,
            updates: (manifest.updates, manifest.updates.saturating_sub(updates)),
            checkpoints,
            lost: lost.collect(),
            export,
            has_times,
        })
    }

    /// Lists the checkpoints before `last` of which the manifest has files, and the first of which
    /// it has none. So the number in the manifest cannot make this examine more checkpoints than
    /// the manifest has files.
    fn checkpoints_before(&self, last: u64) -> Vec<u64> {
        let of_files = self.tree.paths_in("checkpoints").filter_map(layout::checkpoint_of);
        let numbers = of_files.map(|(number, _)| number).filter(|number| (1..last).contains(number));
        let mut numbers: BTreeSet<u64> = numbers.collect();
        let missing = (1..last).find(|number| !numbers.contains(number));
        numbers.extend(missing);
        numbers.into_iter().collect()
    }

    /// Reads the checkpoints of the session, and the engine's export, which is in the last
    /// directory.
    fn checkpoints(&mut self) -> Result<(Vec<Checkpoint>, Option<Export>)> {
        let (mut had, last) = (Vec::new(), self.tree.manifest().checkpoints);
        for number in self.checkpoints_before(last) {
            had.extend(self.take(&format!("{}/manifest.json", layout::checkpoint(number)))?);
        }
        // If its manifest is damaged, the snapshot identifies itself.
        let manifest = format!("{}/manifest.json", layout::checkpoint(last));
        let engines = match last {
            0 => return Ok((had, None)),
            // Not as values, which take more memory than their text.
            _ => self.take::<Box<RawValue>>(&manifest)?,
        };
        if let Some(manifest) = engines {
            let engines = serde_json::from_str::<EngineExport>(manifest.get());
            if !engines.is_ok_and(|engines| engines.is_of(self.tree.manifest().position)) {
                return Ok((had, None));
            }
        }
        let path = format!("{}/state_snapshot.json", layout::checkpoint(last));
        let damaged = self.damaged.get_or_insert_default();
        if damaged.contains_key(&path) {
            return Ok((had, None));
        }
        let unusable = match self.tree.read(&path)?.map(|snapshot| engine_export(&snapshot)) {
            Some(Ok(export))
                if !export.open_operations.is_empty() || !export.suspended_operations.is_empty() =>
            {
                "it was taken while calls were open or waited for somebody".to_owned()
            }
            Some(Ok(export)) => return Ok((had, Some(export))),
            Some(Err(error)) => error.to_string(),
            None => return Ok((had, None)),
        };
        damaged.insert(path, FileDamage::Unreadable(unusable));
        Ok((had, None))
    }

    /// Reads the tasks, from the engine's export if their file is damaged. The rest is derived from
    /// them.
    fn task_tree_or(&mut self, export: Option<&Export>) -> Result<TaskTreeState> {
        let tree: Option<TaskTreeFile<'static>> = self.take(layout::TASK_TREE)?;
        Ok(match tree {
            Some(tree) => TaskTreeState::of_map(tree.tasks.into_owned()),
            None => TaskTreeState::from_tasks(export.map(items::<Tasks>).unwrap_or_default()),
        })
    }
}

/// Reads the items of an exported slice that have its type.
fn items<S: Slice>(export: &Export) -> Vec<S::Item> {
    let exported = export.slices.iter().filter(|slice| slice.slice_type == S::NAME);
    let values = exported.flat_map(|slice| &slice.items);
    values.filter_map(|item| serde_json::from_value(serde_json::to_value(item).ok()?).ok()).collect()
}

/// Returns the part of the state to which a file belongs.
fn part_of(path: &str) -> Option<StateComponent> {
    if path == layout::RECOVERY_INFO || !layout::is_file(path) {
        return None;
    }
    let directory = path.split('/').next()?;
    StateComponent::ALL.into_iter().find(|part| layout::directory_of(*part) == directory)
}

/// Describes the loss with a file, which depends on whether the engine's export is intact. The
/// export is in the directory of checkpoint `last`.
fn lost_with(path: &str, has_export: bool, last: u64) -> String {
    let is_of = |stem| layout::number_of(path, stem).is_some();
    let in_export = |what: &str| match has_export {
        true => format!("nothing, the snapshot of the last checkpoint holds {what}"),
        false => what.to_owned(),
    };
    let messages = |what: &str| match has_export {
        true => {
            "ids and times of messages; the snapshot of the last checkpoint holds the messages".to_owned()
        }
        false => what.to_owned(),
    };
    let words = match path {
        layout::SESSION if has_export => "times of the session, and what it had used",
        layout::SESSION => "times and configuration of the session, and what it had used",
        layout::RECOVERY_INFO => "nothing but words for people",
        layout::TASK_TREE => return in_export("the tasks"),
        layout::SCHEDULING | layout::DEPENDENCIES => "nothing, it follows from the tasks",
        layout::CLAUDE_CONFIG => "the provider's session, and which model was asked",
        layout::CURRENT => {
            return messages("prompts of conversations, and messages behind their full chunks");
        }
        layout::USAGE => "which tokens were used when",
        layout::LIMITS => "what the provider said of its limits",
        layout::WORKSPACES if has_export => "captures of workspaces",
        layout::WORKSPACES => "captures of workspaces, and resolved dependencies",
        layout::COMPILATIONS => return in_export("results of compilations"),
        layout::TEST_RUNS => return in_export("results of tests"),
        layout::GIT => return in_export("what the user's repository was at"),
        layout::SYSTEM_EVENTS => "what happened while no task was worked on",
        layout::RECOVERY_ACTIONS => return in_export("what was done after failures"),
        _ if is_of(layout::MESSAGES) => return messages("messages of a conversation from this chunk on"),
        _ if is_of(layout::WINDOWS) => "how many tokens a conversation's last request had",
        _ if is_of(layout::CHANGES) => "updates and changes of files from this chunk on",
        _ if is_of(layout::REQUESTS) || is_of(layout::RESPONSES) => "requests to providers, or their replies",
        _ if is_of(layout::ERRORS) => "errors",
        _ => match (layout::task_of(path), layout::checkpoint_of(path)) {
            (Some(task), _) => return format!("what happened to task {task}"),
            (None, Some((number, "manifest.json"))) if number == last && has_export => {
                "nothing, the snapshot beside it says what it is"
            }
            (None, Some((number, _))) if number == last => {
                "the snapshot of the session: turns of conversations, and slices of the host's own"
            }
            (None, Some((number, "manifest.json"))) => {
                return format!("what the session held at checkpoint {number} of the tree");
            }
            (None, Some((number, _))) => return format!("the snapshot of checkpoint {number} of the tree"),
            (None, None) => "nothing, the tree does not vouch for it",
        },
    };
    words.to_owned()
}
