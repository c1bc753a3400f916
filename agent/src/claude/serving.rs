//! Serves what the program asks of its host: reads the frames, answers the bridge's handshake at once, and has tools,
//! hooks and permissions answered on threads of their own.
//!
//! # Invariants
//!
//! 1. The reading thread calls no callback and writes to no pipe.
//! 2. A request that was cancelled is not answered; any other one is answered once.
//! 3. No callback begins after the client was closed.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ChildStdout;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use super::bridge::{Bridge, Bridged, BridgedCall, success};
use super::callbacks::{
    Callbacks, HookCall, HookReply, PermissionReply, PermissionRequest, ToolCall, ToolReply,
};
use super::channel::Channel;
use super::error::Error;
use super::message::text;
use super::process::Process;
use super::stream::{Frame, Lines};
use crate::provider::CancelToken;

/// Greatest number of callbacks that wait for a thread. More are refused.
const WAITING_MAX: usize = 1024;

/// Serves the program's requests.
pub(super) struct Serving {
    callbacks: Arc<dyn Callbacks>,
    bridge: Bridge,
    channel: Arc<Channel>,
    running: Mutex<Running>,
    changed: Condvar,
    threads_max: usize,
    is_ordered: bool,
}

#[derive(Default)]
struct Running {
    /// Callbacks that wait or run, by the id of the request.
    calls: HashMap<String, Entry>,
    waiting: VecDeque<Job>,
    threads: usize,
    is_closed: bool,
}

struct Entry {
    cancel: CancelToken,
    /// Server and JSON-RPC id of a tool's call.
    bridged: Option<(String, String)>,
}

/// Holds a request that a callback answers.
struct Job {
    request: String,
    cancel: CancelToken,
    after: u64,
    asked: Asked,
}

enum Asked {
    Tool(ToolCall, Value),
    Hook(HookCall),
    Permission(PermissionRequest),
}

impl Serving {
    pub(super) fn new(
        callbacks: Arc<dyn Callbacks>,
        bridge: Bridge,
        channel: Arc<Channel>,
        threads_max: usize,
        is_ordered: bool,
    ) -> Serving {
        let (running, changed) = (Mutex::default(), Condvar::new());
        let threads_max = threads_max.max(1);
        Serving { callbacks, bridge, channel, running, changed, threads_max, is_ordered }
    }

