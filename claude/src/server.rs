//! Serves the program's requests to its host. It reads the frames, and answers the bridge's
//! handshake at once. Requests for tools, hooks and permissions reach the host in the order of their
//! arrival, among the messages. Callbacks on their own threads answer them, or the host itself.
//!
//! # Invariants
//!
//! 1. The reading thread calls no callback and writes to no pipe.
//! 2. A cancelled request is not answered; any other one is answered once.
//! 3. After the client was closed, no callback starts, and no request reaches the host.

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

use super::bridge::{Bridge, BridgeAction};
use super::callbacks::{
    Callbacks, HookCall, HookReply, PermissionReply, PermissionRequest, ProgramReply, ToolCall, ToolReply,
};
use super::channel::Channel;
use super::error::ClientError;
use super::message::text;
use super::process::Process;
use super::stream::{Frame, FrameContent, StreamLineReader};
use foldlog_agent::provider::CancelToken;

/// Greatest number of waiting requests. Further ones are refused.
const WAITING_MAX: usize = 1024;

pub(super) struct RequestServer {
    callbacks: Arc<dyn Callbacks>,
    /// Greatest number of threads that call callbacks.
    threads_max: usize,
    bridge: Bridge,
    channel: Arc<Channel>,
    running: Mutex<RequestQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct RequestQueue {
    /// Requests that wait or are being answered, by id.
    calls: HashMap<String, OpenRequest>,
    waiting: VecDeque<(ProgramRequest, RequestResponder)>,
    threads: usize,
    is_closed: bool,
}

struct OpenRequest {
    cancel: CancelToken,
    /// Server and JSON-RPC id of a tool's call.
    bridged: Option<(String, String)>,
}

pub(super) enum ProgramRequest {
    Tool(ToolCall),
    Hook(HookCall),
    Permission(PermissionRequest),
}

/// Answers a request of the program once. A responder that is dropped sends no answer, and neither
/// does one whose request was cancelled.
pub(super) struct RequestResponder {
    serving: Arc<RequestServer>,
    /// Id of the request; `None` after the answer.
    id: Option<String>,
    cancel: CancelToken,
    /// Part of the request that the answer repeats.
    about: Value,
}

impl RequestResponder {
    /// Returns whether the program has stopped waiting for the answer.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Answers the request.
    pub(super) fn reply(self, reply: &impl ProgramReply) {
        let answer = reply.to_json(&self.about);
        self.answer(Ok(answer));
    }

    /// Sends an answer, or the text of an error.
    fn answer(mut self, answer: Result<Value, String>) {
        let Some(id) = self.id.take() else { return };
        self.serving.running.lock().calls.remove(&id);
        match answer {
            _ if self.cancel.is_cancelled() => {}
            Ok(answer) => self.serving.succeed(&id, answer),
            Err(error) => self.serving.fail(&id, &error),
        }
    }
}

impl Drop for RequestResponder {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.serving.running.lock().calls.remove(&id);
        }
    }
}

impl RequestServer {
    pub(super) fn new(
        callbacks: Arc<dyn Callbacks>,
        threads_max: usize,
        bridge: Bridge,
        channel: Arc<Channel>,
    ) -> RequestServer {
        let (running, changed) = (Mutex::default(), Condvar::new());
        RequestServer { callbacks, threads_max: threads_max.max(1), bridge, channel, running, changed }
    }

