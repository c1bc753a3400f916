//! What the state machine and its driver tell each other.

use std::time::Duration;

use foldlog::conversation::ToolCallRecord;
use foldlog::{Cause, SequenceNumber};

use crate::error::{Error, EvaluationPhase, SuspendedCall};
use crate::prompt::VisibilityOverrides;
use crate::provider::{ProviderAnswer, ProviderError};
use crate::shortening::ShortenReason;

/// Says what an evaluation does next. Each step names the facts that may follow it; [`Fact::Failed`] may follow every
/// one.
#[derive(Debug)]
pub enum LoopStep {
    /// Render the prompt with these overrides, and record the system message: [`Fact::Rendered`].
    Render(VisibilityOverrides),
    /// Check cancellation, deadline and budget before a request or a tool: [`Fact::Done`].
    Check(EvaluationPhase),
    /// Ask the shortener; at the threshold only if it is reached: [`Fact::Recorded`] if a part was shortened, else
    /// [`Fact::Done`].
    Shorten(ShortenReason),
    /// Make the request from the messages as they are now: [`Fact::Done`], or [`Fact::NotAnswered`].
    Prepare,
    /// Record the request that was prepared: [`Fact::Recorded`].
    RecordRequest {
        /// Number of the attempt to get this answer, counted from 1.
        attempt: u64,
    },
    /// Send the request once: [`Fact::Answered`], or [`Fact::NotAnswered`].
    Send,
    /// Discard what was shown of the answer, and record that the last request failed: [`Fact::Recorded`].
    RecordFailure {
        /// Number of the attempt that failed.
        attempt: u64,
        /// Why it failed.
        error: Box<ProviderError>,
    },
    /// Wait before the request is sent again, unless somebody cancels it or the deadline passes: [`Fact::Done`].
    Sleep(Duration),
    /// Record the answer: [`Fact::Recorded`].
    RecordAnswer(Box<ProviderAnswer>),
    /// Run these calls, together if there are several: [`Fact::ToolsEnded`].
    RunTools(Vec<CallToRun>),
    /// Close a call without running it: [`Fact::Recorded`].
    Close {
        /// Call that does not run.
        call: CallToRun,
        /// Why it does not.
        cause: Cause,
        /// Text that the model reads in place of a result.
        shown: String,
    },
    /// See whether something was said since the request, and else read the answer's text as the output: [`Fact::Said`],
    /// [`Fact::Done`], or [`Fact::OutputRefused`].
    CheckOutput(FinalText),
    /// Record a message to the model, in the user's place: [`Fact::Recorded`]. The message's id tells it from others
    /// of the conversation, so that it is recorded once.
    Tell {
        /// Text of the message.
        text: String,
        /// Answer that the message is about; `None` if the conversation is not recorded.
        about: Option<SequenceNumber>,
    },
    /// Record the turn: [`Fact::Recorded`].
    RecordTurn {
        /// Whether the evaluation is complete with it.
        complete: bool,
    },
    /// Return the last answer's text as the output. Nothing follows.
    Finish(FinalText),
    /// Return the error. Nothing follows.
    Fail(Error),
}

/// Holds the text of an answer without calls, and why the answer ended there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinalText {
    /// Text of the answer; empty if it has none.
    pub text: String,
    /// Reason that the provider gave for ending the answer.
    pub stop: Option<String>,
}

/// Tells the state machine what came of a step.
#[derive(Debug)]
pub enum Fact {
    /// The evaluation begins, or goes on where [`LoopStart`](super::LoopStart) says.
    Begun,
    /// The step is done.
    Done,
    /// The step is done, and its record has this sequence number; `None` if the conversation is not recorded.
    Recorded(Option<SequenceNumber>),
    /// The prompt was rendered, and shows these tools.
    Rendered {
        /// Names of the tools that the model may call.
        tools: Vec<String>,
    },
    /// The provider answered.
    Answered(Box<ProviderAnswer>),
    /// The provider gave no answer.
    NotAnswered(Box<ProviderError>),
    /// The calls ended, each by its ordinal.
    ToolsEnded(Vec<(u32, ToolEnded)>),
    /// The host said something that the answer does not know of, so that the answer is not the last one.
    Said,
    /// The answer is not of the prompt's output type; the text tells the model why.
    OutputRefused {
        /// Name of the output's type.
        output: String,
        /// What is wrong.
        reason: String,
        /// Text for the model.
        shown: String,
    },
    /// The step failed.
    Failed(Error),
}

/// Names a call of the answer that is worked on.
#[derive(Clone, Debug, PartialEq)]
pub struct CallToRun {
    /// Record of the answer; `None` if the conversation is not recorded.
    pub answer: Option<SequenceNumber>,
    /// Number of the call within the answer, counted from 0.
    pub ordinal: u32,
    /// The call as the answer holds it.
    pub call: ToolCallRecord,
}

/// Says how a call ended that was to run.
#[derive(Debug)]
pub enum ToolEnded {
    /// The call is closed, with success or without.
    Closed,
    /// The call is closed: its tool asks for more of the prompt to be shown.
    Expansion(VisibilityOverrides),
    /// The call waits for somebody, and is not closed.
    Suspended(SuspendedCall),
    /// There is no such tool, and the call is not closed.
    Unknown,
    /// The call could not run, or could not be ended.
    Failed(Error),
}
