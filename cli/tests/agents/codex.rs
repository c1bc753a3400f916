//! Codex, through the protocol that editors use: `codex app-server`.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::api::ToolCall;
use crate::messages::Messages;
use crate::project::Project;
use crate::session::{Call, Driver, Ending};

fn patch(lines: &str) -> ToolCall {
    ("apply_patch", json!(format!("*** Begin Patch\n{lines}\n*** End Patch\n")))
}

fn shell(command: &str) -> ToolCall {
    ("exec_command", json!({"cmd": command}))
}

/// The exit code of a command that the model waited for is in the transcript.
pub(crate) const CALLS: [Call; 9] = [
    Call {
        tool: "apply_patch",
        call: || {
            patch("*** Add File: notes.txt\n+one\n*** Update File: src/main.txt\n@@\n-first line\n+1st line")
        },
        ending: Ending::Succeeded,
        outcome: "succeeded",
        exit_code: None,
    },
    Call {
        tool: "a failing edit",
        call: || patch("*** Update File: src/main.txt\n@@\n-no such line\n+x"),
        ending: Ending::Failed,
        outcome: "failed",
        exit_code: None,
    },
    Call {
        tool: "apply_patch",
        call: || {
            patch("*** Update File: src/main.txt\n*** Move to: src/moved.txt\n@@\n-1st line\n+third line")
        },
        ending: Ending::Succeeded,
        outcome: "succeeded",
        exit_code: None,
    },
    Call {
        tool: "Bash",
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
        tool: "Bash",
        call: || shell("rm -r built README.md && echo partial > partial.txt && exit 3"),
        ending: Ending::Failed,
        outcome: "failed",
        exit_code: Some(3),
    },
    Call {
        tool: "Bash",
        call: || shell("touch refused.txt"),
        ending: Ending::Refused,
        outcome: "failed",
        exit_code: None,
    },
    Call {
        // The model does not wait for the end: the program asks for the rest of the output.
        tool: "Bash",
        call: || ("exec_command", json!({"cmd": "echo begun > late.txt; sleep 1", "yield_time_ms": 250})),
        ending: Ending::Succeeded,
        outcome: "interrupted",
        exit_code: None,
    },
    Call {
        tool: "Bash",
        call: || shell("echo begun > interrupted.txt; sleep 60; echo late >> interrupted.txt"),
        ending: Ending::Interrupted("interrupted.txt"),
        outcome: "interrupted",
        exit_code: None,
    },
    Call {
        tool: "Bash",
        call: || shell("echo begun > killed.txt; sleep 60; echo late >> killed.txt"),
        ending: Ending::Killed("killed.txt"),
        // The first command that writes closes it.
        outcome: "open",
        exit_code: None,
    },
];

/// Writes the settings of Codex, with a rule that asks about one command.
pub(crate) fn write_settings(project: &Project, api: &str) {
    let home = project.path("home/.codex");
    fs::create_dir_all(home.join("rules")).unwrap();
    let rule = "prefix_rule(pattern=[\"touch\"], decision=\"prompt\")\n";
    fs::write(home.join("rules/default.rules"), rule).unwrap();
    let settings = format!(
        "model = \"gpt-5.5\"\nmodel_provider = \"loopback\"\napproval_policy = \"on-request\"\n\
         sandbox_mode = \"danger-full-access\"\ncheck_for_update_on_startup = false\n\
         [model_providers.loopback]\nname = \"loopback\"\nbase_url = \"{api}/v1\"\nenv_key = \"NO_KEY\"\n\
         wire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n\
         [projects.\"{}\"]\ntrust_level = \"trusted\"\n[analytics]\nenabled = false\n",
        project.root().display()
    );
    fs::write(home.join("config.toml"), settings).unwrap();
}

/// Trusts the hooks, as Codex does when the user has confirmed them.
pub(crate) fn trust_hooks(project: &Project) {
    let mut codex = Codex::connect(project);
    let listed = codex.request("hooks/list", &json!({"cwds": [project.root()]}));
    codex.end();
    let mut trusted = String::new();
    for hook in listed["data"][0]["hooks"].as_array().unwrap() {
        trusted += &format!("[hooks.state.{}]\ntrusted_hash = {}\n", hook["key"], hook["currentHash"]);
    }
    let file = project.path("home/.codex/config.toml");
    let settings = fs::read_to_string(&file).unwrap();
    fs::write(&file, settings + &trusted).unwrap();
}

/// A program that exchanges messages.
pub(crate) struct Codex {
    messages: Messages,
    requests: u64,
    thread: Value,
    turn: Value,
}

impl Codex {
    /// Starts a session with trusted hooks.
    pub(crate) fn start(project: &Project, api: &str) -> Codex {
        write_settings(project, api);
        trust_hooks(project);
        let mut codex = Codex::connect(project);
        codex.thread = codex.request("thread/start", &json!({"cwd": project.root()}))["thread"]["id"].clone();
        codex
    }

    fn connect(project: &Project) -> Codex {
        // The process itself, without the shell that the name would start.
        let program = std::env::var_os("FOLDLOG_CODEX_CLI").unwrap();
        let mut command = project.command(program);
        command.arg("app-server").env("NO_KEY", "none").stderr(Stdio::null());
        let messages = Messages::start(&mut command);
        let (thread, turn) = (Value::Null, Value::Null);
        let mut codex = Codex { messages, requests: 0, thread, turn };
        codex.request("initialize", &json!({"clientInfo": {"name": "test", "version": "1"}}));
        codex.messages.send(&json!({"jsonrpc": "2.0", "method": "initialized"}));
        codex
    }

    /// Returns the result of a request.
    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        self.messages.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let answer =
            self.messages.skip_to(method, |message| message["id"] == id && message["method"].is_null());
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].clone()
    }
}

impl Driver for Codex {
    fn prompt(&mut self, text: &str) {
        let input = json!({"threadId": self.thread, "input": [{"type": "text", "text": text}]});
        self.turn = self.request("turn/start", &input)["turn"]["id"].clone();
    }

    fn wait(&mut self, _: &str) {
        self.messages.skip_to("the end of the turn", |message| message["method"] == "turn/completed");
    }

    fn refuse(&mut self, prompt: &str) {
        let asked = |message: &Value| message["method"] == "item/commandExecution/requestApproval";
        let id = self.messages.skip_to("a question", asked)["id"].clone();
        self.messages.send(&json!({"jsonrpc": "2.0", "id": id, "result": {"decision": "decline"}}));
        self.wait(prompt);
    }

    fn interrupt(&mut self) {
        let turn = json!({"threadId": self.thread, "turnId": self.turn});
        self.request("turn/interrupt", &turn);
        self.wait("");
    }

    fn kill(self) {
        self.messages.kill(&[]);
    }

    fn ask(&mut self, prompt: &str, answer: &str) {
        self.prompt(prompt);
        self.messages.skip_to("the answer", |message| {
            message["method"] == "hook/completed" && message.to_string().contains(answer)
        });
        self.wait(prompt);
    }

    fn end(self) {
        self.messages.end();
    }
}
