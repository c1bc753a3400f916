//! The state machine: decides which step follows each fact.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foldlog::SequenceNumber;

use super::calls::{AnswerToolCalls, NextCalls, Skip};
use super::start::{LoopStart, OpenTurn};
use super::steps::{CallToRun, Fact, FinalText, LoopStep, ToolEnded};
use crate::error::{Error, EvaluationPhase, SuspendedCall};
use crate::prompt::VisibilityOverrides;
use crate::provider::retry::RetryPolicy;
use crate::provider::{ProviderAnswer, ProviderError, ProviderErrorKind};
use crate::shortening::ShortenReason;

/// Limits the attempts of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopLimits {
    /// Greatest number of visibility expansions per evaluation, including those before a resume.
    pub expansions: u32,
    /// Number of refused outputs that are reported to the model before the evaluation fails.
    pub output_retries: u32,
    /// Greatest number of calls that run per answer. Further calls are skipped, and the model is
    /// informed.
    pub calls_per_answer: u32,
    /// Greatest number of requests per evaluation, including those before a resume and failed ones.
    /// If a complete evaluation is continued, the count starts again.
    pub requests: u64,
    /// Policy for retries of failed requests.
    pub retry: RetryPolicy,
}

impl Default for LoopLimits {
    /// Returns limits of 10 expansions, 2 retries of the output, 128 calls per answer and 1,000
    /// requests, with the default retry policy.
    fn default() -> LoopLimits {
        LoopLimits {
            expansions: 10,
            output_retries: 2,
            calls_per_answer: 128,
            requests: 1_000,
            retry: RetryPolicy::default(),
        }
    }
}

/// Decides the next step of an evaluation. It has no effects itself: a driver performs each
/// [`LoopStep`], and passes the resulting [`Fact`] to [`advance`](InnerLoop::advance).
#[derive(Debug)]
pub struct InnerLoop {
    limits: LoopLimits,
    /// Tools that this process can run, and whether their calls may run concurrently.
    runnable: BTreeMap<String, bool>,
    /// Tools in the last rendering.
    shown: BTreeSet<String>,
    overrides: VisibilityOverrides,
    expansions: u32,
    refused: u32,
    /// Requests so far, including those of other processes.
    requests: u64,
    /// Requests of other processes since the last answer.
    attempts_before: u64,
    /// Attempt of this process to get the next answer, counted from 1.
    attempt: u32,
    shortener: AskedShortener,
    turn: OpenAnswer,
    start: Option<LoopStart>,
    /// Answer whose turn was not recorded when the evaluation continued.
    open: Option<OpenTurn>,
    /// Error to return after the turn is recorded.
    failing: Option<Error>,
    state: State,
}

/// Whether there is a shortener, and whether it was called since the last answer.
#[derive(Debug, Default)]
struct AskedShortener {
    exists: bool,
    at_threshold: bool,
    at_overflow: bool,
}

/// Contains the answer whose turn is not recorded.
#[derive(Debug, Default)]
struct OpenAnswer {
    content: Option<String>,
    stop: Option<String>,
    continues: bool,
    calls: AnswerToolCalls,
    skip: Option<Skip>,
    asked: Option<VisibilityOverrides>,
}

/// Identifies the step whose fact is expected next.
#[derive(Debug)]
enum State {
    Begin,
    Rendering {
        in_turn: bool,
    },
    CheckingRequest,
    /// The failure that requires the shortening; `None` at the threshold.
    Shortening(Option<Box<ProviderError>>),
    Preparing,
    RecordingRequest,
    Sending,
    RecordingFailure {
        retry: Option<Duration>,
        error: Box<ProviderError>,
    },
    Sleeping,
    RecordingAnswer,
    CheckingTools(Vec<CallToRun>),
    RunningTools,
    Closing(u32),
    CheckingOutput,
    Telling,
    RecordingTurn {
        complete: bool,
    },
    Over,
}

