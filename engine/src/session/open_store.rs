//! What the sessions of one open store share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use super::Inner;
use crate::background::Background;
use crate::generator::Generator;
use crate::log::writer::Ground;
use crate::options::StoreOptions;

/// Holds an open store, as its sessions see it.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) root: PathBuf,
    pub(crate) options: StoreOptions,
    pub(crate) background: Background,
    pub(crate) writers: Writers,
    pub(crate) generator: Mutex<Generator>,
}

impl OpenStore {
    /// Returns what the logs of this store need: storage, access, sizes.
    pub(crate) fn ground(&self) -> Ground {
        Ground {
            storage: Arc::clone(&self.options.storage),
            sizes: self.options.segments,
            background: self.background.clone(),
        }
    }
}

/// Holds the sessions that are open for writing in this store.
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
    /// Registers a session's writer, without keeping it open.
    pub(crate) fn register(&self, session: Uuid, inner: &Arc<Inner>) {
        self.sessions.lock().insert(session, Arc::downgrade(inner));
    }

    /// Returns the session's writer, if it is open in this store.
    pub(crate) fn get(&self, session: Uuid) -> Option<Arc<Inner>> {
        self.sessions.lock().get(&session)?.upgrade()
    }

    /// Removes a session that has closed.
    pub(crate) fn forget(&self, session: Uuid) {
        self.sessions.lock().remove(&session);
    }
}
