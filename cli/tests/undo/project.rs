//! A project of an agent, and the commands in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use foldlog_test_support::loop_disk::LoopDisk;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

/// A user without rights.
const NOBODY: u32 = 65534;

pub(crate) struct Project {
    dir: TempDir,
    pub(crate) root: PathBuf,
    /// User that runs the commands, if it is another one.
    user: Option<u32>,
    /// A process in the place of the agent.
    agent: Child,
}

impl Drop for Project {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

impl Project {
    pub(crate) fn new() -> Project {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("project");
        Project::with(dir, root)
    }

    /// Makes a project in a directory of another disk.
    pub(crate) fn on(disk: &LoopDisk) -> Project {
        Project::with(tempfile::tempdir().unwrap(), disk.root().canonicalize().unwrap().join("project"))
    }

    fn with(dir: TempDir, root: PathBuf) -> Project {
        for directory in [root.join("src"), dir.path().join("home"), dir.path().join("state")] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(root.join("src/main.rs"), "fn main() {}\n").unwrap();
        fs::write(root.join("notes"), "keep\n").unwrap();
        let agent = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Project { dir, root, user: None, agent }
    }

    /// Gives everything to a user whom permissions bind, and runs the commands as that user.
    pub(crate) fn give_away(&mut self) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::set_permissions(self.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut left = vec![self.root.clone(), self.home(), self.state()];
        while let Some(path) = left.pop() {
            std::os::unix::fs::lchown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            if path.is_dir() {
                left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        self.user = Some(NOBODY);
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn kill_agent(&mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Returns the directory with the timeline's sessions.
    pub(crate) fn sessions(&self) -> PathBuf {
        let timelines = self.dir.path().join("state/foldlog/timelines");
        fs::read_dir(timelines).unwrap().next().unwrap().unwrap().path().join("store/sessions")
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns all files by their paths.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, String> {
        let (mut files, mut left) = (BTreeMap::new(), vec![self.root.clone()]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    files.insert(path.clone(), fs::read_to_string(path).unwrap());
                }
            }
        }
        files
    }

    /// Runs a script of a shell. It has to succeed.
    pub(crate) fn run(&self, script: &str) {
        let ran = self.program("sh", &["-c", script]).output().unwrap();
        assert!(ran.status.success(), "{script}: {}", text(&ran));
    }

    /// Returns a command of the binary, with its own home and state.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_foldlog"), arguments)
    }

    fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&self.root)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home())
            .env("XDG_STATE_HOME", self.state())
            .env("CLAUDE_PID", self.agent.id().to_string())
            .stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Runs a command, and returns what it prints. It has to succeed.
    pub(crate) fn foldlog(&self, arguments: &[&str]) -> String {
        let ran = self.command(arguments).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", text(&ran));
        String::from_utf8(ran.stdout).unwrap()
    }

    /// Starts the hook with an input.
    pub(crate) fn start_hook(&self, input: &Json, options: &[&str]) -> Child {
        self.start_hook_of("claude", input, options)
    }

    fn start_hook_of(&self, agent: &str, input: &Json, options: &[&str]) -> Child {
        let arguments: Vec<&str> = ["hook", "event", agent].iter().chain(options).copied().collect();
        let mut command = self.command(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A killed hook has no reader.
        let _ = writeln!(child.stdin.take().unwrap(), "{input}");
        child
    }

    /// Runs the hook, and returns its reply; null if it prints nothing.
    pub(crate) fn hook(&self, input: &Json) -> Json {
        self.hook_of("claude", input)
    }

    /// Runs the hook of an agent, and returns its reply.
    pub(crate) fn hook_of(&self, agent: &str, input: &Json) -> Json {
        let ran = self.start_hook_of(agent, input, &[]).wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", text(&ran));
        serde_json::from_slice(&ran.stdout).unwrap_or(Json::Null)
    }

    /// Returns the input of an event.
    pub(crate) fn input(&self, event: &str, fields: &Json) -> Json {
        let mut input = json!({
            "session_id": "f483", "transcript_path": "/nowhere", "cwd": self.root, "prompt_id": "p",
            "permission_mode": "default", "hook_event_name": event,
        });
        let fields = fields.as_object().unwrap().clone();
        input.as_object_mut().unwrap().extend(fields);
        input
    }

    pub(crate) fn shell(&self, event: &str, id: &str) -> Json {
        let fields = json!({"tool_name": "Bash", "tool_input": {"command": format!("command {id}")}, "tool_use_id": id});
        let mut input = self.input(event, &fields);
        if event == "PostToolUse" {
            let fields = json!({"tool_response": {"stdout": "", "stderr": ""}, "duration_ms": 5});
            input.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        }
        input
    }

    /// Runs a call of a shell that changes files.
    pub(crate) fn call(&self, id: &str, change: impl FnOnce(&Project)) {
        assert_eq!(self.hook(&self.shell("PreToolUse", id)), Json::Null);
        change(self);
        assert_eq!(self.hook(&self.shell("PostToolUse", id)), Json::Null);
    }

    /// Returns the lines of `log --json`, the first step first.
    pub(crate) fn steps(&self) -> Vec<Json> {
        let printed = self.foldlog(&["--json", "log", "-n", "1000"]);
        let mut steps: Vec<Json> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        steps.reverse();
        steps
    }
}

pub(crate) fn text(ran: &Output) -> String {
    format!(
        "{}\n{}{}",
        ran.status,
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    )
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
