//! The workspaces of a session that returns to a checkpoint without its host: directories that a
//! person gives, and resources that remain unchanged.

mod targets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::HostFilesystem;
use foldlog::tools::CompositeSnapshot;
use foldlog::tools::resources::Snapshotable;
use foldlog::{NotUndone, ResourceRegistry, Store};
use foldlog_codec::escape;
use foldlog_tasks::{Checkpoint, LeftAlone};
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{CommandError, Result};
use crate::output::Output;

pub(crate) use self::targets::{RestoreTarget, WorkspaceArgs, places};

/// Captures by the names of their resources.
type ResourceCaptures = BTreeMap<String, Option<Vec<u8>>>;

/// The resources of a session that returns to a checkpoint.
pub(crate) struct CheckpointWorkspaces {
    /// The given directories, and placeholders for resources that are not directories; `None` if no
    /// directory was given.
    pub(crate) resources: Option<ResourceRegistry>,
    pub(crate) report: Workspaces,
}

/// Lists restored and unchanged resources.
#[derive(Default, Serialize)]
pub(crate) struct Workspaces {
    /// Workspaces that are restored.
    pub(crate) restored: Vec<RestoredWorkspace>,
    /// Names of resources that remain unchanged.
    pub(crate) left: Vec<String>,
    /// Whether the checkpoint could restore any of these.
    #[serde(skip)]
    can_restore: bool,
    /// Whether workspaces are only restored to their state before an open call.
    #[serde(skip)]
    before_call: bool,
}

#[derive(Serialize)]
pub(crate) struct RestoredWorkspace {
    name: String,
    #[serde(serialize_with = "escape::serialize_path")]
    root: PathBuf,
}

/// Opens the directories of a checkpoint's workspaces. With `ends_calls`, opens also the
/// directories on which an open call worked.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if a directory is given and the checkpoint has no
/// captures, if directories are given for only some of them, or if the directory of a workspace on
/// which an open call worked is not given.
pub(crate) fn open_given(
    store: &Store,
    id: Uuid,
    dir: &Path,
    checkpoint: Option<&Checkpoint>,
    options: &WorkspaceArgs,
    overwrite: bool,
    ends_calls: bool,
) -> Result<CheckpointWorkspaces> {
    let session = store.open_to_recover(id)?;
    let open = if ends_calls { session.calls().open_captures() } else { Ok(ResourceCaptures::new()) };
    session.close()?;
    let open = open?;
    let kept = checkpoint.and_then(|checkpoint| checkpoint.resources.as_deref());
    let kept = kept.map(CompositeSnapshot::from_json).transpose()?.map(|taken| taken.recorded_captures());
    let is_given = !options.workspaces.is_empty() || !options.rebind.is_empty();
    if is_given && kept.is_none() && open.is_empty() {
        let what = checkpoint.map_or_else(
            || "the session has no checkpoint to go back to".to_owned(),
            |checkpoint| format!("{} has no captures of workspaces", checkpoint.id),
        );
        return Err(CommandError::usage(
            what,
            "leave out --workspace and --rebind: the workspaces remain unchanged",
        ));
    }
    if !is_given && open.is_empty() {
        return Ok(CheckpointWorkspaces { resources: None, report: left_alone(kept, checkpoint) });
    }
    let others: Vec<String> = kept.iter().flatten().map(|(name, _)| name.clone()).collect();
    let mut captured = kept.unwrap_or_default();
    captured.extend(open.clone());
    let before_call = others.is_empty();
    let mut report = Workspaces { before_call, ..Workspaces::default() };
    let mut resources = ResourceRegistry::builder();
    for place in places(captured, dir, options)? {
        let files = Arc::new(place.open(overwrite)?);
        let root = files.root().to_owned();
        resources = resources.named(place.name.clone(), files);
        report.restored.push(RestoredWorkspace { name: place.name, root });
    }
    // Resources of an open call that are not directories can only be restored by the host.
    let is_other = |name: &String| {
        !open.contains_key(name) && report.restored.iter().all(|restored| restored.name != *name)
    };
    report.left = others.into_iter().filter(is_other).collect();
    for name in &report.left {
        resources = resources.named(name.clone(), Arc::new(LeftAlone));
    }
    Ok(CheckpointWorkspaces { resources: Some(resources.build()?), report })
}

/// Lists the resources that remain unchanged since no directory was given.
fn left_alone(kept: Option<ResourceCaptures>, checkpoint: Option<&Checkpoint>) -> Workspaces {
    let is_directory = |recorded: &Option<Vec<u8>>| {
        recorded.as_deref().is_some_and(|recorded| HostFilesystem::recall(recorded).is_ok())
    };
    let can_restore = kept.iter().flatten().any(|(_, recorded)| is_directory(recorded));
    let left = match kept {
        Some(kept) => kept.into_keys().collect(),
        None => checkpoint.map(|one| one.workspaces.keys().cloned().collect()).unwrap_or_default(),
    };
    Workspaces { left, can_restore, ..Workspaces::default() }
}

/// Prints the resources at a checkpoint, restored and unchanged.
pub(crate) fn print(workspaces: &Workspaces, output: &mut Output<'_>) -> Result<()> {
    let when = if workspaces.before_call { "before the open call" } else { "at the checkpoint" };
    for RestoredWorkspace { name, root } in &workspaces.restored {
        let (name, root) = (escape::text(name), escape::path(root));
        output.line(format_args!("workspace `{name}` is as it was {when}: {root}"))?;
    }
    for name in &workspaces.left {
        let name = escape::text(name);
        let next = match workspaces.can_restore {
            true => format!(": --workspace {name}=DIR restores it"),
            false => String::new(),
        };
        output.note(format_args!("note: `{name}` is unchanged{next}"));
    }
    Ok(())
}

/// Names the part that was not undone, followed by a colon; empty if there is no name.
pub(crate) fn named_part(NotUndone { resource, path, .. }: &NotUndone) -> String {
    let named: Vec<&str> = [resource.as_str(), path].into_iter().filter(|word| !word.is_empty()).collect();
    if named.is_empty() { String::new() } else { format!("{}: ", named.join(" ")) }
}
