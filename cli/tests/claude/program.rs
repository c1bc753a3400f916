//! The real Claude Code program: its file, its arguments and its environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names the variable with the program's file: an executable, or a `cli.js` that `node` runs.
const PROGRAM: &str = "FOLDLOG_CLAUDE_CLI";

/// The session that the tests choose, in a home directory of its own.
pub(crate) const SESSION: &str = "5f01d106-0000-4000-8000-000000000055";

/// The Claude Code program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    file: PathBuf,
}

impl Program {
    /// Returns the program that the environment names. Without one, reports that the test is
    /// skipped.
    pub(crate) fn named() -> Option<Program> {
        let file = std::env::var_os(PROGRAM).map(PathBuf::from).filter(|file| file.is_file());
        if file.is_none() {
            foldlog_test_support::skipped("FOLDLOG_CLAUDE_CLI names no Claude Code program");
        }
        file.map(|file| Program { file })
    }

    /// Returns the words that start the program: `node` runs a script.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let is_script = self.file.extension().is_some_and(|extension| extension == "js");
        let node = is_script.then(|| OsString::from("node"));
        node.into_iter().chain([self.file.clone().into_os_string()]).collect()
    }
}

/// Returns the whole environment of the program, and of the hooks and shells that it starts.
pub(crate) fn environment(home: &Path, temporary: &Path, api: &str) -> Vec<(OsString, OsString)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let set = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
    vec![
        (OsString::from("PATH"), path),
        (OsString::from("HOME"), home.as_os_str().to_owned()),
        (OsString::from("TMPDIR"), temporary.as_os_str().to_owned()),
        set("SHELL", "/bin/bash"),
        set("LANG", "C.UTF-8"),
        set("TERM", "xterm-256color"),
        set("ANTHROPIC_BASE_URL", api),
        // The program asks about a key whose last 20 characters it does not know.
        set("ANTHROPIC_API_KEY", KEY),
        set("CLAUDE_CODE_MAX_RETRIES", "0"),
        // Nothing but the API is contacted, and what would be is refused at once.
        set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        set("CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL", "1"),
        set("DISABLE_AUTOUPDATER", "1"),
        set("HTTPS_PROXY", "http://127.0.0.1:9"),
        set("NO_PROXY", "127.0.0.1"),
    ]
}

/// A key that the home directory of a [`crate::project::Project`] approves.
pub(crate) const KEY: &str = "no-key-is-needed-here";
