//! Calls of tools: requests to the host before, during and after each.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::host::{Host, emit};
use crate::steps::{Played, Player, Stopped, die};

/// Tools of the program that need no permission.
const READING: [&str; 3] = ["Read", "Glob", "Grep"];

/// The decision about a call.
enum Verdict {
    Allowed,
    Denied(String),
    /// No hook decided.
    Open,
}

impl Player {
    pub fn call(&mut self, step: &Value) -> Played {
        let (name, bridged) = self.named(step);
        let id = step["id"].as_str().map(str::to_owned);
        let id = id.unwrap_or_else(|| format!("toolu_{}", self.number("call")));
        let mut input = step.get("input").cloned().unwrap_or_else(|| json!({}));
        self.answer(&[json!({"type": "tool_use", "id": id, "name": name, "input": input})]);
        if step["mirror"] == true {
            self.session.mirror();
        }
        self.run_call(step, &name, bridged, &mut input, &id)
    }

    /// Runs a call that an answer requests, and sends its result.
    pub fn run_call(
        &mut self,
        step: &Value,
        name: &str,
        bridged: Option<(String, String)>,
        input: &mut Value,
        id: &str,
    ) -> Played {
        self.open_call = Some(id.to_owned());
        let verdict = match self.pre_hooks(name, input, id)? {
            Verdict::Open => self.permission(name, input, id)?,
            decided => decided,
        };
        if let Verdict::Denied(reason) = verdict {
            self.open_call = None;
            self.denials.push(json!({"tool_name": name, "tool_use_id": id, "tool_input": input}));
            self.give_result(id, &reason.into(), true);
            return Ok(());
        }
        let (content, is_error) = match &bridged {
            Some((server, tool)) => self.call_bridged(server, tool, input.clone(), id)?,
            None => self.run_native(step, id)?,
        };
        if let Some(signal) = step["die"].as_u64() {
            die(signal);
        }
        if step["untold"] == true {
            self.open_call = None;
            self.give_result(id, &content, is_error);
            return Ok(());
        }
        let (event, more) = if is_error {
            let text = content.as_str().or_else(|| content[0]["text"].as_str());
            ("PostToolUseFailure", json!({"error": text, "is_interrupt": false}))
        } else {
            ("PostToolUse", json!({"tool_response": content, "duration_ms": 3}))
        };
        let replies = self.run_hooks(event, name, input, id, &more)?;
        self.open_call = None;
        let saved = step["saves"].as_str().map(|text| self.session.save(text).into());
        self.give_result(id, &saved.unwrap_or(content), is_error);
        if replies.iter().any(|reply| reply["continue"] == false) {
            return Err(Stopped::Hook);
        }
        Ok(())
    }

    pub fn call_together(&mut self, calls: &[Value]) -> Played {
        let mut asked = Vec::new();
        let mut blocks = Vec::new();
        for call in calls {
            let (name, bridged) = self.named(call);
            let id = format!("toolu_{}", self.number("call"));
            blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": call["input"]}));
            asked.push((id, bridged.expect("only bridged tools run together"), call["input"].clone()));
        }
        self.answer(&blocks);
        let mut requests = Vec::new();
        for (id, (server, tool), input) in asked {
            let parameters = call_parameters(&tool, input, &id);
            requests.push((self.ask_server(&server, "tools/call", parameters).0, id));
        }
        for (request, id) in requests {
            let reply = self.host.wait(|host| host.replies.get(&request).cloned())?;
            let (content, is_error) = tool_result(&reply);
            self.give_result(&id, &content, is_error);
        }
        Ok(())
    }

    /// Returns the full name of a step's tool, and server and name of a bridged one.
    pub fn named(&self, step: &Value) -> (String, Option<(String, String)>) {
        if let Some(native) = step["native"].as_str() {
            return (native.to_owned(), None);
        }
        let tool = step["tool"].as_str().expect("a tool has a name");
        let server = step["server"].as_str().map(str::to_owned);
        let server = server.or_else(|| self.started.servers().first().cloned()).expect("a server is bridged");
        (format!("mcp__{server}__{tool}"), Some((server, tool.to_owned())))
    }

