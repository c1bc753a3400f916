//! Errors of an evaluation, each with a remedy.

use foldlog::OperationId;
use foldlog::SuspensionForm;
use foldlog::conversation::PromptIdentity;
use foldlog::escape;
use foldlog::tools::ToolError;
use uuid::Uuid;

use crate::adapter_state::ResumeRefusal;
use crate::budget::BudgetLimit;
use crate::named;
use crate::prompt::PromptError;
use crate::provider::{ProviderError, ProviderErrorKind, ThrottleDetails, ThrottleKind};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error, as the cause of another error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Describes a suspended call that an evaluation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspendedCall {
    /// Session whose log contains the call.
    pub session: Uuid,
    /// Operation to be [settled](foldlog::SessionCalls::settle).
    pub operation: OperationId,
    /// Form of the suspension.
    pub form: SuspensionForm,
    /// Text of the question.
    pub question: String,
}

named! {
    /// Identifies the part of an evaluation that failed.
    #[non_exhaustive]
    EvaluationPhase {
        /// Rendering the prompt.
        PromptRender = "prompt_render",
        /// Preparing or sending a request.
        Request = "request",
        /// Reading an answer.
        Response = "response",
        /// Running a tool.
        Tool = "tool",
        /// Checking the budget.
        Budget = "budget",
        /// Checking the deadline.
        Deadline = "deadline",
    }
}

