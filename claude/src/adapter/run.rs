//! One run of the program, from the prompt to its result.
//!
//! The run processes one [arrival](super::arrival) after the other, on one thread. So its records
//! depend only on its arrivals.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use foldlog::Clock as _;
use foldlog::conversation::TokenUsage;
use parking_lot::Mutex;
use uuid::Uuid;

use super::arrival::{ANSWERS_WITHIN, Arrival, Arrivals, ClientFailure, PendingArrival, ReplyTo, message_of};
use super::calls::{CallArrival, CallRunner, RunAction, RunStopReason};
use super::config::RunOptions;
use super::conversation::{Recorders, token_usage};
use super::failure;
use super::transcript::{calls_in, last_entry};
use crate::{
    ClaudeBlock, ClaudeMessage, ClaudeMessageBody, Client, Init, TaskStarted, ToolReply, TurnResult,
};
use foldlog_agent::adapter_state::{CaptureOccasion, ClaudeAgentSDKState, StateCapture};
use foldlog_agent::deadline::Deadline;
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::prompt::{Prompt, VisibilityOverrides};

/// Greatest number of visibility expansions per run.
const EXPANSIONS_MAX: u32 = 10;

/// Contains the state of a run.
pub(super) struct ProgramRun<'a, O> {
    pub(super) prompt: &'a Prompt<O>,
    pub(super) arrivals: Arrivals<'a>,
    /// The program; `None` in a replay.
    pub(super) client: Option<Arc<Client>>,
    pub(super) calls: CallRunner<'a>,
    pub(super) heard: Recorders<'a>,
    pub(super) capture: StateCapture<'a>,
    pub(super) state: ClaudeAgentSDKState,
    pub(super) overrides: VisibilityOverrides,
    pub(super) expansions: u32,
    pub(super) deadline: Deadline,
    pub(super) options: &'a RunOptions,
    /// Receives the version of the program.
    pub(super) version: &'a Mutex<Option<String>>,
    /// Last entry of the program's transcript.
    pub(super) entry: Option<String>,
    pub(super) failing: Option<Error>,
    /// Moment until which an ending run is awaited.
    pub(super) interrupted: Option<Instant>,
    /// Moment until which the answer with a call of a sub-agent is awaited.
    pub(super) answer_until: Option<Instant>,
    /// Ids of the calls in the mirrored part of the program's transcript.
    pub(super) mirrored: BTreeSet<String>,
    /// Call that waits for a person, and that is not in the transcript yet.
    pub(super) unmirrored: Option<String>,
    /// Ids of the model's answers to this run itself, without sub-agents.
    pub(super) answers: BTreeSet<String>,
    pub(super) result: Option<Box<TurnResult>>,
    pub(super) ended: Option<ClientFailure>,
}

