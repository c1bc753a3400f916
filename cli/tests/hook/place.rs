//! A home, a project and a search path for the binary.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

pub(crate) struct Place {
    directory: tempfile::TempDir,
}

/// The end of the binary.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Returns the document on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Place {
    /// Makes a place with a `claude` that prints a version.
    pub(crate) fn with_claude(version: &str) -> Place {
        let place = Place::new();
        place.set_claude(version);
        place
    }

    /// Makes a place without `claude`.
    pub(crate) fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        for name in ["home", "project", "bin"] {
            fs::create_dir(place.path(name)).unwrap();
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn set_claude(&self, version: &str) {
        self.program("bin/claude", &format!("[ \"$*\" = --version ] && echo '{version} (Claude Code)'"));
    }

    /// Makes a script.
    pub(crate) fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Makes a link to the binary.
    pub(crate) fn link(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_foldlog"), &path).unwrap();
        path
    }

    /// Returns the user's settings file.
    pub(crate) fn settings(&self) -> PathBuf {
        self.path("home/.claude/settings.json")
    }

    /// Writes the user's settings file.
    pub(crate) fn write_settings(&self, text: &str) {
        fs::create_dir_all(self.settings().parent().unwrap()).unwrap();
        fs::write(self.settings(), text).unwrap();
    }

    pub(crate) fn read_settings(&self) -> String {
        fs::read_to_string(self.settings()).unwrap()
    }

    /// Returns the command of a program in this place.
    pub(crate) fn command(&self, program: impl AsRef<Path>, words: &str) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .args(words.split(' ').filter(|word| !word.is_empty()))
            .current_dir(self.path("project"))
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn foldlog(&self, words: &str) -> Ran {
        ran(&mut self.command(env!("CARGO_BIN_EXE_foldlog"), words))
    }

    /// Runs the binary and requires success.
    pub(crate) fn succeeds(&self, words: &str) -> Ran {
        let ran = self.foldlog(words);
        assert_eq!(ran.code, 0, "{words}: {ran:?}");
        ran
    }
}

pub(crate) fn ran(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the events of a settings file, with the commands of their hooks.
pub(crate) fn commands(text: &str) -> Vec<(String, String)> {
    let settings: Value = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    for (event, groups) in settings["hooks"].as_object().unwrap() {
        for handler in groups.as_array().unwrap().iter().flat_map(|group| group["hooks"].as_array().unwrap())
        {
            found.push((event.clone(), handler["command"].as_str().unwrap().to_owned()));
        }
    }
    found
}
