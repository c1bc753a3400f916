//! The interface between the state machine and its driver.

use std::time::Duration;

use foldlog::conversation::ToolCallRecord;
use foldlog::{Cause, SequenceNumber};

use crate::error::{Error, SuspendedCall};
use crate::prompt::{OutputError, VisibilityOverrides};
use crate::provider::{ProviderAnswer, ProviderError};
use crate::shortening::ShortenReason;

/// Describes the next step of an evaluation. Each variant names the facts that may follow it;
/// [`Fact::Failed`] may follow all of them.
#[derive(Debug)]
pub enum LoopStep {
    /// Render the prompt with these overrides, and record the system message: [`Fact::Rendered`].
    Render(VisibilityOverrides),
    /// Check cancellation, deadline and budget before a request or a tool: [`Fact::Done`].
    Check,
    /// Call the shortener, at the threshold only if that is reached: [`Fact::Recorded`] if a part
    /// was shortened, else [`Fact::Done`].
    Shorten(ShortenReason),
    /// Prepare the request from the present messages: [`Fact::Done`], or [`Fact::NotAnswered`].
    Prepare,
    /// Record the prepared request: [`Fact::Recorded`].
    RecordRequest {
        /// Number of the attempt to get this answer, counted from 1.
        attempt: u64,
    },
    /// Send the request once: [`Fact::Answered`], or [`Fact::NotAnswered`].
    Send,
    /// Discard the text that was shown, and record that the last request failed:
    /// [`Fact::Recorded`].
    RecordFailure {
        /// Number of the failed attempt.
        attempt: u64,
        /// Reason of the failure.
        error: Box<ProviderError>,
    },
    /// Wait before the request is retried, but not beyond a cancellation or the deadline:
    /// [`Fact::Done`].
    Sleep(Duration),
    /// Record the answer: [`Fact::Recorded`].
    RecordAnswer(Box<ProviderAnswer>),
    /// Run these calls, concurrently if there are several: [`Fact::ToolsEnded`].
    RunTools(Vec<CallToRun>),
    /// Close a call without running it: [`Fact::Recorded`].
    Close {
        /// Call to close.
        call: CallToRun,
        /// Reason why it does not run.
        cause: Cause,
        /// Text that the model reads instead of a result.
        shown: String,
    },
    /// If a message was added since the request: [`Fact::Said`]. Else parse the answer's text as
    /// the output: [`Fact::Done`], or [`Fact::OutputRefused`].
    CheckOutput(FinalText),
    /// Record a message to the model, in the user's place: [`Fact::Recorded`]. The message has a
    /// unique id, so that it is recorded once.
    Tell {
        /// Text of the message.
        text: String,
        /// Answer to which the message refers; `None` if the conversation is not recorded.
        about: Option<SequenceNumber>,
    },
    /// Record the turn: [`Fact::Recorded`].
    RecordTurn {
        /// Whether the turn completes the evaluation.
        complete: bool,
    },
    /// Return the last answer's text as the output. This is the last step.
    Finish(FinalText),
    /// Return the error. This is the last step.
    Fail(Error),
}

/// Contains the text of an answer without calls, and the reason for its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinalText {
    /// Text of the answer; empty if it has none.
    pub text: String,
    /// Reason of the provider for ending the answer.
    pub stop: Option<String>,
}

/// Reports the outcome of a step to the state machine.
#[derive(Debug)]
pub enum Fact {
    /// The evaluation starts, or continues in the state of [`LoopStart`](super::LoopStart).
    Begun,
    /// The step is done.
    Done,
    /// The step is done, and its record has this sequence number; `None` if the conversation is not
    /// recorded.
    Recorded(Option<SequenceNumber>),
    /// The prompt was rendered with these tools.
    Rendered {
        /// Names of the tools that the model may call.
        tools: Vec<String>,
    },
    /// The provider answered.
    Answered(Box<ProviderAnswer>),
    /// The provider returned no answer.
    NotAnswered(Box<ProviderError>),
    /// The calls ended, each by its ordinal.
    ToolsEnded(Vec<(u32, ToolEnded)>),
    /// The host added a message after the request, so the answer is not the last one.
    Said,
    /// The answer does not match the prompt's output type.
    OutputRefused(OutputError),
    /// The step failed.
    Failed(Error),
}

/// Identifies a call of the present answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CallToRun {
    /// Record of the answer; `None` if the conversation is not recorded.
    pub answer: Option<SequenceNumber>,
    /// Index of the call within the answer, counted from 0.
    pub ordinal: u32,
    /// The call as in the answer.
    pub call: ToolCallRecord,
}

/// Describes the outcome of a call.
#[derive(Debug)]
pub enum ToolEnded {
    /// The call is closed, successfully or not.
    Closed,
    /// The call is closed: its tool requests more of the prompt.
    Expansion(VisibilityOverrides),
    /// The call waits for a decision, and is not closed.
    Suspended(SuspendedCall),
    /// The tool does not exist, and the call is not closed.
    Unknown,
    /// The call could not run, or could not be ended.
    Failed(Error),
}
