//! The files of a session: snapshots, changes by tools, build results, and the state of the user's
//! repository.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use foldlog::filesystem::{ChangeKind, FileFacts, FilesystemSnapshot};
use foldlog::{OperationId, Policy, SequenceNumber, SessionTypesBuilder};
use serde::{Deserialize, Serialize};

use super::git::GitState;
use crate::TaskId;

/// Describes the files of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystemState {
    /// Latest capture of each workspace, by the name of its resource.
    pub workspace_snapshot: BTreeMap<String, WorkspaceSnapshot>,
    /// Changes of files in workspaces, in the order of their records.
    pub file_modifications: Vec<FileModification>,
    /// Captures that were not compared, because their store was missing or damaged. No modification
    /// lists the changes between them.
    pub not_compared: Vec<NotCompared>,
    /// Results of builds and tests by their names.
    pub build_artifacts: BTreeMap<String, BuildArtifact>,
    /// Dependencies that were resolved last.
    pub dependency_resolution: DependencyResolution,
    /// Last observed state of the user's git repository.
    pub git_state: Option<GitState>,
}

/// Contains the latest capture of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSnapshot {
    /// The capture, from which the workspace can be restored.
    pub snapshot: FilesystemSnapshot,
    /// Record of the capture.
    pub sequence: SequenceNumber,
    /// Time of that record.
    pub at: DateTime<Utc>,
}

/// Describes a change of a file. Either a tool made it, between the captures before and after its
/// run; or it was made outside of the session, between the end of a call and the start of the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileModification {
    /// Record at which the change was found: the end record of the call, or the start record of the
    /// next one.
    pub sequence: SequenceNumber,
    /// Time of that record.
    pub at: DateTime<Utc>,
    /// Name of the workspace's resource.
    pub workspace: String,
    /// Path within the workspace.
    pub path: String,
    /// Kind of change.
    pub kind: ChangeKind,
    /// The file before the change; `None` if it was missing.
    pub before: Option<FileFacts>,
    /// The file after the change; `None` if it is missing.
    pub after: Option<FileFacts>,
    /// Tool that changed it; `None` if no tool did.
    pub tool: Option<String>,
    /// Operation of that tool.
    pub operation: Option<OperationId>,
    /// Task that was in progress when the tool started.
    pub task: Option<TaskId>,
}

/// Names two captures that could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCompared {
    /// Record of the later one.
    pub sequence: SequenceNumber,
    /// Name of the workspace's resource.
    pub workspace: String,
    /// Reason.
    pub reason: String,
}

/// Describes the result of a build or a test run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildArtifact {
    /// Name, by which a later result replaces this one.
    pub name: String,
    /// Kind of result.
    pub kind: ArtifactKind,
    /// Whether it succeeded.
    pub success: bool,
    /// Summary for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Path of the artifact within the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Digest of the artifact, as the host computes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Length of the artifact, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Task that needed the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// Lists the kinds of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// A compilation.
    #[default]
    Compilation,
    /// A test run.
    Test,
}

/// Contains the dependencies of a build.
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
    /// Origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Digest that its source states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Records a build or a test run. A later event of the same name replaces this one in the slice
/// [`Artifacts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactBuilt {
    /// The result.
    pub artifact: BuildArtifact,
}

/// Records the resolved dependencies. The latest event is the item of the slice [`Resolutions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependenciesResolved {
    /// The dependencies.
    pub resolution: DependencyResolution,
}

/// Records the state of the user's repository. The latest event is the item of the slice
/// [`GitStates`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitObserved {
    /// The state.
    pub git: GitState,
}

events! {
    ArtifactBuilt = "artifact_built",
    DependenciesResolved = "dependencies_resolved",
    GitObserved = "git_observed",
}

slices! {
    /// Marks the STATE slice of build results, `build_artifacts`, keyed by name.
    Artifacts = "build_artifacts" of ArtifactBuilt,
    /// Marks the STATE slice of resolved dependencies, `dependency_resolution`, which has at most one
    /// item.
    Resolutions = "dependency_resolution" of DependenciesResolved,
    /// Marks the STATE slice of the user's repository, `git_state`, which has at most one item.
    GitStates = "git_state" of GitObserved,
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
