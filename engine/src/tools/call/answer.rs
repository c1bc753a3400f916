//! Results and errors of tools, and the form in which the end of a call records them.
//!
//! A tool that returns a [`ToolError`], or a [`ToolResult`] without success, has failed: the engine rolls
//! back what the call changed in STATE and in its resources. *Effects outside* are those that no rollback
//! undoes, such as a request to a server.
//!
//! A tool may also leave its answer to somebody: it *asks* for an approval before it does anything
//! ([`ToolError::Ask`]), or it does its part and *awaits* the result ([`ToolResult::awaits`]). Its call is
//! suspended then, and holds nothing.

use std::time::Duration;

use foldlog_codec::body::{Cause, ExternalEffects};
use serde::Serialize;

use crate::error::Error;
use crate::types::encode;

/// Puts a question to a person or the host, on which a call is suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Text of the question.
    pub text: String,
    /// Time after which nobody needs to answer any more: the call has failed then, and the model reads so.
    /// `None` if the question never expires.
    pub expires_after: Option<Duration>,
}

impl Question {
    /// Makes a question that never expires.
    pub fn new(text: impl Into<String>) -> Question {
        Question { text: text.into(), expires_after: None }
    }

    /// Sets the time after which the call has failed.
    #[must_use]
    pub fn expiring(self, after: Duration) -> Question {
        Question { expires_after: Some(after), ..self }
    }
}

/// Holds what a tool answers to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult<T> {
    /// Whether the tool did what the call asked for. If not, the call fails and its changes are rolled back.
    pub success: bool,
    /// Text that the model sees.
    pub message: String,
    /// The answer itself, which the end of the call records as one MessagePack value.
    pub value: Option<T>,
    /// Effects outside, if the tool knows them. If `None`, a tool that only reads or is
    /// [`Natural`](crate::Idempotency::Natural) has none, and any other has unknown ones.
    pub outside: Option<ExternalEffects>,
    /// What the tool waits for, having done its part. The call's changes are kept, and
    /// [`Session::settle`](crate::Session::settle) brings its result. `None` if this is the result.
    pub awaits: Option<Question>,
    /// Exit code of the command that the tool ran. `None` if it ran none, or the code is unknown. A code other than 0 is no
    /// failure: whether the call failed is what `success` says.
    pub exit_code: Option<i32>,
}

impl<T> ToolResult<T> {
    /// Leaves the result to somebody: the call's changes are kept, and the call is suspended until
    /// [`Session::settle`](crate::Session::settle) brings its result. A call within another one fails with
    /// this, since the outer one would be rolled back.
    pub fn awaits(question: Question) -> ToolResult<T> {
        let message = question.text.clone();
        ToolResult {
            success: true,
            message,
            value: None,
            outside: None,
            awaits: Some(question),
            exit_code: None,
        }
    }

    /// Reports success. The model sees `message`; `value` is the answer, and the call's changes are kept.
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

    /// Declares that the tool had no effects outside: a rollback undoes whatever it did.
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

/// Says why a tool gave no answer. The call fails and its changes are rolled back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The tool failed for a reason of its own.
    #[error("{message}")]
    Failed {
        /// Text that the model sees.
        message: String,
        /// Effects outside, if the tool knows them. `None` means the same as in [`ToolResult::outside`].
        outside: Option<ExternalEffects>,
    },
    /// The arguments do not fit the tool's parameters. The text, which the model sees, says why. The call
    /// counts as one without effects outside.
    #[error("{0}")]
    InvalidArguments(String),
    /// The tool needs more of the prompt to be shown before it can answer. The caller gets
    /// [`Error::VisibilityExpansion`], and calls the tool again with these parts shown.
    #[error("{reason}")]
    VisibilityExpansion {
        /// Parts of the prompt to be shown, as JSON in a form that tool and host agree on.
        overrides: serde_json::Value,
        /// Why the tool needs them.
        reason: String,
    },
    /// The tool asks for an approval before it does anything; what it did is rolled back. The caller gets
    /// [`Error::Suspended`]. Once somebody has [approved](crate::Settlement::approved) the call, it runs under
    /// the same operation id, and its context holds the
    /// [approval](crate::tools::ToolContext::approval).
    ///
    /// If the call ran within another one, that one is rolled back too, and runs again with all its inner calls:
    /// what any of them did outside, it does again. So ask before such work. An inner call is known again by its
    /// tool and its arguments.
    #[error("{}", .0.text)]
    Ask(Question),
    /// The tool stopped early, since its context said that the call
    /// [is cancelled](crate::tools::ToolContext::is_cancelled).
    #[error("cancelled")]
    Cancelled,
    /// The engine refused something that the tool tried, such as a dispatch after the deadline.
    #[error("{0}")]
    Engine(#[from] Error),
}

impl ToolError {
    /// Returns a [`Failed`](ToolError::Failed) whose `message` the model sees, with nothing said of effects
    /// outside.
    pub fn failed(message: impl Into<String>) -> ToolError {
        ToolError::Failed { message: message.into(), outside: None }
    }

    /// Returns the cause that the end of the call records for the error.
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

/// Holds a tool's answer with its value encoded as the end of the call records it.
#[derive(Clone, Debug)]
pub(in crate::tools) struct EncodedToolResult {
    pub(in crate::tools) success: bool,
    pub(in crate::tools) message: String,
    /// The answer's value: one MessagePack value.
    pub(in crate::tools) value: Option<Vec<u8>>,
    pub(in crate::tools) outside: Option<ExternalEffects>,
    pub(in crate::tools) awaits: Option<Question>,
    pub(in crate::tools) exit_code: Option<i32>,
}

impl EncodedToolResult {
    /// Encodes the answer of the tool named `tool`.
    ///
    /// # Errors
    ///
    /// [`ToolError::Engine`] with [`Error::Encode`] if the value cannot be encoded.
    pub(in crate::tools) fn encode<T: Serialize>(
        tool: &str,
        result: ToolResult<T>,
    ) -> Result<EncodedToolResult, ToolError> {
        let ToolResult { success, message, value, outside, awaits, exit_code } = result;
        let value = value.map(|value| encode(tool, &value)).transpose()?;
        Ok(EncodedToolResult { success, message, value, outside, awaits, exit_code })
    }
}
