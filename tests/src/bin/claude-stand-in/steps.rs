//! The steps of a script, played in order.

use std::collections::HashMap;
use std::fs;
use std::process::exit;

use serde_json::{Value, json};

use crate::calls::leave;
use crate::host::{Ended, Host, emit, has, raw, refuse, succeed};
use crate::new_id;
use crate::session::Transcript;
use crate::started::Started;

/// The reason for which a turn stopped.
#[derive(Debug, PartialEq)]
pub enum Stopped {
    Closed,
    Interrupted,
    /// A hook ended the turn.
    Hook,
}

impl From<Ended> for Stopped {
    fn from(ended: Ended) -> Stopped {
        match ended {
            Ended::Closed => Stopped::Closed,
            Ended::Interrupted => Stopped::Interrupted,
        }
    }
}

pub type Played<T = ()> = Result<T, Stopped>;

pub struct Player {
    pub started: Started,
    pub session: Transcript,
    pub host: Host,
    /// Hooks of the host, as `initialize` named them.
    pub hooks: Value,
    /// Full names of the bridged tools.
    tools: Vec<String>,
    pub denials: Vec<Value>,
    numbers: HashMap<&'static str, u64>,
    heard: Value,
    prompt: String,
    answers: u64,
    /// The call that has no result yet.
    pub open_call: Option<String>,
    /// The call of the sub-agent that plays now.
    pub sub_agent: Option<String>,
}

impl Player {
    pub fn new(started: Started, session: Transcript, host: Host) -> Player {
        Player {
            started,
            session,
            host,
            hooks: Value::Null,
            tools: Vec::new(),
            denials: Vec::new(),
            numbers: HashMap::new(),
            heard: Value::Null,
            prompt: String::new(),
            answers: 0,
            open_call: None,
            sub_agent: None,
        }
    }

    /// Plays the script to its end, and ends this process.
    pub fn play(mut self) -> ! {
        let steps = std::mem::take(&mut self.started.steps);
        let mode = steps.first().and_then(|step| step["initialize"].as_str()).unwrap_or_default().to_owned();
        let mut at = usize::from(!mode.is_empty());
        let mut played = self.initialize(&mode);
        loop {
            match played {
                Ok(()) => {}
                Err(Stopped::Closed) => break,
                Err(stopped) => {
                    self.end_turn_early(&stopped);
                    while steps.get(at).is_some_and(|step| step.get("turn").is_none()) {
                        at += 1;
                    }
                }
            }
            let Some(step) = steps.get(at) else { break };
            at += 1;
            played = self.interrupted().and_then(|()| self.step(&self.filled(step)));
        }
        self.host.heeds_interrupts = false;
        let _ = self.host.wait(|_| None::<()>);
        self.session.end();
        exit(0);
    }

    /// Returns an error if the host has interrupted the turn.
    fn interrupted(&mut self) -> Played {
        self.host.hear_all();
        if self.host.heeds_interrupts && std::mem::take(&mut self.host.is_interrupted) {
            return Err(Stopped::Interrupted);
        }
        Ok(())
    }

