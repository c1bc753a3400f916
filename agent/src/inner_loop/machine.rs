//! The state machine: decides which step follows each fact.

use std::collections::BTreeMap;
use std::time::Duration;

use super::calls::{AnswerToolCalls, NextCalls, Skip};
use super::start::{LoopStart, OpenTurn};
use super::steps::{CallToRun, Fact, FinalText, LoopStep, ToolEnded};
use crate::error::{Error, EvaluationPhase, SuspendedCall};
use crate::prompt::OutputError;
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
    pub(super) limits: LoopLimits,
    /// Tools that this process can run, and whether their calls may run concurrently.
    runnable: BTreeMap<String, bool>,
    /// State of the conversation, as facts change it. Its open turn and its last answer are taken
    /// at the start.
    now: LoopStart,
    /// Attempt of this process to get the next answer, counted from 1.
    attempt: u32,
    has_shortener: bool,
    /// Whether the shortener was called at an overflow since the last answer.
    asked_at_overflow: bool,
    /// Answer whose turn is not recorded.
    answer: AnswerToolCalls,
    /// Error to return after the turn is recorded.
    failing: Option<Error>,
    state: State,
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
            now: start,
            attempt: 1,
            has_shortener: false,
            asked_at_overflow: false,
            answer: AnswerToolCalls::default(),
            failing: None,
            state: State::Begin,
        }
    }

    /// Enables the calls of the driver's shortener. They are disabled by default.
    #[must_use]
    pub fn with_shortener(mut self) -> InnerLoop {
        self.has_shortener = true;
        self
    }

    /// Processes the fact of the last step, and returns the next step. The first fact is
    /// [`Fact::Begun`]. After [`LoopStep::Finish`] and [`LoopStep::Fail`] there are no more steps.
    /// A fact that does not belong to the last step is an error.
    pub fn advance(&mut self, fact: Fact) -> LoopStep {
        match (std::mem::replace(&mut self.state, State::Over), fact) {
            (State::CheckingTools(_), Fact::Failed(Error::Cancelled)) => {
                self.answer.skip = Some(Skip::Cancelled);
                self.failing = Some(Error::Cancelled);
                self.next_calls()
            }
            (_, Fact::Failed(error)) => LoopStep::Fail(error),
            (State::Begin, Fact::Begun) => self.begin(),
            (State::Rendering { in_turn }, Fact::Rendered { tools }) => {
                self.now.tools = tools;
                if in_turn { self.record_turn(false) } else { self.continue_open_turn() }
            }
            (State::CheckingRequest, Fact::Done) => self.request_checked(),
            (State::Shortening(None), Fact::Done) => self.go(State::Preparing, LoopStep::Prepare),
            (State::Shortening(None), Fact::Recorded(_)) => self.check_request(),
            (State::Shortening(Some(error)), Fact::Done) => LoopStep::Fail(Error::from(error)),
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
                self.now.requests = self.now.requests.saturating_add(1);
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
                self.answer.turn.answer = sequence;
                (self.now.attempts, self.attempt) = (0, 1);
                (self.now.is_shortened, self.asked_at_overflow) = (false, false);
                self.next_calls()
            }
            (State::CheckingTools(calls), Fact::Done) => {
                self.go(State::RunningTools, LoopStep::RunTools(calls))
            }
            (State::RunningTools, Fact::ToolsEnded(ended)) => self.tools_ended(ended),
            (State::Closing(ordinal), Fact::Recorded(_)) => {
                self.answer.turn.closed.insert(ordinal);
                self.next_calls()
            }
            (State::CheckingOutput, Fact::Done) => self.record_turn(true),
            (State::CheckingOutput, Fact::Said) => self.record_turn(false),
            (State::CheckingOutput, Fact::OutputRefused(error)) => self.output_refused(error),
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
        self.now.refused
    }

    fn go(&mut self, state: State, step: LoopStep) -> LoopStep {
        self.state = state;
        step
    }

    fn begin(&mut self) -> LoopStep {
        if let Some(last) = self.now.complete.take() {
            return LoopStep::Finish(last);
        }
        if !self.now.is_rendered {
            let overrides = self.now.overrides.clone();
            return self.go(State::Rendering { in_turn: false }, LoopStep::Render(overrides));
        }
        self.continue_open_turn()
    }

    /// Continues with the answer whose turn is not recorded, or else with the next request.
    fn continue_open_turn(&mut self) -> LoopStep {
        let Some(turn) = self.now.open.take() else { return self.check_request() };
        let skip = turn.expansion.is_some().then_some(Skip::Expansion);
        self.answer = AnswerToolCalls { turn, skip, ..AnswerToolCalls::default() };
        self.next_calls()
    }

    /// Returns the number of the present attempt to get an answer, counted from 1.
    pub(super) fn attempt_number(&self) -> u64 {
        self.now.attempts.saturating_add(self.attempt.into())
    }

    fn check_request(&mut self) -> LoopStep {
        self.go(State::CheckingRequest, LoopStep::Check)
    }

    fn request_checked(&mut self) -> LoopStep {
        let max = self.limits.requests;
        if self.now.requests >= max {
            return LoopStep::Fail(Error::TooManyRequests { max });
        }
        if self.has_shortener && !std::mem::replace(&mut self.now.is_shortened, true) {
            return self.go(State::Shortening(None), LoopStep::Shorten(ShortenReason::Threshold));
        }
        self.go(State::Preparing, LoopStep::Prepare)
    }

    /// Fails, unless the conversation is too long and the shortener was not called yet.
    fn given_up(&mut self, error: Box<ProviderError>) -> LoopStep {
        let is_overflow = error.kind == ProviderErrorKind::ContextOverflow;
        if is_overflow && self.has_shortener && !std::mem::replace(&mut self.asked_at_overflow, true) {
            return self.go(State::Shortening(Some(error)), LoopStep::Shorten(ShortenReason::Overflow));
        }
        LoopStep::Fail(Error::from(error))
    }

    fn take_answer(&mut self, answer: Box<ProviderAnswer>) -> LoopStep {
        let turn = OpenTurn {
            content: answer.content.clone(),
            stop: answer.stop.clone(),
            continues: answer.continues,
            calls: answer.calls.clone(),
            last_call_incomplete: answer.last_call_incomplete,
            ..OpenTurn::default()
        };
        self.answer = AnswerToolCalls { turn, ..AnswerToolCalls::default() };
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
                    self.answer.missing.insert(ordinal);
                }
                ToolEnded::Suspended(call) => {
                    self.answer.suspended.insert(ordinal, call);
                }
                ToolEnded::Failed(error) => {
                    self.failing.get_or_insert(error);
                }
                ToolEnded::Closed => {
                    self.answer.turn.closed.insert(ordinal);
                }
                ToolEnded::Expansion(overrides) => {
                    self.answer.turn.closed.insert(ordinal);
                    self.answer.skip = Some(Skip::Expansion);
                    self.answer.turn.expansion.get_or_insert_default().extend(overrides);
                }
            }
        }
        match self.failing.take() {
            Some(error) => LoopStep::Fail(error),
            None => self.next_calls(),
        }
    }

    fn next_calls(&mut self) -> LoopStep {
        let (runnable, shown) = (&self.runnable, &self.now.tools);
        let known =
            |name: &str| runnable.get(name).copied().filter(|_| shown.iter().any(|shown| shown == name));
        match self.answer.next(self.limits.calls_per_answer, known) {
            NextCalls::Run(calls) => self.go(State::CheckingTools(calls), LoopStep::Check),
            NextCalls::Close { call, cause, shown } => {
                self.go(State::Closing(call.ordinal), LoopStep::Close { call, cause, shown })
            }
            NextCalls::Closed => self.calls_closed(),
        }
    }

    fn calls_closed(&mut self) -> LoopStep {
        // The provider waits until all calls are closed, and so do the requests of the closed ones.
        let suspended = std::mem::take(&mut self.answer.suspended);
        if !suspended.is_empty() {
            let calls: Vec<SuspendedCall> = suspended.into_values().collect();
            let operations = calls.iter().map(|call| call.operation).collect();
            return LoopStep::Fail(self.failing.take().unwrap_or(Error::Suspended { operations, calls }));
        }
        if let Some(error) = self.failing.take_if(|_| !self.answer.are_closed()) {
            return LoopStep::Fail(error);
        }
        if let Some(asked) = self.answer.turn.expansion.take() {
            let max = self.limits.expansions;
            if self.now.expansions >= max {
                self.failing = Some(Error::TooManyExpansions { max });
                return self.record_turn(false);
            }
            self.now.expansions += 1;
            self.now.overrides.extend(asked);
            let overrides = self.now.overrides.clone();
            return self.go(State::Rendering { in_turn: true }, LoopStep::Render(overrides));
        }
        let OpenTurn { continues, calls, .. } = &self.answer.turn;
        if self.failing.is_some() || *continues || !calls.is_empty() {
            return self.record_turn(false);
        }
        let last = self.last();
        self.go(State::CheckingOutput, LoopStep::CheckOutput(last))
    }

    fn last(&self) -> FinalText {
        let OpenTurn { content, stop, .. } = &self.answer.turn;
        FinalText { text: content.clone().unwrap_or_default(), stop: stop.clone() }
    }

    fn output_refused(&mut self, error: OutputError) -> LoopStep {
        self.now.refused = self.now.refused.saturating_add(1);
        if self.now.refused > self.limits.output_retries {
            let OutputError { output, reason } = error;
            self.failing = Some(Error::OutputInvalid { output, attempts: self.now.refused, reason });
            return self.record_turn(true);
        }
        let (text, about) = (error.to_string(), self.answer.turn.answer);
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
