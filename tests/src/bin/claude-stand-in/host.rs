//! The channel between the stand-in and its host.

use std::collections::{HashMap, VecDeque};
use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::started::Started;

/// The reason for which a wait for the host ended early.
#[derive(Debug, PartialEq)]
pub enum Ended {
    Closed,
    Interrupted,
}

/// The messages of the host.
pub struct Host {
    lines: Receiver<Value>,
    /// Subtypes of control requests that the script handles.
    scripted: Vec<String>,
    pub prompts: VecDeque<Value>,
    pub replies: HashMap<String, Value>,
    pub requests: VecDeque<Value>,
    /// Requests whose answers are no longer expected.
    pub cancelled: Vec<String>,
    pub is_closed: bool,
    /// Whether an interrupt has arrived and is not handled yet.
    pub is_interrupted: bool,
    /// Whether an interrupt ends a wait.
    pub heeds_interrupts: bool,
}

impl Host {
    /// Starts to read the host's lines, and records them.
    pub fn listen(started: &Started) -> Host {
        let (to, lines) = channel();
        let mut path = started.script.clone().into_os_string();
        path.push(".heard");
        let mut heard =
            OpenOptions::new().create(true).append(true).open(path).expect("what is heard can be noted");
        thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                heard.write_all(format!("{line}\n").as_bytes()).expect("what is heard can be written");
                let Ok(line) = serde_json::from_str(&line) else {
                    eprintln!("Error parsing streaming input line: {line}");
                    std::process::exit(1);
                };
                if to.send(line).is_err() {
                    break;
                }
            }
        });
        let subtype = |step: &Value| step["hear"]["request"]["subtype"].as_str().map(str::to_owned);
        Host {
            lines,
            scripted: started.steps.iter().filter_map(subtype).collect(),
            prompts: VecDeque::new(),
            replies: HashMap::new(),
            requests: VecDeque::new(),
            cancelled: Vec::new(),
            is_closed: false,
            is_interrupted: false,
            heeds_interrupts: false,
        }
    }

    /// Waits until `found` returns a value from the host's messages.
    pub fn wait<T>(&mut self, mut found: impl FnMut(&mut Host) -> Option<T>) -> Result<T, Ended> {
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            if self.heeds_interrupts && std::mem::take(&mut self.is_interrupted) {
                return Err(Ended::Interrupted);
            }
            if self.is_closed {
                return Err(Ended::Closed);
            }
            match self.lines.recv() {
                Ok(line) => self.sort(line),
                Err(_) => self.is_closed = true,
            }
        }
    }

    /// Reads messages of the host for a moment.
    pub fn hear_briefly(&mut self) {
        let moment = Duration::from_millis(2);
        match self.lines.recv_timeout(moment) {
            Ok(line) => self.sort(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                self.is_closed = true;
                thread::sleep(moment);
            }
        }
    }

    /// Reads all messages that have arrived.
    pub fn hear_all(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.sort(line);
        }
    }

    /// Sorts a line by its kind.
    fn sort(&mut self, line: Value) {
        match line["type"].as_str() {
            Some("user") => self.prompts.push_back(line),
            Some("control_response") => {
                let id =
                    line["response"]["request_id"].as_str().expect("an answer names its request").to_owned();
                if self.cancelled.contains(&id) || self.replies.insert(id, line).is_some() {
                    eprintln!("a request was answered twice, or after it was cancelled");
                    std::process::exit(4);
                }
            }
            Some("control_request") => self.requested(line),
            _ => {
                eprintln!("the host said what nobody understands: {line}");
                std::process::exit(1);
            }
        }
    }

    /// Leaves a control request to the script, if that handles its subtype; otherwise answers it.
    fn requested(&mut self, line: Value) {
        let subtype = line["request"]["subtype"].as_str().unwrap_or_default();
        if subtype == "initialize" || self.scripted.iter().any(|scripted| scripted == subtype) {
            return self.requests.push_back(line);
        }
        match subtype {
            "interrupt" => {
                self.is_interrupted = true;
                succeed(&line, json!({}));
            }
            "set_model" | "set_permission_mode" | "mcp_status" => succeed(&line, json!({})),
            _ => refuse(&line, &format!("Unsupported control request subtype: {subtype}")),
        }
    }
}

pub fn emit(line: &Value) {
    raw(&format!("{line}\n"));
}

/// Writes a text to the host. Errors are ignored, since no reader is left.
pub fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(5);
    }
}

pub fn succeed(request: &Value, response: Value) {
    let id = &request["request_id"];
    let response = json!({"subtype": "success", "request_id": id, "response": response});
    emit(&json!({"type": "control_response", "response": response}));
}

pub fn refuse(request: &Value, error: &str) {
    let response = json!({"subtype": "error", "request_id": request["request_id"], "error": error});
    emit(&json!({"type": "control_response", "response": response}));
}

/// Returns whether a value contains all of a pattern, at any depth.
pub fn has(value: &Value, pattern: &Value) -> bool {
    match pattern {
        Value::Object(pattern) => pattern.iter().all(|(name, pattern)| has(&value[name], pattern)),
        _ => value == pattern,
    }
}