    /// Calls the hooks before a call; they may replace its input.
    fn pre_hooks(&mut self, name: &str, input: &mut Value, id: &str) -> Played<Verdict> {
        let mut verdict = Verdict::Open;
        for reply in self.run_hooks("PreToolUse", name, &input.clone(), id, &json!({}))? {
            if reply["continue"] == false {
                return Err(Stopped::Hook);
            }
            let specific = &reply["hookSpecificOutput"];
            if let Some(updated) = specific.get("updatedInput") {
                *input = updated.clone();
            }
            let reason = specific["permissionDecisionReason"].as_str().unwrap_or_default().to_owned();
            match specific["permissionDecision"].as_str() {
                Some("deny") => return Ok(Verdict::Denied(reason)),
                Some("allow") => verdict = Verdict::Allowed,
                _ if reply["decision"] == "block" => {
                    return Ok(Verdict::Denied(reply["reason"].as_str().unwrap_or_default().to_owned()));
                }
                _ => {}
            }
        }
        Ok(verdict)
    }

    /// Calls the hooks of an event, and returns their answers. A failing hook is ignored.
    pub fn run_hooks(
        &mut self,
        event: &str,
        name: &str,
        input: &Value,
        id: &str,
        more: &Value,
    ) -> Played<Vec<Value>> {
        let mut replies = Vec::new();
        for hook in self.hooks[event].as_array().cloned().unwrap_or_default() {
            let is_meant = hook["matcher"]
                .as_str()
                .is_none_or(|matcher| matcher.split('|').any(|it| it == "*" || it == name));
            if !is_meant {
                continue;
            }
            for callback in hook["hookCallbackIds"].as_array().into_iter().flatten() {
                let mut told = json!({"session_id": self.session.id, "cwd": self.started.cwd,
                    "permission_mode": self.mode(), "hook_event_name": event, "tool_name": name,
                    "tool_input": input, "tool_use_id": id});
                for (name, value) in more.as_object().into_iter().flatten() {
                    told[name] = value.clone();
                }
                let request = json!({"subtype": "hook_callback", "callback_id": callback, "input": told,
                    "tool_use_id": id});
                let reply = self.ask_and_wait(&request)?;
                replies.push(reply["response"]["response"].clone());
            }
        }
        Ok(replies)
    }

    /// Decides whether a call may run, and asks the host if necessary.
    fn permission(&mut self, name: &str, input: &mut Value, id: &str) -> Played<Verdict> {
        let is_allowed = self.mode() == "bypassPermissions"
            || READING.contains(&name)
            || self.started.names("--allowedTools").iter().any(|allowed| allowed == name);
        if is_allowed {
            return Ok(Verdict::Allowed);
        }
        if self.started.value("--permission-prompt-tool") != Some("stdio") {
            return Ok(Verdict::Denied(format!("Claude requested permissions to use {name}")));
        }
        let request = json!({"subtype": "can_use_tool", "tool_name": name, "input": *input,
            "permission_suggestions": [], "tool_use_id": id});
        let reply = self.ask_and_wait(&request)?;
        let decision = &reply["response"]["response"];
        if decision["interrupt"] == true {
            return Err(Stopped::Interrupted);
        }
        if decision["behavior"] != "allow" {
            return Ok(Verdict::Denied(decision["message"].as_str().unwrap_or("refused").to_owned()));
        }
        *input = decision["updatedInput"].clone();
        Ok(Verdict::Allowed)
    }

    /// Calls a tool of the host, and returns its result and whether it failed.
    fn call_bridged(&mut self, server: &str, tool: &str, input: Value, id: &str) -> Played<(Value, bool)> {
        let (request, called) = self.ask_server(server, "tools/call", call_parameters(tool, input, id));
        match self.host.wait(|host| host.replies.get(&request).cloned()) {
            Ok(reply) => Ok(tool_result(&reply)),
            Err(ended) => {
                self.host.heeds_interrupts = false;
                self.host.cancelled.push(request);
                self.tell_server(server, "notifications/cancelled", json!({"requestId": called}))?;
                Err(ended.into())
            }
        }
    }