impl<O> ProgramRun<'_, O> {
    /// Processes arrivals until the run is over.
    pub(super) fn run(&mut self) -> Result<()> {
        loop {
            while let Some(then) = self.calls.take_waiting(&mut self.heard)? {
                self.perform_action(then)?;
            }
            if self.failing.is_some() && self.interrupted.is_none() {
                return Ok(());
            }
            let watch = self.interrupted.is_none() && self.result.is_none();
            let answer_until = self.answer_until();
            let PendingArrival { arrival, reply_to, message } =
                self.arrivals.next(self.until(), answer_until, watch)?;
            match arrival {
                // A live message was parsed already; a line from the log was not.
                Arrival::Message(line) => {
                    if let Some(message) = message.or_else(|| message_of(&line)) {
                        self.message(message)?;
                    }
                }
                Arrival::Ended(failure) => {
                    self.ended = failure;
                    return Ok(());
                }
                Arrival::NoAnswer => {
                    self.answer_until = None;
                    self.calls.await_no_answer(&mut self.heard);
                }
                Arrival::Deadline | Arrival::Cancelled if self.interrupted.is_some() => return Ok(()),
                arrival @ (Arrival::Deadline | Arrival::Cancelled) => {
                    let (error, stopped) = match arrival {
                        Arrival::Deadline => {
                            let phase = if self.calls.open.is_empty() {
                                EvaluationPhase::Request
                            } else {
                                EvaluationPhase::Tool
                            };
                            (Error::DeadlineExceeded { phase }, RunStopReason::Deadline)
                        }
                        _ => (Error::Cancelled, RunStopReason::Cancelled),
                    };
                    self.failing = Some(error);
                    self.interrupt(stopped);
                }
                arrival => {
                    let then = self.calls.take(CallArrival::read(arrival, reply_to), &mut self.heard)?;
                    self.perform_action(then)?;
                }
            }
        }
    }

    /// Returns the moment until which the answer with a call of a sub-agent is awaited; `None` if
    /// no call waits for it.
    fn answer_until(&mut self) -> Option<Instant> {
        self.answer_until = match self.calls.awaits_answer(&self.heard) {
            true => self.answer_until.or_else(|| Instant::now().checked_add(ANSWERS_WITHIN)),
            false => None,
        };
        self.answer_until
    }

    /// Returns the moment until which the next arrival is awaited.
    fn until(&self) -> Option<Instant> {
        match self.interrupted {
            // The program ends by itself, or is ended.
            _ if self.result.is_some() => None,
            Some(until) => Some(until),
            None => {
                let at = self.deadline.instant()?;
                Some(at.checked_sub(self.options.interrupt_before).unwrap_or(at))
            }
        }
    }

    /// Requests the program to end the run and report its result.
    fn interrupt(&mut self, stopped: RunStopReason) {
        self.calls.is_over = true;
        self.calls.stopped = Some(stopped);
        if let Some(client) = self.client.clone() {
            // A program that does not answer is stopped after the time for its result.
            std::thread::spawn(move || drop(client.interrupt()));
        }
        self.interrupted = Some(Instant::now() + self.options.result_within);
    }

    /// Lets the program end by itself. Its remaining output, such as the last lines of its
    /// transcript, still arrives.
    fn close(&self) {
        if let Some(client) = self.client.clone() {
            // Its exit status also arrives.
            std::thread::spawn(move || drop(client.close()));
        }
    }

    /// Processes the program's description of a session that starts. A tool that it does not offer
    /// ends the run, because the model would lack it without notice.
    fn take_init(&mut self, init: Init) {
        // An id becomes a part of a file's name.
        if Uuid::parse_str(&init.session_id).is_ok() {
            self.state.session_id = init.session_id;
        }
        let missing = self.options.not_offered(&init.tools);
        if !missing.is_empty() && self.failing.is_none() {
            let error = failure::not_offered(&self.prompt.name(), &missing, init.version.as_deref());
            self.failing = Some(error);
        }
        *self.version.lock() = init.version;
    }

    /// Processes a message of the program.
    fn message(&mut self, message: ClaudeMessage) -> Result<()> {
        if let Some(at) = DateTime::from_timestamp_micros(self.arrivals.told.now_us()) {
            self.state.last_activity_at = at;
        }
        match message.body {
            ClaudeMessageBody::Init(init) => self.take_init(init),
            ClaudeMessageBody::Assistant(said) => {
                for block in &said.content {
                    // The transcript may contain another call with this id.
                    if let ClaudeBlock::ToolUse { id, .. } = block {
                        self.mirrored.remove(id);
                    }
                }
                let parent = said.parent_tool_use_id.clone();
                self.heard.recorder_of_parent(parent.as_deref()).hear(&said, &self.calls.runner)?;
                self.state.message_count += 1;
                self.count(said.id.filter(|_| parent.is_none()));
            }
            ClaudeMessageBody::User(told) => {
                self.state.message_count += 1;
                for block in told.content {
                    if let ClaudeBlock::ToolResult { tool_use_id, content, is_error } = block {
                        let then =
                            self.calls.take_result(&tool_use_id, &content, is_error, &mut self.heard)?;
                        self.perform_action(then)?;
                        self.capture_state(CaptureOccasion::Tool)?;
                    }
                }
            }
            ClaudeMessageBody::TranscriptMirror(mirror) => {
                self.entry = last_entry(&mirror, &self.state.session_id).or(self.entry.take());
                self.mirrored.extend(calls_in(&mirror));
                if self.unmirrored.as_ref().is_some_and(|call_id| self.mirrored.contains(call_id)) {
                    self.interrupted = None;
                }
                self.capture_state(CaptureOccasion::Message)?;
            }
            ClaudeMessageBody::TaskStarted(TaskStarted { task_id, tool_use_id }) => {
                self.heard.agents.insert(task_id, tool_use_id);
            }
            ClaudeMessageBody::Result(result) => {
                self.result = Some(result);
                self.close();
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts the answers of the model, and ends a run that exceeds its limit: if an output is
    /// missing, the program itself repeats its requests beyond the limit.
    fn count(&mut self, answer: Option<String>) {
        self.answers.extend(answer);
        let Some(max) = self.options.max_turns.filter(|max| self.answers.len() > *max as usize) else {
            return;
        };
        if self.failing.is_none() {
            self.failing = Some(Error::TooManyRequests { max: max.into() });
            self.interrupt(RunStopReason::Answers);
        }
    }

    fn perform_action(&mut self, then: RunAction) -> Result<()> {
        match then {
            RunAction::GoOn => Ok(()),
            RunAction::Fail(error) => {
                self.failing.get_or_insert(error);
                Ok(())
            }
            RunAction::Ask { error, call_id, reply_to } => {
                self.failing.get_or_insert(error);
                self.calls.hold(reply_to);
                if !self.mirrored.contains(&call_id) {
                    self.interrupted = Some(Instant::now() + self.options.result_within);
                    self.unmirrored = Some(call_id);
                }
                Ok(())
            }
            RunAction::Show(overrides, reply_to) => self.show(overrides, reply_to),
        }
    }

    /// Renders the prompt with more of it shown, and returns it to the model.
    fn show(&mut self, overrides: VisibilityOverrides, reply_to: ReplyTo) -> Result<()> {
        if self.expansions >= EXPANSIONS_MAX {
            reply_to.send(&ToolReply::error("Tool error: no more of the prompt can be shown"));
            self.failing = Some(Error::TooManyExpansions { max: EXPANSIONS_MAX });
            return Ok(());
        }
        self.expansions += 1;
        self.overrides.extend(overrides);
        let rendered = self.prompt.render(&self.overrides)?;
        self.heard.own.system(&rendered.text)?;
        self.calls.shown = rendered.tools.iter().map(|tool| tool.name.clone()).collect();
        reply_to.send(&ToolReply::text(format!("The prompt shows more now:\n\n{}", rendered.text)));
        Ok(())
    }

    /// Records the state if the host captures states at this occasion. A state that cannot be
    /// recorded does not end the run.
    pub(super) fn capture_state(&mut self, occasion: CaptureOccasion) -> Result<()> {
        match self.capture.offer(&self.state, self.entry.as_deref(), occasion) {
            Err(Error::Engine(error)) => Err(Error::Engine(error)),
            _ => Ok(()),
        }
    }

    /// Returns the usage of the run, as far as the program reported it.
    pub(super) fn usage(&self) -> Option<TokenUsage> {
        self.result.as_ref()?.usage.as_ref().map(token_usage)
    }

    /// Returns the reason why the run returned no output; `None` if it succeeded.
    pub(super) fn failure(&mut self) -> Option<Error> {
        if let Some(failing) = self.failing.take() {
            return Some(failing);
        }
        let prompt = self.prompt.name();
        let session_id = self.state.session_id.as_str();
        match (&self.result, &self.ended) {
            (Some(result), _) => {
                let kind = result.failure()?;
                Some(failure::of_result(result, kind, &prompt, session_id, self.options.max_turns))
            }
            (None, Some(ended)) => Some(failure::of_client(ended, &prompt, session_id)),
            (None, None) => {
                let reason = "the program ended without a result: resume the evaluation";
                Some(Error::evaluation(EvaluationPhase::Response, prompt, reason))
            }
        }
    }
}
