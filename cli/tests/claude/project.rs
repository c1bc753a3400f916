//! A project under git, and a home directory with the settings of the program.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::event::Event;
use crate::manifest::Manifest;
use crate::program::{KEY, environment};
use crate::wait::LONG;

/// The events with hooks. Versions 2.1.100 and 2.1.332 know each of them: an unknown one disables
/// all hooks of a settings file.
const EVENTS: [&str; 12] = [
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "SubagentStart",
    "SubagentStop",
    "CwdChanged",
    "PreCompact",
    "Stop",
    "SessionEnd",
];

/// A project, a home directory and a record of the hook events.
pub(crate) struct Project {
    directory: TempDir,
}

impl Project {
    /// Creates the directories. Each event starts a hook that records its input, and next to it
    /// `commands`, which are command lines such as `/path/foldlog hook event claude`.
    pub(crate) fn new(commands: &[&str]) -> Project {
        let project = Project { directory: TempDir::new().unwrap() };
        for name in ["home/.claude", "tmp", "project/src"] {
            fs::create_dir_all(project.path(name)).unwrap();
        }
        let recorder = format!("#!/bin/sh\nexec cat >> '{}'\n", project.path("events").display());
        fs::write(project.path("record"), recorder).unwrap();
        fs::set_permissions(project.path("record"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(project.path("events"), "").unwrap();
        project.write_settings(commands);
        project.write_files();
        project
    }

    fn write_settings(&self, commands: &[&str]) {
        let record = self.path("record").into_os_string().into_string().unwrap();
        let commands = [record.as_str()].into_iter().chain(commands.iter().copied());
        let hooks: Vec<Value> =
            commands.map(|command| json!({"type": "command", "command": command, "timeout": 30})).collect();
        let hooks = EVENTS.map(|event| (event.to_owned(), json!([{"hooks": hooks}])));
        let settings = json!({
            "hooks": hooks.into_iter().collect::<Map<String, Value>>(),
            // A rule that asks precedes one that allows.
            "permissions": {
                "allow": ["Agent", "Bash", "Edit", "Read", "Task", "Write"],
                "ask": [format!("Bash({ASKED})")],
            },
        });
        fs::write(self.path("home/.claude/settings.json"), settings.to_string()).unwrap();
        // Without this, the program in a terminal begins with questions.
        let trusted = json!({"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true});
        let state = json!({
            "hasCompletedOnboarding": true,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [&KEY[KEY.len() - 20..]], "rejected": []},
            "projects": {self.root().to_str().unwrap(): trusted},
        });
        fs::write(self.path("home/.claude.json"), state.to_string()).unwrap();
    }

    fn write_files(&self) {
        let root = self.root();
        fs::write(root.join("README.md"), "# A project\n").unwrap();
        fs::write(root.join(".gitignore"), "ignored/\n").unwrap();
        fs::write(root.join("src/main.txt"), "first line\nsecond line\n").unwrap();
        fs::write(root.join("src/old.txt"), "old\n").unwrap();
        fs::write(root.join("untracked.txt"), "not in git\n").unwrap();
        fs::create_dir(root.join("ignored")).unwrap();
        fs::write(root.join("ignored/cache"), [0, 159, 146, 150]).unwrap();
        symlink("src/main.txt", root.join("link")).unwrap();
        fs::write(root.join("run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        self.git(&["init", "-q"]);
        self.git(&["add", ".gitignore", "README.md", "link", "run.sh", "src"]);
        self.git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]);
    }

    pub(crate) fn git(&self, words: &[&str]) {
        let ran = Command::new("git")
            .args(words)
            .current_dir(self.root())
            .env("HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output();
        let ran = ran.unwrap();
        assert!(ran.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Returns a path next to the project.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        // The program reports its directory without links.
        self.directory.path().canonicalize().unwrap().join(name)
    }

    /// Returns the project's directory.
    pub(crate) fn root(&self) -> PathBuf {
        self.path("project")
    }

    /// Returns the whole environment of the program with an API.
    pub(crate) fn environment(&self, api: &str) -> Vec<(OsString, OsString)> {
        environment(&self.path("home"), &self.path("tmp"), api)
    }

    pub(crate) fn manifest(&self) -> Manifest {
        Manifest::of(&self.root())
    }

    /// Returns the events so far, in the order in which their hooks ran.
    pub(crate) fn events(&self) -> Vec<Event> {
        let record = fs::read_to_string(self.path("events")).unwrap();
        // A hook may be writing the last line.
        let whole = record.rfind('\n').map_or("", |end| &record[..end]);
        whole.lines().map(Event::parse).collect()
    }

    /// Waits until the events after the first `past` ones fulfil a condition, and returns them.
    pub(crate) fn wait_for(&self, past: usize, what: &str, is_met: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let begun = Instant::now();
        loop {
            let events = self.events().split_off(past);
            if is_met(&events) {
                return events;
            }
            let titles: Vec<String> = events.iter().map(Event::title).collect();
            assert!(begun.elapsed() < LONG, "waited in vain for {what} after {titles:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The command that the user is asked about.
pub(crate) const ASKED: &str = "touch denied.txt";