impl InnerLoop {
    /// Creates the state machine of an evaluation in the state `start`. `runnable` contains the
    /// tools that the driver can run, each with a flag whether its calls may run concurrently.
    pub fn new(limits: LoopLimits, runnable: BTreeMap<String, bool>, start: LoopStart) -> InnerLoop {
        InnerLoop {
            limits,
            runnable,
            shown: start.tools.iter().cloned().collect(),
            overrides: start.overrides.clone(),
            expansions: start.expansions,
            refused: start.refused,
            requests: start.requests,
            attempts_before: start.attempts,
            attempt: 1,
            shortener: AskedShortener { at_threshold: start.is_shortened, ..AskedShortener::default() },
            turn: OpenAnswer::default(),
            start: Some(start),
            open: None,
            failing: None,
            state: State::Begin,
        }
    }

    /// Enables the calls of the driver's shortener. They are disabled by default.
    #[must_use]
    pub fn with_shortener(mut self) -> InnerLoop {
        self.shortener.exists = true;
        self
    }

    /// Processes the fact of the last step, and returns the next step. The first fact is
    /// [`Fact::Begun`]. After [`LoopStep::Finish`] and [`LoopStep::Fail`] there are no more steps.
    /// A fact that does not belong to the last step is an error.
    pub fn advance(&mut self, fact: Fact) -> LoopStep {
        match (std::mem::replace(&mut self.state, State::Over), fact) {
            (State::CheckingTools(_), Fact::Failed(Error::Cancelled)) => {
                self.turn.skip = Some(Skip::Cancelled);
                self.failing = Some(Error::Cancelled);
                self.next_calls()
            }
            (_, Fact::Failed(error)) => LoopStep::Fail(error),
            (State::Begin, Fact::Begun) => self.begin(),
            (State::Rendering { in_turn }, Fact::Rendered { tools }) => {
                self.shown = tools.into_iter().collect();
                if in_turn { self.record_turn(false) } else { self.continue_open_turn() }
            }
            (State::CheckingRequest, Fact::Done) => self.request_checked(),
            (State::Shortening(None), Fact::Done) => self.go(State::Preparing, LoopStep::Prepare),
            (State::Shortening(None), Fact::Recorded(_)) => self.check_request(),
            (State::Shortening(Some(error)), Fact::Done) => LoopStep::Fail(Error::from(*error)),
            (State::Shortening(Some(_)), Fact::Recorded(_)) => {
                self.attempt = self.attempt.saturating_add(1);
                self.check_request()
            }
            (State::Preparing, Fact::Done) => {
                let attempt = self.attempt_number();
                self.go(State::RecordingRequest, LoopStep::RecordRequest { attempt })
            }
            (State::Preparing, Fact::NotAnswered(error)) => self.given_up(error),
            (State::RecordingRequest, Fact::Recorded(_)) => {
                self.requests = self.requests.saturating_add(1);
                self.go(State::Sending, LoopStep::Send)
            }
            (State::Sending, Fact::Answered(answer)) => self.take_answer(answer),
            (State::Sending, Fact::NotAnswered(error)) => self.not_answered(error),
            (State::RecordingFailure { retry: Some(delay), .. }, Fact::Recorded(_)) => {
                self.go(State::Sleeping, LoopStep::Sleep(delay))
            }
            (State::RecordingFailure { retry: None, error }, Fact::Recorded(_)) => self.given_up(error),
            (State::Sleeping, Fact::Done) => {
                self.attempt = self.attempt.saturating_add(1);
                self.check_request()
            }
            (State::RecordingAnswer, Fact::Recorded(sequence)) => {
                self.turn.calls.answer = sequence;
                (self.attempts_before, self.attempt) = (0, 1);
                (self.shortener.at_threshold, self.shortener.at_overflow) = (false, false);
                self.next_calls()
            }
            (State::CheckingTools(calls), Fact::Done) => {
                self.go(State::RunningTools, LoopStep::RunTools(calls))
            }
            (State::RunningTools, Fact::ToolsEnded(ended)) => self.tools_ended(ended),
            (State::Closing(ordinal), Fact::Recorded(_)) => {
                self.turn.calls.closed.insert(ordinal);
                self.next_calls()
            }
            (State::CheckingOutput, Fact::Done) => self.record_turn(true),
            (State::CheckingOutput, Fact::Said) => self.record_turn(false),
            (State::CheckingOutput, Fact::OutputRefused { output, reason, shown }) => {
                self.output_refused(output, reason, shown)
            }
            (State::Telling, Fact::Recorded(_)) => self.record_turn(false),
            (State::RecordingTurn { complete }, Fact::Recorded(_)) => self.turn_recorded(complete),
            (state, fact) => {
                let reason = format!("the driver of the loop reported {fact:?} in the state {state:?}");
                LoopStep::Fail(Error::evaluation(EvaluationPhase::Request, "", reason))
            }
        }
    }

