//! Events of hooks, and replies to them, in the form that the programs have in common.

use std::path::PathBuf;

use foldlog_timeline::{CallEnd, Lane, NewCall};

/// An event, in the form that all programs have in common.
pub(crate) struct HookInput {
    pub(crate) lane: Lane,
    /// Current directory of the agent.
    pub(crate) directory: PathBuf,
    /// File in which the program writes the conversation.
    pub(crate) transcript: Option<PathBuf>,
    /// The program's name of the event.
    pub(crate) name: String,
    /// Command of the tool, up to the length that is recorded.
    pub(crate) command: Option<String>,
    pub(crate) event: HookEvent,
}

pub(crate) enum HookEvent {
    /// A session was started or resumed; `is_new` if no call of it can be running.
    SessionStarted { is_new: bool },
    /// The user has sent a prompt; without a text, the program has.
    Prompted { text: Option<String> },
    /// A tool that may change files is about to run.
    CallBegins(NewCall),
    /// The user is asked whether the call may run.
    PermissionAsked,
    /// The model gets the results of calls. Calls of this lane that have not ended by now failed, or
    /// their commands run on.
    CallsReturned,
    /// A tool has ended.
    CallEnds(NewCall, CallEnd),
    /// The main agent waits for the user. Sub-agents may continue.
    TurnEnded,
    /// The session ended.
    SessionEnded,
    /// The user has added a directory to the session.
    DirectoryAdded(PathBuf),
    /// A command has changed the agent's current directory, or the program has reset that change.
    DirectoryChanged { to: PathBuf, is_reset: bool },
    /// An event without a record.
    Other,
}

/// Reply to the program.
#[derive(Default)]
pub(crate) struct HookReply {
    /// Lines for the user.
    pub(crate) messages: Vec<String>,
    /// Text for the model.
    pub(crate) context: Option<String>,
    /// The prompt was a command, and this is its result; the model does not see the prompt.
    pub(crate) answered_prompt: Option<String>,
    /// The tool must not run, for this reason.
    pub(crate) refused: Option<String>,
}
