//! What a tool answers, and why it gives no answer.

use foldlog_codec::body::{Cause, ExternalEffects};
use serde::Serialize;

use crate::error::Error;
use crate::types::encode;

/// What a tool answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult<T> {
    /// Whether it did what it was asked to. Where not, all that it did is taken back.
    pub success: bool,
    /// What the model is to see.
    pub message: String,
    /// The answer itself.
    pub value: Option<T>,
    /// What it did that cannot be taken back, where it knows.
    pub outside: Option<ExternalEffects>,
}

impl<T> ToolResult<T> {
    /// It did what it was asked to.
    pub fn ok(message: impl Into<String>, value: T) -> ToolResult<T> {
        ToolResult { success: true, message: message.into(), value: Some(value), outside: None }
    }

    /// It did not.
    pub fn unsuccessful(message: impl Into<String>) -> ToolResult<T> {
        ToolResult { success: false, message: message.into(), value: None, outside: None }
    }

    /// The same, knowing that nothing was done that cannot be taken back.
    #[must_use]
    pub fn without_outside_effects(self) -> ToolResult<T> {
        ToolResult { outside: Some(ExternalEffects::None), ..self }
    }
}

/// Why a tool gave no answer. All that it did is taken back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// It failed.
    #[error("{message}")]
    Failed {
        /// What the model is to see.
        message: String,
        /// What it did that cannot be taken back, where it knows.
        outside: Option<ExternalEffects>,
    },
    /// The arguments are not what it takes.
    #[error("{0}")]
    InvalidArguments(String),
    /// It is to be called again once more of the prompt is shown.
    #[error("{reason}")]
    VisibilityExpansion {
        /// What is to be shown: JSON.
        overrides: serde_json::Value,
        /// Why.
        reason: String,
    },
    /// It stopped because it was told to.
    #[error("cancelled")]
    Cancelled,
    /// The engine said no to something that it tried.
    #[error("{0}")]
    Engine(#[from] Error),
}

impl ToolError {
    /// It failed, with what the model is to see.
    pub fn failed(message: impl Into<String>) -> ToolError {
        ToolError::Failed { message: message.into(), outside: None }
    }

    pub(in crate::tools) fn cause(&self) -> Cause {
        match self {
            ToolError::Failed { .. } => Cause::Error,
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

/// An answer as it is recorded.
#[derive(Clone, Debug)]
pub(in crate::tools) struct Answered {
    pub(in crate::tools) success: bool,
    pub(in crate::tools) message: String,
    /// One MessagePack value.
    pub(in crate::tools) value: Option<Vec<u8>>,
    pub(in crate::tools) outside: Option<ExternalEffects>,
}

impl Answered {
    /// Encodes a tool's answer.
    pub(in crate::tools) fn of<T: Serialize>(
        tool: &str,
        result: ToolResult<T>,
    ) -> Result<Answered, ToolError> {
        let ToolResult { success, message, value, outside } = result;
        let value = value.map(|value| encode(tool, &value)).transpose()?;
        Ok(Answered { success, message, value, outside })
    }
}
