//! What a run takes from the program, in the order in which it takes it.
//!
//! Each arrival is an observation of the session: it is recorded before anything follows from it, and a replay of the host
//! takes it from the log. So a replay needs no program, and a run that is replayed does the same again.
//!
//! ```text
//!  program ──stdout──► client ──► [pump] ─────────────┐
//!                        │                            ├─► channel ─► observe ─► the run, one arrival at a time
//!                        └─► callbacks, on threads ───┘                            │
//!                              ▲─────────────────── reply ─────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. A call of a tool or of a hook arrives behind all messages that the program sent before it.
//! 2. An arrival is recorded before its reply is sent.
//! 3. A live run and its replay observe the same: first how the program started, and then what arrived, to its end.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use foldlog::process::ProcessIdentity;
use foldlog::{Clock, FixedClock, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::claude::{
    Callbacks, Client, Error as ClientError, HookCall, HookReply, Message, PermissionReply,
    PermissionRequest, ToolCall, ToolReply, read_stream,
};
use crate::error::Result;
use crate::provider::CancelToken;

/// Name of the observations that say which process a program was, if it started.
pub(super) const STARTED: &str = "claude.started";

/// Name of the observations that hold arrivals.
pub(super) const ARRIVED: &str = "claude.arrived";

/// Longest time for which the run does not notice that it was cancelled.
const NOTICES_WITHIN: Duration = Duration::from_millis(20);

/// Names what arrives. JSON is kept as text, byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Arrival {
    /// A line of the program's output.
    Message(String),
    /// The program calls a tool of the host.
    Call { name: String, arguments: String, tool_use_id: Option<String> },
    /// The program tells of a tool of its own, and waits.
    Hook { event: String, tool: String, input: String, tool_use_id: Option<String> },
    /// The program asks whether a tool may run.
    Permission {
        tool: String,
        input: String,
        #[serde(default)]
        tool_use_id: Option<String>,
    },
    /// The program ended. `None` if it ended well.
    Ended(Option<Failure>),
    /// The deadline is near.
    Deadline,
    /// Somebody cancelled the run.
    Cancelled,
}

/// Holds an arrival with its time, as an observation holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Stamped {
    /// Time in microseconds since 1970-01-01 UTC.
    pub(super) at_us: i64,
    pub(super) arrival: Arrival,
}

/// Holds what is known of a client's failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) kind: FailureOf,
    pub(super) is_response: bool,
    pub(super) is_retryable: bool,
    /// What happened and what to do, with exit code and the end of the standard error.
    pub(super) text: String,
    pub(super) exit_code: Option<i32>,
    pub(super) stderr: String,
}

/// Names the failures that an evaluation tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FailureOf {
    NotInstalled,
    Connection,
    UnknownSession,
    Other,
}

impl Failure {
    /// Makes the failure of a run whose program was not started.
    pub(super) fn before_start(reason: String) -> Failure {
        Failure {
            kind: FailureOf::Other,
            is_response: false,
            is_retryable: false,
            text: reason,
            exit_code: None,
            stderr: String::new(),
        }
    }

    pub(super) fn of(error: &ClientError) -> Failure {
        use crate::claude::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::ProgramNotFound => FailureOf::NotInstalled,
            Kind::SessionNotFound => FailureOf::UnknownSession,
            Kind::Spawn
            | Kind::Disconnected
            | Kind::InitializeTimeout
            | Kind::TimedOut
            | Kind::FolderNotFound => FailureOf::Connection,
            _ => FailureOf::Other,
        };
        Failure {
            kind,
            is_response: error.phase() == crate::error::Phase::Response,
            is_retryable: error.is_retryable(),
            text: error.to_string(),
            exit_code: error.exit_code(),
            stderr: error.stderr().to_owned(),
        }
    }
}

/// Says who waits for a reply.
#[derive(Debug, Default)]
pub(super) enum ReplyTo {
    #[default]
    Nobody,
    Call(SyncSender<ToolReply>),
    Hook(SyncSender<HookReply>),
    Permission(SyncSender<PermissionReply>),
}

impl ReplyTo {
    /// Replies to a call. A program that is gone needs no reply.
    pub(super) fn call(self, reply: ToolReply) {
        if let ReplyTo::Call(to) = self {
            let _ = to.send(reply);
        }
    }

    pub(super) fn hook(self, reply: HookReply) {
        if let ReplyTo::Hook(to) = self {
            let _ = to.send(reply);
        }
    }

    pub(super) fn permission(self, reply: PermissionReply) {
        if let ReplyTo::Permission(to) = self {
            let _ = to.send(reply);
        }
    }
}

/// Holds an arrival, and who waits for its reply.
pub(super) type Arrived = (Arrival, ReplyTo);

/// Passes what the program asks for on to the run, and waits for its replies.
pub(super) struct Forward {
    pub(super) tools: Vec<crate::claude::BridgedTool>,
    pub(super) to: SyncSender<Arrived>,
}

impl Forward {
    /// Sends an arrival to the run and waits for the reply; `None` if the run is over.
    fn ask<R>(&self, arrival: Arrival, reply_to: impl FnOnce(SyncSender<R>) -> ReplyTo) -> Option<R> {
        let (reply, replied) = std::sync::mpsc::sync_channel(1);
        self.to.send((arrival, reply_to(reply))).ok()?;
        replied.recv().ok()
    }
}