    /// Returns the number of outputs refused so far, including those before a resume.
    pub fn refused_outputs(&self) -> u32 {
        self.refused
    }

    fn go(&mut self, state: State, step: LoopStep) -> LoopStep {
        self.state = state;
        step
    }

    fn begin(&mut self) -> LoopStep {
        let LoopStart { is_rendered, open, complete, .. } = self.start.take().unwrap_or_default();
        if let Some(last) = complete {
            return LoopStep::Finish(last);
        }
        self.open = open;
        if !is_rendered {
            let overrides = self.overrides.clone();
            return self.go(State::Rendering { in_turn: false }, LoopStep::Render(overrides));
        }
        self.continue_open_turn()
    }

    /// Continues with the answer whose turn is not recorded, or else with the next request.
    fn continue_open_turn(&mut self) -> LoopStep {
        let Some(open) = self.open.take() else { return self.check_request() };
        let OpenTurn {
            answer,
            content,
            stop,
            calls,
            last_call_incomplete,
            continues,
            closed,
            asked,
            expansion,
        } = open;
        let last_incomplete = last_call_incomplete;
        let calls =
            AnswerToolCalls { answer, calls, last_incomplete, closed, asked, ..AnswerToolCalls::default() };
        let skip = expansion.is_some().then_some(Skip::Expansion);
        self.turn = OpenAnswer { content, stop, continues, calls, skip, asked: expansion };
        self.next_calls()
    }

    fn attempt_number(&self) -> u64 {
        self.attempts_before.saturating_add(self.attempt.into())
    }

    fn check_request(&mut self) -> LoopStep {
        self.go(State::CheckingRequest, LoopStep::Check(EvaluationPhase::Request))
    }

    fn request_checked(&mut self) -> LoopStep {
        let max = self.limits.requests;
        if self.requests >= max {
            return LoopStep::Fail(Error::TooManyRequests { max });
        }
        if self.shortener.exists && !std::mem::replace(&mut self.shortener.at_threshold, true) {
            return self.go(State::Shortening(None), LoopStep::Shorten(ShortenReason::Threshold));
        }
        self.go(State::Preparing, LoopStep::Prepare)
    }

    /// Fails, unless the conversation is too long and the shortener was not called yet.
    fn given_up(&mut self, error: Box<ProviderError>) -> LoopStep {
        let is_overflow = error.kind == ProviderErrorKind::ContextOverflow;
        if is_overflow && self.shortener.exists && !std::mem::replace(&mut self.shortener.at_overflow, true) {
            return self.go(State::Shortening(Some(error)), LoopStep::Shorten(ShortenReason::Overflow));
        }
        LoopStep::Fail(Error::from(*error))
    }

    fn take_answer(&mut self, answer: Box<ProviderAnswer>) -> LoopStep {
        self.turn = OpenAnswer {
            content: answer.content.clone(),
            stop: answer.stop.clone(),
            continues: answer.continues,
            calls: AnswerToolCalls {
                calls: answer.calls.clone(),
                last_incomplete: answer.last_call_incomplete,
                ..AnswerToolCalls::default()
            },
            ..OpenAnswer::default()
        };
        self.go(State::RecordingAnswer, LoopStep::RecordAnswer(answer))
    }

    fn not_answered(&mut self, error: Box<ProviderError>) -> LoopStep {
        let retry = self.limits.retry.next_delay(self.attempt, &error);
        let state = State::RecordingFailure { retry, error: error.clone() };
        let attempt = self.attempt_number();
        self.go(state, LoopStep::RecordFailure { attempt, error })
    }

