//! The program without a terminal: `claude -p` with messages on its standard input and output.

use std::process::Command;

use rustix::process::Pid;
use serde_json::json;

use crate::driver::{Driver, session_arguments};
use crate::messages::Messages;
use crate::program::Program;
use crate::project::Project;

/// A program that exchanges messages.
pub(crate) struct PrintMode(Messages);

impl Driver for PrintMode {
    const REFUSED_TURN_ENDS: bool = true;

    fn start(project: &Project, api: &str, resumes: bool) -> PrintMode {
        let program = Program::named().unwrap().words();
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .args(["-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"])
            .args(["--permission-prompt-tool", "stdio"])
            .args(session_arguments(resumes))
            .current_dir(project.root())
            .env_clear()
            .envs(project.environment(api));
        PrintMode(Messages::start(&mut command))
    }

    fn prompt(&mut self, text: &str) {
        let message = json!({"role": "user", "content": text});
        self.0
            .send(&json!({"type": "user", "session_id": "", "message": message, "parent_tool_use_id": null}));
    }

    fn refuse(&mut self) {
        let asked = |message: &serde_json::Value| message["request"]["subtype"] == "can_use_tool";
        let request = self.0.skip_to("a question of the program", asked)["request_id"].clone();
        let refusal = json!({"behavior": "deny", "message": "The user refuses."});
        let response = json!({"subtype": "success", "request_id": request, "response": refusal});
        self.0.send(&json!({"type": "control_response", "response": response}));
    }

    fn interrupt(&mut self) {
        while self.0.received.try_recv().is_ok() {}
        let request = json!({"subtype": "interrupt"});
        self.0.send(&json!({"type": "control_request", "request_id": "interrupt", "request": request}));
        self.0.skip_to("the end of the turn", |message| message["type"] == "result");
    }

    fn kill(self, others: &[Pid]) {
        self.0.kill(others);
    }

    fn end(self) {
        self.0.end();
    }
}
