//! The ending of a call before it is recorded: the tool's answer, or the cause of a failure.
//!
//! A [`CallEnd`] without a cause commits the call. One with a cause fails it, and one that waits
//! suspends it.

use std::any::Any;
use std::time::Duration;

use foldlog_codec::OperationId;
use foldlog_codec::body::{Cause, ExternalEffects, Outcome, Suspension, SuspensionForm};
use uuid::Uuid;

use super::answer::{EncodedToolResult, Question, ToolError};
use crate::error::{Error, panic_message};
use crate::operation::{NotUndone, PutBack, ReplacedContent};
use crate::session::wait::CallScope;
use crate::types::encode;

/// Reason why a call is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tools) enum Wait {
    /// It waits for an approval; nothing has run.
    Asks(Option<Duration>),
    /// It waits for its result; its changes remain.
    Awaits(Option<Duration>),
    /// It waits for a call within it, of this or a different session.
    Within(Uuid, OperationId),
}

/// Ending of a call, from which its end record and its report are built.
pub(in crate::tools) struct CallEnd {
    /// Cause of a failure. `None` commits the call.
    pub(in crate::tools) cause: Option<Cause>,
    /// Reason of a suspension. No cause is set then.
    pub(in crate::tools) wait: Option<Wait>,
    /// Form of the suspension for the end record.
    pub(in crate::tools) suspension: Option<Suspension>,
    /// Text that the model sees, or the question.
    pub(in crate::tools) message: String,
    /// The tool's answer: one MessagePack value.
    pub(in crate::tools) value: Option<Vec<u8>>,
    /// Sections of the prompt that the tool requests: as JSON, and encoded for the end record.
    pub(in crate::tools) overrides: Option<(serde_json::Value, Vec<u8>)>,
    /// Exit code of the tool's command, if known.
    pub(in crate::tools) exit_code: Option<i32>,
    /// Effects outside, if the tool knows them.
    pub(in crate::tools) outside: Option<ExternalEffects>,
    /// Changes of resources that a rollback or a restore could not undo.
    pub(in crate::tools) not_undone: Vec<NotUndone>,
    /// Contents of resources that the rollback replaced or removed.
    pub(in crate::tools) replaced: Vec<ReplacedContent>,
}

impl CallEnd {
    /// Fails the call for `cause`, with a text for the model.
    pub(in crate::tools) fn with_cause(cause: Cause, message: impl Into<String>) -> CallEnd {
        CallEnd { cause: Some(cause), ..CallEnd::with_message(message) }
    }

    /// Fails the call because its handler panicked.
    pub(in crate::tools) fn from_panic(panic: &(dyn Any + Send)) -> CallEnd {
        CallEnd::with_cause(Cause::Panic, format!("panicked: {}", panic_message(panic)))
    }

    /// Returns the ending of a call whose deadline has passed before its handler starts; `None` if
    /// it has not.
    pub(in crate::tools) fn too_late(within: &CallScope) -> Option<CallEnd> {
        let late = || CallEnd::with_cause(Cause::Deadline, "its time was over before it began").harmless();
        within.is_late().then(late)
    }

    /// Commits the call without an answer's value.
    pub(in crate::tools) fn with_message(message: impl Into<String>) -> CallEnd {
        CallEnd {
            cause: None,
            wait: None,
            suspension: None,
            message: message.into(),
            value: None,
            overrides: None,
            exit_code: None,
            outside: None,
            not_undone: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Converts the tool's answer to an ending. An error due to another operation's deadline or
    /// cancellation counts as a plain error of this call.
    pub(in crate::tools) fn from_answer(
        answer: std::result::Result<EncodedToolResult, ToolError>,
        within: &CallScope,
    ) -> CallEnd {
        match answer {
            Ok(EncodedToolResult { message, outside, awaits: Some(question), .. }) => {
                CallEnd { outside, ..CallEnd::with_wait(Wait::Awaits(question.expires_after), message) }
            }
            Ok(EncodedToolResult { success, message, value, outside, awaits: None, exit_code }) => {
                let cause = (!success).then_some(Cause::Unsuccessful);
                CallEnd { cause, value, exit_code, outside, ..CallEnd::with_message(message) }
            }
            Err(ToolError::Ask(Question { text, expires_after })) => {
                CallEnd::with_wait(Wait::Asks(expires_after), text).harmless()
            }
            Err(ToolError::Engine(Error::Suspended { session, operation, question, .. })) => {
                CallEnd::with_wait(Wait::Within(session, operation), question)
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
                let ending = CallEnd::with_cause(cause, error.to_string());
                match error {
                    ToolError::Failed { outside, .. } => CallEnd { outside, ..ending },
                    // The tool's code has not run yet.
                    ToolError::InvalidArguments(_) => ending.harmless(),
                    ToolError::VisibilityExpansion { overrides, .. }
                    | ToolError::Engine(Error::VisibilityExpansion { overrides, .. }) => {
                        match encode("overrides", &overrides) {
                            Ok(encoded) => CallEnd { overrides: Some((overrides, encoded)), ..ending },
                            Err(error) => CallEnd::with_cause(Cause::Error, error.to_string()),
                        }
                    }
                    _ => ending,
                }
            }
        }
    }

    /// Suspends the call with a question.
    fn with_wait(wait: Wait, question: impl Into<String>) -> CallEnd {
        CallEnd { wait: Some(wait), ..CallEnd::with_message(question) }
    }

    /// Returns the outcome for the end record.
    pub(in crate::tools) fn outcome(&self) -> Outcome {
        match (self.cause, self.wait) {
            (Some(_), _) => Outcome::Failed,
            (None, Some(_)) => Outcome::Suspended,
            (None, None) => Outcome::Committed,
        }
    }

    /// Returns whether the call keeps its changes.
    pub(in crate::tools) fn keeps(&self) -> bool {
        self.cause.is_none()
            && match self.wait {
                None | Some(Wait::Awaits(_)) => true,
                Some(Wait::Asks(_) | Wait::Within(..)) => false,
            }
    }

    pub(in crate::tools) fn form(&self) -> Option<SuspensionForm> {
        self.wait.map(|wait| match wait {
            Wait::Asks(_) => SuspensionForm::Asks,
            Wait::Awaits(_) => SuspensionForm::Awaits,
            Wait::Within(..) => SuspensionForm::Within,
        })
    }

    /// Adds the outcome of a restore of resources.
    pub(in crate::tools) fn tell(&mut self, put_back: PutBack) {
        self.not_undone.extend(put_back.not_undone);
        self.replaced.extend(put_back.replaced);
    }

    /// Declares that the call had no effects outside.
    pub(in crate::tools) fn harmless(self) -> CallEnd {
        CallEnd { outside: Some(ExternalEffects::None), ..self }
    }
}