    fn tools_ended(&mut self, ended: Vec<(u32, ToolEnded)>) -> LoopStep {
        for (ordinal, ended) in ended {
            match ended {
                ToolEnded::Unknown => {
                    self.turn.calls.missing.insert(ordinal);
                }
                ToolEnded::Suspended(call) => {
                    self.turn.calls.suspended.insert(ordinal, call);
                }
                ToolEnded::Failed(error) => {
                    self.failing.get_or_insert(error);
                }
                ToolEnded::Closed => {
                    self.turn.calls.closed.insert(ordinal);
                }
                ToolEnded::Expansion(overrides) => {
                    self.turn.calls.closed.insert(ordinal);
                    self.turn.skip = Some(Skip::Expansion);
                    self.turn.asked.get_or_insert_default().extend(overrides);
                }
            }
        }
        match self.failing.take() {
            Some(error) => LoopStep::Fail(error),
            None => self.next_calls(),
        }
    }

    fn next_calls(&mut self) -> LoopStep {
        let (runnable, shown) = (&self.runnable, &self.shown);
        let known = |name: &str| runnable.get(name).copied().filter(|_| shown.contains(name));
        match self.turn.calls.next(self.turn.skip, self.limits.calls_per_answer, known) {
            NextCalls::Run(calls) => {
                self.go(State::CheckingTools(calls), LoopStep::Check(EvaluationPhase::Tool))
            }
            NextCalls::Close { call, cause, shown } => {
                self.go(State::Closing(call.ordinal), LoopStep::Close { call, cause, shown })
            }
            NextCalls::Closed => self.calls_closed(),
        }
    }

    fn calls_closed(&mut self) -> LoopStep {
        // The provider waits until all calls are closed, and so do the requests of the closed ones.
        let suspended = std::mem::take(&mut self.turn.calls.suspended);
        if !suspended.is_empty() {
            let calls: Vec<SuspendedCall> = suspended.into_values().collect();
            let operations = calls.iter().map(|call| call.operation).collect();
            return LoopStep::Fail(self.failing.take().unwrap_or(Error::Suspended { operations, calls }));
        }
        if let Some(error) = self.failing.take_if(|_| !self.turn.calls.are_closed()) {
            return LoopStep::Fail(error);
        }
        if let Some(asked) = self.turn.asked.take() {
            let max = self.limits.expansions;
            if self.expansions >= max {
                self.failing = Some(Error::TooManyExpansions { max });
                return self.record_turn(false);
            }
            self.expansions += 1;
            self.overrides.extend(asked);
            let overrides = self.overrides.clone();
            return self.go(State::Rendering { in_turn: true }, LoopStep::Render(overrides));
        }
        if self.failing.is_some() || self.turn.continues || !self.turn.calls.calls.is_empty() {
            return self.record_turn(false);
        }
        let last = self.last();
        self.go(State::CheckingOutput, LoopStep::CheckOutput(last))
    }

    fn last(&self) -> FinalText {
        FinalText { text: self.turn.content.clone().unwrap_or_default(), stop: self.turn.stop.clone() }
    }

    fn output_refused(&mut self, output: String, reason: String, text: String) -> LoopStep {
        self.refused = self.refused.saturating_add(1);
        if self.refused > self.limits.output_retries {
            self.failing = Some(Error::OutputInvalid { output, attempts: self.refused, reason });
            return self.record_turn(true);
        }
        let about: Option<SequenceNumber> = self.turn.calls.answer;
        self.go(State::Telling, LoopStep::Tell { text, about })
    }

    fn record_turn(&mut self, complete: bool) -> LoopStep {
        self.go(State::RecordingTurn { complete }, LoopStep::RecordTurn { complete })
    }

    fn turn_recorded(&mut self, complete: bool) -> LoopStep {
        match self.failing.take() {
            Some(error) => LoopStep::Fail(error),
            None if complete => LoopStep::Finish(self.last()),
            None => self.check_request(),
        }
    }
}
