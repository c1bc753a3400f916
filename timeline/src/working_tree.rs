//! Working trees of git, as far as their files describe them. No git process is started: a hook has
//! little time, and git may run programs that a repository's configuration names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{FilesystemSnapshot, escape_path, open_regular_file, read_regular_file};
use serde::{Deserialize, Serialize};

use crate::step::Step;
use crate::timeline::Timeline;

/// Longest file with a path that is read, and longest part of a log, in bytes.
const POINTER_BYTES_MAX: u64 = 16 << 10;
const LOG_BYTES_MAX: u64 = 256 << 10;

/// Greatest number of changes of `HEAD` that a step records.
const HEAD_CHANGES_MAX: usize = 100;

/// A directory that git manages, with its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingTree {
    /// The directory, with all links resolved.
    pub top: PathBuf,
    /// Git directory of this working tree.
    git: PathBuf,
    /// Git directory that all working trees of the repository share.
    pub common: PathBuf,
}

impl WorkingTree {
    /// Returns the working tree that contains a directory.
    pub fn around(directory: &Path) -> Option<WorkingTree> {
        let directory = fs::canonicalize(directory).ok()?;
        directory.ancestors().find_map(WorkingTree::at)
    }

    /// Returns the working tree with this directory at its top.
    pub(crate) fn at(top: &Path) -> Option<WorkingTree> {
        let entry = top.join(".git");
        let git = match fs::metadata(&entry).ok()?.is_dir() {
            true => entry,
            false => read_pointer(&entry, top, b"gitdir: ")?,
        };
        let git = fs::canonicalize(git).ok().filter(|git| git.join("HEAD").exists())?;
        let common = read_pointer(&git.join("commondir"), &git, b"");
        let common = common.and_then(|common| fs::canonicalize(common).ok());
        Some(WorkingTree { top: top.to_owned(), common: common.unwrap_or_else(|| git.clone()), git })
    }

    /// Returns whether it is one of several working trees of a repository, and not the main one.
    pub fn is_linked(&self) -> bool {
        self.git != self.common
    }

    /// Returns whether the repository has several working trees.
    pub(crate) fn has_others(&self) -> bool {
        let mut others = fs::read_dir(self.common.join("worktrees")).into_iter().flatten();
        self.is_linked() || others.next().is_some()
    }

    /// Returns the top of the repository's main working tree, if it has one.
    pub fn main_top(&self) -> Option<&Path> {
        self.common.parent().filter(|_| self.common.file_name() == Some(OsStr::new(".git")))
    }

    /// Returns the log of the working tree's `HEAD`.
    pub(crate) fn head_log(&self) -> PathBuf {
        self.git.join("logs/HEAD")
    }
}

/// Reads a file with one path, which may be relative to a directory.
fn read_pointer(file: &Path, from: &Path, prefix: &[u8]) -> Option<PathBuf> {
    let bytes = read_regular_file(file, POINTER_BYTES_MAX).ok()?;
    let path = bytes.strip_prefix(prefix)?.trim_ascii_end();
    Some(from.join(OsStr::from_bytes(path)))
}

/// A change of the `HEAD` of a working tree, such as a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadChange {
    /// Working tree, relative to the root; empty for the one that contains the root.
    pub working_tree: String,
    /// Id of the commit to which `HEAD` leads since then.
    pub commit: String,
    /// What git did, such as `commit: Add zones` or `checkout: moving from main to zones`.
    pub action: String,
}

impl HeadChange {
    /// Returns the subject, if the change was a commit.
    pub fn committed_subject(&self) -> Option<&str> {
        let (action, subject) = self.action.split_once(": ")?;
        let is_commit = ["commit", "cherry-pick", "revert"].contains(&action)
            || ["commit (", "rebase (pick", "rebase (reword", "rebase (squash"]
                .iter()
                .any(|start| action.starts_with(start));
        is_commit.then_some(subject)
    }
}

/// Returns the changes in the log of a `HEAD` after its first bytes.
pub(crate) fn head_changes(log: &Path, from: u64, working_tree: &str) -> Vec<HeadChange> {
    let read = || {
        let mut file = open_regular_file(log).ok()?;
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    // OLD NEW NAME <MAIL> TIME ZONE\tACTION
    let change = |line: &str| {
        let (facts, action) = line.split_once('\t')?;
        let commit = facts.split(' ').nth(1)?;
        let is_id = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| HeadChange {
            working_tree: working_tree.to_owned(),
            commit: commit.to_owned(),
            action: action.to_owned(),
        })
    };
    read().unwrap_or_default().lines().filter_map(change).collect()
}

impl Timeline {
    /// Returns the linked working tree within the root that contains a directory.
    pub(crate) fn linked_working_tree(&self, directory: &Path) -> Option<String> {
        let tree = WorkingTree::around(directory).filter(WorkingTree::is_linked)?;
        let relative = tree.top.strip_prefix(&self.place.root).ok()?;
        let relative = escape_path(relative.as_os_str().as_bytes());
        (!relative.is_empty()).then_some(relative)
    }

    /// Returns the lengths of the logs of `HEAD` of all working trees in a capture, and of the one
    /// around the root.
    pub(crate) fn head_logs(&self, capture: Option<&FilesystemSnapshot>) -> BTreeMap<String, u64> {
        let within = capture.and_then(|capture| self.reader().repositories(capture).ok()).unwrap_or_default();
        let within = within.into_iter().filter_map(|path| {
            path.strip_suffix(".git").map(|top| top.strip_suffix('/').unwrap_or(top).to_owned())
        });
        let mut lengths = BTreeMap::new();
        for path in within.chain([String::new()]) {
            if let Some(tree) = self.working_tree(&path) {
                let length = fs::metadata(tree.head_log()).map_or(0, |found| found.len());
                lengths.insert(path, length);
            }
        }
        lengths
    }

    /// Returns the changes of `HEAD` since a step began, in the working trees that existed then.
    pub(crate) fn head_changes_since(&self, step: &Step) -> Vec<HeadChange> {
        let changes = step.head_logs.iter().filter_map(|(path, length)| {
            Some(head_changes(&self.working_tree(path)?.head_log(), *length, path))
        });
        changes.flatten().take(HEAD_CHANGES_MAX).collect()
    }

    /// Returns the working tree at a path, or the one around the root.
    fn working_tree(&self, path: &str) -> Option<WorkingTree> {
        match path {
            "" => WorkingTree::around(&self.place.root),
            path => WorkingTree::at(&self.place.absolute(path)),
        }
    }
}
