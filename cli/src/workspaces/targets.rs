//! The workspaces that `recover`, `rewind` and `task restore` bring back: the directories that a
//! person gives, and the captures in the session's directory or elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{self, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, Rebind};
use foldlog::inspect::captures_dir;
use foldlog::storage::{EntryKind, FileStorage, Storage};
use foldlog::tools::resources::Snapshotable;
use foldlog_codec::escape;
use foldlog_view::shell::quote_word;

use crate::failure::{CommandError, Result};
use crate::readers::WriteArgs;

/// Options for workspaces. Each directory is given as `NAME=DIR`, or as `DIR` if there is only one
/// workspace.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkspaceArgs {
    /// Directory of a workspace; NAME= is optional if there is only one
    #[arg(long = "workspace", value_name = "NAME=DIR")]
    pub workspaces: Vec<String>,
    /// Directory with a workspace's captures, if it is outside of the session's directory
    #[arg(long, value_name = "NAME=DIR")]
    pub snapshots: Vec<String>,
    /// Directory to use instead of a workspace that is missing, was replaced, or is a copy
    ///
    /// It must be empty, unless --overwrite is given. `rewind` accepts other directories too: it
    /// captures their files first, and files that differ from the state after the last call count
    /// as changed by hand. To fill an empty directory by a rewind, add --overwrite.
    #[arg(long, value_name = "NAME=DIR")]
    pub rebind: Vec<String>,
    /// Whether a replicated session is written.
    #[command(flatten)]
    pub writing: WriteArgs,
}

/// A workspace to restore: its directory and its capture.
pub(crate) struct RestoreTarget {
    pub(crate) name: String,
    root: PathBuf,
    pub(crate) rebound: bool,
    pub(crate) snapshots: PathBuf,
    pub(crate) taken: FilesystemSnapshot,
}

impl RestoreTarget {
    /// Opens the directory. A rebound directory replaces the previous one.
    pub(crate) fn open(&self, overwrite: bool) -> Result<HostFilesystem> {
        let mut options = HostFilesystemOptions::default().gitignore(self.taken.gitignore);
        options.leave_out = self.taken.leave_out.clone();
        let files = HostFilesystem::open(&self.root, &self.snapshots, options)?;
        if self.rebound {
            take_place(&files, overwrite)?;
        }
        Ok(files)
    }
}

/// Prepares a directory that replaces the one on which the call worked. Without `overwrite` it must
/// be empty.
fn take_place(files: &HostFilesystem, overwrite: bool) -> Result<()> {
    let rebind = if overwrite { Rebind::Overwrite } else { Rebind::IfEmpty };
    files.rebind(rebind).map_err(|error| match error {
        filesystem::Error::Path { .. } if !overwrite => CommandError::usage(
            error.to_string(),
            "give an empty directory, or add --overwrite, which removes the files that the capture does not contain",
        ),
        error => error.into(),
    })
}

/// Returns the workspaces among the captured resources, each with the directory that a person gave.
/// Only the host can restore other resources; the engine refuses a recovery without them.
pub(crate) fn places(
    captured: BTreeMap<String, Option<Vec<u8>>>,
    dir: &Path,
    asked: &WorkspaceArgs,
) -> Result<Vec<RestoreTarget>> {
    let taken: BTreeMap<String, FilesystemSnapshot> = captured
        .into_iter()
        .filter_map(|(name, recorded)| Some((name, HostFilesystem::recall(&recorded?).ok()?)))
        .collect();
    let mut roots = directories_by_name(&asked.workspaces, &taken, "--workspace")?;
    let mut rebound = directories_by_name(&asked.rebind, &taken, "--rebind")?;
    let mut snapshots = directories_by_name(&asked.snapshots, &taken, "--snapshots")?;
    taken
        .into_iter()
        .map(|(name, taken)| {
            let (root, rebound) = match (roots.remove(&name), rebound.remove(&name)) {
                (Some(root), None) => (root, false),
                (None, Some(root)) => (root, true),
                (Some(_), Some(_)) => {
                    let what = format!("the workspace `{name}` is given twice: by --workspace and by --rebind");
                    return Err(CommandError::usage(
                        what,
                        "give --workspace if it is the directory that the call worked on, --rebind if it is another one",
                    ));
                }
                (None, None) => {
                    let name = escape::text(&name);
                    let what =
                        format!("the directory of the workspace `{name}` is not given");
                    // The path is a hint: only a person knows whether the directory still exists.
                    let (last, dir) = match &taken.path {
                        Some(path) => (format!("; it was last {path}"), quote_word(path.as_ref())),
                        None => (String::new(), "DIR".to_owned()),
                    };
                    let next = format!("give its directory: --workspace {name}={dir}");
                    return Err(CommandError::usage(format!("{what}{last}"), next));
                }
            };
            if !root.exists() {
                let what = format!("there is no directory {}", escape::path(&root));
                let name = escape::text(&name);
                let next = format!(
                    "give the workspace's directory: --workspace {name}=DIR; if it is gone, name an empty one: --rebind {name}=DIR"
                );
                return Err(CommandError::usage(what, next));
            }
            let snapshots = match snapshots.remove(&name) {
                Some(given) if has_capture(&given, &taken.commit) => given,
                // Opening a missing directory would create an empty store of captures there.
                Some(given) => {
                    let (given, name) = (escape::path(&given), escape::text(&name));
                    return Err(CommandError::usage(
                        format!("{given} does not contain the capture of the workspace `{name}`"),
                        format!("give the directory in which the host keeps it: --snapshots {name}=DIR"),
                    ));
                }
                None => find_captures(dir, &name, &taken.commit)?,
            };
            Ok(RestoreTarget { name, root, rebound, snapshots, taken })
        })
        .collect()
}

