//! A project, and a home directory with foldlog's hooks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::manifest::Manifest;

/// Returns the program that a variable names. Without one, reports that the test is skipped.
pub(crate) fn program(variable: &str) -> Option<PathBuf> {
    let file = std::env::var_os(variable).map(PathBuf::from).filter(|file| file.is_file());
    if file.is_none() {
        foldlog_test_support::skipped(format!("{variable} names no program"));
    }
    file
}

pub(crate) struct Project {
    directory: TempDir,
    agent: &'static str,
}

impl Project {
    /// Makes a project and installs foldlog's hooks for an agent.
    pub(crate) fn new(agent: &'static str, program: &Path) -> Project {
        let project = Project { directory: TempDir::new().unwrap(), agent };
        for name in ["home", "tmp", "bin", "project/src", "project/ignored"] {
            fs::create_dir_all(project.path(name)).unwrap();
        }
        let is_script = program.extension().is_some_and(|extension| extension == "js");
        let start = if is_script { "node " } else { "" };
        let script = format!("#!/bin/sh\nexec {start}'{}' \"$@\"\n", program.display());
        let file = project.path("bin").join(agent);
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let root = project.root();
        fs::write(root.join("README.md"), "# A project\n").unwrap();
        fs::write(root.join(".gitignore"), "ignored/\n").unwrap();
        fs::write(root.join("src/main.txt"), "first line\nsecond line\n").unwrap();
        fs::write(root.join("ignored/cache"), [0, 159, 146, 150]).unwrap();
        symlink("src/main.txt", root.join("link")).unwrap();
        let git = Command::new("git").args(["init", "-q"]).current_dir(&root).status();
        assert!(git.unwrap().success());
        project.foldlog(&["hook", "install", agent, "--yes"]);
        project
    }

    /// Returns a path next to the project.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path("project")
    }

    pub(crate) fn manifest(&self) -> Manifest {
        Manifest::of(&self.root())
    }

    /// Returns a command with the whole environment of the project.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = format!("{}:{}", self.path("bin").display(), path.display());
        command.current_dir(self.root()).env_clear().envs([
            ("PATH", path.as_str()),
            ("HOME", self.path("home").to_str().unwrap()),
            ("TMPDIR", self.path("tmp").to_str().unwrap()),
            ("SHELL", "/bin/bash"),
            ("LANG", "C.UTF-8"),
            ("TERM", "xterm-256color"),
            // Nothing but the API is contacted, and what would be is refused at once.
            ("HTTPS_PROXY", "http://127.0.0.1:9"),
            ("NO_PROXY", "127.0.0.1"),
        ]);
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_foldlog")).args(words).output().unwrap()
    }

    /// Runs `foldlog`, which has to succeed.
    pub(crate) fn foldlog(&self, words: &[&str]) -> String {
        let ran = self.output(words);
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&ran.stderr));
        text
    }

    /// Returns the report about the hooks.
    pub(crate) fn status(&self) -> String {
        let ran = self.output(&["hook", "status", self.agent]);
        format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr))
    }
}