    /// Performs a call of the program's own tool. Returns its output, and whether it failed.
    fn run_native(&mut self, step: &Value, id: &str) -> Played<(Value, bool)> {
        self.change_files(step);
        leave(step);
        if let Some(steps) = step["steps"].as_array() {
            let outer = self.sub_agent.replace(id.to_owned());
            let played = steps.iter().try_for_each(|step| self.step(step));
            self.sub_agent = outer;
            played?;
            self.open_call = Some(id.to_owned());
        }
        if let Some(name) = step["gate"].as_str() {
            self.wait_at(name)?;
        }
        let failure = step.get("fails").map(|text| (text.clone(), true));
        Ok(failure.unwrap_or_else(|| (step.get("output").cloned().unwrap_or_else(|| "ok".into()), false)))
    }

    pub fn change_files(&self, step: &Value) {
        for (path, text) in step["write"].as_object().into_iter().flatten() {
            let path = self.started.cwd.join(path);
            fs::create_dir_all(path.parent().expect("a file is in a directory"))
                .expect("a directory can be made");
            fs::write(path, text.as_str().expect("a text")).expect("a file can be written");
        }
        for path in step["remove"].as_array().into_iter().flatten() {
            fs::remove_file(self.started.cwd.join(path.as_str().expect("a path")))
                .expect("a file can be removed");
        }
    }

    /// Sends a control request, and returns its id.
    pub fn ask(&mut self, request: &Value, id: Option<String>) -> String {
        let id = id.unwrap_or_else(|| format!("asked_{}", self.number("request")));
        emit(&json!({"type": "control_request", "request_id": id, "request": request}));
        id
    }

    /// Sends a control request, and waits for its answer. An interrupt cancels it.
    fn ask_and_wait(&mut self, request: &Value) -> Played<Value> {
        let id = self.ask(request, None);
        let reply = self.host.wait(|host| host.replies.get(&id).cloned());
        reply.map_err(|ended| {
            self.cancel(&id);
            ended.into()
        })
    }

    /// Cancels a request and reports that. A later answer ends this process.
    pub fn cancel(&mut self, id: &str) {
        emit(&json!({"type": "control_cancel_request", "request_id": id}));
        self.host.cancelled.push(id.to_owned());
    }

    /// Sends a request to a server; returns the ids of the control request and of the JSON-RPC
    /// request.
    fn ask_server(&mut self, server: &str, method: &str, parameters: Value) -> (String, u64) {
        let called = self.number("called");
        let message = json!({"jsonrpc": "2.0", "id": called, "method": method, "params": parameters});
        let request = json!({"subtype": "mcp_message", "server_name": server, "message": message});
        (self.ask(&request, None), called)
    }

    pub fn call_server(&mut self, server: &str, method: &str, parameters: Value) -> Played<Value> {
        let (id, _) = self.ask_server(server, method, parameters);
        let reply = self.host.wait(|host| host.replies.get(&id).cloned())?;
        Ok(reply["response"]["response"]["mcp_response"].clone())
    }

    /// Sends a server a notification, and waits until it is acknowledged.
    pub fn tell_server(&mut self, server: &str, method: &str, parameters: Value) -> Played {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": parameters});
        let id =
            self.ask(&json!({"subtype": "mcp_message", "server_name": server, "message": message}), None);
        Ok(self.host.wait(|host: &mut Host| host.replies.get(&id).map(drop))?)
    }
}

/// Starts the program that a step leaves running.
pub fn leave(step: &Value) {
    if let Some(words) = step["leave"].as_array() {
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        let left = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).spawn();
        drop(left.expect("a program starts"));
    }
}

fn call_parameters(tool: &str, input: Value, id: &str) -> Value {
    json!({"name": tool, "arguments": input, "_meta": {"claudecode/toolUseId": id}})
}

/// Reads the result of a call from the host's answer, and whether the call failed.
fn tool_result(reply: &Value) -> (Value, bool) {
    let response = &reply["response"];
    if response["subtype"] == "error" {
        return (response["error"].clone(), true);
    }
    let answer = &response["response"]["mcp_response"];
    match answer.get("error") {
        Some(error) => (format!("MCP error {}: {}", error["code"], error["message"]).into(), true),
        None => (answer["result"]["content"].clone(), answer["result"]["isError"] == true),
    }
}