/// Reports why an evaluation returned no output. Each message names the cause, and then the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The prompt has changed since the start of the conversation.
    #[error(
        "the conversation was started with prompt {recorded}, and cannot be resumed with {given}: clear the \
         checkpoint and restart, or accept the changed prompt with `EvaluateOptions::accept_prompt`"
    )]
    ConversationStateMismatch {
        /// Prompt in the log.
        recorded: Box<PromptIdentity>,
        /// Prompt from the caller.
        given: Box<PromptIdentity>,
    },
    /// A message of the host has the id of another message, but a different text. Nothing was
    /// recorded.
    #[error(
        "the conversation already contains a message `{}` with a different text: give the new message another \
         id",
        escape::text(.id)
    )]
    MessageChanged {
        /// Id of the message.
        id: String,
    },
    /// A checkpoint is damaged, incompatible, or belongs to another session.
    #[error("the checkpoint cannot be restored: {}: clear the checkpoint and restart", escape::text(.reason))]
    SnapshotRestore {
        /// Problem of the checkpoint.
        reason: String,
        /// Underlying error.
        #[source]
        source: Option<Cause>,
    },
    /// A checkpoint cannot be created, stored or removed.
    #[error("the checkpoint cannot be saved or removed: {}: correct this, and execute the request again", escape::text(.reason))]
    Checkpoint {
        /// Reason of the failure.
        reason: String,
        /// Underlying system error.
        #[source]
        source: Option<Cause>,
    },
    /// The checkpoint contains no conversation.
    #[error("No conversation state in checkpoint: clear the checkpoint and restart")]
    NoConversationState,
    /// A tool was interrupted and cannot safely run again.
    #[error(
        "tool `{}` of operation {operation} was interrupted and may have done its work: manual intervention is needed: \
         find out what it did, and settle operation {operation}",
        escape::text(.tool)
    )]
    ToolIdempotency {
        /// Operation that was interrupted.
        operation: OperationId,
        /// Name of the tool.
        tool: String,
    },
    /// A part of the evaluation failed with an error that has no variant of its own.
    #[error("{}{phase} failed: {}", of_prompt(.prompt), escape::text(.reason))]
    PromptEvaluation {
        /// Part of the evaluation that failed.
        phase: EvaluationPhase,
        /// Name of the prompt.
        prompt: String,
        /// Description of the failure and its remedy.
        reason: String,
        /// Underlying error.
        #[source]
        source: Option<Cause>,
    },
    /// The deadline of the evaluation has passed.
    #[error(
        "the deadline passed {}: resume the evaluation with a later deadline",
        deadline_text(*.phase)
    )]
    DeadlineExceeded {
        /// Phase in which the deadline passed.
        phase: EvaluationPhase,
    },
    /// A limit of the budget is used up.
    #[error(
        "the budget is used up: {spent} tokens were spent, and {limit} is {max}: resume with a larger budget"
    )]
    BudgetExceeded {
        /// The exhausted limit.
        limit: BudgetLimit,
        /// Value of the limit, in tokens.
        max: u64,
        /// Tokens spent.
        spent: u64,
    },
    /// The provider reported no usage for some answers, and the budget refuses such answers.
    #[error(
        "the provider reported no token usage for {answers} of its answers, so the budget cannot be checked: \
         resume with `UnknownUsagePolicy::Estimate`, or without a budget"
    )]
    UsageUnknown {
        /// Number of answers without a known usage.
        answers: u64,
    },
    /// A tool failed, and some of its changes could not be rolled back. The call is closed, and the
    /// evaluation can be resumed.
    #[error(
        "tool `{}` of operation {operation} failed, and not all of its changes could be rolled back: {}: \
         check these changes, and resume",
        escape::text(.tool),
        escape::text(&.changes.join("; "))
    )]
    NotUndone {
        /// The failed operation.
        operation: OperationId,
        /// Name of the tool.
        tool: String,
        /// Changes that were not rolled back.
        changes: Vec<String>,
    },
    /// The provider cannot answer now, but may be able to later.
    #[error("{}: {}", escape::text(.message), throttle_text(.details))]
    Throttled {
        /// Details from the provider.
        details: ThrottleDetails,
        /// Message of the provider.
        message: String,
    },
    /// The messages exceed the model's context.
    #[error(
        "the conversation is too long for the model: {}: shorten it, or use a model with a larger context",
        escape::text(.0)
    )]
    ContextOverflow(String),
    /// The model refused.
    #[error("the model refused: {}: change what it is asked to do", escape::text(.0))]
    Refused(String),
    /// A filter of the provider blocked the answer.
    #[error("the provider's content filter blocked the answer: {}: change what the model is asked to do", escape::text(.0))]
    ContentFilter(String),
    /// The model returned output that does not match the prompt's type, in all permitted attempts.
    #[error(
        "the output is not a valid `{}` (attempts: {attempts}): {}: make the output type simpler, or allow more attempts",
        escape::text(.output),
        escape::text(.reason)
    )]
    OutputInvalid {
        /// Name of the output's type.
        output: String,
        /// Number of answers checked.
        attempts: u32,
        /// Problem of the last answer.
        reason: String,
    },
    /// The run succeeded, but returned no output although the prompt requires one.
    #[error(
        "the run ended without the required output `{}`: resume the evaluation and ask for it, or make the output type simpler",
        escape::text(.output)
    )]
    OutputMissing {
        /// Name of the output's type.
        output: String,
    },
    /// Tools expanded sections of the prompt too often.
    #[error("more than {max} visibility expansions in one evaluation: show these sections from the start")]
    TooManyExpansions {
        /// Greatest number of expansions per evaluation.
        max: u32,
    },
    /// The evaluation has reached its limit of requests.
    #[error(
        "the evaluation reached its limit of requests ({max}): check that it makes progress, and resume with \
         a larger `LoopLimits::requests`"
    )]
    TooManyRequests {
        /// Greatest number of requests per evaluation.
        max: u64,
    },
    /// The evaluation waits for operations to be settled: interrupted calls, or calls that wait for
    /// an approval or a result.
    #[error("the evaluation waits for {}: settle with `foldlog settle` or `SessionCalls::settle`, and resume{}", operations_text(.operations), questions_text(.calls))]
    Suspended {
        /// Operations to settle, in the evaluation's own session or in a session in which one of
        /// its calls works.
        operations: Vec<OperationId>,
        /// Those of the operations that ask a question.
        calls: Vec<SuspendedCall>,
    },
    /// A provider would refuse the messages to be sent.
    #[error(
        "the provider would refuse the history: {}: repair it, or resume at an earlier position",
        escape::text(&.problems.join("; "))
    )]
    InvalidHistory {
        /// Problems of the history.
        problems: Vec<String>,
    },
    /// A shortener returned a range that cannot be replaced. Nothing was recorded.
    #[error("the shortener returned an invalid replacement: {}: fix the shortener, and resume", escape::text(.reason))]
    ShorteningRefused {
        /// Problem of the range.
        reason: String,
    },
    /// A state of an adapter cannot be written or read.
    #[error("the state of adapter `{}` cannot be used: {}: use the adapter version that wrote it, or start a new session",
        escape::text(.adapter), escape::text(.reason))]
    AdapterState {
        /// Name of the adapter's type.
        adapter: String,
        /// Problem of the state.
        reason: String,
    },
    /// A state of an adapter is too large. Nothing was recorded.
    #[error(
        "the state of adapter `{}` has {bytes} bytes, more than the limit of {max}: keep only ids in it, or \
         allow `OversizedState::Reference`",
        escape::text(.adapter)
    )]
    StateTooLarge {
        /// Name of the adapter's type.
        adapter: String,
        /// Size of the state's JSON, in bytes.
        bytes: usize,
        /// Greatest size that is recorded, in bytes.
        max: usize,
    },
    /// A state of an adapter must not be resumed in the present circumstances.
    #[error(transparent)]
    ResumeRefused(#[from] Box<ResumeRefusal>),
    /// The provider no longer has the session to be resumed.
    #[error(
        "the provider of adapter `{}` no longer has session `{}`: record that it expired, and start a new one",
        escape::text(.adapter),
        escape::text(.session_id)
    )]
    SessionExpired {
        /// Name of the adapter's type.
        adapter: String,
        /// Id of the provider's session.
        session_id: String,
    },
    /// The evaluation was cancelled.
    #[error("the evaluation was cancelled: resume it to continue where it stopped")]
    Cancelled,
    /// The prompt cannot be rendered, or its output cannot be read.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The provider returned no answer, for a reason that has no variant of its own.
    #[error("the provider gave no answer ({}): {}", .0.kind.name(), escape::text(&.0.message))]
    Provider(#[source] Box<ProviderError>),
    /// The engine reports an error.
    #[error(transparent)]
    Engine(foldlog::Error),
}

