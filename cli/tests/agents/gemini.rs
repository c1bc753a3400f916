//! Gemini CLI, in a terminal of `tmux`. Its protocol for editors runs no hooks of tools.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::api::ToolCall;
use crate::project::{Project, wait_until};
use crate::session::{Call, Driver, Ending};

/// Longest time until an expected text is on the screen.
const LONG: Duration = Duration::from_secs(60);

/// Time between a typed text and the key that submits it. The program takes keys that follow at once
/// for a pasted text.
const KEY: Duration = Duration::from_millis(400);

/// Time after which a key without an effect is pressed again.
const AGAIN: Duration = Duration::from_secs(3);

fn shell(command: &str) -> ToolCall {
    ("run_shell_command", json!({"command": command}))
}

pub(crate) const CALLS: [Call; 8] = [
    Call {
        tool: "write_file",
        call: || ("write_file", json!({"file_path": "notes.txt", "content": "one\n"})),
        ending: Ending::Succeeded,
        outcome: "succeeded",
        exit_code: None,
    },
    Call {
        tool: "replace",
        call: || replace("first", "1st"),
        ending: Ending::Succeeded,
        outcome: "succeeded",
        exit_code: None,
    },
    Call {
        tool: "a failing edit",
        call: || replace("no such text", "x"),
        ending: Ending::Failed,
        outcome: "failed",
        exit_code: None,
    },
    Call {
        tool: "run_shell_command",
        call: || {
            shell(
                "mkdir built && echo a > built/a && chmod 700 built/a && rm link && echo x >> ignored/cache",
            )
        },
        ending: Ending::Succeeded,
        outcome: "succeeded",
        exit_code: Some(0),
    },
    Call {
        tool: "run_shell_command",
        call: || shell("rm -r built README.md && echo partial > partial.txt && exit 3"),
        ending: Ending::Failed,
        outcome: "failed",
        exit_code: Some(3),
    },
    Call {
        tool: "run_shell_command",
        call: || shell("touch refused.txt"),
        ending: Ending::Refused,
        outcome: "interrupted",
        exit_code: None,
    },
    Call {
        tool: "run_shell_command",
        call: || shell("echo begun > interrupted.txt; sleep 60; echo late >> interrupted.txt"),
        ending: Ending::Interrupted("interrupted.txt"),
        outcome: "failed",
        exit_code: None,
    },
    Call {
        tool: "run_shell_command",
        call: || shell("echo begun > killed.txt; sleep 60; echo late >> killed.txt"),
        ending: Ending::Killed("killed.txt"),
        // The first command that writes closes it.
        outcome: "open",
        exit_code: None,
    },
];

fn replace(old: &str, new: &str) -> ToolCall {
    let input =
        json!({"file_path": "src/main.txt", "old_string": old, "new_string": new, "instruction": "i"});
    ("replace", input)
}

/// Returns whether `tmux` runs here. If it does not, reports that the test is skipped.
pub(crate) fn has_tmux() -> bool {
    let has = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has {
        foldlog_test_support::skipped("there is no tmux");
    }
    has
}

/// A terminal with the program.
pub(crate) struct Gemini {
    socket: PathBuf,
    program: Pid,
    /// Number of turns that were cancelled.
    cancelled: usize,
}

