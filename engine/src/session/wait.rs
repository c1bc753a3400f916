//! Limits of blocking, and the description of a call for the calls that it blocks.

use std::panic::Location;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use super::Session;
use crate::clock;
use crate::error::{Blocker, Error, Result};

/// Limit of a call's wait, from the creation of this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Deadline of the call itself, or of one around it.
    until: Option<Instant>,
    /// Longest time that the call may wait.
    limit: Duration,
    since: Instant,
    /// Whether the wait blocks this thread.
    holds_thread: bool,
}

impl Patience {
    fn new(until: Option<Instant>, limit: Duration) -> Patience {
        Patience { until, limit, since: clock::now(), holds_thread: true }
    }

    /// Returns the same patience for a wait that blocks no thread.
    #[cfg(feature = "async")]
    pub(crate) fn holding_no_thread(self) -> Patience {
        Patience { holds_thread: false, ..self }
    }

    /// Returns the same patience for an attempt that does not wait.
    #[cfg(feature = "async")]
    pub(crate) fn for_no_wait(self) -> Patience {
        Patience { limit: Duration::ZERO, holds_thread: false, ..self }
    }

    /// Returns whether the wait blocks this thread, so that the thread must not wait for an
    /// operation that only it can end.
    pub(super) fn holds_thread(&self) -> bool {
        self.holds_thread
    }

    /// Returns the same patience, but for a call that has to end by `until`, if that is earlier.
    pub(crate) fn by(self, until: Option<Instant>) -> Patience {
        Patience { until: self.until.into_iter().chain(until).min(), ..self }
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the moment at which the call stops waiting.
    pub(crate) fn over_at(&self) -> Instant {
        let limit = self.since.checked_add(self.limit).unwrap_or_else(|| clock::after(self.limit));
        self.until.map_or(limit, |until| until.min(limit))
    }

    /// Fails once the patience is over: with [`Error::DeadlineExceeded`] if the call's deadline has
    /// passed, and with [`Error::WaitedTooLong`] for `blocker` otherwise.
    pub(crate) fn check(&self, blocker: impl FnOnce() -> Blocker) -> Result<()> {
        if self.until.is_some_and(clock::is_past) {
            return Err(Error::DeadlineExceeded { operation: None });
        }
        if clock::is_past(self.over_at()) {
            return Err(self.waited_for(blocker()));
        }
        Ok(())
    }

    /// Returns the error of a call that gives up the wait for `blocker`.
    pub(crate) fn waited_for(&self, blocker: Blocker) -> Error {
        if self.until.is_some_and(clock::is_past) {
            return Error::DeadlineExceeded { operation: None };
        }
        Error::WaitedTooLong { waited: self.since.elapsed(), blocker: Box::new(blocker) }
    }
}

/// Describes the call that requests an admission from the schedule, for calls that have to wait for
/// it.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// Tool of the call, or the name of other work.
    pub(crate) what: SmolStr,
    /// Location of the request in the host's code.
    pub(crate) at: &'static Location<'static>,
    /// Thread that has to end the operation; `None` if any thread may end it.
    pub(crate) held_by: Option<ThreadId>,
}

impl Asker {
    /// Creates an asker that is bound to no thread.
    pub(crate) fn new(what: impl Into<SmolStr>, at: &'static Location<'static>) -> Asker {
        Asker { what: what.into(), at, held_by: None }
    }

    /// Binds the operation to this thread, which has to end it.
    pub(crate) fn held_here(self) -> Asker {
        Asker { held_by: Some(thread::current().id()), ..self }
    }

    /// Returns whether this thread has to end the operation.
    pub(super) fn is_held_here(&self) -> bool {
        self.held_by.is_some_and(|thread| thread == thread::current().id())
    }
}

impl Session {
    /// Returns a handle with `limit` as the longest wait for other calls, in place of the store's
    /// [default](crate::StoreOptions::wait). It replaces an earlier limit, and does not affect
    /// other handles. With a limit of zero, calls never wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// session.waiting_at_most(Duration::from_millis(50)).reset()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn waiting_at_most(&self, limit: Duration) -> Session {
        Session { wait: Some(limit), ..self.clone() }
    }

    /// Returns how long a call through this handle may wait: `limit` if it is given, otherwise the
    /// handle's own limit, otherwise the store's, and not past `until`.
    pub(crate) fn patience(&self, until: Option<Instant>, limit: Option<Duration>) -> Patience {
        Patience::new(until, limit.or(self.wait).unwrap_or(self.inner.store.options.wait))
    }
}