/// Returns the prefix that names a prompt; empty if no prompt is named.
fn of_prompt(prompt: &str) -> String {
    if prompt.is_empty() { String::new() } else { format!("prompt {}: ", escape::text(prompt)) }
}

impl Error {
    /// Creates the error of a checkpoint that cannot be restored.
    pub fn snapshot_restore(reason: impl Into<String>, source: impl Into<Option<Cause>>) -> Error {
        Error::SnapshotRestore { reason: reason.into(), source: source.into() }
    }

    /// Creates an [`Error::PromptEvaluation`] without an underlying error.
    pub fn evaluation(phase: EvaluationPhase, prompt: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::PromptEvaluation { phase, prompt: prompt.into(), reason: reason.into(), source: None }
    }

    /// Returns the part of the evaluation that failed; `None` if the error belongs to no part.
    pub fn phase(&self) -> Option<EvaluationPhase> {
        match self {
            Error::PromptEvaluation { phase, .. } => Some(*phase),
            Error::Prompt(_) => Some(EvaluationPhase::PromptRender),
            Error::Throttled { .. }
            | Error::ContextOverflow(_)
            | Error::Provider(_)
            | Error::ShorteningRefused { .. }
            | Error::TooManyRequests { .. }
            | Error::MessageChanged { .. }
            | Error::InvalidHistory { .. }
            | Error::SessionExpired { .. } => Some(EvaluationPhase::Request),
            Error::Refused(_)
            | Error::ContentFilter(_)
            | Error::OutputInvalid { .. }
            | Error::OutputMissing { .. } => Some(EvaluationPhase::Response),
            Error::ToolIdempotency { .. }
            | Error::TooManyExpansions { .. }
            | Error::Suspended { .. }
            | Error::NotUndone { .. } => Some(EvaluationPhase::Tool),
            Error::BudgetExceeded { .. } | Error::UsageUnknown { .. } => Some(EvaluationPhase::Budget),
            Error::DeadlineExceeded { .. } => Some(EvaluationPhase::Deadline),
            _ => None,
        }
    }
}

