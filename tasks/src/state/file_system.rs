//! What a session knows of files: snapshots, what its tools changed, what was built, and what the user's repository is at.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use foldlog::filesystem::{ChangeKind, FileFacts, FilesystemSnapshot};
use foldlog::{Event, OperationId, Policy, SequenceNumber, SessionTypesBuilder, Slice};
use serde::{Deserialize, Serialize};

use super::git::GitState;
use crate::TaskId;

/// Holds what a session knows of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystemState {
    /// What each workspace was when it was captured last, by the name of its resource.
    pub workspace_snapshot: BTreeMap<String, WorkspaceSnapshot>,
    /// What was changed in workspaces, in the order of the records that say so.
    pub file_modifications: Vec<FileModification>,
    /// Captures that were not compared, since the store that holds them was not there or not sound. What was changed between
    /// them stands in no modification.
    pub not_compared: Vec<NotCompared>,
    /// Results of builds and tests by their names.
    pub build_artifacts: BTreeMap<String, BuildArtifact>,
    /// Dependencies that were resolved last.
    pub dependency_resolution: DependencyResolution,
    /// What the user's git repository was at when somebody looked last.
    pub git_state: Option<GitState>,
}

/// Holds what a workspace was when it was captured last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSnapshot {
    /// The capture, as the workspace can be restored from it.
    pub snapshot: FilesystemSnapshot,
    /// Record that holds it.
    pub sequence: SequenceNumber,
    /// Time of that record.
    pub at: DateTime<Utc>,
}

/// Says that a file was changed: by a tool, between the captures before and after it; or by somebody else, between the end of
/// a call and the begin of the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileModification {
    /// Record at which the change was found: the end of the call, or the begin of the next one.
    pub sequence: SequenceNumber,
    /// Time of that record.
    pub at: DateTime<Utc>,
    /// Name of the workspace's resource.
    pub workspace: String,
    /// Path within the workspace.
    pub path: String,
    /// Kind of change.
    pub kind: ChangeKind,
    /// What the file was; `None` if it was not there.
    pub before: Option<FileFacts>,
    /// What the file is; `None` if it is not there.
    pub after: Option<FileFacts>,
    /// Tool that changed it; `None` if no tool did.
    pub tool: Option<String>,
    /// Operation of that tool.
    pub operation: Option<OperationId>,
    /// Task that was being worked on when the tool began.
    pub task: Option<TaskId>,
}

/// Names two captures that could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCompared {
    /// Record of the later one.
    pub sequence: SequenceNumber,
    /// Name of the workspace's resource.
    pub workspace: String,
    /// Why.
    pub reason: String,
}

/// Says what a build or a test run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildArtifact {
    /// Name, by which a later result replaces this one.
    pub name: String,
    /// Kind of result.
    pub kind: ArtifactKind,
    /// Whether it succeeded.
    pub success: bool,
    /// What there is to say of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Path of what was made, within the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Digest of what was made, as the host computes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Length of what was made, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Task for which it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// Kinds of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// Something was compiled.
    #[default]
    Compilation,
    /// Tests ran.
    Test,
}

/// Holds the dependencies of what is built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependencyResolution {
    /// Dependencies by their names.
    pub dependencies: BTreeMap<String, ResolvedDependency>,
}

/// Describes a dependency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedDependency {
    /// Version.
    pub version: String,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Digest that its source gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Says that something was built or tested. A later event of the same name replaces this one in the slice [`Artifacts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactBuilt {
    /// What came of it.
    pub artifact: BuildArtifact,
}

/// Says which dependencies were resolved. The latest event is the item of the slice [`Resolutions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependenciesResolved {
    /// The dependencies.
    pub resolution: DependencyResolution,
}

/// Says what the user's repository is at. The latest event is the item of the slice [`GitStates`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitObserved {
    /// What it is at.
    pub git: GitState,
}

impl Event for ArtifactBuilt {
    const NAME: &'static str = "artifact_built";
}

impl Event for DependenciesResolved {
    const NAME: &'static str = "dependencies_resolved";
}

impl Event for GitObserved {
    const NAME: &'static str = "git_observed";
}

/// Marks the STATE slice of what was built, `build_artifacts`, keyed by name.
#[derive(Debug)]
pub struct Artifacts;

impl Slice for Artifacts {
    const NAME: &'static str = "build_artifacts";
    type Item = ArtifactBuilt;
}

/// Marks the STATE slice of resolved dependencies, `dependency_resolution`, which has at most one item.
#[derive(Debug)]
pub struct Resolutions;

impl Slice for Resolutions {
    const NAME: &'static str = "dependency_resolution";
    type Item = DependenciesResolved;
}

/// Marks the STATE slice of what the user's repository is at, `git_state`, which has at most one item.
#[derive(Debug)]
pub struct GitStates;

impl Slice for GitStates {
    const NAME: &'static str = "git_state";
    type Item = GitObserved;
}

pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types
        .slice_with::<Artifacts>(Policy::State)
        .upsert_by::<Artifacts, String>(|built| built.artifact.name.clone())
        .slice_with::<Resolutions>(Policy::State)
        .replace_latest::<Resolutions>()
        .slice_with::<GitStates>(Policy::State)
        .replace_latest::<GitStates>()
}