/// Returns the directories given by `option`, by the workspaces' names.
fn directories_by_name(
    given: &[String],
    taken: &BTreeMap<String, FilesystemSnapshot>,
    option: &str,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut named = BTreeMap::new();
    for one in given {
        let only = taken.keys().next().filter(|_| taken.len() == 1);
        let (name, directory) = match one.split_once('=') {
            Some((name, directory)) if taken.contains_key(name) => (name, directory),
            _ if taken.is_empty() => continue,
            // The path of a directory may contain a `=` too.
            split => match only.filter(|_| split.is_none() || Path::new(one).is_dir()) {
                Some(only) => (only.as_str(), one.as_str()),
                None => {
                    let names = taken.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                    let each: Vec<String> =
                        taken.keys().map(|name| format!("{option} {}=DIR", escape::text(name))).collect();
                    let one = escape::text(one);
                    let what =
                        format!("`{one}` names no workspace of the session; its workspaces are {names}");
                    return Err(CommandError::usage(what, format!("give each: {}", each.join(" "))));
                }
            },
        };
        if named.insert(name.to_owned(), PathBuf::from(directory)).is_some() {
            return Err(CommandError::usage(
                format!("the workspace `{name}` is given twice by {option}"),
                format!("give {option} once for each workspace"),
            ));
        }
    }
    Ok(named)
}

/// Splits the hash of a capture's commit into the directory and the file of its object.
fn object_name(commit: &str) -> Option<(&str, &str)> {
    commit.split_at_checked(2).filter(|_| commit.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns whether a directory of captures contains the capture with this commit.
fn has_capture(directory: &Path, commit: &str) -> bool {
    object_name(commit)
        .is_some_and(|(first, rest)| directory.join("objects").join(first).join(rest).is_file())
}

/// Returns the directory within the session's directory that contains a capture: the one with the
/// workspace's name, or any other.
fn find_captures(dir: &Path, name: &str, commit: &str) -> Result<PathBuf> {
    let own = Some(name).filter(|name| !name.contains(['/', '\0']) && !matches!(*name, "." | ".."));
    let listed = std::fs::read_dir(dir).map_err(|source| CommandError::file(dir, source))?;
    let mut others: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    others.sort();
    let found = own
        .map(|name| dir.join(name))
        .into_iter()
        .chain(others)
        .find(|directory| has_capture(directory, commit));
    found.ok_or_else(|| {
        let irregular = |(first, rest)| irregular(&captures_dir(dir), ["objects", first, rest]);
        if let Some((path, found, wanted)) = object_name(commit).and_then(irregular) {
            let what = format!("{} is {}", escape::path(&path), found.in_place_of(wanted));
            return CommandError::usage(
                what,
                "move it away, and restore the original, for example from a backup",
            );
        }
        let what = format!("the session's directory does not contain the capture of the workspace `{name}`");
        CommandError::usage(
            what,
            format!("give the directory in which the host keeps it: --snapshots {name}=DIR"),
        )
    })
}

/// Returns the first path, from a directory of captures down to an object, whose entry has the
/// wrong kind. Returns also the kind found and the kind expected there.
fn irregular(captures: &Path, parts: [&str; 3]) -> Option<(PathBuf, EntryKind, EntryKind)> {
    let storage = FileStorage::new();
    let mut places = vec![captures.to_owned()];
    for part in parts {
        places.extend(places.last().map(|last| last.join(part)));
    }
    let count = places.len();
    places.into_iter().enumerate().find_map(|(at, path)| {
        let wanted = if at + 1 == count { EntryKind::File } else { EntryKind::Directory };
        let found = storage.entry(&path).ok()??.kind;
        (found != wanted).then_some((path, found, wanted))
    })
}
