//! Views of a session: the methods of [`Session`] that only some hosts need, by topic.

use super::Session;

/// The conversations of a session: their records, and the state of each. See
/// [`Session::conversation`].
#[derive(Clone, Copy, Debug)]
pub struct SessionConversation<'a> {
    pub(crate) session: &'a Session,
}

/// The tool calls of a session: open, suspended and recorded ones, and decisions about them. See
/// [`Session::calls`].
#[derive(Clone, Copy, Debug)]
pub struct SessionCalls<'a> {
    pub(crate) session: &'a Session,
}

/// The log of a session: its records, LOG slices, exports and subscribers. See [`Session::log`].
#[derive(Clone, Copy, Debug)]
pub struct SessionLog<'a> {
    pub(crate) session: &'a Session,
}

/// Events and slices of a session by their names, as values of any shape. See
/// [`Session::dynamic`].
#[derive(Clone, Copy, Debug)]
pub struct DynamicSession<'a> {
    pub(crate) session: &'a Session,
}

impl Session {
    /// Returns the conversations of the session.
    pub fn conversation(&self) -> SessionConversation<'_> {
        SessionConversation { session: self }
    }

    /// Returns the tool calls of the session.
    pub fn calls(&self) -> SessionCalls<'_> {
        SessionCalls { session: self }
    }

    /// Returns the log of the session.
    pub fn log(&self) -> SessionLog<'_> {
        SessionLog { session: self }
    }

    /// Returns the events and slices of the session by their names.
    pub fn dynamic(&self) -> DynamicSession<'_> {
        DynamicSession { session: self }
    }
}
