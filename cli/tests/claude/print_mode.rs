//! The program without a terminal: `claude -p` with messages on its standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::driver::{Driver, session_arguments};
use crate::program::Program;
use crate::project::Project;

/// Longest time until an expected message.
const LONG: Duration = Duration::from_secs(60);

/// A program that exchanges messages.
pub(crate) struct PrintMode {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
}

impl PrintMode {
    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    /// Skips messages until one fulfils a condition, and returns it.
    fn skip_to(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.messages.recv_timeout(LONG).unwrap_or_else(|error| panic!("{what}: {error}"));
            if is_wanted(&message) {
                return message;
            }
        }
    }
}

impl Driver for PrintMode {
    const REFUSED_TURN_ENDS: bool = true;

    fn start(project: &Project, api: &str, resumes: bool) -> PrintMode {
        let program = Program::named().unwrap().words();
        let mut process = Command::new(&program[0])
            .args(&program[1..])
            .args(["-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"])
            .args(["--permission-prompt-tool", "stdio"])
            .args(session_arguments(resumes))
            .current_dir(project.root())
            .env_clear()
            .envs(project.environment(api))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for message in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        PrintMode { process, input, messages }
    }

    fn prompt(&mut self, text: &str) {
        let message = json!({"role": "user", "content": text});
        self.send(&json!({"type": "user", "session_id": "", "message": message, "parent_tool_use_id": null}));
    }

    fn refuse(&mut self) {
        let asked = |message: &Value| message["request"]["subtype"] == "can_use_tool";
        let request = self.skip_to("a question of the program", asked)["request_id"].clone();
        let refusal = json!({"behavior": "deny", "message": "The user refuses."});
        let response = json!({"subtype": "success", "request_id": request, "response": refusal});
        self.send(&json!({"type": "control_response", "response": response}));
    }

    fn interrupt(&mut self) {
        while self.messages.try_recv().is_ok() {}
        let request = json!({"subtype": "interrupt"});
        self.send(&json!({"type": "control_request", "request_id": "interrupt", "request": request}));
        self.skip_to("the end of the turn", |message| message["type"] == "result");
    }

    fn kill(mut self, others: &[Pid]) {
        self.process.kill().unwrap();
        for other in others {
            let _ = kill_process(*other, Signal::KILL);
        }
        self.process.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.input);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the program ended with {status}");
    }
}
