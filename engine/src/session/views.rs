//! Views of a session: the methods of [`Session`] that only some hosts need, by topic.

use std::path::PathBuf;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Replicated;

use super::{RecoveryReport, Session};
use crate::options::Durability;

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

/// The inputs of a run that come from outside: the time, random numbers and observations. They are
/// recorded, so that a replay reads them from the log. See [`Session::inputs`].
#[derive(Clone, Copy, Debug)]
pub struct SessionInputs<'a> {
    pub(crate) session: &'a Session,
}

/// Events and slices of a session by their names, as values of any shape. See
/// [`Session::dynamic`].
#[derive(Clone, Copy, Debug)]
pub struct DynamicSession<'a> {
    pub(crate) session: &'a Session,
}

impl<'a> SessionLog<'a> {
    /// Returns the directory for captures of the session's workspace. Creates nothing.
    ///
    /// The directory is inside the session directory, so the captures move with the session and are
    /// [collected](crate::Store::collect) with it. Pass it as `store` to
    /// [`HostFilesystem::open`](crate::filesystem::HostFilesystem::open).
    pub fn captures_dir(&self) -> PathBuf {
        crate::log::layout::captures_dir(&self.session.inner.dir)
    }

    /// Returns the report of the recovery at opening.
    pub fn recovery(&self) -> &'a RecoveryReport {
        &self.session.inner.report
    }

    /// Returns the sequence number of the last record, or `None` if there is no record.
    pub fn position(&self) -> Option<SequenceNumber> {
        self.session.inner.state.lock().log.next_sequence().checked_sub(1)
    }

    /// Returns the size of the log in bytes. Headers and envelope frames count; allocated but
    /// unused space does not.
    pub fn bytes(&self) -> u64 {
        self.session.inner.state.lock().log.used_bytes()
    }

    /// Returns the epoch under which this process writes the session to the store's
    /// [replicator](crate::replication). Each claim of the session gets a higher epoch than the
    /// claims before. Returns `None` without a replicator, and for a session that was opened for
    /// reading.
    pub fn epoch(&self) -> Option<u64> {
        self.session.inner.replica.as_ref().map(|replica| replica.epoch)
    }

    /// Returns the log's record about the replica of the session; `None` if the session is not
    /// replicated.
    pub fn replicated_record(&self) -> Option<Replicated> {
        self.session.inner.state.lock().live.projection.replicated.as_deref().cloned()
    }

    /// Returns the end of the durable records: every record with a lower sequence number is known
    /// to be durable.
    pub fn synced_end(&self) -> SequenceNumber {
        self.session.inner.gate.synced_end()
    }

    /// Returns the durability of the session's records.
    pub fn durability(&self) -> Durability {
        self.session.inner.durability
    }
}
