//! How a call is to end: what its tool answered, or why it failed.

use foldlog_codec::body::{Cause, ExternalEffects, Outcome};

use super::answer::{Answered, ToolError};
use crate::error::Error;
use crate::operation::NotUndone;
use crate::session::schedule::CallScope;
use crate::types::encode;

/// How a call is to end.
pub(in crate::tools) struct Ending {
    pub(in crate::tools) cause: Option<Cause>,
    pub(in crate::tools) message: String,
    /// The tool's answer, as it is recorded.
    pub(in crate::tools) value: Option<Vec<u8>>,
    /// What is to be shown, and as it is recorded.
    pub(in crate::tools) overrides: Option<(serde_json::Value, Vec<u8>)>,
    pub(in crate::tools) outside: Option<ExternalEffects>,
    /// What was not undone, where it was rolled back, or where a restore brought it back.
    pub(in crate::tools) not_undone: Vec<NotUndone>,
}

impl Ending {
    pub(in crate::tools) fn failed(cause: Cause, message: impl Into<String>) -> Ending {
        Ending { cause: Some(cause), ..Ending::done(message) }
    }

    /// Of what has nothing to answer.
    pub(in crate::tools) fn done(message: impl Into<String>) -> Ending {
        Ending {
            cause: None,
            message: message.into(),
            value: None,
            overrides: None,
            outside: None,
            not_undone: Vec::new(),
        }
    }

    pub(in crate::tools) fn of(
        answer: std::result::Result<Answered, ToolError>,
        within: &CallScope,
    ) -> Ending {
        match answer {
            Ok(Answered { success, message, value, outside }) => {
                let cause = (!success).then_some(Cause::Unsuccessful);
                Ending { cause, value, outside, ..Ending::done(message) }
            }
            Err(error) => {
                let cause = match error.cause() {
                    // Of another operation, whose error was passed on.
                    Cause::Deadline if !within.is_late() => Cause::Error,
                    Cause::Cancelled if !within.is_cancelled() && !matches!(error, ToolError::Cancelled) => {
                        Cause::Error
                    }
                    cause => cause,
                };
                let ending = Ending::failed(cause, error.to_string());
                match error {
                    ToolError::Failed { outside, .. } => Ending { outside, ..ending },
                    // Nothing had run yet.
                    ToolError::InvalidArguments(_) => ending.harmless(),
                    ToolError::VisibilityExpansion { overrides, .. }
                    | ToolError::Engine(Error::VisibilityExpansion { overrides, .. }) => {
                        match encode("overrides", &overrides) {
                            Ok(encoded) => Ending { overrides: Some((overrides, encoded)), ..ending },
                            Err(error) => Ending::failed(Cause::Error, error.to_string()),
                        }
                    }
                    _ => ending,
                }
            }
        }
    }

    pub(in crate::tools) fn outcome(&self) -> Outcome {
        if self.cause.is_none() { Outcome::Committed } else { Outcome::Failed }
    }

    /// The same, telling what is not as it was.
    pub(in crate::tools) fn telling(self, not_undone: Vec<NotUndone>) -> Ending {
        Ending { not_undone, ..self }
    }

    /// The same, with no effects outside.
    pub(in crate::tools) fn harmless(self) -> Ending {
        Ending { outside: Some(ExternalEffects::None), ..self }
    }
}