/// Text that the program is told once the run is over.
const OVER: &str = "the run is over";

impl Callbacks for Forward {
    fn tools(&self) -> Vec<crate::claude::BridgedTool> {
        self.tools.clone()
    }

    fn call_tool(&self, call: ToolCall) -> ToolReply {
        let ToolCall { name, arguments, tool_use_id, .. } = call;
        let arrival = Arrival::Call { name, arguments: arguments.to_string(), tool_use_id };
        self.ask(arrival, ReplyTo::Call).unwrap_or_else(|| ToolReply::error(OVER))
    }

    fn hook(&self, call: HookCall) -> HookReply {
        let HookCall { event, input, tool_use_id, .. } = call;
        let tool = input.get("tool_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let tool_use_id = tool_use_id.or_else(|| Some(input.get("tool_use_id")?.as_str()?.to_owned()));
        let is_begin = event == PRE_TOOL_USE;
        let arrival = Arrival::Hook { event, tool, input: input.to_string(), tool_use_id };
        let over = || if is_begin { HookReply::deny(OVER) } else { HookReply::proceed() };
        self.ask(arrival, ReplyTo::Hook).unwrap_or_else(over)
    }

    fn can_use_tool(&self, request: PermissionRequest) -> PermissionReply {
        let PermissionRequest { tool_name, input, tool_use_id, .. } = request;
        let arrival = Arrival::Permission { tool: tool_name, input: input.to_string(), tool_use_id };
        let over = || PermissionReply::Deny { message: OVER.to_owned(), interrupt: false };
        self.ask(arrival, ReplyTo::Permission).unwrap_or_else(over)
    }
}

/// Name of the event before a tool runs.
pub(super) const PRE_TOOL_USE: &str = "PreToolUse";
/// Name of the event after a tool ran.
pub(super) const POST_TOOL_USE: &str = "PostToolUse";
/// Name of the event after a tool failed.
pub(super) const POST_TOOL_USE_FAILURE: &str = "PostToolUseFailure";

/// Reads a line that arrived as a message.
pub(super) fn message_of(line: &str) -> Option<Message> {
    read_stream(line.as_bytes(), usize::MAX).next()?.ok()
}

/// Passes the program's messages on to the run, until the program ends or nobody listens.
pub(super) fn pump(client: &Client, to: &SyncSender<Arrived>) {
    loop {
        let arrival = match client.next_message(None) {
            Ok(Some(message)) => Arrival::Message(message.line().to_owned()),
            Ok(None) => Arrival::Ended(None),
            Err(error) => Arrival::Ended(Some(Failure::of(&error))),
        };
        let is_end = matches!(arrival, Arrival::Ended(_));
        if to.send((arrival, ReplyTo::Nobody)).is_err() || is_end {
            return;
        }
    }
}

/// Takes the arrivals of a run.
pub(super) struct Arrivals<'a> {
    pub(super) session: &'a Session,
    /// Whether arrivals are recorded.
    pub(super) is_recorded: bool,
    /// What arrives before all else.
    pub(super) first: Option<Arrival>,
    /// Where they come from; `None` in a replay, which takes them from the log.
    pub(super) from: Option<Receiver<Arrived>>,
    pub(super) cancel: CancelToken,
    /// Clock that says when something arrives.
    pub(super) clock: &'a Arc<dyn Clock>,
    /// Clock that tells the time of the last arrival.
    pub(super) told: &'a FixedClock,
}

impl Arrivals<'_> {
    /// Records which process the program is: `None` if it did not start.
    pub(super) fn started(&self, identity: impl FnOnce() -> Option<ProcessIdentity>) -> Result<()> {
        if self.is_recorded {
            self.session.observe(STARTED, identity)?;
        }
        Ok(())
    }

    /// Takes the next arrival, and records it. It is [`Arrival::Deadline`] once `until` has passed, and
    /// [`Arrival::Cancelled`] once the run was cancelled; `watch` says whether that counts.
    pub(super) fn next(&mut self, until: Option<Instant>, watch: bool) -> Result<Arrived> {
        let mut reply_to = ReplyTo::Nobody;
        let mut take = || {
            let arrival = match (self.first.take(), &self.from) {
                (Some(first), _) => first,
                (None, Some(from)) => {
                    let (arrival, to) = receive(from, until, watch.then_some(&self.cancel));
                    reply_to = to;
                    arrival
                }
                (None, None) => Arrival::Ended(None),
            };
            Stamped { at_us: self.clock.now_us(), arrival }
        };
        let stamped = if self.is_recorded { self.session.observe(ARRIVED, &mut take)? } else { take() };
        self.told.set_us(stamped.at_us);
        Ok((stamped.arrival, reply_to))
    }
}

fn receive(from: &Receiver<Arrived>, until: Option<Instant>, cancel: Option<&CancelToken>) -> Arrived {
    loop {
        if cancel.is_some_and(CancelToken::is_cancelled) {
            return (Arrival::Cancelled, ReplyTo::Nobody);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return (Arrival::Deadline, ReplyTo::Nobody);
        }
        let wait = left.unwrap_or(NOTICES_WITHIN).min(NOTICES_WITHIN);
        match from.recv_timeout(wait) {
            Ok(arrived) => return arrived,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return (Arrival::Ended(None), ReplyTo::Nobody),
        }
    }
}