    /// Reads the program's output to its end. A line that cannot be read ends the program, which nobody hears any more.
    pub(super) fn read(self: Arc<Self>, stdout: ChildStdout, limit: usize, process: &Process) {
        let mut lines = Lines::new(BufReader::with_capacity(64 << 10, stdout), limit);
        let end = loop {
            match lines.next() {
                Ok(Some(line)) => match line.parse() {
                    Ok(Some(frame)) => self.take(frame),
                    Ok(None) => {}
                    Err(error) => break Some(error),
                },
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let end = end.map(|error: Error| {
            process.kill();
            error.with_exit(process.exit()).with_stderr(process.stderr())
        });
        self.channel.end(end);
        self.cancel_all();
    }

    /// Takes a frame of the program.
    fn take(self: &Arc<Self>, mut frame: Frame) {
        let object = &mut frame.object;
        match object.get("type").and_then(Value::as_str) {
            Some("control_request") => {
                let id = text(object, "request_id").unwrap_or_default();
                self.asked(id, object.remove("request").unwrap_or_default());
            }
            Some("control_response") => self.channel.answered(frame.object),
            Some("control_cancel_request") => {
                self.cancel(|id, _| object.get("request_id").and_then(Value::as_str) == Some(id));
            }
            _ => self.channel.inbox.push(frame),
        }
    }

    /// Takes a request of the program.
    fn asked(self: &Arc<Self>, id: String, request: Value) {
        let field = |name: &str| request.get(name).and_then(Value::as_str).map(str::to_owned);
        let (cancel, after) = (CancelToken::new(), self.channel.inbox.received());
        let tool_use_id = field("tool_use_id");
        let part = |name: &str| request.get(name).cloned().unwrap_or_default();
        let (asked, bridged) = match field("subtype").as_deref() {
            Some("mcp_message") => {
                let server = field("server_name").unwrap_or_default();
                match self.bridge.take(&server, request.get("message").unwrap_or(&Value::Null)) {
                    Bridged::Answer(answer) => return self.succeed(&id, json!({ "mcp_response": answer })),
                    Bridged::Cancel { id: called, answer } => {
                        self.cancel(|_, bridged| bridged == Some(&(server.clone(), called.clone())));
                        return self.succeed(&id, json!({ "mcp_response": answer }));
                    }
                    Bridged::Call(BridgedCall { id, name, arguments, tool_use_id }) => {
                        let bridged = Some((server.clone(), id.to_string()));
                        let cancel = cancel.clone();
                        let call = ToolCall { server, name, arguments, tool_use_id, cancel, after };
                        (Asked::Tool(call, id), bridged)
                    }
                }
            }
            Some("hook_callback") => {
                let input = part("input");
                let event = input.get("hook_event_name").and_then(Value::as_str).unwrap_or_default();
                let (event, cancel) = (event.to_owned(), cancel.clone());
                let callback_id = field("callback_id").unwrap_or_default();
                let call = HookCall { callback_id, event, input, tool_use_id, cancel, after };
                (Asked::Hook(call), None)
            }
            Some("can_use_tool") => {
                let (tool_name, input) = (field("tool_name").unwrap_or_default(), part("input"));
                let cancel = cancel.clone();
                let request = PermissionRequest { tool_name, input, tool_use_id, request, cancel, after };
                (Asked::Permission(request), None)
            }
            other => {
                let what = other.unwrap_or("without a subtype");
                return self.fail(&id, &format!("the host serves no request `{what}`"));
            }
        };
        self.start(Job { request: id, cancel, after, asked }, bridged);
    }

    /// Has a callback called on one of the threads.
    fn start(self: &Arc<Self>, job: Job, bridged: Option<(String, String)>) {
        let id = job.request.clone();
        let mut running = self.running.lock();
        if running.is_closed {
            return;
        }
        if running.calls.contains_key(&id) || running.waiting.len() >= WAITING_MAX {
            drop(running);
            return self.fail(&id, "the host serves a request of this id already, or too many others");
        }
        running.calls.insert(id.clone(), Entry { cancel: job.cancel.clone(), bridged });
        running.waiting.push_back(job);
        if running.threads >= self.threads_max {
            return;
        }
        let this = Arc::clone(self);
        let name = "foldlog-claude-call".to_owned();
        match thread::Builder::new().name(name).spawn(move || this.work()) {
            Ok(_) => running.threads += 1,
            // Another thread takes the job.
            Err(_) if running.threads > 0 => {}
            Err(error) => {
                running.waiting.pop_back();
                running.calls.remove(&id);
                drop(running);
                self.fail(&id, &format!("the host can start no thread: {error}"));
            }
        }
    }

    /// Calls callbacks until none waits.
    fn work(&self) {
        loop {
            let mut running = self.running.lock();
            let Some(job) = running.waiting.pop_front() else {
                running.threads -= 1;
                self.changed.notify_all();
                return;
            };
            drop(running);
            self.run(job);
        }
    }

    /// Calls a callback, and answers the request unless it was cancelled.
    fn run(&self, job: Job) {
        let Job { request, cancel, after, asked } = job;
        if self.is_ordered {
            self.channel.inbox.wait_until_asked(after, &cancel);
        }
        let answer = (!cancel.is_cancelled()).then(|| self.answer(asked));
        self.running.lock().calls.remove(&request);
        match answer {
            _ if cancel.is_cancelled() => {}
            Some(Ok(answer)) => self.succeed(&request, answer),
            Some(Err(error)) => self.fail(&request, &error),
            None => {}
        }
    }

    /// Returns the answer of a callback, or the text of the error that stands for it.
    fn answer(&self, asked: Asked) -> Result<Value, String> {
        let callbacks = &*self.callbacks;
        match asked {
            Asked::Tool(call, id) => {
                let reply = caught(|| callbacks.call_tool(call)).unwrap_or_else(|panic| {
                    ToolReply::error(format!("Tool error: the tool panicked: {panic}"))
                });
                Ok(json!({ "mcp_response": success(&id, reply.to_json()) }))
            }
            Asked::Hook(call) => {
                let event = call.event.clone();
                match caught(|| callbacks.hook(call)) {
                    Ok(reply) => Ok(reply.to_json(&event)),
                    // The program goes on after a hook that fails, and the call would run unguarded.
                    Err(panic) if event == "PreToolUse" => {
                        Ok(HookReply::deny(format!("the host's hook panicked: {panic}")).to_json(&event))
                    }
                    Err(panic) => Err(format!("the host's hook panicked: {panic}")),
                }
            }
            Asked::Permission(request) => {
                let input = request.input.clone();
                let reply = caught(|| callbacks.can_use_tool(request)).unwrap_or_else(|panic| {
                    let message = format!("the host's decision panicked: {panic}");
                    PermissionReply::Deny { message, interrupt: false }
                });
                Ok(reply.to_json(&input))
            }
        }
    }

    /// Sets the token of each request that is meant; none of them is answered any more.
    fn cancel(&self, is_meant: impl Fn(&str, Option<&(String, String)>) -> bool) {
        for (id, entry) in &self.running.lock().calls {
            if is_meant(id, entry.bridged.as_ref()) {
                entry.cancel.cancel();
            }
        }
        self.channel.inbox.wake();
    }

    /// Cancels all callbacks, and lets no more begin.
    pub(super) fn cancel_all(&self) {
        {
            let mut running = self.running.lock();
            running.is_closed = true;
            running.calls.values().for_each(|entry| entry.cancel.cancel());
        }
        self.channel.inbox.wake();
    }

    /// Waits until no callback runs, up to `until`. Returns `false` if one still does.
    pub(super) fn wait_idle(&self, until: Instant) -> bool {
        let mut running = self.running.lock();
        while running.threads > 0 {
            if self.changed.wait_until(&mut running, until).timed_out() {
                return running.threads == 0;
            }
        }
        true
    }

    // The program is gone where an answer cannot be sent, which the host hears of when it reads.

    fn succeed(&self, id: &str, response: Value) {
        let response = json!({"subtype": "success", "request_id": id, "response": response});
        let _ = self.channel.send(&json!({"type": "control_response", "response": response}));
    }

    fn fail(&self, id: &str, error: &str) {
        let response = json!({"subtype": "error", "request_id": id, "error": error});
        let _ = self.channel.send(&json!({"type": "control_response", "response": response}));
    }
}

/// Calls a callback; returns the text of its panic if it panics.
fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without a text".to_owned())
    })
}
