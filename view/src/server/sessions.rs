//! The sessions of a server: the open ones, and the rows of its store.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use uuid::Uuid;

use super::ServerScope;
use super::places::lock_mutex;
use super::session::Session;
use crate::documents::sessions::rows_of;
use crate::{Error, Result, document};

/// Maximum number of open sessions.
const HELD_MAX: usize = 6;

/// Maximum number of rows of one answer.
const ROWS_MAX: usize = 500;

/// An open session, or one that is being opened.
type SessionSlot = Arc<Mutex<Option<Session>>>;

/// The scope of a server, and its open sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    shown: ServerScope,
    pub(crate) memory_bytes: Option<u64>,
    /// In the order of their latest requests.
    held: Mutex<Vec<(Uuid, SessionSlot)>>,
}

#[derive(Debug)]
pub(crate) struct SessionLocation {
    id: Uuid,
    dir: PathBuf,
}

impl Sessions {
    pub(crate) fn new(shown: ServerScope, memory_bytes: Option<u64>) -> Sessions {
        Sessions { shown, memory_bytes, held: Mutex::default() }
    }

    /// Returns the session, if the server shows only one.
    pub(crate) fn only(&self) -> Option<Uuid> {
        match &self.shown {
            ServerScope::Store(_) => None,
            ServerScope::Session(id, _) => Some(*id),
        }
    }

    /// Finds a session by its id in the form of addresses; `None` if there is no such session.
    pub(crate) fn locate(&self, id: &str) -> Option<SessionLocation> {
        let id = Uuid::try_parse(id).ok().filter(|session| session.hyphenated().to_string() == id)?;
        let dir = match &self.shown {
            ServerScope::Store(store) => store.session_dir(id),
            ServerScope::Session(only, dir) => (*only == id).then(|| dir.clone())?,
        };
        dir.symlink_metadata().is_ok_and(|found| found.is_dir()).then_some(SessionLocation { id, dir })
    }

    /// Passes a session to `answer`, and opens it first if necessary.
    ///
    /// # Errors
    ///
    /// Those of [`Session::open`] and of `answer`.
    pub(crate) fn with<T>(
        &self,
        location: &SessionLocation,
        answer: impl Fn(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let held = self.session_slot(location.id);
        let mut held = lock_mutex(&held);
        let session = match held.as_mut() {
            Some(session) => session,
            None => held.insert(Session::open(&location.dir, self.memory_bytes)?),
        };
        let answered = session.answer(answer);
        if matches!(answered, Err(Error::Deleted { .. })) {
            *held = None;
        }
        answered
    }

    fn session_slot(&self, id: Uuid) -> SessionSlot {
        let mut all = lock_mutex(&self.held);
        let at = all.iter().position(|(held, _)| *held == id);
        let held = at.map_or_else(|| (id, SessionSlot::default()), |at| all.remove(at));
        // The least recently used session makes room; its next request opens it again.
        if all.len() >= HELD_MAX {
            all.remove(0);
        }
        let session = Arc::clone(&held.1);
        all.push(held);
        session
    }

    /// Returns rows of the store in the order of ids, with the number of all sessions, and the place at
    /// which to continue, null at the end; `None` if the server shows only one session.
    pub(crate) fn rows(&self, from: usize) -> Result<Option<impl Serialize + use<>>> {
        let ServerScope::Store(store) = &self.shown else { return Ok(None) };
        let ids = store.session_ids()?;
        let total = ids.len();
        let ids: Vec<Uuid> = ids.into_iter().skip(from).take(ROWS_MAX).collect();
        let end = from.saturating_add(ids.len());
        let rows = rows_of(store, &ids, self.memory_bytes)?;
        Ok(Some(document! { total, rows, next: (end < total).then_some(end) }))
    }
}