    /// Answers the host's `initialize`, after the servers have answered theirs.
    fn initialize(&mut self, mode: &str) -> Played {
        if matches!(mode, "never" | "skip") {
            return Ok(());
        }
        let request = self.host.wait(|host| host.requests.pop_front())?;
        if mode == "refuse" {
            refuse(&request, "the script refuses");
            return Ok(());
        }
        self.hooks = request["request"]["hooks"].clone();
        for server in self.started.servers() {
            let parameters = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "claude-code", "version": "2.1.330"}});
            let answer = self.call_server(&server, "initialize", parameters)?;
            assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        }
        let mut answer = json!({"commands": [], "models": [], "pid": std::process::id()});
        if mode != "older" {
            answer["claude_code_version"] = "2.1.330".into();
        }
        succeed(&request, answer.clone());
        if mode == "twice" {
            succeed(&request, answer);
        }
        Ok(())
    }

    pub fn step(&mut self, step: &Value) -> Played {
        let text = |name: &str| step[name].as_str().map(str::to_owned);
        if step.get("turn").is_some() {
            return self.begin_turn(step);
        } else if let Some(text) = text("text") {
            self.answer(&[json!({"type": "text", "text": text})]);
        } else if step.get("tool").is_some() || step.get("native").is_some() {
            return self.call(step);
        } else if let Some(calls) = step["together"].as_array() {
            return self.call_together(calls);
        } else if let Some(length) = step["large"].as_u64() {
            self.answer(&[json!({"type": "text", "text": "x".repeat(length as usize)})]);
        } else if let Some(answers) = step["model"].as_array() {
            return self.play_model(answers);
        } else if step.get("result").is_some() {
            self.end_turn(step);
        } else if let Some(line) = step.get("emit") {
            emit(line);
        } else if let Some(text) = text("raw") {
            raw(&format!("{text}\n"));
        } else if let Some(text) = text("cut") {
            raw(&text);
            die(step["signal"].as_u64().unwrap_or(9));
        } else if let Some(text) = text("stderr") {
            (0..step["times"].as_u64().unwrap_or(1)).for_each(|_| eprintln!("{text}"));
        } else {
            return self.control_step(step);
        }
        Ok(())
    }

    /// Plays a step of the control channel, or one about processes and files.
    fn control_step(&mut self, step: &Value) -> Played {
        let text = |name: &str| step[name].as_str().map(str::to_owned);
        if let Some(pattern) = step.get("hear") {
            let find = |host: &mut Host| {
                let at = host.requests.iter().position(|request| has(request, pattern))?;
                host.requests.remove(at)
            };
            self.heard = self.host.wait(find)?;
        } else if let Some(response) = step.get("reply") {
            succeed(&self.heard, response.clone());
        } else if let Some(error) = text("reply_error") {
            refuse(&self.heard, &error);
        } else if let Some(request) = step.get("ask") {
            let id = self.ask(request, text("id"));
            if step["wait"] != false {
                self.host.wait(|host| host.replies.get(&id).map(drop))?;
            }
        } else if let Some(id) = text("answer") {
            self.host.wait(|host| host.replies.get(&id).map(drop))?;
        } else if let Some(id) = text("cancel") {
            self.cancel(&id);
        } else if let Some(id) = text("unanswered") {
            self.host.hear_all();
            if self.host.replies.contains_key(&id) {
                eprintln!("the request {id} was answered");
                exit(3);
            }
        } else if let Some(name) = text("gate") {
            self.wait_at(&name)?;
        } else if let Some(name) = text("touch") {
            fs::write(self.started.beside(&name), "").expect("a file can be made");
        } else if step.get("mirror").is_some() {
            self.session.mirror();
        } else if step.get("write").is_some() || step.get("remove").is_some() {
            self.change_files(step);
        } else if step["leave"].is_array() {
            leave(step);
        } else if let Some(code) = step["exit"].as_i64() {
            self.session.mirror();
            exit(code as i32);
        } else if let Some(signal) = step["die"].as_u64() {
            die(signal);
        } else if step.get("hold").is_some() {
            loop {
                self.host.hear_briefly();
            }
        } else {
            panic!("there is no such step: {step}");
        }
        Ok(())
    }

    pub fn wait_at(&mut self, name: &str) -> Played {
        let path = self.started.beside(name);
        while !path.exists() {
            self.host.hear_briefly();
            self.interrupted()?;
        }
        Ok(())
    }

    /// Waits for a prompt, and starts a turn. A hook may end it before the model is asked.
    fn begin_turn(&mut self, step: &Value) -> Played {
        let prompt = self.host.wait(|host| host.prompts.pop_front())?;
        let is_first = self.prompt.is_empty();
        self.prompt = match &prompt["message"]["content"] {
            Value::String(text) => text.clone(),
            blocks => blocks.to_string(),
        };
        if is_first {
            for server in self.started.servers() {
                self.tell_server(&server, "notifications/initialized", json!({}))?;
                let listed = self.call_server(&server, "tools/list", json!({}))?;
                let tools = listed["result"]["tools"].as_array().expect("tools are listed").clone();
                let names = tools.iter().filter_map(|tool| tool["name"].as_str());
                self.tools.extend(names.map(|name| format!("mcp__{server}__{name}")));
            }
        }
        self.host.heeds_interrupts = true;
        self.host.is_interrupted = false;
        self.session.add("user", &prompt["message"]);
        let servers: Vec<Value> =
            self.started.servers().iter().map(|name| json!({"name": name, "status": "connected"})).collect();
        let native = self
            .started
            .value("--tools")
            .map_or(vec!["Read".to_owned(), "Write".to_owned()], |_| self.started.names("--tools"));
        let lacks =
            |name: &String| step["lacks"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
        let native = native.into_iter().flat_map(|name| match name.as_str() {
            "default" => UNASKED.map(str::to_owned).to_vec(),
            "Agent" => vec!["Task".to_owned()],
            _ => vec![name],
        });
        let native: Vec<String> = native.filter(|name| !lacks(name)).collect();
        let tools: Vec<&String> = native.iter().chain(&self.tools).collect();
        emit(
            &json!({"type": "system", "subtype": "init", "session_id": self.session.id, "cwd": self.started.cwd,
            "tools": tools, "mcp_servers": servers, "model": self.model(), "permissionMode": self.mode(),
            "claude_code_version": step["version"].as_str().unwrap_or("2.1.330"), "apiKeySource": "none", "capabilities": [], "uuid": new_id()}),
        );
        self.tell_state("running");
        let replies = self.run_hooks("UserPromptSubmit", "", &Value::Null, "", &json!({}))?;
        match replies.iter().any(|reply| reply["continue"] == false) {
            true => Err(Stopped::Hook),
            false => Ok(()),
        }
    }

    /// Ends a turn, with the fields of the step.
    fn end_turn(&mut self, step: &Value) {
        self.session.mirror();
        let mut result = json!({"type": "result", "subtype": "success", "is_error": false, "result": null,
            "terminal_reason": "completed", "num_turns": self.answers, "session_id": self.session.id, "duration_ms": 7,
            "usage": {"input_tokens": 10 * self.answers.max(1), "output_tokens": 20}, "total_cost_usd": 0.01, "uuid": new_id(),
            "permission_denials": std::mem::take(&mut self.denials)});
        for (name, value) in step.as_object().expect("a step is an object") {
            result[name] = value.clone();
        }
        self.answers = 0;
        self.host.heeds_interrupts = false;
        self.host.is_interrupted = false;
        emit(&result);
        self.tell_state("idle");
    }

    /// Ends a turn that was interrupted, or that a hook ended.
    fn end_turn_early(&mut self, stopped: &Stopped) {
        if *stopped == Stopped::Hook {
            return self.end_turn(&json!({"result": "", "terminal_reason": "hook_stopped"}));
        }
        let mut reason = "aborted_streaming";
        if let Some(id) = self.open_call.take() {
            reason = "aborted_tools";
            self.give_result(&id, &json!(REJECTED), true);
        }
        self.session.add("user", &json!({"role": "user", "content": [{"type": "text", "text": BY_USER}]}));
        self.end_turn(
            &json!({"subtype": "error_during_execution", "is_error": true, "terminal_reason": reason}),
        );
    }

    fn tell_state(&self, state: &str) {
        if std::env::var_os("CLAUDE_CODE_SDK_READS_SESSION_STATE").is_some() {
            emit(&json!({"type": "system", "subtype": "session_state_changed", "state": state,
                "session_id": self.session.id, "uuid": new_id()}));
        }
    }

    /// Sends an answer of the model, one line for each of its blocks.
    pub fn answer(&mut self, blocks: &[Value]) {
        self.answers += 1;
        let id = format!("msg_{}", self.number("message"));
        self.answer_as(&id, blocks);
    }

    pub fn answer_as(&mut self, id: &str, blocks: &[Value]) {
        for block in blocks {
            let message = json!({"id": id, "type": "message", "role": "assistant", "model": self.model(),
                "content": [block], "usage": {"input_tokens": 10, "output_tokens": 1}});
            self.say("assistant", &message);
        }
    }

    /// Sends the result of a call to the model.
    pub fn give_result(&mut self, id: &str, content: &Value, is_error: bool) {
        let block =
            json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error});
        self.say("user", &json!({"role": "user", "content": [block]}));
    }

    /// Adds a message to the session's file, and sends it under the same id.
    fn say(&mut self, kind: &str, message: &Value) {
        let uuid = match &self.sub_agent {
            Some(call) => self.session.add_aside(call, kind, message),
            None => self.session.add(kind, message),
        };
        emit(&json!({"type": kind, "message": message, "parent_tool_use_id": self.sub_agent,
            "session_id": self.session.id, "uuid": uuid}));
    }

    /// Returns the next number of a kind, from 1.
    pub fn number(&mut self, kind: &'static str) -> u64 {
        let number = self.numbers.entry(kind).or_default();
        *number += 1;
        *number
    }

    fn model(&self) -> &str {
        self.started.value("--model").unwrap_or("claude-stand-in")
    }

    /// Returns the permission mode.
    pub fn mode(&self) -> &str {
        self.started.value("--permission-mode").unwrap_or("default")
    }

    /// Returns the names of the entries in the working directory.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.started.cwd).expect("the working directory can be read").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns a step with its placeholders filled in.
    fn filled(&self, step: &Value) -> Value {
        match step {
            Value::String(text) if text.contains('$') => text
                .replace("$session", &self.session.id)
                .replace("$cwd", &self.started.cwd.to_string_lossy())
                .replace("$prompt", &self.prompt)
                .replace("$history", &self.session.prompts().join("|"))
                .replace("$files", &self.files().join("|"))
                .replace("$results", &self.session.results().join("|"))
                .into(),
            Value::Array(items) => items.iter().map(|item| self.filled(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), self.filled(value))).collect()
            }
            other => other.clone(),
        }
    }
}

/// Some of the tools that the program offers by default.
const UNASKED: [&str; 6] = ["Task", "Bash", "Edit", "Monitor", "Read", "Write"];

/// The program's text to the model about a call that an interrupt ends, and about the turn.
const REJECTED: &str = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, \
                        the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how \
                        to proceed.";
const BY_USER: &str = "[Request interrupted by user for tool use]";

pub fn die(signal: u64) -> ! {
    let signal = i32::try_from(signal).ok().and_then(rustix::process::Signal::from_named_raw);
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, signal.expect("a signal")).expect("the signal is sent");
    loop {
        std::thread::park();
    }
}
