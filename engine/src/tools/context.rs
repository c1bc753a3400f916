use std::sync::Arc;
use std::time::Instant;

use super::command::ToolCommand;
use super::operation::Core;
use crate::resources::ResourceRegistry;
use crate::session::Session;

/// What a tool is given: its own handle on the session, the resources, and what is known of the call. Cheap to clone,
/// and no longer good once the call is over.
#[derive(Clone, Debug)]
pub struct ToolContext {
    pub(super) session: Session,
    pub(super) core: Arc<Core>,
}

impl ToolContext {
    /// The session, through the call's own handle: what is dispatched here is taken back where the call fails. It is
    /// refused once the call is over, cancelled, or out of time.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The resources.
    pub fn resources(&self) -> &ResourceRegistry {
        self.core.resources()
    }

    /// The operation's name, which stays the same where an interrupted call is run again: what a tool that is declared
    /// [`Keyed`](foldlog_codec::body::Idempotency::Keyed) finds its earlier work by, with the session's id.
    pub fn operation(&self) -> u64 {
        self.core.begun.within.operation()
    }

    /// The provider's name for the call. It may have been used before for another.
    pub fn call_id(&self) -> Option<&str> {
        self.core.call_id.as_deref()
    }

    /// Whether the call was interrupted before and is run again.
    pub fn is_resume(&self) -> bool {
        self.core.is_resume
    }

    /// The moment at which the call's time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.core.begun.within.until()
    }

    /// Whether the tool is to stop: it was told to, or its time is over.
    pub fn is_cancelled(&self) -> bool {
        self.core.begun.within.is_cancelled()
    }

    /// A program to be run, which does not outlive the call.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> ToolCommand {
        ToolCommand::new(program.as_ref(), Arc::clone(&self.core))
    }
}
