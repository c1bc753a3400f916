//! Converts failures of the program into the errors of an evaluation.
//!
//! | failure | error | phase |
//! |---|---|---|
//! | the program is not installed | [`Error::PromptEvaluation`], with instructions to install it | request |
//! | it does not start, does not answer or its pipe broke | [`Error::Throttled`], a timeout that may be retried | request |
//! | it ended without a result | [`Error::PromptEvaluation`], whose source is a [`ProgramExit`] | request |
//! | it wrote a line that is not JSON | [`Error::PromptEvaluation`] | response |
//! | its provider limits the rate, is overloaded, failed or cannot be reached | [`Error::Throttled`] | request |
//! | the conversation is too long | [`Error::ContextOverflow`] | request |
//! | the model refuses | [`Error::Refused`] | response |
//! | the stream of an answer ended early | [`Error::PromptEvaluation`] | response |
//! | it does not offer a tool that may run | [`Error::PromptEvaluation`] | request |
//! | the limit of answers is reached | [`Error::TooManyRequests`] | request |
//! | the limit of cost is reached | [`Error::PromptEvaluation`] | budget |
//! | it does not know the session | [`Error::SessionExpired`] | request |
//! | anything else | [`Error::PromptEvaluation`] | request |

use std::fmt;

use foldlog::conversation::TokenUsage;
use foldlog::escape;
use serde_json::{Value, json};

use super::arrival::{ClientFailure, ClientFailureKind};
use crate::{FailureKind, TurnResult};
use foldlog_agent::adapter_state::{AdapterStateType, ClaudeAgentSDKState};
use foldlog_agent::error::{Error, EvaluationPhase};
use foldlog_agent::provider::{ProviderError, ProviderErrorKind, ThrottleDetails, ThrottleKind};

/// Describes how the program ended. It is the source of the error of a run that ended with its
/// program, so that a host can distinguish the cases.
///
/// ```
/// use foldlog_agent::Error;
/// use foldlog_claude::ProgramExit;
///
/// # fn tell(error: &Error) {
/// if let Some(ProgramExit { exit_code: Some(3), stderr, .. }) = ProgramExit::find_in(error) {
///     println!("{}", foldlog::escape::text(stderr));
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramExit {
    /// Exit code of the program.
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the program.
    pub signal: Option<i32>,
    /// Last part of the program's standard error, unescaped; empty if it wrote nothing.
    pub stderr: String,
}

impl ProgramExit {
    /// Returns the exit of the program that caused the failure of a run; `None` if the run failed
    /// for another reason.
    pub fn find_in(error: &Error) -> Option<&ProgramExit> {
        match error {
            Error::PromptEvaluation { source, .. } => source.as_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

impl fmt::Display for ProgramExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.exit_code, self.signal) {
            (Some(code), _) => write!(f, "the program exited with code {code}"),
            (None, Some(signal)) => write!(f, "the program was killed by signal {signal}"),
            (None, None) => f.write_str("the exit status of the program is unknown"),
        }
    }
}

impl std::error::Error for ProgramExit {}

/// Contains the reason why the program's turn failed. It is the source of an error whose variant
/// does not itself identify the reason.
///
/// ```
/// use foldlog_agent::Error;
/// use foldlog_claude::{FailureKind, TurnFailure};
///
/// # fn tell(error: &Error) {
/// if TurnFailure::kind_of(error) == Some(FailureKind::ModelNotFound) {
///     println!("choose another model");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnFailure(FailureKind);

impl TurnFailure {
    /// Returns the reason of the failed turn that caused the failure of a run; `None` if the run
    /// failed for another reason.
    pub fn kind_of(error: &Error) -> Option<FailureKind> {
        match error {
            Error::PromptEvaluation { source, .. } => {
                source.as_ref()?.downcast_ref::<TurnFailure>().map(|failure| failure.0)
            }
            Error::Refused(_) => Some(FailureKind::Refused),
            Error::ContextOverflow(_) => Some(FailureKind::PromptTooLong),
            Error::TooManyRequests { .. } => Some(FailureKind::MaxTurns),
            _ => None,
        }
    }
}

impl fmt::Display for TurnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the turn failed: {:?}", self.0)
    }
}

impl std::error::Error for TurnFailure {}

/// Instructions to install the program.
const INSTALL: &str = "install it with `npm install -g @anthropic-ai/claude-code`, or name its path";

/// Creates the error of a request that may be retried. `attempts` is 0 if unknown: the program
/// retries requests to its provider by itself, and does not report how often.
fn throttled_error(kind: ThrottleKind, attempts: u32, message: String, payload: Option<Value>) -> Error {
    let details =
        ThrottleDetails { kind, retry_after: None, attempts, retry_safe: true, provider_payload: payload };
    Error::Throttled { details, message }
}

