//! The store's one background thread: it syncs what no call waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::session::{Inner, UNSYNCED_US_MAX};

/// Sessions with something that is not yet durable.
#[derive(Default)]
pub(crate) struct Background {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<Uuid, Weak<Inner>>,
    awaiting: BTreeMap<Uuid, bool>,
    running: bool,
    ended: bool,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("Background").field("running", &state.running).finish()
    }
}

impl Background {
    /// Makes a session's writer known, without keeping it open.
    pub(crate) fn register(&self, session: Uuid, inner: &Arc<Inner>) {
        self.shared.state.lock().sessions.insert(session, Arc::downgrade(inner));
    }

    /// The session's writer, where it is open in this store.
    pub(crate) fn writer(&self, session: Uuid) -> Option<Arc<Inner>> {
        self.shared.state.lock().sessions.get(&session)?.upgrade()
    }

    /// Forgets a session that has closed.
    pub(crate) fn forget(&self, session: Uuid) {
        let mut state = self.shared.state.lock();
        state.sessions.remove(&session);
        state.awaiting.remove(&session);
    }

    /// Notes that a session has something that is not yet durable: to be synced within a second, or at once.
    pub(crate) fn awaiting(&self, session: Uuid, at_once: bool) {
        let mut state = self.shared.state.lock();
        let urgent = state.awaiting.entry(session).or_default();
        *urgent |= at_once;
        if !state.running {
            let shared = Arc::clone(&self.shared);
            let spawned =
                std::thread::Builder::new().name("foldlog-sync".to_owned()).spawn(move || shared.run());
            // Where the system gives no thread, the next call that writes asks again.
            state.running = spawned.is_ok();
        }
        if at_once {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let patience = Duration::from_micros(UNSYNCED_US_MAX.unsigned_abs());
        loop {
            let due: Vec<Weak<Inner>> = {
                let mut state = self.state.lock();
                if !state.ended && !state.awaiting.values().any(|urgent| *urgent) {
                    self.changed.wait_for(&mut state, patience);
                }
                if state.ended {
                    return;
                }
                if state.awaiting.is_empty() {
                    // An idle store keeps no thread.
                    state.running = false;
                    return;
                }
                let due = std::mem::take(&mut state.awaiting);
                due.keys().filter_map(|session| state.sessions.get(session).cloned()).collect()
            };
            for session in due.iter().filter_map(Weak::upgrade) {
                // A failure poisons the session, and its next call says so.
                let _ = session.sync();
            }
        }
    }
}