    /// Reads the program's output to its end. If a line cannot be read, the program is killed,
    /// because its output is lost.
    pub(super) fn read(self: Arc<Self>, stdout: ChildStdout, limit: usize, process: &Process) {
        let mut lines = StreamLineReader::new(BufReader::with_capacity(64 << 10, stdout), limit);
        let end = loop {
            match lines.next() {
                Ok(Some(frame)) => self.take(frame),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let end = end.map(|error: ClientError| {
            process.kill();
            error.with_exit(process.exit()).with_stderr(process.stderr())
        });
        self.channel.end(end);
        self.cancel_all();
    }

    fn take(self: &Arc<Self>, mut frame: Frame) {
        let FrameContent::Object(object) = &mut frame.content else { return self.channel.inbox.push(frame) };
        match object.get("type").and_then(Value::as_str) {
            Some("control_request") => {
                let id = text(object, "request_id").unwrap_or_default();
                let request = object.remove("request").unwrap_or_default();
                self.take_request(id, request, frame.line.len());
            }
            Some("control_response") => self.channel.take_response(std::mem::take(object)),
            Some("control_cancel_request") => {
                self.cancel(|id, _| object.get("request_id").and_then(Value::as_str) == Some(id));
            }
            _ => self.channel.inbox.push(frame),
        }
    }

    /// Processes a request of the program, whose line has this length.
    fn take_request(self: &Arc<Self>, id: String, request: Value, length: usize) {
        let field = |name: &str| request.get(name).and_then(Value::as_str).map(str::to_owned);
        let (cancel, tool_use_id) = (CancelToken::new(), field("tool_use_id"));
        let part = |name: &str| request.get(name).cloned().unwrap_or_default();
        let (asked, about, bridged) = match field("subtype").as_deref() {
            Some("mcp_message") => {
                let server = field("server_name").unwrap_or_default();
                match self.bridge.take(server, &part("message"), &cancel) {
                    BridgeAction::Answer(answer) => {
                        return self.succeed(&id, json!({ "mcp_response": answer }));
                    }
                    BridgeAction::Cancel { call, answer } => {
                        self.cancel(|_, bridged| bridged == Some(&call));
                        return self.succeed(&id, json!({ "mcp_response": answer }));
                    }
                    BridgeAction::Call { id, call } => {
                        let bridged = Some((call.server.clone(), id.to_string()));
                        (ProgramRequest::Tool(call), id, bridged)
                    }
                }
            }
            Some("hook_callback") => {
                let (callback_id, input) = (field("callback_id").unwrap_or_default(), part("input"));
                let event =
                    input.get("hook_event_name").and_then(Value::as_str).unwrap_or_default().to_owned();
                let about = Value::from(event.as_str());
                let cancel = cancel.clone();
                let call = HookCall { callback_id, event, input, tool_use_id, cancel };
                (ProgramRequest::Hook(call), about, None)
            }
            Some("can_use_tool") => {
                let (tool_name, input) = (field("tool_name").unwrap_or_default(), part("input"));
                let (about, cancel) = (input.clone(), cancel.clone());
                let request = PermissionRequest { tool_name, input, tool_use_id, request, cancel };
                (ProgramRequest::Permission(request), about, None)
            }
            other => {
                let what = other.unwrap_or("without a subtype");
                return self.fail(&id, &format!("the host serves no request `{what}`"));
            }
        };
        if self.begin(&id, OpenRequest { cancel: cancel.clone(), bridged }) {
            let pending = RequestResponder { serving: Arc::clone(self), id: Some(id), cancel, about };
            self.channel.inbox.ask(asked, pending, length);
        }
    }

    /// Registers a request. Returns `false` if it is refused, or if the client is closed.
    fn begin(&self, id: &str, entry: OpenRequest) -> bool {
        let mut running = self.running.lock();
        if running.is_closed {
            return false;
        }
        if running.calls.contains_key(id) || running.calls.len() >= WAITING_MAX {
            drop(running);
            self.fail(id, "the host serves a request of this id already, or too many others");
            return false;
        }
        running.calls.insert(id.to_owned(), entry);
        true
    }

    /// Passes a request to a callback, on one of the threads.
    pub(super) fn call_back(self: &Arc<Self>, asked: ProgramRequest, pending: RequestResponder) {
        let mut running = self.running.lock();
        running.waiting.push_back((asked, pending));
        if running.threads >= self.threads_max {
            return;
        }
        let this = Arc::clone(self);
        let name = "foldlog-claude-call".to_owned();
        match thread::Builder::new().name(name).spawn(move || this.work()) {
            Ok(_) => running.threads += 1,
            // Another thread will call the callback.
            Err(_) if running.threads > 0 => {}
            Err(error) => {
                let waiting = running.waiting.pop_back();
                drop(running);
                if let Some((_, pending)) = waiting {
                    pending.answer(Err(format!("the host can start no thread: {error}")));
                }
            }
        }
    }

    /// Calls callbacks until none is waiting.
    fn work(&self) {
        loop {
            let mut running = self.running.lock();
            let Some((asked, pending)) = running.waiting.pop_front() else {
                running.threads -= 1;
                self.changed.notify_all();
                return;
            };
            drop(running);
            self.run(asked, pending);
        }
    }

    /// Calls a callback, and answers the request unless it was cancelled.
    fn run(&self, asked: ProgramRequest, pending: RequestResponder) {
        let callbacks = &self.callbacks;
        if pending.is_cancelled() {
            return;
        }
        match asked {
            ProgramRequest::Tool(call) => {
                let reply = catch_panic(|| callbacks.call_tool(call)).unwrap_or_else(|panic| {
                    ToolReply::error(format!("Tool error: the tool panicked: {panic}"))
                });
                pending.reply(&reply);
            }
            ProgramRequest::Hook(call) => {
                let is_before = call.event == "PreToolUse";
                match catch_panic(|| callbacks.hook(call)) {
                    Ok(reply) => pending.reply(&reply),
                    // The program continues after a failed hook, and the call would run unguarded.
                    Err(panic) if is_before => {
                        pending.reply(&HookReply::deny(format!("the host's hook panicked: {panic}")));
                    }
                    Err(panic) => pending.answer(Err(format!("the host's hook panicked: {panic}"))),
                }
            }
            ProgramRequest::Permission(request) => {
                let reply = catch_panic(|| callbacks.can_use_tool(request)).unwrap_or_else(|panic| {
                    let message = format!("the host's decision panicked: {panic}");
                    PermissionReply::Deny { message, interrupt: false }
                });
                pending.reply(&reply);
            }
        }
    }

    /// Cancels the selected requests, which are then not answered.
    fn cancel(&self, is_meant: impl Fn(&str, Option<&(String, String)>) -> bool) {
        for (id, entry) in &self.running.lock().calls {
            if is_meant(id, entry.bridged.as_ref()) {
                entry.cancel.cancel();
            }
        }
    }

    /// Cancels all callbacks, and prevents further ones.
    pub(super) fn cancel_all(&self) {
        let mut running = self.running.lock();
        running.is_closed = true;
        running.calls.values().for_each(|entry| entry.cancel.cancel());
    }

    /// Waits until no callback is running, but not after `until`. Returns `false` if one is still
    /// running.
    pub(super) fn wait_idle(&self, until: Instant) -> bool {
        let mut running = self.running.lock();
        while running.threads > 0 {
            if self.changed.wait_until(&mut running, until).timed_out() {
                return running.threads == 0;
            }
        }
        true
    }

    // If an answer cannot be sent, the program has ended, which the host notices when it reads.

    fn succeed(&self, id: &str, response: Value) {
        let response = json!({"subtype": "success", "request_id": id, "response": response});
        let _ = self.channel.send(&json!({"type": "control_response", "response": response}));
    }

    fn fail(&self, id: &str, error: &str) {
        let response = json!({"subtype": "error", "request_id": id, "error": error});
        let _ = self.channel.send(&json!({"type": "control_response", "response": response}));
    }
}

/// Calls a callback; returns the text of a panic as an error.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without a text".to_owned())
    })
}
