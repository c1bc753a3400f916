//! The inputs of a run from the program, in their order.
//!
//! Each arrival is an observation of the session: it is recorded before it has any effect. A replay
//! of the host reads it from the log, so it needs no program, and repeats the run exactly.
//!
//! ```text
//!  program ──stdout──► client ──events──► observe ──► the run, one arrival at a time
//!     ▲                                                       │
//!     └─────────────────────────── reply ─────────────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. Messages, calls of tools and calls of hooks arrive in the order in which the program sent
//!    them.
//! 2. An arrival is recorded before its reply is sent.
//! 3. A live run and its replay make the same observations: first the start of the program, and
//!    then the arrivals, to the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::process::ProcessIdentity;
use foldlog::{Clock, FixedClock, Session};
use serde::{Deserialize, Serialize};

use super::calls::RunAction;
use crate::callbacks::ProgramReply;
use crate::channel::ChannelEvent;
use crate::server::{ProgramRequest, RequestResponder};
use crate::{
    ClaudeMessage, Client, ClientError, ErrorKind, HookCall, PermissionRequest, ToolCall, read_stream,
};
use foldlog_agent::error::Result;
use foldlog_agent::provider::CancelToken;

/// Name of the observations with the identity of a program's process, if it started.
pub(super) const STARTED: &str = "claude.started";

/// Name of the observations with arrivals.
pub(super) const ARRIVED: &str = "claude.arrived";

/// Longest time until the run notices a cancellation.
const NOTICES_WITHIN: Duration = Duration::from_millis(20);

/// Timeout for the answer with a call of a sub-agent, which follows the hook of the call after some
/// 4 ms.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Describes an arrival. JSON is stored as text, byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Arrival {
    /// A line of the program's output.
    Message(String),
    /// The program calls a tool of the host.
    Call { name: String, arguments: String, tool_use_id: Option<String> },
    /// The program reports on a tool of its own, and waits.
    Hook { event: String, tool: String, input: String, tool_use_id: Option<String> },
    /// The program asks whether a tool may run.
    Permission {
        tool: String,
        input: String,
        #[serde(default)]
        tool_use_id: Option<String>,
    },
    /// The program ended. `None` if it ended normally.
    Ended(Option<ClientFailure>),
    /// The deadline is near.
    Deadline,
    /// The run was cancelled.
    Cancelled,
    /// The answer with a call of a sub-agent did not arrive in time.
    NoAnswer,
}

/// Contains an arrival with its time, in the form of an observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TimedArrival {
    /// Time in microseconds since 1970-01-01 UTC.
    pub(super) at_us: i64,
    pub(super) arrival: Arrival,
}

/// Contains the details of a client's failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ClientFailure {
    pub(super) kind: ClientFailureKind,
    pub(super) is_response: bool,
    pub(super) is_retryable: bool,
    /// Cause and remedy, with exit code and the last part of the standard error.
    pub(super) text: String,
    pub(super) exit_code: Option<i32>,
    #[serde(default)]
    pub(super) signal: Option<i32>,
    pub(super) stderr: String,
}

/// Failures that an evaluation distinguishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ClientFailureKind {
    NotInstalled,
    Connection,
    UnknownSession,
    #[default]
    Other,
}

impl ClientFailure {
    pub(super) fn from_error(error: &ClientError) -> ClientFailure {
        use ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::ProgramNotFound => ClientFailureKind::NotInstalled,
            Kind::SessionNotFound => ClientFailureKind::UnknownSession,
            Kind::Spawn
            | Kind::Disconnected
            | Kind::InitializeTimeout
            | Kind::TimedOut
            | Kind::DirectoryNotFound => ClientFailureKind::Connection,
            _ => ClientFailureKind::Other,
        };
        ClientFailure {
            kind,
            is_response: error.phase() == foldlog_agent::error::EvaluationPhase::Response,
            is_retryable: error.is_retryable(),
            text: error.to_string(),
            exit_code: error.exit_code(),
            signal: error.signal(),
            stderr: error.stderr().to_owned(),
        }
    }
}

/// Replies to the program. In a replay nothing waits for the reply.
#[derive(Default)]
pub(super) struct ReplyTo(Option<RequestResponder>);

impl ReplyTo {
    /// Sends the reply, and lets the run go on. If the program has ended, the reply is dropped.
    pub(super) fn send(self, reply: &impl ProgramReply) -> RunAction {
        if let Some(pending) = self.0 {
            pending.reply(reply);
        }
        RunAction::GoOn
    }
}

/// Contains an arrival, and the receiver of its reply.
pub(super) struct PendingArrival {
    pub(super) arrival: Arrival,
    pub(super) reply_to: ReplyTo,
    /// Message of the arrival, if it was parsed already.
    pub(super) message: Option<ClaudeMessage>,
}

impl PendingArrival {
    fn unparsed(arrival: Arrival) -> PendingArrival {
        PendingArrival { arrival, reply_to: ReplyTo::default(), message: None }
    }

    fn from_event(event: ChannelEvent) -> PendingArrival {
        match event {
            ChannelEvent::Message(message) => {
                let arrival = Arrival::Message(message.line().to_owned());
                PendingArrival { message: Some(message), ..PendingArrival::unparsed(arrival) }
            }
            ChannelEvent::Asked(asked, pending) => PendingArrival {
                reply_to: ReplyTo(Some(pending)),
                ..PendingArrival::unparsed(Arrival::from_request(asked))
            },
        }
    }
}

