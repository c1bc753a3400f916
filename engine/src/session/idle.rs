//! Rests an idle session: closes the file that its log is written to, so that an open session uses
//! a single file handle: the lock of its directory.
//!
//! After each sync the background checks the session a second later. The session rests if there
//! were no writes between two checks and everything is durable; otherwise the background checks
//! again.

use std::sync::Arc;

use super::{Session, SessionInner, WriterState};
use crate::background::{Background, RemainingWork};
use crate::error::{Error, Result};

impl Session {
    /// Makes every record durable, and closes the file that the log is written to; the next record
    /// opens it again. An open session that rests uses a single file handle, for the lock on its
    /// directory, and no memory mapping.
    ///
    /// The store's background thread does this for each session without writes for a second or two.
    /// A host calls it if the store has [no such thread](crate::BackgroundSync::Inline), or to free
    /// the handles at once.
    ///
    /// Returns whether a file was closed. No file is closed without writes since opening, if the
    /// session rests already, or if a concurrent write happens.
    ///
    /// # Errors
    ///
    /// The errors of [`sync`](Session::sync); [`Error::NoHandle`](crate::Error::NoHandle) leaves
    /// everything unchanged. [`Error::Closed`](crate::Error::Closed) once the session is closed.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&SessionTypes::builder().build()?)?;
    /// session.set_tag("state", "waits for an answer")?;
    /// assert!(session.rest()?);
    /// assert!(!session.rest()?);
    /// session.set_tag("state", "answered")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rest(&self) -> Result<bool> {
        self.inner.sync()?;
        let mut state = self.inner.sound()?;
        if state.closed {
            return Err(Error::Closed { session: self.inner.id });
        }
        self.inner.rest(&mut state)
    }
}

impl SessionInner {
    /// Closes the files of a session if all its records are durable. Returns whether there were
    /// any.
    fn rest(&self, state: &mut WriterState) -> Result<bool> {
        if !self.is_durable(state) {
            return Ok(false);
        }
        state.log.rest().map_err(|error| self.poison_on_error(error))
    }

    /// Requests, once, that the background rests the session after its last write.
    pub(super) fn ask_to_rest(self: &Arc<Self>, state: &mut WriterState) {
        if !state.asked_to_rest && !state.closed && state.log.is_writing() {
            state.asked_to_rest = true;
            self.look_later(None);
        }
    }

    /// Schedules a check of the session in a second. `seen` is the number of bytes written at the
    /// last check.
    fn look_later(self: &Arc<Self>, seen: Option<u64>) {
        let Background::Thread(worker) = &self.store.background else { return };
        let session = Arc::downgrade(self);
        worker.rest_later(self.id, move || {
            if let Some(session) = session.upgrade() {
                session.look(seen);
            }
            RemainingWork::Nothing
        });
    }

    /// Rests the session if there were no writes since the last check.
    fn look(self: &Arc<Self>, seen: Option<u64>) {
        // The holder of the lock is writing, and must not be delayed.
        let Some(mut state) = self.state.try_lock() else { return self.look_later(seen) };
        state.asked_to_rest = false;
        if state.closed || self.gate.failure().is_some() {
            return;
        }
        let written = state.log.written_bytes();
        let is_idle = seen == Some(written) && self.is_durable(&state);
        // A failure poisons the session, and its next call reports it.
        let again = !is_idle || matches!(self.rest(&mut state), Err(Error::NoHandle { .. }));
        if again && state.log.is_writing() {
            state.asked_to_rest = true;
            self.look_later(Some(written));
        }
    }

    fn is_durable(&self, state: &WriterState) -> bool {
        self.gate.synced_end() >= state.log.next_sequence()
    }
}
