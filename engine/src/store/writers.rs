use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::session::Inner;

/// The sessions that are open for writing in this store.
#[derive(Default)]
pub(crate) struct Writers {
    sessions: Mutex<BTreeMap<Uuid, Weak<Inner>>>,
}

impl std::fmt::Debug for Writers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.sessions.lock().keys()).finish()
    }
}

impl Writers {
    /// Makes a session's writer known, without keeping it open.
    pub(crate) fn register(&self, session: Uuid, inner: &Arc<Inner>) {
        self.sessions.lock().insert(session, Arc::downgrade(inner));
    }

    /// The session's writer, where it is open in this store.
    pub(crate) fn get(&self, session: Uuid) -> Option<Arc<Inner>> {
        self.sessions.lock().get(&session)?.upgrade()
    }

    /// Forgets a session that has closed.
    pub(crate) fn forget(&self, session: Uuid) {
        self.sessions.lock().remove(&session);
    }
}