impl Arrival {
    fn from_request(asked: ProgramRequest) -> Arrival {
        match asked {
            ProgramRequest::Tool(ToolCall { name, arguments, tool_use_id, .. }) => {
                Arrival::Call { name, arguments: arguments.to_string(), tool_use_id }
            }
            ProgramRequest::Hook(call) => {
                let tool = call.tool_name().unwrap_or_default().to_owned();
                let HookCall { event, input, tool_use_id, .. } = call;
                let tool_use_id =
                    tool_use_id.or_else(|| Some(input.get("tool_use_id")?.as_str()?.to_owned()));
                Arrival::Hook { event, tool, input: input.to_string(), tool_use_id }
            }
            ProgramRequest::Permission(PermissionRequest { tool_name, input, tool_use_id, .. }) => {
                Arrival::Permission { tool: tool_name, input: input.to_string(), tool_use_id }
            }
        }
    }
}

/// Name of the event before a tool runs.
pub(super) const PRE_TOOL_USE: &str = "PreToolUse";
/// Name of the event after a tool ran.
pub(super) const POST_TOOL_USE: &str = "PostToolUse";
/// Name of the event after a tool failed.
pub(super) const POST_TOOL_USE_FAILURE: &str = "PostToolUseFailure";

/// Parses a line that arrived as a message.
pub(super) fn message_of(line: &str) -> Option<ClaudeMessage> {
    read_stream(line.as_bytes(), usize::MAX).next()?.ok()
}

pub(super) struct Arrivals<'a> {
    pub(super) session: &'a Session,
    /// Whether arrivals are recorded.
    pub(super) is_recorded: bool,
    /// Arrival to deliver before all others.
    pub(super) first: Option<Arrival>,
    /// Source of the arrivals; `None` in a replay, which reads them from the log.
    pub(super) from: Option<Arc<Client>>,
    pub(super) cancel: CancelToken,
    /// Clock for the times of arrivals.
    pub(super) clock: &'a Arc<dyn Clock>,
    /// Clock that is set to the time of the last arrival.
    pub(super) told: &'a FixedClock,
}

impl Arrivals<'_> {
    /// Records the identity of the program's process: `None` if it did not start.
    pub(super) fn record_start(&self, identity: impl FnOnce() -> Option<ProcessIdentity>) -> Result<()> {
        if self.is_recorded {
            self.session.inputs().observe(STARTED, identity)?;
        }
        Ok(())
    }

    /// Takes the next arrival, and records it. It is [`Arrival::Deadline`] once `until` has passed,
    /// [`Arrival::NoAnswer`] once `answer_until` has passed, and [`Arrival::Cancelled`] once the
    /// run was cancelled, if `watch` is set.
    pub(super) fn next(
        &mut self,
        until: Option<Instant>,
        answer_until: Option<Instant>,
        watch: bool,
    ) -> Result<PendingArrival> {
        let (mut reply_to, mut read) = (ReplyTo::default(), None);
        let mut take = || {
            let arrived = match (self.first.take(), &self.from) {
                (Some(first), _) => PendingArrival::unparsed(first),
                (None, Some(from)) => receive(from, until, answer_until, watch.then_some(&self.cancel)),
                (None, None) => PendingArrival::unparsed(Arrival::Ended(None)),
            };
            (reply_to, read) = (arrived.reply_to, arrived.message);
            TimedArrival { at_us: self.clock.now_us(), arrival: arrived.arrival }
        };
        let stamped =
            if self.is_recorded { self.session.inputs().observe(ARRIVED, &mut take)? } else { take() };
        self.told.set_us(stamped.at_us);
        Ok(PendingArrival { arrival: stamped.arrival, reply_to, message: read })
    }
}

fn receive(
    from: &Client,
    until: Option<Instant>,
    answer_until: Option<Instant>,
    cancel: Option<&CancelToken>,
) -> PendingArrival {
    loop {
        if cancel.is_some_and(CancelToken::is_cancelled) {
            return PendingArrival::unparsed(Arrival::Cancelled);
        }
        let now = Instant::now();
        if until.is_some_and(|until| until <= now) {
            return PendingArrival::unparsed(Arrival::Deadline);
        }
        if answer_until.is_some_and(|until| until <= now) {
            return PendingArrival::unparsed(Arrival::NoAnswer);
        }
        let look = now + NOTICES_WITHIN;
        match from.next_event(Some(until.map_or(look, |until| until.min(look)))) {
            Ok(Some(event)) => return PendingArrival::from_event(event),
            Ok(None) => return PendingArrival::unparsed(Arrival::Ended(None)),
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) => {
                return PendingArrival::unparsed(Arrival::Ended(Some(ClientFailure::from_error(&error))));
            }
        }
    }
}

/// Counts the runs of the program in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramRuns {
    /// Number of starts of the program.
    pub started: u64,
    /// Number of runs that reported their tokens. A killed run does not: its session used more than
    /// the log contains.
    pub told: u64,
}

impl ProgramRuns {
    /// Counts the runs of a session.
    pub fn from_session(session: &Session) -> Result<ProgramRuns, foldlog::Error> {
        let mut runs = ProgramRuns::default();
        session.inputs().observations(STARTED, &mut |_, started: Option<ProcessIdentity>| {
            runs.started += u64::from(started.is_some());
            Ok(())
        })?;
        session.inputs().observations(ARRIVED, &mut |_, stamped: TimedArrival| {
            let Arrival::Message(line) = &stamped.arrival else { return Ok(()) };
            let result = line.contains(r#""result""#).then(|| message_of(line)).flatten();
            let usage = result.as_ref().and_then(ClaudeMessage::result).and_then(|result| result.usage);
            runs.told += u64::from(usage.is_some());
            Ok(())
        })?;
        Ok(runs)
    }
}
