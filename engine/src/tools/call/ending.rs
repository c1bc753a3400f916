//! The ending of a call before it is recorded: what its tool answered, or why it failed.
//!
//! An [`Ending`] without a cause commits the call; one with a cause fails it.

use foldlog_codec::body::{Cause, ExternalEffects, Outcome};

use super::answer::{Answered, ToolError};
use crate::error::Error;
use crate::operation::NotUndone;
use crate::session::schedule::CallScope;
use crate::types::encode;

/// Describes how a call is to end, from which its record and its report are made.
pub(in crate::tools) struct Ending {
    /// Why the call fails. `None` commits it.
    pub(in crate::tools) cause: Option<Cause>,
    /// Text that the model sees.
    pub(in crate::tools) message: String,
    /// The tool's answer: one MessagePack value.
    pub(in crate::tools) value: Option<Vec<u8>>,
    /// Parts of the prompt that the tool asks to be shown: as JSON, and encoded as the end records them.
    pub(in crate::tools) overrides: Option<(serde_json::Value, Vec<u8>)>,
    /// Effects outside, if the tool knows them.
    pub(in crate::tools) outside: Option<ExternalEffects>,
    /// Changes to resources that a rollback or a restore could not undo.
    pub(in crate::tools) not_undone: Vec<NotUndone>,
}

impl Ending {
    /// Fails the call for `cause`, with the text that the model sees.
    pub(in crate::tools) fn failed(cause: Cause, message: impl Into<String>) -> Ending {
        Ending { cause: Some(cause), ..Ending::done(message) }
    }

    /// Commits the call without an answer's value.
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

    /// Describes the ending that follows from what the tool returned. An error that another operation's
    /// deadline or cancellation caused counts as a plain error of this call.
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
                    // The tool passed on the error of another operation.
                    Cause::Deadline if !within.is_late() => Cause::Error,
                    Cause::Cancelled if !within.is_cancelled() && !matches!(error, ToolError::Cancelled) => {
                        Cause::Error
                    }
                    cause => cause,
                };
                let ending = Ending::failed(cause, error.to_string());
                match error {
                    ToolError::Failed { outside, .. } => Ending { outside, ..ending },
                    // The tool's code has not run yet.
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

    /// Returns the outcome that the end records.
    pub(in crate::tools) fn outcome(&self) -> Outcome {
        if self.cause.is_none() { Outcome::Committed } else { Outcome::Failed }
    }

    /// Sets the changes to resources that could not be undone.
    pub(in crate::tools) fn telling(self, not_undone: Vec<NotUndone>) -> Ending {
        Ending { not_undone, ..self }
    }

    /// Declares that the call had no effects outside.
    pub(in crate::tools) fn harmless(self) -> Ending {
        Ending { outside: Some(ExternalEffects::None), ..self }
    }
}
