//! Parts of ignored files that no record contains.
//!
//! Captures contain ignored files, and stay in a private directory. Records may be shown, exported
//! and copied, so they contain neither the arguments nor the result of a call of a file tool on an
//! ignored file, and no output of a command that names a file of secrets, such as `.env`.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use foldlog::filesystem::{IgnoredPaths, escape_path};

use crate::step::Call;
use crate::timeline::Timeline;

/// Recorded in place of arguments and results that may contain parts of an ignored file.
pub const WITHHELD: &str = "{\"foldlog\":\"not recorded: the file is ignored\"}";

impl Timeline {
    /// Returns whether a file is ignored by a list of the project, or has a name of files that
    /// usually contain secrets.
    pub fn ignores(&self, path: &Path) -> bool {
        let Some(relative) = self.relative(path) else {
            let name = path.file_name().unwrap_or_default();
            return IgnoredPaths::default().contains(&escape_path(name.as_bytes()));
        };
        self.owns_ignored(Some(&BTreeSet::from([relative])))
    }

    /// Returns whether a step that owns these paths owns an ignored one.
    pub(crate) fn owns_ignored(&self, paths: Option<&BTreeSet<String>>) -> bool {
        let is_ignored = |path: &String| IgnoredPaths::at(&self.place.root, Path::new(path)).contains(path);
        paths.is_some_and(|paths| paths.iter().any(is_ignored))
    }

    pub(crate) fn withholds_result(&self, call: &Call, paths: Option<&BTreeSet<String>>) -> bool {
        names_secrets(&call.title) || self.owns_ignored(paths)
    }
}

/// Returns whether a command names a file that usually contains secrets, such as `.env`.
pub fn names_secrets(command: &str) -> bool {
    let is_of_name = |letter: char| letter.is_alphanumeric() || ['.', '_', '-'].contains(&letter);
    let names = command.split(|letter| !is_of_name(letter)).filter(|name| name.starts_with('.'));
    let secrets = IgnoredPaths::default();
    names.into_iter().any(|name| secrets.contains(name))
}
