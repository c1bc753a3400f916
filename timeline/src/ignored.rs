//! Parts of ignored files that no record contains.
//!
//! Captures contain ignored files, and stay in a private directory. Records may be shown, exported
//! and copied, so they contain neither the arguments nor the result of a call of a file tool on an
//! ignored file, and no output of a command that names a file of secrets, such as `.env`.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use foldlog::filesystem::{IgnoredPaths, escape_path, read_regular_file};

use crate::step::Call;
use crate::timeline::Timeline;
use crate::working_tree::WorkingTree;

/// Longest list outside of a root that is read, in bytes.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Recorded in place of arguments and results that may contain parts of an ignored file.
pub const WITHHELD: &str = "{\"foldlog\":\"not recorded: the file is ignored\"}";

impl Timeline {
    /// Returns whether a file is ignored by a list of its project, or has a name of files that
    /// usually contain secrets. The file may be outside of the root.
    pub fn ignores(&self, path: &Path) -> bool {
        // The name counts even if it is a link to a file with another one.
        if is_secret(path) {
            return true;
        }
        let Some(resolved) = self.resolved(path) else { return false };
        if resolved.starts_with(&self.place.root) {
            return is_ignored_below(&self.place.root, &resolved, &self.ignored);
        }
        match resolved.parent().and_then(WorkingTree::around) {
            Some(tree) => is_ignored_below(&tree.top, &resolved, &excludes(&tree.top)),
            None => is_secret(&resolved),
        }
    }

    /// Returns whether a step that owns these paths owns an ignored one.
    pub(crate) fn owns_ignored(&self, paths: Option<&BTreeSet<String>>) -> bool {
        paths.is_some_and(|paths| {
            paths.iter().any(|path| lists(&self.place.root, Path::new(path), &self.ignored).contains(path))
        })
    }

    pub(crate) fn withholds_result(&self, call: &Call, paths: Option<&BTreeSet<String>>) -> bool {
        call.arguments == WITHHELD || names_secrets(&call.title) || self.owns_ignored(paths)
    }
}

/// Returns whether a file has a name of files that usually contain secrets.
fn is_secret(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default();
    IgnoredPaths::default().contains(&escape_path(name.as_bytes()))
}

/// Returns whether a file is ignored by these patterns, or by a list in a directory around it, from
/// `top` on.
fn is_ignored_below(top: &Path, file: &Path, patterns: &[String]) -> bool {
    let relative = file.strip_prefix(top).unwrap_or(file);
    lists(top, relative, patterns).contains(&escape_path(relative.as_os_str().as_bytes()))
}

/// Reads the lists that apply to a path below `top`, and adds these patterns.
fn lists(top: &Path, relative: &Path, patterns: &[String]) -> IgnoredPaths {
    let mut ignored = IgnoredPaths::at(top, relative);
    ignored.add_patterns(patterns);
    ignored
}

/// Returns the patterns of `info/exclude` in the repository of a working tree.
pub(crate) fn excludes(top: &Path) -> Vec<String> {
    WorkingTree::at(top).map(|tree| read_patterns(&tree.common.join("info/exclude"))).unwrap_or_default()
}

/// Returns the patterns of a list in the form of a `.gitignore`; none if it cannot be read, or has
/// more than 1 MiB. Each capture records them.
pub fn read_patterns(list: &Path) -> Vec<String> {
    let bytes = read_regular_file(list, LIST_BYTES_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// Returns whether a command names a file that usually contains secrets, such as `.env`.
pub fn names_secrets(command: &str) -> bool {
    let is_of_name = |letter: char| letter.is_alphanumeric() || ['.', '_', '-'].contains(&letter);
    let names = command.split(|letter| !is_of_name(letter)).filter(|name| name.starts_with('.'));
    let secrets = IgnoredPaths::default();
    names.into_iter().any(|name| secrets.contains(name))
}
