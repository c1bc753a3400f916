use std::any::Any;
use std::fmt;
use std::path::Path;

use uuid::Uuid;

use crate::error::Result;
use crate::generator::Generator;
use crate::operation::OpenOperation;
use crate::options::Durability;
use crate::session::{Session, left_open};

/// Held while a tool works on a resource that others share; let go of when dropped.
pub struct Lease {
    held: Held,
}

enum Held {
    Unmarked { _held: Box<dyn Any + Send + Sync> },
    Marked(Box<dyn Marked>),
}

/// What a lease holds that can leave a mark on the resource, by which others know who works on it should the lease end
/// with its process.
pub trait Marked: Send + Sync + 'static {
    /// A call that may change the resource is about to be recorded. May be called again.
    ///
    /// # Errors
    ///
    /// Where the mark cannot be made; the call does not begin.
    fn open(&self) -> Result<()>;

    /// The lease is to be let go of, and no call is left open that may have changed the resource. Not called where the
    /// process ends before, nor where a call could not be brought to its end.
    fn rest(&self);
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

impl Lease {
    /// A lease that holds `held` until it is dropped.
    pub fn new(held: impl Any + Send + Sync) -> Lease {
        Lease { held: Held::Unmarked { _held: Box::new(held) } }
    }

    /// The same, of what leaves a mark.
    pub fn marked(held: impl Marked) -> Lease {
        Lease { held: Held::Marked(Box::new(held)) }
    }

    pub(crate) fn open(&self) -> Result<()> {
        match &self.held {
            Held::Unmarked { .. } => Ok(()),
            Held::Marked(held) => held.open(),
        }
    }

    pub(crate) fn rest(&self) {
        if let Held::Marked(held) = &self.held {
            held.rest();
        }
    }
}

/// For whom a resource is leased. A resource whose lease ends with its process can leave word of them, and ask of whoever
/// left word before whether they left it half done.
#[derive(Clone, Copy, Debug)]
pub struct LeaseHolder<'a> {
    session: &'a Session,
    folder: &'a Path,
}

impl<'a> LeaseHolder<'a> {
    /// `folder` is the session's, as other processes find it.
    pub(crate) fn new(session: &'a Session, folder: &'a Path) -> LeaseHolder<'a> {
        LeaseHolder { session, folder }
    }

    /// The session.
    pub fn session(&self) -> Uuid {
        self.session.id()
    }

    /// The folder that holds its log: a whole path, by which other processes find it.
    pub fn folder(&self) -> &'a Path {
        self.folder
    }

    /// Whether what is recorded next is to outlast a power cut, so that word of it is to do so too.
    pub fn is_durable(&self) -> bool {
        self.session.durability() != Durability::Process
    }

    /// Returns whether the session has a call to recover.
    pub fn is_interrupted(&self) -> bool {
        self.session.is_interrupted()
    }

    /// Draws a token for a resource that bears none yet, from the session's seed, so that equal sessions give equal records.
    pub fn draw_token(&self) -> Uuid {
        let position = self.session.position().unwrap_or_default();
        Generator::for_folder(self.session.own_seed(), position).uuid()
    }

    /// Reads what the session's open call had recorded of a resource before it began.
    pub(crate) fn interrupted_capture(&self, resource: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.session.open_captures()?.remove(resource).flatten())
    }

    /// Reads what the session's log recorded of a resource where it was last known: after the last call that was committed,
    /// or before one that came later and was not. `None` where the latest 64 calls recorded nothing of it.
    ///
    /// # Errors
    ///
    /// Where the log cannot be read.
    pub fn last_captured(&self, resource: &str) -> Result<Option<Vec<u8>>> {
        self.session.last_captured(resource)
    }

    /// What another session has begun that may change something and has not ended, where it left anything so: its first
    /// such operation. Reads the log in `folder`, and disturbs nobody who writes it. `None` also where the folder holds
    /// no such session, or none any more.
    ///
    /// # Errors
    ///
    /// What reading a log says.
    pub fn left_open(&self, session: Uuid, folder: &Path) -> Result<Option<OpenOperation>> {
        left_open(self.session.storage(), folder, session)
    }

    /// Whether this session holds, and has to recover, a call that the other one began: it was salvaged from it.
    pub fn inherits(&self, session: Uuid) -> bool {
        session != self.session.id() && self.session.open_call_of() == Some(session)
    }
}
