//! Gemini CLI, in a terminal of `tmux`. Its protocol for editors runs no hooks of tools.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::api::ToolCall;
use crate::project::Project;
use crate::session::{Call, Driver, Ending};
use crate::tmux::Tmux;
use crate::wait::wait_until;

/// Time between a typed text and the key that submits it. The program takes keys that follow at once
/// for a pasted text.
const KEY: Duration = Duration::from_millis(400);

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

/// A terminal with the program.
pub(crate) struct Gemini {
    tmux: Tmux,
    /// Number of turns that were cancelled.
    cancelled: usize,
}

impl Gemini {
    pub(crate) fn start(project: &Project, api: &str) -> Gemini {
        write_settings(project);
        let mut command = project.command("tmux");
        command
            .env("GEMINI_API_KEY", "no-key-is-needed-here-no-key-is-needed-")
            .env("GOOGLE_GEMINI_BASE_URL", api)
            .env("GEMINI_CLI_TRUST_WORKSPACE", "true")
            // Otherwise it starts itself again, as another process.
            .env("GEMINI_CLI_NO_RELAUNCH", "true");
        let program = [project.path("bin/gemini")];
        let tmux = Tmux::start(command, project.path("tmux"), "200", &project.root(), program);
        tmux.wait_for("an input box", |screen| screen.contains("Type your message"));
        Gemini { tmux, cancelled: 0 }
    }

    fn cancel(&mut self) {
        self.tmux.press("Escape");
        self.cancelled += 1;
        let count = self.cancelled;
        self.tmux.wait_for("the cancellation", |screen| {
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

impl Driver for Gemini {
    fn prompt(&mut self, text: &str) {
        self.tmux.type_prompt(text);
        std::thread::sleep(KEY);
        // The empty input box is back, or a question is in its place.
        self.tmux.submit(|screen| {
            screen.contains("Type your message")
                || screen.contains("Allow execution")
                || self.tmux.has_ended()
        });
    }

    fn wait(&mut self, prompt: &str) {
        let answer = format!("done: {prompt}");
        self.tmux.wait_for("the answer", |screen| {
            screen.contains(&answer) && screen.contains("Type your message")
        });
    }

    fn refuse(&mut self, _: &str) {
        self.tmux.wait_for("a question", |screen| screen.contains("Allow execution"));
        self.cancel();
    }

    fn interrupt(&mut self) {
        self.cancel();
    }

    fn kill(self) {
        self.tmux.kill(&[]);
    }

    fn ask(&mut self, prompt: &str, answer: &str) {
        self.prompt(prompt);
        self.tmux.wait_for("the answer", |screen| screen.contains(answer));
    }

    fn end(mut self) {
        self.prompt("/quit");
        wait_until("the program has ended", || self.tmux.has_ended());
    }
}
