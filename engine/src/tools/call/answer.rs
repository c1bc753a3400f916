//! Results and errors of tools, and their form in the end record of a call.
//!
//! A tool that returns a [`ToolError`], or a [`ToolResult`] without success, has failed: the engine
//! rolls back the call's changes of STATE and of its resources. *Effects outside* are those that no
//! rollback undoes, such as a request to a server.
//!
//! A tool may also defer its answer: it *asks* for an approval before it does anything
//! ([`ToolError::Ask`]), or it does its part and *awaits* the result ([`ToolResult::awaits`]). Its
//! call is then suspended, and holds no locks and no leases.

use std::time::Duration;

use foldlog_codec::body::{Cause, ExternalEffects};
use serde::Serialize;

use crate::error::Error;
use crate::types::encode;

/// Contains a question to a person or the host. The call is suspended until the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Text of the question.
    pub text: String,
    /// Time after which the question expires: the call has then failed, and the model receives that
    /// result. `None` if the question never expires.
    pub expires_after: Option<Duration>,
}

impl Question {
    /// Creates a question that never expires.
    pub fn new(text: impl Into<String>) -> Question {
        Question { text: text.into(), expires_after: None }
    }

    /// Sets the time after which the call has failed.
    #[must_use]
    pub fn expiring(self, after: Duration) -> Question {
        Question { expires_after: Some(after), ..self }
    }
}

/// Contains a tool's answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult<T> {
    /// Whether the tool did what the call requested. If not, the call fails and its changes are
    /// rolled back.
    pub success: bool,
    /// Text that the model sees.
    pub message: String,
    /// The answer itself, recorded in the end record as one MessagePack value.
    pub value: Option<T>,
    /// Effects outside, if the tool knows them. If `None`, a tool that only reads or is
    /// [`Natural`](crate::Idempotency::Natural) has none, and any other has unknown ones.
    pub outside: Option<ExternalEffects>,
    /// The pending result, after the tool has done its part. The call's changes remain, and
    /// [`SessionCalls::settle`](crate::SessionCalls::settle) supplies its result. `None` if this is
    /// the result.
    pub awaits: Option<Question>,
    /// Exit code of the command that the tool ran. `None` if it ran none, or the code is unknown. A
    /// code other than 0 is no failure: `success` decides whether the call failed.
    pub exit_code: Option<i32>,
}

impl<T> ToolResult<T> {
    /// Defers the result: the call's changes are kept, and the call is suspended until
    /// [`SessionCalls::settle`](crate::SessionCalls::settle) supplies its result. A nested call
    /// fails instead, because the outer call would be rolled back.
    pub fn awaits(question: Question) -> ToolResult<T> {
        let message = question.text.clone();
        ToolResult { success: true, awaits: Some(question), ..ToolResult::unsuccessful(message) }
    }

    /// Reports success. The model sees `message`; `value` is the answer, and the call's changes are
    /// kept.
    pub fn ok(message: impl Into<String>, value: T) -> ToolResult<T> {
        ToolResult { value: Some(value), success: true, ..ToolResult::unsuccessful(message) }
    }

    /// Reports failure. The model sees `message`; the call's changes are rolled back.
    pub fn unsuccessful(message: impl Into<String>) -> ToolResult<T> {
        ToolResult {
            success: false,
            message: message.into(),
            value: None,
            outside: None,
            awaits: None,
            exit_code: None,
        }
    }

    /// Declares that the tool had no effects outside: a rollback undoes all its changes.
    #[must_use]
    pub fn without_outside_effects(self) -> ToolResult<T> {
        ToolResult { outside: Some(ExternalEffects::None), ..self }
    }

    /// Sets the exit code of the command that the tool ran. The end of the call records it.
    #[must_use]
    pub fn with_exit_code(self, exit_code: Option<i32>) -> ToolResult<T> {
        ToolResult { exit_code, ..self }
    }
}

/// Describes why a tool has no answer. The call fails and its changes are rolled back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The tool failed.
    #[error("{message}")]
    Failed {
        /// Text that the model sees.
        message: String,
        /// Effects outside, if the tool knows them. `None` means the same as in
        /// [`ToolResult::outside`].
        outside: Option<ExternalEffects>,
    },
    /// The arguments do not match the tool's parameters. The text, which the model sees, states the
    /// reason. The call counts as one without effects outside.
    #[error("{0}")]
    InvalidArguments(String),
    /// The tool needs more sections of the prompt before it can answer. The caller gets
    /// [`Error::VisibilityExpansion`], and calls the tool again with these sections shown.
    #[error("{reason}")]
    VisibilityExpansion {
        /// Requested sections of the prompt, as JSON in a form that tool and host agree on.
        overrides: serde_json::Value,
        /// Reason for the request.
        reason: String,
    },
    /// The tool asks for an approval before it does anything; its changes are rolled back. The
    /// caller gets [`Error::Suspended`]. Once the call is [approved](crate::Settlement::approved),
    /// it runs under the same operation id, and its context contains the
    /// [approval](crate::tools::ToolContext::approval).
    ///
    /// If the call was nested, the outer call is rolled back too, and runs again with all its inner
    /// calls, including their effects outside. So ask before such work. An inner call is recognized
    /// by its tool and its arguments.
    #[error("{}", .0.text)]
    Ask(Question),
    /// The tool stopped early, because the call [is
    /// cancelled](crate::tools::ToolContext::is_cancelled).
    #[error("cancelled")]
    Cancelled,
    /// The engine refused an action of the tool, such as a dispatch after the deadline.
    #[error("{0}")]
    Engine(#[from] Error),
}

impl ToolError {
    /// Returns a [`Failed`](ToolError::Failed) whose `message` the model sees, without a statement
    /// about effects outside.
    pub fn failed(message: impl Into<String>) -> ToolError {
        ToolError::Failed { message: message.into(), outside: None }
    }

    /// Returns the cause for the end record of the call.
    pub(in crate::tools) fn cause(&self) -> Cause {
        match self {
            ToolError::Failed { .. } | ToolError::Ask(_) => Cause::Error,
            ToolError::InvalidArguments(_) => Cause::InvalidArguments,
            ToolError::VisibilityExpansion { .. } | ToolError::Engine(Error::VisibilityExpansion { .. }) => {
                Cause::Expansion
            }
            ToolError::Cancelled | ToolError::Engine(Error::Revoked { .. }) => Cause::Cancelled,
            ToolError::Engine(Error::DeadlineExceeded { .. }) => Cause::Deadline,
            ToolError::Engine(_) => Cause::Error,
        }
    }
}

impl From<std::io::Error> for ToolError {
    fn from(error: std::io::Error) -> ToolError {
        ToolError::failed(error.to_string())
    }
}

impl From<foldlog_filesystem::Error> for ToolError {
    fn from(error: foldlog_filesystem::Error) -> ToolError {
        ToolError::Engine(error.into())
    }
}

/// A tool's result, with its value encoded as MessagePack.
pub(in crate::tools) type EncodedToolResult = ToolResult<Vec<u8>>;

impl<T: Serialize> ToolResult<T> {
    /// Encodes the result of the tool named `tool`.
    pub(in crate::tools) fn encode(self, tool: &str) -> Result<EncodedToolResult, ToolError> {
        let ToolResult { success, message, value, outside, awaits, exit_code } = self;
        let value = value.map(|value| encode(tool, &value)).transpose()?;
        Ok(ToolResult { success, message, value, outside, awaits, exit_code })
    }
}