/// Returns the error of a client that failed.
pub(super) fn of_client(failure: &ClientFailure, prompt: &str, session_id: &str) -> Error {
    let ClientFailure { kind, is_response, is_retryable, text, exit_code, signal, stderr } = failure;
    let payload = (exit_code.is_some() || !stderr.is_empty())
        .then(|| json!({"exit_code": exit_code, "stderr": stderr}));
    match kind {
        ClientFailureKind::NotInstalled => Error::evaluation(
            EvaluationPhase::Request,
            prompt,
            format!("Claude Code was not found: {INSTALL} ({text})"),
        ),
        ClientFailureKind::UnknownSession => expired_error(session_id),
        ClientFailureKind::Connection if *is_retryable => {
            throttled_error(ThrottleKind::Timeout, 1, text.clone(), payload)
        }
        _ => {
            let phase = if *is_response { EvaluationPhase::Response } else { EvaluationPhase::Request };
            let exit = ProgramExit { exit_code: *exit_code, signal: *signal, stderr: stderr.clone() };
            let is_told = exit != ProgramExit::default();
            Error::PromptEvaluation {
                phase,
                prompt: prompt.to_owned(),
                reason: text.clone(),
                source: is_told.then(|| exit.into()),
            }
        }
    }
}

fn expired_error(session_id: &str) -> Error {
    let adapter = ClaudeAgentSDKState::ADAPTER_TYPE.to_owned();
    Error::SessionExpired { adapter, session_id: session_id.to_owned() }
}

/// Returns the error of a run that the program reported as failed. `max_turns` is its limit of
/// answers.
pub(super) fn of_result(
    result: &TurnResult,
    kind: FailureKind,
    prompt: &str,
    session_id: &str,
    max_turns: Option<u32>,
) -> Error {
    let text = result.failure_text();
    let payload = result.api_error_status.map(|status| json!({"status": status}));
    let evaluation = |phase, reason| Error::PromptEvaluation {
        phase,
        prompt: prompt.to_owned(),
        reason,
        source: Some(Box::new(TurnFailure(kind))),
    };
    match kind {
        FailureKind::RateLimited => throttled_error(ThrottleKind::RateLimit, 0, text, payload),
        FailureKind::Overloaded => throttled_error(ThrottleKind::Overloaded, 0, text, payload),
        FailureKind::ProviderFailed | FailureKind::Unreachable => {
            throttled_error(ThrottleKind::Timeout, 0, text, payload)
        }
        FailureKind::PromptTooLong => Error::ContextOverflow(text),
        FailureKind::Refused => Error::Refused(text),
        FailureKind::MaxTurns => Error::TooManyRequests { max: max_turns.unwrap_or_default().into() },
        FailureKind::SessionNotFound => expired_error(session_id),
        FailureKind::MaxBudget => {
            let reason = "the run cost as much as `max_budget_usd` allows: resume with a larger one";
            evaluation(EvaluationPhase::Budget, reason.to_owned())
        }
        FailureKind::Authentication => evaluation(
            EvaluationPhase::Request,
            format!("the provider refuses the key: {text}: give the run another key"),
        ),
        FailureKind::ModelNotFound => evaluation(
            EvaluationPhase::Request,
            format!(
                "the provider does not know the model: {}: choose another one",
                text.trim_end_matches('.')
            ),
        ),
        FailureKind::Cut => evaluation(
            EvaluationPhase::Response,
            "the answer was cut before its end: resume the run".to_owned(),
        ),
        FailureKind::Aborted => {
            evaluation(EvaluationPhase::Response, "the run was interrupted: resume it".to_owned())
        }
        _ => evaluation(EvaluationPhase::Request, format!("the program gave no output: {text}")),
    }
}

/// Returns the error of a run that names tools which the program does not offer.
pub(super) fn not_offered(prompt: &str, tools: &[&str], version: Option<&str>) -> Error {
    let names: Vec<String> = tools.iter().map(|tool| format!("`{}`", escape::text(tool))).collect();
    let version = version.map(|version| format!(" {}", escape::text(version))).unwrap_or_default();
    let what = if names.len() == 1 { "no tool" } else { "no tools" };
    let reason = format!(
        "Claude Code{version} offers {what} {}: correct the names, or use another version",
        names.join(", ")
    );
    Error::evaluation(EvaluationPhase::Request, prompt, reason)
}

/// Returns the recorded form of a failure. `usage` is the usage of the run, as far as the program
/// reported it.
pub(super) fn recorded_form(error: &Error, usage: Option<TokenUsage>) -> ProviderError {
    let kind = match error {
        Error::Throttled { details, .. } => ProviderErrorKind::Throttled(details.clone()),
        Error::ContextOverflow(_) => ProviderErrorKind::ContextOverflow,
        Error::Refused(_) => ProviderErrorKind::Refused,
        Error::DeadlineExceeded { .. } => ProviderErrorKind::Deadline,
        Error::Cancelled => ProviderErrorKind::Cancelled,
        Error::PromptEvaluation { phase: EvaluationPhase::Response, .. } => ProviderErrorKind::Cut,
        _ => ProviderErrorKind::BadRequest,
    };
    ProviderError { usage, ..ProviderError::new(kind, error.to_string()) }
}
