use std::fmt;
use std::path::Path;

use uuid::Uuid;

use crate::error::Result;
use crate::generator::Generator;
use crate::operation::OpenOperation;
use crate::options::Durability;
use crate::session::{Session, left_open};

/// Excludes others from a resource while a tool works on it. Dropping the lease releases the
/// resource.
pub struct ResourceLease {
    held: Box<dyn LeaseMark>,
}

/// Guard of a leased resource, which may carry a mark of its holder. The mark outlives the process:
/// if the process ends within a call, other sessions learn from it which session left the resource
/// half changed. By default, there is no mark.
pub trait LeaseMark: Send + Sync + 'static {
    /// Marks the resource as possibly being changed by a call. The engine calls this before it
    /// writes the start record of a call that may make changes, and may call it again while the
    /// lease is held.
    ///
    /// # Errors
    ///
    /// Return an error if the resource cannot be marked; the call then does not start.
    fn open(&self) -> Result<()> {
        Ok(())
    }

    /// Marks the resource as not being changed by any call. The engine calls this before it drops
    /// the lease, if no call is open that may have changed the resource. It does not if the process
    /// ends first, or if a call could not be ended.
    fn rest(&self) {}
}

impl fmt::Debug for ResourceLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

impl ResourceLease {
    /// Creates a lease that owns `held` until the lease is dropped.
    pub fn new(held: impl LeaseMark) -> ResourceLease {
        ResourceLease { held: Box::new(held) }
    }

    /// Marks the resource as possibly being changed by a call, if the lease leaves a mark.
    pub(crate) fn open(&self) -> Result<()> {
        self.held.open()
    }

    /// Marks the resource as not being changed by any call, if the lease leaves a mark.
    pub(crate) fn rest(&self) {
        self.held.rest();
    }
}

/// Describes the session for which a resource is leased. A resource whose lease ends with its
/// process can [mark](LeaseMark) itself with the holder's session and directory. For the holder of
/// an earlier mark, it can check whether that one left the resource half changed.
#[derive(Clone, Copy, Debug)]
pub struct LeaseHolder<'a> {
    pub(super) session: &'a Session,
    directory: &'a Path,
}

impl<'a> LeaseHolder<'a> {
    /// Creates a holder for `session`. `directory` is the absolute path by which other processes
    /// find its log.
    pub(crate) fn new(session: &'a Session, directory: &'a Path) -> LeaseHolder<'a> {
        LeaseHolder { session, directory }
    }

    /// Returns the id of the session.
    pub fn session(&self) -> Uuid {
        self.session.id()
    }

    /// Returns the directory that contains the session's log, as an absolute path by which other
    /// processes find it.
    pub fn directory(&self) -> &'a Path {
        self.directory
    }

    /// Returns whether the session's records must survive a power cut, so that a mark of the holder
    /// must survive one too.
    pub fn is_durable(&self) -> bool {
        self.session.log().durability() != Durability::Process
    }

    /// Returns whether the session has a call to recover.
    pub fn is_interrupted(&self) -> bool {
        self.session.calls().is_interrupted()
    }

    /// Draws a token for a resource that has none yet. The token is derived from the session's
    /// seed, so that equal sessions write equal records.
    pub fn draw_token(&self) -> Uuid {
        let position = self.session.log().position().unwrap_or_default();
        Generator::for_directory(self.session.own_seed(), position).uuid()
    }

    /// Reads the last known capture of a resource from the session's log: that of the end record of
    /// the last committed call, or that of the start record of a later call that did not commit.
    /// Returns `None` if the latest 64 calls recorded no capture of the resource.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged.
    pub fn last_captured(&self, resource: &str) -> Result<Option<Vec<u8>>> {
        self.session.calls().last_captured(resource, false)
    }

    /// Returns the first operation of another session that is open and may make changes; `None` if
    /// there is none, or if `directory` contains no such session. Reads the log in `directory` and
    /// takes no lock, so that a writer of the log is not disturbed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read,
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it is damaged,
    /// [`Error::UnsupportedKind`](crate::Error::UnsupportedKind) if it contains a record that this
    /// version cannot fold; otherwise, the errors of
    /// [`LogReader::open`](crate::inspect::LogReader::open).
    pub fn left_open(&self, session: Uuid, directory: &Path) -> Result<Option<OpenOperation>> {
        left_open(self.session.read_ground(), directory, session)
    }

    /// Returns whether this session was salvaged from `session` and has to recover a call of
    /// `session`.
    pub fn inherits(&self, session: Uuid) -> bool {
        session != self.session.id() && self.session.calls().open_call_of() == Some(session)
    }
}