impl From<foldlog::Error> for Error {
    fn from(error: foldlog::Error) -> Error {
        match error {
            foldlog::Error::ToolIdempotency { operation, tool } => Error::ToolIdempotency { operation, tool },
            foldlog::Error::Suspended { session, operation, form, question } => {
                let calls = vec![SuspendedCall { session, operation, form, question }];
                Error::Suspended { operations: vec![operation], calls }
            }
            foldlog::Error::DeadlineExceeded { .. } => {
                Error::DeadlineExceeded { phase: EvaluationPhase::Tool }
            }
            error => Error::Engine(error),
        }
    }
}

/// Converts the error for a tool that runs a conversation of its own. If that conversation is
/// suspended, the tool's call is suspended too: it is rolled back, and runs again after the
/// question has been answered.
impl From<Error> for ToolError {
    fn from(error: Error) -> ToolError {
        match error {
            Error::Engine(error) => ToolError::Engine(error),
            Error::Suspended { mut calls, .. } if !calls.is_empty() => {
                let SuspendedCall { session, operation, form, question } = calls.swap_remove(0);
                ToolError::Engine(foldlog::Error::Suspended { session, operation, form, question })
            }
            error => ToolError::failed(error.to_string()),
        }
    }
}

impl From<Box<ProviderError>> for Error {
    fn from(error: Box<ProviderError>) -> Error {
        match error.kind {
            ProviderErrorKind::Throttled(details) => Error::Throttled { details, message: error.message },
            ProviderErrorKind::ContextOverflow => Error::ContextOverflow(error.message),
            ProviderErrorKind::Refused => Error::Refused(error.message),
            ProviderErrorKind::ContentFilter => Error::ContentFilter(error.message),
            ProviderErrorKind::Deadline => Error::DeadlineExceeded { phase: EvaluationPhase::Request },
            ProviderErrorKind::Cancelled => Error::Cancelled,
            _ => Error::Provider(error),
        }
    }
}

fn deadline_text(phase: EvaluationPhase) -> &'static str {
    match phase {
        EvaluationPhase::PromptRender => "while the prompt was rendered",
        EvaluationPhase::Request => "while the provider was asked",
        EvaluationPhase::Response => "while the answer was read",
        EvaluationPhase::Tool => "while a tool ran",
        EvaluationPhase::Budget | EvaluationPhase::Deadline => "before the next step",
    }
}

fn throttle_text(details: &ThrottleDetails) -> String {
    let what = match details.kind {
        ThrottleKind::RateLimit => "the provider's rate limit is reached",
        ThrottleKind::QuotaExhausted => "the quota is used up: raise it",
        ThrottleKind::Timeout => "the provider did not answer in time",
        ThrottleKind::Overloaded => "the provider is overloaded",
        ThrottleKind::Unknown => "the provider does not answer now",
    };
    let asked = match details.attempts {
        0 => what.to_owned(),
        1 => format!("{what}; tried once"),
        attempts => format!("{what}; tried {attempts} times"),
    };
    match details.retry_after {
        Some(after) => format!("{asked}: resume in {} s", after.as_secs_f64().ceil()),
        None => format!("{asked}: resume later"),
    }
}

fn operations_text(operations: &[OperationId]) -> String {
    match operations {
        [one] => format!("operation {one}"),
        many => {
            let many: Vec<_> = many.iter().map(OperationId::to_string).collect();
            format!("operations {}", many.join(", "))
        }
    }
}

fn questions_text(calls: &[SuspendedCall]) -> String {
    let question = |call: &SuspendedCall| {
        format!(
            "; operation {} of session {}: {}",
            call.operation,
            call.session,
            escape::text(&call.question)
        )
    };
    calls.iter().map(question).collect()
}