impl Gemini {
    pub(crate) fn start(project: &Project, api: &str) -> Gemini {
        write_settings(project);
        let socket = project.path("tmux");
        // A server of its own has the environment of the first session.
        let started = project
            .command("tmux")
            .arg("-S")
            .arg(&socket)
            .args(["-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "200", "-c"])
            .arg(project.root())
            .arg(project.path("bin/gemini"))
            .args([";", "set-option", "remain-on-exit", "on"])
            .env("GEMINI_API_KEY", "no-key-is-needed-here-no-key-is-needed-")
            .env("GOOGLE_GEMINI_BASE_URL", api)
            .env("GEMINI_CLI_TRUST_WORKSPACE", "true")
            // Otherwise it starts itself again, as another process.
            .env("GEMINI_CLI_NO_RELAUNCH", "true")
            .status();
        assert!(started.unwrap().success(), "tmux does not start");
        let process = tmux(&socket, &["display-message", "-p", "#{pane_pid}"]);
        let program = Pid::from_raw(process.trim().parse().unwrap()).unwrap();
        let gemini = Gemini { socket, program, cancelled: 0 };
        gemini.wait_for("an input box", |screen| screen.contains("Type your message"));
        gemini
    }

    fn screen(&self) -> String {
        tmux(&self.socket, &["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        tmux(&self.socket, &["send-keys", key]);
    }

    /// Waits until the screen fulfils a condition.
    fn wait_for(&self, what: &str, mut is_shown: impl FnMut(&str) -> bool) {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if is_shown(&screen) {
                return;
            }
            assert!(begun.elapsed() < LONG, "waited in vain for {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn cancel(&mut self) {
        self.press("Escape");
        self.cancelled += 1;
        let count = self.cancelled;
        self.wait_for("the cancellation", |screen| {
            screen.matches("Request cancelled.").count() >= count && screen.contains("Type your message")
        });
    }
}

/// Adds what this test needs to the settings with the hooks, and a rule that asks about one command.
fn write_settings(project: &Project) {
    let file = project.path("home/.gemini/settings.json");
    let mut settings: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    settings["model"] = json!({"name": "gemini-2.5-flash"});
    settings["ui"] = json!({"hideBanner": true, "hideTips": true});
    settings["security"] =
        json!({"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}});
    settings["general"] = json!({"enableAutoUpdate": false, "enableAutoUpdateNotification": false});
    settings["privacy"] = json!({"usageStatisticsEnabled": false});
    fs::write(&file, settings.to_string()).unwrap();
    let rules = "[[rule]]\ntoolName = [\"run_shell_command\", \"write_file\", \"replace\"]\ndecision = \"allow\"\n\
                 allowRedirection = true\npriority = 100\n[[rule]]\ntoolName = \"run_shell_command\"\n\
                 commandPrefix = \"touch\"\ndecision = \"ask_user\"\npriority = 200\n";
    fs::create_dir_all(project.path("home/.gemini/policies")).unwrap();
    fs::write(project.path("home/.gemini/policies/test.toml"), rules).unwrap();
}

impl Drop for Gemini {
    fn drop(&mut self) {
        // No server is left if the terminal could not be opened.
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn tmux<Word: AsRef<OsStr>>(socket: &PathBuf, words: &[Word]) -> String {
    let mut command = Command::new("tmux");
    let output = command.arg("-S").arg(socket).args(["-f", "/dev/null"]).args(words).output().unwrap();
    assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns true for a process that is gone or a zombie. `tmux` may leave it a zombie.
fn has_ended(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
}

impl Driver for Gemini {
    fn prompt(&mut self, text: &str) {
        tmux(&self.socket, &["send-keys", "-l", text]);
        self.wait_for("the prompt", |screen| screen.contains(text));
        std::thread::sleep(KEY);
        let mut pressed: Option<Instant> = None;
        self.wait_for("the submission", |screen| {
            // The empty input box is back, or a question is in its place.
            let is_submitted = pressed.is_some()
                && (screen.contains("Type your message")
                    || screen.contains("Allow execution")
                    || has_ended(self.program));
            if !is_submitted && pressed.is_none_or(|pressed| pressed.elapsed() > AGAIN) {
                self.press("Enter");
                pressed = Some(Instant::now());
            }
            is_submitted
        });
    }

    fn wait(&mut self, prompt: &str) {
        let answer = format!("done: {prompt}");
        self.wait_for("the answer", |screen| {
            screen.contains(&answer) && screen.contains("Type your message")
        });
    }

    fn refuse(&mut self, _: &str) {
        self.wait_for("a question", |screen| screen.contains("Allow execution"));
        self.cancel();
    }

    fn interrupt(&mut self) {
        self.cancel();
    }

    fn kill(self) {
        kill_process(self.program, Signal::KILL).unwrap();
        wait_until("the killed program is gone", || has_ended(self.program));
    }

    fn ask(&mut self, prompt: &str, answer: &str) {
        self.prompt(prompt);
        self.wait_for("the answer", |screen| screen.contains(answer));
    }

    fn end(mut self) {
        self.prompt("/quit");
        wait_until("the program has ended", || has_ended(self.program));
    }
}
